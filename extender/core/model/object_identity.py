"""Whether parts are the very same objects as before: what is persistent changes by becoming another object."""

from __future__ import annotations

from collections.abc import Sequence


def same_objects(before: Sequence[object], now: Sequence[object]) -> bool:
    """Say whether two sequences hold the same objects in the same order; equal ones do not suffice."""
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
