"""How many new gangs of one namespace the log records per minute, so that no tenant fills it for the others.

Each gang costs events that are never deleted. A namespace has a token bucket: it holds the gangs of one minute, and is
filled evenly. Gangs that the log has already are not limited, whatever happens to them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from extender.core.model.ids import GangUid

MINUTE_MS: Final = 60_000


class NewGangLimit(msgspec.Struct, frozen=True, gc=False):
    """Why a gang waits that the log does not have yet."""

    per_minute: int  # the limit
    before: int  # gangs of its namespace that wait and come before it

    def kind_sentence(self) -> str:
        """Return the kind of reason as text without numbers that change: for conditions."""
        return (
            f"waiting for its turn: its namespace has more than {self.per_minute} new gangs per minute "
            "(max_new_gangs_per_minute)"
        )

    def sentence(self) -> str:
        """Return the reason as text.

        >>> NewGangLimit(60, 3).sentence()
        'waiting for its turn: its namespace has more than 60 new gangs per minute (max_new_gangs_per_minute); 3 of them come before it, about 4 s'
        """
        wait_s = math.ceil((self.before + 1) * MINUTE_MS / self.per_minute / 1000)
        return f"{self.kind_sentence()}; {self.before} of them come before it, about {wait_s} s"


class NewGangLimits:
    """The token buckets of all namespaces; `per_minute`: new gangs per namespace and minute, 0: any number."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._tokens: dict[str, tuple[float, int]] = {}  # namespace -> tokens, at which time in ms
        self._paid: set[GangUid] = set()  # a gang may be tried many times before it is recorded
        self._waiting: dict[str, list[GangUid]] = {}

    def begin(self) -> None:
        """Begin a pass over the pending gangs."""
        self._waiting = {}

    def may_begin(self, namespace: str, uid: GangUid, now_ms: int) -> bool:
        """Return whether a gang that the log does not have may be tried now; each counts once."""
        if not self._per_minute or uid in self._paid:
            return True
        most = float(self._per_minute)
        tokens, at_ms = self._tokens.get(namespace, (most, now_ms))
        tokens = min(most, tokens + (now_ms - at_ms) * most / MINUTE_MS)
        if self._waiting.get(namespace) or tokens < 1.0:
            self._tokens[namespace] = (tokens, now_ms)
            self._waiting.setdefault(namespace, []).append(uid)
            return False
        self._tokens[namespace] = (tokens - 1.0, now_ms)
        self._paid.add(uid)
        return True

    def waiting(self) -> Mapping[GangUid, NewGangLimit]:
        """Return the gangs that wait since `begin`, by the UID of the root."""
        return {
            uid: NewGangLimit(self._per_minute, number)
            for uids in self._waiting.values()
            for number, uid in enumerate(uids)
        }

    def limited_namespaces(self) -> Collection[str]:
        """Return the namespaces with gangs that wait."""
        return self._waiting.keys()

    def retain(self, pending: Collection[GangUid], now_ms: int) -> None:
        """Forget gangs that are not pending any more, and namespaces whose bucket is full."""
        self._paid.intersection_update(pending)
        most = float(self._per_minute)
        self._tokens = {
            namespace: (tokens, at_ms)
            for namespace, (tokens, at_ms) in self._tokens.items()
            if tokens + (now_ms - at_ms) * most / MINUTE_MS < most
        }
