"""A caller who repeats a bad request does not fill the log."""

from __future__ import annotations

import logging

from extender.telemetry import CAUSES_MAX, LimitedLines
from tests.support.service.fakes import FakeClock

log = logging.getLogger("tests.limited")


def test_one_line_a_minute_for_each_cause_with_the_number_of_the_others(caplog):
    clock = FakeClock()
    lines = LimitedLines(log, "bad", clock.monotonic_ms)
    for _ in range(1000):
        lines.warn("a", peer="a")
    lines.warn("b", peer="b")
    clock.advance(60)
    lines.warn("a", peer="a")
    found = [(r.message, r.peer, r.more_since_last_line) for r in caplog.records]
    assert found == [("bad", "a", 0), ("bad", "b", 0), ("bad", "a", 999)]


def test_any_number_of_causes_is_limited_too(caplog):
    """As of a caller with a network of addresses: beyond 100 causes all further ones share a line."""
    lines = LimitedLines(log, "bad", FakeClock().monotonic_ms)
    for number in range(10_000):
        lines.warn(str(number), peer=str(number))
    assert len(caplog.records) == CAUSES_MAX + 1
