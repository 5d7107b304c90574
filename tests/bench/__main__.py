"""Run benchmarks: python -m tests.bench [NAME...] [--quick] [--rounds N] [--only PATTERN] [--resume] [--out FILE]."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.bench.figures import Figure, Scale
from tests.bench.table import table

# name -> module with `run(scale)`: a list of figures, plain or async, or lists of them as they come;
# cheapest first
BENCHES = {
    "planner": "tests.bench.planner",
    "admission": "tests.bench.admission",
    "store": "tests.bench.store",
    "verbs": "tests.bench.verbs",
    "freed": "tests.bench.freed",
    "memory": "tests.bench.memory",
    "gang": "tests.bench.gang",
    "trees": "tests.bench.trees",
    "storms": "tests.bench.storms",
}
OUT = Path(__file__).parents[2] / ".bench"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only cases in whose name this is found")
    parser.add_argument("--resume", action="store_true", help="skip what is in the file already")
    parser.add_argument("--out", type=Path, default=OUT / "latest.json")
    given = parser.parse_args()
    unknown = [n for n in given.names if n not in BENCHES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    kept = {(f.bench, f.what): f for f in read(given.out)}
    scale = Scale(
        rounds=given.rounds,
        quick=given.quick,
        only=given.only,
        done=frozenset(kept) if given.resume else frozenset(),
    )
    for name in given.names or BENCHES:
        began_s = time.monotonic()
        for found in figures_of(name, scale):
            kept |= {(f.bench, f.what): f for f in found}
            given.out.parent.mkdir(parents=True, exist_ok=True)
            encoded = msgspec.json.encode(list(kept.values()))
            given.out.write_bytes(msgspec.json.format(encoded))
            print(table(found), flush=True)
        print(f"{name}: {(time.monotonic() - began_s) / 60:.1f} min", flush=True)


def figures_of(name: str, scale: Scale) -> Iterator[Iterable[Figure]]:
    """Run one benchmark; figures come in lists as they are known."""
    made = importlib.import_module(BENCHES[name]).run(scale)
    if inspect.isgenerator(made):
        yield from made
    else:
        yield asyncio.run(made) if inspect.iscoroutine(made) else made


def read(file: Path) -> list[Figure]:
    """Read the figures of earlier runs."""
    return msgspec.json.decode(file.read_bytes(), type=list[Figure]) if file.exists() else []


if __name__ == "__main__":
    main()
