"""Pages of the log for a caller who sees some namespaces: whole pages, in order, none twice, whatever lies between."""

from __future__ import annotations

import pytest

from extender.core.log.events import PreemptionPlanned
from extender.core.model.visibility import Visibility
from extender.ports.query_ports import EventFilter
from extender.queries.log import event_filter
from extender.queries.log.event_filter import with_plans
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries, Script
from tests.support.service.tenant_story import filled
from tests.support.service.two_tenants import FOREIGN, OWN


@pytest.fixture
async def reader():
    """A log in which 9 of 10 events are plans of others about victims of others."""
    database = FakeDatabase()
    log = FakeEventLog(database)
    grant = await log.take(holder="a", address="", ttl_ms=3_600_000)
    script = Script(grant)
    plan = filled(PreemptionPlanned, FOREIGN)
    events = [
        script.next(gang=f"{OWN}/g{n}")
        if n % 10 == 0
        else script.next(plan, gang=f"{FOREIGN}/g{n}")
        for n in range(200)
    ]
    await log.append(grant, events)
    return FakeEventQueries(database)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("examined", [2, 1_000])
async def test_pages_are_whole_and_in_order(reader, monkeypatch, limit, examined, *, newest_first):
    """Every own event is in one page; a page is shorter than its limit only at the end."""
    monkeypatch.setattr(event_filter, "EXAMINED", examined)
    mine = event_filter.visible_queries(reader, Visibility.of([OWN]))
    found, after = [], 0
    while True:
        page = await mine.page(EventFilter(limit=limit, after=after, newest_first=newest_first))
        found += [event.position for event in page.events]
        assert len(page.events) == limit or not page.more
        if not page.more:
            break
        after = page.events[-1].position
    assert found == sorted(range(1, 201, 10), reverse=newest_first)


async def test_a_reader_of_everything_reads_the_log_itself(reader):
    """No projection, and no cost of one."""
    assert event_filter.visible_queries(reader, Visibility.all()) is reader
    assert with_plans(reader, ["p"]) is reader


async def test_names_of_others_are_not_in_the_log(reader):
    """Questions about a namespace, a gang or a pod of others find nothing."""
    mine = event_filter.visible_queries(reader, Visibility.of([OWN]))
    assert await reader.has_namespace(FOREIGN)
    assert not await mine.has_namespace(FOREIGN)
    assert await reader.incarnations(f"{FOREIGN}/g1")
    assert not await mine.incarnations(f"{FOREIGN}/g1")
    assert not await mine.placements(f"{FOREIGN}/p")
    assert not await mine.events(EventFilter(gang=f"{FOREIGN}/g1"))
    assert await mine.incarnations(f"{OWN}/g0")
