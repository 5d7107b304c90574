"""Times of the planner on 5,000 nodes, with everything made anew and with a fleet that is kept."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import SliceLevel
from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Plan,
    PlanExclusive,
    PlanGroup,
    PlanMember,
    PlanNear,
    PlanNode,
    PlanRequest,
    with_slices,
)
from extender.core.planner.planning import plan
from tests.bench.figures import Figure, Scale

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


def measured(
    what: str,
    root: PlanGroup,
    nodes,
    *,
    rounds: int,
    explain: bool = True,
    target: str = "",
    plain: PlanGroup | None = None,
) -> Figure:
    """Measure the CPU of a tree with a fleet that is kept, beside one that is made anew; or beside `plain`, the same tree without wishes.

    Both of the latter have the levels of the cluster, which decide where pods without a topology go.
    """
    levels = () if plain is None else ("rack", "zone")
    request = PlanRequest(root=root, nodes=nodes, shapes=SHAPES, explain=explain, levels=levels)
    fleet = NodeTable(nodes)
    baseline = request if plain is None else msgspec.structs.replace(request, root=plain)
    times: dict[str, list[float]] = {"baseline": [], "kept": []}
    for _ in range(rounds):
        for kind, asked, given in (
            ("baseline", baseline, fleet if plain else None),
            ("kept", request, fleet),
        ):
            start = time.process_time()
            verdict = plan(asked, node_table=given)
            times[kind].append((time.process_time() - start) * 1e3)
    result = f"{len(verdict.assignments)} pods" if isinstance(verdict, Plan) else verdict.outcome
    return Figure(
        bench="planner",
        what=what,
        unit="ms",
        better="lower",
        values=tuple(times["kept"]),
        baseline_name="without wishes" if plain else "fleet made anew",
        baseline=tuple(times["baseline"]),
        target=target,
        note=f"{result}, {verdict.search.nodes} search nodes{_gaps(verdict)}",
    )


def _gaps(verdict: object) -> str:
    """Return the values of wishes that are not proved."""
    wishes = verdict.wishes if isinstance(verdict, Plan) else ()
    values = [(w.kind, v) for w in wishes for v in w.values]
    gaps = [f"{kind} {v.key} {v.value}, at best {v.best}" for kind, v in values if v.best < v.value]
    return f"; {len(values) - len(gaps)} of {len(values)} values proved" + "".join(
        f", {gap}" for gap in gaps
    )


def _scarce(number: int) -> int:
    """Return the free GPUs of a node: one in twelve has four or more, the others hardly any."""
    chance = number * 7919 % 1200
    return 4 + chance % 5 if chance < 100 else chance % 5 // 3


def wishing(root: PlanGroup, *preferred: str) -> PlanGroup:
    """Return a tree of which each leaf has preferred keys, narrowest first."""
    leaves = tuple(msgspec.structs.replace(g, preferred=preferred) for g in root.groups)
    return msgspec.structs.replace(root, groups=leaves)


def near(root: PlanGroup, *keys: str) -> PlanGroup:
    """Return a tree of which the first leaf shall be near the second one."""
    first, second, *others = root.groups
    wishes = tuple(PlanNear(group=second.key, key=key) for key in keys)
    first = msgspec.structs.replace(first, near=wishes)
    return msgspec.structs.replace(root, groups=(first, second, *others))


def ranked(root: PlanGroup) -> PlanGroup:
    """Return a tree whose members have ranks."""
    leaves = tuple(
        msgspec.structs.replace(
            g,
            members=tuple(
                msgspec.structs.replace(m, rank=rank) for rank, m in enumerate(g.members)
            ),
        )
        for g in root.groups
    )
    return msgspec.structs.replace(root, groups=leaves)


def wishes(size: int, rounds: int) -> list[Figure]:
    """Measure the wishes of groups, slices and exclusive domains beside the same tree without them.

    Of slices that is a tree with the same groups without the key: one group has far fewer, each of which costs some 0.2 ms.
    """
    per_rack, nodes = size // 100 * 8, make_nodes(size, gpus=lambda i: (i * 7919) % 9)
    uneven = composite(
        "root", leaf("a", per_rack // 2), leaf("b", per_rack, shape=1), leaf("c", per_rack * 2)
    )
    small = composite("root", leaf("p", per_rack // 8), leaf("d", per_rack // 4))
    large = composite("root", leaf("p", per_rack), leaf("d", per_rack * 3 // 2))
    mixed = composite("root", leaf("p", per_rack), leaf("d", per_rack // 2, shape=1))
    single = composite("root", leaf("a", per_rack * 2))
    label = {node.name: node.labels for node in nodes}
    cut = with_slices(
        single.groups[0], [SliceLevel("host", 4)], lambda name, key: label[name].get(key)
    )
    uncut = msgspec.structs.replace(
        cut, groups=tuple(msgspec.structs.replace(part, topology=()) for part in cut.groups)
    )
    alone = composite("root", *(leaf(f"x{j}", per_rack // 8) for j in range(4)))
    modest = composite(
        "root",
        leaf("a", per_rack // 16),
        leaf("b", per_rack // 8, shape=1),
        leaf("c", per_rack // 4),
    )
    first = ranked(near(wishing(uneven, "rack"), "rack")).groups[0]
    rows = [
        ("one leaf prefers a rack, is near another one and has ranks", composite("root", first, *uneven.groups[1:]), uneven),
        ("3 leaves prefer one rack, then one zone", wishing(uneven, "rack", "zone"), uneven),
        ("near, one rack holds both", near(small, "rack"), small),
        ("near, no rack holds both", near(large, "rack"), large),
        ("near, no rack holds both, two shapes", near(mixed, "rack"), mixed),
        ("near by rack and zone", near(large, "rack", "zone"), large),
        ("near by host", near(small, "host"), small),
        ("3 leaves prefer one host, then rack, then zone", wishing(uneven, "host", "rack", "zone"), uneven),
        ("3 leaves of a part of a rack prefer one host, then rack", wishing(modest, "host", "rack"), modest),
        ("3 leaves prefer few hosts", wishing(uneven, "host"), uneven),
        ("near, preferred and ranks", ranked(near(wishing(uneven, "rack", "zone"), "rack")), uneven),
        ("near, preferred down to hosts and ranks", ranked(near(wishing(uneven, "host", "rack"), "rack")), uneven),
        ("balanced racks", msgspec.structs.replace(single, groups=(msgspec.structs.replace(single.groups[0], preferred=("rack",), balanced=True),)), single),
        ("slices of 4 per host", composite("root", cut), composite("root", uncut)),
        ("exclusive racks", msgspec.structs.replace(alone, groups=tuple(msgspec.structs.replace(g, exclusive=PlanExclusive(key="rack")) for g in alone.groups)), alone),
    ]  # fmt: skip
    figures = [
        measured(f"wishes: {what}, lived in", root, nodes, rounds=rounds, target="2 x", plain=plain)
        for what, root, plain in rows
    ]
    what = f"wishes: slices of 4 per host, beside one group instead of {len(cut.groups)}, lived in"
    sliced = composite("root", cut)
    return [*figures, measured(what, sliced, nodes, rounds=rounds, plain=single)]


def run(scale: Scale) -> list[Figure]:
    size, many, few = (500, 5, 1) if scale.quick else (5000, 3 * scale.rounds, scale.rounds)
    figures = trees(size, many, few) if scale.asks_for("trees") else []
    return figures + (wishes(size, many) if scale.asks_for("wishes") else [])


def trees(size: int, many: int, few: int) -> list[Figure]:
    """Measure trees with a fleet that is kept, beside one that is made anew."""
    rack, zone = ("rack",), ("zone",)
    full = make_nodes(size)
    lived = make_nodes(size, gpus=lambda i: (i * 7919) % 9)
    two = (leaf("p", 3, topo=rack), leaf("d", 3, shape=1, topo=rack))
    half = size * 3 // 10
    grow = (leaf("p", half, minimum=100), leaf("d", half, minimum=100, shape=1))
    per_rack = size // 100 * 8
    three = (
        leaf("p", per_rack * 3 // 4, topo=rack),
        leaf("d", per_rack // 2 + 1, shape=1, topo=rack),
    )
    some = (leaf("p", 64, topo=rack), leaf("d", 200, minimum=10, shape=1, topo=rack))
    pairs = [
        composite(
            f"c{j}", leaf(f"p{j}", 4, topo=rack), leaf(f"d{j}", 4, shape=1, topo=rack), topo=zone
        )
        for j in range(20)
    ]
    leaves = [leaf(f"p{j}", 4, topo=rack) for j in range(size // 5)]
    # 8 x 10 x 4 over zone, rack and host, nine tenths of the cluster in use: it just does not fit
    host, scarce = ("host",), make_nodes(size, racks=max(size // 100, 5), gpus=_scarce)
    deep = composite(
        "root",
        *(
            composite(f"c{j}", *(leaf(f"l{j}-{k}", 4, topo=host) for k in range(10)), topo=rack)
            for j in range(8)
        ),
        topo=zone,
    )
    two_big = composite("root", leaf("p", half), leaf("d", half, shape=1))
    return [
        measured(
            "2 groups x 3 pods, zone over rack",
            composite("root", *two, topo=zone),
            full,
            rounds=many,
            target="5 ms",
        ),
        measured(f"2 x {half} pods", two_big, full, rounds=many, target="150 ms"),
        measured(f"2 x {half} pods, minimum 100", composite("root", *grow), full, rounds=many),
        measured(
            f"2 x {half} pods, minimum 100, lived in", composite("root", *grow), lived, rounds=many
        ),
        measured(
            "infeasible rack gang",
            leaf("p", per_rack + 1, topo=rack),
            full,
            rounds=many,
            explain=False,
            target="50 ms",
        ),
        measured(
            "infeasible rack gang, explained", leaf("p", per_rack + 1, topo=rack), full, rounds=many
        ),
        measured(
            "infeasible tree, explained", composite("root", *three, topo=zone), full, rounds=many
        ),
        measured(
            "infeasible 8 x 10 x 4, nine tenths in use", deep, scarce, rounds=many, explain=False
        ),
        measured(
            "infeasible 8 x 10 x 4, nine tenths in use, explained",
            deep,
            scarce,
            rounds=few,
            target="2 s",
        ),
        measured(
            "extras beyond capacity, lived in",
            composite("root", *some, topo=zone),
            lived,
            rounds=many,
        ),
        measured(
            "20 composites x 2 leaves, lived in", composite("root", *pairs), lived, rounds=few
        ),
        measured(
            f"{size // 5} leaves x 4 pods in racks", composite("root", *leaves), full, rounds=1
        ),
    ]
