"""A standby that lagged is promoted in the middle of a gang: its log lacks what was acknowledged, and that is noticed.

Real streaming replication with the distribution's programs. The replicas reach the database by a proxy that is led
to the promoted standby, as a DNS name would be.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.intercept import Intercept, intercept
from tests.e2e.scenarios.replicas import Replicas, replicas
from tests.e2e.scenarios.test_history import all_ends_well, half_bound, recovered
from tests.support.logs.database_proxy import DatabaseProxy
from tests.support.logs.postgres import run, running_postgres
from tests.support.logs.postgres_backups import Standby
from tests.support.waiting import eventually

__all__ = ["intercept"]

# the wheel's server has no pg_basebackup, the distribution's has
PROGRAMS = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.lived_in("long"),
    pytest.mark.settings(lease_duration_s="4"),
    pytest.mark.skipif(not PROGRAMS, reason="no pg_basebackup below /usr/lib/postgresql"),
]


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A primary that the test may kill; it has a schema."""
    with running_postgres(pg_bin=PROGRAMS[-1]) as server:
        run(schema_migration.upgrade(server.url))
        yield server


@pytest.fixture
async def ways(own_postgres: EmbeddedPostgres) -> AsyncIterator[list[DatabaseProxy]]:
    """One way to it for each replica."""
    async with DatabaseProxy(own_postgres.url) as one, DatabaseProxy(own_postgres.url) as other:
        yield [one, other]


@pytest.fixture
def database_url(ways: list[DatabaseProxy]) -> str:
    """The first; `story` gets it."""
    return ways[0].url


@pytest.fixture
async def group(story: Story, ways: list[DatabaseProxy], tmp_path: Path) -> AsyncIterator[Replicas]:
    """Two replicas behind a Service."""
    async with replicas(story, ways, tmp_path, lease_duration_s="4") as made:
        story.verbs.target = made.front.url
        yield made


class Lagging:
    """In the place of a backup: what comes after `take` the standby does not get."""

    def __init__(self, standby: Standby) -> None:
        self.take = standby.lag_from_now


@pytest.mark.parametrize("who", ["leader", "follower"])
async def test_a_lagging_standby_is_promoted(
    intercept: Intercept, story: Story, group: Replicas, own_postgres: EmbeddedPostgres, who: str
) -> None:
    """The leader that wrote the lost events notices; or the follower that only read them, when the leader went with the primary."""
    folder = Path(tempfile.mkdtemp(prefix="gxs-"))
    folder.chmod(0o755)
    standby = Standby(own_postgres, folder)
    try:
        await standby.start()
        bound, let_go = await half_bound(story, intercept, Lagging(standby))  # type: ignore[arg-type]
        lost = await story.service.events()
        first, second = group.all

        async def followed() -> bool:
            return f"position {len(lost)}" in (await second.checks())["log"]["reason"]

        await eventually(followed)
        process = own_postgres._server
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        if who == "follower":
            group.kill_leader()
        await standby.promote()
        for replica in group.all:
            replica.database.lead_to(standby.url)
        await group.until_led()
        truncation = await recovered(story)
        assert (truncation["data"]["evidence"], truncation["data"]["timeline"]) == (
            "memory",
            "00000002",
        )
        assert truncation["actor"] == group.leader.holder
        if who == "follower":
            assert group.leader is second
            await first.service.start()
            await eventually(first.service.ready)
        let_go()
        await all_ends_well(story, lost, bound, standby.url)
    finally:
        for replica in group.all:
            await asyncio.to_thread(replica.service.stop)
        standby.stop()
        shutil.rmtree(folder, ignore_errors=True)
