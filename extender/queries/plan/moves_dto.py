"""What questions about plans and moves have in common over HTTP, and the bodies of those about moves.

A client without the planner sends and reads them, so numpy must not be imported here.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.planner.moves.move_types import Move, MovesOutcome, StayingPod
from extender.core.planner.plan_types import SEARCH_BUDGET

Count = Annotated[int, msgspec.Meta(ge=0)]


class PlanObjects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objects of a request over HTTP, as `kubectl get -o json` prints them, lists included."""

    # nodes, pods and groups that exist; without it: the live cluster of the service
    cluster: tuple[dict[str, Any], ...] | UnsetType = UNSET
    workload: tuple[dict[str, Any], ...] = ()  # objects to plan; empty: all that is pending
    manifest: str = ""  # YAML or JSON of further objects to plan, as kubectl reads it
    # Kind/namespace/name of groups of the cluster to plan
    groups: tuple[str, ...] = ()


class AssignmentLine(msgspec.Struct, frozen=True):
    """A newly placed pod."""

    pod: str
    group: str
    node: str


class MovesQuestion(
    PlanObjects, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The request over HTTP: a tree to make room for (`workload`, `manifest` or `groups`), or `free`, or `drain`."""

    free: str = ""  # KEY=N: so many whole domains of a topology key
    drain: tuple[str, ...] = ()  # names of nodes, or key=value of a label
    announced: bool = False  # drain the nodes that are cordoned, or have a taint that announces it
    by: str = ""  # RFC 3339, with `drain`: what ends by then need not move
    budget: Count = 0  # moves at most; 0: any number
    max_priority: int | UnsetType = UNSET  # pods above it stay
    max_age_s: Count = 0  # pods that run for longer stay; 0: none
    search_budget: Annotated[int, msgspec.Meta(ge=1, le=200_000)] = SEARCH_BUDGET


class BreakLine(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that falls below its minimum when a drain evicts what has no other place."""

    gang: str  # Kind/namespace/name
    minimum: int
    running: int  # pods, of a composite groups that have their minimum
    left: int


class EndLine(msgspec.Struct, frozen=True, kw_only=True):
    """What ends by itself in time, and so need not move."""

    name: str  # Kind/namespace/name: the root group, or the pod
    pods: int  # on the nodes to drain
    ends: str  # RFC 3339, at the latest


class NodePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A node that changes, before and after."""

    node: str
    resource: str
    allocatable: int
    free_before: int
    free_after: int


class MovesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; `fits`: no move is needed, `impossible`: proved."""

    verdict: MovesOutcome
    question: str
    moves: tuple[Move, ...] = ()  # in order, one after the other
    least: int = 0  # proved: no fewer moves lead there
    # proved: of equally many moves none have a lower sum of priorities, and with the same none lose less work
    cheapest: bool = False
    lost_min: int = 0  # GPU-minutes of work that all moves lose
    emptied: tuple[str, ...] = ()  # domains or nodes
    assignments: tuple[AssignmentLine, ...] = ()  # of the tree, after the moves
    unmoved: tuple[str, ...] = ()  # pods that have no place elsewhere
    stays: tuple[StayingPod, ...] = ()
    breaks: tuple[BreakLine, ...] = ()
    ends: tuple[EndLine, ...] = ()  # by the time of the question, the first to end first
    begin_after: str = (
        ""  # RFC 3339: begin after it, and nothing stays or breaks; empty: now, or it is not known
    )
    nodes: tuple[NodePicture, ...] = ()
    reasons: tuple[str, ...] = ()
    proved: bool = True  # False: the search was cut short
    warnings: tuple[str, ...] = ()
    as_of: str = ""  # RFC 3339: time of the live cluster; empty for a cluster in the request
    plan: str = ""  # id of the plan, where the moves are being made


class MovesUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """The moves that the service makes; an empty `plan`: none are under way."""

    plan: str = ""
    question: str = ""
    by: str = ""
    since: str = ""  # RFC 3339
    paused: bool = False
    made: int = 0  # so many of `moves`
    moves: tuple[Move, ...] = ()  # in order
    state: str = ""  # what is done now, as a sentence
