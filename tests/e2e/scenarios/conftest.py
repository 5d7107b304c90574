"""One control plane per version with everything of deploy/kubernetes applied, and a story's cast.

Every story runs twice: on a clean cluster and on a lived-in one (tests/controlplane/livedin.py). Mark
one `lived_in("long")` to have the second run only under `make long` (so are those that take long and of
which a similar one runs beside neighbours anyway), or `lived_in("only")`, or `lived_in("never")` where
the neighbours' own doings are what a story counts.

kube-scheduler's own group scheduling is off unless a story is marked `native_gangs`; `native_gangs("both")`
runs it on first, then off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.ports import free_port
from extender.cli.certificates.certificate_folder import CertificateFolder
from tests.controlplane.api import Api, ApiError
from tests.controlplane.livedin import Neighbourhood
from tests.controlplane.objects import path_of
from tests.controlplane.plane import SHIPPED_MANIFESTS, ControlPlane, native_switches
from tests.controlplane.waiting import until_priority_class_known
from tests.e2e.conftest import NEWEST, require_programs, sweep, versions_of
from tests.e2e.scenarios.aftermath import check_aftermath, check_capacity
from tests.e2e.scenarios.proxy import Proxy
from tests.e2e.scenarios.service import ROOT, STORY_SETTINGS, Service
from tests.support.certificates import Files, certificate_folder, files_of, point_at
from tests.support.waiting import WaitedInVain, eventually

DEPLOY = ROOT / "deploy" / "kubernetes"
OURS = "gang-extender.dev/v1alpha1"
FORCE_AFTER_S = 3.0  # a deleted group that nothing needs is gone within two seconds
PASSED = pytest.StashKey[bool]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" in metafunc.fixturenames:
        metafunc.parametrize("site", versions_of(metafunc), indirect=True, scope="session")
    if "lived_in" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("lived_in")
        how = marker.args[0] if marker else "too"
        marks = [pytest.mark.long] if how == "long" else []
        kinds = [pytest.param(True, id="lived-in", marks=marks)]
        if how != "only":
            kinds.insert(0, pytest.param(False, id="clean"))
        if how == "never":
            kinds.pop()
        metafunc.parametrize("lived_in", kinds, indirect=True)
    if "native_gangs" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("native_gangs")
        if marker is not None and "both" in marker.args:
            modes = [pytest.param(True, id="native"), pytest.param(False, id="not-native")]
            metafunc.parametrize("native_gangs", modes, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Neighbours are the same on every version: beside the newest they live there by hand only."""
    for item in items:
        asked = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        if asked.get("lived_in") and asked.get("site") != NEWEST:
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(scope="session")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane with our manifests applied; the built-in groups are served too.

    Flags of kube-apiserver may follow the version: `kubernetes("1.37 --max-requests-inflight=20")`.
    """
    minor, *flags = request.param.split()
    require_programs(minor)
    with ControlPlane(minor, tmp_path_factory.mktemp(f"site-{minor}"), flags=flags) as plane:
        files = [f"--filename={DEPLOY / name}.yaml" for name in SHIPPED_MANIFESTS]
        done = plane.kubectl("apply", "--server-side", *files)
        assert done.returncode == 0, done.stderr
        asyncio.run(_policy_works(plane))
        yield plane


async def _policy_works(plane: ControlPlane) -> None:
    async with plane.api() as api:

        async def ready() -> bool:
            probe = member("probe", "g")
            try:
                await api.get(f"/apis/{OURS}/podgroups")
                made = await api.post(path_of(probe), probe, dryRun="All")
            except ApiError:
                return False
            return bool(made["spec"].get("schedulingGates"))

        await eventually(ready)


def member(name: str, group: str, **spec: Any) -> dict[str, Any]:
    """Make a pod that names a group by our label; policy and scheduler do the rest."""
    from tests.support.service.manifest_builders import a_pod

    return real(a_pod(name, group, **spec))


def real(thing: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a built object for a real API server: limits of extended resources, no grace."""
    made = {**thing}
    if made["kind"] != "Pod":
        return made
    spec = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        **made["spec"],
    }
    containers = []
    for container in spec["containers"]:
        requests = {k: str(v) for k, v in container["resources"]["requests"].items()}
        limits = {k: v for k, v in requests.items() if "/" in k}
        resources = {"requests": requests, "limits": limits}
        containers.append({"image": "registry.invalid/none", **container, "resources": resources})
    made["spec"] = {**spec, "containers": containers}
    made.pop("status", None)
    return made


class Story:
    """The cast of one story."""

    def __init__(
        self,
        plane: ControlPlane,
        api: Api,
        service: Service,
        verbs: Proxy,
        server: Proxy,
        neighbours: Neighbourhood | None = None,
        *,
        native: bool = False,
    ) -> None:
        self.plane = plane
        self.native = native  # kube-scheduler's own group scheduling is on
        self.neighbours = neighbours  # on a lived-in cluster
        self.api = api
        self.service = service
        self.verbs = verbs  # between kube-scheduler and the service
        self.server = server  # between the service and kube-apiserver

    def scheduler_config(
        self, name: str = "scheduler-config", url: str | None = None
    ) -> dict[str, Any]:
        """Return a configuration of deploy/ for the kube-scheduler of this story.

        Args:
            name: Of the file.
            url: What it calls; None: the proxy in front of the service.
        """
        made = self.service.certificates
        files = None if made is None else files_of(made)
        return scheduler_config(url or self.verbs.url, files, name)

    async def create(self, *things: Mapping[str, Any]) -> None:
        """Create objects in order; a group's status comes later, from us."""
        for thing in things:
            if thing["kind"] == "Node" and self.neighbours is not None:
                await self.neighbours.move_in(thing)
            else:
                await self.api.create(real(thing))
            if thing["kind"] == "PriorityClass":
                await until_priority_class_known(self.api, thing["metadata"]["name"])

    async def force(self, path: str) -> None:
        """Delete a group and take its finalizers off, as people do who do not want to wait (B15).

        In this order: our service protects what is not being deleted, and nothing else. A group that nothing needs loses
        its finalizer by the service, and is waited for: of two clients that take the last finalizer off at the same time,
        kube-apiserver lets the slower one delete whatever has the name by then (`deleteWithoutFinalizers` of a PATCH has no
        UID), so a group that was made again.
        """
        await self.api.delete(path)
        with contextlib.suppress(WaitedInVain):
            await eventually(lambda: self._is_gone(path), patience_s=FORCE_AFTER_S)
            return
        with contextlib.suppress(ApiError):  # it has gone by itself
            await self.api.patch(path, {"metadata": {"finalizers": None}})

    async def _is_gone(self, path: str) -> bool:
        try:
            await self.api.get(path)
        except ApiError as error:
            return error.status == HTTPStatus.NOT_FOUND
        return False

    async def pods(self) -> dict[str, dict[str, Any]]:
        """Read all pods by name."""
        items = (await self.api.get("/api/v1/namespaces/default/pods"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    async def bound(self, prefix: str = "") -> dict[str, str]:
        """Return pod -> node of those that are bound."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in (await self.pods()).items()
            if name.startswith(prefix) and pod["spec"].get("nodeName")
        }

    async def until_bound(self, count: int, prefix: str = "") -> dict[str, str]:
        """Wait until exactly so many pods are bound."""
        bound: dict[str, str] = {}

        async def enough() -> bool:
            nonlocal bound
            bound = await self.bound(prefix)
            return len(bound) >= count

        what = f"{count} pods {prefix}* are bound"
        await self.until(enough, what, every_s=0.1, state=lambda: bound)
        assert len(bound) == count, bound
        return bound

    async def until_event(
        self, kind: str, gang: str = "", *, after: int = 0, **data: Any
    ) -> dict[str, Any]:
        """Wait for an event and give the newest of its kind.

        Args:
            kind: Its type.
            gang: Of this root only.
            after: Only behind this position.
            data: Values that it must have, by field; without, the newest of the moment may soon be outdated.
        """

        async def look() -> dict[str, Any] | None:
            found = [
                f
                for f in await self.service.events(kind)
                if gang in ("", f["gang"]) and f["position"] > after
                if all(f["data"][name] == value for name, value in data.items())
            ]
            return found[-1] if found else None

        return await self.until(look, f"{kind} of {gang or 'any gang'} {data}", every_s=0.1)

    async def until(
        self,
        look: Callable[[], Any],
        what: str = "",
        *,
        every_s: float = 0.05,
        state: Callable[[], object] | None = None,
    ) -> Any:
        """Wait like `eventually`; an error has what there is as well."""
        try:
            return await eventually(look, what, every_s=every_s, state=state)
        except WaitedInVain as error:
            raise WaitedInVain(f"{error}\n{await self.report()}") from error

    async def stays(self, look: Callable[[], Awaitable[Any]], looks: int = 10) -> None:
        """Check at so many looks that what is seen stays true."""
        for _ in range(looks):
            assert await look(), await self.report()
            await asyncio.sleep(0.1)

    async def none_bound(self, prefix: str = "") -> bool:
        """Return whether no pod is bound."""
        return not await self.bound(prefix)

    async def report(self) -> str:
        """Return what there is, for a failed assertion."""
        lines = [
            f"{n}: {p['spec'].get('nodeName')} {p['status']}"
            for n, p in (await self.pods()).items()
        ]
        with contextlib.suppress(Exception):
            async with asyncio.timeout(60):
                events = await self.service.events()
            lines += [f"{f['position']} {f['gang']} {f['type']}: {f['summary']}" for f in events]
        return "\n".join([*lines, self.service.log.read_text()[-4000:]])

    async def events_of(self, pod: str) -> list[str]:
        """Return what `kubectl describe pod` prints below Events."""
        described = await self.kubectl("describe", "pod", pod)
        _, _, events = described.partition("\nEvents:")
        return events.splitlines()

    async def kubectl(self, *arguments: str) -> str:
        """Run kubectl, which must succeed, and give what it prints; the proxies work on meanwhile."""
        done = await asyncio.to_thread(self.plane.kubectl, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def check_events(self) -> list[dict[str, Any]]:
        """Check what must hold of every log: positions without a gap, every binding once, all inside an admission."""
        entries = await self.service.events()
        assert [f["position"] for f in entries] == list(range(1, len(entries) + 1))
        self._check_bound_once(entries)
        drift = [f["summary"] for f in entries if f["type"] == "DriftDetected"]
        assert not drift, drift
        return entries

    @staticmethod
    def _check_bound_once(entries: list[dict[str, Any]]) -> None:
        """Check that a binding is recorded again only of a member whose node was gone and came back."""
        bound: dict[str, str] = {}  # uid -> node
        away: dict[str, str] = {}
        for event in entries:
            data = event["data"]
            if event["type"] == "PodBound":
                again = data["uid"] in bound and away.pop(data["uid"], "") != data["node"]
                assert not again, f"a binding is recorded twice: {of_pod(entries, data['uid'])}"
                bound[data["uid"]] = data["node"]
            elif event["type"] == "MemberTerminated" and data["cause"] == "node-lost":
                away[data["uid"]] = data["node"]

    async def check_capacity(self) -> None:
        """Check that no node holds more than it has."""
        await check_capacity(self.api)


def of_pod(entries: list[dict[str, Any]], uid: str) -> list[str]:
    """Return as text what a log has about one pod."""
    mine = [f for f in entries if uid in json.dumps(f["data"])]
    return [f"{f['position']} {f['time']} {f['type']}: {f['summary']}" for f in mine]


def native_gates(minor: str) -> dict[str, bool]:
    """Return the gates that switch kube-scheduler's own group scheduling on, as far as a version has it."""
    if minor == "1.36":  # in 1.37 GenericWorkload contains the other one
        return {"GenericWorkload": True, "GangScheduling": True}
    return native_switches(minor)["--feature-gates"]


def scheduler_config(
    extender_url: str, files: Files | None = None, name: str = "scheduler-config"
) -> dict[str, Any]:
    """Return a configuration of deploy/, pointed at a test's server; with https it presents `files`."""
    return point_at(yaml.safe_load((DEPLOY / f"{name}.yaml").read_text()), extender_url, files)


@pytest.fixture
def lived_in(request: pytest.FixtureRequest) -> bool:
    """Return whether others live on the cluster of a story."""
    wanted: bool = request.param
    return wanted


@pytest.fixture
def native_gangs(request: pytest.FixtureRequest) -> bool:
    """Return whether kube-scheduler's own group scheduling is on in a story."""
    marked = request.node.get_closest_marker("native_gangs") is not None
    wanted: bool = getattr(request, "param", marked)
    return wanted


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder | None:
    """Return the certificates with which kube-scheduler calls the service in a story; None: it is called without TLS."""
    return certificate_folder(tmp_path_factory.mktemp("certificates"))


@contextlib.asynccontextmanager
async def neighbourhood(site: ControlPlane, lived_in: bool) -> AsyncIterator[Neighbourhood | None]:
    """Let the neighbours run meanwhile; none on a clean cluster."""
    if not lived_in:
        yield None
        return
    async with site.api() as api, Neighbourhood(api) as neighbours:
        yield neighbours


@pytest.fixture
async def story(
    site: ControlPlane,
    database_url: str,
    tmp_path: Path,
    lived_in: bool,
    native_gangs: bool,
    certificates: CertificateFolder | None,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Story]:
    """Service, proxies and kube-scheduler running; no node, pod or group of another story before.

    When the story has passed and the service still runs, what must hold in the end is checked.
    """
    settings = dict(STORY_SETTINGS)
    for marker in request.node.iter_markers("settings"):
        settings |= marker.kwargs
    port = free_port()
    gates: dict[str, bool] = {}
    if native_gangs:
        gates = native_gates(site.minor)
        settings["scheduler_metrics_url"] = f"https://127.0.0.1:{port}/metrics"
    async with site.api() as api, Proxy(site.url, site.ca_file) as server:
        service = Service(
            site, tmp_path, database_url,
            api_url=server.url, certificates=certificates, **settings,
        )  # fmt: skip
        async with Proxy(service.verbs_url, certificates=certificates) as verbs:
            try:
                async with neighbourhood(site, lived_in) as neighbours:
                    cast = Story(site, api, service, verbs, server, neighbours, native=native_gangs)

                    config = cast.scheduler_config()
                    site.start_scheduler(config, gates=gates, port=port, wait=False)
                    if native_gangs:  # before the service, which reads its gates when it starts
                        await asyncio.to_thread(site.wait_for_scheduler)
                    await service.start()
                    await asyncio.to_thread(site.wait_for_scheduler)
                    if native_gangs:
                        await until_native(cast)
                    yield cast
                    server.before = server.after = verbs.before = verbs.after = None
                    if request.node.stash.get(PASSED, False) and service.running:
                        await check_aftermath(cast)
            finally:
                server.before = server.after = verbs.before = verbs.after = None
                await asyncio.to_thread(site.stop_scheduler)
                if service.running:
                    service.kill()  # one that is asked to end waits a second for its successor
                await sweep(api)
                await sweep_groups(api)


async def until_native(story: Story) -> None:
    """Wait until the service has read the gates of kube-scheduler; before, it takes them to be off."""
    await story.until_event("ControlPlaneFeaturesDetected", native_group_scheduling="on")


async def sweep_groups(api: Api) -> None:
    """Delete all groups, ours and built-in; whether our service lets ours go is for the tests of that."""
    versions = (await api.get("/apis/scheduling.k8s.io"))["versions"]
    for version in (OURS, *(one["groupVersion"] for one in versions)):
        served = (await api.get(f"/apis/{version}"))["resources"]
        for kind in {one["name"] for one in served} & {"podgroups", "compositepodgroups"}:
            path = f"/apis/{version}/namespaces/default/{kind}"
            await api.delete(path)
            for item in (await api.get(path))["items"]:
                with contextlib.suppress(ApiError):  # it has gone by itself
                    name = item["metadata"]["name"]
                    await api.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
