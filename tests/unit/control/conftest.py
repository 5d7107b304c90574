"""Time in tests of the control side: that of the loop is virtual, and conditions are due when a test calls `Stage.conditions_due`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from extender.control.actuators import status_reporter
from tests.support import virtual_time


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual time": virtual_time.VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _conditions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_reporter, "CONDITION_AFTER_S", 3600)


@pytest.fixture(autouse=True)
def _threads_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (asyncio, asyncio.futures):
        monkeypatch.setattr(module, "wrap_future", virtual_time.wrap_future)
