"""What people see of a preemption with their own tools: `kubectl describe` and `gang-extender explain`."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import ROOT
from tests.e2e.scenarios.test_preemption import (
    HIGH,
    LOW,
    ONE,
    classes,
    conditions,
    events_of_kind,
    of_class,
    preemptor,
    racks,
    singles,
    whole,
)
from tests.support.service.manifest_builders import RACK, a_group, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
OURS = "gang-extender.dev"
LINGER = {"finalizers": ["example.com/linger"]}  # so that there is time to look


async def explain(story: Story, gang: str) -> str:
    """Return what `gang-extender explain` prints."""
    command = [sys.executable, "-m", "extender", "explain", gang, "--server", story.service.url]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False,
        env=story.service.command_environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: str = done.stdout
    return printed


@pytest.mark.full
async def test_a_refusal_has_how_far_eviction_would_get(story: Story) -> None:
    """Two children need a rack each, and one rack is full of equals: 1 of 2, on the group, by explain and on the pods."""
    equals = of_class([a_pod(f"equal-{n}", node=f"b{n}", requests=ONE) for n in range(2)], "high")
    await story.create(*classes(), *racks("a", "b"), *singles("a0", "a1"), *equals)
    tree = [a_group("hi", gang=2, composite=True)]
    for leaf in ("left", "right"):
        tree.append(a_group(leaf, gang=2, parent="hi", topo=RACK))
        tree += [a_pod(f"{leaf}-{n}", leaf, requests=ONE) for n in range(2)]
    await story.create(*of_class(tree, "high"))
    words = f"evicting every lower-priority unit (2) yields 1 of 2 child groups, each in one {RACK}"

    async def group_has_words() -> bool:
        mine = await conditions(story, "compositepodgroups", "hi")
        condition = mine.get("CompositePodGroupInitiallyScheduled", {})
        return condition.get("status") == "False" and words in condition.get("message", "")

    await story.until(group_has_words)
    described = await story.kubectl("describe", f"compositepodgroups.{OURS}", "hi")
    assert words in " ".join(described.split())
    printed = await explain(story, "hi")
    assert words in printed
    assert "unschedulable" in printed

    async def on_the_pod() -> bool:
        return any(words in line for line in await story.events_of("left-0"))

    await story.until(on_the_pod, every_s=0.5)
    assert set(await story.bound()) == {"single-a0", "single-a1", "equal-0", "equal-1"}
    assert not await events_of_kind(story, "PreemptionPlanned")


@pytest.mark.full
async def test_describe_names_the_preemptor_of_a_pod(story: Story) -> None:
    """A victim outside all groups: DisruptionTarget, and an Event with the preemptor's name and both priorities."""
    low = singles("a0")
    low[0]["metadata"] |= LINGER
    await story.create(*classes(), *racks("a", nodes=1), *low, *preemptor(1))
    expected = (
        f"PodGroup default/hi (priority {HIGH}) needs the capacity of "
        f"Pod/default/single-a0 (priority {LOW})"
    )

    async def description() -> str:
        described = await story.kubectl("describe", "pod", "single-a0")
        return described if expected in described else ""

    described = await story.until(description, every_s=0.5)
    conditions_part, _, events = described.partition("\nEvents:")
    (mark,) = [line for line in conditions_part.splitlines() if "DisruptionTarget" in line]
    assert mark.split() == ["DisruptionTarget", "True"]
    (event,) = [line for line in events.splitlines() if expected in line]
    assert event.split()[:2] == ["Normal", "Preempted"]
    condition = next(
        c
        for c in (await story.pods())["single-a0"]["status"]["conditions"]
        if c["type"] == "DisruptionTarget"
    )
    assert condition["reason"] == "PreemptionByScheduler"
    # what it lost follows where it has run for a minute
    assert condition["message"].partition("; lost: ")[0] == expected
    words = "waits for victims of its preemption: 1 victim to go of Pod default/single-a0"
    assert words in await explain(story, "hi")
    path = "/api/v1/namespaces/default/pods/single-a0"
    await story.api.patch(path, {"metadata": {"finalizers": None}})
    await story.until_bound(1, "hi")


@pytest.mark.full
async def test_describe_names_the_preemptor_of_a_unit(story: Story) -> None:
    """A composite and its groups: DisruptionTarget at every level, with the preemptor's name and both priorities."""
    unit = whole({"left": ["a0"], "right": ["a1"]})
    await story.create(*classes(), *racks("a"), *unit)
    await story.until_bound(2)
    await story.until_event("GangScheduled", "default/unit")
    await story.create(*preemptor(topo=RACK))
    await story.until_bound(2, "hi")
    expected = (
        f"PodGroup default/hi (priority {HIGH}) needs the capacity of "
        f"CompositePodGroup/default/unit (priority {LOW})"
    )
    for kind, name in (
        ("compositepodgroups", "unit"),
        ("podgroups", "left"),
        ("podgroups", "right"),
    ):
        described = await story.kubectl("describe", f"{kind}.{OURS}", name)
        words = " ".join(described.split())
        assert expected in words, described
        assert "Reason: PreemptionByScheduler Status: True Type: DisruptionTarget" in words
