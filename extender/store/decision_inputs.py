"""Store decision inputs in PostgreSQL, by digest, and prune old ones; the log, its hash chain and its snapshots do not change.

Owns the tables `decision_input`, `decision_input_chunk` and `gx.pruning`, and the only code that disables the triggers that keep inputs
append-only: as a member of gx_owner, for some hundred rows at a time. Must not interpret the bytes. Note: an input is
stored as a list of part numbers, not of digests; parts that are first stored together have consecutive
numbers, so a list of five thousand of them compresses to some dozen bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import ChainMap
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import TypeVar
from uuid import UUID

import asyncpg
import msgspec

from extender.core.model.errors import BadInput, CorruptLog, ExtenderError, StoreUnavailable
from extender.core.planner.plan_types import DecisionInput
from extender.store.connections import ConnectionPool, one_connection

BATCH_MAX = 64  # inputs stored in one transaction
REMEMBERED_PARTS_MAX = 100_000  # digests and numbers, some 15 MB at most
_NUMBERS = msgspec.json.Decoder(list[int])
# An append that refers to an input is sent after the input is stored, to the same server: when the commit of the append is
# durable, so is the earlier one. An input that is lost in a crash has no event.
SETTINGS = {"synchronous_commit": "off"}
FEW_PARTS = 16
SMALL_BYTES = 1 << 16  # compressed in less time than another thread needs to begin
INPUTS = "SELECT digest, parts FROM gx.decision_input WHERE digest = ANY($1)"
PARTS = "SELECT id, digest, body FROM gx.decision_input_chunk WHERE id = ANY($1)"
_NUMBERS_OF = "SELECT digest, id FROM gx.decision_input_chunk WHERE digest = ANY($1::bytea[])"
_ADD_PARTS = (
    "INSERT INTO gx.decision_input_chunk (digest, body) "
    "SELECT digest, body FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS given (digest, body, at) ORDER BY at "
    "ON CONFLICT DO NOTHING RETURNING digest, id"
)
# Stored only if the numbers of the parts are right: the generation of `prune` is the known one, and so is the part with the
# highest remembered number, where an older copy of the database has another part or none. A statement locks its tables
# before it gets its snapshot, so what a removal does that holds the lock on decision_input is seen by the one that waited.
_ADD_INPUTS = """
WITH current AS (
    SELECT (SELECT generation FROM gx.pruning) AS generation,
           (SELECT digest FROM gx.decision_input_chunk WHERE id = $3) AS part
), stored AS (
    INSERT INTO gx.decision_input (digest, parts)
    SELECT given.digest, given.parts FROM unnest($1::text[], $2::bytea[]) AS given (digest, parts), current
    WHERE current.generation IS NOT DISTINCT FROM $4 AND current.part IS NOT DISTINCT FROM $5
    ON CONFLICT DO NOTHING
)
SELECT generation, part FROM current
"""


class _PartsRemoved(ExtenderError):
    """Parts were removed, or the database was replaced, so the remembered part numbers may be wrong."""


class PostgresDecisionInputs:
    """The `DecisionInputs` port on PostgreSQL.

    Args:
        pool: A writing one, with `SETTINGS`.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._known: dict[bytes, int] = {}  # digest of a part -> its number
        # of the last removal of parts before `_known` was filled; None: there was none
        self._generation: UUID | None = None
        # number and digest of the newest part in `_known`
        self._highest: tuple[int, bytes] | None = None
        self._batch: list[DecisionInput] = []  # that is stored next, ...
        self._storing: asyncio.Task[None] | None = None  # ... by this task, which has not begun
        self._turn = asyncio.Lock()

    async def save(self, decision: DecisionInput) -> None:
        """See `DecisionInputs.save`. Inputs that come while others are stored are stored together.

        Raises:
            StoreUnavailable: The outcome is unknown; saving again is harmless.
        """
        if self._storing is None or len(self._batch) >= BATCH_MAX:
            self._batch = []
            self._storing = asyncio.create_task(self._write(self._batch), name="store inputs")
        self._batch.append(decision)
        await asyncio.shield(self._storing)  # others may wait for it, too

    async def _write(self, batch: list[DecisionInput]) -> None:
        async with self._turn:
            if batch is self._batch:
                self._storing = None
            await self._store(batch)

    async def _store(self, decisions: Sequence[DecisionInput]) -> None:
        """Store inputs, again after each removal of parts, and once if the connection had been closed: that is harmless."""
        reconnected = False
        while True:
            try:
                return await self._store_once(decisions)
            except _PartsRemoved:
                continue  # a removal has many steps
            except StoreUnavailable:
                if reconnected:
                    raise
                reconnected = True

    async def _store_once(self, decisions: Sequence[DecisionInput]) -> None:
        encoded = [(d, (d.head, *d.parts), await _hashes_of(d)) for d in decisions]
        bodies = {
            digest: body
            for _, parts, hashes in encoded
            for digest, body in zip(hashes, parts, strict=True)
            if digest not in self._known
        }
        async with self._pool.use("saving inputs of decisions") as connection:
            # Each statement commits: parts without an input, after a crash, are removed by `prune`.
            new = await _number(connection, bodies)
            numbers = ChainMap(new, self._known)
            lists = [_pack([numbers[digest] for digest in hashes]) for _, _, hashes in encoded]
            number, expected = self._highest or (0, None)
            digests = [decision.digest for decision in decisions]
            generation, part = await connection.fetchrow(
                _ADD_INPUTS, digests, lists, number, self._generation, expected
            )
            if generation != self._generation or part != expected:
                self._generation, self._highest = generation, None
                self._known.clear()
                raise _PartsRemoved("parts were removed meanwhile")
        if len(self._known) + len(new) > REMEMBERED_PARTS_MAX:
            self._known.clear()
            self._highest = None
        self._known.update(new)
        if new:
            newest = max((number, digest) for digest, number in new.items())
            self._highest = max(self._highest or newest, newest)

    async def load(self, digest: str) -> DecisionInput | None:
        """See `DecisionInputs.load`."""
        return (await self.load_many((digest,))).get(digest)

    async def load_many(self, digests: Collection[str]) -> Mapping[str, DecisionInput]:
        """See `DecisionInputs.load_many`."""
        async with self._pool.use("loading inputs of decisions") as connection:
            rows = await connection.fetch(INPUTS, list(digests))
            numbers = {digest: unpack(parts, digest) for digest, parts in rows}
            every = sorted({number for part in numbers.values() for number in part})
            stored = {n: (digest, body) for n, digest, body in await connection.fetch(PARTS, every)}
        return await asyncio.to_thread(_assembled, numbers, stored)


async def _number(
    connection: asyncpg.Connection, bodies: Mapping[bytes, bytes]
) -> dict[bytes, int]:
    """Return the numbers of parts; new parts are stored.

    A few parts, as most inputs have, are nearly always new, and are not looked up before.
    """
    numbers: dict[bytes, int] = {}
    if len(bodies) > FEW_PARTS:
        numbers = await _look_up(connection, list(bodies))
    new = [digest for digest in bodies if digest not in numbers]
    if new:
        if sum(len(bodies[digest]) for digest in new) > SMALL_BYTES:
            packed = await asyncio.to_thread(_compress, new, bodies)
        else:
            packed = _compress(new, bodies)
        # In the order of the input, so that consecutive parts get consecutive numbers. Two writers of the same
        # parts in different orders may deadlock; the server then aborts one of them, which saves again.
        rows = await connection.fetch(_ADD_PARTS, new, packed)
        numbers |= {row["digest"]: row["id"] for row in rows}
        if len(rows) < len(new):  # some were there
            numbers |= await _look_up(connection, [d for d in new if d not in numbers])
    return numbers


async def _hashes_of(decision: DecisionInput) -> Sequence[bytes]:
    """Return the SHA-256 of head and parts."""
    if decision.hashes:
        return decision.hashes
    bodies = (decision.head, *decision.parts)
    return await asyncio.to_thread(lambda: [hashlib.sha256(body).digest() for body in bodies])


async def _look_up(connection: asyncpg.Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
    rows = await connection.fetch(_NUMBERS_OF, digests) if digests else ()
    return {row["digest"]: row["id"] for row in rows}


def _compress(digests: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> list[bytes]:
    return [zlib.compress(bodies[digest]) for digest in digests]


def _assembled(
    numbers: Mapping[str, list[int]], stored: Mapping[int, tuple[bytes, bytes]]
) -> dict[str, DecisionInput]:
    """Return inputs from the numbers of their parts; raises CorruptLog."""
    bodies: dict[int, bytes] = {}
    inputs = {}
    for name, parts in numbers.items():
        for number in parts:
            if number not in bodies:
                bodies[number] = _part(number, stored, name)
        try:
            head, *rest = (bodies[number] for number in parts)
        except ValueError as error:
            raise CorruptLog(f"input {name}: it has no parts") from error
        inputs[name] = DecisionInput(digest=name, head=head, parts=tuple(rest))
    return inputs


def _part(number: int, stored: Mapping[int, tuple[bytes, bytes]], name: str) -> bytes:
    if number not in stored:
        raise CorruptLog(f"input {name}: part {number} is missing")
    digest, packed = stored[number]
    try:
        body = zlib.decompress(packed)
    except zlib.error as error:
        raise CorruptLog(f"input {name}: part {number} is damaged") from error
    if hashlib.sha256(body).digest() != digest:
        raise CorruptLog(f"input {name}: part {number} was altered")
    return body


def _pack(numbers: Sequence[int]) -> bytes:
    """Return part numbers, packed as the difference of each to the previous one.

    >>> unpack(_pack([7, 8, 9, 3]), "x")
    [7, 8, 9, 3]
    """
    differences = [later - earlier for earlier, later in pairwise([0, *numbers])]
    return zlib.compress(msgspec.json.encode(differences), 9)


def unpack(packed: bytes, name: str) -> list[int]:
    """Return the part numbers of an input.

    Raises:
        CorruptLog: The list cannot be read.
    """
    whole, problem = zlib.decompressobj(), f"input {name}: its list of parts is damaged"
    try:
        numbers = list(accumulate(_NUMBERS.decode(whole.decompress(packed))))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptLog(problem) from error
    if not whole.eof or whole.unused_data:
        raise CorruptLog(problem)
    return numbers


T = TypeVar("T")
PIECE = 500  # rows removed in one transaction
PAGE = 10_000  # rows read at a time
LOCK_TIMEOUT = "5s"
OVERLAP = timedelta(hours=1)  # longer than any transaction that saves an input
BECOME_OWNER = """
DO $do$ BEGIN
    -- Roles belong to the server: that gx_owner exists does not make it the owner of this schema.
    IF EXISTS (SELECT FROM pg_namespace WHERE nspname = 'gx' AND pg_get_userbyid(nspowner) = 'gx_owner'
               AND pg_has_role(current_user, nspowner, 'MEMBER')) THEN
        SET LOCAL ROLE gx_owner;
    END IF;
END $do$"""
PRUNED_BEFORE_US = "SELECT before_us FROM gx.pruning"  # no row: nothing was ever removed
_RECORD = """
INSERT INTO gx.pruning (id, before_us, generation) VALUES (1, $1, gen_random_uuid())
ON CONFLICT (id) DO UPDATE SET before_us = greatest(gx.pruning.before_us, excluded.before_us), generation = excluded.generation
"""
_SINCE = """
SELECT DISTINCT e.payload ->> 'input_digest' FROM gx.event e
WHERE e.type IN ('GangAdmitted', 'GangExtended', 'GangUnschedulable', 'PreemptionPlanned', 'TreeCompiled', 'TreeRefused', 'CapacityHeld', 'MovesPlanned')
  AND e.at_us >= $1"""
_LIVING = """
SELECT DISTINCT e.payload ->> 'input_digest' FROM gx.gang_state s JOIN gx.event e ON e.gang_uid = s.gang_uid
WHERE s.to_position IS NULL AND s.state <> 'removed'
  AND e.type IN ('GangAdmitted', 'GangExtended', 'GangUnschedulable', 'PreemptionPlanned', 'CapacityHeld')"""


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or with `dry_run` would be."""

    before: str  # RFC 3339
    inputs: int
    parts: int
    bytes: int  # of the parts, as they are stored
    inputs_kept: int
    parts_kept: int


async def prune(url: str, before: datetime, *, dry_run: bool = False) -> PruneResult:
    """Remove the inputs of decisions made before a time, and the parts that no other input has; those about trees that still exist stay.

    A running service remembers part numbers, so every removal changes `pruning.generation`, which is read in every transaction
    that saves an input; it is random, so that no restored copy gets one that the service knows.

    Args:
        url: Database URL of a member of gx_owner (as for `db migrate`).
        before: With a time zone.
        dry_run: Count only, remove nothing.

    Raises:
        StoreUnavailable: No answer; what was removed so far stays removed, and another call continues.
    """
    doing = "pruning inputs of decisions"
    async with one_connection(url, doing, name="prune", command_timeout_s=600.0) as connection:
        try:
            return await _prune(connection, before, dry_run=dry_run)
        except asyncpg.InsufficientPrivilegeError as error:
            raise BadInput(
                f"the database role may not prune: {error}; use that of `db migrate`"
            ) from error


async def _prune(connection: asyncpg.Connection, before: datetime, *, dry_run: bool) -> PruneResult:
    begun = await connection.fetchval("SELECT now()")
    last_part = await connection.fetchval(
        "SELECT coalesce(max(id), 0) FROM gx.decision_input_chunk"
    )
    at_us = int(before.timestamp() * 1e6)
    kept = {row[0] for row in await connection.fetch(_SINCE, at_us)}
    kept |= {row[0] for row in await connection.fetch(_LIVING)}
    old = await connection.fetch("SELECT digest FROM gx.decision_input WHERE saved_at < $1", before)
    inputs = [row[0] for row in old if row[0] not in kept]
    if not dry_run:
        for piece in _pieces(inputs):
            async with _triggers_disabled(connection, "decision_input"):
                since = await connection.fetch(_SINCE, int(begun.timestamp() * 1e6))
                again = {row[0] for row in since}
                await connection.execute(
                    "DELETE FROM gx.decision_input WHERE digest = ANY($1)",
                    [digest for digest in piece if digest not in again],
                )
                await connection.execute(_RECORD, at_us)
    pruned = frozenset(inputs)
    used = await _used(connection, pruned)
    parts, size = await _unused(connection, used, last_part)
    if not dry_run:
        for piece in _pieces(parts):
            async with _triggers_disabled(connection, "decision_input_chunk"):
                newer = await connection.fetch(
                    "SELECT digest, parts FROM gx.decision_input WHERE saved_at >= $1",
                    begun - OVERLAP,
                )
                spared = {n for row in newer for n in unpack(row["parts"], row["digest"])}
                await connection.execute(
                    "DELETE FROM gx.decision_input_chunk WHERE id = ANY($1)",
                    [n for n in piece if n not in spared],
                )
                await connection.execute(_RECORD, 0)  # no input had them: none is missing
    total = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM gx.decision_input), (SELECT count(*) FROM gx.decision_input_chunk)"
    )
    missing = (len(inputs), len(parts)) if dry_run else (0, 0)
    return PruneResult(
        before=before.isoformat(),
        inputs=len(inputs),
        parts=len(parts),
        bytes=size,
        inputs_kept=total[0] - missing[0],
        parts_kept=total[1] - missing[1],
    )


@asynccontextmanager
async def _triggers_disabled(connection: asyncpg.Connection, table: str) -> AsyncIterator[None]:
    """Run a block in a transaction that may delete rows of a table and record it, with writers of inputs locked out."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        await connection.execute(BECOME_OWNER)
        # Parts first, as saving locks them: the other order is a deadlock.
        await connection.execute(
            "LOCK TABLE gx.decision_input_chunk, gx.decision_input IN SHARE ROW EXCLUSIVE MODE"
        )
        for changed in (table, "pruning"):
            await connection.execute(f"ALTER TABLE gx.{changed} DISABLE TRIGGER refuse_change")
        yield
        for changed in (table, "pruning"):
            await connection.execute(f"ALTER TABLE gx.{changed} ENABLE TRIGGER refuse_change")


async def _used(connection: asyncpg.Connection, pruned: frozenset[str]) -> set[int]:
    """Return the part numbers of all inputs except those in `pruned`."""
    used: set[int] = set()
    query = "SELECT digest, parts FROM gx.decision_input WHERE digest > $1 ORDER BY digest LIMIT $2"
    async for digest, parts in _paged(connection, query, "", PAGE // 10):
        if digest not in pruned:
            used.update(unpack(parts, digest))
    return used


async def _unused(
    connection: asyncpg.Connection, used: set[int], last_part: int
) -> tuple[list[int], int]:
    """Return the numbers of parts up to `last_part` that are not in `used`, and their size in bytes."""
    numbers: list[int] = []
    size = 0
    query = (
        "SELECT id, octet_length(body) FROM gx.decision_input_chunk WHERE id > $1 AND id <= $3 "
        "ORDER BY id LIMIT $2"
    )
    async for number, bytes_ in _paged(connection, query, 0, PAGE, last_part):
        if number not in used:
            numbers.append(number)
            size += bytes_
    return numbers, size


async def _paged(
    connection: asyncpg.Connection, query: str, last: object, *values: object
) -> AsyncIterator[asyncpg.Record]:
    """Yield the rows of a query, a page at a time; its first parameter is the first column of the row before."""
    while rows := await connection.fetch(query, last, *values):
        last = rows[-1][0]
        for row in rows:
            yield row


def _pieces(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[n : n + PIECE] for n in range(0, len(items), PIECE)]
