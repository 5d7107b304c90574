"""Release of the reservations of unbound members when their unit is evicted.

A gang that is evicted as a whole may have reservations of members that are not bound yet. These would be bound after
the others are gone, and the gang would run below its minimum. So the reservations are released with the plan, and the
tree is not planned while victims of it exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from extender.core.log.events import EventSource, NewEvent, ReleasedPod, ReservationReleased
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView, groups_above
from extender.core.model.ids import GroupKey, PlanId, PodUid
from extender.core.model.pod_groups import Forest, Tree, kind_of

POD_UNIT_PREFIX = "Pod/"  # start of the name of a unit that is a single pod


def unbound_reservations(
    view: ClusterView, state: ReservationState, forest: Forest, units: Iterable[str]
) -> list[Reservation]:
    """Return the reservations of unbound members of some units, sorted by pod.

    Args:
        units: `Kind/namespace/name`.
    """
    keys = {_key(unit) for unit in units if not unit.startswith(POD_UNIT_PREFIX)}
    reservations: dict[PodUid, Reservation] = {}
    for key in keys:
        tree = forest.tree_of(key)
        if tree is None:
            continue
        held = state.gangs[tree.root.uid].reservations if tree.root.uid in state.gangs else {}
        for pod in tree.pods if held else ():
            if (
                pod.uid in held
                and pod.node is None
                and any(g.key == key for g in groups_above(view, pod.group))
            ):
                reservations[pod.uid] = held[pod.uid]
    return sorted(reservations.values(), key=lambda r: r.pod)


def _key(unit: str) -> GroupKey:
    kind, namespace, name = unit.split("/")
    return GroupKey(namespace, name, kind_of(kind))


def release_reservations(
    state: ReservationState,
    reservations: Iterable[Reservation],
    source: EventSource,
    *,
    but: Collection[PodUid],
) -> list[NewEvent]:
    """Return the events that release reservations, one per tree and plan.

    Args:
        but: Members whose reservation is already released.
    """
    plans: dict[tuple[str, PlanId], list[Reservation]] = {}
    for reservation in reservations:
        if reservation.uid not in but:
            plans.setdefault((reservation.gang_uid, reservation.plan), []).append(reservation)
    return [
        source.draft(
            held[0].gang_uid,
            state.gangs[held[0].gang_uid].gang,
            ReservationReleased(
                plan=plan,
                reason="superseded",
                pods=tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in held),
                message="its gang is evicted as a whole",
            ),
        )
        for (_, plan), held in plans.items()
    ]


def leaves_being_evicted(view: ClusterView, state: ReservationState) -> Mapping[GroupKey, int]:
    """Return the leaves of which pods are evicted as part of a unit, with the creation time of the newest such pod.

    Returns:
        Microseconds by leaf.
    """
    newest: dict[GroupKey, int] = {}
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            pod = None if victim.unit.startswith(POD_UNIT_PREFIX) else view.pods.get(victim.uid)
            if pod is not None and pod.group is not None:
                newest[pod.group] = max(newest.get(pod.group, 0), pod.created_us)
    return newest


def is_being_evicted(leaves: Mapping[GroupKey, int], tree: Tree) -> bool:
    """Return whether members of a tree are evicted as part of a unit; pods of an earlier tree of the same name do not count."""
    return any(leaves.get(key, -1) >= tree.root.created_us for key in tree.members)
