"""What holds cost and give two tenants, by the share that may be held: `python -m tests.bench.hold_share [PERCENT...]`.

In virtual time, with the decisions of the service, a pass each five minutes: a cluster of 16 GPUs for a day. One tenant has
an endless queue of gangs of one GPU that run for 10 to 50 minutes, the other one tree after another, of 4 to 16 GPUs, that
run for an hour, and which it deletes after three hours without a place. In the lines `rack` each node is a rack, which each tree of
the other one fills. In the lines `never` it has one tree of as many GPUs as may be held, in pods of a whole node, and on each
node a pod of the first tenant never ends.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from statistics import mean

from tests.support.service.manifest_builders import GPU, RACK, a_node, a_pod
from tests.unit.core.holds.test_hold_planning import MINUTE_US, Simulation

NODES, GPUS_OF_NODE = 4, 4
GPUS = NODES * GPUS_OF_NODE
MINUTES, STEP = 24 * 60, 5
SIZES = (4, 8, 12, 16)
PATIENCE = 180  # minutes


class TwoTenants:
    """The cluster, with what the tenants submit and when it ends."""

    def __init__(
        self, max_percent: int, *, stuck: bool, sizes: tuple[int, ...], topo: str = ""
    ) -> None:
        fleet = [
            a_node(f"n{i}", {RACK: f"r{i}"} if topo else {}, gpu=GPUS_OF_NODE) for i in range(NODES)
        ]
        self.simulation = Simulation(*fleet, max_percent=max_percent, topo=topo)
        self.random = random.Random(1)
        self.sizes = sizes
        self.made = self.trees = 0
        self.ends: dict[str, int] = {}  # the minute in which a running gang ends
        self.waiting: dict[str, tuple[str, int, int]] = {}  # tenant, size, since when
        self.waited: dict[int, list[int]] = defaultdict(list)  # minutes, by size
        self.used: Counter[str] = Counter()  # GPU minutes
        self.gave_up: Counter[int] = Counter()
        self.idle_held = 0
        self.stuck = stuck
        if stuck:  # a GPU of each node never frees, and pods of the other tenant need a whole node
            for node in range(NODES):
                service = a_pod(
                    f"service-{node}", node=f"n{node}", namespace="small", requests={GPU: 1}
                )
                self.simulation.cluster.add(service)

    def submit(self, tenant: str, size: int, minute: int) -> None:
        name = f"{tenant}-{self.made}"
        self.made += 1
        gpu = GPUS_OF_NODE if self.stuck and tenant == "large" else 1
        self.simulation.add(name, size // gpu, gpu=gpu, namespace=tenant)
        self.waiting[name] = (tenant, size, minute)

    def step(self, minute: int) -> None:
        """One minute: what ends, what comes, and a pass."""
        for name in [name for name, end in self.ends.items() if end <= minute]:
            self.simulation.remove(name)
            del self.ends[name]
        for name, (tenant, size, since) in list(self.waiting.items()):
            if tenant == "large" and not self.stuck and minute - since >= PATIENCE:
                self.simulation.remove(name)
                del self.waiting[name]
                self.gave_up[size] += 1
        tenants = Counter(tenant for tenant, _, _ in self.waiting.values())
        for _ in range(4 - tenants["small"]):
            self.submit("small", 1, minute)
        if not tenants["large"]:
            self.submit("large", self.sizes[self.trees % len(self.sizes)], minute)
            self.trees += 1
        self.simulation.now_us += (STEP - 1) * MINUTE_US  # a pass adds one
        self.simulation.one_pass()
        bound = {g.gang.partition("/")[2] for g in self.simulation.state.gangs.values() if g.bound}
        for name in sorted(bound & self.waiting.keys()):
            tenant, size, since = self.waiting.pop(name)
            runs = self.random.randint(10, 50) if tenant == "small" else 60
            self.ends[name] = minute + runs
            self.used[tenant] += size * runs
            if tenant == "large":
                self.waited[size].append(minute - since)
        free = GPUS - sum(
            dict(pod.shape.requests).get(GPU, 0)
            for pod in self.simulation.view.pods.values()
            if pod.node is not None
        )
        self.idle_held += STEP * free if self.simulation.state.capacity_holds else 0


def measure(max_percent: int, kind: str) -> TwoTenants:
    sizes = {"end": SIZES, "rack": (GPUS_OF_NODE,), "never": (GPUS * max_percent // 100,)}[kind]
    topo = RACK if kind == "rack" else ""
    tenants = TwoTenants(max_percent, stuck=kind == "never", sizes=sizes, topo=topo)
    for minute in range(0, MINUTES, STEP):
        tenants.step(minute)
    return tenants


def main(percents: tuple[int, ...]) -> None:
    print(
        "percent  large trees  GPUs used  of them large  idle beside a hold  minutes waited by size (admitted, deleted)"
    )
    for percent in percents:
        for kind in ("end", "rack", "never"):
            row = measure(percent, kind)
            used, large, idle = (
                100 * amount / GPUS / MINUTES
                for amount in (row.used.total(), row.used["large"], row.idle_held)
            )
            waited = ", ".join(
                f"{size}: {mean(row.waited[size] or [0]):.0f} ({len(row.waited[size])}, {row.gave_up[size]})"
                for size in sorted({*row.waited, *row.gave_up})
            )
            print(
                f"{percent:7}  {kind:11}  {used:8.1f}%  {large:12.1f}%  {idle:17.1f}%  {waited}",
                flush=True,
            )


if __name__ == "__main__":
    main(tuple(int(word) for word in sys.argv[1:]) or (25, 50, 75, 100))
