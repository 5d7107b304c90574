"""Refusals of random trees against an exhaustive search: conflicts are true and minimal, ways out work, more nodes are named."""

from __future__ import annotations

from hypothesis import HealthCheck, given

from extender.core.planner.plan_types import Plan
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.support.planning import plan_checker
from tests.support.planning.random_trees import exclusive
from tests.support.refusals.crowded_clusters import refused_requests
from tests.support.refusals.refusal_checker import faults

SEEDED = {"suppress_health_check": list(HealthCheck), "derandomize": True}


def _explained(request) -> None:
    """Fail with the request, as it can be pasted into a test, if its plan or its refusal has a fault."""
    verdict = plan(request)
    found = []
    if isinstance(verdict, Plan):
        found = plan_checker.faults(request, verdict)
    elif verdict.outcome == "impossible":
        found = faults(request, verdict)
    assert not found, f"{found}\n{verdict}\nrequest = {request}"


@examples(1500, quick=45, **SEEDED)
@given(refused_requests())
def test_refusals_hold(request_):
    """Selectors, taints, cordons, topologies, host ports, claims, bound members, reservations and node rejections."""
    _explained(request_)


@examples(800, quick=25, **SEEDED)
@given(refused_requests(ruled=True))
def test_refusals_with_rules_between_pods_hold(request_):
    """The same with affinity, anti-affinity and spread."""
    _explained(request_)


@examples(800, quick=25, **SEEDED)
@given(refused_requests().flatmap(exclusive))
def test_refusals_with_exclusive_domains_hold(request_):
    """The same with groups that have a domain alone, and domains that other trees have."""
    _explained(request_)
