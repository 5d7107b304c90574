"""kube-scheduler as an extender sees it: its queue with back-off, its filters by our own model, and its calls.

One scheduling cycle at a time; each pod that gets a node is bound beside the next cycles. The nominated node is tried
first. A pod that no node takes waits until something changes that may help, and then for its back-off.

Left out: preemption of its own, rules of pods about each other, volumes, and its scores beside the least allocated node.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from random import Random
from typing import Final, Literal

import msgspec

from extender.control.verbs.extender_service import ExtenderService
from extender.core.model.cluster_view import ClusterView, changed_nodes, changed_pods
from extender.core.model.errors import ClusterUnavailable, NotReady, RequestRejected
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import Pod, PodShape
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.planner.plan_types import PlanNode
from extender.ports.cluster_ports import Binding, Cluster, PodRef
from extender.runtime.wakeup import Wakeup, first_of
from extender.simulation.virtual_time import simulation_loop

CYCLE_S: Final = 0.001  # of a scheduling cycle
BACKOFF_S: Final = (1.0, 10.0)  # podInitialBackoffSeconds and podMaxBackoffSeconds
SWEEP_S: Final = 300.0  # a pod waits at most so long for a change
SWEEP_EVERY_S: Final = 30.0
IDLE_S: Final = 86_400.0
BACKING_OFF: Final[tuple[Literal["backoff", "errors"], ...]] = ("backoff", "errors")


class _Queued(msgspec.Struct):
    """A pod without a node."""

    pod: Pod
    since_us: int  # when it was last put into the active queue
    state: Literal["active", "backoff", "errors", "unschedulable", "binding"] = "active"
    failures: int = 0
    until_s: float = 0.0  # end of its back-off


class KubeScheduler:
    """Schedules the pods of a cluster with the extender."""

    def __init__(self, cluster: Cluster, extender: ExtenderService, seed: int) -> None:
        """Prepare; `run` starts.

        Args:
            seed: Of the choice between equal nodes.
        """
        self._cluster = cluster
        self._extender = extender
        self._chance = Random(f"kube-scheduler {seed}")  # noqa: S311 -- a choice, no secret
        self._view = ClusterView()
        self._queue: dict[PodUid, _Queued] = {}
        self._ready: list[tuple[int, int, str, PodUid]] = []  # a heap: priority, time, name
        self._unschedulable: dict[PodUid, _Queued] = {}
        # heaps by the end of the back-off; an entry counts while its pod is in that state until that time
        self._backing_off: dict[str, list[tuple[float, str, PodUid]]] = {
            "backoff": [],
            "errors": [],
        }
        self._assumed: dict[PodUid, tuple[Pod, NodeName]] = {}
        self._assumed_on: dict[NodeName, dict[str, int]] = {}
        self._changes = 0  # that may help a pod; counted also while it is tried
        self._swept_s = 0.0
        self._table = NodeTable(())
        self._names: tuple[NodeName, ...] = ()
        self._static: dict[PodShape, frozenset[NodeName]] = {}
        self._binding: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None  # of a binding
        self._woken = Wakeup()

    async def run(self) -> None:
        """Schedule until cancelled; calls that wait at bind are given up then."""
        try:
            while True:
                if self._defect is not None:
                    defect, self._defect = self._defect, None
                    raise defect
                self._observe()
                entry = self._next()
                if entry is None:
                    await self._wait()
                    continue
                simulation_loop().pace.active_s = simulation_loop().time()
                await asyncio.sleep(CYCLE_S)
                self._observe()
                if entry.state == "active" and entry.pod.uid in self._queue:
                    await self._schedule(entry)
        finally:
            for task in self._binding:
                task.cancel()

    # --- the queue

    def _observe(self) -> None:
        """Take over what the watches have shown since the last time."""
        before, view = self._view, self._cluster.view()
        if before is view:
            return
        self._view = view
        nodes = changed_nodes(before, view)
        if nodes:
            self._names = tuple(sorted(view.nodes))
            self._table = NodeTable(tuple(PlanNode.of(view.nodes[name]) for name in self._names))
            self._static.clear()
        helps = bool(nodes)
        for uid in sorted(changed_pods(before, view)):
            helps |= self._observe_pod(uid, before.pods.get(uid), view.pods.get(uid))
        if helps:
            self._changes += 1
            for entry in [*self._unschedulable.values()]:
                self._wake(entry)

    def _observe_pod(self, uid: PodUid, old: Pod | None, pod: Pod | None) -> bool:
        """Take over one pod; return whether its change may help others."""
        if pod is None or pod.node is not None or pod.deleting:
            self._queue.pop(uid, None)
            self._unschedulable.pop(uid, None)
            self._forget(uid)
            return pod is not None or (old is not None and (old.node or old.nominated) is not None)
        helps = old is not None and old.nominated not in (None, pod.nominated)
        if pod.gates:
            return helps
        entry = self._queue.get(uid)
        if entry is None:
            self._activate(_Queued(pod=pod, since_us=pod.created_us))
        else:
            entry.pod = pod
            if entry.state == "unschedulable":
                self._wake(entry)
        return (
            helps  # capacity that was nominated is free, as after the deletion of an assigned pod
        )

    def _activate(self, entry: _Queued) -> None:
        entry.state = "active"
        pod = entry.pod
        self._queue[pod.uid] = entry
        self._unschedulable.pop(pod.uid, None)
        heapq.heappush(self._ready, (-pod.priority, entry.since_us, pod.path, pod.uid))

    def _wake(self, entry: _Queued) -> None:
        if entry.until_s > asyncio.get_running_loop().time():
            self._back_off(entry, "backoff")
        else:
            self._activate(entry)

    def _back_off(self, entry: _Queued, state: Literal["backoff", "errors"]) -> None:
        entry.state = state
        self._unschedulable.pop(entry.pod.uid, None)
        heapq.heappush(self._backing_off[state], (entry.until_s, entry.pod.path, entry.pod.uid))

    def _first_to_end(self, state: Literal["backoff", "errors"]) -> _Queued | None:
        """Return the pod whose back-off ends first; it stays where it is."""
        heap = self._backing_off[state]
        while heap:
            until_s, _, uid = heap[0]
            entry = self._queue.get(uid)
            if entry is not None and (entry.state, entry.until_s) == (state, until_s):
                return entry
            heapq.heappop(heap)
        return None

    def _next(self) -> _Queued | None:
        """Return the next pod; one in back-off goes early while nothing else is ready, one after an error does not."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            for entry in [*self._unschedulable.values()]:
                if now_s - entry.until_s >= SWEEP_S:
                    self._activate(entry)
        for state in BACKING_OFF:
            while (first := self._first_to_end(state)) is not None and first.until_s <= now_s:
                self._activate(first)
        while self._ready:
            uid = heapq.heappop(self._ready)[-1]
            ready = self._queue.get(uid)
            if ready is not None and ready.state == "active":
                return ready
        first = self._first_to_end("backoff")
        if first is not None:
            first.state = "active"
        return first

    async def _wait(self) -> None:
        now_s = asyncio.get_running_loop().time()
        after_error = self._first_to_end("errors")
        ends = [after_error.until_s - now_s] if after_error is not None else []
        if self._unschedulable:
            ends.append(SWEEP_EVERY_S)
        revision = self._woken.revision
        ended = [simulation_loop().rest(max(0.0, min(ends)))] if ends else []
        await first_of(
            self._cluster.changed(self._view.revision),
            self._woken.wait(revision),
            *ended,
            timeout_s=IDLE_S,
        )

    def _failed(self, entry: _Queued, changes: int, *, error: bool) -> None:
        """Put a pod back that got no node."""
        if self._queue.get(entry.pod.uid) is not entry:
            return
        first_s, last_s = BACKOFF_S
        entry.failures += 1
        now_s = asyncio.get_running_loop().time()
        entry.until_s = now_s + min(first_s * 2.0 ** min(entry.failures - 1, 10), last_s)
        entry.since_us = int(now_s * 1_000_000)
        if error:
            self._back_off(entry, "errors")
        elif changes != self._changes:
            self._back_off(entry, "backoff")
        else:
            entry.state = "unschedulable"
            self._unschedulable[entry.pod.uid] = entry
        self._woken.wake()

    # --- a cycle

    async def _schedule(self, entry: _Queued) -> None:
        pod, changes = entry.pod, self._changes
        try:
            node = self._node_for(pod)
        except NotReady:
            self._failed(entry, changes, error=True)
            return
        if node is None:
            self._failed(entry, changes, error=False)
            return
        entry.state = "binding"
        self._assume(pod, node)
        task = asyncio.create_task(self._bind(entry, node), name=f"bind {pod.path}")
        self._binding.add(task)
        task.add_done_callback(self._ended)

    def _node_for(self, pod: Pod) -> NodeName | None:
        """Return a node that kube-scheduler and the extender accept; None: there is none."""
        nominated = pod.nominated
        if nominated is not None and self._fits(pod, nominated):
            try:
                if nominated in self._extender.filter(pod, (nominated,)).passed:
                    return nominated
            except NotReady:
                pass  # kube-scheduler logs it, and looks at all nodes
        feasible = tuple(name for name in self._names if self._fits(pod, name))
        if not feasible:
            return None
        passed = self._extender.filter(pod, feasible).passed
        if len(passed) < 2:  # noqa: PLR2004 -- one node needs no scores
            return passed[0] if passed else None
        scores = dict(self._extender.prioritize(pod, passed))
        best = max(self._score(pod, name, scores.get(name, 0)) for name in passed)
        equal = [n for n in passed if self._score(pod, n, scores.get(n, 0)) == best]
        return self._chance.choice(equal)

    def _score(self, pod: Pod, name: NodeName, score: int) -> tuple[int, float]:
        """Return what the extender answered, then how little of the node would be allocated."""
        node, used = self._view.nodes[name], self._used(name)
        shares = [
            (used.get(resource, 0) + amount) / node.allocatable[resource]
            for resource, amount in pod.shape.requests
            if node.allocatable.get(resource)
        ]
        return score, -sum(shares)

    def _used(self, name: NodeName) -> dict[str, int]:
        usage = self._view.usage.get(name)
        used = dict(usage.requests) if usage is not None else {}
        add_amounts(used, self._assumed_on.get(name, {}))
        return used

    def _fits(self, pod: Pod, name: NodeName) -> bool:
        node = self._view.nodes.get(name)
        if node is None or name not in self._nodes_for(pod.shape):
            return False
        used = self._used(name)
        for other in self._nominated_on(name, pod):
            add_amounts(used, dict(other.shape.requests))
        return all(
            used.get(resource, 0) + amount <= node.allocatable.get(resource, 0)
            for resource, amount in pod.shape.requests
            if amount
        )

    def _nominated_on(self, name: NodeName, pod: Pod) -> Sequence[Pod]:
        """Return the other pods that are nominated to a node, and are not less important; they count as if they ran."""
        return [
            other
            for other in self._view.nominated.values()
            if other.nominated == name
            and other.priority >= pod.priority
            and other.uid != pod.uid
            and other.uid not in self._assumed
        ]

    def _nodes_for(self, shape: PodShape) -> frozenset[NodeName]:
        allowed = self._static.get(shape)
        if allowed is None:
            mask = may_run(self._table, shape)
            allowed = frozenset(n for n, may in zip(self._names, mask, strict=True) if may)
            self._static[shape] = allowed
        return allowed

    # --- binding

    def _assume(self, pod: Pod, node: NodeName) -> None:
        self._assumed[pod.uid] = (pod, node)
        add_amounts(self._assumed_on.setdefault(node, {}), dict(pod.shape.requests))

    def _forget(self, uid: PodUid) -> None:
        assumed = self._assumed.pop(uid, None)
        if assumed is None:
            return
        pod, node = assumed
        amounts = self._assumed_on[node]
        add_amounts(amounts, dict(pod.shape.requests), -1)
        if not any(amounts.values()):
            del self._assumed_on[node]

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Hand the defect of a binding to `run`: the exception of a task that is not awaited would be lost."""
        self._binding.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._defect = defect
            self._woken.wake()

    async def _bind(self, entry: _Queued, node: NodeName) -> None:
        pod = entry.pod
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        if pod.group is not None:
            failure = await self._extender.bind(ref, node, lambda: True)
        else:
            failure = await self._bind_itself(Binding(pod=ref, node=node))
        if failure:
            self._forget(pod.uid)
            self._changes += 1
            self._failed(entry, self._changes, error=True)

    async def _bind_itself(self, binding: Binding) -> str:
        try:
            await self._cluster.bind(binding)
        except (RequestRejected, ClusterUnavailable) as fault:
            return str(fault)
        return ""
