"""Composition root: builds all objects of the service and connects them.

Commands that only read the database use `store`. They must not wait for the import of the Kubernetes client, the
planner and HTTP, so modules that only the service needs are imported where they are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from extender.core.log.events import DriftDetected, HistoryTruncated, RecordedEvent
from extender.core.model.errors import BadInput, SchemaOutdated, StoreUnavailable
from extender.core.model.pods import Pod, VolumeConstraints
from extender.core.model.visibility import Visibility
from extender.ports.access_ports import AccessReviews
from extender.ports.cluster_ports import Cluster, ControlPlane
from extender.ports.live_progress import LiveProgress
from extender.ports.log_ports import Clock, DecisionInputs
from extender.ports.workload_ports import AdmissionChecks, Workloads
from extender.queries.state.historical_state import HistoricalState
from extender.runtime.database_clock import DatabaseClock
from extender.runtime.log_keys import LogKeys, read_keys
from extender.runtime.periodic import count_unhandled, kept_running
from extender.runtime.system_clock import SystemClock
from extender.settings import Settings
from extender.store import schema_migration
from extender.store.connections import ConnectionPool, place_of
from extender.store.decision_inputs import SETTINGS as STORING_INPUTS
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.embedded.embedded_server import EmbeddedPostgres
from extender.store.embedded.os_account import has_database
from extender.store.log.postgres_event_log import PostgresEventLog, lease_renewal
from extender.store.projections import PROJECTING, PROJECTION_TIMEOUT_S, PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots

if TYPE_CHECKING:
    from aiohttp import web

    from extender.control.admission.planner_pool import PlannerPool
    from extender.control.log.leader import Leader
    from extender.http.web.query_process import ForkedQueryProcess
    from extender.runtime.worker_process import WorkerProcess

log = logging.getLogger(__name__)

Loop = Callable[[], Awaitable[object]]

TAKEN_WITHIN_S = 0.6  # another replica, if there is one, acquires a released lease within this time
DRAIN_S = 3.0  # how long calls may still arrive: a Service removes an endpoint with a delay
LOOK_S = 0.05
SWITCH_S = 0.0005  # how long another Python thread may keep the interpreter from the event loop; by default 5 ms
# With the same search path: in another working directory `-m` could find another package `extender`.
_START = "import sys; sys.path[:] = {path!r}; from extender.query_main import main; main()"
ANSWERING = (sys.executable, "-P", "-c", _START.format(path=sys.path), "gang-extender queries")


class Store(msgspec.Struct):
    """All adapters of one database."""

    url: str
    keys: LogKeys
    log: PostgresEventLog
    snapshots: PostgresSnapshots
    inputs: PostgresDecisionInputs
    audit: PostgresEventQueries
    read_models: PostgresReadModels
    as_of: HistoricalState
    history_log: PostgresEventLog  # for queries of the past; the leader appends with `log`
    reports: PostgresReportQueries
    pools: tuple[ConnectionPool, ...]


@contextlib.asynccontextmanager
async def database(settings: Settings, *, creates: bool = True) -> AsyncIterator[str]:
    """Yield the URL of the database: from the settings, or of the embedded server, which is started if necessary.

    Args:
        creates: Whether an embedded database may be created.

    Raises:
        BadInput: There is no database, and none may be created: queries do not create one.
        StoreUnavailable: The caller raised it; with the place of the database.
    """
    if settings.database_url:
        try:
            yield settings.database_url
        except StoreUnavailable as error:
            msg = f"{place_of(settings.database_url)}: {error}; see --database-url"
            raise StoreUnavailable(msg) from error
        return
    if not creates and not has_database(Path(settings.data_dir)):
        msg = (
            f"no event log in {settings.data_dir}; set --data-dir to the folder of the service, "
            "or --database-url to its database; a command that has --server can ask the service instead"
        )
        raise BadInput(msg)
    embedded = EmbeddedPostgres(
        Path(settings.data_dir), pg_bin=Path(settings.pg_bin) if settings.pg_bin else None
    )
    url = await embedded.start()
    try:
        yield url
    finally:
        await embedded.stop()


@contextlib.asynccontextmanager
async def recorded_decisions(
    settings: Settings,
) -> AsyncIterator[tuple[PostgresEventQueries, PostgresDecisionInputs]]:
    """Yield what reads the decisions of a database and their inputs, and writes nothing.

    Before an upgrade the schema may be that of the version before: migrations only add, so what is read is there.

    Raises:
        BadInput: There is no database.
        StoreUnavailable: No answer, or the schema is too old to be read.
    """
    async with database(settings, creates=False) as url:
        reading = reading_pool(url)
        try:
            yield PostgresEventQueries(reading), PostgresDecisionInputs(reading)
        finally:
            await reading.close()


@contextlib.asynccontextmanager
async def store(settings: Settings, *, migrates: bool) -> AsyncIterator[Store]:
    """Yield the adapters of the database.

    Args:
        migrates: Whether an embedded database may be migrated; an external one is never migrated here.

    Raises:
        BadInput: There is no database.
        SchemaOutdated: The database must be migrated; the message has the command.
    """
    async with database(settings, creates=migrates) as owner:
        if await schema_migration.needs_migration(owner):
            if settings.database_url or not migrates:
                msg = "database schema is out of date; run `gang-extender db migrate`"
                raise SchemaOutdated(msg)
            revision = await schema_migration.upgrade(owner)
            log.info("migrated", extra={"revision": revision})
        # not as superuser, so that the service cannot change the log of an embedded database either
        url = (
            owner
            if settings.database_url
            else schema_migration.as_role(owner, schema_migration.WRITER)
        )
        writing, reading = ConnectionPool(url, name="store"), reading_pool(url)
        keys = read_keys(settings.anchor_key_file, "--anchor-key-file")
        limit_s = PROJECTION_TIMEOUT_S
        projecting = ConnectionPool(
            url, name="project", settings=PROJECTING, size=2, command_timeout_s=limit_s
        )
        inputs = ConnectionPool(url, name="inputs", settings=STORING_INPUTS, size=1)
        audit, history_log = PostgresEventQueries(reading), PostgresEventLog(url)
        opened = Store(
            url=url,
            keys=keys,
            # only a service migrates; other programs are no replicas
            log=PostgresEventLog(url, replica=settings.identity if migrates else ""),
            snapshots=PostgresSnapshots(writing, keys),
            inputs=PostgresDecisionInputs(inputs),
            audit=audit,
            read_models=PostgresReadModels(projecting),
            as_of=HistoricalState(history_log, PostgresSnapshots(reading, keys), audit),
            history_log=history_log,
            reports=PostgresReportQueries(reading),
            pools=(writing, reading, projecting, inputs),
        )
        try:
            yield opened
        finally:
            await opened.log.close()
            await opened.history_log.close()
            for pool in opened.pools:
                await pool.close()


class Runnable(Cluster, Protocol):
    """A cluster adapter that is started and stopped."""

    @property
    def control_plane(self) -> ControlPlane | None:
        """Return the port that reads features of kube-apiserver and kube-scheduler; None for manifests."""

    @property
    def workloads(self) -> Workloads:
        """Return the port to workload objects."""

    @property
    def admission_checks(self) -> AdmissionChecks | None:
        """Return the port to the AdmissionChecks of Kueue; None for manifests."""

    def access_reviews(self, *, api_server_tokens: bool) -> AccessReviews | None:
        """Return the port to the rights of readers; None for manifests.

        Args:
            api_server_tokens: Whether tokens for the API server itself are accepted too.
        """

    async def start(self) -> None:
        """Start to observe the cluster; does not wait for the first sync."""

    async def stop(self) -> None:
        """Stop to observe the cluster."""

    def priority_classes(self) -> tuple[bytes, ...]:
        """Return the PriorityClasses as JSON objects."""

    def claims_named(self, names: Collection[str]) -> Mapping[tuple[str, str], VolumeConstraints]:
        """Return how the volume claims with some names, by namespace and name, restrict the nodes of their pods."""


def check_cluster(settings: Settings) -> None:
    """Check that the cluster of the settings can be read, before a database is made for it.

    Raises:
        BadInput: There is no manifest, or no kubeconfig, at a path.
    """
    if settings.cluster:
        from extender.cluster.manifests.served.manifest_cluster import check_paths

        check_paths(settings.cluster)
    else:
        from extender.cluster.connection.api_client import check_files

        check_files(settings.kubeconfig or None)


async def cluster(settings: Settings, clock: Clock, fence: Callable[[], bool]) -> Runnable:
    """Return the cluster adapter: for manifests when they are set, else for the Kubernetes API.

    Args:
        fence: Returns whether this process may write to the cluster; called before each request.
    """
    if settings.cluster:
        from extender.cluster.manifests.served.manifest_cluster import ManifestCluster

        folder = Path(settings.data_dir)
        return ManifestCluster(
            [*settings.cluster],
            folder,
            clock=clock,
            fence=fence,
            max_children=settings.max_children,
        )
    from extender.cluster.api_server.api_discovery import SchedulerMetrics
    from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster

    metrics = SchedulerMetrics(
        settings.scheduler_metrics_url,
        ca_file=settings.scheduler_metrics_ca_file,
        token_file=settings.scheduler_metrics_token_file,
    )
    return await KubernetesCluster.connect(
        settings.kubeconfig or None,
        clock=clock,
        fence=fence,
        scheduler=metrics,
        max_children=settings.max_children,
    )


def database_clock(opened: Store) -> DatabaseClock:
    """Return the clock of the service: by the clock of the machine until its first `sync`."""
    return DatabaseClock(SystemClock(), opened.log.time_us)


def leader(settings: Settings, opened: Store, clock: DatabaseClock) -> Leader:
    """Return the leader, which is the only writer of the log."""
    from extender.control.log.leader import Leader
    from extender.control.log.leader_role import LeaseIdentity

    identity = LeaseIdentity(
        holder=settings.identity,
        address=settings.advertise_url,
        ttl_ms=int(settings.lease_duration_s * 1000),
    )
    return Leader(
        opened.log, opened.snapshots, clock, identity, on_append=_count, sync_clock=clock.sync
    )


class Children(NamedTuple):
    """Child processes that were forked before the event loop began; see `fork_children`."""

    queries: ForkedQueryProcess
    planner: WorkerProcess

    def close(self) -> None:
        """End what has not ended, as when the service could not start."""
        self.queries.process.close()
        self.queries.listening.close()
        self.planner.stop()


def fork_children(answer: Callable[[bytes], None]) -> Children:
    """Fork the query process and the planner process from this one; only before event loop and threads.

    Args:
        answer: The query process, see `extender/query_main.py`.
    """
    from extender.control.admission import planner_pool  # noqa: F401 -- loaded before the fork
    from extender.http.web.query_process import fork_query_process
    from extender.runtime.worker_process import WorkerProcess

    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, the memory that it shares
    queries = fork_query_process(answer)
    planner = WorkerProcess()
    planner.fork()  # the last one: its executor starts threads
    return Children(queries, planner)


class Engine:
    """The part of the service that decides and acts, on any adapters: no HTTP, no process, no database of its own."""

    def __init__(
        self,
        settings: Settings,
        inputs: DecisionInputs,
        cluster_adapter: Runnable,
        writer: Leader,
        clock: Clock,
        planner: PlannerPool,
    ) -> None:
        """Build and connect the objects; nothing runs before `engine_loops` are started."""
        from extender.control.actuators.finalizer_controller import FinalizerController
        from extender.control.actuators.status_reporter import StatusReporter
        from extender.control.admission.loop_parts import MEMBER_ARRIVAL_MS, loop_parts
        from extender.control.binding.bind_barrier import BindBarriers
        from extender.control.loop.control_loop import ControlLoop
        from extender.control.monitors.capacity_sampler import CapacitySampler
        from extender.control.trees.tree_controller import AdoptionHold, TreeController
        from extender.control.verbs.extender_service import ExtenderService

        self.settings = settings
        self.cluster = cluster_adapter
        self.leader = writer
        self.barriers = BindBarriers(
            cluster=cluster_adapter, leader=writer, clock=clock, settings=settings
        )
        self.capacity_sampler = CapacitySampler(cluster_adapter, writer, settings)
        self.reporter = StatusReporter(
            cluster_adapter, writer, clock, show_names=settings.show_names_across_namespaces
        )
        self.finalizers = FinalizerController(cluster_adapter, writer, clock)
        self.trees = TreeController(
            cluster_adapter, cluster_adapter.workloads, writer, inputs, settings
        )
        parts = loop_parts(
            cluster=cluster_adapter,
            leader=writer,
            inputs=inputs,
            barriers=self.barriers,
            reporter=self.reporter,
            clock=clock,
            settings=settings,
        )
        self.parts = msgspec.structs.replace(parts, arrival_ms=MEMBER_ARRIVAL_MS, planner=planner)
        self.parts.requests.is_held = AdoptionHold(cluster_adapter.workloads, writer)
        self.control_loop = ControlLoop(self.parts)
        self.extender_service = ExtenderService(
            cluster=cluster_adapter,
            leader=writer,
            inputs=inputs,
            exchange=self.parts.exchange,
            barriers=self.barriers,
            clock=clock,
            settings=settings,
        )
        writer.add_lost_listener(self.barriers.fail_waiting_calls)

    def engine_loops(self) -> dict[str, Loop]:
        """Return what decides and acts beside the leader, by name; each is called again if a defect ends it."""
        return {
            "control loop": self.control_loop.run,
            "nominations": self.parts.nominator.run,
            "evictions": self.parts.evictor.run,
            "moves": self.parts.mover.run,
            "gate removal": self.parts.gate_remover.run,
            "wake-ups": self.parts.pod_waker.run,
            "reporter": self.reporter.run,
            "finalizers": self.finalizers.run,
            "capacity sampler": self.capacity_sampler.run,
            "trees": self.trees.run,
        }


class Service(Engine):
    """The running service: its objects, and the order in which they start and stop."""

    def __init__(
        self,
        settings: Settings,
        opened: Store,
        cluster_adapter: Runnable,
        writer: Leader,
        clock: DatabaseClock,
        children: Children | None = None,
    ) -> None:
        from extender.control.admission.planner_pool import PlannerPool
        from extender.control.monitors.feature_gate_monitor import FeatureGateMonitor
        from extender.control.monitors.notifier import HttpReceiver, Notifier
        from extender.control.monitors.state_metrics import DatabaseSize, StateMetrics
        from extender.http.listener.tls_contexts import TlsContexts
        from extender.http.scheduler.leader_proxy import LeaderProxy
        from extender.http.web.query_process import QueryProcess, QueryProcessOptions
        from extender.queries.plan.plan_service import PlanQueryWorker
        from extender.runtime.cooperative_yield import Yielder
        from extender.runtime.garbage_collection import FullCollections

        planner = PlannerPool(children.planner if children else None)
        super().__init__(settings, opened.inputs, cluster_adapter, writer, clock, planner)
        # what runs beside the leader, by name; each is called again if a defect ends it
        self._loops = self._watch_log(opened, clock) | self.engine_loops()
        if plane := cluster_adapter.control_plane:
            features = FeatureGateMonitor(cluster_adapter, plane, writer, clock)
            self._loops["features"] = features.run
        self.extender_service.recent_stall = self.loop_monitor.recent_stall
        self.tls = TlsContexts(settings, SystemClock()) if settings.has_tls else None
        self.forwarder = LeaderProxy(writer, settings, self.tls)
        self.query_process = QueryProcess(
            ANSWERING,
            QueryProcessOptions(
                opened.url, settings.log_level, settings.anchor_key_file, settings.log_format
            ),
            children.queries if children else None,
        )
        self.state_metrics = StateMetrics(
            cluster_adapter, writer, self.parts.exchange.published, self.capacity_sampler, clock
        )
        embedded = "" if settings.database_url else settings.data_dir
        self.worker = PlanQueryWorker()
        self.collections = FullCollections(clock, Yielder.since_last_call_s)
        self._loops |= {
            "query process": self.query_process.run,
            "garbage collection": self.collections.run,
            "database size": DatabaseSize(opened.audit.database_bytes, embedded).run,
        }
        if self.tls is not None:
            self._loops["certificate files"] = self.tls.run
        if settings.notify_url:
            receiver = HttpReceiver(settings, clock)
            notifier = Notifier(opened.audit, opened.read_models, receiver, writer, clock, settings)
            self._loops["notifications"] = notifier.run
        self.apps = self._applications(opened, clock)

    def _watch_log(self, opened: Store, clock: DatabaseClock) -> dict[str, Loop]:
        """Make what publishes, verifies and projects the log, and looks at clock and event loop; return their loops."""
        from extender.control.log.log_head_publisher import LogHeadPublisher
        from extender.control.monitors.clock_monitor import ClockMonitor
        from extender.control.monitors.event_loop_monitor import EventLoopMonitor
        from extender.control.monitors.log_verifier import LogVerifier
        from extender.control.monitors.read_model_projector import (
            ReadModelProjector,
            ReferenceIndexer,
        )
        from extender.control.monitors.state_verifier import StateVerifier
        from extender.runtime.worker_process import NICE, WorkerProcess
        from extender.verification_worker import verify_slice

        writer, cluster_adapter, settings = self.leader, self.cluster, self.settings
        writer.history.anchor, writer.history.keys = cluster_adapter, opened.keys
        self.loop_monitor = EventLoopMonitor(
            writer,
            lambda: lease_renewal(opened.url),
            clock,
            int(settings.lease_duration_s * 1000),
        )
        self.publisher = LogHeadPublisher(writer, opened.log, cluster_adapter, clock, opened.keys)
        self.verification = WorkerProcess(nice=NICE)
        verify_next = functools.partial(
            self.verification.run, verify_slice, opened.url, settings.anchor_key_file
        )
        self.verifier = LogVerifier(writer, cluster_adapter, verify_next, clock)
        self.projector = ReadModelProjector(writer, opened.read_models)
        return {
            "event loop monitor": self.loop_monitor.run,
            "state verifier": StateVerifier(writer, opened.log, opened.snapshots).run,
            "clock monitor": ClockMonitor(writer, clock).run,
            "publisher": self.publisher.run,
            "reference indexer": ReferenceIndexer(writer, opened.read_models.index).run,
            "log verifier": self.verifier.run,
            "projector": self.projector.run,
        }

    def _applications(self, opened: Store, clock: Clock) -> tuple[web.Application, ...]:
        """Return the HTTP applications, one for each listener."""
        from extender.cluster.manifests.node_group_file import node_groups, read_node_groups
        from extender.cluster.manifests.plan_request_body import (
            answer_moves_request,
            answer_moves_to_apply,
            answer_plan_request,
        )
        from extender.control.actuators.move_controller import MovesPolicy
        from extender.control.trees.admission_check_controller import AdmissionCheckController
        from extender.http.scheduler.verb_handlers import VerbHandlers
        from extender.http.v1.explain_api import ExplainApi
        from extender.http.v1.gang_api import GangApi, TreeApi
        from extender.http.v1.plan_api import PlanApi
        from extender.http.v1.state_api import LiveNodeApi, NodesApi
        from extender.http.v1.status_api import StatusApi, StatusSources
        from extender.http.web.health import Probes
        from extender.http.web.request_limits import ClusterSize
        from extender.http.web.server import ApplicationParts, applications
        from extender.queries.explain.explain_service import ExplainService
        from extender.queries.plan.plan_service import PlanService
        from extender.queries.state.gang_selection import ObjectLabels
        from extender.queries.state.node_inventory import NodeInventory

        verbs = VerbHandlers(self.extender_service, self.leader, read_wire_pod, self.forwarder)
        probes = Probes(self.extender_service, self.leader, self.state_metrics.set_gauges)
        path = self.settings.node_groups
        specs = read_node_groups(path) if path else ()
        groups = node_groups(specs, f"node groups {path}")
        plans = PlanService(
            self.cluster,
            self.leader,
            self.barriers.started,
            clock,
            self.worker.run,
            answer_plan_request,
            self.settings.topology_keys,
        )
        checks = self.cluster.admission_checks

        async def ask_planner(body: bytes, readers: Visibility) -> bytes:
            return (await plans.plan(body, readers)).body

        if checks is not None:
            self._loops["admission checks"] = AdmissionCheckController(
                self.cluster,
                checks,
                self.leader,
                ask_planner,
                self.settings,
                msgspec.to_builtins(specs),
            ).run

        async def ask_for_moves(body: bytes) -> bytes:
            return (await plans.plan(body, answer=answer_moves_to_apply)).body

        if self.settings.moves_after_s:
            self._loops["moves policy"] = MovesPolicy(
                self.parts.mover, self.leader, opened.audit, ask_for_moves, clock, self.settings
            ).run
        labels = ObjectLabels(self.cluster, self.cluster.workloads)
        gangs = GangApi(opened.audit, opened.inputs, self.leader, labels)
        status = StatusApi(
            StatusSources(
                leader=self.leader,
                log=opened.log,
                clock=clock,
                started_us=clock.now_us(),
                database_place=place_of(url)
                if (url := self.settings.database_url)
                else self.settings.data_dir,
                settings=self.settings,
                checks=self.extender_service.checks,
                verified=lambda: self.verifier.last,
                counts=gangs.counts,
                ask_leader=self.forwarder.fetch,
            )
        )

        published = self.parts.exchange.published
        plan_api = PlanApi(
            plans.plan,
            functools.partial(plans.plan, answer=answer_moves_request),
            functools.partial(plans.plan, answer=answer_moves_to_apply),
            self.parts.mover,
            self.leader,
            self.forwarder.pass_on,
        )
        query_handlers = (
            self.query_process,
            gangs,
            status,
            TreeApi(self.leader, labels),
            NodesApi(self.cluster, self.query_process.fetch),
            plan_api,
            ExplainApi(
                ExplainService(
                    self.cluster,
                    self.leader,
                    clock,
                    plans.plan_live,
                    groups,
                    self.settings.search_budget,
                    lambda: published if self.leader.leads() else LiveProgress(),
                    self.parts.barriers.members_at_bind,
                ),
                self.query_process.fetch,
            ),
            LiveNodeApi(NodeInventory(self.cluster), self.leader),
        )

        def cluster_size() -> ClusterSize:
            view = self.cluster.view()
            return ClusterSize(len(view.nodes), len(view.pods))

        def namespaces() -> Iterator[str]:
            state = self.leader.committed
            yield from (key.namespace for key in self.cluster.view().groups)
            yield from (gang.gang.partition("/")[0] for gang in state.gangs.values())

        reviews = (
            self.cluster.access_reviews(api_server_tokens=self.settings.api_server_tokens)
            if self.settings.authentication == "kubernetes"
            else None
        )
        return applications(
            ApplicationParts(
                verbs=verbs,
                probes=probes,
                questions=query_handlers,
                replica_routes=[*status.replica_routes(), *plan_api.replica_routes()],
                end_streams=self.query_process.stop,
                cluster_size=cluster_size,
                reviews=reviews,
                namespaces=namespaces,
            ),
            self.settings,
            self.tls,
        )

    async def run(self, stopping: asyncio.Event, on_listening: Callable[[], None]) -> None:
        """Serve until `stopping` is set; the leader that fails ends the service with its error."""
        from extender.http.web.server import listen

        self.query_process.open()
        runners = [await listen(app, self.settings) for app in self.apps]
        on_listening()
        await self.cluster.start()
        self.collections.take_over()
        # the lease and the log end the process; any other loop that a defect ends runs again
        loops = {asyncio.create_task(self.leader.run(), name="leader")}
        for name, run in self._loops.items():
            loops.add(asyncio.create_task(kept_running(name, run), name=name))
        waiting = asyncio.create_task(stopping.wait(), name="stopping")
        try:
            done, _ = await asyncio.wait({*loops, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
            await self._hand_over()
        finally:
            waiting.cancel()
            self.forwarder.stop()
            await self.barriers.stop()
            await asyncio.gather(*(runner.cleanup() for runner in runners))
            await self.forwarder.close()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.query_process.close()
            self.worker.stop()
            self.verification.stop()
            self.parts.planner.stop()
            self.parts.termination_reasons.stop()
            await self.cluster.stop()
            await self.leader.stop()

    async def _hand_over(self) -> None:
        """Publish the end of the log, release the lease, and forward calls until callers use the new leader, if there is one."""
        await self.leader.release_lease(self.publisher.publish_last)
        began_s = asyncio.get_running_loop().time()
        waited_s = 0.0
        while waited_s < self.settings.shutdown_grace_s:
            held = self.leader.follower.lease
            other_leads = (
                held is not None and not held.expired and held.holder != self.settings.identity
            )
            least_s = DRAIN_S if other_leads or self.forwarder.open else TAKEN_WITHIN_S
            if waited_s >= least_s and not (other_leads and self.forwarder.open):
                return
            await asyncio.sleep(LOOK_S)
            waited_s = asyncio.get_running_loop().time() - began_s


def read_wire_pod(body: bytes) -> Pod:
    """Return the pod of a call; used only for pods that the informers do not have yet."""
    from extender.cluster import types as api
    from extender.cluster.read.object_decoding import decode
    from extender.cluster.read.pod_conversion import pod_of
    from extender.cluster.read.priority_classes import Priorities

    return pod_of(decode(api.Pod, body), Priorities())


def _count(events: Sequence[RecordedEvent]) -> None:
    from extender.telemetry import METRICS, log_fields

    for event in events:
        if isinstance(event.data, DriftDetected):
            log.error(
                "drift",
                extra={
                    "kind": event.data.kind,
                    "object": event.data.object,
                    "detail": event.data.message,
                },
            )
        elif isinstance(event.data, HistoryTruncated):
            log.error("history lost", extra={"position": event.position, **log_fields(event.data)})
        METRICS.appended(event)


async def serve(settings: Settings, on_listening: Callable[[], None], children: Children) -> None:
    """Run the service until SIGTERM or SIGINT."""
    check_cluster(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(count_unhandled)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with store(settings, migrates=True) as opened:
        excess = await schema_migration.excess_rights(opened.url)
        if excess:
            hint = "use a role that is a member of gx_writer only (deploy/README.md)"
            log.warning(
                "the database role of the service could change the log",
                extra={"may": excess, "hint": hint},
            )
        clock = database_clock(opened)
        await clock.sync()
        writer = leader(settings, opened, clock)
        cluster_adapter = await cluster(settings, clock, writer.may_act)
        service = Service(settings, opened, cluster_adapter, writer, clock, children)
        sys.setswitchinterval(SWITCH_S)
        await service.run(stopping, on_listening)
