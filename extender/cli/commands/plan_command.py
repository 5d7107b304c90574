"""`plan`: whether trees fit, and where, on a cluster from files or on that of a running service."""

from __future__ import annotations

import enum
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn, Self

import msgspec
import typer
from msgspec.structs import replace

from extender import settings as settings_module
from extender.cli.connection.service_client import ask_service, finder
from extender.cli.output.printing import Output, complain, print_value
from extender.core.model.errors import BadInput, merged_by_object
from extender.core.planner.plan_types import SEARCH_BUDGET
from extender.queries.plan.plan_dto import (
    BUDGET_MAX,
    NodeGroupSpec,
    PlanAnswer,
    PlanQuestion,
    PlanReply,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


WITHIN_S = 90  # a service needs at most a minute for a plan


class PlanOutput(enum.StrEnum):
    """Forms of the output of a plan."""

    table = "table"
    markdown = "markdown"
    json = "json"
    yaml = "yaml"


def plan(
    *,
    cluster: Annotated[list[str] | None, typer.Option("--cluster", help="The cluster: nodes, running pods, … File, folder or - ; repeatable.")] = None,
    files: Annotated[list[str] | None, typer.Option("-f", "--filename", help="Objects to plan. File, folder or - ; repeatable.")] = None,
    all_pending: Annotated[bool, typer.Option("--all-pending", help="Plan also the pending trees of the cluster.")] = False,
    server: Annotated[str | None, typer.Option(help="In place of --cluster: URL of a service, to plan on its live cluster.")] = None,
    preemption: Annotated[bool, typer.Option("--preemption/--no-preemption", help="Whether pods of lower priority may be evicted.")] = True,
    search_budget: Annotated[
        int | None,
        typer.Option(
            help="How many search nodes the plan of one tree may cost; unset: GANG_EXTENDER_SEARCH_BUDGET, with --server 20000 (at most 200000 there).", min=1
        ),
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", help="Plan the trees of -f so often, one copy after the other, and print how many fit.", min=1, max=1000)
    ] = None,
    max_copies: Annotated[bool, typer.Option("--max-copies", help="Find how many copies of the trees of -f fit.")] = False,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="NODE|KEY=VALUE", help="Plan as if these nodes were away, with the pods on them; repeatable.")
    ] = None,
    further: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="[N x]NODE", help="Plan with more empty nodes like NODE in the same domains, such as 4xNODE; repeatable."),
    ] = None,
    relax: Annotated[
        list[str] | None,
        typer.Option(
            "--relax",
            metavar="GROUP:FIELD",
            help="Plan without a requirement: GROUP:topology, GROUP:slices, GROUP:exclusive, GROUP:minCount=N, GROUP:minGroupCount=N; repeatable.",
        ),
    ] = None,
    node_groups: Annotated[
        str | None,
        typer.Option(
            "--node-groups",
            metavar="FILE",
            help="YAML file with the node groups of a cluster autoscaler (docs/how-to/node-groups.md): by how many nodes one must grow for a tree to fit; unset: GANG_EXTENDER_NODE_GROUPS.",
        ),
    ] = None,
    output: Annotated[PlanOutput, typer.Option("-o", "--output", help="Form of the output; markdown: one page for a pull request.")] = PlanOutput.table,
) -> None:  # fmt: skip
    """Check whether trees of pod groups fit on a cluster, and where. Exit 0 only when all are placed.

    A workload (Job, JobSet, ...) in -f is planned as the tree that it becomes. With --max-copies exit 0 means that at
    least one copy fits.
    """
    asks_service = bool(server) or finder().chosen
    if bool(cluster) == asks_service:
        raise BadInput("give either --cluster FILE or --server URL (or --context NAME)")
    groups: tuple[NodeGroupSpec, ...] = ()
    settings = settings_module.load()
    if path := node_groups or settings.node_groups:
        from extender.cluster.manifests.node_group_file import read_node_groups

        groups = read_node_groups(path)
    budget = SEARCH_BUDGET if asks_service else settings.search_budget
    asked = PlanQuestion(
        all_pending=all_pending,
        budget=search_budget or budget,
        preemption=preemption,
        copies=copies or 0,
        max_copies=max_copies,
        without=tuple(without or ()),
        with_=tuple(further or ()),
        relax=tuple(relax or ()),
        node_groups=groups,
    )
    if asks_service:
        warnings, answer = _ask_server(server, files or (), asked)
    else:
        warnings, answer = _plan_files(cluster or (), files or (), asked)
    for warning in merged_by_object(warnings):
        complain(f"warning: {warning}")
    _finish(answer, output, warnings, files=bool(files))


def _plan_files(
    cluster: Sequence[str], files: Sequence[str], asked: PlanQuestion
) -> tuple[tuple[str, ...], PlanAnswer]:
    from extender.cluster.manifests.manifest_loader import build, complete, read_entries
    from extender.cluster.manifests.node_group_file import node_groups
    from extender.cluster.manifests.tree_copies import TreeCopies
    from extender.queries.plan.capacity_query import answer_capacity_query
    from extender.queries.plan.plan_query import PlanInput, plan_warnings

    with _PlanProgress() as progress:
        with _kept_uncollected():
            entries = read_entries(cluster, files, progress.read)
            progress.begin("Building the cluster")
            manifest = build(complete(entries))
        question = PlanInput(
            groups=frozenset(manifest.groups),
            pods=frozenset(manifest.pods),
            all_pending=asked.all_pending or not files,
            budget=asked.budget,
            preemption=asked.preemption,
            order=manifest.order,
            origins=manifest.origins,
            refused=manifest.refused,
            node_groups=node_groups(asked.node_groups, "node groups"),
        )
        most = settings_module.load().max_children
        view = replace(manifest.world.view, max_children=most)
        warnings = dict.fromkeys((*manifest.warnings, *plan_warnings(view, question)))
        progress.begin("Planning")
        copy = TreeCopies(entries).copy
        answer = answer_capacity_query(view, question, asked, copy, progress.copies)
    return tuple(warnings), answer


@contextmanager
def _kept_uncollected() -> Iterator[None]:
    """Do not look for garbage among what is made inside, then nor later: a cluster is none, and looking takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _ask_server(
    server: str | None, files: Sequence[str], asked: PlanQuestion
) -> tuple[tuple[str, ...], PlanAnswer]:
    from extender.cluster.manifests.yaml_reader import files_of, read_file

    if asked.budget > BUDGET_MAX:
        raise BadInput(
            f"--search-budget: {asked.budget} is above {BUDGET_MAX}, the maximum with --server"
        )
    documents = (document for name in files_of(files) for document in read_file(name))
    objects = tuple(document.value for document in documents if document.value is not None)
    # only what is asked for: an older service does not know all of it
    body = msgspec.json.encode(replace(asked, workload=objects))
    reply = ask_service(server, "/v1/plan", PlanReply, body=body, within_s=WITHIN_S)
    return reply.warnings, reply


def _finish(
    result: PlanAnswer, output: PlanOutput, warnings: Sequence[str], *, files: bool
) -> NoReturn:
    if output is PlanOutput.table:
        from extender.cli.output.plan_text import print_plan

        print_plan(result, files=files)
    elif output is PlanOutput.markdown:
        from extender.cli.output.plan_text import plan_markdown

        sys.stdout.write(plan_markdown(result, warnings))
    else:
        print_value(result, Output(output.value))
    nothing = not result.gangs and not result.copies  # an older service answers placed
    raise typer.Exit(2 if nothing else 0 if result.verdict == "placed" else 1)


class _PlanProgress:
    """A progress bar on stderr of a terminal: files that are read, copies that are planned. It disappears when the plan is there."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def read(self, name: str, done: int, size: int) -> None:
        """Show how many bytes of a file were read."""
        self._show(f"Reading {name}", done, size)

    def begin(self, text: str) -> None:
        """Show a step that has no parts to count."""
        self._show(text, 0, 0)

    def copies(self, fit: int, requested: int) -> None:
        """Show how many copies fit so far; `requested` 0: as many as fit."""
        text = "Planning copies" if requested else f"Planning copies: {fit} fit so far"
        self._show(text, fit, requested, key="copies")

    def _show(self, text: str, done: int, size: int, *, key: str = "") -> None:
        if self._progress is None:
            return
        task = self._tasks.get(key or text)
        if task is None:
            task = self._tasks[key or text] = self._progress.add_task(text, total=size or None)
        self._progress.update(task, description=text, completed=done)
