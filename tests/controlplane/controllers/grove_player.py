"""Play the operator of Grove: its Go module cannot be had, so its sequence is played after what it was recorded to do.

A PodGang comes first, without references to pods; its pods come with Grove's own gate; when all are there they are
referenced and the PodGang is initialized; then the gate goes, from pods of a scaled PodGang only when the base PodGang
is scheduled. A pod that goes is replaced under a new name. Deletion is left to the garbage collector, by the owners.
The schema of PodGang is the real one; the other kinds take any field.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.controllers.grove_objects import (
    GATE,
    GROVE,
    MANAGED,
    POD_INDEX,
    SCALING_GROUP,
    SCHEDULER,
    Clique,
    Gang,
    a_grove_pod,
    domain_of,
    gangs_of,
    managed_labels,
    owned_metadata,
    pod_clique,
    scaling_groups_of,
    selector_of,
)
from tests.controlplane.controllers.kinds import create_kinds
from tests.controlplane.kubelet import RETRY_S
from tests.controlplane.objects import path_of
from tests.controlplane.plane import ControlPlane

SCHEMA = Path(__file__).parents[2] / "golden/controllers/grove/crd-podgangs.yaml"


def install_grove(plane: ControlPlane) -> None:
    """Create the kinds of Grove."""
    files = [SCHEMA]
    for kind in ("PodCliqueSet", "PodCliqueScalingGroup", "PodClique"):
        file = plane.folder / f"{kind}.json"
        file.write_bytes(msgspec.json.encode(_any_fields(kind)))
        files.append(file)
    create_kinds(plane, files)


def _any_fields(kind: str) -> Object:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": free},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.grove.io"},
        "spec": {
            "group": "grove.io",
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{kind.lower()}s",
                "singular": kind.lower(),
            },
            "versions": [version],
        },
    }


@asynccontextmanager
async def playing_grove(api: Api, topology: Mapping[str, str] | None = None) -> AsyncIterator[None]:
    """Let the operator run meanwhile.

    Args:
        api: As an administrator.
        topology: Node labels by domain, as Grove's ClusterTopology has them: {"rack": "net/rack"}.
    """
    operator = _Operator(api, topology or {})
    async with asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(one) for one in operator.work()]
        try:
            yield
        finally:
            for task in playing:
                task.cancel()


class _Operator:
    def __init__(self, api: Api, topology: Mapping[str, str]) -> None:
        self._api = api
        self._topology = topology
        self._changed = asyncio.Event()

    def work(self) -> Iterator[Any]:
        yield self._reconcile_all()
        yield self._watch(f"/apis/{GROVE}/podcliquesets")
        yield self._watch(f"/apis/{GROVE}/podcliquescalinggroups")
        yield self._watch(f"/apis/{SCHEDULER}/podgangs")
        yield self._watch("/api/v1/pods", labelSelector=selector_of(MANAGED))

    async def _watch(self, path: str, **query: str) -> None:
        while True:
            with suppress(aiohttp.ClientError, ApiError):  # the list that follows has all there is
                async for _ in self._api.watch(path, **query):
                    self._changed.set()
            await asyncio.sleep(RETRY_S)

    async def _reconcile_all(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for one in (await self._api.get(f"/apis/{GROVE}/podcliquesets"))["items"]:
                    if "deletionTimestamp" not in one["metadata"]:
                        await self._reconcile(one)
            except (aiohttp.ClientError, ApiError) as failed:
                if isinstance(failed, ApiError) and failed.status not in (404, 409, 429, 500, 503):
                    raise
                self._changed.set()  # another writer was faster, or kube-apiserver is away
                await asyncio.sleep(RETRY_S)

    async def _reconcile(self, owner: Object) -> None:
        scaling = await self._sync(owner, "PodCliqueScalingGroup", scaling_groups_of(owner))
        replicas = {name: int(one["spec"]["replicas"]) for name, one in scaling.items()}
        gangs = list(gangs_of(owner, replicas))
        cliques = [one for gang in gangs for one in gang.cliques]
        parents = await self._sync(
            owner,
            "PodClique",
            [
                pod_clique(one, scaling.get(one.labels.get(SCALING_GROUP, ""), owner))
                for one in cliques
            ],
        )
        # Before the pods, and without references to them.
        wanted = [self._podgang(one, owner) for one in gangs]
        podgangs = await self._sync(owner, "PodGang", wanted)
        pods = {one.name: await self._pods(one, parents[one.name]) for one in cliques}
        scheduled = {
            gang.name: all(
                sum("nodeName" in pod["spec"] for pod in pods[one.name]) >= one.minimum
                for one in gang.cliques
            )
            for gang in gangs
        }
        for gang, spec in zip(gangs, (one["spec"] for one in wanted), strict=True):
            initialized = await self._refer(podgangs[gang.name], spec, pods)
            if initialized and (not gang.base or scheduled[gang.base]):
                for one in gang.cliques:
                    await self._lift(pods[one.name])

    async def _sync(self, owner: Object, kind: str, wanted: list[Object]) -> dict[str, Object]:
        """Create what is not there and delete what is there and not wanted; return all by name."""
        type_of = {"apiVersion": SCHEDULER if kind == "PodGang" else GROVE, "kind": kind}
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        listed = await self._api.get(
            path_of(type_of | {"metadata": {"namespace": namespace}}),
            labelSelector=selector_of(MANAGED | {"app.kubernetes.io/part-of": name}),
        )
        found = {one["metadata"]["name"]: type_of | one for one in listed["items"]}
        for one in wanted:
            if one["metadata"]["name"] not in found:
                found[one["metadata"]["name"]] = await self._api.create(type_of | one)
        for excess in found.keys() - {one["metadata"]["name"] for one in wanted}:
            await self._api.delete(path_of(found.pop(excess), named=True))
        return found

    def _podgang(self, gang: Gang, owner: Object) -> Object:
        labels = managed_labels(owner, "podgang") | {"grove.io/scheduler-name": "default-scheduler"}
        spec: Object = {
            "podgroups": [
                {
                    "name": one.name,
                    "minReplicas": one.minimum,
                    "podReferences": [],
                    **self._packed(domain_of(one.template)),
                }
                for one in gang.cliques
            ],
            **self._packed(gang.topology),
        }
        if gang.groups:
            spec["topologyConstraintGroupConfigs"] = [
                {"name": name, "podGroupNames": members, **self._packed(domain)}
                for name, (domain, members) in gang.groups.items()
            ]
        if priority := owner["spec"]["template"].get("priorityClassName"):
            spec["priorityClassName"] = priority
        return {"metadata": owned_metadata(owner, gang.name, labels), "spec": spec}

    def _packed(self, domain: str) -> Object:
        if not domain:
            return {}
        return {"topologyConstraint": {"packConstraint": {"required": self._topology[domain]}}}

    async def _pods(self, clique: Clique, parent: Object) -> list[Object]:
        """Create the pods that a clique has not, delete those too many; return the others."""
        path = f"/api/v1/namespaces/{parent['metadata']['namespace']}/pods"
        mine = {"grove.io/podclique": clique.name}
        listed = await self._api.get(path, labelSelector=selector_of(mine))
        alive = [
            pod
            for pod in listed["items"]
            if "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        taken = {int(pod["metadata"]["labels"][POD_INDEX]): pod for pod in alive}
        for index in range(clique.replicas):
            if index not in taken:
                taken[index] = await self._api.post(path, a_grove_pod(clique, index, parent))
        for index in sorted(taken)[clique.replicas :]:
            await self._api.delete(f"{path}/{taken.pop(index)['metadata']['name']}")
        return list(taken.values())

    async def _refer(self, podgang: Object, spec: Object, pods: Mapping[str, list[Object]]) -> bool:
        """Write which groups and pods a PodGang has, once all are there; return whether it was initialized before.

        Groups that a change of the PodCliqueSet adds or changes are written into the PodGang that is there.
        """
        path = path_of(podgang, named=True)
        if "status" not in podgang:
            await self._initialized(path, "False", "PodGangPodsCreationPending")
        groups = [
            one
            | {
                "podReferences": [
                    {"name": name, "namespace": podgang["metadata"]["namespace"]}
                    for name in sorted(pod["metadata"]["name"] for pod in pods[one["name"]])
                ]
            }
            for one in spec["podgroups"]
        ]
        if groups != podgang["spec"]["podgroups"]:
            await self._api.patch(path, {"spec": {"podgroups": groups}})
        done = {"type": "Initialized", "status": "True"}
        conditions = podgang.get("status", {}).get("conditions", [])
        if any(done.items() <= one.items() for one in conditions):
            return True
        await self._initialized(path, "True", "PodGangPodsCreated")
        return False

    async def _initialized(self, path: str, status: str, reason: str) -> None:
        now = (await self._api.get(path))["metadata"]["creationTimestamp"]
        text = {
            "True": "PodGang is fully initialized",
            "False": "Not all constituent pods have been created yet",
        }
        condition = {
            "type": "Initialized",
            "status": status,
            "reason": reason,
            "message": text[status],
            "lastTransitionTime": now,
        }
        await self._api.patch(
            f"{path}/status", {"status": {"phase": "Pending", "conditions": [condition]}}
        )

    async def _lift(self, pods: list[Object]) -> None:
        """Take Grove's gate off; other gates stay."""
        for pod in pods:
            if any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ())):
                gates = [{"$patch": "delete", "name": GATE}]
                path = path_of({"apiVersion": "v1", "kind": "Pod"} | pod, named=True)
                await self._api.patch(path, {"spec": {"schedulingGates": gates}}, "strategic")
