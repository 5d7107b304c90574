"""Slices of a leaf: so many of its pods each in one domain of a topology key (D24).

A slice is a leaf of its own in a plan request, below the PodGroup that it is cut from, so bounds, searches and explanations
treat it as any other group. The group object of a slice does not exist: what leaves the planner names the PodGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.scheduling_constraints import SliceLevel
from extender.core.planner.plan_types import (
    PlanBound,
    PlanGroup,
    PlanMember,
    required_names,
    threshold,
)

RANK_STEP = 10**9  # ranks from two labels are the outer index times this, plus the inner one
SLICE_MARK = "/slice-"  # no name of a Kubernetes object has a slash
_Part: TypeAlias = "tuple[list[PlanBound], list[PlanMember]]"
NodeLabel: TypeAlias = "Callable[[NodeName, str], str | None]"


def is_slice(key: GroupKey) -> bool:
    """Return whether a key is that of a slice, of which there is no object."""
    return SLICE_MARK in key.name


def object_key(key: GroupKey) -> GroupKey:
    """Return the key of the object that a group of a request belongs to: of a slice its PodGroup, else itself.

    >>> str(object_key(GroupKey("ns", "train/slice-3", "PodGroup")))
    'PodGroup/ns/train'
    """
    return GroupKey(key.namespace, key.name.partition(SLICE_MARK)[0], key.kind)


def group_name(key: GroupKey) -> str:
    """Return kind and path of a group, as messages name it.

    >>> group_name(GroupKey("ns", "train/slice-3", "PodGroup"))
    'slice 3 of PodGroup ns/train'
    """
    name, _, number = key.name.partition(SLICE_MARK)
    text = f"{key.kind} {key.namespace}/{name}"
    return f"slice {number} of {text}" if number else text


def parts_word(key: GroupKey) -> str:
    """Return what the groups below a group are."""
    return "slice" if key.kind == "PodGroup" else "child group"


def is_sliced(group: PlanGroup) -> bool:
    """Return whether a group is cut into slices."""
    return group.key.kind == "PodGroup" and bool(group.groups)


def minimum_pods(group: PlanGroup) -> int:
    """Return how many pods the minimum of a PodGroup or of a slice needs."""
    if not is_sliced(group):
        return threshold(group)
    names = required_names(group)
    pods = sorted(
        minimum_pods(part) for part in group.groups if not names or part.key.name in names
    )
    return sum(pods[: threshold(group)])


def slice_pods(group: PlanGroup) -> int:
    """Return how many pods each slice of a group needs, 0 where they differ; 1 for a group without slices."""
    if not is_sliced(group):
        return 1
    pods = {minimum_pods(part) for part in group.groups}
    return pods.pop() if len(pods) == 1 else 0


def with_slices(leaf: PlanGroup, levels: Sequence[SliceLevel], label: NodeLabel) -> PlanGroup:
    """Return a leaf as a composite of its slices; one that waits for members of its minimum is returned as it is.

    Slice n has the pods with the ranks from n times the size on. Pods without ranks: those that are bound in one domain are of
    the same slices, waiting ones complete these, then form new ones. The minimum counts the bound pods, then slices in their
    order, those with most bound pods first; where it is a whole number of equal slices, any of them count. What is not in it is
    placed slice by slice.

    Args:
        levels: The sizes and keys, the largest first; each size is a multiple of the next.
        label: Returns the value that a node has of a key.
    """
    if not levels or len(leaf.bound) + len(leaf.members) < threshold(leaf):
        return leaf
    return _cut(leaf, levels, label, _positions(leaf))


def _cut(
    leaf: PlanGroup, levels: Sequence[SliceLevel], label: NodeLabel, positions: dict[PodUid, int]
) -> PlanGroup:
    level, *inner = levels
    if positions:
        parts = _by_position(leaf, level.size, positions)
    else:
        parts = dict(enumerate(_by_domain(leaf, level, label)))
    needs = _needs(leaf, list(parts.values()))
    mark = "-" if is_slice(leaf.key) else SLICE_MARK
    slices: list[PlanGroup] = []
    for need, (number, (bound, members)) in zip(needs, parts.items(), strict=True):
        part = PlanGroup(
            key=GroupKey(leaf.key.namespace, f"{leaf.key.name}{mark}{number}", "PodGroup"),
            minimum=need or (1 if leaf.basic else len(bound) + len(members)),
            topology=(level.key,),
            members=tuple(members),
            bound=tuple(bound),
            disruption_mode=leaf.disruption_mode,
        )
        slices.append(_cut(part, inner, label, positions) if inner else part)
    sizes = {len(bound) + len(members) for bound, members in parts.values()}
    any_of_them = len(sizes) == 1 and {0, *sizes}.issuperset(needs)
    required = tuple(s.key.name for s, need in zip(slices, needs, strict=True) if need)
    return msgspec.structs.replace(
        leaf,
        minimum=1 if leaf.basic else len(required),
        required=UNSET if any_of_them or len(required) == len(slices) else required,
        members=(),
        bound=(),
        groups=tuple(slices),
    )


def _positions(leaf: PlanGroup) -> dict[PodUid, int]:
    """Return the positions of the pods by their UIDs, from their ranks; empty: they have none."""
    ranks = {bound.uid: bound.rank for bound in leaf.bound}
    ranks |= {member.uid: member.rank for member in leaf.members}
    ranked = {uid: rank for uid, rank in ranks.items() if rank is not UNSET}
    if len(ranked) < len(ranks):
        return {}
    inner = {uid: rank % RANK_STEP for uid, rank in ranked.items()}
    outer = {uid: rank // RANK_STEP for uid, rank in ranked.items()}
    if len({*inner.values()}) == 1:
        return outer
    each = max(inner.values()) + 1  # pods of a Job
    return {uid: outer[uid] * each + inner[uid] for uid in ranked}


def _by_position(leaf: PlanGroup, size: int, positions: dict[PodUid, int]) -> dict[int, _Part]:
    parts: dict[int, _Part] = {}
    for bound in leaf.bound:
        parts.setdefault(positions[bound.uid] // size, ([], []))[0].append(bound)
    for member in leaf.members:
        parts.setdefault(positions[member.uid] // size, ([], []))[1].append(member)
    return {number: parts[number] for number in sorted(parts)}


def _by_domain(leaf: PlanGroup, level: SliceLevel, label: NodeLabel) -> Iterator[_Part]:
    domains: dict[str, list[PlanBound]] = {}
    for bound in leaf.bound:
        domains.setdefault(label(bound.node, level.key) or f"/{bound.node}", []).append(bound)
    chunks = [
        pods[start : start + level.size]
        for _, pods in sorted(domains.items())
        for start in range(0, len(pods), level.size)
    ]
    waiting = list(leaf.members)
    for chunk in sorted(chunks, key=lambda pods: -len(pods)):
        missing = level.size - len(chunk)
        yield chunk, waiting[:missing]
        del waiting[:missing]
    for start in range(0, len(waiting), level.size):
        yield [], waiting[start : start + level.size]


def _needs(leaf: PlanGroup, parts: Sequence[_Part]) -> list[int]:
    """Return how many pods of each slice the minimum counts."""
    needs = [len(bound) for bound, _ in parts]
    left = threshold(leaf) - sum(needs)
    for at in sorted(range(len(parts)), key=lambda at: (-needs[at], at)):
        more = min(len(parts[at][1]), max(left, 0))
        needs[at] += more
        left -= more
    return needs
