"""Nobody is evicted in vain, and nobody twice by the same tree: measured on arrivals of three priorities (issue 5)."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.core.events import (
    Event,
    GangAdmitted,
    GangExtended,
    PreemptionAbandoned,
    PreemptionCompleted,
    PreemptionPlanned,
    VictimEvicted,
)
from tests.arrivals import Arrivals, the_fleet
from tests.fakes import Stage


class Told:
    """What a log says of preemptions."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.plans: dict[str, Event] = {}
        self.ends: dict[str, Event] = {}
        self.gone: dict[str, list[VictimEvicted]] = {}
        for event in events:
            fact = event.fact
            if isinstance(fact, PreemptionPlanned):
                self.plans[fact.preemption] = event
            elif isinstance(fact, PreemptionCompleted | PreemptionAbandoned):
                assert fact.preemption not in self.ends, "it ends twice"
                self.ends[fact.preemption] = event
            elif isinstance(fact, VictimEvicted):
                self.gone.setdefault(fact.preemption, []).append(fact)

    def evicted(self, preemption: str) -> list[VictimEvicted]:
        """Give those of a preemption that we asked to go."""
        return [f for f in self.gone.get(preemption, ()) if f.how in ("deleted", "evicted")]


def job_of(root: str) -> str:
    """Name the job of a root or of a pod, namespace/name."""
    return root.partition("/")[2].partition("-")[0]


def outcomes(told: Told, run: Arrivals) -> Counter[str]:
    """Count how preemptions ended; one that evicted and was given up must have a cause that the story made.

    Those are: the preemptor was deleted, or room came free by itself and it ran there ("better-offer"), or a job of
    higher priority arrived and took the room that was made ("outranked": nobody is kept out by less than itself).
    """
    found: Counter[str] = Counter()
    for preemption, plan in told.plans.items():
        end = told.ends.get(preemption)
        assert end is not None, f"{plan.root} {preemption} never ended"
        if not told.evicted(preemption):
            found["nobody evicted"] += 1
        elif isinstance(end.fact, PreemptionCompleted):
            found["completed"] += 1
        else:
            found[cause(told, run, plan, end)] += 1
    return found


def cause(told: Told, run: Arrivals, plan: Event, end: Event) -> str:
    """Say which doing of the story ended a preemption in which somebody was evicted."""
    assert isinstance(end.fact, PreemptionAbandoned)
    why = end.fact.why
    if why == "preemptor-deleted" and plan.root_uid in run.withdrawn:
        return why
    if why == "better-offer" and any(
        e.root_uid == plan.root_uid and isinstance(e.fact, GangAdmitted) for e in told.events
    ):
        return why
    if why == "room-lost" and outranked(told, run, plan, end):
        return "outranked"
    raise AssertionError(f"{plan.root} at {plan.position} evicted in vain: {end.fact}")


def outranked(told: Told, run: Arrivals, plan: Event, end: Event) -> bool:
    """Say whether somebody of higher priority got room, or claimed it, on the nodes of a plan before it ended."""
    assert isinstance(plan.fact, PreemptionPlanned)
    nodes, priority = {a.node for a in plan.fact.assignments}, plan.fact.priority
    trees = any(
        isinstance(e.fact, GangAdmitted | GangExtended | PreemptionPlanned)
        and run.priority_of[job_of(e.root)] > priority
        and nodes & {a.node for a in e.fact.assignments}
        for e in told.events[plan.position : end.position]
    )
    pods = any(
        plan.at_us <= at_us <= end.at_us and theirs > priority and node in nodes
        for at_us, theirs, node in run.placed_alone
    )
    return trees or pods


def check_pairs(told: Told, run: Arrivals) -> int:
    """Check that no preemptor evicts what one controller makes twice, nor is evicted by whom it evicted.

    Who was outranked while its victims went has won nothing by them: it may take them once more.
    """
    pairs: set[tuple[str, str]] = set()
    jobs: set[tuple[str, str]] = set()
    for preemption, plan in told.plans.items():
        units = {f.unit for f in told.evicted(preemption)}
        end = told.ends[preemption]
        lost = isinstance(end.fact, PreemptionAbandoned) and end.fact.why == "room-lost"
        if units and lost and outranked(told, run, plan, end):
            continue
        for unit in units:
            pair = (plan.root_uid, unit)
            assert pair not in pairs, f"{plan.root} evicts {unit} again, at {plan.position}"
            pairs.add(pair)
            jobs.add((job_of(plan.root), job_of(unit.partition("/")[2])))
    assert not {(b, a) for a, b in jobs} & jobs, "an evicted job evicts its evictor"
    return len(pairs)


def check_one_at_a_time(told: Told) -> None:
    """Check that no tree plans while a preemption of its own has not ended, or victims of it are still going."""
    left: dict[str, set[str]] = {}  # root -> victims that have to go, of its last preemption
    open_: dict[str, str] = {}
    for event in told.events:
        fact, root = event.fact, event.root_uid
        if isinstance(fact, PreemptionPlanned):
            assert root not in open_, f"{event.root} plans again at {event.position}"
            assert not left.get(root), f"victims of {event.root} still go at {event.position}"
            open_[root] = fact.preemption
            left[root] = {p.uid for unit in fact.victims for p in unit.pods}
        elif isinstance(fact, VictimEvicted):
            left[root].discard(fact.uid)
        elif isinstance(fact, PreemptionCompleted | PreemptionAbandoned):
            assert open_.pop(root) == fact.preemption
            if isinstance(fact, PreemptionAbandoned):
                left[root] -= spared(told.plans[fact.preemption], fact)
    assert not open_
    assert not any(left.values()), left


def spared(plan: Event, end: PreemptionAbandoned) -> set[str]:
    """Give the pods of units that stay."""
    assert isinstance(plan.fact, PreemptionPlanned)
    units = [u for u in plan.fact.victims if f"{u.kind}/{u.path}" in end.spared]
    return {pod.uid for unit in units for pod in unit.pods}


def check_units(told: Told, run: Arrivals) -> None:
    """Check that units are of lower priority, and that each has gone whole or not at all."""
    for preemption, plan in told.plans.items():
        assert isinstance(plan.fact, PreemptionPlanned)
        gone = Counter(f.uid for f in told.gone.get(preemption, ()))
        assert not [uid for uid, times in gone.items() if times > 1], "gone twice"
        asked = {f.unit for f in told.evicted(preemption)}
        for unit in plan.fact.victims:
            mine = run.priority_of[job_of(plan.root)]
            assert run.priority_of[job_of(unit.path)] < mine == plan.fact.priority
            assert unit.kind == "Pod" or not unit.path.startswith("default/loose")
            pods = {p.uid for p in unit.pods}
            if f"{unit.kind}/{unit.path}" in asked:
                assert pods <= set(gone), f"{unit.path} did not go whole"
    assert not run.broken


@pytest.mark.parametrize(
    ("jobs", "seed"),
    [
        pytest.param(60, 2, id="60"),
        pytest.param(1000, 3, id="1000", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
async def test_nobody_is_evicted_in_vain_or_twice_by_the_same(jobs, seed):
    """Trees of all shapes come, are evicted, come back and end: every eviction is somebody's gain, once."""
    async with Stage(*the_fleet()) as stage:
        await stage.lead()
        stage.start(stage.admission.effects.run())
        stage.start(stage.admission.evictor.run())
        run = Arrivals(stage, jobs=jobs, seed=seed)
        await run.run(steps_max=jobs * 20)
        told = Told(stage.events())
        found = outcomes(told, run)
        pairs = check_pairs(told, run)
        check_one_at_a_time(told)
        check_units(told, run)
        assert not stage.leader.acknowledged.preemptions
        assert found["completed"] >= jobs // 12, f"too few to tell anything: {found}"
        assert pairs >= jobs // 12
        print(jobs, "jobs,", run.step_number, "steps:", dict(found), "pairs:", pairs)
