"""CPU of the service for each member that is bound, by size of the tree, without a control plane.

The real service process, over TLS on both sides, with a real Postgres; kube-apiserver and kube-scheduler are those of
`stand_in`. So a run takes seconds, and nothing but the service differs between two runs. By hand it compares checkouts, and writes a profile:

    python -m tests.bench.member_cost --sizes 1000 --profile out.txt
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
import yaml

from deploy.demo.ports import free_port
from extender.store import schema_migration
from tests.bench import machine
from tests.bench.figures import Figure, Scale, quantile
from tests.bench.filter_times import MEAN, P99_AT_MOST, PATH, FilterTimes, filter_times
from tests.bench.stand_in import NAMESPACE, ApiServer, Scheduler, a_member
from tests.controlplane.objects import a_node
from tests.controlplane.processes import dying_with_parent
from tests.support.certificates import (
    CertificateFolder,
    certificate_folder,
    client_context,
    tls_settings,
)
from tests.support.logs.postgres import database_of, execute, running_postgres
from tests.support.service.manifest_builders import a_group

ROOT = Path(__file__).resolve().parents[2]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SIZES = (10, 100, 1000, 4000)
MEMBERS_MIN = 1000  # so many at least in a run, in trees one after the other: a tree of 10 alone is below a tick
CREATES_PER_S = 400.0  # about what kube-apiserver does on two cores
WRITES_PER_S = 1500.0
TARGET_MS = "2 ms"


class Cost(msgspec.Struct, frozen=True):
    """What one run has used."""

    members: int
    cpu_s: float
    inside: FilterTimes  # filter calls inside the service
    calls: dict[str, int]
    kernel_s: float  # of cpu_s
    around_ms: tuple[float, ...]  # filter, as the caller sees it: with the wait for the event loop

    @property
    def per_member_ms(self) -> float:
        """Return milliseconds of CPU per member."""
        return self.cpu_s * 1000 / self.members


class Stand:
    """The stand-ins and one service on an empty database."""

    def __init__(self, folder: Path, source: Path, *, tls: bool, http2: bool) -> None:
        self.folder = folder
        self.source = source  # of the service: another checkout can be compared
        self.tls = tls
        self.http2 = http2
        self.certificates = certificate_folder(folder / "certs")
        self.api: ApiServer | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def running(
        self, database_url: str, nodes: int, writes_per_s: float
    ) -> AsyncIterator[ApiServer]:
        api = self.api = ApiServer(writes_per_s)
        server = server_context(self.certificates)
        url = await api.start(server)
        for number in range(nodes):
            node = a_node(f"n{number:05}")
            node["metadata"]["labels"] |= {"topology.kubernetes.io/rack": f"r{number // 20}"}
            api.put("nodes", node)
        verbs = f"http{'s' if self.tls else ''}://127.0.0.1:{free_port()}"
        probes = self._probes = f"https://127.0.0.1:{free_port()}" if self.tls else verbs
        context = self._context = client_context(self.certificates) if self.tls else None
        api.scheduler = Scheduler(verbs, context, http2=self.http2)
        work = asyncio.create_task(api.scheduler.run())
        self._start(url, database_url, verbs, probes)
        try:
            await self._ready(probes, context)
            await asyncio.sleep(1.5)
            yield api
        finally:
            assert self.process is not None
            self.process.terminate()
            await asyncio.to_thread(self.process.wait)
            work.cancel()
            api.stop()

    async def filter_times(self) -> FilterTimes:
        """Return the filter calls that were answered so far."""
        connector = aiohttp.TCPConnector(ssl=self._context or True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(self._probes + PATH) as reply,
        ):
            return filter_times(await reply.text())

    def _start(self, api_url: str, database_url: str, verbs: str, probes: str) -> None:
        kubeconfig = self.folder / "kubeconfig"
        cluster = {
            "server": api_url,
            "certificate-authority": str(self.certificates.certificate("ca")),
        }
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "x" * 900}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        settings = {
            "database_url": database_url,
            "listen": verbs.partition("://")[2],
            "identity": "bench",
            "barrier_timeout_s": "120",
            "bind_timeout_s": "300",
        }
        if self.tls:
            settings |= {"api_listen": probes.partition("://")[2], "authentication": "none"}
            settings |= tls_settings(self.certificates)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        environ |= {f"GANG_EXTENDER_{key.upper()}": value for key, value in settings.items()}
        environ["KUBECONFIG"] = str(kubeconfig)
        environ["PYTHONPATH"] = str(self.source)
        self.log = self.folder / "service.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "extender", "serve"],
                cwd=self.source, env=environ, stdout=log, stderr=log,
                preexec_fn=dying_with_parent(),  # noqa: PLW1509 - two system calls, no lock taken
            )  # fmt: skip

    async def _ready(self, url: str, context: Any) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context or True)
        ) as session:
            for _ in range(1200):
                assert self.process is not None
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                try:
                    async with session.get(f"{url}/readyz") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise TimeoutError(self.log.read_text()[-3000:])

    def kernel_s(self) -> float:
        """Return the part of `cpu_s` in the kernel, in ticks of 10 ms."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[12]) / TICKS_PER_S

    def cpu_s(self) -> float:
        """Return the CPU time of the service process, all its threads, without its child processes."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        nanoseconds = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
        return max(nanoseconds / 1e9, (int(fields[11]) + int(fields[12])) / TICKS_PER_S)

    async def bind(self, name: str, size: int, per_s: float) -> None:
        """Create one tree and wait until all of it is bound."""
        api = self.api
        assert api is not None
        api.put("podgroups", a_group(name, gang=size, namespace=NAMESPACE))
        await api.create((a_member(f"{name}-{n}", name) for n in range(size)), per_s)
        await asyncio.wait_for(api.all_bound.wait(), 300)


def server_context(made: CertificateFolder) -> Any:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate("server"), made.key("server"))
    context.set_alpn_protocols(["http/1.1"])
    return context


async def measure(
    database_url: str, size: int, *, source: Path = ROOT, tls: bool = True, profile: str = "",
    http2: bool = True, per_s: float = CREATES_PER_S, writes_per_s: float = WRITES_PER_S,
) -> Cost:  # fmt: skip
    """Bind trees of one size after each other, and return what the service used for them."""
    trees = max(1, MEMBERS_MIN // size)
    with tempfile.TemporaryDirectory(prefix="gxc-") as folder:
        stand = Stand(Path(folder), source, tls=tls, http2=http2)
        async with stand.running(database_url, 1000, writes_per_s) as api:
            await stand.bind("warm", 20, per_s)
            await asyncio.sleep(0.5)
            api.calls.clear()
            assert api.scheduler is not None
            around_ms = api.scheduler.filter_ms = []
            recording = None
            if profile:
                recording = await asyncio.create_subprocess_exec(
                    str(Path(sys.executable).with_name("py-spy")), "record", "-p", str(stand.process.pid),
                    "-r", "400", "--gil", "-f", "raw", "-o", profile, "-d", "600",
                    stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
                await asyncio.sleep(1)
            before = await stand.filter_times()
            before_s, kernel_s = stand.cpu_s(), stand.kernel_s()
            for number in range(trees):
                await stand.bind(f"t{number}", size, per_s)
            await asyncio.sleep(0.3)
            used_s, kernel_s = stand.cpu_s() - before_s, stand.kernel_s() - kernel_s
            inside = (await stand.filter_times()).since(before)
            if recording is not None:
                recording.send_signal(2)
                await recording.wait()
        return Cost(
            trees * size,
            used_s,
            inside,
            api.calls,
            kernel_s,
            tuple(around_ms),
        )


def run_rounds(
    sizes: Sequence[int], sources: Sequence[Path], rounds: int, **options: Any
) -> dict[tuple[Path, int], list[Cost]]:
    """Measure the sources in turns on one Postgres."""
    found: dict[tuple[Path, int], list[Cost]] = {}
    with running_postgres() as server:
        number = 0
        for turn in range(rounds):
            for size in sizes:
                for source in sources if turn % 2 == 0 else sources[::-1]:
                    number += 1
                    name = f"cost_{number}"
                    asyncio.run(execute(server.url, f'CREATE DATABASE "{name}"'))
                    url = database_of(server.url, name)
                    asyncio.run(schema_migration.upgrade(url))
                    cost = uvloop.run(measure(url, size, source=source, **options))
                    found.setdefault((source, size), []).append(cost)
                    print(
                        f"{source.name:10} tree of {size:>5,}: {cost.per_member_ms:.2f} ms per member "
                        f"({cost.kernel_s * 1000 / cost.members:.2f} in the kernel), "
                        f"filter mean {cost.inside.mean_ms:.3f} p99 at most {cost.inside.at_most_ms(0.99):g} ms, "
                        f"round trip p50 {quantile(cost.around_ms, 0.5):.2f} p99 {quantile(cost.around_ms, 0.99):.2f} ms  {cost.calls}",
                        flush=True,
                    )
    return found


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure all sizes, the verbs without TLS and with it."""
    for tls in (False, True):
        where = "verbs over TLS" if tls else "verbs without TLS"
        cases = {
            f"tree of {size:,}, {where}": size for size in ((10, 100) if scale.quick else SIZES)
        }
        sizes = [size for case, size in cases.items() if scale.wants("cost", case)]
        found = run_rounds(sizes, (ROOT,), 1 if scale.quick else scale.rounds, tls=tls)
        for (_, size), costs in found.items():
            yield figures_of(f"tree of {size:,}, {where}", costs)


def figures_of(case: str, costs: Sequence[Cost]) -> list[Figure]:
    """Return the figures of some runs."""

    def figure(what: str, values: Iterable[float], target: str) -> Figure:
        return Figure(
            bench="cost",
            what=f"{case}: {what}",
            unit="ms",
            better="lower",
            values=tuple(values),
            target=target,
        )

    return [
        figure("CPU of the service per member", (c.per_member_ms for c in costs), TARGET_MS),
        figure(f"filter inside the service, {MEAN}", (c.inside.mean_ms for c in costs), "0.4 ms"),
        figure(
            f"filter inside the service, {P99_AT_MOST}",
            (c.inside.at_most_ms(0.99) for c in costs),
            "2 ms",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.member_cost", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--source", type=Path, nargs="+", default=[ROOT], help="checkouts, measured in turns"
    )
    parser.add_argument("--plain", action="store_true", help="verbs without TLS")
    parser.add_argument("--http1", action="store_true", help="verbs over HTTP/1.1, with TLS")
    parser.add_argument("--profile", default="", help="file for samples of py-spy")
    parser.add_argument("--per-s", type=float, default=CREATES_PER_S)
    parser.add_argument("--writes-per-s", type=float, default=WRITES_PER_S)
    given = parser.parse_args()
    before = machine.speed()
    found = run_rounds(
        given.sizes, given.source, given.rounds, tls=not given.plain, http2=not given.http1, profile=given.profile,
        per_s=given.per_s, writes_per_s=given.writes_per_s,
    )  # fmt: skip
    print(
        "| checkout | tree of | CPU of the service per member, ms | filter mean, ms | p99 at most, ms |"
    )
    for (source, size), costs in found.items():
        middle = statistics.median(cost.per_member_ms for cost in costs)
        inside = sum((cost.inside for cost in costs), FilterTimes())
        cells = (source.name, f"{size:,}", f"{middle:.2f}", f"{inside.mean_ms:.3f}", f"{inside.at_most_ms(0.99):g}")  # fmt: skip
        print(f"| {' | '.join(cells)} |")
    print(f"machine speed: {machine.speed_text((before, machine.speed()))} {machine.UNIT}")


if __name__ == "__main__":
    main()
