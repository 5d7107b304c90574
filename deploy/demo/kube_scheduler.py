"""Act as kube-scheduler over HTTP for the demo: its order of calls and its exact JSON.

Reads what kube-scheduler would watch: the manifests, and the bindings, nominations and removed gates
in `cluster.jsonl` of the service. The service is called as kube-scheduler calls it (docs/reference/kube-scheduler.md, K10):

- a pod with a gate is not tried;
- a nominated node is offered alone and first; if it passes there is no wider search and no prioritize;
- otherwise all nodes with capacity are offered, and prioritize is called when more than one is left;
- bind calls run concurrently, because they may be held.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import msgspec
import yaml

from extender.cluster.manifests import manifest_entries, manifest_loader
from extender.cluster.read.object_decoding import without_nulls
from extender.cluster.types import Pod as StoredPod
from extender.core.model.cluster_view import NOTHING
from extender.core.model.pods import Pod

GATE = "gang-extender.dev/admission"


class Player:
    """A simulated kube-scheduler."""

    def __init__(
        self, url: str, manifests: Path, record: Path, tls: ssl.SSLContext | None = None
    ) -> None:
        """Read the manifests; nothing is called yet.

        Args:
            url: Of the verbs.
            manifests: Folder.
            record: What the service changes in the cluster.
            tls: With the certificate that is presented; None: the service is called without TLS.
        """
        self.url = url
        self._tls = tls
        self.manifests = manifests
        self.record = record
        self.bound: dict[str, str] = {}  # uid -> node
        self.nominated: dict[str, str] = {}
        self.ungated: set[str] = set()
        self.calls: list[str] = []
        self._session: aiohttp.ClientSession | None = None
        self.reload()

    def reload(self) -> None:
        """Read the manifests."""
        entries = manifest_entries.read([str(self.manifests)], manifest_entries.Role.CLUSTER)
        found = manifest_loader.complete(entries, serving=True)
        self.view = manifest_loader.build(found).world.view
        self.raw = {
            entry.obj.key: without_nulls(msgspec.to_builtins(entry.obj))
            for entry in found.entries
            if isinstance(entry.obj, StoredPod)  # those of workloads are in no file
        }
        for file in sorted(self.manifests.glob("*.yaml")):
            for thing in yaml.safe_load_all(file.read_text()):
                if thing and thing["kind"] == "Pod":
                    meta = thing["metadata"]
                    self.raw[meta.get("namespace", "default"), meta["name"]] = thing

    def watch(self) -> None:
        """Read the changes that the service made to the cluster."""
        if not self.record.exists():
            return
        for line in self.record.read_bytes().split(b"\n")[:-1]:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # torn by the kill
            if entry["type"] == "nominated":
                self.nominated[entry["uid"]] = entry["node"]
            elif entry["type"] == "gate-removed":
                self.ungated.add(entry["uid"])
            elif entry["type"] == "bound":
                self.bound[entry["uid"]] = entry["node"]

    def pending(self) -> list[Pod]:
        """Return the pods that kube-scheduler would try now."""
        self.watch()
        return [
            pod
            for pod in sorted(
                self.view.pods.values(), key=lambda p: (-p.priority, p.created_us, p.path)
            )
            if pod.node is None
            and pod.uid not in self.bound
            and (not pod.gates or (pod.gates == (GATE,) and pod.uid in self.ungated))
        ]

    def _pod_json(self, pod: Pod) -> dict:
        body = json.loads(json.dumps(self.raw[pod.namespace, pod.name], default=str))
        body.pop("apiVersion", None)
        body.pop("kind", None)
        body["metadata"] |= {"uid": pod.uid, "namespace": pod.namespace}
        body["spec"] = {k: v for k, v in body["spec"].items() if k != "schedulingGates"}
        body["spec"]["priority"] = pod.priority
        body["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        if pod.uid in self.nominated:
            body["status"]["nominatedNodeName"] = self.nominated[pod.uid]
        return body

    def _with_capacity(self, pod: Pod) -> list[str]:
        """Return the nodes on which a pod fits, like NodeResourcesFit for the pods of the demo."""
        names = []
        for name, node in sorted(self.view.nodes.items()):
            taken = dict(self.view.usage.get(name, NOTHING).requests)
            for uid, where in self.bound.items():
                if where == name:
                    for resource, amount in self.view.pods[uid].shape.requests:
                        taken[resource] = taken.get(resource, 0) + amount
            if all(
                node.allocatable.get(r, 0) - taken.get(r, 0) >= n for r, n in pod.shape.requests
            ):
                names.append(name)
        return names

    async def post(self, verb: str, body: dict) -> dict | list:
        """Call a verb."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=60),
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
            )
        self.calls.append(verb)
        async with self._session.post(f"{self.url}/scheduler/{verb}", json=body) as reply:
            reply.raise_for_status()
            return await reply.json()

    async def place(self, pod: Pod) -> str | None:
        """Run one scheduling cycle and return the node, or None when the pod stays pending."""
        whole = self._pod_json(pod)
        offers = [[self.nominated[pod.uid]]] if pod.uid in self.nominated else []
        offers.append(self._with_capacity(pod))
        for offered in offers:
            if not offered:
                continue
            answer = await self.post("filter", {"Pod": whole, "Nodes": None, "NodeNames": offered})
            if answer["Error"]:
                return None
            left = answer["NodeNames"]
            if len(left) == 1:
                return left[0]
            if left:
                scores = await self.post(
                    "prioritize", {"Pod": whole, "Nodes": None, "NodeNames": left}
                )
                return max(scores, key=lambda s: s["Score"])["Host"] if scores else left[0]
        return None

    async def bind(self, pod: Pod, node: str) -> str:
        """Call bind and return its error, or an empty string when the pod is bound."""
        args = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        answer = await self.post("bind", args)
        return answer["Error"]

    async def run_until_idle(self, *, pods: set[str] | None = None, quiet_s: float = 1.0) -> None:
        """Schedule until nothing has changed for a while.

        Args:
            pods: Only these (namespace/name); None means all.
            quiet_s: How long nothing must have changed.
        """
        binding: dict[str, asyncio.Task[str]] = {}
        loop = asyncio.get_running_loop()
        moved = loop.time()
        while binding or loop.time() - moved < quiet_s:
            for uid, task in list(binding.items()):
                if task.done():
                    del binding[uid]
                    moved = loop.time()
                    if task.result():
                        print(f"  bind refused: {task.result()}")
            for pod in self.pending():
                if pod.uid in binding or (pods is not None and pod.path not in pods):
                    continue
                node = await self.place(pod)
                if node is not None:
                    moved = loop.time()
                    binding[pod.uid] = asyncio.create_task(self.bind(pod, node))
            await asyncio.sleep(0.05)
        self.watch()

    async def close(self) -> None:
        """Close the connections, like a kube-scheduler that ends."""
        if self._session is not None:
            await self._session.close()
            self._session = None
