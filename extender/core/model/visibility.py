"""What a reader may see: the objects of all namespaces, or of some namespaces only.

Of the objects of other namespaces a reader gets only what explains the state of its own: kind, priority, size, and the
position in the log. It does not get their names, and not the name of their namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec


class Visibility(msgspec.Struct, frozen=True):
    """The namespaces whose objects a reader sees whole. Equal visibilities have equal answers: it is the key of caches."""

    everything: bool
    namespaces: frozenset[str] = frozenset()  # empty if `everything`

    @classmethod
    def all(cls) -> Visibility:
        """Return the visibility of a reader who sees the objects of all namespaces, and those without one."""
        return EVERYTHING

    @classmethod
    def of(cls, namespaces: Iterable[str]) -> Visibility:
        """Return the visibility of a reader who sees the objects of these namespaces.

        Names that are empty or `*` are dropped, so that no list of names gives the visibility of everything.
        """
        return cls(everything=False, namespaces=frozenset(namespaces) - {"", "*"})

    def sees(self, namespace: str) -> bool:
        """Return whether the reader sees the objects of a namespace whole."""
        return self.everything or namespace in self.namespaces


EVERYTHING: Final = Visibility(everything=True)
