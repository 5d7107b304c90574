"""A model of a small cluster in which pods move: what may move where, replays of orders, and all sets and orders of moves.

It shares nothing with the planner: nodes have one resource, pods and gangs are plain values.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Member:
    """A running pod."""

    node: str
    amount: int
    gang: str = ""
    priority: int = 0
    stays: bool = False  # for a reason of its own
    minutes: int = 0  # since its last checkpoint


@dataclass
class Gang:
    """A leaf group."""

    minimum: int
    in_rack: bool = False  # all its pods are in one rack
    whole: bool = False


@dataclass
class MoveModel:
    """A cluster and what is asked for."""

    racks: dict[str, str]  # node -> rack
    sizes: dict[str, int]  # node -> amount
    pods: dict[str, Member]
    gangs: dict[str, Gang] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)
    # one of these is asked for
    waiting: tuple[int, int, bool] | None = None  # pods of a gang, the amount of each, in one rack
    racks_to_free: int = 0
    to_drain: tuple[str, ...] = ()

    def free(self, where: Mapping[str, str]) -> dict[str, int]:
        """Return what is free on each node when the pods are there."""
        left = dict(self.sizes)
        for name, node in where.items():
            left[node] -= self.pods[name].amount
        return left

    def may_move(self, where: Mapping[str, str], name: str, target: str) -> bool:
        """Return whether a pod may be evicted now, and its new pod have a node."""
        pod = self.pods[name]
        if pod.stays or target == where[name] or target in self.cordoned or target in self.to_drain:
            return False
        if self.free(where)[target] < pod.amount:
            return False
        gang = self.gangs.get(pod.gang)
        if gang is None:
            return True
        others = [n for n in where if n != name and self.pods[n].gang == pod.gang]
        if gang.whole or len(others) < gang.minimum:
            return False
        return not gang.in_rack or all(self.racks[where[n]] == self.racks[target] for n in others)

    def reached(self, where: Mapping[str, str]) -> bool:
        """Return whether what is asked for holds."""
        left = self.free(where)
        if self.waiting is not None:
            count, amount, in_rack = self.waiting
            slots: dict[str, int] = {}
            for node, free in left.items():
                if node not in self.cordoned:
                    rack = self.racks[node] if in_rack else ""
                    slots[rack] = slots.get(rack, 0) + max(free, 0) // amount
            return max(slots.values(), default=0) >= count
        if self.racks_to_free:
            used = {self.racks[node] for node in where.values()}
            used |= {self.racks[node] for node in self.cordoned}
            return len(set(self.racks.values()) - used) >= self.racks_to_free
        return not any(node in self.to_drain for node in where.values())

    def start(self) -> dict[str, str]:
        """Return where the pods are."""
        return {name: pod.node for name, pod in self.pods.items()}

    def replay(self, moves: Sequence[tuple[str, str, str]]) -> dict[str, str]:
        """Return where the pods are after some moves (pod, from, to), each of which must be allowed when it comes."""
        where = self.start()
        assert len({name for name, _, _ in moves}) == len(moves), "a pod is moved twice"
        for name, source, target in moves:
            assert where[name] == source, (name, source)
            assert self.may_move(where, name, target), (name, target, where)
            where[name] = target
        return where

    def states(self) -> Iterator[tuple[tuple[int, int, int], dict[str, str]]]:
        """Yield all that moves can lead to, each pod moved once at most, the fewest and cheapest first."""
        names = sorted(self.pods)
        lowest = min((p.priority for p in self.pods.values() if self._can_ever(p)), default=0)
        first = tuple(self.pods[name].node for name in names)
        counter = itertools.count()
        queue = [((0, 0, 0), next(counter), first)]
        done: set[tuple[str, ...]] = set()
        while queue:
            cost, _, nodes = heapq.heappop(queue)
            if nodes in done:
                continue
            done.add(nodes)
            where = dict(zip(names, nodes, strict=True))
            yield cost, where
            for at, name in enumerate(names):
                if nodes[at] != first[at]:
                    continue  # it was moved
                for target in self.sizes:
                    if self.may_move(where, name, target):
                        after = (*nodes[:at], target, *nodes[at + 1 :])
                        pod = self.pods[name]
                        lost = pod.amount * pod.minutes
                        price = (cost[0] + 1, cost[1] + pod.priority - lowest, cost[2] + lost)
                        heapq.heappush(queue, (price, next(counter), after))

    def _can_ever(self, pod: Member) -> bool:
        gang = self.gangs.get(pod.gang)
        members = sum(p.gang == pod.gang for p in self.pods.values())
        return not pod.stays and (gang is None or (not gang.whole and members > gang.minimum))
