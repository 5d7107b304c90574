"""The report of a simulation: counted against the jobs and the log it is made from."""

from __future__ import annotations

import pytest

from extender.simulation.simulation_report import report
from tests.unit.simulation.test_simulation import GPU, an_arrival, an_empty_fleet, run


def test_waits_and_what_starves_are_counted_by_namespace_and_size() -> None:
    # 8 nodes: the second waits for the end of the first, the third for one that does not end, the last fits nowhere
    jobs = [
        an_arrival("a", 0.0, 8, runs_for_s=300.0),
        an_arrival("b", 10.0, 8, runs_for_s=600.0),
        an_arrival("small", 20.0, 1, runs_for_s=60.0, namespace="team-b"),
        an_arrival("never", 30.0, 9, namespace="team-b"),
    ]
    shown = report(run(jobs, until_s=900.0, cluster=an_empty_fleet()), seed=1)
    assert (shown.counted, shown.capacity) == (GPU, 64)
    rows = {(row.namespace, row.size): row for row in shown.classes}
    assert set(rows) == {("team-a", "33-128"), ("team-b", "2-8"), ("team-b", "33-128")}
    large = rows["team-a", "33-128"]
    assert (large.jobs, large.admitted, large.ended, large.starved) == (2, 2, 1, 0)
    assert large.wait_max_s == pytest.approx(290.0, abs=60.0)
    never = rows["team-b", "33-128"]
    assert (never.admitted, never.wait_p50_s, never.starved) == (0, None, 1)
    assert 0.9 < shown.utilisation <= 1.0
    assert {free.key for free in shown.largest_free} >= {""}


def test_a_gang_that_is_preempted_loses_the_time_that_it_ran() -> None:
    jobs = [
        an_arrival("low", 0.0, 8, runs_for_s=3_000.0),
        an_arrival("high", 1_800.0, 8, runs_for_s=300.0, namespace="team-b", priority=10),
    ]
    shown = report(run(jobs, until_s=3_000.0, cluster=an_empty_fleet()), seed=1)
    low, high = (
        next(row for row in shown.classes if row.namespace == name) for name in ("team-a", "team-b")
    )
    assert shown.preemptions == 1
    assert (low.evictions, high.evictions, high.ended) == (1, 0, 1)
    assert low.lost_unit_hours == pytest.approx(64 * 0.5, rel=0.05)
