"""`gang-extender simulate` at two sizes: the jobs of Philly on its 15 clusters, and a day of gangs on 5,000 nodes.

Both traces are made up by a seed. The first one has the counts of the 82,247 jobs of Philly that Sia published: jobs by cluster and by
GPUs, and quantiles of their run times; GANG_EXTENDER_PHILLY=FILE takes that file itself. Each cluster is simulated by itself, on a share
of 312 nodes of 8 GPUs as large as its share of the GPU time, and at least as large as its largest job; two run side by side.
The second one has gangs of 1 to 64 pods of a whole node.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.bench.figures import Figure, Scale
from tests.support.service.manifest_builders import a_fleet

JOBS = 82_247
DAYS = 109.0
JOBS_OF_CLUSTERS = (
    41_226, 16_091, 9_953, 7_423, 1_934, 1_511, 1_435, 1_137, 723, 422, 374, 8, 4, 3, 3,
)  # fmt: skip
JOBS_BY_GPUS = {1: 76_627, 2: 1_818, 4: 1_870, 8: 1_643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}  # fmt: skip
RUN_TIMES_S = (
    10, 48, 61, 68, 75, 115, 209, 370, 599, 863, 1_144, 1_473, 1_821, 2_140, 2_549, 2_932, 4_243, 5_903, 11_264, 43_642,
)  # fmt: skip  # quantiles, by twentieths; then those of ...
LONGEST = ((0.98, 147_803), (0.99, 254_611), (0.999, 1_185_672), (1.0, 4_628_226))
LONGER = 6  # so many times as long as others run jobs of several GPUs: then about 400 GPUs are used on average, as in the file
NODES = 312  # 2,490 GPUs
GPUS = 8
GANG_PODS = (1, 2, 4, 8, 16, 32, 64)
BEGAN = datetime(2017, 9, 4)  # noqa: DTZ001 -- the trace has no offset


class Job(NamedTuple):
    """A line of a trace, in the form of Philly."""

    at_s: float
    run_s: float
    gpus: int
    cluster: str


class Usage(NamedTuple):
    """What a simulation used."""

    cpu_s: float
    rss_mib: float
    events: int
    ended: int


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure both sizes."""
    if scale.wants("simulations", "philly"):
        jobs = 60 if scale.quick else JOBS
        trace = os.environ.get("GANG_EXTENDER_PHILLY")
        rows = of_a_file(Path(trace)) if trace else philly(jobs)
        began_s = time.monotonic()
        used = simulate_clusters(rows)
        took_s = time.monotonic() - began_s
        yield _figures(
            f"philly: {len(rows):,} jobs on {len(used)} clusters, two processes", took_s, used,
            target="10 minutes, 2 GiB", together=2,
        )  # fmt: skip
    if scale.wants("simulations", "gangs"):
        gangs, nodes = (20, 100) if scale.quick else (1_000, 5_000)
        began_s = time.monotonic()
        used = [simulated(day(gangs), nodes, "1d")]
        took_s = time.monotonic() - began_s
        yield _figures(
            f"gangs: a day of {gangs:,} gangs on {nodes:,} nodes", took_s, used, target="1 minute", together=1
        )  # fmt: skip


def _figures(what: str, took_s: float, used: Sequence[Usage], *, target: str, together: int) -> list[Figure]:  # fmt: skip
    """Return figures; the memory is that of the largest processes that may run at once."""
    largest = sorted((usage.rss_mib for usage in used), reverse=True)[:together]
    values = {
        "time": (took_s, "s"),
        "CPU": (sum(usage.cpu_s for usage in used), "s"),
        "memory": (sum(largest), "MiB"),
    }
    note = f"{sum(u.events for u in used):,} events, {sum(u.ended for u in used):,} jobs ended"
    return [
        Figure(
            bench="simulations", what=f"{what}: {name}", unit=unit, better="lower", values=(value,), target=target, note=note
        )
        for name, (value, unit) in values.items()
    ]  # fmt: skip


def philly(jobs: int) -> list[Job]:
    """Return a trace with the counts of Philly; arrivals are as likely at any time."""
    chance = random.Random(47)
    clusters = [f"vc{number:02}" for number in range(len(JOBS_OF_CLUSTERS))]
    rows = []
    for _ in range(jobs):
        gpus = chance.choices(list(JOBS_BY_GPUS), list(JOBS_BY_GPUS.values()))[0]
        run_s = _run_time_s(chance.random()) * (LONGER if gpus > 1 else 1)
        rows.append(
            Job(
                at_s=chance.uniform(0, DAYS * 86_400), run_s=min(run_s, LONGEST[-1][1]), gpus=gpus,
                cluster=chance.choices(clusters, JOBS_OF_CLUSTERS)[0],
            )
        )  # fmt: skip
    return sorted(rows)


def _run_time_s(share: float) -> float:
    """Return the quantile of the run times; between two that are given, in equal ratios."""
    twentieths = len(RUN_TIMES_S)
    points = [*((n / twentieths, t) for n, t in enumerate(RUN_TIMES_S)), *LONGEST]
    for (low, low_s), (high, high_s) in itertools.pairwise(points):
        if share <= high:
            return low_s * (high_s / low_s) ** ((share - low) / (high - low))
    return LONGEST[-1][1]


def of_a_file(path: Path) -> list[Job]:
    """Return the jobs of a file of Philly as Sia has it."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Job(
                (datetime.fromisoformat(row["timestamp"]) - BEGAN).total_seconds(),
                float(row["duration"]), int(row["num_gpus"]), row["cluster"],
            )
            for row in csv.DictReader(file) if row["timestamp"]
        ]  # fmt: skip


def day(gangs: int) -> list[Job]:
    """Return gangs that arrive within a day and run for 10 minutes to 6 hours."""
    chance = random.Random(47)
    return [
        Job(
            at_s=86_400 * 0.9 * number / gangs, run_s=chance.uniform(600, 6 * 3600),
            gpus=GPUS * chance.choice(GANG_PODS), cluster=f"team-{number % 4}",
        )
        for number in range(gangs)
    ]  # fmt: skip


def simulate_clusters(rows: Sequence[Job]) -> list[Usage]:
    """Simulate each cluster by itself, those with most jobs first."""
    by_cluster: dict[str, list[Job]] = defaultdict(list)
    for row in rows:
        by_cluster[row.cluster].append(row)
    whole = sum(row.gpus * row.run_s for row in rows)

    def simulate(jobs: Sequence[Job]) -> Usage:
        share = sum(job.gpus * job.run_s for job in jobs) / whole
        largest = max(job.gpus for job in jobs)
        return simulated(jobs, max(math.ceil(NODES * share), math.ceil(largest / GPUS)), "365d")

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(simulate, sorted(by_cluster.values(), key=len, reverse=True))]


def simulated(rows: Sequence[Job], nodes: int, until: str) -> Usage:
    """Run the command on so many nodes; its report must have no job that never fits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet = a_fleet(f"{math.ceil(nodes / 16)} racks x 16 nodes", gpu=GPUS)[:nodes]
        (folder / "cluster.yaml").write_text(yaml.dump_all(fleet, Dumper=yaml.CSafeDumper))
        with (folder / "trace.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("timestamp", "duration", "num_gpus", "cluster"))
            for row in rows:
                at = (BEGAN + timedelta(seconds=int(row.at_s))).isoformat(" ")
                writer.writerow((at, f"{row.run_s:.0f}", row.gpus, row.cluster))
        with (folder / "out.json").open("wb") as out, subprocess.Popen(
            [sys.executable, "-m", "extender", "simulate", "--cluster", folder / "cluster.yaml",
             "--workloads", folder / "trace.csv", "--until", until, "-o", "json"],
            stdout=out,
        ) as process:  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, rows[0]
        report = json.loads((folder / "out.json").read_bytes())
    ended = sum(each["ended"] for each in report["classes"])
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, report["events"], ended)
