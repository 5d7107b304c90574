"""Nodes and trees as the cluster shows them now."""

from __future__ import annotations

import json

import msgspec
import pytest
from immutables import Map

from extender.core.model.cluster_view import without_node
from extender.core.model.errors import NotFound
from extender.core.model.ids import GangUid, NodeName
from extender.core.model.pod_groups import Group, composite_key
from extender.queries.state.node_inventory import NodeInventory, TreeNow
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod


@pytest.fixture
def cluster():
    return FakeCluster()


async def listed(fleet):
    return json.loads(b"".join(await fleet.nodes()))


async def test_ordinary_pods_and_members_are_counted_apart(cluster):
    """What pods without a group take stands apart; amounts are in the units of requests."""
    cluster.add(
        a_node("n-b", {RACK: "r1"}, gpu=8),
        a_node("n-a", gpu=8),
        a_pod("alone", node="n-b", requests={GPU: 2, "cpu": "500m"}),
        *a_gang("g", pods=1, requests={GPU: 3}, node="n-b", topo=RACK),
        a_pod("waits", requests={GPU: 8}),
    )
    document = await listed(NodeInventory(cluster))
    assert [node["node"] for node in document["nodes"]] == ["n-a", "n-b"]
    node = document["nodes"][1]
    assert node["labels"][RACK] == "r1"
    assert (node["ordinary"][GPU], node["ordinary"]["cpu"], node["ordinary_pods"]) == (2, 500, 1)
    assert (node["members"][GPU], node["member_pods"]) == (3, 1)
    assert node["allocatable"][GPU] == 8
    assert document["topology_keys"] == [RACK]
    assert document["not_current_reason"] == ""


async def test_an_empty_cluster_is_an_empty_list(cluster):
    """No node: still a whole document."""
    assert await listed(NodeInventory(cluster)) == {
        "not_current_reason": "",
        "topology_keys": [],
        "nodes": [],
    }


async def test_only_lines_that_changed_are_encoded_again(cluster):
    """A line is the same bytes as long as node and pods are; a pod that comes and a node that goes are seen."""
    cluster.add(a_node("n-a", gpu=8), a_node("n-b", gpu=8))
    fleet = NodeInventory(cluster)
    before = await fleet.nodes()
    cluster.add(a_pod("new", node="n-b", requests={GPU: 1}))
    after = await fleet.nodes()
    assert after[2] is before[2]
    assert after[4] is not before[4]
    assert json.loads(b"".join(after))["nodes"][1]["ordinary"][GPU] == 1
    cluster.seen = without_node(cluster.seen, NodeName("n-a"))
    assert [node["node"] for node in (await listed(fleet))["nodes"]] == ["n-b"]


async def test_a_tree_is_listed_from_its_root_whether_admitted_or_not(cluster):
    """Groups depth first with minimum and topology; members with the gates that hold them."""
    cluster.add(
        a_group("root", gang=2, composite=True, topo=RACK),
        a_group("b", gang=1, parent="root"),
        a_group("a", gang=1, parent="root"),
        a_group("elsewhere", gang=1),
        a_pod("p-0", "a", schedulingGates=[{"name": "held"}]),
    )
    pieces = await NodeInventory(cluster).tree("default", "root")
    tree = msgspec.json.decode(b"".join(pieces), type=TreeNow)
    assert [(g.kind, g.name, g.parent, g.minimum) for g in tree.groups] == [
        ("CompositePodGroup", "root", "", 2), ("PodGroup", "b", "root", 1), ("PodGroup", "a", "root", 1),
    ]  # fmt: skip
    assert tree.groups[0].topology == (RACK,)
    members = [m for g in tree.groups for m in g.members]
    assert [(m.pod, m.gates, m.node) for m in members] == [("default/p-0", ("held",), "")]


async def test_a_tree_deeper_than_python_calls_functions_is_shown(cluster):
    """It breaks the rules, and is looked at all the same."""
    names = [f"g{i:04}" for i in range(1_500)]
    groups = [Group(key=composite_key("default", name), uid=GangUid(name), parent=parent)
              for name, parent in zip(names, [None, *names], strict=False)]  # fmt: skip
    cluster.seen = msgspec.structs.replace(cluster.seen, groups=Map({g.key: g for g in groups}))
    pieces = await NodeInventory(cluster).tree("default", names[0])
    tree = msgspec.json.decode(b"".join(pieces), type=TreeNow)
    assert [g.name for g in tree.groups] == names


async def test_a_root_that_is_not_there_is_not_found(cluster):
    """Groups below a root are no roots."""
    cluster.add(a_group("root", gang=1, composite=True), a_group("leaf", gang=1, parent="root"))
    for name in ("leaf", "other"):
        with pytest.raises(NotFound, match=f"gang default/{name}: the cluster has no such root"):
            await NodeInventory(cluster).tree("default", name)
