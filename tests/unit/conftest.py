"""Unit tests stay small: what each costs is measured (tests/support/cpu_limit.py)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.support import cpu_limit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from cpu_limit.measured(item))
