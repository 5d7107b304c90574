"""Which of our group objects carry our finalizer, and which may go (SPEC B12).

A PodGroup stays while pods name it, a CompositePodGroup while groups name it as their parent, so
that nobody loses the policy of pods that still run. Built-in groups have a finalizer of their own,
which Kubernetes sets and lifts. What is decided here rests on the view alone: a group that does not
count (its name is taken by a built-in one) or breaks a rule is let go like any other.
"""

from __future__ import annotations

from typing import Final

import msgspec

from extender.core.groups import composite_key
from extender.core.ids import GroupKey
from extender.core.view import ClusterView, Guard

FINALIZER: Final = "gang-extender.dev/group-protection"


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The finalizers one group is to have; its UID and version are preconditions."""

    group: GroupKey
    guard: Guard
    finalizers: tuple[str, ...]


def decide_protection(view: ClusterView) -> tuple[Protection, ...]:
    """Give what differs: new groups without our finalizer, deleted ones that nothing needs any more."""
    parents: frozenset[GroupKey] | None = None
    found = []
    for key, guard in view.guards.items():
        ours = FINALIZER in guard.finalizers
        if not guard.deleting and not ours:
            finalizers = (*guard.finalizers, FINALIZER)
        elif guard.deleting and ours:
            if parents is None:
                parents = _parents(view)
            if key in view.members or key in parents:
                continue
            finalizers = tuple(name for name in guard.finalizers if name != FINALIZER)
        else:
            continue
        found.append(Protection(group=key, guard=guard, finalizers=finalizers))
    # What goes comes first: somebody waits for it.
    found.sort(key=lambda p: (not p.guard.deleting, p.group))
    return tuple(found)


def _parents(view: ClusterView) -> frozenset[GroupKey]:
    named = [(key.namespace, group.parent) for key, group in view.groups.items()]
    named += [(key.namespace, guard.parent) for key, guard in view.guards.items()]
    return frozenset(composite_key(namespace, name) for namespace, name in named if name)
