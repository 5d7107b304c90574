"""Publish anchors where the administrator of the database cannot write."""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.log.anchors import Anchor, with_anchor
from extender.core.model.errors import ClusterUnavailable, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import Clock, EventLog, LogMark, PublishedAnchors
from extender.runtime.log_keys import NO_KEYS, LogKeys
from extender.runtime.periodic import PeriodicTask

log = logging.getLogger(__name__)

EVERY_MS = 5_000  # a loss of later events is not detected
EVERY_EVENTS = 1_000
LOOK_EVERY_S = 1.0
LAST_WITHIN_S = 2.0  # a clean stop does not wait longer for it: calls wait for the next leader


class LogHeadPublisher:
    """Publishes while this process leads: at the start of an epoch, when the log has grown, and at a clean stop."""

    def __init__(
        self,
        leader: Leader,
        event_log: EventLog,
        anchor: PublishedAnchors,
        clock: Clock,
        keys: LogKeys = NO_KEYS,
    ) -> None:
        self._leader = leader
        self._log = event_log
        self._anchor = anchor
        self._clock = clock
        self._keys = keys
        self._last: LogMark | None = None
        self._tried: tuple[int, int] = (0, 0)  # epoch, and time of the last attempt
        self._publishing = asyncio.Lock()  # so that an older list does not replace a newer one
        self.run = PeriodicTask(
            name="log_head_publisher",
            work=self._publish_if_due,
            every_s=LOOK_EVERY_S,
            condition=lambda: leader.may_act() and leader.may_record(),
            expected=(ClusterUnavailable, StoreUnavailable),
            failure="end of the log not published",
        ).run

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

    async def publish_last(self) -> None:
        """Publish the end of the log before the lease is released; a failure is logged, and ends after `LAST_WITHIN_S`.

        Afterwards no event of this leader can be deleted unseen, though no leader runs.
        """
        if self._last is not None and self._last == self._leader.history.appended:
            return  # nothing since
        try:
            async with asyncio.timeout(LAST_WITHIN_S):
                await self.publish()
        except (TimeoutError, ClusterUnavailable, StoreUnavailable) as error:
            late = isinstance(error, TimeoutError)
            extra = {
                "position": self._leader.committed.position,
                "published": self._last.position if self._last else 0,
                "reason": f"no answer within {LAST_WITHIN_S:g} s" if late else str(error),
            }
            log.warning("end of the log not published before the stop", extra=extra)

    async def publish(self) -> None:
        """Publish the end of the log once, unless the log is an older copy or was rewritten."""
        async with self._publishing:
            await self._publish()

    async def _publish(self) -> None:
        history = self._leader.history
        # the hash that this process computed, not the head that the database reports: its owner may have rewritten it
        mark = history.appended
        epoch = self._leader.epoch
        if mark is None:
            return  # this process has appended nothing yet
        if not await history.intact() or not self._leader.may_act():
            return  # the leader detects it
        # the hash at position 1 identifies the log
        first = mark if mark.position == 1 else await self._log.at(Position(1))
        new = Anchor(
            position=mark.position,
            epoch=epoch,
            chain=mark.chain,
            first=first.chain if first is not None else b"",
            at_us=self._clock.now_us(),
        )
        anchors = with_anchor(history.anchors, self._keys.sign(new))
        await self._anchor.publish(anchors)
        history.anchors, self._last = anchors, mark
        log.info(
            "end of the log published",
            extra={"position": mark.position, "hash": mark.chain.hex(), "epoch": epoch},
        )
