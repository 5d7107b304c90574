"""Figures as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.figures import Figure, short
from tests.bench.machine import UNIT, speed_text


def table(figures: Sequence[Figure]) -> str:
    """Lay figures out, one line each: ours, the baseline, their ratio, spread, runs that did not finish; then the machine's speed."""
    rows = [("what", "ours", "baseline", "ratio", "spread", "runs", "unfinished", "target")]
    for figure in figures:
        base = (
            f"{short(figure.baseline_median)} ({figure.baseline_name})" if figure.baseline else "-"
        )
        rows.append(
            (
                f"{figure.bench}: {figure.what}",
                f"{short(figure.median)} {figure.unit}",
                base,
                f"{figure.ratio:.2f}" if figure.baseline else "-",
                f"{figure.spread:.0%}",
                f"{len(figure.values)}/{len(figure.baseline)}",
                f"{figure.unfinished}/{figure.baseline_unfinished}",
                figure.target,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    speeds = dict.fromkeys(figure.machine_speed for figure in figures if figure.machine_speed)
    return "\n".join([*lines, *(f"machine speed: {speed_text(speed)} {UNIT}" for speed in speeds)])
