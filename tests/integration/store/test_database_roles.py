"""What each role of deploy/postgres can do and cannot, on the embedded server and on the distribution's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import asyncpg
import pytest

from extender.core.model.errors import BadInput
from extender.core.planner.plan_types import DecisionInput
from extender.ports.log_ports import Snapshot
from extender.ports.query_ports import EventFilter
from extender.store import schema_migration
from extender.store.connections import ConnectionPool, plain_url
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.embedded.embedded_server import EmbeddedPostgres
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels, rebuild_projection
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.schema_migration import AUDITOR, WRITER, as_role, excess_rights
from extender.store.snapshot_table import PostgresSnapshots
from tests.integration.store.test_tampering import verified
from tests.support.hypothesis_profile import daily
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import FAST, execute, fresh_database, run, running_postgres
from tests.support.logs.tampered_log import FilledLog, change_part, change_view

pytestmark = pytest.mark.postgres
DEPLOY = Path(__file__).parents[3] / "deploy" / "postgres"
SERVERS = daily(1, [None, *sorted(Path("/usr/lib/postgresql").glob("*/bin"))])
LOGINS = {
    "gx_test_service": "gx_writer",
    "gx_test_migrator": "gx_owner",
    "gx_test_alice": "gx_auditor",
}
TABLES = (
    "event", "lease", "snapshot", "decision_input_chunk", "decision_input", "placement", "gang_state",
    "preemption", "victim", "projection", "pruning", "migration",
)  # fmt: skip
READ_BY_PEOPLE = ("placement", "gang_state", "preemption", "victim", "projection")
DELETED_BY_THE_SERVICE = ("snapshot",)
INSERTED_BY_THE_SERVICE = ("snapshot", "decision_input_chunk", "decision_input")


@pytest.fixture(scope="module", params=SERVERS, ids=lambda p: p.parent.name if p else "session")
def server_url(request, postgres_url):
    if request.param is None:
        yield postgres_url
        return
    with running_postgres(pg_bin=request.param) as server:
        yield server.url


@pytest.fixture
def empty_url(server_url):
    with fresh_database(server_url) as url:
        yield url


@pytest.fixture(scope="module")
def migrated_once(server_url):
    """A database as of `migrated`, for tests that change nothing in it."""
    with fresh_database(server_url) as url:
        run(set_up(url))
        yield url


@pytest.fixture
def migrated(empty_url):
    """A database set up as in deploy/README: roles.sql twice, one login for each role, and migrated by one of them."""
    run(set_up(empty_url))
    return empty_url


async def set_up(url):
    script = (DEPLOY / "roles.sql").read_text()
    await execute(url, script, script, (DEPLOY / "ownership.sql").read_text())
    for login, role in LOGINS.items():
        await execute(
            url,
            f"DO $$ BEGIN CREATE ROLE {login} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            f"GRANT {role} TO {login}",
        )
    with pytest.MonkeyPatch.context() as patch:
        becoming(patch, "gx_test_migrator")
        await schema_migration.upgrade(url)


def becoming(monkeypatch, role):
    """Let every connection that is opened from here on belong to a role."""
    real = asyncpg.connect

    async def connect(*args, **kwargs):
        connection = await real(*args, **kwargs)
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        return connection

    monkeypatch.setattr(asyncpg, "connect", connect)


async def session_as(url, role):
    connection = await asyncpg.connect(plain_url(url))
    await connection.execute(f"SET SESSION AUTHORIZATION {role}")
    return connection


async def refused(connection, *attempts):
    """Each of them alone, and for no other reason than missing rights."""
    for attempt in attempts:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.execute(attempt)
        assert caught.value.sqlstate == "42501", f"{attempt}: {caught.value}"


def changes(tables, *but):
    """Yield a statement for each way to change each table; `but` are those that are allowed."""
    column = {"event": "actor", "lease": "epoch", "snapshot": "body", "decision_input_chunk": "body",
              "decision_input": "parts", "pruning": "before_us", "migration": "version_num"}  # fmt: skip
    for table in tables:
        name = column.get(table, "position" if table != "placement" else "node")
        name = "gang" if table == "gang_state" else name
        ways = {
            (
                "INSERT",
                table,
            ): f"INSERT INTO gx.{table} OVERRIDING SYSTEM VALUE SELECT * FROM gx.{table}",
            ("UPDATE", table): f"UPDATE gx.{table} SET {name} = {name}",
            ("DELETE", table): f"DELETE FROM gx.{table}",
            ("TRUNCATE", table): f"TRUNCATE gx.{table} CASCADE",
            ("ALTER", table): f"ALTER TABLE gx.{table} DISABLE TRIGGER ALL",
            ("DROP", table): f"DROP TABLE gx.{table} CASCADE",
        }
        yield from (text for way, text in ways.items() if way not in but)


WIDER = (
    "SET session_replication_role = replica",
    "CREATE TEMPORARY TABLE t (a int)",
    "CREATE TABLE gx.t (a int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION gx.append_all() RETURNS void LANGUAGE sql AS 'SELECT'",
    "CREATE OR REPLACE VIEW gx.v_event AS SELECT 1 AS position",
    "DROP FUNCTION gx.lease_renew(bigint, uuid)",
    "ALTER FUNCTION gx.lease_renew(bigint, uuid) SECURITY INVOKER",
    "DROP SCHEMA gx CASCADE",
    "SET ROLE gx_owner",
    "GRANT gx_owner TO CURRENT_USER",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "SELECT pg_read_file('postgresql.conf')",
)


async def test_the_service_does_its_part(migrated, monkeypatch):
    """Everything the service asks of its database, as a member of gx_writer and nothing more."""
    url = migrated
    with monkeypatch.context() as patch:
        becoming(patch, "gx_test_service")
        writing, reading = ConnectionPool(url, name="test"), reading_pool(url)
        async with PostgresEventLog(url) as log:
            grant = await log.take(holder="a", address="", ttl_ms=60_000)
            script = Script(grant)
            await log.append(grant, script.some(11))
            await log.append(grant, script.some(1))
            await log.renew(grant)
            head = await log.head()
            assert await log.at(head.position) == head
            assert (await log.lease()).holder == "a"
            async for page in log.read():
                assert len(page) == 12
            await log.release(grant)
        snapshots = PostgresSnapshots(writing)
        made = Snapshot(position=head.position, chain=head.chain, codec="c", body=b"b")
        for _ in range(2):
            await snapshots.save(made)
        assert await snapshots.newest(codec="c") == made
        inputs = PostgresDecisionInputs(writing)
        await inputs.save(DecisionInput(digest="d", head=b"h", parts=(b"p",)))
        assert await inputs.load("d") is not None
        projection = PostgresReadModels(writing)
        assert await projection.project(head.position, max_events=100) == 12
        audit = PostgresEventQueries(reading)
        assert len(await audit.events(EventFilter())) == 12
        assert not await audit.has_node("n")
        assert not await schema_migration.needs_migration(url)
        assert await excess_rights(url) == []
        await writing.close()
        await reading.close()


async def test_what_the_service_cannot_do(migrated_once):
    """Not even what it writes can it write otherwise than through the functions."""
    url = migrated_once
    service = await session_as(url, "gx_test_service")
    allowed = [("INSERT", t) for t in INSERTED_BY_THE_SERVICE]
    allowed += [("DELETE", t) for t in DELETED_BY_THE_SERVICE]
    await refused(service, *changes(TABLES, *allowed), *WIDER)
    for helper in (
        "SELECT gx.project_event(e) FROM gx.event e",
        "SELECT gx.refuse_change()",
        "SELECT gx.expect_head(1, gen_random_uuid(), 1, '', 1)",
    ):
        await refused(service, helper)
    await service.close()


async def test_only_the_migrator_rebuilds_the_interval_tables(migrated, monkeypatch):
    url = migrated
    with monkeypatch.context() as patch:
        becoming(patch, "gx_test_service")
        with pytest.raises(BadInput, match=r"may not rebuild .* use that of `db migrate`"):
            await rebuild_projection(url)
    with monkeypatch.context() as patch:
        becoming(patch, "gx_test_migrator")
        assert await rebuild_projection(url) == 0


async def test_the_service_cannot_read_the_id_of_the_lease(migrated_once):
    """It is the right to append: only the process that acquired the lease has it, by the answer of that function."""
    url = migrated_once
    service = await session_as(url, "gx_test_service")
    await service.fetch(
        "SELECT id, epoch, holder, address, renewed_at, ttl_ms, timeline FROM gx.lease"
    )
    await refused(
        service,
        "SELECT lease_id FROM gx.lease",
        "SELECT * FROM gx.lease",
        "SELECT l FROM gx.lease l",
        "SELECT 1 FROM gx.lease WHERE lease_id::text LIKE '0%'",
        "COPY gx.lease TO STDOUT",
    )
    await service.close()


SIDE_EFFECTS = (
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_unlink(1)",
    "SELECT pg_notify('gx_event', '1')",
    "SELECT pg_sleep(1)",
    "SELECT pg_sleep_for('1s')",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_xact_lock(1, 2)",
    "SELECT pg_try_advisory_lock_shared(1)",
    "SELECT pg_logical_emit_message(true, 'a', 'b')",
)


async def test_the_auditor_has_no_side_effects(migrated_once):
    """No large objects, notifications, locks or sleeping sessions; and the service still does its part beside it."""
    url = migrated_once
    alice = await session_as(url, "gx_test_alice")
    await refused(alice, *SIDE_EFFECTS)
    await alice.close()
    connection = await asyncpg.connect(plain_url(url))
    limits = await connection.fetchrow(
        "SELECT rolconnlimit, (SELECT array_agg(s) FROM pg_db_role_setting d, unnest(d.setconfig) s WHERE d.setrole = r.oid) "
        "FROM pg_roles r WHERE rolname = 'gx_auditor'"
    )
    await connection.close()
    assert limits[0] == 16
    assert "statement_timeout=60s" in limits[1]


async def test_what_the_auditor_can_and_cannot_do(migrated_once):
    """Views and the tables of intervals to read, and nothing to change, not for a moment."""
    url = migrated_once
    alice = await session_as(url, "gx_test_alice")
    for name in (*READ_BY_PEOPLE, "v_event", "v_leader_term"):
        await alice.fetch(f"SELECT * FROM gx.{name}")
    unread = [table for table in TABLES if table not in READ_BY_PEOPLE]
    await refused(
        alice,
        *(f"SELECT * FROM gx.{table}" for table in unread),
        *changes(TABLES),
        *WIDER,
        "SELECT gx.lease_acquire('a', 'b', 1, 0)",
        "SELECT gx.lease_release(1, gen_random_uuid())",
        "SELECT gx.lease_revoke('a')",
        "SELECT gx.project(1, 1)",
        "SELECT gx.reset_projection()",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> current_user AND usename IS NOT NULL",
        "DO $$ BEGIN LOCK TABLE gx.placement IN ACCESS EXCLUSIVE MODE; END $$",
    )
    # no control, so nothing rests on it
    await alice.execute("SET default_transaction_read_only = off")
    await refused(alice, "DELETE FROM gx.placement")
    await alice.close()


async def test_everything_belongs_to_the_owner_who_cannot_log_in(migrated_once):
    url = migrated_once
    connection = await asyncpg.connect(plain_url(url))
    owners = await connection.fetch(
        "SELECT DISTINCT pg_get_userbyid(o) FROM (SELECT relowner AS o FROM pg_class "
        "WHERE relnamespace = 'gx'::regnamespace UNION ALL SELECT proowner FROM pg_proc "
        "WHERE pronamespace = 'gx'::regnamespace UNION ALL SELECT nspowner FROM pg_namespace WHERE nspname = 'gx') x"
    )
    assert [row[0] for row in owners] == ["gx_owner"]
    assert not await connection.fetchval(
        "SELECT rolcanlogin FROM pg_roles WHERE rolname = 'gx_owner'"
    )
    assert "is a superuser" in await excess_rights(url)
    await connection.close()


async def test_a_schema_that_was_there_before_the_roles(empty_url):
    """It is handed over, and what it is for still works."""
    url = empty_url
    await schema_migration.upgrade(url)
    for name in ("roles.sql", "ownership.sql", "ownership.sql"):
        await execute(url, (DEPLOY / name).read_text())
    connection = await asyncpg.connect(plain_url(url))
    left = await connection.fetchval(
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'gx'::regnamespace "
        "AND pg_get_userbyid(relowner) <> 'gx_owner'"
    )
    await connection.close()
    assert left == 0
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        await log.append(grant, Script(grant).some(2))


async def test_the_embedded_server_makes_the_roles():
    """At its first start, and at the next; the service logs in as the writer, people as the auditor."""
    folder = Path(tempfile.mkdtemp(prefix="gxt-"))
    folder.chmod(0o755)
    try:
        for _ in range(2):
            async with EmbeddedPostgres(folder, settings=FAST) as server:
                await schema_migration.upgrade(server.url)
                assert await excess_rights(as_role(server.url, WRITER)) == []
                auditor = await asyncpg.connect(as_role(server.url, AUDITOR))
                await auditor.fetch("SELECT * FROM gx.placement")
                await refused(auditor, "SELECT * FROM gx.event", "CREATE TEMPORARY TABLE t (a int)")
                await refused(auditor, *SIDE_EFFECTS)
                assert await auditor.fetchval("SHOW statement_timeout") == "1min"
                await auditor.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_the_service_can_verify_all_definitions(migrated, monkeypatch):
    """With the rights of gx_writer, which may create nothing, on each version of PostgreSQL that is here."""
    log = await FilledLog(migrated).fill()
    with monkeypatch.context() as patch:
        becoming(patch, "gx_test_service")
        verdict = await verified(log)
        assert verdict.findings == ()
        assert verdict.definitions > 50
    await change_view(log)
    await change_part(log)
    with monkeypatch.context() as patch:
        becoming(patch, "gx_test_service")
        forged, changed = (await verified(log)).findings
    assert (forged.kind, changed.kind) == ("forged-input", "forged-definition")
    assert changed.object == "query of view gx.v_pending"
    assert "!~~ 'ml/%'" in changed.message
