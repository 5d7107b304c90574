"""What wishes reached, in sentences that are true: alike in the log, explain, conditions, Events, plan and replay."""

from __future__ import annotations

import msgspec
import pytest

from extender.cli.commands.explain_command import print_explanation
from extender.cli.commands.report_command import _placement
from extender.cli.options.list_options import Where
from extender.cli.output.plan_text import plan_markdown, print_plan
from extender.core.admit import verdict_events
from extender.core.admit.gang_sentences import (
    plan_lines,
    recorded_wishes,
    short_text,
    shown_texts,
)
from extender.core.log.events import GangAdmitted, GroupRecord
from extender.core.model.errors import TooManyQueries
from extender.core.model.ids import GroupKey
from extender.core.model.visibility import EVERYTHING
from extender.core.planner.plan_types import WishOutcome, WishValue
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.name_lookup import parse_name
from extender.queries.explain.past_explanation import PastExplanations
from extender.queries.log.decision_details import decision_of
from extender.queries.log.decision_replay import replay_decision
from extender.queries.log.event_dto import summary
from extender.queries.log.reports import LIVE_REPORTS
from extender.queries.plan.plan_dto import AssignmentLine, GangVerdict, PlanAnswer
from extender.queries.plan.plan_query import PlanInput
from extender.queries.state.historical_state import HistoricalState
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.logs.fake_store import FakeEventLog, FakeEventQueries, FakeSnapshots
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.waiting import eventually

RACK, BLOCK = "net/rack", "net/block"
LEAF, DECODE = (GroupKey("ns", name, "PodGroup") for name in ("leaf", "decode"))


def wish(kind, *values, group=LEAF, pods=32, **rest):
    """Return a wish with a value and a bound for each key."""
    levels = tuple(WishValue(key=key, value=value, best=best) for key, value, best in values)
    return WishOutcome(kind=kind, group=group, values=levels, pods=pods, **rest)


TWO_RACKS = wish("preferred", (RACK, 2, 2), (BLOCK, 1, 1), largest=24)
PREFERS = "prefers one net/rack: in 2 racks, one is impossible: the largest holds 24 of 32 (proved)"


@pytest.mark.parametrize(
    ("outcome", "texts"),
    [
        (wish("preferred", (RACK, 1, 1), (BLOCK, 1, 1)), ("leaf: prefers one net/rack: in one (best)",)),
        (TWO_RACKS, (f"leaf: {PREFERS}; prefers one net/block: in one (best)",)),
        (
            wish("preferred", (RACK, 3, 2), largest=24),
            ("leaf: prefers one net/rack: in 3 racks; 2 may be possible (not proved within the search budget)",),
        ),
        (
            wish("preferred", (RACK, 2, 1)),
            ("leaf: prefers one net/rack: in 2 racks; one may be possible (not proved within the search budget)",),
        ),
        (
            wish("preferred", (RACK, 3, 3), (BLOCK, 1, 1), largest=14),
            (
                "leaf: prefers one net/rack: in 3 racks of one block, fewer there is impossible; the largest holds 14 of 32 "
                "(proved); prefers one net/block: in one (best)",
            ),
        ),
        (
            wish("preferred", (RACK, 5, 5), (BLOCK, 3, 3), largest=14),
            (
                "leaf: prefers one net/rack: in 5 racks, fewer is impossible; the largest holds 14 of 32 (proved); "
                "prefers one net/block: in 3 blocks, fewer is impossible with 5 racks (proved)",
            ),
        ),
        (
            wish("rank", (RACK, 3, 3), ("kubernetes.io/hostname", 9, 7)),
            (
                "leaf: rank order by net/rack: 3 of 31 pairs of neighbours are in different racks, fewer is impossible on "
                "these nodes (proved); rank order by kubernetes.io/hostname: 9 of 31 pairs of neighbours are in different "
                "nodes; 7 may be possible (not proved)",
            ),
        ),
        (wish("rank", (RACK, 0, 0)), ()),
        (
            wish("near", (BLOCK, 1, 0), partner=DECODE),
            (
                "leaf: near decode by net/block: 1 pair of pods is in different blocks; none may be possible "
                "(not proved within the search budget)",
            ),
        ),
        (
            wish("near", (BLOCK, 0, 0), partner=DECODE),
            ("leaf: near decode by net/block: no pairs of pods are in different blocks (best)",),
        ),
        (
            wish("balanced", (RACK, 0, 0), pods=23),
            ("leaf: balanced by net/rack: the smallest of 2 shares has 11 of 23 pods (best)",),
        ),
        (
            wish("balanced", (RACK, 5, 5)),
            ("leaf: balanced by net/rack: the smallest of 2 shares has 11 of 32 pods, more is impossible (proved)",),
        ),
        (
            wish("balanced", (RACK, 5, 1)),
            (
                "leaf: balanced by net/rack: the smallest of 2 shares has 11 of 32 pods; 15 may be possible "
                "(not proved within the search budget)",
            ),
        ),
    ],
)  # fmt: skip
def test_each_sentence(outcome, texts):
    assert shown_texts(plan_lines((outcome,))) == texts


def test_lines_have_the_numbers():
    """One line for each key, also for those that the sentences leave out."""
    rack, block = plan_lines((TWO_RACKS,))
    assert (rack.kind, rack.group, rack.key, rack.value, rack.best) == (
        "preferred",
        "leaf",
        RACK,
        2,
        2,
    )
    assert (block.key, block.value, block.proved) == (BLOCK, 1, True)
    assert rack.text == PREFERS
    (open_end,) = plan_lines((wish("preferred", (RACK, 3, 2)),))
    assert not open_end.proved


def test_groups_with_the_same_answer_share_a_sentence():
    """Of many slices the first names and the number of the others; a message has the first sentences only."""
    names = [GroupKey("ns", f"slice-{n}", "PodGroup") for n in range(9)]
    same = [wish("preferred", (RACK, 1, 1), group=name) for name in names]
    (text,) = shown_texts(plan_lines(same))
    assert text.startswith("slice-0, slice-1, ")
    assert text.endswith(" and 3 more: prefers one net/rack: in one (best)")
    others = [wish("preferred", (RACK, n + 3, n + 3), group=name) for n, name in enumerate(names)]
    assert short_text(plan_lines(others)).endswith("; and 6 more")
    assert short_text(()) == ""


def test_an_order_of_ranks_that_is_the_best_is_not_in_messages():
    """Each group of ranked pods has one, so the log has only those with changes, and a message what may be better."""
    together, best, perhaps = (
        wish("rank", (RACK, *numbers)) for numbers in ((0, 0), (3, 3), (3, 2))
    )
    assert recorded_wishes((together,)) == {}
    assert [line.value for line in plan_lines((together,))] == [0]
    assert len(recorded_wishes((best,))[LEAF]) == 1
    assert short_text(plan_lines((best,))) == ""
    assert short_text(plan_lines((perhaps,))).startswith("leaf: rank order by net/rack: 3 of 31")


class Before(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group in the version of the service before wishes."""

    kind: str
    name: str
    minimum: int = 1


def test_groups_in_the_log_are_read_by_the_version_before_and_the_other_way_round():
    """A group without wishes keeps its bytes; one with them is read without them."""
    plain = GroupRecord(kind="PodGroup", name="leaf", minimum=3)
    assert msgspec.json.encode(plain) == b'{"kind":"PodGroup","name":"leaf","minimum":3}'
    records = recorded_wishes((TWO_RACKS,))[LEAF]
    stored = msgspec.json.encode(msgspec.structs.replace(plain, wishes=records))
    assert msgspec.json.decode(stored, type=Before) == Before(
        kind="PodGroup", name="leaf", minimum=3
    )
    assert msgspec.json.decode(stored, type=GroupRecord).wishes == records
    assert msgspec.json.decode(msgspec.json.encode(plain), type=GroupRecord).wishes == ()


def test_plan_prints_them(capsys):
    """As text and as Markdown, where they are not folded away."""
    gang = GangVerdict(
        gang="ns/leaf", kind="PodGroup", verdict="placed", wishes=plan_lines((TWO_RACKS,)),
        assignments=(AssignmentLine("ns/p", "leaf", "n1"),),
    )  # fmt: skip
    answer = PlanAnswer(verdict="placed", gangs=(gang,))
    print_plan(answer, files=True)
    assert f"  leaf: {PREFERS}; prefers one net/block: in one (best)\n" in capsys.readouterr().out
    page = plan_markdown(answer, [])
    assert page.index("- leaf: prefers one net/rack: in 2 racks") < page.index("<details>")


@pytest.fixture
async def stage(monkeypatch):
    """A service whose planner answers that each gang prefers one rack and is in two."""
    records = {GroupKey("default", "g", "PodGroup"): recorded_wishes((TWO_RACKS,))[LEAF]}
    monkeypatch.setattr(verdict_events, "recorded_wishes", lambda _: records)
    async with Stage(*a_fleet("2 racks x 2 nodes", gpu=1)) as service:
        await service.lead()
        service.start(service.reporter.run())
        await service.settled()
        for node in service.cluster.seen.nodes.values():
            service.cluster.change_node(node.name, labels={**node.labels, RACK: "r7"})
        service.cluster.add(*a_gang("g", pods=3))
        await service.settled()
        yield service


async def test_the_log_has_them_and_everything_shows_them(stage):
    """The event and its summary, the state and its snapshots, explain of the past, and the details of the decision."""
    event = next(event for event in stage.events() if isinstance(event.data, GangAdmitted))
    assert f"; g: {PREFERS}; prefers one net/block" in summary(event.data)
    committed = stage.leader.committed
    assert decode_state(encode_state(committed)).gangs == committed.gangs
    decision = await decision_of(event, stage.inputs)
    assert [line.text for line in decision.wishes][:1] == [PREFERS]
    reader = FakeEventQueries(stage.database)
    past = HistoricalState(FakeEventLog(stage.database), FakeSnapshots(stage.database), reader)
    explanation = await PastExplanations(past, reader).explain(
        parse_name("PodGroup/g", "default"), str(event.position), EVERYTHING
    )
    assert explanation.wishes == (f"g: {PREFERS}; prefers one net/block: in one (best)",)
    assert [line.key for line in explanation.gang.groups[0].wishes] == [RACK, BLOCK]


async def test_a_replay_compares_them(stage):
    """The planner of the replay has no wish in its input, so the recorded ones differ."""
    event = next(event for event in stage.events() if isinstance(event.data, GangAdmitted))
    stored = await stage.inputs.load(event.data.input_digest)
    result = replay_decision(event.position, event.data, stored)
    assert not result.same
    assert result.differences == (
        f"PodGroup g: no wish instead of {PREFERS}; prefers one net/block: in one (best)",
    )
    groups = tuple(msgspec.structs.replace(group, wishes=()) for group in event.data.groups)
    without = msgspec.structs.replace(event.data, groups=groups)
    assert replay_decision(event.position, without, stored).same


async def test_an_event_and_the_condition_have_them(stage):
    """The Kubernetes Event once at the admission, the condition of the group when its minimum is bound."""
    await eventually(lambda: stage.cluster.notices, "the Event")
    events = [notice for notice in stage.cluster.notices if notice.reason == "GangAdmitted"]
    (event,) = events
    assert not event.warning
    assert event.message.startswith(f"3 members placed; {PREFERS}")
    for pod in range(3):
        stage.bind(f"g-{pod}")
    await eventually(lambda: all(stage.cluster.pod(f"g-{n}").node for n in range(3)), "bindings")
    await stage.settled()
    stage.conditions_due()
    await eventually(lambda: stage.cluster.group("g").conditions, "the condition")
    (condition,) = stage.cluster.group("g").conditions
    assert condition[3].startswith(f"3 members bound, the minimum of the tree is met; {PREFERS}")
    assert len([n for n in stage.cluster.notices if n.reason == "GangAdmitted"]) == 1


def explaining(stage, rack):
    """Return a service whose plans have the whole gang in so many racks; 0: no plan is made, because others wait."""
    asked = []

    async def plan(query):
        asked.append(query)
        if not rack:
            raise TooManyQueries("4 plan queries wait already; try again later")
        answer = await live_plans(stage).plan_live(query)
        now = wish("preferred", (RACK, rack, rack), group=GroupKey("default", "g", "PodGroup"))
        gangs = [msgspec.structs.replace(gang, wishes=plan_lines((now,))) for gang in answer.gangs]
        return msgspec.structs.replace(answer, gangs=tuple(gangs))

    return ExplainService(stage.cluster, stage.leader, stage.clock, plan), asked


@pytest.mark.parametrize(
    ("rack", "possible", "texts"),
    [
        (1, [1], ["one net/rack is free for all of it now: r7; it is in 2"]),
        (2, [], []),
        (
            0,
            [0],
            [
                "whether fewer domains are possible now is not known: 4 plan queries wait already; try again later"
            ],
        ),
    ],
)
async def test_a_running_gang_has_what_is_free_for_it_now(stage, rack, possible, texts):
    """All of its pods are planned once more, in the capacity that they have, without evictions."""
    service, asked = explaining(stage, rack)
    explanation = await service.explain(parse_name("PodGroup/g", "default"))
    assert [line.possible for line in explanation.better] == possible
    assert [line.text for line in explanation.better] == texts
    assert [(query.anew, query.preemption) for query in asked] == [(True, False)]
    print_explanation(explanation)


async def test_the_report_asks_about_each_gang_in_more_domains_than_it_prefers(stage):
    """A row for each level of which it uses several."""
    service, _ = explaining(stage, 1)
    explanation = await service.explain(parse_name("PodGroup/g", "default"))

    def ask(path, kind, *, absent=None):
        if path.startswith("/v1/explain?"):
            assert path.endswith("name=PodGroup%2Fdefault%2Fg")
            return explanation
        return [explanation.gang]

    report = _placement(ask, Where().part(), "", 10)
    (row,) = report.rows
    assert (row["gang"], row["group"], row["level"]) == ("default/g", "g", RACK)
    assert (row["domains"], row["best"], row["proved"]) == (2, 2, "yes")
    assert row["free_now"] == "r7"
    assert set(row) == set(LIVE_REPORTS["placement"].columns)
    assert _placement(ask, Where().part(), "", 0).more


async def test_a_tree_is_planned_anew_in_the_capacity_that_it_has():
    """Bound and reserved members alike; as it is, there is no place for anything."""
    async with Stage(*a_fleet("2 racks x 1 nodes", gpu=1), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.settled()
        stage.cluster.change_pod("g-0", node=stage.reserved_node("g-0"))
        await stage.settled()
        root = stage.root("g")
        assert (len(root.bound), len(root.reservations)) == (1, 1)
        query = PlanInput(
            groups=frozenset({GroupKey("default", "g", "PodGroup")}), preemption=False
        )
        plan_live = live_plans(stage).plan_live
        (anew,) = (await plan_live(msgspec.structs.replace(query, anew=True))).gangs
        assert (anew.verdict, len(anew.assignments)) == ("placed", 2)
        (now,) = (await plan_live(query)).gangs
        assert len(now.assignments) < 2
