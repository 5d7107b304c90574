"""Verdicts about trees that may preempt: what is proved, what waits, and what would help with evictions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis import HealthCheck, given

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.explain.additional_nodes import with_counts
from extender.core.planner.plan_types import (
    AddedNodes,
    Plan,
    PlanBound,
    PlanExclusive,
    PlanGroup,
    PlanRequest,
    PlanRule,
    PlanVictim,
    Refusal,
    Relaxation,
    satisfied_by_bound,
)
from extender.core.planner.preempt.judgement import judge
from extender.core.planner.preempt.victim_search import PreemptionPlan
from tests.support.hypothesis_profile import examples
from tests.support.planning import preemption_checker
from tests.support.planning.brute_force_planner import best_total
from tests.support.planning.random_trees import crowded
from tests.support.refusals.exhaustive_search import walk
from tests.support.refusals.refusal_checker import changed
from tests.unit.core.planner.preempt.test_victim_search_cases import (
    SHAPES,
    ask,
    leaf,
    lone,
    nodes,
    victim,
    whole,
)


def helps(request: PlanRequest) -> tuple[str, ...]:
    """Return what would help a tree that is refused."""
    refusal = judge(request).verdict
    assert isinstance(refusal, Refusal)
    return refusal.relaxations


def test_help_is_planned_with_evictions():
    """A gang of three, two nodes with low pods: one more node is enough, or a minimum of two, each with both evictions."""
    request = ask(
        leaf("hi", 3, size=3), nodes(r=[0, 0]), lone("a", "r-0", 1, 4), lone("b", "r-1", 1, 4)
    )
    request = msgspec.structs.replace(
        request,
        nodes=tuple(msgspec.structs.replace(n, allocatable={"slot": 4, "pods": 9}) for n in request.nodes),
    )  # fmt: skip
    assert helps(request) == (
        "minCount 2 instead of 3 at PodGroup ns/hi, and evicting Pod/ns/a, Pod/ns/b",
        "1 more empty node like r-0, and evicting Pod/ns/a, Pod/ns/b",
    )


def test_a_way_out_without_evictions_comes_first():
    """The free node behind a taint costs no pod; the larger minimum does."""
    fleet = nodes(r=[0], s=[4])
    taint = msgspec.structs.replace(fleet[1], unschedulable=True)
    request = ask(leaf("hi", 2, size=3), (fleet[0], taint), lone("a", "r-0", 1, 4))
    ways = helps(request)
    assert any("uncordon s-0" in way and "evicting Pod/ns/a" in way for way in ways)
    evicting = ["evicting" in way for way in ways]
    assert evicting == sorted(evicting)


def test_five_hundred_nodes_of_which_two_are_missing():
    """Ten GPU nodes run low pods of a gang each: for twelve nodes two more are enough, not twelve."""
    gpu = nodes(g=[0] * 10)
    others = tuple(
        msgspec.structs.replace(n, allocatable={"pods": 100}, free={"pods": 90}) for n in nodes(c=[0] * 490)
    )  # fmt: skip
    units = [whole(f"low{i}", f"g-{i}", slots=4) for i in range(10)]
    request = ask(leaf("hi", 12, size=3), gpu + others, *units)
    small = tuple(
        msgspec.structs.replace(n, allocatable={**n.allocatable, "slot": 4})
        if "slot" in n.allocatable else n
        for n in request.nodes
    )  # fmt: skip
    refusal = judge(msgspec.structs.replace(request, nodes=small)).verdict
    (more,) = (change for change in refusal.changes if change.kind == "nodes")
    assert sum(added.count for added in more.added) <= 2
    assert len(more.evicts) == 10


def test_what_only_terminating_pods_keep_out_waits():
    """Peer case F2: it is not impossible, nothing is to be bought, and no policy changes that."""
    request = ask(leaf("hi", 1), nodes(r=[0]), going=(victim("old", "r-0"),))
    for may in (True, False):
        evictable = msgspec.structs.replace(request.evictable, may_preempt=may)
        refusal = judge(msgspec.structs.replace(request, evictable=evictable)).verdict
        assert (refusal.outcome, refusal.changes, refusal.conflict) == ("waiting", (), ())
        assert refusal.reasons[0].startswith("waiting for 1 pod that terminates, on r-0")


def test_who_must_not_preempt_has_ways_out_without():
    """preemptionPolicy Never: no way out evicts a unit."""
    request = ask(leaf("hi", 1), nodes(r=[0]), lone("a", "r-0", 1, 4))
    evictable = msgspec.structs.replace(request.evictable, may_preempt=False)
    refusal = judge(msgspec.structs.replace(request, evictable=evictable)).verdict
    assert refusal.outcome == "impossible"
    assert [change.evicts for change in refusal.changes] == [()]


def pinned(*, second_rack: bool = False) -> PlanRequest:
    """Return a composite of three groups; the bound member of `a` pins it to rack r1, and its other member must be in rack r2."""
    bound = [PlanBound(pod="ns/a-0", uid=PodUid("a-b0"), node=NodeName("r1-0"))]
    if second_rack:
        bound.append(PlanBound(pod="ns/a-1", uid=PodUid("a-b1"), node=NodeName("r2-0")))
    a = leaf("a", 1, len(bound) + 1, topology=("rack",), bound=tuple(bound))
    elsewhere = PodShape(requests=SHAPES[0].requests, node_selector=(("rack", "r2"),))
    members = tuple(msgspec.structs.replace(m, shape=len(SHAPES)) for m in a.members)
    a = msgspec.structs.replace(a, members=members)
    groups = (a, leaf("b", 1, size=3), leaf("c", 1, size=3))
    key = GroupKey("ns", "root", "CompositePodGroup")
    request = ask(
        PlanGroup(key=key, minimum=2 if second_rack else 3, groups=groups),
        nodes(r1=[4], r2=[0]),
        lone("low", "r2-0", 1, 4),
    )
    return msgspec.structs.replace(request, shapes=(*SHAPES, elsewhere))


def test_a_way_out_evicts_where_the_tree_as_it_is_may_not():
    """No eviction helps a group that its bound member keeps in r1; two of three groups fit with one, and one alone without."""
    request = pinned()
    judged = judge(request)
    assert judged.preemption.cause == "not-triggered"
    assert judged.notes == ()
    lower = "minGroupCount 2 instead of 3 at CompositePodGroup ns/root, and evicting Pod/ns/low"
    assert lower in judged.verdict.relaxations
    without = "minGroupCount 1 instead of 3 at CompositePodGroup ns/root"
    never = msgspec.structs.replace(request.evictable, may_preempt=False)
    assert without in helps(msgspec.structs.replace(request, evictable=never))


def test_a_contradicted_topology_is_dropped_with_evictions():
    """Bound members in two racks: without the constraint two groups fit if the low pod goes."""
    ways = helps(pinned(second_rack=True))
    assert ways == ("drop rack at PodGroup ns/a, and evicting Pod/ns/low",)


def test_who_must_not_preempt_waits_for_what_terminates_after_a_change():
    """preemptionPolicy Never: a minimum of two fits when the terminating pod is gone, and no pod is evicted."""
    request = ask(
        leaf("hi", 3, size=3), nodes(r=[4, 0]), lone("a", "r-0", 1, 4), going=(victim("old", "r-1", 4),)
    )  # fmt: skip
    evictable = msgspec.structs.replace(request.evictable, may_preempt=False)
    ways = helps(msgspec.structs.replace(request, evictable=evictable))
    assert "minCount 2 instead of 3 at PodGroup ns/hi" in ways
    assert not any("evicting" in way for way in ways)


def spread(key: str, skew: int, **pods: int) -> PlanRule:
    """Return a topology spread of shape 0 that counts pods by node."""
    there = tuple(sorted((node.replace("_", "-"), n) for node, n in pods.items()))
    return PlanRule(kind="spread", keys=(key,), shapes=(0,), about=(0,), there=(there,), skew=skew)


def test_the_least_lower_minimum_evicts_units_that_a_rule_counts():
    """Without the two pods of `low`, a rack may have one more: two fit; as it is only one does."""
    low = msgspec.structs.replace(
        whole("low", "r-0", "r-0"),
        pods=tuple(victim(f"low{i}", "r-0", rules=(0,)) for i in range(2)),
    )
    request = ask(leaf("hi", 3), nodes(r=[4], s=[1]), low)
    ways = helps(msgspec.structs.replace(request, rules=(spread("rack", 1, r_0=3),)))
    assert "minCount 2 instead of 3 at PodGroup ns/hi, and evicting PodGroup/ns/low" in ways


def test_the_fewest_nodes_with_units_that_a_rule_counts():
    """Two of three pods fit on a new node; the third one comes in the place of `low`, which is in the way of no other."""
    request = ask(leaf("hi", 3), nodes(r=[0]), lone("low", "r-0", 1, 4, rules=(0,)))
    shapes = (SHAPES[3], *SHAPES[1:])
    request = msgspec.structs.replace(request, rules=(spread("rack", 9, r_0=3),), shapes=shapes)
    assert "1 more empty node like r-0, and evicting Pod/ns/low" in helps(request)


def test_new_nodes_are_not_in_a_domain_that_others_have_alone():
    """The first node is in the rack of an exclusive gang: a copy of it would be, too."""
    request = ask(leaf("hi", 1), nodes(r=[4], s=[0]))
    closed = (PlanExclusive(key="rack", taken=("r",)),)
    assert "1 more empty node like s-0" in helps(msgspec.structs.replace(request, closed=closed))


def test_fewer_of_several_kinds_of_nodes():
    """Counts in the text follow; a kind of which none is needed is left out."""
    rows = tuple(
        AddedNodes(like=NodeName(n), count=c, own_labels=()) for n, c in (("a", 2), ("b", 3))
    )
    text = "2 more empty nodes like a, each with its own rack and block and 3 more empty nodes like b in z"
    change = Relaxation(kind="nodes", text=text, added=rows)
    assert with_counts(change, [1, 2]).text == (
        "1 more empty node like a, with its own rack and block and 2 more empty nodes like b in z"
    )
    left = with_counts(change, [0, 1])
    assert (left.text, left.added) == (
        "1 more empty node like b in z",
        (AddedNodes(like=NodeName("b"), count=1, own_labels=()),),
    )


def _faults(request: PlanRequest) -> None:
    judged = judge(msgspec.structs.replace(request, explain=True))
    refusal = judged.verdict
    if isinstance(refusal, Plan) or isinstance(judged.preemption, PreemptionPlan):
        return
    if refusal.outcome == "impossible":
        bare = msgspec.structs.replace(request, rejected_nodes=())
        assert (
            preemption_checker.most_placed(bare) is None or not judged.preemption.search.exhausted
        )
    if refusal.outcome == "waiting" and judged.preemption is not None:
        going = list(request.evictable.going)
        assert best_total(preemption_checker.roomier(request, going)) is not None
    for change in refusal.changes:
        after = changed(request, change)
        if (
            change.kind == "podRules"
        ):  # units name rules by their indexes, so these are emptied instead
            after = msgspec.structs.replace(
                request,
                rules=tuple(
                    msgspec.structs.replace(rule, shapes=(), about=())
                    if i in change.rules
                    else rule
                    for i, rule in enumerate(request.rules)
                ),
            )
        if not satisfied_by_bound(after.root):
            gone = [*request.evictable.going, *_pods_of(request, change)]
            assert best_total(preemption_checker.roomier(after, gone)) is not None, change
        if "smaller change may do" in change.text:
            continue
        if change.kind == "nodes" and "fewer may do" not in change.text:
            for place, one in enumerate(change.added):
                added = list(change.added)
                added[place] = msgspec.structs.replace(one, count=one.count - 1)
                less = changed(request, msgspec.structs.replace(change, added=tuple(added)))
                assert preemption_checker.most_placed(less) is None, change
        if change.kind in {"minCount", "minGroupCount"}:
            higher = msgspec.structs.replace(change, minimum=change.minimum + 1)
            least = next(g.minimum for g in walk(request.root) if g.key == change.groups[0])
            if higher.minimum < least:
                assert preemption_checker.most_placed(changed(request, higher)) is None, change


def _pods_of(request: PlanRequest, change: Relaxation) -> Iterator[PlanVictim]:
    """Yield the pods of the units that a way out evicts, but for what it frees already."""
    for unit in request.evictable.units:
        is_free = change.kind == "reservation" == unit.kind
        if any(f"{unit.name}" == name.split(" (")[0] for name in change.evicts):
            yield from (p for p in unit.pods if not (is_free and p.node in change.nodes))


@examples(300, quick=20, suppress_health_check=list(HealthCheck))
@given(crowded())
def test_what_helps_is_true_and_the_least(request_):
    """Every way out fits with the evictions that it names, and one node fewer does not."""
    _faults(request_)


@examples(300, quick=12, suppress_health_check=list(HealthCheck))
@given(crowded(rules_=True))
def test_what_helps_where_pods_have_rules(request_):
    """The same where affinity, anti-affinity and spread count pods that may go."""
    _faults(request_)
