"""Times of the planner on 5,000 nodes; measures, asserts nothing.

python -m tests.unit.core.planner.measure
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from extender.core.ids import GroupKey, NodeName, PodUid
from extender.core.planner.placement import Plan, PlanGroup, PlanMember, PlanNode, PlanRequest
from extender.core.planner.search import Fleet, plan
from extender.core.pods import PodShape

SHAPES = (
    PodShape(requests=(("cpu", 4000), ("memory", 32 << 30), ("nvidia.com/gpu", 1), ("pods", 1))),
    PodShape(requests=(("cpu", 8000), ("memory", 16 << 30), ("nvidia.com/gpu", 2), ("pods", 1))),
)


def make_nodes(
    count: int, racks: int = 100, zones: int = 5, gpus: Callable[[int], int] = lambda i: 8
) -> tuple[PlanNode, ...]:
    nodes = []
    for i in range(count):
        rack = i * racks // count
        offer = {"cpu": 64000, "memory": 512 << 30, "nvidia.com/gpu": 8, "pods": 110}
        free = {
            "cpu": 64000 - (i % 7) * 1000,
            "memory": (512 - (i % 13)) << 30,
            "nvidia.com/gpu": gpus(i),
            "pods": 100 - (i % 11),
        }
        labels = {"zone": f"z{rack * zones // racks}", "rack": f"r{rack:03}", "host": f"n{i:05}"}
        nodes.append(
            PlanNode(name=NodeName(f"n{i:05}"), labels=labels, allocatable=offer, free=free)
        )
    return tuple(nodes)


def leaf(name: str, pods: int, *, minimum: int = 0, shape: int = 0, topo=()) -> PlanGroup:
    return PlanGroup(
        key=GroupKey(namespace="ns", name=name, kind="PodGroup"),
        minimum=minimum or pods,
        topology=topo,
        members=tuple(
            PlanMember(pod=f"ns/{name}-{i}", uid=PodUid(f"{name}-{i}"), shape=shape)
            for i in range(pods)
        ),
    )


def composite(name: str, *children: PlanGroup, minimum: int = 0, topo=()) -> PlanGroup:
    return PlanGroup(
        key=GroupKey(namespace="ns", name=name, kind="CompositePodGroup"),
        minimum=minimum or len(children),
        topology=topo,
        groups=children,
    )


def show(label: str, root: PlanGroup, nodes, *, repeat: int = 15, explain: bool = True) -> None:
    request = PlanRequest(root=root, nodes=nodes, shapes=SHAPES, explain=explain)
    fleet = Fleet(nodes)
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(repeat):
        for kind, given in (("cold", None), ("warm", fleet)):
            start = time.perf_counter()
            verdict = plan(request, fleet=given)
            times[kind].append((time.perf_counter() - start) * 1e3)
    what = f"{len(verdict.assignments)} pods" if isinstance(verdict, Plan) else f"{verdict.outcome}"
    cold, warm = (statistics.median(times[k]) for k in ("cold", "warm"))
    print(f"{label:46} cold {cold:8.1f} ms  warm {warm:8.1f} ms  {what}  {verdict.search}")


def main() -> None:
    rack, zone = ("rack",), ("zone",)
    full = make_nodes(5000)
    lived = make_nodes(5000, gpus=lambda i: (i * 7919) % 9)
    two = (leaf("p", 3, topo=rack), leaf("d", 3, shape=1, topo=rack))
    show("2 groups x 3 pods, zone over rack", composite("root", *two, topo=zone), full)
    show("2 x 1500 pods", composite("root", leaf("p", 1500), leaf("d", 1500, shape=1)), full)
    grow = (leaf("p", 1500, minimum=100), leaf("d", 1500, minimum=100, shape=1))
    show("2 x 1500 pods, minimum 100", composite("root", *grow), full)
    show("2 x 1500 pods, minimum 100, lived in", composite("root", *grow), lived)
    show("infeasible rack gang", leaf("p", 401, topo=rack), full, explain=False)
    show("infeasible rack gang, explained", leaf("p", 401, topo=rack), full)
    three = (leaf("p", 300, topo=rack), leaf("d", 201, shape=1, topo=rack))
    show("infeasible tree, explained", composite("root", *three, topo=zone), full)
    some = (
        leaf("p", 64, topo=rack),
        leaf("d", 200, minimum=10, shape=1, topo=rack),
    )
    show("extras beyond room, lived in", composite("root", *some, topo=zone), lived)
    pairs = [
        composite(
            f"c{j}", leaf(f"p{j}", 4, topo=rack), leaf(f"d{j}", 4, shape=1, topo=rack), topo=zone
        )
        for j in range(20)
    ]
    show("20 composites x 2 leaves, lived in", composite("root", *pairs), lived, repeat=3)
    many = [leaf(f"p{j}", 4, topo=rack) for j in range(1000)]
    show("1000 leaves x 4 pods in racks", composite("root", *many), full, repeat=1)


if __name__ == "__main__":
    main()
