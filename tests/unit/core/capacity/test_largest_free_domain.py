"""The largest capacity in one place: what counts as free, which domain wins, and that it equals a plain sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.capacity.largest_free_domain import (
    FreeDomains,
    capacity_by_use,
    devices,
    levels_of,
    measure_capacity,
)
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model.cluster_view import ClusterView
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import BLOCK, GPU, RACK, a_fleet, a_gang, a_node, a_pod


def view_of(*objects):
    return FakeCluster(*objects).view()


def measured(*objects, state: ReservationState = EMPTY, keys=(RACK,)):
    return {
        (r.resource, r.key): r
        for r in measure_capacity(
            NodeRowCache(), FreeDomains(), view_of(*objects), state, keys
        ).largest_free
    }


def test_ordinary_pods_take_capacity():
    """A rack with an ordinary pod on it loses to one that is empty; the total counts both."""
    found = measured(*a_fleet("2 racks x 2 nodes"), a_pod("x", node="r0-n0", requests={GPU: 3}))
    rack, node = found[GPU, RACK], found[GPU, ""]
    assert (rack.domain, rack.free, rack.nodes, rack.total) == ("r1", 16, 2, 29)
    assert (node.domain, node.free, node.nodes, node.total) == ("r0-n1", 8, 1, 29)


def test_nodes_that_take_no_pods_have_no_capacity():
    """Cordoned nodes and those with a taint of Kubernetes; a taint of the operator does not count, as pods may tolerate it."""
    cordoned, ill, special = (a_node(name, {RACK: name}, gpu=8) for name in ("a", "b", "c"))
    cordoned["spec"] = {"unschedulable": True}
    ill["spec"] = {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}
    special["spec"] = {"taints": [{"key": "gpus-only", "effect": "NoSchedule"}]}
    rack = measured(cordoned, ill, special)[GPU, RACK]
    assert (rack.domain, rack.free, rack.total) == ("c", 8, 8)


def test_without_devices_cpu_counts():
    """Millicores, where no node has an extended resource."""
    assert measured(a_node("n", {RACK: "r"}))["cpu", RACK].free == 64_000


def test_a_full_cluster_and_an_unlabelled_level_have_a_record():
    """A full cluster has a record of zero without a domain; so has a level that no node is labelled for."""
    full = measured(a_node("n", {RACK: "r"}, gpu=1), a_pod("x", node="n", requests={GPU: 1}))
    assert [(r.domain, r.free, r.total) for r in full.values()] == [("", 0, 0), ("", 0, 0)]
    unlabelled = measured(a_node("n", gpu=1))[GPU, RACK]
    assert (unlabelled.domain, unlabelled.free, unlabelled.total) == ("", 0, 1)
    assert measured() == measured(keys=()) | measured()


def test_levels_are_those_of_settings_and_groups():
    """A key that some group requires is measured, whether it is configured or not."""
    assert levels_of(view_of(*a_gang("g", topo=RACK)), (BLOCK, RACK)) == (BLOCK, RACK)
    in_rack = view_of(*a_gang("g", topo=RACK), a_node("n", {RACK: "r0"}))
    assert levels_of(in_rack, (BLOCK,)) == (BLOCK, RACK)
    assert levels_of(ClusterView(), ()) == ()


def test_a_misspelt_key_of_a_group_is_not_measured():
    """It is no level where nothing is free: no node has the label."""
    view = view_of(*a_gang("g", topo="net/rakc"), a_node("n", {RACK: "r0"}))
    assert levels_of(view, (RACK,)) == (RACK,)


@given(
    st.lists(
        st.tuples(st.sampled_from(["r0", "r1", "r2"]), st.integers(0, 8), st.integers(0, 8)),
        max_size=6,
    )
)
def test_it_is_the_plain_sum(nodes):
    """Against sums written down once more, whatever is taken where."""
    objects, free = [], {}
    for number, (rack, has, takes) in enumerate(nodes):
        objects.append(a_node(f"n{number}", {RACK: rack}, gpu=has))
        if takes:
            objects.append(a_pod(f"p{number}", node=f"n{number}", requests={GPU: takes}))
        free[rack] = free.get(rack, 0) + max(has - takes, 0)
    found = measured(*objects)
    if not any(has for _, has, _ in nodes):
        assert (GPU, RACK) not in found
        return
    rack = found[GPU, RACK]
    assert rack.free == max(free.values())
    assert rack.total == sum(free.values())
    assert not rack.free or free[rack.domain] == rack.free


A_NODE = st.tuples(st.sampled_from(["r0", "r1", ""]), st.integers(0, 4), st.booleans())


@given(
    st.lists(
        st.tuples(
            st.lists(A_NODE, min_size=3, max_size=4),
            st.lists(st.integers(0, 6), min_size=4, max_size=4),
            st.sampled_from([(RACK,), (RACK, BLOCK)]),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_what_is_followed_is_what_is_counted_anew(moments):
    """Whatever changes between two measurements: pods, nodes, their labels, capacity and cordons, and the levels."""
    rows, domains = NodeRowCache(), FreeDomains()
    for nodes, taken, keys in moments:
        objects = []
        for number, ((rack, has, cordoned), takes) in enumerate(zip(nodes, taken, strict=False)):
            node = a_node(f"n{number}", {RACK: rack} if rack else {}, gpu=has)
            node["spec"] = {"unschedulable": cordoned}
            objects += [node, a_pod(f"p{number}", node=f"n{number}", requests={GPU: takes})]
        view = view_of(*objects)
        followed = measure_capacity(rows, domains, view, EMPTY, keys)
        assert followed == measure_capacity(NodeRowCache(), FreeDomains(), view, EMPTY, keys)


def test_devices_leave_out_markers():
    """Our marker resources are not devices."""
    node = a_node("n", **{"gang-extender.dev/member": 100, "example.com/fpga": 1, "pods": 5})
    view = view_of(node)
    assert devices(NodeRowCache().rows(view, {})) == ("example.com/fpga",)


def test_the_uses_of_capacity_add_up():
    """Members of gangs, other pods, what is free and what no pod may use; a node that is not there counts for nothing."""
    cordoned = a_node("c", gpu=8)
    cordoned["spec"] = {"unschedulable": True}
    group, member = a_gang("g", pods=1, requests={GPU: 3}, nodeName="a")
    lost = a_gang("lost", pods=1, requests={GPU: 3}, nodeName="away")
    view = view_of(
        a_node("a", gpu=8), a_node("b", gpu=8), cordoned, group, member, *lost,
        a_pod("x", node="a", requests={GPU: 1}), a_pod("y", node="c", requests={GPU: 2}),
    )  # fmt: skip
    uses = capacity_by_use(NodeRowCache(), view, EMPTY)
    of_gpus = {use: amount for (resource, use), amount in uses.items() if resource == GPU}
    assert of_gpus == {
        "bound": 3, "others": 3, "reserved": 0, "held": 0, "free": 12, "unusable": 6,
    }  # fmt: skip
    assert sum(of_gpus.values()) == 24
