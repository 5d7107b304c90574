"""A cluster with its jobs in virtual time: the service as it is in production, on a simulated cluster and a log in memory."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Entry
from extender.cluster.manifests.manifest_loader import complete
from extender.composition import Engine
from extender.control.admission.planner_pool import PlannerPool
from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.core.log.events import RecordedEvent
from extender.core.model.errors import BadInput
from extender.core.model.quantities import add_amounts
from extender.runtime.periodic import kept_running
from extender.settings import Settings
from extender.simulation.arrivals import NodeFailure
from extender.simulation.controllers import Controllers, Job
from extender.simulation.kube_scheduler import KubeScheduler
from extender.simulation.memory_log import (
    MemoryDatabase,
    MemoryDecisionInputs,
    MemoryEventLog,
    MemorySnapshots,
)
from extender.simulation.simulated_cluster import SimulatedCluster
from extender.simulation.virtual_time import (
    A_DAY_S,
    InLoopWorker,
    SimulationLoop,
    VirtualClock,
    simulation_loop,
)
from extender.store.log.event_codec import to_event

BEGAN_US: Final = 1_704_067_200_000_000  # time 0 of a simulation: Monday, 2024-01-01T00:00:00Z
IDENTITY: Final = "simulation"
NEVER: Final = 1 << 60  # of checkpoints: a log in memory is not loaded again
WAITING_REST_S: Final = 30.0  # while trees wait, the service looks at the clock at least so often
ACCELERATOR: Final = "gpu"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated.

    Attributes:
        cluster: Objects that are there from the beginning; nodes at least.
        jobs: What arrives.
        until_s: The end, in seconds.
        seed: Of everything that is left to chance.
        settings: Of the service.
        failures: Of nodes.
    """

    cluster: tuple[AnyEntry, ...]
    jobs: tuple[Job, ...]
    until_s: float
    seed: int = 1
    settings: Settings
    failures: tuple[NodeFailure, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a scenario.

    Attributes:
        database: The log and its inputs of decisions.
        jobs: Those that have arrived, in the order of their arrival.
        counted: The resource in which jobs and nodes are measured.
        capacity: Units of it in all nodes.
        used_unit_s: Units times seconds that bound pods used.
        ended_s: Time of the end.
    """

    database: MemoryDatabase
    jobs: tuple[Job, ...]
    counted: str
    capacity: int
    used_unit_s: float
    used: tuple[tuple[float, int], ...]  # time in seconds, units that bound pods use from then on
    ended_s: float

    def events(self) -> list[RecordedEvent]:
        """Return the whole log."""
        return [to_event(row) for row, _ in self.database.rows]

    def digest(self) -> str:
        """Return the SHA-256 of all rows of the log, in hexadecimal: equal logs have equal ones."""
        whole = hashlib.sha256()
        for row, chain in self.database.rows:
            whole.update(repr(tuple(row)).encode())
            whole.update(chain)
        return whole.hexdigest()


def simulate(
    scenario: Scenario, log_on: Callable[[MemoryDatabase], MemoryEventLog] = MemoryEventLog
) -> Outcome:
    """Run a scenario to its end, in this thread.

    Args:
        log_on: Makes the log of the service on a database, such as one that keeps a copy elsewhere.

    Raises:
        BadInput: There is no node, or an object cannot be created.
    """
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        return runner.run(_run(scenario, log_on))


async def _run(scenario: Scenario, log_on: Callable[[MemoryDatabase], MemoryEventLog]) -> Outcome:
    loop = simulation_loop()
    clock = VirtualClock(loop, BEGAN_US, scenario.seed)
    database = MemoryDatabase(clock.now_us, clock.new_id)
    settings = msgspec.structs.replace(scenario.settings, identity=IDENTITY)
    log = log_on(database)
    leases_ms = int((scenario.until_s + A_DAY_S) * 1000)  # there is no other replica
    identity = LeaseIdentity(
        holder=IDENTITY, address="", ttl_ms=leases_ms, checkpoint_events=NEVER, checkpoint_ms=NEVER
    )
    leader = Leader(log, MemorySnapshots(database), clock, identity)
    cluster = SimulatedCluster(clock, scenario.seed, max_children=settings.max_children)
    leader.history.anchor = cluster
    planner = PlannerPool(InLoopWorker(), InLoopWorker())
    engine = Engine(settings, MemoryDecisionInputs(database), cluster, leader, clock, planner)
    objects = [entry.obj for entry in complete(scenario.cluster).entries]
    cluster.put(*objects)
    if not cluster.stored().nodes:
        raise BadInput(
            "--cluster: the files have no Node; `kubectl get nodes -o yaml` has those of a cluster"
        )
    counted, capacity = _capacity(cluster)
    context = [entry for entry in scenario.cluster if not _is_alone(entry)]
    controllers = Controllers(cluster, context, counted)
    scheduler = KubeScheduler(cluster, engine.extender_service, scenario.seed)

    def may_rest_s() -> float:
        state, view = leader.committed, cluster.stored()
        if leader.appends.in_flight or cluster.view() is not view:
            return 0.0
        claims = state.claims_on or state.preemptions or state.capacity_holds
        waits = claims or controllers.waits()
        return WAITING_REST_S if waits else math.inf

    loop.pace.may_rest_s = may_rest_s
    tasks = [asyncio.create_task(leader.run(), name="leader")]
    loops = {**engine.engine_loops(), "kube-scheduler": scheduler.run}
    tasks += [
        asyncio.create_task(kept_running(name, run), name=name) for name, run in loops.items()
    ]
    for failure in scenario.failures:
        if failure.node not in cluster.stored().nodes:
            raise BadInput(f"--node-failures: the cluster has no node {failure.node!r}")
        loop.act_later(failure.at_s, cluster.fail_node, failure.node, failure.for_s)
    arriving = asyncio.create_task(_arrive(controllers, scenario.jobs), name="arrivals")
    try:
        ended = asyncio.create_task(loop.rest_until(scenario.until_s), name="end")
        done, _ = await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if arriving.done():
            arriving.result()
    finally:
        await engine.barriers.stop()
        for task in (arriving, *tasks):
            task.cancel()
        await asyncio.gather(arriving, *tasks, return_exceptions=True)
        engine.parts.termination_reasons.stop()
    return Outcome(
        database=database,
        jobs=tuple(controllers.jobs),
        counted=counted,
        capacity=capacity,
        used_unit_s=controllers.used_until(scenario.until_s),
        used=tuple(controllers.used),
        ended_s=scenario.until_s,
    )


async def _arrive(controllers: Controllers, jobs: Sequence[Job]) -> None:
    loop = simulation_loop()
    for job in sorted(jobs, key=lambda job: (job.at_s, job.path)):
        await loop.rest_until(job.at_s)
        controllers.arrive(job)


def _capacity(cluster: SimulatedCluster) -> tuple[str, int]:
    """Return the resource in which everything is measured, and how much of it the nodes have: GPUs, else CPU in millicores."""
    total: dict[str, int] = {}
    for node in cluster.stored().nodes.values():
        add_amounts(total, node.allocatable)
    gpus = sorted(
        name for name in total if total[name] and name.rpartition("/")[2].startswith(ACCELERATOR)
    )
    counted = max(gpus, key=lambda name: total[name], default="cpu")
    return counted, total.get(counted, 0)


def _is_alone(entry: AnyEntry) -> bool:
    """Return whether no workload is read with an object."""
    return isinstance(entry, Entry) and isinstance(entry.obj, api.Node | api.Pod)
