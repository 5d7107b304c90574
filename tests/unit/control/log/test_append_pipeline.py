"""The append pipeline alone, on a log in memory: order, failures, and the two states."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from extender.control.log import append_pipeline
from extender.control.log.append_pipeline import AppendPipeline
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import CorruptLog, Fenced, NotLeading, StoreUnavailable
from extender.store.log.event_codec import to_event
from tests.support.logs.fake_store import FakeEventLog
from tests.support.service.fakes import FakeClock
from tests.support.waiting import eventually
from tests.unit.control.log.test_leader import drafts


class Pipeline(AppendPipeline):
    """An append pipeline under a lease of its own, which records what it reports."""

    def __init__(self, log, answer_within_s):
        self.log = log
        self.commits, self.failures, self.mismatches = [], [], []
        super().__init__(
            log,
            FakeClock(),
            answer_within_s,
            on_commit=lambda events, chain, _: self.commits.append(events),
            on_failure=self.failures.append,
            on_mismatch=self.mismatches.append,
        )

    def begin(self, name, after=None, count=1):
        """Start an append in a task."""
        return asyncio.ensure_future(self.start(drafts(count, name), self.grant, after))

    def written(self):
        return [to_event(row) for row, _ in self.log.database.rows]

    def agrees(self):
        """Return whether both states are the fold of the log."""
        return self.committed == self.pending == fold(EMPTY, self.written())


async def pipeline_on(log, answer_within_s=60.0):
    pipeline = Pipeline(log, answer_within_s)
    pipeline.grant = await log.take(holder="me", address="", ttl_ms=60_000)
    return pipeline


@pytest.fixture
async def pipeline():
    return await pipeline_on(FakeEventLog())


def never():
    return asyncio.get_running_loop().create_future()


def delay_appends(pipeline):
    """Let appends wait until the event that is returned is set."""
    durable, append = asyncio.Event(), pipeline.log.append

    async def delayed(grant, events):
        await durable.wait()
        await append(grant, events)

    pipeline.log.append = delayed
    return durable


async def test_an_append_is_pending_first_and_committed_when_it_is_durable(pipeline):
    """The pending state has it at once; the committed state, the report and the caller get it later."""
    durable = delay_appends(pipeline)
    task = pipeline.begin("a", count=2)
    assert (len(pipeline.pending.gangs), len(pipeline.committed.gangs)) == (2, 0)
    assert pipeline.in_flight == 1
    durable.set()
    events = await task
    assert pipeline.commits == [events]
    assert list(events) == pipeline.written()
    assert pipeline.in_flight == 0
    assert pipeline.agrees()


async def test_each_append_is_folded_once(pipeline, monkeypatch):
    """The committed state becomes the folded state of the append, also while later appends are in flight."""
    folded = []

    def counted(state, events):
        folded.extend(events)
        return fold(state, events)

    monkeypatch.setattr(append_pipeline, "fold", counted)
    await asyncio.gather(*(pipeline.begin(f"r{n}", count=2) for n in range(5)))
    await pipeline.begin("alone")
    assert folded == pipeline.written()
    assert len(folded) == 11
    assert pipeline.committed is pipeline.pending
    assert pipeline.agrees()


async def test_a_replaced_committed_state_is_continued_by_a_second_fold(pipeline):
    """An append that was started on another object is folded again, into the state that is there now."""
    durable = delay_appends(pipeline)
    task = pipeline.begin("a")
    pipeline.committed = other = msgspec.structs.replace(EMPTY, truncated_epoch=7)
    durable.set()
    await task
    assert pipeline.committed == fold(other, pipeline.written())
    assert pipeline.committed.truncated_epoch == 7


async def test_memory_that_does_not_continue_the_log_is_reported(pipeline):
    """The append is durable, the committed state is another one: it stays in flight until it is failed."""
    await pipeline.begin("a")
    good = pipeline.committed
    pipeline.committed = EMPTY
    task = pipeline.begin("b")
    await eventually(lambda: pipeline.mismatches, "the report")
    assert isinstance(pipeline.mismatches[0], CorruptLog)
    assert (pipeline.in_flight, pipeline.failures) == (1, [])
    assert pipeline.committed is EMPTY
    pipeline.fail(NotLeading, "load again")
    with pytest.raises(NotLeading, match="load again"):
        await task
    assert len(pipeline.written()) == 2
    assert len(good.gangs) == 1


async def test_appends_are_sent_in_the_order_in_which_they_began(pipeline):
    """What an append stores first may take long; later appends are sent behind it."""
    stored = never()
    first = pipeline.begin("first", after=lambda: stored)
    second = pipeline.begin("second")
    for _ in range(10):
        await asyncio.sleep(0)
    assert pipeline.written() == []
    stored.set_result(None)
    await asyncio.gather(first, second)
    assert [event.gang for event in pipeline.written()] == ["ns/first-0", "ns/second-0"]
    assert pipeline.agrees()


async def test_a_failure_is_reported_and_nothing_behind_it_is_sent(pipeline):
    """The failed append and the one behind it wait for `fail`; then the pending state is the committed one."""

    async def not_stored():
        raise StoreUnavailable("not stored")

    await pipeline.begin("before")
    tasks = [pipeline.begin("failed", after=not_stored), pipeline.begin("behind")]
    await eventually(lambda: pipeline.failures, "the report")
    for _ in range(10):
        await asyncio.sleep(0)
    assert [str(error) for error in pipeline.failures] == ["not stored"]
    assert pipeline.in_flight == 2
    assert not any(task.done() for task in tasks)
    pipeline.fail(NotLeading, "lost")
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(error) for error in outcomes] == ["lost", "lost"]
    assert len(pipeline.written()) == 1
    assert pipeline.agrees()


async def test_a_late_failure_of_a_failed_append_is_not_reported(pipeline):
    """After `fail` there is nothing to settle, whatever the log answers."""
    answer = never()
    sent = []

    async def answered(grant, events):
        sent.append(events)
        await answer

    pipeline.log.append = answered
    task = pipeline.begin("a")
    await eventually(lambda: sent, "the append")
    pipeline.fail(NotLeading, "lost")
    answer.set_exception(Fenced("another epoch"))
    with pytest.raises(NotLeading):
        await task
    await eventually(lambda: not pipeline._tasks, "the end of the append")
    assert pipeline.failures == []


async def test_settling_commits_what_is_in_the_log_and_fails_the_rest(pipeline):
    """Of three appends the first is found: its caller gets its events, the others get an error."""
    delay_appends(pipeline)
    tasks = [pipeline.begin(name, count=2) for name in ("a", "b", "c")]
    ids = pipeline.event_ids()
    assert len(set(ids)) == 6
    pipeline.settle(set(ids[:3]))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [event.event_id for event in outcomes[0]] == ids[:2]
    assert [type(error) for error in outcomes[1:]] == [StoreUnavailable] * 2
    assert pipeline.committed is pipeline.pending
    assert {root.gang for root in pipeline.committed.gangs.values()} == {"ns/a-0", "ns/a-1"}
    assert (pipeline.in_flight, pipeline.commits) == (0, [outcomes[0]])


async def test_a_caller_does_not_wait_for_ever():
    """Without an answer in time the caller gets an error; the append stays in flight."""
    pipeline = await pipeline_on(FakeEventLog(), answer_within_s=0.01)
    delay_appends(pipeline)
    with pytest.raises(StoreUnavailable, match="outcome is unknown"):
        await pipeline.begin("a")
    assert pipeline.in_flight == 1
    await pipeline.drain()
    assert pipeline.in_flight == 1


async def test_draining_waits_for_the_appends_in_flight(pipeline):
    """It ends when the last of them has ended, and at once when there is none."""
    await pipeline.drain()
    durable = delay_appends(pipeline)
    tasks = [pipeline.begin("a"), pipeline.begin("b")]
    draining = asyncio.ensure_future(pipeline.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    durable.set()
    await draining
    assert pipeline.in_flight == 0
    await asyncio.gather(*tasks)


async def test_a_cancelled_caller_does_not_stop_its_append(pipeline):
    """The append is written and committed although its caller has gone."""
    durable = delay_appends(pipeline)
    task = pipeline.begin("a")
    await asyncio.sleep(0)
    task.cancel()
    durable.set()
    await eventually(lambda: not pipeline.in_flight, "the append")
    assert len(pipeline.written()) == 1
    assert pipeline.agrees()


async def test_the_states_are_replaced_only_at_their_position_and_with_nothing_in_flight(pipeline):
    """A fold of the log that is older than the state, or older than an append in flight, is not used."""
    await pipeline.begin("a")
    fresh = fold(EMPTY, pipeline.written())
    assert pipeline.replace(fresh)
    assert pipeline.committed is pipeline.pending is fresh
    assert not pipeline.replace(EMPTY)
    durable = delay_appends(pipeline)
    task = pipeline.begin("b")
    assert not pipeline.replace(fold(EMPTY, pipeline.written()))
    assert pipeline.committed is fresh
    durable.set()
    await task
    assert pipeline.agrees()
