"""Long work of questions in a process of its own, one at a time, so that neither filter nor admission waits for it."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from extender.core.model.errors import TooManyQueries
from extender.runtime.cpu_slice import ask_for_usual_slices

WAITING_MAX = 4  # questions that may wait for the one before
NICE = 10  # the processor is kube-scheduler's first
TOO_LONG_S = (
    60  # processor time is not what others wait for, but one question at a time is answered
)
PR_SET_PDEATHSIG = 1
T = TypeVar("T")


class WorkerProcess:
    """Runs functions of a module in another process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._asked = 0

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function of a module; what it raises is raised here.

        Raises:
            Busy: Too many wait already, or the process died over the question or was at it for too long.
        """
        if self._asked > WAITING_MAX:
            raise TooManyQueries(f"{WAITING_MAX} questions wait to be planned already; ask later")
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                1, mp_context=context, initializer=_begin, initargs=(os.getpid(),)
            )
        self._asked += 1
        try:
            future = self._pool.submit(_limited, work, *args)
            return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            self._pool = None
            raise TooManyQueries(
                f"the process that plans died over this question, or was at it for more than {TOO_LONG_S} s; ask about "
                "fewer trees, or with a smaller budget"
            ) from error
        finally:
            self._asked -= 1

    def stop(self) -> None:
        """End the process at once."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.kill()  # the planner's too: it is stopped at the same time


def _limited(work: Callable[..., T], *args: object) -> T:
    """Do something in the other process; the kernel ends that when it takes too long."""
    signal.alarm(TOO_LONG_S)
    try:
        return work(*args)
    finally:
        signal.alarm(0)


def _begin(service: int) -> None:
    begin_worker(service)
    os.nice(NICE)


def begin_worker(service: int) -> None:
    """Make the kernel end this worker when the service is killed, so that none is left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:  # killed before we asked for the signal
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when to stop
    ask_for_usual_slices()  # it computes for long, and answers nobody's call
