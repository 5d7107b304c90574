"""What the chart renders runs: its Deployment makes pods, kube-scheduler places them, and one binds a gang.

The controllers of Deployments and ReplicaSets are the real ones, kube-scheduler has the file of the rendered ConfigMap, and
the pod runs as tests/e2e/scenarios/container.py has it: with its Secrets, its token, its user, its init container.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from deploy.demo.ports import free_port
from deploy.packaging.manifests import DEPLOY
from extender.cli.certificates.certificate_folder import CertificateFolder
from tests.chart.helm import by_key, render
from tests.controlplane.api import Api
from tests.controlplane.objects import a_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process
from tests.e2e.conftest import sweep
from tests.e2e.scenarios.conftest import real, sweep_groups
from tests.e2e.scenarios.container import SERVICE_PORT, PodProcess, places_to_mount
from tests.support.certificates import client_context, files_of, point_at
from tests.support.logs.postgres import execute, running_postgres
from tests.support.service.manifest_builders import a_gang
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes("1.37", "1.36"),
    pytest.mark.skipif(
        os.getuid() != 0, reason="volumes are mounted in a namespace, which needs root"
    ),
]
NAMESPACE = "/api/v1/namespaces/gang-extender"
SECOND = DEPLOY / "kubernetes" / "second-scheduler"
POOL = "gang-extender.dev/pool"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
HBA = "local all all trust\nhost all all 127.0.0.0/8 scram-sha-256\n"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def database() -> Iterator[dict[str, str]]:
    """The keys of Secret gang-extender-database: a server with the roles of the runbook, by address and password."""
    address = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    with running_postgres(listen_addresses=address, access_rules=HBA) as server:
        asyncio.run(execute(server.url, "CREATE DATABASE gang"))
        url = server.url.replace("/gang_extender?", "/gang?")
        assert url != server.url
        script = (DEPLOY / "postgres" / "roles.sql").read_text()
        logins = {"service": "gx_writer", "migrator": "gx_owner"}
        made = [
            f"CREATE ROLE {name} LOGIN PASSWORD 'word' IN ROLE {role}"
            for name, role in logins.items()
        ]
        asyncio.run(execute(url, script, *made))
        yield {
            "url": f"postgresql://service:word@{address}:5432/gang",
            "migrate-url": f"postgresql://migrator:word@{address}:5432/gang",
        }


@pytest.fixture
def places() -> Iterator[None]:
    """No other worker mounts meanwhile."""
    with places_to_mount():
        yield


def named(kind: str, name: str) -> Object:
    """Return the frame of an object in our namespace."""
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "gang-extender"},
    }


def secret(name: str, data: dict[str, bytes]) -> Object:
    """Return a Secret."""
    return named("Secret", name) | {
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()}
    }


@pytest.fixture
async def cluster(
    site: ControlPlane, database: dict[str, str], certificates: CertificateFolder, places: None
) -> AsyncIterator[Api]:
    """A cluster with the Secrets of the runbook and the controllers of Deployments; afterwards nothing of a release is left."""
    client = {
        "tls.crt": certificates.certificate("client-kube-scheduler").read_bytes(),
        "tls.key": certificates.key("client-kube-scheduler").read_bytes(),
    }
    server = {
        "tls.crt": certificates.certificate("server").read_bytes(),
        "tls.key": certificates.key("server").read_bytes(),
    }
    ca = {"ca.crt": certificates.certificate("ca").read_bytes()}
    secrets = {
        "gang-extender-database": {key: url.encode() for key, url in database.items()},
        "gang-extender-tls": server | ca,
        "gang-extender-scheduler-client": client | ca,
    }
    async with site.api() as api:
        await api.delete(f"{NAMESPACE}/configmaps")
        root_ca = {
            "data": {"ca.crt": site.ca_file.read_text()}
        }  # of a controller that does not run here
        await api.post(f"{NAMESPACE}/configmaps", named("ConfigMap", "kube-root-ca.crt") | root_ca)
        for name, data in secrets.items():
            await api.post(f"{NAMESPACE}/secrets", secret(name, data))
        try:
            site.start_controller_manager(("deployment-controller", "replicaset-controller"))
            yield api
        finally:
            site.stop_controller_manager()
            await api.delete("/apis/apps/v1/namespaces/gang-extender/deployments")
            await api.delete("/apis/apps/v1/namespaces/gang-extender/replicasets")
            await api.delete("/apis/policy/v1/namespaces/gang-extender/poddisruptionbudgets")
            for kind in ("services", "secrets", "configmaps"):
                await api.delete(f"{NAMESPACE}/{kind}")
            await sweep(api)
            await sweep_groups(api)


def applied(site: ControlPlane, folder: Path, *values: str) -> list[Object]:
    """Apply what the chart renders, and return it."""
    things = render(None, *values)
    file = folder / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(things))
    done = site.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert done.returncode == 0, done.stderr
    return things


async def placed(api: Api, name: str) -> Object:
    """Wait until kube-scheduler has placed the pod of a Deployment, and return it."""

    async def look() -> Object | None:
        found = (
            await api.get(f"{NAMESPACE}/pods", labelSelector=f"app.kubernetes.io/name={name}")
        )["items"]
        return next((pod for pod in found if pod["spec"].get("nodeName")), None)

    return await eventually(look)


async def binds_a_gang(api: Api, node: str) -> None:
    """Create a gang, and wait until all of it is bound to a node."""
    for thing in a_gang("g", pods=3, requests={"cpu": 1}):
        await api.create(real(thing))

    async def bound() -> bool:
        pods = (await api.get("/api/v1/namespaces/default/pods"))["items"]
        return len(pods) == 3 and {one["spec"].get("nodeName") for one in pods} == {node}

    await eventually(bound)


async def test_the_rendered_deployment_binds_a_gang(
    cluster: Api, site: ControlPlane, tmp_path: Path, certificates: CertificateFolder
) -> None:
    """Its pod is placed on a control plane node with the extender down, migrates, is ready by its probe, and binds; and ends when it is asked to."""
    verbs, https = free_port(), free_port()
    things = applied(site, tmp_path, "--set", f"ports.verbs={verbs},ports.https={https},replicas=1")
    rendered = by_key(things)
    config = yaml.safe_load(
        rendered["ConfigMap", "gang-extender", "gang-extender-scheduler-config"]["data"][
            "config.yaml"
        ]
    )
    url = f"https://127.0.0.1:{verbs}"
    assert {entry["urlPrefix"] for entry in config["extenders"]} == {f"{url}/scheduler"}
    site.start_scheduler(point_at(config, url, files_of(certificates)))
    try:
        taint = {"key": CONTROL_PLANE, "effect": "NoSchedule"}
        await cluster.create(a_node("control", labels={CONTROL_PLANE: ""}, taints=[taint]))
        await cluster.create(a_node("worker"))
        pod = await placed(cluster, "gang-extender")
        assert pod["spec"]["nodeName"] == "control"
        async with playing(site, cluster, pod, tmp_path) as process:
            probe = pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]
            await until_ready(process, f"https://127.0.0.1:{https}{probe['path']}", certificates)
            await binds_a_gang(cluster, "worker")
    finally:
        site.stop_scheduler()


@pytest.mark.full
async def test_the_rendered_second_scheduler_binds_a_gang(
    cluster: Api, site: ControlPlane, tmp_path: Path, certificates: CertificateFolder
) -> None:
    """Both Deployments are placed by the default kube-scheduler, outside of the pool; theirs is a pod with its own token, rights and certificate."""
    verbs, https = free_port(), free_port()
    ports = f"ports.verbs={verbs},ports.https={https}"
    values = f"scheduler.form=second-scheduler,{ports},replicas=1,secondScheduler.replicas=1"
    applied(site, tmp_path, "--set", values)
    site.start_scheduler({}, name="default")
    try:
        pool = {"key": POOL, "value": "gangs", "effect": "NoSchedule"}
        await cluster.create(a_node("system"))
        await cluster.create(a_node("pool", labels={POOL: "gangs"}, taints=[pool]))
        extender, scheduler = (
            await placed(cluster, "gang-extender"),
            await placed(cluster, "gang-scheduler"),
        )
        assert {one["spec"]["nodeName"] for one in (extender, scheduler)} == {"system"}
        async with (
            playing(site, cluster, extender, tmp_path / "extender") as process,
            playing(site, cluster, scheduler, tmp_path / "scheduler", verbs),
        ):
            await until_ready(process, f"https://127.0.0.1:{https}/readyz", certificates)
            await binds_a_gang(cluster, "pool")
    finally:
        site.stop_scheduler("default")
        files = [
            str(SECOND / f"{name}.yaml") for name in ("scheduler", "pool-policy", "network-policy")
        ]
        flags = [part for file in files for part in ("-f", file)]
        deleted = site.kubectl("delete", "--ignore-not-found", "--wait=false", *flags)
        assert deleted.returncode == 0, deleted.stderr


@asynccontextmanager
async def playing(
    site: ControlPlane, api: Api, pod: Object, folder: Path, target_port: int = SERVICE_PORT
) -> AsyncIterator[Process]:
    """Run a pod: its init containers, then its container, which ends by itself at SIGTERM."""
    player = PodProcess(site, api, pod, folder, target_port)
    await player.mount()
    try:
        await player.run_init_containers()
        process = await player.start()
        try:
            yield process
        finally:
            process.stop()
        assert process.exit_code == 0, process.tail()
    finally:
        player.unmount()


async def until_ready(process: Process, url: str, certificates: CertificateFolder) -> None:
    """Ask as the readiness probe does, until it is content."""
    tls = client_context(certificates, None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:

        async def ready() -> bool:
            assert process.running, process.tail()
            try:
                async with session.get(url) as reply:
                    return reply.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(ready)
