"""Migrate a database to the schema of this version.

Owns finding and running the migrations; they are in `migrations/`, in the checkout or packaged into the
wheel. Must not be called on an external database unless the user asked for it: `serve` refuses an outdated
one and names the command. Note: alembic is imported in the functions, because its import takes a quarter of
a second that most commands do not need.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from extender.core.model.errors import SchemaOutdated
from extender.store.engine import create_engine, our_faults

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

MIGRATION_TIMEOUT_S = 3600.0  # building an index on a large log, or waiting for a replica that does
_ONE_AT_A_TIME = asyncio.Lock()  # Alembic has global state; the advisory lock is between processes


def migrations_folder() -> Path:
    """Return the folder of the migrations: packaged in an installed wheel, else at the root of the checkout.

    Raises:
        SchemaOutdated: Neither place has them; the installation is broken.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "migrations", here.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaOutdated(f"the migrations are missing beside {here}; install gang-extender again")


def newest_revision() -> str:
    """Return the revision that this version needs."""
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


async def upgrade(url: str) -> str:
    """Run every missing migration, in one transaction, under one advisory lock.

    Args:
        url: Database URL; the role must own the schema, be a member of `gx_owner`, or be able to create it.

    Returns:
        The revision the database now has.

    Raises:
        StoreUnavailable: No answer, or the role is not allowed to.
        SchemaOutdated: The database was migrated by a newer version.
    """
    from alembic import command

    def run(connection: Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    # raises for a database of a newer version, with a better message than Alembic's
    await needs_migration(url)
    engine = create_engine(url, name="migrate", command_timeout_s=MIGRATION_TIMEOUT_S)
    try:
        with our_faults("migrating the database"):
            async with _ONE_AT_A_TIME, engine.connect() as connection:
                await connection.run_sync(run)
                await connection.commit()
    finally:
        await engine.dispose()
    return newest_revision()


async def current_revision(url: str) -> str | None:
    """Return the revision of a database; None if it has no schema of ours.

    Raises:
        StoreUnavailable: No answer.
    """
    engine = create_engine(url, name="migrate")
    try:
        return await _read_revision(engine)
    finally:
        await engine.dispose()


async def needs_migration(url: str) -> bool:
    """Return whether the database lacks migrations of this version.

    Raises:
        StoreUnavailable: No answer.
        SchemaOutdated: The database has a revision that this version does not know.
    """
    from alembic.script import ScriptDirectory

    current = await current_revision(url)
    if current is None:
        return True
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if current not in known:
        raise SchemaOutdated(
            f"the database has schema {current}, this version knows {newest_revision()} and older; "
            "run the version that migrated it"
        )
    return current != newest_revision()


async def _read_revision(engine: AsyncEngine) -> str | None:
    with our_faults("reading the schema's revision"):
        async with engine.connect() as connection:
            there = await connection.scalar(text("SELECT to_regclass('gx.migration') IS NOT NULL"))
            if not there:
                return None
            revision = await connection.scalar(text("SELECT version_num FROM gx.migration"))
            return None if revision is None else str(revision)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config
