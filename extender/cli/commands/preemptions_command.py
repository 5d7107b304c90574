"""`preemptions`: preemptors, victims, reasons and outcomes, from the service or a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from extender.cli.commands.gang_commands import micros_of
from extender.cli.commands.history_commands import LogPlace, listed_gang
from extender.cli.completion.live_names import complete_objects
from extender.cli.connection.service_client import ServiceList
from extender.cli.options import list_options
from extender.cli.output import list_table
from extender.cli.output.printing import complain, console, print_table
from extender.core.model.message_formatting import duration_text, gpu_time_text, join_names, spaced
from extender.queries.log.gang_history import gang_of_name
from extender.queries.log.preemption_dto import OUTCOMES, PreemptionLine, UnitLine
from extender.queries.log.preemption_report import PreemptionQuery, Preemptions, victim_of_name
from extender.queries.log.preemption_report import preemptions as read
from extender.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from extender.composition import Store

PRIORITY_OFFSET = 2**31
LINES_MAX = PreemptionQuery().limit  # preemptions
VICTIMS_MAX = 3  # named in a row; JSON has all
ALTERNATIVES_MAX = 3  # printed per preemption; JSON has all


def preemptions(
    *,
    victim: Annotated[
        str,
        typer.Option(
            help="Only preemptions of this pod or group, with details; NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.", autocompletion=complete_objects
        ),
    ] = "",
    preemptor: Annotated[str, typer.Option(help="Only preemptions for this root group or pod, likewise.")] = "",
    since: list_options.Since = None,
    until: list_options.Until = None,
    where: list_options.Where,
    states: list_options.States = None,
    watch: list_options.Watch = False,
    output_format: list_table.ListFormat,
    place: LogPlace,
) -> None:  # fmt: skip
    """Show preemptions: preemptor, victims, cost, alternatives, when each victim was gone, and the outcome."""
    part = where.part(states, OUTCOMES)
    since_us, until_us = list_options.span_us(since, until)
    source = place.source(watch=watch)
    query = PreemptionQuery(
        victim=listed_gang(victim, part, source),
        preemptor=listed_gang(preemptor, part, source),
        namespace=part.namespace,
        states=part.states,
        since_us=since_us,
        until_us=until_us,
    )
    columns = _columns(SystemClock().now_us)
    table = list_table.ListTable(columns, lambda line: str(line.position), output_format)
    if source is not None:
        served = partial(source, _path(part, query), list[PreemptionLine], most=LINES_MAX + 1)
        if watch:
            ServiceList(source, served, table).watch(
                lambda line: line.preemption, lambda line: line
            )
            return
        lines: Sequence[PreemptionLine] = served()
        more, lines = len(lines) > LINES_MAX, lines[:LINES_MAX]
    else:
        page = place.ask(partial(_read_logged, query))
        lines, more = page.lines, page.more
    if more:
        complain(f"cut off after {len(lines)} preemptions; continue with --since")
    if output_format.form is not list_table.ListForm.table or not (victim or preemptor):
        table.print(lines, empty="No preemptions match.")
        return
    if not lines:
        console().print("No preemptions match.")
    for line in table.sorted(lines):
        if victim:
            console(wrap=False).print(line.explanation)
            console().print()
        _print(line)


async def _read_logged(query: PreemptionQuery, opened: Store) -> Preemptions:
    """Return the preemptions of a query whose names may have no namespace."""
    victim = query.victim
    if victim and "/" not in victim:
        victim = await victim_of_name(opened.audit, victim)
    preemptor = await gang_of_name(opened.audit, query.preemptor)
    return await read(opened.audit, replace(query, victim=victim, preemptor=preemptor))


def _path(part: list_options.Listed, query: PreemptionQuery) -> str:
    names = {"victim": query.victim, "preemptor": query.preemptor}
    return part.path(
        "/v1/preemptions", **names, **list_options.times(query.since_us, query.until_us)
    )


def _columns(now_us: Callable[[], int]) -> tuple[list_table.Column[PreemptionLine], ...]:
    return (
        list_table.number_column("position", lambda line: line.position),
        list_table.time_column("planned", lambda line: line.planned),
        list_table.age_column("age", lambda line: micros_of(line.planned), now_us),
        list_table.Column(title="preemptor", text=lambda line: spaced(line.preemptor)),
        list_table.number_column("priority", lambda line: line.priority),
        list_table.Column(title="outcome", text=lambda line: line.outcome, colored=True),
        list_table.Column(
            title="took",
            text=lambda line: duration_text(line.duration_ms / 1000) if line.duration_ms else "",
            key=lambda line: line.duration_ms or None,
        ),
        list_table.time_column("ended", lambda line: line.ended, wide=True),
        list_table.number_column("placed", lambda line: line.placed, wide=True),
        list_table.Column(
            title="proved", text=lambda line: "yes" if line.proved else "no", wide=True
        ),
        list_table.Column(title="reason", text=lambda line: line.reason, wide=True),
        list_table.Column(title="in vain", text=lambda line: line.in_vain, wide=True),
        list_table.Column(
            title="lost",
            text=lambda line: gpu_time_text(_lost_min(line)) if _lost_min(line) else "",
            key=_lost_min,
        ),
        list_table.Column(
            title="gone",
            text=lambda line: f"{sum(_pods(line))}/{len(_pods(line))}",
            key=lambda line: sum(_pods(line)),
        ),
        list_table.Column(title="victims", text=_victims),
    )


def _pods(line: PreemptionLine) -> list[bool]:
    """Return of each pod that was to be evicted whether it is gone."""
    return [bool(pod.gone) for unit in line.victims for pod in unit.pods]


def _lost_min(line: PreemptionLine) -> int:
    return sum(unit.lost_min for unit in line.victims if not unit.spared)


def _victims(line: PreemptionLine) -> str:
    return join_names([spaced(unit.unit) for unit in line.victims], VICTIMS_MAX)


def _print(line: PreemptionLine) -> None:
    console().print(
        f"{list_table.clock_text(line.planned)} UTC  {line.preemptor} (priority {line.priority}): {_end(line)}"
    )
    rows = [
        [unit.unit, str(unit.priority), pod.pod, pod.node, _gone(unit, pod.gone), pod.via]
        for unit in line.victims
        for pod in unit.pods
    ]
    no_victims = "  no pod was evicted" + (
        f"; reservations of {', '.join(line.superseded)} were released" if line.superseded else ""
    )
    print_table(["unit", "priority", "pod", "node", "gone (UTC)", "via"], rows, empty=no_victims)
    for unit in line.victims:
        if unit.not_reprieved_reason:
            console().print(f"  {unit.unit} is not reprieved: {unit.not_reprieved_reason}")
    console().print(f"  cost: {_cost(line.cost)}")
    for other in line.alternatives[:ALTERNATIVES_MAX]:
        console().print(f"  not {', '.join(other.units)} ({_cost(other.cost)}): {other.reason}")


def _end(line: PreemptionLine) -> str:
    if line.outcome == "completed":
        return f"completed after {line.duration_ms / 1000:.1f} s, {line.bound} bound{_vain(line)}"
    if line.outcome == "cancelled":
        message = f": {line.message}" if line.message else ""
        return f"cancelled ({line.reason}){message}{_vain(line)}"
    return "pending"


def _vain(line: PreemptionLine) -> str:
    return f"; in vain: {line.in_vain}" if line.in_vain else ""


def _gone(unit: UnitLine, gone_at: str) -> str:
    if unit.spared:
        return "spared"
    return gone_at[11:23] or "not yet"


def _cost(cost: dict[str, int]) -> str:
    """Return a cost as text, the most important part first."""
    from extender.core.planner.preempt.post_eviction_view import VictimCost

    order = {name: number for number, name in enumerate(VictimCost.__struct_fields__)}
    ordered = sorted(cost, key=lambda name: (order.get(name, len(order)), name))
    return ", ".join(_part(name, cost) for name in ordered) or "nothing"


def _part(name: str, cost: dict[str, int]) -> str:
    """Return one part of a cost as text; each priority is in `weight` with 2^31 added (`VictimCost`)."""
    match name:
        case "highest":
            return f"highest priority {cost[name]}"
        case "weight":
            return f"sum of priorities {cost[name] - PRIORITY_OFFSET * cost.get('units', 0)}"
        case "broken":
            return f"gangs broken {cost[name]}"
        case "lost_min":
            return f"lost {gpu_time_text(cost[name])}"
        case "age_s":
            return f"age {cost[name]} s"
        case _:
            return f"{name.replace('_', ' ')} {cost[name]}"
