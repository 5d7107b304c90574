"""Make `nice` count: Linux weighs sessions against each other, not the processes in them.

With autogroup on (the default of most distributions) each session is a group of its own with weight 0,
whatever `nice` its processes were started with, and every server of a stand has its own session. So
`nice -n -15 make bench` on a busy machine has no effect unless the groups get the niceness as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_S = 1.0  # backends of Postgres come and go, each a session


class Weight:
    """Gives the niceness of this process to the groups of all processes below it; a context manager."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weight", daemon=True)

    def __enter__(self) -> Self:
        if self._nice:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._nice:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            weigh((os.getpid(), *children(os.getpid())), self._nice)


def weigh(pids: Iterable[int], nice: int) -> None:
    """Set the niceness of the groups of these processes, where the kernel has groups."""
    for pid in pids:
        file = Path(f"/proc/{pid}/autogroup")
        try:
            if int(file.read_text().split()[-1]) != nice:
                file.write_text(f"{nice}")
        except (FileNotFoundError, ProcessLookupError):  # it has ended, or there are no groups
            continue


def children(pid: int) -> list[int]:
    """Return the processes below one."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        these = below.get(todo.pop(), [])
        found += these
        todo += these
    return found
