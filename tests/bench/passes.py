"""CPU time of the passes of the control loop per member of a tree: must not grow with the tree.

The real control loop, leader and fold of the log on the fakes of the unit tests, without HTTP, database and search for a
place. A gang of some size is created, admitted, nominated and bound, `BATCH` changes before each pass, as in a burst of a
watch. Measured is the thread CPU time of the passes with `BATCH` changes; between them the rest of the gang changes at
once, so that passes are measured at all stages of a large gang. Beside it stand other gangs that do not change.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from extender.core.model.cluster_view import with_group, with_node, with_pod
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Group, leaf_key
from extender.core.model.pods import GATE, Pod, PodShape
from tests.support.service.fakes import Stage

BATCH = 10  # changes before one pass
SAMPLES = 12  # measured passes of each stage
SIZES = (10, 100, 1_000, 4_000)
PER_NODE = 8
STAGES = ("created", "nominated", "bound", "beside")
GANGS_BESIDE, MEMBERS_BESIDE = 20, 50


class Gang:
    """A gang of pods of one CPU in one leaf."""

    def __init__(self, name: str, size: int) -> None:
        key = leaf_key("a", name)
        self.group = Group(key=key, uid=GangUid(name), minimum=size)
        shape = PodShape(requests=(("cpu", 1000),))
        self.pods = [
            Pod(
                uid=PodUid(f"{name}-{n}"), namespace="a", name=f"{name}-{n:05}", shape=shape, group=key,
                gates=(GATE,), created_us=n,
            )
            for n in range(size)
        ]  # fmt: skip


class Passes:
    """A stage whose cluster is changed by a script, and the CPU time of its passes."""

    def __init__(self, nodes: int) -> None:
        self.stage = Stage(max_new_gangs_per_minute=1_000_000)
        for n in range(nodes):
            node = Node(name=NodeName(f"n{n}"), allocatable={"cpu": 1000 * PER_NODE, "pods": 110})
            self.stage.cluster.seen = with_node(self.stage.cluster.seen, node)
        self.profile: cProfile.Profile | None = None

    def show(self, pods: Sequence[Pod]) -> None:
        """Let the cluster show pods."""
        view = self.stage.cluster.seen
        for pod in pods:
            view = with_pod(view, pod)
        self.stage.cluster.seen = view
        self.stage.clock.advance(0.01)
        self.stage.leader.lease.renew_from(self.stage.clock.ms)

    async def one_pass(self, *, measured: bool) -> float:
        """Run a pass, and another one where it recorded something; return its CPU time in seconds."""
        took_s = 0.0
        for _ in range(2):
            recorded = len(self.stage.database.rows)
            began_s = time.thread_time()
            if measured and self.profile is not None:
                self.profile.enable()
            await self.stage.control_loop.run_pass()
            if self.profile is not None:
                self.profile.disable()
            took_s += time.thread_time() - began_s
            await self.stage.control_loop.search(within_s=60)
            if len(self.stage.database.rows) == recorded:
                break
        return took_s

    async def change(self, pods: Sequence[Pod], change: Callable[[Pod], Pod]) -> float:
        """Change pods, `BATCH` before a measured pass; return the CPU time per pod in seconds."""
        step = max(BATCH, -(-len(pods) // SAMPLES))
        took_s, count = 0.0, 0
        for start in range(0, len(pods), step):
            part = pods[start : start + step]
            few, rest = part[:BATCH], part[BATCH:]
            self.show([change(pod) for pod in few])
            took_s += await self.one_pass(measured=True)
            count += len(few)
            if rest:
                self.show([change(pod) for pod in rest])
                await self.one_pass(measured=False)
        return took_s / count

    async def create(self, gang: Gang) -> float:
        """Create a gang, and let it be admitted."""
        self.stage.cluster.seen = with_group(self.stage.cluster.seen, gang.group)
        took_s = await self.change(gang.pods, lambda pod: pod)
        for _ in range(3):
            await self.one_pass(measured=False)
        held = self.stage.leader.committed.gangs[gang.group.uid].reservations
        assert len(held) == len(gang.pods), (len(held), len(gang.pods))
        return took_s

    async def bind(self, gang: Gang) -> tuple[float, float]:
        """Nominate and ungate the members, then bind them."""
        held = self.stage.leader.committed.gangs[gang.group.uid].reservations
        nominated = await self.change(
            gang.pods,
            lambda pod: msgspec.structs.replace(pod, gates=(), nominated=held[pod.uid].node),
        )
        bound = await self.change(
            gang.pods,
            lambda pod: msgspec.structs.replace(
                pod, gates=(), node=held[pod.uid].node, plan=held[pod.uid].plan, phase="Running"
            ),
        )
        assert len(self.stage.leader.committed.gangs[gang.group.uid].bound) == len(gang.pods)
        return nominated, bound


async def measure(size: int, profile: cProfile.Profile | None = None) -> dict[str, float]:
    """Return the CPU time per member in seconds, by stage, beside gangs that run."""
    passes = Passes(-(-size // PER_NODE) + GANGS_BESIDE * MEMBERS_BESIDE // PER_NODE + 20)
    async with passes.stage as stage:
        await stage.lead()
        for n in range(GANGS_BESIDE):
            other = Gang(f"other-{n}", MEMBERS_BESIDE)
            await passes.create(other)
            await passes.bind(other)
        gang = Gang("gang", size)
        passes.profile = profile
        created = await passes.create(gang)
        nominated, bound = await passes.bind(gang)
        ordinary = [
            Pod(uid=PodUid(f"o{n}"), namespace="b", name=f"o{n}", shape=PodShape(), node=NodeName("n0"))
            for n in range(BATCH * SAMPLES)
        ]  # fmt: skip
        beside = await passes.change(ordinary, lambda pod: pod)
    return dict(zip(STAGES, (created, nominated, bound, beside), strict=True))


def main() -> None:
    """Print CPU milliseconds of passes per member; with `--profile SIZE` where they are spent."""
    if "--profile" in sys.argv:
        profile = cProfile.Profile(time.thread_time)
        asyncio.run(measure(int(sys.argv[-1]), profile))
        pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
        return
    print(f"CPU ms of passes per member, {BATCH} changes for each pass")
    print("members  " + "  ".join(f"{stage:>9}" for stage in STAGES) + "      total")
    for size in SIZES:
        found = asyncio.run(measure(size))
        total = sum(found[stage] for stage in STAGES[:3])
        print(
            f"{size:>7}  "
            + "  ".join(f"{found[stage] * 1000:9.3f}" for stage in STAGES)
            + f"  {total * 1000:9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
