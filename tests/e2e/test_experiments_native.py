"""What kube-scheduler's own group scheduling does to an extender, when an operator turns it on.

Our deployment leaves these gates off; they may be on all the same. Covered: who
is called inside a group's cycle, how often, and what is never asked. Left out: how well kube-scheduler
places groups; see docs/explanation/comparison.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.api import Api
from tests.controlplane.objects import BIND, MEMBER, a_node, a_pod, path_of
from tests.controlplane.plane import ControlPlane, native_switches
from tests.controlplane.waiting import create_priority_class, wait_until_bound
from tests.e2e.recorder import Recorder, refuse, scheduler_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

Object = dict[str, Any]

# In 1.37 GenericWorkload contains GangScheduling; in 1.36 it is a gate of kube-scheduler's own.
SCHEDULER_GATES = {
    "1.36": {"GenericWorkload": True, "GangScheduling": True},
    "1.37": native_switches("1.37")["--feature-gates"],
}
VERSIONS = {"1.36": "scheduling.k8s.io/v1alpha2", "1.37": "scheduling.k8s.io/v1alpha3"}
# Length of the window in which repeated calls are counted.
COUNTED_S = 4.0


def a_pod_group(minor: str, name: str, **spec: Any) -> Object:
    """Make a gang of two in the version of the API that a Kubernetes version serves."""
    return {
        "apiVersion": VERSIONS[minor],
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, **spec},
    }


def a_grouped_pod(name: str, group: str, **more: Any) -> Object:
    """Make a member that fills its node."""
    return a_pod(
        name,
        requests={"cpu": "8"},
        markers=(MEMBER, BIND),
        schedulingGroup={"podGroupName": group},
        **more,
    )


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_refused_gang_spins_on_1_36_and_backs_off_on_1_37(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K52: even a constant refusal is a hot loop on 1.36; 1.37 waits 1, 2, 4 seconds."""
    await api.create(a_node("n0"))
    await api.create(a_node("n1"))
    group = await api.create(a_pod_group(plane.minor, "refused"))
    recorder.answers["filter"] = refuse("constant")
    plane.start_scheduler(scheduler_config(recorder.url), gates=SCHEDULER_GATES[plane.minor])
    for name in ("a", "b"):
        await api.create(a_grouped_pod(name, "refused", schedulerName="gang-scheduler"))
    calls = await recorder.wait_for("filter", count=200 if plane.minor == "1.36" else 3)
    plane.stop_scheduler()
    await remove_group(api, group)
    if plane.minor == "1.37":
        assert calls[2].at_s - calls[0].at_s > 0.9, "no back-off"


async def test_filter_is_called_once_per_member_and_domain_without_its_name(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K51: a group's cycle simulates every domain, so filter must never reserve."""
    for number in range(6):
        await api.create(a_node(f"n{number}", labels={"rack": f"r{number // 2}"}))
    topology = {"topology": [{"key": "rack"}]}
    group = await api.create(a_pod_group(plane.minor, "racked", schedulingConstraints=topology))
    plane.start_scheduler(scheduler_config(recorder.url), gates=SCHEDULER_GATES[plane.minor])
    pods = [await api.create(a_grouped_pod(name, "racked")) for name in ("a", "b")]
    for pod in pods:
        await wait_until_bound(api, pod)

    # Which member comes first is not settled; the first sees a whole rack, the second the rest.
    assert [len(call.nodes) for call in recorder.of("filter")] == [2, 1] * 3
    racks = {tuple(call.nodes) for call in recorder.of("filter") if len(call.nodes) == 2}
    assert racks == {("n0", "n1"), ("n2", "n3"), ("n4", "n5")}
    assert len(recorder.of("bind")) == 2
    await remove_group(api, group)


async def test_the_preempt_verb_is_never_asked_for_a_native_gang(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """K53: on 1.37 the group preempts as a whole and no extender can save a victim."""
    await create_priority_class(api, "high", 1000)
    plane.start_scheduler(scheduler_config(recorder.url), gates=SCHEDULER_GATES[plane.minor])
    for name in ("n0", "n1"):
        await api.create(a_node(name))
        await api.create(a_pod(f"victim-{name}", nodeName=name, requests={"cpu": "8"}))
    group = await api.create(a_pod_group(plane.minor, "preemptor", priorityClassName="high"))
    pods = [
        await api.create(a_grouped_pod(name, "preemptor", priorityClassName="high"))
        for name in ("a", "b")
    ]
    for pod in pods:
        await wait_until_bound(api, pod)

    assert recorder.of("preempt") == []
    left = [pod["metadata"]["name"] for pod in (await api.get("/api/v1/pods"))["items"]]
    assert sorted(left) == ["a", "b"]
    await remove_group(api, group)


async def remove_group(api: Api, group: Object) -> None:
    """Delete a group for good: no controller here lifts its finalizer."""
    path = path_of(group, named=True)
    await api.patch(path, {"metadata": {"finalizers": None}})
    await api.delete(path)

    async def gone() -> bool:
        found = await api.get(path_of(group))
        return group["metadata"]["name"] not in {
            item["metadata"]["name"] for item in found["items"]
        }

    await eventually(gone)
