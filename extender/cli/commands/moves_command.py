"""`make-room` and `drain`: which moves of running pods make room; with `--apply` a service makes them. `moves`: those that it makes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlencode

import msgspec
import typer
from msgspec import UNSET
from msgspec.structs import replace

from extender.cli.commands.plan_command import WITHIN_S, PlanOutput
from extender.cli.connection.service_client import ask_service, finder
from extender.cli.output.printing import Output, column_widths, complain, print_value, visible
from extender.core.model.errors import BadInput, merged_by_object
from extender.core.model.message_formatting import (
    counted,
    did_you_mean,
    duration_s,
    gpu_time_text,
    join_names,
)
from extender.queries.plan.plan_dto import BUDGET_MAX, MovesAnswer, MovesQuestion, MovesUnderWay

if TYPE_CHECKING:
    from extender.core.planner.moves.move_types import Move

ROWS_MAX = 200  # of a table
Table = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]  # title, headers, rows


class ClusterOptions(msgspec.Struct, frozen=True):
    """Options of a question: its cluster."""

    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster", help="The cluster: nodes, running pods, … File, folder or - ; repeatable."
        ),
    ] = None
    server: Annotated[str | None, typer.Option("--server", help="In place of --cluster: URL of a service, about its live cluster.")] = None  # fmt: skip


class MovesOptions(msgspec.Struct, frozen=True):
    """Options of a question: what stays, and what is done with the answer."""

    max_priority: Annotated[
        int | None, typer.Option("--max-priority", help="Pods of a higher priority stay.")
    ] = None
    max_age: Annotated[
        str, typer.Option("--max-age", help="Pods that run for longer stay, such as 36h.")
    ] = ""
    search_budget: Annotated[
        int,
        typer.Option(help="How many search nodes the answer may cost.", min=1, max=BUDGET_MAX),
    ] = 20_000
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Let the service make the moves, one after the other; members of gangs only.",
        ),
    ] = False
    output: Annotated[PlanOutput, typer.Option("-o", "--output", help="Form of the output; markdown: one page to review.")] = PlanOutput.table  # fmt: skip

    def limits(self) -> dict[str, Any]:
        """Return the fields of `MovesQuestion` that these options are."""
        seconds = duration_s(self.max_age) if self.max_age else None
        if self.max_age and not seconds:
            raise BadInput(f"--max-age {self.max_age}: write a number above 0 and s, m, h or d, such as 36h")  # fmt: skip
        return {
            "max_priority": UNSET if self.max_priority is None else self.max_priority,
            "max_age_s": seconds or 0,
            "search_budget": self.search_budget,
        }


def make_room(
    *,
    target: Annotated[str, typer.Option("--for", metavar="FILE|NAMESPACE/GANG", help="A file with the tree to place, or the name of one that waits.")] = "",
    free: Annotated[str, typer.Option("--free", metavar="KEY=N", help="Free so many whole domains of a node label.")] = "",
    place: ClusterOptions,
    budget: Annotated[int, typer.Option("--budget", help="So many moves at most; 0: any number.", min=0)] = 0,
    options: MovesOptions,
) -> None:  # fmt: skip
    """Find the fewest moves of running pods after which a tree fits, or whole domains are free. Exit 0 only when there are such.

    No gang falls below its minimum or leaves its required domain at any step, and each pod has its place before it leaves.
    """
    if bool(target) == bool(free):
        raise BadInput("give either --for FILE|NAMESPACE/GANG or --free KEY=N")
    is_file = bool(target) and (target == "-" or os.path.exists(target))  # noqa: PTH110 -- False for a text that is no path
    if target and not is_file and target.count("/") != 1:
        raise BadInput(f"--for {target}: there is no such file, and NAMESPACE/GANG has one slash")
    asked = MovesQuestion(free=free, budget=budget, **options.limits())
    objects = ((target,), "") if is_file else ((), target)
    _finish(_answered(place, asked, options.apply, *objects), options.output)


def drain(
    *,
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE|KEY=VALUE]...", help="Nodes by name, or by a label.")] = None,
    announced: Annotated[bool, typer.Option("--announced", help="Nodes that are cordoned, or that have a taint by which an operator announces a drain.")] = False,
    by: Annotated[str, typer.Option("--by", help="What ends by this time need not move: 4h from now, or RFC 3339 with offset.")] = "",
    place: ClusterOptions,
    options: MovesOptions,
) -> None:  # fmt: skip
    """Find which pods of some nodes can move elsewhere and in which order, what stays, and which gangs would break.

    Exit 0 only when all can move; static and DaemonSet pods do not count.
    """
    if not (nodes or announced):
        raise BadInput("give NODE or KEY=VALUE, or --announced")
    asked = MovesQuestion(
        drain=tuple(nodes or ()), announced=announced, by=_time(by), **options.limits()
    )
    _finish(_answered(place, asked, options.apply), options.output)


class MovesAction(Enum):
    """What `moves` does."""

    show = "show"
    pause = "pause"
    resume = "resume"
    stop = "stop"


def moves(
    action: Annotated[MovesAction, typer.Argument(help="pause: evict no further pod; stop: end them, and hold nothing for what is left.")] = MovesAction.show,
    server: Annotated[str | None, typer.Option("--server", help="URL of the service that leads.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")] = Output.table,
) -> None:  # fmt: skip
    """Show, pause, resume or stop the moves that the service makes (`make-room --apply`, `drain --apply`)."""
    path, body = "/v1/moves", None
    if action is not MovesAction.show:
        path, body = "/v1/moves/control", msgspec.json.encode({"action": action.value})
    answer = ask_service(server, path, MovesUnderWay, body=body)
    if output is not Output.table:
        print_value(answer, output)
        return
    sys.stdout.write(visible("\n".join(under_way_lines(answer)) + "\n"))


def under_way_lines(answer: MovesUnderWay) -> Iterator[str]:
    """Yield the moves that a service makes, for a terminal."""
    if not answer.plan:
        yield answer.state
        return
    by = f", asked for by {answer.by}" if answer.by else ""
    yield f"{answer.question}: {answer.made} of {counted(len(answer.moves), 'move')} made; since {answer.since}{by}"
    yield f"  {answer.state}"
    for number, move in enumerate(answer.moves, 1):
        sign = "made" if number <= answer.made else "now" if number == answer.made + 1 else ""
        yield f"  {number:>3}  {move.pod}  {move.source} -> {move.target}  {sign}".rstrip()


def _time(text: str) -> str:
    """Return a time after now in RFC 3339; empty for an empty text."""
    if not text:
        return ""
    from extender.core.model.message_formatting import parse_time, rfc3339
    from extender.runtime.system_clock import SystemClock

    now_us = SystemClock().now_us()
    after_s = duration_s(text)
    try:
        at_us = parse_time(text, "--by") if after_s is None else now_us + after_s * 1_000_000
    except BadInput as error:
        raise BadInput(f"{error}, nor a span from now such as 4h") from None
    if at_us <= now_us:
        raise BadInput(f"--by {text}: is not after now; write when the nodes must be empty")
    return rfc3339(at_us)


def _answered(
    place: ClusterOptions,
    asked: MovesQuestion,
    apply: bool,
    files: tuple[str, ...] = (),
    gang: str = "",
) -> MovesAnswer:
    """Return the answer to a question about the tree of some files, a gang by NAMESPACE/NAME, or nodes."""
    cluster, server = place.cluster, place.server
    asks_service = bool(server) or finder().chosen
    if apply and (cluster or not asks_service):
        raise BadInput(
            "--apply: moves are made by a service, on its cluster; give --server URL (or --context NAME)"
            + (", and leave --cluster out" if cluster else "")
        )
    if bool(cluster) == asks_service:
        raise BadInput("give either --cluster FILE or --server URL (or --context NAME)")
    if not asks_service:
        return _of_files(cluster or [], asked, files, gang)
    from extender.cluster.manifests.yaml_reader import files_of, read_file

    names = files_of(files)
    objects = tuple(d.value for name in names for d in read_file(name) if d.value is not None)
    _check_objects(files, any_object=bool(objects))
    groups = _groups_of_service(server, gang) if gang else ()
    # only what is asked for: an older service does not know all of it
    body = msgspec.json.encode(replace(asked, workload=objects, groups=groups))
    path = "/v1/moves/apply" if apply else "/v1/moves"
    return ask_service(server, path, MovesAnswer, body=body, within_s=WITHIN_S)


def _check_objects(files: Sequence[str], *, any_object: bool) -> None:
    if files and not any_object:
        raise BadInput(
            f"--for {files[0]}: has no object; give the PodGroup, or the workload, to place"
        )


def _groups_of_service(server: str | None, gang: str) -> tuple[str, ...]:
    """Return the root group of a gang of the service, as Kind/namespace/name."""
    from extender.queries.state.state_dto import GangAt

    asked = urlencode({"namespace": gang.partition("/")[0]})
    gangs = ask_service(server, f"/v1/gangs?{asked}", list[GangAt])
    roots = tuple(f"{line.kind}/{line.gang}" for line in gangs if line.gang == gang)
    if not roots:
        hint = did_you_mean(gang, [line.gang for line in gangs], most=3)
        raise BadInput(f"--for {gang}: the service has no such gang{hint}")
    return roots


def _of_files(
    cluster: list[str], asked: MovesQuestion, files: tuple[str, ...], gang: str
) -> MovesAnswer:
    from extender.cluster.manifests.manifest_loader import load
    from extender.queries.plan.moves_query import answer_moves, moves_input
    from extender.queries.plan.plan_query import PlanInput
    from extender.runtime.system_clock import SystemClock

    manifest = load(cluster, files)
    view = manifest.world.view
    groups = frozenset(manifest.groups)
    _check_objects(files, any_object=bool(groups or manifest.pods or manifest.refused))
    if gang:
        groups = frozenset(key for key in view.groups if key.path == gang)
        if not groups:
            hint = did_you_mean(gang, [key.path for key in view.groups], most=3)
            raise BadInput(f"--for {gang}: the cluster has no such group{hint}")
    plan = PlanInput(
        groups=groups,
        pods=frozenset(manifest.pods),
        origins=manifest.origins,
        refused=manifest.refused,
    )
    answer = answer_moves(view, moves_input(asked, plan, SystemClock().now_us()))
    return replace(answer, warnings=(*manifest.warnings, *answer.warnings))


def _finish(answer: MovesAnswer, output: PlanOutput) -> NoReturn:
    for warning in merged_by_object(answer.warnings):
        complain(f"warning: {warning}")
    if output is PlanOutput.table:
        sys.stdout.write(visible(moves_text(answer)))
    elif output is PlanOutput.markdown:
        sys.stdout.write(visible(moves_markdown(answer)))
    else:
        print_value(answer, Output(output.value))
    raise typer.Exit(0 if answer.verdict in {"fits", "moves"} else 1)


# --- the answer for people --------------------------------------------------------------------------


def headline(answer: MovesAnswer) -> str:
    """Return the answer in one sentence."""
    moves = counted(len(answer.moves), "move")
    match answer.verdict:
        case "fits":
            return f"{answer.question}: no move is needed"
        case "moves":
            bound = f"{answer.least} at least" if answer.least < len(answer.moves) else ""
            proof = f"proved: {bound or 'no fewer lead there'}"
            lost = f"; lost: {gpu_time_text(answer.lost_min)}" if answer.lost_min else ""
            return f"{answer.question}: {moves} ({proof}){lost}"
        case "impossible":
            if answer.stays or answer.unmoved:
                return f"{answer.question}: not all pods can move (proved); as far as possible: {moves}"
            return f"{answer.question}: impossible (proved)"
        case "unknown":
            return f"{answer.question}: not decided"


def _tables(answer: MovesAnswer) -> Iterator[Table]:
    lost = ("lost",) if answer.lost_min else ()
    yield (
        "Moves, one after the other",
        ("#", "pod", "from", "to", "priority", *lost, "group"),
        [
            (str(n), m.pod, m.source, m.target, str(m.priority), *_lost(m, lost), m.group)
            for n, m in enumerate(answer.moves, 1)
        ],
    )
    yield (
        "Then placed",
        ("pod", "group", "node"),
        [(line.pod, line.group, line.node) for line in answer.assignments],
    )
    yield (
        "Ends in time, and need not move",
        ("gang or pod", "pods", "ends at the latest"),
        [(line.name, str(line.pods), line.ends) for line in answer.ends],
    )
    yield (
        "Gangs that break when the rest is evicted",
        ("gang", "runs", "left", "minimum"),
        [(b.gang, str(b.running), str(b.left), str(b.minimum)) for b in answer.breaks],
    )
    yield ("No place elsewhere", ("pod",), [(pod,) for pod in answer.unmoved])
    yield (
        "Stays",
        ("pod", "node", "reason"),
        [(line.pod, line.node, line.reason) for line in answer.stays],
    )
    yield (
        "Nodes before and after",
        ("node", "resource", "allocatable", "free before", "free after"),
        [
            (n.node, n.resource, *map(str, (n.allocatable, n.free_before, n.free_after)))
            for n in answer.nodes
        ],
    )


def _lost(move: Move, shown: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cell about the work that a move loses; none where the table has no such column."""
    return (gpu_time_text(move.lost_min) if move.lost_min else "-",) if shown else ()


def _notes(answer: MovesAnswer) -> Iterator[str]:
    if answer.plan:
        yield "the service makes these moves now: `gang-extender moves` shows, pauses and stops them"
    yield from answer.reasons
    if answer.emptied:
        yield f"empty then: {join_names(answer.emptied)}"
    if not answer.proved:
        yield "the search was cut short; a larger --search-budget may give another answer"


def moves_text(answer: MovesAnswer) -> str:
    """Return the answer for a terminal; ends with a newline."""
    lines = [headline(answer), *(f"  {note}" for note in _notes(answer))]
    for title, headers, rows in _tables(answer):
        if not rows:
            continue
        shown = [headers, *rows[:ROWS_MAX]]
        widths = column_widths(shown)
        lines += ["", f"{title}:"]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
        if len(rows) > ROWS_MAX:
            lines.append(f"  and {len(rows) - ROWS_MAX} more; -o json has all")
    return "\n".join(lines) + "\n"


def moves_markdown(answer: MovesAnswer) -> str:
    """Return the answer as a page; ends with a newline."""
    from extender.cli.output.plan_text import bullets, escaped, table

    lines = [f"## {escaped(headline(answer))}", ""]
    lines += bullets((*_notes(answer), *answer.warnings))
    for title, headers, rows in _tables(answer):
        if rows:
            lines += ["", f"### {title}", "", *table(headers, rows, ROWS_MAX)]
    return "\n".join(lines) + "\n"
