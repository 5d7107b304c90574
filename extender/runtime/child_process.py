"""Make a child process end with its parent, also when the parent is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a function that, called in the child, requests a signal at the end of the parent; None if not on Linux.

    Note: the kernel sends the signal when the *thread* ends that started the child.
    """
    if sys.platform != "linux":
        return None
    import ctypes  # most commands of the client start no child

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent ended between fork and prctl
            os._exit(1)

    return ask
