"""`plan`: whether trees fit, and where, on a cluster from files or on that of a running service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.commands.gang_commands import ask_service
from extender.cli.output.printing import (
    Output,
    complain,
    console,
    print_table,
    print_value,
)
from extender.core.model.errors import BadInput
from extender.core.model.wording import counted

if TYPE_CHECKING:
    from extender.queries.plan.plan_query import GangVerdict, PlanAnswer, PlanReply

NODES_SHOWN = 8  # of a leaf; all of them are in -o json
WHEN_EMPTY = {
    "fits": "it fits when no other pod runs",
    "never": "it can never be placed on these nodes, also when no other pod runs",
    "unknown": "whether it fits when no other pod runs is not known: the search budget was used up",
}
SERVER_BUDGET_MAX = 200_000  # of `POST /v1/plan`
WITHIN_S = 90  # a service needs at most a minute for a plan


def plan(
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="The cluster: nodes, running pods, … File, folder or - ; repeatable.",
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--filename", help="Objects to plan. File, folder or - ; repeatable."),
    ] = None,
    all_pending: Annotated[
        bool,
        typer.Option("--all-pending", help="Plan also the pending trees of the cluster."),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(help="In place of --cluster: URL of a service, to plan on its live cluster."),
    ] = None,
    preemption: Annotated[
        bool,
        typer.Option(
            "--preemption/--no-preemption",
            help="Whether pods of lower priority may be evicted.",
        ),
    ] = True,
    search_budget: Annotated[
        int | None,
        typer.Option(
            help="How many search nodes the plan of one tree may cost; unset: GANG_EXTENDER_SEARCH_BUDGET, with --server 20000 (at most 200000 there).",
            min=1,
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output.")
    ] = Output.table,
) -> None:
    """Check whether trees of pod groups fit on a cluster, and where. Exit 0 only when all are placed.

    A workload (Job, JobSet, ...) in -f is planned as the tree that it becomes.
    """
    if bool(cluster) == bool(server):
        raise BadInput("give either --cluster FILE or --server URL")
    if server:
        if search_budget is not None and search_budget > SERVER_BUDGET_MAX:
            raise BadInput(
                f"--search-budget: {search_budget} is above {SERVER_BUDGET_MAX}, the maximum with --server"
            )
        options: dict[str, object] = {"all_pending": all_pending, "preemption": preemption}
        if search_budget is not None:
            options["budget"] = search_budget
        reply = _ask_server(server, files or (), options)
        for warning in reply.warnings:
            complain(f"warning: {warning}")
        _finish(reply, output, files=bool(files))
    from extender.cluster.manifests import manifest_loader
    from extender.queries.plan.plan_query import PlanInput, answer_plan_query, plan_warnings

    found = manifest_loader.load(cluster or (), files or ())
    question = PlanInput(
        groups=frozenset(found.groups),
        pods=frozenset(found.pods),
        all_pending=all_pending or not files,
        budget=search_budget or settings_module.load().search_budget,
        preemption=preemption,
        order=found.order,
        origins=found.origins,
        refused=found.refused,
    )
    tree_warnings = plan_warnings(found.world.view, question)
    for warning in dict.fromkeys((*found.warnings, *tree_warnings)):
        complain(f"warning: {warning}")
    _finish(answer_plan_query(found.world.view, question), output, files=bool(files))


def _ask_server(server: str, paths: Sequence[str], options: dict[str, object]) -> PlanReply:
    from extender.cluster.manifests.yaml_reader import files_of, read_file
    from extender.queries.plan.plan_query import PlanReply

    objects = [d.value for name in files_of(paths) for d in read_file(name) if d.value is not None]
    body = msgspec.json.encode({"workload": objects, **options})
    return ask_service(server, "/v1/plan", PlanReply, body=body, within_s=WITHIN_S)


def _finish(result: PlanAnswer, output: Output, *, files: bool) -> NoReturn:
    if output is Output.table:
        _print(result, files=files)
    else:
        print_value(result, output)
    raise typer.Exit(0 if result.verdict == "placed" else 1)


def _print(result: PlanAnswer, *, files: bool) -> None:
    if not result.gangs:
        others = (
            "--all-pending adds the pending trees of the cluster" if files else "-f FILE names some"
        )
        where = "the files of -f have" if files else "the cluster has"
        console().print(f"Nothing to plan: {where} no group and no pending pod; {others}.")
        return
    for gang in result.gangs:
        _print_gang(gang)
    if len(result.gangs) > 1:
        console().print(f"All together: {result.verdict}")


def _print_gang(gang: GangVerdict) -> None:
    from rich.text import Text

    out = console()
    proof = "proved" if gang.search.exhausted else "not proved"
    name = f"{gang.kind} {gang.gang}"
    if gang.workload and gang.groups:
        name = f"{gang.workload} ({name})"
    head = Text(f"{name}: {gang.verdict}", style="bold")
    head.append(
        f" ({len(gang.assignments)} placed, {len(gang.unplaced)} without a node; "
        f"{counted(gang.search.nodes, 'search node')}, {proof})",
        style="not bold",
    )
    out.print(head)
    for reason in gang.reasons:
        out.print(f"  {reason}")
    for conflict in gang.conflict:
        out.print(f"  cannot hold together: {conflict.object}: {conflict.message}")
    if gang.when_empty:
        out.print(f"  {WHEN_EMPTY[gang.when_empty]}")
    for text in gang.help:
        out.print(f"  would help: {text}")
    rows = []
    for line in gang.assignments:
        domain = gang.domains.get(line.group, {})
        rows.append(
            (line.pod, line.group, line.node, ", ".join(f"{k}={v}" for k, v in domain.items()))
        )
    for victim in gang.victims:
        out.print(f"  evicts {victim.unit}: " + ", ".join(victim.pods))
    if gang.workload and gang.groups:
        _print_tree(gang)
    elif rows:
        print_table(("pod", "group", "node", "domain of the group"), rows, empty="")
    if gang.unplaced and gang.assignments:
        out.print("  without a node: " + ", ".join(gang.unplaced))


def _print_tree(gang: GangVerdict) -> None:
    """Print the groups of a workload as a tree, each leaf with its nodes."""
    from rich.text import Text
    from rich.tree import Tree

    nodes: dict[str, list[str]] = {}
    for line in gang.assignments:
        nodes.setdefault(line.group, []).append(line.node)
    branches: dict[str, Tree] = {}
    top: Tree | None = None
    for group in gang.groups:
        unit = "pods" if group.kind == "PodGroup" else "groups"
        need = f"{group.minimum} needed together" if group.minimum else "each for itself"
        domain = gang.domains.get(group.group, {})
        words = [f"{group.placed} of {group.total} {unit} placed, {need}"]
        words += [f"{key}={value}" for key, value in domain.items()]
        if group.kind == "PodGroup":
            words += _shortened(sorted(set(nodes.get(group.group, ()))))
        text = Text(f"{group.role}: " if group.role else "", style="bold")
        text.append(f"{group.group}: {', '.join(words)}", style="not bold")
        if group.parent in branches:
            here = branches[group.parent].add(text)
        else:
            here = top = Tree(text)
        if group.kind == "CompositePodGroup":
            branches[group.group] = here
    if top is not None:
        console().print(top)


def _shortened(nodes: list[str]) -> list[str]:
    left = len(nodes) - NODES_SHOWN
    return nodes if left <= 0 else [*nodes[:NODES_SHOWN], f"and {left} more nodes"]
