"""How many examples hypothesis tries: `quick` in `make test`, `full` in `make test-full`.

`HYPOTHESIS_PROFILE` names the profile. `quick` tries a tenth, and the same examples in every run, so that a failure
is one of the change that is tested. `full` tries the numbers that stand in the tests.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
QUICK_SHARE = 10
QUICK_MIN = 15  # examples of a test that has few in the full profile

# A busy machine is no counterexample: how long an example takes is never asserted.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("full", **_UNTIMED)
settings.register_profile("quick", **_UNTIMED, max_examples=25, derandomize=True)
settings.load_profile(PROFILE)


def examples(number: int, **others: Any) -> settings:
    """Return the settings of a test that tries so many examples in the full profile, with its other settings."""
    quick = min(number, max(QUICK_MIN, number // QUICK_SHARE))
    return settings(max_examples=number if PROFILE == "full" else quick, **others)
