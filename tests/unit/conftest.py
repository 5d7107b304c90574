"""Unit tests stay small: what each costs is checked (tests/support/cpu_limit.py)."""

from __future__ import annotations

import importlib

import pytest

from extender.control.loop.planner_pool import SOLVER
from tests.support import cpu_limit, hypothesis_profile


@pytest.fixture(scope="session")
def slow_at_start() -> float:
    """Return how slow this machine is; what many tests import is imported before that."""
    importlib.import_module(SOLVER)
    return cpu_limit.slowness()


@pytest.fixture(autouse=True)
def _measured(slow_at_start: float, request: pytest.FixtureRequest) -> None:
    request.node.stash[SLOW] = slow_at_start


SLOW = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> object:
    """Measure the call, and fail a test that passed at more than its cost."""
    began_s = cpu_limit.spent_s()
    found = yield
    cost_s = cpu_limit.spent_s() - began_s
    by_profile = hypothesis_profile.PROFILE == "full" and item.get_closest_marker("hypothesis")
    excused = by_profile or item.get_closest_marker("full") or item.get_closest_marker("long")
    if not excused and SLOW in item.stash:
        marker = item.get_closest_marker("cpu")
        limit_s = marker.args[0] if marker is not None else cpu_limit.LIMIT_S
        cpu_limit.check(item.name, cost_s, item.stash[SLOW], limit_s)
    return found
