"""Nodes as the planner sees them."""

from __future__ import annotations

import msgspec

from extender.core.model.ids import NodeName
from extender.core.model.pods import TaintEffect


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint; only the effects NoSchedule and NoExecute exclude pods."""

    key: str
    value: str = ""
    effect: TaintEffect = "NoSchedule"


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node; `allocatable` in the units of `PodShape.requests`."""

    name: NodeName
    uid: str = ""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}
    deleting: bool = False
