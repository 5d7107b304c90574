"""What is read of a run: CPU by process, filter calls of /metrics, and the speed of its machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from extender.telemetry import Metrics
from tests.bench import machine
from tests.bench.cpu_by_process import ALL, HEAD, PROCESSES, cpu_rows, per_member_ms
from tests.bench.filter_times import FilterTimes, filter_times
from tests.bench.quick import by_process
from tests.bench.race import Run
from tests.bench.record import Recorded, load, record
from tests.bench.test_record import figure
from tests.bench.verdicts import verdict_text

OURS = {
    "kube-apiserver": 2.0, "etcd": 0.5, "kube-scheduler": 0.75, "service": 0.5, "service's children": 0.25, "postgres": 0.5,
    "loader": 9.0, "others on this machine": 40.0,
}  # fmt: skip
NATIVE = {"kube-apiserver": 1.0, "etcd": 0.5, "kube-scheduler": 1.5, "postgres": 0.1, "loader": 9.0}


def a_run(side: str, cpu_s: dict[str, float], pods: int = 100, bound: int = 100) -> Run:
    bound_s = tuple(float(n) for n in range(1, bound + 1))
    return Run(side=side, pods=pods, created_s=0.5, bound_s=bound_s, cpu_s=cpu_s, marks_s={})


def test_a_member_costs_what_all_processes_of_its_side_use() -> None:
    """Who creates the load, other work, and a database that the native gang does not have are not counted."""
    assert per_member_ms(OURS, 100) == {
        "kube-apiserver": 20.0, "etcd": 5.0, "kube-scheduler": 7.5, "service": 7.5, "PostgreSQL": 5.0, ALL: 45.0,
    }  # fmt: skip
    assert per_member_ms(NATIVE, 100) == {
        "kube-apiserver": 10.0, "etcd": 5.0, "kube-scheduler": 15.0, ALL: 30.0
    }  # fmt: skip


def test_the_table_has_a_row_for_each_case() -> None:
    """Here / native by process, then the ratio of all; runs that did not finish are not counted."""
    lost = a_run("ours", {"kube-apiserver": 70.0}, bound=99)
    figures = by_process("a gang", [a_run("ours", OURS), lost], [a_run("native", NATIVE)], "1.2 x")
    assert {f.unfinished for f in figures} == {1}
    assert cpu_rows(figures) == [
        HEAD, ("a gang", "20 / 10", "5 / 5", "7.5 / 15", "7.5 / -", "5 / -", "45 / 30", "1.50 x", "-"),
    ]  # fmt: skip
    first, second = verdict_text(figures).split("\n\n")
    assert first.startswith(HEAD[0])
    goals = [line.split("  ")[0] for line in second.splitlines()[1:]]
    assert goals == ["CPU per member bound, a gang: kube-apiserver"], (
        "what has a goal, and only that"
    )
    assert set(PROCESSES) < set(HEAD)


def test_filter_calls_are_those_between_two_readings() -> None:
    """Of the real histogram of the service: other verbs, and calls before, are not counted."""
    metrics = Metrics()
    observe = metrics.extender_request_duration_seconds.labels
    observe("filter").observe(3.0)
    before = filter_times(generate_latest(metrics.registry).decode())
    observe("bind").observe(7.0)
    for _ in range(98):
        observe("filter").observe(0.0001)
    for _ in range(2):
        observe("filter").observe(0.004)
    times = filter_times(generate_latest(metrics.registry).decode()).since(before)
    assert (before.count, times.count) == (1, 100)
    assert times.mean_ms == pytest.approx((98 * 0.1 + 2 * 4) / 100)
    assert (times.at_most_ms(0.5), times.at_most_ms(0.98), times.at_most_ms(0.99)) == (0.2, 0.2, 5)
    assert (times + times).count == 200
    assert (times + times).at_most_ms(0.99) == 5


def test_a_service_that_was_not_asked_has_no_filter_times() -> None:
    none = filter_times(generate_latest(Metrics().registry).decode())
    assert none.since(FilterTimes()).count == none.count == 0
    assert math.isnan(none.mean_ms)
    assert math.isnan(none.at_most_ms(0.99))


def test_another_answer_is_not_read_as_no_call() -> None:
    with pytest.raises(ValueError, match="/metrics has no gang_extender_extender_request"):
        filter_times("")


def test_the_speed_is_that_of_a_loop_that_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop for all: one that computes something else is refused."""
    clock = iter([0.0, 0.02, 0.0, 0.04, 0.0, 0.05, 0.0, 0.04, 0.0, 0.1])
    monkeypatch.setattr("time.thread_time", clock.__next__)
    assert machine.speed() == machine.TURNS / 0.04 / 1e6
    monkeypatch.setattr(machine, "TURNS", machine.TURNS // 2)
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    with pytest.raises(AssertionError):
        machine.speed()


@pytest.mark.parametrize(
    ("speeds", "text"),
    [((), "-"), ((14.1, 14.3), "14.2"), ((14.0, 12.0), "12 to 14"), ((7.0,), "7")],
)
def test_a_machine_that_changed_its_speed_is_shown(speeds: tuple[float, ...], text: str) -> None:
    assert machine.speed_text(speeds) == text


def test_what_a_case_has_no_more_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of other cases and benches stay, and only those of `quick` are for git."""
    local = tmp_path / "local"
    for name, path in (
        ("HERE", tmp_path), ("RECORDED", tmp_path / "recorded.json"), ("LOCAL", local),
    ):  # fmt: skip
        monkeypatch.setattr(f"tests.bench.record.{name}", path)
    names = ("filter: old", "filter: kept", "other: old")
    record([figure(1, bench="verbs", what=what) for what in names], "before")
    record([figure(4, bench="quick", what="filter: q")], "before")
    record([figure(2, bench="verbs", what="filter: kept"), figure(3, what="filter: a")], "after")
    stored: list[Recorded] = load()
    assert [(r.figure.bench, r.figure.what, r.command) for r in stored] == [
        ("quick", "filter: q", "before"), ("gang", "filter: a", "after"), ("verbs", "filter: kept", "after"),
        ("verbs", "other: old", "before"),
    ]  # fmt: skip
    shown = {path: (path / "RESULTS.md").read_text() for path in (tmp_path, local)}
    assert [path for path, text in shown.items() if "filter: kept" in text] == [local]
    assert [path for path, text in shown.items() if "filter: q" in text] == [tmp_path]
    assert "filter: old" not in shown[local]
