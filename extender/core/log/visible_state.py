"""The reservation state as a reader with rights in some namespaces sees it.

It has the gangs and workloads of these namespaces, and the preemptions with a preemptor or a victim in them. Of the
other side of a preemption kind, priority and number of pods are left. Everything else is not in it.
"""

from __future__ import annotations

import msgspec
from immutables import Map

from extender.core.log.reservation_state import (
    EMPTY,
    GangState,
    LastDecision,
    MemberLoss,
    PendingPreemption,
    ReservationState,
    Victim,
    claims_by_node,
    claims_of,
)
from extender.core.log.visible_events import hidden_uid
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.visibility import Visibility, name_for, namespace_of


def visible_state(state: ReservationState, readers: Visibility) -> ReservationState:
    """Return the part of a state that readers see."""
    if readers.everything:
        return state
    gangs = {
        uid: visible_gang(root, readers)
        for uid, root in state.gangs.items()
        if readers.sees(namespace_of(root.gang))
    }
    holds = {uid: hold for uid, hold in state.capacity_holds.items() if uid in gangs}
    trees = {u: t for u, t in state.trees.items() if readers.sees(namespace_of(t.workload))}
    shown = (visible_preemption(preemption, readers) for preemption in state.preemptions.values())
    preemptions = {
        preemption.gang_uid: preemption for preemption in shown if preemption is not None
    }
    return msgspec.structs.replace(
        EMPTY,
        position=state.position,
        epoch=state.epoch,
        at_us=state.at_us,
        gangs=Map(gangs),
        claims_on=claims_by_node(claims_of(gangs.values(), preemptions.values(), holds.values())),
        gang_of=Map({pod: uid for uid, g in gangs.items() for pod in (*g.reservations, *g.bound)}),
        rejections=Map({k: v for k, v in state.rejections.items() if k.gang_uid in gangs}),
        preemptions=Map(preemptions),
        capacity_holds=Map(holds),
        unused_holds=Map({n: u for n, u in state.unused_holds.items() if readers.sees(n)}),
        features=state.features,
        trees=Map(trees),
    )


def visible_gang(root: GangState, readers: Visibility) -> GangState:
    """Return a gang of a namespace that readers see, without names of other namespaces in what was decided about it."""
    if readers.everything:
        return root
    decision, loss = root.last_decision, root.last_loss
    if decision is not None:
        decision = reduced_decision(decision, readers)
    if loss is not None:
        loss = _visible_loss(loss, readers)
    if decision is root.last_decision and loss is root.last_loss:
        return root
    return msgspec.structs.replace(root, last_decision=decision, last_loss=loss)


def reduced_decision(decision: LastDecision, readers: Visibility) -> LastDecision:
    """Return a decision without names that readers of its namespace do not see."""
    if readers.everything or not decision.reasons_reduced:
        return decision
    return msgspec.structs.replace(decision, reasons=decision.reasons_reduced, reasons_reduced=())


def _visible_loss(loss: MemberLoss, readers: Visibility) -> MemberLoss:
    if not loss.preemptor:
        return loss
    name = name_for(
        readers,
        loss.preemptor,
        priority=loss.preemptor_priority,
        pods=loss.preemptor_pods,
        position=loss.preemption,
    )
    return loss if name == loss.preemptor else msgspec.structs.replace(loss, preemptor=name)


def visible_preemption(
    preemption: PendingPreemption, readers: Visibility
) -> PendingPreemption | None:
    """Return a preemption as readers see it; None: neither its preemptor nor a victim is theirs."""
    if readers.everything:
        return preemption
    if readers.sees(namespace_of(preemption.gang)):
        return _own(preemption, readers)
    units = {
        unit: priority
        for unit, priority in zip(preemption.units, preemption.priorities, strict=True)
        if readers.sees(namespace_of(unit))
    }
    if not units:
        return None
    victims = {u: v for u, v in preemption.victims.items() if readers.sees(namespace_of(v.pod))}
    return msgspec.structs.replace(
        preemption,
        gang_uid=hidden_uid(preemption.position),
        gang=preemption.preemptor_for(readers),
        units=tuple(units),
        priorities=tuple(units.values()),
        victims=Map(victims),
        started_units=preemption.started_units & units.keys(),
        claims=Map(),
        already_terminating=frozenset(),
        extras=frozenset(),
    )


def _own(preemption: PendingPreemption, readers: Visibility) -> PendingPreemption:
    """Return a preemption of a preemptor that readers see, without names of victims elsewhere."""
    if all(readers.sees(namespace_of(unit)) for unit in preemption.units):
        return preemption
    named = {
        unit: name_for(readers, unit, priority=priority, position=preemption.position)
        for unit, priority in zip(preemption.units, preemption.priorities, strict=True)
    }
    victims = {}
    for number, (uid, victim) in enumerate(preemption.victims.items()):
        if readers.sees(namespace_of(victim.pod)):
            victims[uid] = victim
            continue
        stand_in = PodUid(f"victim-{number}")
        victims[stand_in] = Victim(
            unit=named[victim.unit],
            pod=name_for(readers, f"Pod/{victim.pod}"),
            uid=stand_in,
            group="",
            node=NodeName(""),
        )
    return msgspec.structs.replace(
        preemption,
        units=tuple(named[unit] for unit in preemption.units),
        victims=Map(victims),
        started_units=frozenset(named[unit] for unit in preemption.started_units),
        already_terminating=frozenset(),
    )
