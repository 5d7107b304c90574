"""Port to what is stored beside the log, as verification reads it: nothing is judged or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from extender.core.log.interval_row_projection import IntervalRow
from extender.core.log.tampering import LogFinding
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import Snapshot


class StoredSnapshot(Snapshot, frozen=True, kw_only=True):
    """A snapshot as it is stored."""

    intact: bool  # the body has the stored SHA-256
    # it has the HMAC of one of the keys; None: it has none, or there is no key
    authentic: bool | None


class InputFault(msgspec.Struct, frozen=True):
    """Why a stored input is not that of its digest."""

    missing: bool  # it, or a part of it, is not stored; otherwise something was changed
    text: str


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A view, function, trigger or table of the schema: what the migrations make, and what the database has.

    Both texts are in the form in which PostgreSQL prints them; empty: there is none.
    """

    name: str  # with its kind, for example "view gx.v_pending"
    expected: str
    stored: str


class StoredReference(NamedTuple):
    """A row of the index of the names in events."""

    position: Position
    kind: str
    name: str


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a slice of a verification found, and all slices of the pass before it."""

    position: Position  # up to which the log was verified
    more: bool  # the pass goes on
    findings: tuple[LogFinding, ...]
    definitions: int = 0  # of the schema that were compared, at the end of a pass
    privileged_roles: tuple[str, ...] = ()  # likewise, as in `LogEvidence`


class VerifiedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a pass over the whole log."""

    result: SliceResult
    findings: tuple[LogFinding, ...]  # of the pass, and about the published anchors
    anchors: int  # that were compared
    at_us: int


class LogEvidence(Protocol):
    """Reads the lease, snapshots, inputs of decisions, indexes, interval tables and definitions.

    Each call may raise StoreUnavailable.
    """

    async def lease_epoch(self) -> Epoch:
        """Return the epoch of the lease row; 0 if it was never held."""

    async def snapshot_keys(self) -> Sequence[tuple[Position, str]]:
        """Return position and codec of each snapshot, by position."""

    async def snapshot(self, position: Position, codec: str) -> StoredSnapshot | None:
        """Return a snapshot; None if it was deleted meanwhile."""

    async def input_faults(self, digests: Sequence[str]) -> Mapping[str, InputFault]:
        """Return what is wrong with the inputs of these digests, by digest; nothing for those that are right.

        An input is right if it has the digest that follows from the bodies of its parts.
        """

    async def pruned_before_us(self) -> int:
        """Return before which time inputs may have been pruned, in microseconds since 1970; 0: never."""

    async def projected(self) -> Position:
        """Return the position up to which the interval tables were projected."""

    async def stored_rows(self, rows: Sequence[IntervalRow]) -> Sequence[IntervalRow | None]:
        """Return the rows of the interval tables with the same keys, in the same order; None where there is none."""

    async def row_counts(self, until: Position) -> Mapping[str, tuple[int, int]]:
        """Return how many rows of each interval table begin up to a position, and how many where none is projected yet."""

    async def indexed(self) -> Position:
        """Return the position up to which the names in events were indexed."""

    async def unindexed(self, names: Sequence[StoredReference]) -> Sequence[StoredReference]:
        """Return those of the names that are not in the index, in the same order."""

    async def indexed_counts(self, until: Position, block: int) -> Mapping[int, int]:
        """Return how many names the index has, by block of positions.

        Args:
            until: Names of later events are not counted; those of events behind the index itself are, as block -1.
            block: Number of positions in a block; block 0 begins at position 1.
        """

    async def indexed_names(self, after: Position, until: Position) -> Sequence[StoredReference]:
        """Return what the index has for the events after one position, up to another one."""

    async def privileged_roles(self) -> Sequence[str]:
        """Return the login roles that can change what is stored, each with what lets it: `alice (member of gx_owner)`."""

    async def definitions(self) -> Sequence[Definition]:
        """Return all views, functions, triggers and tables that the migrations make or that the schema has.

        Empty if the schema is of a version that this one does not know.
        """
