"""Detect that the log has lost events, from what this process has seen and from the published log head.

A database may be restored from a backup, or replaced by a standby that lagged: it is then an older copy of
itself, and nothing in it shows that. So the last committed event and the highest epoch are remembered, and the
log head is published where the administrator of the database cannot write (EVENTSTORE 3). Each new leader
compares them with the log. The published head lags by seconds, so it proves a loss only when the log lacks that
position or has another event there.

Note: evidence of an epoch before the newest `HistoryTruncated` does not count. That loss was detected and
compared then, by this process or another one.
"""

from __future__ import annotations

from extender.core.log.events import HistoryTruncated, RecordedEvent, TruncationEvidence
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import EventLog, LeaseGrant, LogMark, PublishedLogHead

OLDER_COPY = "the log is an older copy of the one that this process wrote"


class HistoryGuard:
    """Remembers the end of the log, and compares the log with it."""

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._seen: LogMark | None = None  # the last committed event that this process knows
        self._published: LogMark | None = None
        self._forgotten_epoch: Epoch | None = (
            None  # an epoch that the lease row does not know any more
        )
        self.epoch = Epoch(0)  # the highest known epoch
        self.unrecorded: HistoryTruncated | None = None  # detected, and not in the log yet
        self.anchor: PublishedLogHead | None = None

    def observe_grant(self, grant: LeaseGrant) -> None:
        """Record the epoch of a granted lease; a lower previous epoch means that the lease row is older."""
        if grant.previous_epoch < self.epoch:
            self._forgotten_epoch = self.epoch
        self.epoch = max(self.epoch, grant.epoch)

    def observe_epoch(self, epoch: Epoch) -> None:
        """Record an epoch that was read from the lease row."""
        self.epoch = max(self.epoch, epoch)

    def observe_committed(self, event: RecordedEvent) -> None:
        """Record the newest committed event, which was appended or followed by this process."""
        self._seen = LogMark(position=event.position, epoch=event.epoch, event_id=event.event_id)
        if isinstance(event.data, HistoryTruncated):
            self.unrecorded = None

    async def read_published(self, grant: LeaseGrant) -> bool:
        """Read the published log head; return False when the grant needs a higher epoch than it has.

        Raises:
            ClusterUnavailable: Try again.
        """
        found = await self.anchor.published() if self.anchor is not None else None
        self._published = found
        if found is None or found.epoch < grant.epoch:
            return True
        self._forgotten_epoch = max(self._forgotten_epoch or found.epoch, found.epoch)
        self.epoch = max(self.epoch, found.epoch)
        return False

    async def intact(self) -> bool:
        """Return whether the log still has the last event that this process knows, and its lease row is not older.

        Raises:
            StoreUnavailable: Try again.
        """
        return self._forgotten_epoch is None and (
            self._seen is None or await self._log.holds(self._seen)
        )

    async def compare(self, grant: LeaseGrant, state: ReservationState) -> HistoryTruncated | None:
        """Compare the log, folded to `state`, with all evidence; return the loss, or None.

        Raises:
            StoreUnavailable: Try again.
        """
        missing: list[tuple[LogMark, TruncationEvidence]] = []
        marks: tuple[tuple[LogMark | None, TruncationEvidence], ...] = (
            (self._seen, "memory"),
            (self._published, "published"),
        )
        for mark, evidence in marks:
            if mark is None or mark.epoch < state.truncated_epoch:
                continue
            if not await self._log.holds(mark):
                missing.append((mark, evidence))
        if self._forgotten_epoch is not None and self._forgotten_epoch >= state.truncated_epoch:
            missing.append((LogMark(position=Position(0), epoch=self._forgotten_epoch), "epoch"))
        self._forgotten_epoch = None
        if missing:
            mark, evidence = max(missing, key=lambda m: m[0].position)
            self.unrecorded = _truncated(grant, mark, evidence)
        self._seen = None  # later events continue the log as it was found
        return self.unrecorded


def _truncated(grant: LeaseGrant, mark: LogMark, evidence: TruncationEvidence) -> HistoryTruncated:
    found = grant.head
    if evidence == "epoch":
        text = (
            f"epoch {mark.epoch} was held, the lease in the database knew only {grant.previous_epoch}: "
            "it is an older copy"
        )
    else:
        whose = "seen by this process" if evidence == "memory" else "published"
        what = (
            f"the log ends at {found.position}"
            if found.position < mark.position
            else "the log has another event there"
        )
        text = f"position {mark.position} of epoch {mark.epoch} was {whose}, {what}"
    return HistoryTruncated(
        evidence=evidence,
        known_position=mark.position,
        known_epoch=mark.epoch,
        known_hash=mark.chain.hex(),
        known_event=mark.event_id,
        found_position=found.position,
        found_epoch=grant.previous_epoch,
        found_hash=found.chain.hex() if found.position else "",
        timeline=grant.timeline,
        message=text,
    )
