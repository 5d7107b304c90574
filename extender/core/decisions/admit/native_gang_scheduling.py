"""Beside kube-scheduler's own group scheduling: what it needs of a tree, so that the tree reaches bind at all.

We plan, hold and bind built-in groups as ever; kube-scheduler passes them on in its cycles of whole groups. It counts
the pods that name a built-in group by `spec.schedulingGroup`, and no others. Since 1.37 it looks at a group only when
no pod of it has a scheduling gate any more; members that we held for want of room would keep the others from bind.

Source:
    pkg/scheduler/backend/queue/scheduling_queue.go of 1.37: "if any pod is gated, the whole entity is gated";
    plugins/gangscheduling: PreEnqueue. Tried on both versions, tests/e2e/scenarios/test_features.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.core.decisions.admit.plan_request import GATE
from extender.core.log.control_plane_features import OLD, native_on
from extender.core.log.events import FeaturesFound
from extender.core.log.reservation_state import ReservationState
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import Pod

WHY = "with its own group scheduling on, kube-scheduler"


def waits_for_all(features: FeaturesFound | None) -> bool:
    """Say whether kube-scheduler looks at a built-in group only when nothing of it is gated any more."""
    if features is None or not native_on(features):
        return False
    return not any(one.startswith(OLD) for one in features.served)


def never_at_bind(tree: Tree, features: FeaturesFound | None) -> tuple[str, ...]:
    """Say why kube-scheduler would keep a tree from bind, so that its room would be held in vain."""
    if not native_on(features):
        return ()
    every = waits_for_all(features)
    said: list[str] = []
    for group in tree.groups:
        pods = [pod for pod in tree.members.get(group.key, ()) if not pod.deleting]
        named = [pod for pod in pods if pod.by_field]
        if not named:
            continue
        if group.source != "builtin":
            said += _not_known(group, named)
            continue
        if not group.basic and len(named) < group.minimum <= len(pods):
            said.append(
                f"{WHY} counts only pods that name {group.key} by spec.schedulingGroup: {len(named)} of "
                f"{group.minimum}; create the others with that field"
            )
        if every:
            said += _gated(named)
    return tuple(said)


def _not_known(group: Group, named: list[Pod]) -> list[str]:
    waiting = sorted(pod.path for pod in named if pod.node is None)
    if not waiting:
        return []
    return [
        f"{WHY} holds Pod/{waiting[0]}, which names {group.key} by spec.schedulingGroup, until scheduling.k8s.io has "
        "a PodGroup of that name; name the group by label gang-extender.dev/pod-group instead"
    ]


def _gated(named: list[Pod]) -> list[str]:
    """Foreign gates: members that are held by others are none to us yet, but kube-scheduler waits for them."""
    held = sorted((pod.path, gate) for pod in named for gate in pod.gates if gate != GATE)
    return [
        f"{WHY} waits until Pod/{path} is not held by scheduling gate {gate} any more"
        for path, gate in held[:1]
    ]


def to_let_go(state: ReservationState, forest: Forest) -> Iterator[Pod]:
    """Give the members that hold no room and that kube-scheduler must see, so that it looks at those that do.

    Filter refuses them. Their gate does not come back; members without it work too.
    """
    if not waits_for_all(state.features):
        return
    for tree in forest.trees.values():
        root = state.roots.get(tree.root.uid)
        if root is None or not (root.held or root.bound):
            continue
        for group in tree.groups:
            if group.source != "builtin":
                continue
            for pod in tree.members.get(group.key, ()):
                mine = pod.by_field and pod.node is None and not pod.deleting
                if mine and GATE in pod.gates and pod.uid not in root.held:
                    yield pod
