"""Followers: the same fold as the leader's, a distance in time, and no take-over from what is old."""

from __future__ import annotations

import pytest

from extender.control.log.follower import BEHIND_MS
from extender.control.loop import control_loop
from extender.core.log.events import HistoryTruncated, LeaseAcquired
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import NotLeading
from tests.support.service.fakes import TTL_MS, Stage
from tests.support.service.manifest_builders import a_node
from tests.support.waiting import eventually
from tests.unit.control.log.test_leader import drafts


@pytest.fixture
async def pair():
    """A leader and a follower on one database."""
    async with Stage() as first:
        await first.lead()
        async with Stage(database=first.database, holder="other", clock=first.clock) as second:
            second.start(second.leader.run())
            await eventually(lambda: second.leader.role == "following", "following")
            yield first, second


async def looked(stage, times=3):
    """Wait until a follower has looked again, so often, whether it can take the lease."""
    looks, inner = [], stage.log.lease

    async def counting():
        looks.append(1)
        return await inner()

    stage.log.lease = counting
    await eventually(lambda: len(looks) > times, "looks at the lease")
    stage.log.lease = inner


async def followed(first, second):
    await eventually(lambda: second.leader.committed == first.leader.committed, "followed")


async def looks(stage, count=3):
    """Wait until a replica has looked at the lease some times more."""
    seen, inner = [], stage.log.lease

    async def counted():
        seen.append(await inner())
        return seen[-1]

    stage.log.lease = counted
    await eventually(lambda: len(seen) >= count, "looks at the lease")


async def test_a_follower_folds_what_the_leader_appends(pair):
    """Event by event the same state; nothing is written by who follows."""
    first, second = pair
    for number in range(5):
        await first.leader.append(drafts(2, f"r{number}"))
        await followed(first, second)
    assert second.leader.committed == fold(EMPTY, first.events())
    assert not second.leader.may_record()
    assert not second.leader.may_act()
    with pytest.raises(NotLeading):
        await second.leader.append(drafts())


async def test_a_take_over_reads_only_the_tail(pair):
    """What was followed is asked for by its last event, and not read again."""
    first, second = pair
    await first.leader.append(drafts(3))
    await followed(first, second)
    read = []
    inner = second.log.read

    def counting(*, after=0, until=None):
        read.append((after, until))
        return inner(after=after, until=until)

    second.log.read = counting
    await first.leader.release_lease()
    await eventually(second.leader.may_record, "take-over")
    assert [span for span in read if span[1] is not None] == []
    assert second.event_data()[-1] == LeaseAcquired(
        holder="other", address="http://other", previous_holder="me"
    )
    assert first.leader.role == "following"
    taken = "not leading: the lease is held by other at http://other"
    await eventually(lambda: first.leader.not_ready_reason() == taken, "the address of the leader")


async def test_who_gave_the_lease_back_does_not_take_it_again(pair):
    """It follows on, so that it can send callers to who leads, also when that one ends."""
    first, second = pair
    await first.leader.release_lease()
    await eventually(second.leader.may_record, "take-over")
    await followed(second, first)
    await second.leader.release_lease()
    await looked(first)
    assert not first.leader.may_record()
    assert first.leader.follower.lease.expired


async def test_a_follower_that_cannot_read_is_not_ready_and_does_not_lead(pair):
    """Behind by more than the stated time: named with the reason; back again, it leads."""
    first, second = pair
    await first.leader.append(drafts(3))
    await followed(first, second)
    second.log.unavailable = True
    await eventually(
        lambda: "set to be unavailable" in second.leader.not_leading_reason, "no answer"
    )
    first.clock.advance((BEHIND_MS + 1) / 1000)
    check = second.extender_service.checks()[1]
    assert (check.name, check.ok) == ("log", False)
    assert check.reason.startswith(
        "5 s behind the log, at position 4: the log in memory is set to be unavailable"
    )
    second.log.unavailable = False
    await eventually(lambda: not second.leader.follower.lag_reason(), "current")
    await first.killed()
    second.leader.follower._current_ms -= BEHIND_MS + 1
    second.leader.follower._mark = None
    first.clock.advance(TTL_MS / 1000)
    await looked(second)
    assert not second.leader.may_record()
    assert second.leader.not_leading_reason == "behind the log, see /readyz"
    assert "it grows faster than it is read here" in second.leader.follower.lag_reason()


async def test_what_a_follower_saw_is_evidence(pair):
    """The database comes back without what the dead leader wrote: the replica that saw it records the loss."""
    first, second = pair
    backup = first.database.copy()
    await first.leader.append(drafts(3))
    await followed(first, second)
    await first.killed()
    first.database.restore(backup)
    first.clock.advance(TTL_MS / 1000)
    await eventually(second.leader.may_record, "take-over")
    await eventually(lambda: second.event_data(HistoryTruncated), "the loss is recorded")
    (event,) = second.event_data(HistoryTruncated)
    assert (event.evidence, event.known_position, event.found_position) == ("memory", 4, 1)
    assert "position 4 of epoch 1 was seen by this process" in event.message
    assert second.leader.committed == fold(EMPTY, second.events())


async def test_a_follower_starts_the_planners_process_ahead(pair, monkeypatch):
    """Once, and before it leads: a tree that takes long is not kept waiting by a take-over for it as well."""
    monkeypatch.setattr(control_loop, "SOLVER_AFTER_MS", 0)
    _, second = pair
    warmed = []
    second.parts.planner.warm = lambda: warmed.append(second.leader.role)
    second.start(second.control_loop.run())
    await eventually(lambda: warmed, "started")
    seen, inner = [], second.cluster.changed

    def watched(revision):
        seen.append(revision)
        return inner(revision)

    second.cluster.changed = watched
    second.cluster.add(a_node("n9"))
    await eventually(lambda: second.cluster.seen.revision in seen, "the loop has gone on")
    assert warmed == ["following"]
