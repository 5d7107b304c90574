"""Run benchmarks: python -m tests.bench [NAME...] [--quick] [--rounds N] [--out FILE]."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
from pathlib import Path

import msgspec

from tests.bench.figures import Figure, Scale
from tests.bench.table import table

# name -> module with `run(scale) -> list[Figure]`, plain or async; cheapest first
BENCHES = {
    "planner": "tests.bench.planner",
    "admission": "tests.bench.admission",
}
OUT = Path(__file__).parents[2] / ".bench"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT / "latest.json")
    given = parser.parse_args()
    unknown = [n for n in given.names if n not in BENCHES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    scale = Scale(rounds=given.rounds, quick=given.quick)
    figures: list[Figure] = []
    for name in given.names or BENCHES:
        made = importlib.import_module(BENCHES[name]).run(scale)
        found = asyncio.run(made) if inspect.iscoroutine(made) else made
        print(table(found), flush=True)
        figures += found
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


main()
