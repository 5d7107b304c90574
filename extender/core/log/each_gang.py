"""Decisions about one gang after the other: a gang whose decision fails is left out, and the others are decided.

The core does not catch exceptions. Its caller decides how the work for one gang is attempted (`Attempt`), and reads afterwards
which gangs were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from extender.core.log.events import NewEvent
from extender.core.model.ids import GangUid

T = TypeVar("T")

# Does the work for a named object; returns False where it was not done, or raised an exception that the caller handled.
Attempt: TypeAlias = Callable[[str, Callable[[], object]], bool]


def at_once(name: str, work: Callable[[], object]) -> bool:
    """Do the work for an object; its exceptions are raised."""
    del name
    work()
    return True


class EachGang:
    """Decides about one gang after the other, so that a defect in one decision does not prevent the others."""

    def __init__(self, attempt: Attempt = at_once) -> None:
        """Prepare; `attempt`: how the work for one gang is done; by default its exceptions are raised."""
        self._attempt = attempt
        self.left_out: set[GangUid] = set()  # whose differences may not be among the events

    def decide(
        self, uid: GangUid, name: str, decide: Callable[[], Iterable[NewEvent]]
    ) -> list[NewEvent]:
        """Return the events of one decision about a gang; none of them where it was left out.

        Args:
            name: Of the decision and the gang, for the log; each decision about a gang has its own.
        """
        return self.result(uid, name, lambda: list(decide())) or []

    def result(self, uid: GangUid, name: str, compute: Callable[[], T]) -> T | None:
        """Return what was computed for a gang; None where it was left out. The arguments are those of `decide`."""
        results: list[T] = []
        if self._attempt(name, lambda: results.append(compute())):
            return results[0]
        self.left_out.add(uid)
        return None
