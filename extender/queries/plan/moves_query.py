"""Answer questions about moves of running pods (`make-room`, `drain`, `POST /v1/moves`): a recommendation, nothing is evicted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from extender.core.admit.plan_request import TreeParts, plan_request, ruled_part
from extender.core.capacity.capacity_claims import claimed_nodes
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.capacity.largest_free_domain import LOWEST, NO_ROOT, devices
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView, forest_of
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.message_formatting import (
    counted,
    join_names,
    label_text,
    parse_time,
    rfc3339,
)
from extender.core.model.nodes import DRAIN_TAINTS, drain_announced, takes_pods
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.visibility import namespace_of
from extender.core.planner.moves.move_search import find_moves
from extender.core.planner.moves.move_types import Move, MovesPlan, MovesRequest, StayingPod
from extender.core.planner.plan_types import PlanNode
from extender.core.preempt.disruption_units import as_admitted, checkpoint_warnings
from extender.core.preempt.movable_pods import MovablePods, MoveLimits, broken_gangs, movable_pods
from extender.queries.plan.cluster_changes import named_nodes
from extender.queries.plan.plan_dto import (
    BreakLine,
    EndLine,
    MovesAnswer,
    MovesQuestion,
    MovesUnderWay,
    NodePicture,
)
from extender.queries.plan.plan_query import PlanInput, assignment_lines, is_requested_tree

SOME: Final = 8  # texts in one message
SHOWN_CHARS: Final = 200  # of a wrong text
_COUNT: Final = re.compile(r"0*[1-9][0-9]{0,8}")


class PlannedMoves(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the canonical input of the planner."""

    answer: MovesAnswer
    request: bytes
    tree: str = ""  # to make room for, as Kind/namespace/name


class MovesInput(msgspec.Struct, frozen=True, kw_only=True):
    """A question about moves, with the objects that it is about."""

    plan: PlanInput  # the tree to make room for, and the state
    asked: MovesQuestion = MovesQuestion()
    by_us: int = 0  # 0: nothing is waited for
    now_us: int = 0
    members_only: bool = False  # pods that the service does not place stay


def moves_input(
    asked: MovesQuestion, plan: PlanInput, now_us: int, *, members_only: bool = False
) -> MovesInput:
    """Return a question with the objects that it is about; raises BadInput if `by` is no time."""
    return MovesInput(
        plan=replace(plan, budget=asked.search_budget),
        asked=asked,
        by_us=max(parse_time(asked.by, "by"), 1) if asked.by else 0,  # 0 would be no time
        now_us=now_us,
        members_only=members_only,
    )


def answer_moves(view: ClusterView, question: MovesInput) -> MovesAnswer:
    """Return the moves that make room; raises as `planned_moves`."""
    return planned_moves(view, question)[0]


def planned_moves(view: ClusterView, question: MovesInput) -> tuple[MovesAnswer, MovesRequest]:
    """Return the moves that make room, and what the planner was asked.

    Raises:
        BadInput: The question names no tree, several, or nodes that do not exist.
    """
    for refused in question.plan.refused:
        raise BadInput(f"for {refused.label}: {refused.text}")
    forest = forest_of(view)
    is_drain = question.asked.announced or bool(question.asked.drain)
    trees = [t for t in forest.trees.values() if is_requested_tree(t, question.plan)]
    asked = [
        name
        for name, given in (("for", trees), ("free", question.asked.free), ("drain", is_drain))
        if given
    ]
    if not trees:
        _refuse_without_tree(forest, question.plan)
    if len(asked) != 1:
        have = join_names(asked) or "none of them"
        raise BadInput(f"moves: give a tree to make room for, or free, or drain; given: {have}")
    if is_drain and question.asked.budget:
        raise BadInput(
            f"budget {question.asked.budget}: a drain moves all that can move; leave it out, or ask for free"
        )
    if question.by_us and not is_drain:
        raise BadInput("by: a time until which something may end; it is for drain")
    if 0 < question.by_us <= question.now_us:
        raise BadInput(
            f"by {rfc3339(question.by_us)}: is not after now; write when the nodes must be empty"
        )
    if trees:
        return _for_tree(view, forest, trees, question)
    return _for_nodes(view, forest, question)


def _refuse_without_tree(forest: Forest, question: PlanInput) -> None:
    """Raise BadInput for groups or pods of a question that are in no tree, so that none could be placed."""
    for key, orphan in sorted(forest.orphans.items()):
        if key in question.groups and question.readers.sees(key.namespace):
            raise BadInput(f"for {key}: {orphan.problem.message}")
    if question.pods and not question.groups:
        pods = counted(len(question.pods), "pod")
        raise BadInput(f"for: {pods} of no group; give the PodGroup, or the workload, to place")


def _limits(question: MovesInput) -> MoveLimits:
    highest, age_s = question.asked.max_priority, question.asked.max_age_s
    oldest = question.now_us - age_s * 1_000_000 if age_s else 0
    return MoveLimits(
        max_priority=None if isinstance(highest, UnsetType) else highest,
        oldest_us=oldest,
        now_us=question.now_us,
        members_only=question.members_only,
    )


def moves_under_way(moves: PendingMoves | None, waits_for: str) -> MovesUnderWay:
    """Return the moves that are under way for a reader; `waits_for`: why the pod of the current move is not evicted; empty: it is, or that is not known."""
    if moves is None:
        return MovesUnderWay(state="no moves are under way")
    return MovesUnderWay(
        plan=moves.id,
        question=moves.question,
        by=moves.by,
        since=rfc3339(moves.at_us),
        paused=moves.paused,
        made=moves.made,
        state=moves.sentence(waits_for),
        moves=tuple(
            Move(
                pod=planned.pod,
                uid=planned.uid,
                group=f"PodGroup/{namespace_of(planned.pod)}/{planned.group}",
                source=planned.source,
                target=planned.target,
                priority=planned.priority,
            )
            for planned in moves.moves
        ),
    )


# --- a tree ----------------------------------------------------------------------------------------


def _for_tree(
    view: ClusterView, forest: Forest, trees: Sequence[Tree], question: MovesInput
) -> tuple[MovesAnswer, MovesRequest]:
    if len(trees) > 1:
        names = join_names(sorted(str(tree.root.key) for tree in trees))
        raise BadInput(f"for: {len(trees)} trees; name one at a time: {names}")
    tree, state = trees[0], question.plan.state
    name = str(tree.root.key)
    if tree.problems:
        raise BadInput(f"for {name}: {tree.problems[0].message}")
    part = TreeParts().of(tree, state.gangs.get(tree.root.uid))
    rows = NodeRowCache(question.plan.topology_keys)
    request = plan_request(view, state, part, rows=rows, budget=question.plan.budget)
    ruled = ruled_part(view, state, part, rows=rows)
    pods = movable_pods(view, state, forest, tree=tree, ruled=ruled, limits=_limits(question))
    asked = MovesRequest(
        nodes=request.nodes,
        shapes=pods.shapes,
        movers=pods.movers,
        staying=pods.staying,
        # what is held for the tree is free for it, but not for a pod that is moved there
        barred=pods.barred | claimed_nodes(state, tree.root.uid),
        tree=request,
        budget=question.asked.budget,
        search_budget=question.plan.budget,
    )
    planned = find_moves(asked)
    answer = _answer(f"make room for {name}", planned, request.nodes, pods, view, question.now_us)
    if planned.plan is not None:
        answer = replace(answer, assignments=assignment_lines(planned.plan))
    return answer, asked


# --- nodes -----------------------------------------------------------------------------------------


def _for_nodes(
    view: ClusterView, forest: Forest, question: MovesInput
) -> tuple[MovesAnswer, MovesRequest]:
    state = question.plan.state
    rows = NodeRowCache()
    nodes = rows.rows(view, rows.taken(view, state, priority=LOWEST, gang_uid=NO_ROOT))
    if question.asked.free:
        sets, closed, count = _domains(nodes, question.asked.free)
    else:
        sets, closed, count = _named(view, question), (), 0
    pods = movable_pods(view, state, forest, limits=_limits(question))
    away = set() if question.asked.free else {name for some in sets.values() for name in some}
    known_ends = dict(_known_ends(view, forest, away, question.now_us))
    ends = {uid: end for uid, end in known_ends.items() if end[0] <= question.by_us}
    ending = {view.pods[uid].path for uid in ends}
    staying = (*(pod for pod in pods.staying if pod.pod not in ending), *_held(view, nodes))
    asked = MovesRequest(
        nodes=nodes,
        shapes=pods.shapes,
        movers=tuple(mover for mover in pods.movers if mover.uid not in ends),
        staying=staying,
        barred=pods.barred,
        sets=tuple(sets.values()),
        count=count,
        budget=question.asked.budget,
        search_budget=question.plan.budget,
    )
    planned = find_moves(asked)
    names = [*sets]
    title = f"free {question.asked.free}" if count else f"drain {join_names(names)}"
    answer = _answer(title, planned, nodes, pods, view, question.now_us)
    emptied = tuple(names[at] for at in planned.emptied)
    if count:
        reasons = answer.reasons
        if closed and planned.outcome in ("impossible", "unknown"):
            text = f"{counted(len(closed), 'further domain')} with a cordoned node, or one that is not ready"
            reasons += (f"{text}: {join_names(closed)}",)
        return replace(answer, emptied=emptied, reasons=reasons), asked
    stays = tuple(pod for pod in staying if pod.node in away and not pod.on_every_node)
    complete = not stays and not planned.unmoved
    left = {*planned.unmoved, *(line.pod for line in stays)}
    last_us, last_gang = _last_end(view, known_ends, ends, left)
    last = rfc3339(last_us) if last_us else ""
    text = f"nothing breaks when you begin after {last_gang} has ended, at {last} at the latest"
    proved = bool(stays) or planned.search.exhausted
    answer = replace(
        answer,
        verdict=planned.outcome if complete else "impossible" if proved else "unknown",
        emptied=emptied if complete else (),
        stays=stays,
        ends=tuple(
            EndLine(name=name, pods=pods, ends=rfc3339(at_us))
            for (at_us, name), pods in sorted(Counter(ends.values()).items())
        ),
        begin_after=last,
        reasons=answer.reasons + ((text,) if last else ()),
        breaks=tuple(_breaks(view, state, forest, left)),
    )
    return answer, asked


def _named(view: ClusterView, question: MovesInput) -> dict[str, tuple[NodeName, ...]]:
    """Return the nodes to drain as they are named; those whose drain is announced one by one, with what announces it."""
    sets = {text: tuple(named_nodes(view, text, "drain")) for text in question.asked.drain}
    if not question.asked.announced:
        return sets
    announced = {node.name: by for node in view.nodes.values() if (by := drain_announced(node))}
    if not announced:
        raise BadInput(
            f"announced: of {counted(len(view.nodes), 'node')} none is cordoned or has one of the taints {join_names(DRAIN_TAINTS)}"
        )
    return sets | {f"{name} ({announced[name]})": (name,) for name in sorted(announced)}


def _known_ends(
    view: ClusterView, forest: Forest, nodes: Collection[NodeName], now_us: int
) -> Iterator[tuple[PodUid, tuple[int, str]]]:
    """Yield the pods of some nodes of which it is known when they end, with their gang: when, and its name or that of the pod.

    A pod that still runs when its end has passed has none: what its annotation promised was not so.
    """
    for node in nodes:
        for pod in view.on_node.get(node, {}).values():
            tree = forest.tree_of(pod.group)
            of_gang = [p for p in tree.pods if p.node is not None] if tree is not None else [pod]
            if all(p.ends_us > now_us for p in of_gang):
                name = str(tree.root.key) if tree is not None else f"Pod/{pod.path}"
                yield pod.uid, (max(p.ends_us for p in of_gang), name)


def _last_end(
    view: ClusterView,
    known_ends: Mapping[PodUid, tuple[int, str]],
    ends: Mapping[PodUid, tuple[int, str]],
    left: Collection[str],
) -> tuple[int, str]:
    """Return after which end nothing stays or breaks on the nodes: when, and of what; 0: now, or it is not known.

    Args:
        known_ends: See `_known_ends`.
        ends: Those of what need not move.
        left: Paths of the pods that stay, or have no other place.
    """
    end_of = {view.pods[uid].path: end for uid, end in known_ends.items()}
    if any(path not in end_of for path in left):
        return 0, ""
    return max([*ends.values(), *(end_of[path] for path in left)], default=(0, ""))


def _domains(
    nodes: Sequence[PlanNode], free: str
) -> tuple[dict[str, tuple[NodeName, ...]], tuple[str, ...], int]:
    """Return the nodes of each domain of KEY=N of which all nodes take pods, the other domains, and the number."""
    key, equals, number = free.rpartition("=")
    if not equals or not key or _COUNT.fullmatch(number) is None:
        shown = free if len(free) <= SHOWN_CHARS else f"{free[:SHOWN_CHARS]}…"
        raise BadInput(
            f'free "{shown}": write KEY=N, a node label and how many of its domains, 1 to 999999999, such as topology.example.com/rack=1'
        )
    domains: dict[str, list[NodeName]] = {}
    closed = set()
    for node in nodes:
        if (value := node.labels.get(key)) is not None:
            domains.setdefault(label_text(key, value), []).append(node.name)
            if not takes_pods(node):
                closed.add(label_text(key, value))
    if not domains:
        labels = sorted({label for node in nodes for label in node.labels})
        raise BadInput(
            f'free "{free}": no node has the label {key}; nodes have {join_names(labels) or "no labels"}'
        )
    sets = {name: tuple(some) for name, some in domains.items() if name not in closed}
    return sets, tuple(sorted(closed)), int(number)


def _held(view: ClusterView, nodes: Iterable[PlanNode]) -> Iterator[StayingPod]:
    """Yield what keeps a node from being empty without a pod there."""
    for pod in sorted(view.nominated.values(), key=lambda pod: pod.path):
        if pod.nominated is not None and pod.group is None:
            text = "waits, and kube-scheduler has nominated it to this node"
            yield StayingPod(pod=pod.path, node=pod.nominated, reason=text)
    for node in nodes:
        if node.reserved:
            yield StayingPod(pod="(reserved)", node=node.name, reason="for a gang that waits")


def _breaks(
    view: ClusterView, state: ReservationState, forest: Forest, pods: set[str]
) -> Iterator[BreakLine]:
    """Yield the gangs that fall below their minimum without some pods, given by their paths."""
    leaving: dict[GroupKey, set[PodUid]] = {}
    for pod in view.pods.values():
        if pod.path in pods and pod.group is not None and pod.group in forest.root_of:
            leaving.setdefault(forest.root_of[pod.group], set()).add(pod.uid)
    for root, uids in sorted(leaving.items()):
        for group, running, left in broken_gangs(as_admitted(forest.trees[root], state), uids):
            yield BreakLine(gang=str(group.key), minimum=group.minimum, running=running, left=left)


# --- the answer ------------------------------------------------------------------------------------


def _answer(
    title: str,
    planned: MovesPlan,
    nodes: Sequence[PlanNode],
    pods: MovablePods,
    view: ClusterView,
    now_us: int,
) -> MovesAnswer:
    reasons = planned.reasons
    running = (view.pods[mover.uid] for mover in pods.movers)
    if planned.outcome in ("impossible", "unknown") and pods.staying:
        kinds: dict[str, int] = {}
        for pod in pods.staying:
            if not pod.on_every_node:
                kinds[pod.reason] = kinds.get(pod.reason, 0) + 1
        most = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))[:SOME]
        reasons += tuple(
            f"{counted(number, 'pod')} {'stays' if number == 1 else 'stay'}: {text}"
            for text, number in most
        )
    return MovesAnswer(
        verdict=planned.outcome,
        question=title,
        moves=planned.moves,
        least=planned.least,
        cheapest=planned.cheapest,
        lost_min=sum(move.lost_min for move in planned.moves),
        unmoved=planned.unmoved,
        nodes=tuple(_pictures(planned, nodes, view)),
        reasons=reasons,
        proved=planned.search.exhausted,
        warnings=tuple(islice(checkpoint_warnings(running, now_us), SOME)),
    )


def _pictures(
    planned: MovesPlan, nodes: Sequence[PlanNode], view: ClusterView
) -> Iterator[NodePicture]:
    resource = devices(nodes)[0]
    change: dict[str, int] = {}
    for move in planned.moves:
        amount = dict(view.pods[move.uid].shape.requests).get(resource, 0)
        change[move.source] = change.get(move.source, 0) + amount
        change[move.target] = change.get(move.target, 0) - amount
    for node in nodes:
        if node.name in change:
            free = node.free.get(resource, 0)
            yield NodePicture(
                node=node.name,
                resource=resource,
                allocatable=node.allocatable.get(resource, 0),
                free_before=free,
                free_after=free + change[node.name],
            )
