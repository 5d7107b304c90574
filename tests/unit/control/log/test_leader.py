"""The one writer: whatever happens to an append, memory and log agree afterwards."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from extender.control.log import lease_loop
from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.core.log.events import GangObserved, LeaseAcquired, NewEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import Fenced, HeadMoved, NotLeading, StoreUnavailable
from extender.core.model.ids import GangUid
from extender.snapshots.state_loader import FULL_CODEC, HISTORICAL_CODEC
from extender.telemetry import METRICS
from tests.support.service.fakes import TTL_MS, Stage
from tests.support.waiting import eventually


def drafts(number=1, root="root"):
    return [
        NewEvent(gang_uid=GangUid(f"{root}-{n}"), gang=f"ns/{root}-{n}",
              data=GangObserved(kind="PodGroup"), actor="t")
        for n in range(number)
    ]  # fmt: skip


async def agree(stage):
    """Once nothing is on its way, memory is the fold of the log."""
    leader = stage.leader
    await eventually(
        lambda: not leader.appends.in_flight and leader.committed.position == len(stage.events()),
        "appends on their way",
    )
    assert leader.committed == fold(EMPTY, stage.events())
    assert leader.pending_state == leader.committed
    assert not leader.appends.in_flight


@pytest.fixture
async def stage():
    async with Stage() as made:
        yield await made.lead()


async def test_the_first_event_of_an_epoch_is_the_lease(stage):
    """LeaseAcquired names the process that writes from here on."""
    assert [type(f) for f in stage.event_data()] == [LeaseAcquired]
    assert stage.event_data()[0].holder == "me"
    assert stage.leader.epoch == stage.events()[0].epoch == 1


async def test_a_free_lease_is_taken_as_soon_as_the_log_is_folded(monkeypatch):
    """The pause between two looks at the lease is no part of the start of a service."""
    monkeypatch.setattr("extender.control.log.lease_loop.LOOK_EVERY_S", 3600)
    async with Stage(ttl_ms=5 * 3_600_000) as stage:
        await stage.lead()
        assert stage.leader.may_record()


async def test_recorded_is_acknowledged(stage):
    """On return the events are in the log and in the acknowledged state; nothing to record is nothing."""
    events = await stage.leader.append(drafts(3))
    assert [e.position for e in events] == [2, 3, 4]
    assert len(stage.leader.committed.gangs) == 3
    assert await stage.leader.append([]) == ()
    await agree(stage)


async def test_unrecorded_is_not_acknowledged(stage):
    """Between decision and durability the event is in the speculative state only."""
    durable, append = asyncio.Event(), stage.log.append

    async def slow(grant, events):
        await durable.wait()
        await append(grant, events)

    stage.log.append = slow
    task = stage.start(stage.leader.append(drafts()))
    await eventually(lambda: stage.leader.appends.in_flight, "the append")
    assert len(stage.leader.pending_state.gangs) == 1
    assert len(stage.leader.committed.gangs) == 0
    durable.set()
    await task
    assert len(stage.leader.committed.gangs) == 1


async def test_records_at_once_keep_their_order(stage):
    """Twenty at once are stamped in call order, without gap."""
    found = await asyncio.gather(*(stage.leader.append(drafts(2, f"r{n}")) for n in range(20)))
    assert [e.position for events in found for e in events] == list(range(2, 42))
    await agree(stage)


@pytest.mark.parametrize("written", [True, False], ids=["written", "lost"])
async def test_an_unknown_outcome_is_settled(stage, written):
    """Lost answer: the events are found and count. Lost append: the caller gets the error, and state falls back."""
    stage.log.lose_next_answer() if written else stage.log.lose_next_append()
    if written:
        await stage.leader.append(drafts())
    else:
        with pytest.raises(StoreUnavailable):
            await stage.leader.append(drafts())
    await eventually(
        lambda: stage.leader.role == "leading" and not stage.leader.appends.in_flight, "settled"
    )
    assert len(stage.leader.committed.gangs) == int(written)
    assert stage.leader.epoch == 2
    await stage.leader.append(drafts(1, "after"))
    await agree(stage)


@pytest.mark.parametrize("written", [True, False], ids=["written", "lost"])
async def test_all_appends_on_their_way_are_settled(stage, written):
    """Five at once behind a lost answer: each caller gets the outcome of its own events."""
    stage.log.lose_next_answer() if written else stage.log.lose_next_append()
    tasks = [stage.leader.append(drafts(1, f"r{n}")) for n in range(5)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(
        lambda: stage.leader.role == "leading" and not stage.leader.appends.in_flight, "settled"
    )
    succeeded = {f"ns/r{n}-0" for n, r in enumerate(results) if not isinstance(r, Exception)}
    assert succeeded == {r.gang for r in stage.leader.committed.gangs.values()}
    assert ("ns/r0-0" in succeeded) is written
    assert all(isinstance(r, StoreUnavailable | tuple) for r in results)
    await agree(stage)


async def test_a_second_fault_right_after_settling_is_settled_too(stage):
    """The LeaseAcquired that ends a settlement may be lost as well; the leader must not hang on it."""
    stage.log.lose_next_append()
    stage.log.lose_next_append()
    with pytest.raises(StoreUnavailable):
        await stage.leader.append(drafts())
    await eventually(
        lambda: stage.leader.role == "leading" and stage.leader.epoch == 3, "settled again"
    )
    await stage.leader.append(drafts(1, "after"))
    await agree(stage)


async def test_an_outage_ends_by_itself(stage):
    """While the store does not answer nothing is recorded; when it does, the leader goes on."""
    stage.log.unavailable = True
    task = stage.start(stage.leader.append(drafts()))
    await eventually(lambda: stage.leader.role == "settling", "settling")
    with pytest.raises(NotLeading):
        await stage.leader.append(drafts(1, "refused"))
    assert stage.leader.may_act(), "redeeming goes on while the lease lasts"
    assert not stage.leader.may_record()
    stage.log.unavailable = False
    with pytest.raises(StoreUnavailable):
        await task
    await eventually(stage.leader.may_record, "leading again")
    await eventually(lambda: not stage.leader.appends.in_flight, "the event of the new lease")
    await agree(stage)


async def test_the_lease_lapses_by_our_own_clock(stage):
    """May act for nine tenths of the lease, counted from before the database was asked; not one moment longer."""
    stage.clock.advance(TTL_MS * 0.9 / 1000 - 0.001)
    assert stage.leader.may_act()
    assert stage.leader.not_ready_reason() == ""
    stage.clock.advance(0.001)
    assert not stage.leader.may_act()
    assert stage.leader.not_ready_reason() == "the lease has run out"
    with pytest.raises(NotLeading):
        await stage.leader.append(drafts())


@pytest.mark.parametrize("fault", [Fenced, HeadMoved])
async def test_a_deposed_leader_writes_nothing(stage, fault):
    """Fenced or overtaken: the caller gets NotLeading, memory is dropped, the log has the other's events only."""
    other = Stage(database=stage.database, holder="other", clock=stage.clock)
    async with other:
        stage.clock.advance(TTL_MS / 1000)
        await other.lead()
        await other.leader.append(drafts(1, "theirs"))
        stage.leader.lease.until_ms = stage.clock.monotonic_ms() + 1  # a clock that runs late
        if fault is HeadMoved:

            async def moved(grant, events):
                raise HeadMoved("the log ends elsewhere")

            stage.log.append = moved
        with pytest.raises(NotLeading):
            await stage.leader.append(drafts(1, "ghost"))
        assert stage.leader.role == "following"
        assert not stage.leader.may_act()
        assert [e.gang for e in stage.events() if e.gang] == ["ns/theirs-0"]


async def test_take_over_replays_the_same_state(stage):
    """A second replica waits while the lease lasts, then leads with the very state of the first."""
    await stage.leader.append(drafts(3))
    async with Stage(database=stage.database, holder="other", clock=stage.clock) as other:
        other.start(other.leader.run())
        await eventually(lambda: other.leader.role == "following", "following")
        assert "held by me" in other.leader.not_leading_reason
        assert other.leader.not_ready_reason().startswith("not leading: ")
        with pytest.raises(NotLeading):
            await other.leader.append(drafts(1, "x"))
        await stage.stop_leading()
        await eventually(
            lambda: other.leader.role == "leading" and not other.leader.appends.in_flight,
            "take-over",
        )
        assert other.leader.epoch == 2
        assert other.event_data()[-1].previous_holder == "me"
        assert other.leader.committed.gangs == stage.leader.committed.gangs
        await agree(other)


async def test_the_same_holder_need_not_wait(stage):
    """A restart after kill -9 takes its own lease again at once and replays the same state."""
    await stage.leader.append(drafts(2))
    await stage.killed()
    async with Stage(database=stage.database, clock=stage.clock) as again:
        await again.lead()
        assert again.leader.committed.gangs == stage.leader.committed.gangs
        assert again.leader.epoch == 2
        await agree(again)


async def test_a_checkpoint_saves_the_way(stage):
    """A stop saves the state; the next start reads only the tail, and folds to the same."""
    await stage.leader.append(drafts(5))
    await stage.stop_leading()
    assert list(stage.database.snapshots) == [(6, HISTORICAL_CODEC), (6, FULL_CODEC)]
    async with Stage(database=stage.database, holder="next", clock=stage.clock) as again:
        read = []
        inner = again.log.read

        def counting(*, after=0, until=None):
            read.append(after)
            return inner(after=after, until=until)

        again.log.read = counting
        await again.lead()
        assert set(read) == {6}
        await agree(again)


async def test_time_never_falls_in_the_log(stage):
    """A wall clock that steps back does not make an event older than the one before it."""
    await stage.leader.append(drafts(1, "a"))
    stage.clock.us -= 10_000_000
    await stage.leader.append(drafts(1, "b"))
    times = [e.at_us for e in stage.events()]
    assert times == sorted(times)


async def test_a_lease_that_was_released_while_settling_is_not_acquired_again(stage):
    """A stop during an outage ends the settlement: when the database answers, the lease stays free."""
    stage.log.lose_next_append()
    task = stage.start(stage.leader.append(drafts()))
    stage.log.unavailable = True
    await eventually(lambda: "unavailable" in stage.leader.not_leading_reason, "settling")
    (settling,) = stage.leader.settlement.tasks
    stage.leader.lose("stopping")
    stage.log.unavailable = False
    stage.leader.draining = True
    with pytest.raises(NotLeading):
        await task
    await asyncio.gather(settling, return_exceptions=True)
    await eventually(lambda: stage.leader.not_leading_reason == "stopping", "following")
    assert stage.leader.role == "following"
    assert stage.database.epoch == 1


async def test_listeners_get_appends_and_losses():
    """Each append of this process once; a loss of the lease and its expiry, with the reason known already."""
    async with Stage() as stage:
        appended, reasons = [], []
        leader = Leader(
            stage.log, stage.snapshots, stage.clock, LeaseIdentity(holder="me", address="", ttl_ms=600),
            on_append=appended.extend,
        )  # fmt: skip
        leader.add_lost_listener(lambda: reasons.append(leader.not_ready_reason()))
        leader.add_lost_listener(lambda: reasons.append("second"))
        stage.start(leader.run())
        await eventually(
            lambda: leader.role == "leading" and not leader.appends.in_flight, "leading"
        )
        await leader.append(drafts(2))
        assert appended == stage.events()
        assert len(appended) == 3
        await asyncio.sleep(0)
        stage.log.unavailable = True
        stage.clock.advance(0.6)
        await eventually(lambda: reasons, "the expiry")
        assert reasons == ["the lease has run out", "second"]
        leader.lose("test")
        assert reasons[2:] == ["not leading: test", "second"]


async def test_a_stopped_leader_gives_the_lease_back():
    """After a clean stop the next holder need not wait."""
    async with Stage() as stage:
        await stage.lead()
        await stage.stop_leading()
        assert stage.database.expired
        assert stage.leader.role == "stopped"
        assert not stage.leader.may_act()


def raising_once(inner):
    """Return a function that raises at its first call."""
    errors = [ZeroDivisionError("the test fails it")]

    def outer(*arguments):
        if errors:
            raise errors.pop()
        return inner(*arguments)

    return outer


# what raises once, and what makes it be called
LOG_DEFECTS = {
    "count of events": (lambda leader: (leader, "_on_append"), "append"),
    "fold of what is durable": (lambda leader: (leader.appends, "_commit"), "append"),
    "listener of the lease": (lambda leader: (leader._lost_listeners[0].__self__, "fail_waiting_calls"), "loss"),
    "snapshot": (lambda leader: (leader._snapshots, "save_if_due"), "time"),
    "settlement": (lambda leader: (leader.appends, "event_ids"), "lost append"),
    "lease event": (lambda leader: (leader, "record_lease"), "lost append"),
}  # fmt: skip


@pytest.mark.parametrize("defect", LOG_DEFECTS)
async def test_a_defect_beside_the_log_ends_no_leader(defect, monkeypatch):
    """It is counted, memory and log agree afterwards, and this process leads on or again."""
    monkeypatch.setattr(lease_loop, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(lease_loop, "LOOK_EVERY_S", 0.01)
    (place_of, cause), before = (
        LOG_DEFECTS[defect],
        METRICS.object_faults.labels("log")._value.get(),
    )
    async with Stage() as stage:
        await stage.lead()
        leader = stage.leader
        place, name = place_of(leader)
        broken = raising_once(getattr(place, name))
        if name == "fail_waiting_calls":
            leader._lost_listeners.insert(0, broken)
        else:
            monkeypatch.setattr(place, name, broken)
        if cause == "loss":
            leader.lose("the test ends it")
        elif cause != "time":
            if cause == "lost append":
                stage.log.lose_next_append()
            with contextlib.suppress(NotLeading, StoreUnavailable):
                await leader.append(drafts())
        await eventually(lambda: METRICS.object_faults.labels("log")._value.get() > before, "the defect")  # fmt: skip
        await eventually(leader.may_record, "leading")
        await leader.append(drafts(root="later"))
        await agree(stage)
        assert METRICS.object_faults.labels("log")._value.get() == before + 1
