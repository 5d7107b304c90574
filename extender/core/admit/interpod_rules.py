"""What other pods keep a tree from: exclusive domains, and rules between pods in plan requests.

Of rules: which members have them, which pods they select, and where such pods are. Counted are assigned pods
(including terminating ones, except for spread), and pods with a reservation or a
nomination on a node, because kube-scheduler will count them there.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from extender.core.capacity.free_capacity import UsedCapacity
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.reservation_state import Reservation, ReservationState, reservation_of
from extender.core.model.cluster_view import ClusterView, groups_above
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import domain_text, join_names, spaced
from extender.core.model.nodes import ExclusiveDomain, ExclusiveScope
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Group, Tree
from extender.core.model.pods import Pod, PodPreference, PodRule, PodShape
from extender.core.model.visibility import Visibility, name_for
from extender.core.planner.plan_types import PlanExclusive, PlanGroup, PlanPreference, PlanRule
from extender.core.workloads.workload_object import TREE_LABEL

# --- which topology domains a tree cannot have, because it or another tree has some alone (D18 to D20)

# Two things follow from an exclusive group: its own domain has no other tree of its scope (`taken`), and trees of its scope
# keep out of the domains in which it has pods (`closed`). Where no group of the cluster is exclusive, nothing is looked at.

NAMED_MAX: Final = 8  # domains that a sentence names
# group of the tree that would have it alone (None: others have it alone), key and value
HeldDomain: TypeAlias = tuple[GroupKey | None, str, str]
Claims: TypeAlias = Mapping[NodeName, tuple[CapacityClaim, ...]]
# where a leaf has members or reservations, and where a preemption has claimed capacity for it
_NodesOfLeaf: TypeAlias = tuple[frozenset[NodeName], frozenset[NodeName]]
_NONE: Map[PodUid, Reservation] = Map()
_NO_CLAIMS: Claims = Map()


class PlacedLeaf(msgspec.Struct, frozen=True, gc=False):
    """A leaf some of whose members are bound or have a reservation."""

    leaf: GroupKey
    root: Group
    exclusive: tuple[Group, ...]  # the exclusive groups at and above it
    nodes: frozenset[NodeName]
    # where its tree will be when the victims of its preemption are gone
    claimed: frozenset[NodeName]


class DomainHolder(msgspec.Struct, frozen=True, order=True, gc=False):
    """A domain that a tree cannot have, and whose pods are there."""

    key: str
    value: str
    holder: str  # Kind/namespace/name of the root of the other tree, or of a pod
    # the exclusive group of the other tree; None: the tree that is refused is exclusive, the other one is only there
    group: GroupKey | None


class ExclusiveDomains:
    """Finds the domains; keeps the nodes of each leaf until its pods or reservations change."""

    def __init__(self) -> None:
        self._nodes: dict[GroupKey, IdentityMemo[_NodesOfLeaf]] = {}
        self._placed: IdentityMemo[tuple[PlacedLeaf, ...]] = IdentityMemo()

    def placed(self, view: ClusterView, state: ReservationState) -> tuple[PlacedLeaf, ...]:
        """Return the leaves with placed members; the same for all trees that are planned between two admissions."""
        return self._placed.get(
            lambda: tuple(self._find(view, state)),
            same=(view.members, view.groups, state.gangs, state.preemptions),
        )

    def _find(self, view: ClusterView, state: ReservationState) -> Iterator[PlacedLeaf]:
        self._nodes = {leaf: kept for leaf, kept in self._nodes.items() if leaf in view.members}
        for leaf, pods in view.members.items():
            path = groups_above(view, leaf)
            if not path:
                continue
            gang = state.gangs.get(path[-1].uid)
            held = gang.reservations if gang is not None else _NONE
            claims = _claims_of(state, path[-1].uid)
            memo = self._nodes.setdefault(leaf, IdentityMemo())
            find = functools.partial(_nodes_of_leaf, pods, held, claims)
            nodes, claimed = memo.get(find, same=(pods, held, claims))
            if nodes or claimed:
                exclusive = tuple(group for group, _ in _exclusive(path))
                yield PlacedLeaf(leaf, path[-1], exclusive, nodes, claimed)

    def holders(
        self, view: ClusterView, state: ReservationState, tree: Tree
    ) -> Mapping[GroupKey | None, frozenset[DomainHolder]]:
        """Return who has domains that a tree cannot have.

        Returns:
            By exclusive group of the tree, the domains in which other trees of its scope have pods; by None those that
            exclusive groups of other trees have, without domains in which the tree has pods itself.
        """
        if not view.exclusive:
            return {}
        mine, others = self._split(view, state, tree)
        holders: dict[GroupKey | None, frozenset[DomainHolder]] = {}
        for group, exclusive in _exclusive(tree.groups):
            holders[group.key] = frozenset(
                DomainHolder(exclusive.key, value, str(row.root.key), None)
                for row in others
                if _covers(tree.root, exclusive.scope, row.root)
                for value in _values(view, exclusive.key, row.nodes | row.claimed)
            ).union(
                _first_requesting(
                    view, exclusive, self._requesting(view, state, tree, others, exclusive)
                )
            )
        holders[None] = frozenset(
            DomainHolder(exclusive.key, value, str(row.root.key), group.key)
            for row in others
            for group, exclusive in _keeping_out(row, tree)
            for value in _values(view, exclusive.key, row.nodes | row.claimed)
            - _values(view, exclusive.key, mine)
        )
        return holders

    def occupants(
        self, view: ClusterView, state: ReservationState, tree: Tree
    ) -> Mapping[HeldDomain, frozenset[PodUid]]:
        """Return who must go so that a tree can have a domain, by group, key and value as in `holders`.

        These are pods of others, also such for which capacity is reserved or claimed there.
        """
        occupants: dict[HeldDomain, set[PodUid]] = {}
        if not view.exclusive:
            return {}

        def add(group: GroupKey | None, key: str, node: NodeName, uid: PodUid) -> None:
            row = view.nodes.get(node)
            if row is not None and key in row.labels:
                occupants.setdefault((group, key, row.labels[key]), set()).add(uid)

        own = [(group.key, exclusive) for group, exclusive in _exclusive(tree.groups)]
        others = self._split(view, state, tree)[1]
        for leaf in others:
            keys: set[tuple[GroupKey | None, str]] = set()
            keys.update((None, exclusive.key) for _, exclusive in _keeping_out(leaf, tree))
            keys.update((g, e.key) for g, e in own if _covers(tree.root, e.scope, leaf.root))
            for uid, node in self._occupied(view, state, leaf) if keys else ():
                for group, key in keys:
                    add(group, key, node, uid)
        for group, exclusive in own:
            for pod, node in self._requesting(view, state, tree, others, exclusive):
                add(group, exclusive.key, node, pod.uid)
        return {domain: frozenset(pods) for domain, pods in occupants.items()}

    def _occupied(
        self, view: ClusterView, state: ReservationState, row: PlacedLeaf
    ) -> Iterator[tuple[PodUid, NodeName]]:
        """Yield the pods of a leaf with the nodes where they are, or will be."""
        gang = state.gangs.get(row.root.uid)
        pods = view.members[row.leaf]
        yield from _places(pods, gang.reservations if gang is not None else _NONE)
        yield from _claimed(pods, _claims_of(state, row.root.uid))

    def _requesting(
        self,
        view: ClusterView,
        state: ReservationState,
        tree: Tree,
        others: Iterable[PlacedLeaf],
        exclusive: ExclusiveDomain,
    ) -> Iterator[tuple[Pod, NodeName]]:
        """Yield the pods of no group or of another tree that request the resource of an exclusive group, with their nodes."""
        if not exclusive.resource:
            return
        for node, running in view.on_node.items():
            for pod in running.values():
                if pod.group not in tree.members and _requests(pod, exclusive):
                    yield pod, node
        for row in others:  # also of trees out of its scope, which only the resource is about
            for uid, node in self._occupied(view, state, row):
                if _requests(pod := view.members[row.leaf][uid], exclusive) and pod.node != node:
                    yield pod, node

    def _split(
        self, view: ClusterView, state: ReservationState, tree: Tree
    ) -> tuple[set[NodeName], list[PlacedLeaf]]:
        """Return the nodes of a tree, and the placed leaves of the others."""
        others: list[PlacedLeaf] = []
        mine: set[NodeName] = set()
        for row in self.placed(view, state):
            if row.root.key == tree.root.key:
                mine |= row.nodes
            else:
                others.append(row)
        return mine, others

    def sentences(
        self, view: ClusterView, state: ReservationState, tree: Tree, readers: Visibility
    ) -> Iterator[str]:
        """Yield which domains a tree has alone, which of them others have, who they are, and which are free."""
        holders = self.holders(view, state, tree)
        own = [row for row in self.placed(view, state) if row.root.key == tree.root.key]
        asked = list(_exclusive(tree.groups))
        for group, exclusive in asked if holders else ():
            key, name = exclusive.key, spaced(group.key)
            own_nodes = {node for row in own if group in row.exclusive for node in row.nodes}
            if mine := _values(view, key, own_nodes):
                yield f"{name} has {key} {join_names([domain_text(key, value) for value in sorted(mine)])} alone"
                continue
            every = _values(view, key, view.nodes)
            of_others = holders[group.key] | holders[None]
            taken = {holder.value for holder in of_others if holder.key == key}
            free = [domain_text(key, value) for value in sorted(every - taken)]
            by = _by_whom(of_others, key, readers)
            yield (
                f"{name} needs a {key} alone: {len(taken & every)} of {len(every)} are taken"
                f"{f' ({by})' if by else ''}; free: {join_names(free) if free else 'none'}"
            )
        for key in sorted({holder.key for holder in holders.get(None, ())}):
            if not any(exclusive.key == key for _, exclusive in asked):
                by = _by_whom(holders[None], key, readers)
                yield f"it is kept out of each {key} that another tree has alone ({by})"


def _by_whom(holders: Iterable[DomainHolder], key: str, readers: Visibility) -> str:
    """Return who has domains of a key, `r1 by PodGroup a/b`; of namespaces that the readers do not see without names."""
    by_value: dict[str, set[str]] = {}
    for holder in holders:
        if holder.key == key:
            by_value.setdefault(holder.value, set()).add(name_for(readers, holder.holder))
    texts = [
        f"{domain_text(key, value)} by {join_names(sorted(names))}"
        for value, names in sorted(by_value.items())
    ]
    more = len(texts) - NAMED_MAX
    return ", ".join(texts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def with_taken(
    group: PlanGroup, holders: Mapping[GroupKey | None, frozenset[DomainHolder]]
) -> PlanGroup:
    """Return a group of a plan request, and those below it, with the domains that others have; the same object if none do."""
    groups = tuple(with_taken(child, holders) for child in group.groups)
    if any(new is not old for new, old in zip(groups, group.groups, strict=True)):
        group = msgspec.structs.replace(group, groups=groups)
    taken = holders.get(group.key)
    if not taken or isinstance(group.exclusive, UnsetType):
        return group
    values = tuple(sorted({holder.value for holder in taken}))
    return msgspec.structs.replace(
        group, exclusive=PlanExclusive(key=group.exclusive.key, taken=values)
    )


def closed_domains(
    holders: Mapping[GroupKey | None, frozenset[DomainHolder]],
) -> tuple[PlanExclusive, ...] | UnsetType:
    """Return the domains that exclusive groups of other trees have, by key; unset without any."""
    values: dict[str, set[str]] = {}
    for holder in holders.get(None, ()):
        values.setdefault(holder.key, set()).add(holder.value)
    if not values:
        return UNSET
    return tuple(
        PlanExclusive(key=key, taken=tuple(sorted(some))) for key, some in sorted(values.items())
    )


def _covers(root: Group, scope: ExclusiveScope, other: Group) -> bool:
    """Return whether another tree is in the scope of an exclusive group of a tree."""
    match scope:
        case "Cluster":
            return True
        case "Namespace":
            return root.key.namespace == other.key.namespace
        case "Profile":
            return root.labels.get(TREE_LABEL) == other.labels.get(TREE_LABEL)


def _exclusive(groups: Iterable[Group]) -> Iterator[tuple[Group, ExclusiveDomain]]:
    """Yield the exclusive groups among some, with what they have alone."""
    for group in groups:
        if group.constraints.exclusive is not None:
            yield group, group.constraints.exclusive


def _keeping_out(row: PlacedLeaf, tree: Tree) -> Iterator[tuple[Group, ExclusiveDomain]]:
    """Yield the exclusive groups of another tree that keep a tree out of their domains."""
    for group, exclusive in _exclusive(row.exclusive):
        if _covers(row.root, exclusive.scope, tree.root):
            yield group, exclusive


def _requests(pod: Pod, exclusive: ExclusiveDomain) -> bool:
    return any(name == exclusive.resource and n > 0 for name, n in pod.shape.requests)


def kept_from(tree: Tree, pod: Pod, root: Group | None) -> GroupKey | None:
    """Return a group of a tree that gets no domain in which a pod is, because it has its domain alone.

    Args:
        pod: A pod of another tree, or of none.
    """
    for group, exclusive in _exclusive(tree.groups):
        if root is not None and _covers(tree.root, exclusive.scope, root):
            return group.key
        if exclusive.resource and _requests(pod, exclusive):
            return group.key
    return None


def exclusive_nodes(view: ClusterView, state: ReservationState) -> frozenset[NodeName]:
    """Return the nodes of the domains in which exclusive groups have bound members, reservations or claims."""
    if not view.exclusive:
        return frozenset()
    taken = {
        (exclusive.key, value)
        for row in ExclusiveDomains().placed(view, state)
        for _, exclusive in _exclusive(row.exclusive)
        for value in _values(view, exclusive.key, row.nodes | row.claimed)
    }
    return frozenset(
        name
        for name, node in view.nodes.items()
        if any(node.labels.get(key) == value for key, value in taken)
    )


def _first_requesting(
    view: ClusterView, exclusive: ExclusiveDomain, requesting: Iterable[tuple[Pod, NodeName]]
) -> Iterator[DomainHolder]:
    """Yield per domain the first of the pods that request the resource of an exclusive group."""
    first: dict[str, str] = {}
    for pod, name in requesting:
        node = view.nodes.get(name)
        value = node.labels.get(exclusive.key) if node is not None else None
        if value is not None:
            path = f"Pod/{pod.path}"
            first[value] = min(first.get(value, path), path)
    for value, path in first.items():
        yield DomainHolder(exclusive.key, value, path, None)


def _places(
    pods: Mapping[PodUid, Pod], held: Mapping[PodUid, Reservation]
) -> Iterator[tuple[PodUid, NodeName]]:
    """Yield the members of a leaf with their nodes: those they are bound to, terminating ones too, or have a reservation on."""
    for uid, pod in pods.items():
        if pod.node is not None:
            yield uid, pod.node
        if uid in held:
            yield uid, held[uid].node


def _nodes_of_leaf(
    pods: Mapping[PodUid, Pod], held: Mapping[PodUid, Reservation], claims: Claims
) -> _NodesOfLeaf:
    nodes = frozenset(node for _, node in _places(pods, held))
    return nodes, frozenset(node for _, node in _claimed(pods, claims))


def _claims_of(state: ReservationState, root: GangUid) -> Claims:
    """Return what a preemption that goes on has claimed for a tree, by node."""
    preemption = state.preemptions.get(root)
    return _NO_CLAIMS if preemption is None or preemption.ended else preemption.claims


def _claimed(pods: Mapping[PodUid, Pod], claims: Claims) -> Iterator[tuple[PodUid, NodeName]]:
    """Yield the members of a leaf with the nodes that a preemption has claimed for them."""
    for node, some in claims.items():
        yield from ((claim.uid, node) for claim in some if claim.uid in pods)


def _values(view: ClusterView, key: str, nodes: Iterable[NodeName]) -> set[str]:
    """Return the values of a key among some nodes; a node without it, or that is gone, is in no domain."""
    labels = (view.nodes[name].labels for name in nodes if name in view.nodes)
    return {some[key] for some in labels if key in some}


# --- rules between pods

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
        # required affinity counts only pods that are certain to run there: besides assigned pods those
        # with a reservation of the same tree, because a tree is bound as one
        root = state.gangs.get(tree.root.uid)
        sure = root.reservations if root is not None else {}

        def own_rule(rule: PodRule) -> PlanRule:
            counts = self._counts(view, rule, taken, sure if rule.kind == "near" else None)
            return PlanRule(
                kind=rule.kind,
                keys=rule.keys,
                shapes=tuple(n for n, shape in enumerate(ruled.shapes) if rule in shape.rules),
                about=_about(cached, numbers, rule),
                there=tuple(_table(view, rule, key, counts) for key in rule.keys),
                skew=rule.skew,
                least_domains=rule.least_domains,
                honors_affinity=rule.honors_affinity,
                honors_taints=rule.honors_taints,
            )

        def preference(wish: PodPreference) -> PlanPreference:
            rule = wish.rule
            return PlanPreference(
                kind=rule.kind,
                key=rule.keys[0],
                weight=wish.weight,
                shapes=tuple(
                    n for n, shape in enumerate(ruled.shapes) if wish in _preferred(shape)
                ),
                there=_table(view, rule, rule.keys[0], self._counts(view, rule, taken)),
                among=bool(_selected(cached, rule)),
                skew=rule.skew,
                honors_affinity=rule.honors_affinity,
                honors_taints=rule.honors_taints,
            )

        rules = [(own_rule(rule), rule) for rule in own]
        # placed pods with anti-affinity exclude members from their domains
        for rule, at in standing.items():
            excluding = PlanRule(
                kind="apart",
                keys=rule.keys,
                shapes=(),
                about=_about(cached, numbers, rule),
                there=(_by_value(view, rule.keys[0], at),),
            )
            rules.append((excluding, rule))
        rules.sort(key=lambda pair: _order(pair[0]))
        return msgspec.structs.replace(
            ruled,
            rules=tuple(r for r, _ in rules),
            sources=tuple(r for _, r in rules),
            preferences=tuple(map(preference, soft)),
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

    def _counts(
        self,
        view: ClusterView,
        rule: PodRule,
        taken: Mapping[NodeName, UsedCapacity],
        sure: Collection[PodUid] | None = None,
    ) -> Counter[NodeName]:
        """Return per node the number of pods that a rule selects: assigned ones, and of those that are expected the sure ones; None: all."""
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
        for node, pod in _expected(view, taken):
            if (sure is None or pod.uid in sure) and rule.match(pod.namespace, pod.labels):
                counts[node] += 1
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
    if (held := reservation_of(state, pod.uid)) is not None:
        return held.node
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


def _table(
    view: ClusterView, rule: PodRule, key: str, counts: Mapping[NodeName, int]
) -> tuple[tuple[str, int], ...]:
    """Return the counts of a rule by value of a key, of a spread by node."""
    return tuple(sorted(counts.items())) if rule.kind == "spread" else _by_value(view, key, counts)


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
    if shapes == plain.shapes:  # the same objects, because callers compare by identity
        root, shapes = plain.root, plain.shapes
    cached.split = {rules: (InterpodRulePart(root, shapes), of_pod)}
    return cached.split[rules]
