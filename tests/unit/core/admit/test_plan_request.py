"""The planner's input: free capacity to the last unit, members, pins, gates, and rows that are never stale."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.admit.node_rejections import NodeRejections
from extender.core.admit.plan_request import (
    TreeParts,
    is_candidate,
    is_running,
    members_without_reservation,
    plan_request,
    vacated,
)
from extender.core.capacity.free_capacity import NodeRowCache, UsedCapacity, used_capacity
from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GroupRecord,
    MoveRecord,
    MovesPlanned,
    NewEvent,
    NodeRejected,
)
from extender.core.log.reservation_state import EMPTY, Reservation
from extender.core.model.cluster_view import (
    ClusterView,
    with_node,
    with_pod,
    without_node,
    without_pod,
)
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid
from extender.core.model.nodes import Node, Taint
from extender.core.model.pod_groups import foreign_gates
from extender.core.model.pods import GATE, HostPort, Pod, PodShape
from extender.core.planner.plan_types import PlanNear, waiting_reasons
from extender.core.workloads.workload_object import MANAGED_BY
from extender.ports.written_names import MANAGED_BY_LABEL
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang, a_group, a_node, a_pod
from tests.unit.core.support import folded


def _request(view, state, name, now_ms=0, rows=None):
    tree = next(t for t in forest_of(view).trees.values() if t.root.key.name == name)
    holding = NodeRejections().holding(view, state, now_ms)
    part = TreeParts().of(tree, state.gangs.get(tree.root.uid))
    return plan_request(
        view, state, part, rows=rows or NodeRowCache(), budget=1000, rejections=holding
    )


def _free(request, node="n0"):
    return next(row.free for row in request.nodes if row.name == node)[GPU]


def _holding(cluster, root, pods, node="n0", priority=0):
    """Return the state in which `root` holds capacity for `pods` on a node."""
    group = cluster.group(root)
    record = GroupRecord(kind="PodGroup", name=root, minimum=len(pods))
    assignments = tuple(
        AssignmentRecord(
            pod=f"default/{name}", uid=cluster.pod(name).uid, group=root, node=NodeName(node)
        )
        for name in pods
    )
    event = GangAdmitted(
        plan=PlanId("plan"), kind="PodGroup", priority=priority, groups=(record,),
        shapes=({GPU: 1, "pods": 1, "cpu": 0},), assignments=assignments,
    )  # fmt: skip
    return folded(EMPTY, (group.uid, f"default/{root}", GangObserved(kind="PodGroup")),
                  (group.uid, f"default/{root}", event))  # fmt: skip


def test_terminating_pods_still_take_capacity():
    """Free capacity is allocatable less every assigned pod, one with a deletionTimestamp included."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=2))
    cluster.add(
        a_pod("old", node="n0", requests={GPU: 3}), a_pod("going", node="n0", requests={GPU: 2})
    )
    cluster.change_pod("going", deleting=True)
    assert _free(_request(cluster.seen, EMPTY, "g")) == 3


def test_reservations_take_capacity_until_their_pod_is_assigned():
    """A reservation of another tree counts once: as reservation while its pod is pending, as pod afterwards."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=2), *a_gang("other", pods=3))
    state = _holding(cluster, "other", ["other-0", "other-1", "other-2"])
    request = _request(cluster.seen, state, "g")
    assert _free(request) == 5
    assert request.nodes[0].reserved
    cluster.change_pod("other-0", node=NodeName("n0"))
    assert _free(_request(cluster.seen, state, "g")) == 5


@pytest.mark.parametrize(("mover", "free"), [("g", 8), ("other", 6)])
def test_a_vacated_tree_leaves_moves_of_others(mover, free):
    """What is held for moves of other gangs is not free for a tree that is planned anew; what was for its own is."""
    cluster = FakeCluster(
        a_node("n0", gpu=8), a_node("n1", gpu=2), *a_gang("g", pods=1), *a_gang("other", pods=1)
    )
    cluster.change_pod(f"{mover}-0", node=NodeName("n1"))
    root = cluster.group(mover)
    move = MoveRecord(
        pod=f"default/{mover}-0", uid=cluster.pod(f"{mover}-0").uid, group=mover, gang=f"default/{mover}", gang_uid=root.uid,
        source=NodeName("n1"), target=NodeName("n0"), requests={GPU: 2, "pods": 1}, priority=0,
    )  # fmt: skip
    state = folded(
        EMPTY,
        (root.uid, f"default/{mover}", GangObserved(kind="PodGroup")),
        (NIL_GANG, "", MovesPlanned(plan=PlanId("p"), question="q", by="", moves=(move,))),
    )
    tree = next(t for t in forest_of(cluster.seen).trees.values() if t.root.key.name == "g")
    assert _free(_request(*vacated(cluster.seen, state, [tree]), "g")) == free


@pytest.mark.parametrize(("priority", "free"), [(9, 8), (10, 6), (11, 6)])
def test_nominations_of_equal_or_higher_priority_take_capacity(priority, free):
    """A pod nominated on a node counts as kube-scheduler counts it: from its own priority downwards."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=2))
    cluster.change_group("g", priority=10)
    cluster.add(a_pod("preemptor", requests={GPU: 2}))
    cluster.change_pod("preemptor", priority=priority, nominated=NodeName("n0"))
    assert _free(_request(cluster.seen, EMPTY, "g")) == free


@pytest.mark.parametrize(
    ("priority", "asks", "changes", "free"),
    [
        (5, 2, {}, 2),
        (6, 2, {}, 2),
        (4, 2, {}, 4),  # waits for the tree, as kube-scheduler has it
        (5, 5, {}, 4),  # does not fit there now: not about to come
        (5, 2, {"gates": ("example.com/hold",)}, 4),
        (5, 2, {"node": NodeName("n1")}, 4),
        (5, 2, {"shape": PodShape(requests=((GPU, 2),), node_selector=(("pool", "b"),))}, 4),
    ],
)
def test_pods_that_are_about_to_come_to_their_only_node_take_capacity(
    priority, asks, changes, free
):
    """A DaemonSet's pod is known before it runs; it counts like a nominated one."""
    cluster = FakeCluster(a_node("n0", gpu=4), a_node("n1", gpu=4), *a_gang("g", pods=1))
    cluster.change_group("g", priority=5)
    cluster.add(a_pod("d", requests={GPU: asks}))
    cluster.change_pod("d", priority=priority, pinned=NodeName("n0"), **changes)
    assert _free(_request(cluster.seen, EMPTY, "g")) == free


def test_of_several_that_come_the_first_have_their_capacity():
    """The higher priority first, then the older; who is left over holds nothing up."""
    pods = (a_pod(f"d{n}", requests={GPU: 3}) for n in range(2))
    cluster = FakeCluster(a_node("n0", gpu=4), *a_gang("g", pods=1), *pods)
    for n in range(2):
        cluster.change_pod(f"d{n}", pinned=NodeName("n0"))
    assert _free(_request(cluster.seen, EMPTY, "g")) == 1


def test_old_nominations_of_a_tree_do_not_stand_in_its_own_way():
    """Members whose reservations were given back are still nominated; their nominations do not count against them."""
    cluster = FakeCluster(a_node("n0", gpu=2), *a_gang("g", pods=2))
    for name in ("g-0", "g-1"):
        cluster.change_pod(name, nominated=NodeName("n0"))
    request = _request(cluster.seen, EMPTY, "g")
    assert _free(request) == 2
    assert [m.prefer for m in request.root.members] == ["n0", "n0"]


def test_a_nominated_pod_with_a_reservation_counts_once():
    """The nomination that follows a reservation is the same capacity."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=2), *a_gang("other", pods=1))
    state = _holding(cluster, "other", ["other-0"])
    cluster.change_pod("other-0", nominated=NodeName("n0"))
    assert _free(_request(cluster.seen, state, "g")) == 7


def test_own_reservations_and_bound_members_pin():
    """What the tree holds already is given as bound; only the rest is to be placed."""
    cluster = FakeCluster(a_node("n0", gpu=8), a_node("n1", gpu=8), *a_gang("g", pods=4))
    state = _holding(cluster, "g", ["g-0"])
    cluster.change_pod("g-1", node=NodeName("n1"))
    cluster.change_pod("g-2", deleting=True)
    request = _request(cluster.seen, state, "g")
    assert {(b.pod, b.node) for b in request.root.bound} == {
        ("default/g-0", "n0"),
        ("default/g-1", "n1"),
    }
    assert [m.pod for m in request.root.members] == ["default/g-3"]
    assert _free(request) == 7
    assert not request.nodes[0].reserved


def test_pods_behind_foreign_gates_are_no_members_yet():
    """Our gate means present; any other gate keeps a pod out and is named."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=3))
    cluster.change_pod("g-0", gates=(GATE,))
    cluster.change_pod("g-1", gates=(GATE, "kueue/admission"))
    tree = next(iter(forest_of(cluster.seen).trees.values()))
    assert [p.name for p in members_without_reservation(tree, None)] == ["g-0", "g-2"]
    assert foreign_gates(tree) == ("kueue/admission",)
    assert [m.pod for m in _request(cluster.seen, EMPTY, "g").root.members] == [
        "default/g-0",
        "default/g-2",
    ]


def test_a_pod_that_lacks_a_claim_is_no_member_yet_and_the_group_has_the_reason():
    """Beyond the minimum it keeps no other from a place; of the minimum its group waits for the claim."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=3))
    for name in ("g-1", "g-2"):
        text = f"PersistentVolumeClaim default/c of pod {name} does not exist: create it"
        cluster.change_pod(name, waits_for=text)
    root = _request(cluster.seen, EMPTY, "g").root
    assert [m.pod for m in root.members] == ["default/g-0"]
    assert waiting_reasons(root) == [
        "waiting for members of PodGroup default/g: 3 required, 1 present; PersistentVolumeClaim default/c of pod g-1 "
        "does not exist: create it; the same for 1 more pod"
    ]
    cluster.change_pod("g-1", waits_for="")
    cluster.change_pod("g-2", waits_for="")
    assert waiting_reasons(_request(cluster.seen, EMPTY, "g").root) == []


def test_a_pod_is_a_candidate_or_running_or_neither():
    """A deletionTimestamp ends membership both for pending and for running pods (A.5)."""
    pod = Pod(uid=PodUid("u"), namespace="a", name="p", shape=PodShape())
    on_node = msgspec.structs.replace(pod, node=NodeName("n0"))
    going = msgspec.structs.replace(pod, deleting=True)
    judged = [(is_candidate(p), is_running(p)) for p in (pod, on_node, going)]
    assert judged == [(True, False), (False, True), (False, False)]
    assert not is_running(msgspec.structs.replace(on_node, deleting=True))


def test_a_leaf_that_is_being_deleted_gets_no_new_members():
    """Its running pods stay bound, its pending pods are not planned."""
    cluster = FakeCluster(a_node("n0", gpu=8), *a_gang("g", pods=2))
    cluster.change_pod("g-0", node=NodeName("n0"))
    cluster.change_group("g", deleting=True)
    request = _request(cluster.seen, EMPTY, "g")
    assert (len(request.root.members), len(request.root.bound)) == (0, 1)


def test_rejections_hold_for_their_time_their_tree_and_their_nodes():
    """A rejection by shape reaches equal pods, one by pod that pod; both end in time and with their node."""
    cluster = FakeCluster(
        a_node("n0", gpu=8), a_node("n1", gpu=8), *a_gang("g", pods=2), *a_gang("h", pods=1)
    )
    uid, pod = cluster.group("g").uid, cluster.pod("g-0").uid
    rejections = [
        NodeRejected(pod="default/g-0", uid=pod, node=NodeName("n0"), by_shape=True, until_ms=100),
        NodeRejected(pod="default/g-0", uid=pod, node=NodeName("n1"), by_shape=False, until_ms=100),
    ]
    state = folded(EMPTY, (uid, "default/g", GangObserved(kind="PodGroup")),
                   *((uid, "default/g", rejection) for rejection in rejections))  # fmt: skip
    found = _request(cluster.seen, state, "g", now_ms=99).rejected_nodes
    assert [(v.node, v.uid, v.shape) for v in found] == [("n0", None, 0), ("n1", pod, None)]
    assert not _request(cluster.seen, state, "g", now_ms=100).rejected_nodes
    assert not _request(cluster.seen, state, "h", now_ms=99).rejected_nodes
    cluster.delete_node("n1")
    assert [v.node for v in _request(cluster.seen, state, "g", now_ms=99).rejected_nodes] == ["n0"]


def test_nested_groups_keep_their_order_and_policy():
    """The request mirrors the tree: stored order, policies, minima, one index per shape."""
    cluster = FakeCluster(
        a_node("n0", gpu=8), a_group("root", gang=2, composite=True),
        a_group("b", gang=1, parent="root"), a_group("a", parent="root"),
        a_pod("b-0", "b", requests={GPU: 1}), a_pod("a-0", "a", requests={GPU: 1}),
        a_pod("a-1", "a", requests={GPU: 2}),
    )  # fmt: skip
    request = _request(cluster.seen, EMPTY, "root")
    assert [(g.key.name, g.basic, g.minimum) for g in request.root.groups] == [
        ("b", False, 1),
        ("a", True, 1),
    ]
    assert [m.shape for g in request.root.groups for m in g.members] == [0, 0, 1]
    assert len(request.shapes) == 2


# --- the cache of rows

NODES = [NodeName(f"n{i}") for i in range(3)]
RESERVATIONS = [
    Reservation(
        kind="reservation",
        plan=PlanId("p"),
        gang_uid=GangUid("r"),
        pod=f"a/h{i}",
        uid=PodUid(f"h{i}"),
        group="g",
        node=NODES[0],
        requests={"gpu": i % 2},
        priority=0,
        extra=False,
        at_us=0,
    )
    for i in range(3)
]
_changes = st.one_of(
    st.builds(
        Node,
        name=st.sampled_from(NODES),
        labels=st.sampled_from([{}, {"rack": "r0"}]),
        taints=st.sampled_from([(), (Taint("k"),)]),
        unschedulable=st.booleans(),
        allocatable=st.sampled_from([{"gpu": 8}, {"gpu": 4, "cpu": 10}]),
    ),
    st.sampled_from(NODES),
    st.builds(
        Pod,
        uid=st.sampled_from([PodUid(f"u{i}") for i in range(5)]),
        namespace=st.just("a"),
        name=st.just("p"),
        shape=st.builds(PodShape, requests=st.sampled_from([(), (("gpu", 1),), (("gpu", 3),)])),
        node=st.none() | st.sampled_from(NODES),
        nominated=st.none() | st.sampled_from(NODES),
        pinned=st.none() | st.sampled_from(NODES),
    ),
    st.sampled_from([PodUid(f"u{i}") for i in range(5)]),
)


_holds = st.builds(
    UsedCapacity,
    held=st.lists(st.sampled_from(RESERVATIONS), max_size=2, unique_by=id).map(tuple),
    ports=st.sampled_from([(), (HostPort(protocol="TCP", port=80, ip="0.0.0.0"),)]),
    reserved=st.sampled_from([(), ((GPU, 1),)]),
)


@examples(300)
@given(st.lists(st.tuples(_changes, st.dictionaries(st.sampled_from(NODES), _holds)), max_size=30))
def test_a_remembered_row_is_never_stale(changes):
    """After any sequence of changes a cache in use gives the very rows that a fresh one makes."""
    view, rows = ClusterView(), NodeRowCache()
    for change, holds in changes:
        if isinstance(change, Node):
            view = with_node(view, change)
        elif isinstance(change, Pod):
            view = with_pod(view, change)
        elif change in NODES:
            view = without_node(view, NodeName(change))
        else:
            view = without_pod(view, PodUid(change))
        taken = {**used_capacity(view, EMPTY, priority=0), **holds}
        given = rows.rows(view, taken)
        assert given == NodeRowCache().rows(view, taken)
        assert rows.rows(view, taken) is given, "nothing changed, so neither may the rows"


def test_the_nil_stream_reserves_nothing():
    """Events without a root leave the planner's input as it is."""
    cluster = FakeCluster(*a_fleet("2 nodes"), *a_gang("g", pods=1))
    before = _request(cluster.seen, EMPTY, "g")
    drafts = NewEvent(gang_uid=NIL_GANG, gang="", data=GangObserved(kind="PodGroup"), actor="t")
    state = folded(EMPTY, (GangUid(drafts.gang_uid), "", drafts.data))
    assert _request(cluster.seen, state, "g") == before


def test_a_request_has_the_groups_that_others_shall_be_near_to():
    """Those of the tree that are neither above nor below."""
    near = [{"group": name, "key": "net/rack"} for name in ("root", "b", "other")]
    cluster = FakeCluster(
        a_node("n", {"net/rack": "r"}),
        a_group("root", composite=True, gang=2),
        a_group("a", gang=1, parent="root", schedulingConstraints={"near": near}),
        a_group("b", gang=1, parent="root"),
        a_pod("p", "a"),
        a_pod("q", "b"),
    )
    request = _request(cluster.view(), EMPTY, "root")
    a, b = request.root.groups
    assert a.near == (PlanNear(group=b.key, key="net/rack"),)
    assert b.near is msgspec.UNSET


def test_a_request_has_the_slices_of_a_leaf_below_it():
    """By the index of their Jobs' pods, those on nodes and with reservations included."""
    wish = {"slices": [{"size": 2, "key": "net/rack"}], "preferred": ["net/rack"], "balanced": True}
    group = a_group("g", gang=4, schedulingConstraints=wish)
    index = "batch.kubernetes.io/job-completion-index"
    pods = [a_pod(f"p{n}", "g", metadata={"labels": {index: str(n)}}) for n in range(5)]
    cluster = FakeCluster(a_node("n", {"net/rack": "r"}), group, *pods)
    cluster.change_pod("p3", node=NodeName("n"))
    root = _request(cluster.view(), EMPTY, "g").root
    assert (root.key.kind, root.balanced, root.minimum) == ("PodGroup", True, 2)
    assert root.required == ("g/slice-0", "g/slice-1")
    assert [(len(g.members), len(g.bound), g.minimum, g.topology) for g in root.groups] == [
        (2, 0, 2, ("net/rack",)),
        (1, 1, 2, ("net/rack",)),
        (1, 0, 1, ("net/rack",)),
    ]


def test_a_request_has_the_wishes_of_its_groups_and_the_levels_of_the_nodes():
    """Those whose names show it, those of the settings, and those that a group of the tree has."""
    keys = ("net/rack", "net/block", "example.com/aisle", "example.com/hall-of-fame")
    nodes = [
        a_node(f"n{n}", {key: f"{n // 2**i}" for i, key in enumerate(keys, 1)}) for n in range(32)
    ]
    wish = {"topology": [{"key": "example.com/aisle"}], "preferred": ["net/rack", "net/block"]}
    group = a_group("g", gang=1, schedulingConstraints=wish)
    cluster = FakeCluster(*nodes, group, a_pod("p", "g"), *a_gang("plain", pods=1))
    request = _request(cluster.view(), EMPTY, "g")
    assert request.root.preferred == ("net/rack", "net/block")
    assert request.root.topology == ("example.com/aisle",)
    assert request.levels == ("net/rack", "net/block", "example.com/aisle")
    plain = _request(cluster.view(), EMPTY, "plain")
    assert plain.root.preferred is msgspec.UNSET
    assert plain.levels == ("net/rack", "net/block")
    rows = NodeRowCache(["example.com/hall-of-fame"])
    configured = _request(cluster.view(), EMPTY, "plain", rows=rows)
    assert configured.levels == ("net/rack", "net/block", "example.com/hall-of-fame")
    bare = FakeCluster(a_node("n"), *a_gang("plain", pods=1))
    assert _request(bare.view(), EMPTY, "plain").levels is msgspec.UNSET


INDEX, JOB = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"
ALL_JOBS = {"gang-extender.dev/leaf": "replicated-job"}
WORKER, ORDINAL = "leaderworkerset.sigs.k8s.io/worker-index", "apps.kubernetes.io/pod-index"


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        ([{INDEX: "10"}, {INDEX: "9"}], [10, 9]),
        ([{ORDINAL: "1"}, {ORDINAL: "0"}], [1, 0]),
        # the leader of an LWS is pod 3 of the StatefulSet of leaders
        ([{WORKER: "0", ORDINAL: "3"}, {WORKER: "1", ORDINAL: "1"}], [0, 1]),
        # one leaf for all Jobs of a ReplicatedJob, or for one of them
        ([{JOB: "1", INDEX: "0"}, {JOB: "0", INDEX: "0"}], [10**9, 0]),
        ([{JOB: "1", INDEX: "1"}, {JOB: "1", INDEX: "0"}], [1, 0]),
        (
            [{JOB: "1", INDEX: "1", **ALL_JOBS}, {JOB: "1", INDEX: "0", **ALL_JOBS}],
            [10**9 + 1, 10**9],
        ),
        ([{INDEX: "0"}, {}], None),
        ([{}, {INDEX: "0"}], None),
        ([{INDEX: "0"}, {INDEX: "0"}], None),
        ([{INDEX: "x"}, {INDEX: "0"}], None),
        ([{INDEX: "1" * 10}, {INDEX: "0"}], None),
        ([{INDEX: "4"}], None),
    ],
)
def test_members_of_an_ordered_leaf_have_ranks(labels, ranks):
    """Waiting members and bound ones alike; where one has none, or two have the same, the leaf has no order."""
    pods = [a_pod(f"p{n}", "g", metadata={"labels": own}) for n, own in enumerate(labels)]
    cluster = FakeCluster(a_node("n0", gpu=8), a_group("g", gang=1), *pods)
    given = {
        member.pod: member.rank for member in _request(cluster.view(), EMPTY, "g").root.members
    }
    expected = ranks or [msgspec.UNSET] * len(labels)
    assert given == {f"default/p{n}": rank for n, rank in enumerate(expected)}
    held = _holding(cluster, "g", ["p0"])
    bound = _request(cluster.view(), held, "g").root.bound
    assert [member.rank for member in bound] == expected[:1]


MADE = {"labels": {MANAGED_BY_LABEL: MANAGED_BY}}


@pytest.mark.parametrize(
    ("metadata", "template", "expected"),
    [
        ({}, "", (UNSET, UNSET)),
        (MADE, "", ("", "annotation gang-extender.dev/min: worker=")),
        (MADE, "mine", (UNSET, UNSET)),
    ],
    ids=["of a user", "of a workload", "of a user's template"],
)
def test_the_minimum_of_a_composite_of_a_workload_is_that_of_its_role(metadata, template, expected):
    """It cannot be lowered at the group: the service would write it again. A user's Workload has the field."""
    names = ("train-92b6f957", "train-worker-92b6f957")
    root = a_group(names[0], gang=1, composite=True, metadata=metadata)
    below = a_group(names[1], gang=1, composite=True, parent=names[0], metadata=metadata)
    for group in (root, below):
        group["spec"]["workloadRef"]["templateName"] = template or group["metadata"]["name"]
    leaf = a_group("leaf", gang=1, parent=names[1])
    view = FakeCluster(root, below, leaf, a_pod("p", "leaf")).view()
    (tree,) = forest_of(view).trees.values()
    part = TreeParts().of(tree, None)
    request = plan_request(view, EMPTY, part, rows=NodeRowCache(), budget=1)
    (child,) = request.root.groups
    assert (request.root.set_by, child.set_by) == expected
    assert child.groups[0].set_by is UNSET


@pytest.mark.parametrize(
    ("owner", "expected"),
    [(None, ""), ("job-uid", "annotation gang-extender.dev/min: ")],
    ids=["plain pods", "Job"],
)
def test_the_minimum_of_a_leaf_of_a_workload_is_that_of_its_annotation(owner, expected):
    """The service would write `minCount` again, which was named here as what helps."""
    owners = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": owner, "controller": True}
    ]
    metadata = {**MADE, "ownerReferences": owners if owner else []}
    view = FakeCluster(a_group("j", gang=2, metadata=metadata), a_pod("p", "j")).view()
    (tree,) = forest_of(view).trees.values()
    part = TreeParts().of(tree, None)
    request = plan_request(view, EMPTY, part, rows=NodeRowCache(), budget=1)
    assert request.root.set_by == expected
