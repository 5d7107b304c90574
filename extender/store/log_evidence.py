"""Read what is stored beside the log, for its verification.

Owns the queries. Must not judge what it reads. Note: rows are read by their keys, so that a page of the log costs as much in
a long log as in a short one; only `row_counts` and the calls about additional names of the index read whole tables.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from extender.core.log.interval_row_projection import IntervalRow
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import Snapshot
from extender.ports.verification_ports import (
    Definition,
    InputFault,
    StoredReference,
    StoredSnapshot,
)
from extender.runtime.log_keys import NO_KEYS, LogKeys
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import INPUTS, PARTS, PRUNED_BEFORE_US, unpack
from extender.store.log.log_reader import SETTINGS
from extender.store.schema_definitions import read_definitions, read_privileged_roles
from extender.store.snapshot_table import authenticated
from extender.store.tables import COLUMNS, INTERVAL_TABLES, IntervalTable

LEASE: Final = "SELECT epoch FROM gx.lease WHERE id = 1"
SNAPSHOT_KEYS: Final = "SELECT position, codec FROM gx.snapshot ORDER BY position, codec"
SNAPSHOT: Final = (
    "SELECT chain, sha256, body, mac FROM gx.snapshot WHERE position = $1 AND codec = $2"
)
PARTS_AT_ONCE: Final = 256
PIECE_BYTES: Final = 1 << 20  # of a body that is decompressed: a forged one may be of any size
PROJECTED: Final = "SELECT position FROM gx.projection WHERE id = 1"
PARTS_MAX: Final = 200_000  # remembered digests of parts, some 20 MB
INDEXED: Final = "SELECT position FROM gx.event_reference_cursor WHERE id = 1"
UNINDEXED: Final = """
SELECT k.n FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS k (position, kind, name, n)
WHERE NOT EXISTS (
    SELECT FROM gx.event_reference r WHERE r.kind = k.kind AND r.name = k.name AND r.position = k.position
)
"""
NAMES_AT_ONCE: Final = 500  # looked up in the index, whatever the size of the table
# A value of another kind of JSON than text is no name, and no question asks for it.
COUNTED: Final = "left(r.name, 1) NOT IN ('{', '[')"
INDEXED_COUNTS: Final = f"""
SELECT CASE WHEN r.position BETWEEN 1 AND c.position THEN (r.position - 1) / $2 ELSE -1 END AS block, count(*)
FROM gx.event_reference r CROSS JOIN gx.event_reference_cursor c
WHERE c.id = 1 AND (r.position <= $1 OR r.position > c.position) AND {COUNTED} GROUP BY 1
"""  # noqa: S608 -- our text
INDEXED_NAMES: Final = f"""
SELECT r.position, r.kind, r.name FROM gx.event_reference r WHERE r.position > $1 AND r.position <= $2 AND {COUNTED}
"""  # noqa: S608 -- our text


class PostgresLogEvidence:
    """The `LogEvidence` port on PostgreSQL; one connection, opened at the first use and closed with `close`."""

    def __init__(self, url: str, keys: LogKeys = NO_KEYS) -> None:
        self._keys = keys
        self._connection = ConnectionPool(
            url, name="verify", single=True, settings=SETTINGS, command_timeout_s=60.0
        )
        self.close = self._connection.close
        self._parts: dict[int, bytes | str] = {}  # the digest of the body, or what is wrong with it

    async def lease_epoch(self) -> Epoch:
        """See `LogEvidence.lease_epoch`."""
        return Epoch(await self._connection.value("reading the lease", LEASE) or 0)

    async def snapshot_keys(self) -> Sequence[tuple[Position, str]]:
        """See `LogEvidence.snapshot_keys`."""
        rows = await self._connection.rows("listing snapshots", SNAPSHOT_KEYS)
        return [(Position(row["position"]), row["codec"]) for row in rows]

    async def snapshot(self, position: Position, codec: str) -> StoredSnapshot | None:
        """See `LogEvidence.snapshot`."""
        rows = await self._connection.rows("reading a snapshot", SNAPSHOT, position, codec)
        if not rows:
            return None
        chain, sha256, body, mac = rows[0]
        digest = await asyncio.to_thread(hashlib.sha256, body)
        authentic = None
        if self._keys.authenticates and mac is not None:
            whole = Snapshot(position=position, codec=codec, chain=chain, body=body)
            authentic = await asyncio.to_thread(self._keys.mac_valid, authenticated(whole), mac)
        return StoredSnapshot(
            position=position,
            codec=codec,
            chain=chain,
            body=body,
            intact=digest.digest() == sha256,
            authentic=authentic,
        )

    async def input_faults(self, digests: Sequence[str]) -> Mapping[str, InputFault]:
        """See `LogEvidence.input_faults`."""
        faults: dict[str, InputFault] = {}
        numbers: dict[str, list[int]] = {}
        async with self._connection.use("looking inputs of decisions up") as connection:
            for digest, packed in await connection.fetch(INPUTS, list(digests)):
                try:
                    numbers[digest] = unpack(packed, digest)
                except CorruptLog as error:
                    faults[digest] = InputFault(missing=False, text=str(error))
            needed = {n for parts in numbers.values() for n in parts}.difference(self._parts)
            if len(self._parts) + len(needed) > PARTS_MAX:
                self._parts.clear()
                needed = {n for parts in numbers.values() for n in parts}
            waiting = sorted(needed)
            for start in range(0, len(waiting), PARTS_AT_ONCE):
                rows = await connection.fetch(PARTS, waiting[start : start + PARTS_AT_ONCE])
                self._parts.update(await asyncio.to_thread(_computed, rows))
        for digest in digests:
            if digest in numbers:
                fault = self._fault(digest, numbers[digest])
                if fault is not None:
                    faults[digest] = fault
            elif digest not in faults:
                faults[digest] = InputFault(missing=True, text=f"input {digest} is not stored")
        return faults

    def _fault(self, digest: str, parts: Sequence[int]) -> InputFault | None:
        """Return what is wrong with an input: its digest is the SHA-256 of those of its parts."""
        hashes = []
        for number in parts:
            part = self._parts.get(number)
            if part is None:
                return InputFault(missing=True, text=f"input {digest}: part {number} is not stored")
            if isinstance(part, str):
                return InputFault(missing=False, text=f"input {digest}: part {number} {part}")
            hashes.append(part)
        if hashlib.sha256(b"".join(hashes)).hexdigest() == digest:
            return None
        text = f"input {digest}: the bodies of its parts have another digest"
        return InputFault(missing=False, text=text)

    async def pruned_before_us(self) -> int:
        """See `LogEvidence.pruned_before_us`."""
        return await self._connection.value("asking what was pruned", PRUNED_BEFORE_US) or 0

    async def projected(self) -> Position:
        """See `LogEvidence.projected`."""
        doing = "reading the projected position"
        return Position(await self._connection.value(doing, PROJECTED) or 0)

    async def stored_rows(self, rows: Sequence[IntervalRow]) -> Sequence[IntervalRow | None]:
        """See `LogEvidence.stored_rows`."""
        by_key: dict[tuple[object, ...], IntervalRow] = {}
        async with self._connection.use("reading interval tables") as connection:
            for kind, table in INTERVAL_TABLES.items():
                mine = [row for row in rows if type(row) is kind]
                if not mine:
                    continue
                columns = COLUMNS[kind]
                values = [[getattr(row, name) for row in mine] for name in table.key]
                for record in await connection.fetch(_by_key(table, columns), *values):
                    fields: dict[str, Any] = {name: _plain(name, record[name]) for name in columns}
                    stored = kind(**fields)
                    by_key[_key(stored)] = stored
        return [by_key.get(_key(row)) for row in rows]

    async def row_counts(self, until: Position) -> Mapping[str, tuple[int, int]]:
        """See `LogEvidence.row_counts`."""
        async with self._connection.use("counting rows of interval tables") as connection:
            return {
                table.name: await connection.fetchrow(
                    f"SELECT count(*) FILTER (WHERE {table.begin} <= $1), "  # noqa: S608 -- our names
                    f"count(*) FILTER (WHERE {table.begin} > ({PROJECTED})) FROM gx.{table.name}",
                    until,
                )
                for table in INTERVAL_TABLES.values()
            }

    async def indexed(self) -> Position:
        """See `LogEvidence.indexed`."""
        doing = "reading the position of the index"
        return Position(await self._connection.value(doing, INDEXED) or 0)

    async def unindexed(self, names: Sequence[StoredReference]) -> Sequence[StoredReference]:
        """See `LogEvidence.unindexed`."""
        missing: list[StoredReference] = []
        async with self._connection.use("looking names up in the index") as connection:
            for start in range(0, len(names), NAMES_AT_ONCE):
                piece = names[start : start + NAMES_AT_ONCE]
                columns = [list(column) for column in zip(*piece, strict=True)]
                rows = await connection.fetch(UNINDEXED, *columns)
                missing += (piece[number - 1] for number in sorted(row["n"] for row in rows))
        return missing

    async def indexed_counts(self, until: Position, block: int) -> Mapping[int, int]:
        """See `LogEvidence.indexed_counts`."""
        doing = "counting the names of the index"
        return dict(await self._connection.rows(doing, INDEXED_COUNTS, until, block))

    async def indexed_names(self, after: Position, until: Position) -> Sequence[StoredReference]:
        """See `LogEvidence.indexed_names`."""
        doing = "reading names of the index"
        rows = await self._connection.rows(doing, INDEXED_NAMES, after, until)
        return [StoredReference(*row) for row in rows]

    async def privileged_roles(self) -> Sequence[str]:
        """See `LogEvidence.privileged_roles`."""
        async with self._connection.use("reading the roles of the database") as connection:
            return await read_privileged_roles(connection)

    async def definitions(self) -> Sequence[Definition]:
        """See `LogEvidence.definitions`."""
        async with self._connection.use("reading the definitions of the schema") as connection:
            return await read_definitions(connection)


def _computed(rows: Sequence[asyncpg.Record]) -> dict[int, bytes | str]:
    """Return the digests of parts as they follow from their bodies, or what is wrong with a part."""
    digests: dict[int, bytes | str] = {}
    for number, stored, body in rows:
        try:
            digest = _digest(body)
        except zlib.error:
            digests[number] = "cannot be decompressed"
            continue
        digests[number] = digest if digest == stored else "has a body without its digest"
    return digests


def _digest(body: bytes) -> bytes:
    """Return the SHA-256 of a compressed body."""
    whole, digest = zlib.decompressobj(), hashlib.sha256()
    while piece := whole.decompress(body, PIECE_BYTES):
        digest.update(piece)
        body = whole.unconsumed_tail
    if not whole.eof or whole.unused_data:
        raise zlib.error("the end is missing, or bytes are behind it")
    return digest.digest()


def _by_key(table: IntervalTable, columns: Sequence[str]) -> str:
    """Return the query of rows by the arrays of their key columns."""
    selected = ", ".join(f"t.{name}" for name in columns)
    arrays = ", ".join(f"${n}::{of}[]" for n, of in enumerate(table.key.values(), start=1))
    names = ", ".join(table.key)
    return (
        f"SELECT {selected} FROM gx.{table.name} t "  # noqa: S608 -- our names
        f"JOIN unnest({arrays}) AS k({names}) USING ({names})"
    )


def _key(row: IntervalRow) -> tuple[object, ...]:
    return (type(row), *(getattr(row, name) for name in INTERVAL_TABLES[type(row)].key))


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 -- a column of any type
    """Return a column in the form that computed rows have."""
    if name == "resources" and isinstance(value, str):
        return msgspec.json.decode(value)
    if name == "reasons" and isinstance(value, list):
        return tuple(value)
    return set(value) if name == "started_units" and isinstance(value, list) else value
