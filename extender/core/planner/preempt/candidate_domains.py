"""Domains in which a tree could be placed by evictions: a lower bound of the cost, and orders to try units in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.eviction_order import EmptiedNodes
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import CostModel

CLASSES_MAX = 64  # steps in which the lower bound of a domain is found


@dataclass(slots=True)
class CandidateDomain:
    """A domain in which the tree could be placed."""

    where: str  # key=value; empty: anywhere
    nodes: Bools | None  # None: everywhere
    units: list[int]  # that free something there, the cheapest first
    # lower bound of (violations, highest priority) of the cost of a set in this domain; None: evicting all is not enough
    least: tuple[int, int] | None = None


class CandidateDomains:
    """The candidate domains of the root of one request; the whole cluster if it has no topology constraint."""

    def __init__(
        self, eviction_view: PostEvictionView, cost_model: CostModel, *, min_pods: int
    ) -> None:
        self.eviction_view = eviction_view
        self.cost_model = cost_model
        self.min_pods = min_pods
        self.prices = [cost_model.alone(i) for i in range(len(eviction_view.units))]
        self._emptied: EmptiedNodes | None = None
        self.domains = list(self._list())
        self._bound(min_pods)

    def _list(self) -> Iterable[CandidateDomain]:
        root = self.eviction_view.full.groups[0]
        if not root.level.keys:
            yield self._place("", None)
            return
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for domain in domains:
            values = zip(root.level.keys, root.level.values[domain], strict=True)
            where = ", ".join(f"{key}={value}" for key, value in values)
            yield self._place(where, root.level.domain == domain)

    def _place(self, where: str, nodes: Bools | None) -> CandidateDomain:
        units: list[int] = np.flatnonzero(self.eviction_view.units_affecting(nodes)).tolist()
        return CandidateDomain(where, nodes, sorted(units, key=lambda i: self.prices[i]))

    def _cost_class(self, unit: int) -> tuple[int, int]:
        return (self.prices[unit].violations, self.prices[unit].highest)

    def _bound(self, min_pods: int) -> None:
        """Set `least` of each domain.

        A class is all units of equal violations and priority. The classes are evicted step by step from the cheapest on,
        until the upper bounds allow the tree in the domain. Every sufficient set needs a unit of the last step or a more
        expensive one, so it costs at least as much as the first class of that step.
        """
        root = self.eviction_view.full.groups[0]
        of_units = [self._cost_class(i) for i in range(len(self.prices))]
        classes = sorted({*of_units})
        rank = {cost_class: number for number, cost_class in enumerate(classes)}
        ranks = np.array([rank[cost_class] for cost_class in of_units], dtype=np.int64)
        step = -(-len(classes) // CLASSES_MAX)
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for first in range(0, len(classes), max(step, 1)):
            evicted = ranks < first + step
            bound = self.eviction_view.problem(evicted, base=self.eviction_view.full)
            best = bound_all(bound).best[0]
            for place, domain in zip(self.domains, domains, strict=True):
                if place.least is None and best[domain] >= min_pods:
                    place.least = classes[first]

    # --- in which order ----------------------------------------------------------------------------

    def rankings(self, place: CandidateDomain) -> list[list[int]]:
        """Return more orders in which the units of a domain can be tried, the first to evict first; none twice.

        First those that free the most capacity at equal cost; then orders that empty one node after the
        other, the cheapest node first; then those that no disruption budget protects; at last the same orders
        without units that near or spread rules count, since these rules may need them.
        """
        gain = self._gains(place)
        rank = self._node_ranks(place)
        guarded = [bool(self.cost_model.protected(u)) for u in self.eviction_view.units]

        def by(key: Callable[[int], tuple[object, ...]]) -> list[int]:
            return sorted(place.units, key=lambda i: (*key(i), self.prices[i]))

        orders = [
            by(lambda i: (*self._cost_class(i), -gain[i])),
            by(lambda i: (self.prices[i].violations, rank[i])),
            by(lambda i: (*self._cost_class(i), rank[i])),
        ]
        if any(guarded):
            orders.append(by(lambda i: (guarded[i], self.prices[i].highest, -gain[i])))
        counting = set(self.eviction_view.counting.tolist())
        if counting:
            orders += [[i for i in order if i not in counting] for order in (place.units, *orders)]
        distinct = [place.units]
        for order in orders:
            if order not in distinct:
                distinct.append(order)
        return distinct[1:]

    def _gains(self, place: CandidateDomain) -> list[int]:
        """Return the capacity that each unit frees in a domain: shares of the largest requests, in millionths."""
        eviction_view = self.eviction_view
        width = eviction_view.capacity.width
        asks = eviction_view.full.requests[:, :width].max(axis=0, initial=0)
        share = (eviction_view.back * 1_000_000 // np.maximum(asks, 1))[:, asks > 0]
        share = np.minimum(share, 1_000_000_000).sum(axis=1)
        if place.nodes is not None:
            share = np.where(place.nodes[eviction_view.node], share, 0)
        gains = np.zeros(len(eviction_view.units), dtype=np.int64)
        np.add.at(gains, eviction_view.unit, share)
        return [int(g) for g in gains]

    def _node_ranks(self, place: CandidateDomain) -> list[int]:
        """Rank units by the order in which `EmptiedNodes` evicts them; the others have the same rank, the last."""
        ranks = [len(self.eviction_view.units)] * len(self.eviction_view.units)
        if self._emptied is None:
            self._emptied = EmptiedNodes(self.eviction_view, self.cost_model, self.prices)
        for position, unit in enumerate(self._emptied.units_in_order(self.min_pods, place.nodes)):
            ranks[unit] = position
        return ranks
