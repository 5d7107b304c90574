"""Database URLs and the naming of foreign faults."""

from __future__ import annotations

import asyncio
import sys
import zipfile

import pytest

from extender.core.model.errors import (
    BadInput,
    DuplicateEvent,
    Fenced,
    HeadMoved,
    SchemaOutdated,
    StoreUnavailable,
)
from extender.store import connections, schema_migration
from extender.store.connections import COMMAND_TIMEOUT_S, ConnectionPool, fault_of, plain_url
from tests.support.logs.database_proxy import DatabaseProxy


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("postgresql://u:p%40ss@h:5/db", "postgresql://u:p%40ss@h:5/db"),
        ("postgresql+asyncpg://u@h/db?ssl=require", "postgresql://u@h/db?ssl=require"),
        ("postgresql+asyncpg://u@/db?host=/run/pg", "postgresql://u@/db?host=%2Frun%2Fpg"),
    ],
)
def test_urls_of_either_spelling(given, plain):
    assert plain_url(given) == plain


@pytest.mark.parametrize(
    "given", ["", "nonsense", "mysql://u:secret@h/db", "postgresql+psycopg://h/db"]
)
def test_other_urls_are_refused_without_repeating_their_password(given):
    with pytest.raises(BadInput) as caught:
        plain_url(given)
    assert "secret" not in str(caught.value)


@pytest.mark.postgres
async def test_both_spellings_connect(database_url):
    for url in (database_url, database_url.replace("postgresql://", "postgresql+asyncpg://")):
        pool = ConnectionPool(url, name="test")
        async with pool.use("asking") as connection:
            name = await connection.fetchval("SHOW application_name")
        await pool.close()
        assert name == "gang-extender test"


RUNNING = (
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'"
)


@pytest.mark.postgres
@pytest.mark.parametrize("end", ["cancelled", "timed out"])
async def test_a_statement_that_nothing_waits_for_ends(database_url, end):
    """The server is asked to cancel it, so that the size of the pool bounds what the database does."""
    limit_s = 0.2 if end == "timed out" else COMMAND_TIMEOUT_S
    pool = ConnectionPool(database_url, name="test", size=2, command_timeout_s=limit_s)
    watching = ConnectionPool(database_url, name="watching")

    async def asleep():
        async with pool.use("asking") as connection:
            await connection.execute("SELECT pg_sleep(60)")

    async def running():
        async with watching.use("asking") as connection:
            return await connection.fetchval(RUNNING)

    async def are_running(count):
        while await running() != count:
            await asyncio.sleep(0.01)

    for _ in range(2):
        statements = [asyncio.ensure_future(asleep()) for _ in range(2)]
        if end == "cancelled":
            await are_running(2)
            for statement in statements:
                statement.cancel()
        await asyncio.gather(*statements, return_exceptions=True)
        await are_running(0)
    await pool.close()
    await watching.close()


@pytest.mark.postgres
async def test_connections_that_the_network_forgot_are_opened_again(database_url, monkeypatch):
    """They look open, and what is sent on them arrives nowhere; one of them is waited for, and not each."""
    monkeypatch.setattr(connections, "ASKED_AFTER_S", 0.0)
    asked = 0

    async def is_lost(_, data):
        nonlocal asked
        asked += b"SELECT 1" in data
        return b"SELECT 1" in data

    async with DatabaseProxy(database_url) as proxy:
        pool = ConnectionPool(proxy.url, name="test", size=2, command_timeout_s=0.5)
        async with pool.use("asking") as first, pool.use("asking") as second:
            before = {first.get_server_pid(), second.get_server_pid()}
        proxy.sent = is_lost
        async with pool.use("asking") as first, pool.use("asking") as second:
            assert before.isdisjoint({first.get_server_pid(), second.get_server_pid()})
        assert asked == 1
        await pool.close()


async def test_a_full_pool_is_named(monkeypatch):
    """The database is not to blame for it."""
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.0)
    pool = ConnectionPool("postgresql://u@h/db", name="queries", size=2)
    for _ in range(2):
        await pool._slots.acquire()
    text = "asking: 2 connections of `gang-extender queries` to the database are all in use for 0 s"
    with pytest.raises(StoreUnavailable, match=text):
        async with pool.use("asking"):
            raise AssertionError
    await pool.close()


class Foreign(Exception):
    """Looks like asyncpg's."""

    def __init__(self, sqlstate, constraint_name=None):
        super().__init__("text\nDETAIL: more")
        self.sqlstate = sqlstate
        self.constraint_name = constraint_name


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Foreign("XE001"), Fenced),
        (Foreign("XE002"), HeadMoved),
        (Foreign("23505", "event_event_id_key"), DuplicateEvent),
        (Foreign("23505", "other"), StoreUnavailable),
        (Foreign("42P01"), SchemaOutdated),
        (Foreign("22021"), BadInput),
        (Foreign("53100"), StoreUnavailable),
        (OSError("gone"), StoreUnavailable),
        (RuntimeError("cannot switch to state 12"), StoreUnavailable),
    ],
)
def test_each_foreign_fault_has_one_name(error, kind):
    fault = fault_of(error, "asking")
    assert type(fault) is kind
    assert "DETAIL" not in str(fault)


def test_a_limit_that_has_passed_has_words():
    """The exception of asyncpg has none."""
    assert str(fault_of(TimeoutError(), "asking")) == "asking: the database did not answer in time"


@pytest.mark.long
async def test_the_wheel_brings_its_migrations(tmp_path):
    """Built and unpacked elsewhere, `extender.store.schema_migration` finds env.py, versions and SQL beside itself."""
    pytest.importorskip("hatchling")
    root = schema_migration.migrations_folder().parent
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    building = await asyncio.create_subprocess_exec(*build, cwd=root)
    assert await building.wait() == 0
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    here = schema_migration.migrations_folder()
    wanted = {
        path.relative_to(here)
        for path in here.rglob("*")
        if path.suffix in {".py", ".sql", ".mako"}
    }
    assert {f"extender/store/migrations/{path}" for path in wanted} <= names
