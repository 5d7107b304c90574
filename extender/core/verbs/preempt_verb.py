"""The answer to the preempt verb: kube-scheduler's candidates, changed so that no gang falls below its minimum.

kube-scheduler calls it for one pod with nodes and the victims that it would delete there, and deletes those of
one node of the answer (K40 to K42). It has no data about groups and reservations, so here

- a node is dropped where filter would still refuse the pod after the victims are gone, because the capacity
  is held for a tree of equal or higher priority: pods must not be evicted without effect;
- a node is dropped where the victims would leave a running gang below its minimum; members beyond the minimum
  may be evicted;
- a victim in a group that is disrupted as a whole stands for the whole unit. Its node is dropped, unless the
  node is cheaper (in the order of E-9) than every other node: then the unit is evicted by a preemption of
  the extender, recorded before the answer, and the answer names the pods of the unit on that node.

The choice depends on a `PreemptVerbInput` alone, which is stored with the preemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from extender.core.admit.plan_request import is_running
from extender.core.admit.verdict_events import group_records
from extender.core.log import events as ev
from extender.core.log.gang_phase import satisfied
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView, eviction_priority, groups_above
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Forest, Group
from extender.core.model.pods import Pod
from extender.core.planner.plan_types import PLANNER_VERSION
from extender.core.planner.preempt.post_eviction_view import PRIORITY_OFFSET, VictimCost, unit_cost
from extender.core.preempt.disruption_units import lost_work_min
from extender.core.verbs.filter_and_prioritize import free_beside_held
from extender.core.verbs.preempt_verb_input import (
    NodeOffer,
    OfferedPod,
    OfferedTree,
    OfferedUnit,
    PreemptVerbInput,
)


class NodeCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the pods that kube-scheduler would delete there."""

    node: NodeName
    # highest priority first, because kube-scheduler ranks nodes by the first
    victims: tuple[PodUid, ...]
    violations: int = 0


class VictimChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; if it has a `plan`, that is recorded first (see `recorded`)."""

    candidates: tuple[NodeCandidate, ...]
    plan: ev.PreemptionPlanned | None = None


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    candidate: NodeCandidate
    units: tuple[OfferedUnit, ...]
    price: VictimCost  # its name is that of the node
    whole: bool  # some unit of it is a group


def answer_without_choice(
    view: ClusterView, state: ReservationState, pod: Pod
) -> VictimChoice | None:
    """Return the answer for a member or for a pod with a pending preemption, which needs no choice; else None."""
    if pod.group is not None:  # a member: the extender plans one preemption for its whole tree
        return VictimChoice(candidates=())
    pending = state.preemptions.get(pod.uid)  # type: ignore[call-overload]  # a lone pod is its own root
    if pending is None:
        return None
    candidates = []  # the earlier answer again, without the nodes where a victim terminates
    for node in pending.claims:
        victims = filter(None, map(view.pods.get, pending.victims))
        pods = [pod for pod in victims if pod.node == node]
        if pods and not any(pod.deleting for pod in pods):
            candidates.append(NodeCandidate(node=node, victims=_ordered(map(_offered, pods))))
    return VictimChoice(candidates=tuple(candidates))


def _ordered(pods: Iterable[OfferedPod]) -> tuple[PodUid, ...]:
    return tuple(p.uid for p in sorted(pods, key=lambda p: (-p.priority, p.created_us, p.pod)))


# --- the input of the choice


def build_preempt_input(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    pod: Pod,
    offered: Sequence[NodeCandidate],
    *,
    spared: Collection[str] = (),
    now_us: int = 0,
) -> PreemptVerbInput:
    """Return the input of the choice for kube-scheduler's candidates.

    A candidate is left out if our view does not show one of its victims on the node, if it has a static pod, which
    would continue to run, or if one of its units is in `spared`.

    Args:
        pod: The preemptor, an unmanaged pod.
        spared: Units that this pod evicted before, see `recently_evicted_units`.
        now_us: Decides about the work that is lost; 0: none counts.
    """
    units: dict[str, OfferedUnit] = {}
    trees: dict[str, OfferedTree] = {}
    offers = []
    for candidate in sorted(offered, key=lambda c: c.node):
        pods = [view.pods.get(uid) for uid in candidate.victims]
        victims = [p for p in pods if p is not None and p.node == candidate.node]
        if not victims or len(victims) != len(pods) or any(p.static for p in victims):
            continue
        candidate_units = _units(view, forest, victims, trees, now_us)
        if not candidate_units.keys().isdisjoint(spared):
            continue
        units |= candidate_units
        evicted = {p.uid for unit in candidate_units.values() for p in unit.pods}
        offers.append(
            NodeOffer(
                node=candidate.node,
                violations=candidate.violations,
                units=tuple(sorted(candidate_units)),
                left=free_beside_held(view, state, candidate.node, pod, without=evicted),
            )
        )
    return PreemptVerbInput(
        pod=pod.path,
        uid=pod.uid,
        priority=pod.priority,
        requests=dict(pod.shape.requests),
        offers=tuple(offers),
        units=tuple(units[name] for name in sorted(units)),
        trees=tuple(trees[root] for root in sorted(trees)),
    )


def _units(
    view: ClusterView,
    forest: Forest,
    victims: list[Pod],
    trees: dict[str, OfferedTree],
    now_us: int,
) -> dict[str, OfferedUnit]:
    """Return the disruption units of some pods (E-4) by name, and add their trees to `trees`."""
    units: dict[str, OfferedUnit] = {}
    for pod in victims:
        above = groups_above(view, pod.group)
        whole = [group for group in above if group.disruption_mode == "all"]
        priority = eviction_priority(pod, above)
        tree = forest.tree_of(pod.group) if not pod.deleting else None
        name = str(tree.root.key) if tree is not None else ""
        if tree is not None and name not in trees:
            running = Counter(p.group.name for p in tree.pods if p.group and is_running(p))
            trees[name] = OfferedTree(name, group_records(tree, None), dict(running))
        kind, path, uid, pods = "Pod", pod.path, str(pod.uid), [pod]
        if whole:
            group = whole[-1]
            kind, path, uid = group.key.kind, group.key.path, group.uid
            pods = _running_below(view, forest, group)
        offered = tuple(_offered(p, now_us) for p in sorted(pods, key=lambda p: p.path))
        unit = OfferedUnit(kind, path, uid, priority, name, offered)
        units.setdefault(unit.name, unit)
    return units


def _offered(pod: Pod, now_us: int = 0) -> OfferedPod:
    assert pod.node is not None
    group = pod.group.name if pod.group is not None else ""
    lost_min = lost_work_min(pod, now_us) if not pod.deleting else 0
    return OfferedPod(pod.path, pod.uid, pod.node, group, pod.priority, pod.created_us, lost_min)


def _running_below(view: ClusterView, forest: Forest, group: Group) -> list[Pod]:
    tree = forest.tree_of(group.key)
    members = tree.pods if tree is not None else ()
    return [p for p in members if is_running(p) and group in groups_above(view, p.group)]


# --- the choice


def choose_victims(verb_input: PreemptVerbInput, *, preemption: PlanId | None) -> VictimChoice:
    """Return all nodes that kube-scheduler may use, or the one node for which whole units are evicted.

    Args:
        preemption: Id of the preemption to record; None if the extender must not evict pods.
    """
    by_name = {unit.name: unit for unit in verb_input.units}
    trees = {tree.root: tree for tree in verb_input.trees}

    def option_of(offer: NodeOffer) -> _Option | None:
        units = tuple(by_name[name] for name in offer.units)
        if any(unit.priority >= verb_input.priority for unit in units):
            return None
        left = offer.left
        if left is not None and any(n < verb_input.requests[r] for r, n in left.items()):
            return None
        if any(_breaks(trees[root], units) for root in sorted({u.tree for u in units if u.tree})):
            return None
        pods = {p.uid: p for unit in units for p in unit.pods}
        price = VictimCost(
            violations=offer.violations,
            highest=max(unit.priority for unit in units),
            lost_min=sum(pod.lost_min for pod in pods.values()),
            weight=sum(unit.priority + PRIORITY_OFFSET for unit in units),
            units=len(units),
            pods=len(pods),
            names=(offer.node,),
        )
        candidate = NodeCandidate(
            node=offer.node,
            victims=_ordered(p for p in pods.values() if p.node == offer.node),
            violations=offer.violations,
        )
        whole = any(unit.kind != "Pod" for unit in units)
        return _Option(candidate=candidate, units=units, price=price, whole=whole)

    options = [*filter(None, map(option_of, verb_input.offers))]
    plain = [option for option in options if not option.whole]
    whole = [option for option in options if option.whole] if preemption is not None else []
    best = min(whole, key=lambda o: o.price, default=None)
    cheapest = min(plain, key=lambda o: o.price, default=None)
    if best is None or preemption is None or (cheapest and cheapest.price <= best.price):
        return VictimChoice(candidates=tuple(option.candidate for option in plain))
    others = [option for option in options if option is not best]
    return VictimChoice(
        candidates=(best.candidate,), plan=_plan(verb_input, best, others, preemption)
    )


def _breaks(tree: OfferedTree, units: Iterable[OfferedUnit]) -> bool:
    """Return whether a gang that meets its minimum now, and keeps some members, falls below it."""
    evicted = {p.uid: p.group for unit in units if unit.tree == tree.root for p in unit.pods}
    after = Counter(tree.running) - Counter(evicted.values())
    if not after:
        return False  # the whole tree is evicted
    return any(
        satisfied(tree.groups, tree.running, group) and not satisfied(tree.groups, after, group)
        for group in tree.groups
        if not group.basic
    )


def _plan(
    verb_input: PreemptVerbInput, best: _Option, others: list[_Option], preemption: PlanId
) -> ev.PreemptionPlanned:
    return ev.PreemptionPlanned(
        preemption=preemption,
        kind="Pod",
        priority=verb_input.priority,
        victims=tuple(map(_victim_unit, best.units)),
        cost=_numbers(best.price),
        alternatives=tuple(
            ev.AlternativeRecord(
                units=tuple(unit.name for unit in other.units),
                cost=_numbers(other.price),
                reason=f"node {other.candidate.node}: costs more",
            )
            for other in sorted(others, key=lambda o: o.price)
        ),
        shapes=(verb_input.requests,),
        assignments=(
            ev.AssignmentRecord(
                pod=verb_input.pod, uid=verb_input.uid, group="", node=best.candidate.node
            ),
        ),
        planner=PLANNER_VERSION,
        exhausted=True,  # every offered node was compared
    )


def _victim_unit(unit: OfferedUnit) -> ev.VictimUnit:
    return ev.VictimUnit(
        kind=unit.kind,
        path=unit.path,
        uid=unit.uid,
        priority=unit.priority,
        pods=tuple(
            ev.VictimPod(pod=p.pod, uid=p.uid, node=p.node, group=p.group) for p in unit.pods
        ),
        cost=unit_cost(unit.priority, unit.pods, sum(pod.lost_min for pod in unit.pods)),
    )


def planned_event(
    view: ClusterView, plan: ev.PreemptionPlanned, digest: str
) -> ev.PreemptionPlanned:
    """Return a plan with the digest of its input, and with the pods that already terminate on its node."""
    (assigned,) = plan.assignments
    already_terminating = tuple(
        ev.VictimPod(pod=p.path, uid=p.uid, node=assigned.node)
        for p in view.on_node.get(assigned.node, {}).values()
        if p.deleting
    )
    return msgspec.structs.replace(
        plan, already_terminating=already_terminating, input_digest=digest
    )


def _numbers(price: VictimCost) -> dict[str, int]:
    names = ("violations", "highest", "lost_min", "weight", "units", "pods")
    parts: dict[str, int] = {name: getattr(price, name) for name in names}
    if not price.lost_min:
        del parts["lost_min"]  # older events have no such part
    return parts
