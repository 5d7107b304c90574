"""What a refusal names as the cause: without it alone the tree fits, by an exhaustive search; and it is counted together."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, note

from extender.core.model.ids import GroupKey, NodeName
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    NodeSelector,
    NodeSelectorRequirement,
    PodRule,
    PodShape,
    SelectorTerm,
)
from extender.core.planner.explain import refusal_causes
from extender.core.planner.explain.refusal_causes import NO_CAUSE, NOT_SEARCHED, SOME_OF
from extender.core.planner.plan_types import (
    PlanBound,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanRule,
    Refusal,
)
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.support.refusals.crowded_clusters import refused_requests
from tests.support.refusals.exhaustive_search import fits
from tests.unit.core.planner.preempt.test_victim_search_cases import leaf

replace = msgspec.structs.replace
HOST = "kubernetes.io/hostname"
NAMED = re.compile(r"\((?:(?:at least )?\d+ missing|not all together): (.*?)\)(?:;|$)")


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
    assert text.endswith("(1 missing: untolerated taint dedicated)")


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
    """Case pinned-domain-full, V23: the members are pinned to r0; r1 is named, and the bound member in the conflict."""
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


def test_what_bars_all_nodes_is_not_the_only_cause():
    """Tolerating the taint of the only node that is selected gives one pod its place; the second needs the other node."""
    taint = (Taint(key="x", value="", effect="NoSchedule"),)
    nodes = [
        node("a", 1, labels={"gen": "0"}, taints=taint),
        node("b", 1, labels={"gen": "1"}),
    ]
    wants = shape(node_selector=(("gen", "0"),))
    barred = "it does not tolerate the taints of the only node it could run on"
    assert reason(nodes, 1, wants) == f"PodGroup ns/g needs 1 pod; {barred}"
    assert reason(nodes, 2, wants) == (
        f"PodGroup ns/g needs 2 pods; {barred} (2 missing: untolerated taint x together with node selector gen=0)"
    )


def test_a_tree_that_needs_other_pods_does_not_fit_when_none_runs():
    """Nothing is claimed of an empty cluster, unless it would not fit there even without its affinity."""
    needs = PlanRule(kind="near", keys=(HOST,), shapes=(0,), about=(), there=((),))
    request = PlanRequest(
        root=leaf("g", 1), nodes=(node("a", 8),), shapes=(shape(),), rules=(needs,)
    )
    refusal = plan(request)
    assert (refusal.outcome, refusal.when_empty) == ("impossible", "")
    assert plan(replace(request, nodes=(node("a", 0),))).when_empty == "never"


def tree(*children: PlanGroup, minimum: int | None = None, **more) -> PlanGroup:
    key = GroupKey(namespace="ns", name="t", kind="CompositePodGroup")
    least = minimum or len(children)
    return PlanGroup(key=key, minimum=least, groups=children, **more)


def racks(*cpus: int) -> list[PlanNode]:
    """Return nodes with a rack each, all in one zone."""
    return [node(f"n{i}", cpu, labels={"rack": f"r{i}", "zone": "z"}) for i, cpu in enumerate(cpus)]


def test_child_groups_that_fit_one_by_one_are_counted_together():
    """Each of three leaves fits; two of them together: cpu is short jointly."""
    root = tree(*(leaf(name, 2) for name in "abc"))
    text = reason([node("n", 5)], 0, shape(), root=root)
    assert text == (
        "CompositePodGroup ns/t needs 3 of its 3 child groups; the cluster holds 2 of them (1 missing: cpu)"
    )


def test_the_level_that_keeps_child_groups_apart_is_named():
    """Three racks of three CPUs: two pods of each leaf in one rack fit once per rack, and nine CPUs are enough for eight pods."""
    root = tree(*(leaf(name, 2, topology=("rack",)) for name in "abcd"))
    text = reason(racks(3, 3, 3), 0, shape(), root=root)
    assert text.endswith(
        "holds 3 of them (1 missing: one rack for each of 4 groups such as PodGroup ns/a, or cpu)"
    )


def test_the_group_above_that_has_the_constraint_is_named():
    """The inner group asks for no zone; the root does, and without it the whole fits."""
    inner = replace(
        tree(leaf("a", 2), leaf("b", 2)),
        key=GroupKey(namespace="ns", name="u", kind="CompositePodGroup"),
    )
    nodes = [node("n0", 2, labels={"zone": "x"}), node("n1", 2, labels={"zone": "y"})]
    wants = shape(asks={"gpu": 1})
    nodes = [
        replace(n, allocatable={**n.allocatable, "gpu": 2}, free={**n.free, "gpu": 2})
        for n in nodes
    ]
    text = reason(nodes, 0, wants, root=tree(inner, topology=("zone",)))
    assert text == (
        "CompositePodGroup ns/u needs 2 of its 2 child groups in one zone; the best, x, holds 1 of them (1 missing: "
        "one zone for CompositePodGroup ns/t, or cpu together with gpu)"
    )


def test_the_last_sentence_names_what_the_whole_tree_lacks():
    """One leaf lacks a GPU, the other a disk: each sentence is of its leaf, the last one of both."""
    gpu, disk = shape(asks={"gpu": 1}), shape(node_selector=(("disk", "ssd"),))
    first, second = leaf("a", 1), leaf("b", 1)
    second = replace(second, members=tuple(replace(m, shape=1) for m in second.members))
    request = PlanRequest(root=tree(first, second), nodes=(node("n", 4),), shapes=(gpu, disk))
    reasons = plan(request).reasons
    assert reasons[0].endswith("(1 missing: gpu)")
    assert "matches its node selector" in reasons[1]
    assert reasons[-1].endswith(
        "holds 0 of them (2 missing: node selector disk=ssd together with gpu)"
    )


def test_a_required_child_that_does_not_fit_beside_the_others_is_named():
    """Two of three fit, but not with the required one among them."""
    root = tree(leaf("head", 1, size=1), leaf("a", 2), leaf("b", 2), minimum=2, required=("head",))
    nodes = (node("n", 4),)
    big = shape(3)
    refusal = plan(PlanRequest(root=root, nodes=nodes, shapes=(shape(), big)))
    assert refusal.reasons[-1].endswith(
        "needs 2 of its 3 child groups, head among them; the cluster holds 2 of them (not all together: cpu)"
    )


def test_the_number_of_pods_of_a_node_is_named():
    """CPUs are enough, and the node runs no more pods."""
    text = reason([node("n", 9, amounts={"pods": 2})], 3, shape())
    assert text.endswith("the cluster holds 2 (1 missing: pods)")


def test_a_cause_that_matters_only_while_another_one_is_left_out_is_not_named():
    """Where taints are tolerated the spread counts the tainted nodes as well; with the taints it does not keep the pods out."""
    tainted = (Taint(key="t", value="", effect="NoSchedule"),)
    nodes = [
        node("a", 8, labels={"zone": "a"}, unschedulable=True),
        node("b", 0, labels={"zone": "b"}, taints=tainted),
        node("c", 0, labels={"zone": "a"}),
    ]
    honoring = replace(spread("zone"), honors_taints=True)
    text = reason(nodes, 2, shape(exclusive_claims=("ns/c",)), rules=(honoring,))
    assert text.endswith("(2 missing: cordoned nodes together with claim ns/c for one pod)")


@pytest.fixture
def work(monkeypatch):
    """Return the work of searches for causes, one number for each: search nodes and a part of the groups; the searches are made."""
    spent: list[int] = []
    solve = refusal_causes.solve

    def counted(*arguments, **more):
        solved = solve(*arguments, **more)
        groups = len(solved.problem.groups)
        spent.append(solved.nodes + groups // refusal_causes.BOUNDS_PER_STEP)
        return solved

    monkeypatch.setattr(refusal_causes, "solve", counted)
    return spent


def of_a_large_tree(leaves: int) -> tuple[str, ...]:
    """Return the reasons for leaves of sizes that vary; each fits in a rack, and two resources are short for all of them."""
    children = (leaf(f"g{i:03}", 6 + i % 3, topology=("rack",)) for i in range(leaves))
    hosts = [
        node(f"n{i:04}", 2, labels={"rack": f"r{i // 20:03}"}, amounts={"gpu": 2, "memory": 9})
        for i in range(leaves * 3)
    ]
    wants = shape(asks={"gpu": 1, "memory": 1})
    request = PlanRequest(root=tree(*children), nodes=tuple(hosts), shapes=(wants,), explain=False)
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    return refusal.reasons


def test_the_work_for_the_reasons_of_a_large_tree_is_bounded(work, monkeypatch):
    """Without the bound of a refusal the searches for 500 leaves cost several times as much; the sentence is true with it too."""
    reasons = of_a_large_tree(500)
    bounded, searches = sum(work), len(work)
    assert bounded <= refusal_causes.REFUSAL_BUDGET
    assert reasons[-1].startswith("CompositePodGroup ns/t needs 500 of its 500 child groups")
    assert NO_CAUSE not in reasons[-1]
    assert "cpu" in reasons[-1]
    work.clear()
    monkeypatch.setattr(refusal_causes, "REFUSAL_BUDGET", 10**6)
    of_a_large_tree(500)
    assert sum(work) > 2 * bounded
    assert len(work) > searches


def test_a_small_tree_has_all_its_searches(work, monkeypatch):
    """The bound of a refusal changes nothing where its searches are small."""
    reasons, searches = of_a_large_tree(8), len(work)
    work.clear()
    monkeypatch.setattr(refusal_causes, "REFUSAL_BUDGET", 10**6)
    assert of_a_large_tree(8) == reasons
    assert len(work) == searches


def test_without_a_search_the_resources_are_named_of_which_there_is_too_little(work, monkeypatch):
    """A refusal whose budget is spent: resources are named that are too little by themselves, and counts are limits."""
    monkeypatch.setattr(refusal_causes, "REFUSAL_BUDGET", 0)
    text = of_a_large_tree(8)[-1]
    assert not work
    assert re.search(r"holds at most \d of them \(.*: cpu, gpu\)$", text), text


# --- random refusals


def without(request: PlanRequest, cause: str) -> PlanRequest:
    """Return a request without what a text names, by the words alone."""
    shapes, nodes = request.shapes, request.nodes
    if match := re.fullmatch(r"untolerated taints? (.*)", cause):
        keys = match[1].split(", ")
        nodes = tuple(
            replace(n, taints=tuple(t for t in n.taints if t.key not in keys)) for n in nodes
        )
    elif cause == "cordoned nodes":
        nodes = tuple(replace(n, unschedulable=False) for n in nodes)
    elif cause.startswith("node selector "):
        shapes = tuple(
            replace(s, node_selector=(), selectors=tuple(x for x in s.selectors if x.volume))
            for s in shapes
        )
    elif cause.startswith("volume that is only on nodes with "):
        shapes = tuple(
            replace(s, selectors=tuple(x for x in s.selectors if not x.volume)) for s in shapes
        )
    elif cause.startswith("host port"):
        shapes = tuple(replace(s, host_ports=()) for s in shapes)
    elif cause.startswith("claim "):
        shapes = tuple(replace(s, exclusive_claims=()) for s in shapes)
    elif cause == "capacity reserved for other trees or for moves":
        nodes = tuple(
            replace(n, free={r: q + n.reserved.get(r, 0) for r, q in n.free.items()}, reserved={})
            for n in nodes
        )
    elif match := re.fullmatch(r"one (.*) for (?:each of \d+ groups such as )?(\w+) (\S+)", cause):
        alike = cause.startswith(f"one {match[1]} for each of")
        return replace(request, root=without_topology(request.root, match[3], alike=alike))
    elif cause == "pods":
        unlimited = {"pods": 99}
        nodes = tuple(
            replace(n, free={**n.free, **unlimited}, allocatable={**n.allocatable, **unlimited})
            for n in nodes
        )
    elif " over " in cause:
        rules = tuple(r for r in request.rules if PodRule(r.kind, r.keys, ()).text != cause)
        return replace(request, rules=rules)
    else:
        assert any(cause in dict(s.requests) for s in shapes), f"no pod requests {cause!r}"
        shapes = tuple(
            replace(s, requests=tuple(r for r in s.requests if r[0] != cause)) for s in shapes
        )
    return replace(request, shapes=shapes, nodes=nodes)


def without_topology(root: PlanGroup, path: str, *, alike: bool) -> PlanGroup:
    """Return a tree in which a group, or no group of its depth, has its topology constraint."""
    levels = [[root]]
    while levels[-1]:
        levels.append([child for group in levels[-1] for child in group.groups])
    like = next(g for level in levels for g in level if g.key.path == path)
    level = next(level for level in levels if like in level)
    freed = {g.key for g in level if g.topology == like.topology} if alike else {like.key}

    def free(group: PlanGroup) -> PlanGroup:
        topology = () if group.key in freed else group.topology
        return replace(group, topology=topology, groups=tuple(map(free, group.groups)))

    return free(root)


def alone(request: PlanRequest, path: str) -> PlanRequest:
    """Return a request for one group of a tree, in one domain of what it and the groups above it ask for."""

    def find(group: PlanGroup, above: tuple[str, ...]) -> PlanGroup | None:
        keys = (*above, *group.topology)
        if group.key.path == path:
            return replace(group, topology=tuple(dict.fromkeys(keys)))
        return next(filter(None, (find(child, keys) for child in group.groups)), None)

    return replace(request, root=find(request.root, ()))


def enough(request: PlanRequest, text: str, path: str = "") -> None:
    """Fail if a group of a request does not fit without one of "a, or b", where each may be "c together with d"."""

    def fits_without(causes: list[str]) -> bool:
        changed = request
        for cause in causes:
            changed = without(changed, cause)
        return fits(alone(changed, path or request.root.key.path))

    for alternative in text.split(", or "):
        causes = alternative.split(" together with ")
        assert fits_without(causes), causes
        for cause in causes:
            assert not fits_without([other for other in causes if other != cause]), causes


@examples(500, quick=15, suppress_health_check=list(HealthCheck), derandomize=True)
@given(refused_requests() | refused_requests(ruled=True))
def test_without_the_named_cause_alone_it_fits(request_):
    """Of random refusals of leaves and trees: each sentence is true of its group, and the last one of the whole tree."""
    assume(not request_.rejected_nodes)
    refusal = plan(request_)
    assume(isinstance(refusal, Refusal) and refusal.outcome == "impossible")
    of_groups = [
        (line.split()[1], match[1])
        for line in refusal.reasons
        if (match := NAMED.search(line))
        and not match[1].startswith((NO_CAUSE, NOT_SEARCHED, SOME_OF))
    ]
    assume(of_groups)
    for path, text in of_groups:
        note(f"{path}: {text}\n{refusal.reasons}")
        enough(request_, text, path)
    if request_.root.key.kind != "PodGroup":
        path, text = of_groups[-1]
        assert path == request_.root.key.path, refusal.reasons
        enough(request_, text)
