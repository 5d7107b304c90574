"""Project the log into the interval tables, and index the names in its events, while leading, apart from decisions and appends.

Each runs in its own loop on its own connection, in batches with pauses, so that the database has time for appends.
Reports from the tables name the position up to which they are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from extender.control.log.leader import Leader
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import START, IntervalProjection
from extender.runtime.periodic import PeriodicTask

AT_ONCE = 500  # events; a few milliseconds of the database
PAUSE_S = 0.5  # queries scan the events since the last update


class ReferenceIndexer:
    """Indexes the objects that events name after the appends; queries without that are slower."""

    def __init__(self, leader: Leader, index: Callable[[int], Awaitable[int]]) -> None:
        """Prepare; `index`: indexes what at most so many next events name, and returns how many it has read."""
        self._leader = leader
        self._index = index
        self._indexed = START  # up to here, as far as this process knows
        self.run = PeriodicTask(
            name="reference_indexer",
            work=self.catch_up,
            every_s=PAUSE_S,
            condition=leader.may_record,
            expected=(StoreUnavailable,),
            failure="names in events are not indexed",
        ).run

    async def catch_up(self) -> None:
        """Index all events that are not indexed yet, while this process may record."""
        end, has_indexed = self._leader.committed.position, False
        while self._indexed != end and self._leader.may_record():
            looked_at = await self._index(AT_ONCE)
            has_indexed = has_indexed or looked_at > 0
            if looked_at < AT_ONCE:
                # where there was nothing, another replica may be at work still, and may fail
                if has_indexed:
                    self._indexed = end
                return


LOOK_EVERY_S = 0.5
BATCH = 500  # events per transaction, some 50 ms of the database
REST = 1.0  # pause after a batch, as a multiple of its duration
BULK = 1_000  # events per transaction of a command, well within its statement timeout


class ReadModelProjector:
    """Projects committed events."""

    def __init__(self, leader: Leader, projection: IntervalProjection) -> None:
        self._leader = leader
        self._projection = projection
        self._batch = BATCH
        self.position = START  # the last projected event, as far as this process knows
        self.run = PeriodicTask(
            name="read_model_projector",
            work=self.catch_up,
            every_s=LOOK_EVERY_S,
            condition=leader.may_act,
            expected=(StoreUnavailable, CorruptLog),
            failure="log not projected",
        ).run

    async def catch_up(self) -> None:
        """Project up to the committed position, while this process may act.

        Raises:
            CorruptLog: The functions of the database do not know an event.
        """
        end = self._leader.committed.position
        loop = asyncio.get_running_loop()
        while self.position != end and self._leader.may_act():
            began_s = loop.time()
            try:
                reached = await self._projection.project(end, max_events=self._batch)
            except (StoreUnavailable, CorruptLog):
                self._batch = max(self._batch // 2, 1)  # smaller batches for a slow database
                raise
            self._batch = min(self._batch * 2, BATCH)
            if reached == self.position or reached >= end:
                self.position = reached
                return
            self.position = reached
            await asyncio.sleep((loop.time() - began_s) * REST)


async def project_all(projection: IntervalProjection, end: Position) -> Position:
    """Project up to a position without pauses, for a command; return the position that was reached.

    Raises:
        CorruptLog: The functions of the database do not know an event.
        StoreUnavailable: No answer, even for a batch of one event.
    """
    reached, batch = START, BULK
    while True:
        try:
            before, reached = reached, await projection.project(end, max_events=batch)
        except StoreUnavailable:
            if batch == 1:
                raise
            batch = max(batch // 4, 1)  # smaller batches for a slow database
            continue
        if reached >= end or reached == before:
            return reached
