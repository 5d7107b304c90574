"""The whole service on a real PostgreSQL: it projects as it goes, and answers about the past while it decides."""

from __future__ import annotations

import asyncio

import aiohttp
import asyncpg
import pytest
import yaml

from deploy.demo.ports import free_port
from extender import composition
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.queries.state.state_dto import Scope
from extender.settings import Settings
from tests.support.logs.random_logs import lean
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@pytest.fixture
def settings(database_url, tmp_path):
    manifests = tmp_path / "cluster.yaml"
    things = [a_node("n0", gpu=8), *a_gang("g", pods=2, requests={GPU: 1}, schedulingGates=GATED)]
    manifests.write_text(yaml.safe_dump_all(things))
    listen = f"127.0.0.1:{free_port()}"
    return Settings(
        database_url=database_url, data_dir=str(tmp_path), cluster=(str(manifests),),
        listen=listen, advertise_url=f"http://{listen}", identity="me",
    )  # fmt: skip


async def test_projected_and_answered_while_it_runs(settings):
    async with composition.store(settings, migrates=False) as opened:
        clock = composition.database_clock(opened)
        writer = composition.leader(settings, opened, clock)
        seen = await composition.cluster(settings, clock, writer.may_act)
        service = composition.Service(settings, opened, seen, writer, clock)
        stopping = asyncio.Event()
        running = asyncio.create_task(service.run(stopping, lambda: None))
        try:
            await eventually(
                lambda: writer.committed.claims_on and not writer.appends.in_flight, "admitted"
            )
            end = writer.committed.position
            await eventually(lambda: service.projector.position >= end, "projected")
            connection = await asyncpg.connect(settings.database_url)
            held = await connection.fetch(
                "SELECT pod, node, resources ->> 'nvidia.com/gpu' AS gpus FROM gx.placement "
                "WHERE kind = 'reserved' AND to_position IS NULL ORDER BY pod"
            )
            await connection.close()
            assert [tuple(row) for row in held] == [
                ("default/g-0", "n0", "1"),
                ("default/g-1", "n0", "1"),
            ]
            url = settings.advertise_url
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{url}/v1/state?at={end}") as reply:
                    state = await reply.json()
                async with session.get(f"{url}/v1/nodes/n0") as reply:
                    node = await reply.json()
            assert state["totals"]["reserved"] == 2
            assert node["live"]["free"][GPU] == 6
            assert node["node"]["reserved"][GPU] == 2
            moment = (await opened.as_of.state(str(end), Scope())).as_of
            log = [event async for page in opened.log.read(until=end) for event in page]
            assert lean(await opened.as_of.folded(moment)) == lean(fold(EMPTY, log))
        finally:
            stopping.set()
            await running
