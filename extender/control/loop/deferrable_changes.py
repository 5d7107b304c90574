"""Changes of the cluster that come in numbers, and after which nothing can be admitted: no member waits for the pass after them.

They carry out what is recorded: a nomination, the removal of our gate and the Binding of a member come back by the watch,
as the resource version of a group does after a write. Or they are groups that have no members yet, parents of too few
groups with members, and the first members of a tree that needs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from extender.core.log.reservation_state import BoundMember, Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView, changed_groups, changed_pods, groups_above
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.pod_groups import DEPTH_MAX, Group, key_of_parent
from extender.core.model.pods import GATE, Pod

# Fields of a view in which no expected change is
_UNCHANGED: Final = ("nodes", "blueprints", "budgets", "ends", "max_children")
# Fields of a pod that differ after what is recorded was carried out
_CARRIED_OUT: Final = (
    "node", "plan", "assigned_us", "checkpoint", "ends_us", "nominated", "gates", "resource_version",
)  # fmt: skip


class ChildGroups:
    """The groups that name each parent; it follows the view, at the cost of what has changed."""

    def __init__(self) -> None:
        self._seen = ClusterView()  # its groups alone: an old view would keep all pods of its time
        self._children: dict[GroupKey, dict[GroupKey, None]] = {}

    def of(self, parent: GroupKey, view: ClusterView) -> Iterator[Group]:
        """Yield the groups that name a parent, in a view that is not older than that of the call before."""
        self._follow(view)
        return (view.groups[key] for key in self._children.get(parent, ()))

    def _follow(self, view: ClusterView) -> None:
        for key in changed_groups(self._seen, view):
            old, new = self._seen.groups.get(key), view.groups.get(key)
            was = key_of_parent(old) if old is not None else None
            now = key_of_parent(new) if new is not None else None
            if was == now:
                continue
            if was is not None:
                del self._children[was][key]
                if not self._children[was]:
                    del self._children[was]
            if now is not None:
                self._children.setdefault(now, {})[key] = None
        self._seen = ClusterView(groups=view.groups, group_log=view.group_log)


def are_expected(
    before: ClusterView, view: ClusterView, state: ReservationState, children: ChildGroups
) -> bool:
    """Return whether nothing can be admitted because of what changed between two views."""
    if any(getattr(before, field) is not getattr(view, field) for field in _UNCHANGED):
        return False
    return all(
        _is_expected_group(before.groups.get(key), view.groups.get(key), view, children)
        for key in changed_groups(before, view)
    ) and all(
        _is_expected(uid, before, view, state, children) for uid in changed_pods(before, view)
    )


def _is_expected_group(
    before: Group | None, group: Group | None, view: ClusterView, children: ChildGroups
) -> bool:
    """Return whether a group differs in nothing but its conditions, or is new and waits for members or groups."""
    if group is None:
        return False
    if before is None:
        if group.key.kind == "PodGroup":
            return not group.basic and group.key not in view.members
        return not _has_enough(group, view, children)
    same = msgspec.structs.replace(
        before, conditions=group.conditions, resource_version=group.resource_version
    )
    return same == group


def _is_expected(
    uid: PodUid,
    last: ClusterView,
    view: ClusterView,
    state: ReservationState,
    children: ChildGroups,
) -> bool:
    before, pod = last.pods.get(uid), view.pods.get(uid)
    if pod is None:
        return False
    if before is None:
        return _leaves_incomplete(pod, view, state, children)
    gang_uid = state.gang_of.get(pod.uid)
    root = state.gangs.get(gang_uid) if gang_uid is not None else None
    # where the log has the member: reserved or bound; None: nowhere
    recorded = None if root is None else root.reservations.get(pod.uid) or root.bound.get(pod.uid)
    return _carries_out(before, pod, recorded)


def _leaves_incomplete(
    pod: Pod, view: ClusterView, state: ReservationState, children: ChildGroups
) -> bool:
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
    return bool(above) and not _has_enough(above[-1], view, children)


def _has_enough(
    group: Group, view: ClusterView, children: ChildGroups, levels: int = DEPTH_MAX
) -> bool:
    """Return whether a group has as many members, or groups with enough of them, as it needs."""
    if group.basic or not levels:
        return True  # a basic group counts as it is, and a tree with more levels is invalid
    if group.key.kind == "PodGroup":
        return len(view.members.get(group.key, ())) >= group.minimum
    complete = [
        child.key.name
        for child in children.of(group.key, view)
        if _has_enough(child, view, children, levels - 1)
    ]
    return len(complete) >= group.minimum and set(group.required) <= set(complete)


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
    carried_out = {field: getattr(pod, field) for field in _CARRIED_OUT}
    return msgspec.structs.replace(before, labels=labels, **carried_out) == pod
