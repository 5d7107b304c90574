"""Remove old decision inputs; the log, its hash chain and its snapshots do not change.

Owns `gx.pruning`, and the only code that disables the triggers that keep `decision_input` and `decision_input_chunk`
append-only: as a member of gx_owner, for some hundred rows at a time, while writers wait for milliseconds. The inputs of
every decision since the given time, and of every decision about a tree that still exists, are kept.

Note: a running service remembers part numbers, and could refer to a removed part. So every removal changes
`pruning.generation`, which is read in every transaction that saves an input. It is random, not a number: a copy of the database
that is restored and pruned again must not get one that the service knows. `pruning.before_us` is the time before which
inputs were removed: `gang-extender verify` does not miss those.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import asyncpg
import msgspec

from extender.core.model.errors import BadInput
from extender.store.decision_inputs import unpack
from extender.store.engine import connect, our_faults

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
    """Remove the inputs of decisions made before a time, and the parts that no other input has.

    Args:
        url: Database URL of a member of gx_owner (as for `db migrate`).
        before: With a time zone.
        dry_run: Count only, remove nothing.

    Raises:
        BadInput: The role is not allowed to.
        StoreUnavailable: No answer; what was removed so far stays removed, and another call continues.
    """
    with our_faults("pruning inputs of decisions"):
        connection = await connect(url, name="prune", command_timeout_s=600.0)
        try:
            return await _prune(connection, before, dry_run=dry_run)
        except asyncpg.InsufficientPrivilegeError as error:
            raise BadInput(
                f"the database role may not prune: {error}; use that of `db migrate`"
            ) from error
        finally:
            await connection.close()


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
    last = ""
    while rows := await connection.fetch(
        "SELECT digest, parts FROM gx.decision_input WHERE digest > $1 ORDER BY digest LIMIT $2",
        last,
        PAGE // 10,
    ):
        last = rows[-1]["digest"]
        for row in rows:
            if row["digest"] not in pruned:
                used.update(unpack(row["parts"], row["digest"]))
    return used


async def _unused(
    connection: asyncpg.Connection, used: set[int], last_part: int
) -> tuple[list[int], int]:
    """Return the numbers of parts up to `last_part` that are not in `used`, and their size in bytes."""
    numbers: list[int] = []
    last, size = 0, 0
    while rows := await connection.fetch(
        "SELECT id, octet_length(body) FROM gx.decision_input_chunk WHERE id > $1 AND id <= $2 "
        "ORDER BY id LIMIT $3",
        last,
        last_part,
        PAGE,
    ):
        last = rows[-1][0]
        unused = [(n, bytes_) for n, bytes_ in rows if n not in used]
        numbers += [n for n, _ in unused]
        size += sum(bytes_ for _, bytes_ in unused)
    return numbers, size


def _pieces(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[n : n + PIECE] for n in range(0, len(items), PIECE)]
