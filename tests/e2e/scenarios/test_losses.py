"""What others do to bound members is in the answers: drains, taints, nodes that are gone, kube-scheduler's own preemption.

The controllers that do it are those of kube-controller-manager; the kubelet is the fixture's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from tests.controlplane.kubelet import Kubelet
from tests.controlplane.plane import ControlPlane
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import ROOT
from tests.e2e.scenarios.test_preemption import classes, of_class
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_node, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
WHOLE_NODE = {GPU: 8}


@pytest.fixture
def controllers(site: ControlPlane) -> Iterator[None]:
    """Taints evict, and pods of nodes that are gone are deleted; started here, in the main thread."""
    # The first keeps the index by node that the second looks pods up in.
    site.start_controller_manager(
        ("daemonset-controller", "taint-eviction-controller", "pod-garbage-collector-controller")
    )
    yield
    site.stop_controller_manager()


async def losses_printed(database_url: str, gang: str) -> dict[str, tuple[str, str, str]]:
    """Return pod -> cause, who and why of its losses, as `gang-extender history --decisions` prints them."""
    command = [sys.executable, "-m", "extender", "history", f"default/{gang}", "--decisions"]
    command += ["-o", "json", "--database-url", database_url]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    lines = msgspec.json.decode(done.stdout)
    return {
        line["data"]["pod"].partition("/")[2]: (
            line["data"]["cause"],
            line["caused_by"],
            line["reason"],
        )
        for line in lines
        if line["type"] == "MemberTerminated"
    }


async def test_history_names_the_cause_of_a_lost_member(
    story: Story, controllers: None, database_url: str
) -> None:
    """Drained, tainted away, its node deleted, preempted by kube-scheduler: four causes, none of them ours."""
    nodes = ("drained", "tainted", "deleted", "wanted")
    await story.create(
        *classes(), *(a_node(name, {RACK: "a", "only": name}, gpu=8) for name in nodes)
    )
    await story.create(*of_class(a_gang("g", pods=4, requests=WHOLE_NODE), "low"))
    async with Kubelet(story.api, grace_factor=0.0):
        on = {node: pod for pod, node in (await story.until_bound(4, "g-")).items()}
        assert set(on) == set(nodes)
        await story.until_event("GangScheduled")

        selector = "--pod-selector=gang-extender.dev/pod-group=g"
        await story.kubectl("drain", "drained", "--force", selector, "--timeout=600s")
        await story.kubectl("taint", "node", "tainted", "broken=yes:NoExecute")
        await story.kubectl("delete", "node", "deleted")
        # An ordinary pod of higher priority that fits nowhere else; the profile of ordinary pods preempts by itself.
        await story.create(
            *of_class([a_pod("boss", requests=WHOLE_NODE, nodeSelector={"only": "wanted"})], "high")
        )
        for node in nodes:
            await story.until_event("MemberTerminated", pod=f"default/{on[node]}")

        async def boss_runs() -> bool:
            return (await story.bound()).get("boss") == "wanted"

        await story.until(boss_runs)
        (gang,) = await story.service.get("/v1/gangs")
        assert (gang["minimum_present"], gang["minimum_needed"]) == (0, 4)
        last = gang["last_loss"]["cause"]
        assert gang["state"] == ("preempted" if last == "preempted" else "degraded")
        assert gang["last_loss"]["pod"] in gang["reasons"][0]
    lost = await losses_printed(database_url, "g")
    losses = {node: lost[on[node]] for node in nodes}
    assert {node: cause for node, (cause, _, _) in losses.items()} == {
        "drained": "evicted",
        "tainted": "evicted",
        "deleted": "node-lost",
        "wanted": "preempted",
    }
    assert losses["wanted"][1] == "kube-scheduler"
    assert losses["deleted"][1:] == ("the cluster", "its node is gone")
    assert (
        losses["drained"][1] == losses["tainted"][1] == "a caller of the Eviction API, or the node"
    )
    assert not await story.service.events("PreemptionPlanned")
    rows = (await story.service.get("/v1/reports/terminations"))["rows"]
    assert {row["cause"] for row in rows} == {"evicted", "node-lost", "preempted"}
    await story.check_events()
