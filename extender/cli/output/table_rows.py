"""Rows of texts below each other.

They look like those of kubectl: no lines, nothing cut. On a terminal the last column is folded below itself, and states
have colours unless NO_COLOR is set.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

GAP: Final = "  "
FOLDED_MIN: Final = 30  # columns of a terminal that are worth folding the last column into
# a message must not steer the terminal
_CONTROLS: Final = dict.fromkeys((*range(32), *range(127, 160)), " ")
_GREEN, _YELLOW, _RED, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
COLORS: Final = {
    **dict.fromkeys(("scheduled", "completed", "compiled", "bound", "placed"), _GREEN),
    **dict.fromkeys(
        (
            "observed",
            "waiting",
            "preempting",
            "admitted",
            "suspended",
            "basic",
            "pending",
            "reserved",
        ),
        _YELLOW,
    ),
    **dict.fromkeys(
        ("unschedulable", "invalid", "degraded", "preempted", "refused", "cancelled"), _RED
    ),
}


def one_line(text: str) -> str:
    """Return a text without line breaks and other control characters, each a space instead."""
    return text.translate(_CONTROLS)


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column: that of its longest text."""
    return [max(map(len, texts)) for texts in zip(*rows, strict=True)]


def print_rows(
    rows: Iterable[Sequence[str]], widths: Sequence[int], paints: Sequence[bool] = ()
) -> None:
    """Print rows of texts without line breaks.

    Args:
        rows: The rows.
        widths: The widths of the columns.
        paints: Which columns have states, to be coloured on a terminal.
    """
    terminal = sys.stdout.isatty()
    colored = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    indent = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    left = shutil.get_terminal_size().columns - indent if terminal else 0
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row[:-1], widths, strict=False)]
        last = [row[-1]]
        if left >= FOLDED_MIN:
            last = textwrap.wrap(row[-1], left, break_on_hyphens=False) or [""]
        if colored and paints:
            painted = zip([*cells, last[0]], row, paints, strict=True)
            *cells, last[0] = [
                _painted(cell, text) if paint else cell for cell, text, paint in painted
            ]
        sys.stdout.write(GAP.join([*cells, last[0]]).rstrip() + "\n")
        sys.stdout.writelines(f"{'':{indent}}{line}\n" for line in last[1:])


def _painted(cell: str, state: str) -> str:
    color = COLORS.get(state, "")
    return f"{color}{cell}{_RESET}" if color else cell
