"""Port to what is stored beside the log, as verification reads it: nothing is judged or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from extender.core.log.interval_rows import IntervalRow
from extender.core.log.tampering import LogFinding
from extender.core.model.ids import Epoch, Position


class StoredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot as it is stored."""

    position: Position
    codec: str
    chain: bytes
    body: bytes
    intact: bool  # the body has the stored SHA-256
    authentic: (
        bool | None
    )  # it has the HMAC of one of the keys; None: it has none, or there is no key


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a slice of a verification found, and all slices of the pass before it."""

    position: Position  # up to which the log was verified
    more: bool  # the pass goes on
    findings: tuple[LogFinding, ...]


class LogEvidence(Protocol):
    """Reads the lease, snapshots, inputs of decisions and interval tables. Each call may raise StoreUnavailable."""

    async def lease_epoch(self) -> Epoch:
        """Return the epoch of the lease row; 0 if it was never held."""
        ...

    async def snapshot_keys(self) -> Sequence[tuple[Position, str]]:
        """Return position and codec of each snapshot, by position."""
        ...

    async def snapshot(self, position: Position, codec: str) -> StoredSnapshot | None:
        """Return a snapshot; None if it was deleted meanwhile."""
        ...

    async def stored_inputs(self, digests: Sequence[str]) -> frozenset[str]:
        """Return those of the digests whose input is stored, with parts that have that digest."""
        ...

    async def pruned_before_us(self) -> int:
        """Return before which time inputs may have been pruned, in microseconds since 1970; 0: never."""
        ...

    async def projected(self) -> Position:
        """Return the position up to which the interval tables were projected."""
        ...

    async def stored_rows(self, rows: Sequence[IntervalRow]) -> Sequence[IntervalRow | None]:
        """Return the rows of the interval tables with the same keys, in the same order; None where there is none."""
        ...

    async def row_counts(self, until: Position) -> Mapping[str, int]:
        """Return how many rows of each interval table begin up to a position."""
        ...
