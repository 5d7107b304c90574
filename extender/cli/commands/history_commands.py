"""`history`, `events`, `replay`, `verify`: questions to the log, straight from the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from extender import settings as settings_module
from extender.cli.commands.gang_commands import root_path
from extender.cli.output.history_lines import print_line
from extender.cli.output.printing import Output, complain, console, print_table, print_value
from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    GangRefused,
    HistoryTruncated,
    PreemptionPlanned,
)
from extender.core.model.errors import BadInput, CorruptLog
from extender.core.model.ids import Position, RootUid
from extender.ports.protocols import EventFilter
from extender.queries.log.event_dto import EventLine, line_of, parse_time
from extender.queries.log.gang_history import GangHistory, HistoryQuery
from extender.queries.log.gang_history import history as tell
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
Folder = Annotated[str | None, typer.Option(help="Folder for the embedded server.")]
Form = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
LIMIT = 100  # facts, unless told
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def ask(
    database_url: str | None, data_dir: str | None, question: Callable[[Store], Awaitable[T]]
) -> T:
    """Ask the log a question."""
    from extender.composition import store

    settings = settings_module.load(database_url=database_url, data_dir=data_dir)

    async def run() -> T:
        async with store(settings, migrates=False) as opened:
            return await question(opened)

    return asyncio.run(run())


def _print_facts(lines: Sequence[EventLine], output: Output) -> None:
    if output is not Output.table:
        print_value(lines, output)
        return
    columns = ["position", "time", "gang", "fact", "summary"]
    rows = [
        [str(line.position), line.time[:19].replace("T", " "), line.gang, line.type, line.summary]
        for line in lines
    ]
    print_table(columns, rows, empty="No facts match.")


def history(  # noqa: PLR0917 -- typer reads options from the signature
    gang: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or UID of the root group.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace")] = "default",
    uid: Annotated[
        str, typer.Option(help="Only the root group with this UID, of those that had the name.")
    ] = "",
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Also the input of each decision, and alternatives.")
    ] = False,
    after: Annotated[int, typer.Option(help="Only facts behind this position.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 1000,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Tell everything the log knows about a gang, also about one long gone: when, what, why, who."""
    alone = _UUID.fullmatch(gang) is not None and not uid
    asked = HistoryQuery(
        root="" if alone else checked_path(root_path(gang, namespace), "gang"),
        uid=RootUid(checked_text(gang.lower() if alone else uid, "--uid"))
        if alone or uid
        else None,
        after=Position(after),
        limit=limit,
        decisions=decisions,
    )
    told = ask(database_url, data_dir, lambda s: tell(s.audit, s.inputs, asked))
    for note in _notes(told, asked):
        complain(note)
    if output is not Output.table:
        print_value(told.lines if decisions else [line.bare() for line in told.lines], output)
        return
    for line in told.lines:
        print_line(line, told.gang)


def _notes(told: GangHistory, asked: HistoryQuery) -> Iterator[str]:
    """Say what the lines alone do not."""
    if len(told.lives) > 1 and asked.uid is None:
        yield f"{told.gang} was the name of {len(told.lives)} root groups; --uid tells of one:"
        for life in told.lives:
            yield f"  {life.uid}: {life.facts} facts from {life.first} to {life.last}"
    if told.more and told.lines:
        yield f"cut off after {len(told.lines)} facts; --after {told.lines[-1].position} goes on"


def events(  # noqa: PLR0917 -- typer reads options from the signature
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this one.")] = "",
    gang: Annotated[str, typer.Option(help="Only this root, NAMESPACE/NAME.")] = "",
    node: Annotated[str, typer.Option(help="Only facts that name this node.")] = "",
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only facts of this type. Repeatable.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    until: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    after: Annotated[
        int | None, typer.Option(help="Only facts behind this position.", min=0)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1, max=10_000)] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "-f",
            "--follow",
            help="Print facts as they come, from now on, or behind --after, or from --since on.",
        ),
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="With --follow: URL of a running service to ask instead of the database. Repeatable: the next"
            " one is asked when one is lost.",
        ),
    ] = None,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """List facts of the log, oldest first, or follow them."""
    wanted = EventFilter(
        root=checked_path(gang, "--gang") if gang else "",
        namespace=checked_name(namespace, "--namespace") if namespace else "",
        node=checked_name(node, "--node") if node else "",
        types=tuple(checked_type(name, "--type") for name in kind or ()),
        since_us=parse_time(since, "--since") if since else None,
        until_us=parse_time(until, "--until") if until else None,
        after=Position(after or 0),
        limit=limit or LIMIT,
    )
    if server and (database_url or data_dir or not follow):
        with_it = "only together with --follow" if not follow else "not together with a database"
        raise BadInput(f"--server {server[0]}: {with_it}; without it the database is asked")
    if follow:
        from extender.cli.commands.events_follow import follow_facts, follow_services

        if until or limit:
            raise BadInput(
                f"--{'until' if until else 'limit'}: not together with --follow, which has no end"
            )
        if server:
            asyncio.run(follow_services(server, _query_of(wanted, after, since), output))
            return
        from_now = after is None and since is None
        asyncio.run(follow_facts(database_url, data_dir, wanted, output, from_now=from_now))
        return
    page = ask(database_url, data_dir, lambda s: s.audit.page(wanted))
    lines = [line_of(event) for event in page.events]
    if page.more:
        complain(f"cut off after {len(lines)} facts; --after {lines[-1].position} goes on")
    _print_facts(lines, output)


def _query_of(wanted: EventFilter, after: int | None, since: str | None) -> list[tuple[str, str]]:
    """Write a filter as parameters of GET /v1/events."""
    single = {
        "gang": wanted.root,
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
    """Decide once more from the stored input of a decision, and compare. Exit 1 when it differs."""
    from extender.queries.log.decision_replay import replay_decision

    async def question(opened: Store) -> ReplayResult:
        wanted = EventFilter(after=Position(position - 1), limit=1)
        found = await opened.audit.events(wanted)
        if not found or found[0].position != position:
            msg = f"position {position}: the log has no such fact"
            raise BadInput(msg)
        fact = found[0].fact
        decisions = GangAdmitted | GangExtended | GangRefused | PreemptionPlanned
        if not isinstance(fact, decisions) or not fact.input_digest:
            msg = f"position {position}: {type(fact).__name__} is not a decision of the planner"
            raise BadInput(msg)
        stored = await opened.inputs.load(fact.input_digest)
        if stored is None:
            msg = f"position {position}: the input {fact.input_digest} is not stored any more"
            raise BadInput(msg)
        return replay_decision(found[0], fact, stored)

    result = ask(database_url, data_dir, question)
    if output is not Output.table:
        print_value(result, output)
    elif result.same:
        console().print(f"position {position}: the same answer again ({result.recorded})")
    else:
        console().print(f"position {position}: recorded {result.recorded}, now {result.now}")
        for difference in result.differences:
            console().print(f"  {difference}")
    raise typer.Exit(0 if result.same else 1)


def verify(
    database_url: Url = None,
    data_dir: Folder = None,
) -> None:
    """Read the whole log and check its chain of hashes. Exit 1 when it is broken.

    Where history was lost before (an older copy of the database) and that was noticed, it says so.
    """

    async def question(opened: Store) -> tuple[int, list[EventLine]]:
        count, lost = 0, []
        async for page in opened.log.read():
            count += len(page)
            lost += [line_of(e) for e in page if isinstance(e.fact, HistoryTruncated)]
        return count, lost

    try:
        count, lost = ask(database_url, data_dir, question)
    except CorruptLog as error:
        console().print(f"the log does not verify: {error}")
        raise typer.Exit(1) from error
    console().print(f"{count} facts verified, no gap, chain unbroken")
    for line in lost:
        console().print(f"position {line.position}, {line.time}: {line.summary}")
