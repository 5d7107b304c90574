"""The events of moves that are under way, and when the pod of the next one may leave.

Pods are evicted one at a time, each only when the view shows that its gang keeps its minimum, that its controller makes it
again, and that its new node can take it; the plan is old by then. What keeps it is waited for, for a bounded time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from extender.core.admit.interpod_rules import exclusive_nodes
from extender.core.admit.plan_request import is_candidate
from extender.core.capacity.capacity_claims import claims_against, nodes_of_replacements, not_free
from extender.core.capacity.free_capacity import make_row, used_capacity
from extender.core.log import events as ev
from extender.core.log.capacity_claim import NO_CLAIMS
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NIL_GANG, GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import join_names, label_text
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.preempt.movable_pods import move_of
from extender.core.preempt.preemption_lifecycle import is_stuck


class MovesContext(ev.EventSource, frozen=True, kw_only=True):
    """What is known of moves beside view and state; a restart loses it."""

    now_us: int
    idle_us: int = 0  # how long they have made no progress
    longest_us: int  # moves without progress for this time end
    refusal: str = ""  # of the API server, for the last eviction


def decide_moves(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    moves: PendingMoves,
    context: MovesContext,
) -> Iterator[ev.NewEvent]:
    """Yield the events that bring the moves that are under way up to date with the state."""
    move, root = moves.current, state.gangs.get(moves.current.gang_uid)
    if root is None:
        yield ended(moves, context, "changed", f"gang {move.gang} was removed")
        return
    replacement = root.bound.get(moves.replacement)
    if replacement is not None:
        done = ev.MoveCompleted(
            plan=moves.id,
            number=moves.made + 1,
            pod=move.pod,
            uid=move.uid,
            source=move.source,
            target=move.target,
            replacement=replacement.pod,
            replacement_uid=replacement.uid,
            duration_ms=max(context.now_us - moves.lost_us, 0) // 1000,
        )
        draft = context.draft(move.gang_uid, move.gang, done)
        yield msgspec.structs.replace(draft, cause_position=moves.position)
        if moves.made + 1 == len(moves.moves):
            last = msgspec.structs.replace(moves, made=moves.made + 1)
            yield ended(last, context, "completed", "")
        return
    leaving = view.pods.get(move.uid)
    runs = leaving is not None and not leaving.deleting and not moves.lost_us
    if runs and (text := _no_longer_needed(state, moves)):
        yield ended(moves, context, "no-longer-needed", text)
        return
    if text := _what_changed(view, state, moves, root):
        yield ended(moves, context, "changed", text)
        return
    if context.idle_us < context.longest_us or (moves.paused and not moves.lost_us):
        return
    if moves.lost_us and leaving is not None and not is_stuck(leaving, context.now_us):
        return  # it has its grace period
    seconds = context.longest_us // 1_000_000
    if moves.lost_us:
        text = f"no new pod of {move.group} was bound to {move.target} within {seconds} s after {move.pod} had left {move.source}"
        yield ended(moves, context, "not-replaced", text)
    else:
        why = what_keeps(view, state, forest, moves) or context.refusal or "the pod is still there"
        yield ended(
            moves, context, "refused", f"pod {move.pod} could not leave within {seconds} s: {why}"
        )


def _no_longer_needed(state: ReservationState, moves: PendingMoves) -> str:
    """Return what became of the gang for which moves make room; empty: it waits, or they are for no gang of the log."""
    if moves.for_uid == NIL_GANG:
        return ""
    root = state.gangs.get(moves.for_uid)
    if root is None:
        return f"gang {moves.for_gang} was removed"
    return f"gang {moves.for_gang} has its place" if root.phase in HOLDS_CAPACITY else ""


def _what_changed(
    view: ClusterView, state: ReservationState, moves: PendingMoves, root: GangState
) -> str:
    """Return why the plan does not hold any more; empty: it does. A move that has begun is not disturbed by what comes after it.

    Args:
        root: The gang of the current move.
    """
    move = moves.current
    if moves.lost_us:
        leaf = GroupKey(move.pod.partition("/")[0], move.group, "PodGroup")
        pods = view.on_node.get(move.target, {}).values()
        arrived = any(pod.group == leaf and pod.uid not in root.bound for pod in pods)
        return "" if moves.replacement or arrived else lost_place(view, state, [move])
    if move.uid not in root.bound:
        return f"pod {move.pod} ended before it was moved"
    pod = view.pods.get(move.uid)
    if pod is None or pod.deleting:
        return ""
    left = moves.moves[moves.made :]
    for later in left:
        gang = state.gangs.get(later.gang_uid)
        if gang is None:
            return f"gang {later.gang} was removed"
        if later.uid not in gang.bound:
            return f"pod {later.pod} ended before it was moved"
    return lost_place(view, state, left)


def lost_place(view: ClusterView, state: ReservationState, moves: Iterable[ev.MoveRecord]) -> str:
    """Return of which move the new node is gone, or has been taken by pods that stay or by reservations; empty: of none.

    Args:
        moves: In their order; what each leaves is free for those after it.
    """
    free: dict[NodeName, dict[str, int]] = {}
    for move in moves:
        for name in (move.source, move.target):
            if name not in free and name in view.nodes:
                free[name] = _free_later(view, state, name)
        if move.target not in free:
            return f"node {move.target}, where {move.pod} was to go, is gone"
        left = free[move.target]
        if lacking := [name for name, least in move.requests.items() if left.get(name, 0) < least]:
            return f"node {move.target}, where {move.pod} was to go, has not enough {join_names(lacking)} any more: others took it"
        add_amounts(left, move.requests, -1)
        pod = view.pods.get(move.uid)
        if pod is not None and pod.node == move.source and not pod.deleting and move.source in free:
            add_amounts(free[move.source], move.requests)
    return ""


def _free_later(view: ClusterView, state: ReservationState, name: NodeName) -> dict[str, int]:
    """Return what is free on a node when the pods that terminate are gone."""
    free = dict(view.nodes[name].allocatable)
    add_amounts(free, view.usage.get(name, NOTHING).requests, -1)
    for pod in view.on_node.get(name, {}).values():
        if pod.deleting:
            add_amounts(free, dict(pod.shape.requests))
    claims = state.claims_on.get(name, NO_CLAIMS).values()
    reserved = [claim for claim in claims if claim.kind == "reservation"]
    add_amounts(free, not_free(view, state, name, reserved, ""), -1)
    return free


def ended(
    moves: PendingMoves,
    source: ev.EventSource,
    reason: ev.MovesEndReason,
    message: str,
    *,
    by: str = "",
) -> ev.NewEvent:
    """Return the event that ends moves."""
    data = ev.MovesEnded(
        plan=moves.id,
        reason=reason,
        made=moves.made,
        left=len(moves.moves) - moves.made,
        message=message,
        by=by,
    )
    return msgspec.structs.replace(source.draft(NIL_GANG, "", data), cause_position=moves.position)


def with_new_node(
    state: ReservationState, tree: Tree, hints: Mapping[PodUid, NodeName]
) -> Mapping[PodUid, NodeName]:
    """Return the nodes that are tried first for members of a tree, with that of the replacement of the current move."""
    moves = state.moves
    if moves is None or not moves.lost_us or moves.current.gang_uid != tree.root.uid:
        return hints
    root, leaf = state.gangs.get(tree.root.uid), moves.current.group
    reserved = root.reservations if root is not None else {}
    newcomers = [
        pod
        for pod in tree.members.get(GroupKey(tree.root.key.namespace, leaf, "PodGroup"), ())
        if is_candidate(pod) and pod.uid not in reserved
    ]
    claims = [claim for claim in moves.claims() if claim.uid == moves.current.uid]
    return {**hints, **nodes_of_replacements(claims, newcomers)}


def what_keeps(
    view: ClusterView, state: ReservationState, forest: Forest, moves: PendingMoves
) -> str:
    """Return why the pod of the current move may not be evicted now; empty: it may."""
    move = moves.current
    pod, node = view.pods.get(move.uid), view.nodes.get(move.target)
    if pod is None or pod.deleting or pod.node != move.source:
        return f"pod {move.pod} does not run on {move.source}"
    if node is None or node.deleting or node.unschedulable:
        return f"node {move.target} is gone or takes no pods"
    if move.target in exclusive_nodes(view, state):
        return f"node {move.target} is in a domain that a group has alone"
    mover = move_of(view, state, forest, pod)
    if isinstance(mover, str):
        return mover
    for key, value in mover.within:
        if node.labels.get(key) != value:
            return f"node {move.target} is outside of {label_text(key, value)}, where the gang runs"
    taken = used_capacity(view, state, priority=move.priority, gang_uid=move.gang_uid)
    row = make_row(node, view.usage.get(node.name, NOTHING), taken.get(node.name))
    # what is held for moves is left out: that they have their places one after the other is `lost_place`
    held = claims_against(
        state, node.name, priority=move.priority, gang_uid=move.gang_uid, kinds=("move",)
    )
    free = {**row.free}
    add_amounts(free, not_free(view, state, node.name, held, move.gang_uid))
    lacking = [name for name, amount in pod.shape.requests if free.get(name, 0) < amount]
    if lacking:
        return f"node {move.target} has not enough {', '.join(lacking)} free"
    if not may_run(NodeTable((row,)), pod.shape)[0]:
        return f"node {move.target} does not suit pod {move.pod} any more"
    return ""
