"""Encode events as rows: canonical JSON, type tag, version, and the hash that chains each to its predecessor.

Owns the stored format. Must not use a connection. Note: the hash covers the columns and the exact payload
bytes, so the format must never change; a new column needs a new kind of hash.

Stored events never change, and each version of each type stays readable. To change the shape of an event: raise its
`VERSION`, and that in `project_event.sql`, which a new migration replaces; convert the decoded object of the older version in
`decode_event_data`, each version to the next one, from nothing but that object; keep the old file in `tests/golden/events` and add
one of the new version. Every event has version 1 today.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_args
from uuid import UUID

import msgspec
from asyncpg.pgproto import pgproto

from extender.core.log.events import AnyEventData, RecordedEvent
from extender.core.model.errors import CorruptLog, InvariantBroken

EMPTY_CHAIN: Final = bytes(32)  # the hash before position 1
TYPES: Final[Mapping[str, type[AnyEventData]]] = {
    data.__name__: data for data in get_args(AnyEventData)
}

# The version written for each type.
VERSIONS: Final[Mapping[str, int]] = {tag: data.VERSION for tag, data in TYPES.items()}

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODERS: Final = {tag: msgspec.json.Decoder(data) for tag, data in TYPES.items()}
_NUMBERS: Final = struct.Struct(">qqqqqq")
_length: Final = struct.Struct(">i").pack


class Row(NamedTuple):
    """One row of the log, in the order of its columns. A tuple, because a million of them are read in seconds."""

    position: int
    event_id: UUID
    epoch: int
    at_us: int
    type: str
    schema_version: int
    gang_uid: str
    stream_version: int
    gang: str
    actor: str
    cause: str
    cause_position: int | None
    payload: bytes


Columns: TypeAlias = Sequence[Any]  # a `Row`, or its values in the same order without the names


def encode_data(data: AnyEventData) -> bytes:
    """Return the canonical bytes: fields in declared order, keys of maps sorted, no spaces."""
    return _ENCODER.encode(data)


def encode_event(event: RecordedEvent) -> tuple[Row, bytes]:
    """Return the row of an event, and the `image` of the row.

    Raises:
        InvariantBroken: PostgreSQL cannot store the event unchanged; names the event and the field.
    """
    tag = type(event.data).__name__
    for field in ("gang_uid", "gang", "actor", "cause"):
        if "\0" in getattr(event, field):
            raise InvariantBroken(f"event {event.event_id} ({tag}): {field} holds a NUL character")
    try:
        event_id: UUID = pgproto.UUID(event.event_id)  # as the driver reads them, and made in C
        row = Row(
            position=event.position,
            event_id=event_id,
            epoch=event.epoch,
            at_us=event.at_us,
            type=tag,
            schema_version=VERSIONS[tag],
            gang_uid=event.gang_uid,
            stream_version=event.stream_version,
            gang=event.gang,
            actor=event.actor,
            cause=event.cause,
            cause_position=event.cause_position,
            payload=encode_data(event.data),
        )
        row_image = image(row)
    except (ValueError, KeyError, struct.error, UnicodeError) as error:
        raise InvariantBroken(
            f"event {event.event_id} ({tag}) cannot be stored: {error}"
        ) from error
    if str(event_id) != event.event_id:
        raise InvariantBroken(f"event {event.event_id} ({tag}): the id is not a UUID in lower case")
    return row, row_image


def chain(previous: bytes, row: Row) -> bytes:
    """Return the hash of a row: SHA-256 over the previous hash and the `image` of the row.

    Args:
        previous: 32 bytes; `EMPTY_CHAIN` for the first event.

    Returns:
        32 bytes.
    """
    return link(previous, image(row))


def link(previous: bytes, row_image: bytes) -> bytes:
    """Return the hash of a row, given its `image`; see `chain`."""
    return hashlib.sha256(previous + row_image).digest()


def image(row: Columns) -> bytes:
    """Return the bytes of a row that are hashed together with the previous hash.

    Position, epoch, schema_version, stream_version, at_us and cause_position (0 for none) as 8-byte big-endian integers;
    the 16 bytes of event_id; type, gang_uid, gang, actor, cause and the payload, each behind its length
    as a 4-byte big-endian integer. In SQL that is `int8send`, `uuid_send`, `int4send(octet_length(...))`
    and `convert_to(..., 'UTF8')`.

    Raises:
        struct.error: A number does not fit.
        UnicodeError: A text is no Unicode.
    """
    position, event_id, epoch, at_us, tag, schema_version, uid, stream_version, gang, actor, cause, by, payload = row  # fmt: skip
    numbers = _NUMBERS.pack(position, epoch, schema_version, stream_version, at_us, by or 0)
    tag, uid, gang = tag.encode(), uid.encode(), gang.encode()
    actor, cause = actor.encode(), cause.encode()
    return b"".join((
        numbers, event_id.bytes,
        _length(len(tag)), tag, _length(len(uid)), uid, _length(len(gang)), gang,
        _length(len(actor)), actor, _length(len(cause)), cause, _length(len(payload)), payload,
    ))  # fmt: skip


def decode_event_data(
    tag: str, schema_version: int, payload: bytes, *, position: int
) -> AnyEventData:
    """Return the data of a payload.

    Raises:
        CorruptLog: Type or version are unknown, or the bytes do not have that shape.
    """
    current = VERSIONS.get(tag)
    if current is None:
        raise CorruptLog(f"position {position}: unknown type {tag!r}; written by a newer version?")
    if schema_version != current:
        raise CorruptLog(
            f"position {position}: unknown version {schema_version} of {tag}; written by a newer version?"
        )
    try:
        return _DECODERS[tag].decode(payload)
    except msgspec.MsgspecError as error:
        raise CorruptLog(
            f"position {position}: {tag} version {schema_version} cannot be read: {error}"
        ) from error


def to_event(row: Columns) -> RecordedEvent:
    """Return the event of a row.

    Raises:
        CorruptLog: Type or version are unknown, or the payload cannot be decoded.
    """
    position, event_id, epoch, at_us, tag, schema_version, uid, stream_version, gang, actor, cause, by, payload = row  # fmt: skip
    return RecordedEvent(
        position=position,
        event_id=str(event_id),
        epoch=epoch,
        at_us=at_us,
        gang_uid=uid,
        stream_version=stream_version,
        gang=gang,
        actor=actor,
        cause=cause,
        data=decode_event_data(tag, schema_version, payload, position=position),
        cause_position=by,
    )
