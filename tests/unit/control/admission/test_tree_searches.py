"""Long searches beside quick admissions: what passes them, what waits for them, and whose is next."""

from __future__ import annotations

import asyncio
import random

import pytest

from extender.control.admission.pending_trees import LATE_MS, NAMESPACE_MS
from extender.control.admission.tree_admission import OVERTAKEN_MAX
from extender.control.admission.tree_searches import HOLD_UP_MS
from extender.core.log.events import GangAdmitted, GangUnschedulable
from extender.core.model.errors import NotLeading
from extender.core.planner.codec.request_codec import Decoder
from extender.core.planner.plan_types import PlanRequest
from extender.core.planner.planning import plan
from tests.support.planning.hostile_trees import a_fleet_of_racks, apart, odd_sized
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

ONE = {"cpu": "100m"}
SEARCH_S, CHANGE_EVERY_S = 2, 20  # in virtual time


def in_namespace(namespace, objects):
    """Move objects to a namespace."""
    return [o | {"metadata": o["metadata"] | {"namespace": namespace}} for o in objects]


def ordinary(name="g", namespace="good", **rest):
    """Make a gang of 4 that fits anywhere."""
    return in_namespace(namespace, a_gang(name, pods=4, requests=ONE, **rest))


def verdicts(stage, *kinds):
    """Return the names of the trees that have an answer, in the order of the log."""
    return [
        e.gang
        for e in stage.events()
        if isinstance(e.data, kinds or (GangUnschedulable, GangAdmitted))
    ]


@pytest.mark.parametrize(("hostile", "racks"), [(odd_sized, 6), (apart, 4)])
async def test_an_ordinary_gang_is_admitted_while_an_older_search_goes_on(hostile, racks):
    """Trees of another namespace that were created before it, and that keep the planner busy, do not keep it waiting."""
    bad = [o for n in range(4) for o in hostile(f"bad-{n}", "bad", random.Random(n))]
    async with Stage(*a_fleet_of_racks(racks), *bad, *ordinary()) as stage:
        await stage.lead()
        stage.start(stage.control_loop.run())
        await eventually(lambda: "good/g" in verdicts(stage, GangAdmitted), "admitted")
        refused = verdicts(stage, GangUnschedulable)
        assert len(refused) < 2, "the others wait for their turn"


def searched(stage, took_s=1.0):
    """Let every tree need a search of some seconds, and return the list that gets the order of the searches."""
    planner, order = stage.parts.planner, []
    inner = planner.plan
    planner.at_once = lambda request: "search"

    async def slow(encoded):
        order.append(decoded(encoded).root.key.path)
        stage.clock.advance(took_s)
        return await inner(encoded)

    planner.plan = slow
    return order


def decoded(encoded) -> PlanRequest:
    """Return the request of a decision input."""
    return Decoder().decode(encoded.head, encoded.parts)


async def test_namespaces_take_turns_and_keep_their_own_order():
    """Five older searches of one namespace, and two of another: the second one's do not come last."""
    many = [o for n in range(5) for o in ordinary(f"m{n}", "many")]
    few = [o for n in range(2) for o in ordinary(f"f{n}", "few")]
    async with Stage(a_node("n0"), *many, *few) as stage:
        await stage.lead()
        order = searched(stage)
        await stage.one_pass()
        assert sorted(order[:2]) == ["few/f0", "many/m0"]
        assert sorted(order[2:4]) == ["few/f1", "many/m1"]
        assert order[4:] == ["many/m2", "many/m3", "many/m4"]
        assert verdicts(stage, GangAdmitted) == order


async def test_why_a_tree_waits_is_published():
    """While the first of three is searched, the others know how many come before them."""
    trees = [o for n in range(3) for o in ordinary(f"m{n}", "many")]
    async with Stage(a_node("n0"), *trees) as stage:
        await stage.lead()
        published, seen = stage.parts.exchange.published, []
        searched(stage)
        inner = stage.parts.planner.plan

        async def look(encoded):
            seen.append([turn.of_namespace for turn in published.turns.values() if not turn.runs])
            return await inner(encoded)

        stage.parts.planner.plan = look
        await stage.one_pass()
        assert seen == [[0, 1], [0], []]
        assert not published.turns


async def test_a_search_changes_no_condition_of_a_refused_tree():
    """That it waits for its search is in the condition of a tree without a verdict only: each change searches refused ones again."""
    hostile = odd_sized("large", "default", random.Random(1))
    settings = {"search_budget": 40, "preemption": False}
    async with Stage(*a_fleet_of_racks(), *hostile, **settings) as stage:
        await stage.lead()
        stage.start(stage.reporter.run())
        searched(stage)
        inner, during = stage.parts.planner.plan, []

        def message():
            return next((c[3] for c in stage.cluster.group("large").conditions), "")

        def is_reported():
            stage.conditions_due()
            return stage.reporter._jobs.empty() and not stage.reporter._jobs._active

        async def report(encoded):
            await stage.control_loop.run_pass()
            await eventually(is_reported)
            during.append(message())
            return await inner(encoded)

        stage.parts.planner.plan = report
        await stage.settled()
        await eventually(is_reported)
        refusal = message()
        assert set(during) == {
            "CompositePodGroup default/large waits for its turn: its search takes long, and namespaces search by turns"
        }
        during.clear()
        stage.later(10)
        await stage.settled()
        assert during
        assert set(during) == {refusal}


async def test_a_lower_priority_waits_for_a_search_of_a_higher_one():
    """The order between priorities is strict: the tree that is planned at once is admitted after the searched one."""
    high = ordinary("high", "good", priority=10)
    high[0]["spec"]["priority"] = 10
    async with Stage(a_node("n0"), *ordinary("low", "other"), *high) as stage:
        await stage.lead()
        planner = stage.parts.planner
        inner = planner.at_once
        planner.at_once = lambda r: "search" if r.root.key.name == "high" else inner(r)
        await stage.one_pass()
        assert verdicts(stage) == ["good/high"]
        await stage.one_pass()
        assert verdicts(stage) == ["good/high", "other/low"]


async def test_searches_of_a_namespace_hold_up_others_for_some_seconds_of_a_minute():
    """Then a tree of lower priority is admitted although searches of the higher one still wait."""
    high = [o for n in range(4) for o in ordinary(f"high-{n}", "flood", priority=10)]
    for group in high[::5]:
        group["spec"]["priority"] = 10
    async with Stage(a_node("n0"), *ordinary("low", "other"), *high) as stage:
        await stage.lead()
        planner = stage.parts.planner
        inner = planner.at_once
        searched(stage, took_s=HOLD_UP_MS / 2_000)
        planner.at_once = lambda r: inner(r) if r.root.key.name == "low" else "search"
        search, published = planner.plan, stage.parts.exchange.published

        async def beside_a_pass(encoded):
            number = published.result.number
            answer = await search(encoded)
            await eventually(lambda: published.result.number > number, "a pass beside the search")
            return answer

        planner.plan = beside_a_pass
        stage.start(stage.control_loop.run())
        await eventually(lambda: "other/low" in verdicts(stage, GangAdmitted), "admitted")
        assert 2 <= verdicts(stage).index("other/low") < 4


async def test_a_tree_whose_plans_were_overtaken_is_passed_no_longer():
    """Each time its plan was found, a younger gang had taken the capacity; the fourth search is waited for."""
    large = a_gang("large", pods=4, requests={"cpu": "1"})
    async with Stage(
        *(a_node(f"n{n}", cpu="4") for n in range(6)), *in_namespace("a", large)
    ) as stage:
        await stage.lead()
        planner = stage.parts.planner
        quick, inner, taken = planner.at_once, planner.plan, []
        planner.at_once = lambda r: "search" if r.root.key.name == "large" else quick(r)

        async def overtaken(encoded):
            found = await inner(encoded)
            gang = f"small-{len(taken)}"
            taken.append(gang)
            nodes = {a.node for a in found.assignments}
            small = [
                a_pod(f"{gang}-{n}", gang, namespace="b", requests={"cpu": "4"})
                for n in range(len(nodes))
            ]
            stage.cluster.add(a_group(gang, gang=len(small), namespace="b"), *small)
            await stage.control_loop.run_pass()
            return found

        planner.plan = overtaken
        for _ in range(OVERTAKEN_MAX + 1):
            await stage.one_pass()
        assert verdicts(stage, GangAdmitted) == [
            *(f"b/small-{n}" for n in range(OVERTAKEN_MAX)),
            "a/large",
        ]


async def test_a_tree_over_its_budget_comes_again_with_a_larger_one():
    """After a pause that doubles; each decision has the budget in its input, and follows from it again."""
    hostile = odd_sized("bad", "bad", random.Random(1))
    async with Stage(*a_fleet_of_racks(), *hostile, search_budget=40, preemption=False) as stage:
        await stage.lead()
        await stage.one_pass()
        budgets = []
        for pause_s in (5, 10, 20):
            (refused,) = stage.event_data(GangUnschedulable)[len(budgets) :]
            request = decoded(stage.database.inputs[refused.input_digest])
            budgets.append(request.budget)
            verdict = plan(request)
            assert (verdict.outcome, verdict.reasons) == (refused.outcome, refused.reasons)
            assert verdict.search.nodes == refused.search_nodes
            stage.later(pause_s - 1)
            await stage.one_pass()
            assert len(stage.event_data(GangUnschedulable)) == len(budgets)
            stage.later(2)
            await stage.one_pass()
        assert budgets == [40, 80, 160]


@pytest.mark.parametrize("acquired_again", [False, True])
async def test_a_search_that_cannot_be_recorded_ends_the_pass(acquired_again):
    """The error of its append is that of the pass, as for trees that are planned at once.

    A lease that was acquired again during the search is another term, whose first pass compares before anything is admitted.
    """
    async with Stage(a_node("n0"), *ordinary()) as stage:
        await stage.lead()
        searched(stage)
        inner = stage.parts.planner.plan

        async def lost(encoded):
            answer = await inner(encoded)
            terms = stage.leader.terms
            stage.leader.lose("set by the test")
            if acquired_again:
                await eventually(
                    lambda: stage.leader.role == "leading" and stage.leader.terms > terms, "leading"
                )
            return answer

        stage.parts.planner.plan = lost
        text = "acquired again" if acquired_again else "set by the test"
        with pytest.raises(NotLeading, match=text):
            await stage.one_pass()
        assert not verdicts(stage)


async def test_a_namespace_with_many_trees_does_not_keep_a_pass():
    """Each of 100 trees costs the planner 10 ms in the event loop; the younger gang of another namespace is sixth."""
    many = [o for n in range(100) for o in ordinary(f"m{n:03}", "many")]
    async with Stage(*(a_node(f"n{n}") for n in range(8)), *many, *ordinary()) as stage:
        await stage.lead()
        planner = stage.parts.planner
        inner = planner.at_once

        def costly(request):
            stage.clock.advance(0.01)
            return inner(request)

        planner.at_once = costly
        await stage.one_pass()
        admitted = verdicts(stage, GangAdmitted)
        assert admitted.index("good/g") == NAMESPACE_MS // 10
        assert len(admitted) == 1 + (NAMESPACE_MS + LATE_MS) // 10
        for _ in range(3):
            await stage.one_pass()
        admitted = verdicts(stage, GangAdmitted)
        assert [name for name in admitted if name != "good/g"] == [
            f"many/m{n:03}" for n in range(100)
        ]


async def test_a_namespace_that_replaces_its_gangs_all_the_time_fills_the_log_no_faster_than_allowed():
    """400 gangs in a namespace with a limit of 100: so many are recorded; a gang of another namespace at once (M7)."""
    bad = in_namespace(
        "bad", [o for n in range(400) for o in a_gang(f"b{n}", pods=1, requests=ONE)]
    )
    async with Stage(
        *a_fleet_of_racks(2), *bad, *ordinary(), max_new_gangs_per_minute=100
    ) as stage:
        await stage.lead()
        await stage.settled()
        names = verdicts(stage)
        assert sum(name.startswith("bad/") for name in names) == 100
        assert "good/g" in names
        waiting = stage.parts.exchange.published.turns
        assert len(waiting) == 300
        stage.clock.advance(6)
        await stage.settled()
        assert len(verdicts(stage)) == len(names) + 10


@pytest.mark.parametrize(
    "counted", [True, pytest.param(False, marks=pytest.mark.full)], ids=["counted", "searched"]
)
async def test_refused_trees_of_higher_priority_leave_a_share_to_others(counted):
    """They come round again with each change of the cluster, faster than they are searched."""
    high = [o for n in range(15) for o in impossible(f"high-{n}", f"vip-{n % 12}", priority=10)]
    low = [o for n in range(15) for o in impossible(f"low-{n}", f"other-{n % 3}")]
    async with Stage(a_node("n0"), *low, *high) as stage:
        await stage.lead()
        planner = stage.parts.planner
        at_once, inner = planner.at_once, planner.plan

        async def slow(encoded):
            stage.clock.advance(SEARCH_S)
            await asyncio.sleep(SEARCH_S)
            return await inner(encoded)

        def quick(request):
            is_low = request.root.key.name.startswith("low")
            return at_once(request) if counted and is_low else "search"

        planner.at_once, planner.plan = quick, slow
        stage.start(stage.control_loop.run())
        for change in range(15):  # five minutes
            stage.cluster.add(a_node(f"more-{change}"))
            await asyncio.sleep(CHANGE_EVERY_S)
        answered = set(verdicts(stage, GangUnschedulable))
        assert {f"other-{n % 3}/low-{n}" for n in range(15)} <= answered


def impossible(name, namespace, priority=0):
    """Make a gang that fits nowhere, however many nodes there are."""
    group, *pods = a_gang(name, pods=2, requests={"nvidia.com/gpu": 8}, priority=priority)
    group["spec"]["priority"] = priority
    return in_namespace(namespace, [group, *pods])
