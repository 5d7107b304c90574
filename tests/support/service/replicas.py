"""Several services on one PostgreSQL and one cluster of manifests, and the Service of Kubernetes in front of them.

`Replica` is a child process, as the Deployment runs it; `RoundRobin` gives each new connection to the next replica
that is ready, as kube-proxy does, and knows of readiness as late as it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from deploy.demo.ports import free_port

ROOT = Path(__file__).parents[3]
WITHIN_S = 180.0  # a busy machine needs its time to start them
LEASE_S = 2.0
PROBE_S = (
    2.0  # timeoutSeconds of that probe; no question of the read API has to be answered within it
)
THRESHOLD = (
    20  # failed probes before a pod that was ready is not: 4 s, as with the probe of the Deployment
)


class Replica:
    """One of several services on one external database."""

    program = ROOT  # the folder of the package that is run

    def __init__(self, folder, database_url, manifests, holder, *, data="", **settings):
        self.holder = holder
        self.verbs_url = self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / f"{holder}.log"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        self.environ |= {
            "GANG_EXTENDER_DATABASE_URL": database_url, "GANG_EXTENDER_IDENTITY": holder,
            "GANG_EXTENDER_DATA_DIR": str(folder / (data or holder)),
            "GANG_EXTENDER_LEASE_DURATION_S": str(LEASE_S),
        }  # fmt: skip
        self.environ |= {f"GANG_EXTENDER_{k.upper()}": str(v) for k, v in settings.items()}
        self.command = [
            sys.executable, "-m", "extender", "serve", "--cluster", str(manifests), "--listen", self.url[7:],
        ]  # fmt: skip
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.program, env=self.environ, stdout=log, stderr=log
            )

    async def ask(self, path, within_s=WITHIN_S):
        """Return the status and the body of an answer; no answer is a failure.

        The first question after a start waits for the process that answers questions: on a machine that has to
        compile its modules first, for several seconds.
        """
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within_s)) as session,
            session.get(self.url + path) as reply,
        ):
            return reply.status, await reply.json(content_type=None)

    async def probe(self, path):
        """Ask as the kubelet does, which has little time; gives status 0 when there is no answer."""
        try:
            return await self.ask(path, PROBE_S)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, None

    async def events(self, query=""):
        """Return events of the log; any other answer is a failure."""
        status, found = await self.ask(f"/v1/events{query}")
        assert status == 200, (status, found)
        return found

    async def until_events(self, query, count=1):
        """Wait for so many events that match a query; the replica may have been started only just now."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            status, found = 0, None
            with contextlib.suppress(aiohttp.ClientConnectorError):  # it does not listen yet
                status, found = await self.ask(f"/v1/events{query}")
            if status == 200 and len(found) >= count:
                return found
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, (query, status, found, self.log.read_text()[-2000:])
            await asyncio.sleep(0.05)

    async def until(self, path, status):
        """Wait for an answer of this status; gives its body."""
        deadline = time.monotonic() + WITHIN_S
        while (found := await self.probe(path))[0] != status:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, (found, self.log.read_text()[-2000:])
            await asyncio.sleep(0.05)
        return found[1]

    async def leads(self):
        checks = ((await self.probe("/readyz"))[1] or {}).get("checks", [])
        return any(c["name"] == "reconciled" and c["ok"] for c in checks)

    async def until_leads(self):
        deadline = time.monotonic() + WITHIN_S
        while not await self.leads():
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            await asyncio.sleep(0.02)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def stopped(self):
        """SIGTERM, and wait for its end."""
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, 60)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class RoundRobin:
    """The Service: connections go in turn to the replicas that were ready at the last look, with TLS or without."""

    def __init__(self, replicas):
        self.replicas = list(replicas)
        self.ready = []
        self.misses = {}
        self.terminating = set()
        self.turn = 0
        self.given = []  # holders, by connection
        self.refused = []  # why, by connection
        self.url = ""
        self._pipes = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        scheme = urlsplit(self.replicas[0].verbs_url).scheme if self.replicas else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_):
        self._looking.cancel()
        self._server.close()
        for task in self._pipes:
            task.cancel()
        await asyncio.gather(self._looking, *self._pipes, return_exceptions=True)

    async def _look(self):
        while True:
            looked_at = list(self.replicas)
            found = await asyncio.gather(*(r.probe("/readyz") for r in looked_at))
            for replica, (status, _) in zip(looked_at, found, strict=True):
                self.misses[replica] = (
                    0 if status == 200 else self.misses.get(replica, THRESHOLD) + 1
                )
            # a pod that is being deleted is no endpoint any more, and the next one of its name none yet
            self.misses |= dict.fromkeys(self.terminating, THRESHOLD)
            self.ready = [r for r in self.replicas if self.misses.get(r, THRESHOLD) < THRESHOLD]
            await asyncio.sleep(0.2)

    def refuse(self, writer, reason):
        self.refused.append(reason)
        writer.transport.abort()

    async def _serve(self, reader, writer):
        ready = [r for r in self.ready if r not in self.terminating]
        if not ready:
            self.refuse(writer, "no replica is ready")
            return
        self.turn += 1
        replica = ready[self.turn % len(ready)]
        self.given.append(replica.holder)
        address = urlsplit(replica.verbs_url)
        try:
            there, back = await asyncio.open_connection(address.hostname, address.port)
        except OSError as error:
            self.refuse(writer, f"{replica.holder}: {error}")
            return
        pipes = [
            asyncio.create_task(_pipe(reader, back)),
            asyncio.create_task(_pipe(there, writer)),
        ]
        self._pipes |= set(pipes)
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for task in pipes:
            task.cancel()
            self._pipes.discard(task)
        back.close()
        writer.close()


async def _pipe(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
