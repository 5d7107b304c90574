"""Rules for our finalizer on group objects of our API group (B12).

A PodGroup keeps the finalizer while a pod that names it is bound and has not ended, or has a reservation, so that
no running pod loses its policy. A pod that was never bound does not count: it waits for the group, and the group
would wait for the pod. A CompositePodGroup keeps it while groups name it as their parent. Built-in groups have a
finalizer that Kubernetes adds and removes. The rules also hold for groups that are not used, because a built-in group
has the same name, and for invalid ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from extender.core.log.reservation_state import ReservationState, claims_of_kind
from extender.core.model.cluster_view import ClusterView, Guard
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import composite_key, leaf_key

FINALIZER: Final = "gang-extender.dev/group-protection"


class FinalizerChange(msgspec.Struct, frozen=True, kw_only=True):
    """The new finalizers of one group; its UID and version are preconditions of the write."""

    group: GroupKey
    guard: Guard
    finalizers: tuple[str, ...]


def held_leaves(*states: ReservationState) -> frozenset[GroupKey]:
    """Return the PodGroups with a reservation of some member in any of the states."""
    return frozenset(
        leaf_key(reservation.pod.partition("/")[0], reservation.group)
        for state in states
        for reservation in claims_of_kind(state, "reservation")
    )


def may_change(guard: Guard) -> bool:
    """Return whether a group is new and gets the finalizer, or is deleted and loses it when nothing needs it any more."""
    return guard.deleting == (FINALIZER in guard.finalizers)


def decide_protection(
    view: ClusterView,
    held: Callable[[], Collection[GroupKey]] = frozenset,
    guards: Mapping[GroupKey, Guard] | None = None,
) -> tuple[FinalizerChange, ...]:
    """Return the changes: new groups get the finalizer, deleted ones that are not needed any more lose it.

    Args:
        held: Returns the result of `held_leaves`; called at most once, where a group is deleted.
        guards: Those of the view that `may_change`; None: all of the view are examined.
    """
    parents: frozenset[GroupKey] | None = None
    leaves: Collection[GroupKey] = ()
    changes = []
    for key, guard in (view.guards if guards is None else guards).items():
        if not may_change(guard):
            continue
        if not guard.deleting:
            finalizers = (*guard.finalizers, FINALIZER)
        else:
            if parents is None:
                parents, leaves = _parents(view), held()
            if key in parents or _runs(view, key, leaves):
                continue
            finalizers = tuple(name for name in guard.finalizers if name != FINALIZER)
        changes.append(FinalizerChange(group=key, guard=guard, finalizers=finalizers))
    # Removals first, because deletions wait for them.
    changes.sort(key=lambda p: (not p.guard.deleting, p.group))
    return tuple(changes)


def may_remove_finalizer(
    view: ClusterView, key: GroupKey, held: Collection[GroupKey] = frozenset()
) -> bool:
    """Return whether one deleted group loses the finalizer, as in `decide_protection`."""
    if _runs(view, key, held):
        return False
    # most have no child left: then the cycles need not be looked for
    children = ((child.namespace, parent) for child, parent in _references(view))
    is_parent = key.kind == "CompositePodGroup" and (key.namespace, key.name) in children
    return not is_parent or key not in _parents(view)


def _runs(view: ClusterView, key: GroupKey, held: Collection[GroupKey]) -> bool:
    """Return whether a member of a leaf is bound and has not ended, or has a reservation."""
    pods = view.members.get(key)
    return key in held or (pods is not None and any(pod.node is not None for pod in pods.values()))


def _references(view: ClusterView) -> Iterator[tuple[GroupKey, str]]:
    """Yield the groups that name a parent, with the name of the parent."""
    for key, group in view.groups.items():
        if group.parent is not None:
            yield key, group.parent
    for key, guard in view.guards.items():
        if guard.parent is not None:
            yield key, guard.parent


def _parents(view: ClusterView) -> frozenset[GroupKey]:
    """Return the parents that groups name.

    References of groups on a cycle of parents do not count: these groups would keep one another for ever.
    """
    above = {key: composite_key(key.namespace, name) for key, name in _references(view)}
    circular = _on_cycles(above)
    return frozenset(
        composite_key(key.namespace, name) for key, name in _references(view) if key not in circular
    )


def _on_cycles(above: Mapping[GroupKey, GroupKey]) -> set[GroupKey]:
    """Return the groups that are on a cycle of parents."""
    on_cycles: set[GroupKey] = set()
    visited: set[GroupKey] = set()
    for key in above:
        path: dict[GroupKey, None] = {}
        group: GroupKey | None = key
        while group is not None and group not in visited and group not in path:
            path[group] = None
            group = above.get(group)
        if group is not None and group in path:
            keys = list(path)
            on_cycles.update(keys[keys.index(group) :])
        visited.update(path)
    return on_cycles
