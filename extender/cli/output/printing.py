"""Print tables for people, JSON and YAML for programs.

Rows of tables look like those of kubectl: no lines. On a terminal they are cut where it ends, or the last column is folded below
itself, and states have colours unless NO_COLOR is set. rich and msgspec are imported when something is printed, because every command imports this module.
"""

from __future__ import annotations

import enum
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Output(enum.StrEnum):
    """Forms of output."""

    table = "table"
    json = "json"
    yaml = "yaml"


def console(*, wrap: bool = True) -> Console:
    """Return a console; it is wide when the output is a pipe, so that tables are not cut.

    Without `wrap` a long line stays one line, whatever the width.

    Brackets are printed as they are: a text may have a field such as metadata.annotations[KEY]. Control characters are
    printed as spaces.
    """
    from rich.console import Console

    class VisibleConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 -- those of the class above
            return super().render_str(visible(text), **options)

    width = None if sys.stdout.isatty() else 200
    return VisibleConsole(highlight=False, markup=False, width=width, soft_wrap=not wrap)


def print_value(value: object, form: str) -> None:
    """Print a value for programs, in JSON, or with the form `yaml` in YAML, ending with one newline."""
    import msgspec

    if form == Output.yaml:
        sys.stdout.write(msgspec.yaml.encode(value).decode())
        return
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table for people, or the text `empty` when it has no rows."""
    texts = [[one_line(text) for text in row] for row in rows]
    if not texts:
        console().print(empty)
        return
    headers = [column.upper() for column in columns]
    widths = column_widths([headers, *texts])
    print_rows([headers, *texts], widths)


def complain(message: str) -> None:
    """Write a message to stderr; what a service answered in it cannot steer the terminal."""
    sys.stderr.write(f"gang-extender: {visible(message)}\n")


GAP: Final = "  "
CUT: Final = "…"
FOLDED_MIN: Final = 30  # columns of a terminal that are worth folding the last column into
# a message must not steer the terminal
_CONTROLS: Final = dict.fromkeys((*range(32), *range(127, 160)), " ")
_STEERING: Final = {code: " " for code in _CONTROLS if chr(code) not in "\n\t"}
_GREEN, _YELLOW, _RED, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_STATES: Final = {
    _GREEN: "scheduled completed compiled bound placed",
    _YELLOW: "observed waiting preempting admitted suspended basic pending reserved",
    _RED: "unschedulable invalid degraded preempted refused cancelled",
}
COLORS: Final = {state: color for color, states in _STATES.items() for state in states.split()}


def one_line(text: str) -> str:
    """Return a text without line breaks and other control characters, each a space instead."""
    return text.translate(_CONTROLS)


def visible(text: str) -> str:
    """Return a text with its line breaks and tabs, and without other control characters, each a space instead."""
    return text.translate(_STEERING)


def terminal_columns() -> int:
    """Return the width of the terminal that is printed to; 0: stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column: that of its longest text."""
    return [max(map(len, texts)) for texts in zip(*rows, strict=True)]


def print_rows(
    rows: Iterable[Sequence[str]],
    widths: Sequence[int],
    paints: Sequence[bool] = (),
    *,
    cuts: bool = False,
) -> None:
    """Print rows of texts without line breaks; `cuts`: whether each row is one line there, cut at its end; else the last column is folded."""
    size = terminal_columns()
    colored = size > 0 and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    indent = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    left = size - indent
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row[:-1], widths, strict=False)]
        last = [row[-1]]
        if cuts and size:
            *cells, last[0] = _cut([*cells, row[-1]], size)
        elif left >= FOLDED_MIN:
            last = textwrap.wrap(row[-1], left, break_on_hyphens=False) or [""]
        if colored and paints:
            painted = zip([*cells, last[0]], row, paints, strict=True)
            *cells, last[0] = [
                f"{COLORS[text]}{cell}{_RESET}" if paint and text in COLORS else cell
                for cell, text, paint in painted
            ]
        sys.stdout.write(GAP.join([*cells, last[0]]).rstrip() + "\n")
        sys.stdout.writelines(f"{'':{indent}}{line}\n" for line in last[1:])


def print_folded(title: str, text: str) -> None:
    """Print a text behind its title, on a terminal folded below its own begin."""
    text = one_line(text)
    left = terminal_columns() - len(title)
    if left >= FOLDED_MIN:
        lines = textwrap.wrap(text, left, break_long_words=False, break_on_hyphens=False) or [""]
        text = f"\n{'':{len(title)}}".join(lines)
    sys.stdout.write(f"{title}{text}\n")


def _cut(cells: Sequence[str], size: int) -> list[str]:
    """Return the cells of a row as far as they fit in a line of a terminal; those behind are empty."""
    shown, left = [], size
    for cell in cells:
        text = cell
        if len(cell.rstrip()) > left:
            text = cell[: max(0, left - len(CUT))] + CUT if left > 0 else ""
        shown.append(text)
        left -= len(cell) + len(GAP)
    return shown
