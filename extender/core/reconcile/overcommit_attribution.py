"""Attribution of overcommitment: which pods use capacity that was reserved for members.

The extender respects reservations, and kube-scheduler does through the nomination. A pod of another scheduler, a pod
that is created with spec.nodeName, a pod of higher priority and a pod of a DaemonSet can still use that capacity. The
extender notices it when the pod runs on the node. It releases the reservations as `superseded`, with the pods that use
the capacity, and plans the tree again: at once the first time, after that with a pause that doubles each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from extender.core.capacity.capacity_claims import claims_against, not_free
from extender.core.log.events import CapacityUseReason, ReservedCapacityUser
from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    reservations_on,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NodeName
from extender.core.model.pods import Pod
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden, name_for
from extender.core.reconcile.reservation_checks import unassigned

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
        if unassigned(view, reservation.uid):
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
    how: CapacityUseReason = "unaware"
    if pod.pinned is not None:
        how = "pinned"
    elif pod.priority > priority:
        how = "higher-priority"
    return ReservedCapacityUser(
        pod=pod.path,
        uid=pod.uid,
        node=node,
        scheduler=pod.scheduler_name,
        priority=pod.priority,
        via=how,
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
