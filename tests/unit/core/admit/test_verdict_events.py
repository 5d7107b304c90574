"""The planner's answer becomes events: on change only, admitted once, extended afterwards."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.admit.verdict_events import (
    EventContext,
    decide_invalid,
    decide_observed,
    decide_verdict,
    still_holds,
)
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import GangAdmitted, GangExtended
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName, PlanId
from extender.core.model.nodes import SchedulingConstraints, Taint
from extender.core.planner.plan_types import PLANNER_VERSION, NodeRejection, Plan, Refusal
from extender.core.planner.planning import plan
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, RACK, a_fleet, a_gang, a_node, a_pod
from tests.unit.core.support import fold_drafts

RECIPE = EventContext(
    plan=PlanId("plan-1"), digest="d", actor="me", cause="test", topology_keys=(RACK,)
)


class Case:
    """One tree and the answer of the planner."""

    def __init__(self, *objects):
        self.cluster = FakeCluster(*objects)
        self.state = EMPTY

    @property
    def tree(self):
        return next(iter(forest_of(self.cluster.seen).trees.values()))

    def request(self):
        return plan_request(
            self.cluster.seen,
            self.state,
            TreeParts().of(self.tree, self.state.gangs.get(self.tree.root.uid)),
            rows=NodeRowCache(),
            budget=10_000,
            rejections=tuple(self.state.rejections),
        )

    def decide(self, recipe=RECIPE):
        request = self.request()
        return decide_verdict(self.state, self.tree, request, plan(request), recipe)

    def step(self, recipe=RECIPE):
        drafts = self.decide(recipe)
        self.state = fold_drafts(self.state, drafts)
        return [type(d.data).__name__ for d in drafts]


def test_observed_once():
    """A root is recorded when the log does not know it, and not again."""
    case = Case(*a_gang("g", pods=2))
    drafts = decide_observed(EMPTY, case.tree, RECIPE)
    assert [(d.data.kind, d.data.groups, d.data.members) for d in drafts] == [("PodGroup", 1, 2)]
    assert decide_observed(fold_drafts(EMPTY, drafts), case.tree, RECIPE) == []


def test_a_refusal_is_recorded_on_change_only():
    """The same answer again gives no event; another reason does."""
    case = Case(a_node("n0", gpu=1), *a_gang("g", pods=3))
    assert case.step() == ["GangObserved", "GangUnschedulable"]
    assert case.step() == []
    case.cluster.change_pod("g-0", deleting=True)
    assert case.step() == ["GangUnschedulable"]
    assert next(iter(case.state.gangs.values())).last_decision.outcome == "waiting"


def test_admitted_then_extended():
    """The first plan is an admission with everything an auditor needs; members that come later extend it."""
    case = Case(*a_fleet("2 racks x 2 nodes", gpu=1), *a_gang("g", pods=3, minimum=2))
    drafts = case.decide()
    admitted = drafts[1].data
    assert isinstance(admitted, GangAdmitted)
    assert (admitted.plan, admitted.input_digest, admitted.planner) == (
        "plan-1",
        "d",
        PLANNER_VERSION,
    )
    assert admitted.groups[0].minimum == 2
    assert sum(a.extra for a in admitted.assignments) == 1
    assert {a.node for a in admitted.assignments} == set(admitted.topology)
    assert all(RACK in labels for labels in admitted.topology.values())
    assert all(admitted.shapes[a.shape][GPU] == 1 for a in admitted.assignments)
    case.step()
    case.cluster.add(a_pod("g-3", "g", requests={GPU: 1}))
    later = case.decide(msgspec.structs.replace(RECIPE, plan=PlanId("plan-2")))
    assert [type(d.data) for d in later] == [GangExtended]
    assert [a.pod for a in later[0].data.assignments] == ["default/g-3"]


def test_extras_without_capacity_are_a_refusal_that_keeps_the_admission():
    """A satisfied tree whose extras find no capacity gets an answer, once, and stays admitted."""
    case = Case(a_node("n0", gpu=2), *a_gang("g", pods=3, minimum=2))
    assert case.step() == ["GangObserved", "GangAdmitted"]
    assert case.step() == ["GangUnschedulable"]
    assert case.step() == []
    root = next(iter(case.state.gangs.values()))
    assert (root.phase, root.last_decision.outcome) == ("admitted", "impossible")


def test_an_invalid_tree_is_recorded_once_per_set_of_problems():
    """Problems carry their rule; an unchanged set gives no event."""
    case = Case(*a_gang("g", pods=2))
    case.cluster.change_pod("g-0", priority=5)
    drafts = decide_invalid(EMPTY, case.tree, RECIPE)
    assert [type(d.data).__name__ for d in drafts] == ["GangObserved", "GangInvalid"]
    assert drafts[1].data.problems[0].startswith("B9 pods: Pod/default/g-0 has priority 5")
    state = fold_drafts(EMPTY, drafts)
    assert decide_invalid(state, case.tree, RECIPE) == []
    case.cluster.change_pod("g-0", priority=6)
    assert len(decide_invalid(state, case.tree, RECIPE)) == 1


@pytest.fixture
def planned():
    case = Case(a_node("n0", gpu=2), a_node("n1", gpu=2), *a_gang("g", pods=2))
    for name in ("g-0", "g-1"):
        case.cluster.change_pod(name, nominated=NodeName("n0"))
    request = case.request()
    found = plan(request)
    assert isinstance(found, Plan)
    assert {a.node for a in found.assignments} == {"n0"}
    return case, request, found


def test_a_plan_holds_while_its_input_holds(planned):
    """The same input, or other nodes changing, does not shake a plan; nor does capacity that is still enough."""
    case, request, found = planned
    assert still_holds(request, found, case.request())
    case.cluster.change_node("n1", labels={"x": "y"})
    case.cluster.add(a_pod("alien", node="n1", requests={GPU: 2}))
    case.cluster.add(a_pod("tiny", node="n0", requests={"cpu": "1"}))
    assert still_holds(request, found, case.request())


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.add(a_pod("alien", node="n0", requests={GPU: 1})),
        lambda c: c.change_node("n0", labels={"moved": "yes"}),
        lambda c: c.change_node("n0", taints=(Taint("k", "", "NoSchedule"),)),
        lambda c: c.change_node("n0", unschedulable=True),
        lambda c: c.change_node("n0", allocatable={GPU: 9, "pods": 110, "cpu": 64000}),
        lambda c: c.delete_node("n0"),
        lambda c: c.delete_pod("g-1"),
        lambda c: c.change_pod("g-1", deleting=True),
        lambda c: c.add(a_pod("g-2", "g", requests={GPU: 1})),
        lambda c: c.change_group("g", minimum=1),
        lambda c: c.change_group("g", constraints=SchedulingConstraints(topology=(RACK,))),
    ],
    ids=["capacity", "labels", "taint", "cordon", "allocatable", "node gone", "pod gone", "pod going",
         "member more", "minimum", "topology"],
)  # fmt: skip
def test_a_plan_falls_with_what_it_rests_on(planned, change):
    """Less capacity than needed, a node that looks different, or another tree: plan again."""
    case, request, found = planned
    change(case.cluster)
    assert not still_holds(request, found, case.request())


def test_a_rejection_that_came_meanwhile_fells_a_plan(planned):
    """By pod or by shape, on a node that is used; elsewhere it does not matter."""
    case, request, found = planned
    uid = found.assignments[0].uid
    for rejection, holds in [
        (NodeRejection(node=NodeName("n0"), uid=uid), False),
        (NodeRejection(node=NodeName("n0"), shape=0), False),
        (NodeRejection(node=NodeName("n1"), uid=uid), True),
    ]:
        now = msgspec.structs.replace(case.request(), rejected_nodes=(rejection,))
        assert still_holds(request, found, now) is holds


def test_a_refusal_has_the_conflict_and_the_relaxations():
    """The event has what cannot hold together and the cheapest relaxations."""
    case = Case(a_node("n0", gpu=1), *a_gang("g", pods=3))
    request = case.request()
    verdict = plan(request)
    assert isinstance(verdict, Refusal)
    event = case.decide()[-1].data
    assert event.outcome == "impossible"
    assert event.exhausted
    assert event.reasons == verdict.reasons
    assert event.help == verdict.relaxations
    assert event.help
    assert event.when_empty == verdict.when_empty == "never"
    assert event.reasons_when_empty == verdict.reasons_when_empty
    assert [c.kind for c in event.conflict] == [c.kind for c in verdict.conflict]
    assert event.conflict
