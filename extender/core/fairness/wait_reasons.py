"""Why a complete tree is not planned now, although its capacity may be free; only the leader knows it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from extender.core.fairness.new_gang_limits import NewGangLimit
from extender.core.fairness.search_turns import SearchTurn


class ReadmissionPause(msgspec.Struct, frozen=True, gc=False):
    """Why a tree that fits is not admitted: it was released again and again without a cause."""

    gang: str  # namespace/name
    rounds: int
    pause_ms: int

    def kind_sentence(self) -> str:
        """Return the kind of reason as text without numbers, which changes rarely: for conditions."""
        return (
            "waiting for the end of its back-off: its reservations were released again and again although "
            "nothing had changed"
        )

    def sentence(self) -> str:
        """Return the reason as text.

        >>> ReadmissionPause("a/g", 5, 2000).sentence()
        'waiting for the end of its back-off of 2 s: its reservations were released 5 times in a row although nothing had changed'
        """
        return (
            f"waiting for the end of its back-off of {self.pause_ms // 1000} s: its reservations were released "
            f"{self.rounds} times in a row although nothing had changed"
        )

    def help(self) -> str:
        """Return what to do about it."""
        return (
            "a change of its pods, its groups or a node ends the back-off; it is a defect of gang-extender, report "
            f"the output of `gang-extender history {self.gang} --decisions`"
        )


WaitReason: TypeAlias = SearchTurn | NewGangLimit | ReadmissionPause
