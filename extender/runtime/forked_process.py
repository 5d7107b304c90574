"""A child process that is forked before the event loop begins, and works later.

A fork has all modules that this process has loaded and shares their memory: another interpreter would take a second of
CPU time and 60 MB to load them again. Only a process without an event loop and without other threads is forked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from extender.runtime.worker_process import initialize_worker


class ForkedProcess:
    """A fork of this process that waits for its options; it ends with this process.

    Args:
        work: Called in the fork, with the options of `begin`.
    """

    def __init__(self, work: Callable[[bytes], None]) -> None:
        context = get_context("fork")
        receiving, self._options = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(work, receiving, os.getpid()), daemon=True
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


def _run(work: Callable[[bytes], None], receiving: Connection, service: int) -> None:
    initialize_worker(service)
    os.setsid()  # Linux divides CPU time among sessions: it gets none of the share of the service
    work(receiving.recv_bytes())
