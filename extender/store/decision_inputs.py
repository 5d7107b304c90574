"""Store decision inputs in PostgreSQL, by digest.

Owns the tables `decision_input` and `decision_input_chunk`. Must not interpret the bytes. Note: an input is
stored as a list of part numbers, not of digests; parts that are first stored together have consecutive
numbers, so a list of five thousand of them compresses to some dozen bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from uuid import UUID

import asyncpg
import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from extender.core.model.errors import CorruptLog, ExtenderError, StoreUnavailable
from extender.ports.log_ports import DecisionInput
from extender.store.engine import driver_connection, transaction
from extender.store.tables import DECISION_INPUT, DECISION_INPUT_CHUNK

BATCH_MAX = 64  # inputs stored in one transaction
REMEMBERED_PARTS_MAX = 100_000  # digests and numbers, some 15 MB at most
_NUMBERS = msgspec.json.Decoder(list[int])
# An append that refers to an input is sent after the input is stored, to the same server: when the commit of the append is
# durable, so is the earlier one. An input that is lost in a crash has no event.
SETTINGS = {"synchronous_commit": "off"}
FEW_PARTS = 16
SMALL_BYTES = 1 << 16  # compressed in less time than another thread needs to begin
_PARTS = "SELECT digest, id FROM gx.decision_input_chunk WHERE digest = ANY($1::bytea[])"
_ADD_PARTS = (
    "INSERT INTO gx.decision_input_chunk (digest, body) "
    "SELECT digest, body FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS given (digest, body, at) ORDER BY at "
    "ON CONFLICT DO NOTHING RETURNING digest, id"
)
# Stored only if the numbers of the parts are right: the generation of `retention` is the known one, and so is the part with the
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
        engine: A writing engine of `engine.create_engine`, with `SETTINGS` and without `ping`; never the connection that appends.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._known: dict[bytes, int] = {}  # digest of a part -> its number
        # of the last removal of parts before `_known` was filled; None: there was none
        self._generation: UUID | None = None
        # number and digest of the newest part in `_known`
        self._highest: tuple[int, bytes] | None = None
        self._waiting: list[tuple[DecisionInput, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def save(self, decision: DecisionInput) -> None:
        """See `DecisionInputs.save`. Inputs that are queued while others are stored are stored together.

        Raises:
            StoreUnavailable: The outcome is unknown; saving again is harmless.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((decision, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="store inputs")
        await done

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            fault: BaseException | None = None
            try:
                await self._store([decision for decision, _ in batch])
            except BaseException as error:
                fault = error
                # cancelled: every waiting caller is cancelled too
                if not isinstance(error, Exception):
                    batch, self._waiting = batch + self._waiting, []
                    raise
            finally:
                for _, done in batch:
                    if done.done():
                        continue  # the caller gave up
                    if fault is None:
                        done.set_result(None)
                    elif isinstance(fault, Exception):
                        done.set_exception(fault)
                    else:
                        done.cancel()

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
        async with driver_connection(self._engine, "saving inputs of decisions") as connection:
            # Each statement commits: parts without an input, after a crash, are removed by `retention`.
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
        async with transaction(self._engine, "loading inputs of decisions") as connection:
            rows = await connection.execute(
                sa.select(DECISION_INPUT.c.digest, DECISION_INPUT.c.parts).where(
                    DECISION_INPUT.c.digest == sa.any_(sa.cast(list(digests), sa.ARRAY(sa.Text)))
                )
            )
            numbers = {row.digest: unpack(row.parts, row.digest) for row in rows}
            every = sorted({number for part in numbers.values() for number in part})
            rows = await connection.execute(
                sa.select(
                    DECISION_INPUT_CHUNK.c.id,
                    DECISION_INPUT_CHUNK.c.digest,
                    DECISION_INPUT_CHUNK.c.body,
                ).where(
                    DECISION_INPUT_CHUNK.c.id == sa.any_(sa.cast(every, sa.ARRAY(sa.BigInteger)))
                )
            )
            stored = {row.id: (row.digest, row.body) for row in rows}
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
    rows = await connection.fetch(_PARTS, digests) if digests else ()
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
    try:
        return list(accumulate(_NUMBERS.decode(zlib.decompress(packed))))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptLog(f"input {name}: its list of parts is damaged") from error
