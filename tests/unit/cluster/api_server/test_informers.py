"""Cutting a stream into lines, where a resource lives, and the pauses between watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster import types as api
from extender.cluster.api_server import informers
from extender.cluster.api_server.informers import (
    Informer,
    Resource,
    ResourceVersionExpired,
    _whole_lines,
)
from extender.cluster.connection.api_client import ApiResponse
from extender.cluster.read.object_store import ObjectStore
from extender.core.model.errors import ClusterUnavailable
from extender.simulation.virtual_time import VirtualClock
from tests.support.virtual_time import VirtualTimeLoop

NODES = Resource(name="nodes", kind=api.Node, api_version="v1")


async def pieces_of(text: bytes, cuts: list[int]) -> AsyncIterator[bytes]:
    begin = 0
    for cut in [*sorted(cuts), len(text)]:
        yield text[begin:cut]
        begin = cut


@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")), max_size=6), st.data())
async def test_lines_do_not_depend_on_how_the_stream_is_cut(lines, data) -> None:
    """Pieces end anywhere; an unfinished line at the end is dropped."""
    text = b"".join(line + b"\n" for line in lines) + b"torn"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    got = [line async for batch in _whole_lines(pieces_of(text, cuts)) for line in batch]
    assert got == [line for line in lines if line]


async def test_an_endless_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by what an object can be."""
    monkeypatch.setattr(informers, "LINE_MAX_BYTES", 10)
    with pytest.raises(ResourceVersionExpired):
        async for _ in _whole_lines(pieces_of(b"x" * 30, [15])):
            pass


def test_paths_and_labels() -> None:
    """The core group has no group in its path."""
    pods = Resource(name="pods", kind=api.Pod, api_version="v1")
    groups = Resource(name="podgroups", kind=api.PodGroup, api_version="scheduling.k8s.io/v1beta1")
    assert (pods.path, pods.label) == ("/api/v1/pods", "pods")
    assert groups.path == "/apis/scheduling.k8s.io/v1beta1/podgroups"
    assert groups.label == "podgroups.scheduling.k8s.io"


class QuietServer:
    """An API server without objects: it is away for some watches, answers one with 410 or not, and lets the next ones break."""

    def __init__(self, *, away: int, expires: bool = False, open_s: float = 0.0) -> None:
        self.away = away
        self.expires = expires
        self.open_s = open_s
        self.asked: list[tuple[float, str]] = []  # how long after the last failure, and for what
        self.broke_s = 0.0

    def _ask(self, text: str) -> None:
        self.asked.append((asyncio.get_running_loop().time() - self.broke_s, text))

    async def call(self, _):
        self._ask("list")
        return b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    @asynccontextmanager
    async def watch(self, *_, **__):
        self._ask("watch")
        self.broke_s = asyncio.get_running_loop().time()
        if self.away:
            self.away -= 1
            raise ClusterUnavailable("503")
        if self.expires:
            self.expires = False
            raise ApiResponse(410, "Expired", "too old")
        yield self._lines()

    async def _lines(self):
        await asyncio.sleep(self.open_s)
        self.broke_s = asyncio.get_running_loop().time()
        raise ClusterUnavailable("the connection was reset")
        yield b""


async def _pause_before(server: QuietServer, number: int) -> tuple[float, str]:
    """Return how long an informer waited before its last request of a number, and what that was for."""
    clock = VirtualClock(asyncio.get_running_loop(), 0, "informer")
    informer = Informer(server, NODES, ObjectStore(), clock=clock, applied=lambda: None)
    follows = asyncio.create_task(informer.run())
    while len(server.asked) < number:
        await asyncio.sleep(0.05)
    follows.cancel()
    return server.asked[number - 1]


@pytest.mark.parametrize(
    ("server", "number", "expected"),
    [
        (QuietServer(away=8, open_s=60.0), 11, "watch"),
        (QuietServer(away=8), 11, "watch"),
        (QuietServer(away=8, expires=True), 11, "list"),
    ],
    ids=["a watch that was open", "a short one", "expired"],
)
def test_an_answer_ends_the_pauses_of_the_failures_before_it(server, number, expected):
    """The copy is outdated until it is listed or watched again: failures of before the server was there do not delay that."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        pause_s, text = runner.run(_pause_before(server, number))
    assert text == expected
    assert pause_s <= 0.3


@pytest.mark.parametrize(
    "server", [QuietServer(away=99), QuietServer(away=0)], ids=["away", "short"]
)
def test_pauses_grow_while_no_watch_lasts(server):
    """The first request is the list, so the tenth follows eight pauses."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        pause_s, _ = runner.run(_pause_before(server, 10))
    assert pause_s >= 7.5
