"""Comparison by identity: an immutable value that has not changed is still the same object."""

from __future__ import annotations

from collections.abc import Sequence


def same_objects(before: Sequence[object], now: Sequence[object]) -> bool:
    """Return whether two sequences hold the same objects (`is`, not `==`) in the same order."""
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
