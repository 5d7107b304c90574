"""Reservations that kube-scheduler would reject now: the node does not suit the pod, or has too little capacity.

The checks are the static filters of the planner, and sums. The caller decides about the consequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from extender.core.capacity.capacity_claims import (
    claims_against,
    held_by_preemptor,
    not_free,
    oversubscribed_pods,
    preemptions_of,
)
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim, ClaimsOnNode
from extender.core.log.events import CapacityUseReason, GroupRecord, ReservedCapacityUser
from extender.core.log.gang_phase import missing
from extender.core.log.reservation_state import (
    CapacityHold,
    GangState,
    Reservation,
    ReservationState,
    reservation_of,
    reservations_on,
)
from extender.core.model.cluster_view import NOTHING, ClusterView, changed_pods
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.message_formatting import label_text
from extender.core.model.nodes import Node
from extender.core.model.pods import Pod, PodShape
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden, name_for
from extender.core.planner.model.node_table import NodeTable, may_run, selected
from extender.core.planner.plan_types import PlanNode


def unfit_pods(
    view: ClusterView, root: GangState | CapacityHold, reservations: Mapping[PodUid, CapacityClaim]
) -> Mapping[PodUid, str]:
    """Return the reservations whose node does not suit the pod any more, apart from capacity, with the reason.

    Checked are the static filters of the planner, and the domains of the admission.
    """
    domains = {
        leaf: {key: value for group in path for key, value in group.domain.items()}
        for leaf, path in paths_to_leaves(root.groups).items()
    }
    unfit: dict[PodUid, str] = {}
    to_check: dict[PodShape, dict[NodeName, list[PodUid]]] = {}
    for uid, reservation in reservations.items():
        pod, node = view.pods.get(uid), view.nodes.get(reservation.node)
        if pod is None or node is None:
            continue
        if pod.waits_for:
            lacking = pod.waits_for.partition(": ")[0]
            unfit[uid] = f"node {node.name} is not used while {lacking}:"
            continue
        for key, value in domains.get(reservation.group, {}).items():
            if node.labels.get(key) != value:
                unfit[uid] = f"node {node.name} is not in {label_text(key, value)} any more:"
        shape = pod.shape
        if node.unschedulable or node.taints or shape.node_selector or shape.selectors:
            to_check.setdefault(shape, {}).setdefault(node.name, []).append(uid)
    for shape, uids_on in to_check.items():
        nodes = [view.nodes[name] for name in uids_on]  # each node once
        node_table = NodeTable(tuple(map(PlanNode.of, nodes)))
        passes, chosen = may_run(node_table, shape), selected(node_table, shape)
        for i, node in enumerate(nodes):
            if not passes[i]:
                words = f"node {node.name} {_unfit_words(node, chosen=bool(chosen[i]))}:"
                unfit |= dict.fromkeys(uids_on[node.name], words)
    return unfit


def _unfit_words(node: Node, *, chosen: bool) -> str:
    if not chosen:
        return "is not one that the pod selects any more"
    if node.unschedulable:
        return "was cordoned"
    return "has a taint that the pod does not tolerate"


def oversubscribed_on(
    view: ClusterView, state: ReservationState, name: NodeName
) -> Iterator[PodUid]:
    """Yield the reservations on a node that do not fit any more: assigned pods, reservations and claims exceed it.

    Reservations of the lowest priority come first, then the newest, until the rest fits. Claims of preemptors count by
    their priority too: a pod that takes the capacity of a reservation leaves the claim of a higher priority.
    """
    node = view.nodes.get(name)
    if node is None:
        return
    pod_of = view.pods.get
    # as `is_unassigned`, without a call for each reservation: this runs for every member that is bound
    claims = state.claims_on.get(name, NO_CLAIMS).values()
    waiting = [
        claim
        for claim in claims
        if claim.kind == "reservation"
        and (pod := pod_of(claim.uid)) is not None
        and pod.node is None
        and not pod.deleting
    ]
    if waiting and (preemptions := preemptions_of(state, claims)):
        waiting += (
            CapacityClaim(
                kind="preemption", plan=preemption.id, gang_uid=preemption.gang_uid, pod="", uid=PodUid(""), group="",
                node=name, requests=dict(held), priority=preemption.priority, at_us=preemption.at_us,
            )
            for preemption, held in held_by_preemptor(view, preemptions, name)
        )  # fmt: skip
    yield from oversubscribed_pods(node, (view.usage.get(name, NOTHING).requests,), waiting)


def is_unassigned(pod: Pod | None) -> bool:
    """Return whether a pod exists, is not assigned, and is not terminating: it still needs its reservation."""
    return pod is not None and pod.node is None and not pod.deleting


def paths_to_leaves(groups: tuple[GroupRecord, ...]) -> Mapping[str, tuple[GroupRecord, ...]]:
    """Return the groups from the root down to each leaf, by the name of the leaf."""
    composites = {g.name: g for g in groups if g.kind == "CompositePodGroup"}
    paths = {}
    for leaf in groups:
        if leaf.kind == "PodGroup":
            path = [leaf]
            while path[0].parent in composites:
                path.insert(0, composites[path[0].parent])
            paths[leaf.name] = tuple(path)
    return paths


def incomplete_groups(
    groups: tuple[GroupRecord, ...],
    counts: Mapping[str, int],
    running: Collection[str] = (),
    *,
    started: bool = False,
) -> Mapping[str, GroupRecord]:
    """Return by leaf the uppermost group on its path whose minimum is not met; leaves without one are left out.

    Args:
        counts: Leaf name -> pods that count for a minimum.
        running: Leaves of which members run: the groups above them count as started, and are completed (C.6).
        started: Whether the root counts as started in any case.
    """
    paths = paths_to_leaves(groups)
    complete = {(g.kind, g.name) for leaf in running for g in paths.get(leaf, ())}
    if started:
        complete |= {(g.kind, g.name) for g in groups[:1]}
    complete |= {
        (g.kind, g.name)
        for g in groups
        if (g.kind, g.name) not in complete and not missing(groups, counts, g)
    }
    short = {}
    for leaf, path in paths.items():
        group = next((g for g in path if (g.kind, g.name) not in complete), None)
        if group is not None:
            short[leaf] = group
    return short


# Beyond so many remembered nodes, and twice those with reservations, the others are forgotten
NODES_MIN: Final = 1_000


class _Fits(NamedTuple):
    """What a node was examined with when all its reservations fitted."""

    node: Node
    claims: ClaimsOnNode


class OversubscriptionTracker:
    """Follows view and state, at the cost of what has changed; its results are those of `oversubscribed_on`."""

    def __init__(self) -> None:
        self._view = ClusterView()  # up to which changes of pods are followed
        self._fit: dict[NodeName, _Fits] = {}

    def oversubscribed_on(
        self, view: ClusterView, state: ReservationState, name: NodeName
    ) -> tuple[PodUid, ...]:
        """Return the reservations on a node that do not fit any more; see `oversubscribed_on`.

        Args:
            view: The cluster, not older than that of the call before.
        """
        self._follow(view, state)
        node, claims = view.nodes.get(name), state.claims_on.get(name, NO_CLAIMS)
        fit = self._fit.get(name)
        if fit is not None and fit.node is node and fit.claims is claims:
            return ()
        uids = tuple(oversubscribed_on(view, state, name))
        self._fit.pop(name, None)
        # what is held for preemptors follows their victims
        follows_victims = any(claim.kind == "preemption" for claim in claims.values())
        if node is not None and not uids and not follows_victims:
            self._fit[name] = _Fits(node, claims)
        return uids

    def _follow(self, view: ClusterView, state: ReservationState) -> None:
        """Forget the nodes on which a pod needs more than before."""
        last, self._view = self._view, view
        if view is last or not self._fit:
            return  # with nothing remembered, all pods of the cluster are of no interest
        for uid in changed_pods(last, view):
            before, pod = last.pods.get(uid), view.pods.get(uid)
            if is_unassigned(pod):
                if not is_unassigned(before):
                    held = reservation_of(state, uid)
                    if held is not None:
                        self._fit.pop(held.node, None)
            elif pod is not None and pod.node is not None and not _uses_no_more(before, pod, state):
                self._fit.pop(pod.node, None)
        if len(self._fit) > NODES_MIN + 2 * len(state.claims_on):
            on = state.claims_on
            self._fit = {name: fits for name, fits in self._fit.items() if name in on}


def _uses_no_more(before: Pod | None, pod: Pod, state: ReservationState) -> bool:
    """Return whether an assigned pod uses what it, or its reservation on this node, used before."""
    if before is not None and before.node == pod.node:
        return before.shape == pod.shape
    held = reservation_of(state, pod.uid)
    return (
        held is not None
        and is_unassigned(before)
        and held.node == pod.node
        and held.requests == dict(pod.shape.requests)
    )


# --- which pods use capacity that was reserved for members

# The extender respects reservations, and kube-scheduler does through the nomination. A pod of another scheduler, a pod
# that is created with spec.nodeName, a pod of higher priority and a pod of a DaemonSet can still use that capacity. The
# extender notices it when the pod runs on the node. It releases the reservations as `superseded`, with the pods that use
# the capacity, and plans the tree again: at once the first time, after that with a pause that doubles each time.

PAUSE_US: Final = 1_000_000  # after the second consecutive time; doubled each time ...
PAUSE_US_MAX: Final = 15_000_000  # ... up to this
NAMED_MAX: Final = 5  # in a text; the event lists all of them
_HOW: Final[dict[CapacityUseReason, str]] = {
    "pinned": "which may run on that node only",
    "higher-priority": "of higher priority",
    "unaware": "which does not see what is reserved",
}


def reserved_capacity_users(
    view: ClusterView, state: ReservationState, lost: Iterable[Reservation]
) -> tuple[ReservedCapacityUser, ...]:
    """Return the pods that use the capacity of lost reservations: on each node the last ones, as many as explain the excess.

    Args:
        lost: Reservations that do not fit any more.

    Returns:
        By node, the last first; empty where only pods with a reservation of ours are on the nodes.
    """
    by_node: dict[NodeName, list[Reservation]] = {}
    for reservation in lost:
        by_node.setdefault(reservation.node, []).append(reservation)
    return tuple(
        user for name in sorted(by_node) for user in _users_on(view, state, name, by_node[name])
    )


def _users_on(
    view: ClusterView, state: ReservationState, name: NodeName, lost: Sequence[Reservation]
) -> Iterable[ReservedCapacityUser]:
    excess = _excess(view, state, name, lost)
    priority = max(reservation.priority for reservation in lost)
    foreign = [pod for pod in view.on_node.get(name, {}).values() if not _ours(state, pod)]
    for pod in sorted(foreign, key=lambda p: (-p.assigned_us, -p.created_us, p.path)):
        if not excess:
            return
        used = {resource: n for resource, n in pod.shape.requests if resource in excess}
        if used:
            yield _record(pod, name, priority)
        for resource, amount in used.items():
            excess[resource] -= amount
            if excess[resource] <= 0:
                del excess[resource]


def _excess(
    view: ClusterView, state: ReservationState, name: NodeName, lost: Sequence[Reservation]
) -> dict[str, int]:
    """Return by how much pods, reservations, and claims before the lost ones exceed a node, for the resources of these."""
    node = view.nodes.get(name)
    if node is None:
        return {}
    total = dict(view.usage.get(name, NOTHING).requests)
    for reservation in reservations_on(state, name).values():
        if is_unassigned(view.pods.get(reservation.uid)):
            add_amounts(total, reservation.requests)
    lowest = min(reservation.priority for reservation in lost)
    ahead = claims_against(state, name, priority=lowest, gang_uid="", kinds=("preemption",))
    add_amounts(total, not_free(view, state, name, ahead, ""))
    requested = {resource for reservation in lost for resource in reservation.requests}
    over = {k: total.get(k, 0) - node.allocatable.get(k, 0) for k in requested}
    return {resource: amount for resource, amount in over.items() if amount > 0}


def _ours(state: ReservationState, pod: Pod) -> bool:
    """Return whether a pod has a reservation on its node, or was bound by an admission."""
    root = state.gangs.get(state.gang_of[pod.uid]) if pod.uid in state.gang_of else None
    if root is None:
        return False
    held, bound = root.reservations.get(pod.uid), root.bound.get(pod.uid)
    return (held is not None and held.node == pod.node) or (bound is not None and bool(bound.plan))


def _record(pod: Pod, node: NodeName, priority: int) -> ReservedCapacityUser:
    above: CapacityUseReason = "higher-priority" if pod.priority > priority else "unaware"
    return ReservedCapacityUser(
        pod=pod.path,
        uid=pod.uid,
        node=node,
        scheduler=pod.scheduler_name,
        priority=pod.priority,
        via="pinned" if pod.pinned is not None else above,
    )


def reserved_capacity_users_text(
    users: Sequence[ReservedCapacityUser], readers: Visibility = EVERYTHING
) -> str:
    """Return the text about pods that use reserved capacity, or an empty string.

    >>> user = ReservedCapacityUser(pod="ns/p", uid="u", node="n", scheduler="s", priority=0, via="unaware")
    >>> reserved_capacity_users_text([user])
    'taken by ns/p (scheduler s, priority 0), which does not see what is reserved'
    """
    if not users:
        return ""
    named = [f"{_user_text(user, readers)}, {_HOW[user.via]}" for user in users[:NAMED_MAX]]
    return f"taken by {'; '.join(named)}" + (" and more" if len(users) > NAMED_MAX else "")


def _user_text(user: ReservedCapacityUser, readers: Visibility) -> str:
    name = name_for(readers, f"Pod/{user.pod}", priority=user.priority)
    if is_hidden(name):
        return name
    return f"{user.pod} (scheduler {user.scheduler}, priority {user.priority})"


def retry_time_us(root: GangState) -> int:
    """Return when a tree is planned again after other pods used its capacity: microseconds since the epoch, 0 for at once."""
    if root.capacity_used_times < 2:  # noqa: PLR2004 -- no pause the first time
        return 0
    doubled = min(root.capacity_used_times - 2, PAUSE_US_MAX.bit_length())
    return root.capacity_used_us + min(PAUSE_US << doubled, PAUSE_US_MAX)
