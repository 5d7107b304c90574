"""Ports to the cluster: the view, and every write that follows from the log."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import msgspec

from extender.core.log.control_plane_features import DryRunResult, SchedulerGates
from extender.core.log.events import GoneVia
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GroupKey, NodeName, PlanId, PodUid
from extender.core.model.pods import PodEnd
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.ports.log_ports import PublishedAnchors


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to write to; its UID is a precondition of every write."""

    namespace: str
    name: str
    uid: PodUid

    @classmethod
    def at(cls, path: str, uid: PodUid) -> PodRef:
        """Return the pod with a path `namespace/name`."""
        namespace, _, name = path.partition("/")
        return cls(namespace=namespace, name=name, uid=uid)


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One Binding to post."""

    pod: PodRef
    node: NodeName
    # becomes the annotation gang-extender.dev/plan; None for pods outside groups
    plan: PlanId | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of a group; written only when it differs from the stored one."""

    type: str
    status: str  # True | False
    reason: str
    message: str


class K8sEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes Event about a pod or a group, for `kubectl describe`."""

    kind: str  # Pod | PodGroup | CompositePodGroup, or a kind of workload
    namespace: str
    name: str
    uid: str
    reason: str  # FailedScheduling, GangAdmitted, ...
    message: str
    warning: bool = False
    action: str = "Scheduling"
    api_version: str = ""  # of the object; empty: that of the pod or the group
    # kind, namespace, name, UID of the object that caused it
    related: tuple[str, str, str, str] | None = None

    @classmethod
    def about(cls, pod: PodRef, message: str, **fields: Any) -> K8sEvent:  # noqa: ANN401
        """Return an Event about a pod; `fields`: the reason and others."""
        return cls(
            kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid, message=message, **fields
        )  # fmt: skip


class ControlPlane(Protocol):
    """What kube-apiserver and kube-scheduler report about their features (K60)."""

    discovery_revision: int  # changes whenever the served kinds of groups change

    async def dry_runs(self) -> Sequence[DryRunResult]:
        """Create objects with all fields as dry runs, and return what would have been stored."""

    async def scheduler_gates(self) -> SchedulerGates:
        """Return the feature gates of kube-scheduler, or the reason why they are not known; does not raise."""


class Cluster(PublishedAnchors, Protocol):
    """The view of a cluster, and the writes of the service to it."""

    def view(self) -> ClusterView:
        """Return the newest view; cheap, never waits."""

    def not_ready_reason(self) -> str:
        """Return the reason why decisions must not use `view` (not synced, stale), or an empty string."""

    async def catch_up(self) -> None:
        """Return when `view` has everything that was stored in the cluster before the call.

        The view of a new leader may be older than the one on which the leader before decided: what that one recorded
        would look like drift.
        """

    def ignored_sources(self) -> tuple[str, ...]:
        """Return texts for /readyz about parts of the cluster that are not read; decisions use the rest."""

    def changed(self, revision: int) -> Awaitable[object]:
        """Wait until the revision of the view differs from `revision`."""

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Write `status.nominatedNodeName`; None clears it."""

    async def remove_gate(self, pod: PodRef) -> None:
        """Remove our scheduling gate, and no other; do nothing if it is not there."""

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        """Write DisruptionTarget=True, reason PreemptionByScheduler, before a pod is deleted (E-12)."""

    async def evict(self, pod: PodRef, via: GoneVia) -> None:
        """Request the deletion of a pod with its own grace period; the pod is gone when the view has it no more.

        Args:
            pod: The pod by UID: a new pod with the same name is never deleted.
            via: *deleted* as kube-scheduler does it, or *evicted* through the Eviction API, which respects
                PodDisruptionBudgets.

        Raises:
            ClusterUnavailable: Try again, not before its `retry_after_s`; also if a PodDisruptionBudget forbids it now.
        """

    async def ending(self, pod: PodRef) -> PodEnd | None:
        """Return how a pod that is not in the view any more ended or is being deleted; None: it is neither."""

    async def explain_waiting(self, pod: PodRef, message: str) -> None:
        """Write the message of the condition PodScheduled of a pod that has our scheduling gate."""

    async def bind(self, binding: Binding) -> None:
        """Post a Binding with the UID as precondition. A pod already bound to this node is a success.

        Raises:
            RequestRejected: For good: the pod is gone, recreated, gated, or bound to another node.
            ClusterUnavailable: 429, 5xx or no answer; the outcome may be unknown until the view shows it.
        """

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        """Merge conditions into the status of a group; write only those types that differ."""

    async def set_finalizers(self, change: FinalizerChange) -> None:
        """Write the finalizers of one of our groups, with its UID and resource version as preconditions.

        Raises:
            ClusterUnavailable: Try again later; also if the resource version is not the newest.
        """

    async def notice(self, notice: K8sEvent) -> None:
        """Create a Kubernetes Event. Best effort: a failure is logged and counted, not raised."""
