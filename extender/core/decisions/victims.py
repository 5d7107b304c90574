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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from extender.core.decisions.admission import group_records
from extender.core.decisions.units import groups_above
from extender.core.decisions.verbs import room_beside
from extender.core.events import (
    AlternativeRecord,
    AssignmentRecord,
    PreemptionPlanned,
    VictimPod,
    VictimUnit,
)
from extender.core.groups import Forest, Group, Tree
from extender.core.ids import NodeName, PlanId, PodUid
from extender.core.pods import Pod
from extender.core.state import ReservationState, satisfied
from extender.core.view import ClusterView

SHIFT = 2**31  # makes every priority count as more than nothing


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the pods that kube-scheduler would delete there."""

    node: NodeName
    victims: tuple[PodUid, ...]  # most important first, as kube-scheduler ranks nodes by the first
    violations: int = 0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to answer; with `plan` only after it was recorded."""

    candidates: tuple[Candidate, ...]
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
    candidate: Candidate
    units: tuple[VictimUnit, ...]
    price: _Price
    whole: bool  # some unit of it is a group


def decide_victims(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    pod: Pod,
    offered: Sequence[Candidate],
    *,
    preemption: PlanId | None,
) -> Choice:
    """Answer /preempt.

    Args:
        view: The cluster.
        state: What is held.
        forest: The trees of `view`.
        pod: The preemptor.
        offered: kube-scheduler's candidates.
        preemption: Id of a preemption to record, None where nobody may be evicted by us.
    """
    if pod.group is not None:
        return Choice(candidates=())
    pending = state.preemptions.get(pod.uid)  # type: ignore[call-overload]  # a lone pod is its own root
    if pending is not None:
        return Choice(candidates=_left(view, pending.claims, pending.victims))
    options = [
        option
        for candidate in offered
        if (option := _option(view, state, forest, pod, candidate)) is not None
    ]
    plain = [option for option in options if not option.whole]
    whole = [option for option in options if option.whole] if preemption is not None else []
    best = min(whole, key=lambda o: o.price, default=None)
    cheapest = min(plain, key=lambda o: o.price, default=None)
    if best is None or preemption is None or (cheapest and cheapest.price <= best.price):
        return Choice(candidates=tuple(option.candidate for option in plain))
    others = [option for option in options if option is not best]
    return Choice(candidates=(best.candidate,), plan=_plan(view, pod, best, others, preemption))


def _left(
    view: ClusterView,
    claims: Mapping[NodeName, object],
    victims: Mapping[PodUid, object],
) -> tuple[Candidate, ...]:
    """Give again what was answered before, as far as it is not on its way out."""
    found = []
    for node in claims:
        pods = [p for uid in victims if (p := view.pods.get(uid)) is not None and p.node == node]
        if pods and not any(pod.deleting for pod in pods):
            found.append(Candidate(node=node, victims=_ordered(pods)))
    return tuple(found)


def _ordered(pods: Iterable[Pod]) -> tuple[PodUid, ...]:
    return tuple(p.uid for p in sorted(pods, key=lambda p: (-p.priority, p.created_us, p.path)))


def _option(
    view: ClusterView, state: ReservationState, forest: Forest, pod: Pod, candidate: Candidate
) -> _Option | None:
    """Price a candidate; None where it must not be used."""
    pods = [view.pods.get(uid) for uid in candidate.victims]
    known = [p for p in pods if p is not None and p.node == candidate.node]
    if not known or len(known) != len(pods):
        return None  # kube-scheduler has seen other pods than we: no answer may rest on it
    units = _units(view, forest, known)
    gone = {p.uid for unit in units for p in unit.pods}
    if any(unit.priority >= pod.priority for unit in units):
        return None
    if not room_beside(view, state, candidate.node, pod, without=gone):
        return None
    if any(_breaks(tree, gone) for tree in _trees(view, forest, gone)):
        return None
    here = [view.pods[uid] for uid in gone if view.pods[uid].node == candidate.node]
    price = _Price(
        violations=candidate.violations,
        highest=max(unit.priority for unit in units),
        weight=sum(unit.priority + SHIFT for unit in units),
        units=len(units),
        pods=len(gone),
        node=candidate.node,
    )
    return _Option(
        candidate=Candidate(
            node=candidate.node, victims=_ordered(here), violations=candidate.violations
        ),
        units=units,
        price=price,
        whole=any(unit.kind != "Pod" for unit in units),
    )


def _units(view: ClusterView, forest: Forest, victims: list[Pod]) -> tuple[VictimUnit, ...]:
    """Give the disruption units of some pods (SPEC E-4), by name."""
    found: dict[str, VictimUnit] = {}
    for pod in victims:
        above = groups_above(view, pod.group)
        whole = [group for group in above if group.mode == "all"]
        priority = max(pod.priority, above[-1].priority if above else pod.priority)
        if not whole:
            found[f"Pod/{pod.path}"] = _unit("Pod", pod.path, pod.uid, priority, [pod])
        elif str(whole[-1].key) not in found:
            group = whole[-1]
            pods = _running_below(view, forest, group)
            found[str(group.key)] = _unit(group.key.kind, group.key.path, group.uid, priority, pods)
    return tuple(found[name] for name in sorted(found))


def _unit(kind: str, path: str, uid: str, priority: int, pods: list[Pod]) -> VictimUnit:
    victims = tuple(
        VictimPod(pod=p.path, uid=p.uid, node=p.node, group=p.group.name if p.group else "")
        for p in sorted(pods, key=lambda p: p.path)
        if p.node is not None
    )
    cost = {"weight": priority + SHIFT, "pods": len(victims)}
    return VictimUnit(kind=kind, path=path, uid=uid, priority=priority, pods=victims, cost=cost)


def _running_below(view: ClusterView, forest: Forest, group: Group) -> list[Pod]:
    root = forest.root_of.get(group.key)
    tree = forest.trees.get(root) if root is not None else None
    members = tree.pods if tree is not None else ()
    return [
        p
        for p in members
        if p.node is not None and not p.deleting and group in groups_above(view, p.group)
    ]


def _trees(view: ClusterView, forest: Forest, gone: Iterable[PodUid]) -> list[Tree]:
    """Give the trees that lose somebody."""
    leaves = {leaf for uid in gone if (leaf := view.pods[uid].group) is not None}
    roots = {forest.root_of[leaf] for leaf in leaves if leaf in forest.root_of}
    return [forest.trees[root] for root in sorted(roots)]


def _breaks(tree: Tree, gone: set[PodUid]) -> bool:
    """Say whether a gang that holds now, and of which something stays, falls below its minimum."""
    running = [p for p in tree.pods if p.group and p.node is not None and not p.deleting]
    before = Counter(p.group.name for p in running if p.group)
    after = Counter(p.group.name for p in running if p.group and p.uid not in gone)
    if not after:
        return False  # all of it goes
    groups = group_records(tree, None)
    return any(
        satisfied(groups, before, group) and not satisfied(groups, after, group)
        for group in groups
        if not group.basic
    )


def _plan(
    view: ClusterView, pod: Pod, best: _Option, others: list[_Option], preemption: PlanId
) -> PreemptionPlanned:
    return PreemptionPlanned(
        preemption=preemption,
        kind="Pod",
        priority=pod.priority,
        victims=best.units,
        cost=_numbers(best.price),
        alternatives=tuple(
            AlternativeRecord(
                units=tuple(unit.name for unit in other.units),
                cost=_numbers(other.price),
                why=f"node {other.candidate.node}: costs more",
            )
            for other in sorted(others, key=lambda o: o.price)
        ),
        shapes=(dict(pod.shape.requests),),
        assignments=(
            AssignmentRecord(pod=pod.path, uid=pod.uid, group="", node=best.candidate.node),
        ),
        awaits=tuple(
            VictimPod(pod=p.path, uid=p.uid, node=best.candidate.node)
            for p in view.on_node.get(best.candidate.node, {}).values()
            if p.deleting
        ),
    )


def _numbers(price: _Price) -> dict[str, int]:
    parts = msgspec.structs.asdict(price)
    del parts["node"]
    return parts
