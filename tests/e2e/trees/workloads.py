"""Workloads of the stories about trees, with the label alone, and what a story reads of their groups."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

from tests.controlplane.api import Object
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.scenarios.service import ROOT
from tests.support.service.manifest_builders import a_node

RACK = "net/rack"
TREE = "gang-extender.dev/tree"


def a_template(cpu: str = "1", **spec: Any) -> Object:
    container = {
        "name": "main", "image": "registry.invalid/none", "resources": {"requests": {"cpu": cpu}},
    }  # fmt: skip
    fixed = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False, "containers": [container],
    }  # fmt: skip
    return {"spec": fixed | spec}


def a_job(
    name: str, parallelism: int, completions: int | None = None, **annotations: str
) -> Object:
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "namespace": "default", "labels": {TREE: "default"},
            "annotations": {f"gang-extender.dev/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "parallelism": parallelism, "completions": completions or parallelism,
            "completionMode": "Indexed", "backoffLimit": 6, "template": a_template(),
        },
    }  # fmt: skip


def a_jobset(name: str, jobs: list[Object], **annotations: str) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {
            "name": name, "namespace": "default", "labels": {TREE: "default"},
            "annotations": {f"gang-extender.dev/{key}": value for key, value in annotations.items()},
        },
        "spec": {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 3}},
    }  # fmt: skip


def a_replicated_job(name: str, replicas: int, parallelism: int, **more: Any) -> Object:
    job = {
        "parallelism": parallelism, "completions": parallelism, "backoffLimit": 0,
        "template": a_template(),
    }  # fmt: skip
    return {"name": name, "replicas": replicas, "template": {"spec": job}, **more}


def racks(*names: str, nodes: int = 2, cpu: str = "2") -> list[Object]:
    """Return nodes of racks; each has capacity for two pods."""
    return [a_node(f"{rack}-{n}", {RACK: rack}, cpu=cpu) for rack in names for n in range(nodes)]


async def groups(story: Story) -> dict[str, Object]:
    """Return our groups by name."""
    found = {}
    for plural in ("podgroups", "compositepodgroups"):
        for item in (await story.api.get(f"/apis/{OURS}/{plural}"))["items"]:
            found[item["metadata"]["name"]] = item
    return found


async def until_groups(story: Story, count: int) -> dict[str, Object]:
    async def look() -> list[dict[str, Object]]:
        found = await groups(story)
        return [found] if len(found) == count else []

    (found,) = await story.until(look, every_s=0.1)
    made: dict[str, Object] = found
    return made


async def until_pods(story: Story, count: int) -> dict[str, Object]:
    async def look() -> list[dict[str, Object]]:
        found = await story.pods()
        return [found] if len(found) == count else []

    (found,) = await story.until(look, every_s=0.1)
    pods: dict[str, Object] = found
    return pods


async def until_running(story: Story, prefix: str, count: int, *, gone: frozenset[str]) -> set[str]:
    """Wait until so many pods run that are not in `gone` and do not terminate; return their UIDs."""

    async def look() -> set[str] | None:
        found = {
            pod["metadata"]["uid"]
            for name, pod in (await story.pods()).items()
            if name.startswith(prefix)
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        } - gone
        return found if len(found) == count else None

    found: set[str] = await story.until(look, every_s=0.1)
    return found


def uids(found: dict[str, Object]) -> dict[str, str]:
    return {name: one["metadata"]["uid"] for name, one in found.items()}


def a_leaderworkerset(
    name: str, replicas: int, size: int, *, grace_s: int = 1, **spec: Any
) -> Object:
    """Make a LeaderWorkerSet whose leaders have the template of the workers.

    Args:
        name: Its name.
        replicas: How many groups.
        size: Pods of a group, the leader among them.
        grace_s: Grace period of its pods; the kubelets of the stories take a twentieth of it.
        spec: Further fields of its spec.
    """
    worker: Object = a_template(terminationGracePeriodSeconds=grace_s) | {"metadata": {}}
    worker["spec"]["restartPolicy"] = "Always"
    template = {
        "size": size, "workerTemplate": worker, "restartPolicy": "RecreateGroupOnPodRestart",
    }  # fmt: skip
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": "default", "labels": {TREE: "default"}},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": template, **spec},
    }  # fmt: skip


async def events_about(story: Story, workload: Object) -> dict[str, str]:
    """Return the texts of the Events about an object of the namespace default, by reason; of several the last one.

    Args:
        story: Its cast.
        workload: The object as it is stored; Events about another one of its name are not its own.
    """
    listed = await story.api.get("/api/v1/namespaces/default/events")
    uid = workload["metadata"]["uid"]
    mine = [one for one in listed["items"] if one["involvedObject"].get("uid") == uid]
    return {one["reason"]: one["message"] for one in mine}


async def until_event_about(story: Story, workload: Object, reason: str) -> str:
    """Wait for an Event about an object, and return its text."""

    async def look() -> str | None:
        return (await events_about(story, workload)).get(reason)

    found: str = await story.until(look, every_s=0.1)
    return found


@contextlib.asynccontextmanager
async def labelled_namespace(story: Story, profile: str = "default") -> AsyncIterator[None]:
    """Give the namespace default a tree label meanwhile; the admission policies know of it before the block begins."""
    path = "/api/v1/namespaces/default"

    async def stamped() -> bool:
        probe = a_job("probe", 1)
        del probe["metadata"]["labels"]
        made = await story.api.post("/apis/batch/v1/namespaces/default/jobs", probe, dryRun="All")
        return TREE in made["spec"]["template"]["metadata"].get("labels", {})

    await story.api.patch(path, {"metadata": {"labels": {TREE: profile}}})
    try:
        await story.until(stamped)
        yield
    finally:
        await story.api.patch(path, {"metadata": {"labels": {TREE: None}}})


async def listed_trees(story: Story, *options: str) -> str:
    """Return what `gang-extender trees` prints."""
    command = [sys.executable, "-m", "extender", "trees", "--server", story.service.url, *options]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False,
        env=story.service.command_environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: str = done.stdout
    return printed
