"""Which gangs wait and since when, and which stages an append reaches for the first time."""

from __future__ import annotations

from hypothesis import given

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangScheduled,
    GangUnschedulable,
    MemberTerminated,
    PodBound,
    ReleasedPod,
    ReservationReleased,
    TreeCompiled,
    TreeRefused,
)
from extender.core.log.gang_phase import WaitingGangs, stages_reached
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid
from extender.core.workloads.native_groups import AdoptedGroup
from extender.core.workloads.tree_compiler import GroupSpec
from tests.support.hypothesis_profile import examples
from tests.support.logs.random_logs import a_leaf, event_after, histories

UID, PLAN, POD, NODE = GangUid("uid-g"), PlanId("plan"), PodUid("uid-p"), NodeName("n")
OBSERVED = GangObserved(kind="PodGroup")
REFUSED = GangUnschedulable(outcome="impossible", reasons=("full",))
ADMITTED = GangAdmitted(
    plan=PLAN, kind="PodGroup", priority=0, groups=(a_leaf("g"),), shapes=({"cpu": 1},),
    assignments=(AssignmentRecord(pod="ns/p", uid=POD, group="g", node=NODE),),
)  # fmt: skip
BOUND = PodBound(plan=PLAN, pod="ns/p", uid=POD, node=NODE, group="g")
SCHEDULED = GangScheduled(plan=PLAN, bound=1)
RELEASED = ReservationReleased(
    plan=PLAN, reason="expired", pods=(ReleasedPod(pod="ns/p", uid=POD, node=NODE),)
)


def after(*datas, state=EMPTY):
    """Return a state, the events that lead to it from another, and the stages that each reached."""
    reached = []
    for data in datas:
        event = event_after(state, UID, data)
        reached += [
            (stage.stage, (stage.reached_us - stage.observed_us))
            for stage in stages_reached(state, [event])
        ]
        state = fold(state, [event])
    return state, reached


def waits(state):
    return [(gang.root.uid, gang.state) for gang in WaitingGangs().of(state)]


def test_each_stage_is_reached_once():
    """Complete since the first refusal for capacity; a second admission and a second refusal are none."""
    state, reached = after(OBSERVED, REFUSED, ADMITTED, RELEASED, REFUSED, ADMITTED, BOUND, SCHEDULED)  # fmt: skip
    stages = [stage for stage, _ in reached]
    assert stages == ["complete", "admitted", "scheduled"]
    times = [us for _, us in reached]
    assert times == sorted(times)
    assert times[0] < times[1]
    assert after(ADMITTED, state=state)[1] == []


def test_a_gang_that_is_admitted_at_once_is_complete_then():
    """Both stages have the time of the admission, also where it is in the append that observes the gang."""
    before = EMPTY
    first = event_after(before, UID, OBSERVED)
    second = event_after(fold(before, [first]), UID, ADMITTED)
    reached = list(stages_reached(before, [first, second]))
    assert [(s.stage, s.reached_us) for s in reached] == [
        ("complete", second.at_us), ("admitted", second.at_us),
    ]  # fmt: skip


def test_a_gang_that_ran_before_it_was_admitted_reaches_no_stage():
    """A service that is installed beside running gangs has not let them wait."""
    assert after(OBSERVED, BOUND, SCHEDULED)[1] == []


def test_a_gang_waits_until_it_is_bound_and_again_after_a_loss():
    """From its observation; after a loss from then on."""
    state, _ = after(OBSERVED)
    observed_us = state.at_us
    assert waits(state) == [(UID, "observed")]
    state, _ = after(REFUSED, state=state)
    (gang,) = WaitingGangs().of(state)
    assert (gang.state, gang.since_us) == ("unschedulable", observed_us)
    state, _ = after(ADMITTED, state=state)
    assert waits(state) == [(UID, "admitted")]
    state, _ = after(BOUND, SCHEDULED, state=state)
    assert waits(state) == []
    lost = MemberTerminated(pod="ns/p", uid=POD, node=NODE, cause="node-lost")
    state, _ = after(lost, state=state)
    (gang,) = WaitingGangs().of(state)
    assert (gang.state, gang.since_us) == ("degraded", state.at_us)


def compiled(*, suspended, adopted=()):
    """Return the event that the tree of the gang's workload was made."""
    groups = () if adopted else (GroupSpec(kind="PodGroup", name=str(UID)),)
    return TreeCompiled(
        kind="Job", workload="ns/job", uid="w", generation=1, table_version=1, profile="",
        groups=groups, adopted=adopted, suspended=suspended,
    )  # fmt: skip


def then(state, data):
    """Return a state after one more event about the cluster."""
    return fold(state, [event_after(state, NIL_GANG, data)])


def test_a_group_of_the_controller_of_a_suspended_workload_does_not_wait():
    """As one that the service has made."""
    adopted = (AdoptedGroup(name=str(UID)),)
    state = then(after(OBSERVED)[0], compiled(suspended=True, adopted=adopted))
    assert waits(state) == []
    state = then(state, compiled(suspended=False, adopted=adopted))
    (gang,) = WaitingGangs().of(state)
    assert gang.since_us == state.at_us


def test_a_suspended_workload_does_not_wait():
    """Its controller keeps the pods away; from when it goes on the gang waits anew, also without another event of its own."""
    kept = WaitingGangs()
    state = then(after(OBSERVED)[0], compiled(suspended=False))
    (gang,) = kept.of(state)
    assert gang.since_us == state.gangs[UID].observed_us
    state = then(state, compiled(suspended=True))
    assert kept.of(state) == ()
    state = then(state, compiled(suspended=False))
    resumed_us = state.at_us
    (gang,) = kept.of(state)
    assert (gang.since_us, state.trees["w"].resumed_us) == (resumed_us, resumed_us)
    state = then(state, compiled(suspended=False))
    state, _ = after(REFUSED, state=state)
    (gang,) = kept.of(state)
    assert gang.since_us == resumed_us
    refused = TreeRefused(
        kind="Job", workload="ns/job", uid="w", generation=2, table_version=1, profile="", reason="Why", field="", message="",
    )  # fmt: skip
    assert then(state, refused).trees["w"].resumed_us == resumed_us


def test_a_loss_after_the_workload_was_resumed_is_later():
    """What is later counts."""
    state = then(after(OBSERVED, ADMITTED, BOUND, SCHEDULED)[0], compiled(suspended=True))
    state = then(state, compiled(suspended=False))
    lost = MemberTerminated(pod="ns/p", uid=POD, node=NODE, cause="node-lost")
    state, _ = after(lost, state=state)
    (gang,) = WaitingGangs().of(state)
    assert gang.since_us == state.at_us > state.trees["w"].resumed_us > 0


@examples(50)
@given(histories())
def test_what_is_kept_between_two_calls_equals_a_new_look(history):
    """After each event of a random history."""
    kept, state = WaitingGangs(), EMPTY
    for event in history:
        state = fold(state, [event])
        assert list(kept.of(state)) == list(WaitingGangs().of(state))
