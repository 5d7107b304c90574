"""`preemptions`: preemptors, victims, reasons and outcomes, from the database."""

from __future__ import annotations

from typing import Annotated

import typer

from extender.cli.commands.gang_commands import root_path
from extender.cli.commands.history_commands import Folder, Form, Url, ask
from extender.cli.output.printing import Output, complain, console, print_table, print_value
from extender.queries.log.event_dto import parse_time
from extender.queries.log.preemption_line import PreemptionLine, UnitLine
from extender.queries.log.preemption_report import PreemptionQuery
from extender.queries.log.preemption_report import preemptions as read

PRIORITY_OFFSET = 2**31
ALTERNATIVES_MAX = 3  # printed per preemption; JSON has all


def preemptions(
    victim: Annotated[
        str, typer.Option(help="Only preemptions of this pod or group, [NAMESPACE/]NAME.")
    ] = "",
    preemptor: Annotated[
        str, typer.Option(help="Only preemptions for this root group or pod, [NAMESPACE/]NAME.")
    ] = "",
    since: Annotated[str | None, typer.Option(help="RFC 3339 time with offset.")] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace of a NAME without one.")
    ] = "default",
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Show preemptions: preemptor, victims, cost, alternatives, when each victim was gone, and the outcome."""
    wanted = PreemptionQuery(
        victim=root_path(victim, namespace) if victim else "",
        preemptor=root_path(preemptor, namespace) if preemptor else "",
        since_us=parse_time(since, "--since") if since else None,
    )
    found = ask(database_url, data_dir, lambda opened: read(opened.audit, wanted))
    lines = found.lines
    if found.more:
        complain(f"cut off after {len(lines)} preemptions; continue with --since")
    if output is not Output.table:
        print_value(lines, output)
        return
    if not lines:
        console().print("No preemptions match.")
    for line in lines:
        if victim:
            console(wrap=False).print(line.explanation)
            console().print()
        _print(line)


def _print(line: PreemptionLine) -> None:
    console().print(
        f"{line.planned[:19].replace('T', ' ')}  {line.preemptor} (priority {line.priority}): {_end(line)}"
    )
    rows = [
        [unit.unit, str(unit.priority), pod.pod, pod.node, _gone(unit, pod.gone), pod.via]
        for unit in line.victims
        for pod in unit.pods
    ]
    no_victims = "  no pod was evicted" + (
        f"; reservations of {', '.join(line.superseded)} were released" if line.superseded else ""
    )
    print_table(["unit", "priority", "pod", "node", "gone", "via"], rows, empty=no_victims)
    for unit in line.victims:
        if unit.not_reprieved_reason:
            console().print(f"  {unit.unit} is not reprieved: {unit.not_reprieved_reason}")
    console().print(f"  cost: {_cost(line.cost)}")
    for other in line.alternatives[:ALTERNATIVES_MAX]:
        console().print(f"  not {', '.join(other.units)} ({_cost(other.cost)}): {other.reason}")


def _end(line: PreemptionLine) -> str:
    if line.outcome == "completed":
        return f"completed after {line.duration_ms / 1000:.1f} s, {line.bound} bound"
    if line.outcome == "cancelled":
        return f"cancelled ({line.reason})" + (f": {line.message}" if line.message else "")
    return "pending"


def _gone(unit: UnitLine, gone: str) -> str:
    if unit.spared:
        return "spared"
    return gone[11:23] or "not yet"


def _cost(cost: dict[str, int]) -> str:
    """Return a cost as text, the most important part first."""
    from extender.core.planner.preempt.victim_cost import VictimCost

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
        case "age_s":
            return f"age {cost[name]} s"
        case _:
            return f"{name.replace('_', ' ')} {cost[name]}"
