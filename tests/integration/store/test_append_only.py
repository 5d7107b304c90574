"""The database itself keeps the log append-only, and each role to its part."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.planner.plan_types import DecisionInput
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import reading_pool
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import execute, fresh_database, run

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]


async def fill(url, count=12):
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        events = Script(grant).some(count)
        await log.append(grant, events)
        return events


async def everything(url):
    async with PostgresEventLog(url, page_events=5) as log:
        return [event async for page in log.read() for event in page]


@pytest.fixture(scope="module")
def filled_url(postgres_url, template_database):
    """URL of a log with an input, which stays as it is."""

    async def write(url):
        await fill(url)
        engine = ConnectionPool(url, name="test")
        stored = DecisionInput(digest="d", head=b"h", parts=(b"p",))
        await PostgresDecisionInputs(engine).save(stored)
        await engine.close()
        await execute(url, "INSERT INTO gx.pruning VALUES (1, 0, gen_random_uuid())")

    with fresh_database(postgres_url, template=template_database) as url:
        run(write(url))
        yield url


@pytest.mark.parametrize("table", ["event", "decision_input_chunk", "decision_input", "pruning"])
@pytest.mark.parametrize(
    "change", ["UPDATE gx.{} SET {} = {}", "DELETE FROM gx.{}", "TRUNCATE gx.{} CASCADE"]
)
async def test_even_the_owner_cannot_change_what_is_written(filled_url, table, change):
    column = {
        "event": "actor", "decision_input_chunk": "body", "decision_input": "parts", "pruning": "before_us",
    }[table]  # fmt: skip
    with pytest.raises(asyncpg.PostgresError) as caught:
        await execute(filled_url, change.format(table, column, column))
    assert caught.value.sqlstate == "55000"
    assert len(await everything(filled_url)) == 12


def past_the_trigger(change):
    return f"BEGIN; SET LOCAL session_replication_role = replica; {change}; COMMIT"


@pytest.mark.parametrize(
    ("change", "position"),
    [
        (
            "UPDATE gx.event SET payload = replace(payload::text, 'PodGroup', 'Podgroup')::json WHERE position = 7",
            7,
        ),
        ("UPDATE gx.event SET payload = (payload::text || ' ')::json WHERE position = 7", 7),
        ("UPDATE gx.event SET actor = 'absent' WHERE position = 1", 1),
        ("UPDATE gx.event SET cause_position = 1 WHERE position = 5", 5),
        ("UPDATE gx.event SET at_us = at_us + 1 WHERE position = 12", 12),
        ("UPDATE gx.event SET hash = sha256('x') WHERE position = 6", 6),
        ("DELETE FROM gx.event WHERE position = 3", 3),
        ("DELETE FROM gx.event WHERE position = 5", 5),
        ("DELETE FROM gx.event WHERE position BETWEEN 4 AND 9", 4),
    ],
)
async def test_tampering_is_found_at_its_place(database_url, change, position):
    """By every reader, even if a superuser went past the triggers."""
    await fill(database_url)
    await execute(database_url, past_the_trigger(change))
    with pytest.raises(CorruptLog, match=f"position {position}\\b"):
        await everything(database_url)


async def test_two_rows_swapped_are_found(database_url):
    await fill(database_url)
    await execute(
        database_url,
        past_the_trigger(
            "UPDATE gx.event SET position = 1000 WHERE position = 4;"
            "UPDATE gx.event SET position = 4 WHERE position = 5;"
            "UPDATE gx.event SET position = 5 WHERE position = 1000"
        ),
    )
    with pytest.raises(CorruptLog, match="position 4"):
        await everything(database_url)


async def test_a_event_of_the_future_stops_the_reader(database_url):
    await fill(database_url)
    await execute(
        database_url, past_the_trigger("UPDATE gx.event SET schema_version = 2 WHERE position = 9")
    )
    with pytest.raises(CorruptLog, match="position 9"):
        await everything(database_url)


async def test_the_hash_is_that_of_its_definition(database_url):
    """Recomputed in SQL from the documented formula, over all rows."""
    await fill(database_url)
    connection = await asyncpg.connect(database_url)
    wrong = await connection.fetchval(
        """
        SELECT count(*) FROM (
            SELECT hash, sha256(
                lag(hash, 1, decode(repeat('00', 32), 'hex')) OVER (ORDER BY position)
                || int8send(position) || int8send(epoch) || int8send(schema_version) || int8send(stream_version) || int8send(at_us)
                || int8send(coalesce(cause_position, 0)) || uuid_send(event_id)
                || int4send(octet_length(type)) || convert_to(type, 'UTF8')
                || int4send(octet_length(gang_uid)) || convert_to(gang_uid, 'UTF8')
                || int4send(octet_length(gang)) || convert_to(gang, 'UTF8')
                || int4send(octet_length(actor)) || convert_to(actor, 'UTF8')
                || int4send(octet_length(cause)) || convert_to(cause, 'UTF8')
                || int4send(octet_length(payload::text)) || convert_to(payload::text, 'UTF8')) AS again
            FROM gx.event) pair
        WHERE hash <> again
        """
    )
    await connection.close()
    assert wrong == 0


async def test_audit_questions_are_read_only_and_cut_off(database_url):
    engine = reading_pool(database_url)
    with pytest.raises(StoreUnavailable, match="read-only"):
        async with engine.use("test") as connection:
            await connection.execute("DELETE FROM gx.snapshot")
    async with engine.use("test") as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "5s"
    await engine.close()
