"""Memory that has left the log is found, recorded, and put right."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.control.monitors import state_verifier
from extender.control.monitors.state_verifier import StateVerifier
from extender.core.log.events import DriftDetected, NewEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import AlteredEvent, NotLeading
from extender.core.model.ids import NIL_GANG
from extender.snapshots.state_loader import save_snapshot
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually


@pytest.fixture
async def stage():
    async with Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)) as made:
        await made.lead()
        await made.one_pass()
        yield made


def watch(stage):
    return StateVerifier(stage.leader, stage.log, stage.snapshots)


async def test_agreement_gives_no_event(stage):
    """No event for a look that finds nothing."""
    position = stage.leader.committed.position
    assert not await watch(stage).look()
    assert stage.leader.committed.position == position


@pytest.mark.parametrize("plant", ["reservation", "index", "time", "version"])
async def test_memory_that_has_left_the_log_is_found_and_put_right(stage, plant):
    """A root that was dropped, an index that lost a node: DriftDetected in the log, memory is its fold."""
    leader = stage.leader
    good = leader.committed
    (root,) = good.gangs.values()
    assert len(root.reservations) == 2
    emptied = msgspec.structs.replace(root, reservations=Map())
    leader.appends.committed = {
        "reservation": msgspec.structs.replace(good, gangs=good.gangs.set(root.uid, emptied)),
        "index": msgspec.structs.replace(good, claims_on=Map()),
        "time": msgspec.structs.replace(good, gangs=Map()),
        "version": msgspec.structs.replace(
            good, stream_versions=good.stream_versions.set(root.uid, 77)
        ),
    }[plant]
    assert await watch(stage).look()
    events = [e.data for e in stage.events() if isinstance(e.data, DriftDetected)]
    assert [f.kind for f in events] == ["memory"]
    assert leader.committed == fold(EMPTY, stage.events()) == leader.pending_state
    assert not await watch(stage).look()


async def test_memory_that_cannot_be_continued_is_folded_anew(stage):
    """A stream version that is wrong in memory: the append is in the log, the leader replays and goes on."""
    leader = stage.leader
    leader.appends.committed = msgspec.structs.replace(
        leader.committed, stream_versions=leader.committed.stream_versions.set(NIL_GANG, 77)
    )
    event = DriftDetected(kind="test", object="x", message="y")
    draft = NewEvent(gang_uid=NIL_GANG, gang="", data=event, actor="test")
    with pytest.raises(NotLeading):
        await leader.append([draft])
    await eventually(lambda: leader.may_record() and not leader.appends.in_flight, "leading again")
    assert leader.committed == fold(EMPTY, stage.events())
    assert [e.data for e in stage.events()].count(event) == 1


async def test_snapshots_of_a_wrong_memory_are_deleted(stage, caplog):
    """One was made before the difference was found, another one was saved after memory was put right."""
    leader = stage.leader
    good = leader.committed
    (root,) = good.gangs.values()
    forged = msgspec.structs.replace(root, phase="scheduled")
    planted = msgspec.structs.replace(good, gangs=good.gangs.set(root.uid, forged))
    assert leader.appends.replace(planted)
    verifier = watch(stage)
    verifier._looks = state_verifier.FROM_START_EVERY - 1
    await save_snapshot(stage.snapshots, planted, stage.database.head)
    assert await verifier.look()
    assert stage.database.snapshots == {}
    right = leader.committed
    planted = msgspec.structs.replace(right, gangs=right.gangs.set(root.uid, forged))
    await save_snapshot(stage.snapshots, planted, stage.database.head)
    assert not await verifier.look()
    assert "snapshots differ from the log: deleted" in caplog.text
    assert stage.database.snapshots == {}
    assert leader.committed is right
    assert stage.names().count("DriftDetected") == 1


async def test_an_append_that_begins_meanwhile_keeps_memory_wrong_no_longer(stage):
    """One is sent while the fold is made, so it cannot replace memory yet: the next one has its events too."""
    leader, read = stage.leader, stage.log.read
    good = leader.committed
    (root,) = good.gangs.values()
    forged = msgspec.structs.replace(root, phase="scheduled")
    assert leader.appends.replace(
        msgspec.structs.replace(good, gangs=good.gangs.set(root.uid, forged))
    )
    appends = []

    def read_beside_an_append(**options):
        if stage.names().count("DriftDetected") == 1:
            event = DriftDetected(kind="test", object="x", message="y")
            draft = NewEvent(gang_uid=NIL_GANG, gang="", data=event, actor="test")
            appends.append(leader.append_nowait([draft]))
        return read(**options)

    stage.log.read = read_beside_an_append
    assert await watch(stage).look()
    assert len(appends) == 1
    await appends[0]
    assert leader.committed == fold(EMPTY, stage.events())
    assert stage.database.snapshots == {}


async def test_while_memory_stays_wrong_snapshots_stay(stage, caplog):
    """The log never rests, so memory is not replaced: one saved now is of wrong memory, and the next look deletes it."""
    leader = stage.leader
    good = leader.committed
    (root,) = good.gangs.values()
    forged = msgspec.structs.replace(root, phase="scheduled")
    planted = msgspec.structs.replace(good, gangs=good.gangs.set(root.uid, forged))
    assert leader.appends.replace(planted)
    await save_snapshot(stage.snapshots, planted, stage.database.head)
    verifier = watch(stage)
    verifier._looks = state_verifier.FROM_START_EVERY - 1
    replace, leader.appends.replace = leader.appends.replace, lambda state: False
    assert await verifier.look()
    assert "memory not replaced" in caplog.text
    assert stage.database.snapshots
    leader.appends.replace = replace
    await save_snapshot(stage.snapshots, leader.committed, stage.database.head)
    verifier._looks = state_verifier.FROM_START_EVERY - 1
    assert await verifier.look()
    assert leader.committed == fold(EMPTY, stage.events())
    assert stage.database.snapshots == {}


async def test_a_forged_snapshot_is_found_once_an_hour(stage):
    """Memory and minute's fold are both made from it and agree; the fold from the first event does not."""
    leader = stage.leader
    (root,) = leader.committed.gangs.values()
    forged = msgspec.structs.replace(root, phase="scheduled")
    planted = msgspec.structs.replace(
        leader.committed, gangs=leader.committed.gangs.set(root.uid, forged)
    )
    assert leader.appends.replace(planted)
    await save_snapshot(stage.snapshots, planted, stage.database.head)
    verifier = watch(stage)
    for _ in range(state_verifier.FROM_START_EVERY - 1):
        assert not await verifier.look()
    assert await verifier.look()
    assert stage.names()[-1] == "DriftDetected"
    assert next(iter(leader.committed.gangs.values())).phase != "scheduled"


async def test_an_altered_event_does_not_end_the_service(stage):
    """The fold from the first event fails on it: that is for the verification of the log to record."""

    def read(**_):
        raise AlteredEvent(1)

    verifier = watch(stage)
    verifier._looks = state_verifier.FROM_START_EVERY - 1
    stage.log.read = read
    assert not await verifier.look()
