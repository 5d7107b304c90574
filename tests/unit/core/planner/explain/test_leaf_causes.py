"""What a refusal names as the cause: without it alone the tree fits, by an exhaustive search; and it is counted together."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given

from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    NodeSelector,
    NodeSelectorRequirement,
    PodRule,
    PodShape,
    SelectorTerm,
)
from extender.core.planner.plan_types import PlanBound, PlanNode, PlanRequest, PlanRule, Refusal
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.support.refusals.crowded_clusters import refused_requests
from tests.support.refusals.exhaustive_search import fits
from tests.unit.core.planner.preempt.test_victim_search_cases import leaf

replace = msgspec.structs.replace
HOST = "kubernetes.io/hostname"
NAMED = re.compile(r"\((?:\d+ missing|not all together): (.*?)\)(?:;|$)")


def node(name: str, cpu: int, **more) -> PlanNode:
    labels = {HOST: name, "rack": "r", **more.pop("labels", {})}
    amounts = {"cpu": cpu, "pods": 9, **more.pop("amounts", {})}
    return PlanNode(name=NodeName(name), labels=labels, allocatable=amounts, free=amounts, **more)


def shape(cpu: int = 1, **more) -> PodShape:
    asks = {"cpu": cpu, "pods": 1, **more.pop("asks", {})}
    return PodShape(requests=tuple(sorted(asks.items())), **more)


def reason(nodes: list[PlanNode], pods: int, wants: PodShape, **more) -> str:
    root = more.pop("root", None) or leaf("g", pods, **more.pop("group", {}))
    request = PlanRequest(root=root, nodes=tuple(nodes), shapes=(wants,), **more)
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    return refusal.reasons[0]


def spread(key: str) -> PlanRule:
    return PlanRule(kind="spread", keys=(key,), shapes=(0,), about=(0,), there=((),))


def on(name: str) -> NodeSelector:
    """Return where a volume on one node is."""
    host = NodeSelectorRequirement(key=HOST, operator="In", values=(name,))
    return NodeSelector(terms=(SelectorTerm(labels=(host,)),), volume=True)


@pytest.mark.parametrize("key", [HOST, "rack"])
def test_a_spread_is_named_with_the_pods_that_fit(key):
    """Case spread-reason: eight CPUs and one; skew 1 allows two and one."""
    nodes = [node("a", 8, labels={"rack": "a"}), node("b", 1, labels={"rack": "b"})]
    text = reason(nodes, 4, shape(), rules=(spread(key),))
    assert text.endswith(f"the cluster holds 3 (1 missing: topology spread over {key}, or cpu)")


def test_a_spread_inside_a_rack_is_named_with_the_best_rack():
    """Case spread-reason, third file: the same in one rack."""
    rules = (spread(HOST),)
    text = reason(
        [node("a", 8), node("b", 1)], 4, shape(), rules=rules, group={"topology": ("rack",)}
    )
    assert "the best, r, holds 3 (1 missing: topology spread over" in text


def test_a_volume_is_named_and_no_selector_is_dropped_that_is_not_there():
    """Case volume-reason: the pod has no selector; its volume is on the full node."""
    wants = shape(selectors=(on("b"),))
    request = PlanRequest(root=leaf("g", 1), nodes=(node("a", 4), node("b", 0)), shapes=(wants,))
    refusal = plan(request)
    assert f"volume that is only on nodes with {HOST}=b" in refusal.reasons[0]
    texts = [*refusal.relaxations, *(c.message for c in refusal.conflict)]
    assert not any("selector" in text for text in texts)
    assert any(text.startswith("a volume that other nodes can use") for text in refusal.relaxations)


def test_a_taint_is_named_and_not_the_resource_behind_it():
    """Only the tainted node has GPUs: no GPU is missing."""
    gpu = node("g", 8, amounts={"gpu": 4}, taints=(Taint(key="dedicated", value="ml"),))
    text = reason([node("a", 8), gpu], 1, shape(asks={"gpu": 1}))
    assert text.endswith("(1 missing: taint dedicated, not tolerated)")


def test_a_selector_is_named_by_its_words():
    """The cluster has capacity, not on the nodes of the selector."""
    nodes = [node("a", 8), node("b", 1, labels={"disk": "ssd"})]
    text = reason(nodes, 2, shape(node_selector=(("disk", "ssd"),)))
    assert "1 missing: node selector disk=ssd, or cpu" in text


def test_pods_of_two_shapes_are_counted_together():
    """Each shape alone has place for both its pods; together two of four fit."""
    root = leaf("g", 4)
    members = tuple(replace(m, shape=i % 2) for i, m in enumerate(root.members))
    request = PlanRequest(
        root=replace(root, members=members), nodes=(node("a", 4),), shapes=(shape(2), shape(2, node_selector=((HOST, "a"),))),
    )  # fmt: skip
    assert plan(request).reasons[0].endswith("the cluster holds 2 (2 missing: cpu)")


def test_two_resources_that_are_only_short_together_are_both_named():
    """Neither is the cause alone: without one the other is still missing."""
    text = reason([node("a", 1, amounts={"memory": 1})], 2, shape(asks={"memory": 1}))
    assert text.endswith("(1 missing: cpu together with memory)")


def test_a_domain_that_is_free_for_the_whole_gang_is_named():
    """Case pinned-domain-full, SPEC V23: the members are pinned to r0; r1 is named, and the bound member in the conflict."""
    nodes = [replace(node("n0", 4, labels={"rack": "r0"}), free={"cpu": 1, "pods": 8})]
    nodes += [node(f"n{i}", 4, labels={"rack": "r1"}) for i in (1, 2)]
    bound = (PlanBound(pod="ns/g-b", uid="g-b", node=NodeName("n0")),)
    root = leaf("g", 1, minimum=2, bound=bound, topology=("rack",))
    refusal = plan(PlanRequest(root=root, nodes=tuple(nodes), shapes=(shape(3),)))
    assert "its bound members pin it to r0, which holds 1 (1 bound already)" in refusal.reasons[0]
    assert refusal.reasons[0].endswith(
        "r1 is free for all 2, but none moves while a member is bound"
    )
    assert any(c.message.endswith("ns/g-b is bound to n0") for c in refusal.conflict)


def test_rules_among_members_hold_on_an_empty_cluster_too():
    """A spread over two nodes of which one is small never fits, so other pods are not the cause."""
    nodes = (node("a", 8), node("b", 1))
    refusal = plan(
        PlanRequest(root=leaf("g", 4), nodes=nodes, shapes=(shape(),), rules=(spread(HOST),))
    )
    assert refusal.when_empty == "never"


# --- random refusals


def without(request: PlanRequest, cause: str) -> PlanRequest:
    """Return a request without what a text names, by the words alone."""
    shapes, nodes = request.shapes, request.nodes
    if match := re.fullmatch(r"taints? (.*), not tolerated", cause):
        keys = match[1].split(", ")
        nodes = tuple(
            replace(n, taints=tuple(t for t in n.taints if t.key not in keys)) for n in nodes
        )
    elif cause == "cordoned nodes":
        nodes = tuple(replace(n, unschedulable=False) for n in nodes)
    elif cause.startswith("node selector "):
        shapes = tuple(replace(s, node_selector=(), selectors=()) for s in shapes)
    elif cause.startswith("host port"):
        shapes = tuple(replace(s, host_ports=()) for s in shapes)
    elif cause.startswith("claim "):
        shapes = tuple(replace(s, exclusive_claims=()) for s in shapes)
    elif cause == "capacity reserved for other trees":
        nodes = tuple(replace(n, free=n.allocatable) if n.reserved else n for n in nodes)
    elif " over " in cause:
        rules = tuple(r for r in request.rules if PodRule(r.kind, r.keys, ()).text != cause)
        return replace(request, rules=rules)
    else:
        assert any(cause in dict(s.requests) for s in shapes), f"no pod requests {cause!r}"
        shapes = tuple(
            replace(s, requests=tuple(r for r in s.requests if r[0] != cause)) for s in shapes
        )
    return replace(request, shapes=shapes, nodes=nodes)


@examples(500, quick=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(refused_requests() | refused_requests(ruled=True))
def test_without_the_named_cause_alone_it_fits(request_):
    """Of random refusals of one group: each of "a, or b" is enough by itself; of "a together with b" only both."""
    assume(request_.root.key.kind == "PodGroup" and not request_.rejected_nodes)
    refusal = plan(request_)
    assume(isinstance(refusal, Refusal) and refusal.outcome == "impossible")
    match = NAMED.search(refusal.reasons[0])
    assume(match is not None and not match[1].startswith("no single requirement"))
    if " together with " not in match[1]:
        for cause in match[1].split(", or "):
            assert fits(without(request_, cause)), (cause, refusal.reasons[0])
        return
    every = request_
    for cause in match[1].split(" together with "):
        assert not fits(without(request_, cause)), (cause, refusal.reasons[0])
        every = without(every, cause)
    assert fits(every), refusal.reasons[0]
