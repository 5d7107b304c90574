"""Where to hold capacity for a tree that waits: the place that needs the fewest busy slots to free; and its events.

A node has as many *busy slots* as further pods of the tree would fit on it without the pods that run there and may leave.
The planner places the tree on some nodes as if these were free, and on the others as they are now. First the smallest number
of busy slots per node decides with which it finds a place, then the domain with the fewest of them in all, then the fewest nodes.

There is no hold for a tree that fits as soon as pods of its own namespace leave, nor for one that needs more than a share
of what its pods may use (`HoldRefusal`). A domain of which it needs no more than that share comes first; a tree that fills a
domain is the usual case of training, so it may have a whole one where that is a small part of the cluster.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from extender.core.admit.interpod_rules import InterpodRulePart, counted_by
from extender.core.admit.plan_request import group_key_of
from extender.core.admit.verdict_events import (
    EventContext,
    assignment_records,
    draft_for,
    group_records,
)
from extender.core.capacity.capacity_claims import (
    claims_against,
    is_preempting,
    may_leave,
    nodes_of,
    not_free,
)
from extender.core.capacity.free_capacity import make_row, used_capacity_on
from extender.core.log import events as ev
from extender.core.log.capacity_claim import CapacityClaim, ClaimKind, planned_claims
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.reservation_state import (
    CapacityHold,
    GangState,
    ReservationState,
    no_hold_before_us,
    reservations_on,
)
from extender.core.log.state_projector import NO_CAPACITY, counts_as_unused
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.message_formatting import amounts_text, counted, join_names
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.pods import Pod, PodShape
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import namespace_of
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.planner.plan_types import (
    PLANNER_VERSION,
    Evictable,
    Plan,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanVictim,
    domain_keys,
)
from extender.core.planner.preempt.post_eviction_view import without
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reservation_checks import is_unassigned, unfit_pods

# --- how much of a hold is free already, and what holds of others take from a tree

HELD: Final = "free capacity is held for trees of equal or higher priority that have waited longer"
HELD_FOR_MOVES: Final = "free capacity is held for the new pods of members that are being moved; `gang-extender moves` shows them"

NOTHING_LEAVES: Final[Mapping[NodeName, Mapping[str, int]]] = MappingProxyType({})


def hold_progress_text(view: ClusterView, state: ReservationState, hold: CapacityHold) -> str:
    """Return how many pods of a hold would fit now on the nodes where capacity is held for them, as a sentence without its end."""
    fitting = fitting_pods(view, state, hold.gang_uid, hold.pods, hold.priority)
    nodes, pods = counted(len(nodes_of(hold)), "node"), counted(len(hold.pods), "pod")
    return f"capacity is held for it on {nodes} as it frees: {fitting} of {pods} would fit now"


def fitting_pods(
    view: ClusterView,
    state: ReservationState,
    gang_uid: GangUid,
    pods: Iterable[CapacityClaim],
    priority: int,
    leaving: Mapping[NodeName, Mapping[str, int]] = NOTHING_LEAVES,
) -> int:
    """Return how many of some pods of a tree fit now on the nodes that are planned for them.

    Args:
        leaving: By node: what counts as free, beside what is free now.
    """
    free: dict[NodeName, dict[str, int]] = {}
    fitting = 0
    for held in pods:
        node = view.nodes.get(held.node)
        if node is None:
            continue
        left = free.get(held.node)
        if left is None:
            taken = used_capacity_on(view, state, held.node, priority=priority, gang_uid=gang_uid)
            left = dict(make_row(node, view.usage.get(held.node, NOTHING), taken).free)
            add_amounts(left, leaving.get(held.node, {}))
            free[held.node] = left
        if all(left.get(name, 0) >= amount for name, amount in held.requests.items()):
            fitting += 1
            add_amounts(left, held.requests, -1)
    return fitting


def is_blocked_by_own_pods(view: ClusterView, state: ReservationState, hold: CapacityHold) -> bool:
    """Return whether the pods of a hold would all fit but for pods of their own namespace, of which none terminates yet."""
    namespace, leaving = namespace_of(hold.gang), {}
    for node in nodes_of(hold):
        own = [
            (pod, dict(pod.shape.requests))
            for pod in view.on_node.get(node, {}).values()
            if pod.namespace == namespace and may_leave(pod)
        ]
        for reservation in reservations_on(state, node).values():
            pod = view.pods.get(reservation.uid)
            if pod is not None and pod.node is None and pod.namespace == namespace:
                own.append((pod, dict(reservation.requests)))
        if any(pod.deleting for pod, _ in own):
            return False
        if own:
            leaving[node] = sum((Counter(requests) for _, requests in own), Counter[str]())
    if not leaving:
        return False
    tree = (hold.gang_uid, hold.pods, hold.priority)
    whole = len(hold.pods)
    return fitting_pods(view, state, *tree) < whole == fitting_pods(view, state, *tree, leaving)


def held_against(
    view: ClusterView,
    state: ReservationState,
    nodes: Sequence[PlanNode],
    shapes: Sequence[PodShape],
    *,
    priority: int,
    gang_uid: GangUid,
) -> str:
    """Return that a refused tree does not get free capacity because it is held for others; empty: it is not so.

    It is so where more pods of the tree would fit on a node but for a capacity hold, or what is held for moves. The text has no
    names, and no numbers that change often.

    Args:
        nodes: The nodes of its plan request, sorted by name.
    """
    held_nodes = {name for hold in state.capacity_holds.values() for name in nodes_of(hold)}
    moves = state.moves.claims() if state.moves is not None else ()
    causes: tuple[tuple[set[NodeName], ClaimKind, str], ...]
    causes = (held_nodes, "hold", HELD), ({c.node for c in moves}, "move", HELD_FOR_MOVES)
    for names, kind, text in causes:
        for name in names:
            claims = claims_against(
                state, name, priority=priority, gang_uid=gang_uid, kinds=(kind,)
            )
            held = not_free(view, state, name, claims, gang_uid)
            place = bisect_left(nodes, name, key=lambda node: node.name) if held else len(nodes)
            if place == len(nodes) or nodes[place].name != name:
                continue
            if any(_is_kept_off(nodes[place], shape, held) for shape in shapes):
                return text
    return ""


def _is_kept_off(node: PlanNode, shape: PodShape, held: Mapping[str, int]) -> bool:
    """Return whether more pods of a shape would fit on a node, which they may use, but for what is held there."""
    free = {name: amount + held.get(name, 0) for name, amount in node.free.items()}
    roomier = msgspec.structs.replace(node, free=free)
    more = _slots(roomier, shape) > _slots(node, shape)
    return more and bool(may_run(NodeTable((node,)), shape)[0])


# --- whose turn it is
HOLDS_MAX: Final = 4  # at a time, in the whole cluster


class HoldRefusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why no capacity is held for a tree, and what would help; without names of other namespaces."""

    reason: str
    help: str = ""
    pods: tuple[PodUid, ...] = ()  # of its namespace: it is so while they run
    at_us: int = 0  # when it was searched; 0: not searched


def trees_to_hold_for(
    state: ReservationState, *, now_us: int, after_us: int, paused: Collection[GangUid] = ()
) -> tuple[GangState, ...]:
    """Return the trees for which capacity may be held now, the next one first.

    Args:
        after_us: How long a tree waits before capacity is held for it; 0: it is never held.
        paused: Trees for which no place was found lately.
    """
    if not after_us:
        return ()
    eligible = [
        root
        for root in state.gangs.values()
        if root.phase == "unschedulable"
        and root.uid not in paused
        and _has_waited(root, now_us=now_us, after_us=after_us)
        and no_hold_before_us(state, root) <= now_us
        and root.uid not in state.capacity_holds
        and root.uid not in state.preemptions
        and not (root.reservations or root.bound)
        and _is_below_limits(state, root)
    ]
    return tuple(sorted(eligible, key=lambda root: _turn(state, root, now_us)))


def _has_waited(root: GangState, *, now_us: int, after_us: int) -> bool:
    decision = root.last_decision
    return (
        0 < root.refused_since_us <= now_us - after_us
        and decision is not None
        and decision.outcome in NO_CAPACITY
        and decision.when_empty != "never"
    )


def _is_below_limits(state: ReservationState, root: GangState) -> bool:
    """Return whether a tree may have a hold beside those of its priority and above: few, and one per namespace."""
    others = [h for h in state.capacity_holds.values() if h.priority >= root.priority]
    namespace = namespace_of(root.gang)
    return len(others) < HOLDS_MAX and all(namespace_of(h.gang) != namespace for h in others)


def _turn(
    state: ReservationState, root: GangState, now_us: int
) -> tuple[int, int, int, int, str, GangUid]:
    unused = state.unused_holds.get(namespace_of(root.gang))
    after_us = (0, 0)
    if unused is not None and counts_as_unused(unused, now_us):
        after_us = unused.ended_us, root.no_hold_until_us
    return (-root.priority, *after_us, root.refused_since_us, root.gang, root.uid)


def displaced_holds(state: ReservationState, root: GangState) -> tuple[CapacityHold, ...]:
    """Return the holds of lower priority that end when capacity is held for a tree, to keep the limits."""
    namespace = namespace_of(root.gang)
    lower = [h for h in state.capacity_holds.values() if h.priority < root.priority]
    ending = [h for h in lower if namespace_of(h.gang) == namespace]
    rest = sorted((h for h in lower if h not in ending), key=lambda h: (h.priority, -h.position))
    over = len(state.capacity_holds) - len(ending) + 1 - HOLDS_MAX
    return (*ending, *rest[: max(over, 0)])


NO_PLACE: Final = HoldRefusal(
    reason="no capacity is held for it: beside what is held for others no place was found, also where all pods that may leave had left"
)


class HoldRequests:
    """The requests that are planned to find a place: each with other nodes that may free."""

    def __init__(
        self,
        view: ClusterView,
        state: ReservationState,
        tree: Tree,
        request: PlanRequest,
        ruled: InterpodRulePart,
        *,
        staying: Collection[PodUid] = (),
        max_percent: int = 100,
    ) -> None:
        """Prepare.

        Args:
            ruled: The result of `ruled_part` for that request.
            staying: Further pods that count as staying, such as those that terminate and stay.
            max_percent: How much of each resource may be held for one namespace, of the nodes that its pods may use.
        """
        shapes: dict[PodShape, int] = {}
        leaving = _leaving(view, state, tree, ruled, shapes, staying)
        # on nodes with preemption claims, the freed capacity is for the preemptor
        claimed = {node for p in state.preemptions.values() for node in p.claims}
        self._leaving = {node: pods for node, pods in leaving.items() if node not in claimed}
        everything = [pod for pods in self._leaving.values() for pod in pods]
        source = Evictable(
            priority=tree.root.priority, going=tuple(everything), shapes=tuple(shapes)
        )
        self._request = msgspec.structs.replace(request, evictable=source, explain=False)
        emptied = {node.name: node for node in without(self._request, everything).nodes}
        busy = {
            n.name: max(
                (_slots(emptied[n.name], s) - _slots(n, s) for s in request.shapes), default=0
            )
            for n in request.nodes
        }
        self.busy: Mapping[NodeName, int] = {name: n for name, n in busy.items() if n > 0}
        namespace = tree.root.key.namespace
        self._own = [pod for pod in everything if namespace_of(pod.pod) == namespace]
        self._domain = _domains(request, _topology_key(request.root))
        self._share = HoldShare(request, max_percent)

    def all_free(self) -> PlanRequest:
        """Return the request in which all nodes are free of what may leave."""
        return self._free_of(self.busy)

    def search(self) -> Generator[PlanRequest, Plan | None, HoldRefusal | None]:
        """Yield requests to plan, one after the other; takes the plan for each, if there is one.

        Returns None if the last plan is where capacity is held, else why there is no hold.
        """
        if self._own and (plan := (yield self._without(self._own))) is not None:
            return _own_pods(self._own, self._request, plan)
        plan = yield self.all_free()
        if plan is None or not self.busy:
            return NO_PLACE
        if (over := self._share.over(plan)) is not None:
            return over
        everywhere = self.busy
        if self._keep_domains(self._share.domains_for(plan)):
            wide = (yield self.all_free()) if self.busy else None
            if wide is None:
                self.busy = everywhere
            plan = wide or plan
        levels = sorted(set(self.busy.values()))
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            smaller = yield self._free_of(self._in_order(levels[middle]))
            plan = smaller or plan
            low, high = (low, middle) if smaller else (middle + 1, high)
        order = self._in_order(levels[high])
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            smaller = yield self._free_of(order[:middle])
            plan = smaller or plan
            low, high = (low, middle) if smaller else (middle + 1, high)
        return self._share.over(plan)

    def _keep_domains(self, wide: Collection[str]) -> bool:
        """Leave out nodes of other domains; return whether some were left out."""
        before = self.busy
        self.busy = {n: slots for n, slots in before.items() if self._share.domain[n] in wide}
        return len(self.busy) < len(before)

    def _in_order(self, level: int) -> list[NodeName]:
        """Return the nodes with at most so many busy slots, those of domains with the fewest in all first."""
        names = [name for name, slots in self.busy.items() if slots <= level]
        totals: dict[str, int] = {}
        for name in names:
            domain = self._domain[name]
            totals[domain] = totals.get(domain, 0) + self.busy[name]

        def turn(name: NodeName) -> tuple[int, str, int, NodeName]:
            domain = self._domain[name]
            return totals[domain], domain, self.busy[name], name

        return sorted(names, key=turn)

    def _free_of(self, nodes: Iterable[NodeName]) -> PlanRequest:
        """Return the request in which some nodes are free of what may leave."""
        return self._without([pod for node in nodes for pod in self._leaving.get(node, ())])

    def _without(self, pods: Sequence[PlanVictim]) -> PlanRequest:
        return msgspec.structs.replace(without(self._request, pods), evictable=None)


class HoldShare:
    """How much of the capacity that a tree may use is held for it."""

    def __init__(self, request: PlanRequest, max_percent: int) -> None:
        """Prepare; `max_percent`: how much of each resource may be held, of the nodes that its pods may use."""
        self._request, self._max_percent = request, max_percent
        self.domain = _domains(request, _root_key(request.root))

    @cached_property
    def _capacity(self) -> Mapping[str, Counter[str]]:
        """By domain: what its nodes have of the resources that the tree asks for, on those that its pods may use."""
        request = self._request
        fleet = NodeTable(request.nodes)
        usable = np.zeros(fleet.size, dtype=np.bool_)
        for shape in request.shapes:
            usable |= may_run(fleet, shape)
        names = {name for shape in request.shapes for name, _ in shape.requests}
        capacity: dict[str, Counter[str]] = {}
        for row in np.flatnonzero(usable):
            node = request.nodes[row]
            whole = capacity.setdefault(self.domain[node.name], Counter())
            for name in names:
                whole[name] += node.allocatable.get(name, 0)
        return capacity

    def domains_for(self, plan: Plan) -> frozenset[str]:
        """Return the domains in which what a plan needs for the minimum is no more than the share of that domain."""
        needs = self._needs(plan)
        return frozenset(d for d, has in self._capacity.items() if not self._too_much(has, needs))

    def over(self, plan: Plan) -> HoldRefusal | None:
        """Return why what a plan needs for the minimum is not held; None: it is no more than the share."""
        capacity, every = sum(self._capacity.values(), Counter[str]()), self._needs(plan)
        needs = {name: every[name] for name in self._too_much(capacity, every)}
        if not needs:
            return None
        whole = {name: capacity[name] for name in needs}
        limit = {name: amount * self._max_percent // 100 for name, amount in whole.items()}
        percent = max(-(-amount * 100 // whole[name]) for name, amount in needs.items())
        smaller = f"lower what its minimum needs to at most {amounts_text(limit)}, or "
        return HoldRefusal(
            reason=(
                f"no capacity is held for it: its minimum needs {amounts_text(needs)}; the nodes that its pods may use "
                f"have {amounts_text(whole)}, of which {self._max_percent} percent may be held for one namespace"
            ),
            help=(
                f"to have capacity held for it, {smaller if all(limit.values()) else ''}"
                f"set GANG_EXTENDER_HOLD_CAPACITY_MAX_PERCENT to {percent}"
            ),
        )

    def _needs(self, plan: Plan) -> Mapping[str, int]:
        needs = Counter[str]()
        for assignment in plan.assignments:
            if not assignment.extra:
                needs.update(dict(self._request.shapes[assignment.shape].requests))
        return needs

    def _too_much(self, capacity: Mapping[str, int], needs: Mapping[str, int]) -> list[str]:
        return [
            name
            for name, amount in needs.items()
            if amount * 100 > capacity.get(name, 0) * self._max_percent
        ]


def _own_pods(own: Iterable[PlanVictim], request: PlanRequest, plan: Plan) -> HoldRefusal:
    """Return the refusal for a tree that has a plan where pods of its own namespace have left."""
    used = {assignment.node for assignment in plan.assignments}
    blocking = [pod for pod in own if pod.node in used or request.rules]  # a rule may count any pod
    pods = sorted(blocking, key=lambda pod: (pod.pod, pod.uid))
    names = join_names([pod.pod for pod in pods])
    return HoldRefusal(
        reason="no capacity is held for it: it fits as soon as only pods of its own namespace leave",
        help=f"it fits when these pods of its own namespace have ended: {names}",
        pods=tuple(pod.uid for pod in pods),
    )


def _domains(request: PlanRequest, key: str) -> Mapping[NodeName, str]:
    return {node.name: node.labels.get(key, "") if key else "" for node in request.nodes}


def _root_key(group: PlanGroup) -> str:
    """Return the outermost topology key that all of a tree shares; empty: it has none."""
    while not domain_keys(group) and len(group.groups) == 1:
        group = group.groups[0]
    return next(iter(domain_keys(group)), "")


def _topology_key(group: PlanGroup) -> str:
    """Return the outermost topology key of a tree; empty: it has none."""
    if keys := domain_keys(group):
        return keys[0]
    return next((key for child in group.groups if (key := _topology_key(child))), "")


def _slots(node: PlanNode, shape: PodShape) -> int:
    fits = [
        max(node.free.get(name, 0), 0) // amount for name, amount in shape.requests if amount > 0
    ]
    return min(fits, default=0)


def _leaving(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    ruled: InterpodRulePart,
    shapes: dict[PodShape, int],
    staying: Collection[PodUid],
) -> Mapping[NodeName, list[PlanVictim]]:
    """Return by node the assigned pods that may leave, and reservations up to its priority; `shapes` gets their shapes."""
    own = {pod.uid for pod in tree.pods}
    leaving: dict[NodeName, list[PlanVictim]] = {}

    def occupant(pod: Pod, node: NodeName, shape: PodShape) -> PlanVictim:
        counts = counted_by(ruled, pod) if ruled.rules else ()
        return PlanVictim(
            pod=pod.path,
            uid=pod.uid,
            node=node,
            shape=shapes.setdefault(shape, len(shapes)),
            # what attracts the tree may leave with the pod, but must not count as gone
            rules=tuple(i for i in counts if ruled.rules[i].kind == "apart"),
        )

    for node in sorted(view.nodes):
        pods = [
            occupant(pod, node, pod.shape)
            for pod in view.on_node.get(node, {}).values()
            if may_leave(pod) and pod.uid not in own and pod.uid not in staying
        ]
        for reservation in reservations_on(state, node).values():
            pod = view.pods.get(reservation.uid)
            if reservation.priority > tree.root.priority:
                continue  # it ends a hold: see `_hold_end`
            if reservation.uid not in own and pod is not None and pod.node is None:
                requests = tuple(sorted(reservation.requests.items()))
                shape = msgspec.structs.replace(pod.shape, requests=requests)
                pods.append(occupant(pod, node, shape))
        if pods:
            leaving[node] = sorted(pods, key=lambda p: (p.pod, p.uid))
    return leaving


def decide_hold(
    view: ClusterView,
    state: ReservationState,
    tree: Tree,
    request: PlanRequest,
    plan: Plan,
    context: EventContext,
    *,
    until_us: int,
) -> list[ev.NewEvent]:
    """Return the events that hold capacity for a tree; none if that is not possible any more.

    Args:
        request: The request of `HoldRequests` that was planned.
        context: `plan` is the id of the hold.
        until_us: The latest end of the hold.
    """
    root = state.gangs.get(tree.root.uid)
    minimum = tuple(a for a in plan.assignments if not a.extra)
    if root is None or root.uid in state.capacity_holds or not minimum:
        return []
    decision = root.last_decision
    reasons = (decision.reasons_reduced or decision.reasons) if decision is not None else ()
    held = ev.CapacityHeld(
        hold=context.plan,
        kind=tree.root.key.kind,
        priority=tree.root.priority,
        waiting_since_us=root.refused_since_us,
        reason=next(iter(reasons), ""),
        until_us=until_us,
        groups=group_records(tree, plan),
        shapes=tuple(dict(shape.requests) for shape in request.shapes),
        assignments=assignment_records(minimum),
        fitting=0,  # counted below, by the claims of this event
        planner=PLANNER_VERSION,
        input_digest=context.digest,
        search_nodes=plan.search.nodes,
    )
    claims = tuple(planned_claims("hold", context.plan, root.uid, held, at_us=0))
    fitting = fitting_pods(view, state, root.uid, claims, tree.root.priority)
    ending = displaced_holds(state, root)
    ending += _without_place(view, state, root, claims, ending)
    text = "capacity is held for a tree of higher priority"
    drafts = [
        context.draft(
            hold.gang_uid,
            hold.gang,
            ev.CapacityHoldReleased(hold=hold.hold, reason="superseded", message=text),
        )
        for hold in ending
    ]
    return [*drafts, draft_for(tree, msgspec.structs.replace(held, fitting=fitting), context)]


def _without_place(
    view: ClusterView,
    state: ReservationState,
    root: GangState,
    pods: Iterable[CapacityClaim],
    ending: Collection[CapacityHold],
) -> tuple[CapacityHold, ...]:
    """Return further holds of lower priority that do not fit on their nodes beside a new one of a tree."""
    left: dict[NodeName, dict[str, int]] = {}

    def takes(held: Iterable[CapacityClaim]) -> bool:
        """Subtract pods on the nodes of the new hold; return whether all fit there."""
        fit = True
        for pod in held:
            if (free := left.get(pod.node)) is not None:
                add_amounts(free, pod.requests, -1)
                fit = fit and all(free[name] >= 0 for name in pod.requests)
        return fit

    new = tuple(pods)
    left |= {pod.node: dict(view.nodes[pod.node].allocatable) for pod in new}
    takes(new)
    displaced = []
    others = [h for h in state.capacity_holds.values() if h not in ending]
    for hold in sorted(others, key=lambda h: (-h.priority, h.position)):
        before = {node: dict(free) for node, free in left.items()}
        if not takes(hold.pods) and hold.priority < root.priority:
            displaced.append(hold)
            left = before
    return tuple(displaced)


# --- the end of a hold: used, not needed or not possible any more, or expired


def decide_hold_ends(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    now: ReconcileContext,
    *,
    enabled: bool,
) -> list[ev.NewEvent]:
    """Return the events that end capacity holds now."""

    def end_of(hold: CapacityHold) -> Iterator[ev.NewEvent]:
        ended = _hold_end(view, state, forest, hold, now.now_us)
        if ended is None and not enabled:
            ended = ("disabled", "holding capacity is switched off")
        if ended is not None:
            data = ev.CapacityHoldReleased(hold=hold.hold, reason=ended[0], message=ended[1])
            yield now.draft(hold.gang_uid, hold.gang, data)

    drafts: list[ev.NewEvent] = []
    for hold in sorted(state.capacity_holds.values(), key=lambda h: h.position):
        name = f"capacity hold of {hold.gang}"
        drafts += now.gangs.decide(hold.gang_uid, name, functools.partial(end_of, hold))
    return drafts


def _hold_end(
    view: ClusterView, state: ReservationState, forest: Forest, hold: CapacityHold, now_us: int
) -> tuple[ev.HoldEndReason, str] | None:
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
    if lost := _lost_node(view, hold):
        return "node-lost", lost
    if taken := [node for node in nodes_of(hold) if _is_taken(view, state, hold, node)]:
        text = "trees of higher priority, or pods that stay, use its capacity on"
        return "superseded", f"{text} {counted(len(taken), 'node')}"
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
    if changed := [held for held in hold.pods if not _waits(view, held)]:
        return f"{len(changed)} of {counted(len(hold.pods), 'pod')} that capacity is held for do not wait any more, or request something else"
    return ""


def _minima(groups: Collection[ev.GroupRecord]) -> frozenset[tuple[object, ...]]:
    return frozenset((g.kind, g.name, g.parent, g.basic, g.minimum, g.required) for g in groups)


def _waits(view: ClusterView, held: CapacityClaim) -> bool:
    pod = view.pods.get(held.uid)
    return pod is not None and is_unassigned(pod) and dict(pod.shape.requests) == held.requests


def _lost_node(view: ClusterView, hold: CapacityHold) -> str:
    """Return why a node of a hold cannot have its pods any more; empty: all nodes suit."""
    for name in nodes_of(hold):
        node = view.nodes.get(name)
        if node is None or node.deleting:
            return f"node {name} is gone or being deleted"
        if node.unschedulable:
            return f"node {name} was cordoned"
    unfit = unfit_pods(view, hold, {held.uid: held for held in hold.pods})
    return next((words.removesuffix(":") for _, words in sorted(unfit.items())), "")


def _is_taken(
    view: ClusterView, state: ReservationState, hold: CapacityHold, name: NodeName
) -> bool:
    """Return whether a node has too little for a hold beside what stays and what higher priorities hold there."""
    above = claims_against(state, name, priority=hold.priority + 1, gang_uid=hold.gang_uid)
    holds = [claim for claim in above if claim.kind == "hold"]
    used = not_free(view, state, name, holds, hold.gang_uid)
    for pod in view.on_node.get(name, {}).values():
        if not may_leave(pod):
            add_amounts(used, dict(pod.shape.requests))
    for claim in above:
        waits = claim.kind == "reservation" and is_unassigned(view.pods.get(claim.uid))
        if waits or claim.kind == "preemption":
            add_amounts(used, claim.requests)
    allocatable = view.nodes[name].allocatable
    asks: dict[str, int] = {}
    for claim in hold.pods:
        if claim.node == name:
            add_amounts(asks, claim.requests)
    return any(
        amount > 0 and allocatable.get(resource, 0) - used.get(resource, 0) < amount
        for resource, amount in asks.items()
    )
