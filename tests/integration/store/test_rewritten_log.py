"""The owner of the database rewrites the log while a leader runs: it is detected and recorded, and never published.

The real leader and publisher on a real PostgreSQL; the cluster, where the end of the log is published, is the fake one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.control.log.log_head_publisher import LogHeadPublisher
from extender.core.log.events import GangObserved, HistoryTruncated, NewEvent
from extender.core.model.errors import ExtenderError
from extender.core.model.ids import GangUid
from extender.runtime.log_keys import NO_KEYS
from extender.runtime.system_clock import SystemClock
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.logs.tampering import rewrite
from tests.support.service.fakes import FakeCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


def drafts(name, count):
    data = GangObserved(kind="PodGroup")
    return [
        NewEvent(gang_uid=GangUid(f"{name}-{n}"), gang=f"ns/{name}-{n}", data=data, actor="t")
        for n in range(count)
    ]


class Replica:
    """A leader with its log, and the publisher of its end."""

    def __init__(self, url, engine, cluster, holder, keys):
        clock = SystemClock()
        self.log = PostgresEventLog(url)
        identity = LeaseIdentity(holder=holder, address="", ttl_ms=30_000)
        self.leader = Leader(self.log, PostgresSnapshots(engine, keys), clock, identity)
        self.leader.history.anchor, self.leader.history.keys = cluster, keys
        self.publisher = LogHeadPublisher(self.leader, self.log, cluster, clock, keys)

    def leads(self):
        return self.leader.role == "leading" and not self.leader.appends.in_flight

    async def lost(self):
        """Return what is recorded as lost."""
        return [
            event.data
            async for page in self.log.read()
            for event in page
            if isinstance(event.data, HistoryTruncated)
        ]


@asynccontextmanager
async def replica(url, cluster, holder="a", keys=NO_KEYS):
    engine = ConnectionPool(url, name="test")
    made = Replica(url, engine, cluster, holder, keys)
    running = asyncio.create_task(made.leader.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.leader.stop()
        await made.log.close()
        await engine.close()


async def test_a_running_leader_does_not_publish_a_rewritten_log(database_url):
    """Case B of the review: an early event is changed and all hashes are computed again; the next append finds it."""
    cluster = FakeCluster()
    async with replica(database_url, cluster) as made:
        await eventually(made.leads, "leading")
        await made.leader.append(drafts("before", 200))
        await made.publisher.publish()
        published = cluster.anchors[-1]
        assert published.position == 201
        await rewrite(database_url, 3)
        with pytest.raises(ExtenderError):
            await made.leader.append(drafts("after", 1))
        await eventually(lambda: made.leads() and made.leader.recovery_reason, "leading again")
        (lost,) = await made.lost()
        assert lost.evidence == "memory"
        assert lost.known_position == lost.found_position == 201
        assert (lost.known_hash, lost.found_hash) != (lost.found_hash, lost.known_hash)
        assert "another hash" in lost.message
        made.leader.end_recovery(made.leader.terms)
        await made.publisher.publish()
        assert published in cluster.anchors, "what was published before is kept"
        assert cluster.anchors[-1].position > published.position


async def test_a_rewritten_log_is_not_published_before_it_is_detected(database_url):
    """The publisher runs between the rewrite and the next renewal: what was published stays."""
    cluster = FakeCluster()
    async with replica(database_url, cluster) as made:
        await eventually(made.leads, "leading")
        await made.leader.append(drafts("before", 20))
        await made.publisher.publish()
        published = cluster.anchors
        await rewrite(database_url, 3)
        await made.publisher.publish()
        assert cluster.anchors == published


async def test_a_follower_that_becomes_the_leader_knows_what_it_read(database_url):
    """It has followed the log, the leader ends, the log is rewritten: nothing was published, and it is found all the same."""
    cluster = FakeCluster()
    async with replica(database_url, FakeCluster(), "a") as first:
        await eventually(first.leads, "leading")
        async with replica(database_url, cluster, "b") as second:
            await first.leader.append(drafts("before", 20))
            await eventually(lambda: second.leader.committed.position == 21, "followed")
            await rewrite(database_url, 3)
            await first.leader.release_lease()
            await eventually(second.leads, "leading")
            assert [lost.evidence for lost in await second.lost()] == ["memory"]


async def test_a_restart_finds_a_rewritten_log_by_what_was_published(database_url):
    """The new process knows only what the old one published."""
    cluster = FakeCluster()
    async with replica(database_url, cluster) as made:
        await eventually(made.leads, "leading")
        await made.leader.append(drafts("before", 20))
        await made.publisher.publish()
    await rewrite(database_url, 3)
    async with replica(database_url, cluster) as again:
        await eventually(again.leads, "leading")
        assert [lost.evidence for lost in await again.lost()] == ["published"]
