"""Rounds without a cause outside are counted in a row, and put a tree off longer each time."""

from __future__ import annotations

from typing import get_args

import pytest

from extender.core.admit.readmission_backoff import (
    PAUSE_MS,
    PAUSE_MS_MAX,
    ROUNDS_FREE,
    STABLE_MS,
    Readmissions,
    same_tree,
)
from extender.core.log.events import (
    NewEvent,
    NodeRejected,
    ReleasedPod,
    ReleaseReason,
    ReservationReleased,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName, PlanId
from tests.support.service.fakes import GATED, FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod

EXPIRES_MS = 300_000


class Rounds:
    """A gang of two pods on one node of two, admitted and given back by hand."""

    def __init__(self):
        gang = a_gang("g", pods=2, schedulingGates=GATED)
        self.cluster = FakeCluster(a_node("n0", gpu=2), a_node("n1", gpu=2), *gang)
        self.known = Readmissions(expires_ms=EXPIRES_MS)
        self.now_ms = 1_000

    @property
    def tree(self):
        return next(iter(forest_of(self.cluster.seen).trees.values()))

    def admit(self, node="n0"):
        where = {pod.uid: NodeName(node) for pod in self.tree.pods}
        self.known.admitted(self.cluster.seen, EMPTY, self.tree, where, self.now_ms)
        self.node = NodeName(node)

    def draft(self, event):
        return NewEvent(gang_uid=self.tree.root.uid, gang="default/g", data=event, actor="test")

    def give_back(self, why="node-lost", *, rejected=False, after_ms=10):
        """Release all, and return the pause that follows; None where the tree is not put off."""
        self.now_ms += after_ms
        pods = tuple(ReleasedPod(pod=p.path, uid=p.uid, node=self.node) for p in self.tree.pods)
        drafts = [self.draft(ReservationReleased(plan=PlanId("p"), reason=why, pods=pods))]
        if rejected:
            one = pods[0]
            rejection = NodeRejected(
                pod=one.pod, uid=one.uid, node=one.node, by_shape=True, until_ms=0
            )
            drafts.insert(0, self.draft(rejection))
        view, forest = self.cluster.seen, forest_of(self.cluster.seen)
        found = self.known.released(view, EMPTY, forest, drafts, self.now_ms)
        return found[0].pause_ms if found else None

    def round(self, *args, **rest):
        self.admit()
        return self.give_back(*args, **rest)

    def off(self):
        return self.known.defers(self.cluster.seen, self.tree, self.now_ms)


WHYS = ["node-lost", "superseded", "expired", "node-rejected", "invalid", "deleted"]


@pytest.mark.parametrize("why", WHYS)
def test_pauses_double_after_the_free_rounds(why):
    """The first rounds are free; then 1 s, doubled each time up to 5 minutes, whatever the reason."""
    rounds = Rounds()
    assert [rounds.round(why) for _ in range(ROUNDS_FREE)] == [None] * ROUNDS_FREE
    assert not rounds.off()
    pauses = [rounds.round(why) for _ in range(40)]
    assert pauses == [min(PAUSE_MS << n, PAUSE_MS_MAX) for n in range(40)]


def test_a_pause_ends_with_its_time():
    """A tree is put off until the very millisecond, and known to be so by those who wait for the time."""
    rounds = Rounds()
    pause_ms = [rounds.round() for _ in range(ROUNDS_FREE + 1)][-1]
    begun_ms = rounds.now_ms
    assert rounds.known.ends_after(begun_ms)
    assert not rounds.known.ends_after(begun_ms + pause_ms)
    rounds.now_ms += pause_ms - 1
    assert rounds.off()
    rounds.now_ms += 1
    assert not rounds.off()


def test_an_admission_that_stood_begins_a_new_row():
    """Rounds that are far apart are no loop."""
    rounds = Rounds()
    assert [rounds.round(after_ms=STABLE_MS) for _ in range(10)] == [None] * 10


CAUSES = {
    "its node is cordoned": lambda c: c.change_node("n0", unschedulable=True),
    "its node is gone": lambda c: c.delete_node("n0"),
    "a pod is being deleted": lambda c: c.change_pod("g-0", deleting=True),
    "a pod is gone": lambda c: c.delete_pod("g-0"),
    "the group is being deleted": lambda c: c.change_group("g", deleting=True),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_outside_begins_a_new_row(cause):
    """A change of the node, of a pod or of the group between admission and release is the cause of the release."""
    rounds = Rounds()
    for _ in range(ROUNDS_FREE):
        rounds.round()
    rounds.admit()
    CAUSES[cause](rounds.cluster)
    assert rounds.give_back() is None
    assert rounds.round() is None, "the count has begun anew"


def test_a_change_elsewhere_is_no_cause():
    """Neither another node nor pods that come to the node explain why a node was lost."""
    rounds = Rounds()
    for number in range(ROUNDS_FREE + 1):
        rounds.admit()
        rounds.cluster.change_node("n1", labels={"round": str(number)})
        rounds.cluster.add(a_pod(f"other-{number}", node="n0", requests={"cpu": "1"}))
        pause_ms = rounds.give_back()
    assert pause_ms == PAUSE_MS


def test_pods_that_come_to_the_node_are_a_cause_of_superseded_capacity():
    """Capacity that is given back as superseded was taken by pods that have come since."""
    rounds = Rounds()
    for number in range(ROUNDS_FREE + 3):
        rounds.admit()
        rounds.cluster.add(a_pod(f"other-{number}", node="n0", requests={GPU: 1}))
        assert rounds.give_back("superseded") is None


def test_expiry_and_rejections_have_pauses_of_their_own():
    """An expiry after its time, and a release with a rejection, are not counted, and do not end the row."""
    rounds = Rounds()
    for _ in range(ROUNDS_FREE):
        rounds.round()
    for _ in range(10):
        assert rounds.round("expired", after_ms=EXPIRES_MS) is None
        assert rounds.round("node-rejected", rejected=True) is None
    assert rounds.round() == PAUSE_MS


def test_what_we_and_kube_scheduler_write_is_no_change():
    """Nominations, our gate, conditions and the words of kube-scheduler leave a tree the same; its pods do not."""
    rounds = Rounds()
    before, cluster = rounds.tree, rounds.cluster
    cluster.change_pod("g-0", nominated=NodeName("n0"), gates=(), resource_version="7")
    cluster.change_pod("g-1", unschedulable="0/2 nodes are available")
    cluster.change_group("g", conditions=(("T", "False", "R", "m"),), resource_version="8")
    assert same_tree(before, rounds.tree)
    cluster.change_pod("g-0", gates=("example.com/other",))
    assert not same_tree(before, rounds.tree)
    assert not same_tree(before, None)


def test_what_is_known_of_trees_that_are_gone_is_forgotten():
    """Memory is bounded by the trees that are there."""
    rounds = Rounds()
    for _ in range(ROUNDS_FREE + 1):
        rounds.round()
    rounds.admit()
    rounds.known.keep(EMPTY)
    assert rounds.give_back() is None
    assert not rounds.off()


def test_every_release_reason_is_tried():
    """A reason that is new must be given a rule here and in `readmissions`."""
    assert set(get_args(ReleaseReason)) == {*WHYS, "bound"}
