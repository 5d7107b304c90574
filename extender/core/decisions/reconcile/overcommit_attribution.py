"""Who took room that was reserved: pods of a scheduler that does not see what we hold, and others.

What we reserve binds us, and kube-scheduler through the nomination. Another scheduler, somebody who writes
spec.nodeName, a pod of higher priority and a DaemonSet's pod come into that room all the same. It is noticed when
the pod is seen on its node; the room is given back as `superseded`, with who took it, and the tree is planned
again: at once the first time, after a pause that doubles when it happens over and over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from extender.core.decisions.capacity.free_capacity import NO_HOLDS
from extender.core.decisions.reconcile.reservation_checks import unassigned
from extender.core.log.events import RoomTaker, TakenHow
from extender.core.log.reservation_state import GangState, Reservation, ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NodeName
from extender.core.model.pods import Pod

PAUSE_US: Final = 1_000_000  # after the second time in a row; doubled each time ...
PAUSE_US_MAX: Final = 15_000_000  # ... up to this
NAMED_MAX: Final = 5  # in a text; the fact lists all of them
_HOW: Final[dict[TakenHow, str]] = {
    "pinned": "which may run on that node only",
    "higher-priority": "of higher priority",
    "unaware": "which does not see what is reserved",
}


def takers(
    view: ClusterView, state: ReservationState, lost: Iterable[Reservation]
) -> tuple[RoomTaker, ...]:
    """Name the pods that took the room of reservations: on each node those that came last, as many as it takes.

    Args:
        view: The cluster, which shows when each pod got its node.
        state: What is held.
        lost: Reservations for which there is no room any more.

    Returns:
        By node, the latest first; nothing where only pods that we placed are there.
    """
    by_node: dict[NodeName, list[Reservation]] = {}
    for reservation in lost:
        by_node.setdefault(reservation.node, []).append(reservation)
    return tuple(
        taker for name in sorted(by_node) for taker in _takers_on(view, state, name, by_node[name])
    )


def _takers_on(
    view: ClusterView, state: ReservationState, name: NodeName, lost: Sequence[Reservation]
) -> Iterable[RoomTaker]:
    lacking = _lacking(view, state, name, lost)
    priority = max(reservation.priority for reservation in lost)
    foreign = [pod for pod in view.on_node.get(name, {}).values() if not _ours(state, pod)]
    for pod in sorted(foreign, key=lambda p: (-p.assigned_us, -p.created_us, p.path)):
        if not lacking:
            return
        takes = {resource: n for resource, n in pod.shape.requests if resource in lacking}
        if takes:
            yield _taker(pod, name, priority)
        for resource, amount in takes.items():
            lacking[resource] -= amount
            if lacking[resource] <= 0:
                del lacking[resource]


def _lacking(
    view: ClusterView, state: ReservationState, name: NodeName, lost: Sequence[Reservation]
) -> dict[str, int]:
    """Give by how much pods and reservations exceed a node, of what the lost reservations ask for."""
    node = view.nodes.get(name)
    if node is None:
        return {}
    total = dict(view.usage.get(name, NOTHING).requests)
    for reservation in state.held_on.get(name, NO_HOLDS).values():
        if unassigned(view, reservation.uid):
            for resource, amount in reservation.requests.items():
                total[resource] = total.get(resource, 0) + amount
    asked = {resource for reservation in lost for resource in reservation.requests}
    over = {k: total.get(k, 0) - node.allocatable.get(k, 0) for k in asked}
    return {resource: amount for resource, amount in over.items() if amount > 0}


def _ours(state: ReservationState, pod: Pod) -> bool:
    """Say whether a pod is where we put it: its room was counted when the others were planned."""
    root = state.roots.get(state.root_of[pod.uid]) if pod.uid in state.root_of else None
    if root is None:
        return False
    held, bound = root.held.get(pod.uid), root.bound.get(pod.uid)
    return (held is not None and held.node == pod.node) or (bound is not None and bool(bound.plan))


def _taker(pod: Pod, node: NodeName, priority: int) -> RoomTaker:
    how: TakenHow = "unaware"
    if pod.pinned is not None:
        how = "pinned"
    elif pod.priority > priority:
        how = "higher-priority"
    return RoomTaker(
        pod=pod.path,
        uid=pod.uid,
        node=node,
        scheduler=pod.scheduler_name,
        priority=pod.priority,
        how=how,
    )


def taker_words(found: Sequence[RoomTaker]) -> str:
    """Say who took room; empty for nobody.

    >>> taker_words([RoomTaker(pod="ns/p", uid="u", node="n", scheduler="s", priority=0, how="unaware")])
    'taken by ns/p (scheduler s, priority 0), which does not see what is reserved'
    """
    if not found:
        return ""
    named = [
        f"{one.pod} (scheduler {one.scheduler}, priority {one.priority}), {_HOW[one.how]}"
        for one in found[:NAMED_MAX]
    ]
    return f"taken by {'; '.join(named)}" + (" and more" if len(found) > NAMED_MAX else "")


def planned_again_us(root: GangState) -> int:
    """Give when a tree is planned again whose room was taken: microseconds since the epoch, 0 for at once."""
    if root.taken < 2:  # noqa: PLR2004 -- the first time at once
        return 0
    doubled = min(root.taken - 2, PAUSE_US_MAX.bit_length())
    return root.taken_us + min(PAUSE_US << doubled, PAUSE_US_MAX)
