"""The planner's request for a preemption, and the events that record its answer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from extender.core.admit.interpod_rules import ExclusiveDomains, HeldDomain, InterpodRulePart
from extender.core.admit.verdict_events import (
    EventContext,
    assignment_records,
    decide_observed,
    draft_for,
    only_less,
    still_holds,
)
from extender.core.capacity.capacity_claims import claimed_under_victims, released_pods
from extender.core.log import events as ev
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.gang_phase import minimum_is_bound
from extender.core.log.reservation_state import EVICTION_MEMORY_US, Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, GroupKey, NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import Visibility, is_hidden, name_for, namespace_of
from extender.core.planner.plan_types import (
    PLANNER_VERSION,
    Evictable,
    Plan,
    PlanDomain,
    PlanNode,
    PlanRequest,
    PlanUnit,
    Verdict,
)
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.post_eviction_view import (
    NO_PRIORITY,
    VictimCost,
    unit_cost,
    without,
)
from extender.core.planner.preempt.victim_search import PreemptionPlan
from extender.core.preempt.disruption_units import (
    EvictableContext,
    evictable_for,
    reservations_by_victims,
)

# --- reservations of unbound members whose unit is evicted

# A gang that is evicted as a whole may have reservations of members that are not bound yet. These would be bound after
# the others are gone, and the gang would run below its minimum. So the reservations are released with the plan, and the
# tree is not planned while victims of it exist.

POD_UNIT_PREFIX = "Pod/"  # start of the name of a unit that is a single pod


def unbound_reservations(
    view: ClusterView, state: ReservationState, forest: Forest, victims: Collection[PodUid]
) -> list[Reservation]:
    """Return the reservations of unbound members that go with some victims, sorted by pod; others of their unit may terminate already."""
    evicted = [pod for pod in map(view.pods.get, victims) if pod is not None]
    trees = {tree.root.uid: tree for pod in evicted if (tree := forest.tree_of(pod.group))}
    reservations: list[Reservation] = []
    for uid, tree in trees.items():
        root = state.gangs.get(uid)
        if root is None or not root.reservations:
            continue
        for after, held in reservations_by_victims(view, tree, root).items():
            if all(pod in victims or view.pods[pod].deleting for pod in after):
                reservations += held
    return sorted(reservations, key=lambda r: r.pod)


def victim_uids(units: Iterable[PlanUnit | ev.VictimUnit]) -> frozenset[PodUid]:
    """Return the UIDs of the pods of some units."""
    return frozenset(pod.uid for unit in units for pod in unit.pods)


def release_reservations(
    state: ReservationState,
    reservations: Iterable[Reservation],
    source: ev.EventSource,
    *,
    but: Collection[PodUid],
) -> list[ev.NewEvent]:
    """Return the events that release reservations, one per tree and plan; `but`: members whose reservation is already released."""
    plans: dict[tuple[str, PlanId], list[Reservation]] = {}
    for reservation in reservations:
        if reservation.uid not in but:
            plans.setdefault((reservation.gang_uid, reservation.plan), []).append(reservation)
    return [
        source.draft(
            held[0].gang_uid,
            state.gangs[held[0].gang_uid].gang,
            ev.ReservationReleased(
                plan=plan,
                reason="superseded",
                pods=released_pods(held),
                message="its gang is evicted as a whole",
            ),
        )
        for (_, plan), held in plans.items()
    ]


def leaves_being_evicted(view: ClusterView, state: ReservationState) -> Mapping[GroupKey, int]:
    """Return the leaves of which pods are evicted as part of a unit, with when the newest such pod was created, in microseconds."""
    newest: dict[GroupKey, int] = {}
    for preemption in state.preemptions.values():
        for victim in preemption.victims.values():
            pod = None if victim.unit.startswith(POD_UNIT_PREFIX) else view.pods.get(victim.uid)
            if pod is not None and pod.group is not None:
                newest[pod.group] = max(newest.get(pod.group, 0), pod.created_us)
    return newest


def is_being_evicted(leaves: Mapping[GroupKey, int], tree: Tree) -> bool:
    """Return whether members of a tree are evicted as part of a unit; pods of an earlier tree of the same name do not count."""
    return any(leaves.get(key, -1) >= tree.root.created_us for key in tree.members)


def preemption_request(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    tree: Tree,
    request: PlanRequest,
    *,
    ruled: InterpodRulePart,
    moment: EvictableContext | None = None,
) -> PlanRequest:
    """Return the request for a preemption, made from the plan request of the tree.

    Capacity claimed by other preemptors is not free for this one, also while their victims still use it: evicting the
    same victims again would free no more capacity. Claims of lower priority can be taken over.

    Args:
        ruled: The result of `ruled_part` for that request.
    """
    evictable = evictable_for(
        view,
        state,
        forest,
        tree,
        ruled=ruled,
        spared=recently_evicted_units(
            state, tree.root.uid, moment.now_us if moment is not None else 0
        ),
        moment=moment,
    )
    evictable = _with_domains(evictable, ExclusiveDomains().occupants(view, state, tree))
    less = _behind_victims(view, state, tree)
    nodes = request.nodes
    if less:
        nodes = tuple(_lessened(n, less[n.name]) if n.name in less else n for n in nodes)
    return msgspec.structs.replace(request, nodes=nodes, evictable=evictable)


def _with_domains(
    evictable: Evictable, occupants: Mapping[HeldDomain, frozenset[PodUid]]
) -> Evictable:
    """Return what can be evicted with the exclusive domains all of whose occupants may go; the same object without any."""
    may_go = {pod.uid for unit in evictable.units for pod in unit.pods}
    may_go.update(pod.uid for pod in evictable.going)
    may_go.update(pod.uid for each in evictable.dependents or () for pod in each.pods)
    domains = [
        PlanDomain(group=group, key=key, value=value, pods=tuple(sorted(pods)))
        for (group, key, value), pods in occupants.items()
        if pods <= may_go
    ]
    if not domains:
        return evictable
    domains.sort(key=lambda d: (str(d.group) if d.group is not None else "", d.key, d.value))
    return msgspec.structs.replace(evictable, domains=tuple(domains))


def recently_evicted_units(state: ReservationState, uid: GangUid, now_us: int) -> frozenset[str]:
    """Return the units that a preemptor evicted and must not evict again when they are created again.

    For extra members it never evicts such a gang again, for the minimum not within `EVICTION_MEMORY_US`. So a preemptor that
    lost the freed capacity does not evict one victim repeatedly, and does not wait for ever for a unit of lower
    priority. A unit is identified by kind, namespace and name.
    """
    evicted = state.evicted_units.get(uid)
    if not evicted:
        return frozenset()
    root = state.gangs.get(uid)
    extras = root is not None and minimum_is_bound(root)
    return frozenset(
        name
        for name, at_us in evicted.items()
        if now_us - at_us < EVICTION_MEMORY_US or (extras and not name.startswith(POD_UNIT_PREFIX))
    )


def _behind_victims(
    view: ClusterView, state: ReservationState, tree: Tree
) -> Mapping[NodeName, Mapping[str, int]]:
    """Return by node the capacity that other preemptors claim and that their victims still use."""
    claimed_on = functools.partial(
        claimed_under_victims,
        *(view, state),
        priority=tree.root.priority,
        gang_uid=tree.root.uid,
        lower=True,
    )
    nodes = {node for p in state.preemptions.values() for node in p.claims}
    return {node: claimed for node in nodes if (claimed := claimed_on(node))}


def _lessened(node: PlanNode, amounts: Mapping[str, int]) -> PlanNode:
    free = {name: amount - amounts.get(name, 0) for name, amount in node.free.items()}
    reserved = dict(node.reserved)
    add_amounts(reserved, {name: amount for name, amount in amounts.items() if name in free})
    return msgspec.structs.replace(node, free=free, reserved=reserved)


# Units that are tried without before a preemption is recorded, in the event loop: each is a plan of some milliseconds.
SPARED_MAX = 10


def preemption_still_holds(
    request: PlanRequest,
    planned: PreemptionPlan,
    now: PlanRequest,
    view: ClusterView,
    plan: Callable[[PlanRequest], Verdict | DeferredWork],
) -> bool:
    """Return whether an answer to `request` may be recorded with the input `now`.

    Every unit must be as it was, but for pods that terminate or are gone by now: they are victims of another preemption
    too, or someone else has deleted them. The plan must fit without the units: see `still_holds`. Where capacity has come
    since, none of the first `SPARED_MAX` units may have become unnecessary, but for victims of another preemption, which go
    anyway.

    Args:
        plan: Plans a request in little time; a plan that would take longer shows no unit to be unnecessary.
    """
    source = now.evictable or Evictable(priority=0)
    current = {_identity(unit): unit for unit in source.units}
    units = (*planned.victims, *planned.superseded)
    if not all(_is_as_it_was(unit, current.get(_identity(unit)), view) for unit in units):
        return False
    before, after = _after_evictions(request, units), _after_evictions(now, units)
    if not still_holds(before, planned.plan, after):
        return False
    if only_less(before.nodes, after.nodes):
        return True
    remaining = (u for u in units if _identity(u) in current and not u.disruption_target)
    return not any(
        _places_as_many(plan(_after_evictions(now, [u for u in units if u is not unit])), planned)
        for unit in itertools.islice(remaining, SPARED_MAX)
    )


def _places_as_many(answer: Verdict | DeferredWork, planned: PreemptionPlan) -> bool:
    """Return whether a plan with fewer victims places the minimum too, or as many members beyond it."""
    if not isinstance(answer, Plan):
        return False
    for_minimum = not all(a.extra for a in planned.plan.assignments)
    return for_minimum or len(answer.assignments) >= len(planned.plan.assignments)


def _is_as_it_was(unit: PlanUnit, after: PlanUnit | None, view: ClusterView) -> bool:
    """Return whether a unit has the same pods, but for those that are leaving; None: it has none any more."""
    before = {(pod.uid, pod.node) for pod in unit.pods}
    left = {(pod.uid, pod.node) for pod in after.pods} if after is not None else set()
    missing = before - left
    if not left <= before or (missing and unit.kind == "reservation"):
        return False
    pods = (view.pods.get(uid) for uid, _ in missing)
    return all(pod is None or pod.deleting for pod in pods)


def _identity(unit: PlanUnit) -> tuple[str, str, str, int]:
    return unit.kind, unit.name, unit.uid, unit.priority


def _after_evictions(request: PlanRequest, units: Collection[PlanUnit]) -> PlanRequest:
    """Return a request as it is when some units are evicted and all terminating pods are gone."""
    source = request.evictable or Evictable(priority=0)
    removed = {p.uid for unit in units for p in unit.pods} | {p.uid for p in source.going}
    pods = [p for unit in source.units for p in unit.pods if p.uid in removed]
    return msgspec.structs.replace(without(request, [*pods, *source.going]), evictable=None)


def decide_preemption(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    tree: Tree,
    request: PlanRequest,
    answer: PreemptionPlan,
    context: EventContext,
) -> list[ev.NewEvent]:
    """Return the events of a preemption for one append: reservations that are released, and the plan.

    Args:
        context: `plan` is the id of the preemption.

    Returns:
        The plan last; the caller records the preemptions that it supersedes before it (`takeovers_by_plan`).
    """
    source = request.evictable or Evictable(priority=0)
    drafts = decide_observed(state, tree, context)
    reserved, claimed = _superseded(state, answer.superseded)
    records = sorted((*reserved, *claimed), key=lambda r: (r.gang, r.gang_uid, r.plan))
    text = f"{tree.root.key} of priority {tree.root.priority} takes the capacity"
    for record in reserved:
        readers = Visibility.of((namespace_of(record.gang),))
        by = name_for(
            readers,
            str(tree.root.key),
            priority=tree.root.priority,
            pods=len(answer.plan.assignments),
        )
        released = ev.ReservationReleased(
            plan=record.plan,
            reason="superseded",
            pods=record.pods,
            message=text,
            message_reduced=f"{by} takes the capacity" if is_hidden(by) else "",
        )
        drafts.append(context.draft(record.gang_uid, record.gang, released))
    drafts += release_reservations(
        state,
        unbound_reservations(view, state, forest, victim_uids(answer.victims)),
        context,
        but={pod.uid for record in records for pod in record.pods},
    )
    awaited = set(answer.already_terminating)
    planned = ev.PreemptionPlanned(
        preemption=context.plan,
        kind=tree.root.key.kind,
        priority=tree.root.priority,
        victims=tuple(
            _victim_unit(view, source, unit, answer.doubts.get(unit.name, ""))
            for unit in answer.victims
        ),
        cost=cost_by_name(answer.cost),
        alternatives=tuple(
            ev.AlternativeRecord(
                units=other.units,
                cost=cost_by_name(other.cost) if other.cost is not None else {},
                reason=f"{other.where}: {other.reason}",
            )
            for other in answer.alternatives
        ),
        shapes=tuple(dict(shape.requests) for shape in request.shapes),
        assignments=assignment_records(answer.plan.assignments),
        superseded=tuple(records),
        already_terminating=tuple(
            ev.VictimPod(pod=p.pod, uid=p.uid, node=p.node)
            for p in source.going
            if p.pod in awaited
        ),
        planner=PLANNER_VERSION,
        input_digest=context.digest,
        search_nodes=answer.search.nodes,
        exhausted=answer.search.exhausted,
    )
    return [*drafts, draft_for(tree, planned, context)]


def decide_give_up(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    tree: Tree,
    answer: Plan,
    context: EventContext,
) -> list[ev.NewEvent]:
    """Return the events by which a gang evicts itself: its reservations are released, and its running pods are victims.

    Args:
        answer: The plan of the whole tree without its pods, which shows that it can be placed anew.
        context: `plan` is the id of the preemption, the digest that of the request of `answer`.
    """
    root = tree.root
    pods = tuple(
        ev.VictimPod(pod=p.path, uid=p.uid, node=p.node, group=p.group.name if p.group else "")
        for p in sorted(tree.pods, key=lambda pod: pod.path)
        if p.node is not None and not p.deleting
    )
    held = unbound_reservations(view, state, forest, {pod.uid for pod in tree.pods})
    released = release_reservations(state, held, context, but=())
    victims = ev.VictimUnit(
        kind=root.key.kind,
        path=root.key.path,
        uid=root.uid,
        priority=root.priority,
        pods=pods,
        cost=unit_cost(root.priority, pods),
    )
    planned = ev.PreemptionPlanned(
        preemption=context.plan,
        kind=root.key.kind,
        priority=root.priority,
        victims=(victims,),
        cost={"units": 1, "pods": len(pods)},
        alternatives=(),
        shapes=(),
        assignments=(),
        planner=PLANNER_VERSION,
        input_digest=context.digest,
        search_nodes=answer.search.nodes,
        exhausted=True,  # the gang is the only set
    )
    return [*released, draft_for(tree, planned, context)]


def _superseded(
    state: ReservationState, units: Iterable[PlanUnit]
) -> tuple[list[ev.SupersededRecord], list[ev.SupersededRecord]]:
    """Return the superseded reservations by plan, and the superseded claims by preemption."""
    reserved, claimed = [], []
    for unit in units:
        root = state.gangs.get(GangUid(unit.uid))
        preemption = state.preemptions.get(GangUid(unit.uid))
        held = [
            root.reservations[p.uid]
            for p in unit.pods
            if root is not None and p.uid in root.reservations
        ]
        if root is not None and held:
            reserved.append(_record(root.gang, unit, held[0].plan, held))
        uids = {p.uid for p in unit.pods} - {r.uid for r in held}
        if preemption is not None and uids:
            claims = [c for on_node in preemption.claims.values() for c in on_node if c.uid in uids]
            claimed.append(_record(preemption.gang, unit, preemption.id, claims))
    return reserved, claimed


def _record(
    root: str, unit: PlanUnit, plan: PlanId, capacity: Iterable[Reservation | CapacityClaim]
) -> ev.SupersededRecord:
    return ev.SupersededRecord(
        gang=root,
        gang_uid=GangUid(unit.uid),
        plan=plan,
        priority=unit.priority,
        pods=released_pods(sorted(capacity, key=lambda r: r.pod)),
    )


def _victim_unit(view: ClusterView, source: Evictable, unit: PlanUnit, doubt: str) -> ev.VictimUnit:
    kind, _, path = unit.name.partition("/")
    return ev.VictimUnit(
        kind=kind,
        path=path,
        uid=unit.uid,
        priority=unit.priority,
        pods=tuple(
            ev.VictimPod(pod=p.pod, uid=p.uid, node=p.node, group=_leaf(view, p.uid))
            for p in unit.pods
        ),
        cost=unit_cost(unit.priority, unit.pods, source.lost_min(unit)),
        not_reprieved_reason=doubt,
    )


def _leaf(view: ClusterView, uid: PodUid) -> str:
    pod = view.pods.get(uid)
    return pod.group.name if pod is not None and pod.group is not None else ""


def cost_by_name(cost: VictimCost) -> dict[str, int]:
    """Return a cost by the names of its parts, most important first; parts that are zero are left out."""
    parts = msgspec.structs.asdict(cost)
    del parts["names"]
    if parts["highest"] == NO_PRIORITY:
        del parts["highest"]
    return {name: value for name, value in parts.items() if value or name == "highest"}
