"""The limit of a unit test's CPU: half a second on the quiet machine, more on a slower one."""

from __future__ import annotations

import pytest

from tests.support import cpu_limit


def test_what_costs_more_than_the_limit_fails():
    """Named with its cost and its limit; below the limit nothing fails."""
    cpu_limit.check("small", cpu_limit.LIMIT_S, slow_at_start=1.0)
    with pytest.raises(AssertionError, match=r"large took 1000\.00 s of CPU"):
        cpu_limit.check("large", 1000.0, slow_at_start=1.0)


def test_a_slower_machine_has_a_larger_limit():
    """In proportion to the loop, as it was at the start or as it is now."""
    cpu_limit.check("on a slow machine", cpu_limit.LIMIT_S * cpu_limit.NOISE * 7, slow_at_start=8.0)
    assert cpu_limit.slowness() >= 1.0
