"""Gangs that wait for their minimum, and how long gangs took from their creation to be complete, admitted and scheduled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from extender.core.log.events import GangAdmitted, GangScheduled, RecordedEvent
from extender.core.log.gang_phase import effective_phase, minimum_status
from extender.core.log.reservation_state import EffectivePhase, GangState, ReservationState
from extender.core.model.ids import GangUid
from extender.core.model.object_identity import IdentityMemo

# complete: all members of its minimum have come; recorded with the admission
Stage: TypeAlias = Literal["complete", "admitted", "scheduled"]
NOT_WAITING: Final = ("scheduled", "completed")


class WaitingGang(NamedTuple):
    """A gang whose minimum is not bound."""

    root: GangState
    state: EffectivePhase
    since_us: (
        int  # since its last loss, if its minimum was bound before; else since it was observed
    )


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
        self._looked_at: dict[GangUid, tuple[GangState, WaitingGang | None]] = {}
        self._suspended: IdentityMemo[frozenset[tuple[str, str]]] = IdentityMemo()

    def of(self, state: ReservationState) -> Sequence[WaitingGang]:
        """Return the gangs of a state that wait, without those whose workload is suspended."""
        return self._memo.get(lambda: tuple(self._waiting(state)), same=(state.gangs, state.trees))

    def _waiting(self, state: ReservationState) -> Iterator[WaitingGang]:
        suspended = self._suspended.get(lambda: _suspended_roots(state), same=(state.trees,))
        before, self._looked_at = self._looked_at, {}
        for uid, root in state.gangs.items():
            entry = before.get(uid)
            if entry is None or entry[0] is not root:
                entry = root, _waiting_gang(root)
            self._looked_at[uid] = entry
            if entry[1] is not None and (root.gang, root.kind) not in suspended:
                yield entry[1]


def _waiting_gang(root: GangState) -> WaitingGang | None:
    state = effective_phase(root, minimum_status(root, root.groups))
    if state in NOT_WAITING:
        return None
    lost = root.last_loss is not None and root.phase == "scheduled"
    since_us = root.last_loss.at_us if lost and root.last_loss is not None else root.observed_us
    return WaitingGang(root, state, since_us)


def _suspended_roots(state: ReservationState) -> frozenset[tuple[str, str]]:
    """Return name and kind of the root groups whose workload keeps its pods away."""
    return frozenset(
        (f"{tree.workload.partition('/')[0]}/{group.name}", group.kind)
        for tree in state.trees.values()
        if tree.suspended
        for group in tree.groups
        if not group.parent
    )


def stages_reached(
    before: ReservationState, events: Sequence[RecordedEvent]
) -> Iterator[StageReached]:
    """Yield the stages that gangs reached for the first time with the events of one append.

    A gang that ran before it was admitted, as when the service is installed beside it, reaches none.

    Args:
        before: The state without the events.
        events: In their order.
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
