"""Gangs that wait for their minimum, and how long gangs took from their creation to be complete, admitted and scheduled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from extender.core.log.events import GangAdmitted, GangScheduled, RecordedEvent
from extender.core.log.gang_phase import effective_phase, minimum_status
from extender.core.log.reservation_state import (
    EffectivePhase,
    GangState,
    ReservationState,
    WorkloadTree,
)
from extender.core.model.ids import GangUid
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Group

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
                entry = root, resumed_us, _waiting_gang(root, resumed_us)
            self._looked_at[uid] = entry
            if entry[2] is not None and not (tree is not None and tree.suspended):
                yield entry[2]


def _waiting_gang(root: GangState, resumed_us: int) -> WaitingGang | None:
    state = effective_phase(root, minimum_status(root, root.groups))
    if state in NOT_WAITING:
        return None
    return WaitingGang(root, state, waiting_since_us(root, resumed_us))


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
