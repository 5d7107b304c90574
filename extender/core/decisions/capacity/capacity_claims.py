"""Room that pending preemptions hold on nodes, beside what assigned pods take there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NodeName, PodUid, RootUid


def claimants(
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    root_uid: RootUid | str,
    lower: bool = False,
) -> Iterator[PendingPreemption]:
    """Give the preemptions that hold room on a node against somebody.

    Args:
        state: What is pending.
        node: Where.
        priority: Of who asks.
        root_uid: Of who asks; nobody is kept out of the room held for himself.
        lower: Also those of lower priority, which keep nobody out in the end, but somebody should not take over
            without need; of those that have ended only the others.
    """
    for uid in state.claimed_on.get(node, ()):
        preemption = state.preemptions[uid]
        counts = preemption.priority >= priority or (lower and not preemption.ended)
        if uid != root_uid and counts:
            yield preemption


def has_evicted(state: ReservationState, uid: RootUid) -> bool:
    """Say whether a tree holds room that it evicts others for: it does not run yet."""
    preemption = state.preemptions.get(uid)
    return preemption is not None and not preemption.ended


def room_made_on(state: ReservationState) -> frozenset[NodeName]:
    """Name the nodes with room that somebody evicts for, being made or reserved already."""
    found: set[NodeName] = set(state.claimed_on)
    for uid in state.preemptions:
        root = state.roots.get(uid)
        if root is not None and has_evicted(state, uid):
            found.update(r.node for r in root.held.values())
    return frozenset(found)


def cleared(view: ClusterView, preemption: PendingPreemption) -> bool:
    """Say whether all whose room a preemptor waits for are gone."""
    return not preemption.victims and not any(uid in view.pods for uid in preemption.awaits)


def wholly_claimed(
    view: ClusterView, preemption: PendingPreemption, node: NodeName
) -> dict[str, int]:
    """Give the room that a preemptor needs on a node, whoever sits in it now."""
    needed: dict[str, int] = {}
    for claim in preemption.claims.get(node, ()):
        pod = view.pods.get(claim.uid)
        if pod is not None and pod.node is not None:
            continue  # it runs, here or elsewhere: the view counts it
        for name, amount in claim.requests.items():
            needed[name] = needed.get(name, 0) + amount
    return needed


def lacks(
    view: ClusterView,
    preemption: PendingPreemption,
    node: NodeName,
    *,
    stay: Collection[PodUid] = (),
) -> bool:
    """Say whether a node has too little for a preemptor, also when all that has to go and all that goes is gone.

    Args:
        view: The cluster.
        preemption: Not ended.
        node: One that it holds room on.
        stay: Pods on their way out that are counted as staying all the same.
    """
    offers = view.nodes.get(node)
    if offers is None:
        return False  # another matter than who sits there
    used = dict(view.usage.get(node, NOTHING).requests)
    for uid, pod in view.on_node.get(node, {}).items():
        goes = pod.deleting or uid in preemption.victims or uid in preemption.awaits
        if goes and uid not in stay:
            for name, amount in pod.shape.requests:
                used[name] = used.get(name, 0) - amount
    needed = wholly_claimed(view, preemption, node)
    return any(
        offers.allocatable.get(name, 0) - used.get(name, 0) < amount
        for name, amount in needed.items()
    )


def held_beyond_victims(
    view: ClusterView, preemption: PendingPreemption, node: NodeName
) -> Mapping[str, int]:
    """Give the room on a node that others must leave free now, beside what assigned pods take.

    That is what the preemptor needs there less what victims still occupy: while victims sit in the room,
    nobody else can take it, and what they do not cover must stay free from now on.

    Returns:
        Amounts above zero, by resource.
    """
    needed = wholly_claimed(view, preemption, node)
    for uid, pod in view.on_node.get(node, {}).items():
        if uid in preemption.victims or uid in preemption.awaits:
            for name, amount in pod.shape.requests:
                if name in needed:
                    needed[name] -= amount
    return {name: amount for name, amount in needed.items() if amount > 0}


def behind_victims(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    root_uid: RootUid | str,
    lower: bool = False,
) -> dict[str, int]:
    """Give the room on a node that victims of others sit in now and that is theirs when those are gone.

    kube-scheduler counts it twice meanwhile: as taken by the victims, and for the members nominated there.

    Args: as `claimants`.
    """
    amounts: dict[str, int] = {}
    for preemption in claimants(state, node, priority=priority, root_uid=root_uid, lower=lower):
        beyond = held_beyond_victims(view, preemption, node)
        for name, amount in wholly_claimed(view, preemption, node).items():
            amounts[name] = amounts.get(name, 0) + amount - beyond.get(name, 0)
    return {name: amount for name, amount in amounts.items() if amount}
