"""The projection on PostgreSQL: functions of the database fold the log into the interval tables.

Owns the calls, on a separate engine. Must not write these tables itself: only `gx.project` does, as their
owner. Note: of two concurrent calls the second waits and continues where the first ended, so two leaders in
succession, or a command beside the service, are safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from extender.core.model.ids import Position
from extender.ports.log_ports import IntervalProjection
from extender.store.engine import driver_connection, transaction
from extender.store.tables import PROJECTION

# A projection lost in a crash is made again, so its commits need not be durable.
SETTINGS = {"synchronous_commit": "off"}
TIMEOUT_S = 30.0  # a batch takes a fraction of a second on an idle machine

_PROJECT = "SELECT gx.project($1, $2)"


class PostgresIntervalProjection:
    """The `IntervalProjection` port on PostgreSQL.

    Args:
        engine: A separate writing engine with `SETTINGS`, so that it does not compete with others for connections.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def project(self, upto: Position, *, max_events: int) -> Position:
        """See `IntervalProjection.project`."""
        async with driver_connection(self._engine, "projecting the log") as connection:
            return Position(await connection.fetchval(_PROJECT, upto, max_events))

    async def projected(self) -> Position:
        """See `IntervalProjection.projected`."""
        async with transaction(self._engine, "asking the projection") as connection:
            return Position(
                (await connection.execute(sa.select(PROJECTION.c.position))).scalar_one()
            )


if TYPE_CHECKING:

    def _fits(projection: PostgresIntervalProjection) -> IntervalProjection:
        return projection
