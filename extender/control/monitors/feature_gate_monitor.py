"""Detect which fields kube-apiserver drops and which features kube-scheduler has on, and record changes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from extender.control.log.leader import Leader
from extender.core.log.control_plane_features import (
    NOT_CONFIGURED,
    DryRunResult,
    SchedulerGates,
    features_of,
    features_summary,
)
from extender.core.log.events import ControlPlaneFeaturesDetected
from extender.core.model.errors import ClusterUnavailable, NotLeading, StoreUnavailable
from extender.core.model.pods import GATE
from extender.ports.cluster_ports import Cluster, ControlPlane
from extender.ports.log_ports import Clock
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS, log_fields

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
LOOK_FIRST_S = 0.1  # until the first answer
TRY_EVERY_MS = 3_600_000  # between dry runs; also when other kinds of groups are served than before
TRY_AGAIN_MS = 60_000  # while something is untested, or our admission policy does not work
SCHEDULER_EVERY_MS = 60_000  # a restart of kube-scheduler may switch its group scheduling on
SCHEDULER_AGAIN_MS = 5_000  # while it does not answer, for example after a restart
NATIVE = {"on": 1, "off": 0, "unknown": -1}
NOT_ASKED = SchedulerGates(None, "not asked yet")


class FeatureGateMonitor:
    """Sends dry runs and reads the gates of kube-scheduler when they are due, and appends changes of the result."""

    def __init__(self, cluster: Cluster, plane: ControlPlane, leader: Leader, clock: Clock) -> None:
        self._cluster = cluster
        self._plane = plane
        self._leader = leader
        self._clock = clock
        self._trials: Sequence[DryRunResult] = ()
        self._gates = NOT_ASKED
        self._dry_runs_due_ms = 0
        self._gates_due_ms = 0
        self._discoveries = -1  # `discovery_revision` at the last trials
        self._shown: ControlPlaneFeaturesDetected | None = None
        self.run = PeriodicTask(
            name="feature_gate_monitor",
            work=self.look,
            every_s=lambda: LOOK_EVERY_S if self._shown else LOOK_FIRST_S,
            retry_s=LOOK_EVERY_S,
            condition=self._may_request,
            expected=(NotLeading, StoreUnavailable, ClusterUnavailable),
            failure="control plane features not read",
        ).run

    def _may_request(self) -> bool:
        return self._leader.may_measure() and not self._cluster.not_ready_reason()

    async def look(self) -> bool:
        """Send the requests that are due, and append changes; return whether there are any."""
        if not self._may_request():
            return False
        leader = self._leader
        now_ms = self._clock.monotonic_ms()
        if self._discoveries != self._plane.discovery_revision or now_ms >= self._dry_runs_due_ms:
            discovery_revision = self._plane.discovery_revision
            self._trials = await self._plane.dry_runs()
            self._discoveries = discovery_revision
            self._dry_runs_due_ms = now_ms + TRY_EVERY_MS
        if now_ms >= self._gates_due_ms:
            self._gates = await self._plane.scheduler_gates()
            silent = self._gates.gates is None and self._gates.problem != NOT_CONFIGURED
            self._gates_due_ms = now_ms + (SCHEDULER_AGAIN_MS if silent else SCHEDULER_EVERY_MS)
        before = leader.committed.features
        features = features_of(self._trials, self._gates, GATE, before)
        if features.untested or features.admission_policy != "on":
            self._dry_runs_due_ms = min(self._dry_runs_due_ms, now_ms + TRY_AGAIN_MS)
        self._show(features)
        if features == before:
            return False
        await leader.append_own(features)
        return True

    def _show(self, features: ControlPlaneFeaturesDetected) -> None:
        """Update log lines and metrics."""
        if features == self._shown:
            return
        self._shown = features
        METRICS.native_group_scheduling.set(NATIVE[features.native_group_scheduling])
        METRICS.apiserver_dropped_fields.clear()
        for dropped_field in features.dropped_fields:
            METRICS.apiserver_dropped_fields.labels(dropped_field.object).inc()
        level = logging.WARNING if features_summary(features) else logging.INFO
        log.log(level, "control plane features", extra=log_fields(features))
