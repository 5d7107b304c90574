"""The time slice that this process asks the kernel for.

Where no processor is idle, who wakes up waits until the one that runs has used its slice up: some 3 ms, however nice
that one is. A call of kube-scheduler keeps us busy for a tenth of that. From 6.12 on Linux lets those go first who
ask for shorter slices than the one that runs (kernel documentation, "EEVDF Scheduler"): the share of the processor
stays the same, in smaller pieces. Older kernels take the wish and do nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform

log = logging.getLogger(__name__)

SHORT_NS = 100_000  # the shortest that the kernel grants
USUAL_NS = 0  # what the kernel gives to those who ask for nothing
SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}


class _Attributes(ctypes.Structure):
    """`struct sched_attr`, as of its first version."""

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


def ask_for_short_slices() -> None:
    """Ask for this thread, and for threads and processes that it starts from now on."""
    _ask(SHORT_NS)


def ask_for_usual_slices() -> None:
    """Give up what this process has from the one that started it."""
    _ask(USUAL_NS)


def _ask(runtime_ns: int) -> None:
    policy, number = os.sched_getscheduler(0), SET_ATTRIBUTES.get(platform.machine())
    if number is None or policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        log.debug("the time slice stays what it is", extra={"policy": policy})
        return
    wanted = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=policy,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime_ns=runtime_ns,
    )
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(wanted), 0):
        reason = os.strerror(ctypes.get_errno())
        log.info("the kernel refuses another time slice", extra={"reason": reason})
