"""Look up how members ended that the cluster does not show any more, once each, before their loss is recorded.

Terminated pods are not watched: a control plane keeps thousands of them, and no decision uses them. So a member
that a kubelet refused disappears like one that was deleted, and only the API server knows the difference. The
record of the loss waits for its answer; the capacity does not, it is free when the pod is gone. After `WAIT_S`,
or when more than `ASKED_MAX` disappear at once, a loss is recorded with the cause *unknown*. Members with
reservations of an earlier leader that are gone when this one begins are looked up likewise: one that has ended, and
still exists, has the node that it was bound to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from extender.core.log.events import MemberTerminated
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import PodUid
from extender.core.model.pods import PodEnd
from extender.ports.cluster_ports import Cluster, PodRef
from extender.runtime.periodic import ObjectFaults

log = logging.getLogger(__name__)

WAIT_S = 3.0  # for all members that disappeared together
ASKED_MAX = 1000  # at a time: what a healthy API server answers on 4 connections in `WAIT_S`
TOGETHER = 4  # connections; Bindings and nominations use the others


class TerminationReasons:
    """Asks the API server, and keeps the answers until the losses are in the log."""

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        """Prepare; `wake`: called when all lookups that were started together have ended."""
        self._cluster = cluster
        self._wake = wake
        self._turns = asyncio.Semaphore(TOGETHER)
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: ObjectFaults[str] = ObjectFaults("ends of members")
        self.known: Mapping[PodUid, PodEnd | None] = {}  # None: the API server does not know
        self.awaited: frozenset[PodUid] = frozenset()  # whose answers are pending

    def look_up(self, losses: Iterable[MemberTerminated | Reservation]) -> bool:
        """Start to look up losses that were not looked up before; return whether there are any."""
        new = [loss for loss in losses if loss.uid not in self.known]
        asked = new[: max(0, ASKED_MAX - len(self.awaited))]
        if len(new) > len(asked):
            unknown = len(new) - len(asked)
            log.warning("too many members disappeared at once", extra={"unknown": unknown})
        if not asked:
            return False
        self.awaited |= {loss.uid for loss in asked}
        task = asyncio.create_task(self._look_up(asked), name="endings")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def retain(self, state: ReservationState) -> None:
        """Forget answers about members that are not in the log any more."""
        if any(uid not in state.gang_of for uid in self.known):
            self.known = {uid: end for uid, end in self.known.items() if uid in state.gang_of}

    def stop(self) -> None:
        """Cancel all lookups."""
        for task in self._tasks:
            task.cancel()

    async def _look_up(self, losses: list[MemberTerminated | Reservation]) -> None:
        ends: dict[PodUid, PodEnd | None] = dict.fromkeys(loss.uid for loss in losses)
        try:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
                for loss in losses:
                    group.create_task(self._look_up_one(loss, ends))
        except TimeoutError:
            unknown = sum(end is None for end in ends.values())
            log.warning("how members ended is not known in time", extra={"unknown": unknown})
        finally:
            self.known = {**self.known, **ends}
            self.awaited -= ends.keys()
            self._wake()

    async def _look_up_one(
        self, lost: MemberTerminated | Reservation, ends: dict[PodUid, PodEnd | None]
    ) -> None:
        async with self._turns:
            with self._faults.alone(lost.pod):
                try:
                    ends[lost.uid] = await self._cluster.ending(PodRef.at(lost.pod, lost.uid))
                except (RequestRejected, ClusterUnavailable) as problem:
                    extra = {"pod": lost.pod, "reason": str(problem)}
                    log.info("how a member ended is not known", extra=extra)
