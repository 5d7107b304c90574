"""Record figures, render them as a page, and report what got worse since.

`recorded.json` holds the last recorded figures of `make bench-quick` with date and machine, `RESULTS.md` shows them, good
or bad. Those of the other benchmarks are for a comparison on one machine, before and after a change: they are in files of the
same names in `.bench`, which git ignores. Only ratios survive a change of machine; a figure without a baseline is
compared on its own machine alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.bench import machine
from tests.bench.cpu_by_process import is_by_process
from tests.bench.figures import Figure, short
from tests.bench.verdicts import in_order, verdict_markdown, which_side_is_ahead

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
RESULTS = HERE / "RESULTS.md"
LOCAL = HERE.parents[1] / ".bench"  # of the benchmarks beside `quick`
PLOTS = LOCAL / "plots"
QUICK = "quick"  # the benchmark whose table the page opens with
MACHINES = HERE / "MACHINES.md"  # by hand: what was measured on other machines
MET = {True: "met", False: "**missed**", None: "-"}


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with where it comes from."""

    date: str
    machine: str
    command: str
    figure: Figure


def load() -> list[Recorded]:
    """Return the figures recorded last."""
    return [
        recorded
        for file in (RECORDED, LOCAL / RECORDED.name)
        if file.exists()
        for recorded in msgspec.json.decode(file.read_bytes(), type=list[Recorded])
    ]


def record(figures: Iterable[Figure], command: str) -> None:
    """Put figures in the place of all older ones of their cases, and write the files.

    Args:
        figures: Of a case, all that it has now: one of a name that it has no more is not kept.
        command: With which they were measured.
    """
    date, where = time.strftime("%Y-%m-%d", time.gmtime()), machine.describe()
    new = [Recorded(date=date, machine=where, command=command, figure=f) for f in figures]
    cases = {(r.figure.bench, r.figure.case) for r in new}
    write([*new, *(r for r in load() if (r.figure.bench, r.figure.case) not in cases)])


def write(recorded: Iterable[Recorded]) -> None:
    """Write the files: figures, one a line, and the page that shows them."""
    everything = sorted(recorded, key=lambda r: (r.figure.bench, r.figure.what))
    quick = [r for r in everything if r.figure.bench == QUICK]
    others = [r for r in everything if r.figure.bench != QUICK]
    LOCAL.mkdir(exist_ok=True)
    for folder, figures in ((HERE, quick), (LOCAL, others)):
        lines = b",\n".join(map(msgspec.json.encode, figures))
        (folder / RECORDED.name).write_bytes(b"[\n" + lines + b"\n]\n")
        (folder / RESULTS.name).write_text(page(figures), encoding="utf-8")


def page(recorded: Sequence[Recorded]) -> str:
    """Return the text of `RESULTS.md`."""
    lines = [
        "# Results",
        *_opening(recorded),
        "",
        "## All rows",
        "",
        "Written by `RECORD=1` from `recorded.json`, good or bad. Each number stands beside its",
        "baseline, measured alternating in the same run on the same machine: medians, then the ratio of ours",
        "to theirs, the spread of ours and of theirs ((largest - smallest) / median), and of each side the",
        "runs that finished / did not. `make bench-check` compares a later run with these ratios.",
        "QPS is that of kube-scheduler's client. Our service, which binds for its members, is limited by 24",
        "connections and by API priority and fairness, not by a rate of its own.",
        *_targets([r.figure for r in recorded if r.figure.target and r.figure.bench != QUICK]),
    ]
    for bench in dict.fromkeys(r.figure.bench for r in recorded):
        mine = [r for r in recorded if r.figure.bench == bench]
        lines += ["", f"## {bench}", ""]
        for source in dict.fromkeys((r.date, r.machine, r.command) for r in mine):
            lines += [f"{source[0]}, `{source[2]}`, {source[1]}", ""]
        if (PLOTS / f"{bench}.png").exists():
            lines += [f"![pods bound over time](plots/{bench}.png)", ""]
        lines += [
            "| what | ours | baseline | ratio | spread | runs | target |",
            "|---|---|---|---|---|---|---|",
            *(_row(r.figure) for r in mine),
        ]
        notes = dict.fromkeys(r.figure.note for r in mine if r.figure.note and bench != "planner")
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _opening(recorded: Sequence[Recorded]) -> list[str]:
    """Return what the page opens with: the tables of `make bench-quick`, and which side is ahead."""
    rows = [r for r in recorded if r.figure.bench == QUICK]
    if not rows:
        return []
    figures = in_order(r.figure for r in rows)
    by_process = [r for r in rows if is_by_process(r.figure)]
    others = [r for r in rows if not is_by_process(r.figure)]
    return [
        "",
        "`make bench-quick`. *Native* is kube-scheduler's own gang scheduling of the same version, measured in turns with ours on the same",
        "machine; medians. What decides on full processors is the CPU that a member costs all processes, so that comes first. *Machine speed*: million",
        'turns of a fixed Python loop per CPU second (`tests/bench/machine.py`), before and after a row was measured; "-": not measured yet.',
        "",
        *([f"CPU by process: {_sources(by_process)}.", ""] if by_process else []),
        *([f"All else: {_sources(others)}.", ""] if others else []),
        verdict_markdown(figures),
        "",
        "*With nothing but the calls and the log*: another service in our place (`tests/bench/calls_and_log.py`), with our code for watches,",
        "writes and the log, that plans nothing and has no barrier. *Evict all, then reprieve*: kube-scheduler's algorithm for victims, on our",
        "planner. *p99 at most*: the bound of a bucket of the histogram in `/metrics`. A request of the bench that times out is sent again,",
        "within the time that is measured.",
        "",
        "Which side is ahead:",
        "",
        *(f"- {sentence}" for sentence in which_side_is_ahead(figures)),
        *(["", MACHINES.read_text(encoding="utf-8").rstrip()] if MACHINES.exists() else []),
    ]


def _sources(rows: Sequence[Recorded]) -> str:
    """Return when and where rows were measured; of several such, each with its families."""
    families: dict[str, dict[str, None]] = {}
    for r in rows:
        families.setdefault(f"{r.date} on {r.machine}", {})[r.figure.family] = None
    if len(families) == 1:
        return next(iter(families))
    return "; ".join(f"{source} ({', '.join(names)})" for source, names in families.items())


def _targets(figures: Sequence[Figure]) -> list[str]:
    """Return the section of figures that have a target, if there are any; in words: ratio for `x`, else the median."""
    if not figures:
        return []
    head = ["", "## Targets", "", "| bench | what | measured | target | |", "|---|---|---|---|---|"]
    return [*head, *map(_target, figures)]


def _target(figure: Figure) -> str:
    by_ratio = figure.target.endswith(" x")
    measured = f"{figure.ratio:.2f} x" if by_ratio else f"{short(figure.median)} {figure.unit}"
    cells = (figure.bench, figure.what, measured, figure.target, MET[figure.met])
    return f"| {' | '.join(cells)} |"


def _row(figure: Figure) -> str:
    theirs, ratio = "-", "-"
    spread = f"{figure.spread:.0%}"
    runs = f"{len(figure.values)}/{figure.unfinished}"
    if figure.baseline_name:
        theirs = f"{short(figure.baseline_median)} ({figure.baseline_name})"
        ratio = f"{figure.ratio:.2f}"
        spread += f", {figure.baseline_spread:.0%}"
        runs += f", {len(figure.baseline)}/{figure.baseline_unfinished}"
    ours = f"{short(figure.median)} {figure.unit}"
    cells = (figure.what, ours, theirs, ratio, spread, runs, figure.target or "-")
    return f"| {' | '.join(cells)} |"


def worse(figures: Iterable[Figure], recorded: Iterable[Recorded]) -> list[str]:
    """Return what got worse by more than the spread of both runs, a line each."""
    before = {(r.figure.bench, r.figure.what): r for r in recorded}
    here = machine.describe()
    lines = []
    for figure in figures:
        known = before.get((figure.bench, figure.what))
        if known is None:
            continue
        old = known.figure
        if figure.unfinished > old.unfinished:
            text = f"{figure.unfinished} runs did not finish, {old.unfinished} then"
            lines.append(f"{figure.bench}: {figure.what}: {text}")
        if figure.baseline and old.baseline:
            now, then, unit = figure.ratio, old.ratio, f"x {figure.baseline_name}"
        elif known.machine == here and not figure.baseline_name:
            now, then, unit = figure.median, old.median, figure.unit
        else:
            continue
        if not (then and now and math.isfinite(then) and math.isfinite(now)):
            continue
        loss = now / then - 1 if figure.better == "lower" else then / now - 1
        allowed = max(f.spread + f.baseline_spread for f in (figure, old))
        if loss > allowed:
            text = f"{short(now)} {unit}, {short(then)} on {known.date}"
            text += f": {loss:.0%} worse, the spread is {allowed:.0%}"
            lines.append(f"{figure.bench}: {figure.what}: {text}")
    return lines
