"""`gang-extender proxy`: the token is added for this machine, and for no web page of another server."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.http.web.server import StaticPages
from tests.support.service import fork_server


class Service:
    """Answers to the token `secret`, and records what it gets."""

    def __init__(self):
        self.requests = []
        app = web.Application()
        app.router.add_get("/v1/gangs", self.gangs)
        app.router.add_get("/v1/events", self.events)
        app.router.add_post("/v1/plan", self.plan)
        app.add_routes(StaticPages().routes())
        self.server = TestServer(app)

    def refused(self, request):
        given = request.headers.get("Authorization", "")
        self.requests.append((request.path_qs, given))
        if given == "Bearer secret":
            return None
        return web.json_response({"detail": "no"}, status=401)

    async def gangs(self, request):
        headers = {"X-Log-Position": "7"}
        return self.refused(request) or web.json_response(["gang"], headers=headers)

    async def plan(self, request):
        return self.refused(request) or web.json_response(await request.json())

    async def events(self, request):
        if refused := self.refused(request):
            return refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await response.write(b"data: 2\n\n")
        return response


@pytest.fixture
async def service():
    made = Service()
    await made.server.start_server()
    yield made
    await made.server.close()


@contextmanager
def proxy(*words):
    """Run the command; give the URL that it prints."""
    with fork_server.run(
        ["proxy", "--port", "0", *words],
        os.environ,
        subprocess.PIPE,
        errors=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            url = process.stdout.readline().strip()
            assert url.endswith("/ui/"), process.stderr.read()
            yield url.removesuffix("/ui/"), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@pytest.fixture
def proxied(service, tmp_path):
    (tmp_path / "token").write_text("secret")
    address = f"http://127.0.0.1:{service.server.port}"
    with proxy("--server", address, "--token-file", str(tmp_path / "token")) as (url, process):
        yield url
    assert process.returncode == 0


async def test_the_token_is_added(service, proxied):
    """To reads, plan queries and streams; the page comes too; headers of the answer are kept; the token of the caller is not sent."""
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": "Bearer of-the-caller"}
        async with session.get(f"{proxied}/v1/gangs?state=x", headers=headers) as reply:
            assert (reply.status, await reply.json()) == (200, ["gang"])
            assert reply.headers["X-Log-Position"] == "7"
        async with session.post(f"{proxied}/v1/plan", json={"a": 1}) as reply:
            assert await reply.json() == {"a": 1}
        async with session.get(f"{proxied}/v1/events?follow=true") as reply:
            assert reply.content_type == "text/event-stream"
            assert await reply.read() == b"data: 1\n\ndata: 2\n\n"
        async with session.get(proxied) as reply:
            assert reply.status == 200
            assert "gang-extender" in await reply.text()
            assert "Content-Security-Policy" in reply.headers
    paths = ["/v1/gangs?state=x", "/v1/plan", "/v1/events?follow=true"]
    assert service.requests == [(path, "Bearer secret") for path in paths]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/gangs", {"Host": "attacker.example"}, 403),
        ("GET", "/v1/gangs", {"Origin": "http://evil.example"}, 403),
        ("POST", "/v1/plan", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/gangs", {"Content-Type": "application/json"}, 405),
        ("POST", "/scheduler/bind", {"Content-Type": "application/json"}, 404),
        ("GET", "/elsewhere", {}, 404),
    ],
)
async def test_pages_of_other_servers_get_nothing(service, proxied, method, path, headers, status):
    """Nor do the verbs have a way through; nothing reaches the service."""
    body = b"{}" if method == "POST" else None
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, proxied + path, headers=headers, data=body) as reply,
    ):
        assert reply.status == status
    assert service.requests == []


async def test_a_service_that_does_not_answer_is_named(service, tmp_path):
    """502 with the sentence that a command prints; so is a token that is missing."""
    address = f"http://127.0.0.1:{service.server.port}"
    with proxy("--server", address) as (url, _):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/v1/gangs") as reply:
                assert reply.status == 502
                assert "asks for a token" in (await reply.json())["detail"]
            await service.server.close()
            async with session.get(f"{url}/v1/gangs") as reply:
                assert reply.status == 502
                assert f"no answer from {address}" in (await reply.json())["detail"]
