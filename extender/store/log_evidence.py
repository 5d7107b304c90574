"""Read what is stored beside the log, for its verification.

Owns the queries. Must not judge what it reads. Note: rows are read by their keys, so that a page of the log costs as much in
a long log as in a short one; only `row_counts` reads whole tables.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec

from extender.core.log.interval_rows import (
    GangRow,
    IntervalRow,
    PlacementRow,
    PreemptionRow,
    VictimStatusRow,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import Snapshot
from extender.ports.verification_ports import LogEvidence, StoredSnapshot
from extender.runtime.log_keys import NO_KEYS, LogKeys
from extender.store.decision_inputs import unpack
from extender.store.engine import connect, our_faults
from extender.store.log.appender import close_quietly
from extender.store.log.log_reader import SETTINGS
from extender.store.retention import LIMIT_COMMENT, pruned_before_us
from extender.store.snapshot_table import authenticated

LEASE: Final = "SELECT epoch FROM gx.lease WHERE id = 1"
SNAPSHOT_KEYS: Final = "SELECT position, codec FROM gx.snapshot ORDER BY position, codec"
SNAPSHOT: Final = (
    "SELECT chain, sha256, body, mac FROM gx.snapshot WHERE position = $1 AND codec = $2"
)
INPUTS: Final = "SELECT digest, parts FROM gx.decision_input WHERE digest = ANY($1)"
PARTS: Final = "SELECT id, digest FROM gx.decision_input_chunk WHERE id = ANY($1)"
PART_COMMENT: Final = "SELECT obj_description('gx.decision_input_chunk'::regclass, 'pg_class')"
PROJECTED: Final = "SELECT position FROM gx.projection WHERE id = 1"
PARTS_MAX: Final = 200_000  # remembered digests of parts, some 20 MB


class _Table(msgspec.Struct, frozen=True):
    """An interval table: its name, the columns of its key with their types, and the position where a row begins."""

    name: str
    key: Mapping[str, str]
    begin: str


TABLES: Final[Mapping[type[IntervalRow], _Table]] = {
    PlacementRow: _Table(
        "placement", {"pod_uid": "text", "from_position": "bigint"}, "from_position"
    ),
    GangRow: _Table("gang_state", {"gang_uid": "text", "from_position": "bigint"}, "from_position"),
    VictimStatusRow: _Table("victim", {"position": "bigint", "pod_uid": "text"}, "position"),
    PreemptionRow: _Table("preemption", {"position": "bigint"}, "position"),
}


class PostgresLogEvidence:
    """The `LogEvidence` port on PostgreSQL; one connection, opened at the first use and closed with `close`.

    Args:
        url: Database URL.
        keys: Authenticate snapshots.
    """

    def __init__(self, url: str, keys: LogKeys = NO_KEYS) -> None:
        self._url = url
        self._keys = keys
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()
        self._parts: dict[int, bytes] = {}

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)

    @asynccontextmanager
    async def _query(self, doing: str) -> AsyncIterator[asyncpg.Connection]:
        async with self._lock:
            with our_faults(doing):
                try:
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await connect(
                            self._url, name="verify", settings=SETTINGS, command_timeout_s=60.0
                        )
                    yield self._connection
                except BaseException:
                    broken, self._connection = self._connection, None
                    if broken is not None:
                        broken.terminate()
                    raise

    async def lease_epoch(self) -> Epoch:
        """See `LogEvidence.lease_epoch`."""
        async with self._query("reading the lease") as connection:
            return Epoch(await connection.fetchval(LEASE) or 0)

    async def snapshot_keys(self) -> Sequence[tuple[Position, str]]:
        """See `LogEvidence.snapshot_keys`."""
        async with self._query("listing snapshots") as connection:
            rows = await connection.fetch(SNAPSHOT_KEYS)
        return [(Position(row["position"]), row["codec"]) for row in rows]

    async def snapshot(self, position: Position, codec: str) -> StoredSnapshot | None:
        """See `LogEvidence.snapshot`."""
        async with self._query("reading a snapshot") as connection:
            row = await connection.fetchrow(SNAPSHOT, position, codec)
        if row is None:
            return None
        chain, sha256, body, mac = row
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

    async def stored_inputs(self, digests: Sequence[str]) -> frozenset[str]:
        """See `LogEvidence.stored_inputs`."""
        async with self._query("looking inputs of decisions up") as connection:
            rows = await connection.fetch(INPUTS, list(digests))
            numbers: dict[str, list[int]] = {}
            for digest, packed in rows:
                try:
                    numbers[digest] = unpack(packed, digest)
                except CorruptLog:
                    continue  # the caller reports that it is not stored
            wanted = {n for parts in numbers.values() for n in parts}.difference(self._parts)
            if len(self._parts) + len(wanted) > PARTS_MAX:
                self._parts.clear()
                wanted = {n for parts in numbers.values() for n in parts}
            if wanted:
                for number, digest in await connection.fetch(PARTS, sorted(wanted)):
                    self._parts[number] = digest
        return frozenset(digest for digest, parts in numbers.items() if self._is(digest, parts))

    def _is(self, digest: str, parts: Sequence[int]) -> bool:
        """Return whether parts have a digest: the SHA-256 of theirs."""
        try:
            whole = b"".join([self._parts[number] for number in parts])
        except KeyError:
            return False
        return hashlib.sha256(whole).hexdigest() == digest

    async def pruned_before_us(self) -> int:
        """See `LogEvidence.pruned_before_us`."""
        async with self._query("asking what was pruned") as connection:
            limit = pruned_before_us(await connection.fetchval(LIMIT_COMMENT) or "")
            comment = await connection.fetchval(PART_COMMENT) or ""
        if not limit and "Pruned: " in comment:  # by a version that recorded only when
            begun = comment.partition("Pruned: ")[2].partition(",")[0]
            limit = int(datetime.fromisoformat(begun).timestamp() * 1e6)
        return limit

    async def projected(self) -> Position:
        """See `LogEvidence.projected`."""
        async with self._query("reading the projected position") as connection:
            return Position(await connection.fetchval(PROJECTED) or 0)

    async def stored_rows(self, rows: Sequence[IntervalRow]) -> Sequence[IntervalRow | None]:
        """See `LogEvidence.stored_rows`."""
        found: dict[tuple[object, ...], IntervalRow] = {}
        async with self._query("reading interval tables") as connection:
            for kind, table in TABLES.items():
                mine = [row for row in rows if type(row) is kind]
                if not mine:
                    continue
                columns = [name for name in kind.__struct_fields__ if name != "victims"]
                values = [[getattr(row, name) for row in mine] for name in table.key]
                for record in await connection.fetch(_by_key(table, columns), *values):
                    fields: dict[str, Any] = {name: _plain(name, record[name]) for name in columns}
                    stored = kind(**fields)
                    found[_key(stored)] = stored
        return [found.get(_key(row)) for row in rows]

    async def row_counts(self, until: Position) -> Mapping[str, int]:
        """See `LogEvidence.row_counts`."""
        async with self._query("counting rows of interval tables") as connection:
            return {
                table.name: await connection.fetchval(
                    f"SELECT count(*) FROM gx.{table.name} WHERE {table.begin} <= $1",  # noqa: S608 -- our names
                    until,
                )
                for table in TABLES.values()
            }


def _by_key(table: _Table, columns: Sequence[str]) -> str:
    """Return the query of rows by the arrays of their key columns."""
    selected = ", ".join(f"t.{name}" for name in columns)
    arrays = ", ".join(f"${n}::{of}[]" for n, of in enumerate(table.key.values(), start=1))
    names = ", ".join(table.key)
    return (
        f"SELECT {selected} FROM gx.{table.name} t "  # noqa: S608 -- our names
        f"JOIN unnest({arrays}) AS k({names}) USING ({names})"
    )


def _key(row: IntervalRow) -> tuple[object, ...]:
    return (type(row), *(getattr(row, name) for name in TABLES[type(row)].key))


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 -- a column of any type
    """Return a column in the form that computed rows have."""
    if name == "resources" and isinstance(value, str):
        return msgspec.json.decode(value)
    if name == "reasons" and isinstance(value, list):
        return tuple(value)
    return set(value) if name == "started_units" and isinstance(value, list) else value


if TYPE_CHECKING:

    def _fits(evidence: PostgresLogEvidence) -> LogEvidence:
        return evidence
