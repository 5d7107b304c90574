"""Live follow over HTTP from a real database: many readers, slow ones, ones that come back, a Postgres that dies."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.core.log.events import GangUnschedulable, PodBound
from extender.http.responses.json_responses import problems
from extender.http.v1.event_api import EventApi
from extender.queries.log.event_stream import BUFFER_EVENTS, EventStream
from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from tests.integration.store.test_unknown_outcome import everything, kill_server, resolve, take
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import FAST
from tests.support.service.sse_reader import Reader
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def serving(url):
    """Serve /v1/events of a database; yield the URL and the feed."""
    engine = reading_pool(url)
    async with PostgresEventLog(url) as log:
        reader = PostgresEventQueries(engine)
        feed = EventStream(log, reader)
        app = web.Application(middlewares=[problems])
        app.add_routes(EventApi(reader, feed).routes())

        async def end(_):
            feed.stop()

        app.on_shutdown.append(end)
        server = TestServer(app)
        await server.start_server()
        try:
            yield str(server.make_url("")).rstrip("/"), feed
        finally:
            await server.close()
            await engine.close()


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.full)])
async def test_many_readers_while_writing(database_url, count):
    """Of every kind: fast, slow, with filters, cut off again and again; each has every event once, in order."""
    entries = 600
    async with PostgresEventLog(database_url) as log, serving(database_url) as (url, _):
        grant = await take(log)
        script = Script(grant)
        await log.append(grant, script.some(300))
        readers = [
            Reader(
                [url],
                "&after=0" + ("&type=PodBound" if n % 5 == 4 else "&node=n1" if n % 5 == 3 else ""),
                breaks_after=100 if n % 5 == 1 else 0,
                slow_s=0.001 if n % 10 == 0 else 0,
            )
            for n in range(count)
        ]

        def enough(reader):
            return reader.last_id == str(entries)

        reading = [asyncio.create_task(reader.read(enough)) for reader in readers]
        chance = random.Random(1)
        while script.position < entries:
            count = min(chance.randint(1, 20), entries - script.position)
            bound = PodBound(plan="p", pod="ns/p", uid="u", node=f"n{chance.randint(0, 2)}")
            await log.append(grant, script.some(count, data=chance.choice((bound, None))))
            await asyncio.sleep(0.002)
        await asyncio.gather(*reading)
        log_now = await everything(log)
    every = [e.position for e in log_now]
    bound = [e.position for e in log_now if isinstance(e.data, PodBound)]
    at_n1 = [e.position for e in log_now if isinstance(e.data, PodBound) and e.data.node == "n1"]
    assert len(every) == entries
    for number, reader in enumerate(readers):
        wanted = {4: bound, 3: at_n1}.get(number % 5, every)
        assert reader.positions == wanted, number
    assert all(reader.connections >= 5 for reader in readers if reader.breaks_after)


async def test_a_reader_that_takes_nothing_costs_nothing(database_url):
    """The service keeps what the sockets hold and the newest events, not what one reader has not taken."""
    async with PostgresEventLog(database_url) as log, serving(database_url) as (url, feed):
        grant = await take(log)
        script = Script(grant)
        refused = GangUnschedulable(outcome="unknown", reasons=("x" * 10_000,))
        async with (
            aiohttp.ClientSession(read_bufsize=4096) as session,
            session.get(f"{url}/v1/events?follow&after=0") as idle,
        ):
            await idle.content.readany()
            for _ in range(40):
                await log.append(grant, script.some(100, data=refused))
            live = Reader([url], f"&after={script.position - 1}")
            await live.read(lambda r: bool(r.events))
            gc.collect()
            kept = feed._recent
            assert len(kept._events) <= BUFFER_EVENTS
            assert kept._bytes <= 9 << 20
            assert feed.readers >= 1
            # and when it reads on, it misses nothing
            seen, rest = 0, b""
            while seen < script.position:
                rest += await idle.content.readany()
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data: "):
                        seen += 1
            assert seen == script.position


async def test_a_postgres_that_dies_again_and_again(tmp_path):
    """Killed and restarted under writers and readers: the streams stay, and have every event once."""
    folder = Path(tempfile.mkdtemp(prefix="gxt-"))
    folder.chmod(0o755)
    try:
        async with EmbeddedPostgres(folder, settings=FAST) as server:
            await schema_migration.upgrade(server.url)
            log = PostgresEventLog(server.url)
            grant = await take(log)
            script = Script(grant)
            async with serving(server.url) as (url, _):
                readers = [Reader([url], "&after=0") for _ in range(5)]
                done = asyncio.Event()
                reading = [
                    asyncio.create_task(
                        r.read(lambda r: done.is_set() and r.last_id == str(script.position))
                    )
                    for r in readers
                ]
                for _ in range(3):
                    await write_until_killed(server, log, grant, script)
                    grant, script = await resolve(log, script.open)
                    await log.append(grant, script.some(50))
                done.set()
                await log.append(grant, script.some(1))
                await asyncio.gather(*reading)
            written = [event.position for event in await everything(log)]
            await log.close()
        for reader in readers:
            assert reader.positions == written
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def write_until_killed(server, log, grant, script):
    """Write while the whole server is killed; what is not known to be written is in `script.open`."""
    from extender.core.model.errors import StoreUnavailable

    killing = asyncio.get_running_loop().call_later(0.2, kill_server, server.pid)
    script.open = []
    while not script.open:
        batch = [script.some(2) for _ in range(5)]
        outcomes = await asyncio.gather(
            *(log.append(grant, events) for events in batch), return_exceptions=True
        )
        for events, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, StoreUnavailable)
                script.open += events
    killing.cancel()


async def test_where_a_stream_begins(database_url):
    """Now, behind a position, behind the last id, at a time; not behind the end of the log."""
    async with PostgresEventLog(database_url) as log, serving(database_url) as (url, feed):
        grant = await take(log)
        script = Script(grant)
        await log.append(grant, script.some(5))
        live = Reader([url])
        task = asyncio.create_task(live.read(lambda r: len(r.events) == 2))
        await eventually(lambda: live.last_id == "5", "the beginning of the stream")
        await log.append(grant, script.some(2))
        await task
        assert live.positions == [6, 7]
        since = Reader([url], "&since=1970-01-01T00:00:00.000004Z")
        await since.read(lambda r: len(r.events) == 4)
        assert since.positions == [4, 5, 6, 7]
        back = Reader([url], "&after=1")
        back.last_id = "6"
        await back.read(lambda r: len(r.events) == 1)
        assert back.positions == [7]
        async with aiohttp.ClientSession() as session:
            for query, status, word in (
                ("follow&after=8", 409, "ends at 7"),
                ("follow&limit=0", 400, "limit"),
                ("follow&order=newest", 400, "order"),
                ("follow&until=2026-11-20T03:12:00Z", 400, "until"),
                ("follow=maybe", 400, "maybe"),
            ):
                async with session.get(f"{url}/v1/events?{query}") as reply:
                    assert reply.status == status
                    assert word in (await reply.json(content_type=None))["detail"]
        assert feed.readers >= 0


async def test_a_stream_ends_after_its_limit(database_url):
    """Of events that are there and of new ones; without a limit it does not end."""
    async with PostgresEventLog(database_url) as log, serving(database_url) as (url, _):
        grant = await take(log)
        script = Script(grant)
        await log.append(grant, script.some(5))

        async def ids(query):
            path = f"{url}/v1/events?follow&{query}"
            async with aiohttp.ClientSession() as session, session.get(path) as reply:
                lines = (await reply.text()).splitlines()
            events = [lines[n - 1] for n, line in enumerate(lines) if line.startswith("data: ")]
            return [int(line.removeprefix("id: ")) for line in events], lines[-3]

        assert await ids("after=1&limit=3") == ([2, 3, 4], "id: 4")
        reading = asyncio.create_task(ids("after=4&limit=3"))
        await asyncio.sleep(0)
        await log.append(grant, script.some(3))
        assert (await reading)[0] == [5, 6, 7]


async def test_pages_link_and_tags(database_url):
    """Walked by its links the log comes whole, in either order; what has not changed is not sent again."""
    async with PostgresEventLog(database_url) as log, serving(database_url) as (url, _):
        grant = await take(log)
        script = Script(grant)
        await log.append(grant, script.some(25))
        async with aiohttp.ClientSession() as session:
            for order, expected in (
                ("oldest", list(range(1, 26))),
                ("newest", list(range(25, 0, -1))),
            ):
                seen, link = [], f"/v1/events?limit=10&order={order}"
                while link:
                    async with session.get(url + link) as reply:
                        assert reply.headers["X-Log-Position"] == "25"
                        tag = reply.headers["ETag"]
                        seen += [entry["position"] for entry in await reply.json()]
                        target = reply.links.get("next")
                    async with session.get(url + link, headers={"If-None-Match": tag}) as again:
                        assert (again.status, await again.read()) == (304, b"")
                    link = target["url"].path_qs if target else ""
                assert seen == expected
            async with session.head(f"{url}/v1/events") as reply:
                assert (reply.status, await reply.read()) == (200, b"")
            await log.append(grant, script.some(1))
            async with session.get(f"{url}/v1/events", headers={"If-None-Match": tag}) as reply:
                assert reply.status == 200
