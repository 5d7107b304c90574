"""The stored form of events: canonical, versioned, and the same for ever."""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path
from typing import get_args, get_origin
from uuid import UUID

import msgspec
import pytest

from extender.core.log.events import GangObserved
from extender.core.model.errors import CorruptLog, InvariantBroken
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import LeaseGrant, LogHead
from extender.store.log import event_codec
from extender.store.log.event_codec import (
    EMPTY_CHAIN,
    TYPES,
    VERSIONS,
    Row,
    chain,
    decode_event_data,
    encode_data,
    encode_event,
    to_event,
)
from tests.support.logs.fake_store import Script

GOLDEN = Path(__file__).parents[2] / "golden" / "events"


class Sample(msgspec.Struct):
    """One stored row as the golden files have it: the payload as text, byte for byte, and the hash after zeros."""

    position: int
    event_id: str
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
    payload: str
    hash: str

    def row(self) -> Row:
        fields = {name: getattr(self, name) for name in Row._fields}
        return Row(**{**fields, "event_id": UUID(self.event_id), "payload": self.payload.encode()})


def a_value(kind, name):
    """Make a value that is not the default for any type that events use."""
    origin, args = get_origin(kind), get_args(kind)
    if hasattr(kind, "__supertype__"):
        return a_value(kind.__supertype__, name)
    if kind is str:
        return f"{name} \u00e9"
    if kind is bool:
        return True
    if kind is int:
        return 7
    if origin is typing.Literal:
        return args[-1]
    if origin is tuple:
        return (a_value(args[0], name),)
    if origin is dict:
        return {f"{key} {name}": a_value(args[1], name) for key in ("b", "a")}
    if origin in (typing.Union, types.UnionType):
        return a_value(next(arg for arg in args if arg is not type(None)), name)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{field: a_value(hints[field], field) for field in kind.__struct_fields__})
    raise AssertionError(f"no sample for {kind}")


def golden(tag, version):
    return GOLDEN / f"{tag}.v{version}.json"


def write_golden(tag):
    """Store a sample of the current version; only ever for a file that is not there."""
    script = Script(
        LeaseGrant(
            epoch=Epoch(3),
            lease="",
            head=LogHead(position=Position(41), at_us=1_763_000_000_000_000),
        )
    )
    event = script.next(
        a_value(TYPES[tag], tag),
        gang="team-a/serve",
        uid="4b2a2a4e-0000-4000-8000-000000000001",
        event_id="0198c0de-0000-7000-8000-000000000042",
        cause="filter of pod team-a/serve-0",
        cause_position=Position(40),
    )
    row = encode_event(event)[0]
    fields = {**row._asdict(), "event_id": str(row.event_id), "payload": row.payload.decode()}
    sample = Sample(**fields, hash=chain(EMPTY_CHAIN, row).hex())
    golden(tag, VERSIONS[tag]).write_bytes(msgspec.json.format(msgspec.json.encode(sample)) + b"\n")


@pytest.mark.parametrize("tag", sorted(TYPES))
def test_every_version_of_an_event_has_a_golden_file(tag):
    """Run with GX_TEST_WRITE_GOLDEN=1 to store the sample of a new event; files are never rewritten."""
    if os.environ.get("GX_TEST_WRITE_GOLDEN") and not golden(tag, VERSIONS[tag]).exists():
        write_golden(tag)
    assert [n for n in range(1, VERSIONS[tag] + 1) if not golden(tag, n).is_file()] == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_files_are_read_for_ever(path):
    """Each decodes; those of the current version encode to the very same bytes and hash."""
    sample = msgspec.json.decode(path.read_bytes(), type=Sample, strict=True)
    assert path.name == f"{sample.type}.v{sample.schema_version}.json"
    row = sample.row()
    assert chain(EMPTY_CHAIN, row).hex() == sample.hash
    event = to_event(row)
    if sample.schema_version == VERSIONS[sample.type]:
        assert encode_event(event)[0] == row


def test_equal_events_have_equal_bytes():
    """Whatever order a map was filled in."""
    entry = TYPES["NodeTopologyChanged"]
    one = entry(node="n", before={"a": "1", "b": "2"}, after={})
    other = entry(node="n", before={"b": "2", "a": "1"}, after={})
    assert (
        encode_data(one)
        == encode_data(other)
        == b'{"node":"n","before":{"a":"1","b":"2"},"after":{}}'
    )


def test_a_version_without_a_conversion_is_no_event(monkeypatch):
    """A raised `VERSION` alone: the files of the version before in tests/golden/events are not read any more."""
    monkeypatch.setitem(event_codec.VERSIONS, "GangObserved", 2)
    with pytest.raises(CorruptLog, match="position 17: unknown version 1 of GangObserved"):
        decode_event_data("GangObserved", 1, b'{"kind":"PodGroup"}', position=17)


@pytest.mark.parametrize(
    ("tag", "version", "payload"),
    [
        ("NoSuchEvent", 1, b"{}"),
        ("GangObserved", 2, b'{"kind":"PodGroup"}'),
        ("GangObserved", 0, b'{"kind":"PodGroup"}'),
        ("GangObserved", 1, b"{}"),
        ("GangObserved", 1, b'{"kind":"PodGroup","new":1}'),
        ("GangObserved", 1, b'{"kind":3}'),
        ("GangObserved", 1, b"not json"),
        ("GangObserved", 1, b"\xff"),
    ],
)
def test_what_is_not_understood_is_named_with_its_position(tag, version, payload):
    with pytest.raises(CorruptLog, match="position 17"):
        decode_event_data(tag, version, payload, position=17)


def test_what_cannot_be_stored_is_refused():
    script = Script(LeaseGrant(epoch=Epoch(1), lease="", head=LogHead()))
    for event in (
        script.next(GangObserved(kind="\ud800")),
        script.next(gang="a\0b"),
        script.next(cause="\ud800"),
        script.next(event_id="0198C0DE-0000-7000-8000-000000000042"),
    ):
        with pytest.raises(InvariantBroken):
            encode_event(event)[0]


def test_each_column_is_hashed():
    script = Script(LeaseGrant(epoch=Epoch(1), lease="", head=LogHead()))
    row = encode_event(script.next(cause="c"))[0]
    others = {
        "position": 9, "event_id": UUID(int=1), "epoch": 9, "at_us": 9, "type": "x", "schema_version": 9, "gang_uid": "x",
        "stream_version": 9, "gang": "x", "actor": "x", "cause": "x", "cause_position": 9, "payload": b"x",
    }  # fmt: skip
    assert set(others) == set(Row._fields)
    hashes = {chain(EMPTY_CHAIN, row)} | {
        chain(EMPTY_CHAIN, row._replace(**{k: v})) for k, v in others.items()
    }
    assert len(hashes) == len(others) + 1
    assert chain(EMPTY_CHAIN, row._replace(gang="ab", actor="c")) != chain(
        EMPTY_CHAIN, row._replace(gang="a", actor="bc")
    )
    assert event_codec.VERSIONS.keys() == TYPES.keys()
