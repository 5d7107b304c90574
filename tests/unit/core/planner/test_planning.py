"""The planner against the worked cases, against brute force, and against itself."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from extender.core.admit.verdict_events import ComparedNodes, would_be_refused
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.codec.request_codec import Decoder, Encoder, encode
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import compile_request
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import (
    Plan,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Refusal,
    admissible,
)
from extender.core.planner.planning import plan, plan_at_once
from extender.core.planner.solve import node_classes, solver_pipeline
from extender.core.planner.solve.cp_sat_placement import PlacementModel, solve_exactly
from tests.support.hypothesis_profile import examples
from tests.support.planning import spec_vectors
from tests.support.planning.brute_force_planner import best_total
from tests.support.planning.plan_checker import faults
from tests.support.planning.random_trees import (
    changed_nodes,
    exclusive_requests,
    requests,
    ruled_requests,
)
from tests.support.service.hash_seeds import outputs

PLACE = spec_vectors.of_kind("place")


@pytest.mark.parametrize("permute", [False, True], ids=["listed", "permuted"])
@pytest.mark.parametrize("vector", PLACE, ids=[v["id"] for v in PLACE])
def test_worked_cases(vector, permute):
    """Every `place` vector: verdict, total, counts per leaf, and the checker's consent."""
    request = spec_vectors.request_of(vector, permute=permute)
    verdict = plan(request)
    want = {} if vector["want"] == "none" else vector["want"]
    if isinstance(verdict, Refusal):
        assert not want
        assert verdict.outcome == "impossible"
        assert verdict.search.exhausted
        assert verdict.reasons
        return
    assert faults(request, verdict) == []
    got = Counter(a.group.name for a in verdict.assignments)
    assert got.total() == sum(want.values())
    if not permute and not vector.get("any"):
        assert dict(got) == want
    assert verdict.search.exhausted


def test_the_status_shows_whether_preemption_can_help():
    """V28: a selector no node meets is unresolvable; V02: a full cluster is not."""
    assert (
        plan(spec_vectors.request_of(spec_vectors.by_id("V28"))).status
        == "UnschedulableAndUnresolvable"
    )
    assert plan(spec_vectors.request_of(spec_vectors.by_id("V02"))).status == "Unschedulable"


def test_conflicting_pins_name_both_values():
    """V25: the reason names both domains, and preemption is not asked for."""
    verdict = plan(spec_vectors.request_of(spec_vectors.by_id("V25")))
    assert isinstance(verdict, Refusal)
    assert '"Z1"' in verdict.reasons[0]
    assert '"Z2"' in verdict.reasons[0]
    assert verdict.status == "UnschedulableAndUnresolvable"


def test_budget_is_not_a_proof():
    """L08: V11 with a budget of one search node is unknown with the budget in its reason."""
    verdict = plan(spec_vectors.request_of(spec_vectors.by_id("V11"), budget=1))
    assert isinstance(verdict, Refusal)
    assert verdict.outcome == "unknown"
    assert not verdict.search.exhausted
    assert "within the budget of 1 search node" in verdict.reasons[0]
    assert (
        "GANG_EXTENDER_SEARCH_BUDGET=10 (--search-budget of serve and plan)" in verdict.reasons[0]
    )
    assert "about 1 second of CPU time" in verdict.reasons[0]


def test_every_budget_gives_a_valid_answer():
    """Whatever the budget, V11 is placed validly or unknown, never impossible."""
    for budget in range(40):
        request = spec_vectors.request_of(spec_vectors.by_id("V11"), budget=budget)
        verdict = plan(request)
        if isinstance(verdict, Plan):
            assert faults(request, verdict) == []
        else:
            assert verdict.outcome == "unknown"


def test_a_gang_whose_required_child_is_absent_does_not_hold_its_parent():
    """C.4, C.5: its bound members do not make the waiting pods of another child extras, which may be placed later."""

    def group(name, *children, kind="CompositePodGroup", **fields):
        return PlanGroup(
            key=GroupKey(namespace="ns", name=name, kind=kind), groups=children, **fields
        )

    node = PlanNode(name=NodeName("n"), allocatable={"pods": 2}, free={"pods": 1})
    bound = (PlanBound(pod="ns/a", uid=PodUid("a"), node=node.name),)
    members = (PlanMember(pod="ns/b", uid=PodUid("b"), shape=0),)
    gang = group("gang", group("a", kind="PodGroup", bound=bound), required=("c",))
    root = group("root", gang, group("b", kind="PodGroup", members=members), basic=True)
    request = PlanRequest(root=root, nodes=(node,), shapes=(PodShape(requests=(("pods", 1),)),))
    verdict = plan(request)
    assert isinstance(verdict, Plan)
    assert faults(request, verdict) == []
    assert [a.extra for a in verdict.assignments] == [False]


def _agree(request):
    verdict = plan(request)
    best = best_total(request)
    if not admissible(request.root):
        assert isinstance(verdict, Refusal)
        assert verdict.outcome == "waiting"
        return
    if isinstance(verdict, Plan):
        assert faults(request, verdict) == []
        assert verdict.search.exhausted
        assert best == len(verdict.assignments)
        return
    assert verdict.search.exhausted
    assert best is None
    if verdict.outcome == "unknown":
        assert best_total(msgspec.structs.replace(request, rejected_nodes=())) is not None
        assert verdict.given
    else:
        assert verdict.outcome == "impossible"


@examples(400, suppress_health_check=list(HealthCheck))
@given(requests())
def test_agrees_with_brute_force(request_):
    """Placed exactly when brute force places, with the same total; impossible exactly when it finds none."""
    _agree(request_)


@examples(150, suppress_health_check=list(HealthCheck))
@given(requests())
def test_complete_search_agrees_alone(request_):
    """With the quick way taken out, the complete one gives the same answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver_pipeline, "solve_quickly", lambda *args, **options: None)
        _agree(request_)


@examples(400, quick=10, suppress_health_check=list(HealthCheck))
@given(ruled_requests())
def test_rules_between_pods_agree_with_brute_force(request_):
    """Affinity, anti-affinity and spread: every answer is the best there is, and keeps the rules."""
    _agree(request_)


@examples(200, suppress_health_check=list(HealthCheck))
@given(ruled_requests())
def test_rules_between_pods_in_the_complete_search(request_):
    """The same with the quick way taken out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver_pipeline, "solve_quickly", lambda *args, **options: None)
        _agree(request_)


@examples(1000, quick=30, suppress_health_check=list(HealthCheck))
@given(exclusive_requests())
def test_exclusive_domains_agree_with_brute_force(request_):
    """No domain of an exclusive group has another one, or is taken: placed with the most pods, or proved impossible."""
    _agree(request_)


@examples(400, quick=30, suppress_health_check=list(HealthCheck))
@given(exclusive_requests())
def test_exclusive_domains_in_the_complete_search(request_):
    """The same with the quick way taken out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver_pipeline, "solve_quickly", lambda *args, **options: None)
        _agree(request_)


@examples(150, suppress_health_check=list(HealthCheck))
@given(requests())
def test_complete_search_without_patterns(request_):
    """The same where nodes are kept one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver_pipeline, "solve_quickly", lambda *args, **options: None)
        patch.setattr(node_classes, "PATTERNS_MAX", -1)
        _agree(request_)


@examples(300, suppress_health_check=list(HealthCheck))
@given(st.one_of(requests(), exclusive_requests()), st.integers(0, 12))
def test_a_program_too_large_for_its_limit_has_the_answer_of_the_built_one(request_, limit):
    problem = compile_request(request_, NodeTable(request_.nodes))
    assume(not problem.violations)
    bounds = bound_all(problem)
    assume(not bounds.infeasible)
    built = PlacementModel(problem, bounds).search(limit, None, optimise=False)
    assert solve_exactly(problem, bounds, limit=limit, better_than=None) == built


@examples(40)
@given(requests())
def test_fleet_changes_nothing(request_):
    """A fleet used before gives the same bytes."""
    fleet = NodeTable(request_.nodes)
    first = plan(request_, node_table=fleet)
    assert msgspec.json.encode(plan(request_, node_table=fleet)) == msgspec.json.encode(first)
    assert msgspec.json.encode(plan(request_)) == msgspec.json.encode(first)


@examples(200, suppress_health_check=list(HealthCheck))
@given(requests(), st.data())
def test_what_is_kept_changes_nothing(request_, data):
    """Fleet, bytes and rows kept from other nodes give what those made anew give."""
    fleet, encoder, decoder = NodeTable(request_.nodes), Encoder(), Decoder()
    plan(request_, node_table=fleet)
    for _ in range(3):
        encoded = encoder.encode(request_)
        assert encoded == encode(request_)
        assert decoder.decode(encoded.head, encoded.parts) == request_
        nodes = data.draw(changed_nodes(request_.nodes))
        request_ = msgspec.structs.replace(request_, nodes=nodes)
        fleet = fleet.renewed(nodes)
        assert msgspec.json.encode(plan(request_, node_table=fleet)) == msgspec.json.encode(
            plan(request_)
        )


@examples(300, suppress_health_check=list(HealthCheck))
@given(requests(), st.sampled_from([1, 3, 1000]))
def test_at_once_is_the_same_answer_or_none(request_, effort):
    """`plan_at_once` returns the bytes of `plan`, or none; where it asks for an explanation, `plan` refuses."""
    answer = plan_at_once(request_, NodeTable(request_.nodes), effort=effort)
    whole = plan(request_)
    if answer == "explain":
        assert isinstance(whole, Refusal)
        assert whole.outcome != "waiting"
    elif answer != "search":
        assert msgspec.json.encode(answer) == msgspec.json.encode(whole)


@examples(300, suppress_health_check=list(HealthCheck))
@given(requests(), st.data())
def test_a_refusal_stands_while_there_is_only_less(request_, data):
    """Whenever an earlier refusal holds by `would_be_refused`, planning would refuse as well (L39)."""
    assume(isinstance(plan(request_), Refusal))
    now = msgspec.structs.replace(request_, nodes=data.draw(changed_nodes(request_.nodes)))
    if would_be_refused(request_, now, ComparedNodes()):
        assert isinstance(plan(now), Refusal)
    else:
        assert now != request_


SCRIPT = """
import hashlib, msgspec, sys
from extender.core.planner.planning import plan
from extender.core.planner.preempt.victim_search import preempt
from tests.support.planning import spec_vectors
h = hashlib.sha256()
for v in spec_vectors.of_kind("place"):
    for permute in (False, True):
        h.update(msgspec.json.encode(plan(spec_vectors.request_of(v, permute=permute)), order="deterministic"))
for v in spec_vectors.of_kind("preempt"):
    h.update(msgspec.json.encode(preempt(spec_vectors.request_of(v)), order="deterministic"))
print(h.hexdigest())
"""


def test_same_bytes_in_another_process():
    """The order of sets and dicts does not matter: two hash seeds give the same plans and the same preemptions, byte for byte."""
    assert len(outputs(SCRIPT, ("0", "4711"))) == 1
