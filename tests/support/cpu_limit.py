"""What a unit test may cost: half a second of CPU on a quiet machine of our size; it fails at four times that.

The margin is for noise: a test of 0.11 s was measured at 1.04 s once, on two cores that eight other processes shared, and a
limit that fails by chance teaches nothing.

CPU seconds are counted, not time: of this process, and of the processes that the test started and waited for. The
worker process that all stages share is not counted. Where a fixed loop takes longer than it did on that machine, at
the start of the session or right after the test, the limit is larger in proportion. What is imported once is no cost
of the test that comes first. A hypothesis test counts as a whole, in the quick profile only.
"""

from __future__ import annotations

import os
import time

LIMIT_S = 0.5
LOOP = 200_000
LOOP_S = 0.0042  # CPU seconds of the loop on a quiet machine, the least of many
ROUNDS = 5
NOISE = 4  # the same test, measured beside other work, against itself alone


def spent_s() -> float:
    """Return the CPU seconds of this process and of the children that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def slowness() -> float:
    """Return how many times longer than on the quiet machine the loop takes now; at least 1."""
    return max(1.0, min(_loop_s() for _ in range(ROUNDS)) / LOOP_S)


def _loop_s() -> float:
    began_s = time.process_time()
    total = 0
    for number in range(LOOP):
        total += number & 7
    return time.process_time() - began_s


def check(name: str, cost_s: float, slow_at_start: float, limit_s: float = LIMIT_S) -> None:
    """Fail when a test cost more than its limit on a machine as slow as this one was or is."""
    if cost_s <= limit_s * NOISE:
        return
    slow = max(slow_at_start, slowness())
    assert cost_s <= limit_s * NOISE * slow, (
        f"{name} took {cost_s:.2f} s of CPU; a unit test may take {limit_s:g} s, and fails here at {limit_s * NOISE * slow:.2f} s; "
        "make it smaller, mark it `full` beside a quick sibling, or give the reason with `cpu(seconds)`"
    )
