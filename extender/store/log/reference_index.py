"""What follows the log after the appends: the index of the names in events, and the position of the notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from extender.core.model.ids import Position
from extender.ports.log_ports import NotificationCursor, NotifiedUpTo, ReferenceIndex
from extender.store.engine import driver_connection

_INDEX = "SELECT gx.index_references($1)"
_NOTIFIED = "SELECT position, waited_us FROM gx.notification_cursor WHERE id = 1"
_NOTE_NOTIFIED = "SELECT gx.note_notified($1, $2)"


class PostgresReferenceIndex:
    """The `ReferenceIndex` port on PostgreSQL.

    Args:
        engine: A writing engine of `engine.create_engine`; never the connection that appends.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def note(self, most: int) -> int:
        """See `ReferenceIndex.note`."""
        async with driver_connection(self._engine, "indexing the names in events") as connection:
            return int(await connection.fetchval(_INDEX, most))


class PostgresNotificationCursor:
    """The `NotificationCursor` port on PostgreSQL.

    Args:
        engine: As of `PostgresReferenceIndex`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def read(self) -> NotifiedUpTo | None:
        """See `NotificationCursor.read`."""
        async with driver_connection(self._engine, "reading what was notified") as connection:
            row = await connection.fetchrow(_NOTIFIED)
        if row is None:
            return None
        return NotifiedUpTo(position=Position(row["position"]), waited_us=row["waited_us"])

    async def save(self, reached: NotifiedUpTo) -> None:
        """See `NotificationCursor.save`."""
        async with driver_connection(self._engine, "noting what was notified") as connection:
            await connection.execute(_NOTE_NOTIFIED, reached.position, reached.waited_us)


if TYPE_CHECKING:

    def _fits(
        mentions: PostgresReferenceIndex, cursor: PostgresNotificationCursor
    ) -> tuple[ReferenceIndex, NotificationCursor]:
        return mentions, cursor
