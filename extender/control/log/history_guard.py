"""What is known of the log apart from the log: seen by this process, published outside of the database.

A database can come back as an older copy of itself: restored from a backup, or a standby that lagged
and was promoted. Nothing in it shows that. So the last acknowledged fact and the highest epoch are
remembered, and the end of the log is published where the administrator of the database cannot write
(EVENTSTORE 3); whoever takes the lease compares. The published end lags by seconds, so it proves a loss
only when the log lacks that very position or has another fact there.

The surprise: evidence of an epoch before the newest `HistoryTruncated` is not evidence any more. That
loss was noticed and compared then, by another process perhaps.
"""

from __future__ import annotations

from extender.core.log.events import HistoryTruncated, RecordedEvent, TruncationEvidence
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import Epoch, Position
from extender.ports.protocols import EventLog, LeaseGrant, LogMark, PublishedLogHead


class HistoryGuard:
    """Remembers, and compares the log with what it remembers."""

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._seen: LogMark | None = None  # the last fact that was acknowledged to this process
        self._published: LogMark | None = None
        self._outlived: Epoch | None = None  # an epoch that the lease row has forgotten
        self.epoch = Epoch(0)  # the highest that was ever held or published
        self.untold: HistoryTruncated | None = None  # noticed, not in the log yet
        self.anchor: PublishedLogHead | None = None

    def granted(self, grant: LeaseGrant) -> None:
        """Hear of a lease; its row must not be older than one that was held before."""
        if grant.previous_epoch < self.epoch:
            self._outlived = self.epoch
        self.epoch = max(self.epoch, grant.epoch)

    def heard(self, epoch: Epoch) -> None:
        """Hear of an epoch that somebody holds or held."""
        self.epoch = max(self.epoch, epoch)

    def acknowledged(self, event: RecordedEvent) -> None:
        """Hear of the newest fact that is durable: appended here, or followed."""
        self._seen = LogMark(position=event.position, epoch=event.epoch, event_id=event.event_id)
        if isinstance(event.fact, HistoryTruncated):
            self.untold = None

    async def look_outside(self, grant: LeaseGrant) -> bool:
        """Read the published end; False when the grant's epoch was held before, so that another is needed.

        Raises:
            ClusterUnavailable: Try again.
        """
        found = await self.anchor.published() if self.anchor is not None else None
        self._published = found
        if found is None or found.epoch < grant.epoch:
            return True
        self._outlived = max(self._outlived or found.epoch, found.epoch)
        self.epoch = max(self.epoch, found.epoch)
        return False

    async def intact(self) -> bool:
        """Say whether the log still has what this process saw last, and its lease row is no older one.

        Raises:
            StoreUnavailable: Try again.
        """
        return self._outlived is None and (self._seen is None or await self._log.holds(self._seen))

    async def compare(self, grant: LeaseGrant, state: ReservationState) -> HistoryTruncated | None:
        """Compare the log, folded to `state`, with all that is known; give what is missing.

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
        if self._outlived is not None and self._outlived >= state.truncated_epoch:
            missing.append((LogMark(position=Position(0), epoch=self._outlived), "epoch"))
        self._outlived = None
        if missing:
            mark, evidence = max(missing, key=lambda m: m[0].position)
            self.untold = _truncated(grant, mark, evidence)
        self._seen = None  # what comes next continues the log as it was found
        return self.untold


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
            else "the log has another fact there"
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
        text=text,
    )
