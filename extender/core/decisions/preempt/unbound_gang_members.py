"""Units on their way out: whole means also those of their members that do not run yet.

A gang that is evicted as a whole may hold room for members that are not bound: they would come to run when the
others are gone, half a gang for nobody's use. So their reservations are given back with the plan, and their
tree is not planned while victims of it are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from extender.core.decisions.preempt.disruption_units import groups_above
from extender.core.log.events import NewEvent, ReleasedPod, ReservationReleased
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GroupKey, PlanId, PodUid
from extender.core.model.pod_groups import Forest, Tree, kind_of

LONE = "Pod/"  # begins the names of units that are a pod alone


def held_below(
    view: ClusterView, state: ReservationState, forest: Forest, units: Iterable[str]
) -> list[Reservation]:
    """Give the reservations of members of some units that do not run yet, by pod.

    Args:
        view: The cluster.
        state: What is held.
        forest: The trees of `view`.
        units: `Kind/namespace/name`.
    """
    wanted = {_key(unit) for unit in units if not unit.startswith(LONE)}
    found: dict[PodUid, Reservation] = {}
    for key in wanted:
        root = forest.root_of.get(key)
        if root is None:
            continue
        tree = forest.trees[root]
        held = state.roots[tree.root.uid].held if tree.root.uid in state.roots else {}
        for pod in tree.pods if held else ():
            if (
                pod.uid in held
                and pod.node is None
                and any(g.key == key for g in groups_above(view, pod.group))
            ):
                found[pod.uid] = held[pod.uid]
    return sorted(found.values(), key=lambda r: r.pod)


def _key(unit: str) -> GroupKey:
    kind, namespace, name = unit.split("/")
    return GroupKey(namespace, name, kind_of(kind))


def give_back(
    state: ReservationState,
    reservations: Iterable[Reservation],
    *,
    but: Collection[PodUid],
    actor: str,
    cause: str,
) -> list[NewEvent]:
    """Give back what members of evicted units hold, tree by tree.

    Args:
        state: What is held.
        reservations: As `held_below` gives them.
        but: Members whose reservation is given back already.
        actor: Who.
        cause: Why it is decided now.
    """
    plans: dict[tuple[str, PlanId], list[Reservation]] = {}
    for reservation in reservations:
        if reservation.uid not in but:
            plans.setdefault((reservation.root_uid, reservation.plan), []).append(reservation)
    return [
        NewEvent(
            root_uid=held[0].root_uid,
            root=state.roots[held[0].root_uid].root,
            fact=ReservationReleased(
                plan=plan,
                why="superseded",
                pods=tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in held),
                text="its gang is evicted as a whole",
            ),
            actor=actor,
            cause=cause,
        )
        for (_, plan), held in plans.items()
    ]


def leaving(view: ClusterView, state: ReservationState) -> Mapping[GroupKey, int]:
    """Give the leaves of which pods are evicted as part of a unit, each with when the newest of them was created.

    Returns:
        Microseconds by leaf.
    """
    found: dict[GroupKey, int] = {}
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            pod = None if victim.unit.startswith(LONE) else view.pods.get(victim.uid)
            if pod is not None and pod.group is not None:
                found[pod.group] = max(found.get(pod.group, 0), pod.created_us)
    return found


def is_leaving(leaves: Mapping[GroupKey, int], tree: Tree) -> bool:
    """Say whether members of a tree are evicted as part of a unit; pods of an earlier one of its name do not count."""
    return any(leaves.get(key, -1) >= tree.root.created_us for key in tree.members)
