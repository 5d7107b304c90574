"""A run in virtual time whose log PostgreSQL keeps too: it accepts each append of the service, with the same hashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from extender.core.log.events import GangRemoved, PreemptionCompleted, RecordedEvent
from extender.ports.log_ports import LeaseGrant
from extender.simulation.memory_log import MemoryDatabase, MemoryEventLog
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.unit.simulation.test_simulation import a_trace, an_arrival, an_empty_fleet, run

pytestmark = pytest.mark.postgres
T = TypeVar("T")
ANSWERS_WITHIN_S = 120.0


class BothLogs(MemoryEventLog):
    """The log in memory, and in PostgreSQL what is appended to it; virtual time stands while PostgreSQL works."""

    def __init__(
        self, database: MemoryDatabase, real: PostgresEventLog, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(database)
        self._real, self._loop = real, loop

    def _answer(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWERS_WITHIN_S)

    async def take(self, **asked: Any) -> LeaseGrant:
        grant = await super().take(**asked)
        self._granted = self._answer(self._real.take(**asked))
        assert (self._granted.epoch, self._granted.head) == (grant.epoch, grant.head)
        return grant

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        chain = await super().append(grant, events)
        assert self._answer(self._real.append(self._granted, events)) == chain
        return chain

    def stored(self) -> list[RecordedEvent]:
        """Return all that PostgreSQL has."""

        async def read() -> list[RecordedEvent]:
            return [event async for page in self._real.read() for event in page]

        return self._answer(read())


@contextmanager
def postgres_beside(url: str) -> Iterator[tuple[PostgresEventLog, asyncio.AbstractEventLoop]]:
    """Start a loop of real time for the connections of a log."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="PostgreSQL")
    thread.start()
    real = PostgresEventLog(url)
    try:
        yield real, loop
    finally:
        asyncio.run_coroutine_threadsafe(real.close(), loop).result(ANSWERS_WITHIN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_postgresql_has_the_log_that_a_run_in_memory_has(database_url: str) -> None:
    jobs = [*a_trace(4), an_arrival("low", 150.0, 8), an_arrival("high", 200.0, 6, priority=9)]
    with postgres_beside(database_url) as (real, loop):
        logs: list[BothLogs] = []

        def both(database: MemoryDatabase) -> MemoryEventLog:
            logs.append(BothLogs(database, real, loop))
            return logs[0]

        outcome = run(jobs, until_s=3_600.0, cluster=an_empty_fleet(), log_on=both)
        events = outcome.events()
        assert logs[0].stored() == events
    happened = {type(event.data) for event in events}
    assert {GangRemoved, PreemptionCompleted} <= happened
