"""Faults by seed: a few seeds hold, each seed is the same in any process, and a defect is found and printed as a short story."""

from __future__ import annotations

import pytest

from tests.support.faults.cases import case_of
from tests.support.faults.planted_defects import DEFECTS, planted
from tests.support.faults.run import run_case
from tests.support.faults.shrink import LINES, shrunk, story
from tests.support.service.hash_seeds import outputs

DIGEST = """
from tests.support.faults.cases import case_of
from tests.support.faults.run import run_case
print(run_case(case_of(2)).digest)
"""


def holds(seed: int) -> int:
    """Run a seed in which nothing may be violated; return how many events its log has."""
    result = run_case(case_of(seed))
    assert (seed, result.violated, result.detail) == (seed, "", "")
    return result.events


# 141: in the instant in which a refusal is recorded pods end, which its leader reads 10 ms later
@pytest.mark.parametrize("seed", [3, 14, 141])
def test_what_must_hold_holds_with_the_faults_of_a_seed(seed):
    assert holds(seed) > 5


@pytest.mark.full
@pytest.mark.parametrize("first", [0, 10, 20])
def test_what_must_hold_holds_with_the_faults_of_ten_seeds(first):
    assert sum(holds(seed) for seed in range(first, first + 10)) > 100


def test_each_planted_defect_is_still_in_the_code():
    for name in DEFECTS:
        with planted(name):
            pass


@pytest.mark.full
def test_the_same_seed_is_the_same_story_in_processes_with_different_hash_seeds():
    assert len(outputs(DIGEST, ["1", "77"])) == 1


@pytest.mark.full
def test_a_planted_defect_is_found_and_printed_in_few_lines():
    whole = case_of(4)  # the first seed that shows it
    with planted("the barrier opens one member early"):
        result = run_case(whole)
        case, smaller = shrunk(whole, result)
    assert smaller.violated == result.violated == "bound before its minimum had arrived"
    assert len(case.faults) + len(case.arrivals) < len(whole.faults) + len(whole.arrivals)
    assert len(story(case, smaller).splitlines()) <= LINES + 2
    assert run_case(case).violated == ""
