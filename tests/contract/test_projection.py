"""What every `IntervalProjection` promises, the fake and the real one."""

from __future__ import annotations

import pytest

from extender.core.log.events import PodBound
from extender.core.model.ids import NodeName, PlanId, PodUid, Position
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from tests.support.logs.fake_store import (
    FakeDatabase,
    FakeEventLog,
    FakeEventQueries,
    FakeIntervalProjection,
    Script,
)


@pytest.fixture
async def store(store_url):
    if store_url is None:
        database = FakeDatabase()
        yield FakeEventLog(database), FakeIntervalProjection(database), FakeEventQueries(database)
        return
    writing, reading = ConnectionPool(store_url, name="test"), reading_pool(store_url)
    async with PostgresEventLog(store_url) as log:
        yield log, PostgresReadModels(writing), PostgresEventQueries(reading)
    await writing.close()
    await reading.close()


@pytest.fixture
async def script(store):
    """A log of ten events; the script goes on from there."""
    log, *_ = store
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    made = Script(grant)
    await log.append(grant, made.some(10))
    return made


async def test_forward_in_steps_and_never_past_the_end(store, script):
    _, projection, _ = store
    assert await projection.project(Position(7), max_events=5) == 5
    assert await projection.project(Position(7), max_events=5) == 7
    assert await projection.project(Position(3), max_events=5) == 7
    assert await projection.project(Position(1000), max_events=100) == 10
    assert await projection.project(Position(1000), max_events=100) == 10


async def test_nodes_are_known_as_far_as_they_are_projected(store, script):
    log, projection, reader = store
    bound = PodBound(plan=PlanId(""), pod="team-c/p", uid=PodUid("p"), node=NodeName("n1"))
    await log.append(script.grant, [script.next(bound, gang="team-c/r")])
    await projection.project(Position(10), max_events=100)
    assert not await reader.has_node(NodeName("n1"))
    await projection.project(Position(11), max_events=100)
    assert await reader.has_node(NodeName("n1"))
    assert not await reader.has_node(NodeName("n2"))
