"""What `RESULTS.md` opens with, beside kube-scheduler's own gangs: CPU per member by process, and what a user notices.

`make bench-quick` runs three rounds in turns, and where time or CPU is short with another service in our place, that has nothing
but the calls and the log (`calls_and_log`): what a service that keeps both takes at least. One start of a side serves all
rows that can share it; sizes are those of the rows. Times of gangs and trees are quantiles of all rounds together, rates and
CPU seconds medians of the rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import uvloop

from extender.control.monitors.read_model_projector import project_all
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanGroup, PlanRequest, Refusal
from extender.core.planner.planning import plan
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PROJECTING, PostgresReadModels, rebuild_projection
from tests.bench import latency, planner, preemption, victim_search
from tests.bench.cpu_by_process import ALL, OURS_ALONE, PER_MEMBER, PROCESSES, per_member_ms
from tests.bench.figures import QUANTILES, Figure, Scale, quantile
from tests.bench.filter_times import MEAN, P99_AT_MOST, FilterTimes
from tests.bench.history import write_history
from tests.bench.race import Case, Run, run_cases
from tests.bench.sides import CALLS, NATIVE, NATIVE_TREES, OURS, Shape, Side
from tests.bench.stand import Stand, a_stand
from tests.bench.store import server
from tests.support.logs.postgres import execute, fresh_database

FAST, MIDDLE = (5000, 5000), (200, 400)  # QPS of kube-scheduler, and burst
NODES = 1000
GANG = Shape(pods=1000)
COMPOSITES = (
    Shape(trees=50, groups=2, pods=3),
    Shape(trees=3, groups=2, pods=150),
    Shape(trees=50, groups=2, pods=4, topology=True),
)
TREES, TREES_PER_ROUND, PODS_PER_S = Shape(trees=250, groups=2, pods=2), 84, 20
GANGS_PER_ROUND = 40
CPU_SIZES = (10, 100, 1000, 4000)
# Trees of one size, one after another, have at least so many members together in a round
CPU_MEMBERS_MIN = 200
EVENTS = 100_000
ALL_THEN_REPRIEVED = "evict all, then reprieve"
VACUUM = "VACUUM gx.placement, gx.gang_state, gx.preemption, gx.victim"  # of rows that a round before replaced
ONLY_CALLS = "with nothing but the calls and the log"
APISERVER_GOAL = "1.2 x"  # CPU of kube-apiserver per member
BOUNDS = (ONLY_CALLS,)  # in the names of rows that bound others
CPUS_MANY = "64"  # per node, so that what came before takes no place that counts

# Why kube-scheduler's own gangs are faster or cheaper, by the row; shown in RESULTS.md where they are.
MORE_STEPS = (
    "a member costs an admission policy at its create, a nomination (above 100 nodes), the removal of its gate and a call of filter "
    "and of bind; kube-scheduler nominates and binds from its own memory"
)
WAITED = "In a small gang each step that a member costs more is waited for."
FULL = "With a high QPS the processors are full, and the side that needs less CPU for a member is ahead."
WHY = {
    PER_MEMBER: f"The writes, and the log: {MORE_STEPS}.",
    "gang of 8": WAITED,
    "trees of 2 x 2": WAITED,
    "1,000 pods": FULL,
    "trees x": FULL,
    "10 trees": (
        "Victims are evicted, and the capacity that they free is given out, after each step is in the log; kube-scheduler keeps "
        "no log."
    ),
}


# Parts of the names of rows, in the order of the table
ORDER = (
    PER_MEMBER, "CPU of the service", "gang of 8", "trees of 2 x 2", "1,000 pods", "trees x", "10 trees",
    "projection", "victim", "planner", "filter",
)  # fmt: skip


def rank_of(what: str) -> int:
    """Return where a row stands in the table."""
    return next((at for at, part in enumerate(ORDER) if part in what), len(ORDER))


def why_of(what: str) -> str:
    """Return why kube-scheduler's own gangs are faster in a row, or an empty string."""
    return next((text for part, text in WHY.items() if part in what), "")


def row(
    what: str,
    unit: str,
    better: Literal["lower", "higher"],
    values: Sequence[float],
    target: str,
    native: Sequence[float] = (),
    **rest: Any,
) -> Figure:
    """Return one row of the table."""
    return Figure(
        bench="quick",
        what=what,
        unit=unit,
        better=better,
        values=tuple(values),
        target=target,
        baseline_name=rest.pop("baseline_name", "native" if native else ""),
        baseline=tuple(native),
        **rest,
    )


def in_turns(number: int, sides: Sequence[Side]) -> Sequence[Side]:
    """Return the sides in the order of a round."""
    return sides if number % 2 == 0 else sides[::-1]


# Without a control plane


def planner_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure how the time of a plan grows with the nodes, and how long a refusal with its reason takes."""
    large, small = (1500, 500) if scale.quick else (15_000, 5000)
    again = 3 * scale.rounds
    tree = planner.composite(
        "root",
        planner.leaf("p", 3, topo=("rack",)),
        planner.leaf("d", 3, shape=1, topo=("rack",)),
        topo=("zone",),
    )
    times = {
        nodes: _planned_ms(tree, planner.make_nodes(nodes, racks=nodes // 50), again, explain=True)
        for nodes in (small, large)
    }
    yield [
        row(
            f"planner: 2 groups x 3 pods on {large:,} nodes, beside {small:,}",
            "ms",
            "lower",
            times[large],
            "3 x",
            times[small],
            baseline_name=f"{small:,} nodes",
        )
    ]
    nodes = planner.make_nodes(small)
    impossible = planner.leaf("p", small // 100 * 8 + 1, topo=("rack",))
    yield [
        row(
            f"planner: verdict impossible with its reason, {small:,} nodes",
            "ms",
            "lower",
            _planned_ms(impossible, nodes, again, explain=True, refused=True),
            "30 ms",
        )
    ]


def victim_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the search for victims, where whole nodes are needed and elsewhere, beside the algorithm of kube-scheduler."""
    nodes, again = (100, 2) if scale.quick else (1000, 3 * scale.rounds)
    sides = (victim_search.ours, victim_search.evict_all_then_reprieve)
    where = {False: "", True: ", whole nodes of gangs that run on several"}
    took_ms: dict[bool, tuple[list[float], list[float]]] = {hard: ([], []) for hard in where}
    evicted = {hard: [0.0, 0.0] for hard in where}
    for case in victim_search.cases():
        for number, side in enumerate(sides):
            victim_search.searched(case, nodes, [0], side)  # imports
            found = victim_search.searched(case, nodes, range(1, again + 1), side)
            took_ms[case.hard][number].extend(found.took_ms)
            evicted[case.hard][number] += found.evicted
    for hard, (mine, plain) in took_ms.items():
        what = f"search for victims, {nodes:,} nodes, {nodes:,} running gangs{where[hard]}"
        yield [
            row(
                f"{what}, {label} of {len(mine)}",
                "ms",
                "lower",
                [quantile(mine, part)],
                victim_search.TARGET if label == "p99" else "",
                [quantile(plain, part)],
                baseline_name=ALL_THEN_REPRIEVED,
            )
            for label, part in QUANTILES
        ]
        yield [
            row(
                f"{what}, pods that {len(mine)} evict",
                "pods",
                "lower",
                [evicted[hard][0]],
                "",
                [evicted[hard][1]],
                baseline_name=ALL_THEN_REPRIEVED,
            )
        ]


def _planned_ms(
    root: PlanGroup, nodes: Any, again: int, *, explain: bool, refused: bool = False
) -> list[float]:
    """Return CPU milliseconds of plans: nothing is waited for, so that is the duration on a processor of its own."""
    request = PlanRequest(root=root, nodes=nodes, shapes=planner.SHAPES, explain=explain)
    fleet = NodeTable(nodes)
    times = []
    for _ in range(again + 1):
        began_s = time.process_time()
        verdict = plan(request, node_table=fleet)
        times.append((time.process_time() - began_s) * 1e3)
        assert isinstance(verdict, Refusal) == refused, verdict
    return times[1:]  # the first fills what a node table keeps


def rebuild_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure how fast the interval tables are filled again, beside the projection event by event."""
    events = EVENTS // 10 if scale.quick else EVENTS
    with server() as url, fresh_database(url) as database:
        rates = uvloop.run(_rebuilt(database, events, 1 if scale.quick else scale.rounds))
    yield [
        row(
            f"projection of {events:,} events, rebuild",
            "events/s",
            "higher",
            rates["rebuild"],
            "30,000/s",
            rates["project"],
            baseline_name="gx.project",
        )
    ]


async def _rebuilt(url: str, events: int, rounds: int) -> dict[str, list[float]]:
    await schema_migration.upgrade(url)
    await write_history(url, events)
    engine = ConnectionPool(url, name="bench", settings=PROJECTING, size=1)
    rates: dict[str, list[float]] = {"project": [], "rebuild": []}
    try:
        async with PostgresEventLog(url) as log:
            end = (await log.head()).position
        projection = PostgresReadModels(engine)
        began_s = time.perf_counter()
        assert await project_all(projection, end) == end
        rates["project"].append(end / (time.perf_counter() - began_s))
        for _ in range(rounds):
            await execute(url, VACUUM)
            began_s = time.perf_counter()
            assert await rebuild_projection(url) == end
            rates["rebuild"].append(end / (time.perf_counter() - began_s))
    finally:
        await engine.close()
    return rates


# With a control plane


def small_gang_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure gangs of 8, one after another."""
    nodes, gangs, rounds = (40, 5, 1) if scale.quick else (100, GANGS_PER_ROUND, scale.rounds)
    case = latency.Case(nodes=nodes, gangs=gangs, qps=MIDDLE)
    took: dict[str, list[float]] = {"ours": [], "native": [], CALLS.name: []}
    stand = a_stand()
    with asyncio.Runner() as runner:
        for number in range(rounds):
            for side in in_turns(number, (OURS, NATIVE, CALLS)):
                found = runner.run(latency.measure(stand, side, case)).took
                took[side.name] += found
                _progress(case, number, side, f"p50 {quantile(found or [0], 0.5):.0f} ms")
    targets = {"p50": "60 ms", "p99": "90 ms"}
    yield [
        row(
            f"{case}: create to all bound, {label} of {gangs * rounds}",
            "ms",
            "lower",
            part_of(took["ours"], part),
            targets[label],
            part_of(took["native"], part),
            unfinished=gangs * rounds - len(took["ours"]),
            baseline_unfinished=gangs * rounds - len(took["native"]),
        )
        for label, part in QUANTILES
    ]
    yield wait_rows(f"{case}: create to all bound", took)


def part_of(took_ms: Sequence[float], part: float) -> list[float]:
    """Return the quantile of what was bound as the values of a row; none, where nothing was."""
    return [quantile(took_ms, part)] if took_ms else []


def wait_rows(what: str, took_ms: dict[str, list[float]]) -> list[Figure]:
    """Return what a service takes with nothing but the calls and the log, beside the native gang."""
    return [
        row(
            f"{what}, {label}, {ONLY_CALLS}",
            "ms",
            "lower",
            part_of(took_ms[CALLS.name], part),
            "",
            part_of(took_ms["native"], part),
        )
        for label, part in QUANTILES
    ]


def preemption_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure ten trees that preempt fifty composites."""
    rounds = 1 if scale.quick else scale.rounds
    case, sides = preemption.cases(scale)[-1]
    runs: dict[str, list[preemption.Taken]] = {"ours": [], "native": []}
    stand = a_stand()
    with asyncio.Runner() as runner:
        runner.run(preemption.create_classes(stand))
        for number in range(rounds):
            for side in in_turns(number, sides):
                taken = runner.run(preemption.measure(stand, side, case))
                runs[side.name].append(taken)
                _progress(case, number, side, str(taken))
    yield by_process(str(case), runs["ours"], runs["native"])
    done = {side: [run.took_s for run in of if run.finished] for side, of in runs.items()}
    yield [
        row(
            f"{case}: last create to last bind",
            "s",
            "lower",
            done["ours"],
            "1 x",
            done["native"],
            unfinished=rounds - len(done["ours"]),
            baseline_unfinished=rounds - len(done["native"]),
        )
    ]


def gang_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure a gang of 1,000 where kube-scheduler's client may call as fast as it can."""
    fast, _, _ = _gang_cases(scale)
    runs = _raced([fast], (OURS, NATIVE), 1 if scale.quick else scale.rounds, (CALLS,))
    ours, native, alone = (runs[side.name][0] for side in (OURS, NATIVE, CALLS))
    yield by_process(str(fast), ours, native, APISERVER_GOAL)
    yield by_process(f"{fast}, {ONLY_CALLS}", alone, native)
    yield gang_rates(fast, ours, native, "1.1 x")
    what = f"{fast}: last create to last bind, {ONLY_CALLS}"
    yield [_rate_row(what, alone, native, "")]


def slow_gang_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the same at two lower rates of kube-scheduler's client.

    At the default rate the native gang is bound by that rate alone: more rounds would give the same.
    """
    _, middle, default = _gang_cases(scale)
    rounds = 1 if scale.quick else scale.rounds
    runs = _raced([middle], (OURS, NATIVE), rounds, once=[default])
    for case, target, ours, native in zip(
        (middle, default), ("1.6 x", "8 x"), runs["ours"], runs["native"], strict=True
    ):
        yield by_process(str(case), ours, native)
        yield gang_rates(case, ours, native, target)


def _gang_cases(scale: Scale) -> list[Case]:
    """Return the gang at three rates of kube-scheduler's client, the highest first."""
    gang, nodes = (Shape(pods=40), 40) if scale.quick else (GANG, NODES)
    return [Case(shape=gang, nodes=nodes, qps=qps) for qps in (FAST, MIDDLE, None)]


def gang_rates(case: Case, ours: Sequence[Run], native: Sequence[Run], target: str) -> list[Figure]:
    """Return the rate from the last create, which has a goal, and from the first."""
    return [
        _rate_row(f"{case}: last create to last bind", ours, native, target),
        _rate_row(
            f"{case}: first create to last bind", ours, native, "", lambda run: run.per_s_from_first
        ),
    ]


def by_process(
    case: str, ours: Sequence[Run], native: Sequence[Run], goal: str = ""
) -> list[Figure]:
    """Return CPU milliseconds per member of the runs that finished: of each process, and of all.

    Args:
        case: What was placed.
        ours: Our runs.
        native: Those of the native gang.
        goal: For kube-apiserver.
    """
    done = [run for run in ours if run.finished]
    beside = [run for run in native if run.finished]
    here, there = ([per_member_ms(run.cpu_s, run.pods) for run in runs] for runs in (done, beside))
    return [
        row(
            f"{PER_MEMBER}{case}: {process}",
            "ms",
            "lower",
            [used[process] for used in here],
            goal if process == "kube-apiserver" else "",
            [] if process in OURS_ALONE else [used[process] for used in there],
            unfinished=len(ours) - len(done),
            baseline_unfinished=len(native) - len(beside),
        )
        for process in (*PROCESSES, ALL)
    ]


def tree_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure trees of 2 x 2 that come one after another, 250 in three rounds."""
    nodes, trees, rounds = (40, 5, 1) if scale.quick else (NODES, TREES_PER_ROUND, scale.rounds)
    small = Shape(trees=trees, groups=TREES.groups, pods=TREES.pods)
    stream = Case(shape=small, nodes=nodes, qps=FAST, per_s=PODS_PER_S)
    runs = _raced([stream], (OURS, NATIVE_TREES), rounds, (CALLS,), bounds_in=rounds)
    waits = {side: [s * 1e3 for run in of[0] for s in run.trees_s] for side, of in runs.items()}
    wanted = trees * rounds
    targets = {"p50": "1.3 x", "p99": "1.5 x"}
    what = (
        f"{wanted} trees of 2 x 2 pods, {nodes:,} nodes, created at {PODS_PER_S}/s: "
        "last create of a tree to its last bind"
    )
    yield [
        row(
            f"{what}, {label}",
            "ms",
            "lower",
            part_of(waits["ours"], part),
            targets[label],
            part_of(waits["native"], part),
            unfinished=wanted - len(waits["ours"]),
            baseline_unfinished=wanted - len(waits["native"]),
        )
        for label, part in QUANTILES
    ]
    yield wait_rows(what, waits)
    yield by_process(str(stream), runs["ours"][0], runs["native"][0])


def composite_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure upstream's shapes for composites."""
    nodes, rounds = (40, 1) if scale.quick else (NODES, scale.rounds)
    shapes = (Shape(trees=3, groups=2, pods=3, topology=True),) if scale.quick else COMPOSITES
    composites = [Case(shape=shape, nodes=nodes, qps=FAST) for shape in shapes]
    runs = _raced(composites, (OURS, NATIVE_TREES), rounds, (CALLS,), bounds_in=rounds)
    for case, ours, native in zip(composites, runs["ours"], runs["native"], strict=True):
        what = f"{case}: last create to last bind"
        yield by_process(str(case), ours, native)
        yield [_rate_row(what, ours, native, "1 x")]
        if case is composites[0]:
            yield [_rate_row(f"{what}, {ONLY_CALLS}", runs[CALLS.name][0], native, "")]


def cpu_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the CPU of the service for trees of four sizes, and filter inside the service while the largest is placed."""
    sizes, nodes, rounds = _cpu_sizes(scale)
    used_ms, inside = asyncio.run(_used_by_trees(a_stand(), OURS, sizes, nodes, rounds))
    yield [
        row(
            f"CPU of the service per member bound, trees of {size:,}",
            "ms",
            "lower",
            used_ms[size],
            "2 ms",
        )
        for size in sizes
    ]
    what = f"filter inside the service while a tree of {sizes[-1]:,} is planned and bound"
    yield [
        row(f"{what}, {MEAN}", "ms", "lower", [inside.mean_ms], "0.4 ms"),
        row(f"{what}, {P99_AT_MOST}", "ms", "lower", [inside.at_most_ms(0.99)], "2 ms"),
    ]


def calls_cpu_rows(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the same with nothing but the calls and the log: what they cost in Python before anything is decided."""
    sizes, nodes, rounds = _cpu_sizes(scale)
    used_ms, _ = asyncio.run(_used_by_trees(a_stand(), CALLS, sizes[:-1], nodes, rounds))
    yield [
        row(
            f"CPU of the service per member bound, trees of {size:,}, {ONLY_CALLS}",
            "ms",
            "lower",
            used_ms[size],
            "",
        )
        for size in used_ms
    ]


def _cpu_sizes(scale: Scale) -> tuple[Sequence[int], int, int]:
    """Return members of trees, nodes, and rounds."""
    return ((4, 8), 40, 1) if scale.quick else (CPU_SIZES, NODES, scale.rounds)


async def _used_by_trees(
    stand: Stand, side: Side, sizes: Sequence[int], nodes: int, rounds: int
) -> tuple[dict[int, list[float]], FilterTimes]:
    """Return CPU milliseconds per member by size and round, and the filter calls for the last tree."""
    await stand.sweep()
    await stand.fleet(nodes, cpu=CPUS_MANY)
    await stand.start(side, FAST)
    used_ms: dict[int, list[float]] = {size: [] for size in sizes}
    try:
        assert stand.service is not None
        async with stand.loader() as api, latency.BoundWatch(api, OURS.namespace) as watch:
            warm = Case(shape=latency.GANG, nodes=nodes, qps=FAST)
            await _bound(stand, api, watch, warm.shape, "warm")
            # small ones first: what a large tree is followed by, such as a full collection, counts for itself
            for size, number in itertools.product(sizes, range(rounds)):
                shape = Shape(groups=2, pods=size // 2)
                again = -(-CPU_MEMBERS_MIN // size)
                calls = await stand.filter_times()
                before = _service_cpu_s(stand)
                for tree in range(again):
                    await _bound(stand, api, watch, shape, f"c{size}-{number}-{tree}-")
                used_ms[size].append((_service_cpu_s(stand) - before) / (size * again) * 1e3)
                print(f"  trees of {size}: {used_ms[size][-1]:.2f} ms per member", flush=True)
            inside = (await stand.filter_times()).since(calls)
    finally:
        await stand.stop()
        await stand.sweep()
    return used_ms, inside


async def _bound(stand: Stand, api: Any, watch: Any, shape: Shape, prefix: str) -> None:
    """Create one tree, and wait until the service has recorded that all of it is bound."""
    for group in OURS.groups(shape, stand.minor, prefix):
        await api.create(group)
    pods = list(OURS.pods(shape, prefix))
    await latency.create_all(api, pods)
    names = [pod["metadata"]["name"] for pod in pods]
    if not await watch.until(names, 300):
        raise RuntimeError(f"a tree of {shape.total} was not bound")
    large = shape.total >= GANG.total
    await asyncio.sleep(
        1.5 if large else 0.3
    )  # the service sees to a large one at most once a second


def _service_cpu_s(stand: Stand) -> float:
    used = stand.cpu_s()
    return used["service"] + used["service's children"]


def _raced(
    cases: Sequence[Case],
    sides: Sequence[Side],
    rounds: int,
    bounds: tuple[Side, ...] = (),
    bounds_in: int = 1,
    once: Sequence[Case] = (),
) -> dict[str, list[list[Run]]]:
    """Run the sides in turns; return by side the runs of each case.

    Args:
        cases: Measured in every round, one after another on one start of a side.
        sides: The competitors.
        rounds: How many.
        bounds: Sides that bound the others, in the first case.
        bounds_in: In how many of the rounds, from the first on.
        once: Cases after the others, in the first round alone.
    """
    stand = a_stand()
    every = [*cases, *once]
    runs: dict[str, list[list[Run]]] = {
        side.name: [[] for _ in every] for side in (*sides, *bounds)
    }
    with asyncio.Runner() as runner:
        runner.run(stand.fleet(cases[0].nodes))
        for number in range(rounds):
            asked = cases if number else every
            for side, its in (
                *((side, asked) for side in in_turns(number, sides)),
                *((side, cases[:1]) for side in bounds if number < bounds_in),
            ):
                for at, run in enumerate(runner.run(run_cases(stand, side, its))):
                    runs[side.name][at].append(run)
                    rate = f"{run.per_s:.0f}/s" if run.finished else f"{len(run.bound_s)} bound"
                    _progress(its[at], number, side, f"{rate}; {_cpu_text(run)}")
    return runs


def _rate_row(
    what: str,
    ours: Sequence[Run],
    native: Sequence[Run],
    target: str,
    of: Callable[[Run], float] = lambda run: run.per_s,
) -> Figure:
    done, beside = ([of(run) for run in runs if run.finished] for runs in (ours, native))
    return row(
        what,
        "pods/s",
        "higher",
        done,
        target,
        beside,
        unfinished=len(ours) - len(done),
        baseline_unfinished=len(native) - len(beside),
    )


def _cpu_text(run: Run) -> str:
    """Return the CPU of each program per pod: on few processors their sum bounds the rate."""
    each = {name: s / run.pods * 1e3 for name, s in run.cpu_s.items()}
    used = ", ".join(f"{name} {ms:.1f}" for name, ms in each.items() if ms >= 0.05)
    return f"CPU per pod {sum(each.values()):.1f} ms: {used}"


def _progress(case: Any, number: int, side: Side, text: str) -> None:
    print(f"  {case}: round {number + 1}, {side.name}: {text}", flush=True)


# Family -> its rows, which fail together; ONLY chooses families, and RESUME measures those that are missing. Those without
# a control plane first, then by the number of nodes.
FAMILIES: dict[str, Callable[[Scale], Iterator[list[Figure]]]] = {
    "planner": planner_rows,
    "victim search": victim_rows,
    "rebuild": rebuild_rows,
    "gang of 8": small_gang_rows,
    "preemption": preemption_rows,
    "trees at 20/s": tree_rows,
    "composites": composite_rows,
    "gang of 1,000": gang_rows,
    "gang of 1,000, slow client": slow_gang_rows,
    "cpu": cpu_rows,
    f"cpu, {ONLY_CALLS}": calls_cpu_rows,
}
