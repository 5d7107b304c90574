"""Runs long computations of queries in a process of its own, one at a time, so that scheduling does not wait for them."""

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
from extender.runtime.cpu_slice import request_default_slices

WAITING_MAX = 4  # calls that may wait for the running one
NICE = 10  # kube-scheduler and the service have priority
TOO_LONG_S = 60  # wall-clock time for one call: the others wait for it
PR_SET_PDEATHSIG = 1
T = TypeVar("T")


class WorkerProcess:
    """Runs functions of a module in another process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._calls = 0

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function of a module in the process; its exceptions are raised here.

        Raises:
            TooManyQueries: Too many calls wait already, or the process died or took too long.
        """
        if self._calls > WAITING_MAX:
            raise TooManyQueries(f"{WAITING_MAX} plan queries wait already; try again later")
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                1, mp_context=context, initializer=_initialize, initargs=(os.getpid(),)
            )
        self._calls += 1
        try:
            future = self._pool.submit(_limited, work, *args)
            return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            self._pool = None
            raise TooManyQueries(
                f"the process of plan queries died, or took more than {TOO_LONG_S} s; plan fewer trees, or with a "
                "smaller budget"
            ) from error
        finally:
            self._calls -= 1

    def stop(self) -> None:
        """Kill the process at once."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.kill()  # also the process of the planner, which is stopped at the same time


def _limited(work: Callable[..., T], *args: object) -> T:
    """Run a function in the worker process; the kernel kills the process after `TOO_LONG_S`."""
    signal.alarm(TOO_LONG_S)
    try:
        return work(*args)
    finally:
        signal.alarm(0)


def _initialize(service: int) -> None:
    initialize_worker(service)
    os.nice(NICE)


def initialize_worker(service: int) -> None:
    """Make the kernel end this worker when the service is killed, so that none is left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:  # it was killed before prctl
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when to stop
    request_default_slices()  # it computes for long and serves no call of kube-scheduler
