"""Small gangs and trees, one after another: from the create of the groups to the last bind of each.

Beside ours and the native gang, the writes of a member alone: a client that decides nothing, without a scheduler, and with
one whose extender only answers, after the CPU time that ours may take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import nullcontext

import msgspec

from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.race import BoundWatch, create_all, write_all
from tests.bench.sides import COMPUTES, NATIVE, NATIVE_TREES, OURS, WRITES, WRITTEN, Shape, Side
from tests.bench.stand import Stand, a_stand, describe_qps
from tests.bench.trace import Began, PodWatch, Steps, steps_of_gangs, trace_table
from tests.controlplane.api import Api

GANG = Shape(pods=8)
TREE = Shape(groups=2, pods=2)
SIDES = {
    "native": "native gang",
    "writes": "its writes alone",
    "computes": f"an extender that answers after {COMPUTES.computes_ms:.0f} ms of CPU",
}
WARM = 3  # gangs that are not counted
PAUSE_S = 0.1  # what is written after a bind is over when the next comes
DEADLINE_S = 60.0
NODE_CAPACITY = "64"  # CPUs per node, so that no gang has to go for another


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """How many come, where, and how fast kube-scheduler may call."""

    nodes: int
    gangs: int
    qps: tuple[int, int] | None
    shape: Shape = GANG

    def __str__(self) -> str:
        what = f"gang of {self.shape.pods}"
        if self.shape.groups > 1:
            what = f"tree of {self.shape.groups} x {self.shape.pods}"
        return f"{what}, {self.nodes:,} nodes, {describe_qps(self.qps)}"

    @property
    def sides(self) -> tuple[Side, ...]:
        return (OURS, NATIVE if self.shape.groups == 1 else NATIVE_TREES, *WRITTEN)


class Measured(msgspec.Struct, frozen=True):
    """What one run of a side took."""

    took: list[float]  # ms of the gangs that were bound
    steps: Steps  # of the same gangs; empty: not traced


async def measure(stand: Stand, side: Side, case: Case, *, trace: bool = False) -> Measured:
    """Let gangs come one after another."""
    await stand.sweep()
    await stand.fleet(case.nodes, cpu=NODE_CAPACITY)
    # the steps of a trace inside the service are those of its lines about calls
    await stand.start(side, case.qps, **({"log_level": "DEBUG"} if trace else {}))
    took, began = [], []
    try:
        async with (
            stand.loader() as api,
            stand.writer() as writer,
            BoundWatch(api, side.namespace) as watch,
            PodWatch(api, side.namespace) if trace else nullcontext() as pods,
        ):
            for number in range(WARM + case.gangs):
                ms, gang = await once(api, writer, watch, stand, side, case, number)
                if ms is not None and number >= WARM:
                    took.append(ms)
                    began.append(gang)
                await asyncio.sleep(PAUSE_S)
            steps = await steps_of_gangs(began, pods, stand.service) if pods else {}
    finally:
        await stand.stop()
        await stand.sweep()
    return Measured(took, steps)


async def once(
    api: Api, writer: Api, watch: BoundWatch, stand: Stand, side: Side, case: Case, number: int
) -> tuple[float | None, Began]:
    """Create one gang; return ms until all its pods are bound, None: never, and when it was created."""
    prefix = f"s{number}-"
    wall_s, began_s = time.time(), time.monotonic()
    for group in side.groups(case.shape, stand.minor, prefix):
        await api.create(group)
    groups_s = time.monotonic()
    pods = list(side.pods(case.shape, prefix))
    names = [pod["metadata"]["name"] for pod in pods]
    answered_at: dict[str, float] = {}
    last_s = await create_all(api, pods, answered_at=answered_at)
    began = Began(prefix, wall_s, began_s, groups_s, min(answered_at.values()), last_s)
    if side in WRITTEN:
        first = number * len(pods)
        await write_all(writer, pods, case.nodes, first=first, bind=side is WRITES)
    if not await watch.until(names, DEADLINE_S):
        return None, began
    return (max(watch.at[name] for name in names) - began_s) * 1000, began


def cases(scale: Scale) -> list[Case]:
    """Return what is measured."""
    if scale.quick:
        return [Case(nodes=40, gangs=5, qps=(200, 400))]
    return [
        Case(nodes=100, gangs=120, qps=(200, 400)),
        Case(nodes=100, gangs=120, qps=None),
        Case(nodes=1000, gangs=120, qps=(5000, 5000), shape=TREE),
    ]


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the sides in turns."""
    rounds = 1 if scale.quick else scale.rounds
    wanted = [case for case in cases(scale) if scale.wants("latency", str(case))]
    if not wanted:
        return
    print(
        f"latency: {len(wanted)} cases, {rounds} rounds, about {len(wanted) * rounds * 3:.0f} min"
    )
    stand = a_stand()
    with asyncio.Runner() as runner:
        for case in wanted:
            took: dict[str, list[list[float]]] = {side.name: [] for side in case.sides}
            traced: dict[str, Steps] = {}
            for number in range(rounds):
                for side in case.sides if number % 2 == 0 else case.sides[::-1]:
                    measured = runner.run(measure(stand, side, case, trace=scale.trace))
                    took[side.name].append(measured.took)
                    for step, times in measured.steps.items():
                        traced.setdefault(side.name, {}).setdefault(step, []).extend(times)
                    quantiles = [
                        quantile(took[side.name][-1] or [float("nan")], p) for p in (0.5, 0.99)
                    ]
                    quantiles_ms = f"p50 {quantiles[0]:.0f} ms, p99 {quantiles[1]:.0f} ms"
                    print(f"  {case}: round {number + 1}, {side.name}: {quantiles_ms}", flush=True)
            if traced:
                print(f"{case}, step by step\n{trace_table(traced)}", flush=True)
            yield figures_of(case, took)


def figures_of(case: Case, took: dict[str, list[list[float]]]) -> list[Figure]:
    """Compare medians and p99 of the runs in which every gang was bound."""
    done = {side: [ms for ms in runs if len(ms) == case.gangs] for side, runs in took.items()}
    return [
        Figure(
            bench="latency",
            what=f"{case}: create to all bound, {label} of {case.gangs}"
            + ("" if baseline == "native" else f", beside {name}"),
            unit="ms",
            better="lower",
            values=tuple(quantile(ms, part) for ms in done["ours"]),
            baseline_name=name,
            baseline=tuple(quantile(ms, part) for ms in done[baseline]),
            target="1 x" if label == "p99" and baseline == "native" else "",
            unfinished=len(took["ours"]) - len(done["ours"]),
            baseline_unfinished=len(took[baseline]) - len(done[baseline]),
        )
        for baseline, name in SIDES.items()
        for label, part in QUANTILES
    ]
