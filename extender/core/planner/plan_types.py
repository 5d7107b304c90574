"""The types of the planner: the plan request, and its two possible results, a plan or a refusal.

A request encodes to canonical bytes (`codec.request_codec`), so that a decision can be replayed
from its stored input. Must not depend on the log, the informers or a clock.

A *unit* is evicted as a whole or not at all: one pod; the pods of the highest group with disruption mode "all"
above a pod; or capacity that one tree (or one pod) holds without running there, by reservations or capacity
claims. Taking that capacity evicts no pod. Terminating pods are in no unit: their capacity becomes free anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import did_you_mean, join_names
from extender.core.model.nodes import Node, SliceLevel, Taint
from extender.core.model.pods import HostPort, PodShape, RuleKind

# --- what can be evicted so that a tree fits

UnitKind = Literal["pod", "group", "reservation"]
MINUTE_US: Final = 60_000_000
# GPU-minutes of one pod that count: more than any pod has worked, and what a million pods lose fits into 64 bits. An extended
# resource may count bytes.
WORK_MAX: Final = 1 << 40


class PlanVictim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pod on a node: assigned, or (in a unit of kind `reservation`) with a reservation there."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    shape: int  # index into `Evictable.shapes`: what it requests, and where it could run again
    since_us: int = 0  # begin of the work that an eviction loses: its start, or its last checkpoint
    budgets: tuple[int, ...] = ()  # indexes into `Evictable.budgets`: those that protect it
    gang: int = -1  # index into `Evictable.gangs`: the leaf it is a member of; -1: none
    rules: tuple[int, ...] = ()  # indexes into `PlanRequest.rules`: those whose tables count it


class PlanUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Pods that are evicted together.

    `name`: `Pod/ns/name`, `PodGroup/ns/name` or `CompositePodGroup/ns/name`; of reservations that of
    the root. `uid`: of the pod, the group, or the root. `priority`: of the pod, or of its tree.
    """

    name: str
    uid: str
    kind: UnitKind
    priority: int
    pods: tuple[PlanVictim, ...]  # sorted by pod
    # its preemption policy allows it to evict others when it is created again
    may_preempt: bool = True
    disruption_target: bool = False  # it is a victim of another preemption already

    @property
    def has_cost(self) -> bool:
        """Return whether evicting it loses running work that no other preemption ends anyway."""
        return self.kind != "reservation" and not self.disruption_target

    @property
    def is_whole_group(self) -> bool:
        """Return whether it is a group that is disrupted as a whole."""
        return self.kind == "group"


class PlanGang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A group of a tree with running members: what it needs, so that extra members can be recognized."""

    name: str  # Kind/namespace/name
    minimum: int  # minCount or minGroupCount; 1 when basic
    required: bool = False  # the group above it cannot do without it
    parent: int = -1  # index of the group above it, which comes first; -1: a root
    running: int = 0  # members of a leaf that run now
    # a gang that is not itself part of a unit: evictions can bring it below its minimum
    counts: bool = True


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodDisruptionBudget: how many of the pods it protects may still be evicted."""

    name: str  # namespace/name
    allowed: int


class PlanDomain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A domain that the tree could have if some pods went, all of which may be evicted or terminate (D20)."""

    group: GroupKey | None  # of the tree, that would have it alone; None: others have it alone
    key: str
    value: str
    pods: tuple[PodUid, ...]  # those of other trees that are there, sorted


class PlanDependent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Reservations of one tree that go when some pods are evicted, and not alone (E-10)."""

    pods: tuple[PlanVictim, ...]  # the members that are expected, sorted by pod
    after: tuple[PodUid, ...]  # all of these must be evicted, sorted; some may terminate already


class Evictable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that could be evicted for one tree, and whether the tree may preempt."""

    priority: int  # of the preemptor
    may_preempt: bool = True  # False: preemptionPolicy Never
    # whether only `going` is asked about, as by `only_awaiting`: there are no units, and no answer speaks of evictions
    only_awaits: bool | UnsetType = UNSET  # never False: older inputs have their bytes without it
    # sorted by kind, name and UID (a name may occur with several UIDs)
    units: tuple[PlanUnit, ...] = ()
    shapes: tuple[PodShape, ...] = ()
    gangs: tuple[PlanGang, ...] = ()
    budgets: tuple[PlanBudget, ...] = ()
    going: tuple[PlanVictim, ...] = ()  # terminating pods, sorted by pod
    # reservations that go with the eviction of units, sorted by their first pod; never empty, and unset in older inputs
    dependents: tuple[PlanDependent, ...] | UnsetType = UNSET
    # names of units that are left out because this tree had them evicted before, sorted
    spared: tuple[str, ...] = ()
    # those of `PlanRequest.closed` and `PlanExclusive.taken` that can be emptied, sorted; never empty
    domains: tuple[PlanDomain, ...] | UnsetType = UNSET
    # The whole minute of the decision since 1970, so that two passes of one minute weigh lost work alike. Unset: lost work does
    # not count, as in older inputs and where there is no clock.
    now_min: int | UnsetType = UNSET

    def lost_min(self, unit: PlanUnit) -> int:
        """Return the work that an eviction of a unit loses, in GPU-minutes; 0 where it has no cost."""
        if isinstance(self.now_min, UnsetType) or not unit.has_cost:
            return 0
        return sum(
            work_min(self.shapes[pod.shape], pod.since_us, self.now_min) for pod in unit.pods
        )


def work_min(shape: PodShape, since_us: int, now_min: int) -> int:
    """Return the GPU-minutes of a pod from a time to a minute, both since 1970; never negative, and at most `WORK_MAX`.

    >>> work_min(PodShape(requests=(("nvidia.com/gpu", 8),)), 119_000_000, 3)
    16
    """
    return min(shape.accelerators * max(now_min - since_us // MINUTE_US, 0), WORK_MAX)


# --- the request and its results

# Part of every recorded decision; increased by a change that can alter a result.
PLANNER_VERSION = "23"
SEARCH_BUDGET = 20_000  # search nodes of one plan, by default
SECONDS_OF_BUDGET = 2  # of CPU time, that so many search nodes take at most on a current machine

GIVEN = "does not fit, given that"  # prefix of the reason of a refusal that is not proved
# the reason of a tree that was waiting for members, and has all of its minimum, until it was planned
COMPLETE = "all members of its minimum are there; it waits for its next look"
TERMINATES = " terminat"  # in the first reason of a tree that waits for terminating pods
EVICTING = "evicting "  # prefix of the reason why evictions would not be enough

Outcome = Literal["impossible", "unknown", "waiting"]
Feasibility = Literal["Success", "Wait", "Unschedulable", "UnschedulableAndUnresolvable"]
ConflictKind = Literal[
    "minCount",
    "minGroupCount",
    "topology",
    "exclusive",
    "selector",
    "taint",
    "resources",
    "reservation",
]
# More exactly which requirement of its kind: `cordons` of kind taint, `podRules` and `volumes` of kind selector, `otherTrees`
# of kind exclusive; the others have none.
ConflictPart = Literal["", "cordons", "podRules", "volumes", "otherTrees"]
RelaxationKind = Literal[
    "minCount",
    "minGroupCount",
    "nodes",
    "reservation",
    "taint",
    "selector",
    "podRules",
    "volumes",
    "topology",
    "exclusive",
]


class PlanNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node with its free capacity for this tree.

    `free` = allocatable minus the requests of assigned pods (terminating ones too), of pods nominated with
    equal or higher priority, and of reservations of other trees; negative where a node is overcommitted.
    The node does not have a resource that `allocatable` does not name. Same units as `PodShape.requests`.
    """

    name: NodeName
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}
    free: dict[str, int] = {}
    host_ports: tuple[HostPort, ...] = ()  # of the pods that are subtracted in `free`
    # what is subtracted in `free` for the claims of others: amounts above zero, of resources that `allocatable` names
    reserved: dict[str, int] = {}

    @classmethod
    def of(cls, node: Node) -> PlanNode:
        """Return a node with nothing free on it."""
        return cls(
            name=node.name,
            labels=node.labels,
            taints=node.taints,
            unschedulable=node.unschedulable or node.deleting,
            allocatable=node.allocatable,
        )


def with_reserved_free(node: PlanNode) -> PlanNode:
    """Return a node on which what is reserved for other trees is free."""
    free = {name: amount + node.reserved.get(name, 0) for name, amount in node.free.items()}
    return msgspec.structs.replace(node, free=free, reserved={})


class PlanMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member that has no node yet."""

    pod: str  # namespace/name
    uid: PodUid
    shape: int  # index into `PlanRequest.shapes`
    prefer: NodeName | None = None  # node of an earlier plan: a preference, not a constraint
    # position in the order of its leaf: neighbours by rank want one domain
    rank: int | UnsetType = UNSET


class PlanBound(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member that is bound (its requests are subtracted in `free`); it fixes the domains of its groups."""

    pod: str
    uid: PodUid
    node: NodeName
    rank: int | UnsetType = UNSET


class PlanNear(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wish: as few pairs of pods as possible, one of this group and one of another, in different domains of a key."""

    group: GroupKey  # of the same tree, neither above nor below this one
    key: str


class PlanExclusive(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The domain of a group has no other group of its tree that is exclusive by this key, and is none of `taken`."""

    key: str
    taken: tuple[str, ...] = ()  # values of the key that other trees or pods have, sorted


class PlanGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group of the tree with everything below it, in stored order (creation time, then name).

    A leaf has members, a composite has groups, never both. `minimum` is minCount or minGroupCount;
    1 when `basic`.
    """

    key: GroupKey
    basic: bool = False
    minimum: int = 1
    # Of a composite: names of children that always count (L27). Unset without any, as in the inputs of older versions.
    required: tuple[str, ...] | UnsetType = UNSET
    # node label keys, outer to inner (one key in the kinds, L13)
    topology: tuple[str, ...] = ()
    members: tuple[PlanMember, ...] = ()  # in order of priority, then age
    bound: tuple[PlanBound, ...] = ()
    groups: tuple[PlanGroup, ...] = ()
    disruption_mode: Literal["single", "all"] = "single"
    exclusive: PlanExclusive | UnsetType = UNSET
    # Wishes: they decide between placements of equally many pods, and never refuse one.
    preferred: tuple[str, ...] | UnsetType = UNSET  # node label keys, narrowest first
    # A wish beside `preferred`: of the domains of its narrowest key the smallest share of the pods is as large as can be.
    balanced: bool | UnsetType = UNSET
    near: tuple[PlanNear, ...] | UnsetType = UNSET
    # Of a composite whose minimum follows from a workload: what sets it there, without the number. Empty: nothing does.
    set_by: str | UnsetType = UNSET
    # Of a leaf: what its pods lack that are no members for that reason (`Pod.waits_for`).
    lacking: tuple[str, ...] | UnsetType = UNSET


class NodeRejection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that kube-scheduler refused: for one pod, or for all of a shape."""

    node: NodeName
    uid: PodUid | None = None
    shape: int | None = None


class PlanRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rule between pods (`PodRule`), with the number of pods in the cluster that it selects.

    Shapes that differ only in the rules that select them are separate shapes, so that a shape decides
    both whether a pod must satisfy the rule and whether the rule selects it. `shapes` empty: the rule is
    the anti-affinity (`apart`) of pods that are placed already, and `there` counts these pods.
    """

    kind: RuleKind
    keys: tuple[str, ...]
    shapes: tuple[int, ...]  # must satisfy it, ascending
    about: tuple[int, ...]  # are selected by it, ascending
    there: tuple[tuple[tuple[str, int], ...], ...]
    """Pods per value, one sorted table for each key; for `spread` one table of pods per node."""
    skew: int = 1
    least_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


class PlanPreference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A preference about other pods (`PodPreference`), with the pods in the cluster that it selects, as they are before the plan."""

    kind: RuleKind
    key: str
    weight: int
    shapes: tuple[int, ...]  # have it, ascending
    # pods per value of the key, sorted; for `spread` pods per node
    there: tuple[tuple[str, int], ...]
    among: bool = False  # it selects waiting members of the tree as well: these are not counted
    skew: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that a decision depends on."""

    root: PlanGroup
    nodes: tuple[PlanNode, ...]  # sorted by name
    shapes: tuple[PodShape, ...]
    rejected_nodes: tuple[NodeRejection, ...] = ()
    # ReadWriteOncePod claims of running pods, namespace/name, sorted
    claims_in_use: tuple[str, ...] = ()
    budget: int = SEARCH_BUDGET  # search nodes
    rules: tuple[PlanRule, ...] = ()  # between pods, those that concern a waiting member
    preferences: tuple[PlanPreference, ...] | UnsetType = UNSET  # of waiting members, about pods
    # Domains that exclusive groups of other trees have: no member may be there. Unset without any.
    closed: tuple[PlanExclusive, ...] | UnsetType = UNSET
    # Topology keys of the cluster, narrowest first: what has no wish is placed in as few of their domains as possible.
    levels: tuple[str, ...] | UnsetType = UNSET
    # Other trees wait for their minimum: members beyond that of this one are planned after them (C.4).
    extras_later: bool | UnsetType = UNSET
    # find the conflict and relaxations when no plan exists (costs more solves)
    explain: bool = True
    # None: only free capacity may be used; `plan` does not read it
    evictable: Evictable | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One member and the node it gets."""

    pod: str
    uid: PodUid
    group: GroupKey
    node: NodeName
    shape: int
    extra: bool  # not part of the minimum of the tree


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The domain chosen for a group with a topology constraint: (key, value) per key, outer to inner."""

    group: GroupKey
    domain: tuple[tuple[str, str], ...]


WishKind = Literal["preferred", "balanced", "near", "rank"]


class WishValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a wish reached by one key, and the best that is possible: proved where both are equal, else a bound.

    Of `preferred` the number of domains that have pods of the group; of `balanced` how many pods the smallest share is below an
    equal one; of `near` the pairs of pods in different domains; of
    `rank` the neighbours in different domains.
    """

    key: str
    value: int
    best: int


class WishOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A wish of a group in a plan: a part of its certificate."""

    kind: WishKind
    group: GroupKey
    values: tuple[WishValue, ...]  # narrowest key first
    pods: int = 0  # of the group, bound ones counted
    # of them that the best single domain of the first key can hold, if more than one is used
    largest: int = 0
    partner: GroupKey | None = None  # of `near`


class SearchEffort(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The cost of a search. `exhausted` of a refusal: it is proved; of a plan: no plan with more pods exists."""

    nodes: int
    exhausted: bool


class Conflict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One requirement of the smallest set found that cannot be satisfied together."""

    kind: ConflictKind
    object: str  # Kind/namespace/name
    message: str
    part: ConflictPart = ""


class AddedNodes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Empty nodes like an existing one: its labels, taints and allocatable capacity."""

    like: NodeName
    count: int
    own_labels: tuple[str, ...]  # keys of which each new node has a value of its own, sorted
    # keys of which all new nodes have one value that no node has, sorted: they are one new domain
    common_labels: tuple[str, ...] = ()


class Relaxation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A change of a request with which its tree fits."""

    kind: RelaxationKind
    text: str
    # whose minimum is lowered, or whose topology constraint is dropped
    groups: tuple[GroupKey, ...] = ()
    minimum: int = 0  # the lower minimum
    taints: tuple[str, ...] = ()  # keys of the taints that all pods tolerate, sorted
    nodes: tuple[
        NodeName, ...
    ] = ()  # that are uncordoned, or where what is reserved becomes free, sorted
    rules: tuple[int, ...] = ()  # indexes of the rules between pods that are dropped
    added: tuple[AddedNodes, ...] = ()
    # units that are evicted then, named for readers of the namespace of the tree, sorted; part of `text`
    evicts: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A placement of the whole tree: its minimum, and the extra members that fit."""

    placements: tuple[Placement, ...]
    assignments: tuple[Assignment, ...]  # newly placed pods, sorted by pod
    unplaced: tuple[str, ...]  # members without a node, sorted
    search: SearchEffort
    reasons: tuple[str, ...] = ()  # why `unplaced` is not empty
    # conditions that the planner does not model and that the plan depends on
    given: tuple[str, ...] = ()
    wishes: tuple[WishOutcome, ...] = ()  # by group in stored order


WhenEmpty = Literal["", "fits", "never", "unknown"]  # empty: not examined


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """No plan.

    *impossible*: proved. *unknown*: the search budget was used up, node rejections may be the cause, or what holds after
    an eviction is not judged. *waiting*: members are missing, or the capacity of terminating pods is enough.
    """

    outcome: Outcome
    status: Feasibility
    reasons: tuple[str, ...]  # for users; the most important first
    search: SearchEffort
    conflict: tuple[Conflict, ...] = ()
    changes: tuple[Relaxation, ...] = ()  # each alone would make the tree fit, the cheapest first
    given: tuple[str, ...] = ()
    # Of an impossible tree without bound members: whether it would fit if no other pod ran.
    when_empty: WhenEmpty = ""
    reasons_when_empty: tuple[str, ...] = ()  # of *never*: what is missing then

    @property
    def relaxations(self) -> tuple[str, ...]:
        """Return the changes as texts."""
        return tuple(change.text for change in self.changes)


Verdict: TypeAlias = Plan | Refusal


# --- what holds for groups of a request


def threshold(group: PlanGroup) -> int:
    """Return M of a group: its minimum, at least the number of its required children; 1 for Basic."""
    if group.basic:
        return 1
    names = required_names(group)
    existing = sum(child.key.name in names for child in group.groups) if names else 0
    return max(group.minimum, len(names), existing)


def required_names(group: PlanGroup) -> tuple[str, ...]:
    """Return the names of the children that a gang composite cannot do without, whatever its minimum is (L27)."""
    return () if group.basic or isinstance(group.required, UnsetType) else group.required


def is_required(child: PlanGroup, parent: PlanGroup) -> bool:
    """Return whether a composite cannot do without a child."""
    return child.key.name in required_names(parent)


def _has_required(group: PlanGroup, counts: Callable[[PlanGroup], bool]) -> bool:
    """Return whether all required children of a group exist and count."""
    names = required_names(group)
    existing = [child for child in group.groups if child.key.name in names] if names else []
    return len({child.key.name for child in existing}) == len(names) and all(map(counts, existing))


def domain_keys(group: PlanGroup) -> tuple[str, ...]:
    """Return the keys of which a group must be in one domain: those of its topology, then that of which it has one alone."""
    if isinstance(group.exclusive, UnsetType) or group.exclusive.key in group.topology:
        return group.topology
    return (*group.topology, group.exclusive.key)


def is_leaf(group: PlanGroup) -> bool:
    """Return whether a group is a PodGroup that is not cut into slices, not a composite."""
    return group.key.kind == "PodGroup" and not group.groups


def present(group: PlanGroup) -> int:
    """Count the elements of a group: pods of a leaf (pending or running), admissible children of a composite."""
    if is_leaf(group):
        return len(group.members) + len(group.bound)
    return sum(1 for child in group.groups if admissible(child))


def admissible(group: PlanGroup) -> bool:
    """Return whether as many members and child groups exist as the minimum requires (C.1)."""
    return present(group) >= threshold(group) and _has_required(group, admissible)


def satisfied_by_bound(group: PlanGroup) -> bool:
    """Return whether the bound members alone satisfy the group."""
    if is_leaf(group):
        return len(group.bound) >= threshold(group)
    held = sum(1 for child in group.groups if satisfied_by_bound(child))
    return held >= threshold(group) and _has_required(group, satisfied_by_bound)


def waiting_reasons(group: PlanGroup) -> list[str]:
    """Return what is missing for admission: of the group itself first, then of its children.

    >>> from extender.core.model.ids import GroupKey
    >>> key = GroupKey(namespace="ns", name="g", kind="PodGroup")
    >>> waiting_reasons(PlanGroup(key=key, minimum=3))
    ['waiting for members of PodGroup ns/g: 3 required, 0 present']
    """
    if admissible(group):
        return []
    elements = "members" if is_leaf(group) else "child groups"
    state = "present" if is_leaf(group) else "ready"
    text = (
        f"waiting for {elements} of {group.key.kind} {group.key.path}: "
        f"{threshold(group)} required, {present(group)} {state}"
    )
    if not isinstance(group.lacking, UnsetType):
        text = "; ".join((text, *group.lacking))
    ready = {child.key.name for child in group.groups if admissible(child)}
    if lacking := [name for name in required_names(group) if name not in ready]:
        names = [child.key.name for child in group.groups]
        absent = next((name for name in lacking if name not in names), "")
        hint = did_you_mean(absent, names) if absent else ""
        text += f", without {join_names(lacking)}, which its requiredGroups name{hint}"
    return [text, *(line for child in group.groups for line in waiting_reasons(child))]


def without_lacking_members(group: PlanGroup, shapes: Sequence[PodShape]) -> PlanGroup:
    """Return a group without members whose claim or volume does not exist: no eviction can help them (E-2)."""
    return msgspec.structs.replace(
        group,
        members=tuple(m for m in group.members if not shapes[m.shape].lacking),
        groups=tuple(without_lacking_members(child, shapes) for child in group.groups),
    )


# --- slices of a leaf: so many of its pods each in one domain of a topology key (D24)

# A slice is a leaf of its own in a plan request, below the PodGroup that it is cut from, so bounds, searches and explanations
# treat it as any other group. The group object of a slice does not exist: what leaves the planner names the PodGroup.
RANK_STEP = 10**9  # ranks from two labels are the outer index times this, plus the inner one
SLICE_MARK = "/slice-"  # no name of a Kubernetes object has a slash
_Part: TypeAlias = "tuple[list[PlanBound], list[PlanMember]]"
NodeLabel: TypeAlias = "Callable[[NodeName, str], str | None]"


def is_slice(key: GroupKey) -> bool:
    """Return whether a key is that of a slice, of which there is no object."""
    return SLICE_MARK in key.name


def object_key(key: GroupKey) -> GroupKey:
    """Return the key of the object that a group of a request belongs to: of a slice its PodGroup, else itself.

    >>> str(object_key(GroupKey("ns", "train/slice-3", "PodGroup")))
    'PodGroup/ns/train'
    """
    return GroupKey(key.namespace, key.name.partition(SLICE_MARK)[0], key.kind)


def group_name(key: GroupKey) -> str:
    """Return kind and path of a group, as messages name it.

    >>> group_name(GroupKey("ns", "train/slice-3", "PodGroup"))
    'slice 3 of PodGroup ns/train'
    """
    name, _, number = key.name.partition(SLICE_MARK)
    text = f"{key.kind} {key.namespace}/{name}"
    return f"slice {number} of {text}" if number else text


def parts_word(key: GroupKey) -> str:
    """Return what the groups below a group are."""
    return "slice" if key.kind == "PodGroup" else "child group"


def is_sliced(group: PlanGroup) -> bool:
    """Return whether a group is cut into slices."""
    return group.key.kind == "PodGroup" and bool(group.groups)


def minimum_pods(group: PlanGroup) -> int:
    """Return how many pods the minimum of a PodGroup or of a slice needs."""
    if not is_sliced(group):
        return threshold(group)
    names = required_names(group)
    pods = sorted(
        minimum_pods(part) for part in group.groups if not names or part.key.name in names
    )
    return sum(pods[: threshold(group)])


def slice_pods(group: PlanGroup) -> int:
    """Return how many pods each slice of a group needs, 0 where they differ; 1 for a group without slices."""
    if not is_sliced(group):
        return 1
    pods = {minimum_pods(part) for part in group.groups}
    return pods.pop() if len(pods) == 1 else 0


def with_slices(leaf: PlanGroup, levels: Sequence[SliceLevel], label: NodeLabel) -> PlanGroup:
    """Return a leaf as a composite of its slices; one that waits for members of its minimum is returned as it is.

    Slice n has the pods with the ranks from n times the size on. Pods without ranks: those that are bound in one domain are of
    the same slices, waiting ones complete these, then form new ones. The minimum counts the bound pods, then slices in their
    order, those with most bound pods first; where it is a whole number of equal slices, any of them count. What is not in it is
    placed slice by slice.

    Args:
        levels: The sizes and keys, the largest first; each size is a multiple of the next.
        label: Returns the value that a node has of a key.
    """
    if not levels or len(leaf.bound) + len(leaf.members) < threshold(leaf):
        return leaf
    return _cut(leaf, levels, label, _positions(leaf))


def _cut(
    leaf: PlanGroup, levels: Sequence[SliceLevel], label: NodeLabel, positions: dict[PodUid, int]
) -> PlanGroup:
    level, *inner = levels
    if positions:
        parts = _by_position(leaf, level.size, positions)
    else:
        parts = dict(enumerate(_by_domain(leaf, level, label)))
    needs = _needs(leaf, list(parts.values()))
    mark = "-" if is_slice(leaf.key) else SLICE_MARK
    slices: list[PlanGroup] = []
    for need, (number, (bound, members)) in zip(needs, parts.items(), strict=True):
        part = PlanGroup(
            key=GroupKey(leaf.key.namespace, f"{leaf.key.name}{mark}{number}", "PodGroup"),
            minimum=need or (1 if leaf.basic else len(bound) + len(members)),
            topology=(level.key,),
            members=tuple(members),
            bound=tuple(bound),
            disruption_mode=leaf.disruption_mode,
        )
        slices.append(_cut(part, inner, label, positions) if inner else part)
    sizes = {len(bound) + len(members) for bound, members in parts.values()}
    any_of_them = len(sizes) == 1 and {0, *sizes}.issuperset(needs)
    required = tuple(s.key.name for s, need in zip(slices, needs, strict=True) if need)
    return msgspec.structs.replace(
        leaf,
        minimum=1 if leaf.basic else len(required),
        required=UNSET if any_of_them or len(required) == len(slices) else required,
        members=(),
        bound=(),
        groups=tuple(slices),
    )


def _positions(leaf: PlanGroup) -> dict[PodUid, int]:
    """Return the positions of the pods by their UIDs, from their ranks; empty: they have none."""
    ranks = {bound.uid: bound.rank for bound in leaf.bound}
    ranks |= {member.uid: member.rank for member in leaf.members}
    ranked = {uid: rank for uid, rank in ranks.items() if rank is not UNSET}
    if len(ranked) < len(ranks):
        return {}
    inner = {uid: rank % RANK_STEP for uid, rank in ranked.items()}
    outer = {uid: rank // RANK_STEP for uid, rank in ranked.items()}
    if len({*inner.values()}) == 1:
        return outer
    each = max(inner.values()) + 1  # pods of a Job
    return {uid: outer[uid] * each + inner[uid] for uid in ranked}


def _by_position(leaf: PlanGroup, size: int, positions: dict[PodUid, int]) -> dict[int, _Part]:
    parts: dict[int, _Part] = {}
    for bound in leaf.bound:
        parts.setdefault(positions[bound.uid] // size, ([], []))[0].append(bound)
    for member in leaf.members:
        parts.setdefault(positions[member.uid] // size, ([], []))[1].append(member)
    return {number: parts[number] for number in sorted(parts)}


def _by_domain(leaf: PlanGroup, level: SliceLevel, label: NodeLabel) -> Iterator[_Part]:
    domains: dict[str, list[PlanBound]] = {}
    for bound in leaf.bound:
        domains.setdefault(label(bound.node, level.key) or f"/{bound.node}", []).append(bound)
    chunks = [
        pods[start : start + level.size]
        for _, pods in sorted(domains.items())
        for start in range(0, len(pods), level.size)
    ]
    waiting = list(leaf.members)
    for chunk in sorted(chunks, key=lambda pods: -len(pods)):
        missing = level.size - len(chunk)
        yield chunk, waiting[:missing]
        del waiting[:missing]
    for start in range(0, len(waiting), level.size):
        yield [], waiting[start : start + level.size]


def _needs(leaf: PlanGroup, parts: Sequence[_Part]) -> list[int]:
    """Return how many pods of each slice the minimum counts."""
    needs = [len(bound) for bound, _ in parts]
    left = threshold(leaf) - sum(needs)
    for at in sorted(range(len(parts)), key=lambda at: (-needs[at], at)):
        more = min(len(parts[at][1]), max(left, 0))
        needs[at] += more
        left -= more
    return needs


# --- other requirements of groups


class RequirementChange(msgspec.Struct, frozen=True):
    """Other requirements of one group; None leaves one as it is."""

    minimum: int | None = None  # of a group with slices in pods
    topology: tuple[str, ...] | None = None
    shares: bool = False  # it may be in a domain that others have, still one
    without: frozenset[str] = frozenset()  # keys of its topology that are dropped

    def __or__(self, other: RequirementChange) -> RequirementChange:
        """Return both changes as one."""
        return RequirementChange(
            minimum=self.minimum if other.minimum is None else other.minimum,
            topology=self.topology if other.topology is None else other.topology,
            shares=self.shares or other.shares,
            without=self.without | other.without,
        )

    def of(self, group: PlanGroup) -> PlanGroup:
        """Return the changed group."""
        replace = msgspec.structs.replace
        if self.minimum is not None:
            # pods, in slices if there are any
            parts = -(-self.minimum // max(slice_pods(group), 1))
            group = replace(group, basic=False, minimum=parts)
            if not self.minimum:  # nothing is required then
                group = replace(group, required=UNSET)
        if self.topology is not None:
            group = replace(group, topology=self.topology, exclusive=UNSET)
        elif self.shares:
            group = replace(group, topology=domain_keys(group), exclusive=UNSET)
        if self.without:
            topology = tuple(key for key in group.topology if key not in self.without)
            is_alone = (
                not isinstance(group.exclusive, UnsetType) and group.exclusive.key in topology
            )
            exclusive = group.exclusive if is_alone else UNSET
            group = replace(group, topology=topology, exclusive=exclusive)
        return group


Changes: TypeAlias = Mapping[GroupKey, RequirementChange]
UNCHANGED = RequirementChange()


def changed_tree(root: PlanGroup, changes: Changes) -> PlanGroup:
    """Return the tree with changed groups."""
    return map_groups(
        root, lambda group: changes[group.key].of(group) if group.key in changes else group
    )


def map_groups(group: PlanGroup, change: Callable[[PlanGroup], PlanGroup]) -> PlanGroup:
    """Apply a change to every group of a tree; the same object where it changes none."""
    children = tuple(map_groups(child, change) for child in group.groups)
    if any(new is not old for new, old in zip(children, group.groups, strict=True)):
        group = msgspec.structs.replace(group, groups=children)
    return change(group)


def walk(group: PlanGroup) -> list[PlanGroup]:
    """List the groups of a tree, parents first."""
    return [group, *(g for child in group.groups for g in walk(child))]


class DecisionInput(msgspec.Struct, frozen=True, kw_only=True):
    """The canonical input of one decision, in parts, so that equal parts are stored once.

    Of a plan request the head is everything but the nodes and the units that can be evicted; its parts are those of
    `codec/request_codec`.
    """

    digest: str  # hex SHA-256 of `hashes`
    head: bytes
    parts: tuple[bytes, ...] = ()
    hashes: tuple[bytes, ...] = ()  # SHA-256 of head and parts; empty: not computed yet

    @classmethod
    def of(cls, head: bytes, parts: tuple[bytes, ...] = ()) -> DecisionInput:
        """Return an input with its hashes."""
        hashes = tuple(hashlib.sha256(piece).digest() for piece in (head, *parts))
        return cls(digest=digest_of_hashes(hashes), head=head, parts=parts, hashes=hashes)


def digest_of_hashes(hashes: Iterable[bytes]) -> str:
    """Return the digest of an input, from the SHA-256 of its head and parts."""
    return hashlib.sha256(b"".join(hashes)).hexdigest()
