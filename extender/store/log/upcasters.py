"""Old shapes of facts become the next one; what is stored is never rewritten.

Owns one pure function per (type, version) that was ever shipped and is not current. Must not look at
anything but the decoded object. The surprise: steps are small, from a version to the next; `upcast` walks
them, so a new shape needs one function, not one per old version.

To change a fact: raise its version in `codec.VERSIONS`, add the function here under the old version, keep
the old golden file and add one of the new version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

JsonObject: TypeAlias = dict[str, object]
Upcaster: TypeAlias = Callable[[JsonObject], JsonObject]


def _refused_without_preemption(data: JsonObject) -> JsonObject:
    """Version 2 says why preemption does not help; before it, nobody had looked."""
    return {**data, "considered": []}


def _released_to_nobody(data: JsonObject) -> JsonObject:
    """Version 2 names the pods that took the room; before it, nobody had looked."""
    return {**data, "taken_by": []}


def _abandoned_for_nobody(data: JsonObject) -> JsonObject:
    """Version 2 says who takes the room over; before it, nobody did by a record."""
    return {**data, "by": "", "by_uid": "", "lost": []}


def _planned_without_doubts(data: JsonObject) -> JsonObject:
    """Version 2 may say of a victim why it was not put back; where nothing is said nothing is left out."""
    return data


def _lost_without_room(data: JsonObject) -> JsonObject:
    """Version 2 says how long its room is held; before it, no room of a lost member was."""
    return {**data, "room_until_us": 0}


UPCASTERS: Mapping[tuple[str, int], Upcaster] = {
    ("GangRefused", 1): _refused_without_preemption,
    ("PreemptionAbandoned", 1): _abandoned_for_nobody,
    ("PreemptionPlanned", 1): _planned_without_doubts,
    ("ReservationReleased", 1): _released_to_nobody,
    ("MemberLost", 1): _lost_without_room,
}


def upcast(
    data: JsonObject,
    *,
    tag: str,
    ver: int,
    current: int,
    upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
) -> JsonObject:
    """Bring an object from version `ver` of its type to version `current`.

    Args:
        data: The decoded payload.
        tag: Type of the fact.
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
