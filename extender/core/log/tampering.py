"""What `verify` can find, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

TamperKind: TypeAlias = Literal[
    "tail-deleted",
    "log-truncated",
    "rewritten",
    "edited-row",
    "hole",
    "other-database",
    "older-copy",
    "forged-projection",
    "forged-snapshot",
    "missing-input",
    "forged-epoch",
    "forged-anchor",
]

_RESTORE: Final = "keep this database for an investigation, and restore the newest backup that verifies with the same anchors"
ADVICE: Final[Mapping[TamperKind, str]] = {
    "tail-deleted": _RESTORE,
    "log-truncated": _RESTORE,
    "rewritten": _RESTORE,
    "edited-row": _RESTORE,
    "hole": _RESTORE,
    "other-database": "check --database-url; these anchors are of another log",
    "older-copy": "restore a newer backup, or start the service: it records the loss as HistoryTruncated and compares with the cluster",
    "forged-projection": "run gang-extender db project --rebuild with the role of db migrate: it makes the interval tables again from the log",
    "forged-snapshot": "delete the row from gx.snapshot as gx_owner; the service folds the log from an earlier one",
    "missing-input": "take the input from a backup; the decision stays in the log, but cannot be replayed",
    "forged-epoch": "find out who wrote gx.lease or gx.event; the service takes an epoch above all that it knows",
    "forged-anchor": "find out who may write ConfigMap gang-extender-log; compare with a saved copy of it (--anchors FILE)",
}


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the log, or what is stored beside it, is not what it was."""

    kind: TamperKind
    position: int  # the first position that it is about; 0: the whole log
    message: str

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return ADVICE[self.kind]

    @property
    def text(self) -> str:
        """Return kind, position, message and advice as one text."""
        return f"{self.kind} at position {self.position}: {self.message}; {self.advice}"
