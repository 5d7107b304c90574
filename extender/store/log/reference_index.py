"""The index of the names in events: `gx.index_references`, called after the appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from extender.ports.log_ports import ReferenceIndex
from extender.store.engine import transaction


class PostgresReferenceIndex:
    """The `ReferenceIndex` port on PostgreSQL.

    Args:
        engine: A writing engine of `engine.create_engine`; never the connection that appends.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def note(self, most: int) -> int:
        """See `ReferenceIndex.note`."""
        async with transaction(self._engine, "indexing the names in events") as connection:
            looked_at = await connection.scalar(sa.select(sa.func.gx.index_references(most)))
        return int(looked_at or 0)


if TYPE_CHECKING:

    def _fits(mentions: PostgresReferenceIndex) -> ReferenceIndex:
        return mentions
