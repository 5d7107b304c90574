"""Answer the preempt verb: kube-scheduler's candidates, changed so that no gang is broken by a part of it.

kube-scheduler asks for one pod, offers nodes with the victims it would delete there, and deletes those of
one node of the answer (EXTENDER 4). It knows of no groups and of no reservations, so here

- a node is dropped where filter would refuse the pod all the same when the victims are gone, because the room
  is held for a tree of equal or higher priority: victims must not die for nothing;
- a node is dropped where the victims would leave a running gang below its minimum; a gang that can lose
  members without that loses them, extras go first;
- a victim that belongs to a group that is disrupted as a whole stands for the whole unit. Its node is
  dropped, unless that is cheaper (by the order of SPEC E-9) than every other node: then the unit is taken as
  one preemption of ours, recorded before the answer, and kube-scheduler hears of its pods on that node.

Members get nothing: their tree asks once for all of them, and what it was given is being evicted already.

The choice is made on a `PreemptVerbInput` alone, which is stored with the preemption that comes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from extender.core.decisions.admit.verdict_events import group_records
from extender.core.decisions.preempt.disruption_units import groups_above
from extender.core.decisions.verbs.filter_and_prioritize import left_beside
from extender.core.decisions.verbs.preempt_verb_input import (
    NodeOffer,
    OfferedPod,
    OfferedTree,
    OfferedUnit,
    PreemptVerbInput,
)
from extender.core.log.events import (
    AlternativeRecord,
    AssignmentRecord,
    PreemptionPlanned,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import ReservationState, satisfied
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import Pod
from extender.core.planner.plan_types import PLANNER_VERSION

SHIFT = 2**31  # makes every priority count as more than nothing


class NodeCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the pods that kube-scheduler would delete there."""

    node: NodeName
    victims: tuple[PodUid, ...]  # most important first, as kube-scheduler ranks nodes by the first
    violations: int = 0


class VictimChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What to answer; with `plan` only after it was recorded (see `recorded`)."""

    candidates: tuple[NodeCandidate, ...]
    plan: PreemptionPlanned | None = None


class _Price(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a node costs; compared field by field, in this order (SPEC E-9)."""

    violations: int
    highest: int
    weight: int
    units: int
    pods: int
    node: str


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    candidate: NodeCandidate
    units: tuple[OfferedUnit, ...]
    price: _Price
    whole: bool  # some unit of it is a group


def answered_before(view: ClusterView, state: ReservationState, pod: Pod) -> VictimChoice | None:
    """Give the answer that needs no look at the offers: to members, and to who waits for victims already.

    Args:
        view: The cluster.
        state: What is held.
        pod: The preemptor.
    """
    if pod.group is not None:
        return VictimChoice(candidates=())
    pending = state.preemptions.get(pod.uid)  # type: ignore[call-overload]  # a lone pod is its own root
    if pending is None:
        return None
    return VictimChoice(candidates=_left(view, pending.claims, pending.victims))


def _left(
    view: ClusterView,
    claims: Mapping[NodeName, object],
    victims: Mapping[PodUid, object],
) -> tuple[NodeCandidate, ...]:
    """Give again what was answered before, as far as it is not on its way out."""
    found = []
    for node in claims:
        pods = [p for uid in victims if (p := view.pods.get(uid)) is not None and p.node == node]
        if pods and not any(pod.deleting for pod in pods):
            found.append(NodeCandidate(node=node, victims=_ordered(map(_offered, pods))))
    return tuple(found)


def _ordered(pods: Iterable[OfferedPod]) -> tuple[PodUid, ...]:
    return tuple(p.uid for p in sorted(pods, key=lambda p: (-p.priority, p.created_us, p.pod)))


# --- what the choice depends on


def question_about(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    pod: Pod,
    offered: Sequence[NodeCandidate],
    *,
    spared: Collection[str] = (),
) -> PreemptVerbInput:
    """Describe kube-scheduler's candidates by what the cluster shows and what is held.

    A candidate with a victim that we do not see there is left out: kube-scheduler has seen other pods than
    we, and no answer may rest on it. So is one with a static pod, which would run on, and one with a unit that
    is spared.

    Args:
        view: The cluster.
        state: What is held.
        forest: The trees of `view`.
        pod: The preemptor, outside of all groups.
        offered: kube-scheduler's candidates.
        spared: Units that this pod had evicted before, see `spared_by`.
    """
    units: dict[str, OfferedUnit] = {}
    trees: dict[str, OfferedTree] = {}
    offers = []
    for candidate in sorted(offered, key=lambda c: c.node):
        pods = [view.pods.get(uid) for uid in candidate.victims]
        known = [p for p in pods if p is not None and p.node == candidate.node]
        if not known or len(known) != len(pods) or any(p.static for p in known):
            continue
        mine = _units(view, forest, known, trees)
        if not mine.keys().isdisjoint(spared):
            continue
        units |= mine
        gone = {p.uid for unit in mine.values() for p in unit.pods}
        offers.append(
            NodeOffer(
                node=candidate.node,
                violations=candidate.violations,
                units=tuple(sorted(mine)),
                left=left_beside(view, state, candidate.node, pod, without=gone),
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
    view: ClusterView, forest: Forest, victims: list[Pod], trees: dict[str, OfferedTree]
) -> dict[str, OfferedUnit]:
    """Give the disruption units of some pods (SPEC E-4), by name, and add their trees to `trees`."""
    found: dict[str, OfferedUnit] = {}
    for pod in victims:
        above = groups_above(view, pod.group)
        whole = [group for group in above if group.mode == "all"]
        priority = max(pod.priority, above[-1].priority if above else pod.priority)
        root = forest.root_of.get(pod.group) if pod.group is not None else None
        tree = forest.trees[root] if root is not None and not pod.deleting else None
        name = str(tree.root.key) if tree is not None else ""
        if tree is not None and name not in trees:
            trees[name] = _tree(tree)
        kind, path, uid, pods = "Pod", pod.path, str(pod.uid), [pod]
        if whole:
            group = whole[-1]
            kind, path, uid = group.key.kind, group.key.path, group.uid
            pods = _running_below(view, forest, group)
        unit = OfferedUnit(kind, path, uid, priority, name, tuple(map(_offered, _by_path(pods))))
        found.setdefault(unit.name, unit)
    return found


def _by_path(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda p: p.path)


def _offered(pod: Pod) -> OfferedPod:
    assert pod.node is not None
    group = pod.group.name if pod.group is not None else ""
    return OfferedPod(pod.path, pod.uid, pod.node, group, pod.priority, pod.created_us)


def _running_below(view: ClusterView, forest: Forest, group: Group) -> list[Pod]:
    root = forest.root_of.get(group.key)
    tree = forest.trees.get(root) if root is not None else None
    members = tree.pods if tree is not None else ()
    return [
        p
        for p in members
        if p.node is not None and not p.deleting and group in groups_above(view, p.group)
    ]


def _tree(tree: Tree) -> OfferedTree:
    running = Counter(
        p.group.name for p in tree.pods if p.group and p.node is not None and not p.deleting
    )
    return OfferedTree(str(tree.root.key), group_records(tree, None), dict(running))


# --- the choice


def choose(question: PreemptVerbInput, *, preemption: PlanId | None) -> VictimChoice:
    """Choose among nodes: all that kube-scheduler may use, or the one that a whole unit is taken for.

    Args:
        question: What it depends on, and nothing else.
        preemption: Id of a preemption to record, None where nobody may be evicted by us.
    """
    units = {unit.name: unit for unit in question.units}
    trees = {tree.root: tree for tree in question.trees}
    options = [
        option
        for offer in question.offers
        if (option := _option(question, offer, units, trees)) is not None
    ]
    plain = [option for option in options if not option.whole]
    whole = [option for option in options if option.whole] if preemption is not None else []
    best = min(whole, key=lambda o: o.price, default=None)
    cheapest = min(plain, key=lambda o: o.price, default=None)
    if best is None or preemption is None or (cheapest and cheapest.price <= best.price):
        return VictimChoice(candidates=tuple(option.candidate for option in plain))
    others = [option for option in options if option is not best]
    return VictimChoice(
        candidates=(best.candidate,), plan=_plan(question, best, others, preemption)
    )


def _option(
    question: PreemptVerbInput,
    offer: NodeOffer,
    every: Mapping[str, OfferedUnit],
    trees: Mapping[str, OfferedTree],
) -> _Option | None:
    """Price an offer; None where it must not be used."""
    units = tuple(every[name] for name in offer.units)
    if any(unit.priority >= question.priority for unit in units):
        return None
    left = offer.left
    if left is not None and any(n < question.requests[r] for r, n in left.items()):
        return None
    if any(_breaks(trees[root], units) for root in sorted({u.tree for u in units if u.tree})):
        return None
    pods = {p.uid: p for unit in units for p in unit.pods}
    price = _Price(
        violations=offer.violations,
        highest=max(unit.priority for unit in units),
        weight=sum(unit.priority + SHIFT for unit in units),
        units=len(units),
        pods=len(pods),
        node=offer.node,
    )
    return _Option(
        candidate=NodeCandidate(
            node=offer.node,
            victims=_ordered(p for p in pods.values() if p.node == offer.node),
            violations=offer.violations,
        ),
        units=units,
        price=price,
        whole=any(unit.kind != "Pod" for unit in units),
    )


def _breaks(tree: OfferedTree, units: Iterable[OfferedUnit]) -> bool:
    """Say whether a gang that holds now, and of which something stays, falls below its minimum."""
    gone = {p.uid: p.group for unit in units if unit.tree == tree.root for p in unit.pods}
    after = Counter(tree.running) - Counter(gone.values())
    if not after:
        return False  # all of it goes
    return any(
        satisfied(tree.groups, tree.running, group) and not satisfied(tree.groups, after, group)
        for group in tree.groups
        if not group.basic
    )


def _plan(
    question: PreemptVerbInput, best: _Option, others: list[_Option], preemption: PlanId
) -> PreemptionPlanned:
    return PreemptionPlanned(
        preemption=preemption,
        kind="Pod",
        priority=question.priority,
        victims=tuple(map(_victim_unit, best.units)),
        cost=_numbers(best.price),
        alternatives=tuple(
            AlternativeRecord(
                units=tuple(unit.name for unit in other.units),
                cost=_numbers(other.price),
                why=f"node {other.candidate.node}: costs more",
            )
            for other in sorted(others, key=lambda o: o.price)
        ),
        shapes=(question.requests,),
        assignments=(
            AssignmentRecord(
                pod=question.pod, uid=question.uid, group="", node=best.candidate.node
            ),
        ),
        planner=PLANNER_VERSION,
        exhausted=True,  # every node that was offered was looked at
    )


def _victim_unit(unit: OfferedUnit) -> VictimUnit:
    return VictimUnit(
        kind=unit.kind,
        path=unit.path,
        uid=unit.uid,
        priority=unit.priority,
        pods=tuple(VictimPod(pod=p.pod, uid=p.uid, node=p.node, group=p.group) for p in unit.pods),
        cost={"weight": unit.priority + SHIFT, "pods": len(unit.pods)},
    )


def recorded(view: ClusterView, plan: PreemptionPlanned, digest: str) -> PreemptionPlanned:
    """Make the fact of a plan: with the digest of its input, and with the pods that terminate on its node already."""
    (assigned,) = plan.assignments
    awaits = tuple(
        VictimPod(pod=p.path, uid=p.uid, node=assigned.node)
        for p in view.on_node.get(assigned.node, {}).values()
        if p.deleting
    )
    return msgspec.structs.replace(plan, awaits=awaits, input_digest=digest)


def _numbers(price: _Price) -> dict[str, int]:
    parts = msgspec.structs.asdict(price)
    del parts["node"]
    return parts
