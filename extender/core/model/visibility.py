"""What a reader may see: the objects of all namespaces, or of some namespaces only.

Of the objects of other namespaces a reader gets only what explains the state of its own: kind, priority, size, and the
position in the log. It does not get their names, and not the name of their namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec


class Visibility(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def readers_of(namespace: str, *, show_names: bool) -> Visibility:
    """Return what the readers of an object in a namespace see of others.

    Args:
        namespace: Of the object that a text is written on.
        show_names: The setting `show_names_across_namespaces`.
    """
    return EVERYTHING if show_names else Visibility.of((namespace,))


def is_hidden(name: str) -> bool:
    """Return whether a text stands for a name that the reader does not see; names have a `/` in them."""
    return "/" not in name


def namespace_of(name: str) -> str:
    """Return the namespace of `namespace/name` or `Kind/namespace/name`; empty where there is none.

    >>> [namespace_of(name) for name in ("team-a/x", "Pod/team-a/x", "x")]
    ['team-a', 'team-a', '']
    """
    parts = name.split("/")
    return parts[-2] if len(parts) > 1 else ""


def name_for(
    readers: Visibility, name: str, *, priority: int | None = None, pods: int = 0, position: int = 0
) -> str:
    """Return the name of an object, or what readers who do not see its namespace get instead of it.

    Every text that is written for readers of one namespace gets the names of objects from here.

    Args:
        readers: Who reads the text.
        name: `Kind/namespace/name`.
        priority: Of the object; None: not known.
        pods: How many pods it has, or has places for; 0: not known.
        position: Of the event in the log that has its name; 0: there is none.

    >>> name_for(Visibility.of(["team-a"]), "PodGroup/team-a/x", priority=1000)
    'PodGroup/team-a/x'
    >>> name_for(Visibility.of(["team-a"]), "PodGroup/team-b/x", priority=1000, pods=64, position=4711)
    'a PodGroup of priority 1000 with 64 pods (log position 4711)'
    """
    if is_hidden(name) or readers.sees(namespace_of(name)):
        return name
    kind, *path = name.split("/")
    # without a kind, the first part is the namespace
    text = f"a {kind}" if len(path) > 1 else "an object"
    if priority is not None:
        text += f" of priority {priority}"
    if pods:
        text += f" with {pods} pod{'' if pods == 1 else 's'}"
    return f"{text} (log position {position})" if position else text
