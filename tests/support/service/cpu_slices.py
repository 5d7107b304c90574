"""The time slice of a thread, as the kernel reports it."""

from __future__ import annotations

import ctypes
import platform

from extender.runtime.cpu_slice import SET_ATTRIBUTES

BYTES = 56  # enough for `struct sched_attr` of kernels to come
RUNTIME_AT = 24
KERNEL = tuple(map(int, platform.release().split(".")[:2]))
GRANTED_FROM = (6, 12)


def slice_ns(pid=0):
    """Ask by sched_getattr, the next number after sched_setattr; 0: the calling thread."""
    attributes = ctypes.create_string_buffer(BYTES)
    number = SET_ATTRIBUTES[platform.machine()] + 1
    assert not ctypes.CDLL(None, use_errno=True).syscall(number, pid, attributes, BYTES, 0)
    return int.from_bytes(attributes.raw[RUNTIME_AT : RUNTIME_AT + 8], "little")
