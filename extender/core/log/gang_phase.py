"""The phase of a gang as it is shown, and the rules of its minimum: missing members and the unit of the bind barrier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from extender.core.log.events import GroupRecord
from extender.core.log.reservation_state import EffectivePhase, GangState

PREEMPTING: Final = "preempting"  # outcome of an answer: the victims of the gang terminate
# The reasons of a gang that has no decision, see `undecided_reason`; they stand in SQL texts.
CAPACITY_TAKEN: Final = "other pods took its capacity before it was bound"
TAKEN: Final = f"{CAPACITY_TAKEN}; it is planned again"
UNDECIDED: Final = "no decision yet since it was observed, its reservations were released or its preemption was cancelled"
# Phases that `GangUnschedulable` and `GangInvalid` do not end.
HOLDS_CAPACITY: Final = ("admitted", "scheduled")


class MinimumStatus(msgspec.Struct, frozen=True, gc=False):
    """How much of the minimum of a gang is there, in pods."""

    present: int  # bound, or ended with success
    needed: int  # of the children that are nearest to their minimum, as many as needed


def effective_phase(root: GangState, minimum: MinimumStatus) -> EffectivePhase:
    """Return the state of a root as named in the table in `extender/README.md`.

    It is the phase of the root; or *preempting* while the root holds no capacity and its victims terminate; or, of a
    root whose minimum was bound and is not any more, what became of it.
    """
    preempting = root.last_decision is not None and root.last_decision.outcome == PREEMPTING
    if root.phase not in HOLDS_CAPACITY:
        return PREEMPTING if preempting else root.phase
    if root.phase != "scheduled":
        return root.phase
    if minimum.present >= minimum.needed:
        completed = root.succeeded and not root.bound and not root.reservations
        return "completed" if completed else "scheduled"
    if root.reservations:
        return "degraded" if root.bound else "admitted"
    if preempting:
        return PREEMPTING
    loss = root.last_loss
    evicted = loss is not None and (loss.preemptor or loss.cause == "preempted")
    return "preempted" if evicted and not root.bound else "degraded"


def capacity_was_taken(root: GangState) -> bool:
    """Return whether other pods took capacity of the last admission of a root, which has no decision since."""
    return (
        root.phase == "observed"
        and root.last_decision is None
        and root.capacity_used_times > 0
        and root.capacity_used_us >= root.admitted_us
    )


def undecided_reason(root: GangState) -> str:
    """Return the reason of a pending root that has no decision; empty: it has one, or it is not pending."""
    if root.last_decision is not None or root.phase in HOLDS_CAPACITY:
        return ""
    return TAKEN if capacity_was_taken(root) else UNDECIDED


def minimum_status(root: GangState, groups: tuple[GroupRecord, ...]) -> MinimumStatus:
    """Return how many pods of the minimum of a root are there.

    The groups of a root that was bound before the log had it are not known: it needs a pod then. One that was never
    admitted or bound needs none.

    Args:
        groups: Its groups, with the minima that count.
    """
    if not groups:
        needed = int(root.phase == "scheduled")
        return MinimumStatus(min(len(root.bound) + sum(root.succeeded.values()), needed), needed)
    counts = Counter(member.group for member in root.bound.values())
    counts.update(root.succeeded)
    needed = missing(groups, {})
    return MinimumStatus(needed - missing(groups, counts), needed)


def barrier_unit(groups: tuple[GroupRecord, ...], leaf: str) -> GroupRecord:
    """Return the group whose minimum must be complete before a member of `leaf` is bound.

    That is the root, unless it is basic: below a basic parent each child has its own barrier
    (C.7), so it is the first group with a gang policy on the path from the root; else the leaf.

    Raises:
        KeyError: `leaf` is not in the tree.
    """
    composites = {g.name: g for g in groups if g.kind == "CompositePodGroup"}
    unit = next((g for g in groups if g.kind == "PodGroup" and g.name == leaf), None)
    if unit is None:
        raise KeyError(leaf)
    group, path = unit, [unit]
    while group.parent:
        group = composites[group.parent]
        path.append(group)
    for group in reversed(path):
        if not group.basic:
            return group
    return unit


def satisfied(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> bool:
    """Return whether pods per leaf meet the minimum of a group and of the groups it needs below it; see `missing`."""
    return bool(groups) and missing(groups, counts, unit) == 0


def missing(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> int:
    """Return how many pods are missing, at least, for the minimum of a group and of the groups it needs below it.

    Args:
        groups: The tree as recorded, root first; not empty.
        counts: Leaf name -> pods that count (bound, or arrived at bind).
        unit: The group; the root when None.

    Source:
        C.1 and C.2 with R = 0: a gang composite needs `minimum` satisfied children, and the required ones (L27).
    """
    children: dict[str, list[GroupRecord]] = {}
    for group in groups[1:]:
        children.setdefault(group.parent, []).append(group)

    def lacks(group: GroupRecord) -> int:
        if group.kind == "PodGroup":
            return max(group.minimum - counts.get(group.name, 0), 0)
        kids = children.get(group.name, ())
        always = [lacks(child) for child in kids if child.name in group.required]
        others = sorted(lacks(child) for child in kids if child.name not in group.required)
        # a missing child needs at least one pod
        absent = len(set(group.required) - {child.name for child in kids})
        left = max(group.minimum - len(always) - absent, 0)
        return sum(always) + absent + sum(others[:left]) + max(left - len(others), 0)

    return lacks(unit if unit is not None else groups[0])
