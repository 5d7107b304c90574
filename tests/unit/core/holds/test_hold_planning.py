"""Where capacity is held, for whom, and that nothing is given twice: pure decisions on random clusters."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.plan_request import TreeParts, plan_request, ruled_part
from extender.core.admit.verdict_events import EventContext, decide_verdict
from extender.core.capacity.capacity_claims import claims_against, not_free
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.holds.hold_planning import (
    HOLDS_MAX,
    HoldRequests,
    decide_hold,
    decide_hold_ends,
    trees_to_hold_for,
)
from extender.core.log.events import CapacityHoldReleased
from extender.core.log.reservation_state import EMPTY, reservations_on
from extender.core.model.ids import NodeName, PlanId
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import Plan
from extender.core.planner.planning import plan
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, RACK, a_group, a_node, a_pod
from tests.unit.core.support import fold_drafts

AFTER_US = 600_000_000
MINUTE_US = 60_000_000


class Simulation:
    """A cluster, the state, and the decisions about them, one after the other; every plan is checked when it is folded."""

    def __init__(self, *nodes, after_us=AFTER_US, topo="", max_percent=100):
        self.cluster = FakeCluster(*nodes)
        self.state = EMPTY
        self.now_us = 1_000_000
        self.after_us = after_us
        self.topo = topo
        self.max_percent = max_percent
        self.refusals = {}  # by name: why no capacity is held
        self.made = 0

    @property
    def view(self):
        return self.cluster.seen

    def tree(self, name) -> Tree:
        trees = forest_of(self.view).trees.values()
        return next(tree for tree in trees if tree.root.key.name == name)

    def root(self, name):
        return next(g for g in self.state.gangs.values() if g.gang.endswith(f"/{name}"))

    def add(self, name, pods, *, gpu=1, priority=0, namespace="default"):
        self.cluster.add(
            a_group(name, gang=pods, priority=priority, namespace=namespace, topo=self.topo),
            *(
                a_pod(
                    f"{name}-{n}", name, requests={GPU: gpu}, priority=priority, namespace=namespace
                )
                for n in range(pods)
            ),
        )

    def remove(self, name):
        tree = self.tree(name)
        for pod in tree.pods:
            self.cluster.delete_pod(pod.path)
        self.cluster.delete_group(name)

    def recipe(self) -> EventContext:
        self.made += 1
        return EventContext(plan=PlanId(f"plan-{self.made}"), digest="", actor="test", cause="")

    def request(self, tree):
        part = TreeParts().of(tree, self.state.gangs.get(tree.root.uid))
        rows = NodeRowCache()
        request = plan_request(self.view, self.state, part, rows=rows, budget=2000)
        ruled = ruled_part(self.view, self.state, part, rows=rows)
        return part, request, ruled

    def fold(self, drafts):
        self.state = fold_drafts(self.state, drafts, at_us=self.now_us)
        self.check()

    def one_pass(self):
        """Reconcile, admit, bind what was admitted, and hold capacity for one tree."""
        self.now_us += MINUTE_US
        forest = forest_of(self.view)
        now = ReconcileContext(actor="test", cause="", now_us=self.now_us)
        self.fold(decide_hold_ends(self.view, self.state, forest, now, enabled=True))
        self.fold(Reconciliation().decide(self.view, self.state, forest, now))
        for tree in sorted(forest.trees.values(), key=lambda t: (-t.root.priority, t.root.key)):
            if not TreeParts().wanting(tree, self.state.gangs.get(tree.root.uid)):
                continue
            _, request, _ = self.request(tree)
            verdict = plan(msgspec.structs.replace(request, explain=False))
            self.fold(decide_verdict(self.state, tree, request, verdict, self.recipe()))
            root = self.state.gangs[tree.root.uid]
            for reservation in list(root.reservations.values()):
                self.cluster.change_pod(reservation.pod, node=reservation.node, phase="Running")
            self.fold(Reconciliation().decide(self.view, self.state, forest_of(self.view), now))
        for root in trees_to_hold_for(self.state, now_us=self.now_us, after_us=self.after_us):
            if self.hold(self.tree(root.gang.partition("/")[2])):
                return

    def hold(self, tree) -> bool:
        _, request, ruled = self.request(tree)
        search = HoldRequests(
            self.view, self.state, tree, request, ruled, max_percent=self.max_percent
        ).search()
        asked, place, refusal = next(search), None, None
        while asked is not None:
            found = plan(asked)
            fits = isinstance(found, Plan) and bool(found.assignments)
            place = (asked, found) if fits else place
            try:
                asked = search.send(found if fits else None)
            except StopIteration as end:
                asked, refusal = None, end.value
        if refusal is not None or place is None:
            self.refusals[tree.root.key.name] = refusal
            return False
        until_us = self.now_us + 60 * MINUTE_US
        drafts = decide_hold(self.view, self.state, tree, *place, self.recipe(), until_us=until_us)
        self.fold(drafts)
        return True

    def check(self):
        """No node has more than it offers in pods and reservations, nor in holds; there are few holds."""
        for name, node in self.view.nodes.items():
            used = Counter()
            for pod in self.view.on_node.get(name, {}).values():
                used.update(dict(pod.shape.requests))
            for reservation in reservations_on(self.state, name).values():
                if self.view.pods[reservation.uid].node is None:
                    used.update(reservation.requests)
            held = Counter()
            for hold in self.state.capacity_holds.values():
                for pod in hold.pods:
                    held.update(pod.requests if pod.node == name else {})
            for resource, amount in node.allocatable.items():
                assert used[resource] <= amount, f"{name} is overcommitted"
                assert held[resource] <= amount, f"{name} holds more than it has"
        holds = list(self.state.capacity_holds.values())
        assert len(holds) <= HOLDS_MAX
        for hold in holds:
            needs = sum((Counter(dict(pod.requests)) for pod in hold.pods), Counter())
            for resource, amount in needs.items():
                whole = sum(node.allocatable.get(resource, 0) for node in self.view.nodes.values())
                assert amount * 100 <= whole * self.max_percent, f"more {resource} than the share"
        of_equals = Counter((h.gang.partition("/")[0], h.priority) for h in holds)
        assert not of_equals or max(of_equals.values()) == 1


def nodes(count, gpu=2):
    return [a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=gpu) for i in range(count)]


def streamed(simulation, passes):
    """Let a small gang end in each pass, while others wait already; return after how many passes `large` is admitted.

    It comes when the cluster is full. None: it is not admitted.
    """
    names = [f"s{i}" for i in range(passes + 8)]
    for name in names[:8]:
        simulation.add(name, 1, namespace=f"of-{name}")
    simulation.one_pass()
    simulation.add("large", 4)
    for number in range(passes):
        simulation.one_pass()
        if simulation.root("large").phase in ("admitted", "scheduled"):
            return number
        bound = {g.gang.partition("/")[2] for g in simulation.state.gangs.values() if g.bound}
        oldest = next(name for name in names if name in bound)
        simulation.remove(oldest)
        simulation.add(names[8 + number], 1, namespace=f"of-{names[8 + number]}")
    return None


def test_a_large_gang_does_not_starve_behind_an_endless_stream():
    """One small gang a minute ends, and a new one comes; after ten minutes what ends is for the large one."""
    assert streamed(Simulation(*nodes(2)), 40) is not None


def test_without_holds_it_starves():
    """The control: the same stream."""
    assert streamed(Simulation(*nodes(2), after_us=0), 40) is None


def test_the_place_with_the_fewest_busy_slots_is_held():
    """Of two racks, that where fewer pods must leave; free slots of other nodes are used as they are."""
    simulation = Simulation(*nodes(4), topo=RACK)
    for rack, pods in (("n0", 2), ("n1", 2), ("n2", 1), ("n3", 2)):
        simulation.cluster.add(
            *(
                a_pod(f"on-{rack}-{i}", node=rack, namespace="other", requests={GPU: 1})
                for i in range(pods)
            )
        )
    simulation.add("large", 3)
    for _ in range(12):
        simulation.one_pass()
    (hold,) = simulation.state.capacity_holds.values()
    assert sorted({pod.node for pod in hold.pods}) == ["n2", "n3"]
    view, state = simulation.view, simulation.state

    def against(name, priority):
        holds = claims_against(state, NodeName(name), priority=priority, gang_uid="")
        return not_free(view, state, NodeName(name), holds, "").get(GPU, 0)

    assert sum(against(f"n{n}", 0) for n in range(4)) == 3, "what the gang needs, and no more"
    assert not against("n2", 1)


def test_pods_that_stay_do_not_count_as_capacity_that_frees():
    """A tree that fits only without a DaemonSet pod or one of kube-system gets no hold."""
    simulation = Simulation(*nodes(2))
    simulation.cluster.add(a_pod("system", node="n0", namespace="kube-system", requests={GPU: 1}))
    simulation.cluster.add(a_pod("job", node="n1", requests={GPU: 2}))
    simulation.add("large", 4)
    simulation.add("other", 3, namespace="other")
    for _ in range(15):
        simulation.one_pass()
    assert [hold.gang for hold in simulation.state.capacity_holds.values()] == ["other/other"]


def crowded(*fleet, **options):
    """Return a cluster whose nodes are full of pods of another namespace."""
    simulation = Simulation(*fleet, **options)
    for name, node in simulation.view.nodes.items():
        gpus = {GPU: node.allocatable[GPU]}
        simulation.cluster.add(a_pod(f"on-{name}", node=name, namespace="other", requests=gpus))
    return simulation


def waits(simulation, passes=13):
    """Let time go by; return the nodes on which capacity is held then."""
    for _ in range(passes):
        simulation.one_pass()
    holds = simulation.state.capacity_holds.values()
    return sorted({pod.node for hold in holds for pod in hold.pods})


def two_racks():
    """A rack of two GPUs, in which fewer pods must leave, and one of six."""
    small = [a_node(f"n{i}", {RACK: "small"}, gpu=1) for i in range(2)]
    return [*small, *(a_node(f"n{i}", {RACK: "wide"}, gpu=2) for i in range(2, 5))]


def test_a_domain_that_is_wide_enough_is_held_instead_of_one_that_it_would_fill():
    simulation = crowded(*two_racks(), topo=RACK, max_percent=50)
    simulation.add("large", 2)
    assert waits(simulation) == ["n2"]
    everything = crowded(*two_racks(), topo=RACK, max_percent=100)
    everything.add("large", 2)
    assert waits(everything) == ["n0", "n1"]


def test_a_tree_that_fills_a_domain_has_it_held_where_that_is_no_more_than_the_share_of_the_cluster():
    """A gang of a whole rack: one of two racks, and of three the ones that are there for others stay theirs."""
    racks = [a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=1) for i in range(6)]
    simulation = crowded(*racks, topo=RACK, max_percent=50)
    simulation.add("large", 2)
    assert waits(simulation) == ["n0", "n1"]
    simulation.add("second", 2, namespace="second")
    assert waits(simulation) == ["n0", "n1", "n2", "n3"]
    only = crowded(*racks[:2], topo=RACK, max_percent=50)
    only.add("large", 2)
    assert waits(only) == []
    assert "have nvidia.com/gpu 2, of which 50 percent" in only.refusals["large"].reason


def test_where_a_wide_domain_has_no_place_a_whole_one_is_held():
    """In the wide rack each node has one GPU, too few for a pod of two."""
    narrow = [a_node(f"n{i}", {RACK: "narrow"}, gpu=2) for i in range(2)]
    wide = [a_node(f"n{i}", {RACK: "wide"}, gpu=1) for i in range(2, 12)]
    simulation = crowded(*narrow, *wide, topo=RACK, max_percent=50)
    simulation.add("large", 2, gpu=2)
    assert waits(simulation) == ["n0", "n1"]


def test_a_tree_that_needs_more_than_the_share_of_all_domains_gets_no_hold():
    simulation = crowded(*two_racks(), topo=RACK, max_percent=50)
    simulation.add("large", 5)
    assert waits(simulation) == []
    refusal = simulation.refusals["large"]
    assert (
        "needs nvidia.com/gpu 5; the nodes that its pods may use have nvidia.com/gpu 8, of which 50 percent"
        in refusal.reason
    )
    assert "at most nvidia.com/gpu 4, or set" in refusal.help
    assert refusal.help.endswith("HOLD_CAPACITY_MAX_PERCENT to 63")
    raised = crowded(*two_racks(), topo=RACK, max_percent=63)
    raised.add("large", 5)
    assert waits(raised) == ["n2", "n3", "n4"]


def test_the_share_is_of_the_nodes_that_the_pods_may_use():
    """All nodes of one kind are not a small part of a large cluster."""
    kinds = [a_node(f"n{i}", {"gpu": "new" if i < 2 else "old"}, gpu=1) for i in range(8)]
    simulation = crowded(*kinds, max_percent=50)
    simulation.cluster.add(
        a_group("large", gang=2),
        *(
            a_pod(f"large-{i}", "large", requests={GPU: 1}, nodeSelector={"gpu": "new"})
            for i in range(2)
        ),
    )
    assert waits(simulation) == []
    assert "have nvidia.com/gpu 2, of which 50 percent" in simulation.refusals["large"].reason


def test_a_tree_that_only_pods_of_its_own_namespace_block_gets_no_hold():
    """It gets one where pods of others must leave too."""
    for namespace, held in (("default", []), ("other", ["n0", "n1"])):
        simulation = Simulation(*nodes(2))
        simulation.cluster.add(a_pod("own", node="n0", requests={GPU: 2}))
        simulation.cluster.add(a_pod("job", node="n1", namespace=namespace, requests={GPU: 1}))
        simulation.add("large", 4)
        assert waits(simulation) == held
    assert waits(simulation, 0) == ["n0", "n1"]


def test_a_hold_ends_when_only_pods_of_its_own_namespace_are_still_in_its_way():
    """What others have freed is theirs again; a pod that terminates already is waited for."""
    simulation = Simulation(*nodes(2))
    simulation.cluster.add(a_pod("own", node="n0", requests={GPU: 1}))
    simulation.cluster.add(a_pod("job-0", node="n0", namespace="other", requests={GPU: 1}))
    simulation.cluster.add(a_pod("job-1", node="n1", namespace="other", requests={GPU: 2}))
    simulation.add("large", 4)
    assert waits(simulation) == ["n0", "n1"]
    simulation.cluster.delete_pod("other/job-0")
    assert waits(simulation, 1) == ["n0", "n1"], "a pod of another namespace is in its way, too"
    simulation.cluster.change_pod("own", deleting=True)
    simulation.cluster.delete_pod("other/job-1")
    assert waits(simulation, 1) == ["n0", "n1"]
    simulation.cluster.change_pod("own", deleting=False)
    assert waits(simulation, 3) == []
    assert simulation.state.unused_holds["default"].until_us > simulation.now_us - MINUTE_US


def test_a_tree_that_has_changed_loses_its_hold():
    """A smaller minimum needs less than is held."""
    simulation = Simulation(*nodes(2))
    for name in ("n0", "n1"):
        job = a_pod(f"job-{name}", node=name, namespace="other", requests={GPU: 2})
        simulation.cluster.add(job)
    simulation.add("large", 4)
    for _ in range(12):
        simulation.one_pass()
    assert simulation.state.capacity_holds
    group = simulation.cluster.group("large")
    simulation.cluster.change_group("large", minimum=group.minimum - 1)
    now = ReconcileContext(actor="test", cause="", now_us=simulation.now_us)
    (draft,) = decide_hold_ends(
        simulation.view, simulation.state, forest_of(simulation.view), now, enabled=True
    )
    assert isinstance(draft.data, CapacityHoldReleased)
    assert draft.data.reason == "changed"
    assert "minima" in draft.data.message


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4), st.integers(0, 2), st.sampled_from("abc")),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
        st.tuples(st.just("cordon"), st.integers(0, 2)),
    ),
    min_size=3,
    max_size=12,
)


@given(
    actions=ACTIONS, max_percent=st.sampled_from((50, 70, 100)), topo=st.sampled_from(("", RACK))
)
@examples(150, quick=15, deadline=None)
def test_no_capacity_is_given_twice_and_no_more_than_the_share_is_held(actions, max_percent, topo):
    """Random arrivals, ends and cordons of gangs of three priorities and namespaces; holds come after two minutes."""
    simulation = Simulation(*nodes(3), after_us=2 * MINUTE_US, max_percent=max_percent, topo=topo)
    names = []
    for kind, *words in actions:
        if kind == "add":
            pods, priority, namespace = words
            names.append(f"g{len(names)}")
            simulation.add(names[-1], pods, priority=priority, namespace=namespace)
        elif kind == "remove" and names:
            left = [name for name in names if name]
            if left:
                name = left[words[0] % len(left)]
                simulation.remove(name)
                names[names.index(name)] = ""
        elif kind == "wait":
            simulation.now_us += words[0] * MINUTE_US
        elif kind == "cordon":
            node = simulation.view.nodes[NodeName(f"n{words[0]}")]
            simulation.cluster.change_node(f"n{words[0]}", unschedulable=not node.unschedulable)
        simulation.one_pass()
