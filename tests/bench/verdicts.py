"""The rows of `make bench-quick` as one table: here, native, ratio, goal and verdict; and where native is faster, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.figures import Failed, Figure, short
from tests.bench.quick import BOUNDS, rank_of, why_of

HEAD = ("what", "here", "native", "ratio", "goal", "verdict")
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
    return figure.what, here, native, ratio, goal, verdict


def verdict_text(figures: Sequence[Figure], failed: Sequence[Failed] = ()) -> str:
    """Lay the rows out for a terminal, those that failed at the end."""
    lost = [(row.what, *("-" for _ in HEAD[2:]), f"failed: {row.error}") for row in failed]
    rows = [HEAD, *map(cells_of, figures), *lost]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def verdict_markdown(figures: Sequence[Figure]) -> str:
    """Write the rows as a table of Markdown."""
    rows = [HEAD, ("---",) * len(HEAD), *map(cells_of, figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def where_native_is_faster(figures: Sequence[Figure]) -> list[str]:
    """Return a sentence for each row in which kube-scheduler's own gangs are faster or cheaper, with the reason."""
    found = []
    for figure in figures:
        worse = figure.ratio > 1 if figure.better == "lower" else figure.ratio < 1
        is_bound = any(bound in figure.what for bound in BOUNDS)
        if figure.baseline_name == NATIVE and worse and not is_bound:
            factor = figure.ratio if figure.better == "lower" else 1 / figure.ratio
            found.append(f"{figure.what}: native is {factor:.2f} x better. {why_of(figure.what)}")
    return found
