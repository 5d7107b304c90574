"""Capacity of lost members: held for whom, against whom, how long, and what ends it; each step folded from the log."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.interpod_rules import InterpodRulePart
from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.capacity.capacity_claims import expired_holds, nodes_of_replacements
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.events import (
    AssignmentRecord,
    GangExtended,
    GroupRecord,
    MemberTerminated,
    PodBound,
    PreemptionPlanned,
    ReservationReleased,
    TreeCompiled,
    TreeRefused,
    TreeRetired,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import EMPTY, claims_of_kind, reservations_on
from extender.core.model.cluster_view import with_end
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid
from extender.core.model.pods import SUCCEEDED, PodEnd
from extender.core.planner.plan_types import Plan
from extender.core.planner.planning import plan
from extender.core.preempt.disruption_units import evictable_for
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from extender.core.verbs.filter_and_prioritize import decide_filter, domain_scores
from extender.core.workloads.tree_compiler import GroupSpec
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import ME, check_prefixes, fold_drafts, folded

HELD_US = 60_000_000
PRIORITY = 10


def at(now_us, **more):
    """Return the circumstances of a moment, with capacity held for a minute."""
    return msgspec.structs.replace(ME, now_us=now_us, replacement_hold_us=HELD_US, **more)


class Scene:
    """A bound gang of three, each alone on a node of one GPU."""

    def __init__(self):
        nodes = [a_node(f"n{n}", gpu=1) for n in range(3)]
        group = a_group("g", gang=3, priority=PRIORITY)
        members = [a_pod(f"g-{n}", "g", requests={GPU: 1}, priority=PRIORITY) for n in range(3)]
        self.cluster = FakeCluster(*nodes, group, *members)
        where = {f"g-{n}": f"n{n}" for n in range(3)}
        self.state = admitted(EMPTY, self.cluster, "g", where, priority=PRIORITY)
        self.uid = self.cluster.group("g").uid
        for name, node in where.items():
            self.cluster.change_pod(name, node=NodeName(node), phase="Running")
        self.decide(at(0))

    @property
    def view(self):
        return self.cluster.seen

    @property
    def replacement_holds(self):
        return self.state.gangs[self.uid].replacement_holds

    def decide(self, now):
        """Return the events of a moment, sound after every prefix of them, and fold them."""
        now = msgspec.structs.replace(now, over=expired_holds(self.state, now.now_us))

        def once(state):
            return Reconciliation().decide(self.view, state, forest_of(self.view), now)

        events = [draft.data for draft in once(self.state)]
        self.state = check_prefixes(self.state, once)
        return events

    def lose(self, name="g-0", now_us=5):
        """Let a member vanish."""
        self.cluster.delete_pod(name)
        return self.decide(at(now_us))

    def request(self, name):
        """Return what the planner is asked about a tree."""
        tree = next(t for t in forest_of(self.view).trees.values() if t.root.key.name == name)
        part = TreeParts().of(tree, self.state.gangs.get(tree.root.uid))
        return plan_request(self.view, self.state, part, rows=NodeRowCache(), budget=10_000)

    def rival(self, priority):
        """Let another gang want all of one node."""
        self.cluster.add(
            a_group("rival", gang=1, priority=priority),
            a_pod("rival-0", "rival", requests={GPU: 1}, priority=priority),
        )
        return plan(self.request("rival"))

    def filter(self, priority):
        """Ask filter for an ordinary pod."""
        self.cluster.add(a_pod("alone", requests={GPU: 1}, priority=priority))
        pod = self.cluster.pod("alone")
        return decide_filter(self.view, self.state, forest_of(self.view), pod, [NodeName("n0")])


def kinds(events):
    return [type(event).__name__ for event in events]


def test_a_loss_has_the_time_until_which_its_capacity_is_held():
    """MemberTerminated carries the time; a restart finds the capacity in the log, and in a checkpoint."""
    scene = Scene()
    (lost,) = scene.lose(now_us=5)
    assert (lost.cause, lost.held_until_us) == ("unknown", 5 + HELD_US)
    assert [(v.pod, v.node) for v in scene.replacement_holds.values()] == [("default/g-0", "n0")]
    assert scene.decide(at(6)) == []
    assert decode_state(encode_state(scene.state)) == scene.state


@pytest.mark.parametrize(
    ("priority", "placed"), [(PRIORITY - 1, False), (PRIORITY, False), (PRIORITY + 1, True)]
)
def test_others_of_equal_or_lower_priority_are_kept_out(priority, placed):
    """Trees by the planner, ordinary pods by filter; for a higher priority the capacity is free."""
    scene = Scene()
    scene.lose()
    assert isinstance(scene.rival(priority), Plan) is placed
    assert bool(scene.filter(priority).passed) is placed
    assert domain_scores(scene.view, scene.state, ["kubernetes.io/hostname"]) is not None


def test_the_replacement_gets_the_capacity_of_the_lost_member():
    """Its own tree sees the capacity, tries that node first, and its admission ends the hold."""
    scene = Scene()
    scene.cluster.add(a_node("a-first", gpu=1))
    scene.lose("g-1")
    scene.cluster.add(a_pod("g-new", "g", requests={GPU: 1}, priority=PRIORITY))
    found = plan(scene.request("g"))
    assert isinstance(found, Plan)
    (seat,) = found.assignments
    assert (seat.pod, seat.node) == ("default/g-new", "n1")
    extended(scene, "g-new", "n1")
    assert not scene.replacement_holds
    assert scene.decide(at(7)) == []


def extended(scene, name, node):
    """Fold the admission of a replacement."""
    event = GangExtended(
        plan=PlanId("plan-2"),
        priority=PRIORITY,
        groups=(GroupRecord(kind="PodGroup", name="g", minimum=3),),
        shapes=({GPU: 1, "pods": 1},),
        assignments=(
            AssignmentRecord(
                pod=f"default/{name}",
                uid=scene.cluster.pod(name).uid,
                group="g",
                node=NodeName(node),
            ),
        ),
    )
    scene.state = folded(scene.state, (scene.uid, "default/g", event))


def test_a_replacement_elsewhere_ends_the_oldest_hold():
    """Two were lost; the one who got capacity where neither was stands for the first of them."""
    scene = Scene()
    scene.cluster.add(a_node("n9", gpu=1))
    scene.lose("g-1")
    scene.cluster.delete_pod("g-0")
    scene.state = fold_drafts(
        scene.state,
        Reconciliation().decide(scene.view, scene.state, forest_of(scene.view), at(9)),
        at_us=9,
    )
    scene.cluster.add(a_pod("g-new", "g", requests={GPU: 1}, priority=PRIORITY))
    extended(scene, "g-new", "n9")
    assert [v.pod for v in scene.replacement_holds.values()] == ["default/g-0"]


def test_both_rooms_wait_for_two_replacements_that_must_come_together():
    """V26: one survivor and one replacement are below the minimum; the other's capacity is held meanwhile."""
    scene = Scene()
    scene.lose("g-0")
    scene.lose("g-1")
    scene.cluster.add(a_pod("g-new", "g", requests={GPU: 1}, priority=PRIORITY))
    assert scene.decide(at(6)) == []
    assert len(scene.replacement_holds) == 2
    assert not isinstance(scene.rival(PRIORITY), Plan)


def test_the_end_of_a_hold_is_recorded():
    """No replacement came: the capacity is given up, recorded, and others may have it."""
    scene = Scene()
    scene.lose(now_us=5)
    assert scene.decide(at(5 + HELD_US - 1)) == []
    (released,) = scene.decide(at(5 + HELD_US))
    assert isinstance(released, ReservationReleased)
    assert (released.reason, [p.pod for p in released.pods]) == ("expired", ["default/g-0"])
    assert "no replacement came in time" in released.message
    assert isinstance(scene.rival(PRIORITY), Plan)


def test_a_higher_priority_that_takes_the_capacity_is_recorded():
    """The pod runs there now: nothing is left to hold, `superseded`."""
    scene = Scene()
    scene.lose()
    scene.cluster.add(a_pod("high", node="n0", requests={GPU: 1}, priority=99))
    (released,) = scene.decide(at(6))
    assert released.reason == "superseded"
    assert not scene.replacement_holds


def group_goes(cluster):
    cluster.change_group("g", deleting=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (group_goes, "deleted"),
        (lambda c: [c.delete_pod(n) for n in ("g-1", "g-2")], "deleted"),
        (lambda c: c.change_node("n0", unschedulable=True), "node-lost"),
        (lambda c: c.delete_node("n0"), "node-lost"),
    ],
    ids=["group goes", "no member runs", "cordoned", "node gone"],
)
def test_what_else_ends_it(change, why):
    """A gang that ends, or does not run any more, is not completed; a node that takes no pods has no capacity."""
    scene = Scene()
    scene.lose()
    change(scene.cluster)
    released = [f for f in scene.decide(at(6)) if isinstance(f, ReservationReleased)]
    assert [f.reason for f in released] == [why]
    assert not scene.replacement_holds
    assert not scene.state.claims_on


def succeed(scene):
    uid = scene.cluster.pod("g-0").uid
    scene.cluster.delete_pod("g-0")
    scene.cluster.seen = with_end(scene.cluster.seen, uid, PodEnd("ended", SUCCEEDED))


@pytest.mark.parametrize(
    "loss",
    [
        succeed,
        lambda s: s.cluster.delete_node("n0"),
        lambda s: s.cluster.change_pod(
            "g-0", deleting=True, disruption_target="PreemptionByScheduler"
        ),
        lambda s: [s.cluster.change_pod(f"g-{n}", deleting=True) for n in range(3)],
        lambda s: (s.cluster.change_node("n0", unschedulable=True), s.cluster.delete_pod("g-0")),
        lambda s: (group_goes(s.cluster), s.cluster.delete_pod("g-0")),
    ],
    ids=["done", "node gone", "preempted", "whole gang", "drained", "group goes"],
)
def test_no_capacity_is_held_where_no_replacement_comes(loss):
    """Work that is done, capacity that another pod has, gangs that go as a whole."""
    scene = Scene()
    loss(scene)
    lost = [f for f in scene.decide(at(5)) if isinstance(f, MemberTerminated)]
    assert lost
    assert {f.held_until_us for f in lost} == {0}
    assert not scene.replacement_holds


def of_a_workload(scene, *, suspended=False):
    """Record that the gang was compiled from a Job."""
    event = TreeCompiled(
        kind="Job", workload="default/g", uid="job", generation=1, table_version=1, profile="default",
        groups=(GroupSpec(kind="PodGroup", name="g", minimum=3),), suspended=suspended,
    )  # fmt: skip
    scene.state = folded(scene.state, (NIL_GANG, "", event))


@pytest.mark.parametrize("refused", [False, True])
def test_the_capacity_of_a_workload_that_restarts_is_held(refused):
    """All members go at once, as when a JobSet restarts: its controller creates them again, also those of a tree that
    cannot be changed as its workload was.
    """
    scene = Scene()
    of_a_workload(scene)
    if refused:
        event = TreeRefused(
            kind="Job", workload="default/g", uid="job", generation=2, table_version=1, profile="default",
            reason="PrioritiesDiffer", field="spec", message="two priorities",
        )  # fmt: skip
        scene.state = folded(scene.state, (NIL_GANG, "", event))
    for n in range(3):
        scene.cluster.delete_pod(f"g-{n}")
    lost = [f for f in scene.decide(at(5)) if isinstance(f, MemberTerminated)]
    assert {f.held_until_us for f in lost} == {5 + HELD_US}
    assert len(scene.replacement_holds) == 3
    assert scene.decide(at(6)) == []
    assert not isinstance(scene.rival(PRIORITY), Plan)


@pytest.mark.parametrize(
    "ending",
    [
        lambda s: of_a_workload(s, suspended=True),
        lambda s: setattr(
            s, "state",
            folded(s.state, (NIL_GANG, "", TreeRetired(kind="Job", workload="default/g", uid="job", reason="deleted"))),
        ),
    ],
    ids=["suspended", "retired"],
)  # fmt: skip
def test_nothing_is_held_for_a_workload_that_stopped(ending):
    """Suspended, finished or deleted: whether that is known before its pods go or after."""
    before, after = Scene(), Scene()
    for scene in (before, after):
        of_a_workload(scene)
    ending(before)
    for scene in (before, after):
        for n in range(3):
            scene.cluster.delete_pod(f"g-{n}")
    lost = [f for f in before.decide(at(5)) if isinstance(f, MemberTerminated)]
    assert {f.held_until_us for f in lost} == {0}
    after.decide(at(5))
    ending(after)
    (released,) = after.decide(at(6))
    assert released.reason == "deleted"
    assert not after.replacement_holds


def test_the_capacity_of_a_victim_is_its_preemptors():
    """The capacity of a victim belongs to its preemptor, also where the eviction was not seen."""
    scene = Scene()
    pod = scene.cluster.pod("g-0")
    victim = VictimPod(pod=pod.path, uid=pod.uid, node=NodeName("n0"), group="g")
    unit = VictimUnit(kind="Pod", path=pod.path, uid=pod.uid, priority=0, pods=(victim,))
    event = PreemptionPlanned(
        preemption=PlanId("p"), kind="Pod", priority=99, victims=(unit,), cost={},
        alternatives=(), shapes=({GPU: 1},),
        assignments=(
            AssignmentRecord(pod="ns/h", uid=PodUid("h"), group="h", node=NodeName("n0")),
        ),
    )  # fmt: skip
    scene.state = folded(scene.state, (GangUid("h"), "ns/h", event))
    (lost,) = scene.lose()
    assert lost.held_until_us == 0


def test_the_time_begins_when_its_grace_period_ends():
    """While it terminates it sits in the capacity itself; it is not counted twice, and no other tree waits for it."""
    scene = Scene()
    scene.cluster.change_pod("g-0", deleting=True, deletes_us=30_000_000)
    (lost,) = scene.decide(at(5))
    assert lost.held_until_us == 30_000_000 + HELD_US
    scene.rival(PRIORITY)
    forest = forest_of(scene.view)
    free = {row.name: row.free[GPU] for row in scene.request("rival").nodes}
    assert free == {"n0": 0, "n1": 0, "n2": 0}
    for name, awaited in (("g", ["default/g-0"]), ("rival", [])):
        tree = next(t for t in forest.trees.values() if t.root.key.name == name)
        request = scene.request(name)
        found = evictable_for(
            scene.view,
            scene.state,
            forest,
            tree,
            ruled=InterpodRulePart(request.root, request.shapes),
        )
        assert [p.pod for p in found.going] == awaited, name


@pytest.mark.parametrize(("priority", "passes"), [(PRIORITY, False), (PRIORITY + 1, True)])
def test_kube_scheduler_may_know_of_the_end_before_us(priority, passes):
    """It offers a node that is full as we see it, because it has seen the lost member go: the capacity is held already."""
    scene = Scene()
    scene.cluster.change_pod("g-0", deleting=True, deletes_us=30_000_000)
    scene.decide(at(5))
    assert bool(scene.filter(priority).passed) is passes


def test_a_member_bound_past_us_is_a_replacement_too():
    """The gang has its member, also where it was bound outside the admission."""
    scene = Scene()
    scene.lose()
    scene.cluster.add(a_pod("g-new", "g", node="n0", requests={GPU: 1}, priority=PRIORITY))
    events = scene.decide(at(6))
    assert kinds(events) == ["PodBound", "DriftDetected"]
    assert isinstance(events[0], PodBound)
    assert not scene.replacement_holds


def test_nothing_is_held_when_it_is_switched_off():
    """GANG_EXTENDER_REPLACEMENT_TTL_S=0: as it was before."""
    scene = Scene()
    scene.cluster.delete_pod("g-0")
    now = ReconcileContext(actor="t", cause="t", now_us=5)
    (lost,) = scene.decide(now)
    assert lost.held_until_us == 0


STEPS = st.lists(
    st.sampled_from(["lose", "terminate", "new", "run", "alien", "time", "admit"]), max_size=12
)


@examples(80)
@given(STEPS)
def test_capacity_is_counted_once_whatever_happens(steps):
    """What a rival sees of a node is what running pods, reservations and held rooms leave, and never less than none."""
    scene = Scene()
    now_us, made = 10, 0
    for step in steps:
        now_us += 1
        running = [p for p in scene.view.pods.values() if p.group and p.node and not p.deleting]
        waiting = [p for p in scene.view.pods.values() if p.group and not p.node]
        if step == "lose" and running:
            scene.cluster.delete_pod(running[0].name)
        elif step == "terminate" and running:
            scene.cluster.change_pod(running[-1].name, deleting=True, deletes_us=now_us + 5)
        elif step == "new":
            made += 1
            scene.cluster.add(a_pod(f"g-new-{made}", "g", requests={GPU: 1}, priority=PRIORITY))
        elif step == "admit" and waiting and scene.replacement_holds:
            holding = scene.state.gangs[scene.uid].reservations
            free = [p for p in waiting if p.uid not in holding]
            node = next(iter(scene.replacement_holds.values())).node
            if free and not scene.view.on_node.get(node):
                extended(scene, free[0].name, node)
        elif step == "run":
            for r in list(scene.state.gangs[scene.uid].reservations.values()):
                scene.cluster.change_pod(r.pod.split("/")[1], node=r.node, phase="Running")
        elif step == "alien":
            made += 1
            scene.cluster.add(a_pod(f"alien-{made}", node="n0", requests={GPU: 1}))
        elif step == "time":
            now_us += HELD_US
        scene.decide(at(now_us))
        check_counted_once(scene)


def check_counted_once(scene):
    """Compare what a rival's request has free with a sum made here from the parts."""
    scene.rival(PRIORITY)
    for row in scene.request("rival").nodes:
        taken = sum(
            dict(p.shape.requests).get(GPU, 0)
            for p in scene.view.on_node.get(row.name, {}).values()
        )
        for r in reservations_on(scene.state, row.name).values():
            member = scene.view.pods.get(r.uid)
            taken += r.requests[GPU] if member is None or member.node is None else 0
        for v in claims_of_kind(scene.state, "replacement"):
            if v.node != row.name:
                continue
            lost = scene.view.pods.get(v.uid)
            taken += v.requests[GPU] if lost is None or lost.node != row.name else 0
        assert row.free[GPU] == row.allocatable[GPU] - taken
    scene.cluster.delete_pod("rival-0")


@pytest.mark.parametrize(
    ("lost", "newcomers", "expected"),
    [
        (["set-3", "set-1"], ["set-1", "set-3"], ["n1", "n0"]),
        (["job-3-aaaaa", "job-1-bbbbb"], ["job-1-ccccc", "job-3-ddddd"], ["n1", "n0"]),
        (["job-aaaaa", "job-bbbbb"], ["job-ccccc", "job-ddddd", "job-eeeee"], ["n0", "n1", None]),
        (["job-3-aaaaa", "set-1"], ["other", "set-1"], ["n0", "n1"]),
    ],
    ids=["the same name", "the same index", "no index", "one without a match"],
)
def test_a_replacement_gets_the_node_of_the_member_with_its_index(lost, newcomers, expected):
    """The first lost member was on n0, and is the oldest loss."""
    claims = [
        CapacityClaim(
            kind="replacement", plan=PlanId("p"), gang_uid=GangUid("g"), pod=f"default/{name}", uid=PodUid(name),
            group="g", node=NodeName(f"n{at_}"), requests={}, priority=0, at_us=at_,
        )
        for at_, name in enumerate(lost)
    ]  # fmt: skip
    pods = [FakeCluster(a_pod(name)).pod(name) for name in newcomers]
    nodes = nodes_of_replacements(claims, pods)
    assert [nodes.get(pod.uid) for pod in pods] == expected
