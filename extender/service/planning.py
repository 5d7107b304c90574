"""Run the planner: short requests at once, long ones in a process of its own, so that filter stays quick.

The planner is pure, so where it runs changes nothing but time. Long means more than
`INLINE_CELLS_MAX` pairs of member and node, measured by `make bench` to be about the work of 10 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from extender.core.planner.canonical import decode, encode
from extender.core.planner.placement import PlanGroup, PlanRequest, Verdict
from extender.core.planner.search import plan
from extender.service.ports import DecisionInput

log = logging.getLogger(__name__)

INLINE_CELLS_MAX = 4_000
PR_SET_PDEATHSIG = 1


def canonical(request: PlanRequest) -> DecisionInput:
    """Give the canonical bytes of a request, which are both its identity and its record."""
    encoded = encode(request)
    return DecisionInput(digest=encoded.digest, head=encoded.head, parts=encoded.parts)


def _die_with_parent() -> None:
    """Make the kernel end this worker when the service is killed, so that none is left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when to stop


def _plan_bytes(head: bytes, parts: tuple[bytes, ...]) -> Verdict:
    return plan(decode(head, parts))


class Planner:
    """Answers plan requests; at most one long one at a time."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def plan(self, request: PlanRequest, encoded: DecisionInput) -> Verdict:
        """Plan a tree.

        Raises:
            BrokenProcessPool: The worker died twice over the same request (out of memory?).
        """
        if _count_members(request.root) * len(request.nodes) <= INLINE_CELLS_MAX:
            return plan(request)
        try:
            return await self._away(encoded)
        except BrokenProcessPool:
            log.warning("planner process died, starting another", extra={"digest": encoded.digest})
            self._pool = None
            return await self._away(encoded)

    async def _away(self, encoded: DecisionInput) -> Verdict:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_die_with_parent)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _plan_bytes, encoded.head, encoded.parts)

    def stop(self) -> None:
        """End the worker."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _count_members(group: PlanGroup) -> int:
    return len(group.members) + sum(_count_members(child) for child in group.groups)
