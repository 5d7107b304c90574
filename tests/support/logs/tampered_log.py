"""A filled database with everything beside the log, and each of the ways to tamper with it."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from extender.core.log.anchors import Anchor, with_anchor
from extender.core.log.events import GangRemoved, GangUnschedulable
from extender.core.log.tampering import TamperKind
from extender.core.model.ids import Epoch, Position
from extender.core.planner.codec.request_codec import digest_of
from extender.core.planner.plan_types import DecisionInput
from extender.ports.log_ports import LogHead
from extender.runtime.log_keys import LogKeys, make_key, parse_keys
from extender.snapshots.state_loader import load_state, save_snapshot
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.schema_migration import migration_statements, newest_revision
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
        engine = ConnectionPool(self.url, name="test")
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
            projection = PostgresReadModels(engine)
            await projection.project(head.position, max_events=100_000)
            await PostgresReadModels(engine).index(100_000)
            for position in (5, self.decision, head.position):
                await self._anchor(log, Position(position), grant.epoch)
            await log.release(grant)
        await engine.close()
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
        "DELETE FROM gx.event_reference WHERE position > (SELECT max(position) FROM gx.event)",
        "UPDATE gx.event_reference_cursor SET position = (SELECT max(position) FROM gx.event)",
    )


async def truncate(log: FilledLog) -> None:
    """Empty the log."""
    await tamper(
        log.url,
        "TRUNCATE gx.event, gx.event_reference",
        "SELECT gx.reset_projection()",
        "UPDATE gx.event_reference_cursor SET position = 0",
    )


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


async def change_part(log: FilledLog, *, digest: bool = False) -> None:
    """Change the body of a part of an input; with `digest` the digest beside it, too."""
    body = zlib.compress(b"another part")
    also = f", digest = sha256('{'another part'}')" if digest else ""
    async with as_owner(log.url) as connection:
        await connection.execute(
            f"UPDATE gx.decision_input_chunk SET body = $1{also} WHERE digest = sha256('part')",
            body,
        )


async def add_reference(log: FilledLog) -> None:
    """Add a node to the index that an event does not name."""
    await tamper(log.url, "INSERT INTO gx.event_reference VALUES ('node', 'elsewhere', 8)")


async def change_view(log: FilledLog) -> None:
    """Hide the trees of one tenant from those who ask how long trees wait."""
    text = await fetched(log.url, "SELECT pg_get_viewdef('gx.v_pending'::regclass)")
    hidden = text.rstrip("; \n") + " AND NOT s.gang LIKE 'ml/%'"
    await tamper(log.url, f"CREATE OR REPLACE VIEW gx.v_pending AS {hidden}")


async def change_unplanned(
    log: FilledLog, *, view: str = "gx.v_largest_free", text: str, by: str
) -> None:
    """Change in a view what no plan shows, in the text of its migration."""
    statements = migration_statements(newest_revision())
    whole = [one for one in statements if f"CREATE VIEW {view} AS" in one][-1]
    assert text in whole
    changed = whole.replace("CREATE VIEW", "CREATE OR REPLACE VIEW").replace(text, by)
    await tamper(log.url, changed)


async def change_function(log: FilledLog, *, text: str = "RAISE EXCEPTION", by: str) -> None:
    """Change the definition of the function behind the triggers that refuse changes."""
    whole = await fetched(log.url, "SELECT pg_get_functiondef('gx.refuse_change'::regproc)")
    assert text in whole
    await tamper(log.url, whole.replace(text, by))


async def fetched(url: str, question: str) -> str:
    """Return one value of the database."""
    async with as_owner(url) as connection:
        return str(await connection.fetchval(question))


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
    "forged-input": change_part,
    "forged-reference": add_reference,
    "forged-definition": change_view,
}


def _runs(*statements: str) -> Callable[[FilledLog], Awaitable[None]]:
    async def run(log: FilledLog) -> None:
        await tamper(log.url, *statements)

    return run


# Other ways to the same kinds: the kind, a word of the message, and the way
VARIANTS: Mapping[str, tuple[TamperKind, str, Callable[[FilledLog], Awaitable[None]]]] = {
    "changed part with its digest": (
        "forged-input", "digest", partial(change_part, digest=True),
    ),
    "part that is no archive": (
        "forged-input", "part", _runs("UPDATE gx.decision_input_chunk SET body = 'x'"),
    ),
    "list of other parts": (
        "forged-input", "list", _runs("UPDATE gx.decision_input SET parts = 'x'"),
    ),
    "deleted part": (
        "missing-input", "part", _runs("DELETE FROM gx.decision_input_chunk WHERE digest = sha256('part')"),
    ),
    "reason of an end that has not come": (
        "forged-projection", "end_reason 'deleted'", _runs("UPDATE gx.placement SET end_reason = 'deleted' WHERE to_position IS NULL"),
    ),
    "end behind the log": (
        "forged-projection", "to_position 900000", _runs("UPDATE gx.gang_state SET to_position = 900000 WHERE to_position IS NULL"),
    ),
    "rows behind what was projected": (
        "forged-projection", "1 row", _runs(
            "UPDATE gx.projection SET position = (SELECT max(from_position) - 1 FROM gx.gang_state)"
        ),
    ),
    "bytes behind a part": (
        "forged-input", "part", _runs("UPDATE gx.decision_input_chunk SET body = body || '\\x00'::bytea"),
    ),
    "bytes behind a list of parts": (
        "forged-input", "list", _runs("UPDATE gx.decision_input SET parts = parts || '\\x00'::bytea"),
    ),
    "missing reference": (
        "forged-reference", "lacks", _runs(
            "DELETE FROM gx.event_reference WHERE ctid = (SELECT ctid FROM gx.event_reference ORDER BY position LIMIT 1)"
        ),
    ),
    "reference to another node": (
        "forged-reference", "elsewhere", _runs(
            "UPDATE gx.event_reference SET name = 'elsewhere' WHERE ctid = "
            "(SELECT ctid FROM gx.event_reference WHERE kind = 'node' ORDER BY position LIMIT 1)"
        ),
    ),
    "reference behind the index": (
        "forged-reference", "1 row", _runs("INSERT INTO gx.event_reference VALUES ('node', 'n', 900000)"),
    ),
    "deleted tail of an indexed log": (
        "tail-deleted", "weaker finding", _runs(
            "DELETE FROM gx.event WHERE position > (SELECT max(position) - 5 FROM gx.event)",
            "UPDATE gx.projection SET position = (SELECT max(position) FROM gx.event)",
        ),
    ),
    "index that claims to be done": (
        "forged-reference", "the log ends", _runs("UPDATE gx.event_reference_cursor SET position = 900000"),
    ),
    "changed function": ("forged-definition", "gx.refuse_change", partial(change_function, by="RAISE NOTICE")),
    "function with other rights": (
        "forged-definition", "gx.refuse_change", partial(change_function, text="LANGUAGE plpgsql", by="LANGUAGE plpgsql SECURITY DEFINER"),
    ),
    "dropped function": ("forged-definition", "gx.reset_projection", _runs("DROP FUNCTION gx.reset_projection()")),
    "added overload": (
        "forged-definition", "gx.project_end",
        _runs("CREATE FUNCTION gx.project_end(text) RETURNS text LANGUAGE sql AS 'SELECT $1'"),
    ),
    "dropped trigger": (
        "forged-definition", "refuse_change", _runs("DROP TRIGGER refuse_change ON gx.event"),
    ),
    "disabled trigger": (
        "forged-definition", "refuse_truncate", _runs("ALTER TABLE gx.decision_input DISABLE TRIGGER refuse_truncate"),
    ),
    "added trigger": (
        "forged-definition", "hide",
        _runs("CREATE TRIGGER hide BEFORE INSERT ON gx.placement FOR EACH ROW EXECUTE FUNCTION gx.refuse_change()"),
    ),
    "operator that fits better": (
        "forged-definition", "operator gx.||", _runs(
            "CREATE FUNCTION public.joined(text, bigint) RETURNS text LANGUAGE sql AS 'SELECT $1'",
            "CREATE OPERATOR gx.|| (LEFTARG = text, RIGHTARG = bigint, FUNCTION = public.joined)",
        ),
    ),
    "rule": (
        "forged-definition", "rule",
        _runs("CREATE RULE hide AS ON INSERT TO gx.event_reference DO INSTEAD NOTHING"),
    ),
    "row security": (
        "forged-definition", "gx.gang_state", _runs("ALTER TABLE gx.gang_state ENABLE ROW LEVEL SECURITY"),
    ),
    "table in the place of a view": (
        "forged-definition", "gx.v_victim", _runs("DROP VIEW gx.v_victim", "CREATE TABLE gx.v_victim (pod text)"),
    ),
    "dropped view": ("forged-definition", "gx.v_victim", _runs("DROP VIEW gx.v_victim")),
    "view with another limit": (
        "forged-definition", "LIMIT 2", partial(change_unplanned, text="LIMIT 1", by="LIMIT 2"),
    ),
    "view with an offset": (
        "forged-definition", "OFFSET 1", partial(change_unplanned, text="LIMIT 1", by="LIMIT 1 OFFSET 1"),
    ),
    "view of other keys under the same names": (
        "forged-definition", "keys: nothing", partial(
            change_unplanned, view="gx.v_largest_free_used",
            text="FROM json_to_record(a.payload) AS d (assignments jsonb, shapes jsonb, topology jsonb)",
            by="FROM ROWS FROM (json_to_record(a.payload) AS (nothing jsonb, shapes jsonb, topology jsonb)) "
            "AS d (assignments, shapes, topology)",
        ),
    ),
    "view of a function elsewhere": (
        "forged-definition", "gx.v_leader_term", _runs(
            "CREATE FUNCTION public.always() RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'",
            "CREATE OR REPLACE VIEW gx.v_leader_term AS SELECT e.epoch, "
            "timestamptz 'epoch' + e.at_us * interval '1 microsecond' AS since, e.position AS first_position, "
            "e.payload ->> 'holder' AS holder, e.payload ->> 'address' AS address, "
            "e.payload ->> 'previous_holder' AS previous_holder "
            "FROM gx.event e WHERE e.type = 'LeaseAcquired' AND public.always()",
        ),
    ),
    "view with the rights of its reader": (
        "forged-definition", "gx.v_event", _runs("ALTER VIEW gx.v_event SET (security_invoker = true)"),
    ),
    "rights for everyone": (
        "forged-definition", "PUBLIC", _runs("GRANT EXECUTE ON FUNCTION gx.append TO PUBLIC"),
    ),
    "right to change the log": (
        "forged-definition", "gx_auditor", _runs("GRANT DELETE ON gx.event TO gx_auditor"),
    ),
    "all names of the index": (
        "forged-reference", "more events of which names are lacking", _runs("DELETE FROM gx.event_reference"),
    ),
}  # fmt: skip

# What no verification finds; docs/security.md lists these rows.
NOT_FOUND: Mapping[str, Callable[[FilledLog], Awaitable[None]]] = {
    "columns that no answer is made from": _runs(
        "UPDATE gx.lease SET lease_id = gen_random_uuid(), holder = 'x', address = 'x', renewed_at = 'epoch', ttl_ms = 1, timeline = 'x'",
        "UPDATE gx.projection SET at_us = 1, projected_at = 'epoch'",
        "UPDATE gx.decision_input SET saved_at = 'epoch'",
        "UPDATE gx.snapshot SET saved_at = 'epoch'",
        "UPDATE gx.migration SET oldest_compatible = 'x'",
    ),
    "inputs behind a forged record of pruning": _runs(
        "DELETE FROM gx.decision_input",
        "INSERT INTO gx.pruning VALUES (1, 4000000000000000, gen_random_uuid())",
    ),
    "an input that no decision names": _runs(
        "INSERT INTO gx.decision_input (digest, parts) SELECT 'x', parts FROM gx.decision_input"
    ),
    "columns, constraints and indexes": _runs(
        "ALTER TABLE gx.event ADD COLUMN note text",
        "ALTER TABLE gx.event DROP CONSTRAINT event_position_check",
        "DROP INDEX gx.event_gang_position_idx",
    ),
    "comments": _runs("COMMENT ON VIEW gx.v_pending IS 'of no use'"),
    "owners": _runs("ALTER FUNCTION gx.refuse_change() OWNER TO gx_owner"),
    "added views and tables": _runs(
        "CREATE TABLE gx.mine (x int)", "CREATE VIEW gx.v_mine AS SELECT * FROM gx.event"
    ),
    "rights to read": _runs("GRANT SELECT ON gx.event TO gx_auditor"),
    "rights that are not there yet": _runs(
        "ALTER DEFAULT PRIVILEGES IN SCHEMA gx GRANT ALL ON TABLES TO gx_auditor"
    ),
    "a policy without row security": _runs("CREATE POLICY hide ON gx.event USING (false)"),
    "an epoch ahead": _runs("UPDATE gx.lease SET epoch = epoch + 5"),
    "a snapshot behind the end": _runs(
        "UPDATE gx.snapshot SET position = 900000 WHERE position = 10"
    ),
    "a snapshot that is never loaded": _runs(
        "UPDATE gx.snapshot SET chain = 'x', mac = NULL WHERE position = 10",
        "UPDATE gx.snapshot SET codec = 'x' || codec, position = position - 1 WHERE position > 10",
    ),
    "the server around the schema": _runs(
        "CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION public.note()",
        "CREATE CAST (json AS xml) WITH INOUT AS ASSIGNMENT",
    ),
    "a change that was undone": _runs(
        "ALTER TABLE gx.event DISABLE TRIGGER refuse_change",
        "ALTER TABLE gx.event ENABLE TRIGGER refuse_change",
    ),
}
