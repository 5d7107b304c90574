"""The planner's vocabulary: what it is asked, and the two things it can answer.

Everything here can be encoded byte for byte (`canonical.py`), so that a decision can be replayed
from its stored input. Nothing here knows the log, the informers or a clock.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import HostPort, PodShape, RuleKind
from extender.core.planner.preemption_types import Evictable

# Part of every recorded decision; a change that can alter an answer raises it.
PLANNER_VERSION = "1"

GIVEN = "does not fit, given that"  # begins what a refusal rests on that is no proof
EVICTING = "evicting "  # begins how far preemption would get where it does not help

Outcome = Literal["impossible", "unknown", "waiting"]
Feasibility = Literal["Success", "Wait", "Unschedulable", "UnschedulableAndUnresolvable"]
ConflictKind = Literal[
    "minCount", "minGroupCount", "topology", "selector", "taint", "resources", "reservation"
]


class PlanNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node with the room that is left for this tree.

    `free` = allocatable less what assigned pods (terminating ones too), pods nominated with equal or
    higher priority and reservations of other trees take; negative where a node is overcommitted.
    A resource that `allocatable` does not name is not offered. Same units as `PodShape.requests`.
    """

    name: NodeName
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}
    free: dict[str, int] = {}
    host_ports: tuple[HostPort, ...] = ()  # taken by the same pods that `free` was lessened by
    reserved: bool = False  # part of what is missing is held by reservations of other trees


class PlanMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that wants a node."""

    pod: str  # namespace/name
    uid: PodUid
    shape: int  # index into `PlanRequest.shapes`
    prefer: NodeName | None = None  # node of an earlier plan: tried first, never a reason to fail


class PlanBound(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member that is bound (its room is not in `free` any more); it pins the domains above it."""

    pod: str
    uid: PodUid
    node: NodeName


class PlanGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group of the tree with all below it, in stored order (creation time, then name).

    A leaf has members, a composite has groups, never both. `minimum` is minCount or minGroupCount;
    1 when `basic`.
    """

    key: GroupKey
    basic: bool = False
    minimum: int = 1
    topology: tuple[
        str, ...
    ] = ()  # node label keys, outer to inner (SPEC D; one key upstream, L13)
    members: tuple[PlanMember, ...] = ()  # in order of priority, then age
    bound: tuple[PlanBound, ...] = ()
    groups: tuple[PlanGroup, ...] = ()
    mode: Literal["single", "all"] = "single"


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that kube-scheduler refused: for one pod, or for all of a shape."""

    node: NodeName
    uid: PodUid | None = None
    shape: int | None = None


class PlanRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rule between pods (`PodRule`), with the pods of the cluster that it is about counted.

    Shapes of the request that differ in nothing but whom they matter to are listed apart, so that a
    shape tells both who must keep the rule and whom it is about. `shapes` empty: pods that are
    placed already keep pods away (`apart`), and `there` counts these.
    """

    kind: RuleKind
    keys: tuple[str, ...]
    shapes: tuple[int, ...]  # must keep it, ascending
    about: tuple[int, ...]  # are meant by it, ascending
    there: tuple[tuple[tuple[str, int], ...], ...]
    """Pods per key and value of that key, sorted; of `spread` per node, in one table."""
    skew: int = 1
    least_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything a decision depends on."""

    root: PlanGroup
    nodes: tuple[PlanNode, ...]  # sorted by name
    shapes: tuple[PodShape, ...]
    vetoes: tuple[NodeRejection, ...] = ()
    claims_in_use: tuple[
        str, ...
    ] = ()  # ReadWriteOncePod claims of running pods, namespace/name, sorted
    budget: int = 200_000  # search nodes
    rules: tuple[PlanRule, ...] = ()  # between pods, those that matter to a waiting member
    explain: bool = (
        True  # look for the conflict and for ways out when nothing fits (costs more solves)
    )
    evictable: Evictable | None = None  # None: only room that is free may be used


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One member and the node it gets."""

    pod: str
    uid: PodUid
    group: GroupKey
    node: NodeName
    shape: int
    extra: bool  # not part of the minimum that makes the root hold


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The domain chosen for a group that asks for one: (key, value) per key, outer to inner."""

    group: GroupKey
    domain: tuple[tuple[str, str], ...]


class SearchEffort(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the search did; `exhausted` means the verdict is proved, or no plan with more pods exists."""

    nodes: int
    exhausted: bool


class Conflict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One requirement of a smallest set found that cannot hold together."""

    kind: ConflictKind
    object: str  # Kind/namespace/name
    text: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A placement of the whole tree: the minimum of every counted group, and the extras that fitted."""

    placements: tuple[Placement, ...]
    assignments: tuple[Assignment, ...]  # newly placed pods, sorted by pod
    unplaced: tuple[str, ...]  # members without a node, sorted
    search: SearchEffort
    reasons: tuple[str, ...] = ()  # why `unplaced` is not empty
    given: tuple[str, ...] = ()  # what the answer rests on that the planner could not see


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """No plan. *impossible* only when proved, *unknown* when the budget ended the search first."""

    outcome: Outcome
    status: Feasibility
    reasons: tuple[str, ...]  # for people; the first says the most
    search: SearchEffort
    conflict: tuple[Conflict, ...] = ()
    relaxations: tuple[str, ...] = ()  # cheapest ways out, cheapest first
    given: tuple[str, ...] = ()


Verdict: TypeAlias = Plan | Refusal
