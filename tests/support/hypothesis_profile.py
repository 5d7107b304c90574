"""How many examples hypothesis tries: `quick` in `make test`, `full` in `make test-full`.

`HYPOTHESIS_PROFILE` names the profile. `quick` tries a twentieth, at least 15, and the same examples in every run, so that a failure
is one of the change that is tested. `full` tries the numbers that stand in the tests, in CI the same examples every time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
QUICK_SHARE = 20
QUICK_MIN = 15  # examples of a test that has few in the full profile

# A busy machine is no counterexample: how long an example takes is never asserted.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("full", **_UNTIMED, derandomize="CI" in os.environ)
settings.register_profile("quick", **_UNTIMED, max_examples=QUICK_MIN, derandomize=True)
settings.load_profile(PROFILE)


def daily(number: int, values: Sequence[Any]) -> list[Any]:
    """Return values to parametrize a test with: the first of them for `make test`, the others marked `full`."""
    others = (value if isinstance(value, tuple) else (value,) for value in values[number:])
    return [*values[:number], *(pytest.param(*value, marks=pytest.mark.full) for value in others)]


def examples(number: int, *, quick: int | None = None, **others: Any) -> settings:
    """Return the settings of a test.

    Args:
        number: Examples in the full profile.
        quick: Examples in the quick one, where each costs much.
        others: Its other settings.
    """
    few = min(number, max(QUICK_MIN, number // QUICK_SHARE)) if quick is None else quick
    return settings(max_examples=number if PROFILE == "full" else few, **others)
