"""`--context`: the command line finds the service in a real cluster, through a real kubectl and kube-apiserver.

No kubelet runs, so a program of the tests (tests/controlplane/portforward) plays the endpoint of a kubelet that
forwards ports. The pod of the Service stands for the process of `serve` that runs on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.ports import free_port
from tests.controlplane.build import build_portforward
from tests.controlplane.objects import a_node, a_pod
from tests.controlplane.processes import Process
from tests.e2e.scenarios.conftest import DEPLOY, Story
from tests.e2e.scenarios.service import ROOT
from tests.support.service.manifest_builders import a_gang
from tests.support.waiting import eventually, patient

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
NAMESPACE = "gang-extender"
POD = f"/api/v1/namespaces/{NAMESPACE}/pods/replica"
# The rights that docs/api.md names.
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: gang-extender}
rules:
  - {apiGroups: [""], resources: [services], verbs: [get]}
  - {apiGroups: [""], resources: [pods], verbs: [get, list]}
  - {apiGroups: [""], resources: [pods/portforward], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: gang-extender}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: developer}]
"""


class Reader:
    """A user with kubectl, a kubeconfig, and the command line."""

    def __init__(self, story: Story, folder: Path) -> None:
        self.story = story
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        self.environ |= {
            "PATH": f"{story.plane.binaries}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECACHEDIR": str(folder / "cache"),
        }

    def command(self, *words: str, user: str = "developer") -> list[str]:
        """Return a command of this user in the context of the cluster."""
        where = ["--context", "test", "--kubeconfig", str(self.story.plane.kubeconfig(user))]
        return [sys.executable, "-m", "extender", *words, *where]

    async def run(self, *words: str, user: str = "developer") -> subprocess.CompletedProcess[str]:
        """Run it to its end; the proxies and the service work on meanwhile."""
        return await asyncio.to_thread(
            subprocess.run,
            self.command(*words, user=user),
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )

    async def apply(self, text: str) -> None:
        """Apply manifests as system:masters."""
        done = await asyncio.to_thread(
            self.story.plane.kubectl, "apply", "--server-side", "-f", "-", stdin=text
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
async def reader(story: Story, tmp_path: Path) -> AsyncIterator[Reader]:
    """A user of a cluster that has the Service of deploy/ with one running pod, and one node with a gang."""
    port = int(story.service.url.rpartition(":")[2])
    kubelet_port = free_port()
    command = [str(build_portforward()), f"127.0.0.1:{kubelet_port}"]
    kubelet = Process("portforward", command, tmp_path / "portforward.log")
    kubelet.start()
    made = Reader(story, tmp_path)
    await story.create(a_node("n1"))
    endpoint = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    await story.api.patch("/api/v1/nodes/n1/status", {"status": endpoint})
    pod = a_pod("replica", namespace=NAMESPACE, requests={}, nodeName="n1",
                metadata={"labels": {"app.kubernetes.io/name": "gang-extender"}})  # fmt: skip
    pod["spec"]["containers"][0]["ports"] = [{"name": "https", "containerPort": port}]
    await story.api.create(pod)
    await runs(story)
    await made.apply((DEPLOY / "service.yaml").read_text())
    await made.apply(ROLE)
    try:
        yield made
    finally:
        kubelet.stop()
        for path in (
            f"/api/v1/namespaces/{NAMESPACE}/services",
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/reader",
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/reader",
        ):
            await story.api.delete(path)


async def runs(story: Story, phase: str = "Running") -> None:
    """Set the phase of the pod, as its kubelet would."""
    ready = {"type": "Ready", "status": str(phase == "Running")}
    await story.api.patch(f"{POD}/status", {"status": {"phase": phase, "conditions": [ready]}})


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_readers_find_the_service_with_the_rights_of_the_docs(reader: Reader) -> None:
    """gangs, explain and plan, as a user who may only forward ports of that namespace; kubectl is gone afterwards."""
    await reader.story.create(*a_gang("g", pods=2, requests={"cpu": 1}))
    await reader.story.until_bound(2, "g")
    await reader.story.until_event("GangScheduled")  # the log has both
    listed = await reader.run("gangs", "-o", "json")
    assert (listed.returncode, listed.stderr) == (0, "")
    (gang,) = json.loads(listed.stdout)
    assert (gang["gang"], gang["bound"]) == ("default/g", 2)
    explained = await reader.run("explain", "default/g")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout.startswith("PodGroup default/g ")
    file = Path(reader.environ["HOME"]) / "next.yaml"
    file.write_text(yaml.safe_dump_all(a_gang("next", pods=2, requests={"cpu": 1})))
    planned = await reader.run("plan", "-f", str(file))
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "PodGroup default/next: placed" in planned.stdout
    assert forwarding(reader) == []


@pytest.mark.full
async def test_kubectl_completes_names_of_the_cluster(reader: Reader) -> None:
    """`kubectl gang explain <Tab>` lists groups by kubectl, without a forwarded port; without the right there are none."""
    await reader.story.create(*a_gang("g", pods=2, requests={"cpu": 1}))
    await reader.story.until_bound(2, "g")

    async def completed(user: str) -> list[str]:
        words = reader.command("explain", user=user)
        words[words.index("extender")] = "extender.cli.completion.kubectl_completion"
        done = await asyncio.to_thread(
            subprocess.run,
            [*words, ""], cwd=ROOT, env=reader.environ, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.splitlines()

    assert await completed("admin") == ["g\tPodGroup", ":4"]
    assert await completed("scheduler") == [":4"]
    assert forwarding(reader) == []


async def test_each_fault_has_its_own_sentence(reader: Reader) -> None:
    """No right, no pod that runs, no such Service, another name, two of them; each in one sentence."""

    async def refused(user: str) -> str:
        done = await reader.run("gangs", user=user)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    text = await refused("scheduler")
    assert 'cannot create resource "pods/portforward"' in text
    await runs(reader.story, "Pending")
    text = await refused("developer")
    assert "Service gang-extender/gang-extender in context test" in text
    assert "pod is not running" in text
    await runs(reader.story)
    service = yaml.safe_load((DEPLOY / "service.yaml").read_text())
    path = f"/api/v1/namespaces/{NAMESPACE}/services/gang-extender"
    await reader.story.api.delete(path)
    text = await refused("developer")
    assert "those of other namespaces cannot be listed" in text
    text = await refused("admin")
    assert "no Service of another one has the label app.kubernetes.io/name=gang-extender" in text
    service["metadata"]["name"] = "answers"
    await reader.apply(yaml.safe_dump(service))
    done = await reader.run("gangs", "-o", "json", user="admin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    service["metadata"]["name"] = "replies"
    await reader.apply(yaml.safe_dump(service))
    text = await refused("admin")
    assert "the Services gang-extender/answers, gang-extender/replies have the label" in text


@pytest.mark.full
async def test_a_follower_goes_on_when_the_port_is_lost(reader: Reader) -> None:
    """kubectl is killed under it: the next one forwards the same port, and no event is missing or repeated."""
    story = reader.story
    process = await asyncio.create_subprocess_exec(
        *reader.command("events", "--follow", "-o", "json", "--after", "0"),
        cwd=ROOT,
        env=reader.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    seen: list[dict[str, Any]] = []

    async def follow_to(kind: str, gang: str) -> None:
        async with patient(f"{kind} of {gang} is followed"):
            while not any(one["type"] == kind and one["gang"] == gang for one in seen):
                seen.append(json.loads(await process.stdout.readline()))

    try:
        await story.create(*a_gang("first", pods=1, requests={"cpu": 1}))
        await follow_to("GangScheduled", "default/first")
        (pid,) = forwarding(reader)
        os.kill(pid, signal.SIGKILL)
        await story.create(*a_gang("second", pods=1, requests={"cpu": 1}))
        await follow_to("GangScheduled", "default/second")
        (again,) = forwarding(reader)
        assert again != pid
        process.send_signal(signal.SIGINT)
        lines = (await process.stderr.read()).decode().splitlines()
        assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert [one["position"] for one in seen] == list(range(1, len(seen) + 1))
    assert lines[0].endswith("trying again")
    assert lines[-1].startswith("gang-extender: connected to https://127.0.0.1:")

    async def ended() -> bool:
        return forwarding(reader) == []

    await eventually(ended)


def forwarding(reader: Reader) -> list[int]:
    """Return the processes of kubectl that forward a port for this user."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environ = (folder / "environ").read_bytes()
            mine = f"HOME={reader.environ['HOME']}\0".encode() in environ
            if b"port-forward" in words and mine:
                found.append(int(folder.name))
    return found
