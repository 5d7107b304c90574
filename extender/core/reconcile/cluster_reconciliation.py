"""Reconciliation: the events by which the log follows the cluster (bound, lost, deleted, superseded, completed).

This module records observations and does not plan. If a tree without bound members loses a reservation of its
minimum, all its reservations are released and it is planned again as a whole. A started tree loses only the
reservations that cannot be used any more (C.6: a started gang is completed, not stopped). Those include
reservations on a node that kube-scheduler would reject: cordoned, tainted, relabelled, or with less capacity.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from immutables import Map

from extender.core.admit.plan_request import group_key_of
from extender.core.admit.verdict_events import group_records
from extender.core.capacity.capacity_claims import (
    RecreatedLeaves,
    ended_holds,
    leaf_of,
    released_pods,
    replacement_hold_end,
)
from extender.core.log import events as ev
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim
from extender.core.log.gang_phase import satisfied
from extender.core.log.reservation_state import (
    BoundMember,
    GangState,
    Reservation,
    ReservationState,
)
from extender.core.log.state_projector import replacement_hold
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import GroupKey, NodeName, PlanId, PodUid
from extender.core.model.nodes import SILENT
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Forest, Tree, kind_of
from extender.core.model.pods import ENDED_BY, SUCCEEDED, TAINTED, PodEnd
from extender.core.model.visibility import Visibility, namespace_of
from extender.core.reconcile.drift import (
    ReconcileContext,
    bound_event,
    bound_events,
    elsewhere_events,
    strayed_events,
)
from extender.core.reconcile.reservation_checks import (
    incomplete_groups,
    is_unassigned,
    paths_to_leaves,
    reserved_capacity_users,
    reserved_capacity_users_text,
    unfit_pods,
)

NO_PLAN = PlanId("")
NAMED_MAX = 5  # pods named in a text; the event lists all of them
DELETED_UNBOUND = "deleted before it was bound:"
UNWATCHED = "gone when this leader first looked, and whether it was bound is not known"


class Shared(msgspec.Struct, frozen=True):
    """Results that are computed once for all roots."""

    # reservations on a node that do not fit any more
    overtaken: Callable[[NodeName], Collection[PodUid]]
    taken: Collection[PodUid]  # replacement holds that do not fit any more
    victims: Collection[PodUid]  # victims of preemptions
    recreated: RecreatedLeaves


def victims_of(state: ReservationState) -> frozenset[PodUid]:
    """Return the victims of all preemptions."""
    return frozenset(uid for p in state.preemptions.values() for uid in p.victims)


def losses_with_hold(
    view: ClusterView,
    state: ReservationState,
    root: GangState,
    tree: Tree | None,
    now: ReconcileContext,
) -> list[ev.MemberTerminated]:
    """Return the losses of a root that are not recorded yet and that lead to a replacement hold."""
    shared = Shared(
        overtaken=lambda _: (),
        taken=(),
        victims=victims_of(state),
        recreated=RecreatedLeaves(state.trees),
    )
    events = [draft.data for draft in root_differences(view, state, root, tree, shared, now)]
    return [
        data
        for data in events
        if isinstance(data, ev.MemberTerminated) and data.held_until_us and data.uid in root.bound
    ]


def root_differences(
    view: ClusterView,
    state: ReservationState,
    root: GangState,
    tree: Tree | None,
    shared: Shared,
    now: ReconcileContext,
) -> list[ev.NewEvent]:
    """Return the events for what differs between a root in the log and the cluster; members without a reservation apart."""
    placed = root.reservations or root.bound or root.replacement_holds
    if tree is not None and tree.root.uid == root.uid and not placed:
        return []  # the root exists, and none of its members is placed: there is nothing to compare
    group = view.groups.get(group_key_of(root))
    if group is None or group.uid != root.uid:
        return [now.draft(root.uid, root.gang, data) for data in _removal(view, root, now)]
    strayed = strayed_events(view, root)
    elsewhere = {f.uid for f in strayed if isinstance(f, ev.MemberTerminated)}
    short_lived = [*_short_lived(view, root, now)]
    events = [
        *short_lived,
        *_elsewhere(root, short_lived),
        *_relabelled(view, root),
        *_settled(view, root),
        *strayed,
    ]
    bound_here = {f.uid: f.node for f in events if isinstance(f, ev.PodBound)}
    lost = [
        m
        for m in sorted(root.bound.values(), key=lambda m: m.pod)
        if m.uid not in elsewhere and m.uid not in now.awaited and _is_lost(view, m.uid, m.node)
    ]
    runs = bool(bound_here) or len(root.bound) > len(lost)
    ended: list[ev.AnyEventData] = [_lost(view, member, now) for member in short_lived]
    for member in lost:
        # members are replaced while others run, or where their workload makes all of them again
        alive = runs or leaf_of(root, member.group) in shared.recreated
        data = _lost(view, member, now)
        times = {"now_us": now.now_us, "held_us": now.replacement_hold_us}
        until_us = replacement_hold_end(
            view, tree if alive else None, member, data, shared.victims, **times
        )
        events.append(msgspec.structs.replace(data, held_until_us=until_us))
    events += ended_holds(
        view, root, tree, shared.taken, now.over, runs=runs, recreated=shared.recreated
    )
    broken = tree is not None and bool(tree.problems)
    events += _released(view, state, root, shared.overtaken, bound_here, now, broken=broken)
    counts = _counts(view, root, (*events, *ended), now)
    if root.phase not in ("scheduled", "invalid") and satisfied(_minima(root, tree), counts):
        # before the ends: an admission without bound members and reservations is undone
        ended = [*filter(_succeeded, events), *ended]
        events = [data for data in events if not _succeeded(data)]
        events.append(ev.GangScheduled(plan=root.plan or NO_PLAN, bound=sum(counts.values())))
    elif root.phase == "scheduled" and tree is not None and not broken:
        events += _regrouped(root, tree)
    return [now.draft(root.uid, root.gang, data) for data in (*events, *ended)]


def _removal(view: ClusterView, root: GangState, now: ReconcileContext) -> list[ev.AnyEventData]:
    """Return the events of a root whose group is gone: members that were bound and have ended, and what was not used.

    The end of the root comes last, when it is known how all its members ended.
    """
    short_lived = [*_short_lived(view, root, now)]
    events: list[ev.AnyEventData] = [
        *short_lived,
        *_elsewhere(root, short_lived),
        *_settled(view, root),
    ]
    bound_here = [data for data in events if isinstance(data, ev.PodBound)]
    unresolved = {u for u in now.binding if is_unassigned(view.pods.get(u))} | now.awaited
    members: list[BoundMember | ev.PodBound] = [
        *sorted(root.bound.values(), key=lambda m: m.pod),
        *bound_here,
    ]
    events += [
        _lost(view, member, now)
        for member in members
        if member.uid not in now.awaited and _is_lost(view, member.uid, member.node)
    ]
    settled = unresolved | {data.uid for data in bound_here}
    unused = [r for uid, r in root.reservations.items() if uid not in settled]
    text = f"{group_key_of(root)} was deleted"
    for unwatched, words in ((False, text), (True, f"{text}; {UNWATCHED}")):
        if reservations := [r for r in unused if (r.uid in now.unwatched) == unwatched]:
            events.append(_release(reservations, "deleted", words))
    if unresolved.isdisjoint((*root.reservations, *root.bound)):
        events.append(ev.GangRemoved(reason="the root group was deleted"))
    return events


def _minima(root: GangState, tree: Tree | None) -> tuple[ev.GroupRecord, ...]:
    """Return the groups as admitted; the current groups of a tree that runs without an admission.

    The latter happens when a group was created again while its pods ran, and when part of the log was lost.
    """
    admitted = root.groups or root.reservations
    if admitted or tree is None or tree.root.uid != root.uid or tree.problems:
        return root.groups
    return group_records(tree, None)


def _regrouped(root: GangState, tree: Tree) -> Iterable[ev.GangGroupsChanged]:
    """Yield the event for a scheduled root whose groups have other minima than recorded, or were not recorded.

    Groups that come or go are not in it: the next admission records them, and members of a leaf that is gone still count.
    """
    if tree.root.uid != root.uid:
        return
    now = {(group.kind, group.name): group for group in group_records(tree, None)}
    groups = tuple(
        msgspec.structs.replace(record, minimum=group.minimum, required=group.required)
        for record in root.groups
        for group in (now.get((record.kind, record.name), record),)
    ) or tuple(now.values())
    if groups != root.groups:
        yield ev.GangGroupsChanged(groups=groups)


def _short_lived(
    view: ClusterView, root: GangState, now: ReconcileContext
) -> Iterator[ev.PodBound]:
    """Yield the events of members that were bound and ended before the view showed them on a node.

    The API server accepted their Binding, or the cluster has the node on which they ended: this is also how members
    are recorded that a leader bound and that ended before it, or the next one, had recorded them.
    """
    # sorted: the same order in each process
    for r in sorted(root.reservations.values(), key=lambda r: r.pod):
        if r.uid in view.pods or r.uid in now.awaited:
            continue
        end = _end_of(view, r.uid, now)
        node = NodeName(end.node) if end is not None and end.node else r.node
        if r.uid in now.posted or (end is not None and end.node):
            yield bound_event(r, node)


def _elsewhere(root: GangState, short_lived: Iterable[ev.PodBound]) -> list[ev.DriftDetected]:
    """Return the drift of those that ended on another node than the reserved one."""
    return [
        drift
        for bound in short_lived
        for drift in elsewhere_events(root.reservations[bound.uid], bound.node)
    ]


def _relabelled(view: ClusterView, root: GangState) -> Iterator[ev.NodeTopologyChanged]:
    """Yield the events for nodes of this tree whose topology labels differ from those of the admission (D11, D14)."""
    used = {r.node for r in root.reservations.values()} | {m.node for m in root.bound.values()}
    for name in sorted(used & set(root.topology)) if root.topology else ():
        node, before = view.nodes.get(name), root.topology[name]
        if node is None:
            continue
        after = {key: node.labels.get(key, "") for key in before}
        if after != before:
            yield ev.NodeTopologyChanged(
                node=name,
                before={key: value for key, value in before.items() if value},
                after={key: value for key, value in after.items() if value},
            )


def changed_group_texts(view: ClusterView, root: GangState) -> Mapping[str, str]:
    """Return by leaf a text about a group below the root that was deleted or recreated since the admission (B5)."""
    namespace = group_key_of(root).namespace
    changed: dict[tuple[str, str], str] = {}
    for record in root.groups[1:]:
        group = view.groups.get(GroupKey(namespace, record.name, kind_of(record.kind)))
        if record.uid and (group is None or group.uid != record.uid):
            how = "was deleted" if group is None else "was deleted and made again"
            changed[record.kind, record.name] = f"{record.kind} {namespace}/{record.name} {how}"
    if not changed:
        return {}
    texts = {}
    for leaf, path in paths_to_leaves(root.groups).items():
        on_path = [changed[g.kind, g.name] for g in path if (g.kind, g.name) in changed]
        if on_path:
            texts[leaf] = on_path[0]
    return texts


def _leaves_being_deleted(view: ClusterView, root: GangState) -> Mapping[str, str]:
    """Return by leaf with reservations a text, if the leaf or the root is being deleted.

    A finalizer may keep a deleted group for long. Leaves without reservations are left out, because they would
    otherwise cause the release of every new plan of their siblings.
    """
    top = group_key_of(root)
    texts = {}
    for leaf in {reservation.group for reservation in root.reservations.values()}:
        for key in (top, GroupKey(top.namespace, leaf, "PodGroup")):
            group = view.groups.get(key)
            if group is not None and group.deleting:
                texts[leaf] = f"{key.kind} {key.path} is being deleted"
                break
    return texts


def _settled(view: ClusterView, root: GangState) -> Iterator[ev.AnyEventData]:
    for reservation in sorted(root.reservations.values(), key=lambda r: r.pod):
        pod = view.pods.get(reservation.uid)
        if pod is not None and pod.node is not None:
            yield from bound_events(reservation, pod)


def _is_lost(view: ClusterView, uid: PodUid, node: NodeName) -> bool:
    pod = view.pods.get(uid)
    return pod is None or pod.deleting or node not in view.nodes


def losses_without_cause(
    view: ClusterView, drafts: Iterable[ev.NewEvent]
) -> list[ev.MemberTerminated]:
    """Return the losses without a known cause, because the pod is not in the view any more."""
    return [
        draft.data
        for draft in drafts
        if isinstance(draft.data, ev.MemberTerminated)
        and draft.data.cause == "unknown"
        and draft.data.uid not in view.pods
    ]


def _lost(
    view: ClusterView, member: BoundMember | ev.PodBound, now: ReconcileContext
) -> ev.MemberTerminated:
    """Return the event of a loss, with the cause as far as the cluster reports it.

    A pod on a node that does not answer is deleted because of the taints of that node.
    """
    pod, node = view.pods.get(member.uid), view.nodes.get(member.node)
    if pod is not None:
        end: PodEnd | None = PodEnd(
            ENDED_BY.get(pod.disruption_target, "deleted"), pod.disruption_target
        )
    else:
        end = _end_of(view, member.uid, now)
    cause: ev.MemberTerminationCause = "unknown" if end is None else end.cause
    text = "" if end is None else end.message
    if node is None or (
        text == TAINTED and any(t.key in SILENT and t.effect == "NoExecute" for t in node.taints)
    ):
        cause = "node-lost"
    return ev.MemberTerminated(
        pod=member.pod, uid=member.uid, node=member.node, cause=cause, message=text
    )


def _end_of(view: ClusterView, uid: PodUid, now: ReconcileContext) -> PodEnd | None:
    """Return how a pod ended that the view does not have, as far as the cluster reports it."""
    return view.ends.get(uid) or now.ends.get(uid)


def _succeeded(data: ev.AnyEventData) -> bool:
    end = (data.cause, data.message) if isinstance(data, ev.MemberTerminated) else ()
    return end == ("ended", SUCCEEDED)


def _counts(
    view: ClusterView, root: GangState, events: Iterable[ev.AnyEventData], now: ReconcileContext
) -> Mapping[str, int]:
    """Return the number of members per leaf that are bound after `events`, or end with success by them."""
    counts: dict[str, int] = {}
    leaves = {uid: member.group for uid, member in root.bound.items()}
    for member in root.bound.values():
        if member.uid not in now.awaited:
            counts[member.group] = counts.get(member.group, 0) + 1
    for data in events:
        if isinstance(data, ev.PodBound):
            leaves[data.uid] = data.group
            if not _is_lost(view, data.uid, data.node):
                counts[data.group] = counts.get(data.group, 0) + 1
        elif isinstance(data, ev.MemberTerminated):
            group = leaves[data.uid]
            counts[group] = counts.get(group, 0) + _succeeded(data) - (data.uid in root.bound)
    return counts


def _release(
    reservations: Iterable[Reservation],
    reason: ev.ReleaseReason,
    text: str,
    taken_by: tuple[ev.ReservedCapacityUser, ...] = (),
) -> ev.ReservationReleased:
    held = sorted(reservations, key=lambda r: r.pod)
    readers = Visibility.of((namespace_of(held[0].pod),))
    by = reserved_capacity_users_text(taken_by)
    reduced = reserved_capacity_users_text(taken_by, readers)
    return ev.ReservationReleased(
        plan=held[0].plan,
        reason=reason,
        pods=released_pods(held),
        message=f"{text}; {by}" if by else text,
        message_reduced=f"{text}; {reduced}" if reduced != by else "",
        taken_by=taken_by,
    )


def _released(
    view: ClusterView,
    state: ReservationState,
    root: GangState,
    overtaken: Callable[[NodeName], Collection[PodUid]],
    bound_here: Mapping[PodUid, NodeName],
    now: ReconcileContext,
    *,
    broken: bool,
) -> list[ev.AnyEventData]:
    """Return the events for reservations that cannot be used any more; a whole tree is released by one event."""
    in_flight = {uid for uid in now.binding if is_unassigned(view.pods.get(uid))}
    settled = in_flight | bound_here.keys() | now.awaited
    open_ones = {uid: r for uid, r in root.reservations.items() if uid not in settled}
    if not open_ones:
        return []
    placed = [*((u, m.node) for u, m in root.bound.items()), *bound_here.items()]
    leaf_by_uid = {u: m.group for u, m in root.bound.items()}
    leaf_by_uid |= {u: r.group for u, r in root.reservations.items()}
    running = {u for u, n in placed if not _is_lost(view, u, n)}
    remaining = (
        running | in_flight | now.awaited
    )  # not those that were bound and lost since the last decision
    counts = Counter(root.succeeded)
    counts.update(leaf_by_uid[u] for u in remaining if u in leaf_by_uid)
    started = root.uid in now.started or bool(running)
    if root.uid in now.expired and not bound_here:
        short = incomplete_groups(root.groups, counts)
        # after the start only what the minimum of a group still waits for, and what was surely not bound
        unused = [
            r
            for uid, r in open_ones.items()
            if not started or (r.group in short and uid not in now.maybe_bound)
        ]
        if unused:
            return _expired(view, unused, now)
    if broken and not started:
        return [_release(open_ones.values(), "invalid", "the tree breaks a rule now")]
    changed = {**_leaves_being_deleted(view, root), **changed_group_texts(view, root)}
    if changed and not started:
        text = "; ".join(sorted(set(changed.values())))
        return [_release(open_ones.values(), "deleted", f"{text}: the tree begins anew")]
    unusable = _unusable(view, root, open_ones, overtaken, changed, now)
    if not unusable:
        return []
    names = {r.uid for causes in unusable.values() for r, _ in causes}
    rest = [r for uid, r in open_ones.items() if uid not in names]
    leaves = {leaf_by_uid[u] for u in remaining | now.maybe_bound if u in leaf_by_uid}
    counts.update(r.group for r in rest)
    short = incomplete_groups(root.groups, counts, leaves, started=started)
    return _by_group(view, state, root, unusable, rest, short)


def _by_group(
    view: ClusterView,
    state: ReservationState,
    root: GangState,
    unusable: Mapping[ev.ReleaseReason, list[tuple[Reservation, str]]],
    rest: Iterable[Reservation],
    short: Mapping[str, ev.GroupRecord],
) -> list[ev.AnyEventData]:
    """Return one event for each group that is released as a whole, and one by reason for the other reservations.

    Args:
        unusable: Reservations that cannot be used any more, with the text of the cause.
        rest: The other ones.
        short: By leaf the group that is not kept without what is unusable.
    """
    kept_by: dict[str, list[Reservation]] = {}  # what is left of a group that is short, by its text
    for reservation in rest:
        if (group := short.get(reservation.group)) is not None:
            kept_by.setdefault(_subject(root, group), []).append(reservation)
    causes_by: dict[tuple[str, str], dict[ev.ReleaseReason, list[tuple[Reservation, str]]]] = {}
    for reason, causes in sorted(unusable.items()):
        for reservation, words in causes:
            group = short.get(reservation.group)
            subject = _subject(root, group) if group is not None else ""
            key = (subject, "") if subject in kept_by else ("", reason)
            causes_by.setdefault(key, {}).setdefault(reason, []).append((reservation, words))
    events: list[ev.AnyEventData] = []
    for (subject, _), by_reason in sorted(causes_by.items(), key=lambda entry: entry[0]):
        released = [r for causes in by_reason.values() for r, _ in causes]
        text = "; ".join(_release_text(causes) for causes in by_reason.values())
        if subject:
            text = f"the minimum of {subject} no longer holds: {text}"
            released += kept_by[subject]
        superseded = [r for r, _ in by_reason.get("superseded", ())]
        taken_by = reserved_capacity_users(view, state, superseded)
        events.append(_release(released, next(iter(by_reason)), text, taken_by))
    return events


def _subject(root: GangState, group: ev.GroupRecord) -> str:
    """Return what a text calls a group of a root."""
    if not group.parent:
        return "the tree"
    return f"{group.kind} {group_key_of(root).namespace}/{group.name}"


def _expired(
    view: ClusterView, unused: Iterable[Reservation], now: ReconcileContext
) -> list[ev.AnyEventData]:
    """Return the events for reservations whose lifetime is over: expired, or deleted where the pod does not exist any more."""
    every = tuple(unused)
    waiting = [r for r in every if r.uid in view.pods]
    deleted = [(r, _deletion_text(view, r, now)) for r in every if r.uid not in view.pods]
    events: list[ev.AnyEventData] = []
    if waiting:
        events.append(_release(waiting, "expired", "the reservation was not used in time"))
    if deleted:
        events.append(_release([r for r, _ in deleted], "deleted", _release_text(deleted)))
    return events


def _unusable(
    view: ClusterView,
    root: GangState,
    open_ones: Mapping[PodUid, Reservation],
    overtaken: Callable[[NodeName], Collection[PodUid]],
    changed: Mapping[str, str],
    now: ReconcileContext,
) -> Mapping[ev.ReleaseReason, list[tuple[Reservation, str]]]:
    """Return the reservations that cannot be used any more, with the text of the cause."""
    unfit = unfit_pods(view, root, open_ones)

    def reason_of(reservation: Reservation) -> tuple[ev.ReleaseReason, str] | None:
        pod, node = view.pods.get(reservation.uid), view.nodes.get(reservation.node)
        if pod is None:
            return "deleted", _deletion_text(view, reservation, now)
        if pod.deleting:
            return "deleted", DELETED_UNBOUND
        if node is None or node.deleting:
            return "node-lost", f"node {reservation.node} is gone:"
        if reservation.uid in overtaken(reservation.node):
            if any(node.allocatable.get(k, 0) < v for k, v in reservation.requests.items()):
                return "node-lost", f"node {node.name} offers less than was reserved on it:"
            return "superseded", "other pods took the capacity of"
        if reservation.group in changed:
            return "deleted", f"{changed[reservation.group]}:"
        return ("node-lost", unfit[pod.uid]) if pod.uid in unfit else None

    unusable: dict[ev.ReleaseReason, list[tuple[Reservation, str]]] = {}
    for reservation in open_ones.values():
        if (reason := reason_of(reservation)) is not None:
            unusable.setdefault(reason[0], []).append((reservation, reason[1]))
    return unusable


def _deletion_text(view: ClusterView, reservation: Reservation, now: ReconcileContext) -> str:
    """Return the words for a member with a reservation that is gone, where there is no evidence that it was bound."""
    end = _end_of(view, reservation.uid, now)
    if end is not None and end.cause == "ended":
        return "ended before it was bound:"
    return f"{UNWATCHED}:" if reservation.uid in now.unwatched else DELETED_UNBOUND


def _release_text(released: list[tuple[Reservation, str]]) -> str:
    """Return a text that names some of the pods by cause."""
    by_words: dict[str, list[str]] = {}
    for reservation, words in sorted(released, key=lambda f: f[0].pod)[:NAMED_MAX]:
        by_words.setdefault(words, []).append(reservation.pod)
    text = "; ".join(f"{words} {', '.join(pods)}" for words, pods in by_words.items())
    return text + (" and more" if len(released) > NAMED_MAX else "")


# --- replacement holds for losses that are not recorded yet

# A loss is recorded by the next pass, after the API server has answered how the pod ended. But kube-scheduler and the
# planner see the capacity as free as soon as the pod is gone; without these holds they would use it before that.

NO_PODS: frozenset[PodUid] = frozenset()


class PredictedLosses:
    """Cache of the holds; valid as long as members, state and awaited answers are the same."""

    def __init__(self) -> None:
        self._lost: IdentityMemo[frozenset[PodUid]] = IdentityMemo()
        self._holds: IdentityMemo[tuple[CapacityClaim, ...]] = IdentityMemo()
        self._predicted: IdentityMemo[ReservationState] = IdentityMemo()

    def of(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        before: ClusterView,
        now: ReconcileContext,
    ) -> ReservationState:
        """Return the state with a replacement hold for each loss that it does not contain yet.

        Args:
            forest: The trees, perhaps of a slightly older view.
            before: The view of the last pass.
            now: The context of the next pass; pods with an awaited answer count as answered.
        """
        lost = self._lost.get(
            lambda: frozenset((*now.awaited, *vanished(before, view))),
            same=(view.members, before.members, now.awaited),
        )
        if not lost:
            return state
        holds = self._holds.get(
            lambda: tuple(_holds(view, state, forest, lost, now)),
            same=(lost, view.nodes, view.groups, view.ends, state.gangs, state.trees, now.ends),
        )
        if not holds:
            return state
        return self._predicted.get(lambda: _with(state, holds), same=(state, holds))


def vanished(before: ClusterView, view: ClusterView) -> Iterator[PodUid]:
    """Yield the members that had a node and are not in the view any more."""
    if view.members is before.members:
        return
    for uid in changed_pods(before, view):
        pod = before.pods.get(uid)
        if uid not in view.pods and pod is not None and pod.group is not None and pod.node:
            yield uid


def _holds(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    lost_pods: Collection[PodUid],
    now: ReconcileContext,
) -> Iterator[CapacityClaim]:
    answered = msgspec.structs.replace(now, awaited=NO_PODS)
    for gang_uid in sorted({state.gang_of[uid] for uid in lost_pods if uid in state.gang_of}):
        root = state.gangs[gang_uid]
        tree = forest.trees.get(group_key_of(root))
        losses = functools.partial(losses_with_hold, view, state, root, tree, answered)
        for lost in now.gangs.result(gang_uid, f"losses of {root.gang}", losses) or ():
            yield replacement_hold(
                root.bound[lost.uid], root, at_us=now.now_us, until_us=lost.held_until_us
            )


def _with(state: ReservationState, holds: Collection[CapacityClaim]) -> ReservationState:
    claims_on, gangs = state.claims_on, state.gangs
    for hold in holds:
        claims = claims_on.get(hold.node, NO_CLAIMS).set(hold.key, hold)
        claims_on = claims_on.set(hold.node, claims)
        root = gangs[hold.gang_uid]
        replacement_holds = Map(root.replacement_holds).set(hold.uid, hold)
        gangs = gangs.set(
            root.uid, msgspec.structs.replace(root, replacement_holds=replacement_holds)
        )
    return msgspec.structs.replace(state, claims_on=claims_on, gangs=gangs)
