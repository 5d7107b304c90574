"""Whose long search is next: order of priorities, deficit round robin of namespaces, order kept within a namespace.

A search runs in the planner process, one at a time, and its effort is known only when it has ended. So each namespace
has a balance: it gets a quantum in each round, pays what its searches took, and is served while its balance is above
zero. A namespace with one long search is in debt afterwards, and the others are served until they are even.

The highest priority that waits does not get all: refused trees come round again with each change of the cluster, so trees
below them would never be searched. They get a share, those first that were searched longest ago.

A search that uses up its budget comes again later with a larger one, see `SearchBackoff`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from extender.core.model.ids import GangUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import PlanGroup, PlanRequest, Verdict

# Of search time, that each namespace gets in a round: one with waiting searches is never ahead of another by more than this and
# one search.
QUANTUM_MS: Final = 500
# search time of the highest priority that waits, for each of all below it
HIGHEST_PER_LOWER: Final = 4


class WaitingSearch(msgspec.Struct, frozen=True, gc=False):
    """A tree that waits for its search."""

    uid: GangUid
    namespace: str
    priority: int
    holds_up: bool = False  # trees of lower priority wait for its answer


class SearchTurn(msgspec.Struct, frozen=True, gc=False):
    """Why a tree waits for its search."""

    of_namespace: int  # searches of its own namespace that come before
    namespaces: int  # other namespaces with searches of the same priority
    of_higher_priority: int  # searches of higher priority
    runs: bool = False  # it is searched now

    def kind_sentence(self) -> str:
        """Return the kind of reason as text without numbers, which changes rarely: for conditions."""
        return "waiting for its turn: its search takes long, and namespaces search by turns"

    def sentence(self) -> str:
        """Return the reason as text, without names of other trees.

        >>> SearchTurn(3, 1, 0).sentence()
        'waiting for its turn: other searches of its namespace come first: 3; other namespaces that search too: 1'
        """
        if self.runs:
            return "waiting for its search, which runs now"
        parts = []
        if self.of_namespace:
            parts.append(f"other searches of its namespace come first: {self.of_namespace}")
        if self.namespaces:
            parts.append(f"other namespaces that search too: {self.namespaces}")
        if self.of_higher_priority:
            parts.append(f"searches of higher priority: {self.of_higher_priority}")
        return f"waiting for its turn: {'; '.join(parts) or 'its search is next'}"


class SearchTurns:
    """The balances of the namespaces, at first all even; the same calls lead to the same order."""

    def __init__(self) -> None:
        self._balance: dict[str, int] = {}
        # number of the choice that served it last; the oldest is next
        self._served: dict[str, int] = {}
        self._choices = 0
        self._searched: dict[GangUid, int] = {}  # number of the choice that searched a tree last
        # Effort of searches of the highest priority, less `HIGHEST_PER_LOWER` times that of searches below it. When it reaches
        # `HIGHEST_PER_LOWER` quanta, a tree of lower priority is next.
        self._unshared = 0
        self._factor = 0  # by which the effort of the running search counts in `_unshared`

    def choose(self, waiting: Iterable[WaitingSearch]) -> WaitingSearch | None:
        """Return the search that is next, or None; `waiting`: of each namespace in the order in which its trees are searched."""
        searches = tuple(waiting)
        if not searches:
            return None
        self._choices += 1
        highest = max(search.priority for search in searches)
        below = [search for search in searches if search.priority < highest]
        if not below:
            self._unshared = self._factor = 0
        elif self._unshared >= HIGHEST_PER_LOWER * QUANTUM_MS and not any(
            search.holds_up for search in searches
        ):
            self._factor = -HIGHEST_PER_LOWER
            chosen = min(below, key=lambda search: self._searched.get(search.uid, 0))
            self._searched[chosen.uid] = self._choices
            return chosen
        else:
            self._factor = 1
        chosen = self._of_highest(search for search in searches if search.priority == highest)
        self._searched[chosen.uid] = self._choices
        return chosen

    def _of_highest(self, searches: Iterable[WaitingSearch]) -> WaitingSearch:
        first: dict[str, WaitingSearch] = {}
        for search in searches:
            first.setdefault(search.namespace, search)
        self._begin_rounds(first)
        ready = [name for name in first if self._balance[name] > 0]
        namespace = min(ready, key=lambda name: (self._served.get(name, 0), name))
        self._served[namespace] = self._choices
        return first[namespace]

    def retain(self, roots: set[GangUid]) -> None:
        """Forget when all other trees were searched."""
        self._searched = {uid: number for uid, number in self._searched.items() if uid in roots}

    def charge(self, namespace: str, effort: int) -> None:
        """Subtract what a search took from the balance of its namespace."""
        self._balance[namespace] = self._balance.get(namespace, 0) - max(effort, 1)
        self._unshared += self._factor * max(effort, 1)

    def _begin_rounds(self, waiting: Collection[str]) -> None:
        """Begin as many rounds as one of the waiting namespaces needs; the others in debt get the same."""
        for name in waiting:
            self._balance.setdefault(name, QUANTUM_MS)
        best = max(self._balance[name] for name in waiting)
        if best > 0:
            return
        rounds = -best // QUANTUM_MS + 1
        for name, balance in list(self._balance.items()):
            after = balance + rounds * QUANTUM_MS
            if name in waiting:
                self._balance[name] = min(after, QUANTUM_MS)
            elif after < 0:
                self._balance[name] = after
            else:  # a namespace without a waiting search saves no balance: it begins again as the others
                del self._balance[name]
                self._served.pop(name, None)


def turns_of(waiting: Iterable[WaitingSearch]) -> dict[GangUid, SearchTurn]:
    """Return for each waiting search why it waits; `waiting` as for `SearchTurns.choose`."""
    searches = tuple(waiting)
    namespaces: dict[int, set[str]] = {}
    at_priority: Counter[int] = Counter()
    for search in searches:
        namespaces.setdefault(search.priority, set()).add(search.namespace)
        at_priority[search.priority] += 1
    above, higher = 0, {}
    for priority in sorted(at_priority, reverse=True):
        higher[priority] = above
        above += at_priority[priority]
    before: Counter[tuple[str, int]] = Counter()
    turns: dict[GangUid, SearchTurn] = {}
    for search in searches:
        own = (search.namespace, search.priority)
        others = len(namespaces[search.priority]) - 1
        turns[search.uid] = SearchTurn(before[own], others, higher[search.priority])
        before[own] += 1
    return turns


# --- back-off of searches that use up their budget


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
        """Prepare; `budget`: search nodes of the first search of a tree."""
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

        That is 0 unless the budget was used up; then a pause that doubles each time.
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
