"""deploy/QUESTIONS.md: every command and every query in it is run, by the auditor's role, and answers what stands there.

With GX_TEST_WRITE_GOLDEN=1 the answers are written into the document.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from decimal import Decimal
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner

from extender.cli.main import app
from extender.store import schema_migration
from tests.support.logs.example_log import write_tuesday
from tests.support.logs.postgres import execute, fresh_database, run

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "deploy/QUESTIONS.md"
COMMAND = re.compile(r"(?<=```console\n\$ gang-extender )(.*?)\n(.*?)(?=```)", re.DOTALL)
QUERY = re.compile(r"```sql\n(.*?);\n```\n\n```text\n(.*?)```", re.DOTALL)


async def fill(url):
    await execute(url, (ROOT / "deploy/postgres/roles.sql").read_text())
    await schema_migration.upgrade(url)
    await write_tuesday(url)


@pytest.fixture(scope="module")
def tuesday_url(postgres_url):
    with fresh_database(postgres_url) as url:
        run(fill(url))
        yield url


def shown(rows, columns):
    """Lay out rows as psql does."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numbers = [
        rows and isinstance(v, int | float | Decimal) for v in (rows[0] if rows else columns)
    ]
    lines = [" " + " | ".join(c.center(w) for c, w in zip(columns, widths, strict=True))]
    lines += ["-" + "-+-".join("-" * w for w in widths) + "-"]
    for row in cells:
        laid = [
            c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numbers, strict=True)
        ]
        lines.append(" " + " | ".join(laid))
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def cell(value):
    return "" if value is None else str(value)


def answer_of_command(words, url):
    done = CliRunner().invoke(app, [*shlex.split(words), "--database-url", url])
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


async def answer_of_query(text, url):
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET timezone = 'UTC'; SET SESSION AUTHORIZATION gx_auditor")
        for kind in ("timestamptz", "interval"):
            await connection.set_type_codec(
                kind, schema="pg_catalog", encoder=str, decoder=str, format="text"
            )
        statement = await connection.prepare(text)
        columns = [attribute.name for attribute in statement.get_attributes()]
        return shown([tuple(row) for row in await statement.fetch()], columns)
    finally:
        await connection.close()


async def test_everything_is_explained_and_the_auditor_may_read_it(tuesday_url):
    """Each view of the schema, and each column of it, has a comment; none of them needs a right of its own."""
    connection = await asyncpg.connect(tuesday_url)
    columns = await connection.fetch(
        "SELECT c.relname, a.attname, obj_description(c.oid, 'pg_class') AS view, col_description(c.oid, a.attnum) AS text "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
        "WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind = 'v' ORDER BY 1, a.attnum"
    )
    assert [tuple(row)[:2] for row in columns if not row["view"] or not row["text"]] == []
    views = {row["relname"] for row in columns}
    assert len(views) >= 11
    await connection.execute("SET SESSION AUTHORIZATION gx_auditor")
    for view in views:
        assert await connection.fetchval(f"SELECT count(*) FROM gx.{view}") > 0, view
    await connection.close()


def test_the_answers_are_those_of_the_database(tuesday_url):
    """Commands and queries of the document, one by one."""
    text = DOCUMENT.read_text()
    assert len(COMMAND.findall(text)) == len(QUERY.findall(text)) == 10
    fresh = COMMAND.sub(lambda m: f"{m[1]}\n{answer_of_command(m[1], tuesday_url)}", text)
    fresh = QUERY.sub(
        lambda m: (
            f"```sql\n{m[1]};\n```\n\n```text\n{asyncio.run(answer_of_query(m[1], tuesday_url))}```"
        ),
        fresh,
    )
    if os.environ.get("GX_TEST_WRITE_GOLDEN"):
        DOCUMENT.write_text(fresh)
    assert fresh == text
