"""Changes of the cluster that come in numbers, and after which nothing can be admitted: no member waits for the pass after them.

They carry out what is recorded: a nomination, the removal of our gate and the Binding of a member come back by the watch,
as the resource version of a group does after a write. Or they are groups that have no members yet, and the first members
of a tree that needs more.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from extender.core.decisions.admit.plan_request import GATE
from extender.core.log.reservation_state import BoundMember, Reservation, ReservationState
from extender.core.model.cluster_view import (
    ClusterView,
    changed_groups,
    changed_pods,
    groups_above,
)
from extender.core.model.ids import PodUid
from extender.core.model.pod_groups import DEPTH_MAX, Group
from extender.core.model.pods import Pod

# Fields of a view in which no expected change is
_UNCHANGED: Final = ("nodes", "blueprints", "budgets", "ends", "max_children")


def are_expected(before: ClusterView, view: ClusterView, state: ReservationState) -> bool:
    """Return whether nothing can be admitted because of what changed between two views.

    Args:
        before: An earlier view.
        view: As it is now.
        state: The committed state.
    """
    if any(getattr(before, field) is not getattr(view, field) for field in _UNCHANGED):
        return False
    return all(
        _is_expected_group(before.groups.get(key), view.groups.get(key), view)
        for key in changed_groups(before, view)
    ) and all(
        _is_expected(before.pods.get(uid), view.pods.get(uid), view, state)
        for uid in changed_pods(before, view)
    )


def _is_expected_group(before: Group | None, group: Group | None, view: ClusterView) -> bool:
    """Return whether a group differs in nothing but its conditions, or is a new PodGroup without the members that it needs."""
    if group is None:
        return False
    if before is None:
        return group.key.kind == "PodGroup" and not group.basic and group.key not in view.members
    same = msgspec.structs.replace(
        before, conditions=group.conditions, resource_version=group.resource_version
    )
    return same == group


def _is_expected(
    before: Pod | None, pod: Pod | None, view: ClusterView, state: ReservationState
) -> bool:
    if pod is None:
        return False
    if before is None:
        return _leaves_incomplete(pod, view, state)
    return _carries_out(before, pod, _recorded(state, pod.uid))


def _leaves_incomplete(pod: Pod, view: ClusterView, state: ReservationState) -> bool:
    """Return whether a new pod is a gated member of a tree that was never admitted, and that needs more of them."""
    groups = groups_above(view, pod.group)
    if not groups or GATE not in pod.gates or pod.node is not None or pod.deleting:
        return False
    root = state.gangs.get(groups[-1].uid)
    if root is not None and root.groups:
        return False
    leaf, *above = groups
    if len(view.members[leaf.key]) < leaf.minimum:
        return True
    return bool(above) and not _has_enough(above[-1], view)


def _has_enough(root: Group, view: ClusterView) -> bool:
    """Return whether a composite has as many groups with enough members as it needs, counted level by level."""
    children: dict[str | None, list[Group]] = {}
    for group in view.groups.values():
        if group.parent is not None and group.key.namespace == root.key.namespace:
            children.setdefault(group.parent, []).append(group)

    def has_enough(group: Group, levels: int) -> bool:
        if group.basic or not levels:
            return True  # a basic group counts as it is, and a tree with more levels is invalid
        if group.key.kind == "PodGroup":
            return len(view.members.get(group.key, ())) >= group.minimum
        found = (
            child for child in children.get(group.key.name, ()) if has_enough(child, levels - 1)
        )
        return len(list(islice(found, group.minimum))) == group.minimum

    return has_enough(root, DEPTH_MAX)


def _recorded(state: ReservationState, uid: PodUid) -> Reservation | BoundMember | None:
    """Return where the log has a member: reserved or bound; None: nowhere."""
    gang_uid = state.gang_of.get(uid)
    root = state.gangs.get(gang_uid) if gang_uid is not None else None
    return None if root is None else root.reservations.get(uid) or root.bound.get(uid)


def _carries_out(before: Pod, pod: Pod, recorded: Reservation | BoundMember | None) -> bool:
    """Return whether a member was nominated, lost our gate or was bound as recorded, and nothing else happened to it."""
    if recorded is None:
        return msgspec.structs.replace(before, resource_version=pod.resource_version) == pod
    if pod.node not in (None, recorded.node) or pod.plan not in ("", recorded.plan):
        return False
    if pod.nominated not in (None, recorded.node):
        return False
    if set(before.gates) - set(pod.gates) - {GATE} or set(pod.gates) - set(before.gates):
        return False
    labels = before.labels
    if before.node is None and pod.node is not None and labels.items() <= pod.labels.items():
        labels = pod.labels  # a pod that is bound gets those of its zone and region
    same = msgspec.structs.replace(
        before,
        labels=labels,
        node=pod.node,
        plan=pod.plan,
        assigned_us=pod.assigned_us,
        nominated=pod.nominated,
        gates=pod.gates,
        resource_version=pod.resource_version,
    )
    return same == pod
