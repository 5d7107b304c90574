"""Compares anchors with a log whose hashes were verified, and names what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from extender.core.log.anchors import Anchor, SignatureState, sort_by_trust
from extender.core.log.tampering import LogFinding, TamperKind
from extender.core.model.ids import Epoch, Position
from extender.runtime.log_keys import LogKeys


class RecordedLoss(msgspec.Struct, frozen=True):
    """A `HistoryTruncated` of the log."""

    position: Position
    epoch: Epoch


class VerifiedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log, and what identifies it."""

    position: Position
    first: bytes  # hash of the event at position 1; empty for an empty log
    lease_epoch: Epoch


class AnchorComparison:
    """Anchors in the order of their publication, and whether the log has them.

    Args:
        keys: Keys that may have signed them; without any, signatures are not checked.
    """

    def __init__(self, anchors: Sequence[Anchor], keys: LogKeys) -> None:
        self.trusted, others = sort_by_trust(anchors, keys.check if keys.key_ids else None)
        self.forged = [_forged(anchor, state, keys) for anchor, state in others]
        self.unsigned = sum(not keys.key_ids or not anchor.signature for anchor in self.trusted)
        self._matches: dict[int, bool] = {}  # by index in `trusted`

    def between(self, after: Position, until: Position) -> Iterator[tuple[int, Anchor]]:
        """Yield index and anchor of those at positions after `after`, up to `until`."""
        for index, anchor in enumerate(self.trusted):
            if after < anchor.position <= until:
                yield index, anchor

    def record(self, index: int, *, matches: bool) -> None:
        """Record whether the log has the hash of an anchor at its position."""
        self._matches[index] = matches

    def findings(self, end: VerifiedEnd, losses: Sequence[RecordedLoss]) -> Iterator[LogFinding]:
        """Yield what anchors prove about a log that was compared up to its end."""
        yield from self.forged
        judged = [
            (index, anchor)
            for index, anchor in enumerate(self.trusted)
            if not self._excused(index, losses)
        ]
        differing = [(i, a) for i, a in judged if not self._matches.get(i, False)]
        last_matching = max(
            (a.position for i, a in judged if self._matches.get(i, False)), default=0
        )
        if not differing:
            return
        if end.position == 0:
            newest = max(anchor.position for _, anchor in differing)
            text = f"the log is empty; it had {newest} events when its end was published"
            yield _finding("log-truncated", 0, text)
            return
        others = [a for _, a in differing if a.first and a.first != end.first]
        if others:
            text = "the first event is not that of the log whose end was published"
            yield _finding("other-database", 1, text)
            return
        inside = [(i, a) for i, a in differing if a.position <= end.position]
        for _, anchor in [
            (i, a) for i, a in inside if any(b.position >= a.position for b in self._later(i))
        ]:
            text = "an anchor that was published later and at a higher position matches the log, this one does not"
            yield _finding("forged-anchor", anchor.position, text)
        rewritten = [
            a for i, a in inside if not any(b.position >= a.position for b in self._later(i))
        ]
        if rewritten:
            first = min(anchor.position for anchor in rewritten)
            text = (
                f"the hash at position {first} is not the published one, although the chain is unbroken: "
                f"an event from position {last_matching + 1} to {first} was changed, and all later hashes computed again"
            )
            yield _finding("rewritten", last_matching + 1, text)
        beyond = [a for _, a in differing if a.position > end.position]
        if beyond:
            newest = max(anchor.position for anchor in beyond)
            epoch = max(anchor.epoch for anchor in beyond)
            if end.lease_epoch < epoch:
                text = (
                    f"the log ends at position {end.position} and its lease at epoch {end.lease_epoch}; "
                    f"position {newest} of epoch {epoch} was published"
                )
                yield _finding("older-copy", end.position + 1, text)
            else:
                text = (
                    f"the log ends at position {end.position}; position {newest} was published, and the lease "
                    f"knows its epoch {epoch}: events were deleted"
                )
                yield _finding("tail-deleted", end.position + 1, text)

    def _later(self, index: int) -> Iterator[Anchor]:
        """Yield the anchors that were published after one and that the log has."""
        for later in range(index + 1, len(self.trusted)):
            if self._matches.get(later, False):
                yield self.trusted[later]

    def _excused(self, index: int, losses: Sequence[RecordedLoss]) -> bool:
        """Return whether a recorded loss of history explains why the log does not have an anchor.

        The loss must be covered by an anchor that was published after it and that the log has: otherwise one who changes the
        log could add the record of a loss.
        """
        anchor = self.trusted[index]
        return any(
            anchor.epoch < loss.epoch
            and any(
                later.epoch >= loss.epoch and later.position >= loss.position
                for later in self._later(index)
            )
            for loss in losses
        )


def _forged(anchor: Anchor, state: SignatureState, keys: LogKeys) -> LogFinding:
    accepted = ", ".join(keys.key_ids)
    text = {
        "unsigned": "an anchor without a signature was published after signed ones",
        "unknown key": f"an anchor is signed by key {anchor.key}, which is not one of {accepted}",
        "invalid": f"the signature of an anchor by key {anchor.key} is wrong: its fields were changed",
    }[state]
    return _finding("forged-anchor", anchor.position, text)


def _finding(kind: TamperKind, position: int, text: str) -> LogFinding:
    return LogFinding(kind=kind, position=position, message=text)
