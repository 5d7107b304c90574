"""Drift: differences between cluster and log, and the events that record them and update the log.

The kinds of `DriftDetected` from this module:

| kind | difference | further events |
|---|---|---|
| `bound-elsewhere` | a member runs, or ran until it ended, on another node than was reserved, or than the log has it on | `PodBound` there (`MemberTerminated` before, where it counted as bound) |
| `bound-outside-admission` | a member runs without any reservation | `PodBound` |
| `bound-by-unknown-plan` | the annotation of its Binding names a plan that holds no capacity for it | `PodBound` |
| `not-bound` | a member that is bound in the log is not assigned in the cluster | `MemberTerminated`; it is planned again |
| `nomination-altered` | the nomination of a reservation was observed and names another node now | none: filter passes only the reserved node |

The kind `memory` is from `control/monitors/state_verifier`. These differences are not drift: a pod that is gone, or was
created again with the same name (`MemberTerminated` or `ReservationReleased`); a node that was deleted and registers again
with its pods (`MemberTerminated`, then `PodBound` with the same plan); and a nomination that was removed: kube-scheduler
does that after every failed bind, and filter still passes only the reserved node.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import msgspec

from extender.core.admit.plan_request import is_running
from extender.core.admit.verdict_events import observed
from extender.core.log import events as ev
from extender.core.log.each_gang import EachGang
from extender.core.log.reservation_state import (
    BoundMember,
    ChangedMembers,
    GangState,
    Reservation,
    ReservationState,
    reservation_of,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import Pod, PodEnd


class ReconcileContext(ev.EventSource, frozen=True, kw_only=True):
    """Input of reconciliation beside view and state."""

    # barriers of these roots are releasing or have released
    started: frozenset[GangUid] = frozenset()
    # their Binding was sent, but is perhaps not in the view yet
    binding: frozenset[PodUid] = frozenset()
    # those, and members whose Binding got no answer lately
    maybe_bound: frozenset[PodUid] = frozenset()
    posted: frozenset[PodUid] = frozenset()  # the API server accepted their Binding
    # had a reservation when this process began to lead, and were in no view since: perhaps an earlier leader bound them
    unwatched: frozenset[PodUid] = frozenset()
    expired: frozenset[GangUid] = frozenset()  # roots with reservations older than their lifetime
    # How members that left the view ended, by the answer of the API server; None: unknown
    ends: Mapping[PodUid, PodEnd | None] = {}
    # members for which the answer is pending; recorded after it
    awaited: frozenset[PodUid] = frozenset()
    over: frozenset[PodUid] = frozenset()  # lost members whose replacement hold has reached its end
    now_us: int = 0
    replacement_hold_us: int = 0  # length of a replacement hold; 0: none
    gangs: EachGang = msgspec.field(default_factory=EachGang)  # how each gang is decided


def _drift(kind: str, path: str, text: str) -> ev.DriftDetected:
    return ev.DriftDetected(kind=kind, object=f"Pod/{path}", message=text)


def bound_events(reservation: Reservation, pod: Pod) -> list[ev.AnyEventData]:
    """Return the events for a member with a reservation that is bound, with its drift."""
    assert pod.node is not None
    events: list[ev.AnyEventData] = [bound_event(reservation, pod.node)]
    events += elsewhere_events(reservation, pod.node)
    if pod.plan and pod.plan != reservation.plan:
        text = f"its Binding names plan {pod.plan}, its capacity was reserved by {reservation.plan}"
        events.append(_drift("bound-by-unknown-plan", pod.path, text))
    return events


def elsewhere_events(reservation: Reservation, node: NodeName) -> list[ev.DriftDetected]:
    """Return the drift of a member that was bound to a node, if its capacity was reserved on another one; else nothing."""
    if node == reservation.node:
        return []
    text = f"bound to {node}, its capacity was reserved on {reservation.node}"
    return [_drift("bound-elsewhere", reservation.pod, text)]


def strayed_events(view: ClusterView, root: GangState) -> list[ev.AnyEventData]:
    """Return the events for members that the log has as bound and that are on another node, or on none."""
    events: list[ev.AnyEventData] = []
    for member in sorted(root.bound.values(), key=lambda m: m.pod):
        pod = view.pods.get(member.uid)
        if pod is None or pod.deleting or pod.node == member.node:
            continue
        lost = ev.MemberTerminated(
            pod=member.pod, uid=member.uid, node=member.node, cause="unknown"
        )
        if pod.node is None:
            text = f"is not bound in the cluster; the log has it on {member.node}"
            events += [lost, _drift("not-bound", pod.path, text)]
        else:
            text = f"runs on {pod.node}, the log has it on {member.node}"
            bound = bound_event(member, pod.node)
            events += [lost, bound, _drift("bound-elsewhere", pod.path, text)]
    return events


def bound_event(member: BoundMember | Reservation, node: NodeName) -> ev.PodBound:
    """Return the event for a member that is bound to a node."""
    return ev.PodBound(
        plan=member.plan, pod=member.pod, uid=member.uid, node=node, group=member.group
    )


def bound_outside(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    now: ReconcileContext,
    removed: Collection[GangUid] = (),
) -> list[ev.NewEvent]:
    """Return the events for members that run without a reservation; members on nodes that are gone are left out.

    Those that the root group had before it was made again are left out while the log has that one.

    Args:
        removed: Roots that the state still has, and that end by events before these.
    """
    root = state.gangs.get(tree.root.uid)
    events: list[ev.AnyEventData] = []
    for leaf, pods in tree.members.items():
        for pod in sorted(pods, key=lambda p: p.path):
            recorded = root and (pod.uid in root.reservations or pod.uid in root.bound)
            if not is_running(pod) or pod.node not in view.nodes or recorded:
                continue
            if pod.uid in state.gang_of and state.gang_of[pod.uid] not in removed:
                continue
            events += _outside_events(leaf.name, pod, root)
    if events and root is None:
        events.insert(0, observed(tree))
    return [now.draft(tree.root.uid, tree.root.key.path, data) for data in events]


def _outside_events(leaf: str, pod: Pod, root: GangState | None) -> list[ev.AnyEventData]:
    assert pod.node is not None
    node = pod.node
    away = root.lost_with_node.get(pod.uid) if root is not None else None
    if away is not None and away.node == node:
        return [bound_event(away, node)]  # its node registered again with the member
    bound = ev.PodBound(plan=PlanId(pod.plan), pod=pod.path, uid=pod.uid, node=node, group=leaf)
    text = f"runs on {node} without a reservation in the log"
    if not pod.plan:
        return [bound, _drift("bound-outside-admission", pod.path, text)]
    text += f"; its Binding names plan {pod.plan}"
    return [bound, _drift("bound-by-unknown-plan", pod.path, text)]


class NominationDrift:
    """Keeps the observed nominations of reservations, to detect that another client changed one.

    A nomination that was not observed yet may still be in flight; one that was observed and names another node now
    was changed by another client. This is recorded once, and the nomination is not written again.
    """

    def __init__(self) -> None:
        self._shown: dict[PodUid, PlanId] = {}
        self._changed = ChangedMembers()
        self._left_out: frozenset[PodUid] = frozenset()  # looked at again the next time

    def look(
        self, view: ClusterView, state: ReservationState, now: ReconcileContext
    ) -> list[ev.NewEvent]:
        """Return the events for nominations that changed since the last call."""

        def change_of(
            pod: Pod, reservation: Reservation, shown: PlanId | None
        ) -> list[ev.NewEvent]:
            if pod.nominated == reservation.node:
                self._shown[pod.uid] = reservation.plan
            elif pod.nominated is not None and shown == reservation.plan:
                text = f"its nomination of {reservation.node} was changed to {pod.nominated}"
                root = state.gangs[reservation.gang_uid]
                data = _drift("nomination-altered", pod.path, text)
                return [now.draft(root.uid, root.gang, data)]
            return []

        drafts: list[ev.NewEvent] = []
        left_out: set[PodUid] = set()
        for uid in self._left_out.union(self._changed.since_last(view, state)):
            shown = self._shown.pop(uid, None)
            reservation, pod = reservation_of(state, uid), view.pods.get(uid)
            if reservation is not None and pod is not None and pod.node is None:
                look_at = functools.partial(change_of, pod, reservation, shown)
                name = f"nomination of {reservation.pod}"
                events = now.gangs.result(reservation.gang_uid, name, look_at)
                if events is None:
                    left_out.add(uid)
                    if shown is not None:
                        self._shown[uid] = shown
                drafts += events or ()
        self._left_out = frozenset(left_out)
        return drafts
