"""A database that comes back as an older copy: noticed, recorded, and no admission from it until it was compared."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from extender.control.log.log_head_publisher import LogHeadPublisher
from extender.core.log.events import (
    DriftDetected,
    GangAdmitted,
    GangObserved,
    HistoryTruncated,
    LeaseAcquired,
    NewEvent,
    PodBound,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import ClusterUnavailable, NotLeading, NotReady, StoreUnavailable
from extender.core.model.ids import GangUid, PlanId, Position
from extender.runtime.log_keys import make_key, parse_keys
from tests.support.logs.fake_store import FakeDatabase
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

NODES = ["n0", "n1", "n2"]


def draft(name="r"):
    return NewEvent(
        gang_uid=GangUid(name), gang=f"ns/{name}", data=GangObserved(kind="PodGroup"), actor="t"
    )


def gang(name, **spec):
    return a_gang(name, pods=2, requests={"nvidia.com/gpu": 8}, schedulingGates=GATED, **spec)


@pytest.fixture
async def stage():
    async with Stage(*(a_node(n, gpu=8) for n in NODES), *gang("a"), ttl_ms=600) as made:
        yield await made.lead()


async def noticed(stage, times=1):
    """Wait until the loss is in the log."""
    leader = stage.leader
    await eventually(
        lambda: (
            leader.role == "leading"
            and not leader.appends.in_flight
            and len(stage.event_data(HistoryTruncated)) == times
        ),
        "HistoryTruncated",
    )
    return stage.event_data(HistoryTruncated)[-1]


def memory_is_the_log(stage):
    return stage.leader.committed == stage.leader.pending_state == fold(EMPTY, stage.events())


async def test_an_append_notices(stage):
    """The head has moved back: lease taken anew above every epoch, memory dropped, loss recorded first."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    lost = stage.events()[-1]
    stage.database.restore(backup)
    with pytest.raises(NotLeading):
        await stage.leader.append([draft("next")])
    event = await noticed(stage)
    assert (event.evidence, event.known_position, event.known_event) == ("memory", 2, lost.event_id)
    assert (event.found_position, event.known_epoch) == (1, 1)
    assert [type(f) for f in stage.event_data()] == [LeaseAcquired, LeaseAcquired, HistoryTruncated]
    assert stage.leader.epoch > 1
    assert memory_is_the_log(stage)


async def test_a_renewal_notices(stage):
    """The copy has the lease row of this very leader, so no fence helps: the last event is looked up."""
    await stage.leader.append([draft("kept")])
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    stage.database.restore(backup)
    event = await noticed(stage)
    assert (event.known_position, event.found_position) == (3, 2)
    assert memory_is_the_log(stage)


async def test_another_event_at_the_position_is_a_loss_too(stage):
    """Another leader has appended to the copy since: as long as ours or longer, but not ours."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    await stage.killed()
    stage.database.restore(backup)
    stage.database.renewed_us = None
    async with Stage(database=stage.database, clock=stage.clock, holder="other") as other:
        await other.lead()
        await other.leader.append([draft("theirs")])
        await other.stop_leading()
    stage.start(stage.leader.run())
    event = await noticed(stage)
    assert event.known_position == 2
    assert event.found_position == 3
    assert "another event there" in event.message


async def test_an_epoch_is_never_handed_out_twice(stage):
    """Only takes were lost, no event of ours: the lease row shows it, and the next epoch is above all."""
    backup = stage.database.copy()
    for _ in range(3):
        await stage.leader.lease.acquire()
    assert stage.database.epoch == 4
    stage.database.restore(backup)
    stage.leader.lose("test")
    event = await noticed(stage)
    assert (event.evidence, event.known_epoch, event.found_epoch) == ("epoch", 4, 1)
    assert stage.leader.epoch == 5


async def test_a_restart_notices_by_what_was_published(stage):
    """The process remembers nothing; the end of the log that was published outside is not in it."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost"), draft("lost-too")])
    await LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock).publish()
    published = stage.cluster.anchors[-1]
    assert published.position == 3
    assert published.chain == stage.database.head.chain
    await stage.killed()
    stage.database.restore(backup)
    async with Stage(
        database=stage.database, clock=stage.clock, cluster=stage.cluster, ttl_ms=600
    ) as again:
        await again.lead()
        event = await noticed(again)
        assert (event.evidence, event.known_position, event.known_hash) == (
            "published",
            3,
            published.chain.hex(),
        )
        assert again.leader.epoch > published.epoch
        await again.killed()
    async with Stage(
        database=stage.database, clock=stage.clock, cluster=stage.cluster, ttl_ms=600
    ) as third:
        await third.lead()  # what is published is still the old end: it is recorded once
        assert len(third.event_data(HistoryTruncated)) == 1
        assert third.leader.recovery_reason == ""


async def test_an_epoch_that_was_published_is_not_used_again(stage):
    """An empty database in place of the old one: the first epoch would be one that was held before."""
    await stage.leader.lease.acquire()
    await stage.leader.lease.acquire()
    await LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock).publish()
    assert stage.cluster.anchors[-1].epoch == 3
    await stage.killed()
    async with Stage(
        database=FakeDatabase(stage.clock.now_us), clock=stage.clock, cluster=stage.cluster
    ) as again:
        await again.lead()
        assert (await noticed(again)).found_position == 0
        assert again.leader.epoch == 4
        assert {e.epoch for e in again.events()} == {4}


async def test_a_second_loss_is_noticed_too(stage):
    """Also one that takes the first HistoryTruncated with it."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    stage.database.restore(backup)
    await noticed(stage)
    await stage.leader.append([draft("lost again")])
    epoch = stage.leader.epoch
    stage.database.restore(backup)
    await eventually(lambda: stage.leader.epoch > epoch, "a higher epoch")
    event = await noticed(stage)
    assert event.known_epoch == epoch
    assert memory_is_the_log(stage)


async def test_a_loss_that_cannot_be_recorded_at_once_is_recorded_later(stage):
    """The append that records it fails: it is not forgotten, and nothing is admitted meanwhile."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    stage.database.restore(backup)
    stage.log.lose_next_append()  # of the event that records it
    event = await noticed(stage)
    assert event.known_position == 2
    assert stage.leader.recovery_reason
    await stage.one_pass()
    assert not stage.leader.recovery_reason


async def test_nothing_is_promised_before_the_cluster_was_compared(stage):
    """Admitted, one of two bound, then the copy from before: no admission, no effect, no answer until a pass has run."""
    backup = stage.database.copy()
    stage.start(stage.parts.nominator.run())
    await stage.settled()
    await eventually(lambda: len(stage.cluster.did("remove_gate")) == 2, "nominated and let go")
    node = stage.reserved_node("a-0")
    plan = stage.root("a").plan
    stage.cluster.change_pod("a-0", node=node, nominated=None, phase="Running", plan=plan)
    member = stage.cluster.pod("a-1")
    bind = stage.bind("a-1")
    await asyncio.sleep(0)
    stage.cluster.doubted = "the API server has not answered for 20 s"
    stage.database.restore(backup)
    done = len(stage.cluster.calls)
    event = await noticed(stage)
    assert not stage.leader.may_act()
    check = next(c for c in stage.extender_service.checks() if c.name == "history")
    assert not check.ok
    assert event.message in check.reason
    stage.cluster.doubted = ""
    with pytest.raises(NotReady, match="history lost"):
        stage.extender_service.filter(member, NODES)
    admitted = GangAdmitted(
        plan=PlanId("p"), kind="PodGroup", priority=0, groups=(), shapes=(), assignments=()
    )
    with pytest.raises(NotLeading, match="history lost"):
        await stage.leader.append(
            [NewEvent(gang_uid=GangUid("x"), gang="ns/x", data=admitted, actor="t")]
        )
    assert not stage.leader.committed.claims_on
    assert len(stage.cluster.calls) == done

    await stage.one_pass()
    names = stage.names()
    recorded = names.index("HistoryTruncated")
    assert names.index("PodBound") > recorded
    assert names.index("GangAdmitted") > names.index("PodBound")
    assert stage.leader.may_act()
    (bound,) = stage.event_data(PodBound)
    assert (bound.pod, bound.node, bound.plan) == ("default/a-0", node, plan)
    assert stage.event_data(DriftDetected)
    assert "an older copy" in await bind
    where = stage.where("a")
    assert set(where) == {"a-1"}
    assert where["a-1"] != node, "the capacity of the bound member is not given twice"
    assert stage.extender_service.filter(member, NODES).passed == (where["a-1"],)


async def test_a_nomination_whose_admission_is_lost_is_taken_back(stage):
    """A nominated member whose admission is lost and that finds no capacity now loses its nomination."""
    backup = stage.database.copy()
    stage.start(stage.parts.nominator.run())
    await stage.settled()
    await eventually(lambda: len(stage.cluster.did("remove_gate")) == 2, "nominated and let go")
    for node in NODES:
        stage.cluster.change_node(node, unschedulable=True)
    stage.database.restore(backup)
    await noticed(stage)
    await stage.one_pass()
    await eventually(
        lambda: all(stage.cluster.pod(p).nominated is None for p in ("a-0", "a-1")), "cleared"
    )
    assert not stage.leader.committed.claims_on


async def test_it_waits_for_what_was_published(stage):
    """While the API server does not answer what was published, the lease is held and nothing is admitted."""
    await stage.killed()
    stage.cluster.fault = lambda verb, name: (
        ClusterUnavailable("no answer") if verb == "published" else None
    )
    async with Stage(database=stage.database, clock=stage.clock, cluster=stage.cluster) as again:
        again.start(again.leader.run())
        await eventually(lambda: "cannot be read" in again.leader.not_leading_reason, "the reason")
        assert "published end of the log" in again.leader.not_ready_reason()
        assert not again.leader.may_act()
        stage.cluster.fault = lambda verb, name: None
        await eventually(lambda: again.leader.role == "leading", "leading")


async def test_an_older_copy_is_not_published(stage):
    """What is published stays the truth until the leader has noticed."""
    backup = stage.database.copy()
    await stage.leader.append([draft("lost")])
    publisher = LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock)
    await publisher.publish()
    stage.database.restore(backup)
    await publisher.publish()
    assert stage.cluster.anchors[-1].position == 2


async def test_an_effect_of_a_lost_admission_is_not_carried_out_later(stage):
    """Queued before the loss, taken up after the comparison: the reservation is not in the log any more."""
    backup = stage.database.copy()
    await stage.one_pass()
    assert len(stage.parts.nominator._queue._ready) == 2
    stage.database.restore(backup)
    await noticed(stage)
    stage.leader.end_recovery(stage.leader.terms)
    assert stage.leader.may_act()
    stage.start(stage.parts.nominator.run())
    await eventually(stage.parts.nominator._queue.empty, "worked off")
    await asyncio.sleep(0)
    assert stage.cluster.did("nominate") == []


@pytest.mark.parametrize("lost", ["answer", "append"])
async def test_after_a_lost_answer_the_published_hash_is_still_our_own(stage, lost):
    """What was found in the log is verified from the last own event on; then it is published."""
    await stage.leader.append([draft("before")])
    getattr(stage.log, f"lose_next_{lost}")()
    with contextlib.suppress(StoreUnavailable):
        await stage.leader.append([draft("unknown")])
    await eventually(
        lambda: stage.leader.role == "leading" and not stage.leader.appends.in_flight, "settled"
    )
    publisher = LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock)
    await publisher.publish()
    newest, head = stage.cluster.anchors[-1], stage.database.head
    assert (newest.position, newest.chain) == (head.position, head.chain)
    assert newest.first == stage.database.rows[0][1]


async def test_an_anchor_with_a_wrong_signature_is_no_evidence(stage):
    """With a key: a forged anchor causes no loss of history, and is left out of what is published next."""
    keys = parse_keys(make_key()[0], "k")
    publisher = LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock, keys)
    await publisher.publish()
    (mine,) = stage.cluster.anchors
    forged = msgspec.structs.replace(mine, chain=bytes(32), position=Position(99))
    stage.cluster.anchors = (mine, forged)
    await stage.killed()
    async with Stage(database=stage.database, clock=stage.clock, cluster=stage.cluster) as again:
        again.leader.history.keys = keys
        await again.lead()
        assert again.event_data(HistoryTruncated) == []
        history = again.leader.history
        assert (history.anchors, history.forged) == ((mine,), (forged,))


async def test_a_stop_publishes_the_end_and_then_releases_the_lease(stage):
    """What was appended last is an anchor when the lease is released."""
    publisher = LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock)
    await publisher.publish()
    await stage.leader.append([draft("last")])
    await stage.leader.release_lease(publisher.publish_last)
    assert stage.cluster.anchors[-1].position == stage.database.head.position
    assert stage.leader.lease.grant is None


async def test_a_stop_does_not_wait_for_a_cluster_that_does_not_answer(stage, monkeypatch, caplog):
    """The lease is released all the same, and the log has the position that was not published."""
    monkeypatch.setattr("extender.control.log.log_head_publisher.LAST_WITHIN_S", 0.01)
    publisher = LogHeadPublisher(stage.leader, stage.log, stage.cluster, stage.clock)
    await stage.leader.append([draft("last")])
    monkeypatch.setattr(stage.cluster, "publish", lambda _: asyncio.Event().wait())
    await stage.leader.release_lease(publisher.publish_last)
    assert stage.leader.lease.grant is None
    (line,) = [r for r in caplog.records if "not published before the stop" in r.message]
    assert (line.position, line.published) == (stage.database.head.position, 0)
    assert line.reason == "no answer within 0.01 s"
