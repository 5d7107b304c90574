"""CPU time and memory of a start of the service: all its processes, until 15 s after it is ready, beside another checkout.

By hand it compares two checkouts, in turns:

    git worktree add --detach ../before main~1
    python -m tests.bench.start_cost --source . ../before
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from extender.store import schema_migration
from tests.bench.member_cost import ROOT, Stand
from tests.bench.memory import in_memory_mib
from tests.bench.stand import cpu_s_of
from tests.bench.weight import children
from tests.support.logs.postgres import database_of, execute, running_postgres

SETTLES_S = 15.0  # the verification of the log and the solver are loaded 10 s after the start


class Start(NamedTuple):
    """What one start used."""

    ready_s: float
    ready_cpu_s: float
    cpu_s: float
    memory_mib: float  # shared pages divided by the number of processes that have them (PSS)


async def measure(database_url: str, source: Path) -> Start:
    """Start the service once."""
    with tempfile.TemporaryDirectory(prefix="gxs-") as folder:
        stand = Stand(Path(folder), source, tls=True)
        began_s = time.monotonic()
        async with stand.running(database_url, 100, 1500.0):
            ready_s = time.monotonic() - began_s
            assert stand.process is not None
            pid = stand.process.pid
            ready_cpu_s = sum(map(cpu_s_of, [pid, *children(pid)]))
            await asyncio.sleep(SETTLES_S)
            pids = [pid, *children(pid)]
            memory_mib = sum(map(in_memory_mib, pids))
            return Start(ready_s, ready_cpu_s, sum(map(cpu_s_of, pids)), memory_mib)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--source", type=Path, nargs="+", default=[ROOT], help="checkouts")
    given = parser.parse_args()
    found: dict[Path, list[Start]] = {source: [] for source in given.source}
    with running_postgres() as server:
        for turn in range(given.rounds):
            for number, source in enumerate(given.source):
                name = f"start_{turn}_{number}"
                asyncio.run(execute(server.url, f'CREATE DATABASE "{name}"'))
                url = database_of(server.url, name)
                asyncio.run(schema_migration.upgrade(url))
                found[source].append(uvloop.run(measure(url, source.resolve())))
    print(
        f"medians of {given.rounds} rounds: seconds to ready and 1.5 more, CPU seconds until then,"
    )
    print(f"CPU seconds {SETTLES_S:.0f} s later, MiB then")
    for source, starts in found.items():
        ready, ready_cpu, cpu, memory = (statistics.median(v) for v in zip(*starts, strict=True))
        print(f"{source.resolve().name:10} {ready:5.1f} {ready_cpu:6.2f} {cpu:6.2f} {memory:6.0f}")


if __name__ == "__main__":
    main()
