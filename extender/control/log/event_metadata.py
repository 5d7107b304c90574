"""Add the metadata of an event to a draft: position, stream version, epoch, time, id."""

from __future__ import annotations

from collections.abc import Sequence

from extender.core.log.events import NewEvent, RecordedEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import Clock


def stamp_events(
    drafts: Sequence[NewEvent], state: ReservationState, epoch: Epoch, clock: Clock
) -> tuple[RecordedEvent, ...]:
    """Return the events that continue `state`; their times never decrease."""
    position, at_us = state.position, state.at_us
    versions: dict[str, int] = {}
    events = []
    for draft in drafts:
        position = Position(position + 1)
        at_us = max(at_us, clock.recording_us())
        version = versions.get(draft.gang_uid, state.stream_versions.get(draft.gang_uid, 0)) + 1
        versions[draft.gang_uid] = version
        events.append(
            RecordedEvent(
                position=position,
                event_id=clock.new_id(),
                epoch=epoch,
                at_us=at_us,
                gang_uid=draft.gang_uid,
                stream_version=version,
                gang=draft.gang,
                actor=draft.actor,
                cause=draft.cause,
                cause_position=draft.cause_position,
                data=draft.data,
            )
        )
    return tuple(events)
