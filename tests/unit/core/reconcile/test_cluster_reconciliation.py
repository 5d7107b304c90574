"""What the cluster shows becomes events, each once, and deciding again comes to rest."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.core.log.events import (
    AssignmentRecord,
    DriftDetected,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GroupRecord,
    MemberTerminated,
    PodBound,
    ReservationReleased,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import GangUid, NodeName, PlanId
from extender.core.model.nodes import Taint
from extender.core.model.pods import SUCCEEDED, PodEnd
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from extender.core.reconcile.reservation_checks import oversubscribed_on
from extender.queries.state.gang_status import gang_status
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.core.support import ME, check_prefixes, folded


def admitted(state, cluster, name, where, *, minimum=None, priority=0, at_us=0):
    """Fold the admission of a flat gang: pod -> node."""
    group = cluster.group(name)
    event = GangAdmitted(
        plan=PlanId(f"plan-{name}"),
        kind="PodGroup",
        priority=priority,
        groups=(GroupRecord(kind="PodGroup", name=name, minimum=minimum or len(where)),),
        shapes=({GPU: 1, "cpu": 1000, "pods": 1},),
        assignments=tuple(
            AssignmentRecord(
                pod=f"default/{pod}", uid=cluster.pod(pod).uid, group=name, node=NodeName(node)
            )
            for pod, node in where.items()
        ),
    )
    root = (group.uid, f"default/{name}")
    return folded(state, (*root, GangObserved(kind="PodGroup")), (*root, event), at_us=at_us)


class Scene:
    """A gang of `pods` on two nodes of 4 GPUs, admitted."""

    def __init__(self, pods=2, minimum=None):
        self.cluster = FakeCluster(
            a_node("n0", gpu=4), a_node("n1", gpu=4), *a_gang("g", pods=pods, minimum=minimum)
        )
        where = {f"g-{n}": f"n{n % 2}" for n in range(pods)}
        self.state = admitted(EMPTY, self.cluster, "g", where, minimum=minimum)
        self.uid = self.cluster.group("g").uid
        self.names = tuple(where)
        self._uids = {name: self.cluster.pod(name).uid for name in where}

    def decide(self, now=ME):
        """Return the events and fold them, after checking that every prefix of them is sound."""

        def once(state):
            return Reconciliation().decide(
                self.cluster.seen, state, forest_of(self.cluster.seen), now
            )

        events = [draft.data for draft in once(self.state)]
        self.state = check_prefixes(self.state, once)
        return events

    def state_uid(self, name):
        """Return the UID of a member, which may be gone."""
        return self._uids[name]

    @property
    def root(self):
        return self.state.gangs[self.uid]

    def bind(self, *names, node=None):
        for name in names:
            where = node or self.root.reservations[self.cluster.pod(name).uid].node
            self.cluster.change_pod(name, node=NodeName(where), phase="Running")


def kinds(events):
    return [type(event).__name__ for event in events]


def test_agreement_needs_no_event():
    """An admission and a cluster that shows its pods pending need no event."""
    assert Scene().decide() == []


def test_a_bound_member_is_recorded_and_a_whole_minimum_once():
    """PodBound per member; GangScheduled when the minimum is bound, and never again."""
    scene = Scene(pods=3, minimum=2)
    scene.bind("g-0")
    assert kinds(scene.decide()) == ["PodBound"]
    scene.bind("g-1")
    events = scene.decide()
    assert kinds(events) == ["PodBound", "GangScheduled"]
    assert events[1] == GangScheduled(plan=PlanId("plan-g"), bound=2)
    scene.bind("g-2")
    assert kinds(scene.decide()) == ["PodBound"]
    scene.cluster.delete_pod("g-0")
    scene.cluster.delete_pod("g-1")
    scene.decide()
    assert scene.root.phase == "scheduled"


def test_the_satisfying_bind_and_the_satisfaction_come_together():
    """All members bound between two looks give all PodBound and one GangScheduled in one decision."""
    scene = Scene(pods=4)
    scene.bind("g-0", "g-1", "g-2", "g-3")
    assert kinds(scene.decide()) == ["PodBound"] * 4 + ["GangScheduled"]
    assert (len(scene.root.reservations), len(scene.root.bound)) == (0, 4)


def test_a_member_bound_elsewhere_is_drift():
    """PodBound has its node, DriftDetected the node of its reservation; the capacity there is free again."""
    scene = Scene()
    scene.bind("g-0", node="n1")
    events = scene.decide()
    assert kinds(events) == ["PodBound", "DriftDetected"]
    assert events[0].node == "n1"
    assert events[1].kind == "bound-elsewhere"
    assert NodeName("n0") not in scene.state.claims_on


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (lambda c: c.delete_pod("g-0"), "unknown"),
        (lambda c: c.change_pod("g-0", deleting=True), "deleted"),
        (lambda c: c.delete_node("n0"), "node-lost"),
        (
            lambda c: c.change_pod("g-0", deleting=True, disruption_target="PreemptionByScheduler"),
            "preempted",
        ),
        (
            lambda c: c.change_pod("g-0", deleting=True, disruption_target="EvictionByEvictionAPI"),
            "evicted",
        ),
        (
            lambda c: c.change_pod(
                "g-0", deleting=True, disruption_target="DeletionByTaintManager"
            ),
            "evicted",
        ),
        (lambda c: c.change_pod("g-0", deleting=True, disruption_target="SomethingNew"), "deleted"),
    ],
    ids=["gone", "deleted", "node-lost", "preempted", "evicted", "tainted", "new"],
)
def test_a_lost_member_is_recorded_with_its_cause(loss, cause):
    """MemberTerminated: gone from the cluster, deleted, or its node is lost; once each."""
    scene = Scene()
    scene.bind("g-0", "g-1")
    scene.decide()
    loss(scene.cluster)
    lost = [event for event in scene.decide() if isinstance(event, MemberTerminated)]
    assert [(event.pod, event.cause) for event in lost] == [("default/g-0", cause)]
    assert scene.decide() == []


def test_a_pod_that_outlives_its_node_is_lost_once():
    """The pod object stays for minutes after its node; it is not found and lost again for ever."""
    scene = Scene()
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.delete_node("n0")
    assert kinds(scene.decide()) == ["MemberTerminated"]
    assert scene.decide() == []


def test_deleted_before_anything_is_bound_releases_the_whole_tree():
    """Without one of its minimum nothing is worth holding: the gang is planned again as a whole."""
    scene = Scene(pods=3)
    scene.cluster.delete_pod("g-1")
    events = scene.decide()
    assert [f.reason for f in events] == ["deleted"]
    assert [p.pod for p in events[0].pods] == ["default/g-0", "default/g-1", "default/g-2"]
    assert events[0].message == (
        "the minimum of the tree no longer holds: deleted before it was bound: default/g-1"
    )
    assert (scene.root.phase, len(scene.root.reservations)) == ("observed", 0)


def test_a_deleted_extra_is_released_alone():
    """As long as the rest meets the minimum only the missing pod's capacity is given back."""
    scene = Scene(pods=3, minimum=2)
    scene.cluster.delete_pod("g-2")
    events = scene.decide()
    assert [[p.pod for p in f.pods] for f in events] == [["default/g-2"]]
    assert len(scene.root.reservations) == 2


def test_a_member_that_ended_before_it_was_seen_running_was_bound_all_the_same():
    """The API server took our Binding, the kubelet refused: bound and lost, not deleted before it was bound."""
    scene = Scene(pods=2)
    uid = scene.cluster.pod("g-0").uid
    scene.cluster.delete_pod("g-0")
    now = ReconcileContext(
        actor="t",
        cause="t",
        started=frozenset({scene.uid}),
        binding=frozenset({uid}),
        posted=frozenset({uid}),
    )
    bound, lost = scene.decide(now)
    assert isinstance(bound, PodBound)
    assert isinstance(lost, MemberTerminated)
    assert (bound.pod, lost.pod, lost.cause) == ("default/g-0", "default/g-0", "unknown")
    assert (bound.node, lost.node) == ("n0", "n0")
    assert [r.pod for r in scene.root.reservations.values()] == ["default/g-1"]
    assert scene.decide(now) == []


def begins(scene, **ends):
    """Return the context of a leader that finds the gang of an earlier one; `ends`: the answers of the API server."""
    uids = {name: scene.state_uid(name) for name in scene.names}
    return msgspec.structs.replace(
        ME,
        unwatched=frozenset(u for u in uids.values() if u not in scene.cluster.seen.pods),
        ends={uids[name.replace("_", "-")]: end for name, end in ends.items()},
    )


SUCCESS = PodEnd("ended", SUCCEEDED, "n0")


def test_members_that_an_earlier_leader_bound_and_that_have_succeeded_make_the_gang_complete():
    """They are bound, the gang is scheduled, and they end: their reservations were used."""
    scene = Scene(pods=2)
    for name in scene.names:
        scene.cluster.delete_pod(name)
    events = scene.decide(begins(scene, g_0=SUCCESS, g_1=PodEnd("ended", SUCCEEDED, "n1")))
    assert kinds(events) == [
        "PodBound",
        "PodBound",
        "GangScheduled",
        "MemberTerminated",
        "MemberTerminated",
    ]
    assert [f.node for f in events[:2]] == ["n0", "n1"]
    assert gang_status(scene.root).state == "completed"


@pytest.mark.parametrize("removed", [False, True])
def test_a_member_that_ended_unrecorded_on_another_node_than_the_reserved_one_is_drift(removed):
    """As one that runs there, also when its group is gone: it is bound where it ran, and the difference is recorded once."""
    scene = Scene(pods=2)
    scene.cluster.delete_pod("g-0")
    if removed:
        scene.cluster.delete_pod("g-1")
        scene.cluster.delete_group("g")
    before = scene.root.reservations[scene.state_uid("g-0")].node
    events = scene.decide(begins(scene, g_0=PodEnd("ended", SUCCEEDED, "n1")))
    bound = next(data for data in events if isinstance(data, PodBound))
    (drift,) = (data for data in events if isinstance(data, DriftDetected))
    assert (before, bound.pod, bound.node) == ("n0", "default/g-0", "n1")
    assert (drift.kind, drift.object) == ("bound-elsewhere", "Pod/default/g-0")
    assert drift.message == "bound to n1, its capacity was reserved on n0"
    lost = next(data for data in events if isinstance(data, MemberTerminated))
    assert (lost.pod, lost.node) == ("default/g-0", "n1")
    assert not any(isinstance(data, DriftDetected) for data in scene.decide(begins(scene)))


def test_what_is_not_known_of_a_member_that_is_gone_is_in_the_message():
    """One has ended on a node, one is gone without a trace: only the second is released, as not known."""
    scene = Scene(pods=2)
    for name in scene.names:
        scene.cluster.delete_pod(name)
    bound, released, lost = scene.decide(
        begins(scene, g_0=PodEnd("ended", "Failed", "n0"), g_1=PodEnd("deleted"))
    )
    assert (bound.pod, lost.pod, lost.cause) == ("default/g-0", "default/g-0", "ended")
    assert (released.reason, [p.pod for p in released.pods]) == ("deleted", ["default/g-1"])
    assert released.message == (
        "gone when this leader first looked, and whether it was bound is not known: default/g-1"
    )


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_the_root_and_its_members_went_while_there_was_no_leader(again):
    """Bound in the log, bound by an earlier leader, waiting: each is what it was, and the root is removed last."""
    scene = Scene(pods=4)
    scene.bind("g-0")
    scene.decide()
    now_gone = [*scene.names[:3]]
    uids = [scene.state_uid(name) for name in scene.names]
    for name in now_gone:
        scene.cluster.delete_pod(name)
    scene.cluster.delete_group("g")
    if again:
        scene.cluster.add(a_group("g", metadata={"uid": "again"}))
    ends = {"g_0": PodEnd("deleted"), "g_1": PodEnd("deleted", node="n1"), "g_2": PodEnd("deleted")}
    asked = msgspec.structs.replace(begins(scene), awaited=frozenset(uids[:3]), ends={})
    first = scene.decide(asked)
    assert [[p.pod for p in f.pods] for f in first] == [["default/g-3"]]
    assert first[0].message.endswith("PodGroup/default/g was deleted")
    events = scene.decide(begins(scene, **ends))
    assert [(type(f).__name__, getattr(f, "pod", "")) for f in events] == [
        ("PodBound", "default/g-1"),
        ("MemberTerminated", "default/g-0"),
        ("MemberTerminated", "default/g-1"),
        ("ReservationReleased", ""),
        ("GangRemoved", ""),
    ]
    assert [p.pod for p in events[3].pods] == ["default/g-2"]
    assert "whether it was bound is not known" in events[3].message
    assert scene.uid not in scene.state.gangs


def test_a_root_that_goes_while_its_members_run_ends_without_an_end_of_theirs():
    """They run on: they are not terminated, and one that was bound just now is recorded."""
    scene = Scene(pods=2)
    scene.bind("g-0")
    scene.decide()
    scene.bind("g-1")
    scene.cluster.delete_group("g")
    assert kinds(scene.decide()) == ["PodBound", "GangRemoved"]


def test_a_reservation_whose_lifetime_is_over_was_not_left_unused_by_a_pod_that_is_gone():
    """After a long stop: the pod that waits did not use it in time; of the other that is not known."""
    scene = Scene(pods=2)
    uid = scene.uid
    scene.cluster.delete_pod("g-1")
    now = msgspec.structs.replace(begins(scene, g_1=PodEnd("deleted")), expired=frozenset({uid}))
    expired, gone = scene.decide(now)
    assert (expired.reason, [p.pod for p in expired.pods]) == ("expired", ["default/g-0"])
    assert (gone.reason, [p.pod for p in gone.pods]) == ("deleted", ["default/g-1"])


def awaiting(uid, ends=None):
    """The API server was asked how a pod ended; `ends`: its answer."""
    awaited = frozenset() if ends is not None else frozenset({uid})
    return msgspec.structs.replace(ME, awaited=awaited, ends=ends or {})


def test_an_unexplained_loss_waits_for_the_answer_of_the_api_server():
    """The member no longer counts meanwhile; the answer is the cause, and no answer gives `gone`."""
    for answer, cause in (
        (PodEnd("rejected-by-kubelet", "OutOfcpu"), "rejected-by-kubelet"),
        (PodEnd("deleted"), "deleted"),
        (None, "unknown"),
    ):
        scene = Scene(pods=2)
        scene.bind("g-0")
        scene.decide()
        uid = scene.cluster.pod("g-0").uid
        scene.cluster.delete_pod("g-0")
        scene.bind("g-1")
        (bound,) = scene.decide(awaiting(uid))
        assert isinstance(bound, PodBound)
        (lost,) = scene.decide(awaiting(uid, {uid: answer}))
        assert isinstance(lost, MemberTerminated)
        assert (lost.cause, lost.message) == (cause, answer.message if answer else "")


@pytest.mark.parametrize(
    ("taints", "cause"),
    [
        ((Taint("node.kubernetes.io/unreachable", "", "NoExecute"),), "node-lost"),
        ((Taint("maintenance", "", "NoExecute"),), "evicted"),
    ],
)
def test_who_is_deleted_for_a_taint_was_evicted_or_lost_its_node(taints, cause):
    """The taint manager gives both the same reason; the taints of the node decide."""
    scene = Scene(pods=2)
    scene.bind("g-0")
    scene.decide()
    scene.cluster.change_node("n0", taints=taints)
    scene.cluster.change_pod("g-0", deleting=True, disruption_target="DeletionByTaintManager")
    (lost,) = [f for f in scene.decide() if isinstance(f, MemberTerminated)]
    assert (lost.cause, lost.message) == (cause, "DeletionByTaintManager")


@pytest.mark.parametrize("how", ["bound", "barrier"])
def test_a_started_gang_loses_only_what_is_gone(how):
    """Once a member is bound, or the barrier releases, the rest keeps its capacity (C.6)."""
    scene = Scene(pods=3)
    now = ME
    if how == "bound":
        scene.bind("g-0")
        scene.decide()
    else:
        now = ReconcileContext(actor="t", cause="t", started=frozenset({scene.uid}))
    scene.cluster.delete_pod("g-1")
    released = [f for f in scene.decide(now) if isinstance(f, ReservationReleased)]
    assert [[p.pod for p in f.pods] for f in released] == [["default/g-1"]]


@pytest.mark.parametrize(
    "gone",
    [lambda c: c.delete_node("n0"), lambda c: c.change_node("n0", deleting=True)],
    ids=["gone", "going"],
)
def test_a_lost_node_gives_its_reservations_back(gone):
    """A node that is gone or going keeps no promise."""
    scene = Scene(pods=2)
    gone(scene.cluster)
    events = scene.decide()
    assert {f.reason for f in events} == {"node-lost"}
    assert not scene.root.reservations


def test_expiry_takes_whole_trees_that_have_not_started():
    """A reservation past its time is released with its tree; a member that is bound just now counts as progress."""
    scene = Scene(pods=2)
    late = ReconcileContext(actor="t", cause="t", expired=frozenset({scene.uid}))
    assert [(f.reason, len(f.pods)) for f in scene.decide(late)] == [("expired", 2)]
    scene = Scene(pods=2)
    scene.bind("g-0")
    late = ReconcileContext(actor="t", cause="t", expired=frozenset({scene.uid}))
    assert kinds(scene.decide(late)) == ["PodBound"]


def test_expiry_takes_from_a_started_gang_what_its_minimum_waits_for():
    """Nothing but their members' arrival at bind would end these reservations."""
    scene = Scene(pods=4, minimum=3)
    scene.bind("g-0")
    scene.decide()
    unsure = scene.state_uid("g-1")
    late = ReconcileContext(
        actor="t", cause="t", expired=frozenset({scene.uid}), maybe_bound=frozenset({unsure})
    )
    (event,) = scene.decide(late)
    assert (event.reason, event.message) == ("expired", "the reservation was not used in time")
    assert [p.pod for p in event.pods] == ["default/g-2", "default/g-3"]
    assert list(scene.root.reservations) == [unsure]


def test_expiry_leaves_members_beyond_a_minimum_that_is_bound():
    scene = Scene(pods=4, minimum=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    late = ReconcileContext(actor="t", cause="t", expired=frozenset({scene.uid}))
    assert scene.decide(late) == []
    scene.cluster.delete_pod("g-3")
    (event,) = scene.decide(late)
    assert [p.pod for p in event.pods] == ["default/g-3"]


def test_capacity_taken_by_others_supersedes_the_lowest_priority_first():
    """When assigned pods and reservations exceed a node, low priority gives way before high, young before old."""
    cluster = FakeCluster(
        a_node("n0", gpu=3),
        *a_gang("low", pods=1),
        *a_gang("old", pods=1),
        *a_gang("young", pods=1),
    )
    state = admitted(EMPTY, cluster, "low", {"low-0": "n0"}, priority=1, at_us=1)
    state = admitted(state, cluster, "old", {"old-0": "n0"}, priority=5, at_us=2)
    state = admitted(state, cluster, "young", {"young-0": "n0"}, priority=5, at_us=3)
    order = []
    for taken in range(4):
        cluster.add(a_pod(f"alien-{taken}", node="n0", requests={GPU: 1})) if taken else None
        lost = {uid for n in state.claims_on for uid in oversubscribed_on(cluster.seen, state, n)}
        order.append(sorted(p.name for p in cluster.seen.pods.values() if p.uid in lost))
    assert order == [[], ["low-0"], ["low-0", "young-0"], ["low-0", "old-0", "young-0"]]


def test_a_superseded_member_releases_its_tree():
    """`superseded`, with the pod whose capacity is gone named and the rest of its minimum."""
    scene = Scene(pods=2)
    scene.cluster.add(a_pod("alien", node="n0", requests={GPU: 4}))
    (event,) = scene.decide()
    assert (event.reason, [p.pod for p in event.pods]) == (
        "superseded",
        ["default/g-0", "default/g-1"],
    )
    who = "default/alien (scheduler default-scheduler, priority 0), which does not see what is reserved"
    assert event.message.endswith(f"other pods took the capacity of default/g-0; taken by {who}")
    assert [pod.pod for pod in event.taken_by] == ["default/alien"]


def test_a_deleted_root_is_completed():
    """Held capacity is released as `deleted`, then the root is completed; its pods may still be there."""
    scene = Scene(pods=2)
    scene.cluster.delete_group("g")
    events = scene.decide()
    assert kinds(events) == ["ReservationReleased", "GangRemoved"]
    assert scene.uid not in scene.state.gangs


def test_a_root_that_is_recreated_is_another_root():
    """The same name with a new UID completes the old stream; nothing of it is inherited but running pods."""
    scene = Scene(pods=2)
    scene.bind("g-0")
    scene.decide()
    scene.cluster.change_group("g", uid=GangUid("another"))
    events = scene.decide()
    assert [k for k in kinds(events) if k != "DriftDetected"][:2] == [
        "ReservationReleased",
        "GangRemoved",
    ]
    assert set(scene.state.gangs) == {GangUid("another")}
    assert [m.pod for m in scene.state.gangs[GangUid("another")].bound.values()] == ["default/g-0"]


@pytest.mark.parametrize(("bound", "phase"), [(2, "scheduled"), (1, "observed")])
def test_a_group_made_again_while_its_pods_run_on_is_satisfied_when_they_are_enough(bound, phase):
    """It was never admitted, and its minimum runs: its phase is `scheduled`."""
    scene = Scene(pods=2)
    scene.bind(*(f"g-{n}" for n in range(bound)))
    scene.decide()
    scene.cluster.change_group("g", uid=GangUid("another"))
    scene.decide()
    again = scene.state.gangs[GangUid("another")]
    assert (again.phase, len(again.bound)) == (phase, bound)
    assert scene.decide() == []


def test_a_member_bound_outside_any_admission_is_recorded_as_drift():
    """GangObserved, PodBound and DriftDetected, once; the member counts from then on."""
    cluster = FakeCluster(a_node("n0", gpu=4), *a_gang("g", pods=2, minimum=1))
    cluster.change_pod("g-0", node=NodeName("n0"))
    scene = Scene()
    scene.cluster, scene.state, scene.uid = cluster, EMPTY, cluster.group("g").uid
    events = scene.decide()
    assert kinds(events) == ["GangObserved", "PodBound", "DriftDetected"]
    assert isinstance(events[2], DriftDetected)
    assert events[2].kind == "bound-outside-admission"
    assert [m.pod for m in scene.root.bound.values()] == ["default/g-0"]
    assert scene.decide() == []


def test_a_gang_older_than_the_log_has_the_minimum_of_its_group():
    """Of four members that ran before, three are lost: 1 of 4, and not 1 of 1."""
    pods = {f"g-{n}": "n0" for n in range(4)}
    cluster = FakeCluster(a_node("n0", gpu=4), *a_gang("g", pods=4))
    for name, node in pods.items():
        cluster.change_pod(name, node=NodeName(node), phase="Running")
    scene = Scene()
    scene.cluster, scene.state, scene.uid = cluster, EMPTY, cluster.group("g").uid
    scene.decide()
    assert (gang_status(scene.root).state, gang_status(scene.root).needed) == ("scheduled", 4)
    for name in ("g-1", "g-2", "g-3"):
        cluster.delete_pod(name)
    scene.decide()
    status = gang_status(scene.root)
    assert (status.state, status.present, status.needed) == ("degraded", 1, 4)


def test_a_minimum_that_changes_is_recorded():
    """Two of four run: degraded, until the minimum is lowered, and again when it is raised; domains stay as admitted."""
    scene = Scene(pods=4)
    scene.bind(*(f"g-{n}" for n in range(4)))
    scene.decide()
    for name in ("g-2", "g-3"):
        scene.cluster.delete_pod(name)
    scene.decide()
    assert gang_status(scene.root).state == "degraded"
    for minimum, state in ((1, "scheduled"), (3, "degraded"), (2, "scheduled")):
        scene.cluster.change_group("g", minimum=minimum)
        events = scene.decide()
        assert kinds(events) == ["GangGroupsChanged"]
        status = gang_status(scene.root)
        assert (status.state, status.needed) == (state, minimum)
        assert scene.decide() == []


def test_an_invalid_tree_that_has_not_started_keeps_no_capacity():
    """A tree that breaks a rule is not scheduled: its reservations are given back as `invalid` (B6 to B10)."""
    scene = Scene(pods=2)
    scene.cluster.add(a_pod("g-2", "g", priority=7, requests={GPU: 1}))
    scene.cluster.change_pod("g-2", priority=7)
    events = scene.decide()
    assert [(f.reason, len(f.pods)) for f in events] == [("invalid", 2)]


ACTIONS = [
    "bind g-0", "bind g-1", "bind g-2", "bind g-3", "delete g-0", "delete g-1", "delete g-3",
    "going g-1", "going g-2", "node n0", "node n1", "alien", "group", "recreate",
]  # fmt: skip


@examples(150)
@example(actions=["bind g-0", "delete g-1", "node n0"], look_between=False, minimum=2)
@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=6), st.booleans(), st.integers(1, 4))
def test_any_prefix_of_a_decision_is_sound(actions, look_between, minimum):
    """Whatever happens to a gang of 4: after every prefix of a decision the invariants hold, and deciding again leads to the same place."""
    scene = Scene(pods=4, minimum=minimum)
    for number, action in enumerate(actions):
        act(scene, action, number)
        if look_between:
            scene.decide()
    scene.decide()
    for root in scene.state.gangs.values():
        for reservation in root.reservations.values():
            assert reservation.uid in scene.cluster.seen.pods
            assert reservation.node in scene.cluster.seen.nodes
        for member in root.bound.values():
            assert member.uid in scene.cluster.seen.pods


def act(scene, action, number):
    """Do one thing to the cluster, if it can be done."""
    verb, _, name = action.partition(" ")
    cluster = scene.cluster
    there = {pod.name for pod in cluster.seen.pods.values()}
    if verb == "alien":
        for node in ("n0", "n1"):
            if NodeName(node) in cluster.seen.nodes:
                cluster.add(a_pod(f"alien-{number}-{node}", node=node, requests={GPU: 3}))
    elif verb == "node":
        cluster.delete_node(name)
    elif verb in ("group", "recreate"):
        if any(g.key.name == "g" for g in cluster.seen.groups.values()):
            if verb == "group":
                cluster.delete_group("g")
            else:
                cluster.change_group("g", uid=GangUid(f"again-{number}"))
    elif name in there:
        if verb == "delete":
            cluster.delete_pod(name)
        elif verb == "going":
            cluster.change_pod(name, deleting=True)
        elif verb == "bind" and cluster.pod(name).node is None:
            cluster.change_pod(name, node=NodeName(f"n{number % 2}"))


def test_completed_and_bound_are_distinct_events():
    """A root whose pods are bound and whose group is deleted is only completed, not lost pod by pod."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.delete_group("g")
    events = scene.decide()
    assert [type(f) for f in events] == [GangRemoved]
    assert not any(isinstance(f, PodBound) for f in events)
