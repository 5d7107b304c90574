"""A refusal is believed when the node has rested, or when it never rests; not while other pods explain it."""

from __future__ import annotations

import pytest

from extender.core.admit.node_rejections import (
    RESTLESS_CALLS,
    RESTLESS_MS,
    SETTLED_MS,
    RejectionEvidence,
)
from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GroupRecord,
    PreemptionPlanned,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import EMPTY, reservations_on
from extender.core.model.ids import NodeName, PlanId
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.unit.core.support import folded

REFUSED = "0/1 nodes are available: 1 node(s) had a taint."
OURS = "0/1 nodes are available: 1 gang default/g: waiting for members."


class Scene:
    """One member of one GPU, reserved on n0; `before` is the message of kube-scheduler before the nomination."""

    def __init__(self, before="", topo=""):
        self.cluster = FakeCluster(
            a_node("n0", {"rack": "a"}, gpu=4),
            a_node("n1", {"rack": "a"}, gpu=4),
            a_node("n2", {"rack": "b"}, gpu=4),
            *a_gang("g", pods=1, requests={GPU: 1, "cpu": 1}, topo=topo),
        )
        group, pod = self.cluster.group("g"), self.cluster.pod("g-0")
        seen = GangObserved(kind="PodGroup")
        event = GangAdmitted(
            plan=PlanId("plan"),
            kind="PodGroup",
            priority=0,
            groups=(GroupRecord(kind="PodGroup", name="g", parent="", minimum=1, uid=group.uid),),
            shapes=({GPU: 1, "cpu": 1000, "pods": 1},),
            assignments=(
                AssignmentRecord(
                    pod="default/g-0", uid=pod.uid, group="g", node=NodeName("n0"), extra=False
                ),
            ),
        )
        self.state = folded(EMPTY, (group.uid, "default/g", seen), (group.uid, "default/g", event))
        self.uid = pod.uid
        self.found = RejectionEvidence()
        self.passing = 0
        if before:
            self.set_message(before)
        self.found.note_messages(self.cluster.view(), self.state)
        self.nominate()

    def nominate(self):
        self.cluster.change_pod("g-0", nominated=NodeName("n0"))

    def set_message(self, message):
        self.cluster.change_pod("g-0", unschedulable=message)

    def see(self, now_ms, offered=(), message=REFUSED, *, native=True):
        if offered:
            reservation = reservations_on(self.state, NodeName("n0"))[self.uid]
            self.found.suspect(
                self.cluster.view(), reservation, now_ms, offered=offered, native=native
            )
            return
        self.set_message(message)
        self.listen(now_ms)

    def accept(self, now_ms):
        """A filter call comes with the planned node."""
        self.found.accept(reservations_on(self.state, NodeName("n0"))[self.uid], now_ms)

    def listen(self, now_ms, at_bind=False):
        self.found.listen(self.cluster.view(), self.state, lambda uid: at_bind, now_ms)

    def believed(self, now_ms):
        return bool(self.found.confirmed(self.cluster.view(), self.state, now_ms))

    def pass_by(self, **requests):
        """Another pod comes to the node."""
        self.passing += 1
        self.cluster.add(a_pod(f"other-{self.passing}", node="n0", requests=requests or {"cpu": 1}))


def test_it_is_believed_when_nothing_has_changed_for_a_while():
    scene = Scene()
    scene.see(0)
    assert not scene.believed(SETTLED_MS - 1)
    assert scene.believed(SETTLED_MS)


@pytest.mark.parametrize(
    "message",
    [
        "pod group is unschedulable, 0/1 placements are available, first placement status: "
        "minCount (16) cannot be satisfied: 0 scheduled, 15 remaining",
        "no nodes available to schedule pods",
        OURS,
    ],
)
def test_a_message_about_the_whole_group_is_no_evidence_about_a_node(message):
    """With its own group scheduling on kube-scheduler writes to all members when one of them finds no node."""
    scene = Scene()
    scene.see(0, message=message)
    scene.listen(60_000)
    assert not scene.believed(60_000)
    scene.see(61_000, message=REFUSED)
    scene.listen(63_000)
    assert scene.believed(63_000)


@pytest.mark.parametrize(
    ("topo", "offered", "believed"),
    [
        ("rack", ["n2"], False),  # another rack: kube-scheduler tries the group there too
        ("rack", ["n1", "n2"], True),  # the planned rack, without the planned node
        ("", ["n2"], True),  # a group without topology is tried once
        ("zone", ["n2"], True),  # no node has this label
    ],
)
def test_a_call_for_another_domain_after_the_node_was_offered_is_no_evidence(
    topo, offered, believed
):
    scene = Scene(topo=topo)
    names = [NodeName(name) for name in offered]
    scene.accept(0)
    scene.see(10, offered=names)
    assert scene.believed(RESTLESS_MS - 1) == believed
    assert bool(scene.found.hints(scene.cluster.seen)) == believed


def test_a_node_that_is_not_offered_any_more_is_suspected_in_every_domain():
    """When its own domain is not even asked about, as no node of it is left, calls for others are all the evidence."""
    scene = Scene(topo="rack")
    scene.see(0, offered=[NodeName("n2")])
    assert scene.believed(RESTLESS_MS)
    scene = Scene(topo="rack")
    scene.accept(0)
    scene.see(RESTLESS_MS - 1, offered=[NodeName("n2")])
    assert not scene.believed(3 * RESTLESS_MS)
    scene.see(3 * RESTLESS_MS, offered=[NodeName("n2")])
    assert scene.believed(4 * RESTLESS_MS)


@pytest.mark.parametrize("native", [True, False])
def test_a_call_for_another_domain_before_the_one_for_the_planned_domain(native):
    """kube-scheduler may begin with another domain, and take its time: with its own group scheduling on."""
    scene = Scene(topo="rack")
    for now_ms in range(6):
        scene.see(now_ms, offered=[NodeName("n2")], native=native)
    assert scene.believed(SETTLED_MS) == (not native)
    assert scene.believed(RESTLESS_MS) == native
    scene = Scene(topo="rack")
    scene.see(0, offered=[NodeName("n2")], native=native)
    scene.see(SETTLED_MS - 1, offered=[NodeName("n1")], native=native)
    assert scene.believed(2 * SETTLED_MS), "the planned domain without the planned node"


def test_a_change_on_the_node_asks_for_another_sight():
    scene = Scene()
    scene.see(0)
    scene.pass_by()
    assert not scene.believed(SETTLED_MS)
    assert not scene.believed(5 * SETTLED_MS)
    scene.see(6 * SETTLED_MS)
    assert not scene.believed(7 * SETTLED_MS - 1)
    assert scene.believed(7 * SETTLED_MS)


@pytest.mark.parametrize("seen_again", [False, True])
def test_it_is_believed_on_a_node_that_never_rests(seen_again):
    """Pods come twice a second: no second without a change, and the gang must not wait for one."""
    scene = Scene()
    scene.see(0)
    for now_ms in range(500, RESTLESS_MS, 500):
        scene.pass_by()
        if seen_again:
            scene.see(now_ms)
        assert not scene.believed(now_ms)
    scene.pass_by()
    assert scene.believed(RESTLESS_MS)


def test_kube_scheduler_is_believed_sooner_when_it_insists():
    """Each filter call without the node is a fresh refusal; five over the usual time need no rest."""
    scene = Scene()
    for call in range(RESTLESS_CALLS):
        scene.see(call * 10, offered=[NodeName("n1")])
        scene.pass_by()
        assert not scene.believed(call * 10), "five in a moment are one"
    assert not scene.believed(SETTLED_MS - 1)
    assert scene.believed(SETTLED_MS)


def test_who_insisted_before_the_capacity_was_taken_begins_anew():
    """Refusals from before other pods explained them do not count."""
    scene = Scene()
    for call in range(RESTLESS_CALLS):
        scene.see(call, offered=[NodeName("n1")])
    scene.pass_by(**{GPU: 4})
    assert not scene.believed(100)
    scene.cluster.delete_pod("other-1")
    scene.see(200, offered=[NodeName("n1")])
    scene.pass_by()
    assert not scene.believed(200 + SETTLED_MS)


def test_pods_that_take_the_capacity_explain_it():
    """As soon as our own model shows that the member does not fit, the refusal is no evidence."""
    scene = Scene()
    scene.see(0)
    scene.pass_by(**{GPU: 4})
    assert not scene.believed(100)
    scene.cluster.delete_pod("other-1")
    assert not scene.believed(RESTLESS_MS)


def test_a_message_from_before_the_nomination_is_no_evidence_yet():
    """kube-scheduler may not have tried again; after its longest back-off it has, and found the same words."""
    scene = Scene(before=REFUSED)
    for now_ms in range(0, RESTLESS_MS, 500):
        scene.listen(now_ms)
        assert not scene.believed(now_ms)
    assert scene.believed(RESTLESS_MS)


@pytest.mark.parametrize("before", [OURS, "0/1 nodes are available: 1 Insufficient cpu."])
def test_other_words_after_the_nomination_are_evidence(before):
    """Then it has tried again; the usual time counts from there."""
    scene = Scene(before=before)
    scene.listen(0)
    scene.listen(5_000)
    assert not scene.believed(5_000)
    scene.see(5_000)
    assert not scene.believed(5_000 + SETTLED_MS - 1)
    assert scene.believed(5_000 + SETTLED_MS)


def test_the_old_message_after_another_one_is_evidence():
    """Capacity came and went meanwhile: it has tried since."""
    scene = Scene(before=REFUSED)
    scene.listen(0)
    scene.see(100, message="0/1 nodes are available: 1 Insufficient cpu.")
    scene.see(200)
    assert scene.believed(100 + SETTLED_MS)


def test_an_attempt_that_ends_while_the_nomination_is_on_its_way_is_no_evidence():
    scene = Scene()
    scene.cluster.change_pod("g-0", nominated=None)
    scene.set_message(REFUSED)
    scene.listen(0)
    scene.nominate()
    scene.listen(10)
    assert not scene.believed(SETTLED_MS + 10)


def test_a_filter_call_is_evidence_whatever_the_message():
    scene = Scene(before=REFUSED)
    scene.listen(0)
    scene.see(1_000, offered=[NodeName("n1")])
    scene.listen(1_500)
    assert not scene.believed(1_000 + SETTLED_MS - 1)
    assert scene.believed(1_000 + SETTLED_MS)


def test_who_is_at_bind_got_through():
    scene = Scene()
    scene.set_message(REFUSED)
    scene.listen(0, at_bind=True)
    assert not scene.believed(RESTLESS_MS)


@pytest.mark.parametrize("above", [True, False], ids=["equal", "lower"])
def test_a_preemptor_nominated_where_its_victim_still_sits_explains_it(above):
    """kube-scheduler counts victim and nominated member both, so the node is full for who is not above them."""
    scene = Scene()
    scene.cluster.add(
        a_pod("victim", node="n0", requests={GPU: 3}),
        *a_gang("p", pods=1, requests={GPU: 3, "cpu": 1}),
    )
    victim, wanted = scene.cluster.pod("victim"), scene.cluster.pod("p-0")
    gone = VictimPod(pod=victim.path, uid=victim.uid, node=NodeName("n0"))
    plan = PreemptionPlanned(
        preemption=PlanId("p"),
        kind="PodGroup",
        priority=0 if above else -1,
        victims=(VictimUnit(kind="Pod", path="x", uid="x", priority=-2, pods=(gone,)),),
        cost={},
        alternatives=(),
        shapes=({GPU: 3, "cpu": 1000, "pods": 1},),
        assignments=(
            AssignmentRecord(pod=wanted.path, uid=wanted.uid, group="p", node=NodeName("n0")),
        ),
    )
    scene.state = folded(scene.state, (scene.cluster.group("p").uid, "default/p", plan))
    scene.see(0)
    assert scene.believed(SETTLED_MS) != above
    scene.cluster.delete_pod("victim")
    scene.see(2 * SETTLED_MS)
    assert scene.believed(3 * SETTLED_MS), (
        "the hold is no explanation any more: there is capacity for both"
    )
