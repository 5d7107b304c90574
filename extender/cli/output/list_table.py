"""Lists of things as tables: their columns, the order of rows, and the other forms of a list."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated, Generic, TypeVar

import msgspec
import typer

from extender.cli.output import printing
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import duration_text

T = TypeVar("T")


class ListForm(enum.StrEnum):
    """Forms of a list."""

    table = "table"
    wide = "wide"
    name = "name"
    json = "json"
    yaml = "yaml"


class ListFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a list is printed: options of the commands that list something."""

    form: Annotated[
        ListForm,
        typer.Option(
            "-o",
            "--output",
            help="Form of the output; wide has more columns and cuts no row on a terminal, name only names.",
        ),
    ] = ListForm.table
    # name of a column, `-` before it: the largest first; empty: the order of the answer
    sort_by: Annotated[
        str,
        typer.Option(
            "--sort-by", "--sort", help="Sort by this column; -COLUMN: the largest first."
        ),
    ] = ""
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Print only the rows: no titles, no notes.")] = False  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse a column without a name."""
        if self.sort_by and not self.column:
            raise BadInput(f"--sort-by: {self.sort_by!r} names no column")

    @property
    def column(self) -> str:
        """Return the name of the column to sort by."""
        return self.sort_by.removeprefix("-").strip()

    @property
    def is_table(self) -> bool:
        """Return whether columns are printed."""
        return self.form in (ListForm.table, ListForm.wide)


class Column(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One column: its title, its text for an item, and the key by which items are sorted."""

    title: str
    text: Callable[[T], str]
    key: Callable[[T], int | float | str | None] | None = None  # None: the text
    unit: str = ""  # beside the title: UTC
    wide: bool = False  # only with -o wide
    gives_way: int = 0  # on a terminal that is too narrow, the largest is left out first; 0: never
    colored: bool = False  # has states
    runs: bool = False  # changes with the time alone, so a change of it is no change of the item

    @property
    def name(self) -> str:
        """Return the name of the column in --sort-by."""
        return self.title.lower().replace(" ", "-")

    @property
    def header(self) -> str:
        """Return what stands over the column."""
        return self.title.upper() + (f" ({self.unit})" if self.unit else "")

    def sort_key(self, item: T) -> tuple[int, float, str]:
        """Return a key that sorts numbers as numbers, then texts, and at last what is empty."""
        value = self.text(item) if self.key is None else self.key(item)
        if value is None or value == "":
            return (2, 0, "")
        if isinstance(value, str):
            return (1, 0, value)
        return (0, value, "")


def number_column(
    title: str, number: Callable[[T], int | float], *, wide: bool = False, gives_way: int = 0
) -> Column[T]:
    """Return a column of numbers."""
    return Column(
        title=title, text=lambda item: str(number(item)), key=number, wide=wide, gives_way=gives_way
    )


def time_column(title: str, time: Callable[[T], str], *, wide: bool = False) -> Column[T]:
    """Return a column of times; `time` is RFC 3339 in UTC, or empty."""
    return Column(
        title=title, text=lambda item: clock_text(time(item)), key=time, unit="UTC", wide=wide
    )


def clock_text(time: str) -> str:
    """Return a time of RFC 3339 as tables have it, to the second.

    >>> clock_text("2026-11-20T03:12:00.123456Z")
    '2026-11-20 03:12:00'
    """
    return time[:19].replace("T", " ")


def age_column(
    title: str, since: Callable[[T], int | None], now_us: Callable[[], int], *, gives_way: int = 0
) -> Column[T]:
    """Return a column of durations until now; `since`: returns the begin in microseconds since the epoch, or None."""

    def seconds(item: T) -> float | None:
        begin_us = since(item)
        return None if begin_us is None else max(0, now_us() - begin_us) // 1_000_000

    def text(item: T) -> str:
        age_s = seconds(item)
        return "" if age_s is None else duration_text(age_s)

    return Column(title=title, text=text, key=seconds, gives_way=gives_way, runs=True)


class ListTable(Generic[T]):
    """Prints items in the form that a user wants."""

    def __init__(
        self, columns: Sequence[Column[T]], name: Callable[[T], str], output_format: ListFormat
    ) -> None:
        """Store the arguments.

        Args:
            columns: All columns, those of -o wide too.

        Raises:
            BadInput: There is no column to sort by; the message has all columns.
        """
        self._columns = [c for c in columns if output_format.form is ListForm.wide or not c.wide]
        self.name = name
        self.output_format = output_format
        self._sorted_by = _column(columns, output_format.column) if output_format.column else None
        self._widths: list[int] = []

    def print(self, items: Sequence[T], *, empty: str) -> None:
        """Print items; a table without rows is the sentence `empty`, on stderr as of kubectl."""
        items = self.sorted(items)
        if self.output_format.is_table:
            if not items:
                sys.stderr.write(f"{printing.visible(empty)}\n")
                return
            self._print_rows(items)
            return
        if self.output_format.form is ListForm.name:
            sys.stdout.writelines(f"{self.name(item)}\n" for item in items)
            return
        printing.print_value(items, self.output_format.form)

    def print_changed(self, item: T) -> None:
        """Print one more row below the table, or one more name or value for programs."""
        if self.output_format.is_table:
            self._print_rows([item])
        elif self.output_format.form is ListForm.name:
            sys.stdout.write(f"{self.name(item)}\n")
        elif self.output_format.form is ListForm.json:
            sys.stdout.write(msgspec.json.encode(item).decode() + "\n")
        else:
            sys.stdout.write("---\n" + msgspec.yaml.encode(item).decode())
        sys.stdout.flush()

    def _print_rows(self, items: Sequence[T]) -> None:
        """Print rows below those before; before the first ones the titles."""
        first = not self._widths
        if first:
            self._give_way(items)
        rows = [self.texts(item) for item in items]
        headers = [column.header for column in self._columns]
        wider = printing.column_widths([headers, *rows])
        # a text that is wider than its column widens it for the rows to come
        self._widths = [*map(max, wider, self._widths)] if self._widths else wider
        if first and not self.output_format.no_headers:
            printing.print_rows([headers], self._widths, cuts=self._cuts)
        paints = [column.colored for column in self._columns]
        printing.print_rows(rows, self._widths, paints, cuts=self._cuts)

    def _give_way(self, items: Sequence[T]) -> None:
        """Leave out columns until the last one has some place on the terminal; -o wide keeps all."""
        size = printing.terminal_columns() if self._cuts else 0
        while size:
            rows = [[c.header for c in self._columns], *map(self.texts, items)]
            *widths, _ = printing.column_widths(rows)
            rest = size - sum(widths) - len(printing.GAP) * len(widths)
            first = max(self._columns[:-1], key=lambda column: column.gives_way)
            if rest >= printing.FOLDED_MIN or not first.gives_way:
                return
            self._columns.remove(first)

    def sorted(self, items: Sequence[T]) -> list[T]:
        """Return items in the order that a user wants; what has no value comes last."""
        by = self._sorted_by
        if by is None:
            return [*items]
        keys = [(by.sort_key(item), item) for item in items]
        filled = [pair for pair in keys if pair[0][0] < 2]  # noqa: PLR2004 -- see `sort_key`
        filled.sort(key=lambda pair: pair[0], reverse=self.output_format.sort_by.startswith("-"))
        return [item for _, item in filled] + [t for key, t in keys if key[0] == 2]  # noqa: PLR2004

    def texts(self, item: T) -> list[str]:
        """Return the texts of a row."""
        return [printing.one_line(column.text(item)) for column in self._columns]

    def shown(self, item: T) -> object:
        """Return what a reader sees of an item, without what changes with the time alone."""
        if self.output_format.is_table:
            return [column.text(item) for column in self._columns if not column.runs]
        return self.name(item) if self.output_format.form is ListForm.name else item

    @property
    def _cuts(self) -> bool:
        """Return whether rows are cut on a terminal; -o wide has all of them."""
        return self.output_format.form is ListForm.table


def _column(columns: Sequence[Column[T]], name: str) -> Column[T]:
    names = [column.name for column in columns]
    normalized = name.lower().replace(" ", "-").replace("_", "-")
    if normalized in names:
        return columns[names.index(normalized)]
    similar = get_close_matches(normalized, names, 1)
    meant = f"did you mean {similar[0]}? " if similar else ""
    raise BadInput(f"--sort-by: {name[:40]!r} is not a column; {meant}there are {', '.join(names)}")
