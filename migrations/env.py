"""How Alembic runs our migrations: forward only, one transaction, one migrator at a time.

`extender.store.schema_migration` hands a connection over in `config.attributes`; `alembic upgrade head` on the
command line opens its own to GANG_EXTENDER_DATABASE_URL. Either way the advisory lock is taken before
Alembic looks which revisions are missing, so replicas that start together do the work once.
"""

from __future__ import annotations

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, text

from extender.store.schema_migration import migrating_engine, oldest_compatible
from extender.store.tables import SCHEMA

MIGRATION_LOCK = 0x67785F6D  # "gx_m"; any number that no other lock has

# With the roles of deploy/postgres/roles.sql the schema belongs to gx_owner, whichever role migrates.
BECOME_OWNER = """
DO $do$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_owner')
       AND pg_has_role(current_user, 'gx_owner', 'MEMBER')
       AND has_database_privilege('gx_owner', current_database(), 'CREATE') THEN
        SET LOCAL ROLE gx_owner;
    END IF;
END
$do$
"""


def run_migrations(connection: Connection) -> None:
    context.configure(
        connection=connection,
        version_table="migration",
        version_table_schema=SCHEMA,
        include_schemas=True,
    )
    with context.begin_transaction():
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        connection.exec_driver_sql(BECOME_OWNER)
        if not connection.dialect.has_schema(connection, SCHEMA):
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        context.run_migrations()
        # Read by versions that do not know the newest revision, after a rollback of the program.
        connection.execute(
            text(f"UPDATE {SCHEMA}.migration SET oldest_compatible = :revision"),
            {"revision": oldest_compatible()},
        )


async def run_on_own_connection() -> None:
    engine = migrating_engine(os.environ["GANG_EXTENDER_DATABASE_URL"])
    async with engine.connect() as connection:
        await connection.run_sync(run_migrations)


given: Connection | None = context.config.attributes.get("connection")
if context.is_offline_mode():
    raise SystemExit("migrations need a database; offline SQL is not supported")
if given is not None:
    run_migrations(given)
else:
    asyncio.run(run_on_own_connection())
