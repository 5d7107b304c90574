"""Find the objects that a name may mean, similar names where there is none, and names with some words."""

from __future__ import annotations

import difflib
import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import BadInput
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.core.workloads.kind_table import BY_KIND
from extender.runtime.cooperative_yield import Yielder

GROUP_KINDS: Final = ("CompositePodGroup", "PodGroup")
WORKLOAD_KINDS: Final = tuple(sorted(BY_KIND))
KINDS: Final = (*GROUP_KINDS, *WORKLOAD_KINDS, "Pod", "Node")  # the first of a name is explained
SUGGESTIONS_MAX: Final = 5
COMPARED_AT_ONCE: Final = 16  # names; some tenths of a millisecond
_SHORT: Final = {
    "po": "Pod",
    "no": "Node",
    "pg": "PodGroup",
    "cpg": "CompositePodGroup",
    "lws": "LeaderWorkerSet",
}


class ObjectName(msgspec.Struct, frozen=True, order=True):
    """A name of an object; `path` is namespace/name, of a node its name."""

    kind: str
    path: str

    def __str__(self) -> str:
        """Return kind and path as in messages."""
        return f"{self.kind} {self.path}"


class WantedName(msgspec.Struct, frozen=True):
    """What a user wrote."""

    kind: str  # empty: any
    namespace: str
    name: str
    given_namespace: bool  # it was part of the name

    @property
    def path(self) -> str:
        """Return namespace/name, of a node its name."""
        if self.kind == "Node" and not self.given_namespace:
            return self.name
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        """Return the name as in messages, with the kind if it has one."""
        return f"{self.kind} {self.path}" if self.kind else self.path


def parse_name(text: str, namespace: str) -> WantedName:
    """Return the parts of NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.

    Args:
        text: What the user wrote; kinds as kubectl takes them, in any case, also in the plural.
    """
    parts = text.strip().split("/")
    if not all(parts) or len(parts) > 3:  # noqa: PLR2004 -- kind, namespace, name
        msg = f"name {text!r} is not NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME"
        raise BadInput(msg)
    kind = _kind(parts[0]) if len(parts) > 1 else ""
    if len(parts) == 3:  # noqa: PLR2004
        if not kind:
            raise BadInput(_unknown_kind(text, parts[0]))
        return WantedName(kind, parts[1], parts[2], given_namespace=True)
    if kind:
        return WantedName(kind, namespace, parts[1], given_namespace=False)
    if len(parts) == 2:  # noqa: PLR2004
        if parts[0][:1].isupper():  # no namespace
            raise BadInput(_unknown_kind(text, parts[0]))
        return WantedName("", parts[0], parts[1], given_namespace=True)
    return WantedName("", namespace, parts[0], given_namespace=False)


def _unknown_kind(text: str, word: str) -> str:
    meant = similar_kind(word)
    hint = f" did you mean {meant}?" if meant else ""
    for kind in BY_KIND.values():
        if word in kind.holders:
            hint = f" ask for the {kind.kind} that a {word} makes;"
    return f"name {text!r}: {word!r} is not a kind;{hint} there are {', '.join(KINDS)}"


def similar_kind(word: str) -> str:
    """Return the kind that a word may mean, or an empty string.

    >>> similar_kind("jobst"), similar_kind("PodGrups"), similar_kind("team-a")
    ('JobSet', 'PodGroup', '')
    """
    kinds = {kind.lower(): kind for kind in KINDS}
    near = difflib.get_close_matches(word.lower().removesuffix("s"), kinds, n=1, cutoff=0.8)
    return kinds[near[0]] if near else ""


def _kind(word: str) -> str:
    lower = word.lower()
    for kind in KINDS:
        if lower in (kind.lower(), f"{kind.lower()}s"):
            return kind
    return _SHORT.get(lower, "")


async def matches(names: Iterable[ObjectName], name: WantedName, pace: Yielder) -> list[ObjectName]:
    """Return the objects with a name, the most likely first; none of them: an empty list.

    Those of a name without a namespace that only one other namespace has are those of that namespace. Gives the event
    loop back between objects.

    Args:
        names: Of all objects; some may come more than once.
    """
    alike: dict[str, set[ObjectName]] = {}  # by namespace, that of a node is empty
    for candidate in names:
        namespace, _, base = candidate.path.rpartition("/")
        if base == name.name and name.kind in ("", candidate.kind):
            alike.setdefault(namespace, set()).add(candidate)
        await pace.yield_if_due()
    same = alike.get(name.namespace, set())
    if not name.given_namespace:
        same |= alike.pop("", set())
        if not same and len(alike) == 1:
            (same,) = alike.values()
    return sorted(same, key=lambda candidate: (KINDS.index(candidate.kind), candidate.path))


async def similar_names(
    names: Iterable[ObjectName], name: WantedName, pace: Yielder
) -> list[ObjectName]:
    """Return objects whose names are similar: of the same name elsewhere first, then the closest ones.

    Gives the event loop back between objects; the closest of all are the closest of the closest of some. Arguments as
    for `matches`.
    """
    by_name: dict[str, list[ObjectName]] = {}
    for candidate in names:
        by_name.setdefault(candidate.path.rpartition("/")[2], []).append(candidate)
        await pace.yield_if_due()
    close: list[str] = []
    left = iter(by_name)
    while some := list(itertools.islice(left, COMPARED_AT_ONCE)):
        close += _closest(name.name, some)
        await pace.yield_if_due()
    ordered = dict.fromkeys((name.name, *_closest(name.name, close)))
    similar = dict.fromkeys(
        candidate
        for base in ordered
        for candidate in sorted(
            by_name.get(base, ()), key=lambda n: (not _near(n, name), KINDS.index(n.kind), n.path)
        )
    )
    return list(similar)[:SUGGESTIONS_MAX]


def _closest(name: str, others: list[str]) -> list[str]:
    return difflib.get_close_matches(name, others, n=SUGGESTIONS_MAX, cutoff=0.7)


def _near(candidate: ObjectName, name: WantedName) -> bool:
    return candidate.path.startswith(f"{name.namespace}/") and name.kind in ("", candidate.kind)


def all_names(
    view: ClusterView, state: ReservationState, readers: Visibility = EVERYTHING
) -> Iterator[ObjectName]:
    """Yield every object that has a name now and that readers see, some of them more than once.

    A group that does not exist and that pods name is one of them. Nodes are seen by all.
    """
    objects = itertools.chain(
        ((key.kind, key.path) for key in view.groups),
        ((key.kind, key.path) for key in view.members if key not in view.groups),
        ((root.kind, root.gang) for root in state.gangs.values()),
        ((tree.kind, tree.workload) for tree in state.trees.values()),
        (("Pod", pod.path) for pod in view.pods.values()),
        (("Node", name) for name in view.nodes),
    )
    for kind, path in objects:
        if kind == "Node" or readers.sees(namespace_of(path)):
            yield ObjectName(kind, path)


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
