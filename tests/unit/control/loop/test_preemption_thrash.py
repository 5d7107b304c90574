"""No pod is evicted in vain, and none twice by the same preemptor: arrivals of three priorities (issue 5).

Every preemption that evicted a pod must have completed, or its capacity must have been taken over, recorded, by one
that did. The only exception is counted: a preemptor that its own user deleted half way.
"""

from __future__ import annotations

from collections import Counter

import pytest

from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    GangScheduled,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReservationReleased,
    VictimGone,
)
from tests.support.service.fakes import Stage
from tests.support.service.job_arrivals import Arrivals, the_fleet


class Preemptions:
    """The preemptions of a log: their plans, their ends, and what they evicted."""

    def __init__(self, events: list[RecordedEvent]) -> None:
        self.events = events
        self.plans: dict[str, RecordedEvent] = {}
        self.ends: dict[str, RecordedEvent] = {}
        self.gone: dict[str, list[VictimGone]] = {}
        for event in events:
            entry = event.data
            if isinstance(entry, PreemptionPlanned):
                self.plans[entry.preemption] = event
            elif isinstance(entry, PreemptionCompleted | PreemptionCancelled):
                assert entry.preemption not in self.ends, "it ends twice"
                self.ends[entry.preemption] = event
            elif isinstance(entry, VictimGone):
                self.gone.setdefault(entry.preemption, []).append(entry)

    def ran(self, gang_uid: str, *, behind: int) -> bool:
        """Return whether a tree was admitted at that position or later, and all of its minimum was bound by that."""
        mine = [e for e in self.events[behind:] if e.gang_uid == gang_uid]
        entries = (GangAdmitted, GangExtended, GangScheduled, ReservationReleased)
        first, *then = [e.data for e in mine if isinstance(e.data, entries)] or [None]
        lost = next(
            (n for n, f in enumerate(then) if isinstance(f, ReservationReleased)), len(then)
        )
        if isinstance(first, GangExtended):
            return any(isinstance(e.data, PodBound) and e.data.plan == first.plan for e in mine)
        return isinstance(first, GangAdmitted) and GangScheduled in map(type, then[:lost])

    def evicted(self, preemption: str) -> list[VictimGone]:
        """Return the victims of a preemption that we deleted or evicted."""
        return [f for f in self.gone.get(preemption, ()) if f.via in ("deleted", "evicted")]


def job_of(root: str) -> str:
    """Name the job of a root or of a pod, namespace/name."""
    return root.partition("/")[2].partition("-")[0]


def outcomes(log: Preemptions, run: Arrivals) -> Counter[str]:
    """Count what came of preemptions; each that evicted a pod must have made capacity for one that ran."""
    found: Counter[str] = Counter()
    for preemption in log.plans:
        assert preemption in log.ends, f"{log.plans[preemption].gang} never ended"
        found[use(log, run, preemption) if log.evicted(preemption) else "nothing evicted"] += 1
    return found


def use(log: Preemptions, run: Arrivals, preemption: str) -> str:
    """Return what used the capacity of a preemption; where it was taken over, the outcome of the heir.

    The only ones of no use are those whose preemptor its own user deleted half way.
    """
    plan, end = log.plans[preemption], log.ends[preemption]
    if isinstance(end.data, PreemptionCompleted):
        return "completed"
    assert isinstance(end.data, PreemptionCancelled)
    why = end.data.reason
    if why == "preemptor-deleted" and plan.gang_uid in run.withdrawn:
        return "its user deleted it"
    if why == "no-longer-needed" and log.ran(plan.gang_uid, behind=end.position):
        return "ran elsewhere"
    assert why == "taken-over", f"{plan.gang} at {plan.position} evicted in vain: {end.data}"
    heir = next(
        (e for e in log.events[end.position :] if e.gang_uid == end.data.taken_over_by_uid), None
    )
    if heir is not None and isinstance(heir.data, PreemptionPlanned):
        assert heir.data.priority > plan.data.priority
        of_heir = use(log, run, heir.data.preemption)
        return of_heir if of_heir == "its user deleted it" else "taken over"
    assert end.data.taken_over_by_uid in run.ran_alone, (
        f"{end.data.taken_over_by} of {end.position} does not run"
    )
    return "taken over"


def check_pairs(log: Preemptions) -> int:
    """Check that no preemptor evicts twice what one controller makes, nor is evicted by whom it evicted."""
    pairs: set[tuple[str, str]] = set()
    jobs: set[tuple[str, str]] = set()
    for preemption, plan in log.plans.items():
        for unit in {f.unit for f in log.evicted(preemption)}:
            pair = (plan.gang_uid, unit)
            assert pair not in pairs, f"{plan.gang} evicts {unit} again, at {plan.position}"
            pairs.add(pair)
            jobs.add((job_of(plan.gang), job_of(unit.partition("/")[2])))
    assert not {(b, a) for a, b in jobs} & jobs, "an evicted job evicts its evictor"
    return len(pairs)


def check_one_at_a_time(log: Preemptions) -> None:
    """Check that no tree plans while a preemption of its own has not ended, or victims of it are still going."""
    left: dict[str, set[str]] = {}  # root -> victims that have to go, of its last preemption
    open_: dict[str, str] = {}
    for event in log.events:
        entry, root = event.data, event.gang_uid
        if isinstance(entry, PreemptionPlanned):
            assert root not in open_, f"{event.gang} plans again at {event.position}"
            assert not left.get(root), f"victims of {event.gang} still go at {event.position}"
            open_[root] = entry.preemption
            left[root] = {p.uid for unit in entry.victims for p in unit.pods}
        elif isinstance(entry, VictimGone):
            left[root].discard(entry.uid)
        elif isinstance(entry, PreemptionCompleted | PreemptionCancelled):
            assert open_.pop(root) == entry.preemption
            if isinstance(entry, PreemptionCancelled):
                left[root] -= spared(log.plans[entry.preemption], entry)
    assert not open_
    assert not any(left.values()), left


def spared(plan: RecordedEvent, end: PreemptionCancelled) -> set[str]:
    """Return the pods of units that stay."""
    assert isinstance(plan.data, PreemptionPlanned)
    units = [u for u in plan.data.victims if f"{u.kind}/{u.path}" in end.units_spared]
    return {pod.uid for unit in units for pod in unit.pods}


def check_units(log: Preemptions, run: Arrivals) -> None:
    """Check that units are of lower priority, and that each has gone whole or not at all."""
    for preemption, plan in log.plans.items():
        assert isinstance(plan.data, PreemptionPlanned)
        gone = Counter(f.uid for f in log.gone.get(preemption, ()))
        assert not [uid for uid, times in gone.items() if times > 1], "gone twice"
        asked = {f.unit for f in log.evicted(preemption)}
        for unit in plan.data.victims:
            mine = run.priority_of[job_of(plan.gang)]
            assert run.priority_of[job_of(unit.path)] < mine == plan.data.priority
            assert unit.kind == "Pod" or not unit.path.startswith("default/loose")
            pods = {p.uid for p in unit.pods}
            if f"{unit.kind}/{unit.path}" in asked:
                assert pods <= set(gone), f"{unit.path} did not go whole"
    assert not run.broken


@pytest.mark.parametrize(
    ("jobs", "seed"),
    [
        *(pytest.param(20, seed, id=f"20, {seed}") for seed in (2, 15)),
        *(pytest.param(20, seed, id=f"20, {seed}", marks=pytest.mark.full) for seed in (5, 7)),
        *(pytest.param(60, seed, id=f"60, {seed}", marks=pytest.mark.full) for seed in (2, 5, 8)),
        pytest.param(1000, 3, id="1000", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
async def test_no_unit_is_evicted_in_vain_or_twice_by_the_same_preemptor(jobs, seed):
    """Trees of all shapes come, are evicted, come back and end: every eviction makes capacity that is used, once."""
    async with Stage(*the_fleet()) as stage:
        await stage.lead()
        stage.start(stage.parts.nominator.run())
        stage.start(stage.parts.evictor.run())
        run = Arrivals(stage, jobs=jobs, seed=seed)
        await run.run(steps_max=jobs * 20)
        log = Preemptions(stage.events())
        found = outcomes(log, run)
        pairs = check_pairs(log)
        check_one_at_a_time(log)
        check_units(log, run)
        assert not stage.leader.committed.preemptions
        assert found["completed"] >= jobs // 15, f"too few to prove anything: {found}"
        assert pairs >= jobs // 15
        print(jobs, "jobs,", run.step_number, "steps:", dict(found), "pairs:", pairs)
