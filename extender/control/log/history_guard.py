"""Detect that the log has lost events or was rewritten, from what this process has seen and from published anchors.

A database may be restored from a backup, or replaced by a standby that lagged: it is then an older copy of
itself, and nothing in it shows that. Its owner can also change an event and compute all later hashes again. So the
last committed event, its hash and the highest epoch are remembered, and anchors are published where the administrator
of the database cannot write (LOG-3). Each new leader compares them with the log. The newest anchor lags by
seconds, so it proves a loss only when the log lacks that position or has another event or hash there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extender.core.log.anchors import Anchor, sort_by_trust
from extender.core.log.events import HistoryTruncated, RecordedEvent, TruncationEvidence
from extender.core.log.reservation_state import ReservationState
from extender.core.log.tampering import ADVICE, TamperKind
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import (
    EventLog,
    LeaseGrant,
    LogHead,
    LogMark,
    LogPage,
    PublishedAnchors,
)
from extender.runtime.log_keys import NO_KEYS

OLDER_COPY = "the log is not the one that this process wrote: it is an older copy, or was rewritten"


class HistoryGuard:
    """Remembers the end of the log, and compares the log with it."""

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._newest: LogMark | None = None  # the last committed event that this process knows
        self._lost: LogMark | None = None  # followed by this process, and not in the log any more
        # The last event that this process has appended, with the hash that it computed. Only this is published, and no hash
        # that was read from the database: a leader would otherwise publish what was rewritten there.
        self.appended: LogMark | None = None
        self.anchors: tuple[Anchor, ...] = ()  # as they were published last by this service
        # published by another one; not believed, and left out from now on
        self.forged: tuple[Anchor, ...] = ()
        self.keys = NO_KEYS  # check the signatures of anchors
        # an epoch that the lease row does not know any more
        self._forgotten_epoch: Epoch | None = None
        self.epoch = Epoch(0)  # the highest known epoch
        self.unrecorded: HistoryTruncated | None = None  # detected, and not in the log yet
        self.anchor: PublishedAnchors | None = None

    def observe_grant(self, grant: LeaseGrant) -> None:
        """Record the epoch of a granted lease; a lower previous epoch means that the lease row is older."""
        if grant.previous_epoch < self.epoch:
            self._forgotten_epoch = self.epoch
        self.epoch = max(self.epoch, grant.epoch)

    def observe_epoch(self, epoch: Epoch) -> None:
        """Record an epoch that was read from the lease row."""
        self.epoch = max(self.epoch, epoch)

    def observe_appended(self, event: RecordedEvent, chain: bytes) -> None:
        """Record the newest event that this process has appended.

        Args:
            chain: Its hash as this process computed it; empty when the answer to the append was lost, see `confirm`.
        """
        self._observe(event, chain)
        self.appended = self._newest if chain else None

    def observe_loaded(self, mark: LogMark) -> None:
        """Record the end of the log up to which this process has just read it."""
        self._newest = mark if mark.position else None

    def observe_followed(self, page: LogPage) -> None:
        """Record the newest events that this process has followed; the hash of the last one was verified."""
        for event in page:
            self._observe(event, page.chain if event is page[-1] else b"")

    def _observe(self, event: RecordedEvent, chain: bytes) -> None:
        self._newest = LogMark(
            position=event.position, epoch=event.epoch, event_id=event.event_id, chain=chain
        )
        if isinstance(event.data, HistoryTruncated):
            self.unrecorded = None

    async def compare_seen(self) -> None:
        """Remember the last followed event if the log does not have it any more; the log is followed anew."""
        if (
            self._lost is None
            and self._newest is not None
            and not await self._log.holds(self._newest)
        ):
            self._lost = self._newest

    async def read_published(self, grant: LeaseGrant) -> bool:
        """Read the published anchors; return False when the grant needs a higher epoch than it has."""
        published = await self.anchor.published() if self.anchor is not None else ()
        check = self.keys.check if self.keys.key_ids else None
        self.anchors, others = sort_by_trust(published, check)
        self.forged = tuple(anchor for anchor, _ in others)
        epoch = self.anchors[-1].epoch if self.anchors else Epoch(0)
        if epoch < grant.epoch:
            return True
        self._forgotten_epoch = max(self._forgotten_epoch or epoch, epoch)
        self.epoch = max(self.epoch, epoch)
        return False

    async def intact(self) -> bool:
        """Return whether the log still has the last event that this process knows, and its lease row is not older.

        Event and hash are compared: the hash covers all events before it, so a log that was rewritten has another one.
        """
        return self._forgotten_epoch is None and (
            self._newest is None or await self._log.holds(self._newest)
        )

    async def verified_chain(self, head: LogHead) -> bytes:
        """Return the hash at the head of an intact log, computed from the last event that this process knows.

        Args:
            head: The head as the database has it, after appends whose answers were lost.

        Raises:
            CorruptLog: The hashes do not continue those that this process knows.
        """
        mark = self._newest
        if mark is None or not mark.chain or head.position <= mark.position:
            return mark.chain if mark is not None and head.position == mark.position else b""
        chain = b""
        async for page in self._log.read(after=mark.position, until=head.position):
            chain = page.chain
        return chain

    def confirm(self, head: LogHead, chain: bytes) -> None:
        """Record the hash of the last event, whose append got no answer and which was found in the log."""
        if self._newest is not None and self._newest.position == head.position and chain:
            self._newest = msgspec.structs.replace(self._newest, chain=chain)
            self.appended = self._newest

    async def compare(self, grant: LeaseGrant, state: ReservationState) -> HistoryTruncated | None:
        """Compare the log, folded to `state`, with all evidence; return the loss, or None."""
        missing: list[tuple[LogMark, TruncationEvidence]] = []
        marks: tuple[tuple[LogMark | None, TruncationEvidence], ...] = (
            (self._lost or self._newest, "memory"),
            (_mark(self.anchors), "published"),
        )
        for mark, evidence in marks:
            # evidence from before the newest `HistoryTruncated`: that loss is recorded, and was compared with the cluster then
            if mark is None or mark.epoch < state.truncated_epoch:
                continue
            if not await self._log.holds(mark):
                missing.append((mark, evidence))
        if self._forgotten_epoch is not None and self._forgotten_epoch >= state.truncated_epoch:
            missing.append((LogMark(position=Position(0), epoch=self._forgotten_epoch), "epoch"))
        if missing:
            mark, evidence = max(missing, key=lambda m: m[0].position)
            self.unrecorded = await self._truncated(grant, mark, evidence)
        self._forgotten_epoch = None
        self._lost = self.appended = None
        # later events continue the log as it was found
        head = grant.head
        self._newest = LogMark(position=head.position, epoch=grant.epoch, chain=head.chain)
        return self.unrecorded

    async def _truncated(
        self, grant: LeaseGrant, mark: LogMark, evidence: TruncationEvidence
    ) -> HistoryTruncated:
        """Return the event that records a loss."""
        by_id = msgspec.structs.replace(mark, chain=b"")
        rehashed = bool(mark.event_id) and await self._log.holds(by_id)
        first = self.anchors[-1].first if self.anchors else b""
        begin = LogMark(position=Position(1), epoch=mark.epoch, chain=first)
        other_log = bool(first) and not await self._log.holds(begin)
        older = self._forgotten_epoch is not None or grant.previous_epoch < mark.epoch
        kind: TamperKind
        if evidence == "epoch":
            kind = "forged-epoch"
        elif grant.head.position == 0:
            kind = "log-truncated"
        elif other_log:
            kind = "other-database"
        elif grant.head.position >= mark.position:
            kind = "rewritten"
        else:
            kind = "older-copy" if older else "tail-deleted"
        text = _description(grant, mark, evidence, "another hash" if rehashed else "another event")
        head = grant.head
        return HistoryTruncated(
            evidence=evidence,
            known_position=mark.position,
            known_epoch=mark.epoch,
            known_hash=mark.chain.hex(),
            known_event=mark.event_id,
            found_position=head.position,
            found_epoch=grant.previous_epoch,
            found_hash=head.chain.hex() if head.position else "",
            timeline=grant.timeline,
            message=f"{kind}: {text}; {ADVICE[kind]}",
        )


def _mark(anchors: Sequence[Anchor]) -> LogMark | None:
    """Return the newest anchor as a mark of the log."""
    if not anchors:
        return None
    newest = anchors[-1]
    return LogMark(position=newest.position, epoch=newest.epoch, chain=newest.chain)


def _description(
    grant: LeaseGrant, mark: LogMark, evidence: TruncationEvidence, differs: str
) -> str:
    """Return what was known and what was found."""
    if evidence == "epoch":
        return (
            f"epoch {mark.epoch} was held, the lease in the database knew only {grant.previous_epoch}: "
            f"it is an older copy, or its row was changed; the log ends at position {grant.head.position}"
        )
    whose = "seen by this process" if evidence == "memory" else "published"
    difference = (
        f"the log ends at {grant.head.position}"
        if grant.head.position < mark.position
        else f"the log has {differs} there"
    )
    return f"position {mark.position} of epoch {mark.epoch} was {whose}, {difference}"
