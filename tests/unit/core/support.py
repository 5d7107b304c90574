"""Helpers for tests of decisions: fold drafts, and decide until there is nothing more to record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from extender.core.log.events import AnyEventData, NewEvent, RecordedEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.log.state_projector import fold
from extender.core.model.ids import Epoch, GangUid, Position
from extender.core.reconcile.drift import ReconcileContext
from tests.support.service.fakes import check_state

ME = ReconcileContext(actor="test", cause="test")


def folded(
    state: ReservationState, *events: tuple[GangUid, str, AnyEventData], at_us: int = 0
) -> ReservationState:
    """Fold events, each given with its root."""
    drafts = [
        NewEvent(gang_uid=uid, gang=root, data=entry, actor="test") for uid, root, entry in events
    ]
    return fold_drafts(state, drafts, at_us=at_us)


def fold_drafts(
    state: ReservationState, drafts: Iterable[NewEvent], *, at_us: int = 0
) -> ReservationState:
    """Fold what was decided, checking the invariants after every event."""
    for draft in drafts:
        event = RecordedEvent(
            position=Position(state.position + 1),
            event_id=f"id-{state.position + 1}",
            epoch=Epoch(1),
            at_us=max(state.at_us, at_us),
            gang_uid=draft.gang_uid,
            stream_version=state.stream_versions.get(draft.gang_uid, 0) + 1,
            gang=draft.gang,
            actor=draft.actor,
            cause=draft.cause,
            data=draft.data,
        )
        state = fold(state, [event])
        check_state(state)
    return state


def converge(
    state: ReservationState,
    decide: Callable[[ReservationState], Sequence[NewEvent]],
    rounds: int = 4,
) -> ReservationState:
    """Decide and fold until there is nothing to record; a decision that goes on for ever fails."""
    for _ in range(rounds):
        drafts = decide(state)
        if not drafts:
            return state
        state = fold_drafts(state, drafts)
    raise AssertionError(f"does not converge: {[type(d.data).__name__ for d in decide(state)]}")


def check_prefixes(
    state: ReservationState, decide: Callable[[ReservationState], Sequence[NewEvent]]
) -> ReservationState:
    """Cut a decision after every event (a crash, a batch): deciding again must lead to the same roots."""
    whole = converge(state, decide)
    drafts = decide(state)
    for cut in range(len(drafts) + 1):
        again = converge(fold_drafts(state, drafts[:cut]), decide)
        assert again.claims_on == whole.claims_on, cut
        assert again.gang_of == whole.gang_of, cut
        assert {u: r.phase for u, r in again.gangs.items()} == {
            u: r.phase for u, r in whole.gangs.items()
        }, cut
    return whole
