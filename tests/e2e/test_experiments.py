"""What the design believes about kube-scheduler, asked of the real one.

Each test is a rule of docs/reference/kube-scheduler.md that our code rests on, with kube-scheduler
at its default feature gates. EXPERIMENTS.md beside this file has what was measured. When a new
Kubernetes version breaks one of these, the design has to change, not the test.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import (
    BIND,
    GATE,
    MEMBER,
    a_node,
    a_pod,
    condition_of,
    path_of,
)
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import create_priority_class, wait_until_bound
from tests.e2e.recorder import Recorder, refuse, scheduler_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# Length of the window in which repeated calls are counted.
COUNTED_S = 10.0
# Measured values, for EXPERIMENTS.md: pytest -o log_cli=true -o log_cli_level=INFO
logger = logging.getLogger(__name__)
Object = dict[str, Any]


async def nominate(api: Api, pod: Object, node: str) -> float:
    """Write status.nominatedNodeName; return when (monotonic seconds)."""
    began_s = time.monotonic()
    await api.patch(f"{path_of(pod, named=True)}/status", {"status": {"nominatedNodeName": node}})
    return began_s


async def nomination_of(api: Api, pod: Object) -> str | None:
    """Read status.nominatedNodeName."""
    found = await api.get(path_of(pod, named=True))
    name: str | None = found["status"].get("nominatedNodeName")
    return name


def a_member(name: str, **more: Any) -> Object:
    """Make a pod that runs under the gang profile and reaches both entries."""
    return a_pod(name, **({"markers": (MEMBER, BIND), "schedulerName": "gang-scheduler"} | more))


async def wait_until_refused(api: Api, pod: Object) -> Object:
    """Wait until kube-scheduler has written that the pod is unschedulable; return the condition."""

    async def look() -> Object | None:
        condition = condition_of(await api.get(path_of(pod, named=True)), "PodScheduled")
        return condition if condition and condition["status"] == "False" else None

    found: Object = await eventually(look)
    return found


# -- nomination -----------------------------------------------------------------------------------


async def test_nomination_wakes_a_refused_pod_and_offers_one_node(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K21 and K26: after the patch filter is asked for that one node, prioritize never."""
    for number in range(3):
        await api.create(a_node(f"n{number}"))
    recorder.answers["filter"] = refuse("gang serve/root: waiting for members")
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a"))
    condition = await wait_until_refused(api, pod)
    assert "3 gang serve/root: waiting for members" in condition["message"]
    await asyncio.sleep(2)  # the pod wakes itself once by its own condition; let that pass
    before = len(recorder.calls)

    recorder.answers["filter"] = recorder.pass_all
    patched_s = await nominate(api, pod, "n1")
    await api.create(a_member("next"))
    bound = await wait_until_bound(api, pod)
    await recorder.wait_for("filter", "next")

    after = recorder.calls[before:]
    # Each once; which comes first depends on whether the back-off of `a` after its refusals is over.
    assert sorted(call.pod for call in after if call.verb == "filter") == ["a", "next"]
    after = [call for call in after if call.pod == "a"]
    assert [(call.verb, call.nodes) for call in after if call.verb != "bind"] == [
        ("filter", ["n1"])
    ]
    assert bound["spec"]["nodeName"] == "n1"
    assert "nominatedNodeName" not in bound["status"]  # the API server clears it at binding
    logger.info("patch of the nomination to filter: %.3f s", after[0].at_s - patched_s)


async def test_lifting_the_gate_of_a_nominated_pod_wakes_it_at_once(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K27: held pods cost no call; gate lifted, one filter call with the one node."""
    for number in range(3):
        await api.create(a_node(f"n{number}"))
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a", schedulingGates=[{"name": GATE}]))
    await nominate(api, pod, "n2")
    await wait_until_bound(api, await api.create(a_pod("ordinary")))  # it came later
    assert recorder.calls == []

    lifted_s = time.monotonic()
    await api.patch(path_of(pod, named=True), {"spec": {"schedulingGates": None}})
    await api.create(a_member("next"))
    bound = await wait_until_bound(api, pod)
    await recorder.wait_for("filter", "next")

    assert [call.pod for call in recorder.of("filter")] == ["a", "next"]  # at once
    assert [(call.verb, call.nodes) for call in recorder.calls if call.pod == "a"][:-1] == [
        ("filter", ["n2"])
    ]
    assert bound["spec"]["nodeName"] == "n2"
    logger.info("gate lifted to filter: %.3f s", recorder.calls[0].at_s - lifted_s)


async def test_a_rejected_nomination_is_followed_by_a_wide_call(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K21: refused on its nominated node, the pod is offered all nodes right away."""
    for number in range(3):
        await api.create(a_node(f"n{number}"))
    recorder.answers["filter"] = refuse("no")
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a", schedulingGates=[{"name": GATE}]))
    await nominate(api, pod, "n2")
    await api.patch(path_of(pod, named=True), {"spec": {"schedulingGates": None}})

    calls = await recorder.wait_for("filter", count=2)

    assert [call.nodes for call in calls[:2]] == [["n2"], ["n0", "n1", "n2"]]


@pytest.mark.parametrize(
    ("profile", "kept"), [("gang-scheduler", "n1"), ("default-scheduler", None)]
)
async def test_a_failed_attempt_keeps_the_nomination_only_without_default_preemption(
    plane: ControlPlane, api: Api, recorder: Recorder, profile: str, kept: str | None
) -> None:
    """K23: the gang profile keeps a foreign nomination, the default one erases it."""
    for number in range(2):
        await api.create(a_node(f"n{number}"))
    recorder.answers["filter"] = refuse("no")
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a", schedulerName=profile, schedulingGates=[{"name": GATE}]))
    await nominate(api, pod, "n1")
    await api.patch(path_of(pod, named=True), {"spec": {"schedulingGates": None}})

    async def failed() -> bool:
        condition = condition_of(await api.get(path_of(pod, named=True)), "PodScheduled")
        return condition is not None and condition.get("reason") == "Unschedulable"

    await recorder.wait_for("filter", count=2)
    await eventually(failed)
    await asyncio.sleep(1)
    assert await nomination_of(api, pod) == kept


async def test_a_nominated_gated_pod_holds_its_capacity_against_equal_priority_only(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K22: capacity of a nomination is closed to equal priority, open to higher."""
    await api.create(a_node("n0", cpu="8"))
    await create_priority_class(api, "high", 1000)
    plane.start_scheduler(scheduler_config(recorder.url))
    held = await api.create(
        a_member("held", requests={"cpu": "6"}, schedulingGates=[{"name": GATE}])
    )
    await nominate(api, held, "n0")
    # kube-scheduler sees changes of pods in their order
    equal = await api.create(a_pod("equal", requests={"cpu": "4"}))
    condition = await wait_until_refused(api, equal)
    assert "Insufficient cpu" in condition["message"]

    higher = await api.create(a_pod("higher", requests={"cpu": "4"}, priorityClassName="high"))
    await wait_until_bound(api, higher)


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_restarted_scheduler_knows_nominations_of_gated_pods_from_1_37_on(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K24: on 1.36 a held member has to be patched once after a restart; 1.37 reads it.

    Source: PriorityQueue.addPod of 1.37 records the nomination before it looks at gates.
    """
    await api.create(a_node("n0", cpu="8"))
    plane.start_scheduler(scheduler_config(recorder.url))
    held = await api.create(
        a_member("held", requests={"cpu": "6"}, schedulingGates=[{"name": GATE}])
    )
    await nominate(api, held, "n0")
    plane.restart_scheduler()

    if plane.minor == "1.36":
        # A pod that passes shows that the capacity was forgotten; the touch brings it back.
        replacement = await api.create(a_pod("replacement", requests={"cpu": "3"}))
        await wait_until_bound(api, replacement)
        await api.delete(path_of(replacement, named=True), {"gracePeriodSeconds": 0})
        touch = {"metadata": {"annotations": {"touched": "yes"}}}
        await api.patch(path_of(held, named=True), touch)
    condition = await wait_until_refused(
        api, await api.create(a_pod("late", requests={"cpu": "3"}))
    )
    assert "Insufficient cpu" in condition["message"]


# -- refusals -------------------------------------------------------------------------------------


async def test_a_constant_refusal_rests_and_a_changing_one_spins(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K25: a refusal's text that changes by itself makes kube-scheduler a hot loop."""
    await api.create(a_node("n0"))
    count = 0

    async def refuse_both(args: Object) -> Object:
        nonlocal count
        reason = "constant"
        if args["Pod"]["metadata"]["name"] == "changing":
            count += 1
            reason = f"asked {count} times"
        return {"NodeNames": [], "FailedAndUnresolvableNodes": {"n0": reason}}

    recorder.answers["filter"] = refuse_both
    plane.start_scheduler(scheduler_config(recorder.url))
    await api.create(a_member("constant"))
    await api.create(a_member("changing"))
    await recorder.wait_for("filter", "changing", count=20)
    assert len(recorder.of("filter", "constant")) <= 2


async def test_a_refused_pod_sleeps_through_pending_pods_and_wakes_by_an_annotation(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K26: siblings that only appear wake no pod; a patch of the pod itself does."""
    await api.create(a_node("n0"))
    recorder.answers["filter"] = refuse("waiting for members")
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a"))
    await wait_until_refused(api, pod)
    await asyncio.sleep(1.5)
    before = len(recorder.of("filter", "a"))

    await api.create(a_member("sibling"))
    await asyncio.sleep(1.5)
    assert len(recorder.of("filter", "a")) == before

    touched_s = time.monotonic()
    await api.patch(path_of(pod, named=True), {"metadata": {"annotations": {"touched": "yes"}}})
    calls = await recorder.wait_for("filter", "a", count=before + 1)
    logger.info("annotation to filter: %.3f s", calls[-1].at_s - touched_s)


# -- bind -----------------------------------------------------------------------------------------


async def test_a_binding_checks_the_uid_and_carries_annotations(
    plane: ControlPlane, api: Api
) -> None:
    """K34: a wrong UID is a conflict; annotations reach the pod with the binding."""
    await api.create(a_node("n0"))
    pod = await api.create(a_pod("a", metadata={"annotations": {"mine": "kept"}}))
    binding: Object = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "uid": "another", "annotations": {"reservation": "r1"}},
        "target": {"kind": "Node", "name": "n0"},
    }
    path = f"{path_of(pod, named=True)}/binding"
    with pytest.raises(ApiError, match="UID in precondition: another"):
        await api.post(path, binding)

    binding["metadata"]["uid"] = pod["metadata"]["uid"]
    binding["metadata"]["resourceVersion"] = pod["metadata"]["resourceVersion"]
    await api.patch(path_of(pod, named=True), {"metadata": {"labels": {"touched": "yes"}}})
    with pytest.raises(ApiError, match="ResourceVersion in precondition"):
        await api.post(path, binding)

    del binding["metadata"]["resourceVersion"]
    await api.post(path, binding)

    bound = await wait_until_bound(api, pod)
    assert bound["metadata"]["annotations"] == {"mine": "kept", "reservation": "r1"}
    scheduled = condition_of(bound, "PodScheduled")
    assert scheduled is not None
    assert scheduled["status"] == "True"
    with pytest.raises(ApiError, match="already assigned"):
        await api.post(path, binding)


async def test_held_binds_delay_no_other_pod_and_keep_their_capacity(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K30: 60 members held at bind, ordinary pods pass, then all members are bound."""
    held = 60
    for number in range(10):
        await api.create(a_node(f"n{number}", cpu="8"))
    release = asyncio.Event()

    async def hold(args: Object) -> Object:
        await release.wait()
        return await recorder.bind(args)

    recorder.answers["bind"] = hold
    plane.start_scheduler(scheduler_config(recorder.url))
    members = [await api.create(a_member(f"m{number}")) for number in range(held)]
    await recorder.wait_for("bind", count=held)

    # 80 CPUs, 60 assumed: 20 ordinary pods fit beside the held ones, the next one does not.
    ordinary = [await api.create(a_pod(f"o{number}")) for number in range(20)]
    for pod in ordinary:
        await wait_until_bound(api, pod)
    await wait_until_refused(api, await api.create(a_pod("too-much")))
    assert [pod for pod in members if await nomination_of(api, pod)] == []

    released_s = time.monotonic()
    release.set()
    for pod in members:
        await wait_until_bound(api, pod)
    logger.info("%s held binds done in %.2f s", held, time.monotonic() - released_s)
    assert len(recorder.of("bind")) == held


async def test_a_bind_error_is_retried_by_time(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K11: after an error the pod comes again by error back-off, and then is bound."""
    await api.create(a_node("n0"))
    bind = recorder.bind

    async def fail_first(args: Object) -> Object:
        if len(recorder.of("bind")) == 1:
            return {"Error": "barrier expired"}
        return await bind(args)

    recorder.answers["bind"] = fail_first
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a"))

    await wait_until_bound(api, pod)

    assert [call.verb for call in recorder.calls] == ["filter", "bind"] * 2


async def test_a_killed_scheduler_binds_again_while_our_old_bind_still_runs(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K32: kill -9 during a held bind; its successor calls bind for the same UID."""
    for number in range(2):
        await api.create(a_node(f"n{number}"))
    release = asyncio.Event()

    async def hold(args: Object) -> Object:
        await release.wait()
        return await recorder.bind(args)

    recorder.answers["bind"] = hold
    scheduler = plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a"))
    await recorder.wait_for("bind", count=1)
    scheduler.kill()
    plane.restart_scheduler()

    old, new = await recorder.wait_for("bind", count=2)
    release.set()
    await wait_until_bound(api, pod)

    assert old.body["PodUID"] == new.body["PodUID"] == pod["metadata"]["uid"]


# -- preemption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("node_names", [True, False], ids=["names", "full-nodes"])
async def test_preempt_is_asked_with_candidate_nodes_and_its_answer_is_final(
    plane: ControlPlane, api: Api, recorder: Recorder, node_names: bool
) -> None:
    """K40 to K42: victims by UID or in full; the answer picks the node, victims are deleted."""
    await create_priority_class(api, "high", 1000)
    plane.start_scheduler(scheduler_config(recorder.url, node_names=node_names))
    victims = {}
    for node in ("n0", "n1"):
        await api.create(a_node(node, cpu="1"))
        victims[node] = await api.create(a_pod(f"victim-{node}", nodeName=node))
    agree = recorder.agree

    async def only_n1(args: Object) -> Object:
        answer: Object = await agree(args)
        return {"NodeNameToMetaVictims": {"n1": answer["NodeNameToMetaVictims"]["n1"]}}

    recorder.answers["preempt"] = only_n1
    pod = await api.create(a_pod("preemptor", markers=(MEMBER, BIND), priorityClassName="high"))

    bound = await wait_until_bound(api, pod)

    asked = recorder.of("preempt")[0].body
    assert set(asked) == {"Pod", "NodeNameToVictims", "NodeNameToMetaVictims"}
    if node_names:
        assert asked["NodeNameToVictims"] is None
        assert asked["NodeNameToMetaVictims"] == {
            node: {"Pods": [{"UID": victim["metadata"]["uid"]}], "NumPDBViolations": 0}
            for node, victim in victims.items()
        }
    else:
        assert asked["NodeNameToMetaVictims"] is None
        assert {
            node: [pod["metadata"]["uid"] for pod in proposed["Pods"]]
            for node, proposed in asked["NodeNameToVictims"].items()
        } == {node: [victim["metadata"]["uid"]] for node, victim in victims.items()}
    assert bound["spec"]["nodeName"] == "n1"
    left = [pod["metadata"]["name"] for pod in (await api.get("/api/v1/pods"))["items"]]
    assert sorted(left) == ["preemptor", "victim-n0"]


async def test_a_null_victim_list_kills_kube_scheduler(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K43: an answer of the wrong form ends the process, so ours is checked before."""
    await create_priority_class(api, "high", 1000)
    await api.create(a_node("n0", cpu="1"))
    await api.create(a_pod("victim", nodeName="n0"))

    async def broken(args: Object) -> Object:
        return {"NodeNameToMetaVictims": {"n0": None}}

    recorder.answers["preempt"] = broken
    scheduler = plane.start_scheduler(scheduler_config(recorder.url))
    await api.create(a_pod("preemptor", markers=(MEMBER,), priorityClassName="high"))

    async def ended() -> bool:
        return not scheduler.running

    await eventually(ended)
    assert "nil pointer dereference" in scheduler.log.read_text(encoding="utf-8")


# -- what is offered ------------------------------------------------------------------------------


async def test_only_the_profile_with_100_percent_shows_every_node(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K20: 150 nodes, the default profile offers 100 and the gang's all."""
    for number in range(150):
        await api.create(a_node(f"n{number:03}"))
    config = scheduler_config(recorder.url)
    del config["percentageOfNodesToScore"]
    config["profiles"][1]["percentageOfNodesToScore"] = 100
    plane.start_scheduler(config)
    await api.create(a_pod("ordinary", markers=(MEMBER,)))
    await api.create(a_member("member"))

    offered = {
        name: len((await recorder.wait_for("filter", name))[0].nodes)
        for name in ("ordinary", "member")
    }
    assert offered == {"ordinary": 100, "member": 150}


async def test_a_marker_that_is_not_ignored_needs_nodes_that_have_it(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K13: `ignoredByScheduler` is what lets markers run on nodes without them."""
    await api.create(a_node("n0"))
    config = scheduler_config(recorder.url)
    config["extenders"][0]["managedResources"][0]["ignoredByScheduler"] = False
    plane.start_scheduler(config)

    condition = await wait_until_refused(api, await api.create(a_member("a")))

    assert f"Insufficient {MEMBER}" in condition["message"]
    assert recorder.calls == []


# -- built-in groups ------------------------------------------------------------------------------


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_grouped_pod_is_an_ordinary_one_to_a_scheduler_with_gates_off(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K50: the group reaches us in the pod's JSON, and no other pod waits for it."""
    await api.create(a_node("n0"))
    plane.start_scheduler(scheduler_config(recorder.url))
    pod = await api.create(a_member("a", schedulingGroup={"podGroupName": "not-there"}))

    await wait_until_bound(api, pod)

    asked = recorder.of("filter")[0].body["Pod"]
    assert asked["spec"]["schedulingGroup"] == {"podGroupName": "not-there"}
