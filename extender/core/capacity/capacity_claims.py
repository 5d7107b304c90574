"""Capacity that is not free for others, beside the usage of assigned pods: claims of preemptions, and capacity holds.

Also which reservations and replacement holds do not fit on an oversubscribed node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import (
    CapacityHold,
    HeldOnNode,
    ReplacementHold,
    Reservation,
    ReservationState,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pods import EXEMPT_NAMESPACES, Pod


class HeldClaim(NamedTuple):
    """Free capacity of a node that is held for a preemptor, and that takes its turn among reservations."""

    requests: Mapping[str, int]
    priority: int
    at_us: int
    pod: str = ""


def oversubscribed_pods(
    node: Node,
    taken: Sequence[Mapping[str, int]],
    holders: Sequence[Reservation | ReplacementHold | HeldClaim],
) -> Iterator[PodUid]:
    """Yield the pods that do not fit on a node; those of the lowest priority first, then the newest.

    Args:
        node: The node.
        taken: Requests that are subtracted before all others.
        holders: Reservations, holds and claims on the node; a claim that does not fit is left out.
    """
    if _fit_together(node, taken, holders):
        return
    free = dict(node.allocatable)
    for requests in taken:
        for resource, amount in requests.items():
            free[resource] = free.get(resource, 0) - amount
    for holder in sorted(holders, key=lambda r: (-r.priority, r.at_us, r.pod)):
        if all(free.get(k, 0) >= v for k, v in holder.requests.items()):
            for resource, amount in holder.requests.items():
                free[resource] = free.get(resource, 0) - amount
        elif not isinstance(holder, HeldClaim):
            yield holder.uid


def _fit_together(
    node: Node,
    taken: Sequence[Mapping[str, int]],
    holders: Iterable[Reservation | ReplacementHold | HeldClaim],
) -> bool:
    """Return whether all fit, as nearly always: their sum is compared, in no order."""
    shapes = [holder.requests for holder in holders]  # members of one shape share the object
    counts = Counter(map(id, shapes))
    needed: dict[str, int] = {}
    for shape in {id(shape): shape for shape in shapes}.values():
        count = counts[id(shape)]
        for resource, amount in shape.items():
            needed[resource] = needed.get(resource, 0) + amount * count
    for resource, amount in needed.items():
        free = node.allocatable.get(resource, 0)
        for requests in taken:
            free -= requests.get(resource, 0)
        if free < amount:
            return False
    return True


def parts_against(
    state: ReservationState, node: NodeName, *, priority: int, gang_uid: GangUid | str
) -> Iterator[HeldOnNode]:
    """Yield the parts of capacity holds on a node that a tree or pod must leave free.

    Args:
        state: The reservation state.
        node: The node.
        priority: Of the tree or pod; holds of lower priority are left out.
        gang_uid: Of the tree or pod; its own hold is left out.
    """
    for part in state.capacity_held_on.get(node, ()):
        if part.gang_uid != gang_uid and part.priority >= priority:
            yield part


def held_requests_against(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str,
) -> dict[str, int]:
    """Return the amounts of capacity holds that a tree or pod must leave free on a node, by resource; empty: none.

    A gang that lost a member there may replace it: what is held for the replacement is subtracted.

    Args:
        view: The cluster; a pod of a hold that is assigned already is left out, because the usage includes it.
        state: The reservation state.
        node: The node.
        priority: As in `parts_against`.
        gang_uid: As in `parts_against`.
    """
    amounts: dict[str, int] = {}
    for part in parts_against(state, node, priority=priority, gang_uid=gang_uid):
        for held in part.pods:
            pod = view.pods.get(held.uid)
            if pod is not None and pod.node is not None:
                continue
            for name, amount in held.requests.items():
                amounts[name] = amounts.get(name, 0) + amount
    if amounts:
        for hold in state.replacement_holds_on.get(node, {}).values():
            if hold.gang_uid == gang_uid:
                for name, amount in hold.requests.items():
                    if name in amounts:
                        amounts[name] -= amount
    return {name: amount for name, amount in amounts.items() if amount > 0}


def may_leave(pod: Pod) -> bool:
    """Return whether the capacity of an assigned pod counts as capacity that frees some time.

    Pods of the node itself and of Kubernetes stay: static pods, those that may run on this node only (DaemonSets), and
    those of namespaces that the service leaves alone.
    """
    return not (pod.static or pod.pinned is not None or pod.namespace in EXEMPT_NAMESPACES)


def nodes_of(hold: CapacityHold) -> tuple[NodeName, ...]:
    """Return the nodes of a hold, sorted."""
    return tuple(sorted({pod.node for pod in hold.pods}))


def blocking_preemptions(
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str,
    lower: bool = False,
) -> Iterator[PendingPreemption]:
    """Yield the preemptions whose claims on a node must be left free by a tree or pod.

    Args:
        state: The reservation state.
        node: The node.
        priority: Of the tree or pod.
        gang_uid: Of the tree or pod; its own claims are left out.
        lower: Also preemptions of lower priority that have not ended: their claims may be taken over, but only by
            a tree or pod that fits nowhere else.
    """
    for preemption in preemptions_on(state, node):
        counts = preemption.priority >= priority or (lower and not preemption.ended)
        if preemption.gang_uid != gang_uid and counts:
            yield preemption


def is_preempting(state: ReservationState, uid: GangUid) -> bool:
    """Return whether a tree has a preemption that has not ended."""
    preemption = state.preemptions.get(uid)
    return preemption is not None and not preemption.ended


def nodes_of_preemptors(state: ReservationState) -> frozenset[NodeName]:
    """Return the nodes with capacity for preemptors that evict others: claimed, or already reserved."""
    nodes: set[NodeName] = set(state.claimed_on)
    for uid in state.preemptions:
        root = state.gangs.get(uid)
        if root is not None and is_preempting(state, uid):
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
        pod = view.pods.get(claim.uid)
        if pod is not None and pod.node is not None:
            continue  # it is bound, here or elsewhere: the usage includes it
        for name, amount in claim.requests.items():
            needed[name] = needed.get(name, 0) + amount
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
        view: The cluster.
        preemption: Not ended.
        node: A node with claims of it.
        stay: Terminating pods that count as staying.
    """
    offers = view.nodes.get(node)
    if offers is None:
        return False  # the node is gone, which is handled elsewhere
    used = dict(view.usage.get(node, NOTHING).requests)
    for uid, pod in view.on_node.get(node, {}).items():
        leaves = pod.deleting or uid in preemption.victims or uid in preemption.already_terminating
        if leaves and uid not in stay:
            for name, amount in pod.shape.requests:
                used[name] = used.get(name, 0) - amount
    needed = claimed_requests(view, preemption, node)
    return any(
        offers.allocatable.get(name, 0) - used.get(name, 0) < amount
        for name, amount in needed.items()
    )


def held_beyond_victims(
    view: ClusterView, preemptions: Iterable[PendingPreemption], node: NodeName
) -> Mapping[str, int]:
    """Return the capacity that preemptors claim on a node, that is free now, and that others must leave free.

    That is the claims less what victims and terminating pods still use: what these use is not available to other pods
    anyway.

    Returns:
        Amounts above zero, by resource.
    """
    held: dict[str, int] = {}
    for _, amounts in held_by_preemptor(view, preemptions, node):
        for name, amount in amounts.items():
            held[name] = held.get(name, 0) + amount
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


def preemptions_on(state: ReservationState, node: NodeName) -> Iterator[PendingPreemption]:
    """Yield the preemptions with claims on a node."""
    for uid in state.claimed_on.get(node, ()):
        yield state.preemptions[uid]


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

    kube-scheduler counts it twice meanwhile: as used by the victims, and for the members nominated there.

    Args:
        view: The cluster.
        state: The reservation state.
        node: The node.
        priority: As in `blocking_preemptions`.
        gang_uid: As in `blocking_preemptions`.
        lower: As in `blocking_preemptions`.
    """
    blocking = tuple(
        blocking_preemptions(state, node, priority=priority, gang_uid=gang_uid, lower=lower)
    )
    amounts: dict[str, int] = {}
    for preemption in blocking:
        for name, amount in claimed_requests(view, preemption, node).items():
            amounts[name] = amounts.get(name, 0) + amount
    for name, amount in held_beyond_victims(view, blocking, node).items():
        amounts[name] -= amount
    return {name: amount for name, amount in amounts.items() if amount}
