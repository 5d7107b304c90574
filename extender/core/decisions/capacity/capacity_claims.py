"""Capacity that pending preemptions claim on nodes, beside the usage of assigned pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid


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
        root_uid: Of the tree or pod; its own claims are left out.
        lower: Also preemptions of lower priority that have not ended: their claims may be taken over, but only by
            a tree or pod that fits nowhere else.
    """
    for uid in state.claimed_on.get(node, ()):
        preemption = state.preemptions[uid]
        counts = preemption.priority >= priority or (lower and not preemption.ended)
        if uid != gang_uid and counts:
            yield preemption


def is_preempting(state: ReservationState, uid: GangUid) -> bool:
    """Return whether a tree has a preemption that has not ended."""
    preemption = state.preemptions.get(uid)
    return preemption is not None and not preemption.ended


def nodes_of_preemptors(state: ReservationState) -> frozenset[NodeName]:
    """Return the nodes with capacity for preemptors that evict others: claimed, or already reserved."""
    found: set[NodeName] = set(state.claimed_on)
    for uid in state.preemptions:
        root = state.gangs.get(uid)
        if root is not None and is_preempting(state, uid):
            found.update(r.node for r in root.reservations.values())
    return frozenset(found)


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
    anyway. Each preemptor must find its claim when its own victims are gone, and all of them when all victims are: a
    pod that several preemptors wait for makes capacity once.

    Returns:
        Amounts above zero, by resource.
    """
    one_by_one: dict[str, int] = {}
    together: dict[str, int] = {}
    counted: set[PodUid] = set()
    for preemption in preemptions:
        needed = claimed_requests(view, preemption, node)
        for name, amount in needed.items():
            together[name] = together.get(name, 0) + amount
        for uid, pod in view.on_node.get(node, {}).items():
            if uid in preemption.victims or uid in preemption.already_terminating:
                for name, amount in pod.shape.requests:
                    if name in needed:
                        needed[name] -= amount
                    if uid not in counted:
                        together[name] = together.get(name, 0) - amount
                counted.add(uid)
        for name, amount in needed.items():
            one_by_one[name] = one_by_one.get(name, 0) + max(amount, 0)
    held = {name: max(amount, together[name]) for name, amount in one_by_one.items()}
    return {name: amount for name, amount in held.items() if amount > 0}


def held_by_priority(
    view: ClusterView, state: ReservationState, node: NodeName
) -> Iterator[tuple[PendingPreemption, Mapping[str, int]]]:
    """Yield each preemption with claims on a node, the highest priority first, and what it adds to what is held there.

    The amounts add up to those of `held_beyond_victims` for all of them.
    """
    found = [state.preemptions[uid] for uid in state.claimed_on.get(node, ())]
    found.sort(key=lambda p: (-p.priority, p.at_us, p.gang_uid))
    before: Mapping[str, int] = {}
    for count, preemption in enumerate(found, 1):
        held = held_beyond_victims(view, found[:count], node)
        added = {name: amount - before.get(name, 0) for name, amount in held.items()}
        yield preemption, {name: amount for name, amount in added.items() if amount > 0}
        before = held


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
        root_uid: As in `blocking_preemptions`.
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
