"""`report`: reports for operators as tables, from the database."""

from __future__ import annotations

from typing import Annotated

import typer

from extender.cli.commands.gang_commands import root_path
from extender.cli.commands.history_commands import Folder, Form, Url, ask
from extender.cli.output.printing import Output, console, print_table, print_value
from extender.cli.output.usage_errors import options_named
from extender.queries.log.event_dto import parse_time
from extender.queries.log.reports import (
    LIMIT,
    LIMIT_MAX,
    REPORTS,
    Report,
    Value,
    catalogue,
    check_report_query,
)
from extender.queries.log.reports import report as read_report
from extender.runtime.system_clock import SystemClock

DURATIONS = ("seconds", "longest")  # columns of seconds, written as durations
HEADERS = {"seconds": "duration"}
MINUTE, HOUR, DAY = 60, 3600, 86_400


def report(  # noqa: PLR0917 -- typer reads options from the signature
    name: Annotated[
        str, typer.Argument(help="Name of the report; without it, list all reports.")
    ] = "",
    since: Annotated[
        str | None,
        typer.Option(help="RFC 3339 time with offset; default: 24 hours before the end."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="RFC 3339 time with offset; default: now.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only root groups of this namespace.")
    ] = "",
    gang: Annotated[str, typer.Option(help="Only this root group, [NAMESPACE/]NAME.")] = "",
    limit: Annotated[
        int, typer.Option(help="Maximum number of rows.", min=1, max=LIMIT_MAX)
    ] = LIMIT,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Show a report: waiting times, preemptions, terminations and others; without a name, list them."""
    if not name:
        _list(output)
        return
    with options_named("since", "namespace", "gang"):
        wanted = check_report_query(
            name,
            now_us=SystemClock().now_us(),
            since_us=parse_time(since, "--since") if since else None,
            until_us=parse_time(until, "--until") if until else None,
            namespace=namespace,
            gang=root_path(gang, namespace or "default") if gang else "",
            limit=limit,
        )
    found = ask(database_url, data_dir, lambda opened: read_report(opened.reports, wanted))
    if output is Output.table:
        _print(found)
    else:
        print_value(found, output)


def _list(output: Output) -> None:
    lines = catalogue()
    if output is Output.table:
        print_table(
            ["report", "description"], [[line.name, line.description] for line in lines], empty=""
        )
    else:
        print_value(lines, output)


def _print(found: Report) -> None:
    rows = found.rows
    columns = list(REPORTS[found.report].columns)
    if len({row.get("gang") for row in rows}) == len({row.get("gang_uid") for row in rows}):
        # the UID adds nothing when each name has one
        columns = [name for name in columns if name != "gang_uid"]
    print_table(
        [HEADERS.get(name, name).replace("_", " ") for name in columns],
        [[_cell(name, row[name]) for name in columns] for row in rows],
        empty="No rows in this span.",
    )
    if found.more:
        console().print(f"There are more than these {len(rows)} rows; see --limit.")
    span = f"{found.since[:19]}Z to {found.until[:19]}Z"
    console().print(f"{span}, log up to position {found.position}. {found.limitations}")


def _cell(name: str, value: Value) -> str:
    if value is None:
        return ""
    if name in DURATIONS:
        return duration(float(value))
    if isinstance(value, float):
        return f"{value:,.2f}"
    if name in ("at", "since", "until", "first", "last", "hour"):
        return str(value)[:19].replace("T", " ")
    return str(value)


def duration(seconds: float) -> str:
    """Return a duration as text in its two largest units.

    >>> [duration(s) for s in (0.25, 61, 3 * 3600 + 60, 90_000)]
    ['0.2 s', '1 min 1 s', '3 h 1 min', '1 d 1 h']
    """
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"
