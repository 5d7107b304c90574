"""docs/how-to/install.md, command by command, from a control plane with nothing of ours to the first gang that is bound.

The cluster is one of PostgreSQL, kube-apiserver, kube-scheduler and the controllers of Deployments and Jobs. There is no kubelet, so the
pod of the extender is played (tests/e2e/scenarios/container.py), and a restart of kube-scheduler is done here.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml
from sqlalchemy import make_url

from deploy.demo.ports import free_port
from extender.cli.certificates.certificate_folder import CertificateFolder
from extender.store.connections import plain_url
from extender.store.embedded.os_account import find_binaries
from tests.controlplane.api import Api
from tests.controlplane.objects import a_node
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import NEWEST, require_programs
from tests.e2e.scenarios.container import places_to_mount
from tests.e2e.scenarios.test_chart_runs import CONTROL_PLANE, HBA, placed, playing, until_ready
from tests.e2e.test_runbook import SUPERUSER, make_external
from tests.support.logs.postgres import run, running_postgres
from tests.support.page_commands import ROOT, blocks, commands

PAGE = "docs/how-to/install.md"
ROLLOUT = "kubectl -n gang-extender rollout status deployment/gang-extender"  # waits for a kubelet
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.getuid() != 0, reason="volumes are mounted in a namespace, which needs root"
    ),
]


class Newcomer:
    """Follows the page in a copy of `deploy`, in which only the ports are others."""

    def __init__(self, plane: ControlPlane, folder: Path, database: str, socket: str) -> None:
        """Copy what the commands name.

        Args:
            plane: The control plane.
            folder: For the copy, the certificates and the files of a node.
            database: Address of the PostgreSQL server.
            socket: Folder of its socket, for psql.
        """
        self.verbs, self.https = free_port(), free_port()
        self.folder, self.node = folder / "checkout", folder / "node"
        self.database = database
        programs = folder / "bin"
        programs.mkdir()
        self.folder.mkdir()
        (programs / "kubectl").symlink_to(plane.binaries / "kubectl")
        (programs / "gang-extender").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m extender "$@"\n', encoding="utf-8"
        )
        (programs / "gang-extender").chmod(0o755)
        for name in ("kubernetes", "kustomize", "postgres"):
            shutil.copytree(ROOT / "deploy" / name, self.folder / "deploy" / name)
        for name in ("kubernetes/deployment.yaml", "kustomize/overlays/marker/config.yaml"):
            file = self.folder / "deploy" / name
            text = file.read_text(encoding="utf-8")
            text = text.replace("8888", str(self.verbs)).replace("8443", str(self.https))
            file.write_text(text, encoding="utf-8")
        self.environment = {
            "PATH": f"{programs}:{find_binaries().folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "KUBECONFIG": str(plane.kubeconfig()),
            "PGHOST": socket,
            "PGUSER": SUPERUSER,
        }

    async def run(self, block: str) -> str:
        """Run a block in one shell; return what it printed."""
        script = block.replace("@HOST:5432", f"@{self.database}:5432").replace(
            "/etc/kubernetes/gang-extender", str(self.node)
        )
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script), cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[tuple[Newcomer, ControlPlane]]:
    """A control plane and a server with an empty database, which nothing has touched."""
    require_programs(NEWEST)
    address = f"127.80.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    with (
        places_to_mount(),
        running_postgres(listen_addresses=address, access_rules=HBA) as server,
        ControlPlane(NEWEST, tmp_path / "plane") as plane,
    ):
        run(make_external(server.url))
        socket = str(make_url(plain_url(server.url)).query["host"])
        yield Newcomer(plane, tmp_path, address, socket), plane


@pytest.fixture
async def api(newcomer: tuple[Newcomer, ControlPlane]) -> AsyncIterator[Api]:
    """Nodes, and the parts of a cluster that are there before us."""
    _, plane = newcomer
    plane.start_controller_manager(
        ("deployment-controller", "replicaset-controller", "job-controller")
    )
    plane.start_scheduler({})
    async with plane.api() as client:
        taint = {"key": CONTROL_PLANE, "effect": "NoSchedule"}
        await client.create(a_node("control", labels={CONTROL_PLANE: ""}, taints=[taint]))
        await client.create(a_node("worker"))
        root_ca = {
            "data": {"ca.crt": plane.ca_file.read_text()}
        }  # of a controller that does not run here
        yield client, root_ca


async def test_from_nothing_to_a_bound_gang(newcomer, api, tmp_path: Path) -> None:
    """And how long it takes, without the pull of an image and without a kubelet."""
    (follower, plane), (client, root_ca) = newcomer, api
    (secrets,) = blocks(PAGE, "1. Database, certificates, Secrets")
    (extender,) = blocks(PAGE, "2. The extender")
    (scheduler,) = blocks(PAGE, "3. kube-scheduler")
    (gang,) = blocks(PAGE, "4. The first gang")
    began_s = time.monotonic()
    took: dict[str, float] = {}

    def note(step: str) -> None:
        took[step] = time.monotonic() - began_s - sum(took.values())

    async with AsyncExitStack() as stack:
        await follower.run(secrets)
        note("database, certificates, Secrets")
        frame = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt", "namespace": "gang-extender"},
        }
        await client.post("/api/v1/namespaces/gang-extender/configmaps", frame | root_ca)
        apply, rollout = commands(extender)
        assert rollout == ROLLOUT
        await follower.run(apply)
        pod = await placed(client, "gang-extender")
        assert pod["spec"]["nodeName"] == "control"
        process = await stack.enter_async_context(playing(plane, client, pod, tmp_path / "pod"))
        certificates = CertificateFolder(follower.folder / "pki")
        await until_ready(process, f"https://127.0.0.1:{follower.https}/readyz", certificates)
        note("the extender")
        await follower.run(scheduler)
        plane.stop_scheduler()
        text = (follower.node / "scheduler-config.yaml").read_text(encoding="utf-8")
        config = yaml.safe_load(text.replace("/etc/kubernetes/gang-extender", str(follower.node)))
        plane.start_scheduler(config)
        note("kube-scheduler")
        printed = await follower.run(gang)
        note("the gang")
        pods = (await client.get("/api/v1/namespaces/default/pods"))["items"]
        assert [one["spec"]["nodeName"] for one in pods] == ["worker"] * 3
    print(
        {step: round(seconds, 1) for step, seconds in took.items()}, f"{sum(took.values()):.0f} s"
    )
    (shown,) = blocks(PAGE, "4. The first gang", "text")
    lines = printed.splitlines()[-len(shown.splitlines()) :]
    varies = re.compile(r"first-\w{5}\b|\b\d+s\b")
    assert [varies.sub("N", line) for line in lines] == [
        varies.sub("N", line) for line in shown.splitlines()
    ]
