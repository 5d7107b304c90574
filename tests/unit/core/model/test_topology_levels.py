"""The levels of the topology: which label keys of nodes they are, and in which order."""

from __future__ import annotations

import random

import pytest
from immutables import Map

from extender.core.model.ids import NodeName
from extender.core.model.nodes import Node, TopologyLevels, names_level

RACK, BLOCK, ZONE = "net/rack", "net/block", "topology.kubernetes.io/zone"


def fleet(*labels: dict[str, str]) -> Map[NodeName, Node]:
    names = [NodeName(f"n{number}") for number in range(len(labels))]
    return Map({n: Node(name=n, labels=own) for n, own in zip(names, labels, strict=True)})


def racks(**more: str) -> Map[NodeName, Node]:
    """Eight nodes in four racks, two blocks and one zone."""
    return fleet(*({RACK: f"r{n // 2}", BLOCK: f"b{n // 4}", ZONE: "z", **more} for n in range(8)))


@pytest.mark.parametrize(
    "key",
    [
        "rack",
        "net/rack",
        ZONE,
        "topology.kubernetes.io/region",
        "cloud.google.com/gce-topology-subblock",
        "oci.oraclecloud.com/rdma.hpc_island_id",
        "topology.k8s.aws/network-node-layer-2",
        "nvidia.com/gpu.clique",
        "example.com/Row",
    ],
)
def test_the_last_word_of_a_key_names_a_level(key: str) -> None:
    assert names_level(key)


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.io/hostname",
        "cloud.google.com/gce-topology-host",
        "rack/disk",
        "node.kubernetes.io/instance-type",
        "example.com/racks",
        "zone.example.com/tier",
        "kubernetes.io/os",
    ],
)
def test_other_keys_name_none(key: str) -> None:
    """A single node is no level."""
    assert not names_level(key)


def test_the_level_with_most_domains_is_the_narrowest() -> None:
    """Not the words decide: a cluster may have more blocks than racks."""
    assert TopologyLevels().of(racks()) == (RACK, BLOCK)  # all nodes are in one zone
    swapped = fleet(*({RACK: f"r{n // 4}", BLOCK: f"b{n // 2}"} for n in range(8)))
    assert TopologyLevels().of(swapped) == (BLOCK, RACK)


def test_keys_that_are_asked_for_are_levels_whatever_their_name() -> None:
    nodes = fleet(*({"example.com/aisle": f"{n // 2}", "os": "linux"} for n in range(4)))
    levels = TopologyLevels()
    assert levels.of(nodes) == ()
    assert levels.of(nodes, ["example.com/aisle", "os", "nowhere"]) == ("example.com/aisle",)


def test_what_divides_no_nodes_is_no_level() -> None:
    """Each node in a rack of its own: the fewest racks are the fewest nodes."""
    alone = fleet(*({RACK: f"r{n}", BLOCK: "b"} for n in range(4)))
    assert TopologyLevels().of(alone) == ()
    partly = fleet({BLOCK: "b"}, {BLOCK: "b"}, {})
    assert TopologyLevels().of(partly) == (BLOCK,)  # a node without the label is in no domain


def test_of_keys_that_divide_alike_there_is_one() -> None:
    """Cloud providers and CSI drivers repeat the zone under names of their own."""
    nodes = fleet(
        *(
            {ZONE: f"z{n // 2}", "topology.ebs.csi.example.com/zone": f"z{n // 2}", "a/row": f"{n % 2}"}
            for n in range(4)
        )
    )  # fmt: skip
    assert TopologyLevels().of(nodes) == ("a/row", ZONE)


@pytest.mark.parametrize("seed", range(20))
def test_kept_levels_are_those_of_the_nodes_now(seed: int) -> None:
    """Whatever changes: labels, other fields, nodes that come and go."""
    chance, kept, nodes = random.Random(seed), TopologyLevels(), racks()
    for step in range(30):
        name = NodeName(f"n{chance.randrange(10)}")
        node = nodes.get(name, Node(name=name))
        labels = {**node.labels, chance.choice([RACK, BLOCK, ZONE, "os"]): chance.choice("abc")}
        changed = Node(name=name, labels=labels)
        match chance.randrange(4):
            case 0:
                nodes = nodes.set(name, changed)
            case 1 if name in nodes:
                nodes = nodes.delete(name)
            case _:
                nodes = nodes.set(name, Node(name=name, labels=node.labels, uid=str(step)))
        keys = chance.choice([(), ("os",)])
        assert kept.of(nodes, keys) == TopologyLevels().of(nodes, keys)
