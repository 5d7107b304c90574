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
from extender.store import schema_migration
from extender.store.engine import ConnectionPool, fault_of, plain_url


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
        engine = ConnectionPool(url, name="test")
        async with engine.use("asking") as connection:
            name = await connection.fetchval("SHOW application_name")
        await engine.close()
        assert name == "gang-extender test"


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
