"""What must hold when a story is over and everything has come to rest, whatever the story was.

No capacity is reserved without a pod for it, no node holds more than it has, every event is in the log
once, and every tree that waits has a true reason: `gang-extender plan` on a dump of the same cluster
has the same and finds nothing that could be placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extender.queries.plan.plan_dto import GangVerdict
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.controlplane.api import Api, ApiError
from tests.controlplane.livedin import NAMESPACE
from tests.controlplane.objects import amount_of, requests_of
from tests.support.service.manifest_builders import a_manifest

if TYPE_CHECKING:
    from tests.e2e.scenarios.conftest import Story

BUILT_IN = {"1.36": "scheduling.k8s.io/v1alpha2", "1.37": "scheduling.k8s.io/v1alpha3"}
OURS = "gang-extender.dev/v1alpha1"
BUDGET = 200_000
ENDED = ("Succeeded", "Failed")


async def check_aftermath(story: Story) -> None:
    """Wait until all of it holds.

    Raises:
        AssertionError: It does not come to hold; with what is wrong and what there is.
    """
    wrong: list[str] = []

    async def holds() -> bool:
        wrong[:] = await complaints(story)
        return not wrong

    await story.until(holds, "all has come to rest", every_s=0.3, state=lambda: wrong)
    await story.check_events()
    await check_capacity(story.api)


async def complaints(story: Story) -> list[str]:
    """Return what does not hold at this moment."""
    gangs = {line["gang"]: line for line in await story.service.get("/v1/gangs")}
    held = [
        f"{line['reserved']} reserved for {name}"
        for name, line in gangs.items()
        if line["reserved"]
    ]
    if held:
        return held
    rejected = {event["gang"] for event in await story.service.events("NodeRejected")}
    found = []
    for verdict in await what_would_fit(story):
        gang = gangs.get(verdict.gang)
        if verdict.kind == "Pod" or verdict.gang in rejected:
            continue  # a rejection is knowledge that no dump has
        if verdict.assignments:
            found.append(f"could be placed: {verdict}; the service has {gang}")
        elif gang is None or gang["state"] == "scheduled" or verdict.verdict == "placed":
            continue
        elif gang["outcome"] != verdict.verdict:
            found.append(f"another reason than {verdict}: {gang}")
    return found


async def what_would_fit(story: Story) -> tuple[GangVerdict, ...]:
    """Plan everything that waits on what the API server shows now, without the log."""
    items = await objects_of(story.api, story.plane.minor)
    manifest = a_manifest([item for item in items if not _passes_by(item)])
    question = PlanInput(all_pending=True, budget=BUDGET, order=manifest.order, preemption=False)
    return answer_plan_query(manifest.world.view, question).gangs


def _passes_by(item: dict[str, Any]) -> bool:
    """Return whether a pod is a neighbour without a node: it will need little, and not for long."""
    near = item["kind"] == "Pod" and item["metadata"]["namespace"] == NAMESPACE
    return near and not item["spec"].get("nodeName")


async def objects_of(api: Api, minor: str) -> list[dict[str, Any]]:
    """Read a cluster as `kubectl get -A -o json` would."""
    items: list[dict[str, Any]] = []
    for version, kind, plural in (
        ("v1", "Node", "nodes"),
        ("v1", "PersistentVolume", "persistentvolumes"),
        ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        ("v1", "Pod", "pods"),
        ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses"),
        (BUILT_IN[minor], "PodGroup", "podgroups"),
        (BUILT_IN[minor], "CompositePodGroup", "compositepodgroups"),
        (OURS, "PodGroup", "podgroups"),
        (OURS, "CompositePodGroup", "compositepodgroups"),
    ):
        path = f"/api/v1/{plural}" if version == "v1" else f"/apis/{version}/{plural}"
        try:
            found = (await api.get(path))["items"]
        except ApiError as error:
            if error.status != 404:  # 1.36 has no built-in composite
                raise
            continue
        items += [{"apiVersion": version, "kind": kind, **item} for item in found]
    return items


async def check_capacity(api: Api) -> None:
    """Check that no node holds more than it has of anything, pods of all namespaces together."""
    nodes = {n["metadata"]["name"]: n for n in (await api.get("/api/v1/nodes"))["items"]}
    used: dict[tuple[str, str], int] = {}
    for pod in (await api.get("/api/v1/pods"))["items"]:
        node = pod["spec"].get("nodeName")
        if node not in nodes or pod["status"].get("phase") in ENDED:
            continue
        for name, amount in {**requests_of(pod), "pods": 1}.items():
            if "gang-extender.dev/" not in name:
                used[node, name] = used.get((node, name), 0) + amount
    for (node, name), amount in used.items():
        has = amount_of(name, nodes[node]["status"]["allocatable"].get(name, 0))
        assert amount <= has, f"node {node} holds {amount} {name} of {has}"
