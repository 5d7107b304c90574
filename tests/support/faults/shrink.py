"""A failing case with as few faults and objects as still fail, and its story in about ten lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from tests.support.faults.cases import Case
from tests.support.faults.run import Result, run_case

T = TypeVar("T")
TRIES_MAX: Final = 80
LINES: Final = 12


def shrunk(case: Case, result: Result, run: Callable[[Case], Result] = run_case) -> tuple[Case, Result]:  # fmt: skip
    """Return a smaller case that violates the same invariant, and its result."""
    tries = 0

    def fails(smaller: Case) -> Result | None:
        nonlocal tries
        tries += 1
        again = run(smaller)
        return again if again.violated == result.violated else None

    def without(case: Case, result: Result, field: str) -> tuple[Case, Result]:
        """Leave out parts of a field: first halves, then single ones."""
        size = max(1, len(getattr(case, field)) // 2)
        while True:
            kept: Sequence[object] = getattr(case, field)
            for start in range(0, len(kept), size):
                if tries >= TRIES_MAX:
                    return case, result
                smaller = msgspec.structs.replace(
                    case, **{field: (*kept[:start], *kept[start + size :])}
                )
                if (again := fails(smaller)) is not None:
                    case, result = smaller, again
                    break
            else:
                if size == 1:
                    return case, result
                size //= 2

    ends_s = msgspec.structs.replace(case, until_s=min(case.until_s, result.case_s + 1.0))
    late = [fault for fault in case.faults if fault.at_s <= result.case_s]
    ends_s = msgspec.structs.replace(ends_s, faults=tuple(late))
    case, result = without(ends_s, result, "faults")
    case, result = without(case, result, "arrivals")
    if case.replicas > 1:
        alone = msgspec.structs.replace(case, replicas=1)
        if (again := fails(alone)) is not None:
            case, result = alone, again
    return without(case, result, "faults")


def story(case: Case, result: Result) -> str:
    """Return what happened in about ten lines: objects, faults, and the last lines before the violation."""
    head = f"seed {case.seed}: {result.violated}: {result.detail}"
    cluster = f"  {case.racks * 2} nodes of {case.gpus} GPUs in {case.racks} racks, {case.replicas} replicas of the service"  # fmt: skip
    return "\n".join([head, cluster, *(f"  {line[:200]}" for line in result.story[-LINES:])])
