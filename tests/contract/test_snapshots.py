"""What every `Snapshots` promises, the fake and the real one."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import Position
from extender.ports.log_ports import Snapshot
from extender.runtime.log_keys import make_key, parse_keys
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeSnapshots, Script
from tests.support.logs.tampering import tamper

LADDER = {
    "snapshot_spacing": 2,
    "old_snapshots_max": 4,
}  # stretches of 2 events up to position 8, of 4 behind


@pytest.fixture
async def store(store_url):
    if store_url is None:
        database = FakeDatabase()
        yield FakeEventLog(database), FakeSnapshots(database, **LADDER)
        return
    engine = ConnectionPool(store_url, name="test")
    async with PostgresEventLog(store_url) as log:
        yield log, PostgresSnapshots(engine, **LADDER)
    await engine.close()


@pytest.fixture
async def made(store):
    """A log of ten events and one checkpoint for each position."""
    log, _ = store
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    script = Script(grant)
    possible = {}
    for _ in range(10):
        await log.append(grant, script.some(1))
        head = await log.head()
        possible[int(head.position)] = Snapshot(
            position=head.position,
            chain=head.chain,
            codec="state.v1",
            body=bytes([head.position]) * 5000,
        )
    return possible


async def test_nothing_saved_nothing_found(store):
    assert await store[1].newest(codec="state.v1") is None


async def test_the_newest_of_a_codec_comes_back(store, made):
    _, snapshots = store
    for position in (2, 5, 4):
        await snapshots.save(made[position])
    assert await snapshots.newest(codec="state.v1") == made[5]
    assert await snapshots.newest(codec="state.v2") is None


async def test_three_are_kept(store, made):
    _, snapshots = store
    for position in (1, 2, 3, 4):
        await snapshots.save(made[position])
    for position in (2, 3, 4):
        await snapshots.save(msgspec.structs.replace(made[position], codec="state.v2"))
    assert await snapshots.newest(codec="state.v2") is not None
    newest = await snapshots.newest(codec="state.v1")
    assert newest in (made[4], made[3])


async def found(snapshots, codec="state.v1"):
    """Return the positions of all that are kept, looked for from every position."""
    made = [await snapshots.newest(codec=codec, until=Position(n)) for n in range(11)]
    return sorted({snapshot.position for snapshot in made if snapshot})


async def test_none_that_is_newer_than_asked_for(store, made):
    _, snapshots = store
    for position in (3, 5, 9):
        await snapshots.save(made[position])
    assert await snapshots.newest(codec="state.v1", until=Position(8)) == made[5]
    assert await snapshots.newest(codec="state.v1", until=Position(5)) == made[5]
    for before_all in (0, 2):
        assert await snapshots.newest(codec="state.v1", until=Position(before_all)) is None


async def test_one_is_kept_for_each_stretch_of_the_log(store, made):
    """The first of each stretch and the newest three; every second older one goes when there are too many."""
    _, snapshots = store
    for position in range(1, 9):
        await snapshots.save(made[position])
    assert await found(snapshots) == [1, 2, 4, 6, 7, 8]
    await snapshots.save(made[9])
    assert await found(snapshots) == [1, 4, 7, 8, 9]
    await snapshots.save(made[10])
    assert await found(snapshots) == [1, 4, 8, 9, 10]


async def test_older_snapshots_of_another_codec_are_not_kept(store, made):
    """They are of use to the version that wrote them only, and it makes them again; it can still start."""
    _, snapshots = store
    for position in (1, 2, 3, 4, 5):
        await snapshots.save(msgspec.structs.replace(made[position], codec="state.v0"))
    for position in (6, 7, 8):
        await snapshots.save(made[position])
    assert await found(snapshots, "state.v0") == [3, 4, 5]
    assert await found(snapshots) == [6, 7, 8]


async def test_of_others_beside_it_only_the_newest_three_are_kept(store, made):
    """They need not be saved as often, and stay meanwhile; the ladder is made of the first."""
    _, snapshots = store
    for position in range(1, 9):
        beside = msgspec.structs.replace(made[position], codec="whole.v1", body=b"w" * 5000)
        await snapshots.save(made[position], *[beside][position % 2 :])
    assert await found(snapshots) == [1, 2, 4, 6, 7, 8]
    assert await found(snapshots, "whole.v1") == [4, 6, 8]
    assert (await snapshots.newest(codec="whole.v1")).body == b"w" * 5000


async def test_all_are_deleted(store, made):
    """Those of each codec; one that is saved afterwards is there."""
    _, snapshots = store
    for position in (2, 4):
        await snapshots.save(
            made[position], msgspec.structs.replace(made[position], codec="state.v2")
        )
    await snapshots.delete_all()
    for codec in ("state.v1", "state.v2"):
        assert await snapshots.newest(codec=codec) is None
    await snapshots.save(made[3])
    assert await snapshots.newest(codec="state.v1") == made[3]


async def test_saving_again_replaces(store, made):
    _, snapshots = store
    await snapshots.save(made[3])
    again = msgspec.structs.replace(made[3], body=b"other")
    await snapshots.save(again)
    assert await snapshots.newest(codec="state.v1") == again


async def test_a_checkpoint_of_another_history_is_not_used(store, made):
    """After a fail-over that lost events the positions are the same, the hashes are not."""
    _, snapshots = store
    await snapshots.save(made[2])
    await snapshots.save(msgspec.structs.replace(made[9], chain=made[8].chain))
    await snapshots.save(msgspec.structs.replace(made[9], position=Position(12)))
    assert await snapshots.newest(codec="state.v1") == made[2]


@pytest.mark.postgres
async def test_a_snapshot_without_the_hmac_of_a_key_is_not_used(database_url, caplog):
    """With a key: none that was saved without it or with another one, or was changed since; and a line names it."""
    keys, others = (parse_keys(make_key()[0], "k") for _ in range(2))
    engine = ConnectionPool(database_url, name="test")
    async with PostgresEventLog(database_url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        await log.append(grant, Script(grant).some(4))
        heads = [await log.at(Position(position)) for position in range(1, 5)]
    saved = [Snapshot(position=h.position, chain=h.chain, codec="c", body=b"b") for h in heads]
    mine = PostgresSnapshots(engine, keys)
    await mine.save(saved[0])
    await PostgresSnapshots(engine).save(saved[1])
    await PostgresSnapshots(engine, others).save(saved[2])
    assert await mine.newest(codec="c") == saved[0]
    assert [record.position for record in caplog.records] == [3, 2]
    assert await PostgresSnapshots(engine).newest(codec="c") == saved[2]
    await mine.save(saved[3])
    await tamper(
        database_url, "UPDATE gx.snapshot SET body = 'x', sha256 = sha256('x') WHERE position = 4"
    )
    assert await mine.newest(codec="c") is None, "the others are not among the newest three"
    await engine.close()
