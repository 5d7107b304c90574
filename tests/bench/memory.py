"""Memory of the service in a big cluster, beside that of kube-scheduler in the same cluster; and what its
decisions have left in the database: without and with preemption, whose input has every pod that could go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.bench.figures import Figure, Scale
from tests.bench.race import BoundWatch, create_all
from tests.bench.sides import NAMESPACE, OUR_VERSION, OURS, Shape
from tests.bench.stand import Stand
from tests.bench.weight import children
from tests.controlplane.api import Api
from tests.controlplane.objects import a_pod, a_priority_class
from tests.support.logs.postgres import plain_url
from tests.support.service.manifest_builders import GROUP_LABEL, a_group

QPS = (5000, 5000)
GANG_PODS = 5
DEADLINE_S = 900.0
NODE_MIB, RUNNING_MIB = (
    32 * 1024,
    64,
)  # memory of a node, and of a pod that runs there from the start
PREEMPTORS = 20  # gangs of `GANG_PODS`, one after the other; each member needs the capacity of one running pod more
HIGH = "preemptor"


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
                requests={"memory": f"{RUNNING_MIB}Mi"},
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
        kb, decisions = await inputs_kb(stand.service.database_url)
        found = {
            "service": in_memory_mib(pid) + sum(in_memory_mib(child) for child in children(pid)),
            "service, its largest": peak_mib(pid),
            "kube-scheduler": in_memory_mib(stand.plane.schedulers["scheduler"].pid),
            "input per decision": kb / decisions,
        }
        asks_mib = NODE_MIB - (pods - shape.total) // nodes * RUNNING_MIB + RUNNING_MIB // 2
        return found | await preempt(stand, api, watch, asks_mib)


async def preempt(stand: Stand, api: Api, watch: BoundWatch, asks_mib: int) -> dict[str, float]:
    """Let gangs of high priority come, each member of which fits where one pod is evicted."""
    assert stand.service is not None
    url, pid = stand.service.database_url, stand.service.pid
    await api.create(a_priority_class(HIGH, 1000))
    sizes = [await inputs_kb(url)]
    for number in range(PREEMPTORS):
        name = f"{HIGH}-{number}"
        given = {"version": OUR_VERSION, "namespace": OURS.namespace, "priorityClassName": HIGH}
        await api.create(a_group(name, gang=GANG_PODS, **given))
        members = [
            a_pod(
                f"{name}-{n}",
                namespace=OURS.namespace,
                requests={"cpu": "1", "memory": f"{asks_mib}Mi"},
                metadata={"labels": {GROUP_LABEL: name}},
                priorityClassName=HIGH,
            )
            for n in range(GANG_PODS)
        ]
        await create_all(api, members)
        if not await watch.until({pod["metadata"]["name"] for pod in members}, DEADLINE_S):
            raise RuntimeError(f"{name} was not bound")
        if number == 0 or number == PREEMPTORS - 1:
            sizes.append(await inputs_kb(url))
    (before_kb, _), (first_kb, first), (last_kb, last) = sizes
    evicted = await planned(url)
    if evicted < PREEMPTORS:
        raise RuntimeError(f"{PREEMPTORS} gangs came, but {evicted} preemptions were planned")
    return {
        "input of the first preemption": first_kb - before_kb,
        "input per decision, preempting": (last_kb - first_kb) / (last - first),
        "service, preempting": in_memory_mib(pid) + sum(in_memory_mib(c) for c in children(pid)),
    }


async def inputs_kb(url: str) -> tuple[float, int]:
    """Read how many kB the inputs of decisions take in the database, indexes included, and how many there are."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        taken = await connection.fetchval(
            "SELECT pg_total_relation_size('gx.decision_input')"
            " + pg_total_relation_size('gx.decision_input_chunk')"
        )
        decisions = await connection.fetchval("SELECT count(*) FROM gx.decision_input")
    finally:
        await connection.close()
    return float(taken) / 1000, int(decisions)


async def planned(url: str) -> int:
    """Count the preemptions in the log."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        found = await connection.fetchval(
            "SELECT count(*) FROM gx.event WHERE type = 'PreemptionPlanned'"
        )
    finally:
        await connection.close()
    return int(found)


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
    # of its own: to delete that many pods would take longer than all the rest
    with Stand() as stand:
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
        for key, what in (
            ("service", "held by all its processes"),
            ("service, its largest", "the process that serves, at most"),
        )
    ] + [
        Figure(
            bench="memory",
            what=f"{name}: {what}",
            unit=unit,
            better="lower",
            values=(found[key],),
            target=target,
        )
        for key, what, unit, target in (
            (
                "input per decision",
                "input of a decision in the database, indexes included",
                "kB",
                "20 kB",
            ),
            (
                "input per decision, preempting",
                f"input of a decision while {PREEMPTORS} gangs of {GANG_PODS} evict one pod per member",
                "kB",
                "20 kB",
            ),
            ("input of the first preemption", "input of the first decision that evicts", "kB", ""),
            (
                "service, preempting",
                f"held by all its processes after {PREEMPTORS} gangs evicted",
                "MiB",
                "",
            ),
        )
    ]
