"""The minima that the annotation `gang-extender.dev/min` asks for, by role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from extender.core.model.wording import counted
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, Part
from extender.core.workloads.tree_policy import InvalidPolicy, TreePolicy, refusal_of
from extender.core.workloads.workload_object import MIN_ANNOTATION, WorkloadObject


def with_minima(
    workload: WorkloadObject, roots: tuple[Part, ...], policy: TreePolicy
) -> tuple[Part, ...]:
    """Return the parts with the minima of the annotation.

    Raises:
        InvalidPolicy: A minimum is for a role that does not exist, or is more than there can be.
    """
    if not policy.minima or not roots:
        return roots
    known = dict.fromkeys(part.role for root in roots for part in _counted(root))
    minima = dict(policy.minima)
    if "" in minima:
        if len(known) > 1:
            text = f"{minima['']} is for one role, but there are several; write one of {', '.join(f'{r}=N' for r in known)}"
            raise _invalid_min(workload, text)
        minima = dict.fromkeys(known, minima[""])
    for role in minima:
        if role not in known:
            text = f"no role {role!r}; there are {', '.join(known) or 'none'}"
            raise _invalid_min(workload, text)
    return tuple(_with_minimum(workload, root, minima) for root in roots)


def _counted(part: Part) -> Iterable[Part]:
    """Yield the parts that an annotation may give a minimum: the topmost ones of each role."""
    if part.role:
        yield part
    elif isinstance(part, Composite):
        for child in part.children:
            yield from _counted(child)


def _with_minimum(workload: WorkloadObject, part: Part, minima: Mapping[str, int]) -> Part:
    if part.role:
        wanted = minima.get(part.role)
        if wanted is None:
            return part
        if isinstance(part, Leaf):
            most, limit, unit = part.pods, part.most, "pod"
        else:
            limit = max(part.most, len(part.children))
            most, unit = limit, "group"
        if wanted > limit:
            text = (
                f"{part.role}={wanted} is more than the {counted(limit, unit)} that {part.role} has"
            )
            raise _invalid_min(workload, text)
        return msgspec.structs.replace(part, minimum=max(1, min(wanted, most)))
    if isinstance(part, Composite):
        children = tuple(_with_minimum(workload, child, minima) for child in part.children)
        pairs = zip(part.children, children, strict=True)
        gangs = tuple(new.name for old, new in pairs if old.minimum == BASIC != new.minimum)
        part = msgspec.structs.replace(part, children=children)
        if part.required and gangs:  # what has a minimum now is required as the others are
            required = (*part.required, *gangs)
            part = msgspec.structs.replace(part, minimum=len(required), required=required)
        return part
    return part


def _invalid_min(workload: WorkloadObject, text: str) -> InvalidPolicy:
    field = f"metadata.annotations[{MIN_ANNOTATION}]"
    return InvalidPolicy(refusal_of(workload, "InvalidAnnotation", field, text))
