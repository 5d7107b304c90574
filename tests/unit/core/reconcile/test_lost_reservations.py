"""Reservations that can no longer be redeemed are released with the reason; relabelled nodes are recorded."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GroupRecord,
    NodeTopologyChanged,
    ReservationReleased,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import GangUid, NodeName, PlanId
from extender.core.model.nodes import Taint
from extender.core.model.pods import PodEnd, PodShape, Toleration
from extender.core.reconcile.cluster_reconciliation import DELETED_UNBOUND
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from extender.core.reconcile.reservation_checks import incomplete_groups, unfit_pods
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.unit.core.support import ME, check_prefixes, folded

NODES = ("n0", "n1")


class Scene:
    """A tree of two leaves with two pods each, one leaf per node, all in rack a, admitted."""

    def __init__(self, minimum=2, root_minimum=2, **spec):
        self.cluster = FakeCluster(
            *(a_node(n, {RACK: "a", "pool": "p"}, gpu=4) for n in NODES),
            a_group("root", gang=root_minimum, composite=True, topo=RACK),
            *(a_group(leaf, gang=minimum, parent="root") for leaf in ("x", "y")),
            *(
                a_pod(f"{leaf}-{n}", leaf, requests={GPU: 1}, **spec)
                for leaf in ("x", "y")
                for n in range(2)
            ),
        )
        root = self.cluster.group("root")
        self.uid = root.uid
        leaves = tuple(
            GroupRecord(
                kind="PodGroup", name=leaf, parent="root", minimum=minimum,
                uid=self.cluster.group(leaf).uid,
            )
            for leaf in ("x", "y")
        )  # fmt: skip
        event = GangAdmitted(
            plan=PlanId("plan"),
            kind="CompositePodGroup",
            priority=0,
            groups=(
                GroupRecord(
                    kind="CompositePodGroup", name="root", minimum=root_minimum, domain={RACK: "a"},
                    uid=root.uid,
                ),
                *leaves,
            ),
            shapes=({GPU: 1, "pods": 1},),
            assignments=tuple(
                AssignmentRecord(
                    pod=f"default/{leaf}-{n}",
                    uid=self.cluster.pod(f"{leaf}-{n}").uid,
                    group=leaf,
                    node=NodeName(node),
                    extra=n >= minimum,
                )
                for leaf, node in zip(("x", "y"), NODES, strict=True)
                for n in range(2)
            ),
            topology={n: {RACK: "a"} for n in NODES},
        )  # fmt: skip
        where = (root.uid, "default/root")
        self.state = folded(
            EMPTY, (*where, GangObserved(kind="CompositePodGroup")), (*where, event)
        )

    def decide(self, now=ME):
        """Return the events and fold them, after checking that every prefix of them is sound."""

        def once(state):
            return Reconciliation().decide(
                self.cluster.seen, state, forest_of(self.cluster.seen), now
            )

        events = [draft.data for draft in once(self.state)]
        self.state = check_prefixes(self.state, once)
        return events

    def relabel(self, node, **labels):
        old = self.cluster.seen.nodes[NodeName(node)].labels
        new = {**old, **{{"rack": RACK}.get(k, k): v for k, v in labels.items()}}
        self.cluster.change_node(node, labels={k: v for k, v in new.items() if v is not None})

    def bind(self, *names):
        for name in names:
            uid = self.cluster.pod(name).uid
            self.cluster.change_pod(name, node=self.state.gangs[self.uid].reservations[uid].node)
        self.decide()


def released(events):
    return [f for f in events if isinstance(f, ReservationReleased)]


def pods_of(event):
    return [p.pod.partition("/")[2] for p in event.pods]


WAYS = {
    "was cordoned": lambda s: s.cluster.change_node("n0", unschedulable=True),
    "has a taint that the pod does not tolerate": lambda s: s.cluster.change_node(
        "n0", taints=(Taint(key="broken"),)
    ),
    "is not one that the pod selects any more": lambda s: s.relabel("n0", pool=None),
    "is not in topology.example.com/rack=a any more": lambda s: s.relabel("n0", rack="b"),
    "offers less than was reserved on it": lambda s: s.cluster.change_node(
        "n0", allocatable={GPU: 0, "pods": 9}
    ),
    "is gone": lambda s: s.cluster.delete_node("n0"),
    "is not used while claim c of a pod does not exist": lambda s: [
        s.cluster.change_pod(name, waits_for="claim c of a pod does not exist: create it")
        for name in ("x-0", "x-1")
    ],
}


@pytest.mark.parametrize("words", WAYS)
def test_a_node_that_would_not_take_its_pods_releases_the_tree(words):
    """Nothing is bound, the minimum is broken: the whole tree goes, in one event with the reason."""
    scene = Scene(nodeSelector={"pool": "p"})
    WAYS[words](scene)
    (event,) = released(scene.decide())
    assert (event.reason, pods_of(event)) == ("node-lost", ["x-0", "x-1", "y-0", "y-1"])
    assert event.message == (
        f"the minimum of the tree no longer holds: node n0 {words}: default/x-0, default/x-1"
    )
    assert not scene.state.claims_on
    assert scene.decide() == []


@pytest.mark.parametrize("words", WAYS)
@pytest.mark.parametrize("how", ["bound", "barrier"])
def test_a_started_tree_loses_only_the_affected_pods(words, how):
    """What is bound, or about to be, runs on; only who cannot get onto the node is planned again."""
    scene, now = Scene(nodeSelector={"pool": "p"}), ME
    if how == "bound":
        scene.bind("y-0")
    else:
        now = ReconcileContext(actor="t", cause="t", started=frozenset({scene.uid}))
    WAYS[words](scene)
    (event,) = released(scene.decide(now))
    assert (event.reason, pods_of(event)) == ("node-lost", ["x-0", "x-1"])


@pytest.mark.parametrize("gone", ["deleted", "ended"])
@pytest.mark.parametrize("started", [True, False])
def test_a_child_group_that_cannot_reach_its_minimum_any_more_keeps_no_reservation(started, gone):
    """Another child group runs, or is enough for the tree; this one could only be bound below its minimum."""
    scene, now = Scene(root_minimum=1), ME
    if started:
        scene.bind("x-0", "x-1")
    uid = scene.cluster.pod("y-1").uid
    scene.cluster.delete_pod("y-1")
    if gone == "ended":
        now = ReconcileContext(actor="t", cause="t", ends={uid: PodEnd("ended", "Failed")})
    (event,) = released(scene.decide(now))
    assert (event.reason, pods_of(event)) == ("deleted", ["y-0", "y-1"])
    assert event.message == (
        f"the minimum of PodGroup default/y no longer holds: {gone} before it was bound: default/y-1"
    )
    assert scene.decide() == []


@pytest.mark.parametrize("how", ["bound", "in flight", "without an answer"])
def test_a_child_group_of_which_a_member_runs_or_may_run_is_completed(how):
    scene = Scene(root_minimum=1)
    scene.bind("x-0", "x-1")
    uids = frozenset({scene.cluster.pod("y-0").uid})
    now = ReconcileContext(
        actor="t",
        cause="t",
        started=frozenset({scene.uid}),
        maybe_bound=uids if how == "without an answer" else frozenset(),
        binding=uids if how == "in flight" else frozenset(),
    )
    if how == "bound":
        scene.bind("y-0")
    scene.cluster.delete_pod("y-1")
    (event,) = released(scene.decide(now))
    assert (event.message, pods_of(event)) == (f"{DELETED_UNBOUND} default/y-1", ["y-1"])


GROUPS = {
    # name: parent, minimum, required
    "a leaf in a composite in a composite": [
        ("root", "", 1, ()), ("c", "root", 2, ()), ("x", "c", 2, ()), ("y", "c", 2, ()),
        ("z", "root", 1, ()),
    ],
    "a required child": [
        ("root", "", 1, ()), ("c", "root", 1, ("y",)), ("x", "c", 2, ()), ("y", "c", 2, ()),
        ("z", "root", 1, ()),
    ],
}  # fmt: skip


def records(tree):
    composites = {"root", "c"}
    return tuple(
        GroupRecord(
            kind="CompositePodGroup" if name in composites else "PodGroup",
            name=name,
            parent=parent,
            minimum=minimum,
            required=required,
        )
        for name, parent, minimum, required in tree
    )


@pytest.mark.parametrize("tree", GROUPS)
def test_the_uppermost_group_that_is_short_counts_for_all_leaves_below_it(tree):
    """Without y its parent is short, and with it the other leaf; not a leaf beside them."""
    short = incomplete_groups(records(GROUPS[tree]), {"x": 2, "y": 1, "z": 1})
    assert {leaf: group.name for leaf, group in short.items()} == {"x": "c", "y": "c"}
    short = incomplete_groups(records(GROUPS[tree]), {"x": 2, "y": 1, "z": 1}, {"x"})
    assert {leaf: group.name for leaf, group in short.items()} == {"y": "y"}
    assert incomplete_groups(records(GROUPS[tree]), {"x": 2, "y": 2}).keys() == {"z"}


def test_a_child_group_that_its_parent_does_not_need_leaves_it_complete():
    groups = records([("root", "", 1, ()), ("x", "root", 2, ()), ("y", "root", 2, ())])
    assert set(incomplete_groups(groups, {"x": 2, "y": 1})) == {"y"}
    # nothing is enough for the root
    assert {g.name for g in incomplete_groups(groups, {"x": 1}).values()} == {"root"}
    started = incomplete_groups(groups, {"x": 1}, started=True)
    assert {leaf: g.name for leaf, g in started.items()} == {"x": "x", "y": "y"}
    assert incomplete_groups((), {}, started=True) == {}


def test_an_extra_on_a_lost_node_is_released_alone():
    """As long as the rest meets the minimum the tree keeps it."""
    scene = Scene(minimum=1)
    scene.cluster.change_pod("x-1", shape=shape_of(scene, "x-1", node_selector=(("pool", "q"),)))
    (event,) = released(scene.decide())
    assert pods_of(event) == ["x-1"]


def shape_of(scene, name, **changes) -> PodShape:
    return msgspec.structs.replace(scene.cluster.pod(name).shape, **changes)


@pytest.mark.parametrize("kind", ["cordon", "taint", "prefer"])
def test_what_is_tolerated_changes_nothing(kind):
    """Tolerated taints and cordons, and PreferNoSchedule, are no reason."""
    scene = Scene()
    everything = (Toleration(operator="Exists"),)
    if kind != "prefer":
        for name in ("x-0", "x-1", "y-0", "y-1"):
            scene.cluster.change_pod(name, shape=shape_of(scene, name, tolerations=everything))
    if kind == "cordon":
        scene.cluster.change_node("n0", unschedulable=True)
    else:
        effect = "PreferNoSchedule" if kind == "prefer" else "NoSchedule"
        scene.cluster.change_node("n0", taints=(Taint(key="t", effect=effect),))
    assert scene.decide() == []


def test_a_bound_member_on_such_a_node_stays():
    """Only promises are taken back, never pods."""
    scene = Scene()
    scene.bind("x-0", "x-1", "y-0", "y-1")
    scene.cluster.change_node("n0", unschedulable=True, taints=(Taint(key="broken"),))
    assert scene.decide() == []


def test_many_pods_are_named_in_short():
    """The text names five and counts the rest; the event lists all."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=7, requests={GPU: 1}))
    uid = cluster.group("g").uid
    event = GangAdmitted(
        plan=PlanId("p"), kind="PodGroup", priority=0,
        groups=(GroupRecord(kind="PodGroup", name="g", minimum=7),), shapes=({GPU: 1},),
        assignments=tuple(
            AssignmentRecord(
                pod=f"default/g-{n}", uid=cluster.pod(f"g-{n}").uid, group="g", node=NodeName("n0")
            )
            for n in range(7)
        ),
    )  # fmt: skip
    root = (uid, "default/g")
    state = folded(EMPTY, (*root, GangObserved(kind="PodGroup")), (*root, event))
    cluster.change_node("n0", unschedulable=True)
    (draft,) = Reconciliation().decide(cluster.seen, state, forest_of(cluster.seen), ME)
    assert len(draft.data.pods) == 7
    assert draft.data.message.endswith("default/g-3, default/g-4 and more")


@pytest.mark.parametrize("how", ["deleted", "made again"])
@pytest.mark.parametrize("started", [False, True])
def test_a_group_that_is_not_the_admitted_one(how, started):
    """Deleted or recreated below the root (B5): the tree begins anew; what started keeps the rest."""
    scene = Scene()
    if started:
        scene.bind("y-0")
    if how == "deleted":
        scene.cluster.delete_group("x")
    else:
        scene.cluster.change_group("x", uid=GangUid("another"))
    (event,) = released(scene.decide())
    assert event.reason == "deleted"
    assert (
        f"PodGroup default/x was deleted{' and made again' * (how != 'deleted')}" in event.message
    )
    assert pods_of(event) == (["x-0", "x-1"] if started else ["x-0", "x-1", "y-0", "y-1"])


def test_relabelled_nodes_are_recorded_once_per_change():
    """NodeTopologyChanged with before and after, for nodes that hold members; also away and back again."""
    scene = Scene()
    scene.bind("x-0", "x-1", "y-0", "y-1")
    for rack, before in (("b", "a"), (None, "b"), ("a", None)):
        scene.relabel("n0", rack=rack)
        (event,) = scene.decide()
        assert event == NodeTopologyChanged(
            node=NodeName("n0"),
            before={RACK: before} if before else {},
            after={RACK: rack} if rack else {},
        )
        assert scene.decide() == []
    scene.relabel("n0", pool="other")
    assert scene.decide() == []


def test_relabelled_before_the_bind_is_recorded_before_the_release():
    """Cause before effect."""
    scene = Scene()
    scene.relabel("n1", rack="b")
    assert [type(f) for f in scene.decide()] == [NodeTopologyChanged, ReservationReleased]


def test_the_recorded_topology_survives_a_checkpoint():
    """What a checkpoint brings back knows the labels of the nodes in use."""
    scene = Scene()
    scene.relabel("n0", rack=None)
    scene.bind("x-0", "y-0")
    again = decode_state(encode_state(scene.state))
    assert again == scene.state


def test_unknown_pods_and_nodes_are_not_judged():
    """Pods and nodes that the view does not show are judged elsewhere."""
    scene = Scene()
    held = scene.state.gangs[scene.uid].reservations
    scene.cluster.delete_pod("x-0")
    scene.cluster.delete_node("n1")
    assert unfit_pods(scene.cluster.seen, scene.state.gangs[scene.uid], held) == {}


@pytest.mark.parametrize("name", ["root", "x"])
def test_a_group_that_is_being_deleted_gives_its_capacity_back_once(name):
    """Its finalizer may keep it for long: it is not planned any more, and its siblings' new plan stands."""
    scene = Scene()
    scene.cluster.change_group(name, deleting=True)
    (event,) = released(scene.decide())
    assert event.reason == "deleted"
    assert pods_of(event) == ["x-0", "x-1", "y-0", "y-1"]
    kind = "CompositePodGroup" if name == "root" else "PodGroup"
    assert event.message == f"{kind} default/{name} is being deleted: the tree begins anew"
    assert scene.decide() == []


def test_a_started_tree_gives_back_only_the_leaf_that_is_being_deleted():
    """A sibling whose members are on their way is completed, not stopped."""
    scene = Scene()
    scene.bind("y-0")
    scene.cluster.change_group("x", deleting=True)
    (event,) = released(scene.decide())
    assert pods_of(event) == ["x-0", "x-1"]
    assert "PodGroup default/x is being deleted: default/x-0" in event.message
    assert scene.decide() == []


def test_a_leaf_being_deleted_that_holds_nothing_releases_nothing():
    """Its siblings were planned without it."""
    scene = Scene()
    scene.bind("x-0", "x-1")
    scene.cluster.change_group("x", deleting=True)
    assert released(scene.decide()) == []
