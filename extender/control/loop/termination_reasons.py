"""What became of bound members that the cluster does not show any more: asked once each, before their loss is recorded.

Pods that have ended are not watched: a control plane keeps thousands of them, and nothing is decided from them.
So a member that a kubelet refused vanishes like loss that was deleted, and only the API server knows which. The
loss waits for its answer, not the room: that is free when the pod is gone. The surprise: nobody waits for long.
After `WAIT_S`, or when more than `ASKED_MAX` vanish at once, a loss is recorded as `gone`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from extender.core.log.events import MemberLost
from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import PodUid
from extender.core.model.pods import PodEnd
from extender.ports.protocols import Cluster, PodRef

log = logging.getLogger(__name__)

WAIT_S = 3.0  # for all that vanished together
ASKED_MAX = (
    1000  # at a time: what 4 connections answer in `WAIT_S` from an API server in good health
)
TOGETHER = 4  # of the client's connections; Bindings and nominations go on the others


class TerminationReasons:
    """Asks, and keeps the answers until the losses are in the log."""

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        """Prepare.

        Args:
            cluster: Whom to ask.
            wake: Called when all that was asked together is known.
        """
        self._cluster = cluster
        self._wake = wake
        self._turns = asyncio.Semaphore(TOGETHER)
        self._tasks: set[asyncio.Task[None]] = set()
        self.known: Mapping[PodUid, PodEnd | None] = {}
        self.awaited: frozenset[PodUid] = frozenset()

    def look_up(self, losses: Iterable[MemberLost]) -> bool:
        """Ask about losses whose cause nobody told and who were not asked about; say whether there were any."""
        new = [loss for loss in losses if loss.uid not in self.known]
        room = max(0, ASKED_MAX - len(self.awaited))
        if len(new) > room:
            log.warning("too many members vanished at once", extra={"unknown": len(new) - room})
        if not new[:room]:
            return False
        self.awaited |= {loss.uid for loss in new[:room]}
        task = asyncio.create_task(self._look_up(new[:room]), name="endings")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def retain(self, state: ReservationState) -> None:
        """Forget answers about members that the log does not have any more."""
        if any(uid not in state.root_of for uid in self.known):
            self.known = {uid: end for uid, end in self.known.items() if uid in state.root_of}

    def stop(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _look_up(self, losses: list[MemberLost]) -> None:
        found: dict[PodUid, PodEnd | None] = dict.fromkeys(loss.uid for loss in losses)
        try:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
                for loss in losses:
                    group.create_task(self._look_up_one(loss, found))
        except TimeoutError:
            unknown = sum(end is None for end in found.values())
            log.warning("not told in time how members ended", extra={"unknown": unknown})
        finally:
            self.known = {**self.known, **found}
            self.awaited -= found.keys()
            self._wake()

    async def _look_up_one(self, lost: MemberLost, found: dict[PodUid, PodEnd | None]) -> None:
        namespace, _, name = lost.pod.partition("/")
        ref = PodRef(namespace=namespace, name=name, uid=lost.uid)
        async with self._turns:
            try:
                found[lost.uid] = await self._cluster.ending(ref)
            except (RequestRejected, ClusterUnavailable) as problem:
                log.info(
                    "not told how a member ended", extra={"pod": lost.pod, "why": str(problem)}
                )
