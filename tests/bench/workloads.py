"""From the creation of a JobSet to its tree: recorded, and written to the API server.

1,000 JobSets of 8 pods are created at once: without their controller (only our work), and beside it, where Jobs and
pods of all of them are created at the same time, and held, because there is no node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from tests.bench.figures import Figure, Scale, quantile
from tests.bench.sides import NAMESPACE, OUR_VERSION
from tests.bench.stand import Stand
from tests.controlplane.api import Api
from tests.controlplane.controllers.kinds import create_kinds
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.waiting import until_admission_knows
from tests.e2e.scenarios.service import ROOT
from tests.support.waiting import eventually

JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE['ours']}/jobsets"
POLICIES = ("rbac", "leaf-policy", "tree-policies")
GROUPS_EACH = 5  # root, driver, the Jobs of the workers and two slices


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one round measured, in seconds."""

    compiled: tuple[float, ...]  # per JobSet, from the answer to its create to its event
    written: float  # from the last create to the last group
    created: float  # from the first create to the last
    service: float  # CPU of the service
    api_server: float  # CPU of kube-apiserver


def a_jobset(number: int) -> dict[str, Any]:
    """Make a JobSet of 8 pods: a driver, two slices of three, and one more."""

    def job(name: str, replicas: int, parallelism: int) -> dict[str, Any]:
        container = {
            "name": "main", "image": "registry.invalid/none", "resources": {"requests": {"cpu": "1"}},
        }  # fmt: skip
        pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"parallelism": parallelism, "completions": parallelism, "template": pod}
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {
            "name": f"train-{number}", "namespace": NAMESPACE["ours"],
            "labels": {"gang-extender.dev/tree": "default"},
        },
        "spec": {"replicatedJobs": [job("driver", 1, 2), job("worker", 2, 3)]},
    }  # fmt: skip


async def measure(stand: Stand, count: int) -> Round:
    """Create the JobSets, and wait until all their groups are there."""
    await stand.start_service()
    service = stand.service
    assert service is not None
    try:
        async with stand.loader() as api:
            await eventually(service.ready)
            before = stand.cpu_s()
            jobsets = [a_jobset(number) for number in range(count)]
            answered: dict[str, float] = {}
            began_s = time.time()
            queue = iter(jobsets)

            async def worker() -> None:
                for jobset in queue:
                    await api.create(jobset)
                    answered[jobset["metadata"]["name"]] = time.time()

            await asyncio.gather(*(worker() for _ in range(24)))
            created_s = time.time()
            all_groups = partial(has_groups, api, count * GROUPS_EACH)
            await eventually(all_groups, "all groups are there", every_s=0.25)
            written_s = time.time()
            after = stand.cpu_s()
            events = await service.events("TreeCompiled")
            first: dict[str, float] = {}
            for event in events:
                name = event["data"]["workload"].partition("/")[2]
                first.setdefault(name, datetime.fromisoformat(event["time"]).timestamp())
            assert first.keys() == answered.keys()
            return Round(
                compiled=tuple(first[name] - answered[name] for name in answered),
                written=written_s - created_s,
                created=created_s - began_s,
                service=after["service"] - before["service"],
                api_server=after["kube-apiserver"] - before["kube-apiserver"],
            )
    finally:
        await stand.stop()
        await sweep(stand)


async def until_jobsets_are_admitted(stand: Stand) -> None:
    """Wait until the policies let JobSets through: their definition is some moments old."""
    async with stand.loader() as api:
        await until_admission_knows(api, JOBSETS, a_jobset(0))


async def has_groups(api: Api, count: int) -> bool:
    """Return whether all groups are there; a page of one object has the number of the others."""
    found = 0
    for kind in ("podgroups", "compositepodgroups"):
        path = f"/apis/{OUR_VERSION}/namespaces/{NAMESPACE['ours']}/{kind}"
        page = await api.get(path, limit="1")
        found += len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
    return found >= count


async def sweep(stand: Stand) -> None:
    """Delete the JobSets, what their controllers made, and the groups."""
    async with stand.loader() as api:
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE['ours']}/jobs"
        pods = f"/api/v1/namespaces/{NAMESPACE['ours']}/pods"
        at_once = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}

        async def gone() -> bool:
            left = 0
            for path in (JOBSETS, jobs, pods):
                await api.delete(path, at_once)
                left += len((await api.get(path, limit="1"))["items"])
            return not left

        await eventually(gone, every_s=1.0)
    await stand.sweep()


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure both cases, one after the other in each round."""
    count, rounds = (20, 1) if scale.quick else (1000, scale.rounds)
    cases = ("alone",) if scale.quick else ("alone", "beside their controller")
    found: dict[str, list[Round]] = {case: [] for case in cases}
    with Stand() as stand, asyncio.Runner() as runner:
        controllers = WorkloadControllers(stand.plane, ("jobset",))
        create_kinds(stand.plane, controllers.manifests("jobset", "crds"))
        for name in POLICIES:
            file = ROOT / "deploy" / "kubernetes" / "workloads" / f"{name}.yaml"
            done = stand.plane.kubectl("apply", "--server-side", "-f", str(file))
            assert done.returncode == 0, done.stderr
        runner.run(until_jobsets_are_admitted(stand))
        runner.run(stand.fleet(0))
        for number in range(rounds):
            for case in cases:
                with controllers if case != "alone" else nullcontext():
                    made = runner.run(measure(stand, count))
                found[case].append(made)
                late = sum(s > 1 for s in made.compiled)
                print(
                    f"  {case}: round {number + 1}: created in {made.created:.1f} s, compiled p50 "
                    f"{quantile(made.compiled, 0.5):.3f} p99 {quantile(made.compiled, 0.99):.3f} s, {late} after "
                    f"more than 1 s, last group {made.written:.1f} s after the last create, CPU: service "
                    f"{made.service:.1f} s, kube-apiserver {made.api_server:.1f} s",
                    flush=True,
                )
    for case, rounds_of in found.items():
        yield figures(f"{count:,} JobSets of 8 pods at once, {case}", count, rounds_of)


def figures(name: str, count: int, rounds: list[Round]) -> list[Figure]:
    """Return the figures of one case."""
    return [
        Figure(
            bench="workloads",
            what=f"{name}: create to TreeCompiled p99",
            unit="s",
            better="lower",
            values=tuple(quantile(one.compiled, 0.99) for one in rounds),
            target="1 s",
        ),
        Figure(
            bench="workloads",
            what=f"{name}: CPU of the service for each",
            unit="ms",
            better="lower",
            values=tuple(one.service / count * 1e3 for one in rounds),
            baseline_name="kube-apiserver, for all that was created",
            baseline=tuple(one.api_server / count * 1e3 for one in rounds),
        ),
    ]
