"""Both questions (K60) against servers that answer anything; the real ones are asked by tests/e2e."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from extender.cluster.api_server.api_discovery import SchedulerMetrics, dry_runs
from extender.cluster.connection.api_client import ApiServer
from extender.core.log.control_plane_features import NAME, PriorityOf, SchedulerGates, features_of
from extender.core.model.errors import ClusterUnavailable
from tests.integration.cluster.fake_api import FakeApi, Fault

PAGE = """# HELP kubernetes_feature_enabled [BETA] This metric records the data about the stage and enablement
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="GenericWorkload",stage="BETA"} 1
kubernetes_feature_enabled{name="CompositePodGroup",stage="ALPHA"} 0
scheduler_pending_pods{queue="gated"} 0
"""
PRIORITY = PriorityOf("gang", "PreemptLowerPriority")


async def tried(fake: FakeApi):
    async with ApiServer(fake.configuration()) as server:
        return await dry_runs(server, lambda: PRIORITY)


async def test_every_served_kind_is_tried_and_nothing_is_created(fake: FakeApi) -> None:
    """Each request is a dry run, in the one namespace that is there for it."""
    fake.groups["scheduling.k8s.io/v1beta1"] = ["podgroups", "podgroups/status", "workloads"]
    fake.groups["scheduling.k8s.io/v1alpha3"] = ["compositepodgroups", "podgroups"]
    found = await tried(fake)
    assert [one.sample.label for one in found] == [
        "v1 Pod",
        "scheduling.k8s.io/v1alpha3 CompositePodGroup",
        "scheduling.k8s.io/v1alpha3 PodGroup",
        "scheduling.k8s.io/v1beta1 PodGroup",
        "scheduling.k8s.io/v1beta1 Workload",
    ]
    posts = [(path, query) for method, path, query in fake.calls if method == "POST"]
    assert len(posts) == len(found)
    assert all(query == {"dryRun": "All"} for _, query in posts)
    assert all(f"/namespaces/{NAME}/" in path for path, _ in posts)
    answer = features_of(found, SchedulerGates({}), "gate", None)
    assert (answer.dropped_fields, answer.untested) == ((), ())


async def test_a_refusal_is_an_answer_and_silence_is_none(fake: FakeApi) -> None:
    body = b'{"reason": "Forbidden", "message": "pods is forbidden"}'
    fake.faults.append(Fault(lambda r: r.method == "POST", status=403, body=body))
    (pod,) = await tried(fake)
    assert pod.kept is None
    assert "pods is forbidden" in pod.problem
    fake.faults.append(Fault(lambda r: r.method == "POST", status=404, body=b"{}"))
    assert (await tried(fake))[0].kept is None
    fake.faults.append(Fault(lambda r: r.method == "POST", body=b"no", status=201))
    with pytest.raises(ClusterUnavailable, match="dry run of v1 Pod"):
        await tried(fake)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that its server made up, as kube-scheduler does."""
    key, made = tmp_path / "tls.key", tmp_path / "tls.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=kube-scheduler"
    names = "subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-addext", names, "-keyout", str(key), "-out", str(made)],
        check=True,
        capture_output=True,
    )
    return made, key


class Page:
    """A kube-scheduler's page of metrics, for who has the token."""

    def __init__(self, certificate: tuple[Path, Path]) -> None:
        self.text = PAGE
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(*certificate)

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        return f"https://127.0.0.1:{self.runner.addresses[0][1]}/metrics"

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=403)
        return web.Response(text=self.text)


async def test_the_gates_are_read_with_a_token_and_a_certificate(certificate, tmp_path) -> None:
    """Without a CA the certificate is not looked at; with one it is."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    page = Page(certificate)
    async with page as url:
        for ca_file in ("", str(certificate[0])):
            asked = SchedulerMetrics(url, ca_file=ca_file, token_file=str(token))
            assert await asked.gates() == SchedulerGates(
                {"GenericWorkload": True, "CompositePodGroup": False}
            )
        page.text = "scheduler_pending_pods 0\n"
        silent = await SchedulerMetrics(url, token_file=str(token)).gates()
        assert silent.gates is None
        assert "no kubernetes_feature_enabled" in silent.problem


async def test_every_fault_of_the_metrics_is_reported(certificate, tmp_path) -> None:
    """Not configured, no server there, no right, no token, not a CA: the gates are unknown, with the reason."""
    assert "SCHEDULER_METRICS_URL is not set" in (await SchedulerMetrics().gates()).problem
    other = tmp_path / "token"
    other.write_text("wrong")
    async with Page(certificate) as url:
        reading = await SchedulerMetrics(url, token_file=str(other)).gates()
        assert (reading.gates, "answered 403" in reading.problem) == (None, True)
        assert "gone" in (await SchedulerMetrics(url, token_file="/gone").gates()).problem
        assert (await SchedulerMetrics(url, ca_file=str(other)).gates()).gates is None
    reading = await SchedulerMetrics(url).gates()
    assert reading.gates is None
    assert url in reading.problem
    assert await SchedulerMetrics(url).gates() == reading, (
        "the same words, or each try would be recorded"
    )
