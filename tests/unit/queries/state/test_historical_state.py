"""The state as it was: which moment a question means, what it looked like, what changed since."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import BadInput, NotFound
from extender.core.model.ids import NodeName, Position
from extender.core.model.message_formatting import rfc3339
from extender.ports.log_ports import LogHead
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.state_dto import Scope, scope_of
from extender.queries.state.state_report import ORDINARY, build_state_report, compare
from extender.snapshots.state_loader import save_snapshot
from tests.support.hypothesis_profile import examples
from tests.support.logs.fake_store import (
    FakeDatabase,
    FakeEventLog,
    FakeEventQueries,
    FakeSnapshots,
)
from tests.support.logs.random_logs import histories, lean
from tests.support.logs.short_log import at_us, story

ALL = Scope()


class CountingLog(FakeEventLog):
    """Counts the events that were read."""

    read_events = 0

    async def read(self, **asked):
        async for page in super().read(**asked):
            self.read_events += len(page)
            yield page


class Past:
    """A log of given events and what answers questions about it."""

    def __init__(self, events):
        self.database = FakeDatabase(lambda: at_us(1000))
        self.log = CountingLog(self.database, page_events=3)
        self.snapshots = FakeSnapshots(self.database, snapshot_spacing=4)
        self.as_of = HistoricalState(self.log, self.snapshots, FakeEventQueries(self.database))
        self.events = []
        self.write(events)

    def write(self, events):
        from extender.store.log.event_codec import chain, encode_event

        for event in events:
            row = encode_event(event)[0]
            self.database.rows.append((row, chain(self.database.head.chain, row)))
            self.events.append(event)

    def state(self, position):
        return fold(EMPTY, self.events[:position])

    async def save(self, position):
        row, digest = self.database.rows[position - 1]
        head = LogHead(position=Position(position), chain=digest, at_us=row.at_us)
        await save_snapshot(self.snapshots, self.state(position), head)

    async def at(self, moment, **scope):
        return await self.as_of.state(str(moment), Scope(**scope))


@pytest.fixture
def past():
    return Past(story())


@pytest.mark.parametrize(
    ("seconds", "position"),
    [(0, 1), (9.999999, 1), (10, 3), (30, 6), (69, 9), (100, 14), (999, 14)],
)
async def test_a_time_means_all_that_was_recorded_by_then(past, seconds, position):
    found = await past.at(rfc3339(at_us(seconds)))
    assert (found.as_of.position, found.log.position) == (position, 14)
    assert found.as_of.time == rfc3339(past.events[position - 1].at_us)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("0", "positions begin at 1"),
        ("15", "the log ends at position 14, 2026-09-21T14:15:00.000000Z"),
        ("9" * 30, "is not in the log"),
        ("-1", "not a time with offset"),
        ("yesterday", "not a time with offset"),
        ("2026-09-21T14:14:00", "not a time with offset"),
        (rfc3339(at_us(-1)), "the log begins at 2026-09-21T14:13:20.000000Z"),
        (rfc3339(at_us(1001)), "is in the future; the log ends at position 14"),
    ],
)
async def test_moments_that_there_are_not(past, asked, message):
    with pytest.raises(BadInput, match=message) as caught:
        await past.at(asked)
    assert str(caught.value).startswith("at: ")
    with pytest.raises(BadInput, match=r"^diff: "):
        await past.as_of.difference("3", asked, ALL)


async def test_an_empty_log_is_refused():
    with pytest.raises(BadInput, match="the log is empty"):
        await Past([]).at("")


async def test_a_clock_that_ran_ahead_and_was_put_back(past):
    """What is recorded is not the future, whatever the clock shows now."""
    past.database.now_us = lambda: at_us(50)
    assert (await past.at(rfc3339(at_us(100)))).as_of.position == 14
    with pytest.raises(BadInput, match="future"):
        await past.at(rfc3339(at_us(101)))


async def test_the_state_in_full(past):
    """Reservations, members, answers, the preemption under way, and what is not known."""
    found = await past.at(9)
    assert [(g.gang, g.state, g.reserved, g.bound) for g in found.gangs] == [
        ("ns/low", "scheduled", 0, 2),
        ("other/high", "preempting", 0, 0),
    ]
    high = found.gangs[1]
    assert high.outcome == "preempting"
    assert high.reasons[0].endswith(
        "uses the capacity of 1 pod of 1 disruption unit of lower priority"
    )
    assert (high.last_decision_time, high.last_decision_position) == (rfc3339(at_us(60)), 9)
    n1, n2 = found.nodes
    assert (n1.node, n1.topology, n1.bound, n1.preemption_claims) == (
        "n1", {"rack": "r1"}, {"nvidia.com/gpu": 2, "pods": 1}, {"nvidia.com/gpu": 2, "pods": 1},
    )  # fmt: skip
    assert [(p.pod, p.state) for p in n1.pods] == [("ns/a", "bound"), ("other/h", "claimed")]
    assert n2.reserved == {}
    (preemption,) = found.preemptions
    assert [(v.pod, v.unit) for v in preemption.victims] == [("ns/a", "Pod/ns/a")]
    totals = msgspec.structs.asdict(found.totals)
    assert totals == {"gangs": 2, "pending": 1, "reserved": 0, "bound": 2, "nodes": 2}
    assert found.limitations == [ORDINARY]


async def test_reserved_and_then_bound(past):
    assert [(m.pod, m.state, m.node) for m in (await past.at(4)).gangs[0].members] == [
        ("ns/a", "bound", "n1"), ("ns/b", "reserved", "n2"),
    ]  # fmt: skip
    (group,) = (await past.at(4)).gangs[0].groups
    assert (group.name, group.minimum, group.reserved, group.bound) == ("low", 2, 1, 1)


async def test_what_was_bound_past_us_is_named_as_not_known(past):
    found = await past.at(14)
    assert [g.gang for g in found.gangs] == ["ns/stray", "other/high"]
    assert any("1 of 1 bound members had no reservation" in line for line in found.limitations)


async def test_one_node(past):
    """The gangs that have something there, whole; only that node."""
    found = await past.at(9, node=NodeName("n1"))
    assert [n.node for n in found.nodes] == ["n1"]
    assert [(g.gang, g.bound) for g in found.gangs] == [("ns/low", 2), ("other/high", 0)]
    found = await past.at(9, node=NodeName("n2"))
    assert [g.gang for g in found.gangs] == ["ns/low"]
    assert found.preemptions == []


async def test_a_domain_and_a_namespace(past):
    found = await past.as_of.state("9", scope_of("", "rack=r2", ""))
    assert [n.node for n in found.nodes] == ["n2"]
    assert any("recorded labels" in line for line in found.limitations)
    found = await past.at(9, namespace="other")
    assert [g.gang for g in found.gangs] == ["other/high"]
    assert [p.state for n in found.nodes for p in n.pods] == ["claimed"]


async def test_an_empty_node_is_not_an_unknown_one(past):
    """A node that was empty then is an answer; one that the log does not name is an error."""
    past.database.projected = 14
    assert (await past.at(1, node=NodeName("n1"))).nodes == []
    assert (await past.at(1, namespace="ns")).gangs == []
    with pytest.raises(
        NotFound, match="node n7: the log has no member that was reserved or bound there"
    ):
        await past.at(9, node=NodeName("n7"))
    with pytest.raises(NotFound, match="namespace no-such: the log has no gang"):
        await past.at(9, namespace="no-such")


async def test_an_empty_domain_is_not_an_unknown_one(past):
    """A domain without gangs at that time is an answer; a label that no recorded node had is an error."""
    assert (await past.at(1, domain={"rack": "r1"})).gangs == []
    assert (await past.as_of.difference("4", "4", Scope(domain={"rack": "r1"}))).gangs == []
    for domain, message in (
        (
            {"rack": "r11"},
            "domain rack=r11: the log has no node with the value 'r11' of this label; .*mean r1?",
        ),
        ({"rak": "r1"}, "domain rak=r1: the log has no node with this label; .*did you mean rack?"),
    ):
        with pytest.raises(NotFound, match=message):
            await past.at(9, domain=domain)
        with pytest.raises(NotFound, match=message):
            await past.as_of.difference("4", "9", Scope(domain=domain))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("", "rack", ""), "domain: 'rack' is not KEY=VALUE"),
        (("", "=r1", ""), "is not KEY=VALUE"),
        (("", "rack=", ""), "is not KEY=VALUE"),
        (("n1", "rack=r1", ""), "node 'n1' and domain 'rack=r1'"),
    ],
)
def test_parts_that_cannot_be_asked_for(asked, message):
    with pytest.raises(BadInput, match=message):
        scope_of(*asked)


async def test_what_changed(past):
    """From the earlier to the later moment, in whichever order they are named."""
    found = await past.as_of.difference("12", "6", ALL)
    assert (found.begin.position, found.end.position) == (6, 12)
    assert [(g.gang, g.change) for g in found.gangs] == [
        ("ns/low", "changed"),
        ("other/high", "new"),
    ]
    low = found.gangs[0]
    assert (low.before.bound, low.after.bound) == (2, 1)
    assert [(m.pod, m.before, m.after and m.after.node) for m in found.members] == [
        ("ns/a", found.members[0].before, None), ("ns/h", None, "n1"),
    ]  # fmt: skip
    found = await past.as_of.difference("12", "14", ALL)
    assert [(g.gang, g.change) for g in found.gangs] == [("ns/low", "removed"), ("ns/stray", "new")]
    assert (await past.as_of.difference("4", "4", ALL)).gangs == []


async def test_a_gang_that_left_the_node_is_not_gone(past):
    """A gang that was there at either moment is part of the difference, and its counts are those of the whole gang."""
    found = await past.as_of.difference("6", "12", Scope(node=NodeName("n1")))
    assert [(g.gang, g.change) for g in found.gangs] == [
        ("ns/low", "changed"),
        ("other/high", "new"),
    ]


@examples(100, quick=8)
@given(histories(), st.integers(0, 25), st.integers(0, 25))
def test_a_difference_is_what_the_two_pictures_differ_in(events, first, second):
    """Whatever the log: a gang is in the difference exactly when it does not look the same."""
    before, after = fold(EMPTY, events[:first]), fold(EMPTY, events[:second])
    shown = [
        {g.uid: (g.state, g.priority, g.reserved, g.bound, g.outcome, g.reasons) for g in p.gangs}
        for p in (build_state_report(before, ALL), build_state_report(after, ALL))
    ]
    places = [
        {(m.uid, m.state, m.node) for g in p.gangs for m in g.members}
        for p in (build_state_report(before, ALL), build_state_report(after, ALL))
    ]
    found = compare(before, after, ALL)
    uids = {*shown[0], *shown[1]}
    assert {g.uid for g in found.gangs} == {u for u in uids if shown[0].get(u) != shown[1].get(u)}
    moved = {(m.uid, place.state, place.node) for m in found.members
             for place in (m.before, m.after) if place}  # fmt: skip
    assert moved == places[0] ^ places[1]


@examples(100, quick=8)
@given(histories())
def test_sums_are_those_of_the_pods(events):
    """Each member is on its node once, and a node's sums are its pods'."""
    state = fold(EMPTY, events)
    found = build_state_report(state, ALL)
    members = [(m.uid, m.node, m.state) for g in found.gangs for m in g.members]
    promised = [(m.uid, m.node, m.state) for p in found.preemptions for m in p.claims]
    vacant = [v for root in state.gangs.values() for v in root.replacement_holds.values()]
    kept = [(v.uid, v.node, "replacement") for v in vacant]  # of members that were lost
    held = [(p.uid, p.node, p.state) for hold in found.capacity_holds for p in hold.places]
    claims = state.moves.claims() if state.moves is not None else ()
    moving = [(c.uid, c.node, "moving") for c in claims if c.gang_uid in state.gangs]
    assert sorted(members + promised + kept + held + moving) == sorted(
        (p.uid, n.node, p.state) for n in found.nodes for p in n.pods
    )
    assert found.totals.reserved == sum(len(r.reservations) for r in state.gangs.values())
    for node in found.nodes:
        for kind in ("reserved", "bound"):
            cpu = sum(p.requests.get("cpu", 0) for p in node.pods if p.state == kind)
            assert getattr(node, kind).get("cpu", 0) == cpu


@pytest.mark.parametrize("saved", [(), (3,), (5, 12), (14,)])
@pytest.mark.parametrize("order", [(14, 3, 9), (3, 9, 10, 9), (1, 14, 1)])
async def test_from_wherever_it_is_folded(past, saved, order):
    """Checkpoints before and behind, states kept from questions before: the answer is the fold."""
    for position in saved:
        await past.save(position)
    for position in order:
        moment = (await past.at(position)).as_of
        assert lean(await past.as_of.folded(moment)) == lean(past.state(position))


async def test_the_nearest_start_is_taken(past):
    await past.save(8)
    await past.at(10)
    assert past.log.read_events == 2
    await past.at(12)
    assert past.log.read_events == 4
    await past.at(12)
    assert past.log.read_events == 4
    await past.at(9)
    assert past.log.read_events == 5


async def test_a_state_of_another_history_is_not_gone_on_from(past):
    """The database came back as an older copy and was written on: what was kept is of no use."""
    await past.at(12)
    del past.database.rows[10:], past.events[10:]
    changed = [msgspec.structs.replace(e, actor="another") for e in list(story())[10:]]
    past.write(changed)
    found = await past.at(13)
    assert found.as_of.hash == past.database.rows[12][1].hex()
    assert lean(await past.as_of.folded(found.as_of)) == lean(past.state(13))
    assert past.log.read_events >= 13
