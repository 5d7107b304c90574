"""Verifies the whole log, a page at a time: its hashes, its anchors, and what is stored beside it.

The log is folded from its first event without any snapshot, so snapshots are compared with it and not used. Interval rows
are computed again from the events and compared as soon as no later event can change them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec

from extender.core.log.anchors import Anchor, SignatureState, sort_by_trust
from extender.core.log.events import HistoryTruncated, RecordedEvent
from extender.core.log.interval_row_projection import (
    GangRow,
    IntervalRow,
    IntervalRows,
    PlacementRow,
    PreemptionRow,
    VictimStatusRow,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.log.tampering import Findings, LogFinding, TamperKind
from extender.core.model.errors import AlteredEvent, CorruptLog, MissingEvent
from extender.core.model.ids import Epoch, Position
from extender.core.model.message_formatting import counted
from extender.ports.log_ports import EventLog, LogMark, LogPage
from extender.ports.verification_ports import (
    Definition,
    LogEvidence,
    StoredReference,
    StoredSnapshot,
)
from extender.queries.log.event_filter import references_of
from extender.runtime.log_keys import LogKeys
from extender.snapshots.state_loader import (
    FULL_CODEC,
    HISTORICAL_CODEC,
    decode_foldable,
    decode_state,
    live_streams_only,
)

FINDINGS_MAX = 100  # of one kind
ROWS_AT_ONCE = 1000
BLOCK = 1000  # positions whose names in the index are counted together
BLOCKS_MAX = 5  # that are read for the names that are too many
# Of a row that later events may change, these are fixed from its begin on.
FIXED = {
    PlacementRow: PlacementRow.__struct_fields__[:13],
    GangRow: GangRow.__struct_fields__[:11],
    VictimStatusRow: VictimStatusRow.__struct_fields__[:6],
    PreemptionRow: PreemptionRow.__struct_fields__[:7],
}
TABLES = {
    PlacementRow: "placement",
    GangRow: "gang_state",
    VictimStatusRow: "victim",
    PreemptionRow: "preemption",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification."""

    position: Position  # up to which the log was verified
    anchors: int  # compared
    unsigned: int  # of them, trusted without a signature
    findings: tuple[LogFinding, ...]
    losses: tuple[Position, ...]  # positions of recorded losses of history
    definitions: int  # compared with the migrations; 0: the schema is of a version that this one does not know
    privileged_roles: tuple[str, ...]  # as in `LogEvidence`, at the end of a pass


class LogVerification:
    """One pass over the log; `step` until it returns False, then `verdict`."""

    def __init__(
        self, event_log: EventLog, evidence: LogEvidence, anchors: Sequence[Anchor], keys: LogKeys
    ) -> None:
        self._log = event_log
        self._evidence = evidence
        self._anchors = AnchorComparison(anchors, keys)
        self._rows = IntervalRows()
        self._state = EMPTY
        self._chain = b""
        self._first = b""
        self._epoch = Epoch(0)
        self._losses: list[RecordedEvent] = []
        self._findings = Findings(FINDINGS_MAX)
        self._indexed = Position(0)  # names in events are compared up to here
        self._names: dict[int, int] = {}  # how many the index should have, by block
        self._definitions = 0
        self._privileged_roles: tuple[str, ...] = ()
        self._snapshots: list[tuple[Position, str]] = []
        self._pruned_us = 0
        self._projected = Position(0)  # interval rows are compared up to here
        self._end = Position(0)
        self._begun = False
        self._broken = False
        self.position = Position(0)

    async def step(self, most: int) -> bool:
        """Verify at most `most` further events; return whether there are more.

        Raises:
            CorruptLog: An event cannot be read by this version.
            StoreUnavailable: No answer; call again.
        """
        if not self._begun:
            await self._begin()
        until = Position(min(self.position + most, self._end))
        if until > self.position:
            await self._verify(until)
        if self.position < self._end and not self._broken:
            return True
        await self._finish()
        return False

    @property
    def verdict(self) -> Verdict:
        """Return what was found so far."""
        return Verdict(
            position=self.position,
            anchors=len(self._anchors.trusted) + len(self._anchors.forged),
            unsigned=self._anchors.unsigned,
            findings=self._findings.explained(),
            losses=tuple(loss.position for loss in self._losses),
            definitions=self._definitions,
            privileged_roles=self._privileged_roles,
        )

    async def _begin(self) -> None:
        self._snapshots = list(await self._evidence.snapshot_keys())
        self._pruned_us = await self._evidence.pruned_before_us()
        self._projected = await self._evidence.projected()
        self._indexed = await self._evidence.indexed()
        self._end = (await self._log.head()).position
        self._begun = True

    def _report(self, kind: TamperKind, position: int, message: str, of: str = "") -> None:
        finding = LogFinding(kind=kind, position=position, message=message, object=of)
        self._findings.add(finding)

    async def _verify(self, until: Position) -> None:
        mark = LogMark(position=self.position, epoch=self._epoch, chain=self._chain)
        if self.position and not await self._log.holds(mark):
            self._break(
                "rewritten", self.position, "its hash is not the one that was verified a moment ago"
            )
            return
        pages = self._log.read(after=self.position, until=until)
        try:
            async for page in pages:
                await self._take(page)
        except MissingEvent as error:
            self._break("hole", error.position, "no event is there, and later ones are")
        except AlteredEvent as error:
            text = "the hash is not the one of the event and of the hash before it: a column of the row was changed"
            self._break("edited-row", error.position, text)

    def _break(self, kind: TamperKind, position: int, text: str) -> None:
        self._broken = True
        self._report(kind, position, text)

    async def _take(self, page: LogPage) -> None:
        """Take a page whose hashes form a chain."""
        last = page[-1].position
        if not self._first:
            first = await self._log.at(Position(1))
            self._first = first.chain if first is not None else b""
        for index, anchor in self._anchors.between(self.position, last):
            mark = LogMark(position=anchor.position, epoch=anchor.epoch, chain=anchor.chain)
            self._anchors.record(index, matches=await self._log.holds(mark))
        await self._compare_inputs(page)
        await self._compare_names(page)
        while self._snapshots and self._snapshots[0][0] <= last:
            position, codec = self._snapshots.pop(0)
            until = position - self.position
            self._fold(page[max(0, until - len(page)) : until])
            page = LogPage(page[until:], page.chain)
            await self._compare_snapshot(position, codec)
        self._fold(page)
        self._chain = page.chain
        completed, self._rows.completed = self._rows.completed, []
        await self._compare_rows(completed)

    def _fold(self, events: Sequence[RecordedEvent]) -> None:
        for event in events:
            if event.epoch < self._epoch:
                text = f"its epoch is {event.epoch}, the event before it has epoch {self._epoch}"
                self._report("forged-epoch", event.position, text)
            self._epoch = event.epoch
            if isinstance(event.data, HistoryTruncated):
                self._losses.append(event)
            if event.position <= self._projected:
                self._rows.apply(event)
        try:
            self._state = fold(self._state, events)
        except CorruptLog as error:
            self._break("rewritten", self.position + 1, str(error))
        if events:
            self.position = events[-1].position

    async def _compare_inputs(self, page: LogPage) -> None:
        """Compare the inputs of decisions: stored, with their digest, unless they were pruned."""
        expected = {
            event.position: (event.at_us, digest)
            for event in page
            if (digest := getattr(event.data, "input_digest", ""))
            and event.at_us >= self._pruned_us
        }
        if not expected:
            return
        digests = sorted({digest for _, digest in expected.values()})
        faults = await self._evidence.input_faults(digests)
        if any(fault.missing for fault in faults.values()):
            self._pruned_us = await self._evidence.pruned_before_us()  # perhaps a moment ago
        for position, (at_us, digest) in expected.items():
            fault = faults.get(digest)
            if fault is not None and fault.missing and at_us < self._pruned_us:
                continue
            if fault is not None and fault.missing:
                text = f"{fault.text}, although nothing was pruned since the decision"
                self._report("missing-input", position, text)
            elif fault is not None:
                text = f"{fault.text}: it is not what the decision was made from"
                self._report("forged-input", position, text)

    async def _compare_names(self, page: LogPage) -> None:
        """Look the names in events up in the index, as far as it was made."""
        names = [
            name for event in page if event.position <= self._indexed for name in _names(event)
        ]
        for name in names:
            block = (name.position - 1) // BLOCK
            self._names[block] = self._names.get(block, 0) + 1
        missing: dict[Position, list[StoredReference]] = {}
        for name in await self._evidence.unindexed(names) if names else ():
            missing.setdefault(name.position, []).append(name)
            self._names[(name.position - 1) // BLOCK] -= 1
        for position, lost in missing.items():
            first = lost[0]
            others = f" and {counted(len(lost) - 1, 'other')}" if len(lost) > 1 else ""
            text = f"gx.event_reference lacks {first.kind} {first.name}{others}, which this event names"
            finding = LogFinding(kind="forged-reference", position=position, message=text)
            self._findings.add(finding, common="events of which names are lacking")

    async def _compare_indexed(self) -> None:
        """Find names in the index that no event has."""
        if self._indexed > self._end:
            text = f"gx.event_reference was made from events up to position {self._indexed}, the log ends at {self._end}"
            # where `tail-deleted` is reported, which explains it
            beyond = Position(self._end + 1)
            self._report("forged-reference", beyond, text)
            return
        counts = await self._evidence.indexed_counts(self._indexed, BLOCK)
        behind = counts.get(-1, 0)
        if behind:
            text = f"gx.event_reference has {counted(behind, 'row')} at positions up to which it was not made"
            self._report("forged-reference", 0, text)
        larger = [b for b in sorted(counts) if b >= 0 and counts[b] > self._names.get(b, 0)]
        for block in larger[:BLOCKS_MAX]:
            after = Position(block * BLOCK)
            await self._compare_block(after, Position(min(after + BLOCK, self._indexed)))
        for block in larger[BLOCKS_MAX:]:
            more = counts[block] - self._names.get(block, 0)
            text = f"gx.event_reference has {counted(more, 'name')} that the next {BLOCK} events do not have"
            position = block * BLOCK + 1
            self._report("forged-reference", position, text)

    async def _compare_block(self, after: Position, until: Position) -> None:
        named: set[StoredReference] = set()
        async for page in self._log.read(after=after, until=until):
            named.update(name for event in page for name in _names(event))
        for extra in sorted(set(await self._evidence.indexed_names(after, until)) - named):
            text = f"gx.event_reference has {extra.kind} {extra.name} for this event, which does not name it"
            self._report("forged-reference", extra.position, text)

    async def _compare_definitions(self) -> None:
        """Compare views, functions, triggers and tables with those that the migrations make."""
        definitions = await self._evidence.definitions()
        self._definitions = len(definitions)
        for definition in definitions:
            if definition.stored != definition.expected:
                text = definition_fault(definition)
                self._report("forged-definition", 0, text, of=definition.name)

    async def _compare_snapshot(self, position: Position, codec: str) -> None:
        stored = await self._evidence.snapshot(position, codec)
        if stored is None or codec not in (FULL_CODEC, HISTORICAL_CODEC):
            return
        mark = await self._log.at(position)
        if mark is None or mark.chain != stored.chain:
            return  # of a history that was lost: never used
        text = await asyncio.to_thread(self._snapshot_fault, stored)
        if text:
            self._report("forged-snapshot", position, text)

    def _snapshot_fault(self, stored: StoredSnapshot) -> str:
        if not stored.intact:
            return f"the snapshot {stored.codec} does not have its stored SHA-256"
        if stored.authentic is False:
            return f"the snapshot {stored.codec} has an HMAC that no key of the service made"
        full = stored.codec == FULL_CODEC
        try:
            state = (decode_state if full else decode_foldable)(stored.body)
        except CorruptLog as error:
            return str(error)
        if state != (self._state if full else live_streams_only(self._state)):
            return f"the snapshot {stored.codec} is not the fold of the log up to its position"
        return ""

    async def _compare_rows(self, rows: Sequence[IntervalRow], *, are_open: bool = False) -> None:
        """Compare computed interval rows with the stored ones; of open rows what later events have not changed."""
        for start in range(0, len(rows), ROWS_AT_ONCE):
            piece = rows[start : start + ROWS_AT_ONCE]
            stored_rows = await self._evidence.stored_rows(piece)
            now = await self._evidence.projected() if are_open else self._projected
            later = range(self._projected + 1, now + 1)
            for row, stored in zip(piece, stored_rows, strict=True):
                fields = FIXED[type(row)] if are_open else row.__struct_fields__
                position = getattr(row, "from_position", 0) or getattr(row, "position", 0)
                text = row_fault(row, stored, fields)
                if stored and not text and are_open and not _may_have_changed(stored, later):
                    # only events behind those that were projected change these columns
                    text, position = (
                        row_fault(row, stored, row.__struct_fields__),
                        self._projected + 1,
                    )
                if text:
                    self._report("forged-projection", position, text)

    async def _finish(self) -> None:
        """Compare what can be compared only at the end."""
        lease = await self._evidence.lease_epoch()
        await self._compare_definitions()
        self._privileged_roles = tuple(await self._evidence.privileged_roles())
        if not self._broken:
            await self._compare_open_rows()
            await self._compare_indexed()
            findings = self._anchors.findings(self._end, self._first, lease, self._losses)
        else:
            findings = iter(self._anchors.forged)
        for finding in findings:
            self._findings.add(finding)
        kinds: tuple[TamperKind, ...] = ("older-copy", "other-database", "log-truncated")
        older = any(kind in self._findings for kind in kinds)
        highest = max([self._epoch, *(a.epoch for a in self._anchors.trusted)], default=Epoch(0))
        if lease < highest and not older:
            text = f"the lease has epoch {lease}, epoch {highest} was held before"
            self._report("forged-epoch", self.position, text)

    async def _compare_open_rows(self) -> None:
        """Compare the rows that are open at the end, and count those that should not be there."""
        if self._projected > self._end:
            text = f"the interval tables were made from events up to position {self._projected}, the log ends at {self._end}"
            self._report("forged-projection", self._end, text)
            return
        await self._compare_rows(list(self._rows.open_rows()), are_open=True)
        counts = await self._evidence.row_counts(self._projected)
        for table, begun in self._rows.begun.items():
            stored, behind = counts[table]
            if stored > begun:
                text = f"gx.{table} has {stored} rows, the log has the begin of {begun}"
                self._report("forged-projection", 0, text)
            if behind:
                text = f"gx.{table} has {counted(behind, 'row')} at positions up to which it was not made"
                self._report("forged-projection", self._projected + 1, text)


def _names(event: RecordedEvent) -> Sequence[StoredReference]:
    return [StoredReference(event.position, *name) for name in sorted(references_of(event.data))]


def definition_fault(definition: Definition) -> str:
    """Return how a definition of the database differs from that of the migrations, by its first line that does."""
    if not definition.stored:
        return "it is not there; the migrations make it"
    if not definition.expected:
        return "it is there; the migrations do not make it"
    stored, expected = definition.stored.split("\n"), definition.expected.split("\n")
    lines = zip_longest(stored, expected, fillvalue="")
    mine, theirs = next((a, b) for a, b in lines if a != b)
    differs = f"theirs has {theirs.strip()!r}" if theirs.strip() else "theirs has not"
    return f"it is not what the migrations make: it has {mine.strip()!r}, {differs}"


def row_fault(row: IntervalRow, stored: IntervalRow | None, fields: Sequence[str]) -> str:
    """Return how a stored row differs from the computed one in some of its columns, or an empty text."""
    table = f"gx.{TABLES[type(row)]}"
    name = getattr(row, "pod", "") or getattr(row, "gang", "")
    if stored is None:
        return f"{table} has no row about {name} from here on"
    for field in fields:
        if field == "victims":
            continue
        expected, actual = getattr(row, field), getattr(stored, field)
        if expected != actual:
            return f"{table} has {field} {actual!r} for {name}, by the log it is {expected!r}"
    return ""


def _may_have_changed(stored: IntervalRow, later: range) -> bool:
    """Return whether events at some positions may have changed a row; rows of preemptions do not have the position of each change."""
    if isinstance(stored, GangRow):
        return stored.to_position in later
    if isinstance(stored, PlacementRow):
        return stored.to_position in later or stored.by_position in later
    return bool(later)


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

    def findings(
        self, end: Position, first: bytes, lease_epoch: Epoch, losses: Sequence[RecordedEvent]
    ) -> Iterator[LogFinding]:
        """Yield what anchors prove about a log that was compared up to its end.

        Args:
            first: Hash of the event at position 1; empty for an empty log.
            losses: Each `HistoryTruncated` of the log.
        """
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
        if end == 0:
            newest = max(anchor.position for _, anchor in differing)
            text = f"the log is empty; it had {newest} events when its end was published"
            yield LogFinding("log-truncated", 0, text)
            return
        others = [a for _, a in differing if a.first and a.first != first]
        if others:
            text = "the first event is not that of the log whose end was published"
            yield LogFinding("other-database", 1, text)
            return
        inside = [(i, a) for i, a in differing if a.position <= end]
        rewritten = []
        for index, anchor in inside:
            if any(later.position >= anchor.position for later in self._later(index)):
                text = "an anchor that was published later and at a higher position matches the log, this one does not"
                yield LogFinding("forged-anchor", anchor.position, text)
            else:
                rewritten.append(anchor)
        if rewritten:
            lowest = min(anchor.position for anchor in rewritten)
            text = (
                f"the hash at position {lowest} is not the published one, although the chain is unbroken: "
                f"an event from position {last_matching + 1} to {lowest} was changed, and all later hashes computed again"
            )
            yield LogFinding("rewritten", last_matching + 1, text)
        beyond = [a for _, a in differing if a.position > end]
        if beyond:
            newest = max(anchor.position for anchor in beyond)
            epoch = max(anchor.epoch for anchor in beyond)
            if lease_epoch < epoch:
                text = (
                    f"the log ends at position {end} and its lease at epoch {lease_epoch}; "
                    f"position {newest} of epoch {epoch} was published"
                )
                yield LogFinding("older-copy", end + 1, text)
            else:
                text = (
                    f"the log ends at position {end}; position {newest} was published, and the lease "
                    f"knows its epoch {epoch}: events were deleted"
                )
                yield LogFinding("tail-deleted", end + 1, text)

    def _later(self, index: int) -> Iterator[Anchor]:
        """Yield the anchors that were published after one and that the log has."""
        for later in range(index + 1, len(self.trusted)):
            if self._matches.get(later, False):
                yield self.trusted[later]

    def _excused(self, index: int, losses: Sequence[RecordedEvent]) -> bool:
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
    return LogFinding("forged-anchor", anchor.position, text)
