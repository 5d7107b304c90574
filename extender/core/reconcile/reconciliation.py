"""Reconciliation of the trees that may differ from the log: those that changed since the last one; at first all of them.

Kept is what was compared last, and the roots that had differences then. A root is compared again if its state, its
groups, a group that it names, a pod of it, a node with capacity of it, or the usage of such a node has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from immutables import Map

from extender.core.admit.plan_request import group_key_of, is_running
from extender.core.capacity.capacity_claims import RecreatedLeaves, oversubscribed_holds
from extender.core.log.events import GangRemoved, NewEvent, PodBound
from extender.core.log.gang_phase import missing
from extender.core.log.reservation_state import (
    GangState,
    ReservationState,
    claims_of_kind,
    reservation_of,
    reservations_on,
)
from extender.core.model.cluster_view import (
    ClusterView,
    changed_groups,
    changed_nodes,
    changed_pods,
)
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.object_identity import changed_keys
from extender.core.model.pod_groups import Forest, Tree, kind_of
from extender.core.model.pods import Pod
from extender.core.reconcile.cluster_reconciliation import Shared, root_differences, victims_of
from extender.core.reconcile.drift import ReconcileContext, bound_outside
from extender.core.reconcile.reservation_checks import oversubscribed_on

_OTHER_FIELDS = tuple(f for f in GangState.__struct_fields__ if f not in ("reservations", "bound"))


class _Compared(msgspec.Struct, frozen=True):
    """What was compared last."""

    view: ClusterView
    state: ReservationState
    forest: Forest
    now: ReconcileContext


class _RootsByGroup:
    """The roots in the log by the groups that they name: their root group, and those of their admission."""

    def __init__(self) -> None:
        self._gangs: Map[GangUid, GangState] = Map()  # as of the last call
        self._roots: dict[GroupKey, set[GangUid]] = {}

    def naming(
        self, groups: Iterable[GroupKey], gangs: Map[GangUid, GangState]
    ) -> frozenset[GangUid]:
        """Return the roots that name one of some groups."""
        before, self._gangs = self._gangs, gangs
        for uid in changed_keys(before, gangs):
            self._move(uid, _named_by(before.get(uid)), _named_by(gangs.get(uid)))
        return frozenset(uid for key in groups for uid in self._roots.get(key, ()))

    def _move(self, uid: GangUid, before: frozenset[GroupKey], named: frozenset[GroupKey]) -> None:
        for key in before - named:
            roots = self._roots[key]
            roots.discard(uid)
            if not roots:
                del self._roots[key]
        for key in named - before:
            self._roots.setdefault(key, set()).add(uid)


def _named_by(root: GangState | None) -> frozenset[GroupKey]:
    """Return the groups that `root_differences` looks up for a root; none for a root that is not in the log."""
    if root is None:
        return frozenset()
    key = group_key_of(root)
    admitted = {GroupKey(key.namespace, g.name, kind_of(g.kind)) for g in root.groups}
    return frozenset(admitted | {key})


class _Changes:
    """What may differ from the log because of what changed since the last comparison.

    Attributes:
        roots: Roots, with the members that may differ; None: anything of the root may.
        trees: Roots of trees whose members may run without a reservation.
    """

    def __init__(
        self,
        last: _Compared,
        current: _Compared,
        unsettled: Mapping[GangUid, frozenset[PodUid] | None],
        overtaken: Callable[[NodeName], Collection[PodUid]],
        roots_by_group: _RootsByGroup,
    ) -> None:
        self._both = (last, current)
        before, now, gangs = last.state, current.state, current.state.gangs
        self.roots: dict[GangUid, set[PodUid] | None] = {}
        self._nodes = changed_keys(before.claims_on, now.claims_on)
        self.trees = {
            key
            for key in changed_keys(last.forest.trees, current.forest.trees)
            if not _differ_in_pods(last.forest.trees.get(key), current.forest.trees.get(key))
        }
        for uid, members in unsettled.items():
            self._add(uid, members)
        for uid in changed_keys(before.gangs, gangs):
            self._add(uid, self._changed_members(uid))
        self._add_whole(last.now.started ^ current.now.started)
        self._add_pods()
        self._add_nodes(changed_nodes(last.view, current.view))
        moved = (
            key
            for key in changed_groups(last.view, current.view)
            if _place(last.view, key) != _place(current.view, key)
        )
        self._add_whole(roots_by_group.naming(moved, gangs))
        self._add_whole(hold.gang_uid for hold in claims_of_kind(now, "replacement"))
        for name in self._nodes:
            self._add_whole(now.gang_of[uid] for uid in overtaken(name))
        # roots that the log does not have any more: their pods may run
        self.trees |= {
            group_key_of(before.gangs[uid])
            for uid in self.roots
            if uid in before.gangs and uid not in gangs
        }
        for key in self.trees:
            for side in self._both:
                if (tree := side.forest.trees.get(key)) is not None:
                    self._add_whole([tree.root.uid])

    def _add(self, uid: GangUid, members: Iterable[PodUid] | None) -> None:
        before = self.roots.setdefault(uid, set())
        if members is None:
            self.roots[uid] = None
        elif before is not None:
            before.update(members)

    def _add_whole(self, uids: Iterable[GangUid]) -> None:
        self.roots |= dict.fromkeys(uids)

    def _changed_members(self, uid: GangUid) -> set[PodUid] | None:
        """Return the members of a root that were bound; None where anything else in its state differs."""
        before, root = (side.state.gangs.get(uid) for side in self._both)
        if before is None or root is None:
            return None
        for field in _OTHER_FIELDS:
            old, new = getattr(before, field), getattr(root, field)
            if old is not new and old != new:
                return None
        changed = changed_keys(before.reservations, root.reservations)
        if any(member in root.reservations for member in changed):
            return None
        return changed | changed_keys(before.bound, root.bound)

    def _add_pods(self) -> None:
        last, current = self._both
        before, now = last.now, current.now
        moments = (before.binding ^ now.binding) | (before.posted ^ now.posted)
        for uid in changed_pods(last.view, current.view) | moments:
            moved = not _reads_the_same(last.view.pods.get(uid), current.view.pods.get(uid))
            for side in self._both if moved or uid in moments else ():
                self._add_pod(side, uid)
                pod, held = side.view.pods.get(uid), reservation_of(side.state, uid)
                if moved and pod is not None and pod.node is not None:
                    self._nodes.add(pod.node)
                if moved and held is not None:
                    self._nodes.add(held.node)
        for uid in before.binding - now.binding:
            # its Binding has failed: while that was in flight, its reservation was not released
            if (held := reservation_of(current.state, uid)) is not None:
                self._add_whole([held.gang_uid])

    def _add_pod(self, side: _Compared, uid: PodUid) -> None:
        if uid in side.state.gang_of:
            self._add(side.state.gang_of[uid], [uid])
        pod = side.view.pods.get(uid)
        key = side.forest.root_of.get(pod.group) if pod is not None and pod.group else None
        if key is None:
            return
        root = side.forest.trees[key].root
        if root.uid in self._both[1].state.gangs:
            self._add(root.uid, [uid])
        else:
            self.trees.add(root.key)

    def _add_nodes(self, names: set[NodeName]) -> None:
        self._nodes |= names
        for name in names:
            for side in self._both:
                pods: Mapping[PodUid, Pod] = side.view.on_node.get(name, Map())
                for uid in pods:  # also a member that was lost with the node
                    self._add_pod(side, uid)
                self._add_whole(
                    side.state.gang_of[uid] for uid in pods if uid in side.state.gang_of
                )
                held = reservations_on(side.state, name).values()
                self._add_whole(reservation.gang_uid for reservation in held)


class Reconciliation:
    """Compares the log with the cluster again and again."""

    def __init__(self) -> None:
        self._last: _Compared | None = None
        self._roots_by_group = _RootsByGroup()
        # Roots with differences at the last comparison: their members, None for the whole tree
        self._open: dict[GangUid, frozenset[PodUid] | None] = {}

    def decide(
        self, view: ClusterView, state: ReservationState, forest: Forest, now: ReconcileContext
    ) -> list[NewEvent]:
        """Return the events that bring the log up to date with the view; none when they agree.

        A gang that was left out is compared as a whole the next time.
        """
        gangs = now.gangs
        overtaken = functools.cache(lambda name: tuple(oversubscribed_on(view, state, name)))
        current = _Compared(view, state, forest, now)
        roots, trees = self._to_compare(current, overtaken)
        self._open = {}
        if not roots and not trees:
            return []
        shared = Shared(
            overtaken=overtaken,
            taken=oversubscribed_holds(view, state),
            victims=victims_of(state),
            recreated=RecreatedLeaves(state.trees),
        )
        drafts: list[NewEvent] = []
        for root in filter(None, map(state.gangs.get, sorted(roots))):
            compare = functools.partial(_differences, current, root, roots[root.uid], shared)
            events, is_whole = gangs.result(root.uid, root.gang, compare) or ([], True)
            drafts += events
            if is_whole:
                trees[group_key_of(root)] = None
            if events:
                uids = frozenset(e.data.uid for e in events if isinstance(e.data, PodBound))
                self._open[root.uid] = None if is_whole else uids
        removed = {event.gang_uid for event in drafts if isinstance(event.data, GangRemoved)}
        for tree in filter(None, map(forest.populated.get, sorted(trees, key=str))):
            name = f"members of {tree.root.key.path} without a reservation"
            outside = functools.partial(bound_outside, view, state, tree, now, removed)
            events = gangs.decide(tree.root.uid, name, outside)
            self._open |= dict.fromkeys(event.gang_uid for event in events)
            drafts += events
        self._open |= dict.fromkeys(gangs.left_out)
        return drafts

    def _to_compare(
        self, current: _Compared, overtaken: Callable[[NodeName], Collection[PodUid]]
    ) -> tuple[Mapping[GangUid, Collection[PodUid] | None], dict[GroupKey, None]]:
        """Return the roots and trees, as in `_Changes`, that may differ from the log.

        These are all, if something changed by time or by answers about lost members.
        """
        last, self._last = self._last, current
        state, forest, now = current.state, current.forest, current.now
        if (
            last is None
            or last.now.ends != now.ends
            or any(bool(c.now.awaited or c.now.expired or c.now.over) for c in (last, current))
        ):
            return dict.fromkeys(state.gangs), dict.fromkeys(forest.populated)
        changes = _Changes(last, current, self._open, overtaken, self._roots_by_group)
        trees = dict.fromkeys(changes.trees)
        if unknown := {uid for uid in self._open if uid not in state.gangs}:
            populated = forest.populated.items()
            trees |= dict.fromkeys(key for key, tree in populated if tree.root.uid in unknown)
        return changes.roots, trees


def _differences(
    current: _Compared, root: GangState, members: Collection[PodUid] | None, shared: Shared
) -> tuple[list[NewEvent], bool]:
    """Return the events of a root, and whether it was compared as a whole.

    Where only members changed, those are compared as if the root had no others. All that can be found so is that they
    are bound as reserved: for any other difference the whole root is compared.
    """
    view, tree = current.view, current.forest.trees.get(group_key_of(root))
    compare = functools.partial(
        root_differences, view, current.state, tree=tree, shared=shared, now=current.now
    )
    is_same_tree = tree is not None and tree.root.uid == root.uid and not tree.problems
    if members is not None and is_same_tree and root.groups and not root.replacement_holds:
        reserved = {uid: root.reservations[uid] for uid in members if uid in root.reservations}
        bound = {uid: root.bound[uid] for uid in members if uid in root.bound}
        others = (view.pods.get(uid) for uid in members if uid not in reserved and uid not in bound)
        if not any(pod is not None and is_running(pod) for pod in others):
            events = compare(msgspec.structs.replace(root, reservations=reserved, bound=bound))
            count = len(root.bound) + len(events)
            settled = root.phase in ("scheduled", "invalid") or count < missing(root.groups, {})
            if settled and all(isinstance(event.data, PodBound) for event in events):
                return events, False
    return compare(root), True


def _reads_the_same(before: Pod | None, pod: Pod | None) -> bool:
    """Return whether two states of a pod are the same to reconciliation, and take the same capacity."""
    return (
        before is not None
        and pod is not None
        and (before.node, before.deleting) == (pod.node, pod.deleting)
        and (before.group, before.plan) == (pod.group, pod.plan)
        and before.shape == pod.shape
    )


def _place(view: ClusterView, key: GroupKey) -> tuple[str, bool] | None:
    """Return what reconciliation reads of a group."""
    group = view.groups.get(key)
    return None if group is None else (group.uid, group.deleting)


def _differ_in_pods(before: Tree | None, tree: Tree | None) -> bool:
    """Return whether two trees differ in nothing but pods."""
    return (
        before is not None
        and tree is not None
        and before.root is tree.root
        and before.groups is tree.groups
        and before.problems == tree.problems
    )
