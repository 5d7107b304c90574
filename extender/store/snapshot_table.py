"""Store snapshots in PostgreSQL.

Owns the table `snapshot`. Must not interpret a body. Note: a snapshot is returned only if the log still has
the event at its position with the same hash; after a failover to a lagging standby it may not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from extender.core.model.ids import Position
from extender.ports.log_ports import Snapshot
from extender.runtime.log_keys import NO_KEYS, LogKeys
from extender.store.connections import ConnectionPool
from extender.store.tables import POSITION_MAX

log = logging.getLogger(__name__)

KEPT = 3  # newest snapshots of a codec, for a start
SNAPSHOT_SPACING = 2_000  # distance of older snapshots: a query about the past folds at most about this many events
OLD_SNAPSHOTS_MAX = 512  # older snapshots at most; for a longer log the distance is doubled

_NEWEST = """
SELECT s.position, s.chain, s.codec, s.sha256, s.body, s.mac
FROM gx.snapshot s JOIN gx.event e ON e.position = s.position AND e.hash = s.chain
WHERE s.codec = $1 AND s.position <= $2 ORDER BY s.position DESC OFFSET $3 LIMIT 1
"""
# gx_writer may insert and delete here, but not update: rows are never changed.
_DELETE_SAME = "DELETE FROM gx.snapshot WHERE position = $1 AND codec = ANY($2)"
_ADD = """
INSERT INTO gx.snapshot (position, codec, chain, sha256, body, mac) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
"""
_DELETE_OLD = """
DELETE FROM gx.snapshot WHERE (position, codec) NOT IN (
    SELECT position, codec
    FROM (SELECT position, codec, row_number() OVER (PARTITION BY codec ORDER BY position DESC) AS age FROM gx.snapshot) aged
    WHERE age <= $1
) AND NOT (codec = $2 AND position IN (SELECT min(position) FROM gx.snapshot WHERE codec = $2 GROUP BY position / $3))
"""


class PostgresSnapshots:
    """The `Snapshots` port on PostgreSQL.

    Args:
        pool: A writing one for `save`.
        keys: Authenticate snapshots; with a private key, one without a valid HMAC is not used.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        keys: LogKeys = NO_KEYS,
        *,
        snapshot_spacing: int = SNAPSHOT_SPACING,
        old_snapshots_max: int = OLD_SNAPSHOTS_MAX,
    ) -> None:
        self._pool = pool
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
            (
                each.position, each.codec, each.chain, await asyncio.to_thread(_digest, each.body), each.body,
                await asyncio.to_thread(self._keys.mac, authenticated(each)) or None,
            )
            for each in (snapshot, *others)
        ]  # fmt: skip
        codecs = [each.codec for each in (snapshot, *others)]
        stretch = self.stretch(snapshot.position)
        async with self._pool.transaction("saving a checkpoint") as connection:
            await connection.execute(_DELETE_SAME, snapshot.position, codecs)
            await connection.executemany(_ADD, rows)
            await connection.execute(_DELETE_OLD, KEPT, snapshot.codec, stretch)

    async def delete_all(self) -> None:
        """See `Snapshots.delete_all`."""
        await self._pool.rows("deleting the checkpoints", "DELETE FROM gx.snapshot")

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        """See `Snapshots.newest`."""
        before = POSITION_MAX if until is None else until
        # One body at a time: they are megabytes and the first is nearly always intact.
        for skip in range(KEPT):
            rows = await self._pool.rows("loading a checkpoint", _NEWEST, codec, before, skip)
            if not rows:
                return None
            position, chain, codec, sha256, body, mac = rows[0]
            if await asyncio.to_thread(_digest, body) != sha256:
                continue
            snapshot = Snapshot(position=Position(position), chain=chain, codec=codec, body=body)
            if await asyncio.to_thread(self._keys.mac_valid, authenticated(snapshot), mac or b""):
                return snapshot
            log.warning(
                "snapshot not used: it has no HMAC of a key of this service",
                extra={"position": position, "codec": codec},
            )
        return None


def authenticated(snapshot: Snapshot) -> bytes:
    """Return what the HMAC of a snapshot is of: all its fields."""
    head = f"{snapshot.position} {snapshot.codec} {snapshot.chain.hex()}\n"
    return head.encode() + snapshot.body


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
