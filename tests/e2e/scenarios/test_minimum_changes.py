"""`minGroupCount` of a composite changes: lower admits a tree that waits, higher takes nothing from one that runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.scenarios.conftest import OURS, Story, member
from tests.support.service.manifest_builders import a_group, a_node

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
GPU = {"nvidia.com/gpu": 8}
ROOT = f"/apis/{OURS}/namespaces/default/compositepodgroups/root"
LOSSES = ("ReservationReleased", "MemberTerminated", "PreemptionPlanned", "GangInvalid")


async def require(story: Story, groups: int) -> None:
    """Change the minimum of the root."""
    policy = {"gang": {"minGroupCount": groups}}
    await story.api.patch(ROOT, {"spec": {"schedulingPolicy": policy}})


async def is_refused(story: Story, after: int) -> bool:
    """Return whether the tree is refused because of its minimum; before that, its third leaf may be on its own."""
    events = await story.service.events("GangUnschedulable")
    reasons = [text for e in events if e["position"] > after for text in e["data"]["reasons"]]
    return any("default/root needs 3 of its 3 child groups" in text for text in reasons)


def leaf(name: str) -> list[dict[str, Any]]:
    """Make a gang of one pod that fills a node."""
    return [a_group(name, gang=1, parent="root"), member(f"{name}-0", name, requests=GPU)]


async def test_lower_admits_and_higher_leaves_alone_what_runs(story: Story) -> None:
    """Three leaves, two nodes: with two required two run; with three required again they still do, until a node comes."""
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(2)))
    await story.create(a_group("root", gang=3, composite=True))
    for name in "abc":
        await story.create(*leaf(name))
    await story.until_event("GangUnschedulable", "default/root", outcome="impossible")
    assert not await story.bound()

    await require(story, 2)
    running = await story.until_bound(2)
    scheduled = await story.until_event("GangScheduled", "default/root")
    admitted = await story.until_event("GangAdmitted", "default/root")
    assert admitted["data"]["groups"][0]["minimum"] == 2

    await require(story, 3)
    await story.until(lambda: is_refused(story, scheduled["position"]))
    assert await story.bound() == running
    assert not await story.service.events(*LOSSES)
    (line,) = await story.service.get("/v1/gangs")
    assert (line["state"], line["bound"]) == ("degraded", 2)

    await story.create(a_node("n2", gpu=8))
    bound = await story.until_bound(3)
    assert running.items() <= bound.items()
    extended = await story.until_event("GangExtended", "default/root")
    assert extended["data"]["groups"][0]["minimum"] == 3
    assert not await story.service.events(*LOSSES)
    await story.check_events()
    await story.check_capacity()
