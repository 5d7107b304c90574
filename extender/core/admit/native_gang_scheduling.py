"""Requirements of kube-scheduler's native gang scheduling that a tree must meet to reach bind.

The extender plans, reserves and binds built-in groups as without it; kube-scheduler schedules them in cycles of whole
groups. It counts only pods that name a built-in group in `spec.schedulingGroup`. Since 1.37 it schedules a group only
when no pod of it has a scheduling gate; members that stay gated for lack of capacity would block the others.

Source:
    pkg/scheduler/backend/queue/scheduling_queue.go of 1.37: "if any pod is gated, the whole entity is gated";
    plugins/gangscheduling: PreEnqueue. Tried on both versions, tests/e2e/scenarios/test_features.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.core.log.control_plane_features import COMPOSITES_OF_1_37, OLD
from extender.core.log.events import ControlPlaneFeaturesDetected
from extender.core.log.reservation_state import ReservationState
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import GATE, Pod

KUBE_SCHEDULER = "with its own group scheduling on, kube-scheduler"


def has_its_condition_written(group: Group) -> bool:
    """Return whether kube-scheduler, with its own group scheduling on, writes the usual condition of a group.

    It writes `PodGroupInitiallyScheduled` (1.36: `PodGroupScheduled`) of built-in PodGroups, and since composites are
    served in v1beta1 (1.38) `CompositePodGroupInitiallyScheduled`.
    """
    return group.source == "builtin" and (group.key.kind == "PodGroup" or _since_1_38(group))


def _since_1_38(composite: Group) -> bool:
    """Return whether a built-in composite is of Kubernetes 1.38 or later; it is read in the newest served version."""
    return composite.api_version not in ("", COMPOSITES_OF_1_37)


def waits_for_all(features: ControlPlaneFeaturesDetected | None) -> bool:
    """Return whether kube-scheduler schedules a built-in group only when none of its pods is gated."""
    if features is None or not native_on(features):
        return False
    return {api.rpartition(" ")[0] for api in features.served} != {OLD}


def bind_blockers(tree: Tree, features: ControlPlaneFeaturesDetected | None) -> tuple[str, ...]:
    """Return the reasons why kube-scheduler would never call bind for a tree; its reservations would be useless."""
    if not native_on(features):
        return ()
    every = waits_for_all(features)
    reasons: list[str] = [*_refused_since_1_38(tree)]
    for group in tree.groups:
        pods = [pod for pod in tree.members.get(group.key, ()) if not pod.deleting]
        named = [pod for pod in pods if pod.by_field]
        if not named:
            continue
        if group.source != "builtin":
            reasons += _not_known(group, named)
            continue
        if not group.basic and len(named) < group.minimum <= len(pods):
            reasons.append(
                f"{KUBE_SCHEDULER} counts only pods that name {group.key} by spec.schedulingGroup: {len(named)} of "
                f"{group.minimum}; create the others with that field"
            )
        if every:
            reasons += _gated(named)
    return tuple(reasons)


def _refused_since_1_38(tree: Tree) -> Iterator[str]:
    """Yield why kube-scheduler 1.38 schedules no pod of a tree, at most one reason per rule that only it has.

    Source:
        `validatePodGroupHierarchy` in pkg/scheduler/schedule_one_podgroup.go of 1.38.0-beta.0.
    """
    root = tree.root
    if root.source != "builtin" or root.key.kind == "PodGroup" or not _since_1_38(root):
        return
    if not any(pod.by_field and not pod.deleting for pod in tree.pods):
        return
    gangs = (group for group in tree.groups if not group.basic)
    children = ((gang, child) for gang in gangs for child in tree.children.get(gang.key, ()))
    gang, basic = next((pair for pair in children if pair[1].basic), (None, None))
    if gang is not None and basic is not None:
        yield (
            f"{KUBE_SCHEDULER} schedules no pod of the tree, because {basic.key} is basic below {gang.key}, which is a "
            f"gang; create {basic.key} with a gang policy, of which a minimum of 1 is enough"
        )


def _not_known(group: Group, named: list[Pod]) -> list[str]:
    waiting = sorted(pod.path for pod in named if pod.node is None)
    if not waiting:
        return []
    return [
        f"{KUBE_SCHEDULER} holds Pod/{waiting[0]}, which names {group.key} by spec.schedulingGroup, until scheduling.k8s.io has "
        "a PodGroup of that name; name the group by label gang-extender.dev/pod-group instead"
    ]


def _gated(named: list[Pod]) -> list[str]:
    """Return a reason about gates of others: such pods are no candidates for us, but kube-scheduler waits for them."""
    held = sorted((pod.path, gate) for pod in named for gate in pod.gates if gate != GATE)
    return [
        f"{KUBE_SCHEDULER} waits until Pod/{path} is not held by scheduling gate {gate} any more"
        for path, gate in held[:1]
    ]


def gates_to_remove(state: ReservationState, forest: Forest) -> Iterator[Pod]:
    """Yield the members without reservation whose gate must be removed, so that kube-scheduler schedules the others.

    Filter refuses them. Their gate is not added again; admission does not need it.
    """
    if not waits_for_all(state.features):
        return
    for tree in forest.populated.values():
        root = state.gangs.get(tree.root.uid)
        if root is None or not (root.reservations or root.bound):
            continue
        for group in tree.groups:
            if group.source != "builtin":
                continue
            for pod in tree.members.get(group.key, ()):
                waiting = pod.by_field and pod.node is None and not pod.deleting
                if waiting and GATE in pod.gates and pod.uid not in root.reservations:
                    yield pod


def native_on(features: ControlPlaneFeaturesDetected | None) -> bool:
    """Return whether native gang scheduling of kube-scheduler is known to be on."""
    return features is not None and features.native_group_scheduling == "on"
