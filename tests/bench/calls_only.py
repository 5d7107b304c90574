"""A service that only makes the calls that trees need: no planning, no barrier, no log, no refusals.

It watches the cluster and writes to it with the code of the product: finalizers of groups, nominations and removals of gates
once all members of a tree are there, Bindings, and conditions of groups when all are bound. It answers filter and bind with as
little as HTTP/1.1 needs. So it shows what the calls cost before anything is decided; `quick` measures it beside the product.
Settings: GANG_EXTENDER_LISTEN (HOST:PORT) and KUBECONFIG.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable
from typing import cast

import msgspec
import uvloop

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.control.actuators.finalizer_controller import SETTLE_S
from extender.control.actuators.nominator import NODES_ALL_OFFERED
from extender.core.decisions.admit.plan_request import GATE
from extender.core.decisions.reconcile.finalizer_rules import decide_protection
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey, NodeName, PlanId, PodUid
from extender.core.model.pod_groups import composite_key
from extender.core.model.pods import Pod
from extender.http.scheduler.wire import (
    ExtenderBindingResult,
    ExtenderFilterResult,
    decode_args,
    decode_binding,
    encode,
    uid_of,
)
from extender.ports.cluster_ports import Binding, Condition, PodRef
from extender.ports.written_names import SCHEDULED
from extender.runtime.system_clock import SystemClock
from tests.bench.stand_in import Exchange

PLAN = "01a21a17-e4c6-7eb5-8415-77e21516c684"  # an annotation of each bound member
WRITERS = 24  # as many calls to the API server at once as the service has


class _Tree(msgspec.Struct):
    """What of a tree is there; all its leaves have the same number of members."""

    members: int  # when it is complete
    waiting: dict[PodUid, Pod] = {}
    bound: set[PodUid] = set()
    groups: set[GroupKey] = set()


class Calls:
    """Gives the members of each complete tree the next nodes, removes their gates, and binds them when kube-scheduler asks."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._nodes: dict[PodUid, NodeName] = {}
        self._numbers = itertools.count()
        self._gated: asyncio.Queue[Pod] = asyncio.Queue()
        self._trees: dict[str, _Tree] = {}  # by the UID of the root
        self._early: set[PodUid] = set()  # the watch of pods was ahead of that of groups
        self._placed: asyncio.Queue[GroupKey] = asyncio.Queue()  # groups whose members are bound

    async def run(self) -> None:
        """Follow the view until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write())
            group.create_task(self._protect())
            group.create_task(self._report())
            before = ClusterView()
            while True:
                await self._cluster.changed(before.revision)
                view = self._cluster.view()
                early, self._early = self._early, set()
                for uid in early.union(changed_pods(before, view)):
                    pod = view.pods.get(uid)
                    if pod is not None and pod.group is not None:
                        self._see(view, pod)
                before = view

    def _see(self, view: ClusterView, pod: Pod) -> None:
        """Take in one pod; begin with its tree when it is the last member, end it when it is the last to be bound."""
        tree = self._tree_of(view, pod)
        if tree is None:
            self._early.add(pod.uid)
        elif pod.node is not None:
            tree.bound.add(pod.uid)
            if len(tree.bound) == tree.members:
                for key in sorted(tree.groups):
                    self._placed.put_nowait(key)
        elif GATE in pod.gates and pod.uid not in self._nodes:
            tree.waiting[pod.uid] = pod
            if len(tree.waiting) == tree.members:
                names = sorted(view.nodes)
                for uid, member in tree.waiting.items():
                    self._nodes[uid] = names[next(self._numbers) % len(names)]
                    self._gated.put_nowait(member)

    def _tree_of(self, view: ClusterView, pod: Pod) -> _Tree | None:
        """Return the tree of a pod, or None where its groups are not known yet."""
        leaf = view.groups.get(pod.group) if pod.group is not None else None
        if leaf is None:
            return None
        root, members = leaf, leaf.minimum
        if leaf.parent is not None:
            above = view.groups.get(composite_key(leaf.key.namespace, leaf.parent))
            if above is None:
                return None
            root, members = above, members * above.minimum
        tree = self._trees.setdefault(root.uid, _Tree(members))
        tree.groups |= {root.key, leaf.key}
        return tree

    async def _protect(self) -> None:
        """Write the finalizers of new groups, and remove those of deleted ones."""
        written: set[tuple[str, bool]] = set()
        seen = 0
        while True:
            await self._cluster.changed(seen)
            await asyncio.sleep(SETTLE_S)
            view = self._cluster.view()
            seen = view.revision
            for wanted in decide_protection(view):
                change = (wanted.guard.uid, wanted.guard.deleting)
                if change not in written and await _answered(self._cluster.set_finalizers(wanted)):
                    written.add(change)

    async def _report(self) -> None:
        """Write the conditions of groups whose members are bound."""
        while True:
            key = await self._placed.get()
            group = self._cluster.view().groups.get(key)
            if group is not None:
                condition = Condition(
                    type=SCHEDULED[key.kind],
                    status="True",
                    reason="Scheduled",
                    message="all members are bound",
                )
                await _answered(self._cluster.set_conditions(key, group.uid, [condition]))

    async def _write(self) -> None:
        while True:
            pod = await self._gated.get()
            ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            if len(self._cluster.view().nodes) > NODES_ALL_OFFERED:
                await self._cluster.nominate(ref, self._nodes[pod.uid])
            await self._cluster.remove_gate(ref)

    def filter(self, body: bytes) -> bytes:
        """Answer with the node of the pod."""
        node = self._nodes[uid_of(decode_args(body).pod)]
        return encode(ExtenderFilterResult(node_names=[node]))

    async def bind(self, body: bytes) -> bytes:
        """Post the Binding."""
        asked = decode_binding(body)
        pod = PodRef(namespace=asked.pod_namespace, name=asked.pod_name, uid=asked.pod_uid)
        await self._cluster.bind(Binding(pod=pod, node=asked.node, plan=PlanId(PLAN)))
        return encode(ExtenderBindingResult(error=""))


async def _answered(write: Awaitable[None]) -> bool:
    """Return whether a group took a write; it may have been deleted, or another write was faster."""
    try:
        await write
    except (RequestRejected, ClusterUnavailable):
        return False
    return True


class _Connection(Exchange):
    """One connection of kube-scheduler, or of a probe."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls
        self._binding: asyncio.Task[None] | None = None

    def received(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /scheduler/filter "):
            self._send(self._calls.filter(body))
        elif head.startswith(b"POST /scheduler/bind "):
            self._binding = asyncio.create_task(self._bind(body))
        else:
            assert head.startswith(b"GET /readyz "), head
            self._send(b"{}")

    async def _bind(self, body: bytes) -> None:
        self._send(await self._calls.bind(body))

    def _send(self, body: bytes) -> None:
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )


async def main() -> None:
    """Serve until the process is ended."""
    cluster = await KubernetesCluster.connect(os.environ["KUBECONFIG"], clock=SystemClock())
    await cluster.start()
    await cluster.synced()
    calls = Calls(cluster)
    host, _, port = os.environ["GANG_EXTENDER_LISTEN"].rpartition(":")
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: cast(asyncio.Protocol, _Connection(calls)), host, int(port))
    await calls.run()


if __name__ == "__main__":
    uvloop.run(main())
