"""The arena: one trace on one cluster through this planner and through the algorithms of peers; `make bench NAMES=arena`.

The trace is made up by a seed, or that of GANG_EXTENDER_ARENA_TRACE (a file of `extender/simulation/trace_readers.py`), of which
the first GANG_EXTENDER_ARENA_JOBS are taken. Nothing depends on the machine: two runs write the same bytes to `.bench/arena.md`. Our
arm is the planner with the same queue as the algorithms of the peers. With GANG_EXTENDER_ARENA_SERVICE=1 the whole service in virtual
time, with holds, turns and preemption, is one more; it takes many minutes of CPU time for 800 trees.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.yaml_reader import Document
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import Plan, PlanGroup, PlanMember, PlanNode, PlanRequest
from extender.core.planner.planning import plan
from extender.settings import Settings
from extender.simulation.arrivals import Arrival, ArrivingGroup
from extender.simulation.job_files import job_of
from extender.simulation.simulation import Scenario
from extender.simulation.simulation import simulate as simulated
from extender.simulation.simulation_report import placements_s
from extender.simulation.trace_readers import GPU, read_trace
from tests.bench.arena.peer_algorithms import (
    after_fragmentation,
    after_kube_scheduler,
    after_kueue,
    workload_of,
)
from tests.bench.arena.virtual_cluster import Arm, Free, Host, Outcome, Seat, simulate
from tests.bench.figures import Figure, Scale
from tests.support.service.manifest_builders import an_object

RACK = "topology.example.com/rack"
OUT = Path(__file__).parents[3] / ".bench" / "arena.md"
STARVED_S = 24 * 3600.0
CLASSES = {"1 pod": 1, "2 to 8": 8, "more": math.inf}  # size class -> its largest number of pods
SERVICE = "this service"
OURS = "this planner"
AFTER_S = 14 * 86_400.0  # the service runs for so long after the last arrival
PODS_MAX = 110  # of a node
RACK_GPUS = 64


def run(scale: Scale) -> list[Figure]:
    """Return the figures of each arm, and write the table."""
    hosts, arrivals = contest(quick=scale.quick)
    outcomes = (
        [of_the_service(hosts, arrivals)] if os.environ.get("GANG_EXTENDER_ARENA_SERVICE") else []
    )
    outcomes += [simulate(hosts, arrivals, arm, GPU) for arm in arms(arrivals)]
    OUT.parent.mkdir(exist_ok=True)
    text = table(arrivals, outcomes)
    OUT.write_text(text, encoding="utf-8")
    print(text)
    figures = []
    for outcome in outcomes:
        for name, value, unit, better in (
            ("placed", float(len(outcome.waits)), "trees", "higher"),
            ("starved", float(starved(outcome)), "trees", "lower"),
            ("wait p95", quantile([*outcome.waits.values()], 0.95), "s", "lower"),
            ("utilisation", 100 * outcome.utilisation, "%", "higher"),
        ):
            figures.append(
                Figure(
                    bench="arena",
                    what=f"{outcome.arm}: {name}",
                    unit=unit,
                    better=better,
                    values=(value,),
                )  # type: ignore[arg-type]
            )
    return figures


def contest(*, quick: bool = False) -> tuple[list[Host], list[Arrival]]:
    """Return the cluster and the trace: 64 nodes of 8 GPUs in 8 racks."""
    hosts = [
        Host(f"n{i:03}", {RACK: f"r{i // 8}"}, {GPU: 8, "cpu": 96_000, "memory": 768 << 30})
        for i in range(64)
    ]
    jobs = int(os.environ.get("GANG_EXTENDER_ARENA_JOBS", "100" if quick else "800"))
    path = os.environ.get("GANG_EXTENDER_ARENA_TRACE")
    if path:
        return hosts, [*read_trace(Path(path)).arrivals[:jobs]]
    return hosts, made_up(jobs)


def made_up(jobs: int, seed: int = 47) -> list[Arrival]:
    """Return a trace: gangs of 1 to 16 pods of 1 to 8 GPUs, a third of them in one rack, a fifth with two roles.

    Most of the time more waits than fits, which is when algorithms differ.
    """
    chance, arrivals, at_s = random.Random(seed), [], 0.0
    for number in range(jobs):
        at_s += chance.expovariate(1 / 350)
        pods, gpus = chance.choice((1, 1, 2, 2, 4, 8, 16)), chance.choice((1, 2, 2, 4, 8, 8))
        key = RACK if chance.random() < 1 / 3 and pods * gpus <= RACK_GPUS else ""
        groups = [_group("workers", pods, gpus, pods, key)]
        if chance.random() < 1 / 5:
            extras = chance.choice((0, 2))
            groups.insert(0, _group("routers", 2 + extras, 1, 2, key))
        arrivals.append(
            Arrival(
                at_s=at_s, namespace=f"team-{chance.randrange(4)}", name=f"job-{number:04}", groups=tuple(groups),
                runs_for_s=chance.choice((600.0, 3600.0, 4 * 3600.0, 12 * 3600.0)),
            )
        )  # fmt: skip
    return arrivals


def _group(name: str, pods: int, gpus: int, minimum: int, key: str) -> ArrivingGroup:
    requests = {GPU: gpus, "cpu": 8000 * gpus, "memory": (64 << 30) * gpus}
    return ArrivingGroup(name=name, pods=pods, minimum=minimum, requests=requests, topology_key=key)


def arms(arrivals: Sequence[Arrival]) -> list[Arm]:
    """Return ours and those of the peers, in the order of the table."""
    fragmentation = after_fragmentation(workload_of(arrivals, GPU), GPU)
    return [
        Arm(OURS, Ours().place),
        Arm("after kube-scheduler 1.38 (pod groups)", after_kube_scheduler),
        Arm("after Kueue TAS, best effort", after_kueue),
        Arm("after Kueue TAS, strict FIFO", after_kueue, strict=True),
        Arm("after FGD (ATC 2023)", fragmentation),
    ]


def of_the_service(hosts: Sequence[Host], arrivals: Sequence[Arrival]) -> Outcome:
    """Return what becomes of a trace with the service in virtual time: queue, holds, turns, preemption and barriers."""
    last_s = arrivals[-1].at_s
    documents = []
    for host in hosts:
        allocatable = {name: str(amount) for name, amount in host.capacity.items()}
        allocatable |= {"cpu": f"{host.capacity['cpu']}m", "pods": str(PODS_MAX)}
        node = an_object("Node", host.name, "v1", "", metadata={"labels": host.labels}, status={"allocatable": allocatable})  # fmt: skip
        documents.append(Document(where=host.name, value=node))
    outcome = simulated(
        Scenario(
            cluster=entries_in(documents, Role.CLUSTER),
            jobs=tuple(job_of(arrival) for arrival in arrivals),
            until_s=last_s + AFTER_S,
            settings=Settings(),
        )
    )
    waits, never, pods = {}, [], {}
    for job, placed_s in zip(outcome.jobs, placements_s(outcome), strict=True):
        if placed_s is None:
            never.append(job.path)
        else:
            waits[job.path] = max(0.0, placed_s - job.at_s)
            pods[job.path] = len(job.pods)
    used, now, before = 0.0, 0.0, 0
    for at_s, units in (*outcome.used, (last_s, 0)):
        used += before * max(0.0, min(at_s, last_s) - now)
        now, before = min(at_s, last_s), units
    return Outcome(
        arm=SERVICE, waits=waits, never=tuple(never), pods=pods, utilisation=used / (outcome.capacity * last_s),
    )  # fmt: skip


class Ours:
    """`planner.plan` as an algorithm of the arena."""

    def __init__(self) -> None:
        self._nodes: tuple[PlanNode, ...] = ()
        self._table = NodeTable(())

    def place(self, free: Free, arrival: Arrival) -> tuple[Seat, ...] | None:
        """Return where the planner places an arrival."""
        self._renew(free)
        shapes: list[PodShape] = []
        leaves = []
        for group in arrival.groups:
            requests = {name: amount for name, amount in group.requests.items() if amount}
            shapes.append(PodShape(requests=tuple(sorted((requests | {"pods": 1}).items()))))
            members = tuple(
                PlanMember(pod=f"{arrival.namespace}/{group.name}-{i}", uid=PodUid(f"{group.name}-{i}"), shape=len(shapes) - 1)
                for i in range(group.pods)
            )  # fmt: skip
            key = GroupKey(namespace=arrival.namespace, name=group.name, kind="PodGroup")
            topology = (group.topology_key,) if group.topology_key else ()
            leaves.append(
                PlanGroup(key=key, minimum=group.minimum, topology=topology, members=members)
            )
        root = leaves[0]
        if len(leaves) > 1:
            key = GroupKey(namespace=arrival.namespace, name=arrival.name, kind="CompositePodGroup")
            root = PlanGroup(key=key, minimum=len(leaves), groups=tuple(leaves))
        request = PlanRequest(
            root=root, nodes=self._nodes, shapes=tuple(shapes), levels=(RACK,), explain=False
        )
        verdict = plan(request, node_table=self._table)
        if not isinstance(verdict, Plan):
            return None
        number_of = {group.name: number for number, group in enumerate(arrival.groups)}
        host_of = {host.name: number for number, host in enumerate(free.hosts)}
        return tuple((number_of[a.group.name], host_of[a.node]) for a in verdict.assignments)

    def _renew(self, free: Free) -> None:
        nodes = []
        for number, (host, amounts) in enumerate(zip(free.hosts, free.amounts, strict=True)):
            now = amounts | {"pods": PODS_MAX}
            if not self._nodes:
                allocatable = host.capacity | {"pods": PODS_MAX}
                node = PlanNode(name=NodeName(host.name), labels=host.labels, allocatable=allocatable, free=now)  # fmt: skip
            else:
                node = self._nodes[number]
                node = node if node.free == now else msgspec.structs.replace(node, free=now)
            nodes.append(node)
        self._nodes = tuple(nodes)
        self._table = self._table.renewed(self._nodes)


# --- the table


def starved(outcome: Outcome) -> int:
    """Return how many trees waited for more than a day, or were never placed."""
    return sum(wait > STARVED_S for wait in outcome.waits.values()) + len(outcome.never)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so many are not above; 0 without any."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def table(arrivals: Sequence[Arrival], outcomes: Sequence[Outcome]) -> str:
    """Return the results as Markdown."""
    sizes = {f"{a.namespace}/{a.name}": sum(group.pods for group in a.groups) for a in arrivals}
    smallest, classes = 0.0, {}
    for name, largest in CLASSES.items():
        classes[name] = {path for path, pods in sizes.items() if smallest < pods <= largest}
        smallest = largest
    counts = ", ".join(f"{len(members)} of {name}" for name, members in classes.items())
    lines = [
        f"{len(arrivals)} trees ({counts}) within {arrivals[-1].at_s / 86400:.1f} days. Waits in minutes: p50, p95, largest.",
        "",
        "| algorithm | placed | starved | pods | GPUs used | "
        + " | ".join(f"wait, {name}" for name in classes)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(classes),
    ]
    for outcome in outcomes:
        cells = [outcome.arm, str(len(outcome.waits)), str(starved(outcome)), str(sum(outcome.pods.values())),
                 f"{100 * outcome.utilisation:.1f} %"]  # fmt: skip
        for members in classes.values():
            waits = [wait for path, wait in outcome.waits.items() if path in members]
            cells.append(
                " / ".join(f"{quantile(waits, share) / 60:.0f}" for share in (0.5, 0.95, 1.0))
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
