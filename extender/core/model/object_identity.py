"""Comparison by identity: an immutable value that has not changed is still the same object."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from immutables import Map

K = TypeVar("K")
T = TypeVar("T")
# The last comparisons of immutable maps: in a pass several parts compare the same two. There are few, because they keep the maps.
_COMPARED: deque[tuple[object, object, frozenset[Any]]] = deque(maxlen=4)


def same_objects(before: Sequence[object], now: Sequence[object]) -> bool:
    """Return whether two sequences hold the same objects (`is`, not `==`) in the same order."""
    return len(before) == len(now) and all(map(operator.is_, before, now))


def changed_keys(before: Mapping[K, T], now: Mapping[K, T]) -> set[K]:
    """Return the keys whose values are not the same object in two mappings, and those that only one of them has."""
    if before is now:
        return set()
    if type(now) is not Map or type(before) is not Map:
        return _changed_keys(before, now)
    for old, new, keys in tuple(_COMPARED):  # another thread may add one
        if old is before and new is now:
            return set(keys)
    changed = _changed_keys(before, now)
    _COMPARED.append((before, now, frozenset(changed)))
    return changed


def _changed_keys(before: Mapping[K, T], now: Mapping[K, T]) -> set[K]:
    old_value = before.get
    changed = {key for key, value in now.items() if old_value(key) is not value}
    if len(now) - sum(key not in before for key in changed) != len(before):
        changed |= {key for key in before if key not in now}
    return changed


class IdentityMemo(Generic[T]):
    """The last value that was made, and what it was made from: it is valid while that is the same.

    `same` are the immutable objects that the value depends on, compared by identity; `equal` is what it depends on and
    what may be an equal copy.
    """

    __slots__ = ("_equal", "_same", "_value")

    def __init__(self) -> None:
        self._same: tuple[object, ...] | None = None
        self._equal: object = None
        self._value: T

    def get(self, make: Callable[[], T], *, same: tuple[object, ...], equal: object = None) -> T:
        """Return the value made from the same as now, else a new one.

        Args:
            same: Compared with those of the last call by identity.
            equal: Compared with that of the last call by `==`.
        """
        if not self.holds(same=same, equal=equal):
            self._value = make()
            self._same, self._equal = same, equal
        return self._value

    def put(self, value: T, *, same: tuple[object, ...], equal: object = None) -> None:
        """Keep a value and what it was made from."""
        self._value, self._same, self._equal = value, same, equal

    def holds(self, *, same: tuple[object, ...], equal: object = None) -> bool:
        """Return whether the value was made from the same as now."""
        inputs = self._same
        return inputs is not None and same_objects(inputs, same) and self._equal == equal

    def clear(self) -> None:
        """Drop the value."""
        self._same = None
