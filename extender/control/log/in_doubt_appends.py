"""The settlement of appends whose outcome is unknown, before anything else is written.

The lease is acquired again, so that an old statement cannot commit later. Then the events are looked up by id: those
found become part of the committed state, the others fail, and this process leads under the new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container

from extender.control.log.append_pipeline import AppendPipeline
from extender.control.log.history_guard import OLDER_COPY
from extender.control.log.leader_role import LeaderRole
from extender.core.model.errors import ExtenderError, NotLeading, StoreUnavailable
from extender.ports.log_ports import EventLog, LeaseGrant
from extender.runtime.periodic import ObjectFaults

log = logging.getLogger(__name__)

PAUSE_S = 0.05  # before the second attempt; doubled before each further one
PAUSE_S_MAX = 1.0


class Settlement:
    """Settles the appends in flight, in a task of its own; at most one runs."""

    def __init__(self, event_log: EventLog, appends: AppendPipeline, leader: LeaderRole) -> None:
        self._log = event_log
        self._appends = appends
        self._leader = leader
        self._settling: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._faults: ObjectFaults[str] = ObjectFaults("log")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that may still run: the settlement, and the record of its lease."""
        return [task for task in (self._settling, self._recording) if task is not None]

    def start(self, error: Exception) -> None:
        """Start to settle all appends in flight, unless that runs already."""
        if self._settling is not None and not self._settling.done():
            return
        log.warning(
            "append failed, settling",
            extra={"error": str(error), "in_flight": self._appends.in_flight},
        )
        self._leader.become("settling", str(error))
        self._settling = asyncio.create_task(self._settle(), name="settle appends")

    def stop(self) -> None:
        """End the settlement without an outcome, because the lease is lost; also from within the settlement."""
        if self._settling is not None and self._settling is not asyncio.current_task():
            self._settling.cancel()
            self._settling = None

    async def _settle(self) -> None:
        try:
            grant, recorded, chain = await self._look_up()
            self._appends.settle(recorded)
        except ExtenderError as error:
            self._leader.lose(str(error))
            return
        except Exception as error:  # noqa: BLE001 -- logged and counted by `failed`
            self._faults.failed("settlement", error)
            self._leader.lose(f"a defect ended the settlement of appends: {error!r}")
            return
        position = self._appends.committed.position
        if grant.head.position != position:
            self._leader.lose(
                f"the log ends at position {grant.head.position}, the state in memory at {position}"
            )
            return
        self._leader.history.confirm(grant.head, chain)
        self._leader.become("leading", "")
        # Its own task: if this append fails too, a new settlement must be able to start.
        self._recording = asyncio.create_task(self._record(grant), name="record lease")

    async def _record(self, grant: LeaseGrant) -> None:
        with self._faults.alone("lease event"):
            await self._leader.record_lease(grant)

    async def _look_up(self) -> tuple[LeaseGrant, Container[str], bytes]:
        """Acquire the lease and look the events up, until the log answers.

        Returns:
            The grant, the ids found, and the hash at the head of the log, computed from the last event known here.
        """
        pause_s = PAUSE_S
        while True:
            try:
                grant = await self._leader.lease.acquire()
                recorded = await self._log.find(self._appends.event_ids())
                if not await self._leader.history.intact():
                    raise NotLeading(OLDER_COPY)
                chain = await self._leader.history.verified_chain(grant.head)
            except StoreUnavailable as error:
                self._leader.explain(str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
            else:
                self._leader.lease.activate()
                return grant, recorded, chain
