"""Changes of the cluster that carry out what is recorded: they come in numbers, and no member waits for the pass after them.

A nomination, the removal of our gate and the Binding of a member come back by the watch, as the resource version of a
group does after a write. Nothing can be admitted because of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from extender.core.decisions.admit.plan_request import GATE
from extender.core.decisions.verbs.filter_and_prioritize import reservation_of
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView, changed_groups, changed_pods
from extender.core.model.pod_groups import Group
from extender.core.model.pods import Pod

# Fields of a view in which no expected change is
_UNCHANGED: Final = ("nodes", "blueprints", "budgets", "ends", "max_children")


def are_expected(before: ClusterView, view: ClusterView, state: ReservationState) -> bool:
    """Return whether all that changed between two views carries out what the log has.

    Args:
        before: As the last pass saw it.
        view: As it is now.
        state: The committed state.
    """
    if any(getattr(before, field) is not getattr(view, field) for field in _UNCHANGED):
        return False
    return all(
        _is_status_of(before.groups.get(key), view.groups.get(key))
        for key in changed_groups(before, view)
    ) and all(
        _carries_out(before.pods.get(uid), view.pods.get(uid), reservation_of(state, uid))
        for uid in changed_pods(before, view)
    )


def _is_status_of(before: Group | None, group: Group | None) -> bool:
    """Return whether a group differs in nothing but its conditions."""
    if before is None or group is None:
        return False
    same = msgspec.structs.replace(
        before, conditions=group.conditions, resource_version=group.resource_version
    )
    return same == group


def _carries_out(before: Pod | None, pod: Pod | None, reservation: Reservation | None) -> bool:
    """Return whether a member was nominated, lost our gate or was bound as reserved, and nothing else happened to it."""
    if before is None or pod is None or reservation is None:
        return False
    if pod.node not in (None, reservation.node) or pod.plan not in ("", reservation.plan):
        return False
    if pod.nominated not in (None, reservation.node):
        return False
    if set(before.gates) - set(pod.gates) - {GATE} or set(pod.gates) - set(before.gates):
        return False
    same = msgspec.structs.replace(
        before,
        node=pod.node,
        plan=pod.plan,
        assigned_us=pod.assigned_us,
        nominated=pod.nominated,
        gates=pod.gates,
        resource_version=pod.resource_version,
    )
    return same == pod
