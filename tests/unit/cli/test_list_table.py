"""Tables of lists: columns, order of rows, widths, colours, and the other forms."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys

import msgspec
import pytest

from extender.cli.output.list_table import (
    Column,
    ListForm,
    ListFormat,
    ListTable,
    age_column,
    number_column,
    time_column,
)
from extender.cli.output.printing import console, print_rows
from extender.core.model.errors import BadInput


class Row(msgspec.Struct):
    name: str
    count: int
    state: str = ""
    since_us: int | None = None
    time: str = ""


NOW_US = 10_000_000_000
COLUMNS = (
    Column(title="name", text=lambda row: row.name),
    number_column("pod count", lambda row: row.count),
    Column(title="state", text=lambda row: row.state, colored=True),
    age_column("age", lambda row: row.since_us, lambda: NOW_US),
    time_column("seen", lambda row: row.time, wide=True),
)
ROWS = [
    Row("b", 9, "scheduled", NOW_US - 7_200_000_000, "2026-11-20T03:12:00.5Z"),
    Row("a", 10, "waiting"),
    Row("long-name", 1, "", NOW_US - 90_000_000),
]


def printed(capsys, rows=ROWS, **wanted):
    ListTable(COLUMNS, lambda row: f"row/{row.name}", ListFormat(**wanted)).print(
        rows, empty="There are no rows."
    )
    return capsys.readouterr()


def test_columns_are_as_wide_as_their_longest_text(capsys):
    """Nothing is cut, and no line ends with a space."""
    out, err = printed(capsys)
    assert out.splitlines() == [
        "NAME       POD COUNT  STATE      AGE",
        "b          9          scheduled  120m",
        "a          10         waiting",
        "long-name  1                     90s",
    ]
    assert err == ""


def test_wide_has_more_columns_and_headers_can_be_left_out(capsys):
    """The zone of a time stands in the header."""
    header, first, *_ = printed(capsys, form=ListForm.wide).out.splitlines()
    assert header.split() == ["NAME", "POD", "COUNT", "STATE", "AGE", "SEEN", "(UTC)"]
    assert first.endswith("120m  2026-11-20 03:12:00")
    assert printed(capsys, no_headers=True).out.splitlines()[0].split()[0] == "b"


def test_names_and_values_for_programs(capsys):
    assert printed(capsys, form=ListForm.name).out == "row/b\nrow/a\nrow/long-name\n"
    values = json.loads(printed(capsys, form=ListForm.json, sort_by="name").out)
    assert [value["name"] for value in values] == ["a", "b", "long-name"]
    assert printed(capsys, rows=[], form=ListForm.json).out == "[]\n"


def test_no_rows_are_a_sentence_on_stderr(capsys):
    """So that what reads the rows reads none; as kubectl."""
    assert printed(capsys, rows=[]) == ("", "There are no rows.\n")
    assert printed(capsys, rows=[], form=ListForm.name) == ("", "")


@pytest.mark.parametrize(
    ("column", "descending", "order"),
    [
        ("pod-count", False, ["long-name", "b", "a"]),
        ("POD COUNT", True, ["a", "b", "long-name"]),
        ("age", False, ["long-name", "b", "a"]),
        ("age", True, ["b", "long-name", "a"]),
        ("state", False, ["b", "a", "long-name"]),
        ("seen", False, ["b", "a", "long-name"]),
    ],
)
def test_rows_are_sorted_by_value_and_those_without_come_last(capsys, column, descending, order):
    out = printed(capsys, form=ListForm.name, sort_by="-" * descending + column).out
    assert out.split() == [f"row/{name}" for name in order]


@pytest.mark.parametrize(
    ("column", "meant"), [("stat", "did you mean state? "), ("xyz", ""), ("pod", "")]
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(column, meant):
    with pytest.raises(BadInput) as error:
        ListTable(COLUMNS, str, ListFormat(sort_by=column))
    there = "name, pod-count, state, age, seen"
    assert str(error.value) == f"--sort-by: {column!r} is not a column; {meant}there are {there}"


def test_a_message_cannot_steer_the_terminal(capsys):
    """Line breaks and escape sequences of a text are spaces."""
    out = printed(capsys, rows=[Row("a\nb\x1b[2J\x9b1m", 1)]).out
    assert out.splitlines()[1].startswith("a b [2J 1m  1")


def test_a_changed_row_is_as_wide_as_the_table(capsys):
    """A longer text widens its column for the rows after it."""
    table = ListTable(COLUMNS, str, ListFormat())
    table.print(ROWS, empty="")
    capsys.readouterr()
    for row in (Row("c", 1, "waiting"), Row("a-longer-name", 1, "x"), Row("d", 1, "x")):
        table.print_changed(row)
    assert capsys.readouterr().out.splitlines() == [
        "c          1          waiting",
        "a-longer-name  1          x",
        "d              1          x",
    ]


def test_a_change_with_the_time_alone_is_no_change():
    table = ListTable(COLUMNS, str, ListFormat())
    aged = msgspec.structs.replace(ROWS[0], since_us=5, time="2026-11-21T00:00:00Z")
    assert table.shown(aged) == table.shown(ROWS[0])
    assert table.shown(Row("b", 9, "waiting")) != table.shown(ROWS[0])
    wide = ListTable(COLUMNS, str, ListFormat(form=ListForm.wide))
    assert wide.shown(aged) != wide.shown(ROWS[0])


def on_a_terminal(columns, *, cuts=False, **environ):
    """Return what a process prints for one row on a terminal of a width."""
    rows = "[['g', 'scheduled', 'x' * 30 + ' ' + 'y' * 30]], [1, 9, 61], [False, True, False]"
    call = f"from {print_rows.__module__} import print_rows; print_rows({rows}, cuts={cuts})"
    return output_on_a_terminal(call, columns, **environ)


def output_on_a_terminal(code, columns, **environ):
    ours, theirs = pty.openpty()
    rest = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TERM"}}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=theirs,
        env=rest | {"COLUMNS": str(columns), "LINES": "24"} | environ,
    )  # fmt: skip
    os.close(theirs)
    assert done.returncode == 0
    printed = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        # the kernel hands over what was written in pieces; EIO: all writers have closed it, and all is read
        while piece := terminal.read(4096):
            printed += piece
    return printed.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_a_folded_last_column():
    """A pipe gets neither, see the other tests; NO_COLOR switches the colours off."""
    x, y = "x" * 30, "y" * 30
    assert on_a_terminal(100) == f"g  \x1b[32mscheduled\x1b[0m  {x} {y}\n"
    assert on_a_terminal(50, NO_COLOR="1") == f"g  scheduled  {x}\n{'':14}{y}\n"
    assert on_a_terminal(50, TERM="dumb") == f"g  scheduled  {x}\n{'':14}{y}\n"
    assert on_a_terminal(30, NO_COLOR="1") == f"g  scheduled  {x} {y}\n"


def test_a_text_behind_a_title_is_folded_below_itself():
    """On a terminal alone, and where there is a place for it."""
    call = f"from {print_rows.__module__} import print_folded; print_folded('disk  ', '{'w' * 30} {'x' * 30} y\\nz')"
    w, x = "w" * 30, "x" * 30
    assert output_on_a_terminal(call, 80) == f"disk  {w} {x} y z\n"
    assert output_on_a_terminal(call, 50) == f"disk  {w}\n{'':6}{x} y z\n"
    assert output_on_a_terminal(call, 30) == f"disk  {w} {x} y z\n"


def test_a_row_of_a_list_is_one_line_of_a_terminal():
    """Its end is cut, whatever column it is in; -o wide and a pipe have all of it."""
    assert on_a_terminal(50, cuts=True, NO_COLOR="1") == f"g  scheduled  {'x' * 30} {'y' * 4}…\n"
    assert on_a_terminal(75, cuts=True, NO_COLOR="1") == f"g  scheduled  {'x' * 30} {'y' * 30}\n"
    assert on_a_terminal(10, cuts=True, NO_COLOR="1") == "g  schedu…\n"
    assert on_a_terminal(20, cuts=True) == "g  \x1b[32mscheduled\x1b[0m  xxxxx…\n"
    forms = {ListForm.table: True, ListForm.wide: False}
    for form, cuts in forms.items():
        assert ListTable(COLUMNS, str, ListFormat(form=form))._cuts is cuts


NARROW = """
from extender.cli.output.list_table import Column, ListForm, ListFormat, ListTable
columns = [Column(title=name, text=lambda row: "x" * 8, gives_way=n) for n, name in enumerate(("gang", "age", "kind"))]
columns.append(Column(title="reason", text=lambda row: "because of nodes"))
ListTable(columns, str, ListFormat(form=ListForm.FORM)).print([0], empty="")
"""


@pytest.mark.parametrize(
    ("columns", "form", "header"),
    [
        (80, "table", ["GANG", "AGE", "KIND", "REASON"]),
        (59, "table", ["GANG", "AGE", "REASON"]),
        (49, "table", ["GANG", "REASON"]),
        (20, "table", ["GANG", "REASON"]),
        (20, "wide", ["GANG", "AGE", "KIND", "REASON"]),
    ],
)
def test_columns_give_way_to_the_reason(columns, form, header):
    """The largest first, until 30 characters are left for the last column; what never gives way stays."""
    lines = output_on_a_terminal(NARROW.replace("FORM", form), columns).splitlines()
    assert lines[0].split() == header


def test_a_text_of_a_service_cannot_steer_the_terminal(capsys):
    """Where it is no cell of a table; line breaks stay."""
    console(wrap=False).print("a\x1b[2Jb\nc\x9b")
    assert capsys.readouterr().out == "a [2Jb\nc \n"
