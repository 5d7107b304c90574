"""Convert older versions of events to the current one when they are read; stored events never change.

Owns one pure function per (type, version) that was ever released and is not current; nothing is released yet, so
there is none. Must not look at anything but the decoded object. Note: each function converts a version to the next
one and `upcast` applies them in order, so a new version needs one function, not one per old version.

To change an event: raise its `VERSION`, add the function here under the old version, raise the version in
`migrations/sql/*/project_event.sql`, keep the old golden file and add one of the new version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

JsonObject: TypeAlias = dict[str, object]
Upcaster: TypeAlias = Callable[[JsonObject], JsonObject]

UPCASTERS: Mapping[tuple[str, int], Upcaster] = {}


def upcast(
    data: JsonObject,
    *,
    tag: str,
    schema_version: int,
    current: int,
    upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS,
) -> JsonObject:
    """Return an object of version `schema_version` of its type as one of version `current`.

    Args:
        data: The decoded payload.
        tag: Type of the event.
        schema_version: Version it was stored with, from 1.
        current: Version that this program writes.
        upcasters: Steps, by (type, version they start from).

    Raises:
        LookupError: A step is missing.

    >>> upcast({"a": 1}, tag="T", schema_version=1, current=2, upcasters={("T", 1): lambda data: {**data, "b": 2}})
    {'a': 1, 'b': 2}
    """
    for version in range(schema_version, current):
        step = upcasters.get((tag, version))
        if step is None:
            raise LookupError(f"no upcaster from {tag} version {version}")
        data = step(data)
    return data
