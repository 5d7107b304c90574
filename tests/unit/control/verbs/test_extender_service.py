"""The verbs read what is published and report to the exchange; no control loop runs here."""

from __future__ import annotations

import pytest

from extender.control.published.pass_result import PublishedPass
from extender.control.published.shared_state import LoopExchange, LossPredictor
from extender.control.verbs.extender_service import ExtenderService
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.model.errors import NotReady
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod

NODES = ["n0", "n1"]
CLAIM = {"resourceClaims": [{"name": "device", "resourceClaimName": "device"}]}


class Rejections(RejectionEvidence):
    """Records what the verbs report."""

    def __init__(self):
        super().__init__()
        self.reports = []

    def suspect(self, view, reservation, now_ms, *, offered, native):
        self.reports.append(("suspected", reservation.pod, now_ms, tuple(offered)))

    def accept(self, reservation, now_ms):
        self.reports.append(("accepted", reservation.pod, now_ms))


class Verbs:
    """The verbs over an exchange of their own, on the cluster and the log of a stage."""

    def __init__(self, stage: Stage) -> None:
        self.published = PublishedPass()
        self.rejections = Rejections()
        self.held_back = set()
        reasons = stage.parts.termination_reasons
        exchange = LoopExchange(
            published=self.published,
            committed_losses=LossPredictor(self.published, reasons, stage.clock, stage.settings),
            eviction_context=stage.parts.evictor.eviction_context,
            rejections=self.rejections,
            held_back=self.held_back,
        )
        self.service = ExtenderService(
            cluster=stage.cluster, leader=stage.leader, inputs=stage.inputs, exchange=exchange,
            barriers=stage.barriers, clock=stage.clock, settings=stage.settings,
        )  # fmt: skip


async def admitted(**claims) -> tuple[Stage, Verbs]:
    """Admit a gang of two whose first member is g-0, with the verbs beside it."""
    group, first, second = a_gang("g", pods=2, requests={GPU: 1})
    first["spec"] |= claims
    stage = Stage(a_node("n0", gpu=1), a_node("n1", gpu=1), group, first, second)
    await stage.lead()
    await stage.one_pass()
    return stage, Verbs(stage)


async def test_ready_follows_the_published_result():
    """Before a pass is published for this lease, filter answers that it cannot answer now."""
    stage, verbs = await admitted()
    async with stage:
        pod = stage.cluster.pod("g-0")
        for terms in (None, stage.leader.terms - 1):
            if terms is not None:
                verbs.published.end_pass(terms, {})
            with pytest.raises(NotReady, match="no pass since the lease was taken"):
                verbs.service.filter(pod, NODES)
        verbs.published.end_pass(stage.leader.terms, {})
        assert verbs.service.filter(pod, NODES).outcome == "redeemed"


async def test_a_node_that_was_not_offered_is_a_suspected_rejection():
    """The report has the nodes of the call; a later call with the node clears the suspicion."""
    stage, verbs = await admitted()
    async with stage:
        verbs.published.end_pass(stage.leader.terms, {})
        pod, mine = stage.cluster.pod("g-0"), stage.reserved_node("g-0")
        (other,) = set(NODES) - {mine}
        assert verbs.service.filter(pod, [other]).outcome == "not-offered"
        now_ms = stage.clock.now_us() // 1000
        assert verbs.rejections.reports == [("suspected", "default/g-0", now_ms, (other,))]
        verbs.service.filter(pod, [mine])
        assert verbs.rejections.reports[1:] == [("accepted", "default/g-0", now_ms)]


async def test_a_member_with_claims_is_held_back_until_its_stage_is_published():
    """Filter refuses its node, and reports it; when its stage is published, filter passes the node."""
    stage, verbs = await admitted(**CLAIM)
    async with stage:
        pod, node = stage.cluster.pod("g-0"), stage.reserved_node("g-0")
        verbs.published.end_pass(stage.leader.terms, {})
        assert verbs.service.filter(pod, [node]).outcome == "held-back"
        assert pod.uid in verbs.held_back
        plan = stage.root("g").reservations[pod.uid].plan
        verbs.published.end_pass(stage.leader.terms, {pod.uid: plan})
        assert verbs.service.filter(pod, [node]).outcome == "redeemed"


async def test_the_trees_are_those_of_the_last_observation():
    """Filter has the reason why a tree is invalid as soon as the loop has seen it, also before its pass ends."""
    stage, verbs = await admitted()
    async with stage:
        verbs.published.end_pass(stage.leader.terms, {})
        stage.cluster.add(*a_gang("late", pods=2, requests={GPU: 1}))
        stage.cluster.change_pod("late-1", priority=3)
        pod = stage.cluster.pod("late-0")
        assert verbs.service.filter(pod, NODES).reason == "gang default/late: not planned yet"
        verbs.published.observe(stage.cluster.view())
        assert "gang default/late: invalid: " in verbs.service.filter(pod, NODES).reason


async def test_capacity_of_a_member_that_is_gone_is_kept_from_other_pods():
    """The verbs predict the loss from the view that was last compared with the log."""
    stage, verbs = await admitted()
    async with stage:
        for name, node in stage.where("g").items():
            stage.cluster.change_pod(name, node=node, phase="Running")
        await stage.settled()
        verbs.published.end_pass(stage.leader.terms, {})
        verbs.published.observe(stage.cluster.view())
        verbs.published.mark_compared(stage.cluster.view())
        stage.cluster.add(a_pod("alone", requests={GPU: 1}))
        node = stage.cluster.pod("g-0").node
        stage.cluster.delete_pod("g-0")
        assert verbs.service.filter(stage.cluster.pod("alone"), [node]).refused == (node,)
