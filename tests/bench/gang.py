"""A gang of 1,000 pods: ours, kube-scheduler's own gang, and as many ordinary pods.

On 1,000 nodes also ours without the gate, so that its price is seen, and the three writes that a member costs
without a scheduler: what writes them cannot be faster on the same machine. Where pods come at 20/s no
ordinary ones run beside them: each of those is bound before the next one is created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from tests.bench.figures import Figure, Scale
from tests.bench.race import Case, figures_of, foretell, keep, race
from tests.bench.sides import NATIVE, ORDINARY, OURS, UNGATED, WRITES, Shape, Side
from tests.bench.stand import a_stand

QPS: tuple[tuple[int, int] | None, ...] = ((5000, 5000), (200, 400), None)
TARGETS = {(5000, 5000): "2 x", (200, 400): "3 x", None: "10 x"}
SLOWLY = 20  # pods created per second, beside full speed
SIDES = (OURS, NATIVE, ORDINARY)
MORE = (*SIDES, UNGATED, WRITES)


def cases(scale: Scale) -> list[tuple[Case, Sequence[Side]]]:
    """Return what is measured and who runs, cheapest first."""
    minor = scale.kubernetes
    if scale.quick:
        case = Case(shape=Shape(pods=40), nodes=40, qps=QPS[0], deadline_s=40, kubernetes=minor)
        return [(case, MORE)]
    gang = Shape(pods=1000)
    return [
        (
            Case(shape=gang, nodes=nodes, qps=qps, per_s=per_s, kubernetes=minor),
            SIDES[:2] if per_s else MORE if nodes == 1000 else SIDES,
        )
        for per_s in (0, SLOWLY)
        for nodes in (1000, 5000)
        for qps in QPS
    ]


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure case by case."""
    wanted = [(case, who) for case, who in cases(scale) if scale.wants("gang", str(case))]
    if not wanted:
        return
    rounds = 1 if scale.quick else scale.rounds
    foretell("gang", wanted, rounds)
    stand = a_stand(scale.kubernetes)
    with asyncio.Runner() as runner:
        for case, sides in wanted:
            runs = runner.run(race(stand, sides, case, rounds))
            keep("gang", case, runs)
            yield figures_of("gang", case, runs, TARGETS[case.qps])
