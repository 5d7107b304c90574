"""What ordinary pods lose: by an extender being there, by members that wait at the gate, by refused ones.

The same ordinary pods (1 CPU, 1 GPU) on the same fleet, in each scope of deploy/kubernetes/scopes and
without an extender; what any extender would cost is measured beside, with one that only answers. Gangs of
8 want a rack with 8 slots where every rack has 4: each member alone would pass kube-scheduler's own
filters, none is ever placed, and ordinary pods take nothing from them. First ordinary pods come at 20/s
(create to bind of each is timed), then at full speed. At the QPS that deploy/ ships kube-scheduler's client is
the limit (2,000 Bindings at 200/s and 400 at once: 8 s, 250/s), so full speed is measured at QPS 5,000 as well,
where nothing but the machine limits.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.race import BoundWatch, create_all
from tests.bench.sides import (
    NAMESPACE,
    ORDINARY,
    OUR_VERSION,
    OURS,
    RACK,
    Side,
    shipped_config,
)
from tests.bench.stand import OTHERS, Stand, a_stand, describe_qps
from tests.controlplane.objects import BIND, MEMBER, a_pod, condition_of
from tests.support.service.manifest_builders import SLOT, a_group
from tests.support.waiting import eventually

ALONE = "no extender"
SAME_WAIT = "no extender, the same members wait at the same gate"
ECHO = "an extender in Go that only answers, the same members wait at the same gate"
MARKER = "marker-resource"
MANY = "as many nodes scored as without us"  # percentageOfNodesToScore is left to kube-scheduler
SCOPES = (
    MARKER,
    f"{MARKER}, {MANY}",
    "contended-resource",
    f"contended-resource, {MANY}",
    "everything",
    f"everything, {MANY}",
)
THROUGHPUT = {MARKER: "0.95 x", "contended-resource": "0.85 x"}
QPS = (200, 400)  # as deploy/ ships it, on both sides
UNLIMITED = (5000, 5000)
GANG = 8
PER_S = 20.0
DEADLINE_S = 240.0
GPU = "nvidia.com/gpu"


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """How many members wait meanwhile."""

    gated: int = 0
    refused: int = 0

    def __str__(self) -> str:
        if self.gated:
            return f"{self.gated:,} members wait at the gate"
        return f"{self.refused:,} members refused without it" if self.refused else "no member waits"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits, and how fast kube-scheduler's client may call."""

    waiting: Waiting
    qps: tuple[int, int] = QPS

    def __str__(self) -> str:
        return str(self.waiting) + ("" if self.qps == QPS else f", {describe_qps(self.qps)}")


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    nodes: int
    slowly: int  # ordinary pods at 20/s, where kube-scheduler's client may call as fast as shipped
    at_once: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gave."""

    per_s: float
    latencies_ms: tuple[float, ...]
    filter_calls: int  # while pods came slowly
    service_cpu_s: float  # the service and its planner, meanwhile
    unbound: int
    cpu_s: dict[str, float]  # by program, while pods came at full speed
    took_s: float  # the time of that
    others: float  # share of the machine's CPU time that went to work that is none of ours

    def __str__(self) -> str:
        """Return one line of progress."""
        cpu = ", ".join(f"{name} {used:.1f}" for name, used in self.cpu_s.items() if used >= 0.05)
        p50_p99 = "".join(
            f"{label} {quantile(self.latencies_ms, part):.1f} ms, "
            for label, part in QUANTILES
            if self.latencies_ms
        )
        return (
            f"{self.per_s:.0f}/s, {p50_p99}{self.unbound} unbound; "
            f"CPU seconds in {self.took_s:.1f} s at full speed: {cpu}"
        )


async def measure(stand: Stand, side: Side, situation: Situation, size: Size) -> Loss:
    """Bring up the situation, then let ordinary pods come."""
    await stand.sweep()
    await stand.fleet(size.nodes)
    await stand.start(side, situation.qps)
    try:
        async with stand.loader() as api, BoundWatch(api, NAMESPACE["ordinary"]) as watch:
            await wait_for_capacity(stand, api, situation.waiting)
            warm = ordinary("warm", GANG)
            await create_all(api, warm)
            await seen(watch, warm)
            before = (await stand.filter_times()).count
            began_s, used = time.monotonic(), stand.cpu_s()
            sent_at: dict[str, float] = {}
            slow = ordinary("slow", size.slowly if situation.qps == QPS else 0)
            await create_all(api, slow, PER_S, sent_at)
            unbound = await seen(watch, slow)
            service_s = service_cpu_s(stand.cpu_s()) - service_cpu_s(used)
            calls = (await stand.filter_times()).count - before
            took = [watch.at[name] - at for name, at in sent_at.items() if name in watch.at]
            fast = ordinary("fast", size.at_once)
            began: dict[str, float] = {}
            at_start = stand.cpu_s()
            await create_all(api, fast, 0, began)
            unbound += await seen(watch, fast)
            at_end = stand.cpu_s()
            others_s = at_end[OTHERS] - used[OTHERS]
            last_s = max((watch.at[n] for n in began if n in watch.at), default=0)
            return Loss(
                per_s=size.at_once / (last_s - min(began.values())),
                latencies_ms=tuple(sorted(t * 1000 for t in took)),
                filter_calls=calls,
                service_cpu_s=service_s,
                unbound=unbound,
                cpu_s={name: at_end[name] - at_start.get(name, 0.0) for name in at_end},
                took_s=last_s - min(began.values()),
                others=others_s / (time.monotonic() - began_s) / (os.cpu_count() or 1),
            )
    finally:
        await stand.stop()
        await stand.sweep()


def ordinary(prefix: str, count: int) -> list[dict[str, Any]]:
    return [
        a_pod(f"{prefix}-{n}", namespace=NAMESPACE["ordinary"], markers=(GPU,))
        for n in range(count)
    ]


async def seen(watch: BoundWatch, pods: Sequence[dict[str, Any]]) -> int:
    """Wait until pods are bound; the number of those that never were."""
    names = {pod["metadata"]["name"] for pod in pods}
    await watch.until(names, DEADLINE_S)
    return len(names - watch.at.keys())


async def wait_for_capacity(stand: Stand, api: Any, waiting: Waiting) -> None:
    """Create gangs without a place, and wait until all of them are refused in every status."""
    count = waiting.gated or waiting.refused
    if not count:
        return
    # Without the policy (it holds in our namespace only) members must have what it would add.
    namespace = NAMESPACE["ours" if waiting.gated else "ordinary"]
    spec: dict[str, Any] = {} if waiting.gated else {"schedulerName": "gang-scheduler"}
    markers = (SLOT,) if waiting.gated else (SLOT, MEMBER, BIND)
    gangs = [f"w{number}" for number in range(count // GANG)]
    for gang in gangs:
        await api.create(
            a_group(gang, gang=GANG, topo=RACK, namespace=namespace, version=OUR_VERSION)
        )
    pods = [
        a_pod(
            f"{gang}-{n}",
            namespace=namespace,
            markers=markers,
            metadata={"labels": {"gang-extender.dev/pod-group": gang}},
            **spec,
        )
        for gang in gangs
        for n in range(GANG)
    ]
    await create_all(api, pods)
    service = stand.service
    if service is None:  # no process will ever remove their gates
        return

    async def on_the_groups() -> bool:
        path = f"/apis/{OUR_VERSION}/namespaces/{namespace}/podgroups"
        items = (await api.get(path))["items"]
        kind = "PodGroupInitiallyScheduled"
        return all(condition_of(item, kind) is not None for item in items)

    async def all_waiting() -> bool:
        found = await service.get("/v1/gangs")
        ready = [g for g in found if g["state"] == "unschedulable" and g["outcome"] != "waiting"]
        if len(ready) < len(gangs) or waiting.gated:
            return len(ready) == len(gangs) and await on_the_groups()
        items = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return sum(condition_of(i, "PodScheduled") is not None for i in items) >= len(pods)

    await eventually(all_waiting, every_s=0.5)


def service_cpu_s(used: Mapping[str, float]) -> float:
    return sum(spent for name, spent in used.items() if name.startswith("service"))


def in_scope(name: str) -> Side:
    return msgspec.structs.replace(OURS, config=partial(scope_config, name=name))


def scope_config(url: str, name: str) -> dict[str, Any]:
    scope, _, variant = name.partition(", ")
    config = shipped_config(url, f"scopes/{scope}")
    if variant == MANY:
        del config["profiles"][0]["percentageOfNodesToScore"]
    return config


def same_profiles(url: str) -> dict[str, Any]:
    """Configure no extender, and the profile of the members all the same: they wait in kube-scheduler's own queue."""
    return {"profiles": scope_config(url, f"{MARKER}, {MANY}")["profiles"]}


def echo_of(scope: str) -> str:
    return f"{ECHO}, {scope}"


def baselines(waiting: Waiting, scopes: Sequence[str]) -> dict[str, Side]:
    """Return the baselines: nothing of ours, and what a call costs with any server."""
    sides = {ALONE: ORDINARY}
    if waiting.gated:
        sides[SAME_WAIT] = msgspec.structs.replace(ORDINARY, config=same_profiles)
        for scope in scopes:
            if not scope.startswith(MARKER):  # there is no call about ordinary pods
                side = in_scope(scope)
                sides[echo_of(scope)] = msgspec.structs.replace(side, service=False, echo=True)
    return sides


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure situation by situation: in each round every scope, and once no extender."""
    size = Size(nodes=1000, slowly=600, at_once=2000)
    none_waiting, gated = Waiting(), Waiting(gated=5000)
    situations = [
        Situation(waiting=none_waiting),
        Situation(waiting=none_waiting, qps=UNLIMITED),
        Situation(waiting=gated),
        Situation(waiting=gated, qps=UNLIMITED),
        Situation(waiting=Waiting(refused=1000)),
    ]
    scopes: tuple[str, ...] = SCOPES
    if scale.quick:
        size = Size(nodes=40, slowly=20, at_once=40)
        situations = [
            Situation(waiting=none_waiting, qps=UNLIMITED),
            Situation(waiting=Waiting(gated=40)),
            Situation(waiting=Waiting(refused=24)),
        ]
        scopes = SCOPES[2:3]
    work = [
        (situation, [s for s in scopes if scale.wants("storms", f"{s}, {situation}")])
        for situation in situations
    ]
    work = [(situation, wanted) for situation, wanted in work if wanted]
    if not work:
        return
    rounds = 1 if scale.quick else scale.rounds
    runs = sum(len(wanted) + len(baselines(at.waiting, wanted)) for at, wanted in work) * rounds
    print(f"storms: {runs} runs, about {runs * 1.2:.0f} min", flush=True)
    stand = a_stand()
    with asyncio.Runner() as runner:
        for situation, wanted in work:
            alone = baselines(situation.waiting, wanted)
            losses: dict[str, list[Loss]] = {name: [] for name in (*wanted, *alone)}
            for number in range(rounds):
                for name in list(losses) if number % 2 == 0 else list(losses)[::-1]:
                    side = alone.get(name) or in_scope(name)
                    who = none_waiting if name == ALONE else situation.waiting
                    where = msgspec.structs.replace(situation, waiting=who)
                    loss = runner.run(measure(stand, side, where, size))
                    losses[name].append(loss)
                    print(f"  {situation}, round {number + 1}, {name}: {loss}", flush=True)
            for scope, baseline in itertools.product(wanted, alone):
                if not baseline.startswith(ECHO) or baseline == echo_of(scope):
                    yield figures_of(scope, situation, losses[scope], baseline, losses[baseline])


def figures_of(
    scope: str, situation: Situation, ours: list[Loss], baseline: str, alone: list[Loss]
) -> list[Figure]:
    """Compare throughput and latencies; runs that left pods unbound count as unfinished."""
    beside = {SAME_WAIT: ", and so they do without us", ALONE: ""}
    name = f"{scope}, {situation}" + beside.get(baseline, ", against an extender that only answers")
    done = [loss for loss in ours if not loss.unbound]
    base = [loss for loss in alone if not loss.unbound]
    calls = statistics.median([loss.filter_calls for loss in ours])
    seconds = statistics.median([loss.service_cpu_s for loss in ours])
    pods = len(ours[0].latencies_ms)
    slowly = f"while {pods} pods came at {PER_S:g}/s, {calls:.0f} filter calls and {seconds:.1f} s of CPU of the service; "
    others = " and ".join(
        f"{statistics.median([loss.others for loss in losses]):.0%}" for losses in (ours, alone)
    )
    common: dict[str, Any] = {
        "bench": "storms",
        "baseline_name": baseline,
        "unfinished": len(ours) - len(done),
        "baseline_unfinished": len(alone) - len(base),
        "note": f"{name}: {slowly if pods else ''}work that is none of ours took {others} of the machine",
    }
    echo = baseline.startswith(ECHO)  # how much of the loss any extender would cost
    stated = bool(situation.waiting.refused)  # a loss to be known, not a promise
    made = [
        Figure(
            what=f"{name}: ordinary pods at full speed",
            unit="pods/s",
            better="higher",
            values=tuple(loss.per_s for loss in done),
            baseline=tuple(loss.per_s for loss in base),
            target="" if stated or echo else THROUGHPUT.get(scope, ""),
            **common,
        )
    ]
    for label, part in QUANTILES if pods else ():
        made.append(
            Figure(
                what=f"{name}: create to bind at {PER_S:g}/s, {label}",
                unit="ms",
                better="lower",
                values=tuple(quantile(loss.latencies_ms, part) for loss in done),
                baseline=tuple(quantile(loss.latencies_ms, part) for loss in base),
                target="1.2 x"
                if label == "p99" and scope in THROUGHPUT and not stated and not echo
                else "",
                **common,
            )
        )
    return made
