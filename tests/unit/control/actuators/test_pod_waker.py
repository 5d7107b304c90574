"""Pods outside of gangs that filter refused are woken when what was held against them ends, and no others."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from extender.control.actuators import nominator
from extender.control.verbs import extender_service
from extender.core.model.cluster_view import with_pod
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import NodeName, PodUid
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.loop.test_replacement_holds import settled

TTL_S = 60
NODES = (NodeName("n0"), NodeName("n1"))


@contextlib.asynccontextmanager
async def holding(*pods, gpu=2):
    """A gang fills n0, and `gpu` GPUs are held for one of its members, which is lost."""
    stage = Stage(
        a_node("n0", gpu=2 * gpu),
        *a_gang("g", pods=2, requests={GPU: gpu}),
        ttl_ms=3_600_000,
        replacement_ttl_s=TTL_S,
    )
    async with stage:
        await stage.lead()
        await stage.one_pass()
        for name, node in stage.where("g").items():
            stage.cluster.change_pod(name, node=node, phase="Running")
        await stage.settled()
        stage.cluster.add(*pods, a_node("n1", gpu=1))
        stage.cluster.delete_pod("g-0")
        await settled(stage)
        assert stage.root("g").replacement_holds
        stage.start(stage.parts.pod_waker.run())
        yield stage


def asks(stage, *names):
    """Have filter asked for pods, which get no node."""
    for name in names:
        assert stage.extender_service.filter(stage.cluster.pod(name), NODES[:1]).passed == ()


async def the_hold_ends(stage):
    stage.later(TTL_S + 1)
    await stage.settled()


def nominations(stage):
    return [(path, node) for verb, path, node in stage.cluster.calls if verb == "nominate"]


def alone(name, gpu=1, **rest):
    return a_pod(name, requests={GPU: gpu}, **rest)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(nominator, "WAKE_UPS_PER_S", 1_000)


async def test_as_many_as_fit_are_nominated_where_capacity_is_held_no_more():
    low = [alone(f"low-{n}", priority=-5) for n in range(2)]
    pods = [*low, alone("high", priority=0), alone("huge", 9)]
    async with holding(*pods) as stage:
        asks(stage, "low-0", "low-1", "high", "huge")
        await stage.settled()
        assert nominations(stage) == []
        await the_hold_ends(stage)
        await eventually(lambda: len(nominations(stage)) == 2, "two nominations")
        await stage.settled()
        assert nominations(stage) == [("default/high", "n0"), ("default/low-0", "n0")]


async def test_the_pods_beyond_the_limit_of_a_pass_are_looked_at_in_the_next_ones(monkeypatch):
    """Those that were looked at in vain do not keep the others from their turn."""
    monkeypatch.setattr(nominator, "PAIRS_MAX", 1)
    sizes = (9, 9, 9, 1, 9, 1)
    async with holding(*(alone(f"p{n}", gpu) for n, gpu in enumerate(sizes))) as stage:
        asks(stage, *(f"p{n}" for n in range(len(sizes))))
        await the_hold_ends(stage)
        for number in range(len(sizes)):
            stage.cluster.change_node("n0", labels={"at": str(number)})
            await stage.one_pass()
        await eventually(lambda: len(nominations(stage)) == 2, "both that fit")
        assert nominations(stage) == [("default/p3", "n0"), ("default/p5", "n0")]


async def test_who_has_a_node_by_then_or_was_never_refused_is_left_alone():
    pods = [alone("bound"), alone("gone"), alone("passed"), alone("unasked")]
    async with holding(*pods) as stage:
        asks(stage, "bound", "gone", "passed")
        service = stage.extender_service
        assert service.filter(stage.cluster.pod("passed"), NODES).passed == ("n1",)
        stage.cluster.change_pod("bound", node=NODES[1])
        stage.cluster.delete_pod("gone")
        await the_hold_ends(stage)
        assert stage.parts.exchange.refused_pods == {}
        assert nominations(stage) == []


async def test_a_pod_of_an_exempt_namespace_is_not_changed():
    """The policies of kube-apiserver would refuse it."""
    async with holding(alone("a", namespace="kube-system")) as stage:
        asks(stage, "kube-system/a")
        assert stage.parts.exchange.refused_pods == {}


async def test_a_pod_that_the_informers_show_only_later_is_woken():
    """kube-scheduler may have read of it before, and asks once. One that is never shown is forgotten."""
    async with holding(alone("late"), alone("never")) as stage:
        late, never = stage.cluster.pod("late"), stage.cluster.pod("never")
        for pod in (late, never):
            stage.cluster.delete_pod(pod.name)
            assert stage.extender_service.filter(pod, NODES[:1]).passed == ()
        await the_hold_ends(stage)
        assert nominations(stage) == []
        stage.cluster.seen = with_pod(stage.cluster.seen, late)
        await stage.settled()
        await eventually(lambda: nominations(stage) == [("default/late", "n0")], "a nomination")
        stage.later(TTL_S)
        await stage.settled()
        assert stage.parts.exchange.refused_pods.keys() == {late.uid}


async def test_calls_about_pods_that_do_not_exist_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(extender_service, "REFUSED_MAX", 3)
    async with holding(alone("a")) as stage:
        unknown = msgspec.structs.replace(stage.cluster.pod("a"), name="unknown")
        for number in range(9):
            other = msgspec.structs.replace(unknown, uid=PodUid(f"unknown-{number}"))
            assert stage.extender_service.filter(other, NODES[:1]).passed == ()
        asks(stage, "a")
        assert len(stage.parts.exchange.refused_pods) == 4


async def test_a_nomination_that_leads_to_no_binding_is_cleared_and_the_next_pod_has_its_turn(
    monkeypatch,
):
    monkeypatch.setattr(nominator, "WAKE_UP_ENDS_S", 0.02)
    async with holding(alone("a"), alone("b"), gpu=1) as stage:
        asks(stage, "a", "b")
        await the_hold_ends(stage)
        await eventually(lambda: len(nominations(stage)) == 2, "cleared")
        await stage.settled()
        await eventually(lambda: len(nominations(stage)) == 4, "the next, and cleared")
        await stage.settled()
        assert nominations(stage) == [
            ("default/a", "n0"), ("default/a", None), ("default/b", "n0"), ("default/b", None),
        ]  # fmt: skip


async def test_a_nomination_that_the_api_server_does_not_take_is_tried_again(monkeypatch):
    async with holding(alone("a")) as stage:
        monkeypatch.setattr(
            stage.parts.pod_waker._queue, "_policy",
            nominator.RetryPolicy(first_s=0.01, max_s=0.01, after_failure="continue"),
        )  # fmt: skip
        faults = [ClusterUnavailable("away")]
        stage.cluster.fault = lambda verb, _: (
            faults.pop() if verb == "nominate" and faults else None
        )
        asks(stage, "a")
        await the_hold_ends(stage)
        await eventually(lambda: nominations(stage) == [("default/a", "n0")], "a nomination")
        assert faults == []


async def test_the_state_counts_when_its_turn_comes(monkeypatch):
    """Filter has passed the pod since it was queued."""
    monkeypatch.setattr(nominator, "WAKE_UPS_PER_S", 50)
    async with holding(alone("a"), alone("b")) as stage:
        asks(stage, "a", "b")
        await the_hold_ends(stage)
        await eventually(lambda: len(nominations(stage)) == 1, "the first")
        assert stage.extender_service.filter(stage.cluster.pod("b"), NODES[:1]).passed
        await stage.settled()
        await eventually(lambda: "b" not in stage.parts.pod_waker._targets, "its turn")
        await eventually(stage.parts.pod_waker._queue.empty, "rest")
        assert nominations(stage) == [("default/a", "n0")]


async def test_capacity_that_goes_to_a_tree_in_the_same_pass_wakes_no_pod():
    """The tree waits for longer; its admission may not be committed when the pod has its turn."""
    async with holding(alone("a"), *a_gang("rival", pods=2)) as stage:
        asks(stage, "a")
        await the_hold_ends(stage)
        assert stage.root("rival").phase == "admitted"
        await eventually(stage.parts.pod_waker._queue.empty, "rest")
        assert "default/a" not in dict(nominations(stage))
        assert stage.parts.exchange.refused_pods.keys() == {stage.cluster.pod("a").uid}
