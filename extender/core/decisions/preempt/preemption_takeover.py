"""Who loses the room that is being made for him: no eviction is in vain because somebody of higher priority came.

The rules (issue 5, no thrash):

- Room that is being made for a tree, or held by one that evicted for it and does not run yet, is nobody else's.
  A tree of higher priority that fits elsewhere goes elsewhere (`rows`), an ordinary pod as well (`verbs`).
- A tree of higher priority that fits nowhere else takes that room over before it evicts anybody (`units`): its
  `PreemptionPlanned` names whose room it takes, and has those of the victims in it that are still there. In the same
  append the one who made the room is told of: `PreemptionAbandoned`, *outranked*, `by` whom. So what he evicted
  is evicted for the other from then on, and nobody more goes for it.
- An ordinary pod of higher priority takes it without a plan, as kube-scheduler lets it: that is seen when it runs.
- A preemptor that is evicted as a whole himself, before he runs, is outranked by his evictor.

Who was outranked asks again at once, because somebody came, not because he chose badly; but what he had evicted
and what came back he leaves alone (`preemption.spared_by`). Until the victims that were begun are gone, what is
left of the room stays held for him (`preemptions.abandoned`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from extender.core.decisions.capacity.capacity_claims import lacks
from extender.core.decisions.preempt.preemption_lifecycle import (
    NAMED_MAX,
    EvictionContext,
    abandonment,
)
from extender.core.log.events import (
    NewEvent,
    PreemptionAbandoned,
    PreemptionCompleted,
    PreemptionPlanned,
    ReservationReleased,
)
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import Pod


class TakeoverPreemptor(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes the room over."""

    name: str  # Kind/namespace/name
    uid: str
    priority: int


def outranked_by_plan(
    view: ClusterView, state: ReservationState, planned: NewEvent, known: EvictionContext
) -> list[NewEvent]:
    """End the preemptions whose room a plan takes, or whose preemptor it evicts.

    Args:
        view: The cluster.
        state: What is pending.
        planned: A `PreemptionPlanned` that is about to be recorded behind these, in the same append.
        known: What the service knows of victims.
    """
    plan = planned.fact
    assert isinstance(plan, PreemptionPlanned)
    by = TakeoverPreemptor(
        name=f"{plan.kind}/{planned.root}", uid=planned.root_uid, priority=plan.priority
    )
    used = {a.node for a in plan.assignments}
    taken = {record.gang_uid for record in plan.superseded}
    evicted = {unit.name for unit in plan.victims}
    drafts = []
    for uid, preemption in state.preemptions.items():
        goes = f"{preemption.kind}/{preemption.root}" in evicted
        if preemption.ended or uid == by.uid or not (goes or uid in taken):
            continue
        lost = sorted(n for n in preemption.claims if goes or n in used)
        what = "evicts it" if goes else f"takes over the room{_on(lost)}"
        drafts.append(_outranked(view, preemption, by, known, lost=lost, what=what))
    return drafts


def outranked_by_pods(
    view: ClusterView, state: ReservationState, decided: Iterable[NewEvent], known: EvictionContext
) -> list[NewEvent]:
    """End the preemptions whose room pods of higher priority sit in now.

    Args:
        view: The cluster.
        state: What is pending.
        decided: What is about to be recorded in front of it: ends, and reservations that are given back.
        known: What the service knows of victims.
    """
    facts = [(d.root_uid, d.fact) for d in decided]
    ends = {
        f.preemption for _, f in facts if isinstance(f, PreemptionCompleted | PreemptionAbandoned)
    }
    lost_by = {
        uid: {p.node for p in f.pods}
        for uid, f in facts
        if isinstance(f, ReservationReleased) and f.why == "superseded"
    }
    drafts = []
    for uid, preemption in state.preemptions.items():
        if preemption.ended or preemption.id in ends:
            continue
        root = state.roots.get(uid)
        there = known.there.get(preemption.id, frozenset())
        if preemption.claims:
            found = _sitting_in_claims(view, preemption, there)
        elif root is not None and uid in lost_by and not root.bound:
            found = {n: p for n in lost_by[uid] if (p := _newcomer(view, preemption, n, there))}
        else:
            continue
        if found:
            pod = found[min(found)]
            by = TakeoverPreemptor(name=f"Pod/{pod.path}", uid=pod.uid, priority=pod.priority)
            nodes = sorted(found)
            what = f"runs in the room{_on(nodes)}"
            drafts.append(_outranked(view, preemption, by, known, lost=nodes, what=what))
    return drafts


def _sitting_in_claims(
    view: ClusterView, preemption: PendingPreemption, there: Collection[PodUid]
) -> Mapping[NodeName, Pod]:
    """Give by node a pod of higher priority that came into the room of a preemptor, where that is too small now."""
    found: dict[NodeName, Pod] = {}
    for node in preemption.claims:
        pod = _newcomer(view, preemption, node, there)
        if pod is not None and lacks(view, preemption, node):
            found[node] = pod
    return found


def _newcomer(
    view: ClusterView, preemption: PendingPreemption, node: NodeName, there: Collection[PodUid]
) -> Pod | None:
    """Give the youngest pod of higher priority that was not on a node when the room was planned, and stays there."""
    above = [
        pod
        for uid, pod in view.on_node.get(node, {}).items()
        if pod.priority > preemption.priority and not pod.deleting and uid not in there
    ]
    return max(above, key=lambda p: (p.created_us, p.path), default=None)


def _outranked(
    view: ClusterView,
    preemption: PendingPreemption,
    by: TakeoverPreemptor,
    known: EvictionContext,
    *,
    lost: Collection[NodeName],
    what: str,
) -> NewEvent:
    text = f"{by.name} (priority {by.priority}) {what}"
    fact = abandonment(view, preemption, known, why="outranked", text=text)
    return known.draft(
        preemption,
        msgspec.structs.replace(fact, by=by.name, by_uid=by.uid, lost=tuple(lost)),
    )


def _on(nodes: Collection[NodeName]) -> str:
    if not nodes:
        return ""
    several = "nodes" if len(nodes) > 1 else "node"
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f" on {several} {', '.join(sorted(nodes)[:NAMED_MAX])}{more}"
