"""The same 50 gangs through a real control plane and through the simulation get the same places."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.yaml_reader import Document
from extender.core.log.events import GangAdmitted
from extender.settings import Settings
from extender.simulation.job_files import ARRIVES_AFTER, RUNS_FOR, jobs_of
from extender.simulation.simulation import Outcome, Scenario, simulate
from tests.controlplane.objects import path_of
from tests.e2e.scenarios.conftest import Story
from tests.support.service.manifest_builders import a_gang, a_node

pytestmark = pytest.mark.e2e
RACK = "topology.example.com/rack"
GANGS = 50
EVERY_S = 60.0


def a_cluster() -> list[dict[str, Any]]:
    """Return 12 nodes with 8 GPUs in 3 racks."""
    return [a_node(f"n{i:02}", {RACK: f"r{i // 4}"}, gpu=8) for i in range(12)]


def the_gangs() -> dict[str, list[dict[str, Any]]]:
    """Return gangs of 1 to 4 pods of 1 to 8 GPUs, a third of them in one rack, that arrive and end one after the other."""
    chance, gangs = Random(47), {}
    for number in range(GANGS):
        name = f"g{number:02}"
        key = RACK if chance.random() < 1 / 3 else ""
        requests = {"nvidia.com/gpu": chance.choice((1, 2, 4, 8))}
        group, *pods = a_gang(name, pods=chance.randint(1, 4), requests=requests, topo=key)
        # no two end within the 3 s by which kubelets differ
        runs_s = EVERY_S * chance.randint(3, 6) + 5 * (number % 11)
        group["metadata"]["annotations"] = {
            ARRIVES_AFTER: f"{EVERY_S * number:g}s",
            RUNS_FOR: f"{runs_s:g}s",
        }
        gangs[name] = [group, *pods]
    return gangs


def simulated(gangs: dict[str, list[dict[str, Any]]]) -> Outcome:
    """Simulate the gangs with the settings of the story."""

    def documents(objects: list[dict[str, Any]]) -> list[Document]:
        return [Document(where=each["metadata"]["name"], value=each) for each in objects]

    until_s = EVERY_S * (GANGS + 10)
    arriving = entries_in(
        documents([each for gang in gangs.values() for each in gang]), Role.WANTED
    )
    context, jobs = jobs_of(arriving, until_s=until_s, duration=None, seed=1)
    nodes = entries_in(documents(a_cluster()), Role.CLUSTER)
    return simulate(
        Scenario(cluster=(*nodes, *context), jobs=jobs, until_s=until_s, settings=Settings())
    )


@pytest.mark.full
@pytest.mark.lived_in("never")
async def test_the_simulation_places_50_gangs_as_the_real_control_plane_does(story: Story) -> None:
    """Each arrives when the one before runs; those that have ended in the simulation by then are deleted first."""
    gangs = the_gangs()
    outcome = await asyncio.to_thread(simulated, gangs)  # it has an event loop of its own
    admitted = [event.data for event in outcome.events() if isinstance(event.data, GangAdmitted)]
    expected = {each.pod: each.node for plan in admitted for each in plan.assignments}
    assert len(admitted) == GANGS
    assert all(job.bound_s - job.at_s < EVERY_S for job in outcome.jobs)  # none waits for another
    await story.create(*a_cluster())
    placed: dict[str, str] = {}
    running = []
    for job in outcome.jobs:
        for other in [other for other in running if other.ended_s < job.at_s]:
            running.remove(other)
            group, *pods = gangs[other.name]
            for pod in pods:
                await story.api.delete(path_of(pod, named=True), {"gracePeriodSeconds": 0})
            await story.api.delete(path_of(group, named=True))
            await story.until_event("GangRemoved", other.path)
        await story.create(*gangs[job.name])
        running.append(job)
        bound = await story.until_bound(len(gangs[job.name]) - 1, f"{job.name}-")
        placed |= {f"default/{pod}": node for pod, node in bound.items()}
    assert placed == expected
    await story.check_events()
