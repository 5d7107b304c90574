"""Convert older versions of events to the current one when they are read; stored events never change.

Owns one pure function per (type, version) that was ever shipped and is not current. Must not look at
anything but the decoded object. Note: each function converts a version to the next one and `upcast` applies
them in order, so a new version needs one function, not one per old version.

To change an event: raise its version in `event_codec.VERSIONS`, add the function here under the old version,
keep the old golden file and add one of the new version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

JsonObject: TypeAlias = dict[str, object]
Upcaster: TypeAlias = Callable[[JsonObject], JsonObject]


def _refused_without_preemption(data: JsonObject) -> JsonObject:
    """Add `considered`, why preemption does not help; version 1 did not consider it."""
    return {**data, "considered": []}


def _released_without_users(data: JsonObject) -> JsonObject:
    """Add `taken_by`, the pods that took the capacity; version 1 did not record them."""
    return {**data, "taken_by": []}


def _abandoned_without_takeover(data: JsonObject) -> JsonObject:
    """Add the preemptor of a takeover; version 1 did not record takeovers."""
    return {**data, "by": "", "by_uid": "", "lost": []}


def _planned_without_doubts(data: JsonObject) -> JsonObject:
    """Return the data unchanged: version 2 adds only an optional reason why a victim was not reprieved."""
    return data


def _lost_without_hold(data: JsonObject) -> JsonObject:
    """Add `room_until_us`, the end of the replacement hold; version 1 had no such holds."""
    return {**data, "room_until_us": 0}


UPCASTERS: Mapping[tuple[str, int], Upcaster] = {
    ("GangRefused", 1): _refused_without_preemption,
    ("PreemptionAbandoned", 1): _abandoned_without_takeover,
    ("PreemptionPlanned", 1): _planned_without_doubts,
    ("ReservationReleased", 1): _released_without_users,
    ("MemberLost", 1): _lost_without_hold,
}


def upcast(
    data: JsonObject,
    *,
    tag: str,
    ver: int,
    current: int,
    upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
) -> JsonObject:
    """Return an object of version `ver` of its type as one of version `current`.

    Args:
        data: The decoded payload.
        tag: Type of the event.
        ver: Version it was stored with, from 1.
        current: Version that this program writes.
        upcasters: Steps, by (type, version they start from).

    Raises:
        LookupError: A step is missing.

    >>> upcast({"a": 1}, tag="T", ver=1, current=2, upcasters={("T", 1): lambda data: {**data, "b": 2}})
    {'a': 1, 'b': 2}
    """
    for version in range(ver, current):
        step = upcasters.get((tag, version))
        if step is None:
            raise LookupError(f"no upcaster from {tag} version {version}")
        data = step(data)
    return data
