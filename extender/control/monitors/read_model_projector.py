"""Bring the tables of intervals forward while leading, off the path of decisions and appends.

A loop of its own on a connection of its own, a batch at a time and with a rest after each, so that the database has
time for the appends. What is projected late is only told late: whoever asks the tables is told as of which position.
"""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.protocols import START, IntervalProjection

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
BATCH = 500  # facts in one transaction; some 50 ms of the database
REST = 1.0  # as long again as a batch took
BULK = 1_000  # facts in one transaction when nobody else is to be spared; well within the limit of a command


class ReadModelProjector:
    """Projects what is acknowledged."""

    def __init__(self, leader: Leader, projection: IntervalProjection) -> None:
        self._leader = leader
        self._projection = projection
        self._batch = BATCH
        self.position = START  # as far as this process has brought them, or found them

    async def run(self) -> None:
        """Project for ever; what fails is tried again, and said once."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.catch_up()
                said = ""
            except (StoreUnavailable, CorruptLog) as error:
                self._batch = max(self._batch // 2, 1)  # a database that is slow is asked for less
                if str(error) != said:
                    said = str(error)
                    log.warning("log not projected", extra={"error": said})

    async def catch_up(self) -> None:
        """Project up to what is acknowledged now, while this process may act.

        Raises:
            CorruptLog: A fact that the database's functions do not know.
            StoreUnavailable: No answer.
        """
        end = self._leader.acknowledged.position
        loop = asyncio.get_running_loop()
        while self.position != end and self._leader.may_act():
            began_s = loop.time()
            reached = await self._projection.project(end, max_events=self._batch)
            self._batch = min(self._batch * 2, BATCH)
            if reached == self.position or reached >= end:
                self.position = reached
                return
            self.position = reached
            await asyncio.sleep((loop.time() - began_s) * REST)


async def project_all(projection: IntervalProjection, end: Position) -> Position:
    """Project up to a position without a rest; for a command.

    Raises: as `ReadModelProjector.catch_up`.
    """
    reached, batch = START, BULK
    while True:
        try:
            before, reached = reached, await projection.project(end, max_events=batch)
        except StoreUnavailable:
            if batch == 1:
                raise
            batch = max(batch // 4, 1)  # a database that is slow is asked for less
            continue
        if reached >= end or reached == before:
            return reached
