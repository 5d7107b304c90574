"""A log with many preemptions, each of one pod; their ends come in an order of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from extender.core.log.events import (
    AnyEventData,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.model.ids import NodeName, PlanId
from tests.support.logs.fake_store import Script


def planned(number: int) -> PreemptionPlanned:
    """Return a plan that evicts one pod of the gang ns/v0, ns/v1 or ns/v2, by its number."""
    pod = VictimPod(pod=f"ns/v{number % 3}-0", uid=f"uid-{number}", node=NodeName("n1"), group="v")
    unit = VictimUnit(
        kind="PodGroup", path=f"ns/v{number % 3}", uid=f"uid-v{number}", priority=0, pods=(pod,)
    )
    return PreemptionPlanned(
        preemption=PlanId(f"plan-{number}"), kind="PodGroup", priority=9, victims=(unit,),
        cost={"pods": 1}, alternatives=(), shapes=({"cpu": 1},), assignments=(),
    )  # fmt: skip


def ends(plan: PreemptionPlanned, outcome: str) -> Sequence[AnyEventData]:
    """Return the events that end a preemption as completed or cancelled; none for one that is pending."""
    (unit,) = plan.victims
    (pod,) = unit.pods
    gone = VictimGone(
        preemption=plan.preemption, unit=unit.name, pod=pod.pod, uid=pod.uid, node=pod.node,
        via="deleted", requested_us=1, gone_us=2,
    )  # fmt: skip
    if outcome == "completed":
        done = PreemptionCompleted(preemption=plan.preemption, bound=1, evicted=1, duration_ms=1000)
        return (gone, done)
    if outcome == "cancelled":
        cancelled = PreemptionCancelled(
            preemption=plan.preemption, reason="preemptor-deleted", units_spared=(),
            units_in_progress=(unit.name,), evicted=0,
        )  # fmt: skip
        return (cancelled, gone)
    return ()


def preemption_log(
    script: Script, count: int, seed: int
) -> tuple[list[RecordedEvent], dict[str, str]]:
    """Return the events of so many preemptions for ns/p0 and ns/p1 in turn, and the outcome of each by its id."""
    chance = random.Random(seed)
    waiting: list[tuple[str, AnyEventData]] = []
    events, outcomes = [], {}
    for number in range(count):
        gang, plan = f"ns/p{number % 2}", planned(number)
        events.append(script.next(plan, gang=gang))
        outcome = chance.choice(("completed", "completed", "cancelled", "pending"))
        outcomes[str(plan.preemption)] = outcome
        waiting += [(gang, end) for end in ends(plan, outcome)]
        while waiting and chance.random() < 0.6:
            gang, end = waiting.pop(0)
            events.append(script.next(end, gang=gang))
    events += [script.next(end, gang=gang) for gang, end in waiting]
    return events, outcomes
