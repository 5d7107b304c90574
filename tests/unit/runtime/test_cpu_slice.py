"""What this process asks the kernel for, as the kernel reports it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys

import pytest

from extender.runtime.cpu_slice import (
    SHORT_NS,
    SWITCH_S,
    request_default_slices,
    request_short_slices,
    shorten_thread_switches,
)
from tests.support.service.cpu_slices import GRANTED_FROM, KERNEL, slice_ns

LOWER = 3  # by this much, in a child: what is asked for must not set it back


def short_and_back(queue):
    os.nice(LOWER)
    usual = slice_ns()
    request_short_slices()
    short = slice_ns()
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, str(slice_ns()).encode())
        os._exit(0)
    inherited = int(os.read(reading, 32))
    request_default_slices()
    queue.put((usual, short, inherited, slice_ns(), os.getpriority(os.PRIO_PROCESS, 0)))


@pytest.mark.skipif(KERNEL < GRANTED_FROM, reason="older kernels give no other slices")
def test_slices_are_short_until_usual_ones_are_asked_for():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=short_and_back, args=(queue,))
    process.start()
    usual, short, inherited, after, nice = queue.get()
    process.join()
    assert short == inherited == SHORT_NS
    assert usual == after > SHORT_NS
    lower = min(os.nice(0) + LOWER, 19)  # 19 is the end of the scale
    assert nice == lower, "the niceness stays what it was"


def test_a_refusal_of_the_kernel_is_logged(monkeypatch, caplog):
    """As under a seccomp profile without the call."""
    caplog.set_level("INFO")
    monkeypatch.setattr("extender.runtime.cpu_slice.SET_ATTRIBUTES", {platform.machine(): 10_000})
    request_short_slices()
    assert [r.reason for r in caplog.records] == ["Function not implemented"]


def test_an_unknown_machine_is_left_alone(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("extender.runtime.cpu_slice.SET_ATTRIBUTES", {})
    request_short_slices()
    assert not caplog.records


def test_threads_give_the_interpreter_back_soon():
    before = sys.getswitchinterval()
    try:
        shorten_thread_switches()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before)
