"""The role alone: what it allows, and which changes wake the tasks that wait for a permission."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.log.history_guard import HistoryGuard
from extender.control.log.leader_role import LeaderRole, Lease, LeaseIdentity
from extender.core.log.events import HistoryTruncated
from tests.support.logs.fake_store import FakeEventLog
from tests.support.service.fakes import FakeClock, idle

TTL_MS = 1_000
WAITERS = 28


class Permission(LeaderRole):
    """A role without a leader: only the lease and the clock are real."""

    def __init__(self):
        self.clock, log = FakeClock(), FakeEventLog()
        identity = LeaseIdentity(holder="me", address="", ttl_ms=TTL_MS)
        history = HistoryGuard(log)
        super().__init__(Lease(log, self.clock, identity, history), history)
        self.looks = 0

    def may_act(self):
        self.looks += 1
        return super().may_act()

    def expire(self):
        self.clock.advance(TTL_MS / 1000)

    def lose(self, reason):
        self.lease.grant = None
        self.become("following", reason)

    def on_lease_expired(self):
        raise AssertionError("nothing watches the lease here")

    async def record_lease(self, grant):
        raise AssertionError("nothing is appended here")


@pytest.fixture
async def role():
    """Return a role that leads, and may act."""
    found = Permission()
    await found.lease.acquire()
    found.lease.activate()
    found.become("leading", "")
    assert found.may_act()
    return found


async def waiters(role):
    tasks = [asyncio.ensure_future(role.until_may_act()) for _ in range(WAITERS)]
    await idle(20)
    return tasks


async def all_end(tasks):
    """Return whether all tasks have ended after some turns of the event loop, without any time."""
    await idle(20)
    return all(task.done() for task in tasks)


async def test_who_may_act_does_not_wait(role):
    """The wait ends in the same step: nothing can change between it and the write."""
    waiting = role.until_may_act()
    with pytest.raises(StopIteration):
        waiting.send(None)


async def test_a_prolonged_lease_ends_the_wait(role):
    """All tasks go on when an expired lease is renewed, and not before."""
    role.expire()
    tasks = await waiters(role)
    assert not any(task.done() for task in tasks)
    role.lease.renew_from(role.clock.ms)
    assert await all_end(tasks)


async def test_a_lease_that_was_acquired_ends_the_wait_when_it_counts(role):
    """After a loss: the new grant alone is no permission, nor is the role alone."""
    role.lose("test")
    role.expire()
    tasks = await waiters(role)
    await role.lease.acquire()
    role.become("leading", "")
    assert not await all_end(tasks)
    role.lease.activate()
    assert await all_end(tasks)


@pytest.mark.parametrize("to", ["leading", "settling"])
async def test_a_role_that_may_act_ends_the_wait(role, to):
    """Follower to leader with a lease that counts already."""
    role.become("following", "test")
    tasks = await waiters(role)
    role.explain("another reason")
    assert not await all_end(tasks)
    role.become(to, "")
    assert await all_end(tasks)


async def test_the_end_of_a_recovery_ends_the_wait(role):
    """Only a comparison under this acquisition ends it, and only when the loss has been recorded."""
    role.begin_recovery("history lost")
    tasks = await waiters(role)
    role.end_recovery(role.terms - 1)
    assert not await all_end(tasks)
    role.history.unrecorded = HistoryTruncated(
        evidence="memory",
        known_position=2,
        known_epoch=1,
        found_position=1,
        found_epoch=1,
        message="x",
    )
    role.end_recovery(role.terms)
    assert not await all_end(tasks)
    role.history.unrecorded = None
    role.end_recovery(role.terms)
    assert await all_end(tasks)
    assert role.recovery_reason == ""


async def test_a_permission_that_ends_before_the_task_runs_is_no_permission(role):
    """Prolonged, but expired again before the waiting task runs: it waits on."""
    role.expire()
    tasks = await waiters(role)
    role.lease.renew_from(role.clock.ms)
    role.expire()
    assert not await all_end(tasks)
    role.lease.renew_from(role.clock.ms)
    assert await all_end(tasks)


async def test_the_committed_state_does_not_wake_who_waits(role):
    """Each append changes it; a task that waits for its permission looks only when that may have changed."""
    role.expire()
    tasks = await waiters(role)
    looks = role.looks
    role.wakeup.wake()
    role.explain("another reason")
    await idle()
    assert role.looks == looks
    for task in tasks:
        task.cancel()


async def test_a_change_of_role_wakes_the_control_loop(role):
    """A change of the reason alone does not."""
    revision = role.wakeup.revision
    role.become("settling", "the append failed")
    assert role.wakeup.revision == revision + 1
    role.explain("the log does not answer")
    assert (role.role, role.not_leading_reason) == ("settling", "the log does not answer")
    assert role.wakeup.revision == revision + 1


async def test_the_loss_of_the_lease_ends_the_wait_for_it(role):
    """A settlement acquires another grant in between, which is no loss."""
    lost = asyncio.ensure_future(role.until_lost())
    role.become("settling", "test")
    await role.lease.acquire()
    role.become("leading", "")
    assert not await all_end([lost])
    role.lose("test")
    assert await all_end([lost])


async def test_the_thread_changes_only_the_grant_that_it_renewed(role):
    """A renewal that comes back after a loss and a new acquisition neither prolongs nor ends the new grant."""
    old = role.lease.grant
    role.lose("test")
    await role.lease.acquire()
    role.lease.activate()
    until_ms = role.lease.until_ms
    role.lease.prolong(old, role.clock.ms + 10 * TTL_MS)
    role.lease.end(old)
    assert role.lease.until_ms == until_ms
    role.lease.prolong(role.lease.grant, role.clock.ms + TTL_MS)
    assert role.lease.until_ms == until_ms + TTL_MS
    role.lease.renew_from(role.clock.ms)  # the answer that the busy loop reads late
    assert role.lease.until_ms == until_ms + TTL_MS
    role.lease.end(role.lease.grant)
    assert not role.lease.holds()
