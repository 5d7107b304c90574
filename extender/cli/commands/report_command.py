"""`report`: reports for operators as tables, from the service or a database."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import msgspec
import typer
from msgspec.structs import replace

from extender.cli.commands.history_commands import LogPlace, listed_gang
from extender.cli.connection.service_client import Ask, ask_service
from extender.cli.options.list_options import Listed, Since, Until, Where, span_us, times
from extender.cli.output.list_table import Column, ListForm, ListFormat, ListTable, clock_text
from extender.cli.output.printing import console, print_value
from extender.cli.output.usage_errors import options_named
from extender.core.model.errors import BadInput
from extender.core.model.ids import Position
from extender.core.model.message_formatting import duration_text, join_names, rfc3339
from extender.core.model.nodes import takes_pods
from extender.core.model.pods import is_extended
from extender.queries.explain.explanation import Explanation
from extender.queries.log.gang_history import gang_of_name
from extender.queries.log.reports import (
    LIMIT,
    LIMIT_MAX,
    LIVE_REPORTS,
    REPORTS,
    Report,
    ReportLine,
    Value,
    catalogue,
    check_report_query,
    unknown_report,
)
from extender.queries.log.reports import report as read_report
from extender.queries.state.state_dto import GangAt
from extender.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from extender.composition import Store
    from extender.queries.plan.plan_dto import MovesAnswer
    from extender.queries.state.node_inventory import NodeInventoryReport, NodeLine

DURATIONS = ("seconds", "longest")  # columns of seconds, written as durations
HEADERS = {"seconds": "duration"}
TIMES = ("at", "since", "until", "first", "last", "hour")  # columns of times
WITHIN_S = 90.0  # a plan is made for each gang
Row = dict[str, Value]
_KINDS = {**REPORTS, **LIVE_REPORTS}
_NOTHING = Explanation(kind="", name="", answer="")  # of a gang that was deleted meanwhile


def report(
    *,
    name: Annotated[str, typer.Argument(help="Name of the report; without it, list all reports.")] = "",
    since: Since = None,
    until: Until = None,
    where: Where,
    gang: Annotated[str, typer.Option(help="Only this root group; NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.")] = "",
    limit: Annotated[int, typer.Option(help="Maximum number of rows.", min=1, max=LIMIT_MAX)] = LIMIT,
    output_format: ListFormat,
    place: LogPlace,
) -> None:  # fmt: skip
    """Show a report: waiting times, preemptions, terminations and others; without a name, list them."""
    if not name:
        ListTable(_CATALOGUE, lambda line: line.name, output_format).print(
            catalogue(_KINDS), empty=""
        )
        return
    if name not in _KINDS:
        raise BadInput(unknown_report(name, _KINDS))
    part = where.part()
    if name in LIVE_REPORTS:
        if since or until:
            raise BadInput(f"report {name} is about the cluster now: leave out --since and --until")
        service = partial(ask_service, place.server, within_s=WITHIN_S)
        if name == "fragmentation":
            from extender.queries.plan.plan_dto import MovesAnswer
            from extender.queries.state.node_inventory import NodeInventoryReport

            def free(key: str, number: int) -> MovesAnswer:
                asked = msgspec.json.encode({"free": f"{key}={number}"})
                return service("/v1/moves", MovesAnswer, body=asked)

            rows = list(fragmentation_rows(service("/v1/nodes", NodeInventoryReport), free))
            _print(_live(name, rows[:limit], more=len(rows) > limit), output_format)
        else:
            _print(_placement(service, part, gang, limit), output_format)
        return
    since_us, until_us = span_us(since, until)
    source = place.source()
    with options_named("since", "namespace", "gang"):
        query = check_report_query(
            name,
            now_us=SystemClock().now_us(),
            since_us=since_us,
            until_us=until_us,
            namespace=part.namespace,
            gang=listed_gang(gang, part, source),
            limit=limit,
        )
    if source is None:

        async def question(opened: Store) -> Report:
            named = await gang_of_name(opened.audit, query.gang)
            return await read_report(opened.reports, opened.audit, replace(query, gang=named))

        answer = place.ask(question)
    else:
        span = times(query.since_us, query.until_us if until else None)
        path = part.path(f"/v1/reports/{query.name}", gang=query.gang, limit=str(limit), **span)
        answer = source(path, Report)
    _print(answer, output_format)


def _placement(service: Ask, part: Listed, gang: str, limit: int) -> Report:
    """Return the report `placement`: a question about each gang that is in more domains than it prefers."""
    only = listed_gang(gang, part, service)
    rows: list[Row] = []
    for line in service(part.path("/v1/gangs"), list[GangAt]):
        if only not in ("", line.gang) or not (line.reserved or line.bound):
            continue
        wishes = [wish for group in line.groups for wish in group.wishes]
        apart = [wish for wish in wishes if wish.kind == "preferred" and wish.value > 1]
        if not apart:
            continue
        if len(rows) >= limit:
            return _live("placement", rows[:limit], more=True)
        query = urlencode({"name": f"{line.kind}/{line.gang}"})
        explanation = service(f"/v1/explain?{query}", Explanation, absent=_NOTHING)
        free = {
            (better.group, better.key): join_names(better.domains) or better.text
            for better in explanation.better
        }
        rows += [
            {
                "gang": line.gang,
                "gang_uid": line.uid,
                "group": wish.group,
                "level": wish.key,
                "domains": wish.value,
                "best": wish.best,
                "proved": "yes" if wish.proved else "no",
                "free_now": free.get((wish.group, wish.key), ""),
            }
            for wish in apart
        ]
    return _live("placement", rows[:limit], more=len(rows) > limit)


def fragmentation_rows(
    report: NodeInventoryReport, free: Callable[[str, int], MovesAnswer]
) -> Iterator[Row]:
    """Yield the rows of the report `fragmentation`: shapes of 1, 2, 4, ... pods, by resource and level.

    Args:
        free: Returns which moves free so many whole domains of a level.
    """
    nodes = [n for n in report.nodes if not n.deleting and takes_pods(n)]
    won = {key: _one_more(nodes, key, free) for key in report.topology_keys}
    offered = {name for n in nodes for name, amount in n.allocatable.items() if amount}
    for resource in sorted(filter(is_extended, offered)) or ["cpu"]:
        size = max((n.allocatable.get(resource, 0) for n in nodes), default=0)
        for level in ("", *report.topology_keys):
            domains: dict[str, list[int]] = {}  # what is free on the nodes of each
            for n in nodes:
                value = n.labels.get(level) if level else n.node
                if value is not None and resource in n.allocatable:
                    used = n.ordinary.get(resource, 0) + n.members.get(resource, 0)
                    domains.setdefault(value, []).append(max(n.allocatable[resource] - used, 0))
            if not domains or not size:
                continue
            best = min(domains, key=lambda value: (-sum(domains[value]), value))
            # of a node pods of all sizes, of a domain so many pods of a whole node each
            most = max(map(len, domains.values())) if level else size
            powers = [1 << power for power in range(most.bit_length())]
            shapes = [(p, size) if level else (1, p) for p in powers]
            for pods, amount in shapes:
                yield {
                    "resource": resource,
                    "level": level or "node",
                    "shape": f"{pods} x {amount}",
                    "fits": sum(
                        sum(f // amount for f in free) // pods for free in domains.values()
                    ),
                    "domain": best,
                    "free": sum(domains[best]),
                    "total": sum(map(sum, domains.values())),
                    "whole": won[level][0] if level else None,
                    "moves": won[level][1] if level else "",
                }


def _one_more(
    nodes: Sequence[NodeLine], key: str, free: Callable[[str, int], MovesAnswer]
) -> tuple[int, str]:
    """Return how many whole domains of a level are free, and how many moves free one more, or why none do."""
    number = len({n.labels[key] for n in nodes if key in n.labels})
    counts = range(1, number + 1)
    whole = bisect_left(counts, True, key=lambda count: free(key, count).verdict != "fits")
    if whole == number:
        return whole, ""
    answer = free(key, whole + 1)
    if answer.verdict != "moves":
        return whole, "impossible" if answer.verdict == "impossible" else "not decided"
    most = len(answer.moves)
    return whole, str(most) if answer.least == most else f"{answer.least} to {most}"


def _live(name: str, rows: list[Row], *, more: bool) -> Report:
    kind = LIVE_REPORTS[name]
    now = rfc3339(SystemClock().now_us())
    return Report(
        report=name,
        description=kind.description,
        since=now,
        until=now,
        position=Position(0),
        limitations=kind.limitations,
        more=more,
        rows=rows,
    )


def _print(answer: Report, output_format: ListFormat) -> None:
    rows = answer.rows
    names = sorted(_KINDS[answer.report].columns, key=lambda name: name == "reason")  # at last
    # the UID adds nothing when each name has one
    unique = len({row.get("gang") for row in rows}) == len({row.get("gang_uid") for row in rows})
    table = ListTable([_column(name, wide=unique and name == "gang_uid") for name in names],
                      lambda row: str(row[names[0]]), output_format)  # fmt: skip
    if not output_format.is_table and output_format.form is not ListForm.name:
        print_value(answer, output_format.form)
        return
    table.print(
        rows, empty="No rows." if answer.report in LIVE_REPORTS else "No rows in this span."
    )
    if output_format.form is ListForm.name or output_format.no_headers:
        return
    if answer.more:
        console().print(f"There are more than these {len(rows)} rows; see --limit.")
    if answer.report in LIVE_REPORTS:
        console().print(answer.limitations)
        return
    span = f"{answer.since[:19]}Z to {answer.until[:19]}Z"
    console().print(f"{span}, log up to position {answer.position}. {answer.limitations}")


def _column(name: str, *, wide: bool) -> Column[Row]:
    """Return a column of a report; it is sorted by the value of its rows."""
    return Column(
        title=HEADERS.get(name, name).replace("_", " "),
        text=lambda row: _cell(name, row[name]),
        key=lambda row: row[name],
        unit="UTC" if name in TIMES else "",
        wide=wide,
        colored=name == "state",
    )


def _cell(name: str, value: Value) -> str:
    if value is None:
        return ""
    if name in DURATIONS:
        return duration_text(float(value))
    if isinstance(value, float):
        return f"{value:,.2f}"
    if name in TIMES:
        return clock_text(str(value))
    return str(value)


_CATALOGUE: tuple[Column[ReportLine], ...] = (
    Column(title="report", text=lambda line: line.name),
    Column(title="columns", text=lambda line: ", ".join(line.columns), wide=True),
    Column(title="description", text=lambda line: line.description),
)
