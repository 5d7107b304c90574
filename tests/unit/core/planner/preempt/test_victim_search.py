"""Preemption against the worked cases, against brute force, and against itself."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from extender.core.model.ids import GroupKey
from extender.core.model.pods import PodShape, Toleration
from extender.core.planner.codec.request_codec import decode, encode
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Evictable,
    NodeRejection,
    Plan,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanRule,
    PlanUnit,
    PlanVictim,
    Refusal,
    satisfied_by_bound,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt import victim_search as front
from extender.core.planner.preempt.min_cost_cp_sat import CheapestVictims
from extender.core.planner.preempt.post_eviction_view import VictimCost
from extender.core.planner.preempt.victim_search import NoPreemption, PreemptionPlan, preempt
from tests.support.hypothesis_profile import examples
from tests.support.planning import preemption_checker, spec_vectors
from tests.support.planning.brute_force_planner import best_total
from tests.support.planning.random_trees import crowded, exclusive, held
from tests.support.victims.full_clusters import full_clusters

UNKNOWN = CheapestVictims(None, {}, proved=False, steps=0)
PREEMPT = spec_vectors.of_kind("preempt")


def names(units) -> list[str]:
    return [u.name.rpartition("/")[2] for u in units]


@pytest.mark.parametrize("vector", PREEMPT, ids=[v["id"] for v in PREEMPT])
def test_worked_cases(vector):
    """Every `preempt` vector: the victims, or that there are none, and no fault by the checker."""
    request = spec_vectors.request_of(vector)
    made = preempt(request)
    want = vector.get("best", [])
    if not want:
        assert isinstance(made, NoPreemption), made
        assert made.reasons
        return
    assert isinstance(made, PreemptionPlan), made
    assert preemption_checker.faults(request, made) == []
    assert made.search.exhausted
    if vector.get("any"):
        assert len(made.victims) == len(want)
    else:
        assert names(made.victims) == want
    assert not made.superseded
    assert not made.plan.unplaced


def figures(cost: VictimCost) -> tuple[int, ...]:
    """The cost without names."""
    return tuple(getattr(cost, f) for f in VictimCost.__struct_fields__ if f != "names")


def _agree(request) -> None:
    bare = msgspec.structs.replace(request, evictable=None)
    refused = plan(bare)
    made = preempt(request)
    if isinstance(made, PreemptionPlan):
        assert not isinstance(refused, Plan) or satisfied_by_bound(request.root)
        extras = isinstance(refused, Plan)
        assert preemption_checker.faults(request, made, extras=extras) == []
        wanted = len(made.plan.assignments) if extras else 1
        if extras:
            assert wanted == preemption_checker.most_placed(request)
        best = preemption_checker.cheapest(request, wanted=wanted)
        assert figures(made.cost) == preemption_checker.price(
            request, [*made.victims, *made.superseded]
        )
        assert figures(made.cost) >= best
        if made.search.exhausted:
            assert figures(made.cost) == best
        return
    if made.cause == "not-triggered":
        if isinstance(refused, Refusal) and refused.outcome == "impossible":
            assert preemption_checker.cheapest(request) is None
        return
    if made.cause == "unknown" and any("is not judged" in text for text in made.reasons):
        assert any(rule.kind == "near" for rule in request.rules)
        return
    if made.cause == "unknown" and any("kube-scheduler refused" in text for text in made.reasons):
        assert request.rejected_nodes
        made = msgspec.structs.replace(made, cause="impossible")  # as long as the rejection stands
    assert made.cause in {"impossible", "comes-free"}, made
    if isinstance(refused, Plan):  # extras: nothing more fits, whatever is evicted
        going = list(request.evictable.going)
        assert preemption_checker.most_placed(request) == best_total(
            preemption_checker.roomier(request, going)
        )
        return
    best = preemption_checker.cheapest(request)
    if made.cause == "impossible":
        assert best is None
    else:
        assert best == preemption_checker.price(request, [])


@examples(100, suppress_health_check=list(HealthCheck))
@given(crowded())
def test_agrees_with_brute_force(request_):
    """There are victims exactly when some set helps, and the set is the cheapest one where that is claimed."""
    _agree(request_)


@examples(1000, quick=25, suppress_health_check=list(HealthCheck), derandomize=True)
@given(full_clusters())
def test_no_set_is_cheaper_where_gangs_fill_the_cluster(request_):
    """Whole groups, gangs evicted pod by pod, extras, budgets, reservations: every proof holds against all other sets."""
    _agree(request_)


@examples(1000, quick=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(full_clusters(reserved=2))
def test_no_set_is_cheaper_where_victims_have_reservations_of_their_own(request_):
    """What a unit, or all pods of a gang together, free beside their own capacity is counted once, and only then."""
    _agree(request_)
    encoded = encode(request_)
    assert encode(decode(encoded.head, encoded.parts)).digest == encoded.digest


@examples(400, quick=25, suppress_health_check=list(HealthCheck))
@given(crowded(rules_=True))
def test_agrees_where_pods_have_rules(request_):
    """The same with rules between pods: affinity, anti-affinity and spread are judged on what is left of their counts."""
    _agree(request_)


@examples(200, quick=20, suppress_health_check=list(HealthCheck))
@given(crowded().flatmap(exclusive).flatmap(held))
def test_agrees_where_groups_have_domains_alone(request_):
    """A domain that others have is emptied where all that is there may go, and the members of two exclusive groups share none."""
    _agree(request_)


@examples(30, suppress_health_check=list(HealthCheck))
@given(crowded())
def test_without_the_complete_search(request_):
    """With the complete search taken out the same trees are helped, validly, and what is claimed to be proved holds."""
    whole = preempt(request_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "find_cheapest", lambda *args, **options: UNKNOWN)
        made = preempt(request_)
        _agree(request_)
    assert type(made) is type(whole)
    if isinstance(made, PreemptionPlan):
        assert figures(made.cost) >= figures(whole.cost) or not whole.search.exhausted
        assert figures(made.cost) <= figures(whole.cost) or not made.search.exhausted


@examples(30, suppress_health_check=list(HealthCheck))
@given(crowded(), st.sampled_from([0, 1, 2, 5, 20, 100]))
def test_a_budget_that_ends_evicts_validly_or_not_at_all(request_, budget):
    """Whatever the budget, a set is valid and has no unit too many; a verdict without proof has no victims."""
    request_ = msgspec.structs.replace(request_, budget=budget)
    made = preempt(request_)
    if isinstance(made, PreemptionPlan):
        extras = satisfied_by_bound(request_.root)
        assert preemption_checker.faults(request_, made, extras=extras) == []
        if made.search.exhausted:
            _agree(request_)
    elif made.cause == "impossible" and not satisfied_by_bound(request_.root):
        assert preemption_checker.cheapest(request_) is None


@examples(30, suppress_health_check=list(HealthCheck))
@given(crowded())
def test_the_stored_input_is_complete(request_):
    """Decoded from its bytes the request is the same one, and so is the decision, byte for byte."""
    encoded = encode(request_)
    again = decode(encoded.head, encoded.parts)
    assert again == request_
    assert encode(again).digest == encoded.digest
    first, second = preempt(request_), preempt(again)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    with_table = preempt(request_, node_table=NodeTable(request_.nodes))
    assert msgspec.json.encode(with_table) == msgspec.json.encode(first)


@pytest.mark.parametrize("rejected", [(), ("n0",)])
def test_what_no_eviction_can_add_to_is_proved(rejected):
    """A pod affinity counts the units, and a search without it places no more members than are placed already.

    Nor does one without the rejection of a node by kube-scheduler.
    """
    labels = {"n0": {"host": "n0"}, "n2": {"host": "n2", "gen": "1"}}
    nodes = tuple(
        PlanNode(
            name=name, labels=own, unschedulable=True, allocatable={"pods": 5}, free={"pods": 1}
        )
        for name, own in labels.items()
    )
    shape = PodShape(requests=(("pods", 1),), node_selector=(("gen", "1"),))
    group = PlanGroup(
        key=GroupKey(namespace="ns", name="g", kind="PodGroup"),
        basic=False,
        minimum=1,
        members=(
            PlanMember(pod="ns/g-1", uid="g-1", shape=1),
            PlanMember(pod="ns/g-2", uid="g-2", shape=0),
        ),
        bound=(PlanBound(pod="ns/g-0", uid="g-0", node="n0"),),
    )
    units = tuple(
        PlanUnit(
            name=f"Pod/ns/{name}",
            uid=f"Pod/ns/{name}",
            kind="pod",
            priority=-1,
            pods=(PlanVictim(pod=f"ns/{name}", uid=name, node="n0", shape=0, rules=(0,)),),
        )
        for name in ("v0", "v1", "v2")
    )
    rule = PlanRule(kind="near", keys=("host",), shapes=(0,), about=(), there=((("n0", 3),),))
    request = PlanRequest(
        root=group,
        nodes=nodes,
        shapes=(
            shape,
            msgspec.structs.replace(shape, tolerations=(Toleration(operator="Exists"),)),
        ),
        rules=(rule,),
        rejected_nodes=tuple(NodeRejection(node=name, shape=0) for name in rejected),
        evictable=Evictable(priority=5, units=units, shapes=(shape,)),
    )
    _agree(request)
    made = preempt(request)
    assert made.reasons == (
        "evicting every lower-priority unit (3) frees capacity for no further member",
    )
    assert made.search.exhausted


def test_an_input_stored_before_there_was_preemption_can_be_read():
    """A head without the new field decodes to a request with nothing to evict."""
    request = spec_vectors.request_of(spec_vectors.by_id("V01"))
    encoded = encode(request)
    head = encoded.head.replace(b',"evictable":null', b"")
    assert head != encoded.head
    assert decode(head, encoded.parts) == request
