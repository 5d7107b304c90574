"""The orders of nodes and domains: compactness, which uses few of them and leaves large free domains whole, and scores by soft rules of pods.

Compactness: at each level from the widest to the narrowest, and then among nodes, the fewest domains that hold all that is left to
place; first those that the tree uses already. Of equally few, those with the fewest domains of the next level, and so on to the nodes;
of equally few nodes, the tightest domains, again the widest level first. Where several domains are needed and there are many, the
largest are taken, and only the last one is chosen so. Integers only, and every tie is broken by position.

Scores have the weights and the normalisation of kube-scheduler (K77). They are compared only between nodes that are equal by all that
comes before, and never refuse one. Pods in the cluster are counted as they are before the plan: members that are placed together do not
count for one another.
"""

from __future__ import annotations

import itertools
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
COMBINATIONS = 32  # of several domains that are compared
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
        self._wider: dict[
            tuple[tuple[str, ...], int], tuple[list[tuple[DomainKey, Ints, Ints]], int]
        ] = {}
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
        table, more = self._problem.node_table, nodes[given > 0]
        used = self._of(scope)[nodes] + given > 0
        keys, wider = self._keys(scope)

        def of_nodes(scope: int, keys: tuple[str, ...]) -> list[_RowLevel]:
            return [
                _RowLevel(domain[nodes], self._opened_domains(scope, key, domain, more) > 0)
                for key, domain in self._domains_of(keys)
                if key not in leaf.level.keys  # all of these nodes are in one domain of each
            ]

        levels, after = of_nodes(scope, keys), of_nodes(scope, wider)
        for outer in self._scopes[leaf.index][1:]:
            outer_keys, wider = self._keys(outer)
            after += [level for level in of_nodes(outer, (*wider, *outer_keys)) if level.used.any()]
        if (after or scores is not None) and not all(map(table.divides, keys)):
            levels.append(_RowLevel(np.arange(len(nodes)), used))
        rows = _Rows(fit=fit, used=used, scores=scores, levels=levels, wider=after)
        return _arranged(rows, left, want)

    def narrowed(self, leaf: CompiledGroup, kind: int, want: int, counts: DomainCounts) -> Ints:
        """Return the nodes of the domains that `order_nodes` uses for a leaf that can be anywhere; it saves looking at all nodes.

        Not where nodes have scores, or levels come after those of which few domains are to be used.
        """
        scope, *outer_scopes = self._scopes[leaf.index]
        left = max(want, self._left[scope][kind])
        table = self._problem.node_table
        keys, wider = self._keys(scope)
        if wider or any(map(any, map(self._keys, outer_scopes))):
            return np.arange(table.size, dtype=np.int64)
        nodes = [np.arange(table.size, dtype=np.int64)]
        above: tuple[str, int] | None = None  # the last key, of which one domain is enough
        for key, domain in self._domains_of(keys):
            totals = counts(kind, key, domain)
            inside = np.arange(len(totals), dtype=np.int64)
            if above is not None:
                outer = table.outer_domains(key, above[0])
                if outer is None:
                    break
                inside = np.flatnonzero(outer == above[1])
            used = self._opened_domains(scope, key, domain)[inside] > 0
            full, able = largest_first(totals[inside], used, left)
            enough = int(np.searchsorted(np.cumsum(totals[inside[full]]), want)) + 1
            if left == 1 and not used[able].any():
                able = _tightest(able, totals[inside])
            if used[full[:enough]].all() and (enough <= len(full) or len(able)):
                chosen = full[:enough] if enough <= len(full) else np.append(full, able)
                chosen = inside[chosen]
            else:
                break
            nodes = list(map(table.own_domains(key).members, chosen.tolist()))
            if len(chosen) > 1:
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
        holding: list[DomainColumn] = []
        fewest: list[list[DomainColumn]] = []  # of each level
        tightest: list[DomainColumn] = []
        slices = self._slices(group, capacity) if sliced else None
        if slices is not None and not group.leaf:
            # a used domain is not tried first when it has no place for a whole one
            holds_one = slices.pods >= slices.each
            holding.append(lambda domains: ~holds_one[domains])
        levels, after = self._wider_levels(group.level, scope)
        for key, domain, outer in levels:
            opened = self._opened_domains(scope, key, domain)
            free = capacity(group, key, domain)
            whole = free if slices is None else slices.whole(outer, len(free), left)
            level = _OuterLevel(outer, free, whole, opened, left)
            first = (level.unused, level.lacks) if sliced else (level.lacks, level.unused)
            fewest.append([*first, level.largest])
            tightest.append(level.free if sliced else level.tightest)
        order = (holding, *fewest[after:], *fewest[:after], scores, tightest)
        return [*itertools.chain.from_iterable(order)]

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

    def _opened_domains(
        self, scope: int, key: DomainKey, domain: Ints, more: Ints | None = None
    ) -> Ints:
        """Return the pods of a scope per domain, with one more on each of some nodes."""
        opened = self._opened.setdefault(scope, {})
        if key not in opened:
            pods = np.zeros(int(domain.max(initial=-1)) + 1, dtype=np.int64)
            if scope in self.used:
                rows = np.flatnonzero(self.used[scope])  # few of all nodes
                rows = rows[domain[rows] >= 0]
                np.add.at(pods, domain[rows], self.used[scope][rows])
            opened[key] = (domain, pods)
        pods = opened[key][1]
        if more is not None and len(more):
            pods = pods.copy()
            pods[domain[more]] += 1
        return pods

    def _of(self, scope: int) -> Ints:
        if scope not in self.used:
            self.used[scope] = np.zeros(self._problem.node_table.size, dtype=np.int64)
        return self.used[scope]

    def _keys(self, scope: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the keys of a scope of which it is to have few domains, the widest first, and wider ones that come after them.

        These are its preferred keys with the narrower ones of the cluster, else all of the cluster.
        """
        table, shared = self._problem.node_table, self._problem.levels
        preferred = self._problem.groups[scope].source.preferred or ()
        # a key that is on no node divides none
        keys = tuple(key for key in preferred if table.label(key)[1])
        wider: tuple[str, ...] = ()
        if not keys:
            keys = shared
        elif keys[0] in shared:  # inside its narrowest domain, those that are narrower
            inner, outer = shared[: shared.index(keys[0])], shared[shared.index(keys[0]) :]
            wider = tuple(key for key in outer if key not in keys)
            keys = (*(key for key in inner if key not in keys), *keys)
        return keys[::-1], wider[::-1]

    def _domains_of(self, keys: tuple[str, ...]) -> list[tuple[str, Ints]]:
        """Return those of some keys that some nodes share a value of, and their domains per node; a node without the label is one of its own.

        Nodes are compared after the levels in any case.
        """
        table = self._problem.node_table
        if keys not in self._domains:
            self._domains[keys] = [
                (key, table.own_domains(key).domain) for key in keys if table.divides(key)
            ]
        return self._domains[keys]

    def _wider_levels(
        self, level: Level, scope: int
    ) -> tuple[list[tuple[DomainKey, Ints, Ints]], int]:
        """Return the levels of a scope of which each domain of `level` is in one domain, that domain, and `level` itself last.

        Also return how many of them, the first ones, come after the others where few domains are concerned.
        """
        if (level.keys, scope) not in self._wider:
            rows = np.flatnonzero(level.domain >= 0)
            inner = level.domain[rows]
            keys, after = self._keys(scope)
            lists: list[list[tuple[DomainKey, Ints, Ints]]] = [[], []]
            for some, levels in zip((after, keys), lists, strict=True):
                for key, domain in self._domains_of(some):
                    outer = np.zeros(level.count, dtype=np.int64)
                    outer[inner] = domain[rows]
                    if (outer[inner] == domain[rows]).all():
                        levels.append((key, domain, outer))
            own = (level.keys, level.domain, np.arange(level.count, dtype=np.int64))
            self._wider[level.keys, scope] = [*lists[0], *lists[1], own], len(lists[0])
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


class _RowLevel(NamedTuple):
    """The domains of a level."""

    domain: Ints  # of each node
    used: Bools  # whether the scope has pods there already


class _Rows(NamedTuple):
    """Of each node: how many pods it can get, whether it is used already, its score; and its domains."""

    fit: Ints
    used: Bools
    scores: Ints | None  # None: all are equal
    levels: list[_RowLevel]  # of which few domains are to be used, the widest first
    wider: list[_RowLevel]  # that come after them


def _arranged(rows: _Rows, left: int, want: int) -> Ints:
    """Return the order of the nodes.

    Args:
        left: The pods for which domains are chosen.
        want: The pods for which nodes are needed.
    """
    positions = np.flatnonzero(rows.fit > 0)
    for at in range(len(rows.levels)):
        positions = _inside_fewest(positions, rows, at, left, want)
    if not len(positions):
        return positions
    scores = None if rows.scores is None else rows.scores[positions]
    groups = [positions]
    if scores is not None:
        groups = [positions[scores == score] for score in np.unique(scores)[::-1]]
    parts: list[Ints] = []
    for equal in groups:
        parts.append(equal[fewest_first(rows.fit[equal], rows.used[equal], left)])
        left -= int(rows.fit[parts[-1]].sum())
        if left <= 0:
            break
    return np.concatenate(parts)


def _inside_fewest(positions: Ints, rows: _Rows, at: int, left: int, want: int) -> Ints:
    """Return those of some nodes that are in the domains to use of a level."""
    domain = rows.levels[at].domain[positions]
    if not len(positions) or (domain == domain[0]).all():
        return positions
    totals = _sums(domain, rows.fit[positions])
    used = rows.levels[at].used[: len(totals)]
    full, able = largest_first(totals, used, left)
    opened = full[~used[full]]
    full = full[used[full]]
    if int(totals[full].sum()) < want:
        unused = np.flatnonzero((totals > 0) & ~used)
        several = len(opened) > 0 and len(able) > 0 and not used[able].any()
        number = len(opened) + 1
        if several and math.comb(len(unused), number) <= COMBINATIONS:
            rest = left - int(totals[full].sum())
            sets = np.array(list(itertools.combinations(unused.tolist(), number)), dtype=np.int64)
            sets = sets[totals[sets].sum(axis=1) >= rest]
            opened = opened[:0]
        else:
            rest = left - int(totals[full].sum() + totals[opened].sum())
            plain = rows.scores is None and not rows.wider and not used[able].any()
            if rest == 1 and plain:  # only tightness differs
                able = _tightest(able, totals)
            sets = able[:, None]
        best = sets[0] if len(sets) else able
        if len(sets) > 1:
            members = [np.isin(domain, some) for some in sets] if sets.shape[1] > 1 else None
            if members is None:
                position = np.full(len(totals), -1, dtype=np.int64)
                position[sets[:, 0]] = np.arange(len(sets))
                of = position[domain]
                inside = positions[of >= 0]
                of = of[of >= 0]
            else:
                of = np.repeat(np.arange(len(sets)), [int(each.sum()) for each in members])
                inside = np.concatenate([positions[each] for each in members])
            best = sets[_best_set(of, inside, rows, at, rest)]
        full = np.concatenate((full, opened, best[np.argsort(-totals[best], kind="stable")]))
    enough = int(np.searchsorted(np.cumsum(totals[full]), want)) + 1
    return positions[np.isin(domain, full[:enough])]


def _best_set(of: Ints, positions: Ints, rows: _Rows, at: int, pods: int) -> int:
    """Return the number of the best of some sets of nodes that each hold some pods, in equally many unused domains of a level.

    It opens the fewest domains of the narrower levels, the next one first; then it has the highest score, the fewest nodes, and is the
    tightest at each level. A domain of these levels that holds all of the pods is used where there is one, else the largest ones are.

    Args:
        of: The set of each position.
    """
    fit = rows.fit[positions]
    domains, unused = [of], [np.zeros(0, dtype=np.bool_)]
    for level in rows.levels[at + 1 :]:
        inner = level.domain[positions]
        inner = numbered(domains[-1] * (int(inner.max()) + 1) + inner)  # levels may overlap
        is_unused = np.zeros(int(inner.max()) + 1, dtype=np.bool_)
        is_unused[inner] = ~level.used[level.domain[positions]]
        domains.append(inner)
        unused.append(is_unused)
    domains.append(np.arange(len(positions)))
    unused.append(~rows.used[positions])
    totals = [*(_sums(domain, fit) for domain in domains[:-1]), fit]
    opened: list[Ints] = []  # of each narrower level, per domain
    tight: list[Ints] = []  # the capacity of the one that holds all
    for narrow in range(len(domains) - 1, 0, -1):
        outer = _of_first(domains[narrow], domains[narrow - 1])
        count = len(totals[narrow - 1])
        holds, is_unused = totals[narrow] >= pods, unused[narrow]
        if holds.any():
            place = (outer * 2 + ~holds) * 2 + is_unused
            if opened:
                order = np.lexsort((place, *opened, totals[narrow], *tight)[::-1])
            else:
                order = sorted_stably(place * (int(totals[narrow].max()) + 1) + totals[narrow])
            inner = order[np.searchsorted(outer[order], np.arange(count))]  # the best in each
        else:
            inner = np.zeros(count, dtype=np.int64)
        opened = [is_unused[inner].astype(np.int64), *(column[inner] for column in opened)]
        tight = [totals[narrow][inner], *(column[inner] for column in tight)]
        several = np.flatnonzero(~holds[inner])
        for column in tight if len(several) else ():
            column[several] = 0
        for deep, column in enumerate(opened, narrow) if len(several) else ():
            within = _of_first(domains[deep], domains[narrow - 1])
            need = np.full(count, pods, dtype=np.int64)
            order, amounts = filled(within, totals[deep], need, ~unused[deep])
            added = order[(amounts > 0) & unused[deep][order]]
            column[several] = np.bincount(within[added], minlength=count)[several]
    wider: list[Ints] = []
    wider_totals: list[Ints] = []
    for level in rows.wider:
        outer = level.domain[positions]
        both = numbered(of * (int(outer.max()) + 1) + outer)
        of_both, outer = _of_first(both, of), _of_first(both, outer)
        capacity = _sums(level.domain, rows.fit)[outer]
        wider.append(_sums(of_both, ~level.used[outer]))
        wider_totals.append(_sums(of_both, capacity))
    *opened, on_nodes = opened
    scored: list[Ints] = []
    if rows.scores is not None:
        scored = [-largest_sums(of, fit, rows.scores[positions], pods, len(totals[0]))]
    compared = (*wider, *opened, *scored, on_nodes, *wider_totals, totals[0], *tight)
    return int(np.lexsort(compared[::-1])[0])


def _sums(domain: Ints, values: Ints | Bools) -> Ints:
    """Return the sum of some values in each domain."""
    return np.bincount(domain, weights=values).astype(np.int64)


def _of_first(domain: Ints, values: Ints) -> Ints:
    """Return for each domain the value of a node in it."""
    of_domain = np.zeros(int(domain.max(initial=-1)) + 1, dtype=np.int64)
    of_domain[domain] = values
    return of_domain


def fewest_first(totals: Ints, used: Bools, left: int) -> Ints:
    """Return which domains to use for so many pods, in order: the used ones, then the largest; last, of those that hold the rest, the tightest.

    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([False] * 4), 8)
    array([1, 2])
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([True, False, False, False]), 2)
    array([0])
    """
    full, able = largest_first(totals, used, left)
    if not len(able):
        return full
    return np.append(full, _tightest(able, totals).min())


def largest_first(totals: Ints, used: Bools, left: int) -> tuple[Ints, Ints]:
    """Return which domains to fill with so many pods, in order, and those of which each holds the rest: used ones if there are some.

    If none holds the rest, all domains are filled.
    """
    keys = -totals
    if used.any():
        keys[~used] += int(totals.max()) + 1
    order = sorted_stably(keys)
    order = order[totals[order] > 0]
    sums = np.cumsum(totals[order])
    taken = int(np.searchsorted(sums, left))
    if taken >= len(order):
        return order, order[:0]
    rest = left - (int(sums[taken - 1]) if taken else 0)
    able = order[taken:]
    able = able[totals[able] >= rest]
    if used[able].any():
        able = able[used[able]]
    return order[:taken], able


def _tightest(domains: Ints, totals: Ints) -> Ints:
    """Return those of some domains with the least capacity."""
    return domains[totals[domains] == totals[domains].min()] if len(domains) else domains


def first_pods(amounts: Ints, want: int) -> Ints:
    """Return the first so many of some pods, in order.

    >>> first_pods(np.array([2, 0, 3, 1]), 4)
    array([2, 0, 2, 0])
    """
    sums = np.minimum(np.cumsum(amounts), want)
    sums[1:] -= sums[:-1].copy()
    return sums


def filled(of: Ints, capacity: Ints, pods: Ints, opened: Bools | None = None) -> tuple[Ints, Ints]:
    """Return the domains in the order of their regions, those with most capacity first, and the pods that each of them gets so.

    No other way uses fewer domains of a region for as many pods.

    Args:
        of: The region of each domain.
        pods: Of each region.
        opened: Domains that come before all others.

    >>> filled(np.array([0, 0, 1, 1]), np.array([2, 5, 4, 3]), np.array([6, 4]))
    (array([1, 0, 2, 3]), array([5, 1, 4, 0]))
    """
    place = of * 2 if opened is None else of * 2 + ~opened
    order = sorted_stably(place * (int(capacity.max(initial=0)) + 1) - capacity)
    of, capacity = of[order], capacity[order]
    before = np.cumsum(capacity) - capacity
    if len(pods) > 1:
        first = np.searchsorted(of, np.arange(len(pods)))
        before -= np.append(before, 0)[first][of]
    return order, np.minimum(np.maximum(pods[of] - before, 0), capacity)


def numbered(codes: Ints) -> Ints:
    """Return some numbers as numbers from 0 on, in their order.

    >>> numbered(np.array([7, 3, 7]))
    array([1, 0, 1])
    """
    most = codes.max(initial=0)
    if most == codes.min(initial=most):
        return np.zeros(len(codes), dtype=np.int64)
    if most > len(codes) * 16:
        return np.unique(codes, return_inverse=True)[1].reshape(-1)
    occurs = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    occurs[codes] = 1
    return (np.cumsum(occurs) - 1)[codes]


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
