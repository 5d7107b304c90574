"""`plan`: does it fit, and where, from files alone or on the cluster of a running service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.commands.gang_commands import ask_service
from extender.cli.output.printing import Output, complain, console, print_table, print_value
from extender.core.model.errors import BadInput

if TYPE_CHECKING:
    from extender.queries.plan.plan_query import PlanAnswer, PlanReply, RootVerdict

WITHIN_S = 90  # a service takes a minute for a question at most


def plan(
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="What there is: nodes, running pods, … File, folder or - ; repeatable.",
        ),
    ] = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", help="What is to be planned. File, folder or - ; repeatable."
        ),
    ] = None,
    all_pending: Annotated[
        bool,
        typer.Option(
            "--all-pending", help="Plan also the pending roots found only in the cluster."
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            help="Instead of --cluster: URL of a service, to plan on its cluster as it is now."
        ),
    ] = None,
    preemption: Annotated[
        bool,
        typer.Option(
            "--preemption/--no-preemption",
            help="Whether pods of lower priority may be evicted to make room.",
        ),
    ] = True,
    budget: Annotated[int | None, typer.Option(help="Search nodes per root.", min=1)] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output.")
    ] = Output.table,
) -> None:
    """Say whether trees of pod groups fit on a cluster, and where. Exit 0 only when all are placed."""
    if bool(cluster) == bool(server):
        problem = "only one of them" if server else "one of them is needed"
        raise BadInput(
            f"--cluster, --server: {problem}: what there is, or the URL of a service that knows"
        )
    if server:
        asked: dict[str, object] = {"all_pending": all_pending, "preemption": preemption}
        reply = _asked(
            server, wanted or (), asked if budget is None else {**asked, "budget": budget}
        )
        for warning in reply.warnings:
            complain(f"warning: {warning}")
        _tell(reply, output)
    from extender.cluster.manifests import manifest_loader
    from extender.queries.plan.plan_query import PlanInput, answer, questionable

    found = manifest_loader.load(cluster or (), wanted or ())
    question = PlanInput(
        groups=frozenset(found.groups),
        pods=frozenset(found.pods),
        all_pending=all_pending or not wanted,
        budget=budget or settings_module.load().plan_budget,
        preemption=preemption,
        order=found.order,
    )
    odd = questionable(found.world.view, question)
    for warning in dict.fromkeys((*found.warnings, *odd)):
        complain(f"warning: {warning}")
    _tell(answer(found.world.view, question), output)


def _asked(server: str, paths: Sequence[str], options: dict[str, object]) -> PlanReply:
    from extender.cluster.manifests.yaml_reader import files_of, read_file
    from extender.queries.plan.plan_query import PlanReply

    objects = [d.value for name in files_of(paths) for d in read_file(name) if d.value is not None]
    body = msgspec.json.encode({"wanted": objects, **options})
    return ask_service(server, "/v1/plan", PlanReply, body=body, within_s=WITHIN_S)


def _tell(result: PlanAnswer, output: Output) -> NoReturn:
    if output is Output.table:
        _print(result)
    else:
        print_value(result, output)
    raise typer.Exit(0 if result.verdict == "placed" else 1)


def _print(result: PlanAnswer) -> None:
    if not result.roots:
        console().print("Nothing to plan: no group and no pending pod was named.")
        return
    for root in result.roots:
        _print_root(root)
    if len(result.roots) > 1:
        console().print(f"All together: {result.verdict}")


def _print_root(root: RootVerdict) -> None:
    out = console()
    proof = "proved" if root.search.exhausted else "not proved"
    out.print(
        f"[bold]{root.kind} {root.root}: {root.verdict}[/bold] "
        f"({len(root.assignments)} placed, {len(root.unplaced)} without a node; "
        f"{root.search.nodes} search nodes, {proof})"
    )
    for reason in root.reasons:
        out.print(f"  {reason}")
    for conflict in root.conflict:
        out.print(f"  cannot hold together: {conflict.object}: {conflict.text}")
    rows = []
    for line in root.assignments:
        domain = root.domains.get(line.group, {})
        rows.append(
            (line.pod, line.group, line.node, ", ".join(f"{k}={v}" for k, v in domain.items()))
        )
    for victim in root.victims:
        out.print(f"  evicts {victim.unit}: " + ", ".join(victim.pods))
    if rows:
        print_table(("pod", "group", "node", "domain of the group"), rows, empty="")
    if root.unplaced and root.assignments:
        out.print("  without a node: " + ", ".join(root.unplaced))
