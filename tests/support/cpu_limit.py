"""What a unit test may cost: half a second of CPU. What costs more is listed at the end of a run; no test fails because of it.

CPU seconds of the call are counted, not time: of this process, and of the processes that the test started and waited for. The
worker process that all stages share is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import Any

import pytest

LIMIT_S = 0.5
COST = "cpu_s"  # among the properties of a report, which come from the workers of xdist as well


def spent_s() -> float:
    """Return the CPU seconds of this process and of the children that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measured(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note the CPU seconds of a call in its report."""
    began_s = spent_s()
    try:
        return (yield)
    finally:
        item.user_properties.append((COST, spent_s() - began_s))


def expensive(reports: Iterable[object]) -> list[str]:
    """Return the tests that cost more than the limit, each a line with its CPU seconds, the most expensive first."""
    costs = [
        (value, report.nodeid)
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == COST and isinstance(value, float) and value > LIMIT_S
    ]
    return [f"{cost_s:6.2f} s {name}" for cost_s, name in sorted(costs, reverse=True)]
