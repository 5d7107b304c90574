"""Random small clusters that gangs, whole groups and single pods fill up, and a tree of higher priority that needs a part of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    Evictable,
    PlanBudget,
    PlanDependent,
    PlanGang,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanUnit,
    PlanVictim,
)

SIZES = (1, 1, 2, 3)  # GPUs of a pod
PRIORITY = 5  # of the preemptor


class _Filling:
    """The units of a cluster, and what they take on each node."""

    def __init__(self, draw, nodes: int) -> None:
        self.draw = draw
        self.free = [draw(st.integers(2, 4)) for _ in range(nodes)]
        self.gangs: list[PlanGang] = []
        self.units: list[PlanUnit] = []
        self.budgets = tuple(
            PlanBudget(name=f"ns/b{i}", allowed=draw(st.integers(0, 1)))
            for i in range(draw(st.integers(0, 2)))
        )
        self.sizes = sorted(set(SIZES))
        self.pods = 0

    def fill(self, most: int) -> None:
        """Add units until the nodes are full, or there are enough."""
        for _ in range(most):
            kind = self.draw(st.sampled_from(["pod", "gang", "gang", "whole", "whole", "reserved"]))
            priority = self.draw(st.sampled_from([0, 1, 1, 1, 2, PRIORITY]))
            if kind == "gang":
                self._gang(priority, most - len(self.units))
            elif kind == "whole":
                self._unit("group", priority, self.draw(st.integers(1, 4)), -1)
            else:
                self._unit("reservation" if kind == "reserved" else "pod", priority, 1, -1)
            if len(self.units) >= most:
                return

    def _gang(self, priority: int, most: int) -> None:
        """Add a gang whose pods are evicted one by one, some beyond its minimum, sometimes as the child of a composite."""
        members = self.draw(st.integers(1, max(1, min(3, most))))
        number = len(self.gangs)
        nested = self.draw(st.integers(0, 2)) == 0
        if nested:
            self.gangs.append(PlanGang(name=f"CompositePodGroup/ns/c{number}", minimum=1))
        minimum = self.draw(st.integers(1, members))
        leaf = len(self.gangs)
        counts = self.draw(st.integers(0, 4)) > 0
        self.gangs.append(PlanGang(name=f"PodGroup/ns/l{number}", minimum=minimum, parent=number if nested else -1, counts=counts))  # fmt: skip
        before = len(self.units)
        for _ in range(members):
            self._unit("pod", priority, 1, leaf)
        running = len(self.units) - before
        gang = self.gangs[leaf]
        self.gangs[leaf] = PlanGang(name=gang.name, minimum=min(minimum, max(running, 1)), parent=gang.parent, running=running, counts=counts)  # fmt: skip

    def _unit(self, kind: str, priority: int, pods: int, gang: int) -> None:
        made = [pod for _ in range(pods) if (pod := self._pod(kind, gang)) is not None]
        if not made:
            return
        name = f"Pod/{made[0].pod}" if kind == "pod" else f"PodGroup/ns/{kind}{self.pods}"
        self.units.append(
            PlanUnit(
                name=name,
                uid=name,
                kind=kind,
                priority=priority,
                pods=tuple(sorted(made, key=lambda pod: pod.pod)),
                may_preempt=self.draw(st.booleans()),
                disruption_target=kind != "reservation" and self.draw(st.integers(0, 7)) == 0,
            )
        )

    def reserve(self, most: int) -> tuple[PlanDependent, ...]:
        """Return reservations that go with a unit, or with all running pods of a gang, and not alone."""
        groups = [[u] for u in self.units if u.kind == "group"]
        for leaf in range(len(self.gangs)):
            groups.append([u for u in self.units if u.pods[0].gang == leaf])
        made = []
        for units in groups if most else ():
            pods = [self._pod("reservation", -1) for _ in range(self.draw(st.integers(0, most)))]
            if units and any(pods):
                after = tuple(sorted(pod.uid for unit in units for pod in unit.pods))
                pods = tuple(sorted(filter(None, pods), key=lambda pod: pod.pod))
                made.append(PlanDependent(pods=pods, after=after))
        return tuple(sorted(made, key=lambda dependent: dependent.pods[0].pod))

    def _pod(self, kind: str, gang: int) -> PlanVictim | None:
        size = self.draw(st.sampled_from(SIZES))
        able = [node for node, free in enumerate(self.free) if free >= size]
        if not able:
            return None
        node = self.draw(st.sampled_from(able))
        self.free[node] -= size
        self.pods += 1
        budgets = () if kind == "reservation" else tuple(
            i for i in range(len(self.budgets)) if self.draw(st.integers(0, 2)) == 0
        )  # fmt: skip
        return PlanVictim(
            pod=f"ns/v{self.pods}",
            uid=PodUid(f"v{self.pods}"),
            node=NodeName(f"n{node}"),
            shape=self.sizes.index(size),
            since_us=self.draw(st.integers(0, 7)) * 30_000_000,
            budgets=budgets,
            gang=gang,
        )


@st.composite
def full_clusters(draw, most_units: int = 7, reserved: int = 0) -> PlanRequest:
    """Make a request that mostly needs evictions; `reserved`: reservations of a victim at most that go with it, and not alone."""
    count = draw(st.integers(1, 4))
    filling = _Filling(draw, count)
    capacity = list(filling.free)
    filling.fill(most_units)
    dependents = filling.reserve(reserved)
    everyone = [pod for unit in (*filling.units, *dependents) for pod in unit.pods]
    taken: Counter = Counter(pod.node for pod in everyone)
    nodes = tuple(
        PlanNode(
            name=NodeName(f"n{i}"),
            labels={"rack": f"r{i // 2}", "host": f"n{i}"},
            allocatable={"gpu": capacity[i], "pods": 9},
            free={"gpu": filling.free[i] * draw(st.integers(0, 1)), "pods": 9 - taken[f"n{i}"]},
        )
        for i in range(count)
    )
    shapes = tuple(PodShape(requests=(("gpu", size), ("pods", 1))) for size in filling.sizes)
    return PlanRequest(
        root=_preemptor(draw),
        nodes=nodes,
        shapes=shapes,
        explain=False,
        evictable=Evictable(
            priority=PRIORITY,
            units=tuple(sorted(filling.units, key=lambda unit: (unit.kind, unit.name))),
            shapes=shapes,
            gangs=tuple(filling.gangs),
            budgets=filling.budgets,
            dependents=dependents or UNSET,
            now_min=draw(st.sampled_from([UNSET, 2, 5])),
        ),
    )


def _preemptor(draw) -> PlanGroup:
    number = draw(st.integers(1, 2))
    leaves = []
    for i in range(number):
        pods = draw(st.integers(1, 3 if number == 1 else 2))
        shape = draw(st.integers(0, len(set(SIZES)) - 1))
        leaves.append(
            PlanGroup(
                key=GroupKey("ns", f"hi{i}", "PodGroup"),
                minimum=draw(st.integers(1, pods)),
                topology=draw(st.sampled_from([(), (), ("rack",), ("host",)])),
                members=tuple(
                    PlanMember(pod=f"ns/hi{i}-{n}", uid=PodUid(f"hi{i}-{n}"), shape=shape)
                    for n in range(pods)
                ),
            )
        )
    if number == 1:
        return leaves[0]
    key = GroupKey("ns", "hi", "CompositePodGroup")
    minimum = draw(st.sampled_from([1, 2, 2]))
    return PlanGroup(key=key, minimum=minimum, groups=tuple(leaves))
