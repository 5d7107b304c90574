"""The phase of a gang as it is shown, the rules of its minimum, and the gangs that wait for theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from extender.core.log.events import GangAdmitted, GangScheduled, GroupRecord, RecordedEvent
from extender.core.log.reservation_state import (
    EffectivePhase,
    GangState,
    ReservationState,
    WorkloadTree,
)
from extender.core.model.ids import GangUid
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Group

PREEMPTING: Final = "preempting"  # outcome of an answer: the victims of the gang terminate
# The reasons of a gang that has no decision, see `undecided_reason`; they stand in SQL texts.
CAPACITY_TAKEN: Final = "other pods took its capacity before it was bound"
TAKEN: Final = f"{CAPACITY_TAKEN}; it is planned again"
UNDECIDED: Final = "no decision yet since it was observed, its reservations were released or its preemption was cancelled"
# Phases that `GangUnschedulable` and `GangInvalid` do not end.
HOLDS_CAPACITY: Final = ("admitted", "scheduled")


class MinimumStatus(msgspec.Struct, frozen=True, gc=False):
    """How much of the minimum of a gang is there, in pods."""

    present: int  # bound, or ended with success
    needed: int  # of the children that are nearest to their minimum, as many as needed


def effective_phase(root: GangState, minimum: MinimumStatus) -> EffectivePhase:
    """Return the state of a root as named in the table in `extender/README.md`.

    It is the phase of the root; or *preempting* while the root holds no capacity and its victims terminate; or, of a
    root whose minimum was bound and is not any more, what became of it.
    """
    preempting = root.last_decision is not None and root.last_decision.outcome == PREEMPTING
    if root.phase not in HOLDS_CAPACITY:
        return PREEMPTING if preempting else root.phase
    if root.phase != "scheduled":
        return root.phase
    if minimum.present >= minimum.needed:
        completed = root.succeeded and not root.bound and not root.reservations
        return "completed" if completed else "scheduled"
    if root.reservations:
        return "degraded" if root.bound else "admitted"
    if preempting:
        return PREEMPTING
    loss = root.last_loss
    evicted = loss is not None and (loss.preemptor or loss.cause == "preempted")
    return "preempted" if evicted and not root.bound else "degraded"


def capacity_was_taken(root: GangState) -> bool:
    """Return whether other pods took capacity of the last admission of a root, which has no decision since."""
    return (
        root.phase == "observed"
        and root.last_decision is None
        and root.capacity_used_times > 0
        and root.capacity_used_us >= root.admitted_us
    )


def undecided_reason(root: GangState) -> str:
    """Return the reason of a pending root that has no decision; empty: it has one, or it is not pending."""
    if root.last_decision is not None or root.phase in HOLDS_CAPACITY:
        return ""
    return TAKEN if capacity_was_taken(root) else UNDECIDED


def minimum_status(root: GangState, groups: tuple[GroupRecord, ...]) -> MinimumStatus:
    """Return how many pods of the minimum of a root are there.

    The groups of a root that was bound before the log had it are not known: it needs a pod then. One that was never
    admitted or bound needs none.

    Args:
        groups: Its groups, with the minima that count.
    """
    if not groups:
        needed = int(root.phase == "scheduled")
        return MinimumStatus(min(len(root.bound) + sum(root.succeeded.values()), needed), needed)
    counts = Counter(member.group for member in root.bound.values())
    counts.update(root.succeeded)
    needed = missing(groups, {})
    return MinimumStatus(needed - missing(groups, counts), needed)


def minimum_is_bound(root: GangState) -> bool:
    """Return whether the minimum of a root was bound and still is: what it wants more are extra members (C.6)."""
    if root.phase != "scheduled":
        return False
    minimum = minimum_status(root, root.groups)
    return minimum.present >= minimum.needed


def barrier_unit(groups: tuple[GroupRecord, ...], leaf: str) -> GroupRecord:
    """Return the group whose minimum must be complete before a member of `leaf` is bound.

    That is the root, unless it is basic: below a basic parent each child has its own barrier
    (C.7), so it is the first group with a gang policy on the path from the root; else the leaf.

    Raises:
        KeyError: `leaf` is not in the tree.
    """
    composites = {g.name: g for g in groups if g.kind == "CompositePodGroup"}
    unit = next((g for g in groups if g.kind == "PodGroup" and g.name == leaf), None)
    if unit is None:
        raise KeyError(leaf)
    group, path = unit, [unit]
    while group.parent:
        group = composites[group.parent]
        path.append(group)
    for group in reversed(path):
        if not group.basic:
            return group
    return unit


def satisfied(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> bool:
    """Return whether pods per leaf meet the minimum of a group and of the groups it needs below it; see `missing`."""
    return bool(groups) and missing(groups, counts, unit) == 0


def missing(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> int:
    """Return how many pods are missing, at least, for the minimum of a group and of the groups it needs below it.

    Args:
        groups: The tree as recorded, root first; not empty.
        counts: Leaf name -> pods that count (bound, or arrived at bind).

    Source:
        C.1 and C.2 with R = 0: a gang composite needs `minimum` satisfied children, and the required ones (L27).
    """
    children: dict[str, list[GroupRecord]] = {}
    for group in groups[1:]:
        children.setdefault(group.parent, []).append(group)

    def lacks(group: GroupRecord) -> int:
        if group.kind == "PodGroup":
            return max(group.minimum - counts.get(group.name, 0), 0)
        kids = children.get(group.name, ())
        always = [lacks(child) for child in kids if child.name in group.required]
        others = sorted(lacks(child) for child in kids if child.name not in group.required)
        # a missing child needs at least one pod
        absent = len(set(group.required) - {child.name for child in kids})
        left = max(group.minimum - len(always) - absent, 0)
        return sum(always) + absent + sum(others[:left]) + max(left - len(others), 0)

    return lacks(unit if unit is not None else groups[0])


# --- gangs that wait, and how long each stage took


# complete: all members of its minimum have come; recorded with the admission
Stage: TypeAlias = Literal["complete", "admitted", "scheduled"]
NOT_WAITING: Final = ("scheduled", "completed")


class WaitingGang(NamedTuple):
    """A gang whose minimum is not bound."""

    root: GangState
    state: EffectivePhase
    since_us: int  # see `waiting_since_us`


class StageReached(NamedTuple):
    """The first time that a gang reached a stage."""

    stage: Stage
    event: RecordedEvent  # the event that records it
    observed_us: int  # when the log had the gang first
    reached_us: int


class WaitingGangs:
    """The gangs of a state that wait; only gangs that have changed since the last call are looked at."""

    def __init__(self) -> None:
        self._memo: IdentityMemo[tuple[WaitingGang, ...]] = IdentityMemo()
        self._looked_at: dict[GangUid, tuple[GangState, int, WaitingGang | None]] = {}
        self._trees: IdentityMemo[Mapping[tuple[str, str], WorkloadTree]] = IdentityMemo()

    def of(self, state: ReservationState) -> Sequence[WaitingGang]:
        """Return the gangs of a state that wait, without those whose workload is suspended."""
        return self._memo.get(lambda: tuple(self._waiting(state)), same=(state.gangs, state.trees))

    def _waiting(self, state: ReservationState) -> Iterator[WaitingGang]:
        trees = self._trees.get(lambda: _interrupted_trees(state), same=(state.trees,))
        before, self._looked_at = self._looked_at, {}
        for uid, root in state.gangs.items():
            tree = trees.get((root.gang, root.kind))
            resumed_us = tree.resumed_us if tree is not None else 0
            entry = before.get(uid)
            if entry is None or entry[0] is not root or entry[1] != resumed_us:
                phase = effective_phase(root, minimum_status(root, root.groups))
                since_us, waits = waiting_since_us(root, resumed_us), phase not in NOT_WAITING
                gang = WaitingGang(root, phase, since_us) if waits else None
                entry = root, resumed_us, gang
            self._looked_at[uid] = entry
            if entry[2] is not None and not (tree is not None and tree.suspended):
                yield entry[2]


def waiting_since_us(root: GangState, resumed_us: int) -> int:
    """Return since when a gang waits whose minimum is not bound, in microseconds since 1970.

    That is since its last loss, if its minimum was bound before, else since it was observed; but not before its workload
    was resumed.

    Args:
        resumed_us: When its workload was resumed last; 0: never.
    """
    lost = root.last_loss if root.phase == "scheduled" else None
    return max(lost.at_us if lost is not None else root.observed_us, resumed_us)


def resumed_us(trees: Mapping[str, WorkloadTree], root: Group) -> int:
    """Return when the workload of a root group was resumed last, in microseconds since 1970; 0: never, or it has none.

    Args:
        trees: By the UID of the workload.
    """
    tree = trees.get(root.owner_uid)
    if tree is None and root.owner_uid:  # the owner is what the workload belongs to
        tree = next((t for t in trees.values() if t.owner_uid == root.owner_uid), None)
    return tree.resumed_us if tree is not None else 0


def _interrupted_trees(state: ReservationState) -> Mapping[tuple[str, str], WorkloadTree]:
    """Return the trees that are or were suspended, by name and kind of their root groups."""
    return {
        key: tree
        for tree in state.trees.values()
        if tree.suspended or tree.resumed_us
        for key in roots_of(tree)
    }


def roots_of(tree: WorkloadTree) -> Iterator[tuple[str, str]]:
    """Yield name and kind of the root groups of a tree, also of those that the workload's own controller has made."""
    namespace = tree.workload.partition("/")[0]
    for group in tree.groups:
        if not group.parent:
            yield f"{namespace}/{group.name}", group.kind
    for adopted in tree.adopted:
        if not adopted.parent:
            yield f"{namespace}/{adopted.name}", "PodGroup"


def stages_reached(
    before: ReservationState, events: Sequence[RecordedEvent]
) -> Iterator[StageReached]:
    """Yield the stages that gangs reached for the first time with the events of one append.

    A gang that ran before it was admitted, as when the service is installed beside it, reaches none.
    """
    for event in events:
        if not isinstance(event.data, GangAdmitted | GangScheduled):
            continue
        root = before.gangs.get(event.gang_uid)
        observed_us = root.observed_us if root is not None else event.at_us
        admitted = root is not None and root.admitted_us > 0
        if isinstance(event.data, GangScheduled):
            if admitted:
                yield StageReached("scheduled", event, observed_us, event.at_us)
        elif not admitted:
            complete_us = (root.refused_since_us if root is not None else 0) or event.at_us
            yield StageReached("complete", event, observed_us, complete_us)
            yield StageReached("admitted", event, observed_us, event.at_us)
