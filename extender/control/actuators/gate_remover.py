"""Remove our gate from members without a reservation, for kube-scheduler's own group scheduling or for autoscalers.

See `native_gang_scheduling.gates_to_remove` (DESIGN 9.9) and `plan_request.refused_members` (DESIGN 9.10).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from extender.control.log.leader import Leader
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import PodUid
from extender.core.model.pods import Pod
from extender.ports.cluster_ports import Cluster, PodRef

log = logging.getLogger(__name__)

WORKERS = 4  # beside those of the nominator
PAUSE_S = 0.5


class GateRemover:
    """Removes gates from a queue; the next pass queues failed ones again."""

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        self._leader = leader
        self._queue: asyncio.Queue[PodRef] = asyncio.Queue()
        self._asked: set[PodUid] = set()  # queued, or removed and not seen yet

    def sync(self, held: Iterable[Pod]) -> None:
        """Queue the members whose gate is to be removed, and drop queued members that are not in `held`."""
        wanted = {pod.uid: pod for pod in held}
        for uid in wanted.keys() - self._asked:
            pod = wanted[uid]
            self._queue.put_nowait(PodRef(namespace=pod.namespace, name=pod.name, uid=uid))
        self._asked = set(wanted)

    async def run(self) -> None:
        """Remove gates until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"gate removal {number}")

    async def _work(self) -> None:
        while True:
            pod = await self._queue.get()
            await self._leader.until_may_act()
            if pod.uid not in self._asked:
                continue  # it has a reservation now, or is gone
            try:
                await self._cluster.remove_gate(pod)
            except RequestRejected as error:
                log.info("gate not removed", extra={"pod": pod.name, "error": str(error)})
            except ClusterUnavailable as error:
                log.warning("gate not removed yet", extra={"pod": pod.name, "error": str(error)})
                await asyncio.sleep(max(PAUSE_S, error.retry_after_s))
                self._asked.discard(pod.uid)  # the next pass queues it again
