"""Alternating runs of several sides on one stand, timed by one clock.

The clock is that of the process which creates the pods: it sees a create answered and, over a watch,
a pod on its node. What counts is the time from the last create to the last bind; ordinary pods are
bound while others are still created, so beside them the time from the first create counts. Beside the
native gang it is reported as well: a side that makes creates slower must not look faster for it.
"""

from __future__ import annotations

import asyncio
import calendar
import re
import statistics
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
import msgspec

from extender.control.actuators.nominator import NODES_ALL_OFFERED
from tests.bench.figures import QUANTILES, Figure, quantile
from tests.bench.sides import CALLS, WRITES, WRITTEN, Shape, Side
from tests.bench.stand import PAUSE_S, TRIES, Stand, describe_qps, is_unanswered
from tests.controlplane.api import CONNECTIONS_MAX, Api, ApiError
from tests.controlplane.objects import GATE, path_of
from tests.e2e.scenarios.service import Service

RUNS = Path(__file__).parents[2] / ".bench" / "runs"
WARM = Shape(pods=8)
# After the last bind of a case, and between two of one start: what is written about its pods is over
SETTLED_S = 1.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is placed, where, and how fast kube-scheduler may call and pods come."""

    shape: Shape
    nodes: int
    qps: tuple[int, int] | None = None  # of kube-scheduler's client; None: its default
    per_s: float = 0  # pods created per second; 0: at full speed
    deadline_s: float = 300  # after the last create; a run that takes longer did not finish
    kubernetes: str = "1.37"

    def __str__(self) -> str:
        speed = f", created at {self.per_s:g}/s" if self.per_s else ""
        version = "" if self.kubernetes == "1.37" else f", Kubernetes {self.kubernetes}"
        return f"{self.shape}, {self.nodes:,} nodes, {describe_qps(self.qps)}{speed}{version}"

    def about_s(self, side: str) -> float:
        """Guess how long one run takes, for people who plan their evening."""
        slots = sum(number <= (self.qps or (0, 0))[0] for number in (200, 5000))
        per_s = RATES[side][slots]
        creating_s = self.shape.total / (self.per_s or 500)
        return 15 + self.nodes / 500 + 2 * creating_s + self.shape.total / per_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run; times in seconds after the first create was sent."""

    side: str
    pods: int
    created_s: float  # the last create was answered
    bound_s: tuple[float, ...]  # pods seen on a node, in order
    cpu_s: dict[str, float]  # per program, from the first create to `SETTLED_S` after the last bind
    marks_s: dict[str, float]  # ours only: what the service has written down
    calls: int = 0  # ours only: of filter
    trees_s: tuple[float, ...] = ()  # by tree: from when its last create was sent to its last bind

    @property
    def finished(self) -> bool:
        return len(self.bound_s) == self.pods

    @property
    def per_s(self) -> float:
        """Pods per second, from the last create to the last bind.

        A few pods may be bound before the last create is answered: a millisecond is counted at least.
        """
        return self.pods / max(self.bound_s[-1] - self.created_s, 0.001)

    @property
    def per_s_from_first(self) -> float:
        """Pods per second, from the first create to the last bind."""
        return self.pods / self.bound_s[-1]


class PodChanges:
    """Follows the pods of a namespace; an async context manager. `note` of a subclass records them."""

    def __init__(self, api: Api, namespace: str, **query: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._query = query
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        lost = 0
        while True:  # the API server ends a watch now and then
            try:
                async for kind, pod in self._api.watch(self._path, **self._query):
                    if kind in ("ADDED", "MODIFIED"):
                        self.note(pod)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                lost += 1
                if lost == TRIES or not is_unanswered(error):
                    raise
                print(f"  watched again: {self._path}: {error!r}", flush=True)
                await asyncio.sleep(PAUSE_S)

    @abstractmethod
    def note(self, pod: Mapping[str, Any]) -> None:
        """Record a pod as it is now."""


class BoundWatch(PodChanges):
    """Sees pods of a namespace come to a node."""

    def __init__(self, api: Api, namespace: str) -> None:
        super().__init__(api, namespace, fieldSelector="spec.nodeName!=")
        self.at: dict[str, float] = {}  # pod -> monotonic time
        self._changed = asyncio.Event()

    def note(self, pod: Mapping[str, Any]) -> None:
        """Record when a pod was first seen on a node."""
        self.at.setdefault(pod["metadata"]["name"], time.monotonic())
        self._changed.set()

    async def until(self, names: Iterable[str], within_s: float) -> bool:
        """Wait until all of these were seen; False when the time is over."""
        assert self._task is not None
        missing = set(names)
        deadline_s = time.monotonic() + within_s
        while missing := missing - self.at.keys():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.clear()
            waiting = asyncio.create_task(self._changed.wait())
            done, _ = await asyncio.wait(
                (waiting, self._task), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
            if self._task in done:
                self._task.result()  # it never ends unless it fails
        return True


async def create_all(
    api: Api,
    pods: Sequence[dict[str, Any]],
    per_s: float = 0,
    sent_at: dict[str, float] | None = None,
    answered_at: dict[str, float] | None = None,
    on_answer: Callable[[dict[str, Any]], None] | None = None,
) -> float:
    """Create pods over a few connections, in order, evenly spaced if wanted.

    Args:
        api: Who creates.
        pods: What.
        per_s: How many in a second; 0: as fast as it goes.
        sent_at: Filled in: pod -> when its create was sent (monotonic).
        answered_at: Filled in: pod -> when its create was answered (monotonic).
        on_answer: Called with each pod whose create was answered.

    Returns:
        When the last create was answered (monotonic).
    """
    queue = iter(enumerate(pods))
    began_s = time.monotonic()

    async def worker() -> None:
        for number, pod in queue:
            if per_s:
                await asyncio.sleep(began_s + number / per_s - time.monotonic())
            if sent_at is not None:
                sent_at[pod["metadata"]["name"]] = time.monotonic()
            await api.create(pod)
            if answered_at is not None:
                answered_at[pod["metadata"]["name"]] = time.monotonic()
            if on_answer is not None:
                on_answer(pod)

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS_MAX - 2)))
    return time.monotonic()


async def write_all(
    api: Api, pods: Sequence[dict[str, Any]], nodes: int, *, first: int = 0, bind: bool = True
) -> None:
    """Nominate, lift the gate and bind, pod by pod, as the service writes it: the floor of what it could take.

    On few nodes members are not nominated, because kube-scheduler finds theirs without it.

    Args:
        api: Who writes.
        pods: Members, each for a node of its own while there are enough.
        nodes: How many there are.
        first: The node of the first pod.
        bind: Whether they are bound here; else kube-scheduler binds them.
    """
    queue = iter(enumerate(pods, first))

    async def worker() -> None:
        for number, pod in queue:
            node, path = f"n{number % nodes:05}", path_of(pod, named=True)
            if nodes > NODES_ALL_OFFERED:
                await api.patch(f"{path}/status", {"status": {"nominatedNodeName": node}})
            gates = [{"$patch": "delete", "name": GATE}]
            await api.patch(path, {"spec": {"schedulingGates": gates}}, kind="strategic")
            if not bind:
                continue
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            await api.post(
                f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
            )

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS_MAX - 2)))


class TreeWriter:
    """Does the writes of each tree as soon as the creates of all its pods are answered."""

    def __init__(self, api: Api, pods: Sequence[dict[str, Any]], case: Case, *, bind: bool) -> None:
        size = case.shape.total // case.shape.trees
        trees = {first: pods[first : first + size] for first in range(0, len(pods), size)}
        self._trees = {
            pod["metadata"]["name"]: (first, tree) for first, tree in trees.items() for pod in tree
        }
        self._answered: Counter[int] = Counter()  # by the number of the first pod of the tree
        self._tasks: list[asyncio.Task[None]] = []
        self._api, self._nodes, self._bind = api, case.nodes, bind

    def on_answer(self, pod: dict[str, Any]) -> None:
        """Begin with a tree if this is the last of its pods."""
        first, tree = self._trees[pod["metadata"]["name"]]
        self._answered[first] += 1
        if self._answered[first] == len(tree):
            work = write_all(self._api, tree, self._nodes, first=first, bind=self._bind)
            self._tasks.append(asyncio.create_task(work))

    async def done(self) -> None:
        """Wait until all of them are written."""
        await asyncio.gather(*self._tasks)


async def run_once(stand: Stand, side: Side, case: Case) -> Run:
    """Start a side, let it place something small, then measure, then clean up."""
    return (await run_cases(stand, side, [case]))[0]


async def run_cases(stand: Stand, side: Side, cases: Sequence[Case]) -> list[Run]:
    """Run cases one after another on one start of a side; each begins with an empty cluster.

    Args:
        stand: Where.
        side: Who.
        cases: What; where the QPS differs from the one before, kube-scheduler is started again.
    """
    await stand.sweep()
    await stand.start(side, cases[0].qps)
    runs = []
    try:
        for number, case in enumerate(cases):
            started = number == 0 or case.qps != cases[number - 1].qps
            if number:
                await stand.sweep()
                await asyncio.sleep(SETTLED_S)
                if started:
                    stand.restart_scheduler(side, case.qps)
            runs.append(await _run_case(stand, side, case, warm=started))
    finally:
        await stand.stop()
        await stand.sweep()
    return runs


async def _run_case(stand: Stand, side: Side, case: Case, *, warm: bool) -> Run:
    """Measure a case on a side that runs."""
    product = None if side is CALLS else stand.service  # that one has no log
    async with (
        stand.loader() as api,
        stand.writer() as writer,
        BoundWatch(api, side.namespace) as watch,
    ):
        if warm:
            await _warm_up(stand, side, case, api, writer, watch)
        if product is not None:
            await product.events()  # what answers would else start in the midst of it
        for group in side.groups(case.shape, stand.minor):
            await api.create(group)
        pods = list(side.pods(case.shape))
        names = [pod["metadata"]["name"] for pod in pods]
        calls, before = (await stand.filter_times()).count, stand.cpu_s()
        wall_s, began_s = time.time(), time.monotonic()
        sent_at: dict[str, float] = {}
        written = TreeWriter(writer, pods, case, bind=side is WRITES) if side in WRITTEN else None
        on_answer = written.on_answer if written is not None else None
        created_s = await create_all(api, pods, case.per_s, sent_at, on_answer=on_answer)
        if written is not None:
            await written.done()
        await watch.until(names, case.deadline_s)
        after = await cpu_s_when_settled(stand)
        bound = sorted(watch.at[name] - began_s for name in names if name in watch.at)
        calls = (await stand.filter_times()).count - calls
    marks = await marks_of(product, wall_s) if product is not None else {}
    return Run(
        side=side.name,
        pods=len(pods),
        created_s=created_s - began_s,
        bound_s=tuple(bound),
        cpu_s={name: round(after[name] - before.get(name, 0), 2) for name in after},
        marks_s=marks,
        calls=calls,
        trees_s=tuple(waits_of_trees(names, case.shape, sent_at, watch.at)),
    )


async def cpu_s_when_settled(stand: Stand) -> dict[str, float]:
    """Return `Stand.cpu_s` when what is written after the last bind is written: conditions, Events, and what the log has of it."""
    await asyncio.sleep(SETTLED_S)
    return stand.cpu_s()


async def _warm_up(
    stand: Stand, side: Side, case: Case, api: Api, writer: Api, watch: BoundWatch
) -> None:
    """Let a side place something small."""
    warm = list(side.pods(WARM, "warm"))
    for group in side.groups(WARM, stand.minor, "warm"):
        await api.create(group)
    await create_all(api, warm)
    if side in WRITTEN:
        await write_all(writer, warm, case.nodes, bind=side is WRITES)
    if not await watch.until((p["metadata"]["name"] for p in warm), case.deadline_s):
        raise RuntimeError(f"{side.name} did not bind {WARM} to warm up")


def waits_of_trees(
    pods: Sequence[str], shape: Shape, sent_at: Mapping[str, float], bound_at: Mapping[str, float]
) -> Iterator[float]:
    """Yield for each tree that was bound as a whole how long it took, from when its last create was sent.

    Args:
        pods: Names, tree by tree.
        shape: What they are.
        sent_at: pod -> when its create was sent, seconds.
        bound_at: pod -> when it was seen on a node, seconds by the same clock.

    Yields:
        Seconds, tree by tree.
    """
    size = shape.total // shape.trees
    for first in range(0, len(pods), size):
        tree = pods[first : first + size]
        if bound_at.keys() >= set(tree):
            yield max(bound_at[pod] for pod in tree) - max(sent_at[pod] for pod in tree)


async def marks_of(service: Service, wall_s: float) -> dict[str, float]:
    """Read from log and events when the steps of a run began and ended."""
    seen: dict[str, list[float]] = {}
    for event in await service.events():
        if "default/warm" not in event["gang"] and "/warm" not in event["gang"]:
            seen.setdefault(event["type"], []).append(seconds_after(event["time"], wall_s))
    for line in service.log.read_text().splitlines():
        entry = msgspec.json.decode(line) if line.startswith("{") else {}
        if entry.get("message") == "barrier open":
            seen.setdefault("barrier open", []).append(seconds_after(entry["time"], wall_s))
    found = {}
    for name, times in seen.items():
        later = sorted(t for t in times if t > 0)
        if later:
            found |= {f"{name} x {len(later)}, first": later[0], f"{name}, last": later[-1]}
    return {name: round(at, 3) for name, at in sorted(found.items(), key=lambda item: item[1])}


def seconds_after(stamp: str, wall_s: float) -> float:
    """Return how many seconds after a Unix time an instant in RFC 3339, UTC, is."""
    whole, _, rest = stamp.removesuffix("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole[:19], "%Y-%m-%dT%H:%M:%S"))
    return seconds + float(f"0.{re.sub(r'[^0-9].*', '', rest) or 0}") - wall_s


def foretell(bench: str, cases: Sequence[tuple[Case, Sequence[Side]]], rounds: int) -> None:
    """Return how long it will take."""
    seconds = sum(rounds * case.about_s(side.name) for case, sides in cases for side in sides)
    print(f"{bench}: {len(cases)} cases, {rounds} rounds, about {seconds / 60:.0f} min", flush=True)


async def race(
    stand: Stand, sides: Sequence[Side], case: Case, rounds: int
) -> dict[str, list[Run]]:
    """Run the sides in turns, each round in the other direction."""
    await stand.fleet(case.nodes)
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            run = await run_once(stand, side, case)
            runs[side.name].append(run)
            rate = f"{run.per_s:.0f}/s" if run.finished else f"only {len(run.bound_s)} bound"
            print(f"  {case}: round {number + 1}, {side.name}: {rate}", flush=True)
    return runs


def keep(bench: str, case: Case, runs: dict[str, list[Run]]) -> None:
    """Write the runs with every single time to a file, for plots and to find where the time goes."""
    RUNS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"{bench} {case}".lower()).strip("-")
    kept = {"bench": bench, "case": str(case), "runs": runs}
    (RUNS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept)))


def figures_of(bench: str, case: Case, runs: dict[str, list[Run]], target: str) -> list[Figure]:
    """Compare ours with each other side, and the native gang with ours without the gate."""
    note = f"{case}: {used(runs)}"

    def figure(
        what: str,
        ours: str,
        theirs: str,
        of: Callable[[Run], float] = lambda run: run.per_s,
        unit: str = "pods/s",
        better: Literal["higher", "lower"] = "higher",
        **rest: Any,
    ) -> Figure:
        values = {
            side: tuple(of(run) for run in runs[side] if run.finished) for side in (ours, theirs)
        }
        return Figure(
            bench=bench,
            what=f"{case}: {what}",
            unit=unit,
            better=better,
            values=values[ours],
            baseline_name=BASELINES[theirs],
            baseline=values[theirs],
            unfinished=len(runs[ours]) - len(values[ours]),
            baseline_unfinished=len(runs[theirs]) - len(values[theirs]),
            note=note,
            **rest,
        )

    def from_first(what: str, theirs: str) -> Figure:
        clock = "first create to last bind"
        return figure(f"{clock}{what}", "ours", theirs, lambda run: run.per_s_from_first)

    def waited(label: str, part: float) -> Figure:
        def wait_ms(run: Run) -> float:
            return quantile(run.trees_s, part) * 1000

        what = f"last create of a tree to its last bind, {label} of {case.shape.trees}"
        return figure(what, "ours", "native", wait_ms, "ms", "lower")

    clock = "last create to last bind"
    made = [figure(clock, "ours", "native", target=target)]
    if "ungated" in runs:
        made.append(figure(f"{clock}, without our gate", "ungated", "native"))
        made.append(figure(f"{clock}, what our gate costs", "ours", "ungated"))
    if "writes" in runs:
        made.append(figure("the writes of a member alone", "writes", "native"))
    if not case.per_s:  # creates are slower on our side: the policy, and the first trees are placed
        made.append(from_first(", beside the native gang", "native"))
    elif case.shape.trees > 1:  # each is placed when it is complete: the last alone is not enough
        made += [waited(label, part) for label, part in QUANTILES]
    if "ordinary" in runs:
        made.append(from_first("", "ordinary"))
    finished = [run for run in runs["ours"] if run.finished]
    made.append(
        Figure(
            bench=bench,
            what=f"{case}: calls of filter per member",
            unit="calls",
            better="lower",
            values=tuple(run.calls / run.pods for run in finished),
            target="2 calls",
            unfinished=len(runs["ours"]) - len(finished),
        )
    )
    return made


def used(runs: dict[str, list[Run]]) -> str:
    """Return how much CPU each program used on each side: where the limit is."""
    sides_cpu = []
    for side, of_side in runs.items():
        programs: dict[str, list[float]] = {}
        for run in of_side:
            for name, used_s in run.cpu_s.items():
                programs.setdefault(name, []).append(used_s)
        parts = [f"{name} {statistics.median(s):.1f}" for name, s in programs.items()]
        sides_cpu.append(f"{side}: {', '.join(parts)}")
    return f"CPU seconds, medians, first create to {SETTLED_S:.0f} s after the last bind: {'; '.join(sides_cpu)}"


# Pods per second, roughly, at the default QPS, at 200/400, and at 5,000
RATES = {
    "ours": (150, 150, 150),
    "writes": (300, 300, 300),
    "computes": (25, 100, 200),
    "ungated": (150, 200, 250),
    "native": (24, 90, 150),
    "ordinary": (50, 200, 500),
}
BASELINES = {
    "native": "native gang",
    "ordinary": "ordinary pods",
    "ungated": "ours without the gate",
}
