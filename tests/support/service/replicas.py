"""Several services on one PostgreSQL and one cluster of manifests, and the Service of Kubernetes in front of them.

`Replica` is a process, as the Deployment runs it; `RoundRobin` gives each new connection to the next replica
that is ready, as kube-proxy does, and knows of readiness as late as it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from deploy.demo.ports import free_port
from tests.controlplane.processes import dying_with_parent
from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.waiting import eventually, patient

ROOT = Path(__file__).parents[3]
LEASE_S = 2.0
# timeoutSeconds of that probe; no question of the read API has to be answered within it
PROBE_S = 2.0
LOOK_S = 30.0  # a look at a replica that does not answer; the next one follows
# failed probes before a pod that was ready is not: 4 s, as with the probe of the Deployment
THRESHOLD = 20
TAIL_BYTES = 500


class Replica:
    """One of several services on one external database."""

    program = ROOT  # the folder of the package that is run
    command = (sys.executable, "-m", "extender")  # that of this checkout is forked

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
        self.words = ["serve", "--cluster", str(manifests), "--listen", self.url[7:]]
        show_log(self.log)
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            if self.program == ROOT and self.command == Replica.command:
                self.process = fork_server.run(self.words, self.environ, log)
                return
            self.process = subprocess.Popen(
                [*self.command, *self.words], cwd=self.program, env=self.environ, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=dying_with_parent(),  # noqa: PLW1509 -- two system calls, no lock taken
            )  # fmt: skip

    def tail(self):
        """Return the end of its log, which is longer when it has progressed."""
        return self.log.read_text()[-TAIL_BYTES:]

    async def ask(self, path, within_s=None):
        """Return the status and the body of an answer; no answer is a failure, a late one is none."""
        async with patient(f"the answer of {self.holder} to {path}"):
            return await self._answer(path, within_s)

    async def probe(self, path, within_s=PROBE_S):
        """Ask as the kubelet does, which has little time; gives status 0 when there is no answer."""
        try:
            return await self._answer(path, within_s)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, None

    async def _answer(self, path, within_s):
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self.url + path) as reply,
        ):
            return reply.status, await reply.json(content_type=None)

    async def events(self, query=""):
        """Return events of the log; any other answer is a failure."""
        status, found = await self.ask(f"/v1/events{query}")
        assert status == 200, (status, found)
        return found

    async def until_events(self, query, count=1):
        """Wait for so many events that match a query; the replica may have been started only just now."""

        async def events():
            status, found = await self._look(f"/v1/events{query}")
            return found if status == 200 and len(found) >= count else None

        return await eventually(events, f"{count} events {query}", every_s=0.05, state=self.tail)

    async def until(self, path, status):
        """Wait for an answer of this status; gives its body."""

        async def answer():
            answered, body = await self._look(path)
            return (body,) if answered == status else None

        what = f"{status} of {self.holder} for {path}"
        return (await eventually(answer, what, every_s=0.05, state=self.tail))[0]

    async def leads(self):
        """Return whether it holds the lease and has gone through the cluster."""
        checks = ((await self.probe("/readyz", LOOK_S))[1] or {}).get("checks", [])
        return any(c["name"] == "reconciled" and c["ok"] for c in checks)

    async def until_leads(self):
        await eventually(self.leads, f"{self.holder} leads", state=self.tail)

    async def _look(self, path):
        assert self.process.poll() is None, f"{self.holder} has ended: {self.tail()}"
        return await self.probe(path, LOOK_S)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    async def stopped(self):
        """SIGTERM, and wait for its end; return its exit code, which is that of no signal."""
        self.process.terminate()
        what = f"the end of {self.holder} after SIGTERM"
        await eventually(lambda: self.process.poll() is not None, what, state=self.tail)
        return self.process.returncode

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
