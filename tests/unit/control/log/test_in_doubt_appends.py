"""The settlement alone, on a log in memory: every outcome of an append that failed."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.log import leader as settlement_module
from extender.control.log.append_pipeline import AppendPipeline
from extender.control.log.history_guard import OLDER_COPY, HistoryGuard
from extender.control.log.leader import Settlement
from extender.control.log.leader_role import LeaderRole, Lease, LeaseIdentity
from extender.core.log.reservation_state import EMPTY
from extender.core.model.errors import NotLeading, StoreUnavailable
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, Script
from tests.support.service.fakes import FakeClock
from tests.support.waiting import eventually
from tests.unit.control.log.test_leader import drafts

TTL_MS = 15_000


class Settled(LeaderRole):
    """What a settlement needs and no lease loop: it leads under a lease, and records what is asked of it."""

    def __init__(self):
        self.clock = FakeClock()
        self.log = FakeEventLog(FakeDatabase(self.clock.now_us))
        identity = LeaseIdentity(holder="me", address="http://me", ttl_ms=TTL_MS)
        history = HistoryGuard(self.log)
        super().__init__(Lease(self.log, self.clock, identity, history), history)
        self.appends = AppendPipeline(
            self.log,
            self.clock,
            60.0,
            on_commit=lambda events, chain, _: history.observe_appended(events[-1], chain),
            on_failure=self.on_failure,
            on_mismatch=lambda error: self.lose(str(error)),
        )
        self.settlement = Settlement(self.log, self.appends, self)
        self.lost, self.recorded, self.changes = [], [], []

    async def begin(self):
        await self.lease.acquire()
        self.lease.activate()
        self.become("leading", "")
        return self

    def become(self, role, reason):
        super().become(role, reason)
        self.changes.append((role, reason))

    def on_failure(self, error):
        self.settlement.start(error)

    def append(self, name):
        return asyncio.ensure_future(self.appends.start(drafts(1, name), self.lease.grant))

    def lose(self, reason):
        self.lost.append(reason)
        self.lease.grant = None
        self.become("following", reason)
        self.settlement.stop()
        self.appends.fail(NotLeading, reason)

    def on_lease_expired(self):
        raise AssertionError("the settlement does not watch the lease")

    async def record_lease(self, grant):
        self.recorded.append(grant.epoch)

    async def end(self):
        """Wait until the settlement has ended."""
        await eventually(
            lambda: self.settlement.tasks and all(t.done() for t in self.settlement.tasks),
            "settled",
        )


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(settlement_module, "SETTLE_PAUSE_S", 0.001)


@pytest.fixture
async def leader():
    return await Settled().begin()


@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
async def test_the_outcome_of_a_failed_append_is_found(leader, written):
    """Found or not, this process leads again under the next epoch, and that epoch is recorded."""
    leader.log.lose_next_answer() if written else leader.log.lose_next_append()
    task = leader.append("a")
    await leader.end()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    lost = "the answer was set to be lost" if written else "the append was set to be lost"
    assert leader.changes == [("leading", ""), ("settling", lost), ("leading", "")]
    assert isinstance(outcome, tuple if written else StoreUnavailable)
    assert len(leader.appends.committed.gangs) == int(written)
    assert leader.appends.committed is leader.appends.pending
    assert (leader.epoch, leader.recorded, leader.lost) == (2, [2], [])
    assert leader.may_record()


async def test_it_tries_again_while_the_log_does_not_answer(leader):
    """The role stays, the reason is the latest error, writes to the cluster go on while the lease lasts."""
    leader.log.lose_next_append()
    leader.log.unavailable = True
    task = leader.append("a")
    await eventually(lambda: "set to be unavailable" in leader.not_leading_reason, "the reason")
    assert leader.role == "settling"
    assert leader.may_act()
    assert not leader.may_record()
    leader.log.unavailable = False
    await leader.end()
    assert leader.role == "leading"
    with pytest.raises(StoreUnavailable, match="decide again"):
        await task


async def test_a_lease_of_another_process_ends_it(leader):
    """The lease has expired and another process holds it: this one stops leading, and callers are refused."""
    leader.clock.advance(TTL_MS / 1000)
    await leader.log.take(holder="other", address="http://other", ttl_ms=TTL_MS)
    task = leader.append("a")
    with pytest.raises(NotLeading, match="held by other"):
        await task
    await leader.end()
    assert len(leader.lost) == 1
    assert (leader.role, leader.recorded) == ("following", [])


async def test_an_older_copy_ends_it(leader):
    """The log lacks an event that was committed: nothing is settled on it."""
    backup = leader.log.database.copy()
    await leader.append("a")
    leader.log.database.restore(backup)
    task = leader.append("b")
    with pytest.raises(NotLeading, match=OLDER_COPY):
        await task
    await leader.end()
    assert (leader.lost, leader.recorded) == ([OLDER_COPY], [])
    assert not leader.may_act()


async def test_a_log_that_is_longer_than_memory_ends_it(leader):
    """Events that this process did not append are behind its own: the state must be loaded again."""
    await leader.append("a")
    script = Script(leader.lease.grant)
    script.position, script.at_us = 1, leader.clock.now_us()
    await FakeEventLog(leader.log.database).append(leader.lease.grant, script.some(1))
    with pytest.raises(StoreUnavailable, match="decide again"):
        await leader.append("b")
    await leader.end()
    assert leader.lost == ["the log ends at position 2, the state in memory at 1"]
    assert leader.recorded == []


async def test_memory_that_does_not_continue_the_log_ends_it(leader):
    """The append is found, but the committed state is another one: this process stops leading, and loads again."""
    await leader.append("a")
    leader.appends.committed = EMPTY
    leader.log.lose_next_answer()
    with pytest.raises(NotLeading, match="does not continue"):
        await leader.append("b")
    await leader.end()
    assert len(leader.lost) == 1
    assert (leader.role, leader.recorded) == ("following", [])


async def test_a_failing_append_of_the_new_lease_is_settled_too(leader):
    """When the settlement has ended, the next failure starts another one."""

    async def record_lease(grant):
        leader.recorded.append(grant.epoch)
        if grant.epoch == 2:
            leader.log.lose_next_append()
            await asyncio.gather(leader.append("lease"), return_exceptions=True)

    leader.record_lease = record_lease
    leader.log.lose_next_append()
    with pytest.raises(StoreUnavailable):
        await leader.append("a")
    await eventually(lambda: leader.recorded == [2, 3], "the second settlement")
    assert leader.may_record()
    await leader.append("after")


async def test_at_most_one_runs(leader):
    """Further failures while it runs start nothing: one new epoch settles all appends."""
    leader.log.lose_next_append()
    tasks = [leader.append(name) for name in ("a", "b")]
    leader.settlement.start(StoreUnavailable("the first one"))
    leader.settlement.start(StoreUnavailable("another one"))
    await leader.end()
    assert ("settling", "the first one") in leader.changes
    assert [role for role, _ in leader.changes] == ["leading", "settling", "leading"]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in outcomes] == [StoreUnavailable] * 2
    assert leader.log.database.epoch == 2


async def test_a_lost_lease_stops_it(leader):
    """After the loss it acquires nothing, settles nothing, and the role stays what the loss made it."""
    leader.log.lose_next_append()
    leader.log.unavailable = True
    task = leader.append("a")
    await eventually(lambda: "set to be unavailable" in leader.not_leading_reason, "the settlement")
    (settling,) = leader.settlement.tasks
    leader.lose("stopping")
    leader.log.unavailable = False
    with pytest.raises(NotLeading, match="stopping"):
        await task
    await asyncio.gather(settling, return_exceptions=True)
    assert settling.cancelled()
    assert leader.log.database.epoch == 1
    assert (leader.role, leader.lost) == ("following", ["stopping"])
