"""The machine that is measured on: what it is, and how fast it runs a fixed loop.

A rate, and CPU time as well, means little without the speed of its machine: on two busy processors the side that needs more CPU
for a member is behind, on fast ones it may be ahead. So each run measures the same loop, before and after what it measures.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane.build import pinned_version
from tests.controlplane.pin import module_folder

TURNS = 200_000  # some 30 ms on a machine of 2026
END = 775_356_609  # what the loop computes: that of another length or step is another measure
TRIES = 5
UNIT = "million turns/s"
ALIKE = 0.05  # two speeds that differ by less are one


def describe() -> str:
    """Describe this machine and the programs that are measured."""
    about = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in about if "model name" in line), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kubernetes = pinned_version(module_folder("1.37"))
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, Kubernetes {kubernetes}"
    )


def speed() -> float:
    """Return how many million turns of the fixed loop one processor does per CPU second, the median of five tries."""
    return statistics.median(_speed() for _ in range(TRIES))


def _speed() -> float:
    began_s = time.thread_time()
    end = fixed_loop()
    took_s = time.thread_time() - began_s
    assert end == END, end
    return TURNS / took_s / 1e6


def fixed_loop() -> int:
    """Multiply, mask and count in a list, as interpreted code does; nothing is waited for, and nothing is allocated."""
    counts = [0] * 1024
    value = 1
    for turn in range(TURNS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        counts[value & 1023] += turn
    return value


def speed_text(speeds: Sequence[float]) -> str:
    """Return speeds of one run as text: "14.1", "11.9 to 14.2" where the machine did not keep its speed, "-" where none was measured."""
    if not speeds:
        return "-"
    slowest, fastest = min(speeds), max(speeds)
    if fastest - slowest <= ALIKE * fastest:
        return f"{statistics.median(speeds):.3g}"
    return f"{slowest:.3g} to {fastest:.3g}"
