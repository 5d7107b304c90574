"""Takeover: a preemptor of higher priority gets the capacity that a pending preemption frees.

The rules (issue 5, no thrash):

- The capacity that a preemption frees is only for its preemptor until that runs. A tree of higher priority that
  fits elsewhere is placed elsewhere (`free_capacity`), an unmanaged pod as well (`filter_and_prioritize`).
- A tree of higher priority that fits nowhere else takes the capacity over before it evicts further units
  (`disruption_units`): its `PreemptionPlanned` names the superseded preemption and includes the remaining victims in
  that capacity. The same append ends the superseded preemption: `PreemptionCancelled` with `reason` *taken-over* and `taken_over_by`.
- An unmanaged pod of higher priority takes the capacity without a plan, because kube-scheduler permits it; this is
  recorded when the pod runs.
- A preemptor that is evicted as a whole before it runs is superseded by its own preemptor in the same way.

The superseded preemptor is planned again without back-off, but units that it evicted and that were created again are
spared (`preemption_planning.recently_evicted_units`). Until the victims of begun units are gone, it keeps its claims on the other
nodes (`preemption_state.cancelled`).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from extender.core.capacity.capacity_claims import claims_do_not_fit
from extender.core.log.each_gang import EachGang
from extender.core.log.events import (
    NewEvent,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    ReservationReleased,
)
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.pods import Pod
from extender.core.model.visibility import Visibility, is_hidden, name_for, namespace_of
from extender.core.preempt.preemption_lifecycle import (
    NAMED_MAX,
    EvictionContext,
    cancellation,
)


class TakeoverPreemptor(msgspec.Struct, frozen=True, kw_only=True):
    """The preemptor that takes the capacity over."""

    name: str  # Kind/namespace/name
    uid: str
    priority: int


def takeovers_by_plan(
    view: ClusterView, state: ReservationState, planned: NewEvent, context: EvictionContext
) -> list[NewEvent]:
    """Return the ends of the preemptions whose capacity a plan takes, or whose preemptor it evicts.

    Args:
        state: The pending state.
        planned: A `PreemptionPlanned` that is recorded after these events, in the same append.
    """
    plan = planned.data
    assert isinstance(plan, PreemptionPlanned)
    by = TakeoverPreemptor(
        name=f"{plan.kind}/{planned.gang}", uid=planned.gang_uid, priority=plan.priority
    )
    used = {a.node for a in plan.assignments}
    taken = {record.gang_uid for record in plan.superseded}
    evicted = {unit.name for unit in plan.victims}
    drafts = []
    for uid, preemption in state.preemptions.items():
        is_victim = f"{preemption.kind}/{preemption.gang}" in evicted
        if preemption.ended or uid == by.uid or not (is_victim or uid in taken):
            continue
        lost = sorted(n for n in preemption.claims if is_victim or n in used)
        action = "evicts it" if is_victim else f"takes over the capacity{_on(lost)}"
        drafts.append(_superseding_event(view, preemption, by, context, lost=lost, action=action))
    return drafts


def takeovers_by_pods(
    view: ClusterView,
    state: ReservationState,
    decided: Iterable[NewEvent],
    context: EvictionContext,
    gangs: EachGang | None = None,
) -> list[NewEvent]:
    """Return the ends of the preemptions whose capacity is used by running pods of higher priority.

    Args:
        state: The pending state.
        decided: Events that are recorded before these: ends of preemptions, and released reservations.
        gangs: How each preemptor is decided; None: exceptions are raised.
    """
    gangs = gangs or EachGang()
    events = [(d.gang_uid, d.data) for d in decided]
    ends = {
        f.preemption for _, f in events if isinstance(f, PreemptionCompleted | PreemptionCancelled)
    }
    superseded = {
        uid: f
        for uid, f in events
        if isinstance(f, ReservationReleased) and f.reason == "superseded"
    }

    def end_of(uid: GangUid, preemption: PendingPreemption) -> Iterator[NewEvent]:
        root = state.gangs.get(uid)
        earlier = context.present.get(preemption.id, frozenset())
        if preemption.claims:
            newcomers = _sitting_in_claims(view, preemption, earlier)
        elif root is not None and uid in superseded and not root.bound:
            users = frozenset(PodUid(user.uid) for user in superseded[uid].taken_by)
            newcomers = {
                n: p
                for n in {pod.node for pod in superseded[uid].pods}
                if (p := _newcomer(view, preemption, n, earlier, among=users))
            }
        else:
            return
        if newcomers:
            pod = newcomers[min(newcomers)]
            by = TakeoverPreemptor(name=f"Pod/{pod.path}", uid=pod.uid, priority=pod.priority)
            nodes = sorted(newcomers)
            action = f"uses the capacity{_on(nodes)}"
            yield _superseding_event(view, preemption, by, context, lost=nodes, action=action)

    drafts: list[NewEvent] = []
    for uid, preemption in state.preemptions.items():
        if not preemption.ended and preemption.id not in ends:
            name = f"takeover from {preemption.gang}"
            decide = functools.partial(end_of, uid, preemption)
            drafts += gangs.decide(uid, name, decide)
    return drafts


def _sitting_in_claims(
    view: ClusterView, preemption: PendingPreemption, earlier: Collection[PodUid]
) -> Mapping[NodeName, Pod]:
    """Return by node a new pod of higher priority, where the rest is too small for the claims of the preemptor."""
    newcomers: dict[NodeName, Pod] = {}
    for node in preemption.claims:
        pod = _newcomer(view, preemption, node, earlier)
        if pod is not None and claims_do_not_fit(view, preemption, node):
            newcomers[node] = pod
    return newcomers


def _newcomer(
    view: ClusterView,
    preemption: PendingPreemption,
    node: NodeName,
    earlier: Collection[PodUid],
    among: Collection[PodUid] = (),
) -> Pod | None:
    """Return the newest pod of higher priority that runs on a node and was not there at the time of the plan.

    Args:
        earlier: The pods that were on the node at the time of the plan.
        among: The pods that are known to use the capacity; empty: not known.
    """
    above = [
        pod
        for uid, pod in view.on_node.get(node, {}).items()
        if pod.priority > preemption.priority
        and not pod.deleting
        and uid not in earlier
        and (not among or uid in among)
    ]
    return max(above, key=lambda p: (p.created_us, p.path), default=None)


def _superseding_event(
    view: ClusterView,
    preemption: PendingPreemption,
    by: TakeoverPreemptor,
    context: EvictionContext,
    *,
    lost: Collection[NodeName],
    action: str,
) -> NewEvent:
    text = f"{by.name} (priority {by.priority}) {action}"
    name = name_for(Visibility.of((namespace_of(preemption.gang),)), by.name, priority=by.priority)
    reduced = f"{name} {action}" if is_hidden(name) else ""
    data = cancellation(view, preemption, context, reason="taken-over", text=text, reduced=reduced)
    return context.follow(
        preemption,
        msgspec.structs.replace(
            data, taken_over_by=by.name, taken_over_by_uid=by.uid, taken_over_nodes=tuple(lost)
        ),
    )


def _on(nodes: Collection[NodeName]) -> str:
    if not nodes:
        return ""
    several = "nodes" if len(nodes) > 1 else "node"
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return f" on {several} {', '.join(sorted(nodes)[:NAMED_MAX])}{more}"
