"""The view stays what a fresh count of its pods would give, whatever happens."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from extender.core.model.cluster_view import (
    ClusterView,
    forest_after,
    forest_of,
    with_group,
    with_new_pods,
    with_node,
    with_nodes,
    with_pdb,
    with_pod,
    without_group,
    without_node,
    without_pdb,
    without_pod,
)
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Group, composite_key, leaf_key
from extender.core.model.pods import HostPort, Pod, PodDisruptionBudget, PodRule, PodShape

NODES = [NodeName(f"n{i}") for i in range(3)]
shapes = st.builds(
    PodShape,
    requests=st.dictionaries(
        st.sampled_from(["cpu", "memory", "gpu"]), st.integers(1, 9), max_size=3
    ).map(lambda wanted: tuple(sorted({**wanted, "pods": 1}.items()))),
    host_ports=st.lists(
        st.builds(HostPort, st.just("TCP"), st.integers(80, 82)), max_size=2, unique=True
    ).map(tuple),
    exclusive_claims=st.lists(st.sampled_from(["a/x", "a/y"]), max_size=2, unique=True).map(tuple),
    rules=st.sampled_from(
        [(), (PodRule("near", ("zone",), ()),), (PodRule("apart", ("zone",), ()),)]
    ),
)
pods = st.builds(
    Pod,
    uid=st.sampled_from([PodUid(f"u{i}") for i in range(6)]),
    namespace=st.just("a"),
    name=st.just("p"),
    shape=shapes,
    group=st.none() | st.sampled_from([leaf_key("a", "g"), leaf_key("a", "h")]),
    node=st.none() | st.sampled_from(NODES),
    nominated=st.none() | st.sampled_from(NODES),
    deleting=st.booleans(),
    pinned=st.none() | st.sampled_from(NODES),
)
changes = st.lists(
    st.one_of(
        pods,
        st.sampled_from([PodUid(f"u{i}") for i in range(6)]),
        st.builds(
            Node,
            name=st.sampled_from(NODES),
            allocatable=st.just({"cpu": 1}),
            uid=st.text(max_size=1),
        ),
    ),
    max_size=30,
)


def recounted(view: ClusterView) -> ClusterView:
    """Build the counted parts anew from the pods."""
    usage, members, nominated, on_node, pinned, keeping_off = {}, {}, {}, {}, {}, {}
    for pod in view.pods.values():
        if pod.group:
            members.setdefault(pod.group, {})[pod.uid] = pod
        if pod.node:
            on_node.setdefault(pod.node, {})[pod.uid] = pod
            used = usage.setdefault(pod.node, (Counter(), Counter(), Counter()))
            used[0].update(dict(pod.shape.requests))
            used[1].update(pod.shape.host_ports)
            used[2].update(pod.shape.exclusive_claims)
        elif pod.nominated:
            nominated[pod.uid] = pod
        elif pod.pinned and not pod.group and not pod.deleting:
            pinned[pod.uid] = pod
        if any(rule.kind == "apart" for rule in pod.shape.rules):
            keeping_off[pod.uid] = pod
    have = {
        node: (Counter(u.requests), Counter(u.host_ports), Counter(u.claims))
        for node, u in view.usage.items()
    }
    assert have == usage
    return msgspec.structs.replace(
        view,
        members=Map({key: Map(value) for key, value in members.items()}),
        nominated=Map(nominated),
        on_node=Map({key: Map(value) for key, value in on_node.items()}),
        pinned=Map(pinned),
        keeping_off=Map(keeping_off),
    )


@given(changes)
def test_what_is_counted_as_it_goes_equals_a_recount(steps) -> None:
    """After any sequence of changes the indexes and the usage are those of the pods that are there."""
    view = ClusterView()
    for step in steps:
        before = view
        match step:
            case Pod():
                view = with_pod(view, step)
                assert view.pods[step.uid] == step
            case Node():
                view = with_node(view, step)
            case uid:
                view = without_pod(view, uid)
        assert (view is before) == (view.revision == before.revision)
        assert (view.nodes == before.nodes) == (view.generation == before.generation)
        assert recounted(view) == view


@given(st.lists(pods, max_size=4), st.lists(pods, max_size=8))
def test_pods_that_are_added_together_give_the_view_of_one_after_the_other(some, more) -> None:
    view = ClusterView()
    for pod in some:
        view = with_pod(view, pod)
    new = {pod.uid: pod for pod in more if pod.uid not in view.pods}.values()
    together, alone = with_new_pods(view, new), view
    for pod in new:
        alone = with_pod(alone, pod)
    assert together == alone
    assert recounted(together) == together
    assert together.pod_log.since(view.pod_log) == [pod.uid for pod in new]
    for index in ("members", "nominated", "on_node", "pinned", "keeping_off", "usage"):
        same = getattr(together, index) is getattr(view, index)
        assert same or getattr(together, index) != getattr(view, index), index


def test_of_a_node_that_is_added_twice_at_once_the_last_one_counts() -> None:
    """Also where it equals what the view has."""
    first, other = Node(name=NODES[0]), Node(name=NODES[0], unschedulable=True)
    view = with_node(ClusterView(), first)
    assert with_nodes(view, (other, first)) is view
    assert with_nodes(view, (first, other)).nodes[NODES[0]] == other


@given(st.lists(pods, max_size=8))
def test_taking_everything_away_leaves_nothing(some) -> None:
    view = ClusterView()
    for pod in some:
        view = with_pod(view, pod)
    for pod in some:
        view = without_pod(view, pod.uid)
    assert (view.usage, view.members, view.on_node, view.nominated, view.pods) == (Map(),) * 5


def test_an_older_view_is_not_touched_by_later_changes() -> None:
    old = with_node(ClusterView(), Node(name=NODES[0]))
    pod = Pod(uid=PodUid("u"), namespace="a", name="p", shape=PodShape(), node=NODES[0])
    with_pod(without_node(old, NODES[0]), pod)
    assert list(old.nodes) == [NODES[0]]
    assert not old.pods
    assert not old.usage


def test_an_equal_object_changes_nothing() -> None:
    """Equal objects give the same view, so no task wakes for them."""
    group = Group(key=leaf_key("a", "g"), uid=GangUid("g"))
    view = with_group(with_node(ClusterView(), Node(name=NODES[0])), group)
    assert with_group(view, group) is view
    assert with_node(view, Node(name=NODES[0])) is view
    assert without_group(view, leaf_key("a", "other")) is view
    assert without_node(view, NODES[1]) is view
    assert without_pod(view, PodUid("u")) is view
    assert not without_group(view, group.key).groups


def test_a_node_may_go_before_its_pods() -> None:
    pod = Pod(uid=PodUid("u"), namespace="a", name="p", shape=PodShape(), node=NODES[0])
    view = without_node(with_pod(with_node(ClusterView(), Node(name=NODES[0])), pod), NODES[0])
    assert list(view.on_node) == [NODES[0]]
    assert not without_pod(view, pod.uid).on_node


GROUPS = [composite_key("a", "r"), composite_key("a", "c"), leaf_key("a", "g"), leaf_key("a", "h")]
groups = st.builds(
    Group,
    key=st.sampled_from(GROUPS),
    uid=st.sampled_from([GangUid("1"), GangUid("2")]),
    parent=st.none() | st.sampled_from(["r", "c"]),
    created_us=st.integers(0, 1),
    priority=st.integers(0, 1),
    resource_version=st.text(max_size=1),
)


@given(st.lists(st.one_of(pods, groups, st.sampled_from([PodUid("u0"), *GROUPS])), max_size=30))
def test_a_forest_that_grows_is_the_forest_that_is_planted(found):
    """After any change the forest made from the one before equals the one made anew; other trees stay the same objects."""
    before, view = ClusterView(), ClusterView()
    forest = forest_of(before)
    for change in found:
        if isinstance(change, Pod):
            view = with_pod(view, change)
        elif isinstance(change, Group):
            view = with_group(view, change)
        elif isinstance(change, str):
            view = without_pod(view, change)
        else:
            view = without_group(view, change)
        after = forest_after(before, forest, view)
        assert after == forest_of(view)
        if len(before.groups) == len(view.groups):
            for key, tree in after.trees.items():
                if tree == forest.trees.get(key):
                    assert tree is forest.trees[key] or tree.root.key in _touched(before, view)
        before, forest = view, after


def _touched(before, view):
    """Return the roots that some changed leaf or group may belong to."""
    leaves = {k for k in GROUPS if before.members.get(k) is not view.members.get(k)}
    changed = {k for k in GROUPS if before.groups.get(k) is not view.groups.get(k)}
    forests = (forest_of(before), forest_of(view))
    if any(k in f.orphans for k in changed for f in forests):
        return set(GROUPS)
    moved = any(
        k in before.groups
        and k in view.groups
        and (before.groups[k].parent, before.groups[k].created_us)
        != (view.groups[k].parent, view.groups[k].created_us)
        for k in changed
    )
    return (
        set(GROUPS)
        if moved
        else {f.root_of[k] for k in leaves | changed for f in forests if k in f.root_of}
    )


def test_budgets_come_and_go() -> None:
    budget = PodDisruptionBudget(namespace="a", name="b", allowed=1)
    view = with_pdb(ClusterView(), budget)
    assert view.budgets["a", "b"] is budget
    assert with_pdb(view, msgspec.structs.replace(budget)) is view
    assert without_pdb(view, "a", "other") is view
    gone = without_pdb(view, "a", "b")
    assert not gone.budgets
    assert gone.revision == view.revision + 1
