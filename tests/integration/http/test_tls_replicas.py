"""Two replicas with TLS: the follower forwards with its own certificate, and to the real leader only."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from deploy.demo.ports import free_port
from extender.core.model.errors import NotReady
from extender.http.v1.status_api import LEADER_PATH
from extender.http.web.server import listen
from tests.integration.http.test_leader_proxy import Replicas
from tests.integration.http.test_scheduler_verbs import Served, wire_pod
from tests.support.certificates import certificate_folder, client_context, tls_settings
from tests.support.waiting import eventually


class TlsServed(Served):
    """A replica on its listeners; it is asked with the certificate of kube-scheduler."""

    def __init__(self, made, **rest):
        super().__init__(**rest)
        self._made = made
        self._runners = []

    async def __aenter__(self):
        settings = self.stage.settings
        self._runners = [await listen(app, settings) for app in self.apps]
        context = client_context(self._made)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
        return self

    async def __aexit__(self, *arguments):
        await self._session.close()
        for runner in self._runners:
            await runner.cleanup()
        await super().__aexit__(*arguments)

    async def post(self, verb, body):
        url = f"https://{self.stage.settings.listen}/scheduler/{verb}"
        async with self._session.post(url, json=body) as reply:
            return reply.status, await reply.read()


class TlsReplicas(Replicas):
    """A leader and a follower, each with settings of its own."""

    def __init__(self, made, leader, follower):
        self._made = made
        self._of = {"first": leader, "second": follower}
        super().__init__()

    def _served(self, holder, settings):
        address = f"127.0.0.1:{free_port()}"
        return TlsServed(
            self._made, database=self.database, cluster=self.cluster, clock=self.clock, holder=holder,
            address=f"https://{address}", listen=address, api_listen="127.0.0.1:0", **self._of[holder],
        )  # fmt: skip

    def filter_body(self):
        pod = wire_pod(self.first.stage, "g-0")
        return {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}


@pytest.fixture
def made(tmp_path):
    return certificate_folder(tmp_path / "made", clients=("stranger",))


@asynccontextmanager
async def replicas(made, leader=None, follower=None):
    common = tls_settings(made)
    async with TlsReplicas(made, common | (leader or {}), common | (follower or {})) as found:
        yield found


async def test_a_follower_forwards_over_tls(made):
    """It presents its own pair and verifies the leader by the address; the answer is that of the leader."""
    async with replicas(made) as found:
        body = found.filter_body()
        status, answer = await found.second.post("filter", body)
        assert (status, json.loads(answer)["Error"]) == (200, "")
        assert answer == (await found.first.post("filter", body))[1]
        assert json.loads(await found.second.forwarder.fetch(LEADER_PATH))["leads"]


async def test_a_leader_of_another_ca_gets_no_call(made, tmp_path):
    """An address in the lease is not enough: without the right certificate nothing is sent there."""
    other = certificate_folder(tmp_path / "other")
    impostor = {
        "tls_cert_file": str(other.certificate("server")),
        "tls_private_key_file": str(other.key("server")),
    }
    async with replicas(made, leader=impostor) as found:
        error = (await found.second.ask("filter", found.filter_body()))["Error"]
        assert "which does not answer (ClientConnectorCertificateError: " in error
        assert "certificate verify failed" in error
        with pytest.raises(NotReady, match="certificate verify failed"):
            await found.second.forwarder.fetch(LEADER_PATH)


@pytest.mark.parametrize(
    ("name", "reached"), [("gang-extender", True), ("elsewhere.example", False)]
)
async def test_the_name_to_verify_is_a_setting(made, name, reached):
    """For replicas that are called by an address that is in no certificate, as pods are."""
    async with replicas(made, follower={"tls_server_name": name}) as found:
        error = (await found.second.ask("filter", found.filter_body()))["Error"]
        assert (error == "") is reached, error


async def test_a_replica_with_a_name_that_is_not_allowed_is_refused(made):
    """kube-scheduler gets the sentence with the setting."""
    stranger = {
        "tls_client_cert_file": str(made.certificate("client-stranger")),
        "tls_client_private_key_file": str(made.key("client-stranger")),
    }
    async with replicas(made, follower=stranger) as found:
        status, answer = await found.second.post("filter", found.filter_body())
        assert status == 403
        assert b"is of 'stranger', and --allowed-client-names has" in answer


async def test_a_leader_without_tls_gets_no_call(made):
    """The lease names an address with http: the call is not sent in plain text."""
    async with replicas(made) as found:
        plain = f"http://{found.first.stage.settings.listen}"
        found.database.address = plain
        follower = found.second.stage.leader.follower
        await eventually(lambda: follower.lease.address == plain, "seen")
        error = (await found.second.ask("filter", found.filter_body()))["Error"]
        assert error == (
            f"cannot answer now: the leader first is at {plain}, which has no TLS; set it up there too"
        )
        assert not found.second.forwarder._worth_waiting("bind", "")
        found.database.address = plain.replace("http:", "https:")
        await eventually(lambda: follower.lease.address != plain, "seen")
        assert found.second.forwarder._worth_waiting("bind", "")
