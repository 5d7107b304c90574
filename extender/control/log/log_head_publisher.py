"""Publish the log head where the administrator of the database cannot write (EVENTSTORE 3)."""

from __future__ import annotations

import logging

from extender.control.log.leader import Leader
from extender.core.model.errors import ClusterUnavailable, StoreUnavailable
from extender.ports.log_ports import Clock, EventLog, LogMark, PublishedLogHead
from extender.runtime.periodic import PeriodicTask

log = logging.getLogger(__name__)

EVERY_MS = 5_000  # a loss of later events is not detected
EVERY_EVENTS = 1_000
LOOK_EVERY_S = 1.0


class LogHeadPublisher:
    """Publishes while this process leads: at the start of an epoch, and when the log has grown."""

    def __init__(
        self, leader: Leader, event_log: EventLog, anchor: PublishedLogHead, clock: Clock
    ) -> None:
        self._leader = leader
        self._log = event_log
        self._anchor = anchor
        self._clock = clock
        self._last: LogMark | None = None
        self._tried: tuple[int, int] = (0, 0)  # epoch, and time of the last attempt

    async def run(self) -> None:
        """Publish until cancelled; retry what failed."""
        await PeriodicTask(
            name="log_head_publisher",
            work=self._publish_if_due,
            every_s=LOOK_EVERY_S,
            condition=lambda: self._leader.may_act() and self._leader.may_record(),
            expected=(ClusterUnavailable, StoreUnavailable),
            failure="end of the log not published",
        ).run()

    async def _publish_if_due(self) -> None:
        if self._due():
            self._tried = (self._leader.epoch, self._clock.monotonic_ms())
            await self.publish()

    def _due(self) -> bool:
        epoch, tried_ms = self._tried
        if epoch != self._leader.epoch:
            return True
        fresh = self._leader.committed.position - (self._last.position if self._last else 0)
        waited_ms = self._clock.monotonic_ms() - tried_ms
        return fresh >= EVERY_EVENTS or (fresh > 0 and waited_ms >= EVERY_MS)

    async def publish(self) -> None:
        """Publish the log head once, unless the log is an older copy.

        Raises:
            ClusterUnavailable: Not published, or the outcome is unknown.
            StoreUnavailable: The log head could not be read.
        """
        epoch = self._leader.epoch
        head = await self._log.head()
        if not await self._leader.history.intact() or not self._leader.may_act():
            return  # an older copy must not be published; the leader detects it
        mark = LogMark(position=head.position, epoch=epoch, chain=head.chain)
        await self._anchor.publish(mark)
        self._last = mark
        log.info(
            "end of the log published",
            extra={"position": mark.position, "hash": mark.chain.hex(), "epoch": epoch},
        )
