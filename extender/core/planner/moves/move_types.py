"""The types of a search for moves: the request, and its answer.

A move evicts one pod, of which its controller makes a new one, which gets a node that was chosen before. Each pod is moved
at most once, and one after the other: the new pod runs before the next is evicted. So a gang lacks one member at most, and
may give one as long as it has more than its minimum. Of a gang with a required domain a member moves within that domain only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    SEARCH_BUDGET,
    Plan,
    PlanNode,
    PlanRequest,
    SearchEffort,
)

MovesOutcome = Literal["fits", "moves", "impossible", "unknown"]


class Mover(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running pod that may be moved."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    shape: int  # index into `MovesRequest.shapes`
    priority: int
    group: str = ""  # the leaf it is a member of, Kind/namespace/name; empty: none
    lost_min: int = 0  # GPU-minutes of work that its eviction loses
    within: tuple[tuple[str, str], ...] = ()  # labels that its new node must have


class StayingPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running pod that is not moved."""

    pod: str
    node: NodeName
    reason: str
    on_every_node: bool = False  # of a DaemonSet, or static: a node with no other pod is empty


class MovesRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that an answer depends on. Either `tree` is set, or `sets`."""

    nodes: tuple[PlanNode, ...]  # sorted by name; those of `tree`, if it is set
    shapes: tuple[PodShape, ...]
    movers: tuple[Mover, ...]  # sorted by pod
    staying: tuple[StayingPod, ...] = ()  # sorted by pod
    barred: frozenset[NodeName] = frozenset()  # nodes that no pod is moved to
    tree: PlanRequest | None = None  # whose minimum shall fit afterwards
    sets: tuple[tuple[NodeName, ...], ...] = ()  # nodes to empty, by domain
    count: int = 0  # how many of the sets; 0: all, as far as their pods have a place elsewhere
    budget: int = 0  # moves at most; 0: any number
    search_budget: int = SEARCH_BUDGET  # search nodes


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A move: the pod is evicted from a node, and its new pod gets the other, which can take it before."""

    pod: str
    uid: PodUid
    group: str  # the leaf it is a member of, Kind/namespace/name; empty: none
    source: NodeName = msgspec.field(name="from")
    target: NodeName = msgspec.field(name="to")
    priority: int
    lost_min: int = 0  # GPU-minutes of work since its start, or its last checkpoint


NO_SEARCH = SearchEffort(nodes=0, exhausted=True)


class MovesPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer.

    *fits*: no move is needed. *impossible*: proved that no moves lead there, or none within the budget. *unknown*: none were
    found within the search budget.
    """

    outcome: MovesOutcome
    moves: tuple[Move, ...] = ()  # in order
    least: int = 0  # proved: no fewer moves lead there
    # proved: of equally many moves none have a lower sum of priorities, and with the same none lose less work (see `_weights`)
    cheapest: bool = False
    emptied: tuple[int, ...] = ()  # indexes into the sets of the request
    plan: Plan | None = None  # of the tree, after the moves
    unmoved: tuple[str, ...] = ()  # pods on nodes to empty that have no place elsewhere
    reasons: tuple[str, ...] = ()
    search: SearchEffort = NO_SEARCH
