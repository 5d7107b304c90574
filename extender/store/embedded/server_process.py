"""What can be learned of a server process without talking to it, and the wish that it die with us.

Owns the reading of `postmaster.pid` and of the server's diagnostics. Must not start or signal anything. The
surprise: a server that was killed and never waited for still has a process id, and PostgreSQL takes that for
a sign of life.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from extender.store.embedded.os_account import ServerHome

PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """Make the function that asks the kernel, in the child, for SIGINT when we die."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:  # we died between fork and prctl
            os._exit(1)

    return ask


def pid_file(lodging: ServerHome) -> list[str]:
    """Read the lines of `postmaster.pid`: process id first, status eighth; empty when there is none."""
    try:
        return (
            (lodging.cluster / "postmaster.pid")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError:
        return []


def is_ready(lodging: ServerHome, *, pid: int | None = None) -> bool:
    """Read from postmaster.pid whether the server takes connections; `pid` guards against a stale file."""
    lines = pid_file(lodging)
    status_line = 7
    if len(lines) <= status_line or lines[status_line].strip() != "ready":
        return False
    return lines[0] == str(pid) if pid is not None else _state(int(lines[0])) not in {"", "Z"}


def _state(pid: int) -> str:
    """Give the state letter of a process, empty when there is none."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return ""


def forget_zombie(lodging: ServerHome) -> None:
    """Remove the pid file of a server that is dead but was never waited for, as under a lazy PID 1."""
    lines = pid_file(lodging)
    if lines and lines[0].isdigit() and _state(int(lines[0])) == "Z":
        (lodging.cluster / "postmaster.pid").unlink(missing_ok=True)


def predecessor_is_dying(lodging: ServerHome, *, since: int) -> bool:
    """Tell why a start failed: remains of a killed server are in the way, and trying again soon helps.

    Args:
        lodging: Where the server lives.
        since: Size of the diagnostics before the start; the dying server writes there too.
    """
    words = _words(lodging, since=since, bytes_max=65_536)
    return "postmaster.pid" in words or "pre-existing shared memory" in words


def last_words(lodging: ServerHome, *, since: int) -> str:
    """Give the end of what the server wrote, for a message.

    Args:
        lodging: Where the server lives.
        since: Size of the diagnostics before the start.
    """
    return " | ".join(_words(lodging, since=since, bytes_max=1000).splitlines()[-4:])


def diagnostics_size(lodging: ServerHome) -> int:
    """Give the size of the diagnostics, in bytes; 0 when there are none."""
    try:
        return lodging.diagnostics.stat().st_size
    except OSError:
        return 0


def _words(lodging: ServerHome, *, since: int, bytes_max: int) -> str:
    try:
        with lodging.diagnostics.open("rb") as file:
            file.seek(max(since, diagnostics_size(lodging) - bytes_max))
            return file.read().decode(errors="replace")
    except OSError as error:
        return str(error)
