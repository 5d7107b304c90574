"""Constraints and wishes about the nodes of a group, of whatever source: their values, and which are possible."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

PREFERRED_MAX = 4  # preferred topology keys of a group
NEAR_MAX = 4  # entries of `near` of a group
SLICES_MAX = 3  # levels of slices of a leaf
UNBALANCED = "is true without preferred, so there are no domains to balance; name preferred keys, or leave it out"

# Which other trees: those of the same TreeProfile (all without one, if it has none), of the same namespace, or all.
ExclusiveScope = Literal["Profile", "Namespace", "Cluster"]
# What becomes of a running gang when no node of the domain of a group can take its lost members (D26)
LostMembers = Literal["Wait", "Widen", "GiveUp"]


class ExclusiveDomain(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The topology key of which a group shares its domain with no other tree of a scope, nor with a group that asks for the same."""

    key: str
    scope: ExclusiveScope = "Profile"
    # pods that request it are not shared with either, whether they belong to a tree or not
    resource: str = ""


class NearGroup(msgspec.Struct, frozen=True, gc=False):
    """A wish: as few pairs of pods as possible, one of a group and one of this one, in different domains of a key."""

    group: str  # name of a group of the same tree
    key: str


class SliceLevel(msgspec.Struct, frozen=True, gc=False):
    """So many pods of a leaf each in one domain of a key."""

    key: str
    size: int


class SchedulingConstraints(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """What a group asks of the nodes of its pods, named as in the API; `preferred`, `balanced` and `near` are wishes, which refuse no placement."""

    topology: tuple[str, ...] = ()  # node labels of which it is in one domain; our kinds have one
    # node labels of which it should be in one domain, narrowest first
    preferred: tuple[str, ...] = ()
    balanced: bool = False  # shares of its preferred domains are as equal as can be
    slices: tuple[SliceLevel, ...] = ()  # of a leaf, the largest first
    exclusive: ExclusiveDomain | None = None
    near: tuple[NearGroup, ...] = ()
    lost_members: LostMembers = "Wait"

    @property
    def topology_keys(self) -> tuple[str, ...]:
        """Return the node labels that it names."""
        near = (entry.key for entry in self.near)
        slices = (entry.key for entry in self.slices)
        return (*self.domain_keys, *self.preferred, *near, *slices)

    @property
    def domain_keys(self) -> tuple[str, ...]:
        """Return the node labels of which the group must be in one domain."""
        exclusive = (self.exclusive.key,) if self.exclusive is not None else ()
        return tuple(dict.fromkeys((*self.topology, *exclusive)))


def by_size(levels: Iterable[SliceLevel]) -> tuple[SliceLevel, ...]:
    """Return the levels of slices, the largest first."""
    return tuple(sorted(levels, key=lambda level: -level.size))


def slices_problem(levels: Sequence[SliceLevel]) -> str:
    """Return what is wrong with the levels of slices, and what would help; empty: nothing."""
    if len(levels) > SLICES_MAX:
        return f"{len(levels)} levels, at most {SLICES_MAX} are possible; leave some out"
    for level in levels:
        if not level.key:
            return "an entry has no key; name a node label, such as net/rack"
        if level.size < 1:
            return (
                f"the size of {level.key} is {level.size}; write a number of at least 1, such as 4"
            )
    if len({level.key for level in levels}) < len(levels):
        return f"{', '.join(level.key for level in levels)}: a key is there twice; name each once"
    for outer, inner in itertools.pairwise(by_size(levels)):
        if outer.size % inner.size or outer.size == inner.size:
            return (
                f"{outer.size} of {outer.key} is no larger multiple of {inner.size} of {inner.key}; "
                f"write a multiple, such as {(outer.size // inner.size + 1) * inner.size}"
            )
    return ""
