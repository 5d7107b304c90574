"""Moves of running pods that are being made: part of the reservation state.

There is one plan at a time. It is *under way* from `MovesPlanned` to `MovesEnded`, and its moves are made one after the other:
the pod of the current move is evicted, its controller makes a new one, which is bound to the node that is held for it, and
`MoveCompleted` ends the move. The capacity of all moves that are left is claimed on their new nodes from the plan on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from extender.core.log import events as ev
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid, Position

_NONE: Final = PodUid("")


class PendingMoves(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The moves that are under way, in their order."""

    id: PlanId
    question: str
    by: str  # the user who asked for them, or the policy
    position: Position  # of the plan
    at_us: int
    moves: tuple[ev.MoveRecord, ...]
    made: int = 0  # so many of them; that of this index is the current one
    paused: bool = False  # no further pod is evicted
    progress_us: int  # when they were planned or resumed, the pod of a move was lost or first replaced, or a move completed
    lost_us: int = 0  # when the pod of the current move was lost; 0: it runs
    # has a reservation on the new node of the current move, or is bound there
    replacement: PodUid = _NONE
    for_gang: str = ""  # as of `MovesPlanned`
    for_uid: GangUid = NIL_GANG

    @property
    def current(self) -> ev.MoveRecord:
        """Return the move that is made now."""
        return self.moves[self.made]

    def claims(self) -> Iterator[CapacityClaim]:
        """Yield the claims of the moves that are left, on their new nodes."""
        for move in self.moves[self.made + bool(self.replacement) :]:
            yield CapacityClaim(
                kind="move", plan=self.id, gang_uid=move.gang_uid, pod=move.pod, uid=move.uid, group=move.group,
                node=move.target, requests=move.requests, priority=move.priority, at_us=self.at_us,
            )  # fmt: skip

    def sentence(self, waits_for: str = "") -> str:
        """Return what is done now.

        Args:
            waits_for: Why the pod of the current move is not evicted; empty: it is, or that is not known.
        """
        move = self.current
        if self.lost_us:
            text = f"waits until the new pod of {move.pod} is bound to {move.target}"
            return text + ("; paused: no further pod is evicted then" if self.paused else "")
        if self.paused:
            return f"paused before {move.pod} leaves {move.source}"
        return f"{move.pod} leaves {move.source}" + (f" later: {waits_for}" if waits_for else "")

    def takes(self, gang_uid: GangUid, group: str, node: NodeName) -> bool:
        """Return whether a new member of a leaf on a node is the replacement of the current move."""
        move = self.current
        of_current = (move.gang_uid, move.group, move.target) == (gang_uid, group, node)
        return bool(self.lost_us) and of_current


def after_event(  # noqa: C901, PLR0911, PLR0912 -- one arm per event
    before: PendingMoves | None, event: ev.RecordedEvent
) -> PendingMoves | None:
    """Return the moves that are under way after an event; the same object where it changes nothing."""
    data = event.data
    if isinstance(data, ev.MovesPlanned):
        return PendingMoves(
            id=data.plan, question=data.question, by=data.by, position=event.position, at_us=event.at_us,
            progress_us=event.at_us, moves=data.moves, for_gang=data.for_gang, for_uid=data.for_uid,
        )  # fmt: skip
    if before is None:
        return None
    match data:
        case ev.MovesEnded() if data.plan == before.id:
            return None
        case ev.MovesPaused() if data.plan == before.id:
            return msgspec.structs.replace(before, paused=data.paused, progress_us=event.at_us)
        # of the last one `MovesEnded` follows in the same append
        case ev.MoveCompleted() if data.plan == before.id and data.number < len(before.moves):
            return msgspec.structs.replace(
                before, made=data.number, progress_us=event.at_us, lost_us=0, replacement=_NONE
            )
        case ev.MemberTerminated() if event.gang_uid == before.current.gang_uid:
            if data.uid == before.current.uid:
                return msgspec.structs.replace(before, lost_us=event.at_us, progress_us=event.at_us)
            return _replaced(before, event, _NONE) if data.uid == before.replacement else before
        case ev.GangAdmitted() | ev.GangExtended():
            for record in data.assignments:
                if before.takes(event.gang_uid, record.group, record.node):
                    return _replaced(before, event, record.uid)
        case ev.PodBound() if data.uid == before.current.uid:
            # it came back with its node, and has still to leave
            return msgspec.structs.replace(before, lost_us=0, replacement=_NONE)
        case ev.PodBound() if before.takes(event.gang_uid, data.group, data.node):
            return _replaced(before, event, data.uid)
        case ev.ReservationReleased() if before.replacement in {pod.uid for pod in data.pods}:
            return _replaced(before, event, _NONE)
        case _:
            pass
    return before


def _replaced(before: PendingMoves, event: ev.RecordedEvent, uid: PodUid) -> PendingMoves:
    if before.replacement == uid or (before.replacement and uid):
        return before
    # further ones are no progress: pods that are made again and again, and never bound, do not keep the moves alive
    is_first = bool(uid) and before.progress_us <= before.lost_us
    return msgspec.structs.replace(
        before, replacement=uid, progress_us=event.at_us if is_first else before.progress_us
    )
