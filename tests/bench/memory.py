"""Memory of the service in a big cluster, beside that of kube-scheduler in the same cluster; and what its
decisions have left in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.bench.figures import Figure, Scale
from tests.bench.race import BoundWatch, create_all
from tests.bench.sides import NAMESPACE, OURS, Shape
from tests.bench.stand import Stand
from tests.bench.weight import children
from tests.controlplane.objects import a_pod
from tests.postgres import plain_url

QPS = (5000, 5000)
GANG_PODS = 5
DEADLINE_S = 900.0


async def measure(stand: Stand, nodes: int, pods: int, gangs: int) -> dict[str, float]:
    """Fill a cluster, let the gangs be bound, and read what each program holds in memory; MiB."""
    shape = Shape(trees=gangs, pods=GANG_PODS)
    await stand.fleet(nodes)
    await stand.start(OURS, QPS)
    async with stand.loader() as api, BoundWatch(api, OURS.namespace) as watch:
        running = [
            a_pod(
                f"running-{n}",
                namespace=NAMESPACE["ordinary"],
                requests={"memory": "64Mi"},
                nodeName=f"n{n % nodes:05}",
            )
            for n in range(pods - shape.total)
        ]
        await create_all(api, running)
        for group in OURS.groups(shape, stand.minor):
            await api.create(group)
        members = list(OURS.pods(shape))
        await create_all(api, members)
        names = {pod["metadata"]["name"] for pod in members}
        if not await watch.until(names, DEADLINE_S):
            raise RuntimeError(f"{len(names - watch.at.keys())} of {len(names)} were not bound")
    assert stand.service is not None
    pid = stand.service.pid
    return {
        "service": in_memory_mib(pid) + sum(in_memory_mib(child) for child in children(pid)),
        "service, its largest": peak_mib(pid),
        "kube-scheduler": in_memory_mib(stand.plane.schedulers["scheduler"].pid),
        "input per decision": await input_kb(stand.service.database_url),
    }


async def input_kb(url: str) -> float:
    """Read how many kB a decision's input takes in the database on average, parts that are shared included."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        taken = await connection.fetchval(
            "SELECT pg_total_relation_size('gx.decision_input')"
            " + pg_total_relation_size('gx.decision_part')"
        )
        decisions = await connection.fetchval("SELECT count(*) FROM gx.decision_input")
    finally:
        await connection.close()
    return float(taken) / 1000 / decisions


def in_memory_mib(pid: int) -> float:
    """Read what a process holds; pages shared with others count in part (PSS)."""
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def peak_mib(pid: int) -> float:
    """Read the most that a process ever held (VmHWM)."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def _field(file: Path, name: str) -> float:
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure once; memory does not jitter."""
    nodes, pods, gangs = (100, 500, 20) if scale.quick else (5000, 50_000, 1000)
    name = f"{nodes:,} nodes, {pods:,} pods, {gangs:,} gangs"
    if not scale.wants("memory", name):
        return
    print(f"memory: about {1 + pods // 6000} min", flush=True)
    with (
        Stand() as stand
    ):  # of its own: to delete that many pods would take longer than all the rest
        found = asyncio.run(measure(stand, nodes, pods, gangs))
        asyncio.run(stand.stop())
    yield [
        Figure(
            bench="memory",
            what=f"{name}: {what}",
            unit="MiB",
            better="lower",
            values=(found[key],),
            baseline_name="kube-scheduler",
            baseline=(found["kube-scheduler"],),
            target="600 MiB",
        )
        for key, what in (("service", "held"), ("service, its largest", "at most"))
    ] + [
        Figure(
            bench="memory",
            what=f"{name}: input of a decision in the database, indexes included",
            unit="kB",
            better="lower",
            values=(found["input per decision"],),
            target="20 kB",
        )
    ]
