"""Record figures, render them as a page, and report what got worse since.

`recorded.json` holds the last recorded figures with date and machine, `RESULTS.md` shows them, good
or bad. Only ratios survive a change of machine; a figure without a baseline is compared on its own
machine alone.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.bench.figures import Figure, short
from tests.bench.verdicts import in_order, verdict_markdown, where_native_is_faster
from tests.controlplane.build import pinned_version
from tests.controlplane.pin import module_folder

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
RESULTS = HERE / "RESULTS.md"
PLOTS = HERE / "plots"
QUICK = "quick"  # the benchmark whose table the page opens with
HELPED = HERE / "HELPED.md"  # by hand: what made which figure better
MET = {True: "met", False: "**missed**", None: "-"}


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with where it comes from."""

    date: str
    machine: str
    command: str
    figure: Figure


def machine() -> str:
    """Describe this machine and the programs that are measured."""
    about = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in about if "model name" in line), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kubernetes = pinned_version(module_folder("1.37"))
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, Kubernetes {kubernetes}"
    )


def load(file: Path = RECORDED) -> list[Recorded]:
    """Return the figures recorded last."""
    return msgspec.json.decode(file.read_bytes(), type=list[Recorded]) if file.exists() else []


def record(figures: Iterable[Figure], command: str) -> None:
    """Put figures in the place of older ones of the same name, and write both files."""
    kept = {(r.figure.bench, r.figure.what): r for r in load()}
    date, where = time.strftime("%Y-%m-%d", time.gmtime()), machine()
    for figure in figures:
        made = Recorded(date=date, machine=where, command=command, figure=figure)
        kept[figure.bench, figure.what] = made
    everything = sorted(kept.values(), key=lambda r: (r.figure.bench, r.figure.what))
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(everything)) + b"\n")
    RESULTS.write_text(page(everything), encoding="utf-8")


def page(recorded: Sequence[Recorded]) -> str:
    """Return the text of `RESULTS.md`."""
    lines = [
        "# Results",
        *_opening(recorded),
        "",
        "## All benchmarks",
        "",
        "Written by `make bench RECORD=1` from `recorded.json`, good or bad. Each number stands beside its",
        "baseline, measured alternating in the same run on the same machine: medians, then the ratio of ours",
        "to theirs, the spread of ours and of theirs ((largest - smallest) / median), and of each side the",
        "runs that finished / did not. `make bench-check` compares a later run with these ratios.",
        "QPS is that of kube-scheduler's client. Our service, which binds for its members, is limited by 24",
        "connections and by API priority and fairness, not by a rate of its own.",
        "",
        "## Targets",
        "",
        "Every figure that has a target (DESIGN 8); in words: ratio for `x`, else the median.",
        "",
        "| bench | what | measured | target | |",
        "|---|---|---|---|---|",
        *(_target(r.figure) for r in recorded if r.figure.target and r.figure.bench != QUICK),
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
    if HELPED.exists():
        lines += ["", HELPED.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def _opening(recorded: Sequence[Recorded]) -> list[str]:
    """Return what the page opens with: the table of `make bench-quick`, and where native is faster."""
    rows = [r for r in recorded if r.figure.bench == QUICK]
    if not rows:
        return []
    figures = in_order(r.figure for r in rows)
    sources = dict.fromkeys((r.date, r.machine) for r in rows)
    return [
        "",
        f"`make bench-quick`, {'; '.join(' on '.join(source) for source in sources)}. *Native* is kube-scheduler's own gang",
        "scheduling of the same version, measured in turns with ours on the same machine. *With nothing but the calls and the log*:",
        "another service in our place (`tests/bench/calls_and_log.py`), with our code for watches, writes and the log, that plans nothing",
        "and has no barrier, so that it takes what any service takes that writes for each member and records what it does first. *Evict",
        "all, then reprieve*: kube-scheduler's algorithm for victims, on our planner. A request of the bench that times out is sent",
        "again, within the time that is measured.",
        "",
        verdict_markdown(figures),
        "",
        "Where native is faster, and why:",
        "",
        *(f"- {sentence}" for sentence in where_native_is_faster(figures) or ["nowhere"]),
    ]


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
    here = machine()
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
