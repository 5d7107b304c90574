"""Each worker process is started, replaced and ended by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool

import pytest

from extender.core.model.errors import TooManyQueries
from extender.queries.plan.plan_service import PlanQueryWorker
from extender.runtime.worker_process import WorkerProcess
from tests.support.waiting import eventually


def _runs(pid):
    """Return whether a process exists, also one that ended and was not waited for.

    `multiprocessing.active_children` may have it longer: a thread of the executor waits for it too, and notes its end a
    moment after the kernel has forgotten it.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_stopping_one_process_leaves_the_others():
    """Its callers get an error, it leaves no child, and no call starts it again."""
    one, other = WorkerProcess(nice=3), WorkerProcess()
    try:
        before = os.nice(0)
        assert await one.run(os.nice, 0) == min(before + 3, 19), "19 is the end of the scale"
        assert await other.run(os.nice, 0) == before
        left = other.pid
        assert _runs(one.pid)
        assert _runs(left)
        os.kill(one.pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(one.run(os.getpid)) for _ in range(3)]
        await asyncio.sleep(0)
        one.stop()
        assert not _runs(one.pid)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [BrokenProcessPool] * 3
        with pytest.raises(BrokenProcessPool):
            await one.run(os.getpid)
        assert await other.run(os.getpid) == left
    finally:
        one.stop()
        other.stop()
    assert not _runs(one.pid)
    assert not _runs(other.pid)


async def test_a_killed_process_is_replaced():
    """The call that ran in it fails; a later one starts another process."""
    process = WorkerProcess()
    try:
        process.warm_up(os.getpid)
        first = process.pid
        with pytest.raises(BrokenProcessPool):
            await process.run(signal.raise_signal, signal.SIGKILL)
        second = await process.run(os.getpid)
        assert process.pid == second != first
        await eventually(lambda: not _runs(first), "the first process is gone")
        os.kill(second, signal.SIGKILL)
        await eventually(lambda: not _runs(second), "the second process is gone")
        process.warm_up(os.getpid)
        assert await process.run(os.getpid) not in {first, second}
    finally:
        process.stop()


async def test_a_plan_query_in_a_process_that_dies_is_refused():
    worker = PlanQueryWorker()
    try:
        with pytest.raises(TooManyQueries, match="died, or took more than"):
            await worker.run(signal.raise_signal, signal.SIGALRM)
        assert await worker.run(os.getpid) != os.getpid()
    finally:
        worker.stop()


def test_a_process_that_never_started_is_stopped():
    process = WorkerProcess()
    process.stop()
    assert process.pid is None


def test_no_thread_outlives_a_stopped_process():
    """The interpreter that exits would wake it by a pipe that it closes meanwhile."""
    before = set(threading.enumerate())
    for _ in range(3):
        worker = WorkerProcess()
        worker.warm_up(os.getpid)
        worker.stop()
        assert set(threading.enumerate()) <= before
