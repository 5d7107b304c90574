"""PostgreSQL for tests: one server per session, one fresh database per test.

The server is the embedded one, or that of GX_TEST_DATABASE_URL (its role must be a superuser).
GX_TEST_PG_BIN chooses other programs for the embedded one. `conftest.py` imports the fixtures;
`running_postgres` is for tests that need a server to themselves.

Roles belong to a server, not to a database: a test that makes them would change what a later one sees. So they
are there before anything is migrated. The schema of a test belongs to the superuser all the same, who is the one
that connects; `make_roles` before a migration gives the schema to gx_owner, as deploy/README has it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from extender.store import schema_migration
from extender.store.connections import plain_url
from extender.store.embedded.embedded_server import EmbeddedPostgres

# A test server may lose everything when the machine loses power. (A killed server loses nothing by it.)
FAST = {"fsync": "off", "full_page_writes": "off"}
TEMPLATE = f"gx_test_template_{os.getpid()}"
ROLES = Path(__file__).parents[3] / "deploy" / "postgres" / "roles.sql"
# "gx_t"; workers may share a server, and make its roles one after the other
ROLES_LOCK = 0x67785F74
_numbers = count(1)
_administrators: dict[str, tuple[asyncio.AbstractEventLoop, asyncpg.Connection]] = {}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end outside of any test's loop."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextmanager
def running(
    data_dir: Path, *, pg_bin: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[EmbeddedPostgres]:
    """Run a server for a block of synchronous code, without restarting it when it ends."""
    server = EmbeddedPostgres(data_dir, pg_bin=pg_bin, settings=settings)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(server._start())
        yield server
    finally:
        loop.run_until_complete(server.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def database_of(url: str, database: str) -> str:
    """Return the URL of another database of the same server."""
    return make_url(plain_url(url)).set(database=database).render_as_string(hide_password=False)


def as_role(url: str, role: str) -> str:
    """Return the URL of the same database for another role."""
    return (
        make_url(plain_url(url))
        .set(username=role, password=None)
        .render_as_string(hide_password=False)
    )


async def execute(url: str, *statements: str) -> None:
    """Run statements one by one, each in its own transaction."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def make_roles(server_url: str, url: str) -> None:
    """Make the server's roles as deploy/README has it, if they are not there, and let them use a database of it."""
    connection = await asyncpg.connect(plain_url(server_url))
    try:
        await connection.execute(f"SELECT pg_advisory_lock({ROLES_LOCK})")
        await execute(url, ROLES.read_text())
    finally:
        await connection.close()


@contextmanager
def running_postgres(
    *, pg_bin: Path | None = None, access_rules: str = "", **settings: str
) -> Iterator[Any]:
    """Run an embedded server in a short temporary directory, reachable for the account it runs under.

    Args:
        pg_bin: Folder of its programs; None: the embedded ones.
        access_rules: A whole pg_hba.conf in place of that of the embedded server; empty: none.
        settings: Of the server.
    """
    folder = Path(tempfile.mkdtemp(prefix="gxt-"))
    folder.chmod(0o755)
    if access_rules:
        rules = folder / "pg_hba.conf"
        rules.write_text(access_rules)
        settings["hba_file"] = str(rules)
    try:
        with running(folder, pg_bin=pg_bin, settings={**FAST, **settings}) as server:
            try:
                yield server
            finally:
                _disconnect(server.url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server_url: str, *, template: str | None = None) -> Iterator[str]:
    """Make a database, and drop it afterwards although connections to it may be open."""
    name = f"gx_test_{os.getpid()}_{next(_numbers)}"
    _administer(
        server_url, f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else "")
    )
    try:
        yield database_of(server_url, name)
    finally:
        _administer(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


def _administer(server_url: str, statement: str) -> None:
    """Run a statement over a connection that is kept: to open one costs as much as to drop a database."""
    if server_url in _administrators:
        loop, connection = _administrators[server_url]
        try:
            loop.run_until_complete(connection.execute("SELECT 1"))
        except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
            _disconnect(server_url)  # a test has stopped the server and started it again
    if server_url not in _administrators:
        loop = asyncio.new_event_loop()
        connection = loop.run_until_complete(asyncpg.connect(plain_url(server_url)))
        _administrators[server_url] = loop, connection
    loop, connection = _administrators[server_url]
    loop.run_until_complete(connection.execute(statement))


def _disconnect(server_url: str) -> None:
    """Close the connection of `_administer`."""
    if server_url in _administrators:
        loop, connection = _administrators.pop(server_url)
        loop.run_until_complete(connection.close())
        loop.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the URL of the server of this session; no test uses the database that it names."""
    given = os.environ.get("GX_TEST_DATABASE_URL")
    if given:
        run(make_roles(given, given))
        yield plain_url(given)
        _disconnect(plain_url(given))
        return
    pg_bin = os.environ.get("GX_TEST_PG_BIN")
    with running_postgres(pg_bin=Path(pg_bin) if pg_bin else None) as server:
        run(make_roles(server.url, server.url))
        yield server.url


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> Iterator[str]:
    """Return the name of a migrated database to copy from: copying is faster than migrating each time."""
    run(execute(postgres_url, f'CREATE DATABASE "{TEMPLATE}"'))
    run(schema_migration.upgrade(database_of(postgres_url, TEMPLATE)))
    yield TEMPLATE
    run(execute(postgres_url, f'DROP DATABASE "{TEMPLATE}" WITH (FORCE)'))


@pytest.fixture
def database_url(postgres_url: str, template_database: str) -> Iterator[str]:
    """URL of a migrated, empty database of this test's own."""
    with fresh_database(postgres_url, template=template_database) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """URL of a database without our schema."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(params=["fake", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest) -> str | None:
    """For contract suites: None for the fake, the URL of a migrated database for the real thing.

    A plain function, not a coroutine: the databases are made on a loop of their own.
    """
    return None if request.param == "fake" else request.getfixturevalue("database_url")
