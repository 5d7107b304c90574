"""A service with nothing but the calls and the log: no planning, no barrier, no refusals, no recovery.

It watches the cluster and writes to it with the code of the product: finalizers of groups, nominations and removals of gates
once all members of a tree are there, Bindings, and conditions of groups when all are bound. The admission of a tree is in the
log, with an input, before its first write, and so are its Bindings. It answers filter and bind with as little as HTTP/1.1
needs. So it shows what a service takes before anything is decided; `quick` measures it beside the product.
Settings: GANG_EXTENDER_LISTEN (HOST:PORT), GANG_EXTENDER_DATABASE_URL and KUBECONFIG.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import uvloop

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.control.actuators.finalizer_controller import SETTLE_S
from extender.control.actuators.nominator import NODES_ALL_OFFERED
from extender.control.log.append_pipeline import AppendPipeline
from extender.core.log.events import (
    AnyEventData,
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangScheduled,
    GroupRecord,
    NewEvent,
    PodBound,
)
from extender.core.model.cluster_view import ClusterView, changed_pods, groups_above
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey, NodeName, PlanId, PodUid
from extender.core.model.pod_groups import Group
from extender.core.model.pods import GATE, Pod
from extender.core.planner.plan_types import DecisionInput
from extender.core.reconcile.finalizer_rules import decide_protection
from extender.http.scheduler.wire import (
    ExtenderBindingResult,
    ExtenderFilterResult,
    decode_args,
    decode_binding,
    encode,
    uid_of,
)
from extender.ports.cluster_ports import Binding, Condition, PodRef
from extender.ports.log_ports import LeaseGrant
from extender.ports.written_names import SCHEDULED
from extender.runtime.system_clock import SystemClock
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import SETTINGS as STORING_INPUTS
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.bench.stand_in import Exchange

PLAN = "01a21a17-e4c6-7eb5-8415-77e21516c684"  # an annotation of each bound member
LEASE_MS = 3_600_000  # longer than a run: nothing renews it
WAIT_S = 60.0  # for the log
PAUSE_S = 0.1  # before a write is sent again
WRITERS = 24  # as many calls to the API server at once as the service has


class _Tree(msgspec.Struct):
    """What of a tree is there; all its leaves have the same number of members."""

    root: Group
    members: int  # when it is complete
    waiting: dict[PodUid, Pod] = {}
    bound: dict[PodUid, Pod] = {}
    groups: dict[GroupKey, Group] = {}


class Log:
    """The event log, with the states that follow from it and the inputs of decisions."""

    def __init__(
        self, events: PostgresEventLog, grant: LeaseGrant, inputs: PostgresDecisionInputs
    ) -> None:
        self._grant = grant
        self._inputs = inputs
        self._appends = AppendPipeline(
            events,
            SystemClock(),
            WAIT_S,
            on_commit=lambda _events, _chain, _before: None,
            on_failure=_end,
            on_mismatch=_end,
        )

    async def append(self, root: Group, *events: AnyEventData, decided_on: bytes = b"") -> None:
        """Append events about a tree, after the input that they follow from, and wait until they are durable."""
        save = None
        if decided_on:
            digest = hashlib.sha256(decided_on)
            given = DecisionInput(
                digest=digest.hexdigest(), head=decided_on, parts=(), hashes=(digest.digest(),)
            )
            save = functools.partial(self._inputs.save, given)
        drafts = [
            NewEvent(gang_uid=root.uid, gang=root.key.path, data=data, actor="bench")
            for data in events
        ]
        await self._appends.start(drafts, self._grant, save)


def _end(fault: Exception) -> None:
    """End the process: a bench without its log shows nothing."""
    raise SystemExit(f"the log: {fault}")


class Calls:
    """Gives the members of each complete tree the next nodes, removes their gates, and binds them when kube-scheduler asks."""

    def __init__(self, cluster: KubernetesCluster, log: Log) -> None:
        self._cluster = cluster
        self._log = log
        self._nodes: dict[PodUid, NodeName] = {}
        self._numbers = itertools.count()
        self._gated: asyncio.Queue[Pod] = asyncio.Queue()
        self._trees: dict[str, _Tree] = {}  # by the UID of the root
        self._early: set[PodUid] = set()  # the watch of pods was ahead of that of groups
        self._placed: asyncio.Queue[_Tree] = asyncio.Queue()  # all members are bound

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
                    if pod is None or pod.group is None:
                        continue
                    tree = self._see(view, pod)
                    if tree is not None:
                        group.create_task(self._admit(view, tree))
                before = view

    def _see(self, view: ClusterView, pod: Pod) -> _Tree | None:
        """Take in one pod; return its tree if it is the last member of it to come."""
        tree = self._tree_of(view, pod)
        if tree is None:
            self._early.add(pod.uid)
        elif pod.node is not None:
            tree.bound[pod.uid] = pod
            if len(tree.bound) == tree.members:
                self._placed.put_nowait(tree)
        elif GATE in pod.gates and pod.uid not in self._nodes and pod.uid not in tree.waiting:
            tree.waiting[pod.uid] = pod
            if len(tree.waiting) == tree.members:
                return tree
        return None

    def _tree_of(self, view: ClusterView, pod: Pod) -> _Tree | None:
        """Return the tree of a pod, or None where its groups are not known yet."""
        groups = groups_above(view, pod.group)
        if not groups or groups[-1].parent is not None:
            return None
        root, members = groups[-1], math.prod(group.minimum for group in groups)
        tree = self._trees.setdefault(root.uid, _Tree(root, members))
        tree.groups |= {group.key: group for group in reversed(groups)}
        return tree

    async def _admit(self, view: ClusterView, tree: _Tree) -> None:
        """Record the nodes of a complete tree, then begin to write."""
        names = sorted(view.nodes)
        where = {uid: names[next(self._numbers) % len(names)] for uid in tree.waiting}
        kind = tree.root.key.kind
        shape = next(iter(tree.waiting.values())).shape  # of all of them
        groups = tuple(
            GroupRecord(
                kind=key.kind,
                name=key.name,
                parent=group.parent or "",
                minimum=group.minimum,
                members=group.minimum if key.kind == "PodGroup" else 0,
                uid=group.uid,
            )
            for key, group in tree.groups.items()
        )
        admitted = GangAdmitted(
            plan=PlanId(PLAN),
            kind=kind,
            priority=tree.root.priority,
            groups=groups,
            shapes=(dict(shape.requests),),
            assignments=tuple(
                AssignmentRecord(
                    pod=member.path, uid=uid, group=_leaf_of(member).name, node=where[uid]
                )
                for uid, member in tree.waiting.items()
            ),
        )
        observed = GangObserved(kind=kind, groups=len(groups), members=tree.members)
        decided_on = msgspec.json.encode((groups, admitted.shapes, list(tree.waiting)))
        await self._log.append(tree.root, observed, admitted, decided_on=decided_on)
        self._nodes |= where
        for member in tree.waiting.values():
            self._gated.put_nowait(member)

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
                write = functools.partial(self._cluster.set_finalizers, wanted)
                if change not in written and await _answered(write):
                    written.add(change)

    async def _report(self) -> None:
        """Record trees whose members are bound, and write the conditions of their groups."""
        while True:
            tree = await self._placed.get()
            bound = [
                PodBound(
                    plan=PlanId(PLAN),
                    pod=pod.path,
                    uid=uid,
                    node=self._nodes[uid],
                    group=_leaf_of(pod).name,
                )
                for uid, pod in tree.bound.items()
            ]
            scheduled = GangScheduled(plan=PlanId(PLAN), bound=len(bound))
            await self._log.append(tree.root, *bound, scheduled)
            for key, group in tree.groups.items():
                condition = Condition(
                    type=SCHEDULED[key.kind],
                    status="True",
                    reason="Scheduled",
                    message="all members are bound",
                )
                await _answered(
                    functools.partial(self._cluster.set_conditions, key, group.uid, [condition])
                )

    async def _write(self) -> None:
        while True:
            pod = await self._gated.get()
            ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            if len(self._cluster.view().nodes) > NODES_ALL_OFFERED:
                node = self._nodes[pod.uid]
                await repeated(functools.partial(self._cluster.nominate, ref, node))
            await repeated(functools.partial(self._cluster.remove_gate, ref))

    def filter(self, body: bytes) -> bytes:
        """Answer with the node of the pod."""
        node = self._nodes[uid_of(decode_args(body).pod)]
        return encode(ExtenderFilterResult(node_names=[node]))

    async def bind(self, body: bytes) -> bytes:
        """Post the Binding."""
        asked = decode_binding(body)
        pod = PodRef(namespace=asked.pod_namespace, name=asked.pod_name, uid=asked.pod_uid)
        binding = Binding(pod=pod, node=asked.node, plan=PlanId(PLAN))
        await repeated(functools.partial(self._cluster.bind, binding))
        return encode(ExtenderBindingResult(error=""))


def _leaf_of(pod: Pod) -> GroupKey:
    assert pod.group is not None
    return pod.group


async def repeated(write: Callable[[], Awaitable[None]]) -> None:
    """Send a write until it is answered; one that is rejected the second time was carried out the first time.

    Raises:
        RequestRejected: The first time.
    """
    unanswered = False
    while True:
        try:
            return await write()
        except ClusterUnavailable as error:
            unanswered = True
            await asyncio.sleep(max(PAUSE_S, error.retry_after_s))
        except RequestRejected:
            if not unanswered:
                raise
            return None


async def _answered(write: Callable[[], Awaitable[None]]) -> bool:
    """Return whether a group took a write; it may have been deleted, or another write was faster."""
    try:
        await repeated(write)
    except RequestRejected:
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
    url = os.environ["GANG_EXTENDER_DATABASE_URL"]
    storing = ConnectionPool(url, name="inputs", settings=STORING_INPUTS, size=1)
    events = PostgresEventLog(url)
    grant = await events.take(holder="bench", address="", ttl_ms=LEASE_MS)
    log = Log(events, grant, PostgresDecisionInputs(storing))
    cluster = await KubernetesCluster.connect(os.environ["KUBECONFIG"], clock=SystemClock())
    await cluster.start()
    await cluster.synced()
    calls = Calls(cluster, log)
    host, _, port = os.environ["GANG_EXTENDER_LISTEN"].rpartition(":")
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: cast(asyncio.Protocol, _Connection(calls)), host, int(port))
    await calls.run()


if __name__ == "__main__":
    uvloop.run(main())
