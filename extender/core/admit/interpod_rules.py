"""Rules between pods for plan requests: which members have them, which pods they select, and where such pods are.

Counted are assigned pods (including terminating ones, except for spread), and pods with a reservation or a
nomination on a node, because kube-scheduler will count them there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from immutables import Map

from extender.core.admit.exclusive_domains import ExclusiveDomains
from extender.core.capacity.free_capacity import UsedCapacity
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import Pod, PodPreference, PodRule, PodShape
from extender.core.planner.plan_types import PlanGroup, PlanPreference, PlanRule

_Standing = dict[PodRule, Counter[NodeName]]


class InterpodRulePart(msgspec.Struct, frozen=True, eq=False):
    """The part of a plan request that belongs to a tree, with rules."""

    root: PlanGroup
    shapes: tuple[PodShape, ...]
    rules: tuple[PlanRule, ...] = ()
    sources: tuple[PodRule, ...] = ()  # the pod rule of each of `rules`
    preferences: tuple[PlanPreference, ...] = ()


class _TreeCache(msgspec.Struct):
    """Cache of a tree; valid as long as its part without rules is the same object."""

    tree: Tree
    plain: InterpodRulePart
    selected: dict[PodRule, frozenset[PodUid]] = {}  # its waiting members that a rule selects
    split: dict[tuple[PodRule, ...], tuple[InterpodRulePart, dict[PodUid, int]]] = {}


class _NodeCount(msgspec.Struct, frozen=True):
    """Number of pods of one node that a rule selects."""

    pods: Map[PodUid, Pod]
    every: int
    staying: int  # not terminating


class InterpodRules:
    """Cache of the rules that affect trees; `domains`: those that trees have alone."""

    def __init__(self) -> None:
        self.domains = ExclusiveDomains()
        self._trees: dict[GangUid, _TreeCache] = {}
        self._node_counts: dict[PodRule, dict[NodeName, _NodeCount]] = {}
        self._standing: IdentityMemo[_Standing] = IdentityMemo()

    def of(
        self,
        view: ClusterView,
        state: ReservationState,
        tree: Tree,
        plain: InterpodRulePart,
        taken: Mapping[NodeName, UsedCapacity],
    ) -> InterpodRulePart:
        """Return the part of a plan request with the rules that affect the tree.

        Args:
            plain: Its part without rules.
            taken: Capacity used without an assigned pod, per node.
        """
        own = tuple(dict.fromkeys(rule for shape in plain.shapes for rule in shape.rules))
        soft = tuple(dict.fromkeys(wish for shape in plain.shapes for wish in _preferred(shape)))
        if not own and not soft and not view.keeping_off:
            return plain
        cached = self._trees.get(tree.root.uid)
        if cached is None or cached.tree is not tree or cached.plain.root is not plain.root:
            cached = self._trees[tree.root.uid] = _TreeCache(tree, plain)
        priority = tree.root.priority
        keeping_off = self._standing.get(
            lambda: _standing(view, state, priority),
            same=(view.keeping_off, state.claims_on),
            equal=priority,
        )
        standing = {rule: at for rule, at in keeping_off.items() if _selected(cached, rule)}
        if not own and not soft and not standing:
            return plain
        ruled, numbers = _split(cached, (*own, *standing))
        rules = [(self._own(view, state, cached, ruled, numbers, taken, r), r) for r in own]
        # placed pods with anti-affinity exclude members from their domains
        for rule, at in standing.items():
            by_domain = (_by_value(view, rule.keys[0], at),)
            about = _about(cached, numbers, rule)
            excluding = PlanRule(
                kind="apart", keys=rule.keys, shapes=(), about=about, there=by_domain
            )
            rules.append((excluding, rule))
        rules.sort(key=lambda pair: _order(pair[0]))
        return msgspec.structs.replace(
            ruled,
            rules=tuple(r for r, _ in rules),
            sources=tuple(r for _, r in rules),
            preferences=tuple(self._preference(view, cached, ruled, taken, wish) for wish in soft),
        )

    def keep(self, roots: set[GangUid]) -> None:
        """Remove all other trees from the cache, and the counts of rules that none of these has."""
        self._trees = {uid: cached for uid, cached in self._trees.items() if uid in roots}
        shapes = [shape for cached in self._trees.values() for shape in cached.plain.shapes]
        used = {rule for shape in shapes for rule in shape.rules}
        used |= {wish.rule for shape in shapes for wish in _preferred(shape)}
        self._node_counts = {
            rule: counts for rule, counts in self._node_counts.items() if rule in used
        }

    def _own(
        self,
        view: ClusterView,
        state: ReservationState,
        cached: _TreeCache,
        ruled: InterpodRulePart,
        numbers: Mapping[PodUid, int],
        taken: Mapping[NodeName, UsedCapacity],
        rule: PodRule,
    ) -> PlanRule:
        counts = self._counts_by_node(view, rule)
        root = state.gangs.get(cached.tree.root.uid)
        for node, pod in _expected(view, taken):
            # required affinity counts only pods that are certain to run there: besides assigned pods those
            # with a reservation of the same tree, because a tree is bound as one
            sure = root is not None and pod.uid in root.reservations
            if (rule.kind != "near" or sure) and rule.match(pod.namespace, pod.labels):
                counts[node] += 1
        return PlanRule(
            kind=rule.kind,
            keys=rule.keys,
            shapes=tuple(n for n, shape in enumerate(ruled.shapes) if rule in shape.rules),
            about=_about(cached, numbers, rule),
            there=(tuple(sorted(counts.items())),)
            if rule.kind == "spread"
            else tuple(_by_value(view, key, counts) for key in rule.keys),
            skew=rule.skew,
            least_domains=rule.least_domains,
            honors_affinity=rule.honors_affinity,
            honors_taints=rule.honors_taints,
        )

    def _preference(
        self,
        view: ClusterView,
        cached: _TreeCache,
        ruled: InterpodRulePart,
        taken: Mapping[NodeName, UsedCapacity],
        wish: PodPreference,
    ) -> PlanPreference:
        rule = wish.rule
        counts = self._counts_by_node(view, rule)
        for node, pod in _expected(view, taken):
            if rule.match(pod.namespace, pod.labels):
                counts[node] += 1
        return PlanPreference(
            kind=rule.kind,
            key=rule.keys[0],
            weight=wish.weight,
            shapes=tuple(n for n, shape in enumerate(ruled.shapes) if wish in _preferred(shape)),
            there=tuple(sorted(counts.items()))
            if rule.kind == "spread"
            else _by_value(view, rule.keys[0], counts),
            among=bool(_selected(cached, rule)),
            skew=rule.skew,
            honors_affinity=rule.honors_affinity,
            honors_taints=rule.honors_taints,
        )

    def _counts_by_node(self, view: ClusterView, rule: PodRule) -> Counter[NodeName]:
        """Return per node the number of assigned pods that a rule selects."""
        by_node = self._node_counts.setdefault(rule, {})
        counts: Counter[NodeName] = Counter()
        for node, pods in view.on_node.items():
            node_count = by_node.get(node)
            # a count holds as long as the map of the pods of its node is the same object
            if node_count is None or node_count.pods is not pods:
                selected = [p for p in pods.values() if rule.match(p.namespace, p.labels)]
                node_count = _NodeCount(
                    pods, len(selected), sum(1 for p in selected if not p.deleting)
                )
                by_node[node] = node_count
            if amount := node_count.staying if rule.kind == "spread" else node_count.every:
                counts[node] = amount
        return counts


def counted_by(ruled: InterpodRulePart, pod: Pod) -> tuple[int, ...]:
    """Return the positions of the rules of a part that count an assigned pod."""
    return tuple(
        i
        for i, (rule, source) in enumerate(zip(ruled.rules, ruled.sources, strict=True))
        if (
            source.match(pod.namespace, pod.labels) and not (pod.deleting and rule.kind == "spread")
            if rule.shapes
            else source in pod.shape.rules
        )
    )


def _standing(view: ClusterView, state: ReservationState, priority: int) -> _Standing:
    """Return per rule and node the number of pods with required anti-affinity."""
    standing: _Standing = {}
    for pod in view.keeping_off.values():
        node = _place(state, pod, priority)
        for rule in pod.shape.rules if node is not None else ():
            if rule.kind == "apart" and node is not None:
                standing.setdefault(rule, Counter())[node] += 1
    return standing


def _place(state: ReservationState, pod: Pod, priority: int) -> NodeName | None:
    """Return the node of a pod, of its reservation, or of its nomination, or None."""
    if pod.node is not None:
        return pod.node
    root = state.gangs.get(state.gang_of[pod.uid]) if pod.uid in state.gang_of else None
    if root is not None and pod.uid in root.reservations:
        return root.reservations[pod.uid].node
    return pod.nominated if pod.group is None and pod.priority >= priority else None


def _expected(
    view: ClusterView, taken: Mapping[NodeName, UsedCapacity]
) -> Iterator[tuple[NodeName, Pod]]:
    for node, used in taken.items():
        for pod in used.nominated:
            yield node, pod
        for reservation in used.held:
            held = view.pods.get(reservation.uid)
            if held is not None:
                yield node, held


def _by_value(
    view: ClusterView, key: str, counts: Mapping[NodeName, int]
) -> tuple[tuple[str, int], ...]:
    """Return the sum per value of a topology key; nodes without it are in no domain."""
    values: Counter[str] = Counter()
    for name, amount in counts.items():
        node = view.nodes.get(name)
        if node is not None and key in node.labels:
            values[node.labels[key]] += amount
    return tuple(sorted(values.items()))


def _preferred(shape: PodShape) -> tuple[PodPreference, ...]:
    """Return the preferences of a shape about other pods."""
    return shape.soft.pods if shape.soft else ()


def _order(rule: PlanRule) -> tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...], int]:
    return (rule.kind, rule.keys, rule.shapes, rule.about, rule.skew)


def _about(cached: _TreeCache, numbers: Mapping[PodUid, int], rule: PodRule) -> tuple[int, ...]:
    """Return the shapes of the waiting members that a rule selects."""
    return tuple(sorted({numbers[uid] for uid in _selected(cached, rule) if uid in numbers}))


def _selected(cached: _TreeCache, rule: PodRule) -> frozenset[PodUid]:
    """Return the waiting members that a rule selects."""
    uids = cached.selected.get(rule)
    if uids is None:
        tree = cached.tree
        spaces = {namespace for about in rule.about for namespace in about.namespaces}
        alien = bool(spaces) and tree.root.key.namespace not in spaces
        uids = frozenset(
            pod.uid
            for pod in (() if alien else tree.pods)
            if pod.node is None and rule.match(pod.namespace, pod.labels)
        )
        cached.selected[rule] = uids
    return uids


def _split(
    cached: _TreeCache, rules: tuple[PodRule, ...]
) -> tuple[InterpodRulePart, dict[PodUid, int]]:
    """Return the part with shapes split so that a rule selects all pods of a shape or none, and the shape of each pod."""
    split = cached.split.get(rules)
    if split is not None:
        return split
    plain = cached.plain
    number: dict[tuple[int, frozenset[PodRule]], int] = {}
    of_pod: dict[PodUid, int] = {}

    def walk(group: PlanGroup) -> PlanGroup:
        members = []
        for member in group.members:
            selected = frozenset(rule for rule in rules if member.uid in _selected(cached, rule))
            shape = number.setdefault((member.shape, selected), len(number))
            of_pod[member.uid] = shape
            members.append(msgspec.structs.replace(member, shape=shape))
        groups = tuple(walk(child) for child in group.groups)
        return msgspec.structs.replace(group, members=tuple(members), groups=groups)

    root = walk(plain.root)
    shapes = tuple(plain.shapes[shape] for shape, _ in number)
    if shapes == plain.shapes:
        root, shapes = (
            plain.root,
            plain.shapes,
        )  # the same objects, because callers compare by identity
    cached.split = {rules: (InterpodRulePart(root, shapes), of_pod)}
    return cached.split[rules]
