"""Reconciliation of what changed since the last one; its result is that of `decide_reconcile`.

Kept is what was compared last, and the roots that had differences then. A root is compared again if its state, its
tree, a group that it names, a pod of it, a node with capacity of it, or the usage of such a node has changed. Of a
tree of which only pods changed, only those members are compared, as long as they are unbound, or bound as reserved;
every other difference concerns the whole tree.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping

import msgspec
from immutables import Map

from extender.core.admit.plan_request import group_key_of, is_running
from extender.core.capacity.replacement_holds import (
    RecreatedLeaves,
    oversubscribed_holds,
    replacement_holds,
)
from extender.core.log.each_gang import EachGang
from extender.core.log.events import NewEvent, PodBound
from extender.core.log.gang_phase import missing
from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
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
from extender.core.reconcile.cluster_reconciliation import (
    Shared,
    decide_reconcile,
    members_outside,
    root_differences,
    victims_of,
)
from extender.core.reconcile.drift import ReconcileContext, bound_events
from extender.core.reconcile.reservation_checks import oversubscribed_on, unfit_pods

_MEMBER_FIELDS = frozenset({"reservations", "bound"})
_OTHER_FIELDS = tuple(f for f in GangState.__struct_fields__ if f not in _MEMBER_FIELDS)


class _Compared(msgspec.Struct, frozen=True):
    """What was compared last."""

    view: ClusterView
    state: ReservationState
    forest: Forest
    now: ReconcileContext

    def tree_of(self, pod: Pod) -> Tree | None:
        """Return the tree of the leaf that a pod names."""
        root_key = self.forest.root_of.get(pod.group) if pod.group is not None else None
        return None if root_key is None else self.forest.trees[root_key]


class _RootsByGroup:
    """The roots in the log by the groups that they name: their root group, and those of their admission."""

    def __init__(self) -> None:
        self._gangs: Map[GangUid, GangState] = Map()  # as of the last call
        self._roots: dict[GroupKey, set[GangUid]] = {}

    def naming(
        self, groups: Iterable[GroupKey], gangs: Map[GangUid, GangState]
    ) -> frozenset[GangUid]:
        """Return the roots that name one of some groups.

        Args:
            groups: The groups.
            gangs: The roots in the log as it is now.
        """
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
    """What differs from what was compared last.

    Attributes:
        members: Changed pods that are, or were, of a root: in the log, or by the leaf that they name.
        nodes: Nodes whose capacity, usage or reservations have changed.
        whole: Roots that are compared as a whole.
        roots: Roots of which something differs, also those in `whole`.
        trees: Roots of changed trees.
    """

    def __init__(
        self,
        last: _Compared,
        current: _Compared,
        unsettled: Collection[GangUid],
        roots_by_group: _RootsByGroup,
    ) -> None:
        self._both = (last, current)
        self._roots_by_group = roots_by_group
        before, now = last.now, current.now
        moments = (before.binding ^ now.binding) | (before.posted ^ now.posted)
        self.members: dict[GangUid, set[PodUid]] = {}
        self.nodes = changed_keys(last.state.claims_on, current.state.claims_on)
        self.trees = changed_keys(last.forest.trees, current.forest.trees)
        self.whole: set[GangUid] = set(before.started ^ now.started)
        self.roots = changed_keys(last.state.gangs, current.state.gangs) | set(unsettled)
        self._add_pods(changed_pods(last.view, current.view) | moments)
        self._add_failed_bindings(before.binding - now.binding)
        self._add_nodes(changed_nodes(last.view, current.view))
        self._add_groups()
        self.whole |= {hold.gang_uid for hold in replacement_holds(current.state)}
        for name in self.nodes:
            for uid in oversubscribed_on(current.view, current.state, name):
                self.whole.add(current.state.gang_of[uid])
        self.roots |= self.whole | self.members.keys()

    def _add_pods(self, uids: Iterable[PodUid]) -> None:
        last, current = self._both
        for uid in uids:
            moved = not _uses_the_same(last.view.pods.get(uid), current.view.pods.get(uid))
            for side in self._both:
                pod, gang_uid = side.view.pods.get(uid), side.state.gang_of.get(uid)
                if moved and pod is not None and pod.node is not None:
                    self.nodes.add(pod.node)
                if pod is not None and (tree := side.tree_of(pod)) is not None:
                    self.members.setdefault(tree.root.uid, set()).add(uid)
                if gang_uid is not None:
                    self.members.setdefault(gang_uid, set()).add(uid)
                    held = side.state.gangs[gang_uid].reservations.get(uid)
                    if moved and held is not None:
                        self.nodes.add(held.node)

    def _add_failed_bindings(self, uids: Iterable[PodUid]) -> None:
        """Add the roots of members whose Binding has failed: while it is in flight, their reservations are not released."""
        state = self._both[1].state
        for uid in uids:
            held = reservation_of(state, uid)
            if held is not None:
                self.whole.add(held.gang_uid)

    def _add_nodes(self, names: set[NodeName]) -> None:
        self.nodes |= names
        for name in names:
            for side in self._both:
                pods: Mapping[PodUid, Pod] = side.view.on_node.get(name, Map())
                self.whole |= {side.state.gang_of[uid] for uid in pods if uid in side.state.gang_of}
                for uid, pod in pods.items():  # also a member that was lost with the node
                    if (tree := side.tree_of(pod)) is not None:
                        self.trees.add(tree.root.key)
                        self.members.setdefault(tree.root.uid, set()).add(uid)
                held = reservations_on(side.state, name).values()
                self.whole |= {reservation.gang_uid for reservation in held}

    def _add_groups(self) -> None:
        """Add the roots that name groups which came, went or are being deleted, and those of changed trees."""
        last, current = self._both
        moved = [
            key
            for key in changed_groups(last.view, current.view)
            if _place(last.view, key) != _place(current.view, key)
        ]
        if moved:
            self.whole |= self._roots_by_group.naming(moved, current.state.gangs)
        # roots that the log does not have any more: their pods may run
        self.trees |= {
            group_key_of(last.state.gangs[uid])
            for uid in self.roots
            if uid in last.state.gangs and uid not in current.state.gangs
        }
        for key in self.trees:
            for side in self._both:
                tree = side.forest.trees.get(key)
                if tree is not None and tree.root.uid in current.state.gangs:
                    self.roots.add(tree.root.uid)


class IncrementalReconciliation:
    """Compares the log with the cluster again and again."""

    def __init__(self) -> None:
        self._last: _Compared | None = None
        self._roots_by_group = _RootsByGroup()
        # Roots with differences at the last comparison: their members, None for the whole tree.
        self._open: dict[GangUid, frozenset[PodUid] | None] = {}

    def decide(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        now: ReconcileContext,
        gangs: EachGang | None = None,
    ) -> list[NewEvent]:
        """Return the same events as `decide_reconcile`, those of one root in another order perhaps.

        A gang that was left out is compared as a whole the next time.
        """
        gangs = gangs or EachGang()
        drafts = self._decide(view, state, forest, now, gangs)
        self._open |= dict.fromkeys(gangs.left_out)
        return drafts

    def _decide(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        now: ReconcileContext,
        gangs: EachGang,
    ) -> list[NewEvent]:
        current = _Compared(view, state, forest, now)
        last, self._last = self._last, current
        if last is None or _concerns_all(last, current):
            drafts = decide_reconcile(view, state, forest, now, gangs)
            self._open = {draft.gang_uid: None for draft in drafts}
            return drafts
        changes = _Changes(last, current, self._open.keys(), self._roots_by_group)
        if unknown := {uid for uid in self._open if uid not in state.gangs}:
            changes.trees |= {
                key for key, tree in forest.populated.items() if tree.root.uid in unknown
            }
        changes.whole |= {uid for uid, members in self._open.items() if members is None}
        before, self._open = self._open, {}
        drafts, compared, left = self._of_members(last, current, changes, before, gangs)
        shared = _shared(current, changes, left) if left else None
        for root in left:
            assert shared is not None
            tree = forest.trees.get(group_key_of(root))
            differences = functools.partial(root_differences, view, state, root, tree, shared, now)
            drafts += self._noted(gangs.decide(root.uid, root.gang, differences))
        keys = {group_key_of(root) for root in left} | changes.trees
        for key in keys - compared:
            tree = forest.populated.get(key)
            if tree is not None:
                drafts += self._noted(members_outside(view, state, tree, now, gangs))
        return drafts

    def _noted(self, drafts: list[NewEvent]) -> list[NewEvent]:
        """Record that the roots of events are compared as a whole the next time."""
        self._open |= {draft.gang_uid: None for draft in drafts}
        return drafts

    def _of_members(
        self,
        last: _Compared,
        current: _Compared,
        changes: _Changes,
        unsettled: Mapping[GangUid, frozenset[PodUid] | None],
        gangs: EachGang,
    ) -> tuple[list[NewEvent], set[GroupKey], list[GangState]]:
        """Compare the members of roots of which only members changed.

        Returns:
            The events, the keys of these roots, and the roots that have to be compared as a whole.
        """
        drafts: list[NewEvent] = []
        compared: set[GroupKey] = set()
        left: list[GangState] = []
        for root in filter(None, map(current.state.gangs.get, changes.roots)):
            compare = functools.partial(_compared_members, last, current, root, changes, unsettled)
            # one that is left out here is compared as a whole now, which reads less of the last comparison
            events = gangs.result(root.uid, f"members of {root.gang}", compare)
            if events is None:
                left.append(root)
                continue
            compared.add(group_key_of(root))
            drafts += [current.now.draft(root.uid, root.gang, data) for data in events]
            if events:
                self._open[root.uid] = frozenset(data.uid for data in events)
        return drafts, compared, left


def _compared_members(
    last: _Compared,
    current: _Compared,
    root: GangState,
    changes: _Changes,
    unsettled: Mapping[GangUid, frozenset[PodUid] | None],
) -> list[PodBound] | None:
    """Return the events of a root of which only members changed; None where it has to be compared as a whole."""
    members = _changed_members(last, current, root)
    if members is None or root.uid in changes.whole:
        return None
    members |= changes.members.get(root.uid, set())
    members |= unsettled.get(root.uid) or frozenset()
    return _member_differences(current, root, members)


def _uses_the_same(before: Pod | None, pod: Pod | None) -> bool:
    """Return whether a pod takes the same capacity as before: what it uses, and whether it needs its reservation."""
    return (
        before is not None
        and pod is not None
        and (before.node, before.deleting) == (pod.node, pod.deleting)
        and before.shape == pod.shape
    )


def _concerns_all(last: _Compared, current: _Compared) -> bool:
    """Return whether something changed by time, or by answers about lost members."""
    timed = any(bool(c.now.awaited or c.now.expired or c.now.over) for c in (last, current))
    return timed or last.now.ends != current.now.ends


def _shared(current: _Compared, changes: _Changes, roots: Iterable[GangState]) -> Shared:
    """Return what some roots need to be compared as a whole."""
    nodes = set(changes.nodes)
    for root in roots:
        nodes.update(reservation.node for reservation in root.reservations.values())
    view, state = current.view, current.state
    return Shared(
        overtaken=frozenset(uid for name in nodes for uid in oversubscribed_on(view, state, name)),
        taken=oversubscribed_holds(view, state),
        victims=victims_of(state),
        recreated=RecreatedLeaves(state.trees),
    )


def _changed_members(last: _Compared, current: _Compared, root: GangState) -> set[PodUid] | None:
    """Return the members of a root whose state changed; None where more than members differs, or a rule is broken."""
    key = group_key_of(root)
    before, tree = last.state.gangs.get(root.uid), current.forest.trees.get(key)
    then = last.forest.trees.get(key)
    if before is None or tree is None or then is None or root.uid != tree.root.uid:
        return None
    if tree.problems or root.replacement_holds or not root.groups:
        return None
    if not _differ_in_pods(then, tree) or not _differ_in_members(before, root):
        return None
    changed = changed_keys(before.reservations, root.reservations)
    if any(uid in root.reservations for uid in changed):
        return None
    return changed | changed_keys(before.bound, root.bound)


def _member_differences(
    current: _Compared, root: GangState, members: Iterable[PodUid]
) -> list[PodBound] | None:
    """Return the events of members that are bound as reserved; None where there is another difference."""
    view = current.view
    events: list[PodBound] = []
    waiting: dict[PodUid, Reservation] = {}
    for uid in members:
        pod, reservation = view.pods.get(uid), root.reservations.get(uid)
        if reservation is None:
            if not _is_as_recorded(view, root, pod, uid):
                return None
        elif pod is None or not _waits_or_is_bound(view, pod, reservation):
            return None
        elif pod.node is None:
            waiting[uid] = reservation
        else:
            events += [
                data for data in bound_events(reservation, pod) if isinstance(data, PodBound)
            ]
    if waiting and unfit_pods(view, root, waiting):
        return None
    done = root.phase in ("scheduled", "invalid")
    if not done and len(root.bound) + len(events) >= missing(root.groups, {}):
        return None  # the minimum may be bound
    return events


def _place(view: ClusterView, key: GroupKey) -> tuple[str, bool] | None:
    """Return what reconciliation reads of a group."""
    group = view.groups.get(key)
    return None if group is None else (group.uid, group.deleting)


def _differ_in_pods(before: Tree, tree: Tree) -> bool:
    """Return whether two trees differ in nothing but pods."""
    return before is tree or (
        before.root is tree.root
        and before.groups is tree.groups
        and before.problems == tree.problems
    )


def _differ_in_members(before: GangState, root: GangState) -> bool:
    """Return whether two states of a root differ in nothing but reservations and bound members."""
    for field in _OTHER_FIELDS:
        old, new = getattr(before, field), getattr(root, field)
        if old is not new and old != new:
            return False
    return True


def _waits_or_is_bound(view: ClusterView, pod: Pod, reservation: Reservation) -> bool:
    """Return whether a member with a reservation waits for its Binding, or is bound as reserved."""
    node = view.nodes.get(reservation.node)
    if pod.deleting or node is None or node.deleting:
        return False
    return pod.node is None or (pod.node == reservation.node and pod.plan in ("", reservation.plan))


def _is_as_recorded(view: ClusterView, root: GangState, pod: Pod | None, uid: PodUid) -> bool:
    """Return whether a pod without a reservation is bound as the log has it, or runs nowhere."""
    member = root.bound.get(uid)
    if member is None:
        return pod is None or not is_running(pod) or pod.node not in view.nodes
    if pod is None or pod.deleting or member.node not in view.nodes:
        return False
    return pod.node == member.node
