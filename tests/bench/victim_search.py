"""Times of the search for victims: 1,000 nodes full of 1,000 running gangs, and a gang of higher priority that comes.

Planner only: `plan` and `preempt` on one request, without a cluster and a log. Each search has a cluster of its own, made
from its number, so that a quantile is one over clusters and not over repetitions. Times are CPU time: a search waits for
nothing, so that is how long it takes on a processor of its own, whatever else runs.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Evictable,
    PlanGang,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanUnit,
    PlanVictim,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.reprieve import Reprieve
from extender.core.planner.preempt.victim_search import PreemptionPlan, preempt
from extender.core.planner.solve.greedy_placement import SearchBudget
from extender.core.planner.solve.solver_pipeline import solve
from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.planner import composite, leaf

# p99: upstream's own figure for its search, with 1,000 nodes and 1,000 running gangs
TARGET = "62 ms"
PODS_PER_GANG = 4
CPU = 4000  # millicores of a node; each has as many running pods as a gang
RACK = 20  # nodes
PREEMPTOR = 1000  # priority
NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000


def _shape(cpu: int) -> PodShape:
    return PodShape(requests=(("cpu", cpu), ("memory", 1 << 30), ("pods", 1)))


SHAPES = (_shape(CPU // PODS_PER_GANG), _shape(CPU))


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What comes, and how the running gangs are disrupted."""

    name: str
    root: PlanGroup
    hard: bool = False  # whole nodes are needed, and each gang has pods on several: which share most nodes is a set cover
    whole: bool = True  # False: pod by pod, and a gang that falls below its minimum counts
    packed: bool = False  # each gang on one node; False: anywhere
    priorities: tuple[int, ...] = (0, 10, 100)  # of the running gangs


def cases() -> tuple[Case, ...]:
    """Return the preemptors: small and large, flat and over racks, with pods of a quarter of a node and of a whole one."""
    rack = ("rack",)
    tree = composite("root", leaf("p", 4, topo=rack), leaf("d", 4, shape=1, topo=rack))
    return (
        Case(name="gang of 8", root=leaf("g", 8)),
        Case(name="gang of 8, nodes of their own", root=leaf("g", 8, shape=1), hard=True),
        Case(name="gang of 8, gangs on one node each", root=leaf("g", 8, shape=1), packed=True),
        Case(name="gang of 8, pods evicted singly", root=leaf("g", 8), whole=False),
        Case(name="gang of 8 in a rack", root=leaf("g", 8, shape=1, topo=rack), packed=True),
        Case(name="2 x 4 in racks", root=tree, hard=True),
        Case(name="gang of 100", root=leaf("g", 100)),
        Case(name="gang of 8, one priority", root=leaf("g", 8), priorities=(0,)),
        Case(
            name="gang of 8, nodes of their own, one priority",
            root=leaf("g", 8, shape=1),
            hard=True,
            priorities=(0,),
        ),
        Case(name="2 x 4 in racks, one priority", root=tree, hard=True, priorities=(0,)),
    )


def request_of(case: Case, nodes: int, seed: int) -> PlanRequest:
    """Return the request of a preemptor on full nodes where as many gangs run as there are nodes."""
    chance = random.Random(seed)
    names = [NodeName(f"n{i:05}") for i in range(nodes)]
    slots = [name for name in names for _ in range(PODS_PER_GANG)]
    if not case.packed:
        chance.shuffle(slots)
    units, gangs = [], []
    for number in range(nodes):
        name = f"run{number:05}"
        since_us = NOW_US - chance.randrange(DAY_US)
        priority = chance.choice(case.priorities)
        pods = tuple(
            PlanVictim(
                pod=f"ns/{name}-{i}",
                uid=PodUid(f"{name}-{i}"),
                node=slots[number * PODS_PER_GANG + i],
                shape=0,
                since_us=since_us,
                gang=number,
            )
            for i in range(PODS_PER_GANG)
        )
        group = f"PodGroup/ns/{name}"
        gangs.append(
            PlanGang(
                name=group, minimum=PODS_PER_GANG, running=PODS_PER_GANG, counts=not case.whole
            )
        )
        if case.whole:
            units.append(PlanUnit(name=group, uid=name, kind="group", priority=priority, pods=pods))
            continue
        units += [
            PlanUnit(name=f"Pod/{p.pod}", uid=p.uid, kind="pod", priority=priority, pods=(p,))
            for p in pods
        ]
    offer = {"cpu": CPU, "memory": 64 << 30, "pods": 110}
    free = {"cpu": 0, "memory": 32 << 30, "pods": 110 - PODS_PER_GANG}
    return PlanRequest(
        root=case.root,
        nodes=tuple(
            PlanNode(name=name, labels={"rack": f"r{i // RACK:03}"}, allocatable=offer, free=free)
            for i, name in enumerate(names)
        ),
        shapes=SHAPES,
        explain=False,
        evictable=Evictable(
            priority=PREEMPTOR, units=tuple(units), shapes=SHAPES[:1], gangs=tuple(gangs)
        ),
    )


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found."""

    pods: int  # that it evicts
    proved: bool  # no set costs less


Search: TypeAlias = Callable[[PlanRequest, NodeTable], Victims]


def ours(request: PlanRequest, fleet: NodeTable) -> Victims:
    """Search as the service does."""
    found = preempt(request, node_table=fleet)
    assert isinstance(found, PreemptionPlan), found
    return Victims(
        pods=sum(len(unit.pods) for unit in found.victims), proved=found.search.exhausted
    )


def evict_all_then_reprieve(request: PlanRequest, fleet: NodeTable) -> Victims:
    """Place the gang as if all units were evicted, and keep each unit that fits beside it: kube-scheduler's algorithm.

    The units are reprieved by our order of costs, and no second placement is tried. With the plan that is refused before,
    as `preempt` has it.
    """
    plan(msgspec.structs.replace(request, evictable=None), node_table=fleet)
    view = PostEvictionView(request, fleet)
    evicted = ~view.none_evicted
    solved = solve(view.request, view.node_table, problem=view.problem(evicted), maximise=False)
    assert solved.solution is not None
    reprieve = Reprieve(view, SearchBudget(request.budget), min_pods=0)
    kept = reprieve.reprieve_units(evicted, solved.solution)
    return Victims(pods=sum(len(view.units[i].pods) for i in np.flatnonzero(kept)), proved=False)


class Searches(msgspec.Struct, frozen=True, kw_only=True):
    """Some searches of one case."""

    took_ms: list[float]
    proved: int  # of them: no set costs less
    evicted: int  # pods, by all of them


def searched(case: Case, nodes: int, seeds: Iterable[int], search: Search = ours) -> Searches:
    """Search for victims in one cluster after the other."""
    took_ms, proved, evicted = [], 0, 0
    for seed in seeds:
        request = request_of(case, nodes, seed)
        fleet = NodeTable(request.nodes)
        gc.collect()  # what making the request left behind
        began_s = time.process_time()
        found = search(request, fleet)
        took_ms.append((time.process_time() - began_s) * 1e3)
        proved += found.proved
        evicted += found.pods
    return Searches(took_ms=took_ms, proved=proved, evicted=evicted)


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure case by case."""
    nodes, again = (100, 2) if scale.quick else (1000, 4 * scale.rounds)
    for case in cases():
        name = f"{case.name}, {nodes:,} nodes, {nodes:,} running gangs"
        if not scale.wants("victim-search", name):
            continue
        searched(case, nodes, [0])  # imports
        found = searched(case, nodes, range(1, again + 1))
        yield [
            Figure(
                bench="victim-search",
                what=f"{name}: {label}",
                unit="ms",
                better="lower",
                values=(quantile(found.took_ms, part),),
                target=TARGET if label == "p99" else "",
                note=f"{found.evicted / again:.1f} pods evicted by each of {again} searches, "
                f"{found.proved} of them proved the cheapest",
            )
            for label, part in QUANTILES
        ]
