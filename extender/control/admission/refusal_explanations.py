"""Explain refusals that are in the log already: one after the other, in a process of low priority that no tree waits for.

The namespaces take turns, as with searches.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures.process import BrokenProcessPool

import msgspec

from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.request_builder import TreeRequest
from extender.core.fairness.search_turns import SearchTurns, WaitingSearch
from extender.core.model.ids import GangUid
from extender.core.planner.plan_types import DecisionInput, PlanRequest
from extender.core.planner.preempt.judgement import Judgement
from extender.runtime.periodic import ObjectFaults
from extender.telemetry import METRICS

log = logging.getLogger(__name__)


class ExplainedRefusal(msgspec.Struct, frozen=True):
    """A refusal with its conflict and what would help, and the input that it follows from."""

    tree_request: TreeRequest
    judged: Judgement
    encoded: DecisionInput


class _Waiting(msgspec.Struct, frozen=True):
    tree_request: TreeRequest
    asked: PlanRequest  # the request that is explained: with what could be evicted, if that was searched


class RefusalExplanations:
    """Runs explanations in the background; the next pass takes those that are finished."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._turns = SearchTurns()
        self._faults: ObjectFaults[str] = ObjectFaults("explanations", parts.clock.monotonic_ms)
        self._waiting: dict[GangUid, _Waiting] = {}
        self._finished: list[ExplainedRefusal] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Return whether none is waiting, running or finished."""
        return self._running is None and not self._waiting and not self._finished

    def start(self, tree_request: TreeRequest, asked: PlanRequest) -> None:
        """Explain a refusal when the explanations before are finished; a waiting one of the same tree is replaced.

        Args:
            tree_request: The tree and the request that the next one is compared with.
            asked: The request that is explained: the same, or with what could be evicted.
        """
        self._waiting[tree_request.tree.root.uid] = _Waiting(tree_request, asked)
        self._next()

    def take(self) -> list[ExplainedRefusal]:
        """Return the explanations that were finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees that wait for their explanation."""
        self._waiting = {uid: waits for uid, waits in self._waiting.items() if uid in roots}

    def stop(self) -> None:
        """Give up all explanations; refusals stay as they were recorded."""
        self._waiting.clear()
        if self._running is not None:
            self._running.cancel()

    def _next(self) -> None:
        if self._running is None and self._waiting:
            roots = (waiting.tree_request.tree.root for waiting in self._waiting.values())
            chosen = self._turns.choose(
                WaitingSearch(root.uid, root.key.namespace, root.priority) for root in roots
            )
            assert chosen is not None
            self._running = asyncio.create_task(self._explain(self._waiting.pop(chosen.uid)))
            self._running.add_done_callback(self._ended)

    async def _explain(self, waiting: _Waiting) -> None:
        """Explain a refusal; after a defect, or where the process dies, it stays as it was recorded."""
        tree_request, root = waiting.tree_request, waiting.tree_request.tree.root.key
        with self._faults.alone(root.path):
            encoded = self._parts.planner.encode(waiting.asked)
            began_ms = self._parts.clock.monotonic_ms()
            try:
                judged = await self._parts.planner.explain(encoded)
            except BrokenProcessPool:
                log.warning("the process that explains refusals died", extra={"root": root.path})
                return
            finally:
                took_ms = self._parts.clock.monotonic_ms() - began_ms
                self._turns.charge(root.namespace, took_ms)
                METRICS.searched(root.namespace, took_ms)
            self._finished.append(ExplainedRefusal(tree_request, judged, encoded))
            self._parts.barriers.wakeup.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.result()
            self._next()
