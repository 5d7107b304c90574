"""Filter calls while audit questions run at full speed, against filter calls alone.

The real service, on a durable PostgreSQL with a long log and on manifests of a large fleet; kube-scheduler's
calls over one kept connection, as in `verbs`. The questions come from a process of its own, four at a time,
each asked again as soon as it is answered; it is niced, and so is its session (Linux weighs those against each other),
for its processor time is not the service's.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from deploy.demo.ports import free_port
from extender.control.monitors.read_model_projector import project_all
from extender.snapshots.state_loader import backfill_snapshots
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PROJECTING, PostgresReadModels
from extender.store.snapshot_table import PostgresSnapshots
from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.history import note_names, write_history
from tests.bench.store import server
from tests.bench.verbs import filter_body
from tests.bench.weight import weigh
from tests.controlplane.processes import dying_with_parent
from tests.support.logs.postgres import fresh_database
from tests.support.service.manifest_builders import a_fleet, a_gang, a_pod

ROOT = Path(__file__).parents[2]
ASKERS = 4
READY_S = 600.0
JSON = {"Content-Type": "application/json"}
QUESTIONS = (
    "/v1/events?limit=1000",
    "/v1/events?limit=1000&order=newest",
    "/v1/events?limit=1000&type=GangAdmitted",
    "/v1/events?limit=1000&type=GangUnschedulable&order=newest",
    "/v1/events?limit=1000&namespace=serve",
    "/v1/events?limit=1000&node=node-00007.cluster.internal",
    "/v1/gangs/serve/model-0000007/history?decisions",
    "/v1/preemptions",
)


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure in turns: alone, with questions."""
    if not scale.wants("audit", "filter"):
        return
    events, nodes, count = (20_000, 200, 300) if scale.quick else (200_000, 5000, 2000)
    with server() as url, fresh_database(url) as database:
        asyncio.run(fill(database, events))
        with serving(database, nodes) as address:
            bodies = calls_to_make(address, nodes)
            yield list(figures(address, bodies, count, scale.rounds, events))


async def fill(url: str, events: int) -> None:
    """Write a log, and do what the service would do about it in its own time for the next minutes."""
    await schema_migration.upgrade(url)
    await write_history(url, events)
    await note_names(url)
    projecting = ConnectionPool(url, name="bench", settings=PROJECTING, size=1)
    async with PostgresEventLog(url) as log:
        end = (await log.head()).position
        await project_all(PostgresReadModels(projecting), end)
        snapshots = PostgresSnapshots(projecting)
        every = snapshots.stretch(end)
        await backfill_snapshots(log, snapshots, until=end, every=every)
    await projecting.close()


@contextmanager
def serving(database: str, nodes: int) -> Iterator[str]:
    """Run the service; yield HOST:PORT."""
    with tempfile.TemporaryDirectory(prefix="gx-bench-") as folder:
        manifests = Path(folder) / "manifests"
        manifests.mkdir()
        objects = [*a_fleet(f"{nodes} nodes", gpu=8), *a_gang("held", pods=100)]
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        (manifests / "all.json").write_bytes(msgspec.json.encode(listed))
        address = f"127.0.0.1:{free_port()}"
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        environ |= {"GANG_EXTENDER_DATABASE_URL": database, "GANG_EXTENDER_DATA_DIR": folder}
        command = [sys.executable, "-m", "extender", "serve"]
        with (Path(folder) / "service.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--cluster", str(manifests), "--listen", address],
                cwd=ROOT, env=environ, stdout=log, stderr=log,
                start_new_session=True,  # as a pod: its own share of the processors
                preexec_fn=dying_with_parent(),  # noqa: PLW1509 - two system calls, no lock taken
            )  # fmt: skip
        try:
            wait_until(lambda: ask(address, "/readyz")[0] == 200, process)
            wait_until(lambda: bool(admission(address)), process)
            yield address
        finally:
            process.terminate()
            process.wait()


def wait_until(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert process.poll() is None, "the service ended"
        assert time.monotonic() < deadline, "the service is not ready"
        time.sleep(0.2)


def ask(address: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, msgspec.json.decode(reply.read())
    except OSError:
        return 0, None
    finally:
        connection.close()


def admission(address: str) -> list[dict[str, Any]]:
    status, found = ask(address, "/v1/events?type=GangAdmitted&gang=default/held")
    return found if status == 200 else []


def calls_to_make(address: str, nodes: int) -> dict[str, bytes]:
    first = admission(address)[0]["data"]["assignments"][0]
    member = next(o for o in a_gang("held", pods=100) if o["metadata"]["name"] in first["pod"])
    member["metadata"] |= {"uid": first["uid"]}
    outside = a_pod("outside")
    outside["metadata"] |= {"uid": "outside", "namespace": "default"}
    names = [n["metadata"]["name"] for n in a_fleet(f"{nodes} nodes", gpu=8)]
    return {
        "one name, reservation exists": filter_body(member, [first["node"]]),
        f"{nodes:,} names, pod outside all groups": filter_body(outside, names),
    }


def call_often(address: str, body: bytes, count: int) -> list[float]:
    """Send a filter call again and again; milliseconds of each round trip."""
    connection = http.client.HTTPConnection(address)
    around = []
    for number in range(count + 20):
        began_s = time.perf_counter()
        connection.request("POST", "/scheduler/filter", body, JSON)
        reply = connection.getresponse()
        answer = reply.read()
        if number >= 20:  # the first open the connection and warm caches
            around.append((time.perf_counter() - began_s) * 1000)
        assert reply.status == 200, answer
        time.sleep(0.002)  # kube-scheduler does other things as well
    connection.close()
    return around


@contextmanager
def questions(address: str) -> Iterator[list[int]]:
    """Ask all the while; yield the number of answers when it ends."""
    answered: list[int] = []
    command = [sys.executable, "-m", "tests.bench.audit", address]
    process = subprocess.Popen(
        ["nice", "-n", "10", *command], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    weigh([process.pid], 19)
    assert process.stdout is not None
    process.stdout.readline()  # the first answers are there
    try:
        yield answered
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        answered.append(int(output.split()[-1]))


def figures(
    address: str, bodies: dict[str, bytes], count: int, rounds: int, events: int
) -> Iterator[Figure]:
    alone: dict[str, list[list[float]]] = {}
    beside: dict[str, list[list[float]]] = {}
    rates = []
    for _ in range(rounds):
        for what, body in bodies.items():
            alone.setdefault(what, []).append(call_often(address, body, count))
            began_s = time.monotonic()
            with questions(address) as answered:
                beside.setdefault(what, []).append(call_often(address, body, count))
            rates.append(answered[0] / (time.monotonic() - began_s))
    for what in bodies:
        for label, part in QUANTILES:
            yield Figure(
                bench="audit",
                what=f"filter: {what}, round trip beside audit questions {label}",
                unit="ms",
                better="lower",
                values=tuple(quantile(times, part) for times in beside[what]),
                baseline_name="without questions",
                baseline=tuple(quantile(times, part) for times in alone[what]),
                target="1.2 x" if label == "p99" else "",
                note=f"{events:,} events, {ASKERS} askers of up to 1,000 events each",
            )
    yield Figure(
        bench="audit",
        what="filter: audit questions answered meanwhile",
        unit="/s",
        better="higher",
        values=tuple(rates),
        note=f"{ASKERS} askers of up to 1,000 events each",
    )


async def ask_for_ever(address: str) -> None:
    """Ask all questions again and again until interrupted; prints how many were answered."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stopping.set)
    answered = 0

    async def asker(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal answered
        while not stopping.is_set():
            number += 1
            path = QUESTIONS[number % len(QUESTIONS)]
            async with session.get(f"http://{address}{path}") as reply:
                body = await reply.read()
                assert reply.status in (200, 404), body
            answered += 1
            if answered == ASKERS:
                print("asking", flush=True)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(asker(session, number) for number in range(ASKERS)))
    print(answered, flush=True)


if __name__ == "__main__":
    asyncio.run(ask_for_ever(sys.argv[1]))
