"""The end of capacity holds: used, not needed or not possible any more, or expired."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

from extender.core.admit.plan_request import group_key_of
from extender.core.admit.verdict_events import group_records
from extender.core.capacity.capacity_claims import (
    claims_against,
    is_preempting,
    may_leave,
    nodes_of,
    not_free,
)
from extender.core.capacity.hold_progress import is_blocked_by_own_pods
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.each_gang import EachGang
from extender.core.log.events import CapacityHoldReleased, GroupRecord, HoldEndReason, NewEvent
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.reservation_state import CapacityHold, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import counted
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.quantities import add_amounts
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reservation_checks import unassigned, unfit_pods


def decide_hold_ends(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    now: ReconcileContext,
    gangs: EachGang | None = None,
    *,
    enabled: bool,
) -> list[NewEvent]:
    """Return the events that end capacity holds now; `gangs`: how each gang is decided; None: exceptions are raised."""
    gangs = gangs or EachGang()

    def end_of(hold: CapacityHold) -> Iterator[NewEvent]:
        ended = _hold_end(view, state, forest, hold, now.now_us)
        if ended is None and not enabled:
            ended = ("disabled", "holding capacity is switched off")
        if ended is not None:
            data = CapacityHoldReleased(hold=hold.hold, reason=ended[0], message=ended[1])
            yield now.draft(hold.gang_uid, hold.gang, data)

    drafts: list[NewEvent] = []
    for hold in sorted(state.capacity_holds.values(), key=lambda h: h.position):
        name = f"capacity hold of {hold.gang}"
        drafts += gangs.decide(hold.gang_uid, name, functools.partial(end_of, hold))
    return drafts


def _hold_end(
    view: ClusterView, state: ReservationState, forest: Forest, hold: CapacityHold, now_us: int
) -> tuple[HoldEndReason, str] | None:
    """Return why a hold ends now, with the reason as text; None: it does not."""
    root = state.gangs.get(hold.gang_uid)
    tree = forest.trees.get(group_key_of(root)) if root is not None else None
    if root is None or tree is None or tree.root.uid != hold.gang_uid or tree.root.deleting:
        return "deleted", "its root group is gone or being deleted"
    if root.reservations or root.phase in HOLDS_CAPACITY:
        return "admitted", "it was admitted"
    if is_preempting(state, root.uid):
        return "preempting", "it preempts pods of lower priority instead"
    change = _change(view, tree, hold)
    if not change and is_blocked_by_own_pods(view, state, hold):
        change = "only pods of its own namespace are still in its way"
    if change:
        return "changed", change
    lost = _lost_node(view, hold)
    if lost:
        return "node-lost", lost
    taken = [node for node in nodes_of(hold) if _is_taken(view, state, hold, node)]
    if taken:
        where = counted(len(taken), "node")
        return (
            "superseded",
            f"trees of higher priority, or pods that stay, use its capacity on {where}",
        )
    if hold.until_us <= now_us:
        return "expired", "the capacity did not free in time"
    return None


def _change(view: ClusterView, tree: Tree, hold: CapacityHold) -> str:
    """Return how a tree differs from the one that capacity is held for; empty: it is the same."""
    if tree.problems:
        return "it is invalid now"
    if tree.root.priority != hold.priority:
        return f"its priority is {tree.root.priority} now"
    if _minima(group_records(tree, None)) != _minima(hold.groups):
        return "its groups or their minima have changed"
    changed = [held for held in hold.pods if not _waits(view, held)]
    if changed:
        return f"{len(changed)} of {counted(len(hold.pods), 'pod')} that capacity is held for do not wait any more, or request something else"
    return ""


def _minima(groups: Collection[GroupRecord]) -> frozenset[tuple[object, ...]]:
    return frozenset((g.kind, g.name, g.parent, g.basic, g.minimum, g.required) for g in groups)


def _waits(view: ClusterView, held: CapacityClaim) -> bool:
    pod = view.pods.get(held.uid)
    return (
        pod is not None and unassigned(view, pod.uid) and dict(pod.shape.requests) == held.requests
    )


def _lost_node(view: ClusterView, hold: CapacityHold) -> str:
    """Return why a node of a hold cannot have its pods any more; empty: all nodes suit."""
    for name in nodes_of(hold):
        node = view.nodes.get(name)
        if node is None or node.deleting:
            return f"node {name} is gone or being deleted"
        if node.unschedulable:
            return f"node {name} was cordoned"
    unfit = unfit_pods(view, hold, {held.uid: held for held in hold.pods})
    return next((f"{words.removesuffix(':')}" for _, words in sorted(unfit.items())), "")


def _is_taken(
    view: ClusterView, state: ReservationState, hold: CapacityHold, name: NodeName
) -> bool:
    """Return whether a node has too little for a hold beside what stays and what higher priorities hold there."""
    used: dict[str, int] = {}
    for requests in _standing(view, state, hold, name):
        add_amounts(used, requests)
    allocatable = view.nodes[name].allocatable
    asks: dict[str, int] = {}
    for claim in hold.pods:
        if claim.node == name:
            add_amounts(asks, claim.requests)
    return any(
        amount > 0 and allocatable.get(resource, 0) - used.get(resource, 0) < amount
        for resource, amount in asks.items()
    )


def _standing(
    view: ClusterView, state: ReservationState, hold: CapacityHold, name: NodeName
) -> Iterator[Mapping[str, int]]:
    for pod in view.on_node.get(name, {}).values():
        if not may_leave(pod):
            yield dict(pod.shape.requests)
    above = claims_against(state, name, priority=hold.priority + 1, gang_uid=hold.gang_uid)
    for claim in above:
        if claim.kind == "preemption" or (
            claim.kind == "reservation" and unassigned(view, claim.uid)
        ):
            yield claim.requests
    holds = [claim for claim in above if claim.kind == "hold"]
    yield not_free(view, state, name, holds, hold.gang_uid)
