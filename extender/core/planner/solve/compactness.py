"""The orders of nodes and domains: compactness, which uses few of them and leaves large free domains whole, and scores by soft rules of pods.

Compactness: at each level from the widest to the narrowest, and then among nodes: if a domain holds all that is left to place, the
tightest of those, but first one that the tree uses already; else the largest. Integers only, and every tie is broken by position.

Scores have the weights and the normalisation of kube-scheduler (K77). They are compared only between nodes that are equal by all that
comes before, and never refuse one. Pods in the cluster are counted as they are before the plan: members that are placed together do not
count for one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import (
    Bools,
    Ints,
    Level,
    NodeTable,
    avoided_taints,
    matches,
    selected,
    tolerated,
)
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.plan_types import PlanPreference, PlanRequest, is_slice

SCORE_MAX = 100  # of one plugin on one node, before its weight
# Weights of the plugins in the default profile of kube-scheduler.
TAINTS_WEIGHT = 3
AFFINITY_WEIGHT = 2
PODS_WEIGHT = 2
SPREAD_WEIGHT = 2
SMALL = 1 << 15
_FINE = 1_000  # logarithms are rounded to thousandths, so that all other numbers are integers
DomainKey: TypeAlias = "tuple[str, ...] | str"  # of a level, or a single topology key
DomainColumn: TypeAlias = "Callable[[Ints], Ints | Bools]"  # of some domains of a group
DomainCounts: TypeAlias = "Callable[[int, DomainKey, Ints], Ints]"  # of a kind, per domain


class Compactness:
    """Of one partial placement: the nodes that each scope of the tree uses, and the pods that it still has to place.

    The scope of a group is the nearest group at or above it with preferred topology keys, whose domains are to be few; where
    there is none, it is the whole tree, by the topology keys of the cluster.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._scopes: list[list[int]] = []  # per group: its scopes, the nearest first
        self.used: dict[int, Ints] = {}  # scope -> its pods per node, bound ones counted
        self._left: dict[int, dict[int, int]] = {}  # scope -> kind -> pods to place
        self._opened: dict[int, dict[DomainKey, tuple[Ints, Ints]]] = {}
        self._domains: dict[tuple[str, ...], list[tuple[str, Ints]]] = {}
        self._wider: dict[tuple[tuple[str, ...], int], list[tuple[DomainKey, Ints, Ints]]] = {}
        for group in problem.groups:
            above = self._scopes[group.parent] if group.parent >= 0 else []
            own = group.parent < 0 or group.source.preferred
            self._scopes.append([group.index, *above] if own else above)
        for group in problem.groups:
            if not group.leaf:
                continue
            bound = [problem.node_table.index.get(b.node) for b in group.source.bound]
            rows = np.array([row for row in bound if row is not None], dtype=np.int64)
            for scope in self._scopes[group.index]:
                if len(rows):
                    np.add.at(self._of(scope), rows, 1)
                left = self._left.setdefault(scope, {})
                for kind, members in group.members.items():
                    left[kind] = left.get(kind, 0) + len(members)

    def note(self, leaf: int, kind: int, nodes: Ints, amounts: Ints) -> None:
        """Count pods that are placed, or with negative amounts taken back."""
        total = int(amounts.sum())
        for scope in self._scopes[leaf]:
            self._of(scope)[nodes] += amounts
            self._left[scope][kind] -= total
            for domain, pods in self._opened.get(scope, {}).values():
                inside = domain[nodes] >= 0
                np.add.at(pods, domain[nodes][inside], amounts[inside])

    def order_nodes(
        self,
        leaf: CompiledGroup,
        kind: int,
        nodes: Ints,
        fit: Ints,
        *,
        given: Ints,
        want: int,
        scores: Ints | None,
    ) -> Ints:
        """Order nodes for pods of one kind of a leaf; those that are not needed are left out.

        Args:
            fit: How many of them fit on each.
            given: How many each gets in any case, beside these.
            scores: Of the nodes, by the soft rules of pods; None: all are equal.
        """
        scope = self._scopes[leaf.index][0]
        left = max(want, self._left[scope][kind] - int(given.sum()))
        used = self._of(scope)[nodes] + given > 0
        inside = leaf.level.keys  # all of these nodes are in one domain of each
        domains = [domain[nodes] for key, domain in self._levels(scope) if key not in inside]
        parts: list[Ints] = []
        rows = _Rows(fit, used, scores)
        _arrange(np.flatnonzero(fit > 0), rows, domains, left, want, parts)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def narrowed(self, leaf: CompiledGroup, kind: int, want: int, counts: DomainCounts) -> Ints:
        """Return the nodes of the domains that `order_nodes` uses for a leaf that can be anywhere; it saves looking at all nodes.

        Not where nodes have scores.
        """
        scope = self._scopes[leaf.index][0]
        left = max(want, self._left[scope][kind])
        table = self._problem.node_table
        nodes = [np.arange(table.size, dtype=np.int64)]
        above: tuple[str, int] | None = None  # the last key, of which one domain is enough
        for key, domain in self._levels(scope):
            totals = counts(kind, key, domain)
            inside = np.arange(len(totals), dtype=np.int64)
            if above is not None:
                outer = table.outer_domains(key, above[0])
                if outer is None:
                    break
                inside = np.flatnonzero(outer == above[1])
            opened = self._opened_domains(scope, key, domain)[inside] > 0
            chosen = inside[fewest_first(totals[inside], opened, None, left)]
            enough = int(np.searchsorted(np.cumsum(totals[chosen]), want)) + 1
            if enough > len(chosen):
                break
            members = table.own_domains(key).members
            nodes = [members(each) for each in chosen[:enough].tolist()]
            if enough > 1:
                break
            above = (key, int(chosen[0]))
        return np.sort(np.concatenate(nodes))

    def order_domains(
        self,
        group: CompiledGroup,
        capacity: Callable[[CompiledGroup, DomainKey, Ints], Ints],
        scores: Sequence[DomainColumn],
    ) -> list[DomainColumn]:
        """Return the columns by which domains of a group are sorted, the most important first.

        Slices are alike: one that fits into a used domain never needs another one for that, and a domain of any level counts with the
        whole slices that it can hold.

        Args:
            capacity: How many pods each domain of a level can hold, of a leaf or a slice those of its kinds.
            scores: The column of the scores by the soft rules of pods, if there are some.
        """
        scope = self._scopes[group.parent if group.parent >= 0 else group.index][0]
        sliced = is_slice(group.source.key)
        kinds: Iterable[int] = group.members if group.leaf else self._left[scope]
        if sliced:
            kinds = self._problem.kinds_below(group)
        left = sum(self._left[scope].get(kind, 0) for kind in kinds)
        if group.exclusive and group.leaf:  # the others of the scope cannot be in its domain
            left = group.size
        fewest: list[DomainColumn] = []
        tightest: list[DomainColumn] = []
        slices = self._slices(group, capacity) if sliced else None
        if slices is not None and not group.leaf:
            # a used domain is not tried first when it has no place for a whole one
            holds_one = slices.pods >= slices.each
            fewest.append(lambda domains: ~holds_one[domains])
        for key, domain, outer in self._wider_levels(group.level, scope):
            opened = self._opened_domains(scope, key, domain)
            free = capacity(group, key, domain)
            whole = free if slices is None else slices.whole(outer, len(free), left)
            level = _OuterLevel(outer, free, whole, opened, left)
            first = (level.unused, level.lacks) if sliced else (level.lacks, level.unused)
            fewest += [*first, level.largest]
            tightest.append(level.free if sliced else level.tightest)
        return [*fewest, *scores, *tightest]

    def _slices(
        self, group: CompiledGroup, capacity: Callable[[CompiledGroup, DomainKey, Ints], Ints]
    ) -> _Slices:
        """Return what the domains of a slice can hold; pods of slices inside it count where whole ones have place."""
        problem, level = self._problem, group.level
        each = self._pods_below(group)
        if group.leaf:
            return _Slices(capacity(group, level.keys, level.domain), each)
        # those with bound pods have fewer to place
        inner = max((problem.groups[child] for child in group.children), key=self._pods_below)
        outer = problem.node_table.up(inner.level.keys, level.keys)
        return _Slices(self._slices(inner, capacity).whole(outer, level.count, 0), each)

    def _pods_below(self, group: CompiledGroup) -> int:
        """Return the number of waiting members of a group, and of those below it."""
        return sum(each.size for each in self._problem.below(group))

    def _opened_domains(self, scope: int, key: DomainKey, domain: Ints) -> Ints:
        """Return the pods of a scope per domain."""
        opened = self._opened.setdefault(scope, {})
        if key not in opened:
            pods = np.zeros(int(domain.max(initial=-1)) + 1, dtype=np.int64)
            if scope in self.used:
                rows = np.flatnonzero(self.used[scope])  # few of all nodes
                rows = rows[domain[rows] >= 0]
                np.add.at(pods, domain[rows], self.used[scope][rows])
            opened[key] = (domain, pods)
        return opened[key][1]

    def _of(self, scope: int) -> Ints:
        if scope not in self.used:
            self.used[scope] = np.zeros(self._problem.node_table.size, dtype=np.int64)
        return self.used[scope]

    def _levels(self, scope: int) -> list[tuple[str, Ints]]:
        """Return the keys of a scope and their domains per node, the widest first; a node without the label is one of its own.

        Without keys that each node has another value of: nodes are compared after the levels in any case.
        """
        table, shared = self._problem.node_table, self._problem.levels
        preferred = self._problem.groups[scope].source.preferred or ()
        # a key that is on no node divides none
        keys = tuple(key for key in preferred if table.label(key)[1])
        if not keys:
            keys = shared
        elif keys[0] in shared:  # inside its narrowest domain, those that are narrower
            inner = shared[: shared.index(keys[0])]
            keys = (*(key for key in inner if key not in keys), *keys)
        if keys not in self._domains:
            self._domains[keys] = [
                (key, table.own_domains(key).domain) for key in reversed(keys) if table.divides(key)
            ]
        return self._domains[keys]

    def _wider_levels(self, level: Level, scope: int) -> list[tuple[DomainKey, Ints, Ints]]:
        """Return the levels of a scope of which each domain of `level` is in one domain, that domain, and `level` itself last."""
        if (level.keys, scope) not in self._wider:
            rows = np.flatnonzero(level.domain >= 0)
            inner = level.domain[rows]
            wider: list[tuple[DomainKey, Ints, Ints]] = []
            for key, domain in self._levels(scope):
                outer = np.zeros(level.count, dtype=np.int64)
                outer[inner] = domain[rows]
                if (outer[inner] == domain[rows]).all():
                    wider.append((key, domain, outer))
            wider.append((level.keys, level.domain, np.arange(level.count, dtype=np.int64)))
            self._wider[level.keys, scope] = wider
        return self._wider[level.keys, scope]


class _OuterLevel(NamedTuple):
    """The domains of a level that those of a group are in; its methods return a column for some domains of the group."""

    outer: Ints  # of each domain of the group
    capacity: Ints  # pods that each domain of the level can hold
    whole: Ints  # those of them that come in whole slices
    opened: Ints  # pods that each of them has
    left: int  # pods to place

    def unused(self, domains: Ints) -> Bools:
        """Return whether no pod is there."""
        return np.equal(self.opened[self.outer[domains]], 0)

    def lacks(self, domains: Ints) -> Bools:
        """Return whether there is too little capacity for all that is left."""
        return self.whole[self.outer[domains]] < self.left

    def largest(self, domains: Ints) -> Ints:
        """Return the negative capacity of those that lack some."""
        whole = self.whole[self.outer[domains]]
        return np.where(whole >= self.left, 0, -whole)

    def tightest(self, domains: Ints) -> Ints:
        """Return the capacity of those that lack none."""
        free = self.free(domains)
        return np.where(free >= self.left, free, 0)

    def free(self, domains: Ints) -> Ints:
        """Return the capacity."""
        return self.capacity[self.outer[domains]]


class _Slices(NamedTuple):
    """How many pods of slices of one size the domains of a level can hold."""

    pods: Ints  # per domain
    each: int  # pods of one slice

    def whole(self, outer: Ints, count: int, left: int) -> Ints:
        """Return how many pods in whole slices the domains of a wider level can hold, with the smaller last one where it has place.

        Args:
            outer: Of each domain, the wider one that it is in.
            count: Of wider domains.
            left: Pods to place.
        """
        each = max(self.each, 1)
        whole, last = self.pods // each * each, left % each
        sums = np.bincount(outer, weights=whole, minlength=count).astype(np.int64)
        if last:
            sums[outer[self.pods - whole >= last]] += last
        return sums


class _Rows(NamedTuple):
    """Of each node: how many pods it can get, whether it is used already, its score."""

    fit: Ints
    used: Bools
    scores: Ints | None  # None: all are equal


def _arrange(
    positions: Ints, rows: _Rows, levels: Sequence[Ints], left: int, want: int, parts: list[Ints]
) -> int:
    """Append the order of some positions to `parts`, level by level.

    Args:
        levels: The domains of the nodes, the widest level first.
        left: The pods for which the domains are chosen.
        want: The pods for which nodes are needed.

    Returns:
        How many pods the appended nodes can get.
    """
    if not levels:
        placed = 0
        scores = rows.scores
        groups = [positions]
        if scores is not None:
            groups = [positions[scores[positions] == s] for s in np.unique(scores[positions])[::-1]]
        for equal in groups:
            order = fewest_first(rows.fit[equal], rows.used[equal], None, left - placed)
            parts.append(equal[order])
            placed += int(rows.fit[parts[-1]].sum())
            if placed >= left:
                break
        return placed
    domain = levels[0][positions]
    if len(positions) and (domain == domain[0]).all():
        return _arrange(positions, rows, levels[1:], left, want, parts)
    totals = np.bincount(domain, weights=rows.fit[positions]).astype(np.int64)
    opened = np.bincount(domain, weights=rows.used[positions]) > 0
    sums: Ints | None = None
    if rows.scores is not None:
        sums = largest_sums(domain, rows.fit[positions], rows.scores[positions], left, len(totals))
    placed = 0
    for chosen in fewest_first(totals, opened, sums, left).tolist():
        inside = positions[domain == chosen]
        placed += _arrange(inside, rows, levels[1:], left - placed, want - placed, parts)
        if placed >= want:
            break
    return placed


def fewest_first(totals: Ints, used: Bools, scores: Ints | None, left: int) -> Ints:
    """Return which domains to use for so many pods, in order.

    The used ones, then the largest; last, of those that hold the rest, the one with the highest score, the tightest of equal ones.
    Without `scores` all are equal.

    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([False] * 4), None, 8)
    array([1, 2])
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([False] * 4), np.array([0, 0, 0, 1]), 8)
    array([1, 3])
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([True, False, False, False]), None, 2)
    array([0])
    """
    if scores is None:
        keys = -totals
        if used.any():
            keys[~used] += int(totals.max()) + 1
        order = sorted_stably(keys)
    else:
        order = np.lexsort((-scores, -totals, ~used))  # stable: equal ones by position
    order = order[totals[order] > 0]
    sums = np.cumsum(totals[order])
    taken = int(np.searchsorted(sums, left))
    if taken >= len(order):
        return order
    rest = left - (int(sums[taken - 1]) if taken else 0)
    others = order[taken:]
    others = others[totals[others] >= rest]
    if used[others].any():
        others = others[used[others]]
    if scores is not None:
        others = others[scores[others] == scores[others].max()]
    last = others[totals[others] == totals[others].min()].min()
    return np.append(order[:taken], last)


def first_pods(amounts: Ints, want: int) -> Ints:
    """Return the first so many of some pods, in order.

    >>> first_pods(np.array([2, 0, 3, 1]), 4)
    array([2, 0, 2, 0])
    """
    sums = np.minimum(np.cumsum(amounts), want)
    sums[1:] -= sums[:-1].copy()
    return sums


def sorted_stably(keys: Ints) -> Ints:
    """Return the positions of some keys in their order, those of equal ones as they are."""
    if keys.min(initial=0) > -SMALL and keys.max(initial=0) < SMALL:
        keys = keys.astype(np.int16)  # sorted in linear time
    return np.argsort(keys, kind="stable")


def node_scores(problem: PlacementProblem) -> Ints | None:
    """Return the score of each node for a pod of each kind, shape (kinds, nodes); None if no pod prefers any node.

    As kube-scheduler does, a kind compares the nodes on which a pod of it fits now; those on which none fits have no meaning.

    Source:
        Plugins TaintToleration, NodeAffinity, InterPodAffinity and PodTopologySpread: Score and NormalizeScore.
    """
    table = problem.node_table
    avoided = any(t.effect == "PreferNoSchedule" for taints in table.taints()[1] for t in taints)
    if not avoided and not problem.preferences and not any(s.soft for s in problem.shapes):
        return None
    scores = np.zeros((len(problem.kinds), table.size), dtype=np.int64)
    for kind, shape in enumerate(problem.shapes):
        feasible = problem.counts[kind] > 0
        if not feasible.any():
            continue
        if avoided:
            scores[kind] += TAINTS_WEIGHT * _fewest(avoided_taints(table, shape), feasible)
        if shape.soft and shape.soft.nodes:
            scores[kind] += AFFINITY_WEIGHT * _most(_preferred_nodes(table, shape), feasible)
        own = [p for p in problem.preferences if problem.kinds[kind] in p.shapes]
        if about := [p for p in own if p.kind != "spread"]:
            scores[kind] += PODS_WEIGHT * _between(_near_pods(table, about), feasible)
        if spread := [p for p in own if p.kind == "spread"]:
            scores[kind] += SPREAD_WEIGHT * _evenly(table, shape, spread, feasible)
    return scores if (scores != scores[:, :1]).any() else None


def domain_scores(scores: Ints, counts: Ints, level: Level, pods: Mapping[int, int]) -> Ints:
    """Return for each domain the largest sum of the scores of so many pods of each kind there.

    Each kind is counted as if it were alone, so that the sum may be out of reach: it only decides which domain is tried first.

    Args:
        counts: Pods of each kind that fit on each node.
    """
    sums = np.zeros(level.count, dtype=np.int64)
    for kind, amount in pods.items():
        nodes = np.flatnonzero((level.domain >= 0) & (counts[kind] > 0))
        domain, fit, score = level.domain[nodes], counts[kind][nodes], scores[kind][nodes]
        sums += largest_sums(domain, fit, score, amount, level.count)
    return sums


def largest_sums(domain: Ints, fit: Ints, scores: Ints, amount: int, count: int) -> Ints:
    """Return for each domain the largest sum of the scores of so many pods there, shape (count,).

    Args:
        fit: How many of the pods fit on each node.
    """
    order = np.lexsort((-scores, domain))
    domain, fit = domain[order], np.minimum(fit[order], amount)
    before = np.cumsum(fit) - fit
    first = np.searchsorted(domain, domain)  # of the nodes of the same domain
    taken = np.clip(amount - (before - before[first]), 0, fit)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, domain, taken * scores[order])
    return sums


def uncounted_preferences(request: PlanRequest) -> Iterator[str]:
    """Yield what no score takes into account, of the preferences of the waiting members."""
    for shape in request.shapes:
        if shape.soft:
            yield from shape.soft.unseen
    for preference in request.preferences or ():
        if preference.among:
            words = {"near": "pod affinity", "apart": "pod anti-affinity", "spread": "spread"}
            yield f"preferred {words[preference.kind]} over {preference.key} among its own members"


def _preferred_nodes(table: NodeTable, shape: PodShape) -> Ints:
    weights = np.zeros(table.size, dtype=np.int64)
    for preferred in shape.soft.nodes if shape.soft else ():
        weights += preferred.weight * matches(table, preferred.term)
    return weights


def _near_pods(table: NodeTable, preferences: list[PlanPreference]) -> Ints:
    """Return per node the weighted number of pods in its domains, less those that the pod prefers to be away from."""
    sums = np.zeros(table.size, dtype=np.int64)
    for preference in preferences:
        codes, values = table.label(preference.key)
        placed = dict(preference.there)
        amounts = np.array([*(placed.get(value, 0) for value in values), 0], dtype=np.int64)
        sign = -1 if preference.kind == "apart" else 1
        sums += sign * preference.weight * amounts[codes]  # code -1 picks the last entry
    return sums


def _evenly(
    table: NodeTable, shape: PodShape, preferences: list[PlanPreference], feasible: Bools
) -> Ints:
    """Return the scores by spread: the fewer pods are in the domains of a node, the more; 0 for a node without one of the keys."""
    sums = np.zeros(table.size, dtype=np.int64)
    labelled = feasible.copy()
    for preference in preferences:
        labelled &= table.label(preference.key)[0] >= 0
    if not labelled.any():
        return sums
    for preference in preferences:
        codes, values = table.label(preference.key)
        counted = codes >= 0
        if preference.honors_affinity:
            counted &= selected(table, shape)
        if preference.honors_taints:
            counted &= tolerated(table, shape, cordons=False)
        placed = dict(preference.there)
        pods = np.array([placed.get(node.name, 0) for node in table.nodes], dtype=np.int64)
        amounts = np.bincount(codes[counted], weights=pods[counted], minlength=len(values))
        domains = len(np.unique(codes[labelled]))
        weight = round(_FINE * math.log(domains + 2))
        sums += amounts.astype(np.int64)[codes] * weight + _FINE * (preference.skew - 1)
    sums = (sums + _FINE // 2) // _FINE
    most, least = int(sums[labelled].max()), int(sums[labelled].min())
    if not most:
        return np.where(labelled, SCORE_MAX, 0)
    return np.where(labelled, SCORE_MAX * (most + least - sums) // most, 0)


def _most(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of which a larger one is better, as shares of the largest."""
    most = int(raw[feasible].max())
    return SCORE_MAX * raw // most if most > 0 else np.zeros_like(raw)


def _fewest(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of which a smaller one is better."""
    return SCORE_MAX - _most(raw, feasible)


def _between(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of either sign, from the smallest to the largest."""
    least, most = int(raw[feasible].min()), int(raw[feasible].max())
    return SCORE_MAX * (raw - least) // (most - least) if most > least else np.zeros_like(raw)
