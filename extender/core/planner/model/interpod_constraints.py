"""Rules between pods, compiled: nodes ruled out, an axis per node, domains, and counts to be kept.

What pods of the cluster mean for a waiting member is a mask. What waiting members mean for each other
is one of three things. Members that keep apart on domains of one node each share an axis, as host
ports do. Members that must all be near one another share a domain, like a topology constraint. The rest is
counted while a placement grows (`ConstraintLedger`) and written into the complete model. All of this is exact;
what could only be approximated is left out, and named in `Rules.unseen`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from extender.core.model.ids import GroupKey
from extender.core.model.pods import PodRule
from extender.core.planner.model.feasibility import admissible, is_leaf
from extender.core.planner.model.node_filters import selected, tolerated
from extender.core.planner.model.node_table import FIT_MAX, Bools, Ints, NodeTable
from extender.core.planner.plan_types import PlanGroup, PlanRequest, PlanRule

Shapes = frozenset[int]


@dataclass(slots=True, frozen=True)
class ExclusionAxis:
    """Members that keep apart, at most one to a node of its own domain; the others count as one each."""

    name: str
    keepers: Shapes  # must be alone
    others: Shapes  # may share a node with each other, not with a keeper
    take: int  # of a keeper; one of the others takes 1
    room: Ints  # per node: as much as a keeper takes


@dataclass(slots=True, frozen=True, eq=False)
class AntiAffinityDomains:
    """Where a keeper is there is none of the others; where `alone`, no second keeper either."""

    domain: Ints  # per node; -1: the node lacks the key, and the rule says nothing
    count: int  # of domains
    keepers: Shapes
    others: Shapes
    alone: bool


@dataclass(slots=True, frozen=True, eq=False)
class SpreadDomains:
    """A domain with a keeper has at most `skew` more pods that count than the one with the fewest."""

    domain: Ints  # per node; -1: no keeper may be there
    start: Ints  # pods per domain before any member is placed
    keepers: Shapes  # all of them count
    skew: int
    floor: bool  # too few domains: the fewest is 0, whatever is there

    def fewest(self, count: Ints) -> int:
        """Give the count of the domain with the fewest pods."""
        return 0 if self.floor else int(count.min(initial=FIT_MAX))


@dataclass(slots=True)
class InterpodConstraints:
    """All that the rules of a request come to."""

    masks: dict[int, Bools] = field(default_factory=dict)  # shape -> nodes left
    axes: list[ExclusionAxis] = field(default_factory=list)
    moving: list[AntiAffinityDomains | SpreadDomains] = field(
        default_factory=list
    )  # depend on what is placed
    keys: dict[GroupKey, tuple[str, ...]] = field(
        default_factory=dict
    )  # of groups that stay together
    unseen: list[tuple[int, str]] = field(default_factory=list)  # shape and rule left out

    def bar(self, shapes: Collection[int], nodes: Bools) -> None:
        """Keep shapes off nodes."""
        for shape in shapes:
            self.masks[shape] = self.masks.get(shape, np.ones(len(nodes), dtype=np.bool_)) & ~nodes


def compile_rules(
    request: PlanRequest, fleet: NodeTable, *, strict: bool = True
) -> InterpodConstraints:
    """Compile the rules of a request.

    Args:
        request: Its rules are read.
        fleet: Made from its nodes.
        strict: False leaves out what evicting other pods could change (SPEC C.2): only `near` remains.
    """
    made = InterpodConstraints()
    if not request.rules:
        return made
    waiting = frozenset(m.shape for leaf in _leaves(request.root) for m in leaf.members)
    for rule in request.rules:
        if rule.kind == "near":
            _near(made, request, fleet, rule, waiting)
        elif strict and rule.kind == "apart":
            _apart(made, request, fleet, rule, waiting)
        elif strict:
            _spread(made, request, fleet, rule, waiting)
    return made


def _where(fleet: NodeTable, key: str, counts: Mapping[str, int]) -> Bools:
    """Tell which nodes have one of the values of a key that are counted."""
    codes, values = fleet.label(key)
    hit = np.array([*(counts.get(v, 0) > 0 for v in values), False], dtype=np.bool_)
    return hit[codes]  # -1, no such label, is the last


def _has(fleet: NodeTable, keys: tuple[str, ...]) -> Bools:
    has = np.ones(fleet.size, dtype=np.bool_)
    for key in keys:
        has &= fleet.label(key)[0] >= 0
    return has


def _text(rule: PlanRule) -> str:
    return PodRule(rule.kind, rule.keys, ()).text


# --- near ----------------------------------------------------------------------------------------------


def _near(
    made: InterpodConstraints,
    request: PlanRequest,
    fleet: NodeTable,
    rule: PlanRule,
    waiting: Shapes,
) -> None:
    """Compile pod affinity.

    Source:
        Plugin InterPodAffinity: a pod that matches its own terms may be the first one anywhere.
    """
    keepers, about = frozenset(rule.shapes) & waiting, frozenset(rule.about) & waiting
    made.bar(keepers, ~_has(fleet, rule.keys))
    if any(rule.there) and about <= keepers:
        for key, there in zip(rule.keys, rule.there, strict=True):
            made.bar(keepers, ~_where(fleet, key, dict(there)))
    elif not any(rule.there) and not about:
        made.bar(keepers, np.ones(fleet.size, dtype=np.bool_))
    elif not any(rule.there) and about == keepers and (group := _home(request.root, keepers)):
        kept = made.keys.get(group.key, ())
        made.keys[group.key] = (*kept, *(k for k in rule.keys if k not in kept))
    else:
        made.unseen += [(shape, _text(rule)) for shape in sorted(keepers)]


def _leaves(group: PlanGroup) -> list[PlanGroup]:
    """List the leaves that take part: admissible, as are all groups above them."""
    if not admissible(group):
        return []
    if is_leaf(group):
        return [group]
    return [leaf for child in group.groups for leaf in _leaves(child)]


def _home(root: PlanGroup, shapes: Shapes) -> PlanGroup | None:
    """Find the lowest group with all members of some shapes; None where it has others or bound ones."""

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


# --- apart ---------------------------------------------------------------------------------------------


def _apart(
    made: InterpodConstraints,
    request: PlanRequest,
    fleet: NodeTable,
    rule: PlanRule,
    waiting: Shapes,
) -> None:
    """Compile pod anti-affinity: a node without the key is in nobody's domain."""
    keepers, about = frozenset(rule.shapes) & waiting, frozenset(rule.about) & waiting
    there = _where(fleet, rule.keys[0], dict(rule.there[0]))
    if not rule.shapes:
        made.bar(about, there)
        return
    made.bar(keepers, there)
    alone, plain = keepers & about, keepers - about
    if alone:
        made_axis = _axis(request, fleet, rule, alone, about - alone)
        if made_axis is not None:
            made.axes.append(made_axis)
        else:
            made.moving.append(_moving(fleet, rule, alone, about - alone, alone=True))
    if plain and about:
        made.moving.append(_moving(fleet, rule, plain, about, alone=False))


def _axis(
    request: PlanRequest, fleet: NodeTable, rule: PlanRule, keepers: Shapes, others: Shapes
) -> ExclusionAxis | None:
    """Make an axis where every domain is one node."""
    level = fleet.level(rule.keys)
    has = level.domain >= 0
    if level.count != int(has.sum()):
        return None
    crowd = sum(1 for leaf in _leaves(request.root) for m in leaf.members if m.shape in others)
    take = max(crowd, 1)
    return ExclusionAxis(
        _text(rule), keepers, others, take, np.where(has, take, FIT_MAX).astype(np.int64)
    )


def _moving(
    fleet: NodeTable, rule: PlanRule, keepers: Shapes, others: Shapes, *, alone: bool
) -> AntiAffinityDomains:
    level = fleet.level(rule.keys)
    return AntiAffinityDomains(level.domain, level.count, keepers, others, alone)


# --- spread --------------------------------------------------------------------------------------------


def _spread(
    made: InterpodConstraints,
    request: PlanRequest,
    fleet: NodeTable,
    rule: PlanRule,
    waiting: Shapes,
) -> None:
    """Compile a topology spread constraint.

    Shapes may select different nodes, so that each has domains of its own; where pods of several
    shapes keep one constraint, or others count in it, it is left out.

    Source:
        Plugin PodTopologySpread: nodes count that have the keys of all constraints of the pod, that
        it selects and, if it says so, whose taints it tolerates; terminating pods do not count.
    """
    keepers, about = frozenset(rule.shapes) & waiting, frozenset(rule.about) & waiting
    keys = tuple(
        k for r in request.rules if r.kind == "spread" and r.shapes == rule.shapes for k in r.keys
    )
    counts = [_eligible(request, fleet, rule, shape, keys) for shape in sorted(keepers)]
    alike = all((c == counts[0]).all() for c in counts)
    if keepers != about or not alike:
        made.unseen += [(shape, _text(rule)) for shape in sorted(keepers)]
        return
    if not counts:
        return
    level = fleet.level(rule.keys)
    domain = np.where(counts[0], level.domain, -1)
    used = np.unique(domain[domain >= 0])
    number = np.full(level.count + 1, -1, dtype=np.int64)
    number[used] = np.arange(len(used))
    domain = number[domain]
    start = np.zeros(len(used), dtype=np.int64)
    for name, pods in rule.there[0]:
        node = fleet.index.get(name)  # type: ignore[call-overload]
        if node is not None and domain[node] >= 0:
            start[domain[node]] += pods
    made.moving.append(
        SpreadDomains(domain, start, keepers, rule.skew, floor=len(used) < rule.least_domains)
    )
    made.bar(keepers, domain < 0)


def _eligible(
    request: PlanRequest, fleet: NodeTable, rule: PlanRule, shape: int, keys: tuple[str, ...]
) -> Bools:
    nodes = _has(fleet, keys)
    if rule.honors_affinity:
        nodes &= selected(fleet, request.shapes[shape])
    if rule.honors_taints:
        nodes &= tolerated(fleet, request.shapes[shape], cordons=False)
    return nodes


# --- while a placement grows ---------------------------------------------------------------------------


class ConstraintLedger:
    """Pods per domain of every moving rule; each step can be taken back."""

    def __init__(self, rules: InterpodConstraints, kinds: list[int]) -> None:
        """Begin with nothing placed.

        Args:
            rules: Compiled.
            kinds: Kind -> its shape.
        """
        self._kinds = kinds
        self._of: dict[int, list[int]] = {}
        for number, rule in enumerate(rules.moving):
            others = rule.others if isinstance(rule, AntiAffinityDomains) else frozenset()
            for kind, shape in enumerate(kinds):
                if shape in rule.keepers | others:
                    self._of.setdefault(kind, []).append(number)
        self._rules = rules.moving
        self._count = [
            np.append(rule.start, 0)  # the last is where a domain of -1 points
            if isinstance(rule, SpreadDomains)
            else np.zeros(rule.count + 1, dtype=np.int64)
            for rule in rules.moving
        ]
        self._others = [
            np.zeros(rule.count + 1 if isinstance(rule, AntiAffinityDomains) else 1, dtype=np.int64)
            for rule in rules.moving
        ]

    def moves(self, kind: int) -> bool:
        """Say whether pods of a kind fit according to what was placed before, beside the room."""
        return kind in self._of

    def limit(self, kind: int, nodes: Ints, fit: Ints) -> Ints:
        """Cut what fits to what one more pod may do."""
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
        """Count pods that were placed; negative amounts take them back."""
        for number in self._of.get(kind, ()):
            rule = self._rules[number]
            keeper = self._kinds[kind] in rule.keepers
            domain = rule.domain[nodes]
            inside = domain >= 0
            table = self._count[number] if keeper else self._others[number]
            np.add.at(table, domain[inside], amounts[inside])
