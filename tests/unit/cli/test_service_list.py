"""A watched list: what is printed after it, and when it is read again."""

from __future__ import annotations

import msgspec
import pytest

from extender.cli.connection.service_client import END_PATH, INTERVAL_S, RETRY_S, ServiceList
from extender.cli.output.list_table import Column, ListForm, ListFormat, ListTable
from extender.core.model.errors import BadInput


class Row(msgspec.Struct, frozen=True):
    name: str
    state: str


COLUMNS = (
    Column(title="name", text=lambda row: row.name),
    Column(title="state", text=lambda row: row.state),
)


class ScriptedService:
    """A log that ends at `end` and a list; `steps` are run one per pause, then Ctrl-C is pressed."""

    def __init__(self, *steps):
        self.end, self.rows, self.lost = 1, {"a": "waiting", "b": "waiting"}, False
        self.steps, self.reads, self.pauses = [*steps], 0, []

    def ask(self, path, kind):
        if self.lost:
            raise BadInput("no answer from http://x")
        assert path == END_PATH
        return msgspec.convert([{"position": self.end}], kind)

    def read(self):
        self.reads += 1
        return [Row(name, state) for name, state in self.rows.items()]

    def pause(self, seconds):
        self.pauses.append(seconds)
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)(self)


def put(**rows):
    def step(service):
        service.end += 1
        service.rows |= rows

    return step


def drop(name):
    def step(service):
        service.end += 1
        del service.rows[name]

    return step


def nothing(_):
    """Nothing happens in this second."""


def lose(*, lost):
    def step(service):
        service.lost = lost

    return step


def watched(service, form=ListForm.table):
    table = ListTable(COLUMNS, lambda row: row.name, ListFormat(form=form))
    ServiceList(service.ask, service.read, table).watch(
        lambda row: row.name, lambda row: Row(row.name, "removed"), service.pause
    )


def test_new_changed_and_removed_rows_are_printed_below_the_table(capsys):
    """A row whose texts are the same is not printed again, and Ctrl-C is no error."""
    watched(ScriptedService(put(a="admitted"), put(c="waiting"), drop("b"), put(a="admitted")))
    assert capsys.readouterr().out.splitlines() == [
        "NAME  STATE", "a     waiting", "b     waiting", "a     admitted", "c     waiting", "b     removed",
    ]  # fmt: skip


def test_a_row_that_gets_a_uid_or_loses_it_is_not_removed(capsys):
    """As a suspended gang that comes into the log with its first pod; one that is created again is another one."""
    service = ScriptedService(drop("a"), put(a="waiting"), drop("b"))
    uids = iter([{"a": "a", "b": "b-1"}, {"a": "a-1", "b": "b-1"}, {"a": "a", "b": "b-2"}])
    of = {}

    def read():
        of.update(next(uids, of))
        return [Row(name, of[name]) for name in ("a", "b")]

    table = ListTable(COLUMNS, lambda row: row.name, ListFormat(form=ListForm.table))
    ServiceList(service.ask, read, table).watch(
        lambda row: row.state, lambda row: Row(row.name, "removed"), service.pause
    )
    assert capsys.readouterr().out.splitlines() == [
        "NAME  STATE", "a     a", "b     b-1", "a     a-1", "a     a", "b     b-2", "b     removed",
    ]  # fmt: skip


def test_a_list_without_rows_has_its_titles_above_the_first_row(capsys):
    service = ScriptedService(put(a="waiting"))
    service.rows.clear()
    watched(service)
    assert capsys.readouterr().out.splitlines() == ["NAME  STATE", "a     waiting"]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (ListForm.name, ["a", "b", "b"]),
        (
            ListForm.json,
            [
                '{"name":"a","state":"waiting"}',
                '{"name":"b","state":"waiting"}',
                '{"name":"b","state":"removed"}',
            ],
        ),
    ],
)
def test_programs_get_one_line_per_row_and_change(form, lines, capsys):
    watched(ScriptedService(drop("b")), form)
    assert capsys.readouterr().out.splitlines() == lines


def test_a_list_is_read_again_only_when_the_log_has_grown(capsys):
    """And once more after that, because the first answer may be older than the log; never more than once a second."""
    service = ScriptedService(*[nothing] * 5, put(a="admitted"), *[nothing] * 5)
    watched(service)
    assert service.reads == 1 + 1 + 2
    assert min(service.pauses) == INTERVAL_S
    assert "a     admitted" in capsys.readouterr().out


def test_a_change_that_is_seen_late_is_printed(capsys):
    """The log has it in one second, the list of the service in the next."""

    def only_log(service):
        service.end += 1

    def only_list(service):
        service.rows["a"] = "admitted"

    watched(ScriptedService(nothing, only_log, only_list))
    assert capsys.readouterr().out.splitlines()[-1] == "a     admitted"


def test_a_service_that_does_not_answer_is_asked_again(capsys):
    """With one line on stderr when it is lost and one when it is back; what changed meanwhile is printed."""

    def back(service):
        service.lost, service.rows["a"] = False, "admitted"

    service = ScriptedService(lose(lost=True), nothing, nothing, back)
    watched(service)
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "a     admitted"
    assert err.splitlines() == [
        "gang-extender: no answer from http://x; trying again",
        "gang-extender: the service answers again",
    ]
    assert service.pauses[1:4] == [RETRY_S] * 3


def test_a_service_that_never_answered_is_an_error():
    service = ScriptedService()
    service.lost = True
    with pytest.raises(BadInput, match="no answer"):
        watched(service)
