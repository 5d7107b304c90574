"""Our definitions (CRDs) are deleted while the service leads, and come back: who runs is left alone.

A definition goes only after its groups, and our finalizer keeps a group that pods of it run with. So the
story needs people who take the finalizers off, as those do who find that a deletion hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.e2e.conftest import DEFINITIONS, wake_finalizer
from tests.e2e.scenarios.conftest import DEPLOY, OURS, Story, _policy_works, member
from tests.e2e.scenarios.test_deleted_objects import gang_of, held_before_bind, nothing_reserved
from tests.support.service.manifest_builders import a_gang, a_node

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
KINDS = ("podgroups", "compositepodgroups")
GROUPS = f"/apis/{OURS}/namespaces/default"


@pytest.fixture
async def definitions(story: Story) -> AsyncIterator[None]:
    """Whatever happens to them, the next story finds them."""
    try:
        yield
    finally:
        await bring_back(story)


async def bring_back(story: Story) -> None:
    await story.kubectl("apply", "--server-side", "-f", str(DEPLOY / "crds.yaml"))
    await _policy_works(story.plane)


async def served(story: Story, kind: str) -> bool:
    try:
        await story.api.get(f"{DEFINITIONS}/{kind}.gang-extender.dev")
    except ApiError as refused:
        if refused.status != 404:
            raise
        return False
    return True


async def force_all(story: Story) -> None:
    """Take the finalizers off all groups that are being deleted."""
    for kind in KINDS:
        with contextlib.suppress(ApiError):  # its definition has gone by itself
            for item in (await story.api.get(f"{GROUPS}/{kind}"))["items"]:
                path = f"{GROUPS}/{kind}/{item['metadata']['name']}"
                with contextlib.suppress(ApiError):
                    await story.api.patch(path, {"metadata": {"finalizers": None}})


async def why_not_ready(story: Story) -> list[dict[str, Any]]:
    """Return the checks of readiness that fail."""
    body = await story.service.get("/v1/readiness")
    failed = [check for check in body["checks"] if not check["ok"]]
    assert (not failed) == body["ready"]
    return failed


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_our_definitions_vanish_and_come_back(definitions: None, story: Story) -> None:
    """Bound pods stay, nothing is promised meanwhile, readiness reports it, and all goes on by itself."""
    reasons: list[str] = []  # why it was not ready

    async def watch() -> None:
        while True:
            reasons.extend(check["reason"] for check in await why_not_ready(story))
            await asyncio.sleep(0.05)

    runs, held, waits = (a_gang(n, pods=2, requests=GPU) for n in ("runs", "held", "waits"))
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(6)), *runs)
    first = await story.until_bound(2, "runs-")
    await story.until_event("GangScheduled", "default/runs")
    uids = {name: pod["metadata"]["uid"] for name, pod in (await story.pods()).items()}
    watching = asyncio.create_task(watch())
    try:
        async with held_before_bind(story, 2) as reached:
            await story.create(*held)
            await reached()
            await story.create(*waits[:-1])
            await story.until_event("GangUnschedulable", "default/waits", outcome="waiting")

            # 1. Deleted: groups with pods that run stay, so do their definition and the pods that run; no capacity is kept.
            for kind in KINDS:
                await story.api.delete(f"{DEFINITIONS}/{kind}.gang-extender.dev")
            released = await story.until_event(
                "ReservationReleased", "default/held", reason="deleted"
            )
            assert "is being deleted" in released["data"]["message"]
            await nothing_reserved(story)
            assert await served(story, "podgroups")
            assert await story.bound() == first

            # 2. Forced: the groups are gone, then what defines them.
            await force_all(story)

            async def gone() -> bool:
                await force_all(story)  # our service protects what is not being deleted yet
                remaining = [kind for kind in KINDS if await served(story, kind)]
                for kind in remaining:
                    await wake_finalizer(story.api, f"{kind}.gang-extender.dev")
                return not remaining

            await story.until(gone)
            for name in ("runs", "held", "waits"):
                await story.until_event("GangRemoved", f"default/{name}")
            assert await story.service.get("/v1/gangs") == []

        # 3. Nothing is promised to members of groups without a definition.
        async def has_event() -> bool:
            return any("which does not exist" in line for line in await story.events_of("held-0"))

        await story.until(has_event, every_s=0.3)
        await story.until(lambda: is_ready(story))
        assert await story.bound() == first
        pods = await story.pods()
        assert not any(pod["status"].get("nominatedNodeName") for pod in pods.values())

        # 4. They come back, and the groups: what ran is found running, the rest gets capacity.
        await bring_back(story)
        await story.create(runs[0], held[0], waits[0], member("waits-1", "waits", requests=GPU))
        bound = await story.until_bound(6)
        assert first.items() <= bound.items()
        for name in ("runs", "held", "waits"):

            async def satisfied(name: str = name) -> bool:
                line = await gang_of(story, name)
                return line is not None and (line["state"], line["bound"]) == ("scheduled", 2)

            await story.until(satisfied)
            await story.until(lambda name=name: shows_scheduled(story, name))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert all("gang-extender.dev: not synced" in reason for reason in reasons), set(reasons)
    await nothing_reserved(story)
    await story.check_capacity()
    events = await story.service.events()
    drift = [
        (f["data"]["kind"], f["data"]["object"]) for f in events if f["type"] == "DriftDetected"
    ]
    unknown = "bound-by-unknown-plan"  # the log had closed the book on the tree whose plan it was
    assert sorted(drift) == [(unknown, f"Pod/default/{name}") for name in sorted(first)]
    now = {name: pod["metadata"]["uid"] for name, pod in (await story.pods()).items()}
    assert uids.items() <= now.items()
    # the log has drift, as it must: not what holds after other stories
    await asyncio.to_thread(story.service.stop)


async def is_ready(story: Story) -> bool:
    return not await why_not_ready(story)


async def shows_scheduled(story: Story, name: str) -> bool:
    status = (await story.api.get(f"{GROUPS}/podgroups/{name}")).get("status", {})
    found = {c["type"]: c["status"] for c in status.get("conditions", [])}
    return found.get("PodGroupInitiallyScheduled") == "True"
