"""Full collections are made at quiet times, and free what nothing refers to."""

from __future__ import annotations

import ctypes
import gc
import resource
import weakref
from pathlib import Path

import pytest

from extender.runtime.garbage_collection import AT_LATEST_MS, EVERY_MS, FullCollections
from tests.support.service.fakes import FakeClock


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector():
    """Yield the collections, the clock and the seconds since the last call; CPython's settings are restored."""
    before = gc.get_threshold()
    clock, calls = FakeClock(), [0.0]
    found = FullCollections(clock, lambda: calls[0])
    found.take_over()
    yield found, clock, calls
    gc.set_threshold(*before)
    gc.unfreeze()


def old_cycle() -> weakref.ref[Node]:
    """Return a reference to a cycle of an old object that nothing else refers to."""
    node = Node()
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(node)


async def test_old_cycles_wait_for_a_quiet_time(collector):
    """While kube-scheduler calls nothing old is looked at; two seconds after the last call it is."""
    found, clock, calls = collector
    cycle = old_cycle()
    clock.advance(EVERY_MS / 1000)
    await found.look()
    gc.collect(1)
    assert cycle() is not None
    calls[0] = 2.0
    await found.look()
    assert cycle() is None


async def test_it_is_made_in_time_also_beside_calls(collector):
    """After ten minutes at the latest."""
    found, clock, _ = collector
    cycle = old_cycle()
    clock.advance(AT_LATEST_MS / 1000 - 1)
    await found.look()
    assert cycle() is not None
    clock.advance(1)
    await found.look()
    assert cycle() is None


async def test_it_is_not_made_again_and_again(collector):
    """A quiet service makes one a minute."""
    found, clock, calls = collector
    calls[0] = 100.0
    cycle = old_cycle()
    clock.advance(EVERY_MS / 1000 - 1)
    await found.look()
    assert cycle() is not None


async def test_what_exists_from_the_start_is_not_looked_at(collector):
    """Modules and their objects are frozen; what comes later is not, and is freed when it becomes garbage."""
    found, clock, calls = collector
    frozen = gc.get_freeze_count()
    assert frozen > 0
    assert gc.get_threshold()[2] > 1_000_000
    node = Node()
    cycle = weakref.ref(node)
    calls[0] = 100.0
    clock.advance(EVERY_MS / 1000)
    await found.look()
    assert gc.get_freeze_count() == frozen
    del node
    clock.advance(EVERY_MS / 1000)
    await found.look()
    assert cycle() is None


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
async def test_free_memory_below_what_is_in_use_is_given_back(collector):
    """Of many large requests at once nothing stays, also where their answers were taken."""
    found, clock, calls = collector
    blocks = [b"x" * 100_000 for _ in range(400)]
    above = blocks[-1]
    del blocks
    free_mib = resident_mib()
    clock.advance(EVERY_MS / 1000)
    calls[0] = 2.0
    await found.look()
    assert resident_mib() < free_mib - 20, len(above)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
