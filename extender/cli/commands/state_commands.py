"""`state`: the state at a point in time, from the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from extender.cli.commands.history_commands import Folder, Form, Url, ask
from extender.cli.output.printing import Output, console, print_table, print_value
from extender.cli.output.usage_errors import options_named
from extender.core.model.wording import amounts_text
from extender.queries.state.state_dto import (
    GangBrief,
    GangChange,
    MemberChange,
    MemberPlacement,
    NodeAt,
    Scope,
    scope_of,
)

if TYPE_CHECKING:
    from extender.queries.state.historical_state import PointInTime, StateAt, StateDiff


def state(  # noqa: PLR0917 -- typer reads options from the signature
    at: Annotated[
        str,
        typer.Option(
            "--at", help="RFC 3339 time with offset, or a position; default: the end of the log."
        ),
    ] = "",
    node: Annotated[str, typer.Option(help="Only gangs on this node.")] = "",
    domain: Annotated[
        str, typer.Option(help="Only gangs on nodes with this topology label, KEY=VALUE.")
    ] = "",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only root groups of this namespace.")
    ] = "",
    diff: Annotated[
        str | None, typer.Option(help="Another time or position: show the changes between the two.")
    ] = None,
    database_url: Url = None,
    data_dir: Folder = None,
    output: Form = Output.table,
) -> None:
    """Show reservations, bound members and pending trees at a time or position."""
    with options_named("at", "diff", "domain"):
        _show(at, diff, scope_of(node, domain, namespace), (database_url, data_dir), output)


def _show(
    at: str,
    diff: str | None,
    scope: Scope,
    place: tuple[str | None, str | None],
    output: Output,
) -> None:
    """Print a state, or the changes between two; `place` has the URL and the folder of the database."""
    if diff is not None:
        change = ask(*place, lambda s: s.as_of.difference(at, diff, scope))
        if output is Output.table:
            _print_change(change)
        else:
            print_value(change, output)
        return
    found = ask(*place, lambda s: s.as_of.state(at, scope))
    if output is Output.table:
        _print_state(found)
    else:
        print_value(found, output)


def _print_state(found: StateAt) -> None:
    totals = found.totals
    print(
        f"{_moment(found.as_of)}: gangs {totals.gangs} (pending {totals.pending}), members reserved "
        f"{totals.reserved}, bound {totals.bound}, nodes {totals.nodes}"
    )
    print(f"the log ends at position {found.log.position}, {found.log.time}")
    print()
    print_table(
        ("gang", "kind", "priority", "state", "reserved", "bound", "reason"),
        (
            (
                gang.gang,
                gang.kind,
                str(gang.priority),
                gang.state,
                str(gang.reserved),
                str(gang.bound),
                gang.reasons[0] if gang.reasons else "",
            )
            for gang in found.gangs
        ),
        empty="No gangs there.",
    )
    if found.nodes:
        print()
        _print_nodes(found.nodes, whole=bool(found.scope.node))
    for preemption in found.preemptions:
        print()
        print(
            f"preemption for {preemption.preemptor} since {preemption.planned}: {preemption.evicted} victims gone, "
            f"{len(preemption.victims)} to go"
        )
    _notes(found.limitations)


def _print_nodes(nodes: Sequence[NodeAt], *, whole: bool) -> None:
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


def _print_change(change: StateDiff) -> None:
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
            ("pod", "gang", "before", "after"),
            (_moved(line) for line in change.members),
            empty="",
        )
    _notes(change.limitations)


def _changed(line: GangChange) -> tuple[str, ...]:
    reason = line.after.reasons[0] if line.after is not None and line.after.reasons else ""
    return line.gang, line.change, _brief(line.before), _brief(line.after), reason


def _moved(line: MemberChange) -> tuple[str, ...]:
    return line.pod, line.gang, _place(line.before), _place(line.after)


def _brief(brief: GangBrief | None) -> str:
    if brief is None:
        return "-"
    return f"{brief.state}, {brief.reserved} reserved, {brief.bound} bound"


def _place(place: MemberPlacement | None) -> str:
    return "-" if place is None else f"{place.state} on {place.node}"


def _moment(moment: PointInTime) -> str:
    requested = f" (asked for {moment.requested})" if moment.requested else ""
    return f"position {moment.position}, {moment.time}{requested}"


def _notes(lines: Iterable[str]) -> None:
    print()
    for line in lines:
        console().print(line)
