"""A member that vanished: the API server is asked, the loss is recorded with its answer, and nothing waits for long."""

from __future__ import annotations

import pytest

from extender.control.published import termination_reasons
from extender.core.log.events import MemberTerminated
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.pods import PodEnd
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node

REFUSED = PodEnd("rejected-by-kubelet", "OutOfcpu: it has none")


async def bound(stage, pods=2):
    """Lead, and have a gang of so many run."""
    await stage.lead()
    await stage.settled()
    for n in range(pods):
        name = f"g-{n}"
        stage.cluster.change_pod(name, node=stage.where("g")[name], phase="Running")
    await stage.settled()


def a_stage(pods=2):
    nodes = [a_node(f"n{n}", gpu=8) for n in range(pods)]
    return Stage(*nodes, *a_gang("g", pods=pods, requests={GPU: 8}))


async def lost(stage, many=1):
    """Return the losses when there are so many."""
    for _ in range(2):  # the answer, then the event
        await stage.settled()
    found = stage.event_data(MemberTerminated)
    assert len(found) == many
    return found


async def test_the_cause_comes_from_the_api_server():
    async with a_stage() as stage:
        await bound(stage)
        stage.cluster.end_pod("g-0", REFUSED)
        (event,) = await lost(stage)
        assert (event.cause, event.message) == (REFUSED.cause, REFUSED.message)
        stage.cluster.delete_pod("g-1")
        _, event = await lost(stage, 2)
        assert event.cause == "deleted"
        assert not stage.parts.termination_reasons.awaited
        await stage.settled()
        assert not stage.parts.termination_reasons.known


@pytest.mark.parametrize("how", ["silent", "unavailable"])
async def test_a_loss_is_recorded_without_an_answer_of_the_api_server(how, monkeypatch):
    monkeypatch.setattr(termination_reasons, "WAIT_S", 0.05)
    async with a_stage() as stage:
        await bound(stage)
        if how == "silent":
            stage.cluster.go.clear()
        else:
            stage.cluster.fault = lambda verb, _: (
                ClusterUnavailable("no answer") if verb == "ending" else None
            )
        stage.cluster.end_pod("g-0", REFUSED)
        (event,) = await lost(stage)
        stage.cluster.go.set()
        assert (event.cause, event.message) == ("unknown", "")


async def test_of_many_that_vanish_at_once_some_are_asked_about(monkeypatch):
    monkeypatch.setattr(termination_reasons, "ASKED_MAX", 2)
    async with a_stage(4) as stage:
        await bound(stage, 4)
        for n in range(4):
            stage.cluster.end_pod(f"g-{n}", REFUSED)
        found = await lost(stage, 4)
        assert sorted(f.cause for f in found) == [
            *["rejected-by-kubelet"] * 2,
            "unknown",
            "unknown",
        ]
