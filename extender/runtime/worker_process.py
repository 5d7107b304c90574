"""Processes beside the service, which end with it: one that runs functions, and a fork that works later.

A fork has all modules that this process has loaded and shares their memory: another interpreter would take a second of
CPU time and 60 MB to load them again. Only a process without an event loop and without other threads is forked.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess, SpawnContext, SpawnProcess
from typing import Any, TypeVar

from extender.runtime.child_process import PR_SET_PDEATHSIG

PR_SET_NAME = 15
NICE = 10  # of processes that answer queries: kube-scheduler and the service have priority
ENDS_WITHIN_S = 5.0  # a killed process is gone after milliseconds
T = TypeVar("T")


class WorkerProcess:
    """Runs functions of modules in a process of its own, which starts when it is first needed."""

    def __init__(self, *, nice: int = 0) -> None:
        self._nice = nice
        self._pool: ProcessPoolExecutor | None = None
        self._context: _SpawnContext | _ForkContext = _SpawnContext()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Return the id of the process, which may have died; None before the first one."""
        process = self._context.started
        return process.pid if process is not None else None

    def fork(self) -> None:
        """Start the process now, as a fork with all modules that this process has loaded; another one that replaces it is new.

        Note: only before the event loop begins and other threads start; the executor starts threads.
        """
        self._context = _ForkContext()
        self._submit(os.getpid)

    def warm_up(self, work: Callable[[], object]) -> None:
        """Start the process and let it run a function, without waiting; the next `run` starts another if it dies."""
        self._submit(work)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function of a module in the process, after the calls before; its exceptions are raised here.

        Raises:
            BrokenProcessPool: The process died before it had answered, or was stopped. The next call starts another.
        """
        return await asyncio.wrap_future(self._submit(work, *args))

    def stop(self) -> None:
        """Kill the process and wait for its end, at most `ENDS_WITHIN_S`; no call starts another one."""
        self._stopped = True
        pool, self._pool = self._pool, None
        process = self._context.started
        if process is not None:
            process.kill()
            process.join(ENDS_WITHIN_S)
        if pool is not None:
            # `shutdown` would wait for this thread without a limit; the stubs of mypy name another type
            manager: threading.Thread | None = pool._executor_manager_thread  # type: ignore[assignment]  # noqa: SLF001
            # not `cancel_futures`: callers would be cancelled that are to get BrokenProcessPool
            pool.shutdown(wait=False)
            if manager is not None:
                # until it has ended, the interpreter that exits writes to a pipe that it closes (Python 3.11)
                manager.join(ENDS_WITHIN_S)

    def _submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        try:
            return self._running().submit(work, *args)
        except BrokenProcessPool:  # it died after an earlier call
            self._pool = None
            if isinstance(self._context, _ForkContext) and not self._stopped:
                self._context = _SpawnContext()
            return self._running().submit(work, *args)

    def _running(self) -> ProcessPoolExecutor:
        if self._stopped:
            raise BrokenProcessPool("the worker process was stopped")
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=_initialize,
                initargs=(os.getpid(), self._nice),
            )  # fmt: skip
        return self._pool


class _SpawnContext(SpawnContext):
    """Starts new interpreters, and remembers the last one: an executor does not name its processes."""

    started: SpawnProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: ANN401, N802
        self.started = SpawnProcess(*args, **kwargs)
        return self.started


class _ForkContext(ForkContext):
    """Forks this process, and remembers the fork."""

    started: ForkProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> ForkProcess:  # type: ignore[override]  # noqa: ANN401, N802
        self.started = ForkProcess(*args, **kwargs)
        return self.started


def _initialize(service: int, nice: int) -> None:
    initialize_worker(service)
    os.nice(nice)


def name_process(name: str) -> None:
    """Set the name of this process that `ps -o comm` and `top` show, of at most 15 characters."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def initialize_worker(service: int) -> None:
    """Make the kernel end this worker when the service is killed, so that none is left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:  # it was killed before prctl
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when to stop


class ForkedProcess:
    """A fork of this process that waits for its options; it ends with this process.

    Args:
        work: Called in the fork, with the options of `begin`.
    """

    def __init__(self, work: Callable[[bytes], None]) -> None:
        context = get_context("fork")
        receiving, self._options = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run_fork, args=(work, receiving, os.getpid()), daemon=True
        )
        self._process.start()
        receiving.close()
        self._ended: asyncio.Event | None = None

    @property
    def pid(self) -> int:
        """Return the id of the process, which may have ended."""
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, options: bytes) -> None:
        """Let it work, once.

        Raises:
            OSError: It has ended.
        """
        self._options.send_bytes(options)
        self._options.close()

    async def wait(self) -> int | None:
        """Wait for its end; return its exit status, a negative one for a signal."""
        if self._ended is None:
            self._ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._process.sentinel, self._end)
        await self._ended.wait()
        return self._process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Kill it if it has not ended, and wait for its end; with an event loop, use `wait` before."""
        self._process.kill()
        self._process.join()
        self._options.close()

    def _end(self) -> None:
        assert self._ended is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self._ended.set()


def _run_fork(work: Callable[[bytes], None], receiving: Connection, service: int) -> None:
    initialize_worker(service)
    os.setsid()  # Linux divides CPU time among sessions: it gets none of the share of the service
    work(receiving.recv_bytes())
