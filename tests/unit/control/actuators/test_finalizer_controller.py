"""Finalizers are written inside the lease, once per version of a group, and again after a failure."""

from __future__ import annotations

import msgspec
import pytest

from extender.control.actuators import finalizer_controller
from extender.control.actuators.finalizer_controller import FinalizerController
from extender.core.log.events import ReservationReleased
from extender.core.model.cluster_view import Guard, with_guard
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.pods import PodEnd
from extender.core.reconcile.finalizer_rules import FINALIZER
from tests.support.service.fakes import GATED, Stage, idle
from tests.support.service.manifest_builders import a_gang, a_group, a_node
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalizer_controller, "SETTLE_S", 0.001)
    monkeypatch.setattr(finalizer_controller, "TICK_S", 0.01)


def guard(stage, name="g", **changes):
    """Let the cluster show a group as to its finalizer."""
    key = stage.cluster.group(name).key
    known = stage.cluster.seen.guards.get(key) or Guard(uid=stage.cluster.group(name).uid)
    changed = msgspec.structs.replace(known, **changes)
    stage.cluster.seen = with_guard(stage.cluster.seen, key, changed)
    stage.cluster._notify()


def written(stage):
    return [detail for _, detail in stage.cluster.did("set_finalizers")]


async def test_set_once_and_lifted_when_the_last_pod_goes():
    """The whole life of a group's finalizer."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        stage.cluster.change_pod("g-0", node="n0", gates=())
        guard(stage)
        stage.start(FinalizerController(stage.cluster, stage.leader, stage.clock).run())
        await eventually(lambda: written(stage) == [FINALIZER], "set")
        guard(stage, deleting=True, resource_version="2")
        await idle()
        assert written(stage) == [FINALIZER], "a pod still names it"
        stage.cluster.delete_pod("g-0")
        await eventually(lambda: written(stage) == [FINALIZER, ""], "lifted")


async def test_nothing_is_written_twice_for_one_version():
    """What the cluster has not shown yet is not written again."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        stage.cluster.shows_finalizers = False
        guard(stage)
        work = FinalizerController(stage.cluster, stage.leader, stage.clock)
        for _ in range(3):
            await work.work()
        assert written(stage) == [FINALIZER]
        guard(stage, resource_version="2")  # another client wrote, and the finalizer is not there
        await work.work()
        assert written(stage) == [FINALIZER, FINALIZER]


async def test_only_inside_the_lease_and_from_a_view_that_counts():
    """A deposed replica writes nothing, nor one that does not see the cluster."""
    async with Stage(*a_gang("g", pods=1)) as stage:
        guard(stage)
        work = FinalizerController(stage.cluster, stage.leader, stage.clock)
        stage.start(work.run())
        await idle()
        assert not written(stage)
        stage.cluster.doubted = "no news for 20 s"
        await stage.lead()
        await idle()
        assert not written(stage)
        stage.cluster.doubted = ""
        await eventually(lambda: written(stage) == [FINALIZER], "set")


async def test_a_failure_is_tried_again_and_a_refusal_is_not():
    """A conflict or an outage passes; a group that is gone stays gone."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        errors = [ClusterUnavailable("429"), ClusterUnavailable("conflict")]
        asked = []

        def fault(verb, name):
            asked.append((verb, name))
            return errors.pop(0) if errors else None

        stage.cluster.fault = fault
        guard(stage)
        stage.start(FinalizerController(stage.cluster, stage.leader, stage.clock).run())
        await eventually(lambda: written(stage) == [FINALIZER], "set at last")
        assert len(asked) == 3
        stage.cluster.delete_pod("g-0")
        errors.append(RequestRejected("gone"))
        guard(stage, deleting=True, resource_version="3")
        await eventually(lambda: len(asked) == 4, "asked once more")
        await idle()
        assert len(asked) == 4


def delete(stage, name="g"):
    """Have a group deleted: it stays while it has finalizers."""
    stage.cluster.change_group(name, deleting=True, deleted_us=1)
    guard(stage, name, deleting=True, resource_version="2")


def gone(stage, name="g"):
    """Return whether the finalizer is off; then the API server forgets the group."""
    if not written(stage) or written(stage)[-1] != "":
        return False
    key = stage.cluster.group(name).key
    stage.cluster.seen = with_guard(stage.cluster.seen, key, None)
    stage.cluster.delete_group(name)
    return True


def reasons(stage, pod):
    """Return the Events of a pod."""
    return [n.message for n in stage.cluster.notices if n.name == pod]


MISSING = (
    "PodGroup default/g does not exist; 2 pods name it and wait; "
    "create the group, again if it was deleted, or delete the pod"
)


async def test_a_group_whose_pods_were_never_bound_goes_and_their_events_have_the_reason():
    """No deadlock of group and pods: the pods wait with an Event, and run in a group made again."""
    gang = a_gang("g", pods=2)
    pods = [one for one in gang if one["kind"] == "Pod"]
    for pod in pods:
        pod["spec"]["schedulingGates"] = GATED
    async with await Stage(*gang).lead() as stage:  # no node yet: nothing is reserved
        guard(stage, finalizers=(FINALIZER,))
        stage.start(stage.reporter.run())
        await stage.settled()
        delete(stage)
        stage.start(FinalizerController(stage.cluster, stage.leader, stage.clock).run())
        await eventually(lambda: gone(stage), "the group gone")
        await stage.settled()
        stage.later(2)
        await stage.settled()
        await eventually(
            lambda: MISSING in reasons(stage, "g-0"), f"the Event: {stage.cluster.notices}"
        )
        assert MISSING in reasons(stage, "g-1")
        again = [one for one in gang if one["kind"] == "PodGroup"]
        again[0]["metadata"]["uid"] = "made-again"
        stage.cluster.add(a_node("n0", gpu=8), *again)
        await stage.settled()
        assert stage.root("g").uid == "made-again"
        assert sorted(stage.where("g")) == ["g-0", "g-1"]


async def test_reservations_are_given_back_before_the_group_goes():
    """While the log has them, or may have them in a moment, a Binding may be on its way."""
    async with await Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)).lead() as stage:
        guard(stage, finalizers=(FINALIZER,))
        await stage.settled()
        assert len(stage.where("g")) == 2
        delete(stage)
        work = FinalizerController(stage.cluster, stage.leader, stage.clock)
        await work.work()
        assert not written(stage), "reserved"
        await stage.one_pass()
        (released,) = stage.event_data(ReservationReleased)
        assert (released.reason, len(released.pods)) == ("deleted", 2)
        await work.work()
        assert written(stage) == [""]


async def test_who_runs_keeps_the_group_until_it_has_ended():
    """A member that terminates counts, one that waits beside it does not."""
    async with await Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)).lead() as stage:
        guard(stage, finalizers=(FINALIZER,))
        stage.cluster.change_pod("g-0", node="n0", gates=())
        stage.start(stage.reporter.run())
        await stage.settled()
        delete(stage)
        await stage.settled()
        work = FinalizerController(stage.cluster, stage.leader, stage.clock)
        await work.work()
        stage.cluster.change_pod("g-0", deleting=True)
        await stage.settled()
        await work.work()
        assert not written(stage)
        stage.later(2)
        await stage.settled()
        going = "gang default/g: its root group is being deleted"
        await eventually(
            lambda: going in reasons(stage, "g-1"), f"the Event: {stage.cluster.notices}"
        )
        stage.cluster.end_pod("g-0", PodEnd("deleted"))
        await work.work()
        assert written(stage) == [""]


async def test_deletions_come_before_the_rest_of_many_new_groups(monkeypatch):
    """A group that is deleted while others get their finalizer does not wait for all of them."""
    monkeypatch.setattr(finalizer_controller, "ROUND_MS", -1)
    names = [f"g{number}" for number in range(5)]
    async with await Stage(*(a_group(name, gang=1) for name in ("old", *names))).lead() as stage:
        guard(stage, name="old", finalizers=(FINALIZER,))
        for name in names:
            guard(stage, name=name)
        inner = stage.cluster.set_finalizers

        async def set_finalizers(change):
            if not written(stage):
                guard(stage, name="old", deleting=True)
            await inner(change)

        stage.cluster.set_finalizers = set_finalizers
        await FinalizerController(stage.cluster, stage.leader, stage.clock).work()
        assert written(stage) == [FINALIZER, "", *[FINALIZER] * 4]
