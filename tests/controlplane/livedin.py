"""Make a clean cluster a lived-in one without changing what a test counts on.

Owns the neighbours: a namespace of their own, nodes of their own, tenants on the nodes of the test,
pods that come and go at a steady rate, and what the kubelets do to them. A node of the test is made
larger by exactly what its tenants use, so the capacity that the test asked for is the capacity that is free;
whatever else looks free (cordoned, tainted, or held by a pod that is terminating) is not. Neighbours
that come and go ask for little CPU, or for devices of nodes that only they tolerate.

Chance is seeded: the same test gets the same neighbours, only their timing differs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import a_namespace, a_node, a_pod, amount_of, path_of, requests_of
from tests.controlplane.waiting import create_priority_class
from tests.support.waiting import eventually

NAMESPACE = "neighbours"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
# Tenants that hold devices have a higher priority than every pod of a test, so that no preemptor evicts them.
LOW, HIGH = "neighbour-low", "neighbour-high"
PRIORITIES = {LOW: -100, HIGH: 1_000_000}
FULL = (0.30, 0.50, 0.80, 0.95)  # of CPU and memory
DEVICES_TAKEN = (0.5, 1.0, 2.0)  # by tenants, in proportion to what is free
PER_SECOND = 4.0  # each costs 50 ms of CPU
ALIVE_MAX = 100  # newcomers at once; while so many are there no other is created
GPU, SLOT = "nvidia.com/gpu", "example.com/slot"
TAINT = {"key": "neighbours", "value": "only", "effect": "NoSchedule"}
EVICTING = {"key": "neighbours", "value": "broken", "effect": "NoExecute"}
STUCK = "example.com/never-lifted"


class Neighbourhood:
    """What lives on a cluster beside a test; an async context manager.

    Attributes:
        kubelet: Plays the kubelets of all nodes, those of the test included.
        came: How many newcomers were created so far.
        missed: How many requests an API server that was away did not answer.
    """

    def __init__(self, api: Api, *, seed: int = 1, per_second: float = PER_SECOND) -> None:
        self.kubelet = Kubelet(api)
        self.came = 0
        self.missed = 0
        self._api = api
        self._chance = random.Random(seed)
        self._every_s = 1 / per_second
        self._decoys: set[tuple[tuple[str, str], ...]] = set()
        self._tenants: dict[str, list[str]] = {}
        self._made = 0
        self._alive: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._leave)
            await stack.enter_async_context(self.kubelet)
            await self._settle_down()
            arrivals = asyncio.create_task(self._arrive())
            stack.push_async_callback(self._stop, arrivals)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _settle_down(self) -> None:
        """Create all that is there before the test begins."""
        if not await self._known(f"/api/v1/namespaces/{NAMESPACE}"):
            await self._api.create(a_namespace(NAMESPACE))
        for name, value in PRIORITIES.items():
            await create_priority_class(self._api, name, value)
        for number in range(2):
            await self.move_in(a_node(f"near-open-{number}", cpu="16"))
            await self._volume(f"disk-{number}", f"near-open-{number}")
            await self._own_node(f"near-pool-{number}", taints=[TAINT])
        await self._own_node("near-broken", taints=[EVICTING])
        await self._own_node("near-cordoned", unschedulable=True)
        await self.move_in(a_node("near-full", cpu="16"), devices={GPU: 8, SLOT: 8})

    async def _known(self, path: str) -> bool:
        try:
            await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    # -- nodes and who stays on them -------------------------------------------------------------

    async def move_in(self, node: Mapping[str, Any], devices: Mapping[str, int] = {}) -> None:
        """Create a node of a test, larger by its tenants, after they are on it.

        Args:
            node: With the capacity that shall be free.
            devices: That tenants take in any case, beside their share of what the node offers.
        """
        name = node["metadata"]["name"]
        await self._evict(name)
        offered = node["status"]["allocatable"]
        tenants = self._tenants_of(name, offered, devices)
        await asyncio.gather(*(self._settle(pod) for pod in tenants))
        daemon = self._daemon(name)
        stay = [daemon, *(pod for pod in tenants if "refused" not in pod["metadata"]["labels"])]
        nodes = {key: amount_of(key, written) for key, written in offered.items()}
        nodes["pods"] += len(stay)
        for pod in stay:
            for key, amount in requests_of(pod).items():
                nodes[key] = nodes.get(key, 0) + amount
        written = {
            key: f"{amount}m" if key == "cpu" else str(amount) for key, amount in nodes.items()
        }
        status = {**node["status"], "allocatable": written, "capacity": written}
        await self._api.create({**node, "status": status})
        await self._api.create(daemon)
        await self._tempt(node)

    def _tenants_of(
        self, node: str, offered: Mapping[str, Any], devices: Mapping[str, int]
    ) -> list[Object]:
        """Make the tenants of a node: most run, one was refused there, some are terminating."""
        full = self._chance.choice(FULL)
        rest = {
            key: int(amount_of(key, offered[key]) * full / (1 - full)) for key in ("cpu", "memory")
        }
        made = []
        for number in range(2):
            half = {"cpu": f"{rest['cpu'] // 2}m", "memory": str(rest["memory"] // 2)}
            made.append(self._tenant(node, f"runs-{number}", half, (LOW, "")[number]))
        share = self._chance.choice(DEVICES_TAKEN)
        held = {key: int(amount_of(key, offered[key]) * share) for key in offered if "/" in key}
        for key, amount in devices.items():
            held[key] = held.get(key, 0) + amount
        held = {key: str(amount) for key, amount in held.items() if amount}
        if held:
            state = self._chance.choice(("holds", "terminating"))
            made.append(self._tenant(node, state, held, HIGH))
            # Its node refused it: it keeps its node and its requests, and holds nothing.
            made.append(self._tenant(node, "refused", held, ""))
        self._tenants[node] = [pod["metadata"]["name"] for pod in made]
        return made

    def _tenant(self, node: str, what: str, requests: Mapping[str, str], priority: str) -> Object:
        self._made += 1
        stuck = {"finalizers": [STUCK]} if what == "terminating" else {}
        return a_pod(
            f"{node}-{what}-{self._made}",
            namespace=NAMESPACE,
            requests=requests,
            metadata={"labels": {"app": "tenant", what: "yes"}, **stuck},
            nodeName=node,
            **({"priorityClassName": priority} if priority else {}),
        )

    async def _settle(self, pod: Object) -> None:
        """Create a tenant and bring it to the state in its name, before its node is seen."""
        labels, path = pod["metadata"]["labels"], path_of(pod, named=True)
        name = pod["metadata"]["name"]
        if "refused" in labels:
            self.kubelet.delay(name, 0.0, namespace=NAMESPACE)
            self.kubelet.refuse(name, namespace=NAMESPACE, reason="OutOfnvidia.com/gpu")
        await self._api.create(pod)
        if "terminating" in labels:
            await self._api.delete(path, {"gracePeriodSeconds": 0})

        async def failed() -> bool:
            phase: str = (await self._api.get(path))["status"]["phase"]
            return phase == "Failed"

        if "refused" in labels:
            await eventually(failed)

    def _daemon(self, node: str) -> Object:
        """Make a pod as the DaemonSet controller makes it: pinned by name, tolerating everything."""
        self._made += 1
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        pod = a_pod(
            f"{node}-daemon-{self._made}",
            namespace=NAMESPACE,
            requests={"cpu": "100m", "memory": "64Mi"},
            metadata={"labels": {"app": "daemon"}},
            tolerations=[{"operator": "Exists"}],
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
            priorityClassName=HIGH,
        )
        self._tenants[node].append(pod["metadata"]["name"])
        return pod

    async def _evict(self, node: str) -> None:
        """Remove the tenants of an earlier node of this name, as pod garbage collection does."""
        for name in self._tenants.pop(node, ()):
            await self._remove(f"{PODS}/{name}")

    async def _remove(self, path: str) -> None:
        """Delete an object at once, without its finalizers and its grace period."""
        try:
            await self._api.patch(path, {"metadata": {"finalizers": None}})
            await self._api.delete(path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise

    async def _own_node(self, name: str, **spec: Any) -> None:
        """Create a node with free devices that only neighbours can use, or no pod at all."""
        nodes = {"cpu": "32", GPU: "16", SLOT: "16"}
        labels = {"neighbours": "pool"} if name.startswith("near-pool") else {}
        await self._api.create(a_node(name, labels=labels, **spec, **nodes))

    async def _tempt(self, node: Mapping[str, Any]) -> None:
        """Create, once per set of labels, a node that looks like the test's own but is closed."""
        metadata = node["metadata"]
        labels = {k: v for k, v in metadata["labels"].items() if k != "kubernetes.io/hostname"}
        if tuple(sorted(labels.items())) in self._decoys or metadata["name"].startswith("near"):
            return
        self._decoys.add(tuple(sorted(labels.items())))
        closed: Object = self._chance.choice(({"unschedulable": True}, {"taints": [TAINT]}))
        nodes = {
            key: str(2 * amount_of(key, value))
            for key, value in node["status"]["allocatable"].items()
            if "/" in key
        }
        name = f"decoy-{len(self._decoys)}"
        await self._api.create(a_node(name, labels=labels, **closed, **nodes))

    async def _volume(self, name: str, node: str) -> None:
        """Create a volume of one node with its claim, both bound, as a provisioner leaves them."""
        term = {"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        ]}  # fmt: skip
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {**spec, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        }
        claimed = await self._api.create(claim)
        reference = {"namespace": NAMESPACE, "name": name, "uid": claimed["metadata"]["uid"]}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **spec,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/data"},
                "claimRef": reference,
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        }
        await self._api.create(volume)
        for path in (f"{VOLUMES}/{name}", f"{CLAIMS}/{name}"):
            await self._api.patch(f"{path}/status", {"status": {"phase": "Bound"}})

    # -- who comes and goes ----------------------------------------------------------------------

    async def _arrive(self) -> None:
        """Let newcomers arrive at the rate, each with its own fate."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._every_s, loop.time() - 1.0)  # no flood after a pause
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if len(self._alive) < ALIVE_MAX:
                task = asyncio.create_task(self._live(self._newcomer()))
                self._alive.add(task)
                task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._alive.discard(task)  # a failed one is kept: _stop raises its error

    def _newcomer(self) -> Object:
        self._made += 1
        spec: Object = {"terminationGracePeriodSeconds": self._chance.choice((0, 1, 2))}
        priority = self._chance.choice((LOW, "", HIGH))
        if priority:
            spec["priorityClassName"] = priority
        requests = {"cpu": f"{self._chance.choice((50, 100, 200))}m", "memory": "64Mi"}
        kind = self._chance.choices(("plain", "devices", "volume", "nowhere"), (70, 15, 10, 5))[0]
        if kind == "devices":
            requests[GPU] = str(self._chance.choice((1, 2, 4)))
            spec["tolerations"] = [{**TAINT, "operator": "Equal"}]
            spec["nodeSelector"] = {"neighbours": "pool"}
        elif kind == "volume":
            claim = {"claimName": f"disk-{self._made % 2}"}
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        elif kind == "nowhere":
            spec["nodeSelector"] = {"neighbours": "nowhere"}
        return a_pod(
            f"newcomer-{self._made}",
            namespace=NAMESPACE,
            requests=requests,
            metadata={"labels": {"app": "newcomer", "kind": kind}},
            **spec,
        )

    async def _live(self, pod: Object) -> None:
        """Create a newcomer, let it run for a while, and end it in one of several ways."""
        name = pod["metadata"]["name"]
        stays_s = self._chance.uniform(1.0, 4.0)
        end = self._chance.choices(("ends", "deleted", "lost"), (60, 30, 10))[0]
        self._trouble(name)
        if await self._answered(self._api.create(pod)) is None:
            return
        self.came += 1
        await asyncio.sleep(stays_s)
        if end == "ends":
            now = await self._answered(self._api.get(f"{PODS}/{name}"))
            if now is not None and now["spec"].get("nodeName"):
                status = {"status": {"phase": "Succeeded"}}
                await self._answered(self._api.patch(f"{PODS}/{name}/status", status))
                await asyncio.sleep(0.5)
        if end == "lost":
            await self.kubelet.lose(name, namespace=NAMESPACE)
            return
        # Where the answer is lost, the pod stays until all leave.
        await self._answered(self._api.delete(f"{PODS}/{name}"))

    def _trouble(self, name: str) -> None:
        """Decide what the kubelet does to a newcomer, and how late it is for all pods just now."""
        self.kubelet.late_s = self._chance.choice((0.0, 0.0, 0.0, 0.3, 1.5))
        trouble = self._chance.choices(("none", "late", "refused"), (80, 12, 8))[0]
        if trouble == "late":
            self.kubelet.delay(name, self._chance.uniform(1.0, 3.0), namespace=NAMESPACE)
        elif trouble == "refused":
            reason = self._chance.choice(("OutOfcpu", "OutOfmemory", "NodeAffinity"))
            self.kubelet.refuse(name, namespace=NAMESPACE, reason=reason)

    async def _answered(self, request: Any) -> Object | None:
        """Send a request of a newcomer; None when the API server is away or the pod is gone."""
        try:
            answer: Object = await request
        except aiohttp.ClientError:
            self.missed += 1
        except ApiError as error:
            if error.status < 500 and error.status not in (404, 409, 429):
                raise
            self.missed += error.status != 404
        else:
            return answer
        return None

    # -- the end ---------------------------------------------------------------------------------

    async def _stop(self, arrivals: asyncio.Task[None]) -> None:
        """Stop the arrivals; raise the first error of a newcomer."""
        tasks = [arrivals, *self._alive]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
        if failures:
            raise failures[0]

    async def _leave(self) -> None:
        """Take pods, claims and volumes away; the sweep of all tests takes nodes and classes."""
        for name in (name for names in self._tenants.values() for name in names):
            if "-terminating-" in name:
                await self._remove(f"{PODS}/{name}")
        await self._api.delete(PODS, {"gracePeriodSeconds": 0})
        for path in (CLAIMS, VOLUMES):
            for thing in (await self._api.get(path))["items"]:
                await self._remove(f"{path}/{thing['metadata']['name']}")
