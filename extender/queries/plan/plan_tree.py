"""The groups of a planned tree line by line, and what would help in the words of the workload that it was made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Tree
from extender.core.planner.explain.relaxations import evicting
from extender.core.planner.plan_types import Relaxation
from extender.core.workloads.workload_object import MIN_ANNOTATION
from extender.queries.plan.workload_summaries import GroupOrigin


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a tree; counts are of pods, for a composite of child groups."""

    group: str
    kind: str
    parent: str  # empty for the root
    role: (
        str  # what the user calls it, such as the name of a ReplicatedJob; empty if it has no name
    )
    minimum: int  # how many must be placed together; 0: each for itself
    total: int  # how many there are
    placed: int  # how many run or would be placed; child groups count with their minimum


def group_lines(
    tree: Tree, placed: Mapping[str, int], origins: Mapping[GroupKey, GroupOrigin]
) -> tuple[GroupLine, ...]:
    """Return the groups of a tree, root first, children in their stored order.

    Args:
        tree: The tree.
        placed: How many pods would be placed, by the name of their leaf.
        origins: What the groups were made from.
    """
    lines: dict[GroupKey, GroupLine] = {}
    for group in reversed(tree.groups):
        below = tree.children.get(group.key, ())
        pods = [pod for pod in tree.members.get(group.key, ()) if not pod.deleting]
        if group.key.kind == "PodGroup":
            total = len(pods)
            count = sum(pod.node is not None for pod in pods) + placed.get(group.key.name, 0)
        else:
            total = len(below)
            count = sum(
                lines[child.key].placed >= max(1, lines[child.key].minimum) for child in below
            )
        origin = origins.get(group.key)
        lines[group.key] = GroupLine(
            group=group.key.name,
            kind=group.key.kind,
            parent=group.parent or "",
            role=origin.role if origin is not None else "",
            minimum=0 if group.basic else group.minimum,
            total=total,
            placed=count,
        )
    return tuple(lines[group.key] for group in tree.groups)


def change_texts(
    changes: Iterable[Relaxation], origins: Mapping[GroupKey, GroupOrigin]
) -> Iterator[str]:
    """Yield what would help; a lower minimum of a group that follows its workload as what the workload asks for, first.

    Args:
        changes: Changes with which the tree would fit.
        origins: What the groups were made from.
    """
    plain = []
    for change in changes:
        origin = origins.get(change.groups[0]) if change.minimum else None
        if origin is None:
            plain.append(change.text)
            continue
        if not origin.role:  # of a group over several roles, for which the workload has no field
            continue
        annotation = f"{MIN_ANNOTATION}: {origin.role}={change.minimum}"
        text = f"{change.kind} {change.minimum}: annotation {annotation} on {origin.workload}"
        yield evicting(text, change.evicts)
    yield from plain
