"""Pages of preemptions in both orders: nothing is missing or repeated, and each line has its outcome."""

from __future__ import annotations

import pytest

from extender.core.model.errors import NotFound
from extender.core.model.ids import Position
from extender.queries.log.preemption_report import PreemptionQuery, preemptions
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries, Script
from tests.support.logs.many_preemptions import preemption_log


async def a_log(count, seed):
    """Return a reader of a log with so many preemptions, and the outcome of each."""
    database = FakeDatabase()
    log = FakeEventLog(database)
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    events, outcomes = preemption_log(Script(grant), count, seed)
    await log.append(grant, events)
    return FakeEventQueries(database), outcomes


async def pages(reader, **wanted):
    """Read all pages; the next one begins at the last line of the one before."""
    lines, after = [], Position(0)
    while True:
        found = await preemptions(reader, PreemptionQuery(after=after, **wanted))
        lines += found.lines
        assert len(found.lines) <= wanted["limit"]
        if not found.more:
            return lines
        after = found.lines[-1].position


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "filters", [{}, {"victim": "ns/v1"}, {"preemptor": "ns/p0"}], ids=["all", "victim", "preemptor"]
)
async def test_both_orders_have_the_same_lines(seed, filters):
    """With the same outcome, also where it was recorded after the begin of the page."""
    reader, outcomes = await a_log(30, seed)
    whole = (await preemptions(reader, PreemptionQuery(**filters))).lines
    assert [line.position for line in whole] == sorted(line.position for line in whole)
    assert {line.preemption: line.outcome for line in whole}.items() <= outcomes.items()
    for limit in (1, 4, 30):
        oldest = await pages(reader, limit=limit, **filters)
        newest = await pages(reader, limit=limit, newest_first=True, **filters)
        assert oldest == list(whole)
        assert newest == list(reversed(whole))


async def test_a_victim_that_is_gone_after_the_cancellation_is_in_the_line():
    """The events behind a cancellation are read too; a pending one has no end."""
    reader, outcomes = await a_log(30, 7)
    found = await preemptions(reader, PreemptionQuery(newest_first=True, limit=30))
    assert set(outcomes.values()) == {"completed", "cancelled", "pending"}
    for line in found.lines:
        (pod,) = line.victims[0].pods
        assert line.outcome == outcomes[line.preemption]
        assert bool(pod.gone) == (line.outcome != "pending")
        assert bool(line.ended) == (line.outcome != "pending")
    assert not found.more
    assert found.head == reader.database.head.position


async def test_a_full_page_at_the_end_has_no_next_one():
    reader, _ = await a_log(4, 1)
    for newest_first in (False, True):
        wanted = PreemptionQuery(limit=4, newest_first=newest_first)
        assert not (await preemptions(reader, wanted)).more
        wanted = PreemptionQuery(limit=3, newest_first=newest_first)
        assert (await preemptions(reader, wanted)).more


async def test_without_a_preemption_there_is_nothing():
    reader, _ = await a_log(2, 1)
    late = PreemptionQuery(preemptor="ns/p0", since_us=10**18, newest_first=True)
    found = await preemptions(reader, late)
    assert (found.lines, found.more) == ((), False)
    with pytest.raises(NotFound, match="gang ns/other: the log has no such root group"):
        await preemptions(reader, PreemptionQuery(preemptor="ns/other"))
