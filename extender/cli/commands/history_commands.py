"""`history`, `events`, `decision replay`, `verify`: read the log from the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from extender import settings as settings_module
from extender.cli.commands.gang_commands import root_path
from extender.cli.connection.service_client import finder
from extender.cli.output.history_lines import print_line
from extender.cli.output.printing import (
    Output,
    complain,
    console,
    print_table,
    print_value,
)
from extender.core.log.events import (
    HistoryTruncated,
)
from extender.core.model.errors import BadInput, CorruptLog
from extender.core.model.ids import GangUid, Position
from extender.core.model.wording import counted
from extender.ports.query_ports import EventFilter
from extender.queries.log.event_dto import EventLine, event_line, parse_time
from extender.queries.log.gang_history import GangHistory, HistoryQuery
from extender.queries.log.gang_history import history as read_history
from extender.queries.log.parameter_validation import (
    checked_name,
    checked_path,
    checked_text,
    checked_type,
)

if TYPE_CHECKING:
    from extender.composition import Store
    from extender.queries.log.decision_replay import ReplayResult

T = TypeVar("T")
Url = Annotated[str | None, typer.Option(help="postgresql://… ; unset: the embedded PostgreSQL.")]
Folder = Annotated[str | None, typer.Option(help="Folder of the embedded PostgreSQL.")]
Form = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
LIMIT = 100  # events, by default
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def ask(
    database_url: str | None, data_dir: str | None, question: Callable[[Store], Awaitable[T]]
) -> T:
    """Return the result of `question`, which gets the store of the database."""
    from extender.composition import store

    settings = settings_module.load(database_url=database_url, data_dir=data_dir)

    async def run() -> T:
        async with store(settings, migrates=False) as opened:
            return await question(opened)

    return asyncio.run(run())


def _print_events(lines: Sequence[EventLine], output: Output) -> None:
    if output is not Output.table:
        print_value(lines, output)
        return
    columns = ["position", "time", "gang", "type", "summary"]
    rows = [
        [str(line.position), line.time[:19].replace("T", " "), line.gang, line.type, line.summary]
        for line in lines
    ]
    print_table(columns, rows, empty="No events match.")


def history(  # noqa: PLR0917 -- typer reads options from the signature
    gang: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or UID of the root group.")],
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace of a NAME without one.")
    ] = "default",
    uid: Annotated[str, typer.Option(help="Select one gang by UID when the name was reused.")] = "",
    decisions: Annotated[
        bool,
        typer.Option("--decisions", help="Add the input of each decision, and its alternatives."),
    ] = False,
    after: Annotated[int, typer.Option(help="Only events after this position.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Maximum number of events.", min=1, max=10_000)] = 1000,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Show all events about a gang, also about a deleted one: time, type, reason, actor."""
    alone = _UUID.fullmatch(gang) is not None and not uid
    wanted = HistoryQuery(
        gang="" if alone else checked_path(root_path(gang, namespace), "gang"),
        uid=GangUid(checked_text(gang.lower() if alone else uid, "--uid"))
        if alone or uid
        else None,
        after=Position(after),
        limit=limit,
        decisions=decisions,
    )
    found = ask(database_url, data_dir, lambda s: read_history(s.audit, s.inputs, wanted))
    for note in _notes(found, wanted):
        complain(note)
    if output is not Output.table:
        print_value(found.lines if decisions else [line.bare() for line in found.lines], output)
        return
    for line in found.lines:
        print_line(line, found.gang)


def _notes(found: GangHistory, wanted: HistoryQuery) -> Iterator[str]:
    """Yield notes about the whole history: reused names, and more lines than the limit."""
    if len(found.lives) > 1 and wanted.uid is None:
        yield f"{found.gang} was the name of {len(found.lives)} root groups; select one with --uid:"
        for life in found.lives:
            yield f"  {life.uid}: {counted(life.events, 'event')} from {life.first} to {life.last}"
    if found.more and found.lines:
        yield _cut_off(len(found.lines), found.lines[-1].position)


def _cut_off(count: int, position: int) -> str:
    return f"cut off after {counted(count, 'event')}; --after {position} goes on"


def events(  # noqa: PLR0917 -- typer reads options from the signature
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only root groups of this namespace.")
    ] = "",
    gang: Annotated[str, typer.Option(help="Only this root group, NAMESPACE/NAME.")] = "",
    node: Annotated[str, typer.Option(help="Only events that name this node.")] = "",
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only events of this type. Repeatable.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    until: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    after: Annotated[
        int | None, typer.Option(help="Only events after this position.", min=0)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Maximum number of events.", min=1, max=10_000)
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "-f",
            "--follow",
            help="Print new events as they are recorded: from now, after --after, or since --since.",
        ),
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="With --follow: URL of a running service, in place of the database. Repeatable: when one is"
            " lost, the next one is used.",
        ),
    ] = None,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """List events of the log, oldest first, or follow the log."""
    wanted = EventFilter(
        gang=checked_path(gang, "--gang") if gang else "",
        namespace=checked_name(namespace, "--namespace") if namespace else "",
        node=checked_name(node, "--node") if node else "",
        types=tuple(checked_type(name, "--type") for name in kind or ()),
        since_us=parse_time(since, "--since") if since else None,
        until_us=parse_time(until, "--until") if until else None,
        after=Position(after or 0),
        limit=limit or LIMIT,
    )
    if (
        wanted.since_us is not None
        and wanted.until_us is not None
        and wanted.since_us >= wanted.until_us
    ):
        raise BadInput(f"--since: {since} is not before --until, {until}; the span is empty")
    asks_service = bool(server) or finder().chosen
    if asks_service and (database_url or data_dir or not follow):
        problem = "only with --follow" if not follow else "not together with a database"
        name = f"--server {server[0]}" if server else "--context"
        raise BadInput(f"{name}: {problem}; without it the database is read")
    if follow:
        from extender.cli.commands.events_follow import follow_events, follow_services

        if until or limit:
            raise BadInput(f"--{'until' if until else 'limit'}: not together with --follow")
        if asks_service:
            query = _query_of(wanted, after, since)
            asyncio.run(follow_services(server or (), query, output))
            return
        from_now = after is None and since is None
        asyncio.run(follow_events(database_url, data_dir, wanted, output, from_now=from_now))
        return
    page = ask(database_url, data_dir, lambda s: s.audit.page(wanted))
    lines = [event_line(event) for event in page.events]
    if page.more:
        complain(_cut_off(len(lines), lines[-1].position))
    _print_events(lines, output)


def _query_of(wanted: EventFilter, after: int | None, since: str | None) -> list[tuple[str, str]]:
    """Return a filter as parameters of GET /v1/events."""
    single = {
        "gang": wanted.gang,
        "namespace": wanted.namespace,
        "node": wanted.node,
        "since": since or "",
        "after": "" if after is None else str(after),
    }
    return [
        *((name, text) for name, text in single.items() if text),
        *(("type", t) for t in wanted.types),
    ]


def replay(
    position: Annotated[int, typer.Argument(help="Position of a decision in the log.", min=1)],
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Plan the stored input of a decision again and compare. Exit 1 when the result differs."""
    from extender.queries.log.decision_replay import ReplayableEventData, replay_decision

    async def question(opened: Store) -> ReplayResult:
        wanted = EventFilter(after=Position(position - 1), limit=1)
        found = await opened.audit.events(wanted)
        if not found or found[0].position != position:
            end = (await opened.log.head()).position
            msg = f"position {position}: the log has no such event; it ends at position {end}"
            raise BadInput(msg)
        data = found[0].data
        if not isinstance(data, ReplayableEventData) or not data.input_digest:
            msg = (
                f"position {position}: {type(data).__name__} is not a decision; decisions are GangAdmitted, GangExtended, "
                "GangUnschedulable, PreemptionPlanned, TreeCompiled and TreeRefused (see `gang-extender events --type`)"
            )
            raise BadInput(msg)
        stored = await opened.inputs.load(data.input_digest)
        if stored is None:
            msg = (
                f"position {position}: the input {data.input_digest} is not stored any more; `gang-extender db prune` deletes "
                "inputs of old decisions"
            )
            raise BadInput(msg)
        return replay_decision(found[0], data, stored)

    result = ask(database_url, data_dir, question)
    if output is not Output.table:
        print_value(result, output)
    elif result.same:
        console().print(f"position {position}: the same result ({result.recorded})")
    else:
        console().print(f"position {position}: recorded {result.recorded}, now {result.now}")
        for difference in result.differences:
            console().print(f"  {difference}")
    raise typer.Exit(0 if result.same else 1)


def verify(
    database_url: Url = None,
    data_dir: Folder = None,
) -> None:
    """Verify the hash chain of the whole log. Exit 1 when it is broken.

    Also lists recorded losses of history (an older copy of the database).
    """

    async def question(opened: Store) -> tuple[int, list[EventLine]]:
        count, lost = 0, []
        async for page in opened.log.read():
            count += len(page)
            lost += [event_line(e) for e in page if isinstance(e.data, HistoryTruncated)]
        return count, lost

    try:
        count, lost = ask(database_url, data_dir, question)
    except CorruptLog as error:
        console().print(f"the log does not verify: {error}")
        raise typer.Exit(1) from error
    console().print(f"{counted(count, 'event')} verified, no gap, chain unbroken")
    for line in lost:
        console().print(f"position {line.position}, {line.time}: {line.summary}")
