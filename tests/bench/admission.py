"""Passes of the control loop over the real service, with cluster and store in memory.

What a pass costs beside planning is what members wait for, and what kube-scheduler and API server
on the same machine cannot have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.model.cluster_view import forest_of
from extender.core.planner.planning import plan
from tests.bench.figures import Figure, Scale
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import GPU, Object, a_fleet, a_group, a_pod

CPU = {"cpu": "1"}


def trees(count: int) -> list[Object]:
    """Make trees of 2 groups x 2 pods."""
    made: list[Object] = []
    for t in range(count):
        made.append(a_group(f"t{t}", composite=True, gang=2))
        for g in range(2):
            made.append(a_group(f"t{t}-{g}", gang=2, parent=f"t{t}"))
            made += [
                a_pod(f"t{t}-{g}-{p}", f"t{t}-{g}", requests=CPU, schedulingGates=GATED)
                for p in range(2)
            ]
    return made


def gang(size: int) -> list[Object]:
    """Make one gang."""
    pods = [a_pod(f"g-{i}", "g", requests=CPU, schedulingGates=GATED) for i in range(size)]
    return [a_group("g", gang=size), *pods]


def fleet(nodes: int) -> list[Object]:
    """Make nodes in racks."""
    return a_fleet(f"5 zones x 4 racks x {nodes // 20} nodes")


async def passes_of(objects: Iterable[Object]) -> float:
    """Admit everything in one pass; ms."""
    async with Stage(*objects) as stage:
        await stage.lead()
        begun = time.perf_counter()
        await stage.one_pass()
        took = (time.perf_counter() - begun) * 1e3
        admitted = len(stage.leader.committed.gang_of)
        assert admitted == len(stage.cluster.seen.pods), "not everything was admitted"
        return took


async def plans_of(objects: Iterable[Object]) -> float:
    """Plan the same trees one by one on an empty cluster, nothing else; ms."""
    async with Stage(*objects) as stage:
        view, state = stage.cluster.seen, stage.leader.committed
        found, rows = forest_of(view), NodeRowCache()
        took = 0.0
        for tree in found.trees.values():
            request = plan_request(
                view, state, TreeParts().of(tree, None), rows=rows, budget=100_000
            )
            begun = time.perf_counter()
            plan(request)
            took += (time.perf_counter() - begun) * 1e3
        return took


async def binding_passes(objects: Iterable[Object], bite: int) -> list[float]:
    """Bind an admitted gang a bite at a time, with a pass after each; ms per pass."""
    async with Stage(*objects) as stage:
        await stage.lead()
        await stage.one_pass()
        stage.start(stage.parts.nominator.run())
        names = sorted(p.path for p in stage.cluster.seen.pods.values())
        times = []
        for start in range(0, len(names), bite):
            for name in names[start : start + bite]:
                pod = stage.cluster.pod(name)
                node = (
                    stage.leader.committed.gangs[stage.leader.committed.gang_of[pod.uid]]
                    .reservations[pod.uid]
                    .node
                )
                stage.cluster.change_pod(name, node=node, nominated=None, gates=(), phase="Running")
            begun = time.perf_counter()
            await stage.one_pass()
            times.append((time.perf_counter() - begun) * 1e3)
        return times


async def idle_passes(objects: Iterable[Object], rounds: int) -> list[float]:
    """Admit everything, then change one ordinary pod and pass, again and again; ms per pass."""
    async with Stage(*objects) as stage:
        await stage.lead()
        await stage.one_pass()
        stage.cluster.add(a_pod("other", requests=CPU))
        times = []
        for i in range(rounds):
            stage.cluster.change_pod("other", unschedulable=f"word {i}")
            begun = time.perf_counter()
            await stage.one_pass()
            times.append((time.perf_counter() - begun) * 1e3)
        return times


async def waiting_passes(nodes: list[Object], gangs: int, rounds: int) -> list[float]:
    """Let gangs of 8 wait, then bind and end an ordinary pod, again and again; ms per pass."""
    bare = [
        {**n, "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}}}
        for n in nodes
    ]
    wanted: list[Object] = []
    for g in range(gangs):
        wanted.append(a_group(f"g{g}", gang=8))
        wanted += [
            a_pod(f"g{g}-{p}", f"g{g}", requests={GPU: 1}, schedulingGates=GATED) for p in range(8)
        ]
    async with Stage(*bare, *wanted, a_pod("other", requests=CPU)) as stage:
        await stage.lead()
        for _ in range(3):
            await stage.one_pass()
            stage.clock.advance(2)
        answered = [
            root.last_decision is not None for root in stage.leader.committed.gangs.values()
        ]
        assert answered == [True] * gangs
        node = stage.cluster.seen.nodes[next(iter(stage.cluster.seen.nodes))].name
        times = []
        for number in range(rounds):
            stage.cluster.change_pod("other", node=None if number % 2 else node)
            begun = time.perf_counter()
            await stage.one_pass()
            times.append((time.perf_counter() - begun) * 1e3)
        return times


async def run(scale: Scale) -> list[Figure]:
    nodes, count, size = (400, 20, 100) if scale.quick else (5000, 250, 1000)
    rounds = 2 if scale.quick else scale.rounds
    ours, plain = [], []
    for _ in range(rounds):
        ours.append(await passes_of([*fleet(nodes), *trees(count)]))
        plain.append(await plans_of([*fleet(nodes), *trees(count)]))
    single = [await passes_of([*fleet(nodes), *gang(size)]) for _ in range(rounds)]
    bound = await binding_passes([*fleet(nodes), *gang(size)], size // 50)
    idle = await idle_passes([*fleet(nodes), *trees(count)], 20)

    gangs = 20 if scale.quick else 625
    waiting = await waiting_passes(fleet(min(nodes, 1000)), gangs, 20)

    def figure(what: str, values: list[float], **rest: object) -> Figure:
        return Figure(
            bench="admission", what=what, unit="ms", better="lower", values=tuple(values), **rest
        )

    return [
        figure(
            f"{count} trees of 2 x 2 admitted in one pass, {nodes} nodes",
            ours,
            baseline_name="planning alone",
            baseline=tuple(plain),
        ),
        figure(f"gang of {size} admitted in one pass, {nodes} nodes", single),
        figure(f"a pass while a gang of {size} is being bound, {nodes} nodes", bound),
        figure(f"a pass that has nothing to do, {count} trees held, {nodes} nodes", idle),
        figure(f"a pass after an ordinary pod, {8 * gangs} members waiting", waiting),
    ]
