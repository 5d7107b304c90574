"""A refusal of a large request is recorded at once, and again with its explanation when that is found."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from extender.control.admission.planner_pool import EXPLAINED_AT_ONCE_MAX, PlannerPool
from extender.core.log.events import GangAdmitted, GangUnschedulable
from extender.core.model.ids import GroupKey, NodeName
from extender.core.planner.plan_types import PlanGroup, PlanNode, PlanRequest
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.support.waiting import eventually


class Explainer:
    """Lets explanations of a stage wait until the test allows them."""

    def __init__(self, stage: Stage) -> None:
        self.asked = 0
        self.allowed = asyncio.Event()
        self._stage = stage
        self._inner = stage.parts.planner.explain
        stage.parts.planner.explains_later = lambda request: True
        stage.parts.planner.explain = self._explain

    async def _explain(self, encoded):
        self.asked += 1
        await self.allowed.wait()
        return await self._inner(encoded)

    async def finish(self) -> None:
        """Let all explanations end, and run the passes that record them."""
        self.allowed.set()
        explanations = self._stage.control_loop._pending_trees.explanations
        for _ in range(5):
            await eventually(lambda: explanations._running is None, "explained")
            await self._stage.one_pass()
            if explanations.idle:
                return
        raise AssertionError("explanations go on")


def refusals(stage: Stage) -> list[GangUnschedulable]:
    return stage.event_data(GangUnschedulable)


async def refused(*more, **settings) -> tuple[Stage, Explainer]:
    """Refuse a gang of three pods on two nodes; its explanation waits."""
    nodes = [a_node(name, gpu=1) for name in ("n0", "n1")]
    stage = Stage(*nodes, *a_gang("g", pods=3), *more, preemption=False, **settings)
    await stage.lead()
    explainer = Explainer(stage)
    await stage.one_pass()
    return stage, explainer


async def test_the_verdict_comes_first_and_what_would_help_second():
    """The second event has the reasons of the first, the conflict and what would help; both inputs give their event again."""
    stage, explainer = await refused()
    async with stage:
        (first,) = refusals(stage)
        assert (first.outcome, first.conflict) == ("impossible", ())
        assert stage.root("g").last_decision.reasons == first.reasons
        await explainer.finish()
        _, second = refusals(stage)
        assert second.reasons == first.reasons
        assert "minCount 2 instead of 3 at PodGroup default/g" in second.help
        assert (first.help, first.when_empty, second.when_empty) == ((), "", "never")
        assert second.conflict
        assert stage.root("g").last_decision.help == second.help
        assert second.input_digest != first.input_digest
        for event in stage.events():
            if isinstance(event.data, GangUnschedulable):
                stored = await stage.inputs.load(event.data.input_digest)
                replayed = replay_decision(event.position, event.data, stored)
                assert replayed.same, replayed.differences


async def test_no_tree_waits_for_an_explanation():
    """Another tree is admitted while the explanation of the first goes on."""
    stage, explainer = await refused()
    async with stage:
        stage.cluster.add(*a_gang("other", pods=2))
        await stage.one_pass()
        assert explainer.asked == 1
        assert len(stage.event_data(GangAdmitted)) == 1


async def test_a_tree_that_fits_meanwhile_drops_its_explanation():
    """A node is added and the tree is admitted before its explanation is found: nothing more is recorded."""
    stage, explainer = await refused()
    async with stage:
        stage.cluster.add(a_node("n2", gpu=1))
        await stage.one_pass()
        assert len(stage.event_data(GangAdmitted)) == 1
        await explainer.finish()
        assert len(refusals(stage)) == 1


async def test_a_tree_that_changed_meanwhile_is_explained_as_it_is_now():
    """A fourth pod with the minimum raised to four: the explanation of three is dropped, that of four is recorded."""
    stage, explainer = await refused()
    async with stage:
        stage.cluster.add(*a_gang("g", pods=4))
        await stage.one_pass()
        stage.later(60)
        await stage.one_pass()
        await explainer.finish()
        assert {data.reasons[0].split(";")[0] for data in refusals(stage)} == {
            "PodGroup default/g needs 3 pods",
            "PodGroup default/g needs 4 pods",
        }
        explained = [data for data in refusals(stage) if data.conflict]
        assert [data.reasons[0].split(";")[0] for data in explained] == [
            "PodGroup default/g needs 4 pods"
        ]


async def test_the_refusal_is_not_recorded_again_without_its_explanation():
    """Another node is full every ten minutes: the tree is planned and explained again, and the log has two refusals."""
    stage, explainer = await refused(
        a_node("n2", gpu=1), a_pod("other", node="n2", requests={GPU: 1})
    )
    async with stage:
        await explainer.finish()
        assert len(refusals(stage)) == 2
        for full in ("n1", "n0", "n2") * 2:
            stage.cluster.delete_pod("other")
            stage.cluster.add(a_pod("other", node=full, requests={GPU: 1}))
            stage.later(600)
            await stage.one_pass()
            await explainer.finish()
        assert explainer.asked > 2
        assert len(refusals(stage)) == 2


@pytest.mark.parametrize(("nodes", "explain", "later"), [
    (EXPLAINED_AT_ONCE_MAX, True, False), (EXPLAINED_AT_ONCE_MAX + 1, True, True),
    (EXPLAINED_AT_ONCE_MAX + 1, False, False),
])  # fmt: skip
def test_small_requests_are_explained_with_their_verdict(nodes, explain, later):
    """The limit counts pairs of group and node."""
    node = PlanNode(name=NodeName("n"))
    root = PlanGroup(key=GroupKey("ns", "g", "PodGroup"), basic=False, minimum=1)
    request = PlanRequest(root=root, nodes=(node,) * nodes, shapes=(), explain=explain)
    planner = PlannerPool()
    assert planner.explains_later(request) is later
    two = msgspec.structs.replace(
        root, key=GroupKey("ns", "c", "CompositePodGroup"), groups=(root,)
    )
    half = msgspec.structs.replace(request, root=two, nodes=(node,) * (nodes // 2 + 1))
    assert planner.explains_later(half) is explain
