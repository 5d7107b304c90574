"""The service in virtual time: a gang arrives, is admitted, bound, runs and ends; the same seed gives the same log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from extender.cluster.manifests.manifest_entries import AnyEntry, Role, entries_in, read
from extender.cluster.manifests.yaml_reader import Document
from extender.core.log.events import (
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    MemberTerminated,
    PodBound,
    RecordedEvent,
    TreeCompiled,
    TreeRetired,
)
from extender.settings import Settings
from extender.simulation.arrivals import Arrival, ArrivingGroup
from extender.simulation.controllers import Job
from extender.simulation.job_files import job_of, jobs_of
from extender.simulation.memory_log import MemoryDatabase, MemoryEventLog
from extender.simulation.simulation import Outcome, Scenario, simulate
from tests.support.service.hash_seeds import outputs
from tests.support.service.manifest_builders import a_fleet

GPU = "nvidia.com/gpu"
CLUSTER = "deploy/examples/cluster.yaml"
# Jobs of two tenants on 32 nodes with 8 GPUs: more than fit at a time, one of which has a rack for each of its groups.
DIGEST = """
from tests.unit.simulation.test_simulation import a_trace, run
print(run(a_trace(6), until_s=700.0, seed=5).digest())
"""
WEEK_DIGEST = """
from tests.unit.simulation.test_simulation import week
print(week(2.5).digest())
"""


def an_arrival(
    name: str, at_s: float, *pods: int, runs_for_s: float = 600.0, **fields: object
) -> Job:
    groups = tuple(
        ArrivingGroup(name=f"g{n}", pods=count, minimum=count, requests={GPU: 8, "cpu": 1000})
        for n, count in enumerate(pods)
    )
    namespace = str(fields.pop("namespace", "team-a"))
    arrival = Arrival(
        at_s=at_s, namespace=namespace, name=name, groups=groups, runs_for_s=runs_for_s, **fields,
    )  # fmt: skip
    return job_of(arrival)


def a_trace(count: int) -> tuple[Job, ...]:
    return tuple(
        an_arrival(
            f"j{n}", 40.0 * n, *([3] * (1 + n % 3)), namespace=f"team-{n % 2}", priority=n % 2
        )
        for n in range(count)
    )


def an_empty_fleet() -> tuple[AnyEntry, ...]:
    """Return 8 nodes with 8 GPUs each."""
    nodes = a_fleet("2 blocks x 2 racks x 2 nodes", gpu=8)
    return entries_in((Document(where="fleet", value=node) for node in nodes), Role.CLUSTER)


def run(
    jobs: Sequence[Job],
    *,
    until_s: float,
    seed: int = 1,
    cluster: Sequence[AnyEntry] = (),
    log_on: Callable[[MemoryDatabase], MemoryEventLog] = MemoryEventLog,
) -> Outcome:
    return simulate(
        Scenario(
            cluster=tuple(cluster) or read([CLUSTER], Role.CLUSTER),
            jobs=tuple(jobs),
            until_s=until_s,
            seed=seed,
            settings=Settings(),
        ),
        log_on,
    )


def week(days: float) -> Outcome:
    """Simulate the beginning of the example."""
    until_s = days * 86_400.0
    arriving = read(["deploy/examples/week.yaml"], Role.WANTED)
    context, jobs = jobs_of(arriving, until_s=until_s, duration=None, seed=1)
    cluster = (*read([CLUSTER], Role.CLUSTER), *context)
    return simulate(Scenario(cluster=cluster, jobs=jobs, until_s=until_s, settings=Settings()))


def of_gang(outcome: Outcome, name: str) -> list[RecordedEvent]:
    return [event for event in outcome.events() if event.gang.endswith(f"/{name}")]


def kinds(events: Sequence[RecordedEvent]) -> list[type]:
    return list(dict.fromkeys(type(event.data) for event in events))


def test_a_gang_is_admitted_bound_runs_and_ends() -> None:
    outcome = run([an_arrival("j", 10.0, 4)], until_s=1_000.0)
    assert kinds(of_gang(outcome, "j")) == [
        GangObserved, GangAdmitted, PodBound, GangScheduled, MemberTerminated, GangRemoved,
    ]  # fmt: skip
    (job,) = outcome.jobs
    assert job.began_s is not None
    assert job.ended_s == pytest.approx(job.began_s + 600.0, abs=0.1)
    assert outcome.used_unit_s == pytest.approx(32 * (job.ended_s - job.bound_s), rel=0.01)


def test_a_workload_of_a_file_is_compiled_and_retired() -> None:
    manifests = read(["deploy/examples/jobset.yaml"], Role.WANTED)
    job = Job(namespace="default", name="pretrain", at_s=5.0, runs_for_s=300.0, objects=manifests)
    outcome = run([job], until_s=600.0)
    happened = kinds(outcome.events())
    assert happened.index(TreeCompiled) < happened.index(GangAdmitted)
    assert happened.index(GangAdmitted) < happened.index(TreeRetired)
    assert outcome.jobs[0].ended_s is not None


def test_no_node_is_over_its_capacity_and_every_job_ends_in_its_turn() -> None:
    outcome = run(a_trace(8), until_s=2_000.0)
    assert [job.path for job in outcome.jobs if job.ended_s is None] == []
    placed: dict[str, str] = {}  # pod -> node: each of them needs a whole node
    for event in outcome.events():
        if isinstance(event.data, PodBound):
            assert event.data.node not in placed.values()
            placed[event.data.uid] = event.data.node
        elif isinstance(event.data, MemberTerminated):
            del placed[event.data.uid]


@pytest.mark.full  # each run compares plans and the table of the arena of processes with different hash seeds
def test_the_same_seed_gives_the_same_log_in_processes_with_different_hash_seeds() -> None:
    assert len(outputs(DIGEST, ["1", "77"])) == 1


@pytest.mark.full
def test_a_week_with_preemption_gives_the_same_log_in_processes_with_different_hash_seeds() -> None:
    assert len(outputs(WEEK_DIGEST, ["1", "77"])) == 1


def test_the_same_seed_gives_the_same_log_and_another_one_another() -> None:
    trace = a_trace(3)
    first, again, other = (
        run([job_again(job) for job in trace], until_s=900.0, seed=seed) for seed in (3, 3, 4)
    )
    assert first.digest() == again.digest() != other.digest()


def job_again(job: Job) -> Job:
    assert job.arrival is not None
    return job_of(job.arrival)
