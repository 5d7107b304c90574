"""Run the planner: quick requests here, the others in a worker process, so that filter calls stay fast.

Refusals of large requests are explained in a second process of low priority, which starts when it is first needed.

The planner is pure, so where it runs changes only the time. Rows that are the same objects as in
the request before are neither converted nor encoded again.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from extender.core.planner.codec.request_codec import Decoder, Encoder
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import DecisionInput, PlanGroup, PlanRequest, Verdict
from extender.core.planner.planning import DeferredWork, plan, plan_at_once
from extender.core.planner.preempt.judgement import Judgement, judge
from extender.runtime.worker_process import NICE, WorkerProcess

log = logging.getLogger(__name__)

# Requests up to these limits block the event loop for about 10 ms; `make bench NAMES=planner` has the times.
AT_ONCE_CELLS_MAX = 16_000_000  # pairs of member and node
AT_ONCE_GROUPS_MAX = 50
AT_ONCE_EFFORT = 500  # search nodes, ...
AT_ONCE_EFFORT_MIN = 100
# ... and at most so many members in all of them: a node of a large tree costs more
AT_ONCE_STEPS = 10_000
AT_ONCE_RULES_MAX = 100  # pairs of shape and rule between pods
# pairs of group and node; an explanation takes some milliseconds up to there
EXPLAINED_AT_ONCE_MAX = 20_000
SOLVER = "ortools.sat.python.cp_model_helper"  # takes 20 MB, so only the worker loads it
T = TypeVar("T")


class Worker(Protocol):
    """Runs functions of modules, one at a time; a `WorkerProcess` in the service."""

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function after the calls before; its exceptions are raised here."""
        ...

    def warm_up(self, work: Callable[[], object]) -> None:
        """Let a function run without waiting."""
        ...

    def stop(self) -> None:
        """End for good."""
        ...


class PlannerPool:
    """Answers plan requests; each worker runs one at a time. BrokenProcessPool: it died twice on one request, perhaps out of memory.

    Args:
        worker: For long searches; None: a new process, which starts when it is first needed.
        explainer: Likewise, for the explanations of refusals of large requests.
    """

    def __init__(self, worker: Worker | None = None, explainer: Worker | None = None) -> None:
        self._worker = worker or WorkerProcess()
        self._explainer = explainer or WorkerProcess(nice=NICE)
        self._nodes = NodeTable(())
        self._encoder = Encoder()

    def encode(self, request: PlanRequest) -> DecisionInput:
        """Return the canonical bytes of a request as a decision input."""
        return self._encoder.encode(request)

    def at_once(self, request: PlanRequest) -> Verdict | DeferredWork:
        """Plan a tree in this process, or return what would take long: `search` or `explain`."""
        groups, members = _count(request.root)
        if (
            groups > AT_ONCE_GROUPS_MAX
            or members * len(request.nodes) > AT_ONCE_CELLS_MAX
            or len(request.shapes) * len(request.rules) > AT_ONCE_RULES_MAX
        ):
            return "search"
        self._nodes = self._nodes.renewed(request.nodes)
        effort = max(min(AT_ONCE_EFFORT, AT_ONCE_STEPS // max(members, 1)), AT_ONCE_EFFORT_MIN)
        return plan_at_once(request, self._nodes, effort=effort)

    def explains_later(self, request: PlanRequest) -> bool:
        """Return whether a refusal of a request is decided without its explanation, which may take seconds."""
        groups, _ = _count(request.root)
        return request.explain and groups * len(request.nodes) > EXPLAINED_AT_ONCE_MAX

    def warm(self) -> None:
        """Start the worker and load the solver in it, ahead of the first long search."""
        self._worker.warm_up(functools.partial(importlib.import_module, SOLVER))

    async def plan(self, encoded: DecisionInput) -> Verdict:
        """Plan a tree, however long it takes."""
        return await _run_in(self._worker, _plan_bytes, encoded)

    async def explain(self, encoded: DecisionInput) -> Judgement:
        """Judge a tree that is refused already, for its explanation; no call of `plan` or `judge` waits for this."""
        return await _run_in(self._explainer, _judge_bytes, encoded, None)

    async def judge(self, encoded: DecisionInput, verdict: Verdict | None) -> Judgement:
        """Plan a tree, and search units whose eviction frees enough capacity for it, however long it takes.

        Args:
            encoded: A request with `evictable`.
            verdict: The answer of `plan` to the same request without an explanation, if known.
        """
        return await _run_in(self._worker, _judge_bytes, encoded, verdict)

    def stop(self) -> None:
        """Kill the workers: at its exit, Python would wait for a running plan."""
        self._worker.stop()
        self._explainer.stop()


async def _run_in(
    worker: Worker, work: Callable[..., T], encoded: DecisionInput, *more: object
) -> T:
    """Run `work` in a worker, and once more if the worker dies."""
    try:
        return await worker.run(work, encoded.head, encoded.parts, *more)
    except BrokenProcessPool:
        log.warning("planner process died, starting another", extra={"digest": encoded.digest})
        return await worker.run(work, encoded.head, encoded.parts, *more)


def _count(group: PlanGroup) -> tuple[int, int]:
    """Count the groups and the members of a tree."""
    below = [_count(child) for child in group.groups]
    return 1 + sum(g for g, _ in below), len(group.members) + sum(m for _, m in below)


# -- the worker process


class _Worker:
    """What the worker keeps between requests."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.node_table = NodeTable(())


_WORKER = _Worker()


def _plan_bytes(head: bytes, parts: tuple[bytes, ...]) -> Verdict:
    request = _WORKER.decoder.decode(head, parts)
    _WORKER.node_table = _WORKER.node_table.renewed(request.nodes)
    return plan(request, node_table=_WORKER.node_table)


def _judge_bytes(head: bytes, parts: tuple[bytes, ...], verdict: Verdict | None) -> Judgement:
    request = _WORKER.decoder.decode(head, parts)
    _WORKER.node_table = _WORKER.node_table.renewed(request.nodes)
    return judge(request, node_table=_WORKER.node_table, verdict=verdict)
