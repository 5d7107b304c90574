"""A control plane with all of deploy/kubernetes, and the objects that the requests of this folder are about."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.connection.api_client import ApiResponse, load_configuration
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import a_pod, path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import require_programs, until_gates_are_free
from tests.e2e.scenarios.conftest import (  # noqa: F401 - pytest looks for fixtures and hooks here
    lived_in,
    native_gangs,
    pytest_generate_tests,
    pytest_runtest_makereport,
    site,
    story,
)
from tests.e2e.security.attempts import LABEL, PODS, Attempt, attempts, objects
from tests.e2e.security.uses import DryRunning, Use, Uses
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
RIGHTS = ("rbac", "workloads/rbac")
POLICIES = ("admission-policy", "group-limits", "confinement")
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
LASTING = ("Namespace", "ClusterRole", "ClusterRoleBinding")  # not deleted after a file
# what an account with the role `edit` has in its namespace, and no controller gives it here
A_USER: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "e2e-user"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {
            "apiGroups": ["gang-extender.dev", "scheduling.k8s.io"],
            "resources": ["podgroups", "compositepodgroups"],
            "verbs": ["*"],
        },
    ],
}
ITS_BINDING: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "e2e-user"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "e2e-user",
    },
    "subjects": [{"kind": "User", "name": "developer", "apiGroup": "rbac.authorization.k8s.io"}],
}


def documents(*files: str) -> list[Object]:
    """Read the documents of files in deploy/kubernetes."""
    texts = [(DEPLOY / f"{name}.yaml").read_text(encoding="utf-8") for name in files]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def apply(plane: ControlPlane, *files: str) -> None:
    """Apply files of deploy/kubernetes."""
    flags = [part for name in files for part in ("-f", str(DEPLOY / f"{name}.yaml"))]
    done = plane.kubectl("apply", "--server-side", "--force-conflicts", *flags)
    assert done.returncode == 0, done.stderr


def remove(plane: ControlPlane, *files: str) -> None:
    """Delete what is in files of deploy/kubernetes; to wait for it took kubectl a second for each file."""
    flags = [part for name in files for part in ("-f", str(DEPLOY / f"{name}.yaml"))]
    done = plane.kubectl("delete", "--ignore-not-found", "--wait=false", *flags)
    assert done.returncode == 0, done.stderr


@dataclass
class Secured:
    """A control plane, the clients of its users, and what they try."""

    plane: ControlPlane
    clients: Mapping[str, Api]
    attempts: tuple[Attempt, ...]
    uses: Uses

    @property
    def admin(self) -> Api:
        """Return the client of the administrator."""
        return self.clients["admin"]

    @property
    def first_attempts(self) -> tuple[Attempt, ...]:
        """Return the first attempt against each policy."""
        return tuple({one.policy: one for one in reversed(self.attempts)}.values())

    async def send(self, *tried: Attempt) -> dict[str, str]:
        """Send requests and return the refusals by their names; an empty text: accepted."""
        found = await asyncio.gather(*(one.send(self.clients[one.user]) for one in tried))
        return {one.name: refusal for one, refusal in zip(tried, found, strict=True)}

    async def use(self) -> dict[str, str]:
        """Do everything that the service does, and return the errors by the name of the use."""
        return dict(filter(None, await asyncio.gather(*map(_error_of, self.uses.all()))))

    async def restore(self, binding: Object) -> None:
        """Create the binding of a policy again."""
        metadata = {"name": binding["metadata"]["name"], "labels": binding["metadata"]["labels"]}
        await self.admin.post(BINDINGS, {**binding, "metadata": metadata})

    async def remove_policies(self) -> None:
        """Delete the policies and wait until none of them is enforced."""
        remove(self.plane, *POLICIES)

        async def free() -> bool:
            return not any((await self.send(*self.first_attempts)).values())

        await eventually(free)

    async def install_policies(self) -> None:
        """Apply the policies and wait until each of them is enforced."""
        apply(self.plane, *POLICIES)

        async def enforced() -> bool:
            refusals = await self.send(*self.first_attempts)
            return all(one.policy in refusals[one.name] for one in self.first_attempts)

        async def mutates() -> bool:  # loaded apart from the others, and later on a busy machine
            member = a_pod("probe", metadata={"labels": {LABEL: "probe"}})
            try:
                made = await self.admin.post(PODS, member, dryRun="All")
            except ApiError:  # the validating ones refuse what has no gate yet
                return False
            return "schedulingGates" in made["spec"]

        await eventually(enforced)
        await eventually(mutates)


async def _error_of(use: Use) -> tuple[str, str] | None:
    """Return the name of a use and its error, or None; each kind of error is an answer of kube-apiserver."""
    try:
        await use.call()
    except (ApiResponse, ClusterUnavailable, RequestRejected) as error:
        return use.name, str(error)
    return None


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with roles, definitions and objects, and no policy yet."""
    apply(plane, "namespace", "crds", *RIGHTS)

    async def prepare() -> None:
        async with plane.api() as api:
            await _serve(api)
            for thing in (A_USER, ITS_BINDING, *objects(plane.minor)):
                await _create_once(api, thing)

    asyncio.run(prepare())
    yield plane
    asyncio.run(_clean(plane))


async def _create_once(api: Api, thing: Object) -> None:
    """Create an object; a namespace and the user are there from another file of this folder."""
    try:
        await api.create(thing)
    except ApiError as refusal:
        if refusal.status != 409 or thing["kind"] not in LASTING:
            raise


async def _serve(api: Api) -> None:
    async def served() -> bool:
        try:
            for kind in ("podgroups", "compositepodgroups"):
                await api.get(f"/apis/gang-extender.dev/v1alpha1/{kind}")
        except ApiError:
            return False
        return True

    await eventually(served)


async def _clean(plane: ControlPlane) -> None:
    remove(plane, *POLICIES, *RIGHTS)
    async with plane.api() as api:
        await until_gates_are_free(api)
        for thing in objects(plane.minor):
            path = path_of(thing, named=True)

            async def gone(path: str = path) -> bool:
                """The policies end in their own time."""
                try:
                    await api.patch(path, {"metadata": {"finalizers": None}})
                    await api.delete(path, {"gracePeriodSeconds": 0})
                except ApiError as refusal:
                    return refusal.status == 404
                return False

            if thing["kind"] not in LASTING:
                await eventually(gone)


@pytest.fixture
async def secured(installed: ControlPlane) -> AsyncIterator[Secured]:
    """The control plane with the clients of its users; policies are there if a test before has installed them."""
    stored: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            user: await stack.enter_async_context(installed.api(user))
            for user in ("admin", "extender", "developer")
        }
        for thing in objects(installed.minor):
            found = thing["metadata"]
            if found.get("namespace", "default") == "default":
                stored[found["name"]] = await clients["admin"].get(path_of(thing, named=True))
        configuration = await load_configuration(str(installed.kubeconfig("extender")))
        server = await stack.enter_async_context(DryRunning(configuration))
        uses = Uses(server, installed.minor, stored)
        yield Secured(installed, clients, tuple(attempts(installed.minor)), uses)
    await asyncio.sleep(0.1)  # until the connections of the watches are closed


@pytest.fixture(scope="module", autouse=True)
def _programs(plane: ControlPlane) -> None:
    require_programs(plane.minor)
