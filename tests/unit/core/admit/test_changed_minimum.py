"""`minGroupCount` changes while a tree waits or runs: lower admits it, higher takes nothing from what runs (L26)."""

from __future__ import annotations

from extender.core.admit.verdict_events import ComparedNodes, would_be_refused
from extender.core.log.events import GangAdmitted
from extender.core.log.gang_phase import missing
from extender.core.model.ids import NodeName
from extender.core.planner.plan_types import Plan, Refusal
from extender.core.planner.planning import plan
from extender.core.reconcile.reconciliation import Reconciliation
from tests.support.service.fakes import forest_of
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod
from tests.unit.core.admit.test_verdict_events import Case
from tests.unit.core.support import ME, fold_drafts


def a_leaf(name):
    """Make a gang of one pod below the root."""
    return [a_group(name, gang=1, parent="root"), a_pod(f"{name}-0", name, requests={GPU: 1})]


class Tree(Case):
    """A root with leaves of one pod, on nodes of one device."""

    def __init__(self, *, minimum, leaves, nodes):
        super().__init__(
            *(a_node(f"n{i}", gpu=1) for i in range(nodes)),
            a_group("root", gang=minimum, composite=True),
            *(thing for name in leaves for thing in a_leaf(name)),
        )

    @property
    def root(self):
        return self.state.gangs[self.tree.root.uid]

    def reconcile(self):
        """Record what the cluster shows; return the names of the events."""
        view = self.cluster.seen
        drafts = Reconciliation().decide(view, self.state, forest_of(view), ME)
        self.state = fold_drafts(self.state, drafts)
        return [type(draft.data).__name__ for draft in drafts]

    def bind(self):
        """Bind every reserved member, as its node shows it."""
        for reservation in list(self.root.reservations.values()):
            name = reservation.pod.partition("/")[2]
            self.cluster.change_pod(name, node=NodeName(reservation.node), phase="Running")
        return self.reconcile()


def scheduled():
    """Return a tree of two leaves that runs with its minimum of two, and one free node."""
    tree = Tree(minimum=2, leaves="ab", nodes=3)
    assert tree.step() == ["GangObserved", "GangAdmitted"]
    assert tree.bind() == ["PodBound", "PodBound", "GangScheduled"]
    return tree


def test_a_lower_minimum_is_another_question_and_admits():
    """The refusal of three does not hold for two, with the same nodes."""
    tree = Tree(minimum=3, leaves="abc", nodes=2)
    refused = tree.request()
    assert tree.step() == ["GangObserved", "GangUnschedulable"]
    assert would_be_refused(refused, tree.request(), ComparedNodes())
    tree.cluster.change_group("root", minimum=2)
    assert not would_be_refused(refused, tree.request(), ComparedNodes())
    drafts = tree.decide()
    assert [type(draft.data) for draft in drafts] == [GangAdmitted]
    assert [g.minimum for g in drafts[0].data.groups] == [2, 1, 1, 1]
    assert len(drafts[0].data.assignments) == 2


def test_a_lower_minimum_admits_a_tree_that_waited_for_a_group():
    """Three are required and two exist: with two required, nothing is missing."""
    tree = Tree(minimum=3, leaves="ab", nodes=2)
    assert tree.step() == ["GangObserved", "GangUnschedulable"]
    assert tree.root.last_decision.outcome == "waiting"
    tree.cluster.change_group("root", minimum=2)
    assert tree.step() == ["GangAdmitted"]


def test_a_higher_minimum_takes_nothing_from_a_tree_that_runs():
    """Nothing is released, evicted or planned; the tree stays scheduled. Its new minimum is recorded."""
    tree = scheduled()
    tree.cluster.change_group("root", minimum=3)
    assert tree.reconcile() == ["GangGroupsChanged"]
    assert (tree.root.phase, len(tree.root.bound)) == ("scheduled", 2)
    assert tree.request().root.minimum == 3


def test_what_a_higher_minimum_requires_is_planned_when_it_exists():
    """The third leaf comes: it is placed on the free node, and the next unit of the barrier is the new minimum."""
    tree = scheduled()
    tree.cluster.change_group("root", minimum=3)
    tree.cluster.add(*a_leaf("c"))
    assert tree.step() == ["GangExtended"]
    assert [r.pod for r in tree.root.reservations.values()] == ["default/c-0"]
    assert tree.root.groups[0].minimum == 3
    assert missing(tree.root.groups, {"a": 1, "b": 1, "c": 1}) == 0
    assert tree.bind() == ["PodBound"]
    assert (tree.root.phase, len(tree.root.bound)) == ("scheduled", 3)


def test_what_a_higher_minimum_requires_may_not_fit_and_the_rest_goes_on():
    """The new leaf waits with a reason; the two that run are not touched, now and after each pass."""
    tree = scheduled()
    tree.cluster.delete_node("n2")
    tree.cluster.add(*a_leaf("c"))
    tree.cluster.change_group("root", minimum=3)
    request = tree.request()
    assert isinstance(plan(request), Refusal)
    assert tree.step() == ["GangUnschedulable"]
    assert tree.reconcile() == ["GangGroupsChanged"]
    assert (tree.root.phase, len(tree.root.bound)) == ("scheduled", 2)
    tree.cluster.change_group("root", minimum=2)
    tree.cluster.add(a_node("n3", gpu=1))
    assert isinstance(plan(tree.request()), Plan)
    assert tree.step() == ["GangExtended"]


def test_a_higher_minimum_before_the_first_bind_keeps_the_admission():
    """Reservations are of the minimum they were planned for: none is released, and their barrier waits for no more."""
    tree = Tree(minimum=2, leaves="ab", nodes=3)
    tree.step()
    tree.cluster.change_group("root", minimum=3)
    assert tree.reconcile() == []
    assert len(tree.root.reservations) == 2
    assert missing(tree.root.groups, {"a": 1, "b": 1}) == 0
    assert tree.bind() == ["PodBound", "PodBound", "GangScheduled"]
