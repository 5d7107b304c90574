"""Any name: the first sentence, the check that fails, and what would help."""

from __future__ import annotations

import asyncio
import difflib
import functools
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import extender
from extender.core.log.events import GangUnschedulable
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.cluster_view import ClusterView, forest_of, with_group, with_pod
from extender.core.model.errors import BadInput, NotFound, RequestRejected
from extender.core.model.ids import GangUid, PodUid
from extender.core.model.message_formatting import rfc3339
from extender.core.model.pod_groups import DEPTH_MAX, Group, composite_key, leaf_key
from extender.core.model.pods import Pod, PodShape
from extender.core.model.visibility import EVERYTHING
from extender.core.planner.plan_types import COMPLETE
from extender.core.reconcile.reservation_checks import retry_time_us
from extender.queries.explain.explain_service import ExplainService, _forest_around
from extender.queries.explain.explanation import CHECKS
from extender.queries.explain.name_lookup import WantedName, all_names, parse_name, similar_names
from extender.runtime import cooperative_yield
from extender.runtime.cooperative_yield import Yielder
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_fleet,
    a_gang,
    a_group,
    a_node,
    a_pod,
)
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree
from tests.unit.control.loop.test_lost_members import gang, lose, running

WHOLE = {GPU: 8}


def a_stage(*more, nodes: int = 4) -> Stage:
    return Stage(*(a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=8) for n in range(nodes)), *more)


def explaining(stage):
    """Return a function that explains a name on the cluster of a stage."""
    plans = live_plans(stage)
    service = ExplainService(
        stage.cluster,
        stage.leader,
        stage.clock,
        plans.plan_live,
        live=lambda: stage.parts.exchange.published,
        at_bind=stage.barriers.members_at_bind,
    )

    async def ask(text: str, namespace: str = "default"):
        return await service.explain(parse_name(text, namespace))

    return ask


async def led(stage):
    await stage.lead()
    await stage.settled()
    return explaining(stage)


def failing(explanation):
    """Return the check that does not hold, with its outcome; it has a text; none after it was reached."""
    outcomes = [check.outcome for check in explanation.checks]
    assert [check.check for check in explanation.checks] == list(CHECKS)
    place = next(n for n, outcome in enumerate(outcomes) if outcome != "yes")
    while outcomes[place] in ("unknown", "no") and not explanation.checks[place].text:
        place += 1
    assert set(outcomes[place + 1 :]) <= {"not reached", "unknown"}
    return explanation.checks[place].check, outcomes[place]


async def test_it_plans_with_the_search_budget_of_the_service() -> None:
    """So that what it suggests, a larger one, changes its own answer; beyond what a query may ask for it has that."""
    asked = []
    async with a_stage(*a_gang("g", pods=5, requests=WHOLE)) as stage:
        await led(stage)

        async def plan(query):
            asked.append(query.budget)
            return await live_plans(stage).plan_live(query)

        for budget in (50, 10_000_000):
            service = ExplainService(stage.cluster, stage.leader, stage.clock, plan, budget=budget)
            await service.explain(parse_name("g", "default"))
    assert asked == [50, 200_000]


async def test_a_gang_that_is_reserved() -> None:
    async with a_stage(*a_gang("g", pods=2, requests=WHOLE)) as stage:
        found = await (await led(stage))("g")
        assert found.answer.startswith(
            "PodGroup default/g has its capacity reserved: 0 bound, 2 reserved"
        )
        assert failing(found) == ("accepted by kube-scheduler", "unknown")
        assert found.gang is not None
        assert [m.pod for m in found.gang.members] == ["default/g-0", "default/g-1"]
        assert found.position == stage.leader.committed.position


async def test_a_member_is_explained_by_its_gang() -> None:
    async with a_stage(*a_gang("g", pods=2, requests=WHOLE)) as stage:
        found = await (await led(stage))("g-1")
        assert (found.kind, found.name) == ("Pod", "default/g-1")
        assert found.answer.startswith(
            "Pod default/g-1 waits, a member of PodGroup default/g, which has its capacity reserved: "
        )
        assert [(r.kind, r.name, r.relation) for r in found.related] == [
            ("PodGroup", "default/g", "root group")
        ]


async def test_a_group_that_lacks_members() -> None:
    group = a_group("g", gang=3)
    async with a_stage(group, a_pod("g-0", "g", requests=WHOLE)) as stage:
        found = await (await led(stage))("default/g")
        assert found.answer == (
            "PodGroup default/g waits for members of PodGroup default/g: 3 required, 1 present"
        )
        assert failing(found) == ("members complete", "no")
        assert found.help == ("create the missing pods, or lower the minimum of the group",)


async def test_a_group_without_pods_that_the_log_does_not_have() -> None:
    async with a_stage(a_group("empty", gang=2)) as stage:
        found = await (await led(stage))("empty")
        assert "2 required, 0 present" in found.answer
        assert (found.gang, found.state) == (None, "")


async def test_foreign_gates() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    pods = [a_pod(f"g-{n}", "g", requests=WHOLE, schedulingGates=gates) for n in range(2)]
    async with a_stage(a_group("g", gang=2), *pods) as stage:
        (text,) = (await (await led(stage))("g")).help
        assert text.startswith("remove the scheduling gates kueue.x-k8s.io/admission of its pods")


async def test_never_differs_from_not_now() -> None:
    """Five whole nodes of four: never. Two in one rack, of which others have one node: not now."""
    runs = [a_pod(f"other-{n}", node=f"n{n}", requests=WHOLE) for n in (0, 2)]
    big = a_gang("big", pods=5, requests=WHOLE)
    late = a_gang("late", pods=2, requests=WHOLE, topo=RACK)
    async with a_stage(*runs, *big, *late) as stage:
        ask = await led(stage)
        never, not_now = await ask("big"), await ask("late")
        assert never.answer.startswith(
            "PodGroup default/big can never be placed on these nodes, also when no other pod runs: "
            "it needs 5 pods; the cluster holds 4 (1 missing: nvidia.com/gpu)"
        )
        assert failing(never) == ("fits an empty cluster", "no")
        assert not_now.answer.startswith("PodGroup default/late does not fit now: ")
        assert not_now.answer.endswith("; it fits when no other pod runs")
        assert failing(not_now) == ("fits now", "no")
        assert f"drop {RACK} at PodGroup default/late" in not_now.help
        hints = {*never.help, *not_now.help}
        assert not hints & {*never.reasons, *not_now.reasons}
        assert not_now.conflict


async def test_a_group_that_does_not_exist() -> None:
    """Pods name it; a group of a similar name exists."""
    async with a_stage(a_group("serve-prefill", gang=1), a_pod("p", "serve-prefil")) as stage:
        ask = await led(stage)
        for name in ("PodGroup/serve-prefil", "p"):
            found = await ask(name)
            assert "does not exist; 1 pod names it and waits" in found.answer
            assert "PodGroup default/serve-prefil" in found.answer
            assert failing(found) == ("group exists", "no")
            assert found.help[0].startswith("did you mean PodGroup default/serve-prefill?")


async def test_a_child_group_is_explained_by_its_root() -> None:
    root = a_group("root", gang=2, composite=True)
    leaves = [a_group(name, gang=1, parent="root") for name in ("left", "right")]
    async with a_stage(root, *leaves, a_pod("p", "left", requests=WHOLE)) as stage:
        found = await (await led(stage))("right")
        assert found.answer.startswith(
            "PodGroup default/right is a child group of CompositePodGroup default/root, which waits"
        )
        assert failing(found) == ("members complete", "no")
        (link,) = found.related
        assert (link.kind, link.name) == ("CompositePodGroup", "default/root")


async def test_a_warning_about_a_valid_tree_stands_at_its_check() -> None:
    """V20, W4: rack R1 is in two zones, and the gang constrains the rack alone."""
    zone = RACK.replace("rack", "zone")
    nodes = [a_node(f"n{n}", {RACK: "R1", zone: f"z{n}"}, gpu=8) for n in range(2)]
    gang = a_gang("g", pods=2, requests=WHOLE, topo=RACK)
    async with Stage(*nodes, *gang) as stage:
        found = await (await led(stage))("g")
        valid = next(check for check in found.checks if check.check == "tree valid")
        assert valid.outcome == "yes"
        assert valid.text.startswith(
            f"warning: PodGroup/default/g: value R1 of {RACK} is on nodes of several values of {zone} (z0, z1)"
        )
        stage.start(stage.reporter.run())
        await eventually(
            lambda: any("(W4)" in n.message for n in stage.cluster.notices), "the Event"
        )
        question = msgspec.json.encode({"groups": ["PodGroup/default/g"]})
        reply = await live_plans(stage).plan(question, EVERYTHING)
        assert any("(W4)" in text for text in msgspec.json.decode(reply.body)["warnings"])


async def test_an_orphan() -> None:
    async with a_stage(a_group("leaf", gang=1, parent="missing"), a_pod("p", "leaf")) as stage:
        found = await (await led(stage))("leaf")
        assert found.answer.startswith("PodGroup default/leaf is not scheduled: ")
        assert failing(found) == ("tree valid", "no")


async def test_a_pod_without_group() -> None:
    async with a_stage(a_pod("lone", node="n1")) as stage:
        found = await (await led(stage))("Pod/lone")
        assert found.answer == (
            "Pod default/lone runs on n1; it names no group, so kube-scheduler places it alone"
        )
        assert failing(found) == ("group named", "no")
        assert "gang-extender.dev/pod-group" in found.help[0]


async def test_a_pod_of_a_workload_that_got_no_group() -> None:
    """It was created while the policy that names its group was not in use; a label `off`, or another scheduler, is no error."""
    tree = {"gang-extender.dev/tree": "default"}
    pods = (
        a_pod("late", node="n1", metadata={"labels": tree}),
        a_pod("off", metadata={"labels": {"gang-extender.dev/tree": "off"}}),
        a_pod("kai", metadata={"labels": tree}, schedulerName="kai-scheduler"),
    )
    async with a_stage(*pods) as stage:
        explain = await led(stage)
        found = await explain("Pod/late")
        assert "runs on n1; it lacks the group of its workload" in found.answer
        assert failing(found) == ("group named", "no")
        assert found.help[0].startswith("delete the pod: ")
        for name in ("off", "kai"):
            other = await explain(f"Pod/{name}")
            assert "it names no group" in other.answer
            assert not other.help[0].startswith("delete")


async def test_a_node() -> None:
    async with a_stage(*a_gang("g", pods=4, requests=WHOLE), a_pod("lone", node="n1")) as stage:
        found = await (await led(stage))("n1")
        assert (found.kind, found.name, found.state) == ("Node", "n1", "ready")
        assert (
            found.answer
            == (
                "Node n1: 1 pod, 1 of them outside of groups; 0 gangs with members or reservations here"
            )
            or "1 gang with" in found.answer
        )


async def test_of_several_the_group_comes_first() -> None:
    gang = a_gang("same", pods=1, requests=WHOLE)
    async with a_stage(*gang, a_pod("same"), a_node("same")) as stage:
        ask = await led(stage)
        found = await ask("same")
        assert found.kind == "PodGroup"
        same = [(r.kind, r.name) for r in found.related if r.relation == "same name"]
        assert same == [("Pod", "default/same"), ("Node", "same")]
        assert (await ask("nodes/same")).kind == "Node"
        assert (await ask("po/default/same")).kind == "Pod"


async def test_a_name_that_one_other_namespace_has_is_answered() -> None:
    """Not where its namespace was given, and not where two have it."""
    things = []
    for namespace, name in (("ml", "train"), ("ml", "both"), ("web", "both")):
        gang = a_gang(name, pods=1)
        for thing in gang:
            thing["metadata"]["namespace"] = namespace
        things += gang
    async with a_stage(*things) as stage:
        ask = await led(stage)
        for name in ("train", "pg/train"):
            found = await ask(name)
            assert (found.kind, found.name) == ("PodGroup", "ml/train")
        assert found.answer.startswith("PodGroup ml/train ")
        for name in ("default/train", "both", "Job/train"):
            with pytest.raises(NotFound):
                await ask(name)


async def test_a_typo_names_what_is_there() -> None:
    elsewhere = a_gang("train", pods=1)
    for thing in elsewhere:
        thing["metadata"]["namespace"] = "ml"
    async with a_stage(*a_gang("serve", pods=1), *elsewhere) as stage:
        ask = await led(stage)
        with pytest.raises(NotFound, match=r"default/srve.*did you mean PodGroup default/serve"):
            await ask("srve")
        with pytest.raises(NotFound, match=r"did you mean PodGroup ml/train\b"):
            await ask("default/train")
        for name, answer in (
            ("zzz", "nothing is called default/zzz: .*`gang-extender history default/zzz`"),
            ("Node/zzz", "Node zzz does not exist; .*`gang-extender events --node zzz`"),
            ("Pod/zzz", "Pod default/zzz does not .*`gang-extender explain Pod/default/zzz --at TIME`"),
        ):  # fmt: skip
            with pytest.raises(NotFound, match=f"^{answer}$"):
                await ask(name)


async def test_a_gang_that_preempts() -> None:
    """Its victims are asked to go and are still there."""
    nodes = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=1) for n in range(2)]
    async with Stage(*nodes, *lows("n0", "n1"), *preemptor_tree()) as stage:
        found = await (await led(stage))("hi")
        assert "hi waits for victims of its preemption: " in found.answer
        assert failing(found) == ("victims gone", "no")
        assert found.state == "preempting"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("g", WantedName("", "ns", "g", given_namespace=False)),
        ("ml/g", WantedName("", "ml", "g", given_namespace=True)),
        ("pods/g", WantedName("Pod", "ns", "g", given_namespace=False)),
        ("JobSet/ml/g", WantedName("JobSet", "ml", "g", given_namespace=True)),
        ("lws/g", WantedName("LeaderWorkerSet", "ns", "g", given_namespace=False)),
    ],
)
def test_names(text, wanted) -> None:
    assert parse_name(text, "ns") == wanted


@pytest.mark.parametrize("text", ["", "/g", "g/", "a/b/c/d", "Deployment/ml/g"])
def test_wrong_names(text) -> None:
    with pytest.raises(BadInput, match="name "):
        parse_name(text, "ns")


@st.composite
def views(draw):
    """Make groups that may have each other, themselves or a missing one as parents, and a pod in some of them."""
    names = [f"g{n}" for n in range(draw(st.integers(1, 7)))]
    view = ClusterView()
    for number, name in enumerate(names):
        composite = draw(st.booleans())
        parent = draw(st.sampled_from([None, *names, "missing"]))
        key = (composite_key if composite else leaf_key)("ns", name)
        view = with_group(view, Group(key=key, uid=GangUid(name), parent=parent, created_us=number))
        if not composite and draw(st.booleans()):
            view = with_pod(
                view, Pod(uid=PodUid(name), namespace="ns", name=name, group=key, shape=PodShape())
            )
    return view


@given(views())
def test_the_forest_around_a_group_is_a_part_of_the_whole(view) -> None:
    whole = forest_of(view)
    for key in view.groups:
        part = asyncio.run(_forest_around(view, key, Yielder()))
        assert part.orphans.get(key) == whole.orphans.get(key)
        assert part.root_of.get(key) == whole.root_of.get(key)
        root = whole.root_of.get(key)
        if root is not None:
            assert part.trees[root] == whole.trees[root]


def test_a_tree_that_is_too_deep_has_its_problem() -> None:
    view = ClusterView()
    for depth in range(DEPTH_MAX + 3):
        parent = f"g{depth - 1}" if depth else None
        view = with_group(
            view,
            Group(key=composite_key("ns", f"g{depth}"), uid=GangUid(f"{depth}"), parent=parent),
        )
    whole = forest_of(view)
    for key in view.groups:
        part = asyncio.run(_forest_around(view, key, Yielder()))
        assert part == whole


async def test_a_typo_in_a_large_cluster_leaves_the_event_loop_to_others(monkeypatch) -> None:
    """It gives the loop back for each object where slices are short; the closest names are those of all at once."""
    monkeypatch.setattr(cooperative_yield, "SLICE_S", 0.0)
    pods = [a_pod(f"train-{n}-{m}") for n in range(300) for m in range(5)]
    async with a_stage(*pods) as stage:
        view, state, wanted = (
            stage.cluster.seen,
            stage.leader.committed,
            parse_name("trian-7-3", "default"),
        )
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        found = await similar_names(all_names(view, state), wanted, Yielder())
        beside.cancel()
        assert turns > len(pods)
        names = list(dict.fromkeys(pod.name for pod in view.pods.values()))
        at_once = difflib.get_close_matches("trian-7-3", names, n=5, cutoff=0.7)
        assert [one.path for one in found] == [f"default/{name}" for name in at_once]


def answers_in_searches(stage, *questions):
    """Let each plan be a search; return a list to which each of them adds the answers of that moment."""
    planner, answers = stage.parts.planner, []
    inner = planner.plan
    planner.at_once = lambda request: "search"

    async def look(encoded):
        answers.append([await question() for question in questions])
        return await inner(encoded)

    planner.plan = look
    return answers


async def test_a_gang_that_waits_for_its_search() -> None:
    """Its place among the searches of its own namespace is the reason; no other plan is made for the answer."""
    gangs = [thing for n in range(3) for thing in a_gang(f"g{n}", pods=2, requests=WHOLE)]
    async with a_stage(*gangs) as stage:
        await stage.lead()
        ask = explaining(stage)
        answers = answers_in_searches(stage, *(functools.partial(ask, f"g{n}") for n in range(3)))
        await stage.one_pass()
        first, second, third = answers[0]
        assert first.answer == "PodGroup default/g0 waits for its search, which runs now"
        assert second.answer == "PodGroup default/g1 waits for its turn: its search is next"
        assert third.answer == (
            "PodGroup default/g2 waits for its turn: other searches of its namespace come first: 1"
        )
        assert failing(third) == ("fits now", "unknown")


async def test_a_tree_that_is_complete_again_does_not_wait_for_members() -> None:
    """Until its verdict, each reader has that it waits for its next look: log, condition, filter, `explain`."""
    group, *members = a_gang("g", pods=2, requests=WHOLE)
    async with a_stage(group, members[0]) as stage:
        await led(stage)
        assert stage.root("g").last_decision.reasons == (
            "waiting for members of PodGroup default/g: 2 required, 1 present",
        )
        stage.start(stage.reporter.run())
        stage.cluster.add(members[1])

        async def recorded():
            (decision,) = stage.event_data(GangUnschedulable)[1:]
            return decision.outcome, decision.reasons

        async def refused():
            pod = stage.cluster.pod("g-0")
            return stage.extender_service.filter(pod, ["n0"]).reason

        async def condition():
            stage.control_loop._actuate(stage.parts.observer.observe())
            stage.conditions_due()
            return await eventually(
                lambda: [m for _, m in stage.cluster.did("set_conditions") if COMPLETE in m],
                "the condition",
            )

        ask = functools.partial(explaining(stage), "g")
        answers = answers_in_searches(stage, ask, recorded, refused, condition)
        await stage.one_pass()
        explained, logged, filtered, shown = answers[0]
        assert logged == ("waiting", (COMPLETE,))
        assert explained.answer == "PodGroup default/g waits for its search, which runs now"
        assert not explained.reasons
        assert failing(explained) == ("fits now", "unknown")
        assert COMPLETE in filtered
        assert shown[0].startswith("PodGroup default/g waits: ")
        assert stage.root("g").reservations


async def test_the_last_refusal_comes_before_the_next_search() -> None:
    """While a refused gang is searched again its first sentence is the refusal, and no check is called yes unseen."""
    async with a_stage(*a_gang("g", pods=5, requests=WHOLE)) as stage:
        ask = await led(stage)
        answers = answers_in_searches(stage, functools.partial(ask, "g"))
        stage.cluster.add(a_node("n4", {RACK: "r9"}, gpu=8))
        await stage.one_pass()
        ((searched,),) = answers
        assert searched.answer.startswith(
            "PodGroup default/g could never be placed on the nodes of that time, also when no other pod ran: it needs 5 pods"
        )
        assert searched.answer.endswith("; it waits for its search, which runs now")
        assert failing(searched) == ("fits now", "unknown")
        outcomes = {check.check: check.outcome for check in searched.checks}
        assert outcomes["fits an empty cluster"] == "unknown"


async def test_that_its_capacity_was_taken_comes_before_the_next_search() -> None:
    """While it is planned again the first sentence is what ended its admission, as in its conditions and in `gangs`."""
    async with a_stage(*a_gang("g", pods=1, requests=WHOLE)) as stage:
        ask = await led(stage)
        stage.cluster.add(a_pod("alien", node=stage.reserved_node("g-0"), requests=WHOLE))
        answers = answers_in_searches(stage, functools.partial(ask, "g"))
        await stage.one_pass()
        await stage.one_pass()
        (first,) = answers[0]
        taken = "other pods took its capacity before it was bound; it is planned again"
        assert (
            first.answer
            == f"PodGroup default/g waits: {taken}; it waits for its search, which runs now"
        )
        assert first.gang.reasons == (taken,)


async def test_a_gang_that_fits_and_pauses_is_not_about_to_be_admitted() -> None:
    """After other pods took its capacity twice: the place, then why it pauses and until when; nothing of it afterwards."""
    async with a_stage(*a_gang("g", pods=1, requests=WHOLE)) as stage:
        ask = await led(stage)
        for number in range(2):
            stage.cluster.add(
                a_pod(f"alien-{number}", node=stage.reserved_node("g-0"), requests=WHOLE)
            )
            await stage.one_pass()
            if not number:
                await stage.settled()
        until = rfc3339(retry_time_us(stage.root("g")))
        await stage.one_pass()
        found = await ask("g")
        assert found.answer.startswith(
            "PodGroup default/g fits now; it pauses because other pods took its capacity before it was bound, until "
        )
        assert found.answer[-27:-10] == until[:17]
        stage.clock.advance(2)
        assert (await ask("g")).answer == "PodGroup default/g fits now and is about to be admitted"
        await stage.settled()
        assert (await ask("g")).answer.startswith("PodGroup default/g has its capacity reserved")


async def test_the_pause_before_the_next_search_for_victims_is_shown() -> None:
    """A tree would fit by evictions and none begins yet, since no victims were found last: the sentence has the end of the pause."""
    high = a_pod("high", node="n0", requests={GPU: 1}, priority=20)
    low = a_pod("low", node="n0", requests={GPU: 1}, priority=0)
    async with Stage(a_node("n0", gpu=1), high, *preemptor_tree(pods=1)) as stage:
        ask = await led(stage)
        stage.cluster.delete_pod("high")
        stage.cluster.add(low)
        found = await ask("hi")
        assert found.answer.startswith(
            "PodGroup default/hi does not fit now; it fits only when Pod default/low is evicted; "
            "the pause before its next search for victims ends at "
        )


async def test_a_new_gang_beyond_the_limit_of_its_namespace():
    """The reason is the limit, with its setting and the number of gangs that come before."""
    gangs = [o for n in range(3) for o in a_gang(f"g{n}", pods=1)]
    async with Stage(a_node("n0", gpu=8), *gangs, max_new_gangs_per_minute=1) as stage:
        await stage.lead()
        ask = explaining(stage)
        await stage.one_pass()
        found = await ask("g2")
        assert found.answer.startswith("PodGroup default/g2 waits")
        assert "more than 1 new gangs per minute (max_new_gangs_per_minute); 1 of them come" in (
            found.answer + str(found.checks)
        )


async def test_a_member_at_bind_names_those_that_it_waits_for():
    """kube-scheduler has accepted one of three members; the answers name the two others, and nothing once all are bound."""
    async with a_stage(*a_gang("g", pods=3)) as stage:
        ask = await led(stage)
        for pod, node in stage.where("g").items():
            stage.cluster.change_pod(pod, nominated=node)
        await stage.settled()
        calls = [stage.bind("g-0")]
        uid = stage.cluster.pod("g-0").uid
        await eventually(lambda: stage.barriers.at_bind(uid), "the call waits")
        others = "default/g-1, default/g-2, which kube-scheduler has not accepted yet"
        found = await ask("Pod/g-0")
        assert failing(found) == ("bound", "no")
        assert found.checks[-1].text == f"it waits at bind for {stage.reserved_node('g-0')}"
        assert found.reasons == (f"1 member waits at bind for {others}",)
        calls += [stage.bind("g-1"), stage.bind("g-2")]
        await asyncio.gather(*calls)
        await stage.settled()
        assert (await ask("g")).answer.startswith("PodGroup default/g runs")


async def test_what_kept_members_from_being_bound_is_known_until_they_are():
    """After a barrier that timed out and after a refused Binding; on a replica that only reads the log too."""
    fleet = [a_node(f"n{n}", gpu=8) for n in range(2)]
    async with Stage(*fleet, *a_gang("g", pods=2), barrier_timeout_s=0.05) as stage:
        ask = await led(stage)
        await stage.bind("g-0")
        barrier = "the bind barrier timed out: 1 member waited, 1 did not arrive: default/g-1"
        assert [text.partition(": ")[2] for text in (await ask("g")).reasons] == [barrier]
        await stage.settled()
        assert any(barrier in text for text in (await ask("g")).reasons)
        assert barrier in str((await ask("Pod/g-1")).reasons)
        stage.cluster.fault = lambda verb, name: (
            RequestRejected("403 no") if (verb, name) == ("bind", "default/g-0") else None
        )
        await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))
        await stage.settled()
        refused = f"the Binding of default/g-0 to {stage.reserved_node('g-0')} was refused: 403 no"
        assert refused in str((await ask("Pod/g-0")).reasons)
        assert refused not in str((await ask("Pod/g-1")).reasons)
        assert fold(EMPTY, stage.events()) == stage.leader.committed
        stage.cluster.fault = lambda *_: None
        await stage.bind("g-0")
        await stage.settled()
        found = await ask("g")
        assert (found.answer.startswith("PodGroup default/g runs"), found.reasons) == (True, ())


def alone(name, pods=2):
    """Make a gang that has a rack alone."""
    group, *members = a_gang(name, pods=pods, requests=WHOLE)
    group["spec"]["schedulingConstraints"] = {"exclusive": {"key": RACK}}
    return [group, *members]


async def test_taken_and_free_domains_of_exclusive_groups():
    """Who has them; the gang that waits is placed when a domain is free, and a node that joins moves nothing."""
    stage = a_stage(*alone("a"), *alone("b", pods=1), nodes=4)
    ask = await led(stage)
    assert set(stage.where("a").values()) | set(stage.where("b").values()) <= {
        "n0",
        "n1",
        "n2",
        "n3",
    }
    stage.cluster.add(*alone("c", pods=1))
    await stage.settled()
    waiting = await ask("PodGroup/default/c")
    assert failing(waiting) == ("fits now", "no")
    rack_of = {
        name: stage.cluster.seen.nodes[node].labels[RACK]
        for name in "ab"
        for node in stage.where(name).values()
    }
    by = ", ".join(
        f"{rack} by PodGroup/default/{name}"
        for name, rack in sorted(rack_of.items(), key=lambda pair: pair[1])
    )
    sentence = f"PodGroup default/c needs a {RACK} alone: 2 of 2 are taken ({by}); free: none"
    assert sentence in waiting.reasons
    stage.cluster.add(a_node("joins", {RACK: rack_of["b"]}, gpu=8))
    await stage.settled()
    assert stage.where("c") == {}
    owner = await ask("PodGroup/default/b")
    assert f"PodGroup default/b has {RACK} {rack_of['b']} alone" in owner.reasons
    stage.cluster.delete_pod("b-0")
    await stage.settled()
    assert set(stage.where("c").values()) <= {"joins", "n0", "n1", "n2", "n3"} - set(
        stage.where("a").values()
    )
    assert stage.where("c")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("Wait", []),
        ("Widen", ["lostMembers Widen was tried in vain: the lost members have no place outside of the domain either (proved)"]),
        ("GiveUp", ["lostMembers GiveUp was tried in vain: the whole gang has no other place without its own pods either, so it is not evicted (proved)"]),
    ],
)  # fmt: skip
async def test_what_did_not_help_lost_members(choice, expected):
    """Until it helps: with a node in another rack, or a whole one."""
    stage = await running(*gang(choice), fleet="1 block x 1 rack x 4 nodes")
    async with stage:
        await lose(stage, "g-0")
        waiting = await explaining(stage)("g")
        assert waiting.state == "degraded"
        assert failing(waiting) == ("fits now", "no")
        assert [text for text in waiting.reasons if text.startswith("lostMembers")] == expected
        stage.cluster.add(*a_fleet("1 block x 2 racks x 4 nodes", gpu=1)[4:])
        await stage.settled()
        later = await explaining(stage)("g")
        assert not [text for text in later.reasons if text.startswith("lostMembers")]


FILES_MAX = 45  # of extender/, see CONTRIBUTING.md, "Size of the house"


async def test_a_refusal_runs_through_few_files() -> None:
    """A question about a gang of five pods of a whole node each on four nodes, with the plan in the same process."""
    package = Path(extender.__file__).parent
    called: set[str] = set()
    async with a_stage(*a_gang("g", pods=5, requests=WHOLE)) as stage:
        ask = await led(stage)
        task = asyncio.current_task()

        def follow(frame, *_):
            if asyncio.current_task() is task:
                called.add(frame.f_code.co_filename)

        sys.setprofile(follow)
        try:
            explanation = await ask("g")
        finally:
            sys.setprofile(None)
    assert failing(explanation) == ("fits an empty cluster", "no")
    files = sorted(file for file in called if Path(file).is_relative_to(package))
    assert len(files) <= FILES_MAX, "\n".join(files)
