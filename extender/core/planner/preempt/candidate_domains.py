"""Where a tree could find room, how dear that is at least, and in which orders units could be taken there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import CostModel, VictimCost

CLASSES_MAX = 64  # steps in which the least price of a domain is found


@dataclass(slots=True)
class CandidateDomain:
    """A domain that the tree could come to lie in."""

    where: str  # key=value; empty: anywhere
    nodes: Bools | None  # None: everywhere
    units: list[int]  # that can make room there, the cheapest first
    least: tuple[int, int] | None = None
    """Violations and highest priority that any set pays here at least; None: no set makes room."""


class CandidateDomains:
    """The domains of the root of one request, or the whole cluster if it asks for none."""

    def __init__(self, removal: PostEvictionView, tariff: CostModel, *, wanted: int) -> None:
        self.removal = removal
        self.tariff = tariff
        self.prices = [tariff.alone(i) for i in range(len(removal.units))]
        self.found = list(self._list())
        self._bound(wanted)

    def _list(self) -> Iterable[CandidateDomain]:
        root = self.removal.full.groups[0]
        if not root.level.keys:
            yield self._place("", None)
            return
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for domain in domains:
            values = zip(root.level.keys, root.level.values[domain], strict=True)
            where = ", ".join(f"{key}={value}" for key, value in values)
            yield self._place(where, root.level.domain == domain)

    def _place(self, where: str, nodes: Bools | None) -> CandidateDomain:
        units: list[int] = np.flatnonzero(self.removal.touching(nodes)).tolist()
        return CandidateDomain(where, nodes, sorted(units, key=lambda i: self.prices[i]))

    def _worth(self, unit: int) -> tuple[int, int]:
        return (self.prices[unit].violations, self.prices[unit].highest)

    def _bound(self, wanted: int) -> None:
        """Find per domain the cheapest class of units without which the bounds leave no room.

        A set that makes room has a unit of that class or a dearer one, so it costs no less.
        """
        root = self.removal.full.groups[0]
        classes = sorted({self._worth(i) for i in range(len(self.prices))})
        step = -(-len(classes) // CLASSES_MAX)
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for first in range(0, len(classes), max(step, 1)):
            last = classes[min(first + step, len(classes)) - 1]
            gone = np.array(
                [self._worth(i) <= last for i in range(len(self.prices))], dtype=np.bool_
            )
            best = bound_all(self.removal.problem(gone)).best[0]
            for place, domain in zip(self.found, domains, strict=True):
                if place.least is None and best[domain] >= wanted:
                    place.least = classes[first]

    # --- in which order ----------------------------------------------------------------------------

    def rankings(self, place: CandidateDomain) -> list[list[int]]:
        """Give further orders of the units of a place, the ones to go first in front.

        At equal priority: those that give back the most room; those that empty one node after the
        other, the cheapest node first; and those that no budget protects at all.
        """
        gain = self._gains(place)
        rank = self._node_ranks(place)
        guarded = [bool(self.tariff.protected(u)) for u in self.removal.units]

        def by(key: Callable[[int], tuple[object, ...]]) -> list[int]:
            return sorted(place.units, key=lambda i: (*key(i), self.prices[i]))

        orders = [
            by(lambda i: (*self._worth(i), -gain[i])),
            by(lambda i: (self.prices[i].violations, rank[i])),
            by(lambda i: (*self._worth(i), rank[i])),
        ]
        if any(guarded):
            orders.append(by(lambda i: (guarded[i], self.prices[i].highest, -gain[i])))
        return orders

    def _gains(self, place: CandidateDomain) -> list[int]:
        """Weigh the room that each unit gives back in a place: shares of the largest requests, in millionths."""
        removal = self.removal
        width = removal.room.width
        asks = removal.full.requests[:, :width].max(axis=0, initial=0)
        share = (removal.back * 1_000_000 // np.maximum(asks, 1))[:, asks > 0]
        share = np.minimum(share, 1_000_000_000).sum(axis=1)
        if place.nodes is not None:
            share = np.where(place.nodes[removal.node], share, 0)
        gains = np.zeros(len(removal.units), dtype=np.int64)
        np.add.at(gains, removal.unit, share)
        return [int(g) for g in gains]

    def _node_ranks(self, place: CandidateDomain) -> list[int]:
        """Rank units by the cheapest node that they help to clear for one more pod of the largest kind."""
        removal = self.removal
        problem = removal.full
        far = removal.fleet.size
        ranks = [far] * len(removal.units)
        if not problem.kinds:
            return ranks
        heaviest = int(np.argmax([int(r.sum()) for r in problem.requests]))
        ask = problem.requests[heaviest][: removal.room.width]
        usable = problem.allowed[heaviest]
        if place.nodes is not None:
            usable = usable & place.nodes
        rows: dict[int, list[int]] = {}
        for row, node in enumerate(removal.node.tolist()):
            if usable[node]:
                rows.setdefault(node, []).append(row)
        bills: list[tuple[VictimCost, int, list[int]]] = []
        for node, here in rows.items():
            free = removal.room.free[node].copy()
            chosen: list[int] = []
            for row in sorted(here, key=lambda r: self.prices[int(removal.unit[r])]):
                if bool((free >= ask)[ask > 0].all()):
                    break
                free = free + removal.back[row]
                chosen.append(int(removal.unit[row]))
            if chosen and bool((free >= ask)[ask > 0].all()):
                bills.append((self.tariff.cost(chosen), node, chosen))
        for position, (_, _, chosen) in enumerate(sorted(bills)):
            for unit in chosen:
                ranks[unit] = min(ranks[unit], position)
        return ranks
