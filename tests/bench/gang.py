"""A gang of 1,000 pods: ours, kube-scheduler's own gang, and as many ordinary pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.bench.figures import Figure, Scale
from tests.bench.race import Case, figures_of, foretell, keep, race
from tests.bench.sides import NATIVE, ORDINARY, OURS, Shape
from tests.bench.stand import a_stand

QPS: tuple[tuple[int, int] | None, ...] = ((5000, 5000), (200, 400), None)
TARGETS = {(5000, 5000): "2 x", (200, 400): "3 x", None: "10 x"}
SIDES = (OURS, NATIVE, ORDINARY)


def cases(scale: Scale) -> list[Case]:
    """Give what is measured, cheapest first."""
    minor = scale.kubernetes
    if scale.quick:
        return [Case(shape=Shape(pods=40), nodes=40, qps=QPS[0], deadline_s=40, kubernetes=minor)]
    gang = Shape(pods=1000)
    return [
        Case(shape=gang, nodes=nodes, qps=qps, per_s=per_s, kubernetes=minor)
        for per_s in (0, 20)
        for nodes in (1000, 5000)
        for qps in QPS
    ]


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure case by case."""
    wanted = [case for case in cases(scale) if scale.wants("gang", str(case))]
    if not wanted:
        return
    rounds = 1 if scale.quick else scale.rounds
    foretell("gang", [(case, SIDES) for case in wanted], rounds)
    stand = a_stand(scale.kubernetes)
    with asyncio.Runner() as runner:
        for case in wanted:
            runs = runner.run(race(stand, SIDES, case, rounds))
            keep("gang", case, runs)
            yield figures_of("gang", case, runs, TARGETS[case.qps])
