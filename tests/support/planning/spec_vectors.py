"""The worked cases of tests/golden/vectors.yaml as plan requests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    Evictable,
    PlanBound,
    PlanBudget,
    PlanGang,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanUnit,
    PlanVictim,
)

VECTORS = (Path(__file__).parents[2] / "golden" / "vectors.yaml").read_text()
ALL = yaml.load(VECTORS, Loader=yaml.CSafeLoader)  # read by each process that collects tests


def of_kind(kind: str) -> list[dict]:
    return [v for v in ALL if v["t"] == kind]


def by_id(name: str) -> dict:
    return next(v for v in ALL if v["id"] == name)


def request_of(vector: dict, *, permute: bool = False, budget: int = 200_000) -> PlanRequest:
    """Build the request of a `place` vector; slots are the resource `slot`."""
    shapes: list[PodShape] = []

    def shape(size: int, selector: dict) -> int:
        s = PodShape(
            requests=(("pods", 1), ("slot", size)), node_selector=tuple(sorted(selector.items()))
        )
        if s not in shapes:
            shapes.append(s)
        return shapes.index(s)

    def group(t: dict) -> PlanGroup:
        leaf = "kids" not in t
        topo = t.get("topo", ())
        sizes = t.get("pods", [])
        sizes = [1] * sizes if isinstance(sizes, int) else sizes
        kids = [group(k) for k in t.get("kids", [])]
        return PlanGroup(
            key=GroupKey(
                namespace="ns", name=t["n"], kind="PodGroup" if leaf else "CompositePodGroup"
            ),
            basic=t.get("basic", False),
            minimum=t.get("gang", 1),
            topology=(topo,) if isinstance(topo, str) else tuple(topo),
            members=tuple(
                PlanMember(
                    pod=f"ns/{t['n']}-{i}",
                    uid=PodUid(f"{t['n']}-{i}"),
                    shape=shape(size, t.get("sel", {})),
                )
                for i, size in enumerate(sizes)
            ),
            bound=tuple(
                PlanBound(pod=f"ns/{t['n']}-b{i}", uid=PodUid(f"{t['n']}-b{i}"), node=NodeName(n))
                for i, n in enumerate(t.get("at", []))
            ),
            groups=tuple(reversed(kids) if permute else kids),
        )

    nodes = []
    for name, n in sorted(vector["nodes"].items()):
        allocatable = {"slot": n.get("c", n["f"]), "pods": 1000}
        nodes.append(
            PlanNode(
                name=NodeName(name),
                labels={k: v for k, v in n.items() if k not in {"f", "c"}},
                allocatable=allocatable,
                free={"slot": n["f"], "pods": 1000},
            )
        )
    root = group(vector["tree"])
    return PlanRequest(
        root=root,
        nodes=tuple(_with_running(node, vector) for node in nodes),
        shapes=tuple(shapes),
        budget=budget,
        evictable=evictable_of(vector) if "run" in vector else None,
    )


def _with_running(node: PlanNode, vector: dict) -> PlanNode:
    """`f` of a vector is what is free beside the pods that run there."""
    used = sum(about.get("sz", 1) for about in vector.get("run", ()) if about["nd"] == node.name)
    offer = {**node.allocatable, "slot": node.allocatable["slot"] + used}
    return msgspec.structs.replace(node, allocatable=offer)


def evictable_of(vector: dict) -> Evictable:
    """Build the units of a `preempt` vector; `path` names groups with `a` (all) or `s` (single)."""
    units: dict[tuple[str, str], list[PlanVictim]] = {}
    gangs: dict[str, PlanGang] = {}
    shapes: list[PodShape] = []
    budgets: list[PlanBudget] = []
    for about in vector["run"]:
        steps = [step.split("/") for step in about.get("path", "").split()]
        whole = next((n for n, (_, mode) in enumerate(steps) if mode == "a"), None)
        name = f"Pod/ns/{about['p']}"
        for n, (word, _) in enumerate(steps):
            kind = "PodGroup" if n == len(steps) - 1 else "CompositePodGroup"
            key = f"{kind}/ns/{word}"
            if n == whole:
                name = key
            above = -1 if n == 0 else next(i for i, k in enumerate(gangs) if k.endswith(f"/{steps[n - 1][0]}"))  # fmt: skip
            counts = whole is None or n < whole
            gang = gangs.setdefault(key, PlanGang(name=key, minimum=1, parent=above, counts=counts))
            if kind == "PodGroup":
                gangs[key] = msgspec.structs.replace(gang, running=gang.running + 1)
        shape = PodShape(requests=(("pods", 1), ("slot", about.get("sz", 1))))
        if shape not in shapes:
            shapes.append(shape)
        if about.get("pdb"):
            budgets.append(PlanBudget(name=f"ns/{about['p']}", allowed=0))
        pod = PlanVictim(
            pod=f"ns/{about['p']}",
            uid=PodUid(about["p"]),
            node=NodeName(about["nd"]),
            shape=shapes.index(shape),
            budgets=(len(budgets) - 1,) if about.get("pdb") else (),
            gang=list(gangs).index(f"PodGroup/ns/{steps[-1][0]}") if steps else -1,
        )
        units.setdefault((name, str(about["pri"])), []).append(pod)
    return Evictable(
        priority=vector["pri"],
        may_preempt=not vector.get("never"),
        units=tuple(
            PlanUnit(
                name=name,
                uid=name,
                kind="pod" if name.startswith("Pod/") else "group",
                priority=int(priority),
                pods=tuple(pods),
            )
            for (name, priority), pods in sorted(units.items())
        ),
        shapes=tuple(shapes),
        gangs=tuple(gangs.values()),
        budgets=tuple(budgets),
    )
