"""`decision replay`: make one decision of the log again, or all of them before an upgrade."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, get_args
from urllib.parse import urlencode

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.commands.history_commands import EventFields, LogPlace
from extender.cli.options.list_options import Since, Until, ValueForm, span_us, times
from extender.cli.output.printing import Output, complain, console, print_value
from extender.core.model.errors import BadInput, NotFound
from extender.core.model.ids import Position
from extender.core.model.message_formatting import counted, join_names, rfc3339
from extender.ports.log_ports import DecisionInputs
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.decision_details import (
    DecisionWithInput,
    ReplayableEventData,
    StoredDecision,
    decision_with_input,
    stored_decision,
)
from extender.queries.log.decision_replay import DecidedAnswer, ReplayResult, replay_decision

if TYPE_CHECKING:
    from extender.cli.connection.service_client import Ask
    from extender.cli.replay.replay_worker import BatchAnswer
    from extender.composition import Store

BATCH: Final = 32  # decisions that a process gets at once: their inputs share most parts
REPORTED: Final = 10_000  # decisions between two lines about the progress
SHOWN_MAX: Final = 10  # members, units or reasons of an answer in a table; -o json has all
REPLACEABLE: Final = {"search_budget": "budget"}  # settings that are a part of recorded inputs
_TYPES = tuple(kind.__name__ for kind in get_args(ReplayableEventData))
_NOT_STORED = StoredDecision(
    position=Position(0), type="", data=msgspec.Raw(b"null"), digest="", head=b"", parts=()
)


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that is not the same now, or cannot be made."""

    position: int
    time: str  # RFC 3339
    type: str
    gang: str  # namespace/name of the root, or of the pod that preempted
    result: ReplayResult | None = None  # None: see `error`
    error: str = ""


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay of all decisions has found."""

    version: str  # that decided
    planner: str  # its planner
    replaced: dict[str, str]  # settings in the place of those of the inputs
    decided: int
    same: int
    without_input: int  # decisions whose input is not stored any more: not decided
    last_position: int  # of the last decision
    different: tuple[ReplayDifference, ...]


class _Batch(NamedTuple):
    """Decisions of a part of the log, in its order, and those of them that have an input."""

    listed: dict[int, EventFields]
    stored: list[StoredDecision]


def replay(
    *,
    position: Annotated[int | None, typer.Argument(help="Position of a decision in the log, from 1 on.", min=1)] = None,
    every: Annotated[bool, typer.Option("--all", help="All decisions of the log.")] = False,
    since: Since = None,
    until: Until = None,
    after: Annotated[int | None, typer.Option(help="With --all: only decisions after this position.", min=0)] = None,
    wheel: Annotated[
        Path | None,
        typer.Option("--with", help="With --all: decide with the version of this wheel, which pip installs with its packages in an environment of its own."),
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="With --all: decide with the version that is installed for this interpreter, such as venv/bin/python.")
    ] = None,
    replaced: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --all: decide with this setting in the place of the recorded one: search_budget. Repeatable."),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="With --all: processes that decide; default: one for each CPU.", min=1)] = None,
    place: LogPlace,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Plan the stored input of a decision again and compare, or all of them before an upgrade. Exit 1 when a result differs.

    It is planned by this program: of a service it takes the input only, which needs the right to read all namespaces.
    """
    source = place.source()
    options = {"--since": since, "--until": until, "--after": after, "--with": wheel, "--python": python,
               "--set": replaced, "--processes": processes}  # fmt: skip
    if not every:
        extra = [name for name, value in options.items() if value is not None]
        if position is None:
            raise BadInput("name the position of a decision, or --all")
        if extra:
            raise BadInput(f"{extra[0]}: only with --all")
        _replay_position(Position(position), source, place, output)
        return
    if position is not None:
        raise BadInput(f"position {position}: not together with --all")
    if wheel is not None and python is not None:
        raise BadInput(f"--with {wheel}: not together with --python {python}")
    since_us, until_us = span_us(since, until)
    event_filter = EventFilter(
        types=_TYPES, since_us=since_us, until_us=until_us, after=Position(after or 0), limit=BATCH
    )
    values = _replaced(replaced or ())
    from extender.cli.replay.replay_processes import environment_of

    with environment_of(wheel, python) as interpreter:
        run = _Run(interpreter, values, processes or len(os.sched_getaffinity(0)), output)
        if source is not None:
            asyncio.run(run.decide(_served(source, event_filter)))
        else:
            settings = settings_module.load_for_log(place.database_url, place.data_dir)
            asyncio.run(_decide_recorded(run, settings, event_filter))
    run.end(event_filter.after, is_of_a_time=since is not None or until is not None)


def _replay_position(
    position: Position, source: Ask | None, place: LogPlace, output: Output
) -> None:
    if source is not None:
        decision = source(f"/v1/decisions/{position}/input", StoredDecision).decoded()
    else:

        async def question(opened: Store) -> DecisionWithInput:
            return await decision_with_input(opened.audit, opened.inputs, position)

        decision = place.ask(question)
    result = replay_decision(decision.position, decision.data, decision.input)
    if output is not Output.table:
        print_value(result, output)
    elif result.same:
        console().print(f"position {position}: the same result ({result.recorded})")
    else:
        console().print(f"position {position}: recorded {result.recorded}, now {result.now}")
        _print_answers(result)
    raise typer.Exit(0 if result.same else 1)


def _replaced(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of --set by the name of the setting."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not equals:
            raise BadInput(f"--set {text}: is not NAME=VALUE, such as search_budget=20000")
        if name not in REPLACEABLE:
            problem = "is not a part of recorded inputs, so a replay cannot change it"
            if name not in {setting.name for setting in settings_module.all_settings()}:
                problem = "there is no such setting"
            raise BadInput(
                f"--set {text}: {problem}; those that can be set are {', '.join(REPLACEABLE)}"
            )
        try:
            settings_module.load({}, **{name: value})
        except BadInput as error:
            raise BadInput(f"--set {text}: {str(error).partition(': ')[2]}") from error
        values[name] = value
    return values


async def _decide_recorded(
    run: _Run, settings: settings_module.Settings, event_filter: EventFilter
) -> None:
    from extender.composition import recorded_decisions

    async with recorded_decisions(settings) as (reader, inputs):
        await run.decide(_read(reader, inputs, event_filter))


async def _read(
    reader: EventQueries, inputs: DecisionInputs, event_filter: EventFilter
) -> AsyncIterator[_Batch]:
    """Yield the decisions of a database."""
    more = True
    while more:
        page = await reader.page(event_filter)
        more = page.more and bool(page.events)
        listed: dict[int, EventFields] = {}
        decisions: list[StoredDecision] = []
        digests = {getattr(event.data, "input_digest", "") for event in page.events} - {""}
        loaded = await inputs.load_many(digests)
        for event in page.events:
            event_filter = msgspec.structs.replace(event_filter, after=event.position)
            data = event.data
            assert isinstance(data, ReplayableEventData)  # the filter has these types
            stored = loaded.get(data.input_digest)
            listed[event.position] = EventFields(
                event.position, rfc3339(event.at_us), type(data).__name__, event.gang
            )
            if stored is not None:
                decision = DecisionWithInput(event.position, data, stored, page.head)
                decisions.append(stored_decision(decision))
        yield _Batch(listed, decisions)


async def _served(source: Ask, event_filter: EventFilter) -> AsyncIterator[_Batch]:
    """Yield the decisions of a service; it answers one input at a time."""
    query = [("type", kind) for kind in event_filter.types]
    query += [*times(event_filter.since_us, event_filter.until_us).items(), ("limit", str(BATCH))]
    after, listed = int(event_filter.after), [EventFields(0, "", "", "")]
    while listed:
        path = f"/v1/events?{urlencode([*query, ('after', str(after))])}"
        listed = await asyncio.to_thread(source, path, list[EventFields])
        decisions = []
        for event in listed:
            after = event.position
            path = f"/v1/decisions/{after}/input"
            stored = await asyncio.to_thread(source, path, StoredDecision, absent=_NOT_STORED)
            decisions += [stored] if stored is not _NOT_STORED else []
        yield _Batch({e.position: e for e in listed}, decisions)


@dataclass(slots=True)
class _Run:
    """A replay of all decisions: what it has found so far."""

    _interpreter: Path
    _replaced: dict[str, str]
    _processes: int
    _output: Output
    _listed: dict[int, EventFields] = field(
        default_factory=dict
    )  # of batches without an answer yet
    _different: list[ReplayDifference] = field(default_factory=list)
    _decided: int = 0
    _without_input: int = 0
    _last: int = 0
    _version: str = ""
    _planner: str = ""
    _took_s: float = 0.0

    async def decide(self, batches: AsyncIterator[_Batch]) -> None:
        """Decide all again, and print what differs as it comes."""
        from extender.cli.replay.replay_processes import replay_pool

        budget = self._replaced.get("search_budget")
        nodes = int(budget) if budget is not None else None
        async with replay_pool(self._interpreter, processes=self._processes, budget=nodes) as pool:
            self._version, self._planner = pool.greeting.version, pool.greeting.planner
            began_s = time.monotonic()
            try:
                async for answers in pool.decided(self._stored(batches)):
                    for answer in answers:
                        self._take(answer)
            except asyncio.CancelledError:  # Ctrl-C
                complain(f"stopped after position {self._last}; --after {self._last} goes on")
                raise
        self._took_s = time.monotonic() - began_s

    async def _stored(
        self, batches: AsyncIterator[_Batch]
    ) -> AsyncIterator[Sequence[StoredDecision]]:
        async for batch in batches:
            self._without_input += len(batch.listed) - len(batch.stored)
            if batch.stored:
                self._listed |= batch.listed
                yield batch.stored

    def _take(self, answer: BatchAnswer) -> None:
        listed = self._listed.pop(answer.position)
        self._decided += 1
        self._last = answer.position
        result = msgspec.convert(answer.result, ReplayResult) if answer.result else None
        if result is None or not result.same:
            difference = ReplayDifference(
                position=listed.position, time=listed.time, type=listed.type, gang=listed.gang,
                result=result, error=answer.error,
            )  # fmt: skip
            self._different.append(difference)
            if self._output is Output.table:
                _print_difference(difference)
        if self._decided % REPORTED == 0:
            complain(f"position {self._last}: {counted(self._decided, 'decision')}, {_differ(len(self._different))}")  # fmt: skip

    def end(self, after: int, *, is_of_a_time: bool) -> None:
        """Print the report, and exit with 1 if a decision differs.

        Raises:
            NotFound: There was nothing to compare.
        """
        if not self._decided:
            within = f"{' of this time' if is_of_a_time else ''} after position {after}"
            if not self._without_input:
                raise NotFound(
                    f"the log has no decision{within}; `gang-extender events` lists what it has"
                )
            raise NotFound(
                f"no decision{within} has a stored input: {self._without_input} without one; "
                "`gang-extender db prune` deletes inputs of old decisions"
            )
        report = ReplayReport(
            version=self._version, planner=self._planner, replaced=self._replaced, decided=self._decided,
            same=self._decided - len(self._different), without_input=self._without_input,
            last_position=self._last, different=tuple(self._different),
        )  # fmt: skip
        if self._output is not Output.table:
            print_value(report, self._output)
        else:
            console(wrap=False).print(_sentence(report))
        rate = self._decided / max(self._took_s, 1e-9)
        complain(f"{self._took_s:.1f} s, {rate:,.0f} decisions/s with {counted(self._processes, 'process')}")  # fmt: skip
        raise typer.Exit(1 if report.different else 0)


def _differ(number: int) -> str:
    return f"{number} differs" if number == 1 else f"{number} differ"


def _sentence(report: ReplayReport) -> str:
    """Return the report in one line."""
    settings = "".join(f", {name}={value}" for name, value in report.replaced.items())
    by = f"gang-extender {report.version} (planner {report.planner}{settings})"
    text = f"{counted(report.decided, 'decision')} up to position {report.last_position} made again by {by}: "
    text += _differ(len(report.different)) if report.different else "all the same"
    if report.without_input:
        text += f"; {report.without_input} more have no stored input"
    return text


def _print_difference(difference: ReplayDifference) -> None:
    result = difference.result
    outcome = f"recorded {result.recorded}, now {result.now}" if result else difference.error
    head = f"position {difference.position}, {difference.time[:19]}Z, {difference.type} of {difference.gang}"
    console(wrap=False).print(f"{head}: {outcome}")
    if result is not None:
        _print_answers(result)


def _print_answers(result: ReplayResult) -> None:
    """Print what differs, then what was decided and what is decided now."""
    texts = [*result.differences[:SHOWN_MAX]]
    if len(result.differences) > SHOWN_MAX:
        texts.append(f"and {len(result.differences) - SHOWN_MAX} more")
    if result.planner_now != result.planner_recorded:
        texts.append(f"planner {result.planner_now} instead of {result.planner_recorded}")
    for word, answer in (("recorded", result.answer_recorded), ("now", result.answer_now)):
        texts += [f"{word}: {text}" for text in _answer_texts(answer)] if answer else []
    for text in texts:
        console(wrap=False).print(f"  {text}")


def _answer_texts(answer: DecidedAnswer) -> list[str]:
    parts = (("placed ", answer.placed), ("evicts ", answer.evicted), ("", answer.reasons))
    return [f"{word}{join_names(names, SHOWN_MAX)}" for word, names in parts if names]
