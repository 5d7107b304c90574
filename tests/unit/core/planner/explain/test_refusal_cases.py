"""Cases in which the explanation of a refusal was weak once; the checker accepts each, and the texts are these."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.plan_types import (
    NodeRejection,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanRule,
    Refusal,
)
from extender.core.planner.planning import plan
from tests.support.refusals.refusal_checker import faults

replace = msgspec.structs.replace
HOSTNAME = "kubernetes.io/hostname"
OFFER = {"gpu": 4, "pods": 9}
GPU = PodShape(requests=(("gpu", 1), ("pods", 1)))


def node(number: int, rack: str, gpu: int = 4, **fields) -> PlanNode:
    labels = {"rack": rack, HOSTNAME: f"n{number}"}
    return PlanNode(**{
        "name": NodeName(f"n{number}"), "labels": labels, "allocatable": OFFER,
        "free": {**OFFER, "gpu": gpu}, **fields,
    })  # fmt: skip


def leaf(name: str, pods: int, *bound: str, shape: int = 0, **fields) -> PlanGroup:
    members = tuple(
        PlanMember(pod=f"ns/{name}-{i}", uid=PodUid(f"{name}-{i}"), shape=shape)
        for i in range(pods)
    )
    running = tuple(
        PlanBound(pod=f"ns/{name}-b{i}", uid=PodUid(f"{name}-b{i}"), node=NodeName(where))
        for i, where in enumerate(bound)
    )
    key = GroupKey("ns", name, "PodGroup")
    return PlanGroup(**{"key": key, "minimum": pods + len(bound), "members": members, "bound": running, **fields})  # fmt: skip


def refused(root: PlanGroup, *nodes: PlanNode, **fields) -> Refusal:
    """Return the refusal of a tree, after the checker has accepted it."""
    request = PlanRequest(**{"root": root, "nodes": nodes, "shapes": (GPU,), **fields})
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    assert refusal.outcome == "impossible"
    assert faults(request, refusal) == []
    return refusal


def named(refusal: Refusal) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in refusal.conflict]


def test_bound_members_in_two_domains_contradict_the_topology():
    """The conflict has the constraint with the bound members, and dropping it is the way out."""
    refusal = refused(
        leaf("train", 1, "n0", "n1", topology=("rack",)), node(0, "r0"), node(1, "r1")
    )
    assert named(refusal) == [
        (
            "topology",
            'all pods in one rack, but bound members are in two domains of rack: "r0" (ns/train-b0) and "r1" (ns/train-b1)',
        )
    ]
    assert refusal.relaxations == ("drop rack at PodGroup ns/train",)
    assert [group.name for group in refusal.changes[0].groups] == ["train"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("n9", "member ns/train-b0 is bound to node n9, which is not in the cluster"),
        ("n1", "member ns/train-b0 is bound to node n1, which has no label rack"),
    ],
    ids=["the node is gone", "no label"],
)
def test_a_bound_member_without_a_domain_contradicts_the_topology(where, text):
    """Nothing can be in one rack with a pod whose rack is not known."""
    bare = node(1, "r1", labels={})
    refusal = refused(leaf("train", 1, where, topology=("rack",)), node(0, "r0"), bare)
    assert [kind for kind, _ in named(refusal)] == ["topology"]
    assert text in refusal.conflict[0].message


def test_constraints_of_two_groups_are_contradicted():
    """Both must be dropped: a tree whose only leaf is in two racks, where the tree must be in one too."""
    child = leaf("train", 1, "n0", "n1", topology=("rack",))
    key = GroupKey("ns", "tree", "CompositePodGroup")
    root = PlanGroup(key=key, minimum=1, topology=("rack",), groups=(child,))
    refusal = refused(root, node(0, "r0"), node(1, "r1"))
    assert refusal.relaxations == (
        "drop rack at CompositePodGroup ns/tree and rack at PodGroup ns/train",
    )


NOT_READY = "node.kubernetes.io/not-ready"


def tainted(number: int, *keys: str, cordoned: bool = False) -> PlanNode:
    taints = tuple(Taint(key=key) for key in keys)
    return node(number, "r0", taints=taints, unschedulable=cordoned)


@pytest.mark.parametrize(
    ("nodes", "texts"),
    [
        ((tainted(0, "a"), tainted(1, "a")), ["tolerate the taint a"]),
        ((tainted(0, "a", "b"),), ["tolerate the taints a, b"]),
        ((tainted(0, NOT_READY),), [f"nodes leave the state of the taint {NOT_READY}"]),
        (
            (tainted(0, "a", NOT_READY),),
            [f"tolerate the taint a, and nodes leave the state of the taint {NOT_READY}"],
        ),
        ((tainted(0, cordoned=True), tainted(1, cordoned=True)), ["uncordon n0"]),
        ((tainted(0, "a", cordoned=True),), ["tolerate the taint a, and uncordon n0"]),
        ((tainted(0, "a"), tainted(1, cordoned=True)), ["tolerate the taint a", "uncordon n1"]),
        ((tainted(0, "a", "b"), tainted(1, "b")), ["tolerate the taint b"]),
    ],
    ids=["taint", "two taints", "state", "taint and state", "one of two cordons", "both on one node", "either", "the one that is enough"],
)  # fmt: skip
def test_the_taints_and_cordons_that_help_are_named(nodes, texts):
    """Each by itself where it is enough, together where both are needed."""
    refusal = refused(leaf("train", 1), *nodes)
    changes = [change.text for change in refusal.changes if change.kind == "taint"]
    assert sorted(changes) == sorted(texts)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((tainted(0, "a"), tainted(1, "a", cordoned=True)), "it does not tolerate the taints of the 2 nodes it could run on"),
        ((tainted(0, cordoned=True), tainted(1, cordoned=True)), "the 2 nodes it could run on are cordoned"),
        ((tainted(0, "a"), tainted(1, cordoned=True)),
         "of the 2 nodes it could run on 1 is cordoned, and it does not tolerate the taints of the others"),
    ],
    ids=["taints", "cordons", "both"],
)  # fmt: skip
def test_the_reason_differs_for_taints_and_cordons(nodes, reason):
    """A cordon is no taint that a pod of a group would tolerate."""
    refusal = refused(leaf("train", 1), *nodes)
    assert refusal.reasons[0] == f"PodGroup ns/train needs 1 pod; {reason}"


def test_a_topology_key_that_no_node_has_is_named_with_its_minimum():
    """Without the minimum no pod would have to be in such a domain."""
    refusal = refused(leaf("train", 2, topology=("row",)), node(0, "r0"))
    assert named(refusal) == [
        ("minCount", "at least 2 pods together"),
        ("topology", "all pods in one row"),
    ]


ALONE = PlanRule(kind="apart", keys=(HOSTNAME,), shapes=(0,), about=(0,), there=((),))


def test_more_nodes_help_where_anti_affinity_allows_none_that_is_there():
    """Every node has a pod that the members must avoid; a new node has none."""
    rule = replace(ALONE, there=((("n0", 1), ("n1", 1)),))
    refusal = refused(leaf("train", 2), node(0, "r0"), node(1, "r1"), rules=(rule,))
    nodes = [change for change in refusal.changes if change.kind == "nodes"]
    assert [change.text for change in nodes] == ["2 more empty nodes like n0"]


def test_each_new_node_is_a_domain_of_its_own_where_every_node_is_one():
    """Anti-affinity over a key with another value on each node: the text has that the new ones need their own."""
    rule = replace(ALONE, keys=("rack",))
    refusal = refused(leaf("train", 4), node(0, "r0"), node(1, "r1"), rules=(rule,))
    assert "2 more empty nodes like n0, each with its own rack" in refusal.relaxations
    (change,) = (change for change in refusal.changes if change.kind == "nodes")
    assert change.added[0].own_labels == (HOSTNAME, "rack")
    refusal = refused(leaf("train", 3), node(0, "r0"), node(1, "r1"), rules=(rule,))
    assert "1 more empty node like n0, with its own rack" in refusal.relaxations


def test_a_rule_of_the_pods_that_are_there_is_not_called_that_of_the_tree():
    """The anti-affinity of a running pod: dropped is its rule, where ours has none."""
    theirs = replace(ALONE, shapes=(), there=((("n0", 1),),))
    refusal = refused(leaf("train", 1), node(0, "r0"), rules=(theirs,))
    name = f"pod anti-affinity over {HOSTNAME} of the pods there"
    assert f"drop the rules about other pods: {name}" in refusal.relaxations
    assert ("selector", f"rules about other pods hold: {name}") in named(refusal)


def test_the_smallest_number_of_nodes_is_named():
    """Pods of 1, 2 and 3 GPUs need two nodes of 4, not one each."""
    shapes = tuple(PodShape(requests=(("gpu", gpus), ("pods", 1))) for gpus in (1, 2, 3))
    members = (leaf("train", 1, shape=shape).members[0] for shape in range(3))
    root = leaf("train", 3, members=tuple(replace(m, uid=PodUid(f"p{m.shape}")) for m in members))
    refusal = refused(root, node(0, "r0", gpu=0), shapes=shapes)
    assert "2 more empty nodes like n0" in refusal.relaxations


def test_resources_are_no_part_of_a_conflict_with_anti_affinity_alone():
    """Three pods that avoid each other on two empty nodes: capacity is not the problem."""
    refusal = refused(leaf("train", 3), node(0, "r0"), node(1, "r1"), rules=(ALONE,))
    assert [(one.kind, one.part) for one in refusal.conflict] == [
        ("selector", "podRules"),
        ("minCount", ""),
    ]
    assert f"drop the rules about other pods: pod anti-affinity over {HOSTNAME}" in refusal.relaxations  # fmt: skip
    assert "1 more empty node like n0" in refusal.relaxations


@pytest.mark.parametrize("key", [HOSTNAME, "machine"])
def test_a_new_node_does_not_match_a_selector_for_one_node(key):
    """A selector for a label whose value is the name of the node: a new node has its own."""
    labels = [{"machine": f"n{n}", HOSTNAME: f"n{n}"} for n in (0, 1)]
    nodes = tuple(node(n, "r0", labels=labels[n], gpu=n) for n in (0, 1))
    pinned = replace(GPU, node_selector=((key, labels[0][key]),))
    refusal = refused(leaf("train", 1), *nodes, shapes=(pinned,))
    assert not [change for change in refusal.changes if change.kind == "nodes"]


def test_a_claim_in_use_is_a_matter_of_resources():
    """The conflict has the requirement that the claim is part of."""
    claiming = replace(GPU, exclusive_claims=("ns/data",))
    refusal = refused(
        leaf("train", 1), node(0, "r0"), shapes=(claiming,), claims_in_use=("ns/data",)
    )
    assert named(refusal)[-1] == (
        "resources",
        "pods fit the free capacity of their nodes; a ReadWriteOncePod claim is used by one pod",
    )


def test_an_incomplete_sibling_is_part_of_the_conflict():
    """One of two child groups is enough: it is in the way that one does not fit, and the other lacks members."""
    key = GroupKey("ns", "tree", "CompositePodGroup")
    root = PlanGroup(key=key, minimum=1, groups=(leaf("a", 5), leaf("b", 1, minimum=2)))
    refusal = refused(root, node(0, "r0"))
    assert ("minCount", "at least 2 pods together; 1 present") in named(refusal)


def test_a_way_out_holds_with_the_nodes_that_kube_scheduler_refused():
    """n1 is refused, so a lower minimum counts on n0 alone."""
    rejected = (NodeRejection(node=NodeName("n1"), shape=0),)
    refusal = refused(leaf("train", 9), node(0, "r0"), node(1, "r0"), rejected_nodes=rejected)
    assert refusal.relaxations[0] == "minCount 4 instead of 9 at PodGroup ns/train"


def test_a_port_of_each_node_needs_as_many_nodes():
    """Pods with a host port need a node each, whatever its capacity."""
    web = replace(GPU, host_ports=(HostPort("TCP", 80),))
    refusal = refused(leaf("web", 3), node(0, "r0"), shapes=(web,))
    assert "2 more empty nodes like n0" in refusal.relaxations
