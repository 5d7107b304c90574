"""Lower bounds of the cost of victims: what they prove, and what they leave to the integer program."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given

from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanGang
from extender.core.planner.preempt import victim_search
from extender.core.planner.preempt.candidate_domains import (
    CandidateDomains,
    CostBounds,
    EmptiedNodes,
    Promising,
)
from extender.core.planner.preempt.min_cost_cp_sat import CheapestVictims, find_cheapest
from extender.core.planner.preempt.post_eviction_view import CostModel, PostEvictionView
from extender.core.planner.preempt.victim_search import PreemptionPlan, preempt
from tests.support.hypothesis_profile import examples
from tests.support.planning.random_trees import crowded
from tests.support.victims.full_clusters import full_clusters
from tests.unit.core.planner.preempt.test_victim_search import figures
from tests.unit.core.planner.preempt.test_victim_search_cases import ask, leaf, lone, nodes, whole


def only_proofs(*args, **options) -> CheapestVictims:
    """Stand for the integer program: nothing is found, and only what the bounds prove is proved."""
    return CheapestVictims(None, {}, proved=args[1].proved, steps=0)


def everything(bounds: CostBounds, best, evicted) -> Promising:
    """Stand for bounds that leave out no unit, and prove nothing."""
    return Promising(proved=False, units=np.ones_like(evicted))


def proved_by_bounds(request) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim_search, "find_cheapest", only_proofs)
        made = preempt(request)
    assert isinstance(made, PreemptionPlan)
    return made.search.exhausted


@examples(300, quick=20, suppress_health_check=list(HealthCheck))
@given(crowded() | full_clusters())
def test_a_search_with_bounds_finds_no_dearer_set_than_one_without(request_):
    """The cheapest set is the same when the integer program has all units, and the bounds prove nothing."""
    made = preempt(request_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostBounds, "promising", everything)
        whole_search = preempt(request_)
    assert type(made) is type(whole_search)
    if isinstance(made, PreemptionPlan) and whole_search.search.exhausted:
        assert figures(made.cost) >= figures(whole_search.cost)
        if made.search.exhausted:
            assert figures(made.cost) == figures(whole_search.cost)


def test_gangs_of_one_size_are_proved_without_the_integer_program():
    """Four gangs of two pods fill four nodes, and two pods come: the youngest gang of the lowest priority is the cheapest."""
    fleet = nodes(r=[0, 0, 0, 0])
    gangs = [whole(f"g{i}", f"r-{i}", f"r-{i}", priority=1 + i // 2, slots=4) for i in range(4)]
    request = ask(leaf("hi", 2, size=3), fleet, *gangs)
    assert proved_by_bounds(request)


def test_pods_of_gangs_are_proved_by_the_gangs_that_break():
    """Two pods of one gang break one gang; no set frees as much and breaks none."""
    fleet = nodes(r=[0, 0])
    units = [
        lone(f"{gang}{i}", f"r-{at}", slots=4, gang=at)
        for at, gang in enumerate("ab")
        for i in range(2)
    ]
    gangs = tuple(PlanGang(name=f"PodGroup/ns/{n}", minimum=2, running=2) for n in "ab")
    request = ask(leaf("hi", 2, size=3), fleet, *units, gangs=gangs)
    assert proved_by_bounds(request)
    assert len(preempt(request).victims) == 2


def test_a_unit_that_frees_too_little_on_a_node_is_not_proved():
    """Five slots are free in sum, on five nodes: what is too small for a pod counts only where a unit goes."""
    fleet = nodes(r=[1, 1, 1, 1, 1])
    units = [lone(f"a{i}", f"r-{i}", slots=3) for i in range(5)]
    request = ask(leaf("hi", 1, size=3), fleet, *units)
    made = preempt(request)
    assert len(made.victims) == 1
    assert made.search.exhausted


def parts_of(request) -> tuple[PostEvictionView, CostModel, CandidateDomains]:
    view = PostEvictionView(request, NodeTable(request.nodes))
    return view, view.cost_model, CandidateDomains(view, min_pods=0)


def test_only_units_that_may_be_cheaper_are_in_the_integer_program():
    """Units of higher priority are left out when one of the lowest is enough."""
    fleet = nodes(r=[0, 0, 0])
    units = [lone("low", "r-0", 1, 4), lone("mid", "r-1", 5, 4), lone("high", "r-2", 9, 4)]
    view, model, places = parts_of(ask(leaf("hi", 1, size=3), fleet, *units))
    names = [unit.name for unit in view.units]
    mid = names.index("Pod/ns/mid")
    evicted = view.none_evicted
    evicted[mid] = True
    promising = CostBounds(places).promising(model.alone(mid), evicted)
    assert not promising.proved
    assert {names[i] for i in np.flatnonzero(promising.units)} == {"Pod/ns/low", "Pod/ns/mid"}
    cheaper = find_cheapest(view, promising, limit=1000, min_pods=0, hint=(evicted, {}))
    assert [names[i] for i in np.flatnonzero(cheaper.evicted)] == ["Pod/ns/low"]
    assert cheaper.proved


def test_a_gang_on_several_nodes_is_evicted_once_for_all_of_them():
    """Two whole nodes: one gang of two pods has both, where two younger gangs would have one each."""
    fleet = nodes(r=[0, 0, 0, 0])
    wide = whole("wide", "r-0", "r-1", slots=4)
    single = [
        msgspec.structs.replace(unit, pods=tuple(msgspec.structs.replace(p, since_us=10**9) for p in unit.pods))
        for unit in (whole("c", "r-2", slots=4), whole("d", "r-3", slots=4))
    ]  # fmt: skip
    request = ask(leaf("hi", 2, size=3), fleet, wide, *single)
    places = parts_of(request)[2]
    order = EmptiedNodes(places).units_in_order(0, None)
    assert len(order) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim_search, "find_cheapest", only_proofs)
        made = preempt(request)
    assert [u.name for u in made.victims] == ["PodGroup/ns/wide"]


def test_nodes_of_one_rack_are_emptied_for_a_leaf_that_must_share_one():
    """Under a root without topology the leaf takes the rack where its nodes together cost least."""
    fleet = nodes(r1=[0, 0], r2=[0, 0])
    units = [
        lone("a", "r1-0", 1, 4), lone("b", "r1-1", 9, 4), lone("c", "r2-0", 2, 4), lone("d", "r2-1", 3, 4),
    ]  # fmt: skip
    request = ask(leaf("hi", 2, size=3, topology=("rack",)), fleet, *units)
    view, _, places = parts_of(request)
    order = EmptiedNodes(places).units_in_order(0, None)
    assert sorted(view.units[i].name for i in order) == ["Pod/ns/c", "Pod/ns/d"]
