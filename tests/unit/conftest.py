"""Unit tests stay small: what each costs is measured (tests/support/cpu_limit.py), and time is virtual where only time is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.support import cpu_limit, virtual_time

# They have sockets, files and processes, which take the time that they take.
REAL_TIME = tuple(
    f"tests/unit/{name}"
    for name in (
        "cluster/",
        "http/access/",
        "http/test_",
        "http/v1/",
        "http/web/",
        "runtime/",
        "test_ports",
    )
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from cpu_limit.measured(item))


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.nodeid.startswith(REAL_TIME):
        return {"real time": asyncio.SelectorEventLoop}
    return {"virtual time": virtual_time.VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _threads_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (asyncio, asyncio.futures):
        monkeypatch.setattr(module, "wrap_future", virtual_time.wrap_future)
