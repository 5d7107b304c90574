"""Which running pods may be moved: evicted one at a time, while their gang keeps its minimum and its required domain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from extender.core.admit.interpod_rules import (
    InterpodRulePart,
    counted_by,
    exclusive_nodes,
    kept_from,
)
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NIL_GANG, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import counted
from extender.core.model.nodes import SILENT, Node
from extender.core.model.pod_groups import Forest, Group, Tree, key_of_parent
from extender.core.model.pods import EXEMPT_NAMESPACES, FILLED_IN_US, BudgetIndex, Pod, PodShape
from extender.core.planner.moves.move_types import Mover, StayingPod
from extender.core.preempt.disruption_units import lost_work_min

MOVE_LABEL = "gang-extender.dev/move"  # on pods; with the value "never" they are not moved
DAEMON = "DaemonSet"
UNMANAGED = "of no gang that the service has placed, so its new pod would not get the node that is held for it"


class MoveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods stay although they could be moved."""

    max_priority: int | None = None  # those above it
    oldest_us: int = 0  # those that were created before it; 0: none
    now_us: int = 0  # decides about the work that a move loses; 0: none counts
    members_only: bool = False  # those of no gang that the service has bound


class MovablePods(msgspec.Struct, frozen=True, kw_only=True):
    """All running pods of a cluster, parted in those that may be moved and those that stay."""

    movers: tuple[Mover, ...]  # sorted by pod
    staying: tuple[StayingPod, ...]  # sorted by pod
    shapes: tuple[PodShape, ...]  # of the movers
    barred: frozenset[NodeName]  # in the exclusive domain of a group: no pod is moved there


def movable_pods(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    *,
    tree: Tree | None = None,
    ruled: InterpodRulePart | None = None,
    limits: MoveLimits | None = None,
) -> MovablePods:
    """Return which pods may be moved, and why the others stay. Terminating pods are in neither list.

    Args:
        tree: That which needs the capacity; its own pods stay.
        ruled: The result of `ruled_part` for it: what its rules count stays.
    """
    return _Parting(view, state, forest, tree, ruled, limits or MoveLimits()).parted()


def move_of(view: ClusterView, state: ReservationState, forest: Forest, pod: Pod) -> Mover | str:
    """Return a running pod as one that may be moved now, its shape left out; a text: why it stays."""
    parting = _Parting(view, state, forest, None, None, MoveLimits(members_only=True))
    assert pod.node is not None
    return parting.reason(pod) or parting.mover(pod, view.nodes[pod.node], shape=0)


def members_running(tree: Tree, without: Collection[PodUid] = ()) -> dict[GroupKey, int]:
    """Return per group of a tree the members that run, of a composite the groups that have their minimum."""
    counts: dict[GroupKey, int] = {}
    for group in reversed(tree.groups):
        below = tree.children.get(group.key, ())
        counts[group.key] = sum(_has_minimum(tree, child, counts) for child in below) + sum(
            pod.node is not None and not pod.deleting and pod.uid not in without
            for pod in tree.members.get(group.key, ())
        )
    return counts


def _has_minimum(tree: Tree, group: Group, counts: Mapping[GroupKey, int]) -> bool:
    """Return whether a group has its minimum, and each child that it requires is there and has its own."""
    if counts[group.key] < (1 if group.basic else max(group.minimum, 1)):
        return False
    if group.basic or not group.required:
        return True
    below = {child.key.name: child for child in tree.children.get(group.key, ())}
    return all(name in below and _has_minimum(tree, below[name], counts) for name in group.required)


def broken_gangs(tree: Tree, leaving: Collection[PodUid]) -> list[tuple[Group, int, int]]:
    """Return the gangs of a tree that fall below their minimum without some pods, root first.

    Args:
        tree: As from `disruption_units.as_admitted`.

    Returns:
        Each gang with how many of its members or groups run now, and then.
    """
    before, after = members_running(tree), members_running(tree, leaving)
    return [
        (group, before[group.key], after[group.key])
        for group in tree.groups
        if not group.basic
        and _has_minimum(tree, group, before)
        and not _has_minimum(tree, group, after)
    ]


@dataclass
class _Parting:
    view: ClusterView
    state: ReservationState
    forest: Forest
    tree: Tree | None
    ruled: InterpodRulePart | None
    limits: MoveLimits

    def __post_init__(self) -> None:
        view, tree = self.view, self.tree
        self.victims = {uid for p in self.state.preemptions.values() for uid in p.victims}
        self.own = {pod.uid for pod in tree.pods} if tree is not None else set()
        self.guards = BudgetIndex(view.budgets.values())
        self.rules = {
            rule: pod
            for pod in sorted(view.keeping_off.values(), key=lambda pod: pod.path)
            for rule in pod.shape.rules
            if rule.kind == "apart"
        }
        silent = (n.name for n in view.nodes.values() if any(t.key in SILENT for t in n.taints))
        self.silent = frozenset(silent)
        # by root, and the leaf of a pod that counts although it is lost
        self.running: dict[tuple[GroupKey, GroupKey | None], dict[GroupKey, int]] = {}
        self.above: dict[GroupKey, list[Group]] = {}

    def parted(self) -> MovablePods:
        shapes: dict[PodShape, int] = {}
        movers, staying = [], []
        running = (
            (pod, self.view.nodes[node])
            for node, pods in self.view.on_node.items()
            for pod in pods.values()
            if node in self.view.nodes and not pod.deleting
        )
        for pod, node in sorted(running, key=lambda pair: pair[0].path):
            if reason := self.reason(pod):
                staying.append(
                    StayingPod(
                        pod=pod.path,
                        node=node.name,
                        reason=reason,
                        on_every_node=pod.static or pod.controller == DAEMON,
                    )
                )
                continue
            shape = shapes.setdefault(pod.shape, len(shapes))
            movers.append(self.mover(pod, node, shape=shape))
        return MovablePods(
            movers=tuple(movers),
            staying=tuple(staying),
            shapes=tuple(shapes),
            barred=exclusive_nodes(self.view, self.state),
        )

    def mover(self, pod: Pod, node: Node, *, shape: int) -> Mover:
        """Return a pod that may be moved, with the index of its shape."""
        return Mover(
            pod=pod.path,
            uid=pod.uid,
            node=node.name,
            shape=shape,
            priority=max((g.priority for g in self._groups(pod)), default=pod.priority),
            group=str(pod.group) if pod.group is not None else "",
            within=tuple(sorted(set(self._within(pod, node)))),
            lost_min=lost_work_min(pod, self.limits.now_us),
        )

    def _groups(self, pod: Pod) -> list[Group]:
        """Return the leaf of a pod and the groups above it; none of a pod outside of all trees."""
        leaf = pod.group
        if leaf is None or leaf not in self.forest.root_of:
            return []
        if leaf not in self.above:
            path = []
            key: GroupKey | None = leaf
            while key is not None and (group := self.view.groups.get(key)) is not None:
                path.append(group)
                key = key_of_parent(group) if key != self.forest.root_of[leaf] else None
            self.above[leaf] = path
        return self.above[leaf]

    def _running(self, leaf: GroupKey, pod: Pod) -> dict[GroupKey, int]:
        """Return `members_running` of the tree of a leaf, without members that are lost but the given one."""
        tree = self.forest.trees[self.forest.root_of[leaf]]
        key = tree.root.key, leaf if self._is_lost(pod) else None
        if key not in self.running:
            lost = {p.uid for p in tree.pods if self._is_lost(p) and p.uid != pod.uid}
            self.running[key] = members_running(tree, lost)
        return self.running[key]

    def _is_lost(self, pod: Pod) -> bool:
        """Return whether a pod is about to be evicted, or its node is gone or silent."""
        node = pod.node
        return pod.uid in self.victims or node not in self.view.nodes or node in self.silent

    # --- why a pod stays ---------------------------------------------------------------------------

    def reason(self, pod: Pod) -> str:
        """Return why a pod stays; empty: it may be moved."""
        return self._own_reason(pod) or self._others_reason(pod) or self._gang_reason(pod)

    def _own_reason(self, pod: Pod) -> str:
        shape, limits = pod.shape, self.limits
        most = pod.priority if limits.max_priority is None else limits.max_priority
        unseen = (*shape.unmodelled, *(rule.text for rule in shape.rules), "")[0]
        claim = next(iter(shape.exclusive_claims), "")
        checks = (
            (pod.static, "static: its kubelet runs it"),
            (pod.controller == DAEMON, "of a DaemonSet"),
            (pod.uid in self.own, "of the gang to place"),
            (limits.members_only and not self._is_bound_member(pod), UNMANAGED),
            (not pod.controller, "no controller would make it again"),
            (pod.namespace in EXEMPT_NAMESPACES, f"namespace {pod.namespace} is exempt"),
            (pod.labels.get(MOVE_LABEL) == "never", f"label {MOVE_LABEL}: never"),
            (pod.disruption_target or pod.uid in self.victims, "is being evicted"),
            (pod.priority > most, f"priority {pod.priority} is above {most}"),
            (
                pod.created_us < limits.oldest_us and pod.created_us not in FILLED_IN_US,
                "runs for longer than the limit",
            ),
            (claim, f"uses {claim}, which one pod may use"),
            (unseen, f"depends on {unseen}, which is not judged for a move"),
        )
        return next((text for applies, text in checks if applies), "")

    def _is_bound_member(self, pod: Pod) -> bool:
        root = self.state.gangs.get(self.state.gang_of.get(pod.uid, NIL_GANG))
        return root is not None and pod.uid in root.bound

    def _others_reason(self, pod: Pod) -> str:
        guards = self.guards.guarding(pod)
        if len(guards) > 1:
            names = " and ".join(budget.path for budget in guards[:2])
            return f"the Eviction API evicts no pod of several PodDisruptionBudgets: {names}"
        if guards and guards[0].allowed < 1:
            return f"PodDisruptionBudget {guards[0].path} allows no disruption"
        for rule, other in self.rules.items():
            if rule.match(pod.namespace, pod.labels):
                return f"{rule.text} of {other.path} selects it, which is not judged for a move"
        if self.ruled is not None and self.ruled.rules and counted_by(self.ruled, pod):
            return "a rule between pods of the gang to place counts it"
        root = next(iter(self._groups(pod)[-1:]), None)
        group = kept_from(self.tree, pod, root) if self.tree is not None else None
        if group is not None:
            return f"{group} shares its exclusive domain with no such pod, which is not judged for a move"
        return ""

    def _gang_reason(self, pod: Pod) -> str:
        path = self._groups(pod)
        if pod.group is None or not path:
            return f"{pod.group} does not exist, or is in no tree" if pod.group else ""
        for problem in self.forest.trees[path[-1].key].problems[:1]:
            return f"{path[-1].key} is not valid: {problem.message}"
        for group in path:
            if group.disruption_mode == "all":
                return f"{group.key} is disrupted as a whole"
            if group.constraints.exclusive is not None:
                return f"{group.key} has an exclusive domain"
        return self._minimum_reason(path, pod)

    def _minimum_reason(self, path: Sequence[Group], pod: Pod) -> str:
        """Return which group could not do without a pod of a leaf, given with the groups above it."""
        counts = self._running(path[0].key, pod)
        below = ""
        for group in path:
            have = counts[group.key]
            if below in group.required:
                return f"{group.key} requires {below}"
            if not group.basic and have <= group.minimum:
                noun = "pod" if group.key.kind == "PodGroup" else "group"
                return f"{group.key} runs with {counted(have, noun)}, and its minimum is {group.minimum}"
            if not group.basic or have > 1:
                return ""  # it keeps its minimum, so those above are not concerned
            below = group.key.name
        return ""

    # --- where a pod may go ------------------------------------------------------------------------

    def _within(self, pod: Pod, node: Node) -> Iterator[tuple[str, str]]:
        """Yield the labels of its node that a new one must have: of domains in which other members run."""
        path = self._groups(pod)
        slices = path[0].constraints.slices if path else ()
        keys = [level.key for level in slices]
        for group in path:
            if group.constraints.topology and self._others_below(group, pod):
                keys += group.constraints.topology
        return ((key, node.labels[key]) for key in keys if key in node.labels)

    def _others_below(self, group: Group, pod: Pod) -> bool:
        """Return whether another pod of a group runs."""
        tree = self.forest.trees[self.forest.root_of[group.key]]
        leaves = (group, *tree.below(group.key))
        members = (other for leaf in leaves for other in tree.members.get(leaf.key, ()))
        return any(p.uid != pod.uid and p.node is not None and not p.deleting for p in members)
