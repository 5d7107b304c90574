"""Rules between pods, compiled into node masks, resource axes, domain keys and counts per domain.

A rule about pods of the cluster becomes a mask of nodes. A rule about waiting members has one of three
forms. Anti-affinity on domains of one node each becomes a resource axis, as a host port does. Affinity of all
members of a group to each other becomes a shared domain, like a topology constraint. Any other rule is counted
while a placement grows (`ConstraintLedger`) and is part of the CP-SAT model. All of this is exact; a rule that
could only be approximated is left out and listed in `InterpodConstraints.unjudged`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from extender.core.model.ids import GroupKey
from extender.core.model.pods import PodRule
from extender.core.planner.model.node_table import (
    FIT_MAX,
    Bools,
    Ints,
    NodeTable,
    selected,
    tolerated,
)
from extender.core.planner.plan_types import PlanGroup, PlanRequest, PlanRule, admissible, is_leaf

Shapes = frozenset[int]


@dataclass(slots=True, frozen=True)
class ExclusionAxis:
    """Anti-affinity where every domain is one node: a keeper has its node to itself."""

    name: str
    keepers: Shapes  # must be alone on their node
    others: Shapes  # may share a node with each other, not with a keeper
    take: int  # amount that a keeper requests; one of the others requests 1
    capacity: Ints  # per node: the amount that one keeper requests


@dataclass(slots=True, frozen=True, eq=False)
class AntiAffinityDomains:
    """A domain with a keeper has none of the others and, with `alone`, no second keeper."""

    domain: Ints  # per node; -1: the node lacks the key, and the rule does not apply
    count: int  # of domains
    keepers: Shapes
    others: Shapes
    alone: bool


@dataclass(slots=True, frozen=True, eq=False)
class SpreadDomains:
    """A domain with a keeper has at most `skew` more counted pods than the domain with the fewest."""

    rule: int  # index into `PlanRequest.rules`
    domain: Ints  # per node; -1: no keeper may run there
    start: Ints  # pods per domain before any member is placed
    keepers: Shapes  # all of them are counted
    skew: int
    floor: bool  # fewer than the minimum of domains: the smallest count is taken as 0

    def fewest(self, count: Ints) -> int:
        """Return the smallest number of pods in a domain."""
        return 0 if self.floor else int(count.min(initial=FIT_MAX))


@dataclass(slots=True)
class InterpodConstraints:
    """The compiled rules of a request."""

    masks: dict[int, Bools] = field(default_factory=dict)  # shape -> allowed nodes
    axes: list[ExclusionAxis] = field(default_factory=list)
    # counted while a placement grows
    dynamic: list[AntiAffinityDomains | SpreadDomains] = field(default_factory=list)
    # of groups whose pods must share a domain
    keys: dict[GroupKey, tuple[str, ...]] = field(default_factory=dict)
    # text of the rules that are left out, by their indexes in `PlanRequest.rules`
    unjudged: dict[int, str] = field(default_factory=dict)

    def exclude(self, shapes: Collection[int], nodes: Bools) -> None:
        """Remove nodes from the masks of some shapes."""
        for shape in shapes:
            self.masks[shape] = self.masks.get(shape, np.ones(len(nodes), dtype=np.bool_)) & ~nodes


def _evictions_may_satisfy(rule: PlanRule, waiting: Shapes) -> bool:
    """Return whether a pod affinity may hold anywhere once no placed pod is counted: its pods select themselves."""
    return any(rule.there) and bool(frozenset(rule.about) & frozenset(rule.shapes) & waiting)


def _where(node_table: NodeTable, key: str, counts: Mapping[str, int]) -> Bools:
    """Return which nodes have a value of a key with a positive count."""
    codes, values = node_table.label(key)
    hit = np.array([*(counts.get(v, 0) > 0 for v in values), False], dtype=np.bool_)
    return hit[codes]  # -1, no such label, is the last


def _has(node_table: NodeTable, keys: tuple[str, ...]) -> Bools:
    has = np.ones(node_table.size, dtype=np.bool_)
    for key in keys:
        has &= node_table.label(key)[0] >= 0
    return has


def rule_text(rule: PlanRule) -> str:
    """Return a rule in words, `topology spread over net/rack`."""
    return PodRule(rule.kind, rule.keys, ()).text


def _leaves(group: PlanGroup) -> list[PlanGroup]:
    """List the leaves that are admissible, as are all groups above them."""
    if not admissible(group):
        return []
    if is_leaf(group):
        return [group]
    return [leaf for child in group.groups for leaf in _leaves(child)]


def _lowest_group(root: PlanGroup, shapes: Shapes) -> PlanGroup | None:
    """Return the lowest group with all members of some shapes; None if it has other or bound members."""

    def inside(group: PlanGroup) -> bool:
        return any(m.shape in shapes for leaf in _leaves(group) for m in leaf.members)

    home = root
    while not is_leaf(home):
        children = [child for child in home.groups if inside(child)]
        if len(children) != 1:
            break
        home = children[0]
    for leaf in _leaves(home):
        if leaf.bound or any(m.shape not in shapes for m in leaf.members):
            return None
    return home


@dataclass(slots=True)
class _Compiler:
    """Compiles the rules of one request, one after the other."""

    request: PlanRequest
    node_table: NodeTable
    waiting: Shapes
    constraints: InterpodConstraints

    def near(self, rule: PlanRule) -> bool:
        """Compile pod affinity; return whether it is not left out.

        Source:
            Plugin InterPodAffinity: a pod that matches its own terms may be the first one anywhere.
        """
        keepers, about = frozenset(rule.shapes) & self.waiting, frozenset(rule.about) & self.waiting
        self.constraints.exclude(keepers, ~_has(self.node_table, rule.keys))
        if any(rule.there) and about <= keepers:
            for key, counts in zip(rule.keys, rule.there, strict=True):
                self.constraints.exclude(keepers, ~_where(self.node_table, key, dict(counts)))
        elif not any(rule.there) and not about:
            self.constraints.exclude(keepers, np.ones(self.node_table.size, dtype=np.bool_))
        elif (
            not any(rule.there)
            and about == keepers
            and (group := _lowest_group(self.request.root, keepers))
        ):
            kept = self.constraints.keys.get(group.key, ())
            self.constraints.keys[group.key] = (*kept, *(k for k in rule.keys if k not in kept))
        else:
            return not keepers
        return True

    def apart(self, rule: PlanRule) -> None:
        """Compile pod anti-affinity: a node without the key is in no domain."""
        keepers, about = frozenset(rule.shapes) & self.waiting, frozenset(rule.about) & self.waiting
        occupied = _where(self.node_table, rule.keys[0], dict(rule.there[0]))
        if not rule.shapes:
            self.constraints.exclude(about, occupied)
            return
        self.constraints.exclude(keepers, occupied)
        alone, plain = keepers & about, keepers - about
        if alone:
            axis = self._axis(rule, alone, about - alone)
            if axis is not None:
                self.constraints.axes.append(axis)
            else:
                self.constraints.dynamic.append(
                    self._moving(rule, alone, about - alone, alone=True)
                )
        if plain and about:
            self.constraints.dynamic.append(self._moving(rule, plain, about, alone=False))

    def _axis(self, rule: PlanRule, keepers: Shapes, others: Shapes) -> ExclusionAxis | None:
        """Return an axis if every domain is one node, else None."""
        level = self.node_table.level(rule.keys)
        has = level.domain >= 0
        if level.count != int(has.sum()):
            return None
        crowd = sum(
            1 for leaf in _leaves(self.request.root) for m in leaf.members if m.shape in others
        )
        take = max(crowd, 1)
        return ExclusionAxis(
            rule_text(rule), keepers, others, take, np.where(has, take, FIT_MAX).astype(np.int64)
        )

    def _moving(
        self, rule: PlanRule, keepers: Shapes, others: Shapes, *, alone: bool
    ) -> AntiAffinityDomains:
        level = self.node_table.level(rule.keys)
        return AntiAffinityDomains(level.domain, level.count, keepers, others, alone)

    def spread(self, rule: PlanRule, index: int) -> bool:
        """Compile a topology spread constraint; return whether it is not left out.

        It is if its keepers have different eligible nodes, or if the members that it counts are not exactly its keepers.

        Source:
            Plugin PodTopologySpread: a node is eligible if it has the keys of all constraints of the pod,
            if the pod selects it and, by its policy, tolerates its taints; terminating pods are not counted.
        """
        keepers, about = frozenset(rule.shapes) & self.waiting, frozenset(rule.about) & self.waiting
        keys = tuple(
            k
            for r in self.request.rules
            if r.kind == "spread" and r.shapes == rule.shapes
            for k in r.keys
        )
        counts = [self._eligible(rule, shape, keys) for shape in sorted(keepers)]
        alike = all((c == counts[0]).all() for c in counts)
        if keepers != about or not alike or not counts:
            return not keepers
        level = self.node_table.level(rule.keys)
        domain = np.where(counts[0], level.domain, -1)
        used = np.unique(domain[domain >= 0])
        number = np.full(level.count + 1, -1, dtype=np.int64)
        number[used] = np.arange(len(used))
        domain = number[domain]
        start = np.zeros(len(used), dtype=np.int64)
        for name, pods in rule.there[0]:
            node = self.node_table.index.get(name)  # type: ignore[call-overload]
            if node is not None and domain[node] >= 0:
                start[domain[node]] += pods
        self.constraints.dynamic.append(
            SpreadDomains(
                index, domain, start, keepers, rule.skew, floor=len(used) < rule.least_domains
            )
        )
        self.constraints.exclude(keepers, domain < 0)
        return True

    def _eligible(self, rule: PlanRule, shape: int, keys: tuple[str, ...]) -> Bools:
        nodes = _has(self.node_table, keys)
        if rule.honors_affinity:
            nodes &= selected(self.node_table, self.request.shapes[shape])
        if rule.honors_taints:
            nodes &= tolerated(self.node_table, self.request.shapes[shape], cordons=False)
        return nodes


def compile_rules(
    request: PlanRequest, node_table: NodeTable, *, strict: bool = True
) -> InterpodConstraints:
    """Compile the rules of a request.

    Args:
        strict: False leaves out rules that evicting other pods could satisfy (C.2): of `near` remain those that
            need a pod which no eviction makes.
    """
    constraints = InterpodConstraints()
    if not request.rules:
        return constraints
    waiting = frozenset(m.shape for leaf in _leaves(request.root) for m in leaf.members)
    compiler = _Compiler(request, node_table, waiting, constraints)
    for index, rule in enumerate(request.rules):
        is_judged = True
        if rule.kind == "near" and (strict or not _evictions_may_satisfy(rule, waiting)):
            is_judged = compiler.near(rule)
        elif strict and rule.kind == "apart":
            compiler.apart(rule)
        elif strict and rule.kind == "spread":
            is_judged = compiler.spread(rule, index)
        if not is_judged:
            constraints.unjudged[index] = rule_text(rule)
    return constraints


# --- while a placement grows ---------------------------------------------------------------------------


class ConstraintLedger:
    """Counts pods per domain of every dynamic rule; each step can be undone."""

    def __init__(self, rules: InterpodConstraints, kinds: list[int]) -> None:
        """Start with no pod placed.

        Args:
            rules: The compiled rules.
            kinds: Kind -> its shape.
        """
        self._kinds = kinds
        self._of: dict[int, list[int]] = {}
        for number, rule in enumerate(rules.dynamic):
            others = rule.others if isinstance(rule, AntiAffinityDomains) else frozenset()
            for kind, shape in enumerate(kinds):
                if shape in rule.keepers | others:
                    self._of.setdefault(kind, []).append(number)
        self._rules = rules.dynamic
        self._count = [
            np.append(rule.start, 0)  # the last is for domain -1
            if isinstance(rule, SpreadDomains)
            else np.zeros(rule.count + 1, dtype=np.int64)
            for rule in rules.dynamic
        ]
        self._others = [
            np.zeros(rule.count + 1 if isinstance(rule, AntiAffinityDomains) else 1, dtype=np.int64)
            for rule in rules.dynamic
        ]

    def is_dynamic(self, kind: int) -> bool:
        """Return whether the allowed nodes of a kind depend on what is placed."""
        return kind in self._of

    def limit(self, kind: int, nodes: Ints, fit: Ints) -> Ints:
        """Return `fit` with 0 on nodes where the rules do not allow one more pod."""
        for number in self._of.get(kind, ()):
            rule, keepers = self._rules[number], self._count[number]
            domain = rule.domain[nodes]
            inside = domain >= 0
            if isinstance(rule, SpreadDomains):
                good = inside & (keepers[domain] < rule.fewest(keepers[:-1]) + rule.skew)
            elif self._kinds[kind] in rule.keepers:
                taken = self._others[number] + (keepers if rule.alone else 0)
                good = ~inside | (taken[domain] == 0)
            else:
                good = ~inside | (keepers[domain] == 0)
            fit = np.where(good, fit, 0)
        return fit

    def note(self, kind: int, nodes: Ints, amounts: Ints) -> None:
        """Count pods that were placed; negative amounts undo a step."""
        for number in self._of.get(kind, ()):
            rule = self._rules[number]
            keeper = self._kinds[kind] in rule.keepers
            domain = rule.domain[nodes]
            inside = domain >= 0
            table = self._count[number] if keeper else self._others[number]
            np.add.at(table, domain[inside], amounts[inside])
