"""Create the database roles of `deploy/postgres` in an embedded server at its start, and check the rights of a role.

Owns the choice of role. Must not grant anything itself: the SQL files and the migrations do. Note: an embedded
database that was restored from a dump may belong to its superuser; its ownership is changed here, so that the service
writes as `gx_writer` there too.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from extender.core.model.errors import SchemaOutdated
from extender.store.engine import connect, our_faults, plain_url

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

    Raises:
        StoreUnavailable: No answer.
        SchemaOutdated: The installation lacks the files.
    """
    scripts = [(_folder() / name).read_text(encoding="utf-8") for name in _FILES]
    with our_faults("preparing roles"):
        connection = await connect(url, name="roles")
        try:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
                for script in scripts:
                    await connection.execute(script)
                await connection.execute(f"ALTER ROLE {WRITER} LOGIN; ALTER ROLE {AUDITOR} LOGIN")
        finally:
            await connection.close()


async def excess_rights(url: str) -> list[str]:
    """Return the rights of a role that the service must not need; empty for a member of gx_writer.

    Raises:
        StoreUnavailable: No answer.
    """
    with our_faults("asking for the rights of our role"):
        connection = await connect(url, name="roles")
        try:
            return list(await connection.fetchval(_POWERS))
        finally:
            await connection.close()


def _folder() -> Path:
    """Return the folder of the SQL files: packaged in an installed wheel, else in the checkout."""
    module_folder = Path(__file__).resolve().parent
    for folder in (module_folder / "postgres", module_folder.parents[1] / "deploy" / "postgres"):
        if (folder / _FILES[0]).is_file():
            return folder
    raise SchemaOutdated(
        f"the SQL of the roles is missing beside {module_folder}; install gang-extender again"
    )
