"""What the rubbish of one tenant costs the others: an ordinary gang beside it, against the same gang alone.

A real service on a cluster of manifests and an embedded PostgreSQL: 24 nodes, one process for each case. First the
hostile objects of one namespace come, then gangs of 4 of another namespace, younger and of the same priority. Timed is
from the manifest of a gang to its admission in the log. Meanwhile filter is called 20 times a second for an ordinary
pod; an answer that does not come within 5 s, as long as kube-scheduler waits, counts as 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from deploy.demo.kube_scheduler import Player
from tests.bench.figures import Figure, Scale, quantile
from tests.support.planning.hostile_trees import a_fleet_of_racks, apart, odd_sized
from tests.support.service.manifest_builders import Object, a_group, a_pod
from tests.support.service.replicas import Replica

HOSTILE = "hostile"
ORDINARY = "ordinary"
FILTER_S = 5.0  # httpTimeout of kube-scheduler's entry
EVERY_S = 0.05
DEADLINE_S = 45.0  # of one gang
SETTLE_S = 2.0  # between the hostile objects and the first gang, and between two gangs
REPLACED_S = 1.5
SMALL = {"cpu": "50m"}
TARGETS = {"admitted": "2 s", "filter": "25 ms"}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What the hostile namespace has; `make` is called again after each `every_s` to replace it all."""

    name: str
    make: Callable[[int], list[Object]]
    racks: int = 6
    every_s: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one service did beside one case."""

    admitted_s: tuple[float | None, ...]  # None: not within `DEADLINE_S`
    arrival_ms: tuple[
        float, ...
    ]  # of filter calls in the first `SETTLE_S` after the hostile objects came
    filter_ms: tuple[float, ...]  # of the calls after that
    events: int  # that the log got about the hostile namespace


def nothing(_turn: int) -> list[Object]:
    """Make no hostile object: the gang alone."""
    return []


def odd(count: int) -> list[Object]:
    """Make trees of 8 leaves of 9 pods of odd sizes."""
    return [o for n in range(count) for o in odd_sized(f"odd-{n}", HOSTILE, random.Random(n))]


def anti(count: int) -> list[Object]:
    """Make gangs of 20 pods with anti-affinity between each other."""
    return [o for n in range(count) for o in apart(f"apart-{n}", HOSTILE, random.Random(n))]


def composite(name: str, parent: str) -> Object:
    """Make a CompositePodGroup of the hostile namespace."""
    return a_group(name, composite=True, gang=1, parent=parent, namespace=HOSTILE)


def cycle_and_orphans(cycle: int, orphans: int) -> list[Object]:
    """Make groups whose parents are a cycle, and groups whose parents do not exist."""
    ring = [composite(f"ring-{n}", f"ring-{(n + 1) % cycle}") for n in range(cycle)]
    return ring + [composite(f"orphan-{n}", f"missing-{n}") for n in range(orphans)]


def empty_leaves(count: int) -> list[Object]:
    """Make one root with leaves that have no pods."""
    leaves = [a_group(f"leaf-{n}", gang=1, parent="root", namespace=HOSTILE) for n in range(count)]
    return [composite("root", ""), *leaves]


def gangs(count: int, turn: int) -> list[Object]:
    """Make gangs of one pod under new names."""
    return [
        thing
        for name in (f"gang-{turn}-{n}" for n in range(count))
        for thing in (
            a_group(name, gang=1, namespace=HOSTILE),
            a_pod(f"{name}-0", name, requests={"cpu": "1m"}, namespace=HOSTILE),
        )
    ]


def cases(*, quick: bool) -> list[Case]:
    """Return the rows of the table; small ones for a quick run."""
    part = 20 if quick else 1

    def of(count: int) -> int:
        return max(count // part, 2)

    return [
        Case(name=f"{of(30)} trees of 8 leaves of 9 odd-sized pods", make=lambda _: odd(of(30))),
        Case(
            name=f"{of(40)} gangs of 20 pods with anti-affinity",
            make=lambda _: anti(of(40)),
            racks=4,
        ),
        Case(
            name=f"{of(3000):,} groups in a cycle and {of(2000):,} orphans",
            make=lambda _: cycle_and_orphans(of(3000), of(2000)),
        ),
        Case(
            name=f"{of(10_000):,} empty leaves below one root",
            make=lambda _: empty_leaves(of(10_000)),
        ),
        Case(
            name=f"{of(400)} gangs replaced every {REPLACED_S} s",
            make=lambda turn: gangs(of(400), turn),
            every_s=REPLACED_S,
        ),
    ]


def write(folder: Path, name: str, objects: list[Object]) -> None:
    """Write a manifest as a whole."""
    written = folder.parent / f"{name}.new"
    written.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    written.replace(folder / f"{name}.json")


@contextlib.asynccontextmanager
async def serving(racks: int) -> AsyncIterator[tuple[Replica, Path]]:
    """Start a service on the fleet; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="gxb-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        manifests = folder / "manifests"
        manifests.mkdir()
        write(manifests, "fleet", [*a_fleet_of_racks(racks), a_pod("lone", requests=SMALL)])
        replica = Replica(folder, "", manifests, "bench", lease_duration_s=10)
        try:
            await replica.until("/readyz", 200)
            await replica.events("?limit=1")  # the process that answers has started
            yield replica, manifests
        finally:
            replica.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(replica.process.wait), 30)
            replica.end()


async def measure(case: Case, rounds: int) -> Run:
    """Run one case: gangs of 4, one after the other, beside what the hostile namespace has."""
    async with serving(case.racks) as (replica, manifests):
        took_ms: list[float] = []
        work = [asyncio.create_task(call_filter(replica, manifests, took_ms))]
        try:
            write(manifests, HOSTILE, case.make(0))
            if case.every_s:
                work.append(asyncio.create_task(replace(case, manifests)))
            admitted, arrival = [], 0
            for number in range(rounds):
                await asyncio.sleep(SETTLE_S)
                arrival = arrival or len(took_ms)
                admitted.append(await admission(replica, manifests, f"gang-{number}"))
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        found = 0
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            found = await recorded(replica)
        return Run(
            admitted_s=tuple(admitted),
            arrival_ms=tuple(took_ms[:arrival]),
            filter_ms=tuple(took_ms[arrival:]),
            events=found,
        )


async def replace(case: Case, manifests: Path) -> None:
    """Replace all hostile objects again and again."""
    for turn in itertools.count(1):
        await asyncio.sleep(case.every_s)
        await asyncio.to_thread(lambda turn=turn: write(manifests, HOSTILE, case.make(turn)))


async def admission(replica: Replica, manifests: Path, name: str) -> float | None:
    """Create a gang of 4; return the seconds until it is admitted, None if that takes too long."""
    pods = [a_pod(f"{name}-{n}", name, requests=SMALL, namespace=ORDINARY) for n in range(4)]
    began_s, created = time.monotonic(), datetime.now(UTC)
    write(manifests, name, [a_group(name, gang=4, namespace=ORDINARY), *pods])
    path = f"/v1/events?type=GangAdmitted&gang={ORDINARY}/{name}"
    while time.monotonic() - began_s < DEADLINE_S:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            status, found = await replica.ask(path, within_s=5.0)
            if status == 200 and found:
                admitted = datetime.fromisoformat(found[0]["time"])  # by the same clock
                return (admitted - created).total_seconds()
        await asyncio.sleep(0.05)
    return None


async def recorded(replica: Replica) -> int:
    """Return how many events the log has about the hostile namespace."""
    count, after = 0, 0
    while True:
        page = await replica.events(f"?namespace={HOSTILE}&limit=1000&after={after}")
        count += len(page)
        if len(page) < 1000:
            return count
        after = page[-1]["position"]


async def call_filter(replica: Replica, manifests: Path, took_ms: list[float]) -> None:
    """Call filter for an ordinary pod, as often as it is answered but at most every 50 ms."""
    player = Player(replica.url, manifests, manifests.parent / "bench" / "cluster.jsonl")
    pod = next(pod for pod in player.view.pods.values() if pod.name == "lone")
    body: dict[str, Any] = {
        "Pod": player._pod_json(pod),
        "Nodes": None,
        "NodeNames": sorted(player.view.nodes),
    }
    await player.close()
    timeout = aiohttp.ClientTimeout(total=FILTER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            began_s = time.monotonic()
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with session.post(f"{replica.url}/scheduler/filter", json=body) as reply:
                    answer = await reply.json()
                    assert not answer.get("Error"), answer
            took_ms.append((time.monotonic() - began_s) * 1000)
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began_s)))


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure each case, and in the same round the gang alone on the same nodes."""
    rounds = 1 if scale.quick else min(scale.rounds, 3)
    for case in cases(quick=scale.quick):
        if not scale.wants("tenants", case.name):
            continue
        alone_case = Case(name="alone", make=nothing, racks=case.racks)
        beside: list[Run] = []
        alone: list[Run] = []
        for number in range(rounds):
            pair = ((case, beside), (alone_case, alone))
            for which, runs in pair if number % 2 == 0 else pair[::-1]:
                runs.append(asyncio.run(measure(which, 1 if scale.quick else 3)))
                print(
                    f"  {case.name}, round {number + 1}, {which.name}: {line(runs[-1])}", flush=True
                )
        yield figures_of(case.name, beside, alone)


def line(found: Run) -> str:
    """Return one line of progress."""
    times = ", ".join("never" if s is None else f"{s:.2f} s" for s in found.admitted_s)
    return (
        f"admitted after {times}; filter p50 {quantile(found.filter_ms, 0.5):.1f} "
        f"p99 {quantile(found.filter_ms, 0.99):.1f} ms; {found.events} events; {os.getloadavg()[0]:.1f} load"
    )


def figures_of(name: str, beside: list[Run], alone: list[Run]) -> list[Figure]:
    """Compare the times of the gangs, and filter."""

    def times(runs: list[Run]) -> tuple[float, ...]:
        return tuple(s for run in runs for s in run.admitted_s if s is not None)

    note = (
        f"{name}: {max(run.events for run in beside):,} events about the hostile namespace; on arrival the service also "
        "reads their manifests, which a real API server does for it"
    )
    quick = f"{name}: filter of an ordinary pod, p99"
    common: dict[str, Any] = {"bench": "tenants", "better": "lower", "baseline_name": "alone"}
    return [
        Figure(
            what=f"{name}: gang of 4 of another namespace admitted",
            unit="s",
            values=times(beside),
            baseline=times(alone),
            target=TARGETS["admitted"],
            unfinished=sum(s is None for run in beside for s in run.admitted_s),
            baseline_unfinished=sum(s is None for run in alone for s in run.admitted_s),
            note=note,
            **common,
        ),
        Figure(
            what=f"{quick}, from the arrival on",
            unit="ms",
            values=tuple(quantile((*run.arrival_ms, *run.filter_ms), 0.99) for run in beside),
            baseline=tuple(quantile((*run.arrival_ms, *run.filter_ms), 0.99) for run in alone),
            note=note,
            **common,
        ),
        Figure(
            what=f"{quick}, from {SETTLE_S:.0f} s after it",
            unit="ms",
            values=tuple(quantile(run.filter_ms, 0.99) for run in beside),
            baseline=tuple(quantile(run.filter_ms, 0.99) for run in alone),
            target=TARGETS["filter"],
            note=note,
            **common,
        ),
    ]
