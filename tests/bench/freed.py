"""From a freed slot to the last bind of the gang that waited for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.figures import Figure, Scale
from tests.bench.race import BoundWatch, create_all
from tests.bench.sides import NATIVE, OURS, Shape, Side
from tests.bench.stand import Stand, a_stand
from tests.controlplane.objects import a_pod, condition_of
from tests.support.service.manifest_builders import SLOT
from tests.support.waiting import eventually

GANG = Shape(pods=8)
QPS = (200, 400)
WAITED_S = 5.0  # the gang has been waiting for a while, as gangs do
DEADLINE_S = 90.0


async def measure(stand: Stand, side: Side, nodes: int) -> float | None:
    """Let a gang of 8 wait while 7 slots are free, free one more; seconds to the last bind, None: never."""
    await stand.sweep()
    await stand.fleet(nodes)
    await stand.start(side, QPS)
    path = f"/api/v1/namespaces/{side.namespace}/pods"
    try:
        async with stand.loader() as api, BoundWatch(api, side.namespace) as watch:
            blockers = [
                a_pod(
                    f"block-{number}",
                    namespace=side.namespace,
                    requests={},
                    markers=(SLOT,),
                    nodeName=f"n{number:05}",
                )
                for number in range(0, nodes, 5)
            ][GANG.pods - 1 :]
            await create_all(api, blockers)
            for group in side.groups(GANG, stand.minor):
                await api.create(group)
            members = [side.pod(f"g0-{number}", "g0", SLOT) for number in range(GANG.pods)]
            await create_all(api, members)
            await eventually(lambda: waits(stand, api, path), "the gang is refused")
            await asyncio.sleep(WAITED_S)
            blocker = blockers[0]["metadata"]["name"]
            await api.delete(f"{path}/{blocker}", {"gracePeriodSeconds": 0})
            freed_s = time.monotonic()
            names = [pod["metadata"]["name"] for pod in members]
            if not await watch.until(names, DEADLINE_S):
                return None
            return max(watch.at[name] for name in names) - freed_s
    finally:
        await stand.stop()
        await stand.sweep()


async def waits(stand: Stand, api: Any, path: str) -> bool:
    """Return whether the gang was refused for want of capacity, by ours or by kube-scheduler."""
    if stand.service is not None:
        found = await stand.service.get("/v1/gangs")
        return any(g["state"] == "unschedulable" and g["outcome"] != "waiting" for g in found)
    pods = [p for p in (await api.get(path))["items"] if p["metadata"]["name"].startswith("g0")]
    return any(condition_of(pod, "PodScheduled") is not None for pod in pods)


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure ours and the native gang in turns."""
    nodes, rounds = (40, 1) if scale.quick else (1000, scale.rounds)
    name = f"gang of {GANG.pods}, {nodes:,} nodes"
    if not scale.wants("freed", name):
        return
    print(f"freed: {rounds} rounds, about {rounds * 1.5:.0f} min", flush=True)
    took: dict[str, list[float | None]] = {"ours": [], "native": []}
    stand = a_stand()
    with asyncio.Runner() as runner:
        for number in range(rounds):
            for side in (OURS, NATIVE) if number % 2 == 0 else (NATIVE, OURS):
                took[side.name].append(runner.run(measure(stand, side, nodes)))
                print(
                    f"  {name}: round {number + 1}, {side.name}: {took[side.name][-1]} s",
                    flush=True,
                )
    done = {side: tuple(s for s in times if s is not None) for side, times in took.items()}
    yield [
        Figure(
            bench="freed",
            what=f"{name}: freed slot to last bind",
            unit="s",
            better="lower",
            values=done["ours"],
            baseline_name="native gang",
            baseline=done["native"],
            target="2 s",
            unfinished=rounds - len(done["ours"]),
            baseline_unfinished=rounds - len(done["native"]),
        )
    ]
