"""What `verify` can find, what to do about each, and which findings explain others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec

_OfTheLog: TypeAlias = Literal[
    "tail-deleted",
    "log-truncated",
    "rewritten",
    "edited-row",
    "hole",
    "other-database",
    "older-copy",
]
_Compared: TypeAlias = Literal[
    "forged-projection", "forged-snapshot", "missing-input", "forged-input", "forged-reference"
]
TamperKind: TypeAlias = Literal[
    _OfTheLog, _Compared, "forged-definition", "forged-epoch", "forged-anchor"
]

# First in every advice about a database: what the advice changes behind it is evidence.
_KEEP: Final = "keep this database, copy it first"
_RESTORE: Final = (
    f"{_KEEP}, for an investigation; restore the newest backup that verifies with the same anchors"
)
ADVICE: Final[Mapping[TamperKind, str]] = {
    "tail-deleted": _RESTORE,
    "log-truncated": _RESTORE,
    "rewritten": _RESTORE,
    "edited-row": _RESTORE,
    "hole": _RESTORE,
    "other-database": f"{_KEEP}; check --database-url: these anchors are of another log",
    "older-copy": f"{_KEEP}; restore a newer backup, or start the service: it records the loss as HistoryTruncated and compares with the cluster",
    "forged-projection": f"{_KEEP}; then run gang-extender db project --rebuild with the role of db migrate: it makes the interval tables again from the log",
    "forged-snapshot": f"{_KEEP}; then delete the row from gx.snapshot as gx_owner: the service folds the log from an earlier one",
    "missing-input": f"{_KEEP}; then take the input from a backup: the decision stays in the log, but cannot be replayed",
    "forged-input": f"{_KEEP}; then take the input from a backup: the decision stays in the log, but cannot be replayed",
    "forged-reference": f"{_KEEP}; then empty gx.event_reference and set gx.event_reference_cursor to position 0 as gx_owner: the leader indexes the log again",
    "forged-definition": f"{_KEEP}; find out who may act as the owner of schema gx; then move the service to a database that db migrate made, with the rows of a backup",
    "forged-epoch": f"{_KEEP}; find out who wrote gx.lease or gx.event: the service takes an epoch above all that it knows",
    "forged-anchor": "find out who may write ConfigMap gang-extender-log; compare with a saved copy of it (--anchors FILE)",
}
# Findings about the log itself. Differences between the log and what is compared with it follow from them.
OF_THE_LOG: Final[frozenset[TamperKind]] = frozenset(get_args(_OfTheLog))
COMPARED_WITH_THE_LOG: Final[frozenset[TamperKind]] = frozenset(get_args(_Compared))


class LogFinding(msgspec.Struct, frozen=True):
    """One place where the log, or what is stored beside it, was changed."""

    kind: TamperKind
    position: int  # the first position that it is about; 0: the whole log
    message: str
    object: str = ""  # what it is about, where that is no position of the log
    # Numbers of weaker findings by kind, which follow from this one or cannot be separated from it
    weaker: Mapping[TamperKind, int] = {}

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return ADVICE[self.kind]

    @property
    def place(self) -> str:
        """Return what it is about: an object, or a position."""
        return self.object or f"position {self.position}"

    @property
    def text(self) -> str:
        """Return kind, place, message and advice as one text."""
        return f"{self.kind} at {self.place}: {self.full_message}; {self.advice}"

    @property
    def full_message(self) -> str:
        """Return the message, and how many weaker findings this one stands for."""
        if not self.weaker:
            return self.message
        number = sum(self.weaker.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.weaker.items()))
        follow = "finding follows" if number == 1 else "findings follow"
        return f"{self.message}. {number} weaker {follow} from it or cannot be separated from it: {kinds}"


class Findings:
    """The findings of a verification: all are counted, some of each kind are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        # By kind, and by what the findings have in common; empty: each is about something else.
        self._kept: dict[tuple[TamperKind, str], list[LogFinding]] = {}
        self._positions: dict[tuple[TamperKind, str], list[int]] = {}

    def add(self, finding: LogFinding, *, common: str = "") -> None:
        """Count a finding, and keep it if there are not too many of its kind.

        Args:
            common: What it has in common with others of its kind, of which only the first is reported, with the number of
                the others; empty: nothing.
        """
        key = (finding.kind, common)
        positions = self._positions.setdefault(key, [])
        positions.append(finding.position)
        if len(positions) <= self._most:
            self._kept.setdefault(key, []).append(finding)

    def __contains__(self, kind: TamperKind) -> bool:
        return any(reported == kind for reported, _ in self._positions)

    def explained(self) -> tuple[LogFinding, ...]:
        """Return what is to be reported: of the log itself first, with the numbers of those that follow from it.

        A finding about what is compared with the log follows from one about the log at the same or an earlier position;
        one about all positions (0) follows from any. Of a kind with more findings than are kept, the last one that is kept
        has the number of the others.
        """
        causes = sorted(
            (finding for kind in OF_THE_LOG for finding in self._kept.get((kind, ""), ())),
            key=lambda finding: finding.position,
        )
        begin = causes[0].position if causes else None
        weaker: dict[TamperKind, int] = {}
        others: list[LogFinding] = []
        order = list(ADVICE)
        for kind, common in sorted(self._kept, key=lambda key: (order.index(key[0]), key[1])):
            if kind in OF_THE_LOG:
                continue
            kept, positions = self._kept[kind, common], self._positions[kind, common]
            if begin is not None and kind in COMPARED_WITH_THE_LOG:
                after = sum(_after(position, begin) for position in positions)
                if after:
                    weaker[kind] = weaker.get(kind, 0) + after
                kept = [finding for finding in kept if not _after(finding.position, begin)]
                positions = [position for position in positions if not _after(position, begin)]
            kept = kept[:1] if common else kept
            others += _with_rest(kept, len(positions) - len(kept), common)
        if causes and weaker:
            causes[0] = msgspec.structs.replace(causes[0], weaker=weaker)
        return (*causes, *others)


def _after(position: int, begin: int | None) -> bool:
    return begin is not None and (position == 0 or position >= begin)


def _with_rest(kept: Sequence[LogFinding], rest: int, common: str) -> Sequence[LogFinding]:
    """Return findings of one kind, the last of them with the number of those that were not kept."""
    if not kept or rest <= 0:
        return kept
    *others, last = kept
    message = f"{last.message}; {rest} more {common or 'of this kind'}"
    return (*others, msgspec.structs.replace(last, message=message))
