"""Who may read /v1 and /metrics, decided by a real kube-apiserver under the roles that we ship (review, C2 d).

The tests of the port are those of tests/contract/test_access_reviews.py; only the place is another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from selenium.webdriver.common.keys import Keys

from extender.cluster.api_server.kubernetes_cluster import KubernetesAccessReviews
from extender.cluster.connection.api_client import ApiServer, load_configuration
from extender.ports.access_ports import AUDIENCE, RESOURCE, AccessRight, Caller
from tests.contract.test_access_reviews import (  # noqa: F401 - pytest collects them here
    test_a_right_ends_when_it_is_taken_away,
    test_a_right_in_a_namespace_is_one_there,
    test_a_right_in_all_namespaces_is_one_in_each,
    test_a_right_on_a_path_is_one_on_that_path,
    test_a_token_has_one_user,
    test_an_invented_token_has_none,
)
from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import path_of
from tests.controlplane.plane import ControlPlane, token_of
from tests.e2e.scenarios.service import Service
from tests.support.certificates import certificate_folder
from tests.support.service.browser import chromium
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_group
from tests.support.waiting import answer_of, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37")]

RBAC = "rbac.authorization.k8s.io"
NAMESPACES = ("team-a", "team-b", "readers")
# Each asks the service for what is in the log; no database is named.
LOG_COMMANDS = (
    ("events",),
    ("state",),
    ("preemptions",),
    ("report", "pending"),
    ("verify",),
    ("status",),
)
ROLE = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole"}


class Accounts:
    """ServiceAccounts of namespace `readers`, and their rights."""

    def __init__(self, api: Api, reviews: KubernetesAccessReviews) -> None:
        self.reviews = reviews
        self.api = api
        self._bindings: list[dict[str, Any]] = []

    async def create(self, thing: dict[str, Any]) -> None:
        try:
            await self.api.create(thing)
        except ApiError as refusal:
            if refusal.status != 409:
                raise

    async def token(self, name: str, audience: str = AUDIENCE) -> str:
        metadata = {"name": name, "namespace": "readers"}
        await self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        spec = {"audiences": [audience]} if audience else {}
        path = f"/api/v1/namespaces/readers/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = (await self.api.post(path, body))["status"]["token"]
        return token

    async def give(self, caller: Caller, right: AccessRight) -> None:
        resource, _, group = RESOURCE.partition(".")
        rule: dict[str, Any] = {"apiGroups": [group], "resources": [resource]}
        if right.path:
            rule = {"nonResourceURLs": [right.path]}
        name = re.sub("[^a-z]", "-", f"e2e-{right}")
        await self.create(
            ROLE | {"metadata": {"name": name}, "rules": [rule | {"verbs": [right.verb]}]}
        )
        await self.bind(caller.user, name, right.namespace)

    async def bind(self, user: str, role: str, namespace: str = "") -> None:
        """Bind a ClusterRole to a user, in a namespace or in all."""
        metadata = {"name": re.sub("[^a-z]", "-", f"{user}-{role}")}
        if namespace:
            metadata["namespace"] = namespace
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
        }
        await self.create(binding)
        self._bindings.append(binding)

    async def take_all(self, caller: Caller) -> None:
        """Delete the bindings of a user."""
        for one in [b for b in self._bindings if b["subjects"][0]["name"] == caller.user]:
            await self.api.delete(path_of(one, named=True))
            self._bindings.remove(one)

    async def clean(self) -> None:
        """Delete all bindings."""
        for one in self._bindings:
            await self.api.delete(path_of(one, named=True))


@pytest.fixture
async def place(site: ControlPlane) -> AsyncIterator[Accounts]:
    """The reviews as the ServiceAccount of our Deployment, under its shipped roles."""
    configuration = await load_configuration(str(site.kubeconfig("extender")))
    async with site.api() as api, ApiServer(configuration) as server:
        made = Accounts(api, KubernetesAccessReviews(server))
        for name in NAMESPACES:
            await made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield made
        await made.clean()


async def test_audiences(place: Accounts) -> None:
    """Ours, and that of the API server unless the setting excludes it; a token for another service is not valid here."""
    strict = KubernetesAccessReviews(place.reviews._server, api_server_tokens=False)
    ours, other = await place.token("ann"), await place.token("ann", "another-service")
    for_api_server, static = await place.token("ann", ""), token_of("developer")
    assert await place.reviews.authenticate(other) is None
    for token, user in (
        (for_api_server, "system:serviceaccount:readers:ann"),
        (static, "developer"),
    ):
        found = await place.reviews.authenticate(token)
        assert found is not None
        assert found.user == user
        assert await strict.authenticate(token) is None
    assert await strict.authenticate(ours) == await place.reviews.authenticate(ours) is not None


class Reading:
    """A service with authentication, and the answers that a token gets."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def ask(self, path: str, token: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.service.url + path) as reply,
        ):
            json = "json" in reply.content_type
            return reply.status, await (reply.json() if json else reply.text())

    async def until(self, path: str, token: str, status: int) -> None:
        async def answered() -> bool:
            return (await self.ask(path, token))[0] == status

        await eventually(answered, every_s=0.2)


@pytest.fixture
async def reading(
    site: ControlPlane, place: Accounts, database_url: str, tmp_path: Path
) -> AsyncIterator[Reading]:
    """The service with `authentication` kubernetes, and a group in two namespaces."""
    groups = [a_group(f"of-{name}", gang=1, namespace=name) for name in ("team-a", "team-b")]
    service = Service(site, tmp_path, database_url, authentication="kubernetes")
    try:
        for group in groups:
            await place.create(group)
        await service.start()
        yield Reading(service)
    finally:
        await asyncio.to_thread(service.stop)
        for group in groups:
            path = path_of(group, named=True)
            await place.api.patch(path, {"metadata": {"finalizers": None}})
            await place.api.delete(path)


async def test_a_reader_has_the_rights_that_rbac_gives(reading: Reading, place: Accounts) -> None:
    """Without a token 401; a viewer sees one namespace, an auditor all, an operator metrics too; rights that are gone count no more."""
    ann, auditor, operator = [await place.token(one) for one in ("ann", "auditor", "operator")]
    callers = {}
    for name, token in (("ann", ann), ("auditor", auditor), ("operator", operator)):
        found = await place.reviews.authenticate(token)
        assert found is not None
        callers[name] = found
    assert (await reading.ask("/v1/gangs"))[0] == 401
    assert (await reading.ask("/metrics"))[0] == 401
    assert (await reading.ask("/v1/gangs", "invented"))[0] == 401
    for path in ("/livez", "/readyz", "/ui/"):
        assert (await reading.ask(path))[0] == 200, path
    status, problem = await reading.ask("/v1/gangs/team-a/of-team-a/tree", ann)
    assert status == 403
    assert "user 'system:serviceaccount:readers:ann' may not get podgroups" in problem["detail"]
    assert "--serviceaccount=readers:ann --namespace=team-a" in problem["detail"]

    await place.bind(callers["ann"].user, "gang-extender-viewer", "team-a")
    await place.bind(callers["auditor"].user, "gang-extender-auditor")
    await place.bind(callers["operator"].user, "gang-extender-operator")
    await reading.until("/v1/gangs", ann, 200)
    await reading.until("/v1/gangs/team-a/of-team-a/tree", ann, 200)
    assert (await reading.ask("/v1/gangs/team-b/of-team-b/tree", ann))[0] == 403
    assert (await reading.ask("/v1/gangs?namespace=team-b", ann))[0] == 403
    assert (await reading.ask("/metrics", ann))[0] == 403
    await reading.until("/v1/gangs/team-b/of-team-b/tree", auditor, 200)
    assert (await reading.ask("/metrics", auditor))[0] == 403
    await reading.until("/metrics", operator, 200)

    headers = {"Authorization": f"Bearer {ann}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{reading.service.url}/v1/events?follow=true") as stream,
    ):
        assert stream.status == 200
        await place.take_all(callers["ann"])
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer_of(stream.content.read(), "the stream ends")
    assert (await reading.ask("/v1/gangs", ann))[0] == 403


async def test_the_token_of_a_kubeconfig_is_enough(reading: Reading, place: Accounts) -> None:
    """A user of the cluster with `view` rights in a namespace needs nothing more."""
    await place.bind("developer", "gang-extender-view", "team-b")
    await reading.until("/v1/gangs/team-b/of-team-b/tree", token_of("developer"), 200)
    assert (await reading.ask("/v1/gangs/team-a/of-team-a/tree", token_of("developer")))[0] == 403


async def test_who_may_create_may_plan(reading: Reading, place: Accounts) -> None:
    """In the namespace of the right; objects in another one are refused, and so is a user who may only read."""
    await place.bind("developer", "gang-extender-view", "team-b")
    await reading.until("/v1/gangs", token_of("developer"), 200)

    async def plan(namespace: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token_of('developer')}"}
        body = {"workload": [a_group("planned", gang=1, namespace=namespace)]}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{reading.service.url}/v1/plan", json=body) as reply,
        ):
            return reply.status, await reply.text()

    status, text = await plan("team-b")
    assert (status, "--clusterrole=gang-extender-operator" in text) == (403, True), text
    await place.bind("developer", "gang-extender-edit", "team-b")

    async def permitted() -> bool:
        return (await plan("team-b"))[0] == 200

    await eventually(permitted, every_s=0.5)
    status, text = await plan("team-a")
    assert (status, "namespace 'team-a'" in text) == (400, True), text


async def test_commands_send_the_token_of_a_kubeconfig_over_tls(
    site: ControlPlane, place: Accounts, database_url: str, tmp_path: Path
) -> None:
    """With TLS authentication is the default; tokens of a user and of an account, made by the real kubectl; 403 is a sentence."""
    certificates = certificate_folder(tmp_path / "tls", names=["127.0.0.1"])
    service = Service(
        site, tmp_path, database_url, certificates=certificates, authentication="kubernetes"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(site.binaries / "kubectl")
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    ca = str(certificates.certificate("ca"))

    server = ("--server", service.url, "--server-ca-file", ca)

    def gangs(*words: str) -> subprocess.CompletedProcess[str]:
        return run_command("gangs", "-o", "json", *server, *words, **environ)

    admin, developer = (str(site.kubeconfig(user)) for user in ("admin", "developer"))
    account = ("--as-service-account", "readers/auditor")
    await place.token("auditor")
    await place.bind("system:serviceaccount:readers:auditor", "gang-extender-auditor")
    try:
        await service.start()
        alone = gangs()
        assert (alone.returncode, alone.stdout) == (2, "")
        assert "the service asks for a token; give --context NAME" in alone.stderr
        assert json.loads(gangs("--kubeconfig", admin).stdout) == []
        refused = gangs("--kubeconfig", developer)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "gang-extender: user 'developer' may not list podgroups" in refused.stderr
        made = gangs("--kubeconfig", admin, *account)
        assert (made.returncode, made.stdout, made.stderr) == (0, "[]\n", "")

        def auditor(*words: str) -> subprocess.CompletedProcess[str]:
            return run_command(*words, *server, "--token-file", str(token_file), **environ)

        token_file = tmp_path / "token"
        token_file.write_text(await place.token("auditor"), encoding="utf-8")
        await eventually(lambda: auditor("verify").returncode == 0, "the log is verified")
        for words in LOG_COMMANDS:
            done = auditor(*words, "-o", "json")
            assert (done.returncode, done.stderr) == (0, ""), done
        assert json.loads(auditor("status", "-o", "json").stdout)["certificates"]
        unknown = auditor("history", "team-a/nothing")
        assert (unknown.returncode, "the log has no such root group" in unknown.stderr) == (1, True)
        replayed = auditor("decision", "replay", "1")
        assert (replayed.returncode, "LeaseAcquired is not a decision" in replayed.stderr) == (
            1,
            True,
        )
        await place.bind("developer", "gang-extender-view", "team-b")
        tenant = (*server, "--kubeconfig", developer)
        asked = ("events", "-n", "team-b", *tenant)  # answered with 1: no gang is there
        await eventually(
            lambda: run_command(*asked, **environ).returncode == 1, "the right is there"
        )
        hidden = run_command("decision", "replay", "1", *tenant, **environ)
        assert (hidden.returncode, "--clusterrole=gang-extender-auditor" in hidden.stderr) == (
            2,
            True,
        )
    finally:
        await asyncio.to_thread(service.stop)


@pytest.mark.full
async def test_the_page_asks_for_a_token(reading: Reading, place: Accounts) -> None:
    """In Chromium: a form instead of data; a token that is not valid is refused; then the page is live; signing out forgets it."""
    token = await place.token("auditor")
    await place.bind("system:serviceaccount:readers:auditor", "gang-extender-auditor")
    await reading.until("/v1/gangs", token, 200)

    async def seen(look: Callable[[], Any]) -> None:
        async def shown() -> Any:
            return await asyncio.to_thread(look)

        await eventually(shown)

    def kept() -> str:
        script = (
            "return Object.values(sessionStorage).join() + '|' + Object.values(localStorage).join()"
        )
        return str(browser.run(script + " + document.cookie"))

    with chromium() as browser:
        await asyncio.to_thread(browser.open, f"{reading.service.url}/ui/")
        await seen(lambda: browser.shown("#sign-in"))
        assert "the request has no token" in browser.text("#sign-in-text")
        assert browser.texts("#events li") == []
        browser.press("#token", "invented", Keys.ENTER)
        await seen(lambda: "the token is not valid here" in browser.text("#sign-in-text"))
        assert "invented" not in kept()
        browser.press("#token", token, Keys.ENTER)
        await seen(lambda: "follows the log" in browser.text("#link"))
        await seen(lambda: browser.texts("#events li") != [])
        assert not browser.shown("#sign-in")
        assert kept() == f"{token}|"
        assert token not in str(browser.run("return location.href"))
        browser.click_text("#sign-out", "Sign out")
        await seen(lambda: browser.shown("#sign-in"))
        assert kept() == "|"
        assert browser.complaints() == []
