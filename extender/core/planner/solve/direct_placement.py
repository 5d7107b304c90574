"""Placements of the pods of one or two groups by capacity alone: in the fewest domains, with most pairs together, in equal shares.

Numbers of pods per node or domain in, and out. What else decides about a placement is examined by who asks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.solve.compactness import fewest_first, filled, first_pods, numbered
from extender.core.planner.solve.domain_counts import (
    DomainCount,
    by_price,
    merged,
    most_pairs,
    paired,
)

MORE_DOMAINS = 4  # that are tried beyond a bound on domains
REGIONS = 4  # that are tried for a group, those with most pods of another one beside it


def best_region(
    of: Ints, level: Ints, fit: Ints, pods: int, limit: DomainCount | None, parts: Ints
) -> tuple[float, Ints]:
    """Return the fewest domains of some pods in one region, and the positions of nodes that hold them in so many; inf: there are none.

    Args:
        of: The region of each node.
        level: The domain of each node.
        fit: How many pods each node can have.
        limit: How many parts of domains may be used, if that is limited.
        parts: The part of each node.
    """
    totals = np.bincount(of, weights=fit).astype(np.int64)
    holds = np.flatnonzero(totals >= pods)
    if not len(holds):
        return math.inf, holds
    by, domain, capacity = (of, level, fit) if limit is None else merged(of, parts, fit, level)
    none = np.zeros(0, dtype=np.int64)
    options = list(by_price(by, domain, capacity, pods, limit, none))
    needed = functools.reduce(np.maximum, (option.needed for option in options))
    best = int(holds[np.lexsort((totals[holds], needed[holds]))[0]])
    inside = of == best
    if limit is None:
        return float(needed[best]), np.flatnonzero(inside)
    orders = [option.largest_of(best) for option in (options[-1], *options[:-1])]
    of_best = by == best
    domain, capacity = domain[of_best], capacity[of_best]
    for number in range(int(needed[best]), int(needed[best]) + MORE_DOMAINS):
        for order in orders:
            is_used = np.zeros(int(level.max(initial=0)) + 1, dtype=np.bool_)
            is_used[order[:number]] = True
            largest = np.sort(capacity[is_used[domain]])[::-1]
            if int(largest[: limit.most].sum()) >= pods:
                return float(number), np.flatnonzero(inside & is_used[level])
    return math.inf, none


def best_region_of_two(
    of: Ints, level: Ints, fit: Ints, sizes: Sequence[int]
) -> tuple[float, Ints]:
    """Return the fewest pairs of pods of two groups apart in one region, and the positions of its nodes; inf: none holds them.

    Args:
        of: The region of each node.
        level: The domain of each node.
        fit: How many pods each node can have.
    """
    by, _, at = paired(of, level)
    capacity = fit if by is of else np.bincount(at, weights=fit, minlength=len(by)).astype(np.int64)
    totals = np.bincount(by, weights=capacity).astype(np.int64)
    pods = np.full(len(totals), sum(sizes), dtype=np.int64)
    order, amounts = filled(by, capacity, pods)
    squares = np.bincount(by[order], weights=amounts * amounts)
    holds = np.flatnonzero(totals >= pods)
    if not len(holds):
        return math.inf, holds
    best = int(holds[np.lexsort((totals[holds], -squares[holds]))[0]])
    together, _ = most_pairs(amounts[(by[order] == best) & (amounts > 0)], sizes[0])
    return float(sizes[0] * sizes[1] - together), np.flatnonzero(of == best)


def divided(domain: Ints, fit: Ints, sizes: Sequence[int]) -> tuple[Ints, Ints]:
    """Return how many pods of a first and of a second leaf each node gets: in few domains, with many pairs of pods together.

    >>> divided(np.array([0, 0, 1]), np.array([2, 2, 4]), [3, 2])
    (array([2, 0, 1]), array([0, 2, 0]))
    """
    pods = sum(sizes)
    domain = numbered(domain)
    capacity = np.bincount(domain, weights=fit).astype(np.int64)
    chosen = fewest_first(capacity, np.zeros(len(capacity), dtype=np.bool_), pods)
    amounts = first_pods(capacity[chosen], pods)
    rank = np.full(len(capacity), len(chosen), dtype=np.int64)
    rank[chosen] = np.arange(len(chosen))
    rank = rank[domain]
    first, second = np.zeros(len(fit), dtype=np.int64), np.zeros(len(fit), dtype=np.int64)
    if len(sizes) == 1:
        nodes = np.flatnonzero(rank < len(chosen))
        nodes = nodes[fewest_first(fit[nodes], np.zeros(len(nodes), dtype=np.bool_), pods)]
        first[nodes] = first_pods(fit[nodes], pods)
        return first, second
    # all domains but the last one are full
    last = np.flatnonzero(rank == len(chosen) - 1)
    unused = np.zeros(len(last), dtype=np.bool_)
    last = last[fewest_first(fit[last], unused, int(amounts[-1]))]
    full = np.flatnonzero(rank < len(chosen) - 1)
    nodes = np.concatenate((full[np.lexsort((-fit[full], rank[full]))], last))
    both = first_pods(fit[nodes], pods)
    of_first = most_pairs(amounts, sizes[0])[1]
    have = np.cumsum(both) - both - (np.cumsum(amounts) - amounts)[rank[nodes]]
    first[nodes] = np.clip(of_first[rank[nodes]] - have, 0, both)
    second[nodes] = both - first[nodes]
    return first, second


def divided_by_weight(
    domain: Ints, space: Ints, fits: Sequence[Ints], sizes: Sequence[int], weights: Sequence[int]
) -> tuple[Ints, Ints]:
    """Return how many pods of two groups each node gets where those of one take more than those of the other.

    As in `divided`, with as much of both in each domain as leaves the same difference everywhere; pods that have no place are left out.

    Args:
        domain: Of each node, ascending.
        space: Of each node.
        fits: How many pods of each group each node can have.
        weights: How much space a pod of each group takes.
    """
    total = sum(n * w for n, w in zip(sizes, weights, strict=True))
    capacity = np.bincount(domain, weights=space).astype(np.int64)
    unused = np.zeros(len(capacity), dtype=np.bool_)
    chosen = fewest_first(capacity, unused, total).tolist()
    largest = np.argsort(-capacity, kind="stable")
    others = largest[~np.isin(largest, chosen)].tolist()
    heavy, light = (0, 1) if weights[0] >= weights[1] else (1, 0)
    left = list(sizes)
    parts = [np.zeros(len(space), dtype=np.int64) for _ in sizes]
    for position, each in enumerate((*chosen, *others)):
        if not any(left):
            break
        inside = np.arange(*np.searchsorted(domain, (each, each + 1)))
        need = [n * w for n, w in zip(left, weights, strict=True)]
        after = max(len(chosen) - position, 1)
        want = left[heavy]
        if after > 1:
            half = min(int(capacity[each]), sum(need)) + (need[heavy] - need[light]) / after
            want = min(max(round(half / 2 / weights[heavy]), 0), want)
        for group, number in ((heavy, want), (light, left[light])):
            taken = sum(p[inside] * w for p, w in zip(parts, weights, strict=True))
            able = np.minimum((space[inside] - taken) // weights[group], fits[group][inside])
            order = fewest_first(able, np.asarray(taken > 0), number)
            amounts = first_pods(able[order], number)
            parts[group][inside[order]] = amounts
            left[group] -= int(amounts.sum())
    return parts[0], parts[1]


def placed_beside(
    domain: Ints,
    regions: Sequence[Ints],
    fits: Sequence[Ints],
    sizes: Sequence[int],
    weights: Sequence[int],
    parts: Sequence[Ints],
) -> tuple[Ints, Ints] | None:
    """Return how many pods of two groups each node gets that no region holds together, most pods of the second one beside the first.

    The first group is in one region, inside one domain, the second one in the other domains with what has no place there. None: no
    region has one.

    Args:
        domain: Of each node.
        regions: Of each group per node; -1: it cannot be there.
        fits: How many pods of each group each node can have.
        weights: How much space a pod of each group takes.
        parts: Of each group per node, of which few are used.
    """
    first, second = np.zeros(len(domain), dtype=np.int64), np.zeros(len(domain), dtype=np.int64)
    able = np.flatnonzero(fits[0])
    totals = np.bincount(regions[0][able], weights=fits[0][able]).astype(np.int64)
    outer = np.zeros(len(totals), dtype=np.int64)
    outer[regions[0][able]] = domain[able]
    space = np.maximum(fits[0] * weights[0], fits[1] * weights[1])
    left = np.bincount(domain, weights=space).astype(np.int64) - sizes[0] * weights[0]
    beside = np.minimum(np.bincount(domain, weights=fits[1]), left // weights[1])
    holds = np.flatnonzero(totals >= sizes[0])
    order = np.lexsort((totals[holds], -np.clip(beside[outer[holds]], 0, sizes[1])))
    for region in holds[order][:REGIONS].tolist():
        inside = able[regions[0][able] == region]
        first[:] = second[:] = 0
        first[inside] = divided(parts[0][inside], fits[0][inside], sizes[:1])[0]
        fit = np.minimum(fits[1], (space - first * weights[0]) // weights[1])
        fit[(regions[1] < 0) | (regions[1] != regions[1][inside[0]])] = 0
        pods = sizes[1]
        for near, few in ((domain == outer[region], parts[1]), (domain != outer[region], domain)):
            rows = np.flatnonzero(near & (fit > 0))
            if (number := min(int(fit[rows].sum()), pods)) > 0:
                second[rows] = divided(few[rows], fit[rows], [number])[0]
                pods -= number
        if not pods:
            return first, second
    return None


def tightest_for_shares(capacity: Ints, number: int, pods: int) -> Ints:
    """Return so many domains with place for the largest smallest share, of these some with little free capacity; empty: none.

    >>> tightest_for_shares(np.array([15, 13, 10, 30]), 2, 23)
    array([1, 0])
    """
    order = np.argsort(capacity, kind="stable")
    if len(order) < number or int(capacity[order[-number:]].sum()) < pods:
        return order[:0]
    share = min(pods // number, int(capacity[order[-number]]))
    order = order[capacity[order] >= share]
    sums = np.convolve(capacity[order], np.ones(number, dtype=np.int64), mode="valid")
    first = int(np.argmax(sums >= pods))
    return order[first : first + number]


def equal_shares(capacity: Ints, pods: int) -> list[int]:
    """Return shares of so many pods, as equal as the place in each domain allows.

    >>> equal_shares(np.array([10, 2, 10]), 13)
    [6, 2, 5]
    """
    shares = np.zeros(len(capacity), dtype=np.int64)
    left = pods
    while left > 0 and (open_ones := np.flatnonzero(shares < capacity)).size:
        more = np.minimum(capacity[open_ones] - shares[open_ones], max(left // open_ones.size, 1))
        more = first_pods(more, left)
        shares[open_ones] += more
        left -= int(more.sum())
    return [int(share) for share in shares]
