"""What `make bench-check` calls worse, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.bench import cpu_by_process, machine
from tests.bench.figures import Figure, Scale, quantile, short
from tests.bench.gang import MORE
from tests.bench.plot import plot
from tests.bench.quick import why_of
from tests.bench.race import Case, Run, figures_of, keep, waits_of_trees
from tests.bench.record import QUICK, RESULTS, Recorded, load, page, worse
from tests.bench.sides import Shape
from tests.bench.trace import steps_of
from tests.controlplane.objects import GATE


def figure(*values: float, **more: Any) -> Figure:
    common: dict[str, Any] = {"bench": "gang", "what": "a: b", "unit": "pods/s", "better": "higher"}
    beside = {"baseline_name": "native gang", "baseline": (100.0, 102.0)}
    return Figure(values=values, **(common | beside | more))


def recorded(old: Figure, where: str = "") -> Recorded:
    return Recorded(
        date="2026-11-21", machine=where or machine.describe(), command="make bench", figure=old
    )


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        (figure(300, 310), figure(290, 300), False),  # within the spread
        (figure(300, 310), figure(200, 210), True),
        (figure(300, 310), figure(400, 410), False),  # better
        (figure(300, 310), figure(100, 500), False),  # it jitters more than it lost
        (figure(300, 310), figure(150, 155, baseline=(50.0, 51.0)), False),  # a slower machine
        (figure(2, 2, better="lower"), figure(3, 3, better="lower"), True),
        (figure(3, 3, better="lower"), figure(2, 2, better="lower"), False),
        (figure(300, 310), figure(300, 310, unfinished=1), True),
        (figure(300, 310), figure(200, what="another"), False),  # nothing to compare with
    ],
)
def test_worse_is_what_loses_more_than_the_spread(old: Figure, new: Figure, lost: bool) -> None:
    """Ratios are compared, so that another machine does not matter; spreads of both runs count."""
    assert bool(worse([new], [recorded(old, where="another machine")])) == lost


def test_without_a_baseline_only_the_same_machine_is_compared() -> None:
    """A bare time cannot be compared with another machine."""
    alone = {"baseline_name": "", "baseline": (), "better": "lower"}
    old, new = figure(1.0, 1.0, **alone), figure(2.0, 2.0, **alone)
    assert worse([new], [recorded(old)])
    assert not worse([new], [recorded(old, where="another machine")])


def test_the_page_shows_the_bad_as_well() -> None:
    """Runs that did not finish stand beside those that did, and so does a ratio below the target."""
    text = page([recorded(figure(50, 60, unfinished=3, baseline_unfinished=1, target="2 x"))])
    assert "| a: b | 55 pods/s | 101 (native gang) | 0.54 | 18%, 2% | 2/3, 2/1 | 2 x |" in text


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (figure(200, 206, target="2 x"), True),
        (figure(190, 200, target="2 x"), False),
        (figure(100, 102, better="lower", target="1.2 x"), True),
        (figure(0.4, unit="ms", better="lower", target="0.5 ms"), True),
        (figure(0.6, unit="ms", better="lower", target="0.5 ms"), False),
        (figure(21_000, unit="/s", target="20,000/s"), True),
        (figure(target="2 x"), False),  # no run finished
        (figure(1), None),
    ],
)
def test_a_target_is_met_by_the_ratio_or_by_the_median(one: Figure, met: bool | None) -> None:
    """A target in `x` is met by the ratio, any other by the median."""
    assert one.met is met


def test_a_case_is_done_only_by_figures_of_its_own() -> None:
    """Names of cases begin alike; resuming must not skip the longer by the shorter."""
    done = frozenset({("gang", "1,000 pods, QPS 5, created at 20/s: last create to last bind")})
    scale = Scale(done=done, only="QPS")
    assert scale.wants("gang", "1,000 pods, QPS 5")
    assert not scale.wants("gang", "1,000 pods, QPS 5, created at 20/s")
    assert not scale.wants("gang", "1,000 pods")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0831, "0.0831"),
        (81.74, "81.7"),
        (999.6, "1,000"),
        (9924.0, "9,920"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_shown_with_three_digits(value: float, shown: str) -> None:
    assert short(value) == shown


def test_quantiles_are_values_that_were_measured() -> None:
    """Nearest rank, whatever the order."""
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(100), 0.99) == 99


def test_every_side_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side without a colour would lose all that was measured, at the very end."""
    monkeypatch.setattr("tests.bench.race.RUNS", tmp_path)
    monkeypatch.setattr("tests.bench.plot.RUNS", tmp_path)
    case = Case(shape=Shape(pods=2), nodes=1)
    names = [side.name for side in MORE]
    one = {"pods": 2, "created_s": 0.1, "bound_s": (0.2, 0.3), "cpu_s": {}, "marks_s": {}}
    keep("gang", case, {name: [Run(side=name, **one)] for name in names})
    assert plot("gang", {str(case)}, tmp_path / "gang.png")
    assert (tmp_path / "gang.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("last_s", "rate"), [(3.0, 2.0), (2.0, 2000.0), (1.9, 2000.0)])
def test_pods_may_be_bound_before_the_last_create_is_answered(last_s, rate):
    run = Run(side="native", pods=2, created_s=2.0, bound_s=(1.0, last_s), cpu_s={}, marks_s={})
    assert run.per_s == pytest.approx(rate)


def test_a_tree_waits_from_its_own_last_create() -> None:
    """Trees come one after another: 0.5 s and 2 s, and one of which a pod was never bound."""
    pods = ["a0", "a1", "b0", "b1", "c0", "c1"]
    sent_at = {"a1": 1.0, "a0": 1.5, "b0": 2.0, "b1": 3.0, "c0": 4.0, "c1": 5.0}
    bound_at = {"a0": 1.6, "a1": 2.0, "b0": 5.0, "b1": 4.0, "c0": 6.0, "warm": 0.0}
    shape = Shape(trees=3, groups=2, pods=1)
    assert list(waits_of_trees(pods, shape, sent_at, bound_at)) == [0.5, 2.0]


def test_waits_of_trees_are_reported_where_they_come_slowly() -> None:
    """Of the runs in which all were bound; the others are counted."""
    case = Case(shape=Shape(trees=2, groups=2, pods=1), nodes=1, per_s=20)
    one = {"pods": 4, "created_s": 1.0, "cpu_s": {}, "marks_s": {}}
    ours = Run(side="ours", bound_s=(1, 1, 2, 2), trees_s=(0.1, 0.3), **one)
    native = Run(side="native", bound_s=(1, 1, 2, 3), trees_s=(0.2, 0.6), **one)
    late = Run(side="native", bound_s=(1, 1), trees_s=(0.1,), **one)
    by_case = {
        figure.what.removeprefix(f"{case}: "): figure
        for figure in figures_of("trees", case, {"ours": [ours], "native": [native, late]}, "2 x")
    }
    assert "first create to last bind, beside the native gang" not in by_case
    figure = by_case["last create of a tree to its last bind, p99 of 2"]
    assert (figure.values, figure.baseline, figure.baseline_unfinished) == ((300.0,), (600.0,), 1)
    assert "last create of a tree to its last bind, p50 of 2" in by_case


def test_the_page_opens_with_cpu_by_process_then_rates_then_which_side_is_ahead() -> None:
    """A rate stands with the speed of its machine, and with goal and verdict; where native is ahead, with the reason."""
    slower = figure(
        109, bench="quick", what="gang of 8, 100 nodes: p50", unit="ms", better="lower", target="60 ms",
        baseline_name="native", baseline=(42.0,),
    )  # fmt: skip
    faster = figure(
        160, bench="quick", what="1,000 pods: rate", target="1.1 x", baseline_name="native", baseline=(100.0,),
        machine_speed=(9.0, 6.0),
    )  # fmt: skip
    cpu = figure(
        12, bench="quick", what="CPU per member bound, 1,000 pods: all", unit="ms", better="lower",
        baseline_name="native", baseline=(10.0,), machine_speed=(7.0, 7.1),
    )  # fmt: skip
    lost = msgspec.structs.replace(faster, what="2 pods: rate", values=(), unfinished=3)
    lines = page([recorded(f) for f in (faster, slower, cpu, lost, figure(1))]).splitlines()
    by_process = lines.index(f"| {' | '.join(cpu_by_process.HEAD)} |")
    assert lines[by_process + 2] == "| 1,000 pods | - | - | - | - | - | 12 / 10 | 1.20 x | 7.05 |"
    head = lines.index("| what | here | native | ratio | goal | verdict | machine speed |")
    assert lines[head + 2] == (
        "| gang of 8, 100 nodes: p50 | 109 ms | 42 ms | 2.60 x | <= 60 ms | missed | - |"
    )
    assert lines[head + 3] == (
        "| 1,000 pods: rate | 160 pods/s | 100 pods/s | 1.60 x | >= 1.1 x | met | 6 to 9 |"
    )
    assert lines[head + 4].startswith("| 2 pods: rate | nan pods/s |")
    assert lines[head + 5] == "", "CPU by process has a row of its own only with a goal"
    assert by_process < head < lines.index("## All rows")
    ahead = [line for line in lines if line.startswith(("- Better here", "- Better native"))]
    assert ahead == [
        "- Better here: 1,000 pods: rate (1.60 x).",
        f"- Better native: CPU per member bound, 1,000 pods: all (1.20 x). {why_of(cpu.what)}",
        "- Better native: gang of 8, 100 nodes: p50 (2.60 x). "
        "In a small gang each step that a member costs more is waited for.",
    ]


def test_steps_of_a_pod_follow_from_what_it_has() -> None:
    """Only what a pod has counts: a gate of ours, a nomination, a node."""
    ours = {"name": GATE}
    assert list(steps_of({"spec": {"schedulingGates": [ours]}})) == ["pod seen"]
    nominated = {"spec": {"schedulingGates": [ours]}, "status": {"nominatedNodeName": "n0"}}
    assert list(steps_of(nominated)) == ["pod seen", "nomination seen"]
    bound = {"spec": {"nodeName": "n0"}, "status": {}}
    assert list(steps_of(bound)) == ["pod seen", "gate removal seen", "bound seen"]


def test_the_page_is_what_is_recorded() -> None:
    """`RESULTS.md` is not changed by hand: `write(load())` of tests/bench/record.py makes it from `recorded.json`."""
    quick = [r for r in load() if r.figure.bench == QUICK]  # others are of this machine
    assert RESULTS.read_text(encoding="utf-8") == page(quick)
