"""The test stand: one control plane and one Postgres, kept for a whole benchmark; sides come and go.

Everything runs as a user would run it: the shipped RBAC, flow schema and admission policy are applied,
API priority and fairness is on, Postgres is durable, and no client is system:masters while a clock runs.
Servers are started from the main thread (reason: tests/controlplane/processes.py), so the stand is
entered outside of the event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from deploy.demo.ports import free_port
from extender.control.monitors.log_verifier import FIRST_AFTER_S
from extender.store import schema_migration
from tests.bench.filter_times import FilterTimes, filter_times
from tests.bench.sides import BUILT_IN, NAMESPACE, OUR_VERSION, OURS, RACK, ZONE, Side
from tests.bench.weight import Weight, children
from tests.controlplane.api import PATCH_TYPES, Api, ApiError, Object
from tests.controlplane.build import build_ours
from tests.controlplane.objects import a_namespace, a_node
from tests.controlplane.plane import SHIPPED_MANIFESTS, ControlPlane, token_of
from tests.controlplane.processes import Process
from tests.e2e.scenarios.service import ROOT, NotAnswered, Service
from tests.support.logs.postgres import database_of, execute, running
from tests.support.service.manifest_builders import SLOT
from tests.support.waiting import PATIENCE_S, eventually

TEMPLATE = "bench_template"
NODES_PER_RACK, RACKS_PER_ZONE = 20, 5
SWEEP_FLAGS = ("--delete-collection-workers=4",)  # between runs all pods are deleted
WARM_S = 3.0  # from the start of its last process to the end of its imports
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The load comes from a user of its own, which API priority and fairness treats as any other.
LOADER = "developer"
ECHO = Path(__file__).parent / "echo"
OTHERS = "others on this machine"
TRIES = 10  # of a request that is not answered, or of a watch
PAUSE_S = 1.0  # before the next try


class Loader(Api):
    """A client that sends a request again after a 429, as every client should, and when its answer did not come.

    What was not answered may have been carried out. Then a second DELETE finds nothing, a patch that is not a JSON patch or
    a PUT of the same content changes nothing, and what a POST creates is looked up before it is sent again.
    """

    again = frozenset({"GET", "DELETE", "POST", "PUT", "PATCH"})

    async def _call(self, method: str, path: str, **rest: Any) -> Object:
        number = 0
        while True:
            number += 1
            try:
                return await super()._call(method, path, **rest)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                unanswered = is_unanswered(error)
                repeats = rest.get("content") != PATCH_TYPES["json"] and number < TRIES
                if not (repeats if unanswered else number > 1):
                    raise
                if unanswered:
                    print(f"  sent again: {method} {path}: {error!r}", flush=True)
                    await asyncio.sleep(PAUSE_S)
                elif method == "DELETE" and getattr(error, "status", 0) == HTTPStatus.NOT_FOUND:
                    return {}
                if method == "POST" and (stored := await self._stored(path, **rest)) is not None:
                    return stored
                if not unanswered:
                    raise

    async def _stored(
        self, path: str, body: Mapping[str, Any], query: Mapping[str, str]
    ) -> Object | None:
        """Return what a POST has created, also the pod of a Binding; None: nothing."""
        if "dryRun" in query:
            return None
        owner, _, last = path.rpartition("/")
        if last == "binding":
            pod = await self.get(owner)
            return pod if pod["spec"].get("nodeName") == body["target"]["name"] else None
        try:
            return await self.get(f"{path}/{body['metadata']['name']}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None


class RepeatedQuestions(Service):
    """The service, whose read API and /metrics are asked again after a 503: its query process, or the database, was too slow."""

    async def _get(self, path: str) -> tuple[Any, int]:
        return await _repeated(partial(super()._get, path))

    async def metrics(self) -> str:
        return await _repeated(super().metrics)


async def _repeated(ask: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(TRIES - 1):
        try:
            return await ask()
        except NotAnswered as error:
            print(f"  asked again: {error}", flush=True)
            await asyncio.sleep(PAUSE_S)
    return await ask()


def is_unanswered(error: Exception) -> bool:
    """Return whether an error leaves open what became of a request: a lost connection, or a time that was over."""
    if not isinstance(error, ApiError):
        return isinstance(error, aiohttp.ClientError | TimeoutError)
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:  # that of etcd
        return "timed out" in str(error)
    return error.status == HTTPStatus.GATEWAY_TIMEOUT


def describe_qps(qps: tuple[int, int] | None) -> str:
    """Return the rate limit of kube-scheduler's client as text: calls per second and burst; None: its default."""
    return "QPS 50/100 (default)" if qps is None else f"QPS {qps[0]:,}/{qps[1]:,}"


class Stand:
    """Postgres, etcd and kube-apiserver; then per run a side's kube-scheduler and, if it is ours, the service."""

    def __init__(self, minor: str = "1.37") -> None:
        self.minor = minor
        self.service: Service | None = None
        self._has_metrics = False  # what runs in the place of the service has none
        self._warm_s = 0.0  # when all processes of the service have started
        self.echo: Process | None = None
        self._url = ""  # of the service, or of the extender in its place
        self._stack = ExitStack()
        self._numbers = count(1)
        self._fleet = 0
        self._capacity: dict[str, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="gxb-"))
            folder.chmod(0o755)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "pg").mkdir(mode=0o755)
            self.folder = folder
            stack.enter_context(Weight())
            self.postgres = stack.enter_context(running(folder / "pg"))
            self.plane = stack.enter_context(
                ControlPlane(self.minor, folder / "plane", flags=SWEEP_FLAGS)
            )
            for name in SHIPPED_MANIFESTS:
                file = ROOT / "deploy" / "kubernetes" / f"{name}.yaml"
                self._apply(file)
            asyncio.run(self._set_up())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.service is not None:
            self.service.stop()
        if self.echo is not None:
            self.echo.stop()
        self._stack.close()

    def loader(self) -> Loader:
        """Make a client of the user who creates the load and looks on."""
        return self._client(LOADER)

    def writer(self) -> Loader:
        """Make a client with the account of the service: the shipped policies let no other one remove its gate."""
        return self._client("extender")

    def _client(self, user: str) -> Loader:
        return Loader(self.plane.url, token_of(user), self.plane.ca_file)

    def _apply(self, file: Path) -> None:
        """Apply a manifest; what was carried out before an answer was lost changes nothing the second time."""
        for _ in range(TRIES):
            done = self.plane.kubectl("apply", "--server-side", "-f", str(file))
            if done.returncode == 0:
                return
            time.sleep(PAUSE_S)
        raise RuntimeError(f"{file.name} is not applied: {done.stderr}")

    async def _set_up(self) -> None:
        await execute(self.postgres.url, f'CREATE DATABASE "{TEMPLATE}"')
        await schema_migration.upgrade(database_of(self.postgres.url, TEMPLATE))
        async with self._client("admin") as api:
            await api.create(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRoleBinding",
                    "metadata": {"name": "bench-loader"},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": "cluster-admin",
                    },
                    "subjects": [
                        {
                            "apiGroup": "rbac.authorization.k8s.io",
                            "kind": "User",
                            "name": LOADER,
                        }
                    ],
                }
            )
            for name in sorted(set(NAMESPACE.values())):
                await api.create(a_namespace(name))
            # Who does not use us has no policy of ours: it holds in our namespace only.
            only_ours = {"kubernetes.io/metadata.name": NAMESPACE["ours"]}
            selected = {"matchResources": {"namespaceSelector": {"matchLabels": only_ours}}}
            for kind, name in (
                ("mutatingadmissionpolicybindings", "gang-extender-members"),
                ("validatingadmissionpolicybindings", "gang-extender-group-label"),
                ("validatingadmissionpolicybindings", "gang-extender-held"),
            ):
                path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{name}"
                await api.patch(path, {"spec": selected})
            await eventually(lambda: self._works(api), "the policies hold our pods")

    async def _works(self, api: Api) -> bool:
        """Return whether the policy holds our pods, and only ours."""
        pod: dict[str, Any] = {
            "metadata": {"name": "probe", "labels": {"gang-extender.dev/pod-group": "g"}},
            "spec": {"containers": [{"name": "main", "image": "registry.invalid/none"}]},
        }
        held = {}
        for namespace in set(NAMESPACE.values()):
            path = f"/api/v1/namespaces/{namespace}/pods"
            try:
                await api.get(f"/apis/{OUR_VERSION}/podgroups")
                made = await api.post(path, pod, dryRun="All")
            except ApiError:
                return False
            held[namespace] = bool(made["spec"].get("schedulingGates"))
        return held == {name: name == NAMESPACE["ours"] for name in held}

    async def fleet(self, size: int, **nodes: str) -> None:
        """Bring the number of nodes to `size`: 20 to a rack, 5 racks to a zone; 8 CPUs and 8 GPUs each.

        `capacity` overrides what each has, such as `cpu="64"`.
        Every fifth node, so four of a rack, has one `SLOT`.
        """
        nodes = {"nvidia.com/gpu": "8"} | nodes
        if (size, nodes) == (self._fleet, self._capacity):
            return
        async with self.loader() as api:
            if size < self._fleet or nodes != self._capacity:
                await api.delete("/api/v1/nodes")
                await eventually(lambda: self._nodes_gone(api), "all nodes are gone")
                self._fleet = 0
            for number in range(self._fleet, size):
                rack = number // NODES_PER_RACK
                labels = {RACK: f"r{rack}", ZONE: f"z{rack // RACKS_PER_ZONE}"}
                slot = {} if number % 5 else {SLOT: "1"}
                await api.create(a_node(f"n{number:05}", labels=labels, **nodes, **slot))
        self._fleet, self._capacity = size, nodes

    async def _nodes_gone(self, api: Api) -> bool:
        return not (await api.get("/api/v1/nodes", limit="1"))["items"]

    async def start_service(self, command: Sequence[str] = OURS.command, **settings: str) -> None:
        """Start the service, or another module in its place, as a ServiceAccount, on an empty database."""
        name = f"bench_{next(self._numbers)}"
        url = self.postgres.url
        await execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"')
        (self.folder / name).mkdir()
        database = database_of(url, name)
        folder = self.folder / name
        self.service = RepeatedQuestions(
            self.plane, folder, database, admin=self.loader, forked=False, command=command, **settings
        )  # fmt: skip
        self._has_metrics = tuple(command) == OURS.command
        await self.service.start()
        last_s = FIRST_AFTER_S if self._has_metrics else 0.0
        self._warm_s = time.monotonic() + last_s + WARM_S

    async def _until_warm(self) -> None:
        """Wait until all processes of the service have started: their imports are a second of CPU, once in its life."""
        if self.service is not None:
            await asyncio.sleep(max(0.0, self._warm_s - time.monotonic()))

    async def start(self, side: Side, qps: tuple[int, int] | None, **settings: str) -> None:
        """Start what a side needs: kube-scheduler, and for ours the service on an empty database.

        Args:
            side: Who.
            qps: `qps` and `burst` of kube-scheduler; None for its default.
            settings: Of the service.
        """
        if side.name == "writes":
            return
        if side.service:
            await self.start_service(side.command, **settings)
        self._url = self.service.url if self.service is not None else ""
        if side.echo:
            self._url = self.start_echo(side.computes_ms)
        self._start_scheduler(side, qps)
        await self._until_warm()

    def restart_scheduler(self, side: Side, qps: tuple[int, int] | None) -> None:
        """Start kube-scheduler again with another limit of its client; the service or extender stays."""
        self.plane.stop_scheduler()
        self._start_scheduler(side, qps)

    def _start_scheduler(self, side: Side, qps: tuple[int, int] | None) -> None:
        config = side.config(self._url)
        config["clientConnection"] = {} if qps is None else {"qps": qps[0], "burst": qps[1]}
        self.plane.start_scheduler(config, gates=side.gates(self.minor))

    def start_echo(self, computes_ms: float = 0) -> str:
        """Start the extender that only answers, after so much CPU time each, and give its URL."""
        address = f"127.0.0.1:{free_port()}"
        self.echo = Process(
            "echo", [str(build_ours(ECHO)), address, str(computes_ms)], self.folder / "echo.log"
        )
        self.echo.start()
        self.echo.wait_until(partial(_listens, address), PATIENCE_S)
        return f"http://{address}"

    async def stop(self) -> None:
        """Stop a side's servers."""
        self.plane.stop_scheduler()
        if self.echo is not None:
            self.echo.stop()
            self.echo = None
        if self.service is not None:
            self.service.stop()
            self.service = None

    async def sweep(self) -> None:
        """Delete all pods, groups and events, and wait until they are gone: every run begins alike."""
        async with self.loader() as api:
            for namespace in sorted(set(NAMESPACE.values())):
                await api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
                await api.delete(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
            for namespace in sorted(set(NAMESPACE.values())):
                for version in (OUR_VERSION, BUILT_IN[self.minor]):
                    await self._sweep_groups(api, version, namespace)
            await eventually(lambda: self._empty(api), "all pods are gone")

    async def _sweep_groups(self, api: Api, version: str, namespace: str) -> None:
        alone = version == BUILT_IN["1.36"]  # has no composites
        for kind in ("podgroups",) if alone else ("podgroups", "compositepodgroups"):
            path = f"/apis/{version}/namespaces/{namespace}/{kind}"
            items = (await api.get(path))["items"]
            kept = [item["metadata"] for item in items if item["metadata"].get("finalizers")]
            lifted = {"metadata": {"finalizers": None}}  # no controller here lifts them
            await asyncio.gather(*(api.patch(f"{path}/{its['name']}", lifted) for its in kept))
            await api.delete(path)

    async def _empty(self, api: Api) -> bool:
        for namespace in sorted(set(NAMESPACE.values())):
            if (await api.get(f"/api/v1/namespaces/{namespace}/pods", limit="1"))["items"]:
                return False
        return True

    async def filter_times(self) -> FilterTimes:
        """Return the calls of filter that the service of this run has answered; none, where another one or none runs."""
        if self.service is None or not self._has_metrics:
            return FilterTimes()
        return filter_times(await self.service.metrics())

    def cpu_s(self) -> dict[str, float]:
        """Read the CPU time that every program has used so far, and what is none of ours."""
        used = {
            "etcd": cpu_s_of(self.plane.etcd.pid),
            "kube-apiserver": cpu_s_of(self.plane.apiserver.pid),
            "postgres": _postgres_cpu_s(self.folder / "pg"),
            "loader": time.process_time(),
        }
        for name, process in self.plane.schedulers.items():
            used[f"kube-{name}"] = cpu_s_of(process.pid)
        if self.service is not None:
            used["service"] = cpu_s_of(self.service.pid)
            used["service's children"] = sum(cpu_s_of(p) for p in children(self.service.pid))
        if self.echo is not None:
            used["echo"] = cpu_s_of(self.echo.pid)
        used[OTHERS] = _busy_s() - sum(used.values())
        return used


_open: dict[str, Stand] = {}
_stack = ExitStack()


def a_stand(minor: str = "1.37") -> Stand:
    """Return the stand of this process: started at first use, kept for the next benchmark."""
    if minor not in _open:
        _open[minor] = _stack.enter_context(Stand(minor))
    return _open[minor]


def close_stands() -> None:
    """Stop everything that `a_stand` has started."""
    _open.clear()
    _stack.close()


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _busy_s() -> float:
    """Return the CPU time that all processes of this machine have used (proc(5): user to steal, without idle, iowait)."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


def cpu_s_of(pid: int) -> float:
    """Read user and system time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_S


def _postgres_cpu_s(folder: Path) -> float:
    postmaster = next(folder.rglob("postmaster.pid"))
    pid = int(postmaster.read_text().splitlines()[0])
    return cpu_s_of(pid) + sum(cpu_s_of(child) for child in children(pid))
