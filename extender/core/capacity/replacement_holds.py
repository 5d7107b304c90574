"""Replacement holds: capacity of lost members, held for their replacements for a bounded time (C.6, V26).

A hold blocks trees and pods of equal or lower priority in planning and in filter. Trees and pods of higher priority
ignore it and may use the capacity, which is recorded (`superseded`). There is a hold while other members of the gang
run, and in a tree that was compiled from a workload: its controller creates the pods again, also all of them (the
restart of a JobSet). Any other gang that ended, or ends, as a whole has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from extender.core.capacity.capacity_claims import claims_against, is_in_use, oversubscribed_pods
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.events import (
    MemberTerminated,
    MemberTerminationCause,
    ReleasedPod,
    ReleaseReason,
    ReservationReleased,
)
from extender.core.log.reservation_state import (
    BoundMember,
    GangState,
    ReservationState,
    WorkloadTree,
    claims_of_kind,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import SUCCEEDED, Pod

_NOT_HELD: tuple[MemberTerminationCause, ...] = (
    "preempted",
    "node-lost",
)  # the capacity is for the preemptor, or gone


def may_wait_for_capacity(
    state: ReservationState, node: NodeName, uid: PodUid, *, priority: int, gang_uid: GangUid
) -> bool:
    """Return whether a tree may wait for the capacity of a terminating pod: no replacement hold blocks it."""
    blocking = claims_against(
        state, node, priority=priority, gang_uid=gang_uid, kinds=("replacement",)
    )
    return all(hold.uid != uid for hold in blocking)


def oversubscribed_holds(view: ClusterView, state: ReservationState) -> frozenset[PodUid]:
    """Return the lost members whose hold does not fit any more beside assigned pods and reservations.

    Holds of the lowest priority are dropped first, then the newest, until the rest fits.
    """
    taken: set[PodUid] = set()
    for name in {hold.node for hold in claims_of_kind(state, "replacement")}:
        claims = [c for c in state.claims_on[name].values() if not is_in_use(view, c)]
        standing = [claim.requests for claim in claims if claim.kind == "reservation"]
        holds = [claim for claim in claims if claim.kind == "replacement"]
        node, usage = view.nodes.get(name), view.usage.get(name, NOTHING).requests
        if node is not None:
            taken.update(oversubscribed_pods(node, (usage, *standing), holds))
    return frozenset(taken)


def expired_holds(state: ReservationState, now_us: int) -> frozenset[PodUid]:
    """Return the lost members whose hold has reached its end time."""
    return frozenset(
        hold.uid for hold in claims_of_kind(state, "replacement") if hold.until_us <= now_us
    )


class RecreatedLeaves:
    """The leaves whose members are created again after all of them are gone: of workloads that are not suspended.

    Those of a workload that is refused now, because of a change, are as they were before.
    """

    def __init__(self, trees: Mapping[str, WorkloadTree]) -> None:
        self._trees = trees

    def __contains__(self, leaf: GroupKey) -> bool:
        return leaf in self._leaves

    @cached_property
    def _leaves(self) -> frozenset[GroupKey]:  # a pass rarely needs them
        return frozenset(
            GroupKey(tree.workload.partition("/")[0], group.name, group.kind)
            for tree in self._trees.values()
            if tree.outcome != "basic" and not tree.suspended
            for group in tree.groups
            if group.kind == "PodGroup"
        )


def leaf_of(root: GangState, name: str) -> GroupKey:
    """Return the key of a leaf of a root."""
    return GroupKey(root.gang.partition("/")[0], name, "PodGroup")


def lost_members(root: GangState) -> Mapping[str, list[CapacityClaim]]:
    """Return by leaf the capacity of its lost members, the oldest loss first."""
    lost: dict[str, list[CapacityClaim]] = {}
    for hold in sorted(root.replacement_holds.values(), key=lambda v: (v.at_us, v.pod, v.uid)):
        lost.setdefault(hold.group, []).append(hold)
    return lost


def nodes_of_replacements(
    lost: Sequence[CapacityClaim], newcomers: Sequence[Pod]
) -> Mapping[PodUid, NodeName]:
    """Return the nodes of lost members for the newcomers of a leaf: that of the member that has the same place in its order.

    It has the same name, or the same but for the random last part (of a Job with indexes). Without such names the oldest loss is
    replaced first.
    """
    nodes: dict[PodUid, NodeName] = {}
    replaced: set[PodUid] = set()
    for alike in (_whole, _without_last_part, _any):
        by_name: dict[str, list[CapacityClaim]] = {}
        for claim in reversed(lost):
            if claim.uid not in replaced:
                by_name.setdefault(alike(claim.pod), []).append(claim)
        for pod in newcomers:
            if pod.uid not in nodes and (claims := by_name.get(alike(pod.path))):
                claim = claims.pop()
                nodes[pod.uid] = claim.node
                replaced.add(claim.uid)
    return nodes


def _whole(name: str) -> str:
    return name


def _without_last_part(name: str) -> str:
    return name.rpartition("-")[0]


def _any(_name: str) -> str:
    return ""


def replacement_hold_end(
    view: ClusterView,
    tree: Tree | None,
    member: BoundMember,
    lost: MemberTerminated,
    victims: Collection[PodUid],
    *,
    now_us: int,
    held_us: int,
) -> int:
    """Return the end of the replacement hold of a lost member, in microseconds since the epoch; 0 for no hold.

    The time starts at the end of its grace period: until then the pod itself uses the capacity.

    Args:
        member: The lost member; other members of its gang still run, or its leaf is one of `RecreatedLeaves`.
        victims: Victims of preemptions: their capacity is for the preemptor.
        held_us: Length of a hold, 0 for none.
    """
    node = view.nodes.get(member.node)
    if not held_us or not member.requests or lost.cause in _NOT_HELD or member.uid in victims:
        return 0
    if node is None or node.unschedulable or node.deleting:
        return 0
    done = (lost.cause, lost.message) == ("ended", SUCCEEDED)
    if done or not _is_replaced(tree, member.group):
        return 0
    pod = view.pods.get(member.uid)
    return max(now_us, pod.deletes_us if pod is not None else 0) + held_us


def _is_replaced(tree: Tree | None, leaf: str) -> bool:
    """Return whether a leaf still accepts members."""
    if tree is None or tree.root.deleting:
        return False
    key = GroupKey(tree.root.key.namespace, leaf, "PodGroup")
    return any(group.key == key and not group.deleting for group in tree.groups)


def ended_holds(
    view: ClusterView,
    root: GangState,
    tree: Tree | None,
    taken: Collection[PodUid],
    over: Collection[PodUid],
    *,
    runs: bool,
    recreated: RecreatedLeaves,
) -> Iterator[ReservationReleased]:
    """Yield the events for the replacement holds of a root that end now, one for each reason.

    Args:
        taken: The result of `oversubscribed_holds`.
        over: The result of `expired_holds`.
        recreated: The leaves whose members are created again also when none runs.
    """
    ended: dict[ReleaseReason, tuple[str, list[CapacityClaim]]] = {}  # with the text of the first
    for hold in sorted(root.replacement_holds.values(), key=lambda hold: hold.pod):
        alive = runs or leaf_of(root, hold.group) in recreated
        end = _hold_ended_reason(view, root, hold, tree, taken, over, runs=alive)
        if end is not None:
            ended.setdefault(end[0], (end[1], []))[1].append(hold)
    for reason, (words, holds) in sorted(ended.items()):
        yield ReservationReleased(
            plan=holds[0].plan,
            reason=reason,
            pods=tuple(ReleasedPod(pod=hold.pod, uid=hold.uid, node=hold.node) for hold in holds),
            message=f"capacity that was held for the replacement of a lost member: {words}",
        )


def _replaced_past_us(root: GangState, tree: Tree | None, hold: CapacityClaim) -> bool:
    """Return whether a member of the leaf that the log does not have yet runs on the node of the hold."""
    key = leaf_of(root, hold.group)
    members = tree.members.get(key, ()) if tree is not None else ()
    recorded = (root.bound, root.reservations)
    return any(p.node == hold.node and not any(p.uid in k for k in recorded) for p in members)


def _hold_ended_reason(
    view: ClusterView,
    root: GangState,
    hold: CapacityClaim,
    tree: Tree | None,
    taken: Collection[PodUid],
    over: Collection[PodUid],
    *,
    runs: bool,
) -> tuple[ReleaseReason, str] | None:
    node = view.nodes.get(hold.node)
    if not _is_replaced(tree, hold.group):
        return "deleted", "its group is gone or being deleted"
    if not runs:
        return "deleted", "no member of its gang runs any more"
    if node is None or node.unschedulable or node.deleting:
        return "node-lost", "its node is gone or takes no pods"
    if hold.uid in taken and not _replaced_past_us(root, tree, hold):
        return "superseded", "others took it"
    if hold.uid in over:
        return "expired", "no replacement came in time"
    return None
