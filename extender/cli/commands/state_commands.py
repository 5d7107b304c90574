"""`state`: the state at a point in time, from the service or a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

import typer
from msgspec.structs import replace

from extender.cli.commands.gang_commands import gang_columns, gang_name, micros_of
from extender.cli.commands.history_commands import LogPlace
from extender.cli.connection.service_client import Ask, ServiceList
from extender.cli.options.list_options import States, Watch, Where, past_text
from extender.cli.output.list_table import ListForm, ListFormat, ListTable
from extender.cli.output.printing import console, print_table, print_value
from extender.cli.output.usage_errors import options_named
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import amounts_text, counted
from extender.queries.state import state_dto
from extender.queries.state.gang_selection import GANG_STATES
from extender.queries.state.historical_state import PointInTime, StateAt, StateDiff
from extender.runtime.system_clock import SystemClock


def state(
    *,
    at: Annotated[str, typer.Option("--at", help="A position, or a time as for --since of `events`; default: the end of the log.")] = "",
    node: Annotated[str, typer.Option(help="Only gangs on this node.")] = "",
    domain: Annotated[str, typer.Option(help="Only gangs on nodes with this topology label, KEY=VALUE.")] = "",
    where: Where,
    states: States = None,
    diff: Annotated[str | None, typer.Option(help="Another time or position: show the changes between the two.")] = None,
    watch: Watch = False,
    output_format: ListFormat,
    place: LogPlace,
) -> None:  # fmt: skip
    """Show reservations, bound members and pending trees at a time or position."""
    part, sort_by, output = (
        where.part(states, GANG_STATES),
        output_format.sort_by,
        output_format.form,
    )
    if watch and (at or diff is not None):
        raise BadInput(f"--{'at' if at else 'diff'}: not together with --watch")
    if diff is not None and (sort_by or output in (ListForm.wide, ListForm.name)):
        option = "--sort-by" if sort_by else f"--output {output}"
        raise BadInput(f"{option}: not together with --diff")
    at = past_text(at, "--at")
    with options_named("at", "diff", "domain"):
        scope = state_dto.scope_of(node, domain, part.namespace, part.states)
        path = partial(part.path, "/v1/state", at=at, node=node, domain=domain)
        source = place.source(watch=watch)
        if watch and source is not None:
            _watch(source, path(), output_format)
        elif diff is not None:
            other = past_text(diff, "--diff")
            change = (
                place.ask(lambda s: s.as_of.difference(at, other, scope))
                if source is None
                else source(path(diff=other), StateDiff)
            )
            _print_change(change, output_format)
        else:
            state_at = (
                place.ask(lambda s: s.as_of.state(at, scope))
                if source is None
                else source(path(), StateAt)
            )
            _print_state(state_at, output_format)


def _watch(source: Ask, path: str, output_format: ListFormat) -> None:
    table = ListTable(gang_columns(SystemClock().now_us), gang_name, output_format)
    ServiceList(source, lambda: source(path, StateAt).gangs, table).watch(
        lambda line: line.uid, lambda line: replace(line, state="removed")
    )


def _print_state(state_at: StateAt, output_format: ListFormat) -> None:
    """Print a state; ages count up to its time, or up to now if it is that of the end of the log."""
    past_us = (
        None if state_at.as_of.position == state_at.log.position else micros_of(state_at.as_of.time)
    )
    clock = SystemClock()
    table = ListTable(
        gang_columns(lambda: clock.now_us() if past_us is None else past_us),
        gang_name,
        output_format,
    )
    if output_format.form is ListForm.name:
        table.print(state_at.gangs, empty="")
        return
    if not output_format.is_table:
        print_value(state_at, output_format.form)
        return
    totals = state_at.totals
    if not output_format.no_headers:
        print(
            f"{_moment(state_at.as_of)}: gangs {totals.gangs} (pending {totals.pending}), members reserved "
            f"{totals.reserved}, bound {totals.bound}, nodes {totals.nodes}"
        )
        print(f"the log ends at position {state_at.log.position}, {state_at.log.time}")
        print()
    if state_at.gangs or output_format.no_headers:
        table.print(state_at.gangs, empty="No gangs there.")
        if output_format.no_headers:
            return
    else:
        print("No gangs there.")
    if state_at.nodes:
        print()
        _print_nodes(state_at.nodes, whole=bool(state_at.scope.node))
    for preemption in state_at.preemptions:
        print()
        print(
            f"preemption for {preemption.preemptor} since {preemption.planned}: {counted(preemption.evicted, 'victim')} gone, "
            f"{len(preemption.victims)} to go"
        )
    for hold in state_at.capacity_holds:
        nodes = {place.node for place in hold.places}
        print()
        print(
            f"capacity held for {hold.gang} since {hold.held}, until {hold.until} at the latest: "
            f"{counted(len(hold.places), 'pod')} on {counted(len(nodes), 'node')}"
        )
    _notes(state_at.limitations)


def _print_nodes(nodes: Sequence[state_dto.NodeAt], *, whole: bool) -> None:
    if whole:
        print_table(
            ("node", "gang", "pod", "state", "requests"),
            (
                (node.node, pod.gang, pod.pod, pod.state, amounts_text(pod.requests))
                for node in nodes
                for pod in node.pods
            ),
            empty="",
        )
        return
    print_table(
        ("node", "reserved", "bound", "reserved requests", "bound requests"),
        (
            (
                node.node,
                str(sum(p.state == "reserved" for p in node.pods)),
                str(sum(p.state == "bound" for p in node.pods)),
                amounts_text(node.reserved),
                amounts_text(node.bound),
            )
            for node in nodes
        ),
        empty="",
    )


def _print_change(change: StateDiff, output_format: ListFormat) -> None:
    if not output_format.is_table:
        print_value(change, output_format.form)
        return
    print(f"from {_moment(change.begin)}")
    print(f"to   {_moment(change.end)}")
    print()
    print_table(
        ("gang", "change", "before", "after", "reason"),
        (_changed(line) for line in change.gangs),
        empty="No gang changed.",
    )
    if change.members:
        print()
        print_table(
            ("pod", "gang", "before", "after"), (_moved(line) for line in change.members), empty=""
        )
    _notes(change.limitations)


def _changed(line: state_dto.GangChange) -> tuple[str, ...]:
    reason = line.after.reasons[0] if line.after is not None and line.after.reasons else ""
    return line.gang, line.change, _brief(line.before), _brief(line.after), reason


def _moved(line: state_dto.MemberChange) -> tuple[str, ...]:
    return line.pod, line.gang, _place(line.before), _place(line.after)


def _brief(brief: state_dto.GangBrief | None) -> str:
    if brief is None:
        return "-"
    return f"{brief.state}, {brief.reserved} reserved, {brief.bound} bound"


def _place(place: state_dto.MemberPlacement | None) -> str:
    return "-" if place is None else f"{place.state} on {place.node}"


def _moment(moment: PointInTime) -> str:
    requested = f" (asked for {moment.requested})" if moment.requested else ""
    return f"position {moment.position}, {moment.time}{requested}"


def _notes(lines: Iterable[str]) -> None:
    print()
    for line in lines:
        console().print(line)
