"""Ports in memory whose faults a test sets: a clock that stands still and a cluster that does what it is asked.

`Stage` puts the real service on them (everything but HTTP and the adapters), so that a test can set
what the cluster shows, run one pass, call a verb, and look at the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self
from uuid import UUID

import msgspec
from immutables import Map

from extender.cluster.manifests.manifest_loader import Memory
from extender.cluster.read.pod_conversion import end_of_terminating
from extender.control.actuators.status_reporter import StatusReporter
from extender.control.admission.loop_parts import loop_parts
from extender.control.admission.planner_pool import PlannerPool
from extender.control.binding.bind_barrier import BindBarriers
from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity, keep_clock
from extender.control.loop.control_loop import ControlLoop
from extender.control.verbs.extender_service import ExtenderService
from extender.core.log.anchors import Anchor
from extender.core.log.events import AnyEventData, RecordedEvent
from extender.core.model.cluster_view import (
    ClusterView,
    with_end,
    with_group,
    with_guard,
    with_node,
    with_pdb,
    with_pod,
    without_group,
    without_node,
    without_pod,
)
from extender.core.model.errors import NotReady, RequestRejected
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Forest, build_forest
from extender.core.model.pods import GATE, Pod, PodEnd, VolumeConstraints
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.http.v1.gang_api import GangApi
from extender.http.v1.status_api import StatusApi, StatusLog, StatusSources
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.runtime.database_clock import DatabaseClock
from extender.runtime.worker_process import WorkerProcess
from extender.settings import Settings
from extender.store.log.event_codec import to_event
from tests.support.logs.fake_store import (
    FakeDatabase,
    FakeDecisionInputs,
    FakeEventLog,
    FakeSnapshots,
)
from tests.support.service.manifest_builders import Object, a_manifest
from tests.support.waiting import eventually

GATED = [{"name": GATE}]
TTL_MS = 10_000
# Read without others of these kinds.
ALONE = frozenset({"Node", "PodGroup", "CompositePodGroup", "Pod"})


async def idle(turns: int = 200) -> None:
    """Run every task until it waits for time or for a change: for checks that nothing happens.

    Tasks of the fakes wait for nothing outside of the loop, so turns of it count, however slow the machine.
    """
    for _ in range(turns):
        await asyncio.sleep(0)


class FakeClock:
    """A `Clock` that moves only when a test calls `advance`."""

    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000
        self.ms = 1_000
        self.ids = 0

    def advance(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)
        self.ms += int(seconds * 1_000)

    def now_us(self) -> int:
        return self.us

    def recording_us(self) -> int:
        return self.us

    def monotonic_us(self) -> int:
        return self.ms * 1000

    def monotonic_ms(self) -> int:
        return self.ms

    def thread_cpu_us(self) -> int:
        """Return the time: what a test does while the clock stands is no work."""
        return self.ms * 1000

    def new_id(self) -> str:
        self.ids += 1
        return str(UUID(int=self.ids, version=4))


class FakeCluster:
    """A `Cluster` that carries out each call at once and records it.

    `fault(verb, name)` may return an exception to raise instead: verbs are nominate, remove_gate, mark_disrupted, evict,
    bind, set_conditions, set_finalizers and notice, names are namespace/name. `gate` holds all effects while it is not set.
    """

    workloads: Any = None  # of a test that has some

    def __init__(self, *objects: Object) -> None:
        self.objects: list[Object] = []
        self._memory = Memory()
        self.seen = ClusterView()
        self.calls: list[tuple[str, str, str]] = []
        self.bindings: list[Binding] = []
        self.notices: list[K8sEvent] = []
        self.anchors: tuple[Anchor, ...] = ()
        self.ended: dict[PodUid, PodEnd] = {}
        self.fault: Callable[[str, str], Exception | None] = lambda verb, name: None
        self.go = asyncio.Event()
        self.go.set()
        self.doubted = ""
        self.shows_finalizers = True
        self.obeys = False  # victims are gone as soon as they are asked
        self.deletes_us = 0  # the deletionTimestamp they get
        self._news = asyncio.Event()
        self.add(*objects)

    # -- what a test does to it ----------------------------------------------------------------

    def add(self, *objects: Object) -> None:
        """Create objects; creation times follow the order over all calls."""
        new = {_name(new_object) for new_object in objects}
        view = self._read(objects, new)
        self.objects += objects
        for node in view.nodes.values():
            if ("Node", "", node.name) in new:
                self.seen = with_node(self.seen, node)
        for group in view.groups.values():
            if (group.key.kind, group.key.namespace, group.key.name) in new:
                self.seen = with_group(self.seen, group)
        for pod in view.pods.values():
            if ("Pod", pod.namespace, pod.name) in new:
                self.seen = with_pod(self.seen, pod)
        for budget in view.budgets.values():
            if ("PodDisruptionBudget", budget.namespace, budget.name) in new:
                self.seen = with_pdb(self.seen, budget)
        self._notify()

    def _read(self, objects: Sequence[Object], names: set[tuple[str, str, str]]) -> ClusterView:
        """Return a view that has these objects as they are in the cluster; others only where it is quicker."""
        before = self.objects
        replaced = any(_name(one) in names for one in before)
        dated = any("creationTimestamp" in one["metadata"] for one in (*before, *objects))
        if not replaced and not dated and all(one["kind"] in ALONE for one in objects):
            before = [one for one in before if one["kind"] not in ALONE]
        created = self._memory.created
        for ident in [ident for ident in created if (ident[0], *ident[2:]) in names]:
            del created[ident]
        return a_manifest([*before, *objects], memory=self._memory).world.view

    def claims_named(self, names: Collection[str]) -> Mapping[tuple[str, str], VolumeConstraints]:
        if not names:
            return {}
        return a_manifest(self.objects, memory=self._memory).world.claims_named(names)

    def pod(self, name: str) -> Pod:
        """Return a pod by name in namespace default (or namespace/name)."""
        path = name if "/" in name else f"default/{name}"
        return next(pod for pod in self.seen.pods.values() if pod.path == path)

    def change_pod(self, name: str, **changes: Any) -> Pod:
        changed = msgspec.structs.replace(self.pod(name), **changes)
        self.seen = with_pod(self.seen, changed)
        self._notify()
        return changed

    def delete_pod(self, name: str) -> None:
        pod = self.pod(name)
        self.objects = [
            o for o in self.objects if (o["kind"], o["metadata"]["name"]) != ("Pod", pod.name)
        ]
        self.seen = without_pod(self.seen, pod.uid)
        if pod.deleting or pod.disruption_target:
            self.seen = with_end(
                self.seen, pod.uid, end_of_terminating(pod.disruption_target, pod.node or "")
            )
        self._notify()

    def end_pod(self, name: str, end: PodEnd) -> None:
        """Let a pod end and stay, as an API server keeps it: not in the view, returned by `ending`."""
        self.ended[self.pod(name).uid] = end
        self.delete_pod(name)

    def change_node(self, name: str, **changes: Any) -> None:
        node = msgspec.structs.replace(self.seen.nodes[NodeName(name)], **changes)
        self.seen = with_node(self.seen, node)
        self._notify()

    def delete_node(self, name: str) -> None:
        self.seen = without_node(self.seen, NodeName(name))
        self._notify()

    def group(self, name: str) -> Any:
        return next(g for g in self.seen.groups.values() if g.key.name == name)

    def change_group(self, name: str, **changes: Any) -> None:
        self.seen = with_group(self.seen, msgspec.structs.replace(self.group(name), **changes))
        self._notify()

    def delete_group(self, name: str) -> None:
        self.objects = [
            o for o in self.objects if o["metadata"]["name"] != name or o["kind"] in ("Pod", "Node")
        ]
        self.seen = without_group(self.seen, self.group(name).key)
        self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def did(self, verb: str) -> list[tuple[str, str]]:
        """Return (namespace/name, detail) of every call of a verb that was carried out."""
        return [(name, detail) for done, name, detail in self.calls if done == verb]

    # -- the port ------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        return self.seen

    def not_ready_reason(self) -> str:
        return self.doubted

    async def catch_up(self) -> None:
        if (error := self.fault("catch_up", "")) is not None:
            raise error

    def ignored_sources(self) -> tuple[str, ...]:
        return ()

    async def changed(self, revision: int) -> int:
        while self.seen.revision == revision:
            await self._news.wait()
        return self.seen.revision

    async def _asked(self, verb: str, name: str) -> None:
        await asyncio.sleep(0)
        await self.go.wait()
        error = self.fault(verb, name)
        if error is not None:
            raise error

    def _found(self, ref: PodRef) -> Pod:
        pod = self.seen.pods.get(ref.uid)
        if pod is None:
            raise RequestRejected(f"pod {ref.namespace}/{ref.name} is gone")
        return pod

    async def nominate(self, pod: PodRef, node: NodeName) -> None:
        await self._asked("nominate", f"{pod.namespace}/{pod.name}")
        found = self._found(pod)
        self.calls.append(("nominate", found.path, node))
        self.change_pod(found.path, nominated=node)

    async def remove_gate(self, pod: PodRef) -> None:
        await self._asked("remove_gate", f"{pod.namespace}/{pod.name}")
        found = self._found(pod)
        self.calls.append(("remove_gate", found.path, ""))
        self.change_pod(found.path, gates=tuple(g for g in found.gates if g != GATE))

    async def explain_waiting(self, pod: PodRef, message: str) -> None:
        await self._asked("explain_waiting", f"{pod.namespace}/{pod.name}")
        self.calls.append(("explain_waiting", self._found(pod).path, message))

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        await self._asked("mark_disrupted", f"{pod.namespace}/{pod.name}")
        found = self._found(pod)
        self.calls.append(("mark_disrupted", found.path, message))
        self.change_pod(found.path, disruption_target="PreemptionByScheduler")

    async def evict(self, pod: PodRef, how: str) -> None:
        """Make a pod terminate; it is there until the test deletes it, or at once where it `obeys`."""
        await self._asked("evict", f"{pod.namespace}/{pod.name}")
        found = self._found(pod)
        self.calls.append(("evict", found.path, how))
        if self.obeys:
            self.delete_pod(found.path)
        else:
            self.change_pod(found.path, deleting=True, deletes_us=self.deletes_us)

    async def ending(self, pod: PodRef) -> PodEnd | None:
        await self._asked("ending", f"{pod.namespace}/{pod.name}")
        return None if pod.uid in self.seen.pods else self.ended.get(pod.uid, PodEnd("deleted"))

    async def bind(self, binding: Binding) -> None:
        ref = binding.pod
        await self._asked("bind", f"{ref.namespace}/{ref.name}")
        found = self._found(ref)
        if found.node not in (None, binding.node):
            raise RequestRejected(f"pod {found.path} is bound to {found.node}")
        self.calls.append(("bind", found.path, binding.node))
        self.bindings.append(binding)
        self.change_pod(
            found.path, node=binding.node, nominated=None, phase="Running", plan=binding.plan or ""
        )

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        await self._asked("set_conditions", group.path)
        found = self.seen.groups.get(group)
        if found is None or found.uid != uid:
            raise RequestRejected(f"{group} is gone")
        kept = [c for c in found.conditions if c[0] not in {n.type for n in conditions}]
        new = [(c.type, c.status, c.reason, c.message) for c in conditions]
        for condition in conditions:
            self.calls.append(("set_conditions", group.path, condition.message))
        self.seen = with_group(self.seen, msgspec.structs.replace(found, conditions=(*kept, *new)))
        self._notify()

    async def published(self) -> tuple[Anchor, ...]:
        await self._asked("published", "")
        return self.anchors

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        await self._asked("publish", "")
        self.anchors = tuple(anchors)

    async def set_finalizers(self, wanted: FinalizerChange) -> None:
        await self._asked("set_finalizers", wanted.group.path)
        self.calls.append(("set_finalizers", wanted.group.path, ",".join(wanted.finalizers)))
        if self.shows_finalizers:
            shown = msgspec.structs.replace(wanted.guard, finalizers=wanted.finalizers)
            self.seen = with_guard(self.seen, wanted.group, shown)
            self._notify()

    async def notice(self, notice: K8sEvent) -> None:
        await self._asked("notice", f"{notice.namespace}/{notice.name}")
        self.calls.append(("notice", f"{notice.namespace}/{notice.name}", notice.message))
        self.notices.append(notice)


def _name(thing: Object) -> tuple[str, str, str]:
    return thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def forest_of(view: ClusterView) -> Forest:
    """Build the forest of a view, as the control loop does."""
    return build_forest(
        dict(view.groups.items()), {k: tuple(pods.values()) for k, pods in view.members.items()}
    )


class SharedPlanner(PlannerPool):
    """A `PlannerPool` whose worker process serves every stage of the test run: starting one costs half a second of CPU."""

    shared: ClassVar[WorkerProcess] = WorkerProcess()

    def __init__(self) -> None:
        super().__init__()
        self._worker = self._explainer = SharedPlanner.shared

    def stop(self) -> None:
        """Leave the process to the next stage."""


A_DAY_S = 86_400.0


class Stage:
    """The service on fakes: one replica; two stages that share a database are two replicas."""

    def __init__(
        self, *objects: Object, database: FakeDatabase | None = None, holder: str = "me",
        clock: Any = None, cluster: FakeCluster | None = None, ttl_ms: int = TTL_MS,
        address: str = "", arrival_ms: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        self.clock = clock or FakeClock()
        self.database = database or FakeDatabase(self.clock.now_us)
        self.log = FakeEventLog(self.database)
        self.cluster = cluster or FakeCluster(*objects)
        self.settings = Settings(
            **({"identity": holder, "barrier_timeout_s": 20.0, "nomination_delay_ms": 0} | settings)
        )
        identity = LeaseIdentity(
            holder=holder, address=address or f"http://{holder}", ttl_ms=ttl_ms
        )
        self.snapshots = FakeSnapshots(self.database)
        sync = self.clock.sync if isinstance(self.clock, DatabaseClock) else keep_clock
        self.leader = Leader(self.log, self.snapshots, self.clock, identity, sync_clock=sync)
        self.leader.history.anchor = self.cluster
        self.barriers = BindBarriers(
            cluster=self.cluster, leader=self.leader, clock=self.clock, settings=self.settings
        )
        self.leader.add_lost_listener(self.barriers.fail_waiting_calls)
        self.reporter = StatusReporter(
            self.cluster,
            self.leader,
            self.clock,
            show_names=self.settings.show_names_across_namespaces,
        )
        self.inputs = FakeDecisionInputs(self.database)
        parts = loop_parts(
            cluster=self.cluster, leader=self.leader, inputs=self.inputs, barriers=self.barriers,
            reporter=self.reporter, clock=self.clock, settings=self.settings,
        )  # fmt: skip
        self.parts = msgspec.structs.replace(parts, planner=SharedPlanner(), arrival_ms=arrival_ms)
        self.control_loop = ControlLoop(self.parts)
        self.extender_service = ExtenderService(
            cluster=self.cluster, leader=self.leader, inputs=self.inputs, exchange=self.parts.exchange,
            barriers=self.barriers, clock=self.clock, settings=self.settings,
        )  # fmt: skip
        self.tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.killed()
        await self.barriers.stop()
        self.parts.planner.stop()
        self.parts.termination_reasons.stop()

    async def killed(self) -> None:
        """End all that runs, without a chance to clean up: what is left is the database and the cluster."""
        ours = [*self.tasks, *self.barriers._tasks, *self.leader.settlement.tasks]
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
        self.tasks = []

    async def stop_leading(self) -> None:
        """Stop as the service does: its loops end, then the leader gives the lease back."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.leader.stop()

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Run something beside the test until its end."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    async def lead(self) -> Stage:
        """Take the lease and replay."""
        self.start(self.leader.run())
        await eventually(
            lambda: self.leader.role == "leading" and not self.leader.appends.in_flight, "leading"
        )
        return self

    async def one_pass(self) -> None:
        """Run one pass of the control loop, and the searches that it began, as `ControlLoop.run` does."""
        await self.control_loop.run_pass()
        await self.control_loop.search(within_s=A_DAY_S)  # a slow machine ends no search

    def later(self, seconds: float) -> None:
        """Advance the clock, and renew the lease."""
        self.clock.advance(seconds)
        self.leader.lease.renew_from(self.clock.ms)

    def conditions_due(self) -> None:
        """End the time that the reporter waits before it writes conditions."""
        for job in list(self.reporter._jobs._delayed):
            self.reporter._jobs.add(job)

    async def settled(self) -> None:
        """Run passes until one changes neither the log nor the cluster; at most ten."""
        for _ in range(10):
            before = (len(self.database.rows), self.cluster.seen.revision)
            await self.one_pass()
            await eventually(
                lambda: not self.parts.termination_reasons.awaited, "how members ended"
            )
            if (len(self.database.rows), self.cluster.seen.revision) == before:
                return
        raise AssertionError(f"the passes do not come to rest: {self.names()[-12:]}")

    # -- looking ---------------------------------------------------------------------------------

    def events(self) -> list[RecordedEvent]:
        return [to_event(row) for row, _ in self.database.rows]

    def event_data(self, *kinds: type) -> list[AnyEventData]:
        found = [event.data for event in self.events()]
        return [data for data in found if not kinds or isinstance(data, kinds)]

    def names(self) -> list[str]:
        return [type(data).__name__ for data in self.event_data()]

    def root(self, name: str) -> Any:
        path = name if "/" in name else f"default/{name}"
        return next((r for r in self.leader.committed.gangs.values() if r.gang == path), None)

    def where(self, name: str) -> dict[str, str]:
        """Return pod -> node of what a root holds."""
        return {r.pod.partition("/")[2]: r.node for r in self.root(name).reservations.values()}

    def ref(self, name: str) -> PodRef:
        pod = self.cluster.pod(name)
        return PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)

    def reserved_node(self, name: str) -> NodeName:
        state, uid = self.leader.committed, self.cluster.pod(name).uid
        return state.gangs[state.gang_of[uid]].reservations[uid].node

    def bind(
        self, name: str, node: str = "", alive: Callable[[], bool] = lambda: True
    ) -> asyncio.Task[str]:
        """Bind as kube-scheduler would, beside the test: a member by the bind verb, another pod by a Binding of its own."""
        where = NodeName(node) if node else self.reserved_node(name)
        if self.cluster.pod(name).group is None:
            return self.start(self._bind_ordinary(self.ref(name), where))
        return self.start(self.extender_service.bind(self.ref(name), where, alive))

    async def _bind_ordinary(self, ref: PodRef, node: NodeName) -> str:
        await self.cluster.bind(Binding(pod=ref, node=node))
        return ""


def check_state(state: Any) -> None:
    """Assert the invariants of a state: every index agrees with the roots."""
    claims = [claim for hold in state.capacity_holds.values() for claim in hold.pods]
    claims += state.moves.claims() if state.moves is not None else ()
    root_of: dict[PodUid, GangUid] = {}
    for uid, root in state.gangs.items():
        assert root.uid == uid
        assert not set(root.reservations) & set(root.bound), "a pod is held and bound at once"
        for pod, reservation in root.reservations.items():
            assert (reservation.uid, reservation.gang_uid) == (pod, uid)
            claims.append(reservation)
        for pod in (*root.reservations, *root.bound):
            assert pod not in root_of, "a pod belongs to two roots"
            root_of[pod] = uid
    assert state.gang_of == Map(root_of)
    for root in state.gangs.values():
        for pod, hold in root.replacement_holds.items():
            assert (hold.uid, hold.gang_uid) == (pod, root.uid)
            assert pod not in root.bound, "a bound member has no replacement hold"
            claims.append(hold)
    assert {key.gang_uid for key in state.rejections} <= set(state.gangs)
    for preemption in state.preemptions.values():
        claims += [claim for on_node in preemption.claims.values() for claim in on_node]
    claims_on: dict[NodeName, dict[Any, Any]] = {}
    for claim in claims:
        claims_on.setdefault(claim.node, {})[claim.kind, claim.gang_uid, claim.uid] = claim
    assert state.claims_on == Map({node: Map(on_node) for node, on_node in claims_on.items()})
    assert all(hold.gang_uid == uid for uid, hold in state.capacity_holds.items())
    assert set(state.capacity_holds) <= set(state.gangs), "capacity is held for a gang that is gone"
    for uid, preemption in state.preemptions.items():
        assert preemption.gang_uid == uid
        # a preemption that was taken over keeps what is left of its capacity while victims are evicted for it
        assert preemption.victims or not preemption.ended, "a claim of a preemption that has ended"


def status_api(stage: Stage, log: StatusLog, gangs: GangApi) -> StatusApi:
    """Return the handlers of /v1/status for a stage; no other replica answers."""

    async def no_leader(_: str) -> bytes:
        raise NotReady("there is no other replica")

    settings = msgspec.structs.replace(stage.settings, database_url="postgresql://gang@db/gang")
    return StatusApi(
        StatusSources(
            leader=stage.leader,
            log=log,
            clock=stage.clock,
            started_us=stage.clock.now_us(),
            database_place="gang@db:5432/gang",
            settings=settings,
            checks=stage.extender_service.checks,
            verified=lambda: None,
            counts=gangs.counts,
            ask_leader=no_leader,
        )
    )
