"""Success, Wait, Unschedulable, UnschedulableAndUnresolvable of groups, from counts alone (C.1, C.2: docs/reference/groups.md).

Pure functions of the tree; nodes are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UnsetType

from extender.core.model.message_formatting import did_you_mean, join_names
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import Feasibility, PlanGroup


def status(
    minimum: int, satisfied: int, ready: int, unschedulable: int, unresolvable: int = 0
) -> Feasibility:
    """Return the status of a group after some of its elements have been tried.

    Args:
        minimum: M, pods of a leaf or children of a composite that are required; 1 for Basic.
        satisfied: S, members bound or placed, children with Success.
        ready: R, not tried yet and able to take part.
        unschedulable: U, failed, but preemption may help.
        unresolvable: UU, failed for good; not used, because elements in no other count have the same effect.

    Source:
        KEP-6012; C.2.

    >>> status(3, 2, 0, 1), status(3, 0, 2, 0, 9)
    ('Unschedulable', 'UnschedulableAndUnresolvable')
    """
    del unresolvable
    if satisfied >= minimum:
        return "Success"
    if satisfied + ready >= minimum:
        return "Wait"
    if satisfied + ready + unschedulable >= minimum:
        return "Unschedulable"
    return "UnschedulableAndUnresolvable"


def threshold(group: PlanGroup) -> int:
    """Return M of a group: its minimum, at least the number of its required children; 1 for Basic."""
    if group.basic:
        return 1
    names = required_names(group)
    existing = sum(child.key.name in names for child in group.groups) if names else 0
    return max(group.minimum, len(names), existing)


def required_names(group: PlanGroup) -> tuple[str, ...]:
    """Return the names of the children that a gang composite cannot do without, whatever its minimum is (L27)."""
    return () if group.basic or isinstance(group.required, UnsetType) else group.required


def is_required(child: PlanGroup, parent: PlanGroup) -> bool:
    """Return whether a composite cannot do without a child."""
    return child.key.name in required_names(parent)


def _has_required(group: PlanGroup, counts: Callable[[PlanGroup], bool]) -> bool:
    """Return whether all required children of a group exist and count."""
    names = required_names(group)
    existing = [child for child in group.groups if child.key.name in names] if names else []
    return len({child.key.name for child in existing}) == len(names) and all(map(counts, existing))


def domain_keys(group: PlanGroup) -> tuple[str, ...]:
    """Return the keys of which a group must be in one domain: those of its topology, then that of which it has one alone."""
    if isinstance(group.exclusive, UnsetType) or group.exclusive.key in group.topology:
        return group.topology
    return (*group.topology, group.exclusive.key)


def is_leaf(group: PlanGroup) -> bool:
    """Return whether a group is a PodGroup that is not cut into slices, not a composite."""
    return group.key.kind == "PodGroup" and not group.groups


def present(group: PlanGroup) -> int:
    """Count the elements of a group: pods of a leaf (pending or running), admissible children of a composite."""
    if is_leaf(group):
        return len(group.members) + len(group.bound)
    return sum(1 for child in group.groups if admissible(child))


def admissible(group: PlanGroup) -> bool:
    """Return whether as many members and child groups exist as the minimum requires (C.1)."""
    return present(group) >= threshold(group) and _has_required(group, admissible)


def satisfied_by_bound(group: PlanGroup) -> bool:
    """Return whether the bound members alone satisfy the group."""
    if is_leaf(group):
        return len(group.bound) >= threshold(group)
    held = sum(1 for child in group.groups if satisfied_by_bound(child))
    return held >= threshold(group) and _has_required(group, satisfied_by_bound)


def waiting_reasons(group: PlanGroup) -> list[str]:
    """Return what is missing for admission: of the group itself first, then of its children.

    >>> from extender.core.model.ids import GroupKey
    >>> key = GroupKey(namespace="ns", name="g", kind="PodGroup")
    >>> waiting_reasons(PlanGroup(key=key, minimum=3))
    ['waiting for members of PodGroup ns/g: 3 required, 0 present']
    """
    if admissible(group):
        return []
    elements = "members" if is_leaf(group) else "child groups"
    state = "present" if is_leaf(group) else "ready"
    text = (
        f"waiting for {elements} of {group.key.kind} {group.key.path}: "
        f"{threshold(group)} required, {present(group)} {state}"
    )
    if not isinstance(group.lacking, UnsetType):
        text = "; ".join((text, *group.lacking))
    ready = {child.key.name for child in group.groups if admissible(child)}
    if lacking := [name for name in required_names(group) if name not in ready]:
        names = [child.key.name for child in group.groups]
        absent = next((name for name in lacking if name not in names), "")
        hint = did_you_mean(absent, names) if absent else ""
        text += f", without {join_names(lacking)}, which its requiredGroups name{hint}"
    return [text, *(line for child in group.groups for line in waiting_reasons(child))]


def without_lacking_members(group: PlanGroup, shapes: Sequence[PodShape]) -> PlanGroup:
    """Return a group without members whose claim or volume does not exist: no eviction can help them (E-2)."""
    return msgspec.structs.replace(
        group,
        members=tuple(m for m in group.members if not shapes[m.shape].lacking),
        groups=tuple(without_lacking_members(child, shapes) for child in group.groups),
    )
