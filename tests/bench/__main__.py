"""Run benchmarks: python -m tests.bench [NAME...] [--quick] [--rounds N] [--only PATTERN] [--resume]."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from tests.bench import machine
from tests.bench.figures import Failed, Figure, Scale
from tests.bench.plot import plot
from tests.bench.record import PLOTS, load, record, worse
from tests.bench.stand import close_stands
from tests.bench.table import table
from tests.bench.verdicts import in_order, verdict_markdown, verdict_text

# name -> module with `run(scale)`: a list of figures, plain or async, or lists of them as they come; that of `quick` has
# `FAMILIES` of them; cheapest first
BENCHES = {
    "planner": "tests.bench.planner",
    "scale": "tests.bench.scale",
    "victim-search": "tests.bench.victim_search",
    "moves": "tests.bench.moves",
    "admission": "tests.bench.admission",
    "store": "tests.bench.store",
    "audit": "tests.bench.audit",
    "asof": "tests.bench.asof",
    "reports": "tests.bench.reports",
    "replay": "tests.bench.replay",
    "arena": "tests.bench.arena.contest",
    "simulations": "tests.bench.simulations",
    "partitions": "tests.bench.partitions",
    "verbs": "tests.bench.verbs",
    "cost": "tests.bench.member_cost",
    "freed": "tests.bench.freed",
    "preemption": "tests.bench.preemption",
    "latency": "tests.bench.latency",
    "memory": "tests.bench.memory",
    "gang": "tests.bench.gang",
    "trees": "tests.bench.trees",
    "workloads": "tests.bench.workloads",
    "storms": "tests.bench.storms",
    "tenants": "tests.bench.tenants",
    "quick": "tests.bench.quick",
}
QUICK = "quick"  # by its name only: it measures again what others measure at length
PLOTTED = ("gang", "trees")
OUT = Path(__file__).parents[2] / ".bench"


def main() -> int:
    given = _arguments()
    quick = OUT / "quick.json"
    out = given.out or (quick if given.quick else OUT / "latest.json")
    names = given.names or [name for name in BENCHES if name != QUICK]
    kept = {(f.bench, f.what): f for f in read(out)}
    if given.check:
        return check([f for f in kept.values() if f.bench in names])
    scale = Scale(
        rounds=given.rounds,
        quick=given.quick,
        kubernetes=given.kubernetes,
        only=given.only,
        trace=given.trace,
        done=frozenset((f.bench, f.case) for f in kept.values()) if given.resume else frozenset(),
    )
    if not given.resume:  # of what is measured now, none from before is left where it fails
        kept = {
            key: f for key, f in kept.items() if f.bench not in names or not scale.asks_for(f.case)
        }
    failed = []
    measured = set(kept) if given.resume else set()
    for name in names:
        began_s = time.monotonic()
        for found in figures_of(name, scale):
            if isinstance(found, Failed):
                failed.append(found)
            else:
                new = {(f.bench, f.what): f for f in found}
                kept |= new
                measured |= set(new)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(msgspec.json.format(msgspec.json.encode(list(kept.values()))))
            print(found if isinstance(found, Failed) else table(found), flush=True)
        print(f"{name}: {(time.monotonic() - began_s) / 60:.1f} min", flush=True)
        if name == QUICK:
            found = in_order(f for key, f in kept.items() if key in measured and key[0] == QUICK)
            lost = [row for row in failed if row.bench == QUICK]
            print(f"{verdict_text(found, lost)}\n\n{verdict_markdown(found)}", flush=True)
    if given.record:
        only = f" ONLY='{given.only}'" if given.only else ""
        found = [f for key, f in kept.items() if key in measured and key[0] in names]
        keep(found, f"ROUNDS={given.rounds}{only}", resumed=given.resume)
    if failed:
        print(*failed, "RESUME=1 measures what is missing", sep="\n", file=sys.stderr)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kubernetes", default="1.37", help="for gang: 1.37 or 1.36")
    parser.add_argument("--only", default="", help="only cases in whose name this is found")
    parser.add_argument("--resume", action="store_true", help="skip what is in the file already")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write recorded.json, RESULTS.md, plots: of quick here, of others in .bench",
    )
    parser.add_argument(
        "--check", action="store_true", help="measure nothing, compare with recorded"
    )
    parser.add_argument("--trace", action="store_true", help="for latency: print the steps")
    parser.add_argument("--out", type=Path, help="file of figures (.bench/latest.json)")
    given = parser.parse_args()
    unknown = [n for n in given.names if n not in BENCHES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    if given.quick and given.record:
        parser.error("--record with --quick: figures of small sizes are not worth recording")
    return given


def figures_of(name: str, scale: Scale) -> Iterator[list[Figure] | Failed]:
    """Run one benchmark; figures come in lists as they are known, with the speed of the machine before and after them.

    What comes after a failure begins on a new stand.
    """
    module = importlib.import_module(BENCHES[name])
    if name == QUICK:
        parts = {f: rows for f, rows in module.FAMILIES.items() if scale.wants(name, f)}
    else:
        parts = {name: module.run}
    for part, work in parts.items():
        began_s, before = time.monotonic(), machine.speed()
        family = part if name == QUICK else ""
        try:
            lists = [chain.from_iterable(work(scale))] if family else _as_known(work, scale)
            for figures in lists:
                measured, after = list(figures), machine.speed()
                speeds = (before, after)
                yield [structs.replace(f, family=family, machine_speed=speeds) for f in measured]
                before = after
            if family:
                print(f"  {part}: {(time.monotonic() - began_s) / 60:.1f} min", flush=True)
        except Exception as error:
            traceback.print_exc()
            close_stands()
            first_line = str(error).partition("\n")[0]  # others are of a log
            yield Failed(bench=name, what=part, error=f"{type(error).__name__}: {first_line}")


def _as_known(work: Callable[[Scale], Any], scale: Scale) -> Iterator[list[Figure]]:
    made = work(scale)
    if inspect.isgenerator(made):
        yield from made
    else:
        yield asyncio.run(made) if inspect.iscoroutine(made) else made


def read(file: Path) -> list[Figure]:
    """Read the figures of earlier runs."""
    return msgspec.json.decode(file.read_bytes(), type=list[Figure]) if file.exists() else []


def keep(figures: list[Figure], how: str, *, resumed: bool = False) -> None:
    """Record figures that are new with the plots that belong to them.

    Args:
        figures: What was measured.
        how: The command, as it is recorded.
        resumed: Some of them may be of earlier runs, which were recorded with their date.
    """
    before = [r.figure for r in load()]
    new = [f for f in figures if not resumed or f not in before]
    ranked = sorted(new, key=lambda f: list(BENCHES).index(f.bench))
    known = [*ranked, *before]  # cases recorded before stay in the plots
    for bench in {f.bench for f in ranked}.intersection(PLOTTED):
        cases = {f.what.partition(": ")[0] for f in known if f.bench == bench}
        plot(bench, cases, PLOTS / f"{bench}.png")
    names = " ".join(dict.fromkeys(f.bench for f in ranked))
    record(ranked, f'make bench NAMES="{names}" {how} RECORD=1')


def check(figures: list[Figure]) -> int:
    """Print what got worse; 1 when something did, or when there is nothing to compare."""
    recorded = load()
    known = {(r.figure.bench, r.figure.what) for r in recorded}
    common = [f for f in figures if (f.bench, f.what) in known]
    if not common:
        print("nothing to compare: run `make bench` first, and once with RECORD=1", file=sys.stderr)
        return 1
    lines = worse(common, recorded)
    print("\n".join(lines) or f"none of {len(common)} figures got worse by more than the spread")
    return 1 if lines else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        close_stands()
