"""No worker of the planner outlives its service."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys

import pytest

from extender.control.admission.planner_pool import SOLVER, PlannerPool
from extender.core.model.ids import GroupKey
from extender.core.planner.plan_types import PlanGroup, PlanRequest
from extender.runtime.worker_process import initialize_worker
from tests.support.waiting import eventually


@pytest.mark.parametrize(("lives", "code"), [(True, 0), (False, 1)])
def test_a_worker_ends_whose_service_died_while_it_started(lives, code):
    """The kernel's signal is asked for too late then; 27 kills of a soak left five workers behind."""
    service = os.getpid() if lives else os.getppid()
    worker = multiprocessing.get_context("spawn").Process(target=initialize_worker, args=(service,))
    worker.start()
    worker.join()
    assert worker.exitcode == code


async def test_a_plan_that_goes_on_does_not_keep_the_service_from_ending():
    """Python waits at its end for the worker of a pool, which may search, or load its libraries, for long."""
    planner = PlannerPool()
    root = PlanGroup(key=GroupKey("default", "g", "PodGroup"), basic=False, minimum=1)
    encoded = planner.encode(PlanRequest(root=root, nodes=(), shapes=()))
    before = multiprocessing.active_children()
    await planner.plan(encoded)
    (worker,) = (one for one in multiprocessing.active_children() if one not in before)
    os.kill(worker.pid, signal.SIGSTOP)
    planning = asyncio.create_task(planner.plan(encoded))
    await asyncio.sleep(0)
    planning.cancel()
    planner.stop()
    await eventually(lambda: worker not in multiprocessing.active_children(), "the worker is gone")


def _has_solver():
    return SOLVER in sys.modules


async def test_the_worker_has_the_solver_before_the_first_search():
    """The first search waits neither for the process nor for what it imports."""
    planner = PlannerPool()
    try:
        planner.warm()
        assert await planner._worker.run(_has_solver)
    finally:
        planner.stop()
