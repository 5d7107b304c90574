"""More empty nodes as a way out: how many, like which node, and in which domain; each is verified by the caller's search."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec import UnsetType

from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import domain_text
from extender.core.planner.explain.refusal_causes import failing, held_in, placeable
from extender.core.planner.model.node_table import Ints, NodeTable, may_run
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem, open_nodes
from extender.core.planner.plan_types import (
    AddedNodes,
    ConflictKind,
    PlanExclusive,
    PlanNode,
    PlanRequest,
    Relaxation,
)
from extender.core.planner.solve.solver_pipeline import Solved

NODES_ADDED_MAX = 1_000
LEAVES_MAX = 5  # for which more nodes are tried
DOMAINS_MAX = 2  # of one leaf, those with the smallest shortfall first
MODELS_MAX = 8  # kinds of nodes that are tried where nodes for the shortfalls do not help
STEPS_MAX = 6  # numbers of nodes that are tried where more nodes than needed could harm
HOSTNAME = "kubernetes.io/hostname"

Counts = dict[NodeName, int]  # existing node -> more nodes like it
FitsWith = Callable[[tuple[PlanNode, ...]], bool | None]


def more_nodes(
    solved: Solved, request: PlanRequest, kinds: set[ConflictKind], fits_with: FitsWith
) -> list[Relaxation]:
    """Return additional empty nodes with which the tree fits; nothing if the search finds none.

    No smaller number of one kind is enough, as far as the search goes.

    Where rules between pods or exclusive groups count domains, nodes in the domains that there are, each in a new one and all in one new
    domain are compared. Nodes for one leaf in one domain are tried first, then for several leaves together, then nodes of every kind.

    Args:
        kinds: Those of the requirements that conflict.
        fits_with: Returns whether the tree fits with some more nodes; None: not found within the budget.
    """
    if kinds.isdisjoint({"resources", "selector", "exclusive"}):
        return []
    least: tuple[int, Relaxation] | None = None
    keys = {key for rule in request.rules for key in rule.keys}
    keys |= {group.exclusive for group in solved.problem.groups if group.exclusive}
    keys |= {domains.key for domains in _closed(request)}
    others = [k for k in sorted(keys) if not _is_name(solved.problem.node_table, k)]
    table, asked = solved.problem.node_table, _asked_keys(solved.problem)
    near = tuple(key for rule in request.rules if rule.kind == "near" for key in rule.keys)
    narrower = {k: _narrower(table, asked, k) for k in others}
    # pods that must be in one domain need all new nodes there; elsewhere each may have its own
    shared = [k for k in others if not _narrower(table, asked + near, k).isdisjoint(asked + near)]
    # that each domain of a key is in one of another key may be chance, where it has no more domains than that
    count = {k: len(table.label(k)[1]) for k in {*others, *asked}}
    alone = [k for k in others if any(count[n] <= count[k] for n in narrower[k] - {k})]
    forms = [
        _Domains(),
        *(_Domains(flipped=k, own=narrower[k]) for k in others),
        *(_Domains(common=narrower[k]) for k in shared),
        *(_Domains(flipped=k) for k in alone),
        *(_Domains(common=frozenset({k})) for k in alone if k in shared),
    ]
    for domains in forms:
        search = _NodeSearch(solved, request, fits_with, domains)
        counts = search.for_shortfalls() or search.of_any_kind()
        number = sum(counts.values())
        if counts and (least is None or number < least[0]):
            least = number, search.relaxation(counts)
        if least is not None and least[0] == 1:
            break
    return [least[1]] if least is not None else []


class _Domains(msgspec.Struct, frozen=True):
    """The domains of new nodes, where they are other ones than usual.

    Attributes:
        flipped: A key of which the new nodes have a domain of their own, or not, against what is usual; empty: none.
        own: Keys of which each has a domain of its own, if it has one of `flipped`.
        common: Keys of which all new nodes are in one new domain.
    """

    flipped: str = ""
    own: frozenset[str] = frozenset()
    common: frozenset[str] = frozenset()


class _NodeSearch:
    """The search for the fewest more nodes, which are in the domains of those that they are like, or in new ones."""

    def __init__(
        self, solved: Solved, request: PlanRequest, fits_with: FitsWith, domains: _Domains
    ) -> None:
        self.solved = solved
        self.problem = solved.problem
        self.node_table = solved.problem.node_table
        self.request = request
        self.asked = _asked_keys(self.problem)
        selected, counted = _selected_keys(request), _counted_keys(request)
        closed = _closed(request)
        # a new node has the value that a selector asks for
        asked = selected.union(self.asked, (domains.key for domains in closed))
        self.keys = asked | counted
        self.own = _own_keys(self.node_table, asked, counted)
        # each node has another value, but a new one that of the node that it is like
        self.same = _own_keys(self.node_table, frozenset(), selected).difference(
            self.own, self.asked
        )
        self.common = domains.common
        self.own -= self.common
        if flipped := domains.flipped:
            self.own ^= {flipped}
            if flipped in self.own:
                self.own |= domains.own
            if flipped not in self.own:  # the domain of a new node is one that there is
                self.asked = tuple(dict.fromkeys((*self.asked, flipped)))
        self.each = [self._each(kind) for kind in range(len(self.problem.kinds))]
        # a new node is in the domain of the one that it is like, which another tree may have alone
        self.new = self.own | self.common  # keys of which a new node is in no domain that there is
        shared = tuple(domains for domains in closed if domains.key not in self.new)
        opened = open_nodes(msgspec.structs.replace(request, closed=shared), self.node_table)
        self.may = [
            rows if opened is None else rows & opened
            for rows in (may_run(self.node_table, shape) for shape in self.problem.shapes)
        ]
        self.admitted = self._admitted()
        self._fits_with = fits_with
        self._known: dict[frozenset[tuple[NodeName, int]], bool | None] = {}
        # a new node is one more domain over which pods must be spread
        self.harmless = not any(rule.kind == "spread" for rule in request.rules)

    def _admitted(self) -> Ints:
        """Return for each node whether a pod of the tree may be on one like it by the rules about pods that run, as 0 or 1."""
        masks = self.problem.rules.masks
        in_new_domains = any(self.new.intersection(rule.keys) for rule in self.request.rules)
        if in_new_domains or not all(shape in masks for shape in self.problem.kinds):
            return np.ones(self.node_table.size, dtype=np.int64)
        admitted: Ints = np.any([masks[shape] for shape in self.problem.kinds], axis=0).astype(
            np.int64
        )
        return admitted

    def fits(self, counts: Counts) -> bool:
        """Return whether the tree fits with so many more nodes."""
        if not 0 < sum(counts.values()) <= NODES_ADDED_MAX:
            return False
        key = frozenset(counts.items())
        if key not in self._known:
            self._known[key] = self._fits(counts)
        return self._known[key] is True

    def _fits(self, counts: Counts) -> bool | None:
        nodes = self.node_table.nodes
        new = (
            _copy(nodes[self.node_table.index[name]], number, self.own, self.common)
            for name, count in counts.items()
            for number in range(count)
        )
        return self._fits_with(tuple(new))

    def relaxation(self, counts: Counts) -> Relaxation:
        """Return the nodes as a change."""
        added = tuple(
            AddedNodes(
                like=name,
                count=count,
                own_labels=tuple(sorted(self.own)),
                common_labels=tuple(sorted(self.common)),
            )
            for name, count in counts.items()
        )
        text = " and ".join(self._text(name, count) for name, count in counts.items())
        # the budget ended before fewer nodes of the same kinds were ruled out
        if any(
            answer is None and all(counts.get(name, 0) >= count for name, count in key)
            for key, answer in self._known.items()
        ):
            text += " (fewer may do: the search was cut short)"
        return Relaxation(kind="nodes", text=text, added=added)

    def _text(self, name: NodeName, count: int) -> str:
        labels = self.node_table.nodes[self.node_table.index[name]].labels
        place = "/".join(
            domain_text(k, labels[k]) for k in self.asked if k in labels and k not in self.new
        )
        narrowest_first = sorted(
            self.common.intersection(labels), key=lambda k: (-len(self.node_table.label(k)[1]), k)
        )
        domains = [*(f"one new {key}" for key in narrowest_first), *([place] if place else [])]
        apart = sorted(
            k for k in self.own & self.keys if k in labels and labels[k] != name and k != HOSTNAME
        )
        same = [f"{k}={labels[k]}" for k in sorted(self.same) if k in labels and k not in self.new]
        return (
            f"{_empty_nodes(count)} like {name}"
            + (f" in {' of '.join(domains)}" if domains else "")
            + (
                f", {'each ' if count > 1 else ''}with its own {' and '.join(apart)}"
                if apart
                else ""
            )
            + (f", with {' and '.join(same)}" if same else "")
        )

    # --- for the shortfalls of leaves ----------------------------------------------------------------

    def for_shortfalls(self) -> Counts:
        """Return nodes that make up for the shortfall of leaves, or nothing."""
        if self.common:  # what the domains that there are lack is not what a new one needs
            return {}
        leaves = failing(self.solved)
        groups = [] if leaves else self._too_large_together()
        leaves = leaves or [g for g in self.problem.groups if g.leaf and g.alive and g.least]
        of_one = [offer for group in groups for offer in self._offers_together(group)]
        offers = [list(self._offers(leaf)) for leaf in leaves[:LEAVES_MAX]]
        of_one += [offer for of_leaf in offers for offer in of_leaf]
        firsts = [of_leaf[0] for of_leaf in offers if of_leaf]
        together = [_sum(*firsts[:count]) for count in range(2, len(firsts) + 1)]
        twice = [_sum(offer, offer) for offer in of_one]
        for counts in (*of_one, *together, *twice):
            if self.fits(counts):
                return self._fewest(counts)
        return {}

    def _too_large_together(self) -> list[CompiledGroup]:
        """Return the composites that fit in no domain although each of their children does; the root if there is none."""
        best = self.solved.bounds.best
        bad = {g.index for g in self.problem.groups if g.alive and not (best[g.index] >= 0).any()}
        groups = [self.problem.groups[i] for i in sorted(bad)]
        lowest = [group for group in groups if bad.isdisjoint(group.children)]
        return lowest[:LEAVES_MAX] or self.problem.groups[:1]

    def _offers_together(self, group: CompiledGroup) -> Iterator[Counts]:
        """Yield nodes for what a group lacks of its resources, in the domains where that takes the fewest."""
        kinds = self.problem.kinds_below(group)
        offers: list[tuple[int, NodeName]] = []
        for domain in range(group.level.count):
            nodes = group.level.members(domain)
            models = (self._model_node(kind, nodes) for kind in kinds)
            counts = [
                (self._at_least(group, domain, node), node.name) for node, _ in filter(None, models)
            ]
            offers += [min(counts)] if counts else []
        for count, name in sorted(offers)[:DOMAINS_MAX]:
            yield {name: max(count, 1)}

    def _at_least(self, group: CompiledGroup, domain: int, node: PlanNode) -> int:
        """Return a lower bound on the nodes like one that a domain lacks: by each resource alone, as if pods were divisible.

        Args:
            domain: A domain of its level; -1: a new one, with nothing in it.
            node: What the new nodes are like.
        """
        axes = [i for i, name in enumerate(self.problem.axes) if name in node.allocatable]
        lacks = self._needs(group)
        if domain >= 0:
            lacks = lacks - self.problem.free[group.level.members(domain)].sum(axis=0)
        offers = {i: node.allocatable[self.problem.axes[i]] for i in axes}
        return max((-int(-lacks[i] // offers[i]) for i in axes if offers[i]), default=0)

    def _needs(self, group: CompiledGroup) -> Ints:
        """Return the least of each resource that a group needs."""
        if group.leaf:
            requests = self.problem.requests[sorted(group.members)]
            least = requests.min(axis=0) if len(requests) else np.zeros(len(self.problem.axes))
            return np.asarray(least * group.least, dtype=np.int64)
        children = [self.problem.groups[i] for i in group.children if self.problem.groups[i].alive]
        always = [self._needs(child) for child in children if child.required]
        rows = np.array([self._needs(c) for c in children if not c.required], dtype=np.int64)
        fewest = np.sort(rows, axis=0)[: max(group.minimum - len(always), 0)].sum(axis=0)
        return np.asarray(sum(always, fewest), dtype=np.int64)

    def _floor(self, name: NodeName) -> int:
        """Return a number of nodes like one below which the tree does not fit."""
        root = self.problem.groups[0]
        position = self.node_table.index[name]
        new = self.new.intersection(root.level.keys)
        domain = -1 if new else int(root.level.domain[position])
        return self._at_least(root, domain, self.node_table.nodes[position])

    def _offers(self, leaf: CompiledGroup) -> Iterator[Counts]:
        """Yield nodes for the shortfall of a leaf, in the domains where it comes closest to its minimum."""
        if not leaf.level.count or not leaf.members:
            return
        by_kind = placeable(self.problem, leaf)
        holds = held_in(leaf, by_kind)
        admitted = np.zeros(leaf.level.count, dtype=np.int64)
        inside = np.flatnonzero(leaf.level.domain >= 0)
        np.maximum.at(admitted, leaf.level.domain[inside], self.admitted[inside])
        yielded = 0
        for domain in np.lexsort((-admitted, -holds)).tolist():
            if leaf.pinned >= 0 and domain != leaf.pinned:
                continue
            lacking = {k: len(m) - int(by_kind[k][domain]) for k, m in leaf.members.items()}
            missing = max(leaf.minimum - int(holds[domain]), 1)
            nodes = leaf.level.members(domain)
            # as many pods as are missing, of the most frequent kinds; then all that have no place
            least = self._models(lacking, nodes, missing)
            all_members = self._models(lacking, nodes, leaf.size)
            if not least:
                continue
            yield least
            if all_members != least:
                yield all_members
            yielded += 1
            if yielded >= DOMAINS_MAX:
                return

    def _models(self, lacking: dict[int, int], nodes: Ints, most: int) -> Counts:
        """Return nodes for so many more pods: of each kind those that lack a place, the most frequent kind first."""
        counts: Counts = {}
        for kind, lacks in sorted(lacking.items(), key=lambda item: (-item[1], item[0])):
            model = self._model_node(kind, nodes)
            needed = min(lacks, most)
            if model is None or (needed <= 0 and counts):
                continue
            node, each = model
            counts[node.name] = counts.get(node.name, 0) + max(1, -(-needed // each))
            most -= max(needed, 0)
        return counts

    def _model_node(self, kind: int, nodes: Ints) -> tuple[PlanNode, int] | None:
        """Return the node that holds most pods of a kind while empty, and how many these are."""
        each = np.where(self.may[kind][nodes], self.each[kind][nodes], 0)
        if not each.any():
            return None
        best = int(each.argmax())
        return self.node_table.nodes[int(nodes[best])], int(each[best])

    def _each(self, kind: int) -> Ints:
        """Return how many pods of a kind each node holds while it is empty."""
        shape = self.problem.kinds[kind]
        ratios = [
            self.node_table.offered(name) // ask
            for name, ask in {**dict(self.problem.shapes[kind].requests), "pods": 1}.items()
            if ask > 0
        ]
        most: Ints = np.minimum.reduce(ratios)
        # host ports and anti-affinity keep a second pod of a kind off a node
        alone = any(shape in axis.keepers for axis in self.problem.rules.axes)
        return np.minimum(most, 1) if alone or self.problem.shapes[kind].host_ports else most

    # --- of any kind ---------------------------------------------------------------------------------

    def of_any_kind(self) -> Counts:
        """Return nodes of one kind, else of several, that help the tree as a whole, or nothing."""
        models = self._different_nodes()
        if not models:
            return {}
        most = min(self._most_pods(), NODES_ADDED_MAX)
        if not self.harmless:
            steps = range(1, min(most, STEPS_MAX) + 1)
            each = ({name: count} for count in steps for name in models)
            return next((counts for counts in each if self.fits(counts)), {})
        share = max(1, min(most, NODES_ADDED_MAX // len(models)))
        every = dict.fromkeys(models, share)
        if share == most and not self.fits(every):
            return {}
        for name in models:
            packed = self._packed(name, most)
            if self.fits({name: packed}):
                return self._fewest({name: packed}, near=False)
            if packed < most and self.fits({name: most}):
                return self._fewest({name: most}, near=False, above=packed)
        if len(models) == 1 or (share < most and not self.fits(every)):
            return {}
        for name in models:
            rest = {other: count for other, count in every.items() if other != name}
            every = rest if self.fits(rest) else every
        return self._fewest(every, near=False)

    def _different_nodes(self) -> list[NodeName]:
        """Return one node of each kind that can run a pod of the tree, those that hold most first."""
        by_kind: dict[object, tuple[int, int, NodeName]] = {}
        levels = [self.node_table.label(key)[0] for key in sorted(self.keys) if key not in self.new]
        axes = sorted(
            {r for shape in self.problem.shapes for r, ask in shape.requests if ask > 0} | {"pods"}
        )
        columns = [*self.may, *levels, *map(self.node_table.offered, axes)]
        holds = np.sum(
            [np.where(may, each, 0) for may, each in zip(self.may, self.each, strict=True)], axis=0
        )
        rows = np.stack(columns, axis=1).tolist()
        for i in np.flatnonzero(np.any(self.may, axis=0)).tolist():
            node = self.node_table.nodes[i]
            key = (*rows[i], node.taints, node.unschedulable)
            if key not in by_kind:
                by_kind[key] = (-int(self.admitted[i]), -int(holds[i]), node.name)
        return [name for _, holds, name in sorted(by_kind.values()) if holds][:MODELS_MAX]

    def _packed(self, name: NodeName, most: int) -> int:
        """Return how many nodes hold what all leaves need if there is no other capacity and no constraint but that of resources."""
        position = self.node_table.index[name]
        needed = 0.0
        for leaf in self.problem.groups:
            each = [int(self.each[kind][position]) for kind in leaf.members]
            needed += leaf.least / max(min(each, default=1), 1) if leaf.leaf and leaf.alive else 0
        return min(max(math.ceil(needed), 1), most)

    def _most_pods(self) -> int:
        """Return how many new nodes the tree could use: one for each pod that its leaves need, or have where rules count pods."""
        leaves = [group for group in self.problem.groups if group.leaf and group.alive]
        if all(rule.kind == "apart" for rule in self.request.rules):
            # of all leaves: what the fewest pods would need may have no place, however many nodes there are
            return max(sum(leaf.least for leaf in leaves), 1)
        return max(sum(leaf.size for leaf in leaves), 1)

    # --- the smallest number -------------------------------------------------------------------------

    def _fewest(self, counts: Counts, *, near: bool = True, above: int = 0) -> Counts:
        """Return the smallest number of each kind with which the tree fits, one kind after the other.

        Args:
            counts: With these it fits.
            near: Hardly fewer will do, so these are tried first.
            above: So many of the only kind do not suffice.
        """
        for name in [*counts]:
            high = counts[name]  # fits with `high`, not below `low`
            low = min(max(above + bool(above), self._floor(name) if len(counts) == 1 else 0), high)
            step = 1
            while low < high:
                middle = max(high - step, low) if near else (low + high) // 2
                fewer = {k: n for k, n in {**counts, name: middle}.items() if n}
                if fewer and self.fits(fewer):
                    high, step = middle, step * 2
                else:
                    low, step = middle + 1, max((high - middle) // 2, 1)
            counts = {k: n for k, n in {**counts, name: high}.items() if n}
        return counts


def _sum(*parts: Counts) -> Counts:
    return dict(sum(map(Counter, parts), Counter[NodeName]()))


def _asked_keys(problem: PlacementProblem) -> tuple[str, ...]:
    """Return the keys of all constraints on domains, those of the root first."""
    return tuple(dict.fromkeys(key for group in problem.groups for key in group.level.keys))


def _narrower(node_table: NodeTable, asked: tuple[str, ...], key: str) -> frozenset[str]:
    """Return a key, and those of constraints after it of which each domain is in one of its domains."""
    start = asked.index(key) + 1 if key in asked else 0
    inner = (k for k in asked[start:] if not _is_name(node_table, k))
    return frozenset({key, *(k for k in inner if node_table.outer_domains(k, key) is not None)})


def _closed(request: PlanRequest) -> tuple[PlanExclusive, ...]:
    """Return the domains that exclusive groups of other trees have."""
    return () if isinstance(request.closed, UnsetType) else request.closed


def _selected_keys(request: PlanRequest) -> frozenset[str]:
    """Return the label keys that selectors read."""
    keys = {key for shape in request.shapes for key, _ in shape.node_selector}
    terms = (t for shape in request.shapes for s in shape.selectors for t in s.terms)
    return frozenset(keys.union(requirement.key for term in terms for requirement in term.labels))


def _counted_keys(request: PlanRequest) -> frozenset[str]:
    """Return the label keys over whose domains rules between pods count."""
    return frozenset(key for rule in request.rules for key in rule.keys)


def _own_keys(
    node_table: NodeTable, asked: frozenset[str], counted: frozenset[str]
) -> frozenset[str]:
    """Return the keys of which a new node has a value of its own.

    These are the hostname, keys whose value is the name of the node, and, if neither a topology constraint nor a selector names
    them, keys of which no two nodes have the same value.
    """
    own = {HOSTNAME}
    for key in asked | counted:
        codes, values = node_table.label(key)
        different = 1 < len(values) == int((codes >= 0).sum())
        if _is_name(node_table, key) or (different and key not in asked):
            own.add(key)
    return frozenset(own)


def _is_name(node_table: NodeTable, key: str) -> bool:
    """Return whether the values of a key are the names of nodes."""
    return key == HOSTNAME or all(
        node.labels[key] == node.name for node in node_table.nodes if key in node.labels
    )


def with_counts(change: Relaxation, counts: Sequence[int]) -> Relaxation:
    """Return more nodes with other counts, one for each of `added`; kinds of which there are none are left out."""
    texts: list[str] = []
    parts = re.split(r" and (?=\d+ more empty )", change.text)
    for part, count in zip(parts, counts, strict=True):
        text = re.sub(r"^\d+ more empty nodes?", _empty_nodes(count), part)
        if count == 1:
            text = text.replace(", each with its own", ", with its own")
        if count:
            texts.append(text)
    added = (
        msgspec.structs.replace(row, count=count)
        for row, count in zip(change.added, counts, strict=True)
        if count
    )
    return msgspec.structs.replace(change, text=" and ".join(texts), added=tuple(added))


def _empty_nodes(count: int) -> str:
    return f"{count} more empty {'node' if count == 1 else 'nodes'}"


def with_added(nodes: tuple[PlanNode, ...], added: Iterable[AddedNodes]) -> tuple[PlanNode, ...]:
    """Return nodes with some more."""
    by_name = {node.name: node for node in nodes}
    new = (
        _copy(
            by_name[model.like],
            number,
            frozenset(model.own_labels),
            frozenset(model.common_labels),
        )
        for model in added
        for number in range(model.count)
    )
    return (*nodes, *new)


def _copy(
    node: PlanNode, number: int, own: frozenset[str], common: frozenset[str] = frozenset()
) -> PlanNode:
    """Return an empty node like another one; its labels `own` have its own name, those in `common` a value that no node has."""
    name = f"{node.name}+{number}"
    new = {key: f"+{key}" for key in common} | dict.fromkeys(own, name)
    return msgspec.structs.replace(
        node,
        name=NodeName(name),
        labels={key: new.get(key, value) for key, value in node.labels.items()},
        free=node.allocatable,
        host_ports=(),
        reserved={},
    )
