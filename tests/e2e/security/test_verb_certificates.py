"""The verbs and their certificates, with the real kube-scheduler: who gets in, who does not, and renewal under load.

kube-scheduler calls the service itself here, with no proxy of the tests in between. The files are laid out as a kubelet
lays out a Secret: links through one folder, which is exchanged at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from extender.cli.certificates.certificate_folder import CertificateFolder
from tests.e2e.scenarios.conftest import Story, scheduler_config
from tests.support.certificates import Files, certificate_folder, files_of
from tests.support.service.manifest_builders import a_gang, a_node

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
CPU = {"cpu": 1}
STRANGER = "client-stranger"  # a name that our CA has signed and that is not allowed
LIFETIME = timedelta(seconds=25)  # of what is renewed under load
EVERY_S = 3.0
LOAD_S = 60.0  # more than two lifetimes


class LiveFolder(CertificateFolder):
    """A folder whose files are links through `..data`, as a kubelet mounts a Secret."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._numbers = itertools.count()
        first = self._version()
        certificate_folder(first, clients=[STRANGER.removeprefix("client-")])
        self._show(first)
        for file in sorted(first.iterdir()):
            (folder / file.name).symlink_to(Path("..data") / file.name)

    def rotate(self, lifetime: timedelta) -> None:
        """Exchange all certificates but the CA, and their keys, at once."""
        new = self._version()
        shutil.copytree(self.folder / "..data", new)
        for key in new.glob("*.key"):
            if key.stem != "ca":
                key.unlink()  # a new one is made
        CertificateFolder(new).renew(datetime.now(UTC), lifetime)
        self._show(new)

    def _version(self) -> Path:
        return self.folder / f"..version-{next(self._numbers)}"

    def _show(self, version: Path) -> None:
        new = self.folder / "..new"
        new.symlink_to(version.name)
        new.replace(self.folder / "..data")


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    """No second control plane, which the other tests of this folder have."""


@pytest.fixture
def certificates(tmp_path: Path) -> LiveFolder:
    """The certificates of the story."""
    return LiveFolder(tmp_path / "live")


async def call_with(story: Story, files: Files, **changes: str | None) -> None:
    """Restart kube-scheduler so that it calls the service itself; a change of tlsConfig to None leaves the field out."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    config = scheduler_config(story.service.verbs_url, files)
    for entry in config["extenders"]:
        changed = entry["tlsConfig"] | changes
        entry["tlsConfig"] = {name: value for name, value in changed.items() if value is not None}
    story.plane.start_scheduler(config, wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)


async def scheduler_error(story: Story, pod: str) -> str:
    """Wait until kube-scheduler has failed with a pod, and return its message."""

    async def look() -> str:
        conditions = (await story.pods())[pod]["status"].get("conditions", [])
        found = [c for c in conditions if c["type"] == "PodScheduled"]
        failed = [c["message"] for c in found if c.get("reason") == "SchedulerError"]
        return failed[0] if failed else ""

    message: str = await story.until(look)
    return message


@pytest.mark.kubernetes("1.37", "1.36")
async def test_only_the_right_certificate_gets_in(
    story: Story, certificates: LiveFolder, tmp_path: Path
) -> None:
    """None, one of another CA, one that has ended, one of another name: the message of kube-scheduler is on the pod, and nothing is bound."""
    good = files_of(certificates)
    foreign = files_of(certificate_folder(tmp_path / "foreign"))
    ended = CertificateFolder(shutil.copytree(certificates.folder / "..data", tmp_path / "ended"))
    ended.renew(datetime.now(UTC) - timedelta(days=2), timedelta(days=1))
    stranger = files_of(certificates, STRANGER)
    closed = (
        "EOF",
        "connection reset",
        "broken pipe",
        "server closed idle connection",
        "remote error: tls: ",
        "http2: client conn could not be established",
    )
    handshakes, requests = "tls_handshakes_failed", "http_requests_refused"
    # files, changes of tlsConfig, what kube-scheduler writes on the pod, and what we count
    cases: dict[str, tuple[Files, dict[str, str | None], tuple[str, ...], dict[str, str]]] = {
        "none": (good, {"certFile": None, "keyFile": None}, closed, {handshakes: "no-certificate"}),
        "foreign": (foreign._replace(ca=good.ca), {}, closed, {handshakes: "unknown-ca"}),
        "ended": (files_of(ended)._replace(ca=good.ca), {}, closed, {handshakes: "ended"}),
        "stranger": (stranger, {}, ("code 403",), {requests: "client-name"}),
        "other-server": (good._replace(ca=foreign.ca), {},
                         ("x509: certificate signed by unknown authority",), {handshakes: "refused-by-caller"}),
        "other-name": (good, {"serverName": "elsewhere"}, ("not elsewhere",), {handshakes: "refused-by-caller"}),
    }  # fmt: skip
    await story.create(a_node("n1", cpu="32"))
    for name, (files, changes, messages, counter) in cases.items():
        ((metric, cause),) = counter.items()
        label = {"cause" if metric == handshakes else "reason": cause}
        before = await story.service.metric(f"gang_extender_{metric}_total", **label)
        await call_with(story, files, **changes)
        await story.create(*a_gang(name, pods=2, requests=CPU))
        await story.until_event("GangAdmitted", f"default/{name}")
        message = await scheduler_error(story, f"{name}-0")
        print(f"{name}: {message}")
        assert any(text in message for text in messages), message
        assert await story.service.metric(f"gang_extender_{metric}_total", **label) > before
    logged = {line["cause"]: line for line in story.service.lines("a TLS handshake failed")}
    assert {"no-certificate", "unknown-ca", "ended", "refused-by-caller"} <= logged.keys()
    (line,) = story.service.lines("a client certificate with a name that is not allowed")
    assert line["names"] == ["stranger"]
    assert await story.bound() == {}
    await call_with(story, good)
    await story.until_bound(2 * len(cases))
    await story.check_events()


@pytest.mark.full
async def test_bind_calls_that_wait_share_a_few_connections(
    story: Story, certificates: LiveFolder
) -> None:
    """600 members wait for one another at the barrier, 250 on each connection of HTTP/2; over HTTP/1.1 each has its own."""
    members, port = 600, int(story.service.verbs_url.rpartition(":")[2])
    await story.create(*(a_node(f"n{i}", cpu="64") for i in range(20)))
    await call_with(story, files_of(certificates))
    most = {"connections": 0, "waiting": 0.0}

    async def look() -> None:
        while True:
            most["connections"] = max(most["connections"], established(port))
            waiting = await story.service.metric("gang_extender_http_connections")
            most["waiting"] = max(most["waiting"], waiting)
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    await story.create(*a_gang("large", pods=members, requests={"cpu": "10m"}))
    await story.until_bound(members)
    looking.cancel()
    print(most)
    assert most["waiting"] > members / 2  # streams count as connections
    assert most["connections"] < 12
    assert failed_attempts(await asyncio.to_thread(story.plane.scheduler_metrics)) == 0
    await story.check_events()


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_only_bind_calls_come_over_http2(
    story: Story, certificates: LiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the names of the server in the configuration want it; the HTTP library of Go writes which requests it sends over HTTP/2."""
    monkeypatch.setenv("GODEBUG", "http2debug=1")
    await story.create(*(a_node(f"n{i}", cpu="64") for i in range(2)))
    await call_with(story, files_of(certificates))
    log = story.plane.schedulers["scheduler"].log
    written = len(log.read_text())
    await story.create(*a_gang("g", pods=6, requests={"cpu": "10m"}))
    await story.until_bound(6)
    sent = re.findall(r'":path\\" = \\"/scheduler/(\w+)', log.read_text()[written:])
    assert sent == ["bind"] * 6
    assert len(story.service.calls("filter")) >= len(sent)
    await story.check_events()


def established(port: int) -> int:
    """Return the number of open TCP connections to a port of this machine."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(
        line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines
    )


@pytest.mark.full
async def test_renewal_under_load_loses_no_call(story: Story, certificates: LiveFolder) -> None:
    """New certificates and keys for both sides every 3 s, each valid for 25 s, while gangs come: no attempt of kube-scheduler fails.

    That it goes on after the first ones have ended shows that both sides read their files again.
    """
    await story.create(*(a_node(f"n{i}", cpu="64") for i in range(40)))  # of 110 pods each
    certificates.rotate(LIFETIME)  # so the first connections are made with one that ends soon
    await call_with(story, files_of(certificates))
    log = story.plane.schedulers["scheduler"].log
    written = len(log.read_text())  # also by those of other tests
    loop = asyncio.get_running_loop()
    end_s, names = loop.time() + LOAD_S, []
    async with rotating(certificates) as rotations:
        while loop.time() < end_s:
            name = f"g{len(names)}"
            await story.create(*a_gang(name, pods=6, requests={"cpu": "10m"}))
            await story.until_bound(6, f"{name}-")
            names.append(name)
            if len(names) % 3 == 0:  # no call on open connections for a while either
                await asyncio.sleep(1.5)
    print(f"{len(names)} gangs of 6 during {len(rotations)} rotations")
    assert rotations[-1] - rotations[0] > 2 * LIFETIME.total_seconds()
    refused = await story.service.metric("gang_extender_http_requests_refused_total", reason="client-certificate")  # fmt: skip
    assert refused == 0, f"{refused:.0f} calls on open connections were refused"
    # kube-scheduler only logs a failed call for the nominated node, and then asks about all nodes
    lines = log.read_text()[written:].splitlines()
    assert [line for line in lines if "/scheduler/" in line and "extender" in line.lower()] == []
    failed = failed_attempts(await asyncio.to_thread(story.plane.scheduler_metrics))
    errors = [line for line in lines if line.startswith(("E", "W"))]
    assert failed == 0, f"{failed:.0f} attempts of kube-scheduler failed: {errors[-12:]}"
    loaded = await story.service.metric("gang_extender_tls_reloads_total", files="server", result="loaded")  # fmt: skip
    assert loaded >= len(rotations) - 2
    await story.check_events()


@pytest.mark.full
async def test_kube_scheduler_reads_its_ca_at_its_start_only(
    story: Story, certificates: LiveFolder, tmp_path: Path
) -> None:
    """deploy/README.md, Certificates: a replaced caFile has an effect after a restart; the pair has one at once."""
    files = files_of(certificates)
    own = Files(tmp_path / "client.crt", tmp_path / "client.key", tmp_path / "ca.crt")
    for source, target in zip(files, own, strict=True):
        shutil.copy(source, target)
    await story.create(a_node("n1", cpu="32"))
    await call_with(story, own)
    foreign = files_of(certificate_folder(tmp_path / "foreign"))
    shutil.copy(foreign.ca, own.ca)
    await story.create(*a_gang("old-ca", pods=2, requests=CPU))
    await story.until_bound(2, "old-ca-")
    await asyncio.to_thread(story.plane.schedulers["scheduler"].stop)
    story.plane.schedulers["scheduler"].start()
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    await story.create(*a_gang("new-ca", pods=2, requests=CPU))
    message = await scheduler_error(story, "new-ca-0")
    assert "x509: certificate signed by unknown authority" in message
    shutil.copy(files.ca, own.ca)
    await call_with(story, own)
    await story.until_bound(2, "new-ca-")
    shutil.copy(foreign.key, own.key)
    await asyncio.sleep(1.1)  # it looks at its files once per second
    await asyncio.to_thread(story.service.stop)  # and its connections end
    await story.service.start()
    await story.create(*a_gang("no-pair", pods=2, requests=CPU))
    message = await scheduler_error(story, "no-pair-0")
    assert message.endswith("tls: private key does not match public key")
    shutil.copy(files.key, own.key)
    await story.until_bound(2, "no-pair-")


@contextlib.asynccontextmanager
async def rotating(made: LiveFolder) -> AsyncIterator[list[float]]:
    """Exchange certificates until it is left; yields when it was done."""
    moments: list[float] = []

    async def rotate() -> None:
        while True:
            made.rotate(LIFETIME)
            moments.append(asyncio.get_running_loop().time())
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(rotate())
    try:
        yield moments
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def failed_attempts(metrics: str) -> float:
    """Return how many attempts of kube-scheduler ended with an error."""
    lines = [x for x in metrics.splitlines() if x.startswith("scheduler_schedule_attempts_total{")]
    assert lines
    return sum(float(line.split()[-1]) for line in lines if 'result="error"' in line)
