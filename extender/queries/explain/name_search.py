"""Search the names of all groups, workloads, pods and nodes; the answer is limited."""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.queries.explain.name_lookup import KINDS, ObjectName, all_names
from extender.runtime.cooperative_yield import Yielder

SEARCH_LIMIT: Final = 50  # names, by default
SEARCH_LIMIT_MAX: Final = 200


class FoundName(msgspec.Struct, frozen=True, kw_only=True):
    """An object whose name matches."""

    kind: str
    name: str  # namespace/name; of a node its name


class NameSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The objects whose names match, the most likely first."""

    found: tuple[FoundName, ...]
    more: bool  # there are more than the limit
    position: int = 0  # of the log


async def search_names(
    view: ClusterView,
    state: ReservationState,
    text: str,
    limit: int,
    pace: Yielder,
    readers: Visibility = EVERYTHING,
) -> NameSearch:
    """Return the objects whose kind and name contain every word of a text, in any case.

    Names that are equal to it come first, then those that begin with it; among these in the order of `KINDS`. Gives the
    event loop back between objects, and keeps few of them at a time.
    """
    words = text.lower().split()
    best = set[tuple[int, int, str, str]]()
    for name in all_names(view, state, readers):
        label = f"{name.kind}/{name.path}".lower()
        if words and all(word in label for word in words):
            best.add((_distance(name, words), KINDS.index(name.kind), name.path, name.kind))
            if len(best) > 4 * limit:
                best = set(heapq.nsmallest(limit + 1, best))
        await pace.yield_if_due()
    ordered = heapq.nsmallest(limit + 1, best)
    listed = tuple(FoundName(kind=kind, name=path) for _, _, path, kind in ordered[:limit])
    return NameSearch(found=listed, more=len(ordered) > limit, position=state.position)


def _distance(name: ObjectName, words: list[str]) -> int:
    """Return 0 for a name that a word is equal to, 1 for one that begins with a word, else 2."""
    path = name.path.lower()
    base = path.rpartition("/")[2]
    if any(word in (base, path, f"{name.kind.lower()}/{path}") for word in words):
        return 0
    return 1 if any(base.startswith(word) or path.startswith(word) for word in words) else 2
