"""What preemption must and must not do, one claim a test; small clusters, one resource."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.plan_types import (
    Evictable,
    NodeRejection,
    PlanBound,
    PlanBudget,
    PlanDomain,
    PlanExclusive,
    PlanGang,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanRule,
    PlanUnit,
    PlanVictim,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt.post_eviction_view import without
from extender.core.planner.preempt.victim_search import (
    NoPreemption,
    PreemptionPlan,
    may_trigger_preemption,
    preempt,
)
from tests.support.planning import preemption_checker


def shape(slots: int, **more) -> PodShape:
    return PodShape(requests=(("pods", 1), ("slot", slots)), **more)


SHAPES = tuple(shape(n) for n in range(1, 5))  # of victims: shape n-1 takes n slots


def nodes(**racks: list[int]) -> tuple[PlanNode, ...]:
    """Return nodes that are full but for the given slots: `r1=[0, 1]` is r1-0 with 0 and r1-1 with 1 slot free."""
    return tuple(
        PlanNode(
            name=NodeName(f"{rack}-{i}"),
            labels={"rack": rack},
            allocatable={"slot": 8, "pods": 100},
            free={"slot": free, "pods": 50},
        )
        for rack, frees in sorted(racks.items())
        for i, free in enumerate(frees)
    )


def victim(name: str, node: str, slots: int = 1, **more) -> PlanVictim:
    return PlanVictim(
        pod=f"ns/{name}", uid=PodUid(name), node=NodeName(node), shape=slots - 1, **more
    )


def lone(name: str, node: str, priority: int = 1, slots: int = 1, **more) -> PlanUnit:
    pods = (victim(name, node, slots, **more),)
    return PlanUnit(name=f"Pod/ns/{name}", uid=name, kind="pod", priority=priority, pods=pods)


def whole(name: str, *where: str, priority: int = 1, slots: int = 1) -> PlanUnit:
    pods = tuple(victim(f"{name}{i}", node, slots) for i, node in enumerate(where))
    return PlanUnit(
        name=f"PodGroup/ns/{name}", uid=name, kind="group", priority=priority, pods=pods
    )


def leaf(name: str, pods: int, minimum: int | None = None, size: int = 0, **more) -> PlanGroup:
    members = tuple(
        PlanMember(pod=f"ns/{name}-{i}", uid=PodUid(f"{name}-{i}"), shape=size) for i in range(pods)
    )
    key = GroupKey("ns", name, "PodGroup")
    return PlanGroup(key=key, minimum=pods if minimum is None else minimum, members=members, **more)


def ask(root: PlanGroup, fleet, *units: PlanUnit, **more) -> PlanRequest:
    units = tuple(sorted(units, key=lambda u: (u.kind, u.name)))
    return PlanRequest(
        root=root,
        nodes=fleet,
        shapes=SHAPES,
        evictable=Evictable(priority=10, units=units, shapes=SHAPES, **more),
    )


def gone(request: PlanRequest) -> list[str]:
    """The names of the victims, checked."""
    made = preempt(request)
    assert isinstance(made, PreemptionPlan), made
    extras = any(m.uid for m in request.root.bound)
    assert preemption_checker.faults(request, made, extras=extras) == []
    return [u.name.rpartition("/")[2] for u in made.victims]


def test_the_planned_members_run_where_the_victims_were():
    """The plan is one of the request without the victims, and its minimum is placed."""
    request = ask(leaf("hi", 2), nodes(r=[0, 0]), lone("a", "r-0"), lone("b", "r-1"))
    made = preempt(request)
    assert isinstance(made, PreemptionPlan)
    assert {a.node for a in made.plan.assignments} == {"r-0", "r-1"}
    later = without(request, [p for u in made.victims for p in u.pods])
    assert not may_trigger_preemption(later, plan(later))


def exclusive_rack(*, closed: bool, pods: tuple[str, ...] = (), **more) -> PlanRequest:
    """Return a gang of two and rack r1, in which `low` and the lone pod `a` run; others have the rack, or the gang would have it alone."""
    own = PlanExclusive(key="rack", taken=() if closed else ("r1",))
    root = leaf("hi", 2, topology=("rack",)) if closed else leaf("hi", 2, exclusive=own)
    group = None if closed else root.key
    domain = PlanDomain(group=group, key="rack", value="r1", pods=tuple(map(PodUid, pods)))
    if pods:
        more["domains"] = (domain,)
    units = (whole("low", "r1-0", "r1-1"), lone("a", "r1-0"))
    request = ask(root, nodes(r1=[4, 0]), *units, **more)
    if closed:
        taken = (PlanExclusive(key="rack", taken=("r1",)),)
        request = msgspec.structs.replace(request, closed=taken)
    return request


@pytest.mark.parametrize("closed", [False, True], ids=["taken", "closed"])
def test_an_exclusive_domain_is_emptied_of_what_may_go(closed):
    """D20: the pods that hold the rack go as whole units, those that do not stay, though the free slots would do."""
    assert gone(exclusive_rack(closed=closed, pods=("low0", "low1"))) == ["low"]
    assert gone(exclusive_rack(closed=closed, pods=("a", "low0", "low1"))) == ["a", "low"]


@pytest.mark.parametrize("closed", [False, True], ids=["taken", "closed"])
def test_no_exclusive_domain_is_emptied_of_what_must_stay(closed):
    """D20: a pod in it is no unit of lower priority; or preemption is forbidden."""
    request = exclusive_rack(closed=closed, pods=("a", "other"))
    for held in (request, exclusive_rack(closed=closed)):
        made = preempt(held)
        assert isinstance(made, NoPreemption)
        assert made.cause == "not-triggered"
        assert made.reasons == (
            "no eviction can help: it is not refused for lack of capacity, and no exclusive domain has only what may be evicted",
        )
    never = exclusive_rack(closed=closed, pods=("a",), may_preempt=False)
    assert preempt(never).cause == "not-triggered"


@pytest.mark.parametrize("closed", [False, True], ids=["taken", "closed"])
def test_an_exclusive_domain_comes_free_when_what_is_in_it_has_terminated(closed):
    """No pod is evicted then, also under preemptionPolicy Never."""
    for may in (True, False):
        going = (victim("old", "r1-0"),)
        request = exclusive_rack(closed=closed, pods=("old",), going=going, may_preempt=may)
        assert preempt(request).cause == "comes-free"


def beside(first: PlanGroup, *others: PlanGroup, **fields) -> PlanGroup:
    """Return a gang of several leaves."""
    key = GroupKey("ns", "root", "CompositePodGroup")
    leaves = (first, *others)
    return PlanGroup(key=key, minimum=len(leaves), groups=leaves, **fields)


def test_a_domain_of_a_group_is_emptied_though_its_members_are_like_others():
    """Of two leaves with the same shape one has a rack alone; in the records all members have the shape of the request."""
    request = exclusive_rack(closed=False, pods=("a", "low0", "low1"))
    request = msgspec.structs.replace(request, root=beside(request.root, leaf("beside", 1)))
    assert gone(request) == ["a", "low"]
    made = preempt(request)
    assert isinstance(made, PreemptionPlan)
    assert {a.shape for a in made.plan.assignments} == {0}
    assert not set(made.victims) - set(request.evictable.units)


@pytest.mark.parametrize("held", [True, False])
def test_a_domain_is_emptied_where_that_costs_least(held):
    """Of two leaves with the same shape one has node r1-0 alone: `cheap` may go from there, at less cost than `costly` from r2."""
    alone = leaf("hi", 1, exclusive=PlanExclusive(key="host", taken=("r1-0",)))
    fleet = tuple(
        msgspec.structs.replace(n, labels={**n.labels, "host": n.name})
        for n in nodes(r1=[1, 0], r2=[1, 0])
    )
    units = (lone("cheap", "r1-0", 1), lone("costly", "r2-1", 9))
    domain = PlanDomain(group=alone.key, key="host", value="r1-0", pods=(PodUid("cheap"),))
    root = beside(alone, leaf("beside", 1), topology=("rack",))
    request = ask(root, fleet, *units, domains=(domain,) if held else UNSET)
    assert gone(request) == ["cheap" if held else "costly"]
    made = preempt(request)
    assert isinstance(made, PreemptionPlan)
    assert made.search.exhausted


def test_a_domain_is_emptied_beside_bound_members_of_another_group():
    """The leaf with bound members keeps its rack whatever others have there; the other one has r2 when `low` is gone."""
    fleet = nodes(r1=[2], r2=[1, 0])
    staying = leaf("old", 1, exclusive=PlanExclusive(key="rack", taken=("r1",)))
    bound = (PlanBound(pod="ns/old-x", uid=PodUid("old-x"), node=fleet[0].name),)
    staying = msgspec.structs.replace(staying, bound=bound, minimum=2)
    alone = leaf("hi", 1, exclusive=PlanExclusive(key="rack", taken=("r2",)))
    domains = tuple(
        PlanDomain(group=group, key="rack", value=rack, pods=(PodUid("low"),))
        for group, rack in ((alone.key, "r2"), (staying.key, "r1"))
    )
    assert gone(ask(beside(staying, alone), fleet, lone("low", "r2-1"), domains=domains)) == ["low"]


def test_a_full_rack_is_cleared_for_a_gang_that_must_share_one():
    """KAI#1591: the rack with the fewest victims is taken, and no unit in the other one (E-15)."""
    units = [lone(f"a{i}", "r1-0") for i in range(3)] + [lone("b", "r2-0", slots=3)]
    assert gone(ask(leaf("hi", 3, topology=("rack",)), nodes(r1=[0], r2=[0]), *units)) == ["b"]


def test_the_plan_names_the_alternatives():
    """The other rack with its cost and why it was not chosen, and the one that makes no capacity."""
    units = [lone("a", "r1-0", priority=7), lone("b", "r2-0", priority=3)]
    made = preempt(ask(leaf("hi", 1, topology=("rack",)), nodes(r1=[0], r2=[0], r3=[0]), *units))
    assert isinstance(made, PreemptionPlan)
    alternatives = {a.where: (a.units, a.reason) for a in made.alternatives}
    assert alternatives["rack=r1"] == (
        ("Pod/ns/a",), "costs more: 7 instead of 3 as highest priority of a victim",
    )  # fmt: skip
    assert alternatives["rack=r3"] == ((), "does not free enough capacity")


def test_the_volcano_case_one_victim_where_one_will_do():
    """volcano#5984: one large pod is enough, ten small ones stay."""
    units = [lone(f"a{i}", "r-0", slots=1) for i in range(4)] + [lone("z", "r-1", slots=4)]
    assert gone(ask(leaf("hi", 1, size=3), nodes(r=[0, 0]), *units)) == ["z"]


def test_the_chain_does_not_begin():
    """L33: 3 > 2 > 1 with capacity for one: the 1 goes, so that nothing evicts anything again."""
    assert gone(
        ask(leaf("hi", 1), nodes(r=[0, 0]), lone("two", "r-0", 2), lone("one", "r-1", 1))
    ) == ["one"]


def test_of_equal_units_the_one_that_evicts_none_in_turn():
    """L33: the small one would evict `low` when it comes again, the large one fits nowhere anyhow."""
    small = lone("a-small", "r-0", priority=5, slots=1)
    large = lone("b-large", "r-1", priority=5, slots=3)
    never = shape(1, node_selector=(("rack", "r"),))
    request = ask(leaf("hi", 1, size=0), nodes(r=[0, 0], s=[0]), small, large)
    low = lone("low", "s-0", priority=1)
    request = msgspec.structs.replace(
        request,
        shapes=(never,),
        evictable=msgspec.structs.replace(request.evictable, units=(small, large, low)),
    )
    assert gone(request) == ["b-large"]


def claiming(request: PlanRequest, *names: str) -> PlanRequest:
    """Let the members, and some pods that could go and have nothing else, use resource claims."""
    source = request.evictable
    device = shape(1, unmodelled=("resource claim gpu",))
    holds = PodShape(requests=(("pods", 1),), unmodelled=("resource claim other",))
    units = tuple(
        msgspec.structs.replace(
            unit,
            pods=tuple(
                msgspec.structs.replace(p, shape=len(SHAPES)) if p.uid in names else p
                for p in unit.pods
            ),
        )
        for unit in source.units
    )
    return msgspec.structs.replace(
        request,
        shapes=(device,),
        evictable=msgspec.structs.replace(source, units=units, shapes=(*SHAPES, holds)),
    )


def test_a_unit_that_may_hold_the_device_is_not_put_back_and_the_reason_is_given():
    """L34: capacity for the second member is free, whether a device is only kube-scheduler knows: `holder` is not spared."""
    units = (lone("holder", "r-0", priority=7), lone("plain", "s-0"))
    request = ask(leaf("hi", 2), nodes(r=[1], s=[0]), *units)
    assert gone(request) == ["plain"], "without claims the capacity that is free is used"
    asked = claiming(request, "holder")
    assert gone(asked) == ["holder", "plain"]
    made = preempt(asked)
    assert isinstance(made, PreemptionPlan)
    assert list(made.doubts) == ["Pod/ns/holder"]
    assert "only kube-scheduler knows" in made.doubts["Pod/ns/holder"]
    assert any(r.startswith("Pod/ns/holder is not put back: ") for r in made.reasons)


def test_a_node_without_doubt_is_cheaper():
    """L34: beside `holder` two would have to go; who uses no claim is in no doubt."""
    units = (lone("holder", "r-0", priority=1), lone("other", "r-0", priority=1))
    request = ask(leaf("hi", 1), nodes(r=[0], s=[0]), *units, lone("plain", "s-0", priority=2))
    assert gone(claiming(request)) in (["holder"], ["other"])
    assert gone(claiming(request, "holder")) == ["holder", "other"]
    dear = ask(leaf("hi", 1), nodes(r=[0], s=[0]), *units, lone("plain", "s-0", priority=1))
    assert gone(claiming(dear, "holder")) == ["plain"]


def test_extras_of_a_running_gang_go_first():
    """Of equal priority: two extras of a large gang rather than one member that a small gang cannot spare."""
    gangs = (
        PlanGang(name="PodGroup/ns/big", minimum=2, running=4),
        PlanGang(name="PodGroup/ns/small", minimum=1, running=1),
    )
    units = [lone(f"big{i}", "r-0", gang=0) for i in range(4)] + [
        lone("small", "r-1", slots=2, gang=1)
    ]
    request = ask(leaf("hi", 1, size=1), nodes(r=[0, 0]), *units, gangs=gangs)
    assert len(gone(request)) == 2
    assert not any(name == "small" for name in gone(request))
    lone_small = [lone(f"big{i}", "r-0", gang=0) for i in range(4)] + [
        lone("small", "r-1", slots=2)
    ]
    assert gone(ask(leaf("hi", 1, size=1), nodes(r=[0, 0]), *lone_small, gangs=gangs)) == ["small"]


@pytest.mark.parametrize("pods", [2, 8, 64])
def test_a_group_that_is_evicted_as_a_whole_is_a_broken_gang(pods):
    """Of equal priority: the only member of a small gang goes, not all pods of a group with disruption mode `all`."""
    gangs = (PlanGang(name="PodGroup/ns/small", minimum=1, running=1),)
    units = [whole("large", *["r-0"] * pods), lone("small", "r-1", gang=0)]
    assert gone(ask(leaf("hi", 1), nodes(r=[0, 0]), *units, gangs=gangs)) == ["small"]


def test_single_pods_go_before_a_group_that_is_evicted_as_a_whole():
    """Of equal priority: two single pods lose less than a group of two."""
    units = [whole("g", "r-0", "r-0"), lone("a", "r-1"), lone("b", "r-1")]
    assert gone(ask(leaf("hi", 1, size=1), nodes(r=[0, 0]), *units)) == ["a", "b"]
    dearer = [whole("g", "r-0", "r-0"), lone("a", "r-1", priority=2), lone("b", "r-1")]
    assert gone(ask(leaf("hi", 1, size=1), nodes(r=[0, 0]), *dearer)) == ["g"]


def test_a_gang_is_not_worth_more_than_its_priority():
    """`broken` comes after the highest priority: the gang of priority 1 is broken, the extra of 2 stays."""
    gangs = (PlanGang(name="PodGroup/ns/g", minimum=1, running=1),)
    units = [lone("g0", "r-0", priority=1, gang=0), lone("x", "r-1", priority=2)]
    assert gone(ask(leaf("hi", 1), nodes(r=[0, 0]), *units, gangs=gangs)) == ["g0"]


def test_a_budget_is_overdrawn_only_where_nothing_else_helps():
    """Two pods under a budget that allows one: one of them and a dearer stranger go."""
    budgets = (PlanBudget(name="ns/b", allowed=1),)
    units = [
        lone("a", "r-0", budgets=(0,)),
        lone("b", "r-1", budgets=(0,)),
        lone("c", "r-2", priority=9),
    ]
    left = gone(ask(leaf("hi", 2), nodes(r=[0, 0, 0]), *units, budgets=budgets))
    assert left in (["a", "c"], ["b", "c"])
    assert len(gone(ask(leaf("hi", 3), nodes(r=[0, 0, 0]), *units, budgets=budgets))) == 3


def test_the_youngest_goes_where_all_else_is_equal():
    """E-9: of two equal pods the one that has lost less work."""
    units = [lone("old", "r-0", since_us=0), lone("young", "r-1", since_us=90_000_000)]
    assert gone(ask(leaf("hi", 1), nodes(r=[0, 0]), *units)) == ["young"]


def test_a_pinned_tree_evicts_in_its_own_domain_only():
    """P14: the low pod in the pinned rack goes; where only the other rack could be freed there is no victim."""
    bound = (PlanBound(pod="ns/hi-b", uid=PodUid("hi-b"), node=NodeName("r1-1")),)
    tree = leaf("hi", 1, minimum=1, topology=("rack",), bound=bound)
    both = [lone("a", "r1-0", priority=9), lone("b", "r2-0", priority=1)]
    assert gone(ask(tree, nodes(r1=[0, 0], r2=[0]), *both)) == ["a"]
    made = preempt(ask(tree, nodes(r1=[0, 0], r2=[0]), both[1]))
    assert isinstance(made, NoPreemption)
    assert made.cause == "impossible"


def test_a_satisfied_gang_asks_for_the_extras_that_can_be_had():
    """C.6: two more are wanted, one unit can make capacity for one: it goes."""
    bound = (PlanBound(pod="ns/hi-b", uid=PodUid("hi-b"), node=NodeName("r-0")),)
    tree = leaf("hi", 2, minimum=1, bound=bound)
    assert gone(ask(tree, nodes(r=[0]), lone("a", "r-0"), lone("b", "r-0", priority=50))) == ["a"]
    basic = msgspec.structs.replace(tree, basic=True)
    made = preempt(ask(basic, nodes(r=[1]), lone("a", "r-0")))
    assert isinstance(made, NoPreemption)
    assert made.reasons == ("PodGroup ns/hi is basic: what fits is placed first",)


def test_the_minimum_binds_without_preemption():
    """C.6 and P11: with the minimum placed no pod is evicted for an extra in the same step."""
    made = preempt(ask(leaf("hi", 2, minimum=1), nodes(r=[1]), lone("a", "r-0")))
    assert isinstance(made, NoPreemption)
    assert made.cause == "not-triggered"


def test_extras_take_what_the_whole_unit_leaves():
    """A unit of four slots is evicted for a minimum of two: the other two members are placed there as well."""
    made = preempt(ask(leaf("hi", 4, minimum=2), nodes(r=[0]), whole("u", "r-0", slots=4)))
    assert isinstance(made, PreemptionPlan)
    assert (len(made.plan.assignments), made.plan.unplaced) == (4, ())


def test_ports_and_claims_are_freed_with_their_pod():
    """The pod that has the port and the claim goes, the cheaper one beside it stays."""
    port = (HostPort("TCP", 80),)
    wants = shape(1, host_ports=port, exclusive_claims=("ns/c",))
    request = ask(leaf("hi", 1), nodes(r=[4]), lone("cheap", "r-0", 1, 1), lone("has", "r-0", 5, 2))
    request = msgspec.structs.replace(
        request,
        shapes=(wants,),
        nodes=tuple(msgspec.structs.replace(n, host_ports=port) for n in request.nodes),
        claims_in_use=("ns/c",),
        evictable=msgspec.structs.replace(request.evictable, shapes=(shape(1), wants, *SHAPES[2:])),
    )
    assert gone(request) == ["has"]


def test_how_far_evicting_every_unit_would_get():
    """The issue's words: evicting every lower-priority unit yields 1 of 2 racks."""
    root = PlanGroup(
        key=GroupKey("ns", "root", "CompositePodGroup"),
        minimum=2,
        groups=(leaf("a", 2, topology=("rack",)), leaf("b", 9, topology=("rack",))),
    )
    units = [whole(f"u{i}", f"r{i}-0", slots=2) for i in (1, 2)]
    made = preempt(ask(root, nodes(r1=[0], r2=[0]), *units))
    assert isinstance(made, NoPreemption)
    text = "evicting every lower-priority unit (2) yields 1 of 2 child groups, each in one rack"
    assert made.reasons[0] == text
    assert len(made.reasons) > 1


def test_how_far_it_would_get_counts_what_can_be_had_at_once():
    """Each of two groups could have the one rack that can be cleared: that is 1 of 2, not 2."""
    root = PlanGroup(
        key=GroupKey("ns", "root", "CompositePodGroup"),
        minimum=2,
        groups=(leaf("a", 2, topology=("rack",)), leaf("b", 2, topology=("rack",))),
    )
    made = preempt(ask(root, nodes(r1=[0], r2=[0]), whole("u", "r1-0", slots=2)))
    assert isinstance(made, NoPreemption)
    text = "evicting PodGroup/ns/u, the only lower-priority unit, yields 1 of 2 child groups, each in one rack"
    assert made.reasons[0] == text


def test_how_far_it_would_get_counts_different_pods_at_once():
    """A pod of 1 and one of 2 each fit on the node that can be cleared: that is 1 of 2."""
    root = leaf("hi", 2)
    root = msgspec.structs.replace(
        root, members=(root.members[0], msgspec.structs.replace(root.members[1], shape=1))
    )
    made = preempt(ask(root, nodes(r1=[0]), lone("a", "r1-0", slots=2)))
    assert isinstance(made, NoPreemption)
    text = "evicting Pod/ns/a, the only lower-priority unit, yields 1 of 2 pods"
    assert made.reasons[0] == text


def test_an_unknown_verdict_evicts_no_pod():
    """A refusal that rests on a budget or on rejections is no reason to evict."""
    request = ask(leaf("hi", 1), nodes(r=[1]), lone("a", "r-0"))
    made = preempt(
        msgspec.structs.replace(
            request, rejected_nodes=(NodeRejection(node=NodeName("r-0"), shape=0),)
        )
    )
    assert isinstance(made, NoPreemption)
    assert made.cause == "not-triggered"


def counting(request: PlanRequest, kind: str, key: str, *names: str, **more) -> PlanRequest:
    """Give the members a rule that selects themselves and counts some of the units' pods, and `more` pods by value."""
    there: Counter = Counter(more.pop("there", {}))
    where = {n.name: n for n in request.nodes}

    def seen(pod: PlanVictim) -> PlanVictim:
        if pod.uid not in names:
            return pod
        there[pod.node if kind == "spread" else where[pod.node].labels[key]] += 1
        return msgspec.structs.replace(pod, rules=(0,))

    units = tuple(
        msgspec.structs.replace(u, pods=tuple(map(seen, u.pods))) for u in request.evictable.units
    )
    shapes_of = sorted({m.shape for m in request.root.members})
    about = more.pop("about", shapes_of)
    rule = PlanRule(
        kind=kind, keys=(key,), shapes=tuple(shapes_of), about=tuple(about),
        there=(tuple(sorted(there.items())),), **more,
    )  # fmt: skip
    evictable = msgspec.structs.replace(request.evictable, units=units)
    return msgspec.structs.replace(request, rules=(rule,), evictable=evictable)


def test_a_pod_that_a_spread_counts_is_evicted():
    """Peer case F1: the only pod in the way has the label that the spread of the preemptor counts."""
    request = ask(leaf("hi", 1), nodes(r=[0]), lone("low", "r-0"))
    assert gone(counting(request, "spread", "rack", "low", skew=5)) == ["low"]


def test_a_pod_that_an_affinity_counts_is_evicted_where_another_stays():
    """Peer case F1: of two pods that the affinity needs the low one goes, the other is enough."""
    request = ask(leaf("hi", 1), nodes(r=[0]), lone("low", "r-0"), lone("kept", "r-0", priority=50))
    assert gone(counting(request, "near", "rack", "low", "kept", about=())) == ["low"]


def test_an_affinity_keeps_one_of_two_equal_pods():
    """Both are near enough and in the way; the third pod is dearer, and goes, because one of the two must stay."""
    units = [lone("a", "r-0"), lone("b", "r-0"), lone("dear", "r-0", priority=9)]
    request = ask(leaf("hi", 1, size=1), nodes(r=[0]), *units)
    victims = gone(counting(request, "near", "rack", "a", "b", about=()))
    assert "dear" in victims
    assert len(victims) == 2


def test_no_pod_goes_that_an_affinity_needs_and_the_proof_names_it():
    """Its only neighbour is the only pod in the way: evicting it leaves nothing to be near to."""
    request = ask(leaf("hi", 1), nodes(r=[0]), lone("low", "r-0"))
    made = preempt(counting(request, "near", "rack", "low", about=()))
    assert isinstance(made, NoPreemption)
    assert made.cause == "impossible"
    assert "pod affinity over rack" in made.reasons[0]


def test_an_affinity_to_their_own_kind_holds_anywhere_once_the_others_are_gone():
    """The first of its kind may run anywhere: the low one on the full rack goes, and the gang runs in the free one."""
    request = ask(leaf("hi", 2, size=1), nodes(r=[0], s=[8]), lone("low", "r-0"))
    assert gone(counting(request, "near", "rack", "low")) == ["low"]


def test_a_spread_evicts_where_it_is_too_full_and_not_where_it_is_measured():
    """Skew 1 over two racks: the crowded rack has capacity, the empty one has none; one of the crowd goes."""
    units = [lone("a", "r-0"), lone("b", "r-0"), lone("c", "s-0", priority=50)]
    request = ask(leaf("hi", 1), nodes(r=[4], s=[0]), *units)
    assert gone(counting(request, "spread", "rack", "a", "b", skew=1)) in (["a"], ["b"], ["a", "b"])


def test_what_is_not_judged_after_the_eviction_is_unknown():
    """Of two members one is selected by the affinity: once its neighbours are gone, where both may run is not modelled."""
    root = leaf("hi", 2)
    members = (root.members[0], msgspec.structs.replace(root.members[1], shape=1))
    request = ask(
        msgspec.structs.replace(root, members=members), nodes(r=[0], s=[8]), lone("low", "r-0")
    )
    made = preempt(counting(request, "near", "rack", "low", about=(0,)))
    assert isinstance(made, NoPreemption)
    assert made.cause == "unknown"
    assert made.reasons == (
        "evicting Pod/ns/low may help, but pod affinity over rack counts them, and is not judged for the time after",
    )


def test_an_eviction_on_a_node_that_kube_scheduler_refused_is_not_disproved():
    """Without evictions the tree is proved impossible; with them only the refused node would do: that is no proof."""
    request = ask(leaf("hi", 1), nodes(r=[0], s=[0]), lone("low", "r-0"), lone("x", "s-0", 50))
    refused = (NodeRejection(node=NodeName("r-0"), shape=0),)
    made = preempt(msgspec.structs.replace(request, rejected_nodes=refused))
    assert isinstance(made, NoPreemption)
    assert made.cause == "unknown"
    assert made.reasons[0].endswith("but kube-scheduler refused r-0")


def broken(request: PlanRequest, *names: str) -> PlanRequest:
    """Let some members of a flat gang ask for a claim that does not exist."""
    wants = msgspec.structs.replace(SHAPES[0], unmodelled=("claim ns/data does not exist",))
    members = tuple(
        msgspec.structs.replace(m, shape=len(SHAPES)) if m.uid in names else m
        for m in request.root.members
    )
    root = msgspec.structs.replace(request.root, members=members)
    return msgspec.structs.replace(request, root=root, shapes=(*SHAPES, wants))


def test_no_pod_is_evicted_for_a_claim_that_does_not_exist():
    """kube-scheduler would refuse the member on every node: nothing is evicted for it, and the reason names the claim."""
    units = [lone("a", "r-0"), lone("b", "r-1")]
    made = preempt(broken(ask(leaf("hi", 2), nodes(r=[0, 0]), *units), "hi-1"))
    assert isinstance(made, NoPreemption)
    assert made.cause == "not-triggered"
    assert made.reasons == ("no eviction can help: claim ns/data does not exist",)


def test_the_others_have_capacity_made_for_them_where_they_are_enough():
    """The minimum does not need the broken member: one unit is evicted for the other, none for it."""
    units = [lone("a", "r-0"), lone("b", "r-1", priority=2)]
    request = broken(ask(leaf("hi", 2, minimum=1), nodes(r=[0, 0]), *units), "hi-0")
    made = preempt(request)
    assert isinstance(made, PreemptionPlan)
    assert [u.name for u in made.victims] == ["Pod/ns/a"]
    assert [a.uid for a in made.plan.assignments] == ["hi-1"]
