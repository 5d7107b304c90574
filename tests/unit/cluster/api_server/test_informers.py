"""Cutting a stream into lines, and where a resource lives."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster import types as api
from extender.cluster.api_server import informers
from extender.cluster.api_server.informers import Resource, ResourceVersionExpired, _whole_lines


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
