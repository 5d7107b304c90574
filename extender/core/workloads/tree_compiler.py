"""Compile a workload into the groups of its trees: the same input always gives the same groups.

The table entry of the kind describes the parts. Here the policy is applied to them, and what holds for all kinds is
checked: names, counts, priorities, and that the minimum of a running group is never raised above its pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from extender.core.model.pod_groups import CHILDREN_MAX, DEPTH_MAX
from extender.core.workloads.tree_parts import (
    BASIC,
    Composite,
    ExistingGroup,
    Leaf,
    LeafUse,
    Part,
    basic_leaves,
    leaves_of,
)
from extender.core.workloads.tree_policy import (
    Disruption,
    InvalidPolicy,
    Refusal,
    TreePolicy,
    TreeProfile,
    read_policy,
)
from extender.core.workloads.workload_kind import Notice, WorkloadKind
from extender.core.workloads.workload_object import MIN_ANNOTATION, WorkloadObject

# Changes whenever the same input may give other groups; recorded with each compiled tree.
TABLE_VERSION = 1

Outcome = Literal["compiled", "basic", "refused", "kept-out"]


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One group to create: a PodGroup or a CompositePodGroup in the namespace of the workload."""

    kind: Literal["PodGroup", "CompositePodGroup"]
    name: str
    parent: str = ""
    basic: bool = False
    minimum: int = 1  # minCount or minGroupCount; 1 when basic
    topology: str = ""
    disruption_mode: Disruption = "single"
    priority_class: str = ""


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole input of one compilation; stored with the event, so that the result can be computed again."""

    workload: WorkloadObject
    owner: WorkloadObject | None = None  # whose annotations count: the TrainJob of a JobSet
    profile: TreeProfile | None  # None: the profile that the label names does not exist
    profile_name: str
    requested: bool = True  # the workload (or its owner) has the label; else only its namespace
    uses: tuple[LeafUse, ...] = ()  # in order of the names
    existing: tuple[ExistingGroup, ...] = ()  # in order of kind and name


class CompiledTree(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a workload.

    `refused`: `refusal` has the reason, no group is created and the pods wait. `basic`: `refusal` has the reason, each
    leaf is Basic, so that the pods run one by one. `kept-out`: the workload is scheduled by something else, and
    `refusal` says by what.
    """

    outcome: Outcome
    groups: tuple[GroupSpec, ...] = ()  # parents first
    refusal: Refusal | None = None
    notices: tuple[Notice, ...] = ()


def compile_tree(kind: WorkloadKind, request: CompileRequest) -> CompiledTree:
    """Return the groups of a workload, or why there are none.

    Args:
        kind: The table entry of the kind.
        request: The workload and what was seen of it.
    """
    workload = request.workload
    if reason := kind.kept_out(workload):
        refusal = Refusal(reason="ScheduledByOther", field="spec", message=f"{workload}: {reason}")
        return CompiledTree(outcome="kept-out", refusal=refusal)
    try:
        policy = _policy(request)
    except InvalidPolicy as invalid:
        return _refused(kind, request, None, invalid.refusal)
    for refusal in kind.refusals(workload, policy):
        return _refused(kind, request, policy, refusal)
    assert kind.parts is not None, f"{kind.kind} has no parts"
    plan = kind.parts(workload, policy, request.uses)
    try:
        roots = _with_minima(workload, plan.roots, policy)
        groups = _groups(workload, roots, policy)
    except InvalidPolicy as invalid:
        return _refused(kind, request, policy, invalid.refusal)
    groups = _never_raised(groups, request)
    return CompiledTree(outcome="compiled", groups=groups, notices=plan.notices)


def _policy(request: CompileRequest) -> TreePolicy:
    workload = request.workload
    if request.profile is None:
        text = f"no TreeProfile {request.profile_name!r}; create it, or use the label value default"
        raise _invalid(workload, "NoSuchProfile", "metadata.labels[gang-extender.dev/tree]", text)
    of_kind = request.profile.of(request.owner.kind if request.owner else workload.kind)
    return read_policy(request.owner or workload, of_kind)


def _refused(
    kind: WorkloadKind, request: CompileRequest, policy: TreePolicy | None, refusal: Refusal
) -> CompiledTree:
    """Return the result for a workload that cannot be compiled.

    One that asked for a tree is held. One that is only covered by its namespace gets Basic leaves: it runs pod by pod.
    """
    if request.requested:
        return CompiledTree(outcome="refused", refusal=refusal)
    plain = policy or read_policy(
        msgspec.structs.replace(request.workload, annotations={}),
        (request.profile or TreeProfile(name="")).of(request.workload.kind),
    )
    plain = msgspec.structs.replace(plain, root_topology="", leaf_topology="", parent="", minima={})
    assert kind.parts is not None, f"{kind.kind} has no parts"
    plan = kind.parts(request.workload, plain, request.uses)
    groups = tuple(
        GroupSpec(
            kind="PodGroup",
            name=leaf.name,
            basic=True,
            priority_class=_priority_class(leaf.template),
        )
        for leaf in basic_leaves(plan.roots)
    )
    return CompiledTree(outcome="basic", groups=groups, refusal=refusal, notices=plan.notices)


# --- minima


def _with_minima(
    workload: WorkloadObject, roots: tuple[Part, ...], policy: TreePolicy
) -> tuple[Part, ...]:
    """Return the parts with the minima of the annotation.

    Raises:
        InvalidPolicy: A minimum is for a role that does not exist, or is more than there can be.
    """
    if not policy.minima:
        return roots
    roles = Counter(part.role for root in roots for part in _counted(root))
    known = dict.fromkeys(role for role in roles if role)
    minima = dict(policy.minima)
    if "" in minima:
        if len(known) > 1:
            text = f"{minima['']} does not say of which role; write one of {', '.join(f'{r}=N' for r in known)}"
            raise _invalid_min(workload, text)
        minima = dict.fromkeys(known, minima[""]) or minima
    for role in minima:
        if role and role not in known:
            text = f"no role {role!r}; there are {', '.join(known)}"
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
            most, limit, unit = part.pods, part.most, "pods"
        else:
            most, limit, unit = len(part.children), len(part.children), "groups"
        if wanted > limit:
            text = f"{part.role}={wanted} is more than the {limit} {unit} that {part.role} has"
            raise _invalid_min(workload, text)
        return msgspec.structs.replace(part, minimum=max(1, min(wanted, most)))
    if isinstance(part, Composite):
        children = tuple(_with_minimum(workload, child, minima) for child in part.children)
        return msgspec.structs.replace(part, children=children)
    return part


def _invalid_min(workload: WorkloadObject, text: str) -> InvalidPolicy:
    return _invalid(workload, "InvalidAnnotation", f"metadata.annotations[{MIN_ANNOTATION}]", text)


def _invalid(workload: WorkloadObject, reason: str, field: str, text: str) -> InvalidPolicy:
    return InvalidPolicy(
        Refusal(reason=reason, field=field, message=f"{workload}: {field}: {text}")
    )


# --- groups


def _groups(
    workload: WorkloadObject, roots: tuple[Part, ...], policy: TreePolicy
) -> tuple[GroupSpec, ...]:
    """Return the groups of the parts, parents first.

    Raises:
        InvalidPolicy: Two leaves have one name, a tree has two priority classes, or a composite has too many children.
    """
    found: list[GroupSpec] = []
    for root in roots:
        priority_class = _one_priority_class(workload, root)
        depth = _depth(root) + bool(policy.parent)
        if depth > DEPTH_MAX:
            text = (
                f"the tree would have {depth} levels with its parent {policy.parent!r}, at most {DEPTH_MAX} "
                "are allowed; leave the annotation gang-extender.dev/parent out"
            )
            raise _invalid(workload, "TooDeep", "metadata.annotations", text)
        found += _groups_of(workload, root, policy, priority_class, policy.parent, is_root=True)
    twice = [name for name, times in Counter((g.kind, g.name) for g in found).items() if times > 1]
    if twice:
        kind, name = min(twice)
        text = (
            f"two parts would both be {kind} {name}, because their names are too long to differ in "
            "63 characters; give the workload or its parts shorter names"
        )
        raise _invalid(workload, "NamesCollide", "metadata.name", text)
    return tuple(found)


def _groups_of(
    workload: WorkloadObject,
    part: Part,
    policy: TreePolicy,
    priority_class: str,
    parent: str,
    *,
    is_root: bool,
) -> Iterable[GroupSpec]:
    topology = part.topology
    if isinstance(part, Leaf) and part.most > 1:
        topology = topology or policy.leaf_topology
    if is_root:
        topology = topology or policy.root_topology
    if isinstance(part, Leaf):
        yield GroupSpec(
            kind="PodGroup",
            name=part.name,
            parent=parent,
            basic=part.minimum == BASIC,
            minimum=max(1, part.minimum),
            topology=topology,
            disruption_mode=_disruption(part, policy),
            priority_class=priority_class,
        )
        return
    if len(part.children) > CHILDREN_MAX:
        text = f"{part.name} would have {len(part.children)} groups, at most {CHILDREN_MAX} are allowed"
        raise _invalid(workload, "TooManyGroups", "spec", text)
    yield GroupSpec(
        kind="CompositePodGroup",
        name=part.name,
        parent=parent,
        basic=part.minimum == BASIC,
        minimum=max(1, part.minimum),
        topology=topology,
        disruption_mode=_disruption(part, policy),
        priority_class=priority_class,
    )
    for child in part.children:
        yield from _groups_of(workload, child, policy, priority_class, part.name, is_root=False)


def _depth(part: Part) -> int:
    if isinstance(part, Leaf):
        return 1
    return 1 + max((_depth(child) for child in part.children), default=0)


def _disruption(part: Part, policy: TreePolicy) -> Disruption:
    """Return the disruption mode: a gang is disrupted as a whole if everything below it is (SPEC B10, E11)."""
    if part.minimum == BASIC or policy.disruption_mode == "single":
        return "single"
    if isinstance(part, Composite) and any(
        _disruption(child, policy) != "all" for child in part.children
    ):
        return "single"
    return "all"


def _one_priority_class(workload: WorkloadObject, root: Part) -> str:
    """Return the priority class of the pod templates below a root.

    Raises:
        InvalidPolicy: There are two (SPEC B9).
    """
    by_class: dict[str, str] = {}
    for leaf in leaves_of(root):
        by_class.setdefault(_priority_class(leaf.template), leaf.role or leaf.name)
    if len(by_class) > 1:
        (first, of_first), (second, of_second) = list(by_class.items())[:2]
        text = (
            f"{of_first} has {first!r}, {of_second} has {second!r}, but all pods of one tree have one "
            "priority; give them the same priorityClassName, or use the annotation "
            "gang-extender.dev/gang to make several trees"
        )
        raise _invalid(workload, "PrioritiesDiffer", "priorityClassName", text)
    return next(iter(by_class), "")


def _priority_class(template: Mapping[str, Any]) -> str:
    return str((template.get("spec") or {}).get("priorityClassName") or "")


def _never_raised(groups: tuple[GroupSpec, ...], request: CompileRequest) -> tuple[GroupSpec, ...]:
    """Return the groups with minima that running groups can have.

    A minimum is lowered at once. It is raised when the pods for it exist: a gang that runs is never broken by a count.
    """
    before = {(one.kind, one.name): one for one in request.existing}
    pods = {use.name: use.pods for use in request.uses}
    children = Counter(group.parent for group in groups)

    def settled(group: GroupSpec) -> GroupSpec:
        old = before.get((group.kind, group.name))
        if old is None or group.basic or old.basic or group.minimum <= old.minimum:
            return group
        there = pods.get(group.name, 0) if group.kind == "PodGroup" else children[group.name]
        if there >= group.minimum:
            return group
        return msgspec.structs.replace(group, minimum=old.minimum)

    return tuple(settled(group) for group in groups)
