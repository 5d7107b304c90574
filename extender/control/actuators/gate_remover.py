"""Remove our gate from members without a reservation, for kube-scheduler's own group scheduling or for autoscalers.

See `native_gang_scheduling.gates_to_remove` (K55) and `plan_request.refused_members`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue, retried
from extender.control.log.leader import Leader
from extender.core.model.ids import PodUid
from extender.core.model.pods import Pod
from extender.ports.cluster_ports import Cluster, PodRef

log = logging.getLogger(__name__)

WORKERS = 4  # beside those of the nominator
PAUSE_S = 0.5


class GateRemover:
    """Removes gates from a queue."""

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        # Queued, or removed and not seen yet
        self._due: Mapping[PodUid, Pod] = {}
        self._queue = WorkQueue(
            "gate removal",
            self._remove,
            leader.until_may_act,
            workers=WORKERS,
            policy=RetryPolicy(first_s=PAUSE_S, max_s=PAUSE_S, after_failure="rest"),
        )
        self._queue.name_of = lambda uid: self._due[uid].path if uid in self._due else uid
        self.run = self._queue.run

    def sync(self, held: Iterable[Pod]) -> None:
        """Queue the members whose gate is to be removed, and drop queued members that are not in `held`."""
        before, self._due = self._due, {pod.uid: pod for pod in held}
        self._queue.retain_only(self._due.keys())
        for uid in self._due:
            if uid not in before:
                self._queue.add(uid)

    async def _remove(self, uid: PodUid) -> Retry | None:
        pod = self._due.get(uid)
        if pod is None:
            # It has a reservation now, or is gone.
            return None
        ref = PodRef.at(pod.path, uid)
        return await retried(self._cluster.remove_gate(ref), log, "gate not removed", pod=pod.name)
