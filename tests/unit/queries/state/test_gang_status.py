"""The state of a gang as it is shown: derived from what is bound now, with the last loss as its reason."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangExtended,
    GangGroupsChanged,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    MemberTerminated,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    ReleasedPod,
    ReservationReleased,
    ReservedCapacityUser,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.log.gang_phase import TAKEN, UNDECIDED
from extender.core.log.reservation_state import EMPTY, EVICTION_MEMORY_US
from extender.core.log.state_projector import fold
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from extender.queries.state.gang_status import PENDING, RootWorkload, gang_status
from extender.queries.state.state_dto import Scope
from extender.queries.state.state_report import build_state_report
from tests.support.logs.random_logs import a_leaf, event_after, histories

ROOT, HIGH = GangUid("root"), GangUid("high")
SHOWN = {"scheduled", "admitted", "preempting", "degraded", "preempted", "completed"}
TREE = (
    GroupRecord(kind="CompositePodGroup", name="tree", minimum=2),
    a_leaf("a", 2, parent="tree"),
    a_leaf("b", 3, parent="tree"),
    a_leaf("c", 4, parent="tree"),
)


class Log:
    """A log of a few gangs, folded event by event."""

    def __init__(self) -> None:
        self.state = EMPTY

    def add(self, data, uid=ROOT) -> None:
        self.state = fold(self.state, [event_after(self.state, uid, data)])

    def run(self, groups, **pods: int) -> None:
        """Observe, admit and bind a gang with pods per leaf."""
        names = [(leaf, f"{leaf}-{n}") for leaf, count in pods.items() for n in range(count)]
        self.add(GangObserved(kind=groups[0].kind))
        self.reserve(groups, *names)
        for leaf, name in names:
            self.bind(leaf, name)
        self.add(GangScheduled(plan=PlanId("plan"), bound=len(names)))

    def reserve(self, groups, *names: tuple[str, str], extend: bool = False) -> None:
        kind = {} if extend else {"kind": groups[0].kind}
        self.add(
            (GangExtended if extend else GangAdmitted)(
                plan=PlanId("plan"),
                priority=0,
                groups=groups,
                shapes=({"cpu": 1},),
                assignments=tuple(
                    AssignmentRecord(
                        pod=f"ns/{name}", uid=PodUid(name), group=leaf, node=NodeName("n1")
                    )
                    for leaf, name in names
                ),
                **kind,
            )
        )

    def bind(self, leaf: str, name: str) -> None:
        self.add(
            PodBound(
                plan=PlanId("plan"),
                pod=f"ns/{name}",
                uid=PodUid(name),
                node=NodeName("n1"),
                group=leaf,
            )
        )

    def lose(self, *names: str, cause="deleted", message="") -> None:
        for name in names:
            self.add(
                MemberTerminated(
                    pod=f"ns/{name}",
                    uid=PodUid(name),
                    node=NodeName("n1"),
                    cause=cause,
                    message=message,
                )
            )

    def preempt(self, *names: str, lost: bool = True) -> None:
        """Plan a preemption of pods by another gang; unless `lost` is false, their ends are recorded."""
        self.add(GangObserved(kind="PodGroup"), HIGH)
        pods = tuple(VictimPod(pod=f"ns/{n}", uid=PodUid(n), node=NodeName("n1")) for n in names)
        unit = VictimUnit(kind="PodGroup", path="ns/root", uid="root", priority=0, pods=pods)
        self.add(
            PreemptionPlanned(
                preemption=PlanId("preemption"),
                kind="PodGroup",
                priority=5,
                victims=(unit,),
                cost={},
                alternatives=(),
                shapes=({"cpu": 1},),
                assignments=(),
                already_terminating=(),
                superseded=(),
            ),
            HIGH,
        )
        if lost:
            self.lose(*names)

    def status(self, made_for=None):
        found = gang_status(self.state.gangs[ROOT], made_for)
        return found.state, f"{found.present}/{found.needed}", found.reasons


def leaf_of(count: int):
    return (a_leaf("root", count),)


def test_a_gang_that_lost_some_members_is_degraded() -> None:
    log = Log()
    log.run(leaf_of(8), root=8)
    assert log.status() == ("scheduled", "8/8", ())
    log.lose("root-0", "root-1", "root-2", "root-3")
    log.lose("root-4", cause="node-lost")
    assert log.status() == (
        "degraded",
        "3/8",
        (
            "3 of 8 pods of the minimum are there; last lost: pod ns/root-4 on n1 at "
            "1970-01-01T00:00:00.000016Z: its node is gone",
        ),
    )


def test_members_beyond_the_minimum_may_go() -> None:
    log = Log()
    log.run(leaf_of(2), root=3)
    log.lose("root-0")
    assert log.status() == ("scheduled", "2/2", ())


def test_a_gang_that_was_evicted_names_the_preemptor() -> None:
    log = Log()
    log.run(leaf_of(2), root=2)
    log.preempt("root-0", "root-1")
    state, present, reasons = log.status()
    assert (state, present) == ("preempted", "0/2")
    assert reasons[0].startswith(
        "preempted: evicted for PodGroup ns/high; last was pod ns/root-1 on"
    )
    (gang,) = (g for g in build_state_report(log.state, Scope()).gangs if g.uid == ROOT)
    assert gang.last_loss is not None
    assert (gang.last_loss.preemptor, gang.last_loss.cause) == ("PodGroup/ns/high", "preempted")


@pytest.mark.parametrize("ends", ["before", "after", "never"])
def test_the_preemptor_is_known_when_the_end_of_a_member_is_recorded_later(ends) -> None:
    """The victims are gone and the preemption has ended before, or while, the ends of the members are recorded."""
    log = Log()
    log.run(leaf_of(2), root=2)
    log.preempt("root-0", "root-1", lost=False)
    done = PreemptionCompleted(preemption=PlanId("preemption"), bound=1, evicted=2, duration_ms=1)
    if ends == "before":
        log.add(done, HIGH)
    for name in ("root-0", "root-1"):
        log.add(
            VictimGone(
                preemption=PlanId("preemption"),
                unit="PodGroup/ns/root",
                pod=f"ns/{name}",
                uid=PodUid(name),
                node=NodeName("n1"),
                via="deleted",
                requested_us=1,
                gone_us=2,
            ),
            HIGH,
        )
    if ends == "after":
        log.add(done, HIGH)
    log.lose("root-0", "root-1", cause="preempted")
    state, _, reasons = log.status()
    assert state == "preempted"
    assert reasons[0].startswith("preempted: evicted for PodGroup ns/high; last was pod ns/root-1")
    assert log.state.evicted_pods == EMPTY.evicted_pods


def test_a_victim_that_was_spared_has_no_preemptor() -> None:
    log = Log()
    log.run(leaf_of(1), root=1)
    log.preempt("root-0", lost=False)
    log.add(
        PreemptionCancelled(
            preemption=PlanId("preemption"),
            reason="no-longer-needed",
            units_spared=("PodGroup/ns/root",),
            units_in_progress=(),
            evicted=0,
        ),
        HIGH,
    )
    log.lose("root-0")
    loss = log.state.gangs[ROOT].last_loss
    assert loss is not None
    assert loss.preemptor == ""


def test_victims_that_are_long_gone_are_forgotten() -> None:
    """Pods outside of gangs have no recorded end: they are dropped with the first preemption after ten minutes."""
    log = Log()
    log.preempt("lone", lost=False)
    gone = VictimGone(
        preemption=PlanId("preemption"), unit="PodGroup/ns/root", pod="ns/lone", uid=PodUid("lone"),
        node=NodeName("n1"), via="deleted", requested_us=1, gone_us=2,
    )  # fmt: skip
    log.add(gone, HIGH)
    assert set(log.state.evicted_pods) == {"lone"}
    log.state = msgspec.structs.replace(log.state, at_us=EVICTION_MEMORY_US + 100)
    log.preempt("other", lost=False)
    assert log.state.evicted_pods == EMPTY.evicted_pods


def test_kube_scheduler_preempts_too() -> None:
    log = Log()
    log.run(leaf_of(1), root=1)
    log.lose("root-0", cause="preempted", message="PreemptionByScheduler")
    state, _, reasons = log.status()
    assert state == "preempted"
    assert "preempted for a pod or group of higher priority (PreemptionByScheduler)" in reasons[0]


def test_a_lost_gang_without_preemption_is_degraded() -> None:
    log = Log()
    log.run(leaf_of(2), root=2)
    log.lose("root-0", "root-1", cause="ended", message="Error")
    state, present, (reason,) = log.status()
    assert (state, present) == ("degraded", "0/2")
    assert reason.endswith("ended by itself (Error)")


def test_new_members_are_admitted_then_scheduled_again() -> None:
    log = Log()
    log.run(leaf_of(2), root=2)
    log.preempt("root-0", "root-1")
    log.add(GangUnschedulable(outcome="impossible", reasons=("no node is large enough",)))
    state, _, reasons = log.status()
    assert (state, reasons[1:]) == ("preempted", ("no node is large enough",))
    log.reserve(leaf_of(2), ("root", "new-0"), ("root", "new-1"))
    assert log.status()[0] == "admitted"
    log.bind("root", "new-0")
    assert log.status()[:2] == ("degraded", "1/2")
    log.bind("root", "new-1")
    assert log.status() == ("scheduled", "2/2", ())


def test_members_that_succeeded_count_until_others_follow() -> None:
    """A Job with two completions in parallel: one pod ends, then the other; another attempt begins."""
    log = Log()
    log.run(leaf_of(2), root=2)
    log.lose("root-0", cause="ended", message="Succeeded")
    assert log.status() == ("scheduled", "2/2", ())
    log.lose("root-1", cause="ended", message="Succeeded")
    assert log.status() == ("completed", "2/2", ())
    log.reserve(leaf_of(2), ("root", "new-0"), ("root", "new-1"), extend=True)
    log.bind("root", "new-0")
    log.bind("root", "new-1")
    log.lose("new-0")
    assert log.status()[:2] == ("degraded", "1/2")


def test_a_composite_needs_its_cheapest_children() -> None:
    """Two of three children: a loss in the third one does not matter."""
    log = Log()
    log.run(TREE, a=2, b=3, c=4)
    log.lose("c-0", "c-1")
    assert log.status()[0] == "scheduled"
    log.lose("b-0")
    assert log.status()[:2] == ("degraded", "4/5")


@pytest.mark.parametrize(("suspended", "state"), [(True, "suspended"), (False, "degraded")])
def test_a_suspended_workload(suspended: bool, state: str) -> None:
    log = Log()
    log.run(leaf_of(2), root=2)
    log.lose("root-0", "root-1")
    shown, _, reasons = log.status(RootWorkload("JobSet/ns/train", suspended))
    assert shown == state
    assert (reasons[0] == "JobSet ns/train is suspended") == suspended


def test_a_workload_that_was_scaled_down_needs_less() -> None:
    log = Log()
    log.run(leaf_of(4), root=4)
    log.lose("root-2", "root-3")
    assert log.status()[0] == "degraded"
    made_for = RootWorkload("Job/ns/train", minima={("PodGroup", "root"): 2})
    assert log.status(made_for) == ("scheduled", "2/2", ())


def test_a_workload_that_does_not_require_a_group_any_more_needs_it_no_more() -> None:
    """A worker group of a RayCluster whose minReplicas is 0 now; the head is required as before."""
    names = ("head", "workers")
    root = GroupRecord(kind="CompositePodGroup", name="root", minimum=2, required=names)
    leaves = [GroupRecord(kind="PodGroup", name=name, parent="root", members=1) for name in names]
    log = Log()
    log.run((root, *leaves), head=1, workers=1)
    log.lose("workers-0")
    assert log.status()[:2] == ("degraded", "1/2")
    key = ("CompositePodGroup", "root")
    made_for = RootWorkload("RayCluster/ns/c", minima={key: 1}, required={key: ("head",)})
    assert log.status(made_for)[:2] == ("scheduled", "1/1")
    log.lose("head-0")
    assert log.status(made_for)[:2] == ("degraded", "0/1")


@given(histories())
def test_any_log(events) -> None:
    """Against counts over the events: members that are there, and those that succeeded and were not followed."""
    state = fold(EMPTY, events)
    for root in state.gangs.values():
        bound, done, minimum, scheduled = {}, Counter(), 0, False
        for event in events:
            data = event.data
            if event.gang_uid != root.uid:
                continue
            if isinstance(data, GangRemoved):
                bound, done, minimum, scheduled = {}, Counter(), 0, False
            elif isinstance(data, GangAdmitted | GangExtended | GangGroupsChanged):
                minimum = data.groups[0].minimum
            elif isinstance(data, GangScheduled):
                scheduled = True
            elif isinstance(data, PodBound):
                done[data.group] = max(done[data.group] - 1, 0)
                bound[data.uid] = data.group
            elif isinstance(data, MemberTerminated) and data.uid in bound:
                leaf = bound.pop(data.uid)
                done[leaf] += data.cause == "ended" and data.message == "Succeeded"
        status = gang_status(root)
        assert status.state in SHOWN | PENDING
        assert status.reasons or status.state not in PENDING
        if not scheduled:
            assert status.state not in SHOWN - {"admitted", "preempting"}
            continue
        there = len(bound) + done["leaf"]
        missing = there < minimum if root.groups else there == 0
        assert missing == (status.state not in {"scheduled", "completed"})
        if root.groups:
            assert (status.present, status.needed) == (min(there, minimum), minimum)
        if status.state in {"degraded", "preempted"}:
            assert not root.last_loss or root.last_loss.pod in status.reasons[0]


def test_a_gang_without_a_decision_has_a_reason() -> None:
    """It was not looked at yet, or other pods took its capacity."""
    log = Log()
    log.add(GangObserved(kind="PodGroup"))
    assert log.status() == ("observed", "0/0", (UNDECIDED,))
    log.reserve(leaf_of(1), ("root", "root-0"))
    released = ReleasedPod(pod="ns/root-0", uid=PodUid("root-0"), node=NodeName("n1"))
    user = ReservedCapacityUser(
        pod="ns/other",
        uid=PodUid("other"),
        node=NodeName("n1"),
        scheduler="default-scheduler",
        priority=0,
        via="unaware",
    )
    log.add(ReservationReleased(plan=PlanId("plan"), reason="superseded", pods=(released,), taken_by=(user,)))  # fmt: skip
    assert (log.state.gangs[ROOT].phase, log.status()[2]) == ("observed", (TAKEN,))
    log.reserve(leaf_of(1), ("root", "root-0"))
    log.add(ReservationReleased(plan=PlanId("plan"), reason="node-lost", pods=(released,)))
    assert (log.state.gangs[ROOT].phase, log.status()[2]) == ("observed", (UNDECIDED,)), (
        "not taken this time"
    )


@pytest.mark.parametrize("outcome", ["impossible", "waiting", ""])
def test_a_gang_whose_preemption_was_cancelled_has_a_reason(outcome) -> None:
    """Its refusal before the preemption does not hold any more, whatever its phase."""
    log = Log()
    log.add(GangObserved(kind="PodGroup"))
    if outcome:
        log.add(GangUnschedulable(outcome=outcome, reasons=("no place",)))
    plan = PreemptionPlanned(
        preemption=PlanId("preemption"), kind="PodGroup", priority=5, victims=(), cost={}, alternatives=(),
        shapes=(), assignments=(),
    )  # fmt: skip
    log.add(plan)
    assert log.status()[0] == "preempting"
    log.add(
        PreemptionCancelled(
            preemption=PlanId("preemption"),
            reason="group-changed",
            units_spared=(),
            units_in_progress=(),
            evicted=0,
        )
    )
    assert log.status()[2] == (UNDECIDED,)


def test_a_gang_waits_since_it_was_observed_or_since_its_last_loss() -> None:
    """Not while its minimum is bound, after it has succeeded, or while its workload is suspended."""

    def waits(made_for=None) -> int:
        return gang_status(log.state.gangs[ROOT], made_for).waiting_since_us

    log = Log()
    log.add(GangObserved(kind="PodGroup"))
    observed_us = log.state.gangs[ROOT].observed_us
    assert waits() == observed_us > 0
    log.reserve(leaf_of(2), ("root", "root-0"), ("root", "root-1"))
    assert waits() == observed_us
    log.bind("root", "root-0")
    log.bind("root", "root-1")
    log.add(GangScheduled(plan=PlanId("plan"), bound=2))
    assert waits() == 0
    log.lose("root-0", "root-1")
    loss = log.state.gangs[ROOT].last_loss
    assert loss is not None
    assert waits() == loss.at_us > observed_us
    assert waits(RootWorkload("JobSet/ns/train", True)) == 0
    assert waits(RootWorkload("JobSet/ns/train", resumed_us=loss.at_us + 5)) == loss.at_us + 5
    assert waits(RootWorkload("JobSet/ns/train", resumed_us=1)) == loss.at_us


def test_a_gang_that_never_ran_is_suspended_too() -> None:
    """It has the refusal as its second reason, and none where there is no decision."""
    job = RootWorkload("Job/ns/train", suspended=True)
    log = Log()
    log.add(GangObserved(kind="PodGroup"))
    assert log.status(job)[::2] == ("suspended", ("Job ns/train is suspended",))
    log.add(GangUnschedulable(outcome="waiting", reasons=("waiting for members",)))
    assert log.status(job)[::2] == (
        "suspended",
        ("Job ns/train is suspended", "waiting for members"),
    )
    log.reserve(leaf_of(2), ("root", "root-0"), ("root", "root-1"))
    log.bind("root", "root-0")
    status = gang_status(log.state.gangs[ROOT], job)
    assert (status.state, status.waiting_since_us) == ("admitted", 0)
