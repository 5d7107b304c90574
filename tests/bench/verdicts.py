"""The rows of `make bench-quick`: CPU per member by process, then here, native, ratio, goal and verdict; and which side is ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tests.bench.cpu_by_process import ALL, cpu_rows, is_by_process
from tests.bench.figures import Failed, Figure, short
from tests.bench.machine import speed_text
from tests.bench.quick import BOUNDS, rank_of, why_of

HEAD = ("what", "here", "native", "ratio", "goal", "verdict", "machine speed")
NATIVE = "native"
VERDICTS = {True: "met", False: "missed", None: "-"}


def in_order(figures: Iterable[Figure]) -> list[Figure]:
    """Return the rows in the order of the table."""
    return sorted(figures, key=lambda figure: rank_of(figure.what))


def cells_of(figure: Figure) -> tuple[str, ...]:
    """Return one row as text; a baseline that is not the native gang is named."""
    native, ratio = "-", "-"
    if figure.baseline_name:
        native = f"{short(figure.baseline_median)} {figure.unit}"
        if figure.baseline_name != NATIVE:
            native += f" ({figure.baseline_name})"
        ratio = f"{figure.ratio:.2f} x"
    goal = f"{'<=' if figure.better == 'lower' else '>='} {figure.target}" if figure.target else "-"
    verdict = VERDICTS[figure.met]
    for lost, side in ((figure.unfinished, "here"), (figure.baseline_unfinished, NATIVE)):
        if lost:
            verdict += f"; {lost} did not finish {side}"
    here = f"{short(figure.median)} {figure.unit}"
    return figure.what, here, native, ratio, goal, verdict, speed_text(figure.machine_speed)


def rows_of(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Return the second table: what is not in that of the processes, or has a goal."""
    return [HEAD, *(cells_of(f) for f in figures if f.target or not is_by_process(f))]


def verdict_text(figures: Sequence[Figure], failed: Sequence[Failed] = ()) -> str:
    """Lay both tables out for a terminal, what failed at the end."""
    lost = [(row.what, *("-" for _ in HEAD[2:]), f"failed: {row.error}") for row in failed]
    by_process = [figure for figure in figures if is_by_process(figure)]
    tables = [cpu_rows(by_process)] if by_process else []
    return "\n\n".join(map(_laid_out, [*tables, [*rows_of(figures), *lost]]))


def _laid_out(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def verdict_markdown(figures: Sequence[Figure]) -> str:
    """Write both tables as Markdown."""
    by_process = [figure for figure in figures if is_by_process(figure)]
    tables = [cpu_rows(by_process)] if by_process else []
    return "\n\n".join(map(_in_markdown, [*tables, rows_of(figures)]))


def _in_markdown(rows: Sequence[tuple[str, ...]]) -> str:
    ruled = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def which_side_is_ahead(figures: Sequence[Figure]) -> list[str]:
    """Return what is faster or cheaper here, then what is with kube-scheduler's own gangs, a sentence for each reason.

    Of the CPU by process, that of all counts; rows that bound others are left out.
    """
    here: dict[str, list[str]] = {}
    native: dict[str, dict[str, list[str]]] = {}
    for figure in figures:
        is_bound = any(bound in figure.what for bound in BOUNDS)
        is_part = is_by_process(figure) and not figure.what.endswith(f": {ALL}")
        if figure.baseline_name != NATIVE or is_bound or is_part:
            continue
        gain = figure.ratio if figure.better == "higher" else 1 / figure.ratio
        if math.isnan(gain) or gain == 1:  # no run finished, or alike
            continue
        cases = here if gain > 1 else native.setdefault(why_of(figure.what), {})
        case, _, of_it = figure.what.rpartition(": ")
        cases.setdefault(case, []).append(f"{of_it} ({max(gain, 1 / gain):.2f} x)")
    sentences = [f"Better here: {_listed(here)}."] if here else []
    return sentences + [f"Better native: {_listed(cases)}. {why}" for why, cases in native.items()]


def _listed(cases: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{case}: {', '.join(rows)}" for case, rows in cases.items())
