"""The answer to a question about moves: as text for a terminal, or as one page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extender.core.model.message_formatting import counted, join_names
from extender.queries.plan.moves_query import MovesAnswer

ROWS_MAX = 200  # of a table
Table = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]  # title, headers, rows


def headline(answer: MovesAnswer) -> str:
    """Return the answer in one sentence."""
    moves = counted(len(answer.moves), "move")
    match answer.verdict:
        case "fits":
            return f"{answer.question}: no move is needed"
        case "moves":
            bound = f"{answer.least} at least" if answer.least < len(answer.moves) else ""
            proof = f"proved: {bound or 'no fewer lead there'}"
            return f"{answer.question}: {moves} ({proof})"
        case "impossible":
            if answer.stays or answer.unmoved:
                return f"{answer.question}: not all pods can move (proved); {moves} lead as far as possible"
            return f"{answer.question}: impossible (proved)"
        case "unknown":
            return f"{answer.question}: not decided"


def _tables(answer: MovesAnswer) -> Iterator[Table]:
    yield (
        "Moves, one after the other",
        ("#", "pod", "from", "to", "priority", "group"),
        [
            (str(n), m.pod, m.source, m.target, str(m.priority), m.group)
            for n, m in enumerate(answer.moves, 1)
        ],
    )
    yield (
        "Then placed",
        ("pod", "group", "node"),
        [(line.pod, line.group, line.node) for line in answer.assignments],
    )
    yield (
        "Gangs that break when the rest is evicted",
        ("gang", "runs", "left", "minimum"),
        [(b.gang, str(b.running), str(b.left), str(b.minimum)) for b in answer.breaks],
    )
    yield ("No place elsewhere", ("pod",), [(pod,) for pod in answer.unmoved])
    yield (
        "Stays",
        ("pod", "node", "reason"),
        [(line.pod, line.node, line.reason) for line in answer.stays],
    )
    yield (
        "Nodes before and after",
        ("node", "resource", "allocatable", "free before", "free after"),
        [
            (n.node, n.resource, *map(str, (n.allocatable, n.free_before, n.free_after)))
            for n in answer.nodes
        ],
    )


def _notes(answer: MovesAnswer) -> Iterator[str]:
    yield from answer.reasons
    if answer.emptied:
        yield f"empty then: {join_names(answer.emptied)}"
    if not answer.proved:
        yield "the search was cut short; a larger --search-budget may give another answer"


def moves_text(answer: MovesAnswer) -> str:
    """Return the answer for a terminal; ends with a newline."""
    lines = [headline(answer), *(f"  {note}" for note in _notes(answer))]
    for title, headers, rows in _tables(answer):
        if not rows:
            continue
        shown = [headers, *rows[:ROWS_MAX]]
        widths = [max(len(row[at]) for row in shown) for at in range(len(headers))]
        lines += ["", f"{title}:"]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
        if len(rows) > ROWS_MAX:
            lines.append(f"  and {len(rows) - ROWS_MAX} more; -o json has all")
    return "\n".join(lines) + "\n"


def moves_markdown(answer: MovesAnswer) -> str:
    """Return the answer as a page; ends with a newline."""
    lines = [f"## {headline(answer)}", ""]
    lines += [f"- {note}" for note in (*_notes(answer), *answer.warnings)]
    for title, headers, rows in _tables(answer):
        if not rows:
            continue
        cells = [headers, ("---",) * len(headers), *rows[:ROWS_MAX]]
        lines += ["", f"### {title}", ""]
        lines += [f"| {' | '.join(row).replace(chr(10), ' ')} |" for row in cells]
        if len(rows) > ROWS_MAX:
            lines += ["", f"{len(rows) - ROWS_MAX} more are not shown."]
    return "\n".join(lines) + "\n"
