"""Questions are worked on in turns, with rests while kube-scheduler calls; streams and askers that read slowly take none."""

from __future__ import annotations

import asyncio
import math

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.core.model.ids import Position
from extender.http.responses.json_responses import answer
from extender.http.web.query_process import CALLED, QueryProcess, QueryProcessOptions, QueryTurns
from extender.runtime import cooperative_yield
from extender.runtime.cooperative_yield import Yielder
from tests.support.service.fakes import idle
from tests.support.waiting import eventually

CALM_S = 600.0
CALMER_MS = 700_000  # the header's largest is a thousand seconds
LARGE = [b"x" * 65_536] * 1_000  # more than sockets keep


class Questions:
    """Handlers that wait until they are let go."""

    def __init__(self):
        self.arrived = self.begun = 0
        self.go = asyncio.Event()

    async def work(self, request):
        self.begun += 1
        await self.go.wait()
        return web.Response()

    async def large(self, request):
        return await answer(request, LARGE, Position(1))

    async def fails(self, request):
        raise web.HTTPNotFound

    @web.middleware
    async def count(self, request, handler):
        self.arrived += 1
        return await handler(request)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(Yielder, "_called_s", -math.inf)
    # no test waits for the calm, however busy the machine
    monkeypatch.setattr(cooperative_yield, "RECENT_CALL_S", CALM_S)
    monkeypatch.setattr("extender.http.web.query_process.REST_S_MAX", 3600.0)
    return Questions()


async def serving(asked, turns):
    app = web.Application(middlewares=[asked.count, turns.in_turn])
    app.add_routes(
        [
            web.get("/work", asked.work),
            web.get("/large", asked.large),
            web.get("/none", asked.fails),
        ]
    )
    return TestClient(TestServer(app))


async def arrived(asked, number):
    """Wait until so many questions have come to where turns are given, and each has got its own or waits for it."""
    await eventually(lambda: asked.arrived == number, "questions")
    await idle()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_so_many_are_worked_on_at_once(asked, at_once):
    async with await serving(asked, QueryTurns(at_once, 0)) as client:
        asking = [asyncio.create_task(client.get("/work")) for _ in range(4)]
        await arrived(asked, 4)
        assert asked.begun == at_once
        asked.go.set()
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 4


async def test_after_a_question_comes_a_rest(asked):
    """Its answer does not wait for it, the next question does."""
    async with await serving(asked, QueryTurns(1, 1e9)) as client:
        asked.go.set()
        assert (await client.get("/work", headers={CALLED: "3"})).status == 200
        following = asyncio.create_task(client.get("/work"))
        await arrived(asked, 2)
        assert asked.begun == 1
        following.cancel()


@pytest.mark.parametrize("headers", [{}, {CALLED: str(CALMER_MS)}, {CALLED: "soon"}])
async def test_there_is_no_rest_while_kube_scheduler_does_not_call(asked, headers):
    async with await serving(asked, QueryTurns(1, 1e9)) as client:
        asked.go.set()
        assert [(await client.get("/work", headers=headers)).status for _ in range(3)] == [200] * 3


async def test_there_is_no_rest_where_there_are_processors_enough(asked):
    async with await serving(asked, QueryTurns(1, 0)) as client:
        asked.go.set()
        assert (await client.get("/work", headers={CALLED: "3"})).status == 200
        assert Yielder.since_last_call_s() == math.inf


async def test_a_rest_has_an_end(asked, monkeypatch):
    monkeypatch.setattr("extender.http.web.query_process.REST_S_MAX", 0.0)
    async with await serving(asked, QueryTurns(1, 1e9)) as client:
        asked.go.set()
        calling = {CALLED: "3"}
        assert [(await client.get("/work", headers=calling)).status for _ in range(3)] == [200] * 3


async def test_a_fault_gives_the_turn_back(asked):
    async with await serving(asked, QueryTurns(1, 0)) as client:
        assert [(await client.get("/none")).status for _ in range(3)] == [404] * 3


async def test_streams_take_no_turn(asked):
    async with await serving(asked, QueryTurns(1, 0)) as client:
        streams = [asyncio.create_task(client.get("/work?follow")) for _ in range(3)]
        await eventually(lambda: asked.begun == 3, "all streams")
        question = asyncio.create_task(client.get("/work"))
        await eventually(lambda: asked.begun == 4, "the question as well")
        asked.go.set()
        await asyncio.gather(*streams, question)


async def test_no_query_waits_for_a_client_that_does_not_read(asked):
    async with await serving(asked, QueryTurns(1, 0)) as client:
        slow = await client.get("/large")  # its headers are read, and then nothing
        asked.go.set()
        assert (await client.get("/work")).status == 200
        slow.close()


async def test_the_service_sends_whether_kube_scheduler_calls(asked):
    """A client cannot set the header."""
    received = []

    async def record_header(request):
        received.append(request.headers.get(CALLED))
        return web.Response()

    there, service = QueryProcess((), QueryProcessOptions("", "INFO")), web.Application()
    there.open()
    service.add_routes(there.routes())
    other = web.Application()
    other.add_routes([web.get("/v1/reports", record_header)])
    runner = web.AppRunner(other)
    await runner.setup()
    await web.SockSite(runner, there._listening).start()
    async with TestClient(TestServer(service)) as client:
        await client.get("/v1/reports", headers={CALLED: "1"})
        Yielder.record_call(0.5)
        await client.get("/v1/reports")
        Yielder._called_s -= CALM_S
        await client.get("/v1/reports")
    await runner.cleanup()
    await there.close()
    assert (received[0], received[2]) == (None, None)
    assert 500 <= int(received[1]) < CALM_S * 1000
