"""Back-off of searches that use up their budget: the tree comes again later, with a larger budget, up to a bound.

The budget is part of the plan request, so a decision with a larger one is recorded and replayed like any other. What
counts is the tree: with other groups, members or shapes it begins again with the first budget.
"""

from __future__ import annotations

from typing import Final

import msgspec

from extender.core.model.ids import GangUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import PlanGroup, PlanRequest, Verdict

# the largest budget, as a multiple of the first; the budget doubles each time
GROWTH_MAX: Final = 8
PAUSE_FIRST_MS: Final = 5_000
PAUSE_MAX_MS: Final = 600_000


class _Spent(msgspec.Struct, frozen=True):
    """A tree whose search used up its budget, so many times in a row."""

    root: PlanGroup
    shapes: tuple[PodShape, ...]
    times: int


class SearchBackoff:
    """The trees whose last search used up its budget."""

    def __init__(self, budget: int) -> None:
        """Prepare.

        Args:
            budget: Search nodes of the first search of a tree.
        """
        self._budget = budget
        self._spent: dict[GangUid, _Spent] = {}

    def budget(self, uid: GangUid, root: PlanGroup, shapes: tuple[PodShape, ...]) -> int:
        """Return the search nodes that the next search of a tree may cost."""
        times = min(self._times(uid, root, shapes), GROWTH_MAX.bit_length())
        return self._budget * min(1 << times, GROWTH_MAX)

    def repeated(self, uid: GangUid) -> bool:
        """Return whether the last search of a tree used up its budget."""
        return uid in self._spent

    def placed(self, uid: GangUid) -> None:
        """Record that a search found a plan."""
        self._spent.pop(uid, None)

    def answered(self, uid: GangUid, request: PlanRequest, verdict: Verdict, took_ms: int) -> int:
        """Record the answer of a search, and return how long the tree waits before the next one, in milliseconds.

        Returns:
            0 unless the budget was used up; then a pause that doubles each time.
        """
        if verdict.search.exhausted:
            self._spent.pop(uid, None)
            return 0
        times = self._times(uid, request.root, request.shapes)
        self._spent[uid] = _Spent(request.root, request.shapes, times + 1)
        doubled: int = max(PAUSE_FIRST_MS, took_ms) << min(times, PAUSE_MAX_MS.bit_length())
        return min(doubled, PAUSE_MAX_MS)

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees."""
        self._spent = {uid: spent for uid, spent in self._spent.items() if uid in roots}

    def _times(self, uid: GangUid, root: PlanGroup, shapes: tuple[PodShape, ...]) -> int:
        spent = self._spent.get(uid)
        if spent is None:
            return 0
        same = spent.root is root or (spent.root, spent.shapes) == (root, shapes)
        return spent.times if same else 0
