"""The CPU time slice that this process requests from the kernel.

When no CPU is idle, a thread that wakes up waits until the running one has used up its slice: about 3 ms,
whatever the nice value of that one. A call of kube-scheduler takes a tenth of that. Since 6.12 Linux lets a thread
with a shorter slice preempt the running one (kernel documentation, "EEVDF Scheduler"); its share of the CPU stays
the same, in smaller pieces. Older kernels accept the request without effect.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys

log = logging.getLogger(__name__)

SHORT_NS = 100_000  # the shortest slice that the kernel allows
SWITCH_S = 0.0005  # how long another Python thread may keep the interpreter from the event loop; by default 5 ms
DEFAULT_NS = 0  # the default slice of the kernel
SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}


class _Attributes(ctypes.Structure):
    """`struct sched_attr` in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def request_short_slices() -> None:
    """Request short slices for this thread, and for threads and processes that it starts from now on."""
    _ask(SHORT_NS)


def shorten_thread_switches() -> None:
    """Let threads of this process, such as one that reads manifests, give the interpreter to the event loop sooner."""
    sys.setswitchinterval(SWITCH_S)


def request_default_slices() -> None:
    """Request the default slice, instead of the one inherited from the parent process."""
    _ask(DEFAULT_NS)


def _ask(runtime_ns: int) -> None:
    policy, number = os.sched_getscheduler(0), SET_ATTRIBUTES.get(platform.machine())
    if number is None or policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        log.debug("time slice not changed", extra={"policy": policy})
        return
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=policy,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime_ns=runtime_ns,
    )
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(attributes), 0):
        reason = os.strerror(ctypes.get_errno())
        log.info("the kernel rejected the time slice", extra={"reason": reason})
