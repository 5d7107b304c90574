"""Store snapshots in PostgreSQL.

Owns the table `snapshot`. Must not interpret a body. Note: a snapshot is returned only if the log still has
the event at its position with the same hash; after a failover to a lagging standby it may not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from extender.core.model.ids import Position
from extender.ports.log_ports import Snapshot
from extender.runtime.log_keys import NO_KEYS, LogKeys
from extender.store.engine import transaction
from extender.store.tables import EVENT, SNAPSHOT

log = logging.getLogger(__name__)

KEPT = 3  # newest snapshots of a codec, for a start
SNAPSHOT_SPACING = 2_000  # distance of older snapshots: a query about the past folds at most about this many events
OLD_SNAPSHOTS_MAX = 512  # older snapshots at most; for a longer log the distance is doubled
POSITION_MAX = 2**63 - 1

_NEWEST = (
    sa.select(SNAPSHOT)
    .join(EVENT, sa.and_(EVENT.c.position == SNAPSHOT.c.position, EVENT.c.hash == SNAPSHOT.c.chain))
    .where(SNAPSHOT.c.codec == sa.bindparam("codec"), SNAPSHOT.c.position <= sa.bindparam("until"))
    .order_by(SNAPSHOT.c.position.desc())
    .offset(sa.bindparam("skip"))
    .limit(1)
)


class PostgresSnapshots:
    """The `Snapshots` port on PostgreSQL.

    Args:
        engine: Of `engine.create_engine`, a writing one for `save`; never the connection that appends.
        keys: Authenticate snapshots; with a private key, one without a valid HMAC is not used.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        keys: LogKeys = NO_KEYS,
        *,
        snapshot_spacing: int = SNAPSHOT_SPACING,
        old_snapshots_max: int = OLD_SNAPSHOTS_MAX,
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._snapshot_spacing = snapshot_spacing
        self._old_snapshots_max = old_snapshots_max

    def stretch(self, position: int) -> int:
        """Return the distance of older snapshots, in events, for a log that ends at a position."""
        events = self._snapshot_spacing
        while position > events * self._old_snapshots_max:
            events *= 2
        return events

    async def save(self, snapshot: Snapshot, *others: Snapshot) -> None:
        """See `Snapshots.save`. A second snapshot of the same position and codec replaces the first.

        Raises:
            StoreUnavailable: Not saved, or the outcome is unknown; no retry is needed, the next snapshot replaces it.
        """
        rows = [
            {
                "position": each.position,
                "codec": each.codec,
                "chain": each.chain,
                "sha256": await asyncio.to_thread(_digest, each.body),
                "body": each.body,
                "mac": await asyncio.to_thread(self._keys.mac, authenticated(each)) or None,
            }
            for each in (snapshot, *others)
        ]
        same = sa.and_(
            SNAPSHOT.c.position == snapshot.position,
            SNAPSHOT.c.codec.in_([each.codec for each in (snapshot, *others)]),
        )
        place = (SNAPSHOT.c.position, SNAPSHOT.c.codec)
        age = sa.func.row_number().over(
            partition_by=SNAPSHOT.c.codec, order_by=SNAPSHOT.c.position.desc()
        )
        aged = sa.select(*place, age.label("age")).subquery()
        newest = sa.select(aged.c.position, aged.c.codec).where(aged.c.age <= KEPT)
        older = (
            sa.select(sa.func.min(SNAPSHOT.c.position))
            .where(SNAPSHOT.c.codec == snapshot.codec)
            .group_by(SNAPSHOT.c.position // self.stretch(snapshot.position))
        )
        async with transaction(self._engine, "saving a checkpoint") as connection:
            # gx_writer may insert and delete here, but not update: rows are never changed.
            await connection.execute(sa.delete(SNAPSHOT).where(same))
            await connection.execute(insert(SNAPSHOT).on_conflict_do_nothing(), rows)
            await connection.execute(
                sa.delete(SNAPSHOT).where(
                    sa.tuple_(*place).not_in(newest),
                    sa.not_(
                        sa.and_(SNAPSHOT.c.codec == snapshot.codec, SNAPSHOT.c.position.in_(older))
                    ),
                )
            )

    async def delete_all(self) -> None:
        """See `Snapshots.delete_all`."""
        async with transaction(self._engine, "deleting the checkpoints") as connection:
            await connection.execute(sa.delete(SNAPSHOT))

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        """See `Snapshots.newest`."""
        parameters = {"codec": codec, "until": until if until is not None else POSITION_MAX}
        # One body at a time: they are megabytes and the first is nearly always intact.
        for skip in range(KEPT):
            async with transaction(self._engine, "loading a checkpoint") as connection:
                result = await connection.execute(_NEWEST, parameters | {"skip": skip})
                row = result.one_or_none()
            if row is None:
                return None
            snapshot = Snapshot(
                position=Position(row.position), chain=row.chain, codec=row.codec, body=row.body
            )
            if await asyncio.to_thread(_digest, row.body) != row.sha256:
                continue
            valid = await asyncio.to_thread(
                self._keys.mac_valid, authenticated(snapshot), row.mac or b""
            )
            if valid:
                return snapshot
            log.warning(
                "snapshot not used: it has no HMAC of a key of this service",
                extra={"position": row.position, "codec": row.codec},
            )
        return None


def authenticated(snapshot: Snapshot) -> bytes:
    """Return what the HMAC of a snapshot is of: all its fields."""
    head = f"{snapshot.position} {snapshot.codec} {snapshot.chain.hex()}\n"
    return head.encode() + snapshot.body


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
