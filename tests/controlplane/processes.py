"""Run one server process for tests: start, stop, kill, pause, all by its own pid.

Owns nothing but the process and its log file. The surprise: the kernel kills the child when the
*thread* that started it ends (PR_SET_PDEATHSIG), so `start` insists on the main thread; a worker
thread of an event loop dies with its loop and would take the server with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.failure_report import show_log
from tests.support.waiting import PATIENCE_S, until

PR_SET_PDEATHSIG = 1
# kube-apiserver needs more than 5 s to end when its etcd is slow or gone.
STOP_TIMEOUT_S = 10.0

_libc = ctypes.CDLL(None)


def dying_with_parent() -> Callable[[], None]:
    """Return what a child of this process calls first, so that the kernel kills it when this process has ended.

    A test process that is killed, or a benchmark that `timeout` ends, leaves no server behind then.
    """
    parent = os.getpid()

    def ask() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before we asked

    return ask


class NotReadyError(Exception):
    """A server ended before it was ready; the message ends with its log."""


class Process:
    """One server; it can be started again after it has ended."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environment = dict(environment or {})  # beside what we have ourselves
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid, for signals of the test's own.

        Raises:
            ProcessLookupError: It does not run.
        """
        if self._child is None or self._child.poll() is not None:
            raise ProcessLookupError(f"{self.name} is not running")
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code (negative: the signal that ended it); None while it runs."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start it; its output is appended to the log file."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start servers from the main thread; see the module's docstring")
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        show_log(self.log)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=dying_with_parent(),  # noqa: PLW1509 - two system calls, no lock taken
                start_new_session=True,  # ctrl-C is for pytest; we stop them in order
            )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask it to end, then kill it; nothing happens when it has ended already."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)  # a paused process cannot end
            self._child.terminate()
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and are not answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_until(self, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait until a probe returns True.

        Raises:
            NotReadyError: The process ended.
            WaitedInVain: It is not ready, although it had its time.
        """

        def look() -> bool:
            if not self.running:
                raise NotReadyError(
                    f"{self.name} ended with {self.exit_code}: {self.command}\n{self.tail()}"
                )
            return ready()

        until(look, f"{self.name} to be ready", patience_s=patience_s)

    def tail(self, size_bytes: int = 3000) -> str:
        """Read the end of its log."""
        return self.log.read_bytes()[-size_bytes:].decode(errors="replace")
