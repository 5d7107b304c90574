"""Time in tests of the control side: conditions are due when a test calls `Stage.conditions_due`."""

from __future__ import annotations

import pytest

from extender.control.actuators import status_reporter


@pytest.fixture(autouse=True)
def _conditions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_reporter, "CONDITION_AFTER_S", 3600)
