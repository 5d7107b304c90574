"""Preemption against the worked cases, against brute force, and against itself."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.core.planner import reprieve
from extender.core.planner.cheapest import Cheapest
from extender.core.planner.disruption import Cost
from extender.core.planner.feasibility import holds_already
from extender.core.planner.placement import Plan
from extender.core.planner.search import plan
from extender.core.planner.preempt import NoPreemption, Preemption, preempt
from tests import preemption, vectors
from tests.bruteforce import best_total
from tests.unit.core.planner.trees import crowded

PREEMPT = vectors.of_kind("preempt")


def names(units) -> list[str]:
    return [u.name.rpartition("/")[2] for u in units]


@pytest.mark.parametrize("vector", PREEMPT, ids=[v["id"] for v in PREEMPT])
def test_worked_cases(vector):
    """Every `preempt` vector: who goes, or that nobody does, and the checker's consent."""
    request = vectors.request_of(vector)
    made = preempt(request)
    want = vector.get("best", [])
    if not want:
        assert isinstance(made, NoPreemption), made
        assert made.reasons
        return
    assert isinstance(made, Preemption), made
    assert preemption.faults(request, made) == []
    assert made.search.exhausted
    if vector.get("any"):
        assert len(made.victims) == len(want)
    else:
        assert names(made.victims) == want
    assert not made.superseded
    assert not made.plan.unplaced


def figures(cost: Cost) -> tuple[int, ...]:
    """The cost without names."""
    return tuple(getattr(cost, f) for f in Cost.__struct_fields__ if f != "names")


def _agree(request) -> None:
    bare = msgspec.structs.replace(request, evictable=None)
    refused = plan(bare)
    made = preempt(request)
    if isinstance(made, Preemption):
        assert not isinstance(refused, Plan) or holds_already(request.root)
        extras = isinstance(refused, Plan)
        assert preemption.faults(request, made, extras=extras) == []
        wanted = len(made.plan.assignments) if extras else 1
        best = preemption.cheapest(request, wanted=wanted)
        assert figures(made.cost) == preemption.price(request, [*made.victims, *made.superseded])
        assert figures(made.cost) >= best
        if made.search.exhausted:
            assert figures(made.cost) == best
        return
    if made.cause == "not-triggered":
        return
    assert made.cause in {"impossible", "comes-free"}, made
    if isinstance(refused, Plan):  # extras: nothing more fits, whoever goes
        going = list(request.evictable.going)
        units = [u for u in request.evictable.units if u.priority < request.evictable.priority]
        everybody = [p for u in units for p in u.pods] + going
        most = best_total(preemption.roomier(request, everybody))
        assert most == best_total(preemption.roomier(request, going))
        return
    best = preemption.cheapest(request)
    if made.cause == "impossible":
        assert best is None
    else:
        assert best == preemption.price(request, [])


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(crowded())
def test_agrees_with_brute_force(request_):
    """Somebody goes exactly when some set helps, and the set is the cheapest one where that is claimed."""
    _agree(request_)
