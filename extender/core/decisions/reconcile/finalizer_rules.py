"""Which of our group objects carry our finalizer, and which may go (SPEC B12).

A PodGroup stays while a pod that names it was bound and has not ended, or holds a reservation, so that
no pod that runs loses its policy. A pod that was never bound keeps nothing: it waits for the group, and the
group would wait for the pod. A CompositePodGroup stays while groups name it as their parent; on a cycle of
parents they would keep one another for ever and do not count. Built-in groups have a finalizer of their own,
which Kubernetes sets and lifts. A group that does not count (its name is taken by a built-in one) or breaks
a rule is let go like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView, Guard
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import composite_key, leaf_key

FINALIZER: Final = "gang-extender.dev/group-protection"


class FinalizerChange(msgspec.Struct, frozen=True, kw_only=True):
    """The finalizers one group is to have; its UID and version are preconditions."""

    group: GroupKey
    guard: Guard
    finalizers: tuple[str, ...]


def held_leaves(*states: ReservationState) -> frozenset[GroupKey]:
    """Give the PodGroups of which some member holds a reservation in any of the states."""
    return frozenset(
        leaf_key(reservation.pod.partition("/")[0], reservation.group)
        for state in states
        for held in state.held_on.values()
        for reservation in held.values()
    )


def decide_protection(
    view: ClusterView, held: Collection[GroupKey] = frozenset()
) -> tuple[FinalizerChange, ...]:
    """Give what differs: new groups without our finalizer, deleted ones that nothing needs any more.

    Args:
        view: The cluster.
        held: As `held_leaves` gives them.
    """
    parents: frozenset[GroupKey] | None = None
    found = []
    for key, guard in view.guards.items():
        ours = FINALIZER in guard.finalizers
        if not guard.deleting and not ours:
            finalizers = (*guard.finalizers, FINALIZER)
        elif guard.deleting and ours:
            if parents is None:
                parents = _parents(view)
            if key in parents or _runs(view, key, held):
                continue
            finalizers = tuple(name for name in guard.finalizers if name != FINALIZER)
        else:
            continue
        found.append(FinalizerChange(group=key, guard=guard, finalizers=finalizers))
    # What goes comes first: its deletion waits for it.
    found.sort(key=lambda p: (not p.guard.deleting, p.group))
    return tuple(found)


def may_go(view: ClusterView, key: GroupKey, held: Collection[GroupKey] = frozenset()) -> bool:
    """Say of one deleted group what `decide_protection` says of all."""
    if _runs(view, key, held):
        return False
    if key.kind != "CompositePodGroup":
        return True
    namers = [
        child
        for child, parent in _references(view)
        if parent == key.name and child.namespace == key.namespace
    ]
    return not namers or _above(view, key).issuperset(namers)


def _runs(view: ClusterView, key: GroupKey, held: Collection[GroupKey]) -> bool:
    """Say whether a member of a leaf was bound and has not ended, or may be bound at any moment."""
    pods = view.members.get(key)
    return key in held or (pods is not None and any(pod.node is not None for pod in pods.values()))


def _references(view: ClusterView) -> Iterator[tuple[GroupKey, str]]:
    """Give the groups that name a parent, with its name."""
    for key, group in view.groups.items():
        if group.parent is not None:
            yield key, group.parent
    for key, guard in view.guards.items():
        if guard.parent is not None:
            yield key, guard.parent


def _parents(view: ClusterView) -> frozenset[GroupKey]:
    """Give what groups name as their parent; groups on a cycle of parents do not keep one another."""
    above = {key: composite_key(key.namespace, name) for key, name in _references(view)}
    circular = _on_cycles(above)
    return frozenset(
        composite_key(key.namespace, name) for key, name in _references(view) if key not in circular
    )


def _on_cycles(above: Mapping[GroupKey, GroupKey]) -> set[GroupKey]:
    """Give the groups that come back to themselves by their parents."""
    found: set[GroupKey] = set()
    known: set[GroupKey] = set()
    for key in above:
        way: dict[GroupKey, None] = {}
        here: GroupKey | None = key
        while here is not None and here not in known and here not in way:
            way[here] = None
            here = above.get(here)
        if here is not None and here in way:
            keys = list(way)
            found.update(keys[keys.index(here) :])
        known.update(way)
    return found


def _above(view: ClusterView, key: GroupKey) -> set[GroupKey]:
    """Give a group and the groups above it if it is on a cycle, nothing otherwise."""
    found: set[GroupKey] = set()
    here = key
    while here not in found:
        found.add(here)
        group, guard = view.groups.get(here), view.guards.get(here)
        parent = (group.parent if group is not None else None) or (guard.parent if guard else None)
        if parent is None:
            return set()
        here = composite_key(here.namespace, parent)
    return found if here == key else set()
