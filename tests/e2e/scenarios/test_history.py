"""The database comes back as an older copy in the middle of a gang: noticed, compared, and all ends bound once.

The stories of this module have a PostgreSQL of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from tests.controlplane.api import ApiError
from tests.e2e.scenarios.conftest import Story, member
from tests.e2e.scenarios.intercept import Intercept, cannot, intercept
from tests.e2e.scenarios.test_outages import verified
from tests.support.logs.postgres import run, running_postgres
from tests.support.logs.postgres_backups import Backup
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

__all__ = ["intercept"]

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
GPU = {"nvidia.com/gpu": 8}
CONFIG_MAP = "/api/v1/namespaces/gang-extender/configmaps/gang-extender-log"


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that the test may replace by a copy of itself."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database_url(own_postgres: EmbeddedPostgres) -> str:
    """Its database; `story` gets this one."""
    run(schema_migration.upgrade(own_postgres.url))
    return own_postgres.url


async def half_bound(
    story: Story, intercept: Intercept, backup: Backup
) -> tuple[dict[str, str], Callable[[], None]]:
    """Gang `waiting` lacks a member; then the copy; then gang `a` gets four nodes and binds two of them."""
    obstacle = True

    async def keep_two(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if not obstacle or not request.path.endswith("/bind"):
            return None
        return cannot("kept back by the test") if body["PodName"] in ("a-2", "a-3") else None

    intercept.call = keep_two
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(8)))
    await story.create(*a_gang("waiting", pods=4, requests=GPU)[:-1])
    await story.until_event("GangUnschedulable", "default/waiting")
    await backup.take()
    await story.create(*a_gang("a", pods=4, minimum=2, requests=GPU))
    bound = await story.until_bound(2, prefix="a-")

    async def recorded() -> bool:
        return len(await story.service.events("PodBound")) == 2

    await eventually(recorded)

    def let_go() -> None:
        nonlocal obstacle
        obstacle = False

    return bound, let_go


async def recovered(story: Story) -> dict[str, Any]:
    """Wait until the loss is in the log and the service answers again."""
    truncation = await story.until_event("HistoryTruncated")
    await eventually(story.service.ready)
    return truncation


async def all_ends_well(
    story: Story, lost: list[dict[str, Any]], bound: dict[str, str], url: str
) -> None:
    """Compared first, then promised; every pod is bound once, no node holds more than it has."""
    truncation = await recovered(story)
    assert truncation["data"]["found_position"] < truncation["data"]["known_position"]
    assert truncation["epoch"] > max(event["epoch"] for event in lost)
    await story.until_bound(4, prefix="a-")
    await story.create(member("waiting-3", "waiting", containers=_containers()))
    await story.until_bound(8)

    async def recorded() -> bool:
        satisfied = {event["gang"] for event in await story.service.events("GangScheduled")}
        return "default/waiting" in satisfied and len(await story.service.events("PodBound")) == 8

    await eventually(recorded)
    await story.check_capacity()
    assert bound.items() <= (await story.bound()).items(), "pods that ran were left alone"
    events = await story.service.events()
    assert [f["position"] for f in events] == list(range(1, len(events) + 1))
    uids = [f["data"]["uid"] for f in events if f["type"] == "PodBound"]
    assert len(uids) == len(set(uids)) == 8
    drift = [f for f in events if f["type"] == "DriftDetected"]
    assert {f["data"]["object"] for f in drift} == {f"Pod/default/{pod}" for pod in bound}
    assert {f["data"]["kind"] for f in drift} == {"bound-by-unknown-plan"}
    promised = [f["position"] for f in events if f["type"] in ("GangAdmitted", "GangExtended")]
    later = [p for p in promised if p > truncation["position"]]
    assert min(later) > max(f["position"] for f in drift), "promised before it was compared"
    assert [line["level"] for line in story.service.lines("history lost")] == ["ERROR"]
    assert await story.service.metric("gang_extender_history_truncated_total") == 1
    assert (
        await story.service.metric("gang_extender_drift_detected_total", "bound-by-unknown-plan")
        == 2
    )
    await asyncio.to_thread(story.service.stop)
    verified(url)


def _containers() -> list[dict[str, Any]]:
    (container,) = a_gang("waiting", pods=1, requests=GPU)[-1]["spec"]["containers"]
    return [container]


@pytest.mark.full
@pytest.mark.settings(lease_duration_s="4")
async def test_an_older_copy_takes_the_place_of_the_database(
    intercept: Intercept, story: Story, own_postgres: EmbeddedPostgres, database_url: str
) -> None:
    """While the service lives: its memory shows the loss, and is dropped."""
    backup = Backup(own_postgres)
    bound, let_go = await half_bound(story, intercept, backup)
    lost = await story.service.events()
    await backup.restore()
    await recovered(story)
    let_go()
    await all_ends_well(story, lost, bound, database_url)


@pytest.mark.full
@pytest.mark.settings(lease_duration_s="4")
async def test_an_older_copy_and_a_new_process(
    intercept: Intercept, story: Story, own_postgres: EmbeddedPostgres, database_url: str
) -> None:
    """The end of the log stands in a ConfigMap, under the service's own rights; it shows the loss."""
    backup = Backup(own_postgres)
    bound, let_go = await half_bound(story, intercept, backup)
    lost = await story.service.events()

    async def published() -> bool:
        try:
            found = await story.api.get(CONFIG_MAP)
        except ApiError:  # it is made a moment after the lease was taken
            return False
        return int(found["data"]["position"]) >= len(lost)

    await eventually(published)
    story.service.kill()
    await backup.restore()
    await story.service.start()
    await recovered(story)
    let_go()
    await all_ends_well(story, lost, bound, database_url)
