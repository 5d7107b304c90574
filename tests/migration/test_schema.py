"""Migrations build the schema, the whole schema, once."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from sqlalchemy.schema import CreateSchema

from extender.core.model.errors import SchemaOutdated
from extender.queries.verification.log_verification import LogVerification
from extender.runtime.log_keys import NO_KEYS
from extender.store import schema_migration
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.log_evidence import PostgresLogEvidence
from extender.store.tables import SCHEMA
from tests.migration.schema_tables import METADATA
from tests.support.logs.example_log import write_tuesday
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import execute, fresh_database, running_postgres

pytestmark = pytest.mark.postgres
SQL = Path(__file__).parents[2] / "migrations" / "sql"

CATALOGUE = """
SELECT 'column', c.table_name || '.' || c.column_name,
       concat_ws(' ', c.ordinal_position, c.data_type, c.is_nullable, c.column_default, c.is_identity)
FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = 'gx' AND t.table_type = 'BASE TABLE' AND c.table_name <> 'migration'
UNION ALL
SELECT 'constraint', r.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid
WHERE r.relnamespace = 'gx'::regnamespace AND r.relname <> 'migration' AND k.contype <> 'n'
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'gx' AND tablename <> 'migration'
UNION ALL
SELECT 'options', relname, reloptions::text FROM pg_class
WHERE relnamespace = 'gx'::regnamespace AND relkind = 'r' AND reloptions IS NOT NULL
ORDER BY 1, 2
"""


async def catalogue(url):
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(CATALOGUE)]
    finally:
        await connection.close()


@pytest.fixture
def other_database_url(postgres_url):
    with fresh_database(postgres_url) as url:
        yield url


async def test_migrations_from_empty_equal_the_metadata(empty_database_url, other_database_url):
    await schema_migration.upgrade(empty_database_url)
    engine = schema_migration.migrating_engine(other_database_url)
    async with engine.begin() as connection:
        await connection.execute(CreateSchema(SCHEMA))
        await connection.run_sync(METADATA.create_all)
    await engine.dispose()
    migrated = await catalogue(empty_database_url)
    assert migrated == await catalogue(other_database_url)
    assert len(migrated) > 40


async def test_replicas_that_start_together_migrate_once(empty_database_url):
    url = empty_database_url
    assert await schema_migration.current_revision(url) is None
    assert await schema_migration.needs_migration(url)
    program = "import asyncio, sys; from extender.store.schema_migration import upgrade; asyncio.run(upgrade(sys.argv[1]))"
    others = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, cwd=SQL.parents[1])
        for _ in range(2)
    ]
    revisions = await asyncio.gather(*(schema_migration.upgrade(url) for _ in range(3)))
    assert set(revisions) == {schema_migration.newest_revision()}
    assert [await other.wait() for other in others] == [0, 0]
    assert await schema_migration.current_revision(url) == schema_migration.newest_revision()
    assert not await schema_migration.needs_migration(url)


async def test_a_database_from_the_future_is_refused(database_url):
    """One whose newest migrations break this version, or without a record of that, or without a place for it."""
    await execute(
        database_url,
        "UPDATE gx.migration SET version_num = '9999', oldest_compatible = '9998'",
    )
    with pytest.raises(
        SchemaOutdated, match="has schema 9999 and runs with versions that know 9998"
    ):
        await schema_migration.needs_migration(database_url)
    for change in (
        "UPDATE gx.migration SET oldest_compatible = NULL",
        "ALTER TABLE gx.migration DROP COLUMN oldest_compatible",
    ):
        await execute(database_url, change)
        with pytest.raises(SchemaOutdated, match="has schema 9999, this version"):
            await schema_migration.needs_migration(database_url)
    with pytest.raises(SchemaOutdated, match="9999"):
        await schema_migration.upgrade(database_url)


async def test_a_renamed_schema_is_not_begun_again(database_url):
    """Neither `serve` with an embedded database nor `db migrate` makes an empty log beside it; renamed back it is the log."""
    await write_tuesday(database_url)
    await execute(database_url, "ALTER SCHEMA gx RENAME TO kept")
    for asking in (schema_migration.needs_migration, schema_migration.upgrade):
        with pytest.raises(
            SchemaOutdated, match=r'in schema kept: .* `ALTER SCHEMA "kept" RENAME TO gx`'
        ):
            await asking(database_url)
    await execute(database_url, 'ALTER SCHEMA "kept" RENAME TO gx')
    assert not await schema_migration.needs_migration(database_url)
    async with PostgresEventLog(database_url) as log:
        assert (await log.head()).position


async def test_a_newer_schema_that_only_adds_is_no_obstacle(database_url):
    """A version before runs on it, `serve` as well as `db migrate`, and changes nothing."""
    await execute(database_url, "UPDATE gx.migration SET version_num = '9999'")
    assert not await schema_migration.needs_migration(database_url)
    assert await schema_migration.upgrade(database_url) == "9999"
    assert await schema_migration.current_revision(database_url) == "9999"


async def test_a_migration_records_from_which_revision_on_programs_run(database_url):
    """That of the newest migration that breaks older programs."""
    connection = await asyncpg.connect(database_url)
    try:
        recorded = await connection.fetchval("SELECT oldest_compatible FROM gx.migration")
    finally:
        await connection.close()
    assert recorded == schema_migration.oldest_compatible() == "0001"


async def test_a_log_of_the_revision_before_is_migrated(empty_database_url, monkeypatch):
    """Each event stays, and what is new is there; the version before goes on with the new schema."""
    url = empty_database_url
    with monkeypatch.context() as older:
        migrate = command.upgrade
        older.setattr(command, "upgrade", lambda config, _: migrate(config, "0001"))
        await schema_migration.upgrade(url)
    assert await schema_migration.current_revision(url) == "0001"
    await write_tuesday(url)
    assert await schema_migration.needs_migration(url)
    async with PostgresEventLog(url) as log:
        before = await log.head()
        assert await schema_migration.upgrade(url) == schema_migration.newest_revision() != "0001"
        assert await log.head() == before
    await execute(url, "SELECT gx.note_notified(1, 2)", "SELECT gx.note_notified(3, 1)")
    connection = await asyncpg.connect(url)
    try:
        reached = await connection.fetchrow("SELECT * FROM gx.notification_cursor")
    finally:
        await connection.close()
    assert tuple(reached) == (1, 3, 2)


async def test_a_database_without_schema_is_named_so(empty_database_url):
    """Every port names the command to run."""
    async with PostgresEventLog(empty_database_url) as log:
        for asking in (log.head(), log.lease(), log.take(holder="a", address="", ttl_ms=1)):
            with pytest.raises(SchemaOutdated, match="gang-extender db migrate"):
                await asking


def newest_files():
    """The newest text of each SQL file, later revisions over earlier ones."""
    return {path.stem: path.read_text() for path in sorted(SQL.glob("*/*.sql"))}


async def test_live_functions_and_views_are_those_of_the_files(database_url):
    connection = await asyncpg.connect(database_url)
    functions = {
        row["proname"]: row["prosrc"]
        for row in await connection.fetch(
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'gx'::regnamespace"
        )
    }
    unsafe = await connection.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'gx'::regnamespace AND prosecdef "
        "AND NOT coalesce(proconfig @> ARRAY['search_path=gx, pg_temp'], false)"
    )
    public = await connection.fetch(
        "SELECT proname FROM pg_proc p, aclexplode(p.proacl) a "
        "WHERE p.pronamespace = 'gx'::regnamespace AND a.grantee = 0"
    )
    triggers = await connection.fetch(
        "SELECT tgrelid::regclass::text, tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2"
    )
    views = await connection.fetch("SELECT viewname FROM pg_views WHERE schemaname = 'gx'")
    await connection.close()
    files = newest_files()
    for name, body in functions.items():
        assert re.search(r"\$function\$(.*)\$function\$", files[name], re.DOTALL)[1] == body
    created = re.compile(r"^CREATE (OR REPLACE )?FUNCTION", re.MULTILINE)
    assert {name for name, text in files.items() if created.search(text)} == set(functions)
    viewed = re.compile(r"^CREATE (OR REPLACE )?VIEW", re.MULTILINE)
    assert {name for name, text in files.items() if viewed.search(text)} == {
        row["viewname"] for row in views
    }
    assert unsafe == []
    assert public == []
    assert [(table, name) for table, name, _ in triggers] == [
        (f"gx.{table}", f"refuse_{what}")
        for table in ("decision_input", "decision_input_chunk", "event", "pruning")
        for what in ("change", "truncate")
    ]
    assert {state for *_, state in triggers} == {b"O"}


async def use(url):
    await schema_migration.upgrade(url)
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        events = Script(grant).some(1000)
        await asyncio.gather(*(log.append(grant, [event]) for event in events))
        assert [event async for page in log.read() for event in page] == events
        again = await log.take(holder="a", address="", ttl_ms=60_000)
        assert again.head.position == 1000


@pytest.mark.parametrize(
    "folder", sorted(Path("/usr/lib/postgresql").glob("*/bin")), ids=lambda path: path.parent.name
)
def test_the_schema_works_on_the_distributions_postgres(folder):
    """Whatever versions this machine has; the session's server covers the wheel's."""
    from tests.support.logs.postgres import run

    with running_postgres(pg_bin=folder) as server:
        run(use(server.url))


async def test_a_fresh_migration_would_pass_the_linter(tmp_path):
    """script.py.mako renders to what ruff accepts and keeps as it is."""
    import subprocess

    from alembic import command
    from alembic.config import Config

    copy = tmp_path / "migrations"
    shutil.copytree(
        schema_migration.migrations_folder(), copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    config = Config()
    config.set_main_option("script_location", str(copy))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    command.revision(config, message="expand the log", rev_id="0999")
    made = copy / "versions" / "0999_expand_the_log.py"
    settings = Path(__file__).parents[2] / "pyproject.toml"
    ruff = [sys.executable, "-m", "ruff"]
    for check in (["check", "--ignore=D103,INP001"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *check, "--config", settings, made], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


NEXT = """
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0999"
down_revision = {newest!r}
branch_labels = None
depends_on = None
breaks_older = {breaks_older}


def upgrade():
    op.add_column("snapshot", sa.Column("note", sa.Text, nullable=True), schema="gx")
    function = (Path(__file__).parents[1] / "sql" / "0001" / "project_event.sql").read_text()
    op.get_bind().exec_driver_sql(function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
"""


@pytest.fixture(params=[False, True], ids=["only adds", "breaks older programs"])
def next_version(request, tmp_path, monkeypatch):
    """Give a function that makes this version one with one more migration; it returns what programs must know then."""

    def change():
        folder = tmp_path / "migrations"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(schema_migration.migrations_folder(), folder, ignore=ignored)
        text = NEXT.format(newest=schema_migration.newest_revision(), breaks_older=request.param)
        (folder / "versions" / "0999_next.py").write_text(text)
        oldest = "0999" if request.param else schema_migration.oldest_compatible()
        monkeypatch.setattr(schema_migration, "migrations_folder", lambda: folder)
        return oldest

    yield change
    schema_migration.migration_statements.cache_clear()


async def test_a_filled_database_is_migrated_and_loses_nothing(database_url, next_version):
    """With a log, a snapshot and intervals, by a version with one more migration: all is there afterwards, and verifies."""
    url = database_url
    await write_tuesday(url)
    connection = await asyncpg.connect(url)
    await connection.execute(
        "INSERT INTO gx.snapshot (position, codec, chain, sha256, body) "
        "SELECT position, 'old', hash, sha256('b'), 'b' FROM gx.event WHERE position = 5"
    )
    count = await connection.fetchval("SELECT gx.project(1000, 1000)")
    kept = "SELECT e.*, e.payload::text AS text FROM gx.event e ORDER BY position"
    before = [tuple(row) for row in await connection.fetch(kept)]
    oldest = next_version()
    assert await schema_migration.needs_migration(url)
    assert await schema_migration.upgrade(url) == "0999"
    await connection.reload_schema_state()
    assert [tuple(row) for row in await connection.fetch(kept)] == before
    assert len(before) == count > 20
    assert await connection.fetchval("SELECT note IS NULL FROM gx.snapshot WHERE codec = 'old'")
    recorded = "SELECT version_num, oldest_compatible FROM gx.migration"
    assert tuple(await connection.fetchrow(recorded)) == ("0999", oldest)
    await connection.close()
    evidence = PostgresLogEvidence(url)
    async with PostgresEventLog(url) as log:
        work = LogVerification(log, evidence, (), NO_KEYS)
        while await work.step(1000):
            pass
        assert work.verdict.findings == ()
        assert work.verdict.definitions > 40
        assert work.verdict.position == count
        grant = await log.take(holder="gang-extender-0", address="", ttl_ms=60_000)
        await log.append(grant, Script(grant).some(2))
    await evidence.close()
