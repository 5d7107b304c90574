"""`history`, `events`, `replay`, `verify`: questions to the log, straight from the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from extender import settings as settings_module
from extender.cli.live import root_path
from extender.cli.output import Output, console, print_table, print_value
from extender.core.errors import BadInput, CorruptLog
from extender.core.events import (
    GangAdmitted,
    GangExtended,
    GangRefused,
    HistoryTruncated,
    PreemptionPlanned,
)
from extender.core.ids import Position, RootUid
from extender.service.audit import Audit, FactLine, line_of, parse_time
from extender.service.ports import EventFilter
from extender.service.replaying import Replayed, replay_decision
from extender.wiring import Store, store

T = TypeVar("T")
Url = Annotated[str | None, typer.Option(help="postgresql://… ; unset: the embedded PostgreSQL.")]
Folder = Annotated[str | None, typer.Option(help="Folder for the embedded server.")]
Form = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def ask(
    database_url: str | None, data_dir: str | None, question: Callable[[Store], Awaitable[T]]
) -> T:
    """Ask the log a question."""
    settings = settings_module.load(database_url=database_url, data_dir=data_dir)

    async def run() -> T:
        async with store(settings, migrates=False) as opened:
            return await question(opened)

    return asyncio.run(run())


def _print_facts(lines: Sequence[FactLine], output: Output, *, with_gang: bool) -> None:
    if output is not Output.table:
        print_value(lines, output)
        return
    columns = ["position", "time", "fact", "summary"]
    rows = [
        [str(line.position), line.time[:19].replace("T", " "), line.type, line.summary]
        for line in lines
    ]
    if with_gang:
        columns.insert(2, "gang")
        for row, line in zip(rows, lines, strict=True):
            row.insert(2, line.gang)
    print_table(columns, rows, empty="No facts match.")


def history(
    gang: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or UID of the root group.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace")] = "default",
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Tell everything the log knows about a gang, also about one long gone."""
    uid = RootUid(gang.lower()) if _UUID.fullmatch(gang) else None
    root = "" if uid is not None else root_path(gang, namespace)
    lines = ask(database_url, data_dir, lambda s: Audit(s.audit).history(root, uid=uid))
    _print_facts(lines, output, with_gang=False)


def events(  # noqa: PLR0917 -- typer reads options from the signature
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this one.")] = "",
    gang: Annotated[str, typer.Option(help="Only this root, NAMESPACE/NAME.")] = "",
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only facts of this type. Repeatable.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    until: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    after: Annotated[int, typer.Option(help="Only facts behind this position.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 100,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """List facts of the log, oldest first."""
    wanted = EventFilter(
        root=gang,
        namespace=namespace,
        types=tuple(kind or ()),
        since_us=parse_time(since, "--since") if since else None,
        until_us=parse_time(until, "--until") if until else None,
        after=Position(after),
        limit=limit,
    )
    lines = ask(database_url, data_dir, lambda s: Audit(s.audit).events(wanted))
    _print_facts(lines, output, with_gang=True)


def replay(
    position: Annotated[int, typer.Argument(help="Position of a decision in the log.", min=1)],
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Decide once more from the stored input of a decision, and compare. Exit 1 when it differs."""

    async def question(opened: Store) -> Replayed:
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

    async def question(opened: Store) -> tuple[int, list[FactLine]]:
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
