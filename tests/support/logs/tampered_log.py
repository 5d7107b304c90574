"""A filled database with everything beside the log, and each of the twelve ways to tamper with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from extender.core.log.anchors import Anchor, with_anchor
from extender.core.log.events import GangRemoved, GangUnschedulable
from extender.core.log.tampering import TamperKind
from extender.core.model.ids import Epoch, Position
from extender.core.planner.codec.request_codec import digest_of
from extender.ports.log_ports import DecisionInput, LogHead
from extender.runtime.log_keys import LogKeys, make_key, parse_keys
from extender.snapshots.state_loader import load_state, save_snapshot
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.engine import create_engine
from extender.store.interval_projection import PostgresIntervalProjection
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.logs.example_log import write_tuesday
from tests.support.logs.fake_store import Script
from tests.support.logs.tampering import as_owner, rehash, rewrite, tamper

HOLDER = "gang-extender-0"  # of `write_tuesday`, too


class FilledLog:
    """A log with a decision whose input is stored, snapshots, interval tables, and signed anchors of three positions."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = make_key()[0]
        self.keys: LogKeys = parse_keys(self.key, "test")
        self.anchors: tuple[Anchor, ...] = ()
        self.decision = Position(0)

    async def fill(self) -> FilledLog:
        """Write everything."""
        await write_tuesday(self.url)
        engine = create_engine(self.url, name="test")
        async with PostgresEventLog(self.url) as log:
            grant = await log.take(holder=HOLDER, address="", ttl_ms=60_000)
            inputs = PostgresDecisionInputs(engine)
            digest = digest_of(b"head", [b"part"])
            await inputs.save(DecisionInput(digest=digest, head=b"head", parts=(b"part",)))
            data = GangUnschedulable(outcome="impossible", reasons=("no",), input_digest=digest)
            script = Script(grant)
            event = script.next(data)
            await log.append(grant, [event])
            self.decision = event.position
            some = script.some(20)
            await log.append(grant, [*some, script.next(GangRemoved(reason="deleted"))])
            head = await log.head()
            snapshots = PostgresSnapshots(engine, self.keys)
            for position in (Position(10), head.position):
                state = await load_state(log, snapshots, until=position)
                at = await log.at(position)
                assert at is not None
                await save_snapshot(snapshots, state, at)
            projection = PostgresIntervalProjection(engine)
            await projection.project(head.position, max_events=100_000)
            for position in (5, self.decision, head.position):
                await self._anchor(log, Position(position), grant.epoch)
            await log.release(grant)
        await engine.dispose()
        return self

    async def _anchor(self, log: PostgresEventLog, position: Position, epoch: Epoch) -> None:
        at, first = await log.at(position), await log.at(Position(1))
        assert at is not None
        assert first is not None
        anchor = Anchor(position=position, epoch=epoch, chain=at.chain, first=first.chain)
        self.anchors = with_anchor(self.anchors, self.keys.sign(anchor))

    async def head(self) -> LogHead:
        """Return the end of the log."""
        async with PostgresEventLog(self.url) as log:
            return await log.head()


async def delete_tail(log: FilledLog) -> None:
    """Delete the newest events, and everything that was made from them."""
    await tamper(
        log.url,
        "DELETE FROM gx.event WHERE position > (SELECT max(position) - 5 FROM gx.event)",
        "UPDATE gx.projection SET position = (SELECT max(position) FROM gx.event)",
    )


async def truncate(log: FilledLog) -> None:
    """Empty the log."""
    await tamper(log.url, "TRUNCATE gx.event", "SELECT gx.reset_projection()")


async def rewrite_all(log: FilledLog) -> None:
    """Change an early event, and compute all later hashes again."""
    await rewrite(log.url, 7)


async def edit(log: FilledLog) -> None:
    """Change one column of one row."""
    await tamper(log.url, "UPDATE gx.event SET gang = 'ns/other' WHERE position = 9")


async def make_hole(log: FilledLog) -> None:
    """Delete an event in the middle."""
    await tamper(log.url, "DELETE FROM gx.event WHERE position = 9")


async def swap(log: FilledLog) -> None:
    """Put another log in its place: all events are others."""
    async with as_owner(log.url) as connection:
        await connection.execute("UPDATE gx.event SET event_id = gen_random_uuid()")
        await rehash(connection, 1)


async def restore_older(log: FilledLog) -> None:
    """Put an older copy in its place: the lease row is of then, too."""
    await delete_tail(log)
    await tamper(log.url, "UPDATE gx.lease SET epoch = epoch - 1")


async def forge_projection(log: FilledLog) -> None:
    """Change where a pod ran."""
    await tamper(
        log.url,
        "UPDATE gx.placement SET node = 'elsewhere' WHERE (pod_uid, from_position) = "
        "(SELECT pod_uid, from_position FROM gx.placement ORDER BY from_position, pod_uid LIMIT 1)",
    )


async def forge_snapshot(log: FilledLog) -> None:
    """Put another state into a snapshot, with the right SHA-256, as gx_writer can."""
    async with as_owner(log.url) as connection:
        other = await connection.fetchval(
            "SELECT body FROM gx.snapshot WHERE codec LIKE 'state%' ORDER BY position DESC LIMIT 1"
        )
        await connection.execute(
            "UPDATE gx.snapshot SET body = $1, sha256 = sha256($1), mac = NULL "
            "WHERE position = 10 AND codec LIKE 'state%'",
            other,
        )


async def delete_input(log: FilledLog) -> None:
    """Delete the input of a decision."""
    await tamper(log.url, "DELETE FROM gx.decision_input")


async def forge_epoch(log: FilledLog) -> None:
    """Set the lease row back."""
    await tamper(log.url, "UPDATE gx.lease SET epoch = 0")


async def forge_anchor(log: FilledLog) -> None:
    """Change the newest anchor, as a thief of the right to write the ConfigMap can."""
    *others, newest = log.anchors
    log.anchors = (*others, msgspec.structs.replace(newest, chain=bytes(32)))


TAMPERINGS: Mapping[TamperKind, Callable[[FilledLog], Awaitable[None]]] = {
    "tail-deleted": delete_tail,
    "log-truncated": truncate,
    "rewritten": rewrite_all,
    "edited-row": edit,
    "hole": make_hole,
    "other-database": swap,
    "older-copy": restore_older,
    "forged-projection": forge_projection,
    "forged-snapshot": forge_snapshot,
    "missing-input": delete_input,
    "forged-epoch": forge_epoch,
    "forged-anchor": forge_anchor,
}
