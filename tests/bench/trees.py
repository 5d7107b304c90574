"""Many trees at once: 250 trees of 2 x 2 pods, and upstream's shapes for composite pod groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from tests.bench.figures import Figure, Scale
from tests.bench.gang import QPS, SLOWLY, TARGETS
from tests.bench.race import Case, figures_of, foretell, keep, race
from tests.bench.sides import NATIVE_TREES, ORDINARY, OURS, Shape, Side
from tests.bench.stand import a_stand

# Composites x groups x pods of kube-scheduler's own performance tests, and with a topology of two levels
UPSTREAM = (
    *(Shape(trees=trees, groups=2, pods=3) for trees in (50, 100, 150)),
    Shape(trees=3, groups=2, pods=150),
    *(Shape(trees=trees, groups=2, pods=4, topology=True) for trees in (50, 100, 150)),
)


def cases(scale: Scale) -> list[tuple[Case, Sequence[Side]]]:
    """Return what is measured and who runs, cheapest first."""
    if scale.quick:
        tree = Shape(trees=3, groups=2, pods=3, topology=True)
        return [(Case(shape=tree, nodes=40, qps=QPS[0], deadline_s=40), (OURS, NATIVE_TREES))]
    both, all_three = (OURS, NATIVE_TREES), (OURS, NATIVE_TREES, ORDINARY)
    upstream = [
        (Case(shape=shape, nodes=nodes, qps=qps), both)
        for qps in (QPS[0], QPS[2])
        for nodes in (500, 1000)
        for shape in UPSTREAM
    ]
    trees = Shape(trees=250, groups=2, pods=2)
    many = [
        (Case(shape=trees, nodes=nodes, qps=qps, per_s=per_s), both if per_s else all_three)
        for per_s in (0, SLOWLY)
        for nodes in (1000, 5000)
        for qps in QPS
    ]
    return upstream + many


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure case by case."""
    wanted = [(case, who) for case, who in cases(scale) if scale.wants("trees", str(case))]
    if not wanted:
        return
    rounds = 1 if scale.quick else scale.rounds
    foretell("trees", wanted, rounds)
    stand = a_stand()
    with asyncio.Runner() as runner:
        for case, sides in wanted:
            runs = runner.run(race(stand, sides, case, rounds))
            keep("trees", case, runs)
            yield figures_of("trees", case, runs, TARGETS[case.qps])
