"""An answer of the search for victims, and a cluster that has changed while it ran."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from extender.core.planner.planning import plan
from extender.core.planner.preempt.victim_search import PreemptionPlan, preempt
from extender.core.preempt.preemption_planning import preemption_still_holds
from tests.support.hypothesis_profile import examples
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod
from tests.unit.core.preempt.test_disruption_units import gang
from tests.unit.core.preempt.test_preemption_takeover import ONE, Two, stories


def shared_victims():
    """Return a cluster in which `mid` evicts a gang that runs on two nodes, and what `other` then plans with the rest."""
    case = Two(
        a_node("n0", gpu=1),
        a_node("n1", gpu=1),
        a_node("n2", gpu=0),
        a_group("low", gang=2, whole=True, priority=1),
        *(a_pod(f"low-{n}", "low", node=f"n{n}", requests=ONE, priority=1) for n in range(2)),
        *gang("mid", 1, 50, requests=ONE),
        *gang("other", 1, 50, requests=ONE),
    )
    found, _ = case.ask("mid")
    assert [unit.name for unit in found.victims] == ["PodGroup/default/low"]
    asked = case.request_of("other")
    found = preempt(asked)
    assert [unit.name for unit in found.victims] == ["PodGroup/default/low"]
    return case, asked, found


def holds(case, asked, found, name="other"):
    return preemption_still_holds(asked, found, case.request_of(name), case.view, plan)


def terminates(case):
    case.cluster.change_pod("low-0", deleting=True)


def all_terminate(case):
    terminates(case)
    case.cluster.change_pod("low-1", deleting=True)


def is_gone(case):
    case.cluster.delete_pod("low-0")


def all_are_gone(case):
    is_gone(case)
    case.cluster.delete_pod("low-1")


@pytest.mark.parametrize(
    "change", [lambda _: None, terminates, all_terminate, is_gone, all_are_gone]
)
def test_victims_of_another_preemption_may_leave_meanwhile(change):
    """Else no other tree could preempt while victims terminate: a search takes longer than the next one of them."""
    case, asked, found = shared_victims()
    change(case)
    assert holds(case, asked, found)


def runs_elsewhere(case):
    is_gone(case)
    case.cluster.add(a_pod("low-0", "low", uid="again", node="n2", priority=1))


def is_more_important(case):
    case.cluster.change_group("low", priority=60)


def has_lost_its_node(case):
    all_are_gone(case)
    case.cluster.delete_node("n1")


def capacity_is_taken(case):
    all_are_gone(case)
    case.cluster.add(a_pod("alone", node="n1", requests=ONE, priority=100))


@pytest.mark.parametrize(
    "change", [runs_elsewhere, is_more_important, has_lost_its_node, capacity_is_taken]
)
def test_other_changes_of_victims_or_nodes_need_a_new_search(change):
    """A unit with another pod is another unit; capacity that another pod has is not there for the tree."""
    case, asked, found = shared_victims()
    change(case)
    assert not holds(case, asked, found)


def two_needed_victims():
    """Return a cluster in which `other` of two pods evicts two, and what it plans; a third pod is more important."""
    case = Two(
        *(a_node(f"n{n}", gpu=1) for n in range(3)),
        *(a_pod(f"low-{n}", node=f"n{n}", requests=ONE, priority=1) for n in range(2)),
        a_pod("high", node="n2", requests=ONE, priority=90),
        *gang("other", 2, 50, requests=ONE),
    )
    asked = case.request_of("other")
    answer = preempt(asked)
    assert [unit.name for unit in answer.victims] == ["Pod/default/low-0", "Pod/default/low-1"]
    return case, asked, answer


def a_node_joins(case):
    case.cluster.add(a_node("n3", gpu=1))


def a_pod_ends(case):
    case.cluster.delete_pod("high")


def a_pod_terminates(case):
    case.cluster.change_pod("high", deleting=True)


@pytest.mark.parametrize("change", [a_node_joins, a_pod_ends, a_pod_terminates])
def test_a_victim_may_have_become_unnecessary(change):
    """By capacity for one of the two that the search did not count, free or that of a pod that is leaving (E-2)."""
    case, asked, answer = two_needed_victims()
    assert holds(case, asked, answer)
    change(case)
    assert not holds(case, asked, answer)
    assert len(preempt(case.request_of("other")).victims) == 1


def test_capacity_that_spares_no_victim_changes_nothing():
    case, asked, answer = two_needed_victims()
    case.cluster.add(a_node("n3", gpu=0))
    assert holds(case, asked, answer)


def test_extras_keep_victims_for_as_many():
    """Beyond the minimum a plan for fewer members is not enough: the search was for as many as can be."""
    case, _, _ = two_needed_victims()
    case.cluster.add(
        a_node("n4", gpu=1),
        a_group("grown", gang=1, priority=50),
        *(
            a_pod(f"grown-{n}", "grown", node=node, requests=ONE, priority=50)
            for n, node in enumerate(["n4", None, None])
        ),
    )
    asked = case.request_of("grown")
    answer = preempt(asked)
    assert [a.extra for a in answer.plan.assignments] == [True, True]
    assert len(answer.victims) == 2
    case.cluster.add(a_node("n5", gpu=0))
    assert holds(case, asked, answer, "grown")
    case.cluster.add(a_node("n6", gpu=1))
    assert not holds(case, asked, answer, "grown")


@examples(100, quick=10)
@given(stories())
def test_an_answer_that_still_holds_promises_nothing_twice(story):
    """Whichever victims of the other preemption have left while the search ran."""
    case, fates = story
    _, drafts = case.ask("mid")
    assume(drafts)
    asked = case.request_of("high")
    found = preempt(asked)
    assume(isinstance(found, PreemptionPlan))
    victims = sorted(case.pending("mid").victims.values(), key=lambda v: v.pod)
    for victim, fate in zip(victims, fates, strict=False):
        name = victim.pod.partition("/")[2]
        if fate == "terminates":
            case.cluster.change_pod(name, deleting=True)
        elif fate == "gone":
            case.cluster.delete_pod(name)
    assert holds(case, asked, found, "high"), "nothing but victims has left"
    case.record("high", asked, found)
    assert case.too_much() == []
    planned = {a.node for a in found.plan.assignments}
    assert set(case.pending("high").claims) == planned
    assert all(case.view.nodes[node].allocatable[GPU] for node in planned)
