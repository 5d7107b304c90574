"""Trees of higher priority come to 100 nodes that are full: ours, and kube-scheduler's own workload-aware preemption.

The shapes are upstream's (scheduler_perf/workload_preemption of Kubernetes 1.37), with composites that are
disrupted as a whole where upstream has groups. In 1.37 the gate GenericWorkload alone switches the native
preemption on; trees need two gates more. What runs is the same for both sides, on the same nodes: it is
created there, and the same kubelet (tests/controlplane) starts it, and ends what is deleted after its
grace period.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tests.bench.figures import Figure, Scale
from tests.bench.race import BoundWatch, Run, cpu_s_when_settled, create_all, keep, marks_of, used
from tests.bench.sides import NATIVE, NATIVE_TREES, OURS, Shape, Side
from tests.bench.stand import Stand, a_stand, describe_qps
from tests.controlplane.api import Api, ApiError
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import a_pod, amount_of, requests_of
from tests.controlplane.waiting import create_priority_class
from tests.support.waiting import eventually

CLASSES = {"bench-low": 1000, "bench-high": 9_999_999}  # upstream's priorities
LOW, HIGH = CLASSES
QPS = (5000, 5000)  # as upstream measures
NODE_CAPACITY = "4"  # CPUs of a node
GRACE_S = 1  # of victims: a deletion has two steps, as on a cluster with kubelets
SETTLED_S = 3.0  # after everything runs: what is written about it is over
DEADLINE_S = 90.0
WARM = Shape(pods=8)

Object = dict[str, Any]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Who comes, and who runs there; each node has one pod of the former or all its share of the latter."""

    nodes: int
    preemptors: Shape
    cpu: str  # of each of their pods
    composites: int = 0  # that run there, of two groups each; 0: pods outside of all groups
    pods: int  # that run there, in all
    low_cpu: str

    @property
    def victims(self) -> Shape:
        """Return what runs there as a shape; pods on their own are none."""
        return Shape(trees=self.composites, groups=2, pods=self.pods // (2 * self.composites))

    def __str__(self) -> str:
        trees, size = self.preemptors.trees, self.preemptors.groups * self.preemptors.pods
        who = "1 tree" if trees == 1 else f"{trees} trees"
        whom = f"{self.pods:,} pods"
        if self.composites:
            whom = f"{self.composites} composites of {self.pods // self.composites} pods"
        where = f"{self.nodes} nodes, {describe_qps(QPS)}"
        return f"{who} of {size} pods where {whom} run, {where}"


class Taken(Run, frozen=True, kw_only=True):
    """One run, and what it cost others."""

    evicted: int  # pods
    spare: int  # of them: pods of units that could have stayed, where they ran
    torn: int  # units of which a part was evicted and a part was not

    @property
    def took_s(self) -> float:
        """Return the time from the last create of a preemptor to its last bind."""
        return self.bound_s[-1] - self.created_s

    def __str__(self) -> str:
        """Return one line of progress."""
        duration = f"{self.took_s:.2f} s" if self.finished else f"only {len(self.bound_s)} bound"
        return f"{duration}, {self.evicted} evicted, {self.spare} of them not needed, {self.torn} units torn"


def running(side: Side, case: Case) -> list[Object]:
    """Make the pods that run there: on each node the same number, those of a unit on nodes of their own."""
    chance = random.Random(1)  # the same for both sides
    where = [
        f"n{number:05}"
        for _ in range(case.pods // case.nodes)
        for number in chance.sample(range(case.nodes), case.nodes)
    ]
    spec: Object = {
        "requests": {"cpu": case.low_cpu, "memory": "100Mi"},
        "priorityClassName": LOW,
        "terminationGracePeriodSeconds": GRACE_S,
    }
    if case.composites:
        pods = list(side.pods(case.victims, "low", **spec))
    else:
        pods = [a_pod(f"low-{n}", namespace=side.namespace, **spec) for n in range(case.pods)]
    return [
        {**pod, "spec": {**pod["spec"], "nodeName": node}}
        for pod, node in zip(pods, where, strict=True)
    ]


def unit_of(pod: str) -> str:
    """Return what a pod that runs there is disrupted with: its composite (`low3` of low3-1-7), or itself."""
    return pod if pod.startswith("low-") else pod.partition("-")[0]


def spared(evicted: Iterable[Object], stayed: Iterable[Object], capacity: Mapping[str, int]) -> int:
    """Count pods of units that could be put back where they ran, all of a unit or none.

    Args:
        evicted: Pods as they were created.
        stayed: Pods that have a node in the end, the preemptor's among them.
        capacity: Node -> CPU in millicores.
    """
    free = dict(capacity)
    for pod in stayed:
        free[pod["spec"]["nodeName"]] -= requests_of(pod).get("cpu", 0)
    units: dict[str, list[Object]] = {}
    for pod in evicted:
        units.setdefault(unit_of(pod["metadata"]["name"]), []).append(pod)
    count = 0
    for pods in units.values():
        left = dict(free)
        for pod in pods:
            left[pod["spec"]["nodeName"]] -= requests_of(pod)["cpu"]
        if min(left[pod["spec"]["nodeName"]] for pod in pods) >= 0:
            free, count = left, count + len(pods)
    return count


async def measure(stand: Stand, side: Side, case: Case) -> Taken:
    """Fill the cluster, let the preemptors come, and look what it took."""
    await stand.sweep()
    await stand.fleet(case.nodes, cpu=NODE_CAPACITY)
    await stand.start(side, QPS)
    try:
        async with (
            stand.loader() as api,
            stand.loader() as hands,
            BoundWatch(api, side.namespace) as watch,
            Kubelet(hands),
        ):
            await warm_up(stand, side, api, watch)
            low = await fill(stand, side, case, api)
            shape, spec = case.preemptors, {"priorityClassName": HIGH}
            for group in side.groups(shape, stand.minor, **spec):
                await api.create(group)
            wanted = {"cpu": case.cpu, "memory": "100Mi"}
            pods = list(side.pods(shape, requests=wanted, **spec))
            names = {pod["metadata"]["name"] for pod in pods}
            calls, before = (await stand.filter_times()).count, stand.cpu_s()
            wall_s, began_s = time.time(), time.monotonic()
            created_s = await create_all(api, pods)
            await watch.until(names, DEADLINE_S)
            after = await cpu_s_when_settled(stand)
            calls = (await stand.filter_times()).count - calls
            there = await settled(api, side)
        marks = await marks_of(stand.service, wall_s) if stand.service is not None else {}
        gone = [pod for pod in low if pod["metadata"]["name"] not in there]
        stay = {unit_of(name) for name in there if name.startswith("low")}
        capacity = {f"n{n:05}": amount_of("cpu", NODE_CAPACITY) for n in range(case.nodes)}
        on_nodes = [pod for pod in there.values() if pod["spec"].get("nodeName")]
        return Taken(
            side=side.name,
            pods=len(pods),
            created_s=created_s - began_s,
            bound_s=tuple(sorted(at - began_s for name, at in watch.at.items() if name in names)),
            cpu_s={name: round(after[name] - before.get(name, 0), 2) for name in after},
            marks_s=marks,
            calls=calls,
            evicted=len(gone),
            spare=spared(gone, on_nodes, capacity),
            torn=len({unit_of(pod["metadata"]["name"]) for pod in gone} & stay),
        )
    finally:
        await stand.stop()
        await stand.sweep()


async def warm_up(stand: Stand, side: Side, api: Api, watch: BoundWatch) -> None:
    """Let a side place a gang that requests nothing and is never evicted."""
    spec = {"priorityClassName": HIGH}
    for group in side.groups(WARM, stand.minor, "warm", **spec):
        await api.create(group)
    pods = list(side.pods(WARM, "warm", requests={}, **spec))
    await create_all(api, pods)
    if not await watch.until((pod["metadata"]["name"] for pod in pods), DEADLINE_S):
        raise RuntimeError(f"{side.name} did not bind {WARM} to warm up")


async def fill(stand: Stand, side: Side, case: Case, api: Api) -> list[Object]:
    """Create the victims, and wait until they run and the service has recorded it."""
    if case.composites:
        spec = {"priorityClassName": LOW, "whole": True}
        for group in side.groups(case.victims, stand.minor, "low", **spec):
            await api.create(group)
    low = running(side, case)
    await create_all(api, low)
    path = f"/api/v1/namespaces/{side.namespace}/pods"

    async def all_run() -> bool:
        items = (await api.get(path))["items"]
        phases = [p["status"]["phase"] for p in items if p["metadata"]["name"].startswith("low")]
        return phases.count("Running") == len(low)

    async def known() -> bool:
        if stand.service is None:
            return True
        gangs = await stand.service.get("/v1/gangs")
        mine = [g for g in gangs if g["gang"].rpartition("/")[2].startswith("low")]
        return [g["state"] for g in mine].count("scheduled") == case.composites

    await eventually(all_run, every_s=0.5)
    await eventually(known, every_s=0.5)
    await asyncio.sleep(SETTLED_S)
    return low


async def settled(api: Api, side: Side) -> dict[str, Object]:
    """Wait until no pod terminates any more; return the pods that are left, by name."""
    path = f"/api/v1/namespaces/{side.namespace}/pods"

    async def look() -> dict[str, Object] | None:
        items = (await api.get(path))["items"]
        going = any("deletionTimestamp" in pod["metadata"] for pod in items)
        return None if going else {pod["metadata"]["name"]: pod for pod in items}

    found: dict[str, Object] = await eventually(look, "no pod terminates", every_s=0.5)
    return found


def cases(scale: Scale) -> list[tuple[Case, Sequence[Side]]]:
    """Return what is measured and who runs; flat gangs meet the native preemption with no more gates than it needs."""
    flat, trees = (OURS, NATIVE), (OURS, NATIVE_TREES)
    if scale.quick:
        few = Case(nodes=6, preemptors=Shape(pods=6), cpu="3970m", pods=18, low_cpu="40m")
        units = Case(
            nodes=6, preemptors=Shape(groups=2, pods=2), cpu="3500m",
            composites=3, pods=18, low_cpu="600m",
        )  # fmt: skip
        return [(few, flat), (units, trees)]
    lone = Case(nodes=100, preemptors=Shape(pods=100), cpu="3970m", pods=1000, low_cpu="40m")
    common: dict[str, Any] = {"nodes": 100, "cpu": "3500m", "pods": 500, "low_cpu": "600m"}
    one = Case(preemptors=Shape(groups=2, pods=50), composites=5, **common)
    ten = Case(preemptors=Shape(trees=10, groups=2, pods=5), composites=50, **common)
    return [(lone, flat), (one, trees), (ten, trees)]


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure case by case, ours and the native preemption in turns."""
    wanted = [(case, who) for case, who in cases(scale) if scale.wants("preemption", str(case))]
    if not wanted:
        return
    rounds = 1 if scale.quick else scale.rounds
    print(f"preemption: {len(wanted)} cases, {rounds} rounds, about {len(wanted) * rounds * 2} min")
    stand = a_stand()
    with asyncio.Runner() as runner:
        runner.run(create_classes(stand))
        for case, sides in wanted:
            runs: dict[str, list[Taken]] = {side.name: [] for side in sides}
            for number in range(rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    taken = runner.run(measure(stand, side, case))
                    runs[side.name].append(taken)
                    print(f"  {case}: round {number + 1}, {side.name}: {taken}", flush=True)
            keep("preemption", case, runs)
            yield figures_of(case, runs)


async def create_classes(stand: Stand) -> None:
    """Create the priority classes; another benchmark of this stand may have done so."""
    async with stand.loader() as api:
        for name, value in CLASSES.items():
            try:
                await create_priority_class(api, name, value)
            except ApiError as known:
                if known.reason != "AlreadyExists":
                    raise


def figures_of(case: Case, runs: Mapping[str, Sequence[Taken]]) -> list[Figure]:
    """Compare the times and the numbers of victims of the runs that finished."""
    done = {name: [run for run in of_side if run.finished] for name, of_side in runs.items()}
    medians = "; ".join(
        f"{name}: {statistics.median(run.evicted for run in of_side):.0f} evicted, "
        f"{statistics.median(run.spare for run in of_side):.0f} of them not needed, "
        f"{statistics.median(run.torn for run in of_side):.0f} units torn"
        for name, of_side in runs.items()
    )
    common: dict[str, Any] = {
        "bench": "preemption",
        "better": "lower",
        "baseline_name": "native preemption",
        "unfinished": len(runs["ours"]) - len(done["ours"]),
        "baseline_unfinished": len(runs["native"]) - len(done["native"]),
        "note": f"{case}: pods, medians of all runs: {medians}. {used(runs)}",
    }
    return [
        Figure(
            what=f"{case}: last create to last bind",
            unit="s",
            values=tuple(run.took_s for run in done["ours"]),
            baseline=tuple(run.took_s for run in done["native"]),
            **common,
        ),
        Figure(
            what=f"{case}: pods evicted",
            unit="pods",
            values=tuple(float(run.evicted) for run in done["ours"]),
            baseline=tuple(float(run.evicted) for run in done["native"]),
            **common,
        ),
    ]
