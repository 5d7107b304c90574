"""Capacity that is not free for others, beside the usage of assigned pods: one table of who must leave which claims free.

| kind | made by | kept from | counts until | ends (event; rules) |
|---|---|---|---|---|
| reservation | an admission | everyone in a plan; in filter pods of equal or lower priority, those of a tree that preempts also from higher ones that have another node | its pod is assigned | `PodBound`, `ReservationReleased`; `cluster_reconciliation` |
| preemption | a plan of victims | others of equal or lower priority; while it has not ended also from higher ones that have another node | its pod is assigned, or pods that it waits for still use it | the reservations of the preemptor, `PreemptionCompleted`, `PreemptionCancelled`; `preemption_lifecycle` |
| replacement | the end of a member | others of equal or lower priority | a new member has a reservation; the lost one counts itself while it terminates | `ReservationReleased`; `ended_holds` |
| hold | a long wait | others of equal or lower priority, but for the replacements of their lost members | its pod is assigned | `CapacityHoldReleased`; `hold_planning` |
| move | moves that are under way | others of equal or lower priority; until the member has left also other new members of its gang | its replacement has a reservation there | `MoveCompleted`, `MovesEnded`; `moves_lifecycle` |

Also which claims do not fit on an oversubscribed node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from extender.core.log import events as ev
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim, ClaimKind
from extender.core.log.reservation_state import (
    BoundMember,
    CapacityHold,
    GangState,
    PendingPreemption,
    ReservationState,
    WorkloadTree,
    claims_of_kind,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import EXEMPT_NAMESPACES, SUCCEEDED, Pod
from extender.core.model.quantities import add_amounts


class ClaimRule(NamedTuple):
    """Whom the claims of a kind are kept from, beside others of equal or lower priority."""

    # while the preemption of their gang has not ended: also from higher priorities that have another node
    from_higher: bool
    # filter examines their node by our view also while a pod uses them: kube-scheduler may know of its end before
    while_used: bool
    empty_node: bool  # prioritize counts their node as empty


CLAIM_RULES: Final[Mapping[ClaimKind, ClaimRule]] = {
    "reservation": ClaimRule(from_higher=True, while_used=False, empty_node=False),
    "preemption": ClaimRule(from_higher=True, while_used=True, empty_node=False),
    "replacement": ClaimRule(from_higher=False, while_used=True, empty_node=False),
    "hold": ClaimRule(from_higher=False, while_used=False, empty_node=True),
    "move": ClaimRule(from_higher=False, while_used=False, empty_node=False),
}
BESIDE_RESERVATIONS: Final[tuple[ClaimKind, ...]] = ("preemption", "replacement", "hold", "move")


def claims_against(
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str,
    lower: bool = False,
    kinds: tuple[ClaimKind, ...] = tuple(CLAIM_RULES),
) -> list[CapacityClaim]:
    """Return the claims on a node that a tree or pod must leave free, by `CLAIM_RULES`.

    Args:
        priority: Of the tree or pod; claims of lower priority are left out.
        gang_uid: Of the tree or pod; its own claims are left out, but for those of members that are to be moved later.
        lower: Also claims of lower priority of preemptors that have not ended: they may be taken over, but only by a
            tree or pod that fits nowhere else.
    """
    return [
        claim
        for claim in state.claims_on.get(node, NO_CLAIMS).values()
        if claim.kind in kinds
        and (claim.gang_uid != gang_uid or _is_for_later(state, claim))
        and (
            claim.priority >= priority
            or (
                lower
                and CLAIM_RULES[claim.kind].from_higher
                and is_preempting(state, claim.gang_uid)
            )
        )
    ]


def _is_for_later(state: ReservationState, claim: CapacityClaim) -> bool:
    """Return whether a claim is that of a member that has still to leave, so that no new member of its gang is its replacement."""
    moves = state.moves
    is_due = moves is not None and moves.lost_us and claim.uid == moves.current.uid
    return claim.kind == "move" and not is_due


def is_in_use(view: ClusterView, claim: CapacityClaim) -> bool:
    """Return whether the pod of a claim is assigned, so that the usage of its node includes it; that of a move leaves another node."""
    pod = view.pods.get(claim.uid)
    if pod is None or pod.node is None:
        return False
    return claim.kind != "move" or pod.node == claim.node


def not_free(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    claims: Collection[CapacityClaim],
    gang_uid: GangUid | str,
) -> dict[str, int]:
    """Return the amounts that some claims keep on a node beside the usage of assigned pods, by resource.

    Args:
        claims: Some of `claims_against`; of a preemptor all on the node.
        gang_uid: For whom they are kept free: what is kept for the replacements of its lost members is subtracted from
            capacity holds.
    """
    amounts: dict[str, int] = {}
    held: dict[str, int] = {}
    if preemptions := preemptions_of(state, claims):
        amounts = held_beyond_victims(view, preemptions, node)
    for claim in claims:
        if claim.kind != "preemption" and not is_in_use(view, claim):
            add_amounts(held if claim.kind == "hold" else amounts, claim.requests)
    if held:
        for claim in state.claims_on[node].values():
            if claim.kind == "replacement" and claim.gang_uid == gang_uid:
                add_amounts(held, claim.requests, -1)
        add_amounts(amounts, {name: amount for name, amount in held.items() if amount > 0})
    return amounts


def preemptions_of(
    state: ReservationState, claims: Iterable[CapacityClaim]
) -> list[PendingPreemption]:
    """Return the preemptions of some claims."""
    preemptors = dict.fromkeys(claim.gang_uid for claim in claims if claim.kind == "preemption")
    return [state.preemptions[uid] for uid in preemptors]


def oversubscribed_pods(
    node: Node, taken: Sequence[Mapping[str, int]], claims: Sequence[CapacityClaim]
) -> Iterator[PodUid]:
    """Yield the pods whose claims do not fit on a node; those of the lowest priority first, then the newest.

    Args:
        taken: Requests that are subtracted before all others.
        claims: Those on the node; one of a preemptor that does not fit is left out.
    """
    if _fit_together(node, taken, claims):
        return
    free = dict(node.allocatable)
    for requests in taken:
        add_amounts(free, requests, -1)
    for claim in sorted(claims, key=lambda c: (-c.priority, c.at_us, c.pod)):
        if all(free.get(name, 0) >= amount for name, amount in claim.requests.items()):
            add_amounts(free, claim.requests, -1)
        elif claim.kind != "preemption":
            yield claim.uid


def _fit_together(
    node: Node, taken: Sequence[Mapping[str, int]], claims: Iterable[CapacityClaim]
) -> bool:
    """Return whether all fit, as nearly always: their sum is compared, in no order."""
    shapes = [claim.requests for claim in claims]  # members of one shape share the object
    counts = Counter(map(id, shapes))
    needed: dict[str, int] = {}
    for shape in {id(shape): shape for shape in shapes}.values():
        add_amounts(needed, shape, counts[id(shape)])
    for resource, amount in needed.items():
        free = node.allocatable.get(resource, 0)
        for requests in taken:
            free -= requests.get(resource, 0)
        if free < amount:
            return False
    return True


def may_leave(pod: Pod) -> bool:
    """Return whether the capacity of an assigned pod counts as capacity that frees some time.

    Pods of the node itself and of Kubernetes stay: static pods, those that may run on this node only (DaemonSets), and
    those of namespaces that the service leaves alone.
    """
    return not (pod.static or pod.pinned is not None or pod.namespace in EXEMPT_NAMESPACES)


def nodes_of(hold: CapacityHold) -> tuple[NodeName, ...]:
    """Return the nodes of a hold, sorted."""
    return tuple(sorted({pod.node for pod in hold.pods}))


def claimed_nodes(state: ReservationState, uid: GangUid) -> frozenset[NodeName]:
    """Return the nodes on which something is kept for a tree."""
    claims_on = state.claims_on.items()
    return frozenset(
        n for n, claims in claims_on if any(c.gang_uid == uid for c in claims.values())
    )


def is_preempting(state: ReservationState, uid: GangUid) -> bool:
    """Return whether a tree has a preemption that has not ended."""
    preemption = state.preemptions.get(uid)
    return preemption is not None and not preemption.ended


def nodes_of_preemptors(state: ReservationState) -> frozenset[NodeName]:
    """Return the nodes with capacity for preemptors that evict others: claimed, or already reserved."""
    nodes: set[NodeName] = set()
    for uid, preemption in state.preemptions.items():
        nodes.update(preemption.claims)
        root = state.gangs.get(uid)
        if root is not None and not preemption.ended:
            nodes.update(r.node for r in root.reservations.values())
    return frozenset(nodes)


def victims_are_gone(view: ClusterView, preemption: PendingPreemption) -> bool:
    """Return whether all pods whose capacity a preemptor waits for are gone."""
    return not preemption.victims and not any(
        uid in view.pods for uid in preemption.already_terminating
    )


def claimed_requests(
    view: ClusterView, preemption: PendingPreemption, node: NodeName
) -> dict[str, int]:
    """Return the capacity that a preemptor claims on a node, including what other pods still use of it."""
    needed: dict[str, int] = {}
    for claim in preemption.claims.get(node, ()):
        if not is_in_use(view, claim):
            add_amounts(needed, claim.requests)
    return needed


def claims_do_not_fit(
    view: ClusterView,
    preemption: PendingPreemption,
    node: NodeName,
    *,
    stay: Collection[PodUid] = (),
) -> bool:
    """Return whether the claims on a node do not fit even after victims and terminating pods are gone.

    Args:
        preemption: Not ended.
        stay: Terminating pods that count as staying.
    """
    offers = view.nodes.get(node)
    if offers is None:
        return False  # the node is gone, which is handled elsewhere
    used = dict(view.usage.get(node, NOTHING).requests)
    for uid, pod in view.on_node.get(node, {}).items():
        leaves = pod.deleting or uid in preemption.victims or uid in preemption.already_terminating
        if leaves and uid not in stay:
            add_amounts(used, dict(pod.shape.requests), -1)
    needed = claimed_requests(view, preemption, node)
    return any(
        offers.allocatable.get(name, 0) - used.get(name, 0) < amount
        for name, amount in needed.items()
    )


def held_beyond_victims(
    view: ClusterView, preemptions: Iterable[PendingPreemption], node: NodeName
) -> dict[str, int]:
    """Return the capacity that preemptors claim on a node, that is free now, and that others must leave free.

    That is the claims less what victims and terminating pods still use: what these use is not available to other pods
    anyway.

    Returns:
        Amounts above zero, by resource.
    """
    held: dict[str, int] = {}
    for _, amounts in held_by_preemptor(view, preemptions, node):
        add_amounts(held, amounts)
    return held


def held_by_preemptor(
    view: ClusterView, preemptions: Iterable[PendingPreemption], node: NodeName
) -> list[tuple[PendingPreemption, Mapping[str, int]]]:
    """Return the same for each preemptor, the highest priority first.

    A pod that several preemptors wait for makes capacity once: for that of the highest priority, as far as the pods that it
    alone waits for do not make it.
    """
    ordered = sorted(preemptions, key=lambda p: (-p.priority, p.at_us, p.gang_uid))
    needed = [claimed_requests(view, preemption, node) for preemption in ordered]
    awaited: list[tuple[list[int], Pod]] = []
    for uid, pod in view.on_node.get(node, {}).items():
        by = [i for i, p in enumerate(ordered) if uid in p.victims or uid in p.already_terminating]
        if by:
            awaited.append((by, pod))
    awaited.sort(key=lambda entry: len(entry[0]))
    for by, pod in awaited:
        for name, amount in pod.shape.requests:
            left = amount
            for i in by:
                freed = min(left, needed[i].get(name, 0))
                if freed:
                    needed[i][name] -= freed
                    left -= freed
    return [
        (preemption, {name: amount for name, amount in left_of.items() if amount > 0})
        for preemption, left_of in zip(ordered, needed, strict=True)
    ]


def claimed_under_victims(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str,
    lower: bool = False,
) -> dict[str, int]:
    """Return the claimed capacity on a node that victims still use.

    kube-scheduler counts it twice meanwhile: as used by the victims, and for the members nominated there. The arguments are
    those of `claims_against`.
    """
    claims = claims_against(
        state, node, priority=priority, gang_uid=gang_uid, lower=lower, kinds=("preemption",)
    )
    preemptions = preemptions_of(state, claims)
    amounts: dict[str, int] = {}
    for preemption in preemptions:
        add_amounts(amounts, claimed_requests(view, preemption, node))
    add_amounts(amounts, held_beyond_victims(view, preemptions, node), -1)
    return {name: amount for name, amount in amounts.items() if amount}


# --- replacement holds: capacity of lost members, held for their replacements for a bounded time (C.6, V26)

# A hold blocks trees and pods of equal or lower priority in planning and in filter. Trees and pods of higher priority
# ignore it and may use the capacity, which is recorded (`superseded`). There is a hold while other members of the gang
# run, and in a tree that was compiled from a workload: its controller creates the pods again, also all of them (the
# restart of a JobSet). Any other gang that ended, or ends, as a whole has none.

_NOT_HELD: tuple[ev.MemberTerminationCause, ...] = (
    "preempted",
    "node-lost",
)  # the capacity is for the preemptor, or gone


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


# what names have in common: all of it, all but the last part, nothing
_ALIKE: Final[tuple[Callable[[str], str], ...]] = (
    str, lambda name: name.rpartition("-")[0], lambda _: "",
)  # fmt: skip


def nodes_of_replacements(
    lost: Sequence[CapacityClaim], newcomers: Sequence[Pod]
) -> Mapping[PodUid, NodeName]:
    """Return the nodes of lost members for the newcomers of a leaf: that of the member that has the same place in its order.

    It has the same name, or the same but for the random last part (of a Job with indexes). Without such names the oldest loss is
    replaced first.
    """
    nodes: dict[PodUid, NodeName] = {}
    replaced: set[PodUid] = set()
    for alike in _ALIKE:
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


def replacement_hold_end(
    view: ClusterView,
    tree: Tree | None,
    member: BoundMember,
    lost: ev.MemberTerminated,
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
) -> Iterator[ev.ReservationReleased]:
    """Yield the events for the replacement holds of a root that end now, one for each reason.

    Args:
        taken: The result of `oversubscribed_holds`.
        over: The result of `expired_holds`.
        recreated: The leaves whose members are created again also when none runs.
    """

    def end_of(hold: CapacityClaim) -> tuple[ev.ReleaseReason, str] | None:
        node = view.nodes.get(hold.node)
        if not _is_replaced(tree, hold.group):
            return "deleted", "its group is gone or being deleted"
        if not runs and leaf_of(root, hold.group) not in recreated:
            return "deleted", "no member of its gang runs any more"
        if node is None or node.unschedulable or node.deleting:
            return "node-lost", "its node is gone or takes no pods"
        if hold.uid in taken and not _replaced_past_us(root, tree, hold):
            return "superseded", "others took it"
        return ("expired", "no replacement came in time") if hold.uid in over else None

    ended: dict[
        ev.ReleaseReason, tuple[str, list[CapacityClaim]]
    ] = {}  # with the text of the first
    for hold in sorted(root.replacement_holds.values(), key=lambda hold: hold.pod):
        if (end := end_of(hold)) is not None:
            ended.setdefault(end[0], (end[1], []))[1].append(hold)
    for reason, (words, holds) in sorted(ended.items()):
        yield ev.ReservationReleased(
            plan=holds[0].plan,
            reason=reason,
            pods=released_pods(holds),
            message=f"capacity that was held for the replacement of a lost member: {words}",
        )


def released_pods(claims: Iterable[CapacityClaim]) -> tuple[ev.ReleasedPod, ...]:
    """Return the pods of some claims, as the event of their end has them."""
    return tuple(ev.ReleasedPod(pod=c.pod, uid=c.uid, node=c.node) for c in claims)


def _replaced_past_us(root: GangState, tree: Tree | None, hold: CapacityClaim) -> bool:
    """Return whether a member of the leaf that the log does not have yet runs on the node of the hold."""
    members = tree.members.get(leaf_of(root, hold.group), ()) if tree is not None else ()
    recorded = (root.bound, root.reservations)
    return any(p.node == hold.node and not any(p.uid in k for k in recorded) for p in members)
