"""The names in a state of the log: groups, workloads, pods and nodes, and what the log has of a pod or a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.visibility import is_hidden
from extender.queries.explain.name_lookup import ObjectName

# What the log has of a pod, the most important first.
_ROLES: Final = ("bound", "reserved", "victim", "preemptor", "lost")


class RecordedPod(NamedTuple):
    """A pod in a state of the log."""

    role: str  # bound | reserved | victim | preemptor | lost
    node: str  # empty: the preemptor has none yet
    group: str  # of a member: the name of its PodGroup
    gang: GangState | None  # of a member
    preemption: PendingPreemption | None  # of a victim or preemptor


def recorded_names(state: ReservationState) -> Iterator[ObjectName]:
    """Yield every object that a state of the log names, some of them more than once."""
    for root in state.gangs.values():
        yield ObjectName(root.kind, root.gang)
        namespace = root.gang.partition("/")[0]
        yield from (ObjectName(group.kind, f"{namespace}/{group.name}") for group in root.groups)
    for tree in state.trees.values():
        yield ObjectName(tree.kind, tree.workload)
    for pod, one in _pods(state):
        if not is_hidden(pod):
            yield ObjectName("Pod", pod)
        if one.node:
            yield ObjectName("Node", one.node)


def recorded_pod(state: ReservationState, path: str) -> RecordedPod | None:
    """Return what a state has of a pod, or None; of a member that is a victim also the preemption.

    Args:
        state: The state.
        path: namespace/name of the pod.
    """
    found = [one for pod, one in _pods(state) if pod == path]
    if not found:
        return None
    first = min(found, key=lambda one: _ROLES.index(one.role))
    if first.role == "bound":
        victim = next((one for one in found if one.role == "victim"), first)
        return first._replace(preemption=victim.preemption)
    return first


def pods_on(state: ReservationState, node: str) -> list[RecordedPod]:
    """Return the members and victims that a state has on a node, one for each role of a pod."""
    return [one for _, one in _pods(state) if one.node == node]


def _pods(state: ReservationState) -> Iterator[tuple[str, RecordedPod]]:
    for root in state.gangs.values():
        for bound in root.bound.values():
            yield bound.pod, RecordedPod("bound", bound.node, bound.group, root, None)
        for held in root.reservations.values():
            yield held.pod, RecordedPod("reserved", held.node, held.group, root, None)
        for left in root.replacement_holds.values():
            yield left.pod, RecordedPod("lost", left.node, left.group, root, None)
        for gone in root.lost_with_node.values():
            yield gone.pod, RecordedPod("lost", gone.node, gone.group, root, None)
        if root.last_loss is not None:
            loss = root.last_loss
            yield loss.pod, RecordedPod("lost", loss.node, "", root, None)
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            yield victim.pod, RecordedPod("victim", victim.node, victim.group, None, preemption)
        if preemption.kind == "Pod":
            yield preemption.gang, RecordedPod("preemptor", "", "", None, preemption)
