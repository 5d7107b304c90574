"""deploy/kubernetes/second-scheduler, for control planes whose kube-scheduler takes no extender.

Its programs run natively, with the file of its ConfigMap and as its ServiceAccount, so under exactly its rights;
the default kube-scheduler, which knows nothing of us, runs beside it on the same API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.controlplane.api import ApiError
from tests.controlplane.objects import path_of
from tests.controlplane.processes import Process
from tests.e2e.scenarios.conftest import DEPLOY, Story, member, real
from tests.e2e.scenarios.test_ordinary_pods import CPU, GPU, of_daemonset, ordinary, refused
from tests.support.certificates import files_of, point_at
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
FOLDER = DEPLOY / "second-scheduler"
FILES = ("scheduler", "pool-policy", "network-policy")
POOL = "gang-extender.dev/pool"
TAINT = {"key": POOL, "value": "gangs", "effect": "NoSchedule"}
TOLERATION = {"key": POOL, "operator": "Exists"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces"


def config_of(story: Story) -> dict[str, Any]:
    """Return the configuration in the ConfigMap, pointed at the proxy of a story."""
    documents = yaml.safe_load_all((FOLDER / "scheduler.yaml").read_text())
    text = next(d for d in documents if d["kind"] == "ConfigMap")["data"]["config.yaml"]
    shipped = yaml.safe_load(text)
    assert story.service.certificates is not None
    files = files_of(story.service.certificates)
    return point_at(shipped, story.verbs.url, files) | {"leaderElection": shipped["leaderElection"]}


def start(story: Story, name: str) -> Process:
    """Start a replica of it as its ServiceAccount; who asks for its metrics is looked up, as in a pod."""
    kubeconfig = story.plane.kubeconfig("gang-scheduler")
    return story.plane.start_scheduler(
        config_of(story),
        name=name,
        user="gang-scheduler",
        flags=(
            "--authentication-skip-lookup=false",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        ),
        wait=False,
    )


def in_pool(name: str) -> dict[str, Any]:
    node = a_node(name, {POOL: "gangs"}, gpu=8)
    return {**node, "spec": {"taints": [TAINT]}}


async def holder(story: Story, namespace: str, lease: str) -> str:
    """Return the holder of a lease, or an empty string."""
    try:
        found = await story.api.get(f"{LEASES}/{namespace}/leases/{lease}")
    except ApiError:
        return ""
    return str(found["spec"].get("holderIdentity") or "")


@pytest.fixture
async def pool(story: Story) -> AsyncIterator[list[Process]]:
    """Both schedulers and the policies; the members' profile is the second one's alone."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    for lease in (f"{LEASES}/gang-extender/leases", f"{LEASES}/kube-system/leases"):
        await story.api.delete(lease)
    for name in FILES:
        await story.kubectl("apply", "--server-side", "-f", str(FOLDER / f"{name}.yaml"))

    async def effective() -> bool:
        made = await story.api.post(path_of(probe), probe, dryRun="All")
        if not made["spec"].get("nodeSelector"):
            return False
        try:
            await story.api.post(path_of(outsider), outsider, dryRun="All")
        except ApiError as error:
            return error.status == 422
        return False

    probe, outsider = (
        member("probe", "g"),
        real(ordinary("outsider", CPU, tolerations=[TOLERATION])),
    )
    started = [start(story, "second")]
    elected = {"leaderElection": {"leaderElect": True}}
    started.append(story.plane.start_scheduler(elected, name="default", wait=False))
    try:
        for name in ("second", "default"):
            await asyncio.to_thread(story.plane.wait_for_scheduler, name)
        await story.until(effective)
        yield started
    finally:
        for name in ("second", "second-replica", "default"):
            await asyncio.to_thread(story.plane.stop_scheduler, name)
        for name in FILES:
            await story.kubectl("delete", "--ignore-not-found", "-f", str(FOLDER / f"{name}.yaml"))


async def test_gangs_go_to_the_pool_and_ordinary_pods_stay_out(
    story: Story, pool: list[Process]
) -> None:
    """Each scheduler leads by its own lease and places its own pods; a DaemonSet reaches both kinds of nodes."""
    await story.create(in_pool("p0"), in_pool("p1"), a_node("o0", gpu=8))
    await story.create(ordinary("solo", GPU), *a_gang("g", pods=2, requests=GPU))
    assert set((await story.until_bound(2, "g-")).values()) == {"p0", "p1"}
    assert await story.until_bound(1, "solo") == {"solo": "o0"}
    await story.until_event("GangScheduled", "default/g")
    # The pool is empty again, and still no other pod gets in; nor do gangs get out.
    await story.create(in_pool("p2"), ordinary("crowd", GPU))
    assert "untolerated taint" in (await refused(story, "crowd"))["crowd"]
    await story.create(a_node("o1", gpu=8), *a_gang("h", pods=2, requests=GPU))
    assert await story.until_bound(1, "crowd") == {"crowd": "o1"}
    await story.until_event("GangUnschedulable", "default/h", outcome="impossible")
    await story.create(of_daemonset("driver", "p2", CPU))
    assert "untolerated taint" in (await refused(story, "driver"))["driver"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1"}
    agent = of_daemonset("agent", "p2", CPU)
    agent["metadata"] |= {"ownerReferences": [owner]}
    agent["spec"]["tolerations"].append(TOLERATION)
    await story.create(agent, in_pool("p3"))
    assert await story.until_bound(1, "agent") == {"agent": "p2"}
    assert set((await story.until_bound(2, "h-")).values()) == {"p2", "p3"}
    own, other = (
        await holder(story, "gang-extender", "gang-scheduler"),
        await holder(story, "kube-system", "kube-scheduler"),
    )
    assert own
    assert other
    assert own != other
    log_text = pool[0].log.read_text()
    assert "forbidden" not in log_text, [x for x in log_text.splitlines() if "forbidden" in x][:5]
    await story.api.delete("/api/v1/namespaces/default/pods/driver", {"gracePeriodSeconds": 0})
    await the_rest_fits(story)


async def the_rest_fits(story: Story) -> None:
    """The patch makes the extender an ordinary pod; the account has its lease and no other rights of ours."""
    await story.kubectl("apply", "--server-side", "-f", str(DEPLOY / "deployment.yaml"))
    patch = f"--patch-file={FOLDER / 'extender-patch.yaml'}"
    await story.kubectl(
        "-n", "gang-extender", "patch", "deployment", "gang-extender", "--type=json", patch
    )
    path = "/apis/apps/v1/namespaces/gang-extender/deployments/gang-extender"
    spec = (await story.api.get(path))["spec"]["template"]["spec"]
    assert not spec.get("hostNetwork")
    assert not spec.get("nodeSelector")
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert [port["name"] for port in spec["containers"][0]["ports"]] == ["verbs", "https"]
    assert not any("hostPort" in port for port in spec["containers"][0]["ports"])
    await story.kubectl("delete", "-f", str(DEPLOY / "deployment.yaml"))
    account = "--as=system:serviceaccount:gang-extender:gang-scheduler"
    for verb, what, answer in (
        ("update", "leases/gang-scheduler", "yes"),
        ("delete", "leases/gang-scheduler", "no"),
        ("update", "leases/gang-extender", "no"),
        ("get", "secrets", "no"),
        ("patch", "podgroups.gang-extender.dev", "no"),
    ):
        done = await asyncio.to_thread(
            story.plane.kubectl, "auth", "can-i", verb, what, "-n", "gang-extender", account
        )
        assert done.stdout.strip() == answer, (verb, what, done)


@pytest.mark.long
async def test_another_replica_of_it_takes_over(story: Story, pool: list[Process]) -> None:
    """Killed in the middle of a gang: the next one has the lease, and the gang is placed whole."""
    start(story, "second-replica")
    await asyncio.to_thread(story.plane.wait_for_scheduler, "second-replica")
    first = await eventually(lambda: holder(story, "gang-extender", "gang-scheduler"))
    await story.create(in_pool("p0"), in_pool("p1"))
    pool[0].kill()
    await story.create(*a_gang("g", pods=2, requests=GPU))
    assert set((await story.until_bound(2, "g-")).values()) == {"p0", "p1"}
    assert await holder(story, "gang-extender", "gang-scheduler") != first
