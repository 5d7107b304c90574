"""`history`, `events`: read the log of the service, or of a database, or follow it as it grows."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import typer
from msgspec.structs import replace

from extender import settings as settings_module
from extender.cli.commands.gang_commands import path_or_name
from extender.cli.completion.live_names import complete_groups
from extender.cli.connection.service_client import (
    Ask,
    Server,
    Stream,
    asks,
    finder,
    until_interrupted,
)
from extender.cli.options.list_options import Listed, Since, Until, Where, span_us, times
from extender.cli.output.list_table import (
    Column,
    ListForm,
    ListFormat,
    ListTable,
    clock_text,
    number_column,
    time_column,
)
from extender.cli.output.printing import complain, visible
from extender.core.admit.gang_sentences import shown_texts
from extender.core.model.errors import BadInput
from extender.core.model.ids import GangUid, Position
from extender.core.model.message_formatting import counted
from extender.ports.query_ports import EventFilter, EventPage
from extender.queries.log.decision_details import Decision
from extender.queries.log.event_dto import EventLine, event_line
from extender.queries.log.event_stream import EventStream
from extender.queries.log.gang_history import (
    LIMIT_MAX,
    GangHistory,
    HistoryLine,
    HistoryQuery,
    events_page,
    gang_of_name,
)
from extender.queries.log.gang_history import history as read_history
from extender.queries.log.parameter_validation import checked_name, checked_text, checked_type

if TYPE_CHECKING:
    from extender.composition import Store


class EventFields(msgspec.Struct):
    """The fields of an event that are printed in a line."""

    position: int
    time: str
    type: str
    gang: str
    summary: str = ""


_DECODER = msgspec.json.Decoder(EventFields)


async def follow_events(
    database_url: str | None,
    data_dir: str | None,
    event_filter: EventFilter,
    output: ListForm,
    *,
    from_now: bool,
    count: int | None,
) -> None:
    """Print one line per event of the database, until Ctrl-C; waits while the database does not answer.

    Args:
        database_url: The database; None: the embedded one.
        event_filter: Which events; `gang` may be a name alone.
        from_now: Begin at the end of the log instead of `event_filter.after`.
    """
    from extender.composition import store

    settings = settings_module.load_for_log(database_url, data_dir)
    async with store(settings, migrates=False) as opened:
        feed = EventStream(opened.log, opened.audit)
        gang = await gang_of_name(opened.audit, event_filter.gang, expected=True)
        event_filter = replace(event_filter, gang=gang)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, feed.stop)
        if from_now:
            event_filter = replace(event_filter, after=await feed.head())
        async with aclosing(feed.follow(event_filter)) as batches:
            printed = 0
            async for batch in batches:
                left = None if count is None else count - printed
                for _, body in batch.events[:left]:
                    sys.stdout.write(line_of_body(body, output))
                    printed += 1
                sys.stdout.flush()
                if printed == count:
                    return


def follow_services(
    servers: Sequence[str], query: Sequence[tuple[str, str]], output: ListForm, count: int | None
) -> None:
    """Print one line per event of a service, until Ctrl-C; when it is lost, continue at the next one.

    Args:
        servers: URLs of replicas, or of a load balancer; none: the service in the cluster of --context.
        query: Parameters of GET /v1/events.

    Raises:
        BadInput: None of them answers at the beginning, or one rejects the query.
        PositionGone: The log ends before the position of the stream.
    """
    stream = Stream(servers or (None,), query, finder(), complain=complain)
    with until_interrupted():
        for printed, body in enumerate(stream.events(), 1):
            sys.stdout.write(line_of_body(body, output))
            sys.stdout.flush()
            if printed == count:
                return


def line_of_body(body: bytes, output: ListForm) -> str:
    """Return the printed form of an event; `body` is its JSON (`EventLine`)."""
    if output is ListForm.json:
        return body.decode() + "\n"
    if output is ListForm.yaml:
        return "---\n" + msgspec.yaml.encode(msgspec.json.decode(body)).decode()
    line = _DECODER.decode(body)
    if output is ListForm.name:
        return f"{line.position}\n"
    return f"{line.position}  {clock_text(line.time)}  {line.gang or '-'}  {line.type}  {line.summary}\n"


T = TypeVar("T")
Url = Annotated[str | None, typer.Option(help="postgresql://… ; unset: the embedded PostgreSQL.")]
Folder = Annotated[str | None, typer.Option(help="Folder of the embedded PostgreSQL.")]
LogUrl = Annotated[str | None, typer.Option(help="postgresql://… , to read the log there in place of asking the service; also GANG_EXTENDER_DATABASE_URL.")]  # fmt: skip
LogFolder = Annotated[str | None, typer.Option(help="Folder of an embedded PostgreSQL, to read the log there; also GANG_EXTENDER_DATA_DIR.")]  # fmt: skip
LIMIT = 100  # events, by default
DATABASE_VARIABLES = tuple(
    f"{settings_module.PREFIX}{name}" for name in ("DATABASE_URL", "DATA_DIR")
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class LogPlace(msgspec.Struct, frozen=True):
    """Where a log is read, of a service or in a database: options of the commands that read it."""

    server: Server = None
    database_url: LogUrl = None
    data_dir: LogFolder = None

    def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Return the result of `question`, which gets the store of the database."""
        from extender.composition import store

        settings = settings_module.load_for_log(self.database_url, self.data_dir)

        async def run() -> T:
            async with store(settings, migrates=False) as opened:
                return await question(opened)

        return asyncio.run(run())

    def source(self, *, watch: bool = False) -> Ask | None:
        """Return what asks the service, or None where a database is named, by an option or by its variable.

        Args:
            watch: Whether changes are printed as well; then, as with --server, the service is asked.

        Raises:
            BadInput: Options name a service and a database.
        """
        server, named = self.server, bool(self.database_url or self.data_dir)
        if server or watch or finder().chosen:
            if named:
                option = f"--server {server}" if server else "--watch" if watch else "--context"
                raise BadInput(f"{option}: asks a service, so not together with a database")
        elif named or any(os.environ.get(variable) for variable in DATABASE_VARIABLES):
            return None
        finder().reads_log = True
        return asks(server, watch=watch)


_FIRST: Final[tuple[Column[EventLine], ...]] = (
    number_column("position", lambda line: line.position),
    time_column("time", lambda line: line.time),
    Column(title="gang", text=lambda line: line.gang),
    Column(title="type", text=lambda line: line.type),
)
_MORE: Final[tuple[Column[EventLine], ...]] = (
    Column(title="gang uid", text=lambda line: line.gang_uid, wide=True),
    number_column("epoch", lambda line: line.epoch, wide=True),
    Column(title="actor", text=lambda line: line.actor, wide=True),
)


def _summary(line: HistoryLine) -> str:
    reason = f"; reason: {line.reason}" if line.reason else ""
    led = f", position {line.cause_position}" if line.cause_position else ""
    return f"{line.summary}{reason}{led}"


EVENT_COLUMNS: Final[tuple[Column[EventLine], ...]] = (
    *_FIRST,
    *_MORE,
    Column(title="cause", text=lambda line: line.cause, wide=True),
    Column(title="summary", text=lambda line: line.summary),
)
_HISTORY_COLUMNS: Final[tuple[Column[Any], ...]] = (
    *_FIRST,
    Column(title="by", text=lambda line: str(line.caused_by)),
    *_MORE,
    Column(title="summary", text=_summary),
)


def history(
    *,
    gang: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME, KIND/NAME, KIND/NAMESPACE/NAME or UID of the root group.", autocompletion=complete_groups)],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of a NAME without one.")] = "default",
    uid: Annotated[str, typer.Option(help="Select one gang by UID when the name was reused.")] = "",
    decisions: Annotated[bool, typer.Option("--decisions", help="Add the input of each decision, and its alternatives.")] = False,
    since: Since = None,
    until: Until = None,
    after: Annotated[int, typer.Option(help="Only events after this position.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Maximum number of events.", min=1, max=10_000)] = 1000,
    output_format: ListFormat,
    place: LogPlace,
) -> None:  # fmt: skip
    """Show all events about a gang, also about a deleted one: time, type, reason, actor."""
    table = ListTable(_HISTORY_COLUMNS, lambda line: str(line.position), output_format)
    since_us, until_us = span_us(since, until)
    alone = _UUID.fullmatch(gang) is not None and not uid
    source = place.source()
    query = HistoryQuery(
        gang="" if alone else path_or_name(gang, namespace, source),
        uid=GangUid(checked_text(gang.lower() if alone else uid, "--uid"))
        if alone or uid
        else None,
        after=Position(after),
        limit=limit,
        decisions=decisions,
        since_us=since_us,
        until_us=until_us,
    )
    detailed = decisions or table.output_format.is_table
    lines: Sequence[HistoryLine]
    if source is None:

        async def question(opened: Store) -> GangHistory:
            gang = await gang_of_name(opened.audit, query.gang, namespace)
            return await read_history(opened.audit, opened.inputs, replace(query, gang=gang))

        gang_history = place.ask(question)
        for note in _notes(gang_history, query):
            complain(note)
        name, lines = (
            gang_history.gang,
            gang_history.lines if detailed else [line.bare() for line in gang_history.lines],
        )
    else:
        if not alone:
            query = replace(query, gang=_served_gang(source, query.gang, namespace))
        name, lines = query.gang, _served_history(source, query, detailed=detailed)
    if decisions and output_format.form is ListForm.table:
        for line in table.sorted(lines):
            print_line(line, name)
    else:
        table.print(lines, empty=f"No event about {name} matches.")


def listed_gang(gang: str, part: Listed, source: Ask | None) -> str:
    """Return the gang of a list as by `path_or_name`: in the namespace of the list, if it is restricted to one."""
    only = bool(part.namespace)
    return path_or_name(gang, part.namespace or "default", source, only=only) if gang else ""


def _served_gang(source: Ask, gang: str, namespace: str) -> str:
    """Return what `gang_of_name` returns, from a service; that in `namespace` where it does not have the name, or has several."""
    if "/" in gang:
        return gang
    for name in (f"{namespace}/{gang}", gang):
        path = f"/v1/events?{urlencode({'gang': name, 'limit': 1})}"
        for event in source(path, list[EventFields], absent=[]):
            return event.gang
    return f"{namespace}/{gang}"


def _served_history(source: Ask, query: HistoryQuery, *, detailed: bool) -> list[HistoryLine]:
    if not query.gang:
        raise BadInput(f"gang {query.uid}: a service is asked by name, NAMESPACE/NAME with --uid")
    parameters = times(query.since_us, query.until_us)
    parameters |= {"uid": query.uid} if query.uid is not None else {}
    parameters |= {"after": str(query.after), "limit": _page_limit(query.limit)}
    parameters |= {"decisions": "true"} if detailed else {}
    path = f"/v1/gangs/{quote(query.gang)}/history?{urlencode(parameters)}"
    lines = _served(source, path, query.limit)
    uids = {line.gang_uid for line in lines if line.gang == query.gang}
    if len(uids) > 1 and query.uid is None:
        complain(_reused(query.gang, len(uids)))
        for uid in dict.fromkeys(line.gang_uid for line in lines if line.gang_uid in uids):
            life = [line for line in lines if line.gang_uid == uid]
            complain(
                f"  {uid}: {counted(len(life), 'event')} from {life[0].time} to {life[-1].time}"
            )
    return lines


def _page_limit(limit: int) -> str:
    """Return the limit of one page: one more than is printed, to know whether there are more."""
    return str(min(limit + 1, LIMIT_MAX))


def _served(source: Ask, path: str, limit: int) -> list[HistoryLine]:
    """Return at most `limit` events of a service; where there are more, a note is printed."""
    lines = source(path, list[HistoryLine], most=limit + 1)
    if len(lines) > limit:
        lines = lines[:limit]
        complain(_cut_off(len(lines), lines[-1].position))
    return lines


def _reused(gang: str, count: int) -> str:
    return f"{gang} was the name of {count} root groups; select one with --uid:"


def _notes(gang_history: GangHistory, query: HistoryQuery) -> Iterator[str]:
    """Yield notes about the whole history: reused names, and more lines than the limit."""
    if len(gang_history.lives) > 1 and query.uid is None:
        yield _reused(gang_history.gang, len(gang_history.lives))
        for life in gang_history.lives:
            yield f"  {life.uid}: {counted(life.events, 'event')} from {life.first} to {life.last}"
    if gang_history.more and gang_history.lines:
        yield _cut_off(len(gang_history.lines), gang_history.lines[-1].position)


def _cut_off(count: int, position: int) -> str:
    return f"cut off after {counted(count, 'event')}; --after {position} goes on"


def events(
    *,
    where: Where,
    gang: Annotated[str, typer.Option(help="Only this root group; NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.")] = "",
    node: Annotated[str, typer.Option(help="Only events that name this node.")] = "",
    kind: Annotated[list[str] | None, typer.Option("--type", help="Only events of this type. Repeatable.")] = None,
    since: Since = None,
    until: Until = None,
    after: Annotated[int | None, typer.Option(help="Only events after this position.", min=0)] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of events; with --follow: end after so many.", min=1, max=10_000)] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", "-w", "--watch", help="Print new events as they are recorded: from now, after --after, or since --since.")
    ] = False,
    output_format: ListFormat,
    server: Annotated[
        list[str] | None, typer.Option(help="URL of the service, as for `gangs`. Repeatable with --follow: when one is lost, the next one is used.")
    ] = None,
    database_url: LogUrl = None,
    data_dir: LogFolder = None,
) -> None:  # fmt: skip
    """List events of the log, oldest first, or follow the log."""
    table = ListTable(EVENT_COLUMNS, lambda line: str(line.position), output_format)
    part, output = where.part(), output_format.form
    since_us, until_us = span_us(since, until)
    place = LogPlace(server[0] if server else None, database_url, data_dir)
    source = place.source()
    event_filter = EventFilter(
        gang=listed_gang(gang, part, source),
        namespace=part.namespace,
        node=checked_name(node, "--node") if node else "",
        types=tuple(checked_type(name, "--type") for name in kind or ()),
        since_us=since_us,
        until_us=until_us,
        after=Position(after or 0),
        limit=limit or LIMIT,
    )
    if server and len(server) > 1 and not follow:
        raise BadInput(f"--server {server[1]}: a second service only with --follow")
    if follow:
        if until or output_format.sort_by:
            option = "until" if until else "sort-by"
            raise BadInput(f"--{option}: not together with --follow")
        if source is not None:
            follow_services(server or (), _query_of(event_filter, after), output, limit)
            return
        from_now = after is None and since is None
        asyncio.run(
            follow_events(
                database_url, data_dir, event_filter, output, from_now=from_now, count=limit
            )
        )
        return
    lines: Sequence[EventLine]
    if source is None:

        async def question(opened: Store) -> EventPage:
            gang = await gang_of_name(opened.audit, event_filter.gang)
            return await events_page(opened.audit, replace(event_filter, gang=gang))

        page = place.ask(question)
        lines = [event_line(event) for event in page.events]
        if page.more:
            complain(_cut_off(len(lines), lines[-1].position))
    else:
        query = [*_query_of(event_filter, after), ("limit", _page_limit(event_filter.limit))]
        lines = _served(source, f"/v1/events?{urlencode(query)}", event_filter.limit)
    table.print(lines, empty="No events match.")


def _query_of(event_filter: EventFilter, after: int | None) -> list[tuple[str, str]]:
    single = {
        "gang": event_filter.gang,
        "namespace": event_filter.namespace,
        "node": event_filter.node,
        **times(event_filter.since_us, event_filter.until_us),
        "after": "" if after is None else str(after),
    }
    return [
        *((name, text) for name, text in single.items() if text),
        *(("type", t) for t in event_filter.types),
    ]


NAMED_MAX = 3  # alternatives and members named; JSON has all


def print_line(line: HistoryLine, gang: str) -> None:
    """Print time, type, reason and actor of an event, and the details of a decision if the line has them."""
    gang_part = f" ({line.gang})" if line.gang and line.gang != gang else ""
    text = f"{line.position}  {clock_text(line.time)}  {line.type}{gang_part}: {_summary(line)}; by {line.caused_by}"
    print(visible(text))
    if isinstance(line.decision, Decision):
        for text in _decided(line.decision):
            print(visible(f"      {text}"))


def _decided(decision: Decision) -> Iterator[str]:
    planned = decision.input
    if planned.stored:
        units = f", {counted(planned.evictable, 'unit')} ({counted(planned.evictable_pods, 'pod')}) that could be evicted"
        yield (
            f"input {planned.digest[:12]}: {planned.waiting} waiting and {planned.bound} bound members of "
            f"{counted(planned.groups, 'group')}, {counted(planned.nodes, 'node')}, "
            f"{counted(planned.rejected_nodes, 'node rejection')}, {counted(planned.rules, 'rule')} "
            f"between pods{units if planned.evictable else ''}"
        )
    else:
        yield f"input {planned.digest[:12]}: not stored any more (pruned)"
    proof = "proved" if decision.exhausted else "not proved"
    yield f"planner {decision.planner}: {counted(decision.search_nodes, 'search node')}, {proof}"
    if decision.unplaced:
        names = ", ".join(decision.unplaced[:NAMED_MAX])
        more = " and more" if len(decision.unplaced) > NAMED_MAX else ""
        yield f"without a node: {names}{more}"
    yield from shown_texts(decision.wishes)
    yield from (f"reason: {reason}" for reason in decision.reasons)
    yield from (f"would help: {text}" for text in decision.help)
    for conflict in decision.conflict:
        yield f"cannot hold together: {conflict.object}: {conflict.message}"
    yield from (f"preemption: {text}" for text in decision.preemption_notes)
    for other in decision.alternatives[:NAMED_MAX]:
        yield f"not {', '.join(other.units)}: {other.reason}"
