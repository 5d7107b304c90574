"""Find the objects that a name may mean, and similar names where there is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND

GROUP_KINDS: Final = ("CompositePodGroup", "PodGroup")
KINDS: Final = (*GROUP_KINDS, *sorted(BY_KIND), "Pod", "Node")  # the first of a name is explained
SUGGESTIONS_MAX: Final = 5
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


def parse_name(text: str, namespace: str) -> WantedName:
    """Return the parts of NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.

    Args:
        text: What the user wrote; kinds as kubectl takes them, in any case, also in the plural.
        namespace: That of a name without one.

    Raises:
        BadInput: It is none of these.
    """
    parts = text.strip().split("/")
    if not all(parts) or len(parts) > 3:  # noqa: PLR2004 -- kind, namespace, name
        msg = f"name {text!r} is not NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME"
        raise BadInput(msg)
    kind = _kind(parts[0]) if len(parts) > 1 else ""
    if len(parts) == 3:  # noqa: PLR2004
        if not kind:
            msg = f"name {text!r}: {parts[0]!r} is not a kind; there are {', '.join(KINDS)}"
            raise BadInput(msg)
        return WantedName(kind, parts[1], parts[2], given_namespace=True)
    if kind:
        return WantedName(kind, namespace, parts[1], given_namespace=False)
    if len(parts) == 2:  # noqa: PLR2004
        return WantedName("", parts[0], parts[1], given_namespace=True)
    return WantedName("", namespace, parts[0], given_namespace=False)


def _kind(word: str) -> str:
    lower = word.lower()
    for kind in KINDS:
        if lower in (kind.lower(), f"{kind.lower()}s"):
            return kind
    return _SHORT.get(lower, "")


def matches(view: ClusterView, state: ReservationState, wanted: WantedName) -> list[ObjectName]:
    """Return the objects with a name, the most likely first; none of them: an empty list.

    A group that does not exist and that pods name is one of them.
    """
    path = f"{wanted.namespace}/{wanted.name}"
    found = [
        one
        for one in _all_names(view, state)
        if one.path == (wanted.name if one.kind == "Node" else path)
        and wanted.kind in ("", one.kind)
        and not (one.kind == "Node" and wanted.given_namespace)
    ]
    return sorted(set(found), key=lambda one: (KINDS.index(one.kind), one.path))


def similar_names(
    view: ClusterView, state: ReservationState, wanted: WantedName
) -> list[ObjectName]:
    """Return objects whose names are similar: of the same name elsewhere first, then the closest ones."""
    names: dict[str, list[ObjectName]] = {}
    for one in _all_names(view, state):
        names.setdefault(one.path.rpartition("/")[2], []).append(one)
    close = difflib.get_close_matches(wanted.name, names, n=SUGGESTIONS_MAX, cutoff=0.7)
    ordered = [wanted.name, *close] if wanted.name in names else close
    found = dict.fromkeys(
        one
        for name in ordered
        for one in sorted(
            names[name], key=lambda n: (not _near(n, wanted), KINDS.index(n.kind), n.path)
        )
    )
    return list(found)[:SUGGESTIONS_MAX]


def _near(one: ObjectName, wanted: WantedName) -> bool:
    return one.path.startswith(f"{wanted.namespace}/") and wanted.kind in ("", one.kind)


def _all_names(view: ClusterView, state: ReservationState) -> Iterator[ObjectName]:
    yield from (ObjectName(key.kind, key.path) for key in view.groups)
    yield from (ObjectName(key.kind, key.path) for key in view.members if key not in view.groups)
    yield from (ObjectName(root.kind, root.gang) for root in state.gangs.values())
    yield from (ObjectName(tree.kind, tree.workload) for tree in state.trees.values())
    yield from (ObjectName("Pod", pod.path) for pod in view.pods.values())
    yield from (ObjectName("Node", name) for name in view.nodes)


def groups_of_workload(state: ReservationState, wanted: ObjectName) -> Mapping[str, str]:
    """Return the root groups of a workload, name to kind; see `WorkloadTree.groups`."""
    return {
        group.name: group.kind
        for tree in state.trees.values()
        if (tree.kind, tree.workload) == (wanted.kind, wanted.path)
        for group in tree.groups
        if not group.parent
    }
