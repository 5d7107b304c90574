"""The values that the control loop publishes: when each is replaced, and what the verbs read from it."""

from __future__ import annotations

import pytest

from extender.control.published.pass_result import Observation, PassResult, PublishedPass
from extender.core.log.reservation_state import Reservation
from extender.core.model.cluster_view import forest_of
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from tests.support.service.fakes import FakeCluster, Stage
from tests.support.service.manifest_builders import a_gang, a_node


def reserved(uid: str, plan: str) -> Reservation:
    return Reservation(
        kind="reservation",
        plan=PlanId(plan), gang_uid=GangUid("g"), pod=f"default/{uid}", uid=PodUid(uid), group="g",
        node=NodeName("n0"), requests={}, priority=0, extra=False, at_us=0,
    )  # fmt: skip


def test_an_observation_has_the_trees_of_its_view():
    """Each view is published with its own trees; what a reader holds does not change."""
    cluster = FakeCluster(a_node("n0", gpu=1), *a_gang("a", pods=2), *a_gang("b", pods=2))
    published = PublishedPass()
    first = published.observe(cluster.view())
    assert first is published.observation
    assert first.forest == forest_of(cluster.view())
    cluster.change_pod("a-0", priority=3)
    cluster.add(*a_gang("c", pods=1))
    assert published.observation is first, "only the control loop observes"
    second = published.observe(cluster.view())
    assert second.forest == forest_of(cluster.view())
    assert {key.name for key in first.forest.trees} == {"a", "b"}
    unchanged = next(key for key in first.forest.trees if key.name == "b")
    assert second.forest.trees[unchanged] is first.forest.trees[unchanged]


def test_the_same_view_is_not_observed_twice():
    """Between two changes of the cluster every step of a pass gets the same value."""
    cluster = FakeCluster(a_node("n0", gpu=1), *a_gang("a", pods=2))
    published = PublishedPass()
    assert published.observe(cluster.view()) is published.observe(cluster.view())


def test_the_compared_view_is_not_the_last_seen_view():
    """A view that was seen after the comparison with the log is not compared yet."""
    cluster = FakeCluster(a_node("n0", gpu=1))
    published = PublishedPass()
    compared = cluster.view()
    published.observe(compared)
    assert published.observation.compared == Observation().compared
    published.mark_compared(compared)
    cluster.add(a_node("n1", gpu=1))
    seen = published.observe(cluster.view())
    assert (seen.compared, seen.view) == (compared, cluster.view())
    assert compared is not cluster.view()


def test_a_result_counts_for_one_acquisition_of_the_lease():
    """No pass, or one of an earlier lease, does not make the service ready."""
    published = PublishedPass()
    assert not published.result.reconciled(0)
    published.end_pass(1, {})
    assert published.result.reconciled(1)
    assert not published.result.reconciled(2)
    published.end_pass(2, {})
    assert (published.result.number, published.result.reconciled(2)) == (2, True)


@pytest.mark.parametrize(
    ("uid", "plan", "held"), [("a", "p1", False), ("a", "p2", True), ("b", "p1", True)]
)
def test_a_member_is_held_back_until_its_stage(uid, plan, held):
    """What counts is the plan: a member that is admitted again waits for its stage again."""
    result = PassResult(released={PodUid("a"): PlanId("p1")})
    assert result.held_back(reserved(uid, plan)) is held


async def test_a_pass_publishes_once_and_observes_each_change():
    """After each search the trees are those of the newest view; the result is that of the pass, which does not wait."""
    found = []
    async with Stage(a_node("n0", gpu=4), *a_gang("a", pods=2), *a_gang("b", pods=2)) as stage:
        await stage.lead()
        published, planner = stage.parts.exchange.published, stage.parts.planner
        inner = planner.plan
        planner.at_once = lambda request: "search"

        async def slow(encoded):
            observed = {key.name for key in published.observation.forest.trees}
            found.append((published.result.number, observed))
            stage.cluster.add(*a_gang(f"late-{len(found)}", pods=1))
            return await inner(encoded)

        planner.plan = slow
        await stage.one_pass()
        assert found == [(1, {"a", "b"}), (1, {"a", "b", "late-1"})]
        assert published.result.number == 1
        assert published.result.reconciled(stage.leader.terms)


async def test_a_pass_that_fails_publishes_no_result():
    """The verbs keep the result of the last complete pass, and see the trees of the failed one."""
    async with Stage(a_node("n0", gpu=4), *a_gang("a", pods=2)) as stage:
        await stage.lead()
        published = stage.parts.exchange.published
        await stage.one_pass()
        before = published.result
        stage.cluster.add(*a_gang("b", pods=2))

        def failing(*_given):
            raise RuntimeError("set by the test")

        stage.control_loop._reconciler.reconcile = failing
        with pytest.raises(RuntimeError):
            await stage.one_pass()
        assert published.result is before
        assert any(key.name == "b" for key in published.observation.forest.trees)
