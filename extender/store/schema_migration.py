"""Migrate a database to the schema of this version.

Owns finding and running the migrations; they are in `migrations/`, in the checkout or packaged into the
wheel. Must not be called on an external database unless the user asked for it: `serve` refuses an outdated
one and names the command. Note: alembic is imported in the functions, because its import takes a quarter of
a second that most commands do not need.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sqlalchemy import make_url
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from extender.core.model.errors import SchemaOutdated
from extender.store.connections import connect, one_connection, our_faults, plain_url

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy import ClauseElement, Connection, Dialect

MIGRATION_TIMEOUT_S = 3600.0  # building an index on a large log, or waiting for a replica that does
# By way of JSON, because a table of another version may lack the column.
_READ_REVISION = "SELECT version_num, to_json(m) ->> 'oldest_compatible' FROM gx.migration m"
# Schemas with the tables of a log under another name.
_RENAMED = """
SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname <> 'gx' AND c.relkind IN ('r', 'p') AND c.relname IN ('event', 'lease', 'migration')
GROUP BY n.nspname HAVING count(*) = 3 ORDER BY n.nspname
"""
_ONE_AT_A_TIME = asyncio.Lock()  # Alembic has global state; the advisory lock is between processes


def migrations_folder() -> Path:
    """Return the folder of the migrations; raises SchemaOutdated without them: the installation is broken."""
    return _packaged("migrations", "migrations", "env.py", "the migrations are")


def _packaged(packaged: str, in_checkout: str, file: str, subject: str) -> Path:
    """Return the folder that has a file: packaged in an installed wheel, else in the checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / packaged, package.parents[1] / in_checkout):
        if (folder / file).is_file():
            return folder
    raise SchemaOutdated(f"{subject} missing beside {package}; install gang-extender again")


def newest_revision() -> str:
    """Return the revision that this version needs."""
    head = _scripts().get_current_head()
    assert head is not None
    return head


async def upgrade(url: str) -> str:
    """Run every missing migration, in one transaction, under one advisory lock.

    Args:
        url: Database URL; the role must own the schema, be a member of `gx_owner`, or be able to create it.

    A schema of a newer version on which this version runs (`needs_migration`) is left as it is.

    Returns:
        The revision the database now has.

    Raises:
        StoreUnavailable: No answer, or the role is not allowed to.
        SchemaOutdated: A newer version migrated the database, and this version does not run on that schema; or the
            schema was renamed.
    """
    from alembic import command

    def run(connection: Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    # raises for a database of a newer version, with a better message than Alembic's
    await needs_migration(url)
    current = await current_revision(url)
    if current is not None and current not in _known_revisions():
        return current
    with our_faults("migrating the database"):
        async with _ONE_AT_A_TIME, migrating_engine(url).connect() as connection:
            await connection.run_sync(run)
            await connection.commit()
    return newest_revision()


def migrating_engine(url: str) -> AsyncEngine:
    """Return what Alembic connects with; it keeps no connection."""
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=functools.partial(
            connect, url, name="migrate", command_timeout_s=MIGRATION_TIMEOUT_S
        ),
        poolclass=NullPool,
    )


async def current_revision(url: str) -> str | None:
    """Return the revision of a database; None if it has no schema of ours.

    Raises:
        SchemaOutdated: The schema was renamed.
    """
    return (await _read_schema(url))[0]


async def needs_migration(url: str) -> bool:
    """Return whether the database lacks migrations of this version.

    After a rollback of the program the schema is newer than the program. `gx.migration.oldest_compatible` names the
    revision from which on programs run on it, and this version does if it knows that revision.

    Raises:
        SchemaOutdated: The database has a revision that this version does not know, and this version does not run on it;
            or the schema was renamed.
    """
    current, compatible_from = await _read_schema(url)
    if current is None:
        return True
    revisions = _known_revisions()
    if current in revisions:
        return current != newest_revision()
    if compatible_from in revisions:
        return False
    since = f" and runs with versions that know {compatible_from}" if compatible_from else ""
    raise SchemaOutdated(
        f"the database has schema {current}{since}, this version knows {newest_revision()} and older; "
        "run the version that migrated it"
    )


def oldest_compatible() -> str:
    """Return the revision from which on programs run on the newest schema of this version.

    It is that of the newest migration with `breaks_older = True`. All others only add, so a program that does not know
    them runs on their schema.
    """
    revision = ""
    for script in _scripts().walk_revisions():  # newest first
        revision = script.revision
        if getattr(script.module, "breaks_older", False):
            break
    return revision


def is_known(revision: str) -> bool:
    """Return whether this version has the migration that made a revision."""
    return revision in _known_revisions()


@functools.cache
def migration_statements(revision: str) -> Sequence[str]:
    """Return the statements of the migrations up to a revision, in their order, without a database."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    recorder = _Recorder()
    context = MigrationContext(recorder.dialect, cast("Connection", recorder), {})
    with Operations.context(context):
        for script in reversed(list(_scripts().walk_revisions("base", revision))):
            script.module.upgrade()
    return tuple(recorder.statements)


class _Recorder:
    """In the place of a connection: keeps the statements of migrations, which read nothing."""

    def __init__(self) -> None:
        self.dialect: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        self.statements: list[str] = []

    def in_transaction(self) -> bool:
        return True

    def execute(self, statement: ClauseElement, _parameters: object = None) -> None:
        self.statements.append(str(statement.compile(dialect=self.dialect)))

    def exec_driver_sql(self, statement: str) -> None:
        self.statements.append(statement)


def _known_revisions() -> set[str]:
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


async def _read_schema(url: str) -> tuple[str | None, str | None]:
    """Return the revision, and what `migrations/env.py` wrote of `oldest_compatible`; None where there is none."""
    doing = "reading the schema's revision"
    async with one_connection(url, doing, name="migrate") as connection:
        if await connection.fetchval("SELECT to_regclass('gx.migration') IS NOT NULL"):
            return tuple(await connection.fetchrow(_READ_REVISION) or (None, None))
        if renamed := [row[0] for row in await connection.fetch(_RENAMED)]:
            raise SchemaOutdated(_renamed_text(renamed))
        return None, None


def _renamed_text(schemas: Sequence[str]) -> str:
    names = " and ".join(schemas)
    return (
        f"the database has no schema gx, and the tables of an event log in schema {names}: it was renamed. "
        f'Copy the database, then `ALTER SCHEMA "{schemas[0]}" RENAME TO gx` makes it the log again; an empty log needs another database'
    )


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config


WRITER = "gx_writer"
AUDITOR = "gx_auditor"
_FILES = ("roles.sql", "ownership.sql")
_LOCK = 0x67785F72  # "gx_r", key of an advisory lock: two processes may start on one data directory
_POWERS = """
SELECT array_remove(ARRAY[
    CASE WHEN r.rolsuper THEN 'is a superuser' END,
    CASE WHEN has_table_privilege('gx.event', 'INSERT, UPDATE, DELETE, TRUNCATE') THEN 'may change gx.event' END,
    CASE WHEN has_table_privilege('gx.lease', 'UPDATE') THEN 'may change gx.lease' END
], NULL)
FROM pg_roles r WHERE r.rolname = current_user
"""


def as_role(url: str, role: str) -> str:
    """Return the URL of the same database for another role, without a password."""
    changed = make_url(plain_url(url)).set(username=role, password=None)
    return changed.render_as_string(hide_password=False)


async def prepare_roles(url: str) -> None:
    """Create the roles of an embedded database, with LOGIN for writer and auditor, and set the owner of its objects.

    One that was restored from a dump may belong to its superuser. Nothing is granted here: the SQL files and the migrations do.

    Raises:
        SchemaOutdated: The installation lacks the files.
    """
    folder = _packaged("postgres", "deploy/postgres", _FILES[0], "the SQL of the roles is")
    scripts = [(folder / name).read_text(encoding="utf-8") for name in _FILES]
    async with (
        one_connection(url, "preparing roles", name="roles") as connection,
        connection.transaction(),
    ):
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        for script in scripts:
            await connection.execute(script)
        await connection.execute(f"ALTER ROLE {WRITER} LOGIN; ALTER ROLE {AUDITOR} LOGIN")


async def excess_rights(url: str) -> list[str]:
    """Return the rights of a role that the service must not need; empty for a member of gx_writer."""
    doing = "asking for the rights of our role"
    async with one_connection(url, doing, name="roles") as connection:
        return list(await connection.fetchval(_POWERS))
