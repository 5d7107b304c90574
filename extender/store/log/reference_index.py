"""The index of the names in events: `gx.index_references`, called after the appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from extender.ports.log_ports import ReferenceIndex
from extender.store.engine import driver_connection

_INDEX = "SELECT gx.index_references($1)"


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


if TYPE_CHECKING:

    def _fits(mentions: PostgresReferenceIndex) -> ReferenceIndex:
        return mentions
