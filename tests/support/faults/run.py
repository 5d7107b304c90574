"""One case from its beginning to its end: replicas of the service, kube-scheduler, controllers, faults, and what was violated."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import Role, entries_in, with_metadata
from extender.cluster.manifests.yaml_reader import Document
from extender.composition import Engine
from extender.control.admission.planner_pool import PlannerPool
from extender.control.log import lease_loop
from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.control.monitors.clock_monitor import ClockMonitor
from extender.core.log.events import RecordedEvent
from extender.core.model.errors import NotReady
from extender.core.model.ids import GroupKey, NodeName
from extender.core.model.nodes import ExclusiveDomain
from extender.core.model.pods import Pod
from extender.core.verbs.filter_and_prioritize import FilterDecision
from extender.ports.cluster_ports import PodRef
from extender.runtime.database_clock import DatabaseClock
from extender.runtime.periodic import kept_running
from extender.runtime.wakeup import Wakeup, first_of
from extender.settings import Settings
from extender.simulation import kube_scheduler
from extender.simulation.controllers import Controllers, GivenTree, Job, tree_of
from extender.simulation.job_files import job_of
from extender.simulation.kube_scheduler import KubeScheduler
from extender.simulation.memory_log import MemoryDecisionInputs
from extender.simulation.simulation import BEGAN_US
from extender.simulation.virtual_time import InLoopWorker, VirtualClock
from extender.store.log.event_codec import to_event
from tests.support.faults.cases import (
    ALONE,
    BLOCK,
    GPU,
    LONE,
    RACK,
    Case,
    Fault,
    is_cut_off,
)
from tests.support.faults.invariants import Truth, Violated
from tests.support.faults.processes import _OF, Process, ProcessLoop
from tests.support.faults.servers import (
    ApiModel,
    DatabaseModel,
    RemoteLog,
    RemoteSnapshots,
    RequestFaults,
    ServedCluster,
)
from tests.support.service.manifest_builders import a_node

TTL_MS: Final = 10_000
RESERVATION_TTL_S: Final = 40
RESTARTS_AFTER_S: Final = 2.0
CALL_TIMEOUT_S: Final = 60.0
CYCLE_S: Final = kube_scheduler.CYCLE_S
REST_S: Final = 2.5
AWAY_S: Final = RESERVATION_TTL_S + 30.0
LOOK_EVERY_S: Final = 5.0
BACKUPS: Final = 4  # that are kept, one for each look
LEASE_LOOK_S: Final = 1.0  # most of a run is replicas that look at the lease; 0.2 in production


class SteppedClock(VirtualClock):
    """The clock of a machine, whose wall time can step."""

    stepped_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.stepped_us


class Replica:
    """One process of the service."""

    def __init__(self, run: Run, number: int, life: int) -> None:
        self.name = f"replica-{number}"
        self.number, self.life = number, life
        self.process = Process(f"{self.name}.{life}")
        self._run = run
        self.context = contextvars.copy_context()
        self.context.run(_OF.set, self.process)
        self.context.run(self._build)

    def _build(self) -> None:
        run, name = self._run, self.process.name
        machine = SteppedClock(run.loop, BEGAN_US + 37 * self.number, f"{run.case.seed} {name}")  # type: ignore[arg-type]
        self.machine = machine
        log = self.log = RemoteLog(run.database)
        clock = DatabaseClock(machine, log.time_us)
        identity = LeaseIdentity(
            holder=self.name, address=f"http://{self.name}", ttl_ms=TTL_MS, checkpoint_events=20,
            checkpoint_ms=20_000,
        )  # fmt: skip
        settings = msgspec.structs.replace(run.settings, identity=self.name)
        self.leader = Leader(
            log, RemoteSnapshots(run.database), clock, identity, sync_clock=clock.sync
        )
        self.cluster = ServedCluster(
            run.model, run.requests, clock, self.process, f"{run.case.seed} {name}", self.leader.may_act,
            lambda: self.leader.lease.grant,
        )  # fmt: skip
        self.leader.history.anchor = self.cluster
        planner = PlannerPool(InLoopWorker(), InLoopWorker())
        self.engine = Engine(
            settings, MemoryDecisionInputs(run.database.shared), self.cluster, self.leader, clock, planner
        )  # fmt: skip
        self.service = self.engine.extender_service
        self.monitor = ClockMonitor(self.leader, clock)

    def start(self) -> None:
        """Start all that a service runs."""
        run = self._run
        run.spawn(self.process, self.cluster.start(), f"{self.name} cluster")
        leading = run.spawn(self.process, self.leader.run(), f"{self.name} leader")
        leading.add_done_callback(run.on_ended, context=contextvars.Context())
        for name, loop in {**self.engine.engine_loops(), "clock": self.monitor.run}.items():
            run.spawn(self.process, kept_running(name, loop), f"{self.name} {name}")


class BindCallOf(msgspec.Struct):
    """A bind call of kube-scheduler for a pod."""

    uid: str
    began_s: float
    replica: Replica
    caller: Process
    ended_s: float | None = None

    def alive(self) -> bool:
        """Return whether its caller waits for the answer."""
        return self.ended_s is None and not self.caller.dead


class Front:
    """The Service in front of the replicas, for one kube-scheduler."""

    def __init__(self, run: Run, caller: Process) -> None:
        self._run = run
        self._caller = caller
        self._calls = 0

    def _replica(self) -> Replica:
        """Return the replica that answers: one that leads, by its own opinion."""
        leading = [r for r in self._run.replicas if not r.process.dead and r.service.ready()]
        if not leading:
            raise NotReady("no replica leads")
        self._calls += 1
        replica = leading[self._calls % len(leading)]
        if replica.process.stopped:
            raise NotReady(f"{replica.name} does not answer")
        return replica

    def filter(self, pod: Pod, offered: Sequence[NodeName]) -> FilterDecision:
        replica = self._replica()
        decision = replica.context.copy().run(replica.service.filter, pod, offered)
        if pod.group is None:
            self._run.truth.on_filtered(replica, pod, decision.passed)
        return decision

    def prioritize(self, pod: Pod, offered: Sequence[NodeName]) -> Sequence[tuple[NodeName, int]]:
        try:
            replica = self._replica()
        except NotReady:
            return ()
        return replica.context.copy().run(replica.service.prioritize, pod, offered)

    async def bind(self, ref: PodRef, node: NodeName, alive: Callable[[], bool]) -> str:
        del alive
        try:
            replica = self._replica()
        except NotReady as error:
            return str(error)
        run = self._run
        call = BindCallOf(ref.uid, run.loop.time(), replica, self._caller)
        answer = run.spawn(
            replica.process, replica.service.bind(ref, node, call.alive), f"bind {ref.name}"
        )
        ended = asyncio.ensure_future(replica.process.ended.wait())
        run.truth.arrived(call)
        try:
            await asyncio.wait(
                {answer, ended}, timeout=CALL_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if answer.done():
                run.truth.answered(call, answer.result())
                return answer.result()
            return "no answer"
        finally:
            call.ended_s = run.loop.time()
            ended.cancel()


class CaseControllers(Controllers):
    """Controllers that also make pods outside of groups, and trees that have a rack alone."""

    def _of_tree(self, job: Job, tree: GivenTree) -> list[api.Pod]:
        if job.name.startswith(ALONE):
            alone = ExclusiveDomain(key=RACK, scope="Cluster")
            groups = tuple(msgspec.structs.replace(spec, exclusive=alone) for spec in tree.groups)
            tree = msgspec.structs.replace(tree, groups=groups)
        pods = super()._of_tree(job, tree)
        if not job.name.startswith(LONE):
            return pods
        for uid in job.owned:
            self._cluster.remove(uid)
        job.owned.clear()
        return [_lone(pod) for pod in pods]

    def _make_again(self, job: Job, name: str) -> None:
        if name in job.pods:
            super()._make_again(job, name)

    def shrink(self, job: Job) -> str:
        """Delete the last pod of a job for good; return its name."""
        name = max(job.pods)
        del job.pods[name]
        for uid, live in list(job.live.items()):
            if live == name:
                self._cluster.delete_pod(uid)
        return name

    def delete(self, job: Job) -> None:
        """Delete a job with all that it owns, before its end."""
        job.ended_s = self._now_s()
        if job.ends is not None:
            job.ends.cancel()
        for uid in list(job.live):
            self._cluster.delete_pod(uid)
        for uid in job.owned:
            self._cluster.remove(uid)
        job.owned.clear()

    def leaf_again(self, job: Job, leaf: str) -> None:
        """Delete one group of a job, and create it again under its name; the others stay."""
        stored = self._cluster.stored_as[api.PodGroup][job.namespace, leaf].obj  # type: ignore[attr-defined]
        self._cluster.remove(stored.metadata.uid)
        job.owned.remove(stored.metadata.uid)
        again = self._identified(with_metadata(stored, deletion_timestamp=None), job.namespace)
        job.owned.append(again.metadata.uid)
        self._cluster.put(again)

    def groups_again(self, job: Job) -> None:
        """Delete the groups of a job, and create them again under their names."""
        for uid in job.owned:
            self._cluster.remove(uid)
        job.owned.clear()
        assert job.arrival is not None
        self._of_tree(job, tree_of(job.arrival))


def _lone(pod: api.Pod) -> api.Pod:
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=())
    return with_metadata(msgspec.structs.replace(pod, spec=spec), labels={})


class DefectLog(logging.Handler):
    """Collects the defects that the service logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return  # an error of something else, such as a clock that stepped
        place, trace = "", error.__traceback__
        while trace is not None:
            place = (
                f"{trace.tb_frame.f_code.co_filename.rpartition('extender/')[2]}:{trace.tb_lineno}"
            )
            trace = trace.tb_next
        self.texts.append(f"{record.getMessage()}: {error!r} at {place}")


class Run:
    """A case that runs. `do_...` are its faults."""

    def __init__(self, case: Case, loop: ProcessLoop) -> None:
        self.case = case
        self.loop = loop
        self.settings = Settings(
            hold_capacity_after_s=case.hold_after_s, hold_capacity_for_s=30, reservation_ttl_s=RESERVATION_TTL_S,
            replacement_ttl_s=30, max_children=64, search_budget=1_000,
        )  # fmt: skip
        clock = VirtualClock(loop, BEGAN_US, f"{case.seed} servers")  # type: ignore[arg-type]
        self.clock = clock
        self.database = DatabaseModel(loop, clock)
        self.requests = RequestFaults(loop, case.seed)
        self.model = ApiModel(loop, clock, case.seed, case.finalizer_s)
        self.processes: list[Process] = []
        self.replicas: list[Replica] = []
        self.story: list[tuple[float, str]] = []
        self.nodes: dict[str, api.Node] = {}
        self.joined_s: dict[str, float] = {}  # when a node was created again
        self._incarnations: dict[str, int] = {}
        for node in self._fleet():
            self.nodes[node.metadata.name] = node
            self.model.put(node)
        self.controllers = CaseControllers(self.model, (), GPU)
        self.truth = Truth(self)
        self.defect: BaseException | None = None
        self.defects = DefectLog()
        self.scheduler_process = self._process("kube-scheduler")
        self.violated = asyncio.Event()
        self.skipped_s = 0.0  # of the quiets of the case
        self._forward = Wakeup()
        self.troubled_until_s = 0.0  # nothing outside of the service hinders it after that
        self._scheduler_back_s = 0.0
        self.again_s: dict[str, float] = {}  # when a PodGroup was created again
        self._waiting: list[Fault] = []  # for their moments
        self._about: frozenset[str] = frozenset()  # pods and nodes that the present fault strikes
        self.database.on_appending = self._on_appending
        self.database.on_appended = self.truth.on_appended
        self.database.on_misfit = self.truth.on_misfit
        self._backups: list[dict[str, Any]] = []  # of the database, a few seconds apart

    def _fleet(self) -> list[api.Node]:
        nodes = []
        for number in range(self.case.racks * 2):
            rack = number // 2
            labels = {RACK: f"b{rack // 2}-r{rack}", BLOCK: f"b{rack // 2}"}
            body = a_node(f"n{number}", labels, gpu=self.case.gpus)
            (entry,) = entries_in([Document(where="fleet", value=body)], Role.CLUSTER)
            nodes.append(with_metadata(entry.obj, uid=f"node-{number}"))
        return nodes

    def _process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process | None, work: Any, name: str) -> asyncio.Task[Any]:
        return self.loop.spawn(process, work, name)

    def note(self, text: str) -> None:
        self.story.append((self.loop.time(), text))

    def on_ended(self, task: asyncio.Task[Any]) -> None:
        """Note that a leader has ended by an exception."""
        if not task.cancelled() and task.exception() is not None:
            self.truth.violate("a leader ended", repr(task.exception()))

    # --- life

    async def run(self) -> None:
        """Run to the end, or to the first violation."""
        for number in range(self.case.replicas):
            self._start_replica(number, 0)
        self._start_scheduler()
        tasks = [
            self.spawn(None, self._arrive(), "arrivals"),
            self.spawn(None, self._fail(), "faults"),
            self.spawn(None, self._slow_down(), "kube-scheduler is slow"),
            self.spawn(None, self._look(), "looks"),
        ]
        ends = self.spawn(None, self._rest_until(self.case.until_s), "end")
        stops = self.spawn(None, self.violated.wait(), "violated")
        done, _ = await asyncio.wait({ends, stops, *tasks[:3]}, return_when=asyncio.FIRST_COMPLETED)
        while not (ends.done() or stops.done()):
            for task in done:
                task.result()
            waits = {task for task in (ends, stops, *tasks) if not task.done()}
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()

    async def run_story(self, story: Callable[[Run], Awaitable[None]]) -> None:
        """Run what a test does, in place of arrivals and faults of a case, to its end or to the first violation."""
        for number in range(self.case.replicas):
            self._start_replica(number, 0)
        self._start_scheduler()
        tasks = [
            self.spawn(None, self._look(), "looks"),
            self.spawn(None, self.violated.wait(), "violated"),
            self.spawn(None, _awaited(story(self)), "story"),
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def eventually(self, look: Callable[[], Any], within_s: float, what: str) -> Any:
        """Look every tenth of a second until what is seen is true, and return it; time is virtual."""
        until_s = self.loop.time() + within_s
        while not (seen := look()):
            assert self.loop.time() < until_s, f"not within {within_s} s: {what}"
            await self.loop.rest(0.1)
        return seen

    def events(self, kind: type | None = None) -> list[RecordedEvent]:
        """Return the events of the log, or those of a kind."""
        every = [to_event(row) for row, _ in self.database.shared.rows]
        return [event for event in every if kind is None or isinstance(event.data, kind)]

    def start_again(self, replica: Replica) -> None:
        """Start a replica that is dead as a new process."""
        self._start_replica(replica.number, replica.life + 1)

    def holder(self) -> Replica:
        """Return the replica that has the lease by its row."""
        return next(r for r in self.replicas if r.name == self.database.shared.holder)

    def _start_replica(self, number: int, life: int) -> None:
        replica = Replica(self, number, life)
        self.processes.append(replica.process)
        self.replicas = [r for r in self.replicas if r.number != number] + [replica]
        self.replicas.sort(key=lambda r: r.number)
        replica.start()
        if life:
            self.note(f"{replica.name} starts again")

    def _start_scheduler(self) -> None:
        process = self.scheduler_process
        name = f"{self.case.seed} {process.name}"
        clock = VirtualClock(self.loop, BEGAN_US, name)  # type: ignore[arg-type]
        cluster = ServedCluster(self.model, self.requests, clock, process, name, lambda: True)
        self.scheduler_cluster = cluster
        scheduler = KubeScheduler(cluster, Front(self, process), self.case.seed)  # type: ignore[arg-type]

        async def synced_first() -> None:
            await cluster.start()
            await cluster.synced()
            await scheduler.run()

        task = self.spawn(process, synced_first(), "kube-scheduler")
        task.add_done_callback(self.on_ended, context=contextvars.Context())

    async def _arrive(self) -> None:
        for arrival in sorted(self.case.arrivals, key=lambda a: (a.at_s, a.name)):
            await self._rest_until(arrival.at_s)
            self.controllers.arrive(job_of(arrival))
            shapes = "+".join(
                f"{g.minimum}/{g.pods}x{g.requests[GPU]}{' in ' + g.topology_key.rpartition('/')[2] if g.topology_key else ''}"
                for g in arrival.groups
            )
            self.note(f"{arrival.namespace}/{arrival.name} arrives: {shapes}, priority {arrival.priority}")  # fmt: skip

    async def _rest_until(self, at_s: float) -> None:
        """Wait until a time of the case."""
        while (left_s := at_s - self.case_s()) > 0:
            await first_of(self._forward.wait(self._forward.revision), timeout_s=left_s)

    def case_s(self) -> float:
        """Return the time as the case has it, in which no quiet ends early."""
        return self.loop.time() + self.skipped_s

    async def _fail(self) -> None:
        for fault in self.case.faults:
            await self._rest_until(fault.at_s)
            if fault.after:
                self._waiting.append(fault)
            else:
                self.act(fault)

    async def _slow_down(self) -> None:
        """In bursts kube-scheduler takes the time of the case for each pod."""
        for begins_s, ends_s in self.case.bursts:
            await self._rest_until(begins_s)
            kube_scheduler.CYCLE_S = self.case.cycle_s  # type: ignore[misc]
            await self._rest_until(ends_s)
            kube_scheduler.CYCLE_S = CYCLE_S  # type: ignore[misc]

    async def _look(self) -> None:
        while True:
            await self.loop.rest_until(self.loop.time() + LOOK_EVERY_S)
            case_s = self.case_s()
            burst = next((b for b in self.case.bursts if b[0] <= case_s <= b[1]), None)
            if burst is None:
                self._waiting.clear()
            self.truth.look(troubled=self.loop.time() < self.troubled_until_s)
            if any(fault.kind == "database_restored" for fault in self.case.faults):
                self._backups = [*self._backups[1 - BACKUPS :], self.database.shared.copy()]
            if burst is None and self.truth.is_settled():
                self._go_forward(case_s)

    def _go_forward(self, case_s: float) -> None:
        """End the quiet: bring what comes next forward."""
        arrivals = (arrival.at_s for arrival in self.case.arrivals)
        bursts = (begins_s - 3.0 for begins_s, _ in self.case.bursts)
        after_s = min((at_s for at_s in (*arrivals, *bursts) if at_s > case_s), default=None)
        if after_s is None:
            after_s = self.case.until_s
        self.skipped_s += max(0.0, after_s - case_s)
        self._forward.wake()

    def _on_appending(self, events: Sequence[RecordedEvent]) -> None:
        for event in events:
            data = event.data
            about = {str(a.uid) for a in getattr(data, "assignments", ())}
            about |= {str(a.node) for a in getattr(data, "assignments", ())}
            self.moment(type(data).__name__, about)

    def moment(self, name: str, about: Collection[str]) -> None:
        """Let the first fault that waits for it happen; in the context of no process."""
        fault = next((fault for fault in self._waiting if fault.after == name), None)
        if fault is None:
            return
        self._waiting.remove(fault)

        def strike() -> None:
            self._about = frozenset(about)
            self.act(fault)
            self._about = frozenset()

        empty = contextvars.Context()
        if fault.delay_s:
            empty.run(self.loop.act_later, fault.delay_s, strike)
        else:
            empty.run(strike)

    def act(self, fault: Fault) -> None:
        """Let something go wrong."""
        text = getattr(self, f"do_{fault.kind}")(fault)
        when = f" at {fault.after}" if fault.after else ""
        self.note(f"{fault.kind.replace('_', ' ')}{when}{': ' if text else ''}{text or ''}")

    def may_rest_s(self) -> float:
        """Return by how much time may go on at once while nothing happens: less than a lease needs, and not in a burst."""
        case_s = self.case_s()
        in_burst = any(begins_s - 3.0 <= case_s <= ends_s for begins_s, ends_s in self.case.bursts)
        return 0.0 if in_burst or self.loop.time() < self.troubled_until_s else REST_S

    def trouble(self, until_s: float, settles_s: float = 2.0) -> float:
        """Note that something hinders the service until a time; return that time."""
        self.troubled_until_s = max(self.troubled_until_s, until_s + settles_s)
        return until_s

    # --- faults of watches

    def _clusters(self) -> dict[str, ServedCluster]:
        """Return what reads objects, by the name of its process."""
        living = {r.name: r.cluster for r in self.replicas if not r.process.dead}
        return living | {"kube-scheduler": self.scheduler_cluster}

    def _channel(self, fault: Fault) -> tuple[Any, str]:
        clusters = [*self._clusters().items()]
        name, cluster = clusters[fault.target % len(clusters)]
        kinds = [api.Pod, api.Pod, api.PodGroup, api.Node, api.CompositePodGroup]
        kind = kinds[fault.target // 8 % len(kinds)]
        return cluster.connection.channels[kind], f"{name}, {kind.__name__}"

    def do_watch_late(self, fault: Fault) -> str:
        channel, text = self._channel(fault)
        channel.late_s = fault.lasts_s
        channel.late_until_s = self.loop.time() + 2 * fault.lasts_s
        self.trouble(channel.late_until_s + channel.late_s)
        return f"{text}, by {fault.lasts_s:.1f} s"

    def do_watch_breaks(self, fault: Fault) -> str:
        channel, text = self._channel(fault)
        channel.broken.wake()
        self.trouble(self.loop.time(), 5.0)
        return text

    def do_watch_expires(self, fault: Fault) -> str:
        channel, text = self._channel(fault)
        channel.refuses = 1
        channel.broken.wake()
        self.trouble(self.loop.time(), 5.0)
        return f"{text}, 410"

    def do_watch_loses(self, fault: Fault) -> str:
        """Lose a change with the connection; that of a process carries all its watches, or one of them."""
        channel, text = self._channel(fault)
        order = "lose deletion" if fault.target // 64 % 2 else "lose"
        together = self._clusters()[text.partition(",")[0]].connection.channels.values()
        for each in together if fault.target // 128 % 2 else [channel]:
            each.orders.append(order)
        return f"{text}{' and all others' if fault.target // 128 % 2 else ''}: {order}"

    def do_watch_duplicates(self, fault: Fault) -> str:
        channel, text = self._channel(fault)
        channel.orders += ["duplicate"] * 3
        return text

    def do_watch_swaps(self, fault: Fault) -> str:
        channel, text = self._channel(fault)
        channel.orders += ["swap"] * 2
        return text

    # --- of requests

    def do_requests_fail(self, fault: Fault) -> str:
        self.requests.share = (0.2, 0.5, 0.9)[fault.target % 3]
        self.requests.fails_until_s = self.trouble(self.loop.time() + fault.lasts_s)
        return f"{self.requests.share:.0%} for {fault.lasts_s:.1f} s"

    def do_requests_slow(self, fault: Fault) -> str:
        self.requests.slow_until_s = self.trouble(self.loop.time() + fault.lasts_s)
        return f"for {fault.lasts_s:.1f} s"

    def do_api_server_down(self, fault: Fault) -> str:
        self.requests.down_until_s = self.trouble(self.loop.time() + fault.lasts_s, 5.0)
        for replica in self.replicas:
            for channel in replica.cluster.connection.channels.values():
                channel.broken.wake()
        return f"for {fault.lasts_s:.1f} s"

    # --- of the log

    def do_database_down(self, fault: Fault) -> str:
        self.database.down_until_s = self.trouble(self.loop.time() + fault.lasts_s, 5.0)
        return f"for {fault.lasts_s:.1f} s"

    def do_database_slow(self, fault: Fault) -> str:
        self.database.slow_s = (0.05, 0.5, 2.0, 6.0)[fault.target % 4]
        self.database.slow_until_s = self.loop.time() + fault.lasts_s
        self.trouble(self.database.slow_until_s + self.database.slow_s, 5.0)
        return f"by {self.database.slow_s} s for {fault.lasts_s:.1f} s"

    def do_database_cut(self, fault: Fault) -> str:
        """Cut one process off from the database."""
        replica = self._replica(fault)
        if replica is None:
            return "none"
        lasts_s = self._lasts_s(fault)
        replica.log.cut_until_s = self.trouble(self.loop.time() + lasts_s, 5.0)
        return f"{replica.name} for {lasts_s:.1f} s"

    def _lasts_s(self, fault: Fault) -> float:
        """Return for how long a replica is hindered: of two times one longer than the lease lasts."""
        return max(fault.lasts_s, TTL_MS / 1000 + 5.0) if fault.target // 2 % 2 else fault.lasts_s

    def do_answer_lost(self, fault: Fault) -> str:
        self.database.lost.append("answer")
        self.trouble(self.loop.time(), 3.0)
        return "of the next append"

    def do_append_lost(self, fault: Fault) -> str:
        self.database.lost.append("append")
        self.trouble(self.loop.time(), 3.0)
        return "the next one"

    def do_database_restored(self, fault: Fault) -> str:
        """Put an older copy of the database in its place, as after the loss of its disk."""
        if not self._backups:
            return "none"
        backup = self._backups[fault.target % len(self._backups)]
        before, epoch = len(self.database.shared.rows), self.database.shared.epoch
        self.database.shared.restore(backup)
        self.trouble(self.loop.time(), TTL_MS / 1000 + 5.0)
        self.truth.on_restored(before, is_older=self.database.shared.epoch < epoch)
        return f"from position {before} to {len(backup['rows'])}"

    # --- of processes

    def _replica(self, fault: Fault) -> Replica | None:
        """Return a replica that lives; more often than not the leader."""
        living = [r for r in self.replicas if not r.process.dead]
        leading = [r for r in living if r.leader.leads()]
        if leading and fault.target % 4:
            return leading[0]
        return living[fault.target // 4 % len(living)] if living else None

    def do_process_stops(self, fault: Fault) -> str:
        replica = self._replica(fault)
        if replica is None or replica.process.stopped:
            return "none"
        self.loop.stop_process(replica.process)
        lasts_s = self._lasts_s(fault)
        self.trouble(self.loop.time() + lasts_s, TTL_MS / 1000)
        self.loop.act_later(lasts_s, self.loop.continue_process, replica.process)
        return f"{replica.name} for {lasts_s:.1f} s"

    def do_process_dies(self, fault: Fault) -> str:
        replica = self._replica(fault)
        if replica is None:
            return "none"
        return self._dies(replica, fault.target % 301, fault.lasts_s)

    def _dies(self, replica: Replica, callbacks: int, lasts_s: float) -> str:
        if replica.process.dies_after >= 0:
            return f"{replica.name} dies already"  # and is replaced once
        self.trouble(self.loop.time(), TTL_MS / 1000 + 5.0)
        replica.process.dies_after = callbacks
        self.spawn(None, self._replace(replica, lasts_s), "replacement")
        return f"{replica.name} after {callbacks} callbacks"

    def do_leader_dies_blind(self, fault: Fault) -> str:
        """Let the leader die, hand over, or be cut off from the database, while what the others read is late."""
        leading = next((r for r in self.replicas if not r.process.dead and r.leader.leads()), None)
        if leading is None or leading.process.stopped:
            return "none"
        now_s = self.loop.time()
        cut_off = is_cut_off(fault.target)
        hands_over = not cut_off and fault.target % 2 == 1
        late_s = 4.0 if hands_over else 16.0
        for other in self.replicas:
            if other is leading or other.process.dead:
                continue
            other.log.late_s, other.log.late_until_s = 1.0 + fault.target % 7 * 0.5, now_s + late_s
            for kind in (api.Pod, api.Node):
                channel = other.cluster.connection.channels[kind]
                channel.late_s, channel.late_until_s = late_s, now_s + late_s
        self.trouble(now_s + 2 * late_s)
        if cut_off:
            leading.log.cut_until_s = now_s + TTL_MS / 1000 + 5.0
            return f"{leading.name} does not reach the database"
        if not hands_over:
            return self._dies(leading, fault.target % 61, fault.lasts_s)

        async def hand_over() -> None:
            await leading.leader.release_lease()
            self._dies(leading, 0, fault.lasts_s)

        self.spawn(leading.process, hand_over(), "hand over")
        return f"{leading.name} hands over"

    async def _replace(self, replica: Replica, after_s: float) -> None:
        await replica.process.ended.wait()
        self.note(f"{replica.name} is dead")
        self.trouble(self.loop.time(), TTL_MS / 1000 + 5.0)
        await self.loop.rest(min(after_s, RESTARTS_AFTER_S))
        self._start_replica(replica.number, replica.life + 1)

    def do_clock_steps(self, fault: Fault) -> str:
        replica = self._replica(fault)
        if replica is None:
            return "none"
        by_s = (3600, -3600, 30, -30, 1, -1)[fault.target // 4 % 6]
        replica.machine.stepped_us += by_s * 1_000_000
        self.trouble(self.loop.time(), 10.0)
        return f"{replica.name} by {by_s} s"

    def do_scheduler_dies(self, fault: Fault) -> str:
        return self._without_scheduler(5.0 if fault.target % 2 else 1.5)

    def do_scheduler_away(self, fault: Fault) -> str:
        """Let kube-scheduler be away for so long that reservations expire."""
        del fault
        return self._without_scheduler(AWAY_S)

    def _without_scheduler(self, for_s: float) -> str:
        self._scheduler_back_s = max(self._scheduler_back_s, self.trouble(self.loop.time() + for_s))
        if self.scheduler_process.dead:
            return "is away already"
        self.loop.kill(self.scheduler_process)
        self.truth.on_caller_gone(self.scheduler_process)
        self.spawn(None, self._scheduler_again(), "kube-scheduler again")
        return f"for {for_s:.1f} s"

    async def _scheduler_again(self) -> None:
        while self.loop.time() < self._scheduler_back_s:
            await self.loop.rest_until(self._scheduler_back_s)
        number = sum(p.name.startswith("kube-scheduler") for p in self.processes)
        self.scheduler_process = self._process(f"kube-scheduler.{number}")
        self._start_scheduler()

    @property
    def scheduler_away(self) -> bool:
        """Return whether there is no kube-scheduler."""
        return self.scheduler_process.dead

    # --- of objects

    def _pods(self) -> list[Pod]:
        pods = [pod for pod in self.model.stored().pods.values() if pod.uid in self._about]
        return sorted(
            pods or self.model.stored().pods.values(), key=lambda pod: (pod.path, pod.uid)
        )

    def do_pod_deleted(self, fault: Fault) -> str:
        pods = self._pods()
        if not pods:
            return "none"
        pod = pods[fault.target % len(pods)]
        self.model.delete_pod(pod.uid)
        return f"{pod.path} on {pod.node}"

    def do_pod_fails(self, fault: Fault) -> str:
        pods = [pod for pod in self._pods() if pod.node is not None]
        if not pods:
            return "none"
        pod = pods[fault.target % len(pods)]
        self.model.remove(pod.uid)
        return f"{pod.path} on {pod.node} is gone at once"

    def _job(self, fault: Fault) -> Job | None:
        jobs = [job for job in self.controllers.jobs if job.ended_s is None and job.live]
        jobs = [job for job in jobs if not self._about.isdisjoint(job.live)] or jobs
        return jobs[fault.target % len(jobs)] if jobs else None

    def do_group_again(self, fault: Fault) -> str:
        job = self._job(fault)
        if job is None or not job.owned:
            return "none"
        leaves = sorted({str(pod.group.name) for pod in self.model.stored().pods.values() if pod.uid in job.live and pod.group is not None})  # fmt: skip
        if len(leaves) < 2 or not fault.target // 8 % 4:
            self._note_again(job.namespace, leaves)
            self.controllers.groups_again(job)
            return f"groups of {job.path}"
        leaf = leaves[fault.target // 32 % len(leaves)]
        self._note_again(job.namespace, [leaf])
        self.controllers.leaf_again(job, leaf)
        return f"PodGroup {job.namespace}/{leaf}"

    def do_group_lingers(self, fault: Fault) -> str:
        """Delete a PodGroup that has a finalizer of another controller; it goes later, and is created again."""
        job = self._job(fault)
        if job is None or not job.owned:
            return "none"
        groups = self.model.stored_as[api.PodGroup]
        keys = sorted(key for key, change in groups.items() if change.obj.metadata.uid in job.owned)
        key = keys[fault.target // 8 % len(keys)]
        stored = groups[key].obj
        if stored.metadata.deletion_timestamp is not None:
            return "none"
        self.model.put(with_metadata(stored, deletion_timestamp=self.model.now()))

        def goes() -> None:
            current = groups.get(key)
            if current is not None and current.obj.metadata.uid == stored.metadata.uid:
                self._note_again(key[0], [key[1]])
                self.controllers.leaf_again(job, key[1])

        lasts_s = self.trouble(self.loop.time() + max(fault.lasts_s, 5.0)) - self.loop.time()
        self.loop.act_later(lasts_s, goes)
        return f"PodGroup {key[0]}/{key[1]} for {lasts_s:.1f} s"

    def _note_again(self, namespace: str, leaves: Sequence[str]) -> None:
        for leaf in leaves:
            self.again_s[str(GroupKey(namespace, leaf, "PodGroup"))] = self.loop.time()

    def do_job_again(self, fault: Fault) -> str:
        job = self._job(fault)
        if job is None:
            return "none"
        for uid in list(job.live):
            self.model.delete_pod(uid)
        if job.owned:
            self.controllers.groups_again(job)
        return job.path

    def do_job_deleted(self, fault: Fault) -> str:
        job = self._job(fault)
        if job is None:
            return "none"
        self.controllers.delete(job)
        return job.path

    def do_job_shrinks(self, fault: Fault) -> str:
        """Delete a pod of an elastic job for good."""
        job = self._job(fault)
        if job is None or len(job.pods) == 1:
            return "none"
        return f"{job.path} without {self.controllers.shrink(job)}"

    def _node(self, fault: Fault) -> str | None:
        names = sorted(self.model.stored().nodes)
        if len(names) > 1:
            names = [name for name in names if name in self._about] or names
        return names[fault.target % len(names)] if len(self.model.stored().nodes) > 1 else None

    def _put_node(self, name: str) -> None:
        if name not in self.model.stored().nodes:
            count = self._incarnations[name] = self._incarnations.get(name, 0) + 1
            self.joined_s[name] = self.loop.time()
            self.model.put(with_metadata(self.nodes[name], uid=f"{name}-{count}"))

    def do_node_again(self, fault: Fault) -> str:
        """Delete a node and create it again; its pods run on."""
        name = self._node(fault)
        if name is None:
            return "none"
        self.model.remove(self._uid_of(name))
        self.loop.act_later(fault.lasts_s, self._put_node, name)
        return f"{name} after {fault.lasts_s:.1f} s"

    def _uid_of(self, name: str) -> str:
        change = self.model.stored_as[api.Node]["", name]
        return change.obj.metadata.uid

    def do_node_lost(self, fault: Fault) -> str:
        """Delete a node for some time; its pods go with it."""
        name = self._node(fault)
        if name is None:
            return "none"
        self.model.remove(self._uid_of(name))
        self.loop.act_later(0.4, self._collect, name)
        self.loop.act_later(max(fault.lasts_s, 1.0), self._put_node, name)
        return f"{name} for {max(fault.lasts_s, 1.0):.1f} s"

    def _collect(self, name: str) -> None:
        for pod in self._pods():
            if pod.node == name:
                self.model.remove(pod.uid)

    def do_node_cordoned(self, fault: Fault) -> str:
        name = self._node(fault)
        if name is None:
            return "none"
        node = self.model.stored_as[api.Node]["", name].obj
        assert isinstance(node, api.Node)
        spec = msgspec.structs.replace(node.spec, unschedulable=True)
        self.model.put(msgspec.structs.replace(node, spec=spec))

        def open_again() -> None:
            current = self.model.stored_as[api.Node].get(("", name))
            if current is not None and isinstance(current.obj, api.Node):
                spec = msgspec.structs.replace(current.obj.spec, unschedulable=False)
                self.model.put(msgspec.structs.replace(current.obj, spec=spec))

        self.loop.act_later(fault.lasts_s, open_again)
        return f"{name} for {fault.lasts_s:.1f} s"


class Result(msgspec.Struct, kw_only=True):
    """How a run ended."""

    violated: str = ""  # the invariant; empty: none
    detail: str = ""
    at_s: float = 0.0
    case_s: float = 0.0  # the same, in the time of the case
    story: list[str] = []
    events: int = 0
    digest: str = ""


async def _awaited(story: Awaitable[None]) -> None:
    await story


def run_case(case: Case, story: Callable[[Run], Awaitable[None]] | None = None) -> Result:
    """Run a case, or a story in its cluster, in this thread and return how it ended."""
    loop = ProcessLoop()
    asyncio.set_event_loop(loop)
    lease_loop.LOOK_EVERY_S = LEASE_LOOK_S
    kube_scheduler.CYCLE_S = CYCLE_S  # type: ignore[misc]
    run = Run(case, loop)
    loop.pace.may_rest_s = run.may_rest_s
    logger = logging.getLogger("extender")
    logger.addHandler(run.defects)
    result = Result()
    try:
        work = run.run() if story is None else run.run_story(story)
        loop.run_until_complete(loop.spawn(None, work, "run"))
    except Violated as violation:
        result.violated, result.detail = violation.kind, violation.detail
    finally:
        logger.removeHandler(run.defects)
        if not result.violated and run.truth.violation is not None:
            result.violated, result.detail = run.truth.violation
        result.at_s, result.case_s = loop.time(), run.case_s()
        _close(loop, run)
    result.story = [f"{at_s:7.2f} s  {text}" for at_s, text in run.story]
    result.events = len(run.database.shared.rows)
    result.digest = run.truth.digest()
    return result


def _close(loop: ProcessLoop, run: Run) -> None:
    """Cancel all tasks, those of dead processes too, and close the loop."""
    run.truth.over = True
    loop.set_exception_handler(
        lambda *_: None
    )  # the run is over: what tasks raise now is not judged
    loop.bury(run.processes)
    for _ in range(20):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    asyncio.set_event_loop(None)
