"""The `Cluster` port on a real API server: informers for reads, rate-limited writes.

Owns the informers (discovery, repeated every minute and whenever a resource disappears, determines
which there are) and whether decisions may use the view. It makes no decision, and repeats no write
beyond the retries of one call.

Note: a broken watch and a cluster without changes look the same. So the API server is pinged every few
seconds, and without an answer the view counts as not ready long before its watches time out.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Self

import msgspec

from extender.cluster.api_server.api_discovery import (
    SchedulerMetrics,
    discover,
    dry_runs,
    serves_our_group,
)
from extender.cluster.api_server.informers import Informer, Informers, Resource
from extender.cluster.api_server.workload_informers import WorkloadInformers
from extender.cluster.connection.api_client import (
    ApiResponse,
    ApiServer,
    Request,
    load_configuration,
)
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.write.event_recorder import EventRecorder
from extender.cluster.write.group_writer import GroupStatusWriter, write_finalizers
from extender.cluster.write.log_head_configmap import LogHeadConfigMap
from extender.cluster.write.pod_writer import PodWriter
from extender.core.log.control_plane_features import PriorityOf
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import CHILDREN_MAX, kind_of
from extender.core.workloads.kind_table import OBJECT_KINDS
from extender.ports.access_ports import AUDIENCE, RESOURCE, AccessRight, Caller
from extender.ports.cluster_ports import Condition, K8sEvent
from extender.ports.log_ports import Clock
from extender.runtime.periodic import PeriodicTask, kept_running
from extender.runtime.wakeup import Wakeup

logger = logging.getLogger(__name__)

ASK_EVERY_S = 5.0
SILENT_MS = 15_000  # without an answer for longer than this, no decision uses the view
DISCOVER_EVERY_S = 60.0
DISCOVER_MISSING_S = 5.0  # while our kinds are not served: an installation is probably under way
PAUSE_S = 1.0
CATCH_UP_S = 60.0  # a large cluster is listed again within this time
GROUP_PRIORITY_MAX = 1_000_000_000  # HighestUserDefinablePriority


class KubernetesCluster:
    """A cluster behind an API server."""

    def __init__(
        self,
        server: ApiServer,
        *,
        clock: Clock,
        chance: random.Random | None = None,
        instance: str = "",
        scheduler: SchedulerMetrics | None = None,
        max_children: int = CHILDREN_MAX,
    ) -> None:
        """Build the parts; no request is sent before `start`.

        Args:
            server: The connection; opened by `start`, closed by `stop`.
            instance: Name of this replica in Events; the host name when empty.
        """
        self._server = server
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 -- jitter, not a secret
        self._world = ObjectStore(guards=True, max_children=max_children)
        self._statuses = GroupStatusWriter(server, clock)
        self._recorder = EventRecorder(server, clock, instance=instance or socket.gethostname())
        self.workloads = WorkloadInformers(server, OBJECT_KINDS, clock)
        self.admission_checks = self.workloads  # of Kueue
        # what its parts do for the ports, with the same arguments
        pods, log_head = PodWriter(server, clock), LogHeadConfigMap(server)
        self.priority_classes = self._world.priorities.documents
        self.claims_named = self._world.claims_named
        self.nominate, self.remove_gate, self.bind = pods.nominate, pods.remove_gate, pods.bind
        self.explain_waiting, self.mark_disrupted = pods.explain_waiting, pods.mark_disrupted
        self.evict, self.ending = pods.evict, pods.ending
        self.published, self.publish = log_head.published, log_head.publish
        self.set_finalizers = functools.partial(write_finalizers, server)
        self.dry_runs = functools.partial(dry_runs, server, self._a_priority)
        self.scheduler_gates = (scheduler or SchedulerMetrics()).gates
        self.discovery_revision = 0
        self._informers = Informers("resource")
        self._background: list[asyncio.Task[None]] = []
        self._view_changed = Wakeup()
        self._discovered = False
        self._discover_every_s = DISCOVER_EVERY_S
        self._answered_ms = 0
        self._ready_until_ms = -1  # if nothing more is received, and no informer loses its state
        self._trouble = "not asked yet"

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None,
        *,
        clock: Clock,
        fence: Callable[[], bool] | None = None,
        scheduler: SchedulerMetrics | None = None,
        max_children: int = CHILDREN_MAX,
    ) -> Self:
        """Load the configuration of the API server and build the cluster; the caller then calls `start`."""
        configuration = await load_configuration(kubeconfig)
        server = ApiServer(
            configuration,
            fence=fence or (lambda: True),
            renew=lambda: load_configuration(kubeconfig),
        )
        return cls(server, clock=clock, scheduler=scheduler, max_children=max_children)

    # --- life

    async def start(self) -> None:
        """Open the connection and start the informers; returns before any of them is synced."""
        await self._server.__aenter__()
        self._answered_ms = self._clock.monotonic_ms()
        loops = {task.name: task.run for task in self._periodic_tasks()}
        for name, run in (*loops.items(), ("workloads", self.workloads.run)):
            task = asyncio.create_task(kept_running(name, run), name=f"cluster {name}")
            self._background.append(task)

    def _periodic_tasks(self) -> tuple[PeriodicTask, ...]:
        discovery = PeriodicTask(
            name="discovery",
            work=self._discover,
            every_s=lambda: self._discover_every_s,
            retry_s=lambda: PAUSE_S * (0.5 + self._chance.random()),
            changes=self._informers.changes,
            expected=(ClusterUnavailable,),
            failure="discovery failed",
        )
        ping = PeriodicTask(
            name="ping",
            work=self._ping,
            every_s=ASK_EVERY_S,
            expected=(ClusterUnavailable,),
            failure="API server does not answer",
        )
        return discovery, ping

    async def stop(self) -> None:
        """Stop all tasks and close the connection."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        await self._informers.stop()
        await self._server.__aexit__()

    async def synced(self) -> None:
        """Wait until decisions may use the view."""
        while self.not_ready_reason():
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._view_changed.wait(self._view_changed.revision), PAUSE_S
                )

    # --- reading

    def view(self) -> ClusterView:
        """Return the newest view."""
        return self._world.view

    def not_ready_reason(self) -> str:
        """Return the reason why decisions must not use `view`, or an empty string."""
        if not self._discovered:
            return f"API groups are not discovered yet: {self._trouble}"
        now_ms = self._clock.monotonic_ms()
        if now_ms <= self._ready_until_ms:  # kube-scheduler's calls ask several times a millisecond
            return ""
        silent_ms = now_ms - self._answered_ms
        if silent_ms > SILENT_MS:
            return f"the API server has not answered for {silent_ms // 1000} s: {self._trouble}"
        for informer in self._informers.of.values():
            if reason := informer.not_ready_reason(now_ms):
                return reason
        fresh_until = (informer.fresh_until_ms for informer in self._informers.of.values())
        self._ready_until_ms = min((self._answered_ms + SILENT_MS, *fresh_until))
        return ""

    def _on_unsynced(self) -> None:
        self._ready_until_ms = -1

    async def catch_up(self) -> None:
        """Return when every informer has what was stored before the call; see the port."""
        try:
            async with asyncio.timeout(CATCH_UP_S), asyncio.TaskGroup() as group:
                for informer in self._informers.of.values():
                    name = f"catch up {informer.resource.label}"
                    group.create_task(informer.catch_up(), name=name)
        except TimeoutError:
            raise ClusterUnavailable(
                f"the view has not caught up with the cluster within {CATCH_UP_S:.0f} s: {self.not_ready_reason()}"
            ) from None
        except ExceptionGroup as problems:
            if problems.split(ClusterUnavailable)[1] is not None:
                raise  # a defect
            raise ClusterUnavailable(str(problems.exceptions[0])) from problems

    def ignored_sources(self) -> tuple[str, ...]:
        """Return nothing: a resource that is not read makes the view not ready."""
        return ()

    async def changed(self, revision: int) -> int:
        """Wait until the view's revision differs from `revision`; return the new one."""
        while self._world.view.revision == revision:
            await self._view_changed.wait(self._view_changed.revision)
        return self._world.view.revision

    def access_reviews(self, *, api_server_tokens: bool) -> KubernetesAccessReviews:
        """Return the port to the rights of readers.

        Args:
            api_server_tokens: Whether tokens for the API server itself are accepted too.
        """
        return KubernetesAccessReviews(self._server, api_server_tokens=api_server_tokens)

    @property
    def control_plane(self) -> Self:
        """Return what reads the features of kube-apiserver and kube-scheduler."""
        return self

    def _a_priority(self) -> PriorityOf | None:
        """Return a class that groups may have; the system classes of Kubernetes are too high for them."""
        classes = self._world.priorities
        priorities = ((name, classes.resolve(None, name, "")) for name in sorted(classes.names()))
        return next(
            (
                PriorityOf(name, priority.preemption_policy)
                for name, priority in priorities
                if priority.value <= GROUP_PRIORITY_MAX
            ),
            None,
        )

    # --- writing

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        """Merge conditions into the status of a group; see the port."""
        known_group = self._world.view.groups.get(group)
        if known_group is None or known_group.uid != uid:
            raise RequestRejected(f"conditions of {group}: it was deleted or recreated")
        await self._statuses.set_conditions(known_group, conditions)

    async def notice(self, notice: K8sEvent) -> None:
        """Record a Kubernetes Event, within the rate limits; see the port."""
        related = self._api_version_of(*notice.related[:3]) if notice.related else ""
        version = notice.api_version or self._api_version_of(
            notice.kind, notice.namespace, notice.name
        )
        await self._recorder.record(notice, version, related)

    def _api_version_of(self, kind: str, namespace: str, name: str) -> str:
        if kind == "Pod":
            return "v1"
        key = GroupKey(namespace, name, kind_of(kind))
        group = self._world.view.groups.get(key)
        return group.api_version if group is not None else ""

    # --- details

    async def _discover(self) -> None:
        """Keep one informer for every resource that is served."""
        try:
            resources = await discover(self._server)
        except ClusterUnavailable as problem:
            if not self._discovered:
                self._trouble = str(problem)
            raise
        await self._adjust(resources)
        self._discovered = True
        self._statuses.forget({group.uid for group in self._world.view.groups.values()})
        served = serves_our_group(resources)
        self._discover_every_s = DISCOVER_EVERY_S if served else DISCOVER_MISSING_S

    async def _adjust(self, served: tuple[Resource, ...]) -> None:
        """Stop the informers of resources that are not served any more, then start those of new ones.

        An upgrade of kube-apiserver replaces the versions of several kinds at once. There is no await between the
        removal of the old objects and the creation of the new informers, which are not synced: a view that lacks
        these objects never counts as ready.
        """
        self.discovery_revision += set(served) != set(self._informers.of)
        await self._informers.keep_only(served)
        self._on_unsynced()  # the new ones have nothing yet
        for resource in served:
            self._informers.follow(resource, functools.partial(self._informer, resource))

    def _informer(self, resource: Resource) -> Informer:
        informer = Informer(
            self._server,
            resource,
            self._world,
            clock=self._clock,
            applied=self._view_changed.wake,
            chance=self._chance,
        )
        informer.on_unsynced = self._on_unsynced
        return informer

    async def _ping(self) -> None:
        """Request `/readyz`; any status below 500 counts as an answer."""
        request = Request(method="GET", path="/readyz", timeout_s=ASK_EVERY_S, tries_max=1)
        try:
            with suppress(ApiResponse):
                await self._server.call(request)
        except ClusterUnavailable as problem:
            self._trouble = str(problem)
            raise
        self._answered_ms = self._clock.monotonic_ms()


TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
SUBJECTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TIMEOUT_S = 3.0  # a caller waits; less than the 5 s that the headers of a request may take
TRIES_MAX = 2


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _ReviewStatus(msgspec.Struct):
    """The answer to a TokenReview, or to a SubjectAccessReview: each has the fields of its own."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    allowed: bool = False
    denied: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus


class KubernetesAccessReviews:
    """Asks kube-apiserver about every token and every right.

    A token with the audience `gang-extender` can be used for nothing else, so it is looked for first
    (`kubectl create token NAME --audience gang-extender`). The tokens of people have the audience of the API server:
    OIDC, exec plugins of clouds, static tokens; nothing makes one for another audience from them. A service that took
    only its own audience could not be read with a kubeconfig at all, so those are accepted as well, as the metrics
    of kube-scheduler and of the kubelet accept them. What that costs: such a token gives its rights in the cluster to
    any service that receives it. Where all callers have tokens of their own, `api_server_tokens` is switched off.
    """

    def __init__(self, server: ApiServer, *, api_server_tokens: bool = True) -> None:
        """Keep the connection.

        Args:
            server: As an account with the ClusterRole `system:auth-delegator`.
            api_server_tokens: Whether tokens for the API server itself are accepted too.
        """
        self._server = server
        self._audiences: tuple[list[str], ...] = ([AUDIENCE],)
        if api_server_tokens:
            self._audiences += ([],)  # none named: those of the API server

    async def authenticate(self, token: str) -> Caller | None:
        """Return who has a token; see the port."""
        for audiences in self._audiences:
            spec = {"token": token, "audiences": audiences}
            status = await self._review(TOKENS, "authentication.k8s.io/v1", "TokenReview", spec)
            # An authenticator that does not know audiences names none: it did not check them.
            checked = not audiences or AUDIENCE in status.audiences
            if status.authenticated and checked and status.user.username:
                user = status.user
                return Caller(
                    user=user.username,
                    uid=user.uid,
                    groups=tuple(user.groups),
                    extra=tuple((key, tuple(values)) for key, values in sorted(user.extra.items())),
                )
        return None

    async def authorize(self, caller: Caller, right: AccessRight) -> bool:
        """Return whether a caller has a right; see the port."""
        spec: dict[str, object] = {
            "user": caller.user,
            "uid": caller.uid,
            "groups": caller.groups,
            "extra": {key: list(values) for key, values in caller.extra},
        }
        if right.path:
            spec["nonResourceAttributes"] = {"path": right.path, "verb": right.verb}
        else:
            resource, _, group = RESOURCE.partition(".")
            spec["resourceAttributes"] = {
                "group": group,
                "resource": resource,
                "verb": right.verb,
                "namespace": right.namespace,
            }
        version, kind = "authorization.k8s.io/v1", "SubjectAccessReview"
        status = await self._review(SUBJECTS, version, kind, spec)
        return status.allowed and not status.denied

    async def _review(self, path: str, version: str, kind: str, spec: object) -> _ReviewStatus:
        request = Request(
            method="POST",
            path=path,
            body=msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec}),
            timeout_s=TIMEOUT_S,
            budget_s=TIMEOUT_S,
            tries_max=TRIES_MAX,
        )
        try:
            return msgspec.json.decode(await self._server.call(request), type=_Review).status
        except ApiResponse as refusal:
            hint = ""
            if refusal.status == HTTPStatus.FORBIDDEN:
                hint = "; the account of gang-extender needs the ClusterRole system:auth-delegator"
            raise ClusterUnavailable(f"{kind}: {refusal}{hint}", refused=True) from refusal
