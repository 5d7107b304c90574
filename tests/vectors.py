"""The worked cases of SPEC I (tests/golden/vectors.yaml) as plan requests."""

from __future__ import annotations

from pathlib import Path

import yaml

from extender.core.ids import GroupKey, NodeName, PodUid
from extender.core.planner.placement import PlanBound, PlanGroup, PlanMember, PlanNode, PlanRequest
from extender.core.pods import PodShape

ALL = yaml.safe_load((Path(__file__).parent / "golden" / "vectors.yaml").read_text())


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
    return PlanRequest(root=root, nodes=tuple(nodes), shapes=tuple(shapes), budget=budget)
