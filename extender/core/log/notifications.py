"""What owners of workloads are notified of, as CloudEvents 1.0: preempted, spared, never fits, waits for long.

Every notification follows from a committed event, or from a gang of the committed state that has waited for so long. Its id
is the same whenever it is made, so that a receiver that gets it twice can drop the second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from extender.core.log import events as ev
from extender.core.log.gang_phase import WaitingGang
from extender.core.log.visible_events import preemptor_name
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of

# preempted: pods are evicted for a preemptor; spared: planned so, but its pods stay; never-fits: not even when no other pod
# runs; waiting: for longer than the setting
NotificationType: TypeAlias = Literal["preempted", "spared", "never-fits", "waiting"]
NEVER: Final = "never"  # of `GangUnschedulable.when_empty`
# Types of events from which notifications are made.
NOTIFYING: Final = (ev.GangUnschedulable, ev.PreemptionCancelled, ev.PreemptionPlanned)
_TYPE_PREFIX: Final = "dev.gang-extender."
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvent in the structured mode of JSON; `namespace` is an extension attribute, for filters of receivers."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str  # Kind/namespace/name
    time: str
    namespace: str
    datacontenttype: str = "application/json"
    data: dict[str, object]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One notification."""

    type: NotificationType
    id: str
    at_us: int
    subject: str  # Kind/namespace/name
    data: dict[str, object]

    def cloud_event(self, source: str) -> CloudEvent:
        """Return it as a CloudEvent of a source."""
        return CloudEvent(
            id=self.id,
            source=source,
            type=_TYPE_PREFIX + self.type,
            subject=self.subject,
            time=_rfc3339(self.at_us),
            namespace=namespace_of(self.subject),
            data=self.data,
        )


def notifications_of(
    event: ev.RecordedEvent, readers: Visibility, kind: str = ""
) -> Iterator[Notification]:
    """Yield the notifications that follow from an event, about objects that the readers see.

    Args:
        readers: Who gets them; of objects of other namespaces they get no names.
        kind: Of the root group of the event; empty: not known.
    """
    match event.data:
        case ev.PreemptionPlanned() as data:
            for unit in data.victims:
                if readers.sees(namespace_of(unit.path)):
                    yield _preempted(event, data, unit, readers)
        case ev.PreemptionCancelled() as data:
            for name in data.units_spared:
                if readers.sees(namespace_of(name)):
                    yield Notification(
                        type="spared",
                        id=f"{event.position}-spared-{name}",
                        at_us=event.at_us,
                        subject=name,
                        data={"position": event.position, "reason": data.reason},
                    )
        case ev.GangUnschedulable(when_empty="never") as data:
            if readers.sees(namespace_of(event.gang)):
                yield Notification(
                    type="never-fits",
                    id=f"{event.position}-never-fits",
                    at_us=event.at_us,
                    subject=_subject(kind, event.gang),
                    data={
                        "position": event.position,
                        "gang": event.gang,
                        "uid": event.gang_uid,
                        "reasons": data.reasons_when_empty or data.reasons,
                        "help": data.help,
                    },
                )
        case _:
            pass


def _preempted(
    event: ev.RecordedEvent, data: ev.PreemptionPlanned, unit: ev.VictimUnit, readers: Visibility
) -> Notification:
    return Notification(
        type="preempted",
        id=f"{event.position}-preempted-{unit.uid}",
        at_us=event.at_us,
        subject=unit.name,
        data={
            "position": event.position,
            "uid": unit.uid,
            "priority": unit.priority,
            "pods": [{"pod": pod.pod, "node": pod.node} for pod in unit.pods],
            "preemptor": preemptor_name(event, data, readers),
            "preemptor_priority": data.priority,
            "preemptor_pods": len(data.assignments),
        },
    )


def waiting_notification(gang: WaitingGang, after_us: int, readers: Visibility) -> Notification:
    """Return the notification that a gang has waited for longer than `after_us` microseconds."""
    root = gang.root
    # of an admitted one it is about further members
    decision = root.last_decision if gang.state != "admitted" else None
    reasons: tuple[str, ...] = ()
    if decision is not None:
        reduced = () if readers == EVERYTHING else decision.reasons_reduced
        reasons = reduced or decision.reasons
    return Notification(
        type="waiting",
        id=f"{root.uid}-waiting-{gang.since_us}-{after_us}",
        at_us=gang.since_us + after_us,
        subject=_subject(root.kind, root.gang),
        data={
            "gang": root.gang,
            "uid": root.uid,
            "state": gang.state,
            "waiting_since": _rfc3339(gang.since_us),
            "waited_seconds": after_us // 1_000_000,
            "reasons": reasons,
            "help": decision.help if decision is not None else (),
        },
    )


def _subject(kind: str, gang: str) -> str:
    return f"{kind}/{gang}" if kind else gang


def _rfc3339(at_us: int) -> str:
    return (_START + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")
