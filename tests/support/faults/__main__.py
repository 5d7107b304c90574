"""Run seeds, or the planted defects: `python -m tests.support.faults --seeds 200 [--first 0] [--processes 2] [--defects [NAME ...]]`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from typing import Final

import msgspec

from tests.support.faults.cases import case_of
from tests.support.faults.planted_defects import DEFECTS, planted
from tests.support.faults.run import Result, run_case
from tests.support.faults.shrink import shrunk, story

WARM: Final = 3


def _quiet() -> None:
    """Keep the log lines of the service, which are of virtual time, from stderr."""
    logger = logging.getLogger("extender")
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _result(seed: int) -> tuple[int, Result]:
    return seed, run_case(case_of(seed))


def _seeds(args: argparse.Namespace) -> int:
    """Run all seeds; return the exit status."""
    began_s, failed, events, virtual_s = time.monotonic(), 0, 0, 0.0
    seeds = range(args.first, args.first + args.seeds)
    # a fresh process each 50 seeds: metrics and caches of the service are of the process
    with multiprocessing.Pool(args.processes, _quiet, maxtasksperchild=50) as pool:
        for done, (seed, result) in enumerate(pool.imap_unordered(_result, seeds), start=1):
            if args.progress and done % args.progress == 0:
                print(f"{done} of {args.seeds}", flush=True)
            events += result.events
            virtual_s += result.at_s
            if result.violated:
                failed += 1
                case, smaller = shrunk(case_of(seed), result)
                print(story(case, smaller), flush=True)
    took_s = time.monotonic() - began_s
    print(
        f"{args.seeds} seeds from {args.first}: {failed} failed; {virtual_s / 3600:.1f} virtual hours, "
        f"{events} events of the log, in {took_s:.0f} s"
    )
    return 1 if failed else 0


class _Finds(msgspec.Struct):
    """How often seeds found a defect.

    Attributes:
        first: The first seed that did; -1: none.
        violated: What that one violates, and on what.
        seeds: How many ran.
        finds: How many of them found it.
    """

    name: str
    first: int = -1
    violated: str = ""
    seeds: int = 0
    finds: int = 0

    def __str__(self) -> str:
        if self.first < 0:
            return f"| {self.name} | not in {self.seeds} | | |"
        return f"| {self.name} | {self.first} | {self.seeds / self.finds:.1f} | {self.violated} |"


def _defect(planted_in: tuple[str, range, int]) -> _Finds:
    """Run seeds with one defect until some of them have found it."""
    name, seeds, finds = planted_in
    result = _Finds(name)
    with planted(name):
        for seed in seeds:
            outcome = run_case(case_of(seed))
            result.seeds += 1
            if not outcome.violated:
                continue
            result.finds += 1
            if result.first < 0:
                result.first, result.violated = seed, f"{outcome.violated}: {outcome.detail[:80]}"
            if result.finds == finds:
                break
    return result


def _defects(args: argparse.Namespace) -> int:
    """Plant the defects one at a time, and print a table; return the exit status."""
    names = args.defects or list(DEFECTS)
    seeds = range(args.first, args.first + args.seeds)
    count = 0
    print("| defect | first seed | seeds for each find | violated |\n|---|---|---|---|", flush=True)
    with multiprocessing.Pool(args.processes, _quiet, maxtasksperchild=1) as pool:
        work = [(name, seeds, args.finds) for name in names]
        for result in pool.imap_unordered(_defect, work):
            count += result.finds > 0
            print(result, flush=True)
    print(f"{count} of {len(names)} planted defects are found within {args.seeds} seeds")
    return 0


def main() -> int:
    """Run seeds or defects; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--defects", nargs="*")
    parser.add_argument(
        "--finds",
        type=int,
        default=3,
        help="seeds that find a defect, then the next one is planted",
    )
    parser.add_argument("--progress", type=int, default=0)
    args = parser.parse_args()
    _quiet()
    run_case(case_of(WARM))  # children are forked with all that a run imports
    return _seeds(args) if args.defects is None else _defects(args)


if __name__ == "__main__":
    sys.exit(main())
