"""The long searches of pending trees: one at a time, in turns of their namespaces, while passes go on.

A search waits in the planner process without keeping a pass: trees that are planned at once are admitted meanwhile.
Its answer is recorded between two passes, never during one: `turn` belongs to the pass or to the search that records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.core.fairness.search_turns import SearchTurn, SearchTurns, WaitingSearch, turns_of
from extender.core.model.errors import NotLeading
from extender.core.model.ids import GangUid
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import DecisionInput, PlanRequest, Verdict
from extender.runtime.periodic import ObjectFaults
from extender.runtime.wakeup import first_of
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

HOLD_UP_MS: Final = 5_000  # of a minute, for which searches of one namespace hold up other trees
HOLD_UP_ALL_MS: Final = 20_000  # the same for searches of all namespaces
MINUTE_MS: Final = 60_000
T = TypeVar("T")
# hold: for which capacity could be held; lost: where lost members are placed, or their gang anew
SearchWork: TypeAlias = Literal["search", "explain", "hold", "lost"]


class WantedSearch(msgspec.Struct, frozen=True, eq=False):
    """A tree that only the planner process can decide or explain."""

    tree: Tree
    work: SearchWork
    answered: bool  # the log has an answer about it already: trees without one come first
    holds_up: bool  # whether trees of lower priority wait until it is answered

    @property
    def uid(self) -> GangUid:
        """Return the UID of the root."""
        return self.tree.root.uid


Perform: TypeAlias = Callable[[WantedSearch, Moment], Coroutine[object, object, None]]


class TreeSearches:
    """The searches that wait, and the one that runs."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._turns = SearchTurns()
        self._waiting: dict[GangUid, WantedSearch] = {}
        self._running: WantedSearch | None = None
        self._task: asyncio.Task[None] | None = None
        self._awaited = False  # whether `go_on` looks at the end of the search that runs
        # by namespace, in the minute that began at `_minute_ms`
        self._held_up_ms: dict[str, int] = {}
        self._minute_ms = 0
        self._faults: ObjectFaults[str] = ObjectFaults("searches", parts.clock.monotonic_ms)
        self._perform: Perform | None = None
        self.turn = asyncio.Lock()

    def set_up(self, perform: Perform) -> None:
        """Set what a search does from the moment in which its turn begins; it waits for the planner in `away` only."""
        self._perform = perform

    # -- in a pass ---------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """Forget which trees wait: the pass finds them again, as they are now."""
        self.raise_failure()
        self._waiting.clear()

    def retain(self, roots: set[GangUid]) -> None:
        """Forget when all other trees were searched."""
        self._turns.retain(roots)

    def running(self, uid: GangUid) -> WantedSearch | None:
        """Return the search of a tree if it is the one that runs."""
        return self._running if self._running is not None and self._running.uid == uid else None

    def want(self, search: WantedSearch) -> None:
        """Let a tree wait for its search, after the trees of its namespace that wait already.

        A tree with whose last search a defect showed waits for the end of its pause before that.
        """
        if not self.pauses_after_fault(search.tree):
            self._waiting[search.uid] = search

    def pauses_after_fault(self, tree: Tree) -> bool:
        """Return whether a defect showed with the last search of a tree, and its pause has not ended."""
        return self._faults.waits(tree.root.key.path)

    def is_wanted(self, uid: GangUid) -> bool:
        """Return whether a tree waits for its search, or is searched."""
        return uid in self._waiting or self.running(uid) is not None

    def may_hold_up(self, namespace: str) -> bool:
        """Return whether searches of a namespace may hold up other trees: only for some seconds of a minute."""
        now_ms = self._parts.clock.monotonic_ms()
        if now_ms - self._minute_ms >= MINUTE_MS:
            self._minute_ms, self._held_up_ms = now_ms, {}
        of_namespace, of_all = self._held_up_ms.get(namespace, 0), sum(self._held_up_ms.values())
        return of_namespace < HOLD_UP_MS and of_all < HOLD_UP_ALL_MS

    def waits_above(self, priority: int) -> bool:
        """Return whether a tree of higher priority waits for its search, or is searched."""
        running = (self._running,) if self._running is not None else ()
        return any(w.tree.root.priority > priority for w in (*running, *self._waiting.values()))

    # -- between passes ----------------------------------------------------------------------------

    async def go_on(
        self, changes: Iterable[Callable[[], Awaitable[object]]],
        recorded: Callable[[], None], timeout_s: float,
    ) -> None:  # fmt: skip
        """Run the searches that wait, one after the other, until something has changed; the running one goes on then.

        Args:
            changes: Return waits that end with a change, after which the next pass is due.
            recorded: Called after each answer.
            timeout_s: The next pass is due at the latest after so many seconds.

        Raises:
            NotLeading: An answer could not be appended; the same for the other errors of an append.
        """
        ended_s = asyncio.get_running_loop().time() + timeout_s
        waits = tuple(changes)
        self._awaited = True
        try:
            while self._start_next():
                task, remaining_s = self._task, ended_s - asyncio.get_running_loop().time()
                assert task is not None
                await first_of(_ended(task), *(wait() for wait in waits), timeout_s=remaining_s)
                async with self.turn:
                    pass  # an answer that is being recorded now changes the state itself
                if not task.done():
                    return
                self.raise_failure()
                self._publish()  # it does not run any more for what `recorded` writes
                recorded()
        finally:
            self._awaited = False
            self._publish()

    async def away(self, work: Awaitable[T]) -> tuple[T, int, Moment]:
        """Wait for the planner process, while passes run.

        Returns:
            Its answer, how many milliseconds it took, and the moment after that: cluster and state may have changed.

        Raises:
            BrokenProcessPool: The planner process died.
            NotLeading: The lease was lost meanwhile, even if it was acquired again: another leader may have decided between,
                and the first pass of a term compares the cluster with the log before anything is admitted.
        """
        assert self._running is not None
        terms = self._parts.leader.terms
        namespace = self._running.tree.root.key.namespace
        began_ms = self._parts.clock.monotonic_ms()
        self.turn.release()
        try:
            answer, answered_ms = await work, self._parts.clock.monotonic_ms() - began_ms
        except BrokenProcessPool:  # twice on the same input
            log.exception("planner process died", extra={"root": self._running.tree.root.key.path})
            raise
        finally:
            took_ms = self._parts.clock.monotonic_ms() - began_ms
            self._turns.charge(namespace, took_ms)
            METRICS.searched(namespace, took_ms)
            if self._running.holds_up:
                self._held_up_ms[namespace] = self._held_up_ms.get(namespace, 0) + took_ms
            await self.turn.acquire()
        if self._parts.leader.terms != terms:
            raise NotLeading(
                "the lease was lost during a search, and acquired again; its tree is searched again"
            )
        return answer, answered_ms, self._parts.observer.observe()

    async def planned(self, request: PlanRequest) -> tuple[DecisionInput, Verdict, Moment]:
        """Plan in the planner process, as `away`; return the input, the answer and the moment after it."""
        encoded = self._parts.planner.encode(request)
        verdict, _, moment = await self.away(self._parts.planner.plan(encoded))
        return encoded, verdict, moment

    def raise_failure(self) -> None:
        """Raise the error of a search that has ended with one, once."""
        task = self._task
        if task is not None and task.done():
            self._task = None
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Give up all searches."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def _start_next(self) -> bool:
        """Start the next search if none runs; return whether one runs."""
        if self._running is not None:
            return True
        chosen = self._turns.choose(self._in_order())
        if chosen is None:
            return False
        self._running = self._waiting.pop(chosen.uid)
        self._task = asyncio.create_task(self._run(self._running), name="search")
        self._publish()
        return True

    async def _run(self, search: WantedSearch) -> None:
        assert self._perform is not None
        try:
            async with self.turn:
                with self._faults.alone(search.tree.root.key.path):
                    await self._perform(search, self._parts.observer.observe())
        finally:
            self._running = None
            if search.holds_up or not self._awaited:
                self._parts.barriers.wakeup.wake()  # the next pass admits what was held up, and starts the next search

    def _in_order(self) -> list[WaitingSearch]:
        """Return the waiting searches, those of trees without an answer first, else in the order of the queue."""
        return [
            WaitingSearch(w.uid, w.tree.root.key.namespace, w.tree.root.priority, w.holds_up)
            for w in sorted(self._waiting.values(), key=lambda w: w.answered)
        ]

    def _publish(self) -> None:
        """Publish which trees wait and why, for `explain`."""
        waiting = turns_of(w for w in self._in_order() if self._waiting[w.uid].work != "hold")
        if self._running is not None and self._running.work != "hold":
            waiting[self._running.uid] = SearchTurn(0, 0, 0, runs=True)
        self._parts.exchange.published.searches = waiting


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})
