"""The rows that are computed from events are those that the database projects, for random logs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given

from extender.core.log.interval_row_projection import (
    GangRow,
    IntervalRows,
    PlacementRow,
    PreemptionRow,
    VictimStatusRow,
)
from tests.support.hypothesis_profile import examples
from tests.support.logs.bulk_log import copy_events, forget_log, writing_connection
from tests.support.logs.postgres import fresh_database, run
from tests.support.logs.random_logs import histories

pytestmark = pytest.mark.postgres
TABLES = {
    "placement": PlacementRow,
    "gang_state": GangRow,
    "preemption": PreemptionRow,
    "victim": VictimStatusRow,
}


@pytest.fixture(scope="module")
def log_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        yield url


def plain(value):
    """Return a value in the form that rows of both sides have."""
    if isinstance(value, str) and value.startswith("{"):
        return tuple(sorted(msgspec.json.decode(value).items()))
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(value))
    return tuple(value) if isinstance(value, list) else value


def columns(kind):
    return [name for name in kind.__struct_fields__ if name != "victims"]


@examples(
    400, quick=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(histories())
def test_computed_rows_are_the_projected_ones(log_url, events):
    """All columns of all four tables; the number of rows, too."""
    rows = IntervalRows()
    for event in events:
        rows.apply(event)

    async def compare():
        connection = await writing_connection(log_url)
        try:
            await forget_log(connection)
            await copy_events(connection, events)
            await connection.fetchval("SELECT gx.project($1, 100000)", len(events))
            for table, kind in TABLES.items():
                names = columns(kind)
                stored = {
                    tuple(
                        plain(sorted(v) if n == "started_units" else v)
                        for n, v in zip(names, row, strict=True)
                    )
                    for row in await connection.fetch(f"SELECT {', '.join(names)} FROM gx.{table}")
                }
                every = [*rows.completed, *rows.open_rows()]
                computed = [
                    tuple(plain(getattr(row, name)) for name in names)
                    for row in every
                    if type(row) is kind
                ]
                assert set(computed) == stored
                assert len(computed) == len(stored) == rows.begun[table]
        finally:
            await connection.close()

    run(compare())
