"""Units that could be evicted for a tree: by the highest group disrupted as a whole, reservations, terminating pods."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from extender.core.admit.plan_request import TreeParts, plan_request, ruled_part
from extender.core.admit.verdict_events import EventContext, decide_verdict
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import GangScheduled, PodBound, ReservationReleased
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName, PlanId
from extender.core.model.pods import EXEMPT_NAMESPACES
from extender.core.planner.codec.victim_codec import from_parts, to_parts
from extender.core.planner.plan_types import Plan, Refusal
from extender.core.planner.planning import plan
from extender.core.planner.preempt.victim_search import NoPreemption, PreemptionPlan, preempt
from extender.core.preempt.disruption_units import (
    EvictableContext,
    evictable_for,
    may_preempt,
)
from extender.core.preempt.preemption_lifecycle import STUCK_AFTER_US
from extender.core.preempt.preemption_planning import decide_preemption, unbound_reservations
from tests.support.planning import preemption_checker
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_budget, a_group, a_node, a_pod
from tests.unit.core.support import fold_drafts, folded

RECIPE = EventContext(plan=PlanId("plan-1"), digest="d", actor="me", cause="test")


def gang(name, pods, priority, **spec):
    """A gang whose group and pods have one priority."""
    group = a_group(name, gang=pods, priority=priority)
    return [group, *(a_pod(f"{name}-{n}", name, priority=priority, **spec) for n in range(pods))]


HIGH = gang("high", 1, 100)


class Case:
    """A cluster, what is held in it, and the tree `high` that asks."""

    def __init__(self, *objects):
        self.cluster = FakeCluster(*objects)
        self.state = EMPTY

    @property
    def view(self):
        return self.cluster.seen

    def tree(self, name="high"):
        trees = forest_of(self.view).trees.values()
        return next(tree for tree in trees if tree.root.key.path == f"default/{name}")

    def asking(self, name="high", **options):
        tree = self.tree(name)
        part = TreeParts().of(tree, self.state.gangs.get(tree.root.uid))
        ruled = ruled_part(self.view, self.state, part, rows=NodeRowCache())
        evictable = evictable_for(
            self.view, self.state, forest_of(self.view), tree, ruled=ruled, **options
        )
        head = msgspec.structs.replace(
            evictable, units=(), going=(), shapes=(), gangs=(), budgets=(), dependents=UNSET
        )
        assert from_parts(head, to_parts(evictable)) == evictable, "not as it comes back"
        return msgspec.structs.replace(self.request(name), evictable=evictable)

    def evictable(self, **options):
        return self.asking(**options).evictable

    def request(self, name="high"):
        tree = self.tree(name)
        part = TreeParts().of(tree, self.state.gangs.get(tree.root.uid))
        return plan_request(self.view, self.state, part, rows=NodeRowCache(), budget=10_000)

    def admit(self, name):
        """Let a tree hold the capacity that the planner finds for it."""
        request = self.request(name)
        verdict = plan(request)
        assert isinstance(verdict, Plan)
        drafts = decide_verdict(self.state, self.tree(name), request, verdict, RECIPE)
        self.state = fold_drafts(self.state, drafts)

    def preempt(self, **options):
        request = self.asking(**options)
        made = preempt(request)
        if isinstance(made, PreemptionPlan):
            assert preemption_checker.faults(request, made) == []
        return made


def units(found, kind=None):
    return {u.name: [p.pod for p in u.pods] for u in found.units if kind in {None, u.kind}}


def a_tree():
    """Single root, a composite that goes whole with two leaves, and a leaf of its own beside it."""
    low = {"priority": 1}
    return [
        a_group("root", gang=2, composite=True, **low),
        a_group("mid", gang=1, composite=True, parent="root", whole=True, **low),
        a_group("x", gang=1, parent="mid", whole=True, **low),
        a_group("y", gang=1, parent="mid", whole=True, **low),
        a_group("z", gang=2, parent="root", **low),
        *(a_pod(f"{g}-{n}", g, node="n0", **low) for g in "xyz" for n in range(2)),
    ]


def test_the_unit_is_the_highest_group_that_goes_whole():
    """E-4: parent Single and child All: the child; no All above: the pod alone."""
    case = Case(a_node("n0"), *a_tree(), *HIGH)
    assert units(case.evictable()) == {
        "CompositePodGroup/default/mid": ["default/x-0", "default/x-1", "default/y-0", "default/y-1"],
        "Pod/default/z-0": ["default/z-0"],
        "Pod/default/z-1": ["default/z-1"],
    }  # fmt: skip


def test_gangs_are_counted_outside_of_units_only():
    """What goes whole cannot be broken; the leaf beside it and the root can."""
    found = Case(a_node("n0"), *a_tree(), *HIGH).evictable()
    gangs = {g.name.rpartition("/")[2]: (g.minimum, g.running, g.counts) for g in found.gangs}
    assert gangs == {
        "root": (2, 0, True), "mid": (1, 0, False), "x": (1, 2, False), "y": (1, 2, False), "z": (2, 2, True),
    }  # fmt: skip
    names = [g.name for g in found.gangs]
    assert [names[g.parent].rpartition("/")[2] if g.parent >= 0 else "" for g in found.gangs] == [
        "", "root", "mid", "mid", "root",
    ]  # fmt: skip
    (lone,) = (u for u in found.units if u.name == "Pod/default/z-0")
    assert names[lone.pods[0].gang] == "PodGroup/default/z"


def test_a_minimum_that_was_raised_does_not_break_a_gang_that_runs():
    """Two run as admitted: to evict one still breaks the gang, also where three are asked for since."""
    case = Case(a_node("n0", gpu=2), *gang("low", 2, 1, requests={GPU: 1}), *HIGH)
    case.admit("low")
    for number in range(2):
        case.cluster.change_pod(f"low-{number}", node=NodeName("n0"), phase="Running")
    for raised, minimum in ((3, 2), (1, 1)):
        case.cluster.change_group("low", minimum=raised)
        (found,) = case.evictable().gangs
        assert (found.name, found.minimum, found.running) == ("PodGroup/default/low", minimum, 2)


def test_a_child_that_is_required_since_does_not_break_a_gang_that_runs():
    """One leaf runs as admitted: to evict it still breaks the gang, also where another one is required since."""
    leaf = {"parent": "low", "priority": 1}
    case = Case(
        a_node("n0", gpu=2), a_group("low", gang=1, composite=True, priority=1),
        a_group("a", gang=1, **leaf), a_group("b", gang=1, **leaf),
        a_pod("a-0", "a", priority=1), *HIGH,
    )  # fmt: skip
    case.admit("low")
    case.cluster.change_pod("a-0", node=NodeName("n0"), phase="Running")
    case.cluster.change_group("low", required=("b",))
    assert not any(g.required for g in case.evictable().gangs)
    case.cluster.change_group("low", required=())
    assert not any(g.required for g in case.evictable().gangs)


def test_a_gang_whose_required_child_is_gone_is_broken_already():
    """So to evict another child breaks this child alone, as before, and not the gang above it a second time."""
    low = {"priority": 1}
    older, younger = ({"creationTimestamp": f"2026-0{n}-01T00:00:00Z"} for n in (1, 2))
    case = Case(
        *(a_node(f"n{i}", gpu=1) for i in range(2)),
        a_group("low", gang=1, composite=True, **low),
        *(a_group(name, gang=1, parent="low", **low) for name in ("first", "second")),
        a_pod("first-0", "first", node="n1", **low),
        a_pod("second-0", "second", node="n0", requests={GPU: 1}, metadata=younger, **low),
        *gang("other", 1, 1, node="n1", requests={GPU: 1}, metadata=older), *gang("high", 1, 100, requests={GPU: 1}),
    )  # fmt: skip
    case.cluster.change_group("low", required=("first",))
    assert [unit.name for unit in case.preempt().victims] == ["Pod/default/second-0"]
    case.cluster.delete_group("first")
    assert [unit.name for unit in case.preempt().victims] == ["Pod/default/second-0"]


def test_equal_priority_is_no_victim_and_own_pods_are_not():
    """E-3: strictly lower; a tree never evicts its own members."""
    low, same = a_pod("low", node="n0", priority=99), a_pod("same", node="n0", priority=100)
    mine = a_pod("high-9", "high", node="n0", priority=100)
    assert units(Case(a_node("n0"), low, same, mine, *HIGH).evictable()) == {
        "Pod/default/low": ["default/low"]
    }


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("group", "pods"), [(1, 500), (500, 1)])
def test_the_priority_of_the_group_counts_and_that_of_its_pods_does_not(group, pods, whole):
    """E-3, case victim-pod-priority: also where kube-apiserver let them differ, pod by pod and as a whole."""
    found = Case(
        a_node("n0"), a_group("g", gang=1, whole=whole, priority=group),
        a_pod("g-0", "g", node="n0", priority=pods), a_pod("g-1", "g", node="n0", priority=pods), *HIGH,
    ).evictable()  # fmt: skip
    assert {unit.priority for unit in found.units} == ({1} if group == 1 else set())
    assert sum(len(unit.pods) for unit in found.units) == (2 if group == 1 else 0)


def test_what_terminates_is_on_its_way_whatever_its_priority():
    """A pod with a deletionTimestamp is in no unit."""
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    found = Case(
        a_node("n0"), a_pod("a", node="n0", priority=1, metadata=gone),
        a_pod("b", node="n0", priority=900, metadata=gone), *HIGH,
    ).evictable()  # fmt: skip
    assert units(found) == {}
    assert [p.pod for p in found.going] == ["default/a", "default/b"]


def test_no_pod_is_evicted_while_capacity_comes_free():
    """The tree fits once the terminating pod is gone; the low pod beside it stays."""
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    made = Case(
        a_node("n0", gpu=1), a_node("n1", gpu=1),
        a_pod("a", node="n0", priority=900, requests={GPU: 1}, metadata=gone),
        a_pod("b", node="n1", priority=1, requests={GPU: 1}),
        *gang("high", 1, 100, requests={GPU: 1}),
    ).preempt()  # fmt: skip
    assert isinstance(made, NoPreemption)
    assert made.cause == "comes-free"
    assert made.reasons == (
        "waiting for 1 pod that terminates, on n0: its capacity is enough, and no pod is evicted",
    )


@pytest.mark.parametrize(("late_us", "waited_for"), [(0, True), (1, False)])
def test_who_terminates_and_does_not_go_is_not_waited_for(late_us, waited_for):
    """Long after its grace period a pod takes its capacity like one that stays, and the low pod beside it goes."""
    ends = "2026-01-01T00:00:00Z"
    now_us = 1_767_225_600_000_000 + STUCK_AFTER_US + late_us
    made = Case(
        a_node("n0", gpu=1), a_node("n1", gpu=1),
        a_pod("a", node="n0", priority=1, requests={GPU: 1}, metadata={"deletionTimestamp": ends}),
        a_pod("b", node="n1", priority=1, requests={GPU: 1}),
        *gang("high", 1, 100, requests={GPU: 1}),
    ).preempt(moment=EvictableContext(now_us=now_us))  # fmt: skip
    if waited_for:
        assert isinstance(made, NoPreemption)
        assert made.cause == "comes-free"
    else:
        assert isinstance(made, PreemptionPlan)
        assert [u.name for u in made.victims] == ["Pod/default/b"]


def test_budgets_are_matched_by_namespace_and_labels():
    """A pod names the budgets that protect it; budgets that protect no pod here are left out."""
    labels = {"labels": {"app": "db"}}
    found = Case(
        a_node("n0"), a_pod("a", node="n0", priority=1, metadata=labels), a_pod("b", node="n0", priority=1),
        a_budget("db", {"app": "db"}, allowed=1), a_budget("web", {"app": "web"}, allowed=2), *HIGH,
    ).evictable()  # fmt: skip
    assert [(b.name, b.allowed) for b in found.budgets] == [("default/db", 1)]
    assert {u.name: u.pods[0].budgets for u in found.units} == {
        "Pod/default/a": (0,), "Pod/default/b": (),
    }  # fmt: skip


@pytest.mark.parametrize("where", ["group", "pod"])
def test_never_of_the_root_or_of_a_pod_forbids(where):
    """`preemptionPolicy: Never` anywhere in the tree means wait."""
    never = {"preemptionPolicy": "Never"}
    group = a_group("high", gang=1, priority=100, **(never if where == "group" else {}))
    pod = a_pod("high-0", "high", priority=100, **(never if where == "pod" else {}))
    case = Case(a_node("n0"), group, pod)
    assert not may_preempt(case.tree())
    assert not case.evictable().may_preempt


# --- reservations


def reserved(*more):
    """A node with two devices: one runs a pod of priority 1, the gang `low` holds the other."""
    case = Case(
        a_node("n0", gpu=2),
        a_pod("runs", node="n0", priority=1, requests={GPU: 1}),
        *gang("low", 1, 50, requests={GPU: 1}),
        *gang("high", 1, 100, requests={GPU: 1}),
        *more,
    )
    case.admit("low")
    return case


def test_reservations_are_taken_before_any_running_pod():
    """E-10: the reservation of priority 50 goes, the pod of priority 1 runs on."""
    case = reserved()
    refused = plan(case.request())
    assert isinstance(refused, Refusal)
    made = case.preempt()
    assert isinstance(made, PreemptionPlan)
    assert made.victims == ()
    assert [(u.name, u.kind) for u in made.superseded] == [("PodGroup/default/low", "reservation")]
    assert made.reasons == ("uses capacity reserved for PodGroup/default/low",)


@pytest.mark.parametrize("option", ["releasing", "spared"])
def test_reservations_that_must_stay(option):
    """While its barrier releases a tree keeps its capacity, and the running pod goes instead; so for a spared one."""
    case = reserved()
    low = case.tree("low").root
    made = case.preempt(
        **{
            "spared": {"spared": {str(low.key)}},
            "releasing": {"moment": EvictableContext(releasing={low.uid})},
        }[option]
    )
    assert isinstance(made, PreemptionPlan)
    assert ([u.name for u in made.victims], made.superseded) == (["Pod/default/runs"], ())


def test_a_spared_unit_is_left_alone():
    """A unit is not taken, whatever its priority, and it is named in `spared`."""
    case = reserved()
    found = case.evictable(spared={"Pod/default/runs", "Pod/default/of-others"})
    assert units(found, "pod") == {}
    assert found.spared == ("Pod/default/runs",)


def started(*bound, pods=2, gpu=1, whole=False, asks=2, nodes=2):
    """The gang `low`, of which some members run and the others have reservations, and `high`, which needs pods of its size."""
    low, *members = gang("low", pods, 50, requests={GPU: 1})
    low = a_group("low", gang=pods, priority=50, whole=whole)
    case = Case(
        *(a_node(f"n{i}", gpu=gpu) for i in range(nodes)), low, *members,
        *gang("high", asks, 100, requests={GPU: 1}),
    )  # fmt: skip
    case.admit("low")
    root = case.tree("low").root
    for pod in [pod for pod in case.tree("low").pods if pod.name in bound]:
        node = case.state.gangs[root.uid].reservations[pod.uid].node
        event = PodBound(pod=pod.path, uid=pod.uid, group="low", node=node, plan=PlanId("plan-1"))
        case.state = folded(case.state, (root.uid, root.key.path, event))
        case.cluster.change_pod(pod.name, node=node)
    return case


def test_a_started_gang_is_completed_not_stopped():
    """C.6: with one member bound and the minimum not, the rest of the reservation does not go alone."""
    case = started(gpu=2, nodes=1, asks=1)
    assert [len(u.pods) for u in case.evictable().units] == [2]
    case = started("low-0", gpu=2, nodes=1, asks=1)
    assert units(case.evictable(), "reservation") == {}


@pytest.mark.parametrize("maybe_bound", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("bound", [("low-0",), ("low-0", "low-1")])
def test_the_reservations_of_a_started_gang_go_with_its_eviction(whole, bound, maybe_bound):
    """E-10: the gang that needs all of their nodes is not impossible, whether one member is bound or more."""
    case = started(*bound, pods=3, whole=whole, asks=3, nodes=3)
    expected = {pod.uid for pod in case.tree("low").pods if pod.node is None}
    made = case.preempt(moment=EvictableContext(maybe_bound=expected if maybe_bound else ()))
    assert isinstance(made, PreemptionPlan)
    assert {pod.pod for unit in made.victims for pod in unit.pods} == {
        f"default/{name}" for name in bound
    }
    drafts = decide_preemption(
        case.view, case.state, forest_of(case.view), case.tree(), case.asking(), made, RECIPE
    )
    released = [d.data for d in drafts if isinstance(d.data, ReservationReleased)]
    assert {pod.uid for each in released for pod in each.pods} == expected


def test_a_reservation_stays_where_a_part_of_its_started_gang_is_enough():
    """Two members run on two nodes, and one of these is needed: the third keeps its reservation, for the gang may be completed."""
    case = started("low-0", "low-1", pods=3, asks=1, nodes=3)
    made = case.preempt()
    assert isinstance(made, PreemptionPlan)
    uids = {pod.uid for unit in made.victims for pod in unit.pods}
    assert len(uids) == 1
    assert unbound_reservations(case.view, case.state, forest_of(case.view), uids) == []


def test_a_member_on_a_lost_node_keeps_no_reservation_of_its_gang():
    """No unit has it, so that no eviction waits for it."""
    case = started("low-0", "low-1", pods=3, whole=True, asks=1, nodes=3)
    lost, evicted = (p for p in case.tree("low").pods if p.node is not None)
    case.cluster.delete_node(lost.node)
    held = unbound_reservations(case.view, case.state, forest_of(case.view), {evicted.uid})
    assert [reservation.pod for reservation in held] == ["default/low-2"]


@pytest.mark.parametrize("maybe_bound", [False, True])
def test_the_reservation_of_an_extra_goes_before_its_gang_though_the_barrier_is_open(maybe_bound):
    """E-10: the minimum runs, so only what may be bound already stays."""
    case = Case(
        a_node("n0", gpu=2), *gang("low", 1, 50, requests={GPU: 1}),
        a_pod("low-1", "low", priority=50, requests={GPU: 1}),
        *gang("high", 1, 100, requests={GPU: 1}),
    )  # fmt: skip
    case.admit("low")
    root, (first, extra) = case.tree("low").root, case.tree("low").pods
    bound = PodBound(
        pod=first.path, uid=first.uid, group="low", node=NodeName("n0"), plan=PlanId("plan-1")
    )
    scheduled = GangScheduled(plan=PlanId("plan-1"), bound=1)
    for event in (bound, scheduled):
        case.state = folded(case.state, (root.uid, root.key.path, event))
    case.cluster.change_pod(first.name, node="n0")
    moment = EvictableContext(
        releasing={root.uid}, maybe_bound={extra.uid} if maybe_bound else frozenset()
    )
    made = case.preempt(moment=moment)
    assert isinstance(made, PreemptionPlan)
    assert [u.name for u in made.victims] == (["Pod/default/low-0"] if maybe_bound else [])
    assert [p.uid for u in made.superseded for p in u.pods] == ([] if maybe_bound else [extra.uid])


# --- rules between pods


def apart(app, key="kubernetes.io/hostname"):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def near(app, key="kubernetes.io/hostname"):
    return {"podAffinity": apart(app, key)["podAntiAffinity"]}


def labelled(app):
    return {"labels": {"app": app}}


@pytest.mark.parametrize("who", ["member", "neighbour"])
def test_who_keeps_a_member_off_can_be_evicted_for_it(who):
    """KAI#2115: there is capacity, but anti-affinity, of either side, keeps the member off both nodes."""
    theirs = {} if who == "member" else {"affinity": apart("high")}
    mine = {"affinity": apart("noisy")} if who == "member" else {}
    case = Case(
        a_node("n0"), a_node("n1"),
        a_pod("dear", node="n0", priority=9, metadata=labelled("noisy"), **theirs),
        a_pod("cheap", node="n1", priority=1, metadata=labelled("noisy"), **theirs),
        *gang("high", 1, 100, metadata=labelled("high"), **mine),
    )  # fmt: skip
    made = case.preempt()
    assert isinstance(made, PreemptionPlan)
    assert [u.name for u in made.victims] == ["Pod/default/cheap"]
    assert [a.node for a in made.plan.assignments] == ["n1"]


def test_whom_a_member_must_be_near_is_not_evicted():
    """The node of the database is full: the other pod there goes, the cheaper database stays."""
    case = Case(
        a_node("n0", gpu=2), a_node("n1", gpu=2),
        a_pod("db", node="n0", priority=1, requests={GPU: 1}, metadata=labelled("db")),
        a_pod("web", node="n0", priority=9, requests={GPU: 1}),
        *gang("high", 1, 100, requests={GPU: 1}, affinity=near("db")),
    )  # fmt: skip
    made = case.preempt()
    assert isinstance(made, PreemptionPlan)
    assert [u.name for u in made.victims] == ["Pod/default/web"]


MIRROR = {"annotations": {"kubernetes.io/config.mirror": "0f1e"}}
OF_NODE = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "n"}]}
OF_SET = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"}]}


@pytest.mark.parametrize("metadata", [MIRROR, OF_NODE], ids=["annotation", "owner"])
def test_static_pods_never_go(metadata):
    """What the API shows of them can be deleted, and they run on: whatever their priority, no capacity comes of it."""
    static = a_pod("static", node="n0", requests={GPU: 1}, priority=-5, metadata=metadata)
    other = a_pod("other", node="n0", requests={GPU: 1}, priority=1)
    high = gang("high", 2, 100, requests={GPU: 1})
    case = Case(a_node("n0", gpu=2), static, other, *high)
    assert units(case.evictable()) == {"Pod/default/other": ["default/other"]}
    made = case.preempt()
    assert isinstance(made, NoPreemption)
    one = Case(a_node("n0", gpu=2), static, other, *gang("high", 1, 100, requests={GPU: 1}))
    made = one.preempt()
    assert [u.name for u in made.victims] == ["Pod/default/other"]


@pytest.mark.parametrize("namespace", EXEMPT_NAMESPACES)
def test_pods_of_exempt_namespaces_never_go(namespace):
    """An admission policy refuses the service their eviction: a plan that needs one could not be carried out."""
    system = a_pod("dns", namespace=namespace, node="n0", requests={GPU: 1}, priority=-5)
    other = a_pod("other", node="n0", requests={GPU: 1}, priority=1)
    case = Case(a_node("n0", gpu=2), system, other, *gang("high", 2, 100, requests={GPU: 1}))
    assert units(case.evictable()) == {"Pod/default/other": ["default/other"]}
    assert isinstance(case.preempt(), NoPreemption)


def test_pods_of_daemon_sets_go_like_any_other():
    """E-3 knows priority and nothing else; kube-scheduler evicts them as well, and nominations keep their capacity."""
    low = a_pod("agent", node="n0", requests={GPU: 1}, priority=1, metadata=OF_SET)
    top = a_pod("cni", node="n0", requests={GPU: 1}, priority=2_000_001_000, metadata=OF_SET)
    case = Case(a_node("n0", gpu=2), low, top, *gang("high", 1, 100, requests={GPU: 1}))
    assert units(case.evictable()) == {"Pod/default/agent": ["default/agent"]}
    assert isinstance(case.preempt(), PreemptionPlan)


@pytest.mark.parametrize("pods", [2, 8, 64])
def test_a_gang_that_goes_whole_costs_more_than_one_pod_of_another(pods):
    """Of equal priority: the only member of a gang with mode single goes, not all pods of one with mode all (E-9)."""
    low = {"priority": 1, "node": "n0", "requests": {GPU: "1"}}
    case = Case(
        a_node("n0", gpu=pods + 1),
        a_group("large", gang=pods, priority=1, whole=True),
        *(a_pod(f"large-{n}", "large", **low) for n in range(pods)),
        a_group("small", gang=1, priority=1),
        a_pod("small-0", "small", **low),
        a_group("high", gang=1, priority=100),
        a_pod("high-0", "high", priority=100, requests={GPU: "1"}),
    )
    made = case.preempt()
    assert [unit.name for unit in made.victims] == ["Pod/default/small-0"]
