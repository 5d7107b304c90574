"""Print tables for people, JSON and YAML for programs.

rich and msgspec are imported when something is printed, because every command imports this module.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from extender.cli.output.table_rows import column_widths, one_line, print_rows, visible

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
