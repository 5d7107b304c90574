"""Which namespaces are reviewed for a caller whose right is in some namespaces, when there are too many to review each again.

The first sweep reviews all. Each later one reviews those in which the last one found the right, so that a right that was
taken away ends as soon as in a small cluster, and some of the others by turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

AT_ONCE: Final = 2_000  # reviewed in a second or two
SWEEP_KEPT_S: Final = 60.0  # a caller that was away for longer gets a whole sweep again
SWEEPS_MAX: Final = 256


class Sweep(NamedTuple):
    """The result of one sweep."""

    begun_s: float
    allowed: frozenset[str]
    turn: str = ""  # the last name of those that had their turn; the next one begins after it


def names_due(last: Sweep | None, names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names to review now, and the last of them that had its turn.

    Args:
        last: The sweep before; None: there was none, so all are reviewed.
        names: All names, in order.

    >>> names = [f"n{number:04}" for number in range(3 * AT_ONCE)]
    >>> due, turn = names_due(Sweep(0.0, frozenset(["n0001"]), "n4999"), names)
    >>> due[:3], due[-1], turn, len(due)
    (['n0001', 'n5000', 'n5001'], 'n1000', 'n1000', 2001)
    """
    if last is None or len(names) <= AT_ONCE:
        return list(names), ""
    held = [name for name in names if name in last.allowed]
    others = [name for name in names if name not in last.allowed]
    begin = next((i for i, name in enumerate(others) if name > last.turn), 0)
    by_turn = [*others[begin:], *others[:begin]][:AT_ONCE]
    return [*held, *by_turn], by_turn[-1] if by_turn else ""


class Sweeps:
    """The last sweep of each caller and verb in a large cluster; the oldest are dropped."""

    def __init__(self) -> None:
        self._last: dict[object, Sweep] = {}

    def last(self, key: object, now_s: float) -> Sweep | None:
        """Return the last sweep, or None if there is none that is young enough."""
        sweep = self._last.get(key)
        return sweep if sweep is not None and now_s - sweep.begun_s <= SWEEP_KEPT_S else None

    def keep(self, key: object, sweep: Sweep) -> None:
        """Keep a sweep in place of the one before."""
        self._last.pop(key, None)
        while len(self._last) >= SWEEPS_MAX:
            del self._last[next(iter(self._last))]
        self._last[key] = sweep
