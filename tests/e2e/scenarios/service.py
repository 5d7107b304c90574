"""Our service as a process of its own, as the Deployment runs it: RBAC of deploy/, a real Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from deploy.demo.ports import free_port
from extender.cli.certificates.certificate_folder import CertificateFolder
from tests.controlplane.api import Api
from tests.controlplane.plane import ControlPlane, token_of
from tests.controlplane.processes import dying_with_parent
from tests.support.certificates import client_context, tls_settings
from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.service.fork_server import ForkedCommand
from tests.support.waiting import eventually, until

ROOT = Path(__file__).resolve().parents[3]
# Of the services of stories: nominations come first, as with more than 100 nodes (test_late_nominations.py has the stories about
# fewer), and each call has its line (`calls`).
STORY_SETTINGS = {"nomination_delay_ms": "0", "log_level": "DEBUG"}


class NotAnswered(AssertionError):
    """The read API answers 503: it cannot answer now."""


class Service:
    """One `gang-extender serve`."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        database_url: str,
        *,
        api_url: str = "",
        certificates: CertificateFolder | None = None,
        admin: Callable[[], Api] | None = None,
        forked: bool = True,
        command: Sequence[str] = ("extender", "serve"),
        **settings: str,
    ) -> None:
        """Prepare it; nothing runs yet.

        Args:
            plane: Its control plane.
            folder: For its files.
            database_url: Its database.
            api_url: Of a proxy in front of kube-apiserver; empty: none.
            certificates: With which it is called; None: without TLS, all on one port of loopback.
            admin: Makes the client that deletes what another service has published; None: that of the plane.
            forked: Whether a process that has imported the product forks it; else it is started as users start it.
            command: Another module in its place, with arguments; only where it is not forked.
            settings: More settings.
        """
        self._plane = plane
        self._admin = admin or plane.api
        self._command = command
        self.certificates = certificates
        self._forked = forked
        self.folder = folder
        self.database_url = database_url
        self.verbs_url = self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "service.log"
        self._kubeconfig = folder / "service.kubeconfig"
        document = yaml.safe_load(plane.kubeconfig("extender").read_text())
        if api_url:
            document["clusters"][0]["cluster"] = {"server": api_url}
            document["users"][0]["user"] = {"token": token_of("extender")}
        self._kubeconfig.write_text(yaml.safe_dump(document))
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        self._environ |= {
            "GANG_EXTENDER_DATABASE_URL": database_url,
            "GANG_EXTENDER_LISTEN": self.url.removeprefix("http://"),
            "GANG_EXTENDER_IDENTITY": "e2e",
            "KUBECONFIG": str(self._kubeconfig),
        }
        self._tls: ssl.SSLContext | None = None
        if certificates is not None:
            self._tls = client_context(certificates)
            self.verbs_url = self.url.replace("http://", "https://")
            self.url = f"https://127.0.0.1:{free_port()}"
            settings = {
                "api_listen": self.url.removeprefix("https://"),
                # who may read what has tests of its own
                "authentication": "none",
                **tls_settings(certificates),
                **settings,
            }
        self._environ |= {f"GANG_EXTENDER_{k.upper()}": v for k, v in settings.items()}
        self._process: subprocess.Popen[bytes] | ForkedCommand | None = None
        self.starts = 0

    async def start(self) -> None:
        """Start it and wait until /readyz answers 200."""
        if self.starts == 0:
            await self._delete_published()
        show_log(self.log)
        with self.log.open("ab") as log:
            if self._forked:
                self._process = fork_server.run(["serve"], self._environ, log)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", *self._command],
                    cwd=ROOT,
                    env=self._environ,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # as a pod: its own share of the CPUs, not that of its parent
                    preexec_fn=dying_with_parent(),  # noqa: PLW1509 - two system calls, no lock taken
                )
        self.starts += 1

        async def ready_or_ended() -> bool:
            return await self.ready() or not self.running

        await eventually(ready_or_ended, f"{self.log}: the service to be ready", every_s=0.05)
        if not self.running:
            raise RuntimeError(f"the service has ended: {self.log.read_text()[-3000:]}")

    async def _delete_published(self) -> None:
        """Delete what was published of the database of another story: it is not about ours."""
        async with self._admin() as api:
            await api.delete("/api/v1/namespaces/gang-extender/configmaps")

    def session(self, within_s: float | None = None) -> aiohttp.ClientSession:
        """Return a session for its URLs: it trusts the certificate, and presents that of kube-scheduler.

        Without `within_s` the timeout of the test is all that ends a question.
        """
        connector = aiohttp.TCPConnector(ssl=self._tls or True)
        timeout = aiohttp.ClientTimeout(total=within_s)
        return aiohttp.ClientSession(connector=connector, timeout=timeout)

    @property
    def command_environ(self) -> dict[str, str]:
        """Return the environment of a command that asks it by `--server`."""
        trusted = {}
        if self.certificates is not None:
            trusted["SSL_CERT_FILE"] = str(self.certificates.certificate("ca"))
        return {**os.environ, **trusted}

    async def ready(self) -> bool:
        """Ask /readyz."""
        try:
            async with (
                self.session() as session,
                session.get(f"{self.url}/readyz") as reply,
            ):
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    @property
    def running(self) -> bool:
        """Return whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then wait; in a thread, while it speaks through a proxy of this process."""
        if self.running:
            assert self._process is not None
            self._process.terminate()
            try:
                until(lambda: not self.running, f"{self.log}: the service to end")
            finally:
                self.kill()

    async def get(self, path: str) -> Any:
        """Return the answer of the read API to a path."""
        return (await self._get(path))[0]

    async def _get(self, path: str) -> tuple[Any, int]:
        """Return the answer and the position of the memory that it was made from."""
        async with self.session() as session, session.get(self.url + path) as reply:
            body = await reply.read()
            if reply.status == 503:
                raise NotAnswered(f"{path}: {body.decode()}")
            assert reply.status == 200, (path, reply.status, body)
            return json.loads(body), int(reply.headers.get("X-Log-Position", 0))

    async def events(self, *types: str) -> list[dict[str, Any]]:
        """Read the whole log, or only some types; everything that the service answers from then on includes them.

        Events are read from the database, where they are a moment before its memory has them.
        """
        found: list[dict[str, Any]] = []
        query = "".join(f"&type={t}" for t in types)
        while True:
            after = found[-1]["position"] if found else 0
            page, position = await self._get(f"/v1/events?limit=1000&after={after}{query}")
            if not page and position >= after:
                return found
            found += page
            if not page:
                await asyncio.sleep(0.01)

    async def metrics(self) -> str:
        """Read /metrics."""
        async with self.session() as session, session.get(f"{self.url}/metrics") as reply:
            text = await reply.text()
            if reply.status == 503:
                raise NotAnswered(f"/metrics: {text}")
            return text

    async def metric(self, name: str, kind: str = "", **labels: str) -> float:
        """Read one value of /metrics, of a label `kind` or others if it has some; 0 when it is not there."""
        lines = (await self.metrics()).splitlines()
        given = ({"kind": kind} if kind else {}) | labels
        shown = ",".join(f'{label}="{value}"' for label, value in given.items())
        series = f"{name}{{{shown}}} " if given else f"{name} "
        return next((float(x.split()[-1]) for x in lines if x.startswith(series)), 0.0)

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Read the lines of the log file with a message."""
        lines = [json.loads(x) for x in self.log.read_text().splitlines() if x.startswith("{")]
        return [line for line in lines if line.get("message") == message]

    def calls(self, verb: str) -> list[dict[str, Any]]:
        """Return the canonical lines of one verb from the log file; calls without a leader have none."""
        assert self._environ.get("GANG_EXTENDER_LOG_LEVEL") == "DEBUG", (
            "without it no call has a line"
        )
        return [line for line in self.lines("call") if line.get("verb") == verb and "pod" in line]
