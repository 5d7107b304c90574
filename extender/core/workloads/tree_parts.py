"""The parts of a tree as the table entry of a kind describes them, before policy is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from extender.core.model.nodes import SchedulingConstraints
from extender.core.workloads.workload_object import WorkloadObject

BASIC = 0  # as minimum of a part: no gang; its children are placed on their own


class Given(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a template of the user's Workload sets for a group; it counts instead of the policy."""

    workload: str  # the Workload
    template: str
    constraints: SchedulingConstraints
    disrupted_as_a_whole: bool = False


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of a leaf as the name rule of the kind computes it for its pods
    role: str  # what the user calls it: the replicated job, the role, the worker group
    minimum: int  # how many of its pods or children are placed together; BASIC: each for itself
    # that the workload itself asks for, with groups of the same tree; what is not set the policy decides
    constraints: SchedulingConstraints = SchedulingConstraints()
    # its pods or children are disrupted one by one, whatever the policy is
    one_by_one: bool = False
    given: Given | None = None
    apart: tuple[str, ...] = ()  # of a root: the roots of its workload that never run beside it


class Leaf(_Common, frozen=True, kw_only=True):
    """Pods that name one PodGroup."""

    pods: int  # how many pods the controller keeps for it now; follows the remaining work downwards
    most: int  # how many pods the controller keeps for it at most
    template: Mapping[str, Any]  # the pod template: metadata and spec
    # the templates of its first pods, where they differ: the leader's
    leading: tuple[Mapping[str, Any], ...] = ()
    # of several Jobs that are alike: how many pods each has at once, and where the leaf is one of them its index
    job_pods: int = 0
    job_index: int = 0

    def template_of(self, number: int) -> Mapping[str, Any]:
        """Return the template of one of its pods, counted from 0."""
        return self.leading[number] if number < len(self.leading) else self.template


class PartStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of several parts that a controller starts one after the other."""

    child: str  # name of the part
    name: str  # what the user calls it
    # names of the parts that run then: itself, and earlier ones that have not ended; a part of a child, where only that runs
    runs: tuple[str, ...]
    after: str = ""  # the condition on which it starts; empty: it is one of the first


class Composite(_Common, frozen=True, kw_only=True):
    """Parts below one CompositePodGroup."""

    children: tuple[Part, ...]
    required: tuple[str, ...] = ()  # names of the children that are always among them
    most: int = 0  # how many children the controller makes at most, if some are made later
    # of children that start one after the other: each in the order of the children; empty: all start at once
    steps: tuple[PartStep, ...] = ()


Part = Leaf | Composite


def with_children(part: Part, change: Callable[[Part], Part]) -> Part:
    """Return a part with a change to each of its children."""
    return (
        part
        if isinstance(part, Leaf)
        else replace(part, children=tuple(map(change, part.children)))
    )


def with_constraints(part: Part, **changes: object) -> Part:
    """Return a part with changes to its constraints."""
    constraints = replace(part.constraints, **changes)
    return replace(part, constraints=constraints)


class LeafUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A leaf that pods of a workload name, or that exists for it."""

    name: str
    pods: int = 0  # pods that name it and do not terminate
    labels: Mapping[str, str] = {}  # of one of its pods: those that name rules read
    finished: int = 0  # pods of it that its Jobs do not run any more


class ExistingGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group that was made for a workload."""

    kind: str
    name: str
    basic: bool
    minimum: int
    required: tuple[str, ...] = ()


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a workload besides the object itself."""

    uses: tuple[LeafUse, ...] = ()  # the leaves that its pods name
    existing: tuple[ExistingGroup, ...] = ()  # the groups that were made for it
    templates: WorkloadObject | None = None  # the Workload that its annotation names


def leaves_of(part: Part) -> tuple[Leaf, ...]:
    """Return all leaves of a part, in order."""
    if isinstance(part, Leaf):
        return (part,)
    return tuple(leaf for child in part.children for leaf in leaves_of(child))


def first_leaves(part: Part) -> tuple[Leaf, ...]:
    """Return the leaves of a part that its controller makes at once: none that start after another part."""
    if isinstance(part, Leaf):
        return (part,)
    later = {step.child for step in part.steps if step.after}
    return tuple(
        leaf for child in part.children if child.name not in later for leaf in first_leaves(child)
    )


def basic_leaves(parts: tuple[Part, ...]) -> tuple[Leaf, ...]:
    """Return the leaves of the parts, each a Basic root: their pods are placed one by one."""
    return tuple(
        replace(leaf, minimum=BASIC, constraints=SchedulingConstraints())
        for part in parts
        for leaf in leaves_of(part)
    )
