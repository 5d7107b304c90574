"""What a unit test costs is listed at the end of a run, and fails nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import cpu_limit


def report_of(name, cost_s, when="call"):
    return pytest.TestReport(
        name, ("", 0, ""), {}, "passed", None, when, user_properties=[(cpu_limit.COST, cost_s)]
    )


def test_only_expensive_calls_are_listed():
    """The most expensive first; a report of the teardown has the same properties, and counts nothing."""
    reports = [
        report_of("small", cpu_limit.LIMIT_S),
        report_of("large", 0.75),
        report_of("larger", 12.0),
        report_of("larger", 12.0, when="teardown"),
        "not a report",
    ]
    assert cpu_limit.expensive(reports) == [" 12.00 s larger", "  0.75 s large"]


def test_each_call_has_its_cost():
    """Also one that fails."""
    item = SimpleNamespace(user_properties=[])
    for fails in (False, True):
        call = cpu_limit.measured(item)
        next(call)
        began_s = cpu_limit.spent_s()
        while cpu_limit.spent_s() < began_s + 0.01:
            pass
        with pytest.raises(ValueError if fails else StopIteration):
            call.throw(ValueError) if fails else call.send(None)
    assert [name for name, _ in item.user_properties] == [cpu_limit.COST] * 2
    assert all(cost_s > 0 for _, cost_s in item.user_properties)
