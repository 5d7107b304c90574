"""Compile a workload into the groups of its trees: the same input always gives the same groups.

The table entry of the kind describes the parts. Here the policy is applied to them, and what holds for all kinds is
checked: names, counts, priorities, the minima of the annotation `gang-extender.dev/min`, and that the minimum of a running group is never raised above its pods.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from extender.core.model.message_formatting import counted, did_you_mean
from extender.core.model.nodes import (
    NEAR_MAX,
    PREFERRED_MAX,
    ExclusiveDomain,
    LostMembers,
    NearGroup,
    SchedulingConstraints,
    SliceLevel,
    by_size,
    slices_problem,
)
from extender.core.model.pod_groups import CHILDREN_MAX, DEPTH_MAX
from extender.core.workloads.fields.field_check import FieldNote, field_notes
from extender.core.workloads.name_rules import NAME_MAX as LEAF_NAME_MAX
from extender.core.workloads.name_rules import joined_name
from extender.core.workloads.native_groups import (
    SCHEDULING_BLOCK,
    AdoptedGroup,
    NativeGroup,
    adopts,
    has_native_groups,
    native_roots,
)
from extender.core.workloads.tree_parts import (
    BASIC,
    Composite,
    ExistingGroup,
    Leaf,
    LeafUse,
    Observed,
    Part,
    basic_leaves,
    leaves_of,
    with_children,
    with_constraints,
)
from extender.core.workloads.tree_policy import (
    NAME_MAX,
    ZONE,
    Disruption,
    InvalidPolicy,
    KindPolicy,
    NearRole,
    TreePolicy,
    TreeProfile,
    TreeRefusal,
    from_level,
    invalid_annotation,
    is_label_key,
    is_object_name,
    missing_profile,
    not_a_key,
    read_policy,
    refusal_of,
)
from extender.core.workloads.workload_kind import Notice, WorkloadKind, WorkloadParts
from extender.core.workloads.workload_object import (
    LEAF_LABEL,
    LOST_MEMBERS_ANNOTATION,
    MIN_ANNOTATION,
    NEAR_ANNOTATION,
    PARENT_ANNOTATION,
    SLICES_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    WorkloadObject,
    pod_templates,
)


def with_minima(
    workload: WorkloadObject,
    roots: tuple[Part, ...],
    policy: TreePolicy,
    ended: AbstractSet[str] = frozenset(),
) -> tuple[Part, ...]:
    """Return the parts with the minima of the annotation; `ended` are roles whose work is done, so that they have no part.

    Raises:
        InvalidPolicy: A minimum is for a role that does not exist, or is more than there can be.
    """
    if not policy.minima or not roots:
        return roots
    roles = dict.fromkeys(part.role for root in roots for part in counted_parts(root))
    minima = dict(policy.minima)
    if "" in minima:
        if len(roles) > 1:
            text = f"{minima['']} is for one role, but there are several; write one of {', '.join(f'{r}=N' for r in roles)}"
            raise invalid_annotation(workload, MIN_ANNOTATION, text)
        minima = dict.fromkeys(roles, minima[""])
    for role in minima:
        if role not in roles and role not in ended:
            text = f"no role {role!r}; there are {', '.join(roles) or 'none'}{did_you_mean(role, roles)}"
            raise invalid_annotation(workload, MIN_ANNOTATION, text)
    return tuple(_with_minimum(workload, root, minima) for root in roots)


def counted_parts(part: Part) -> Iterable[Part]:
    """Yield the parts that an annotation may give a minimum: the topmost ones of each role."""
    if part.role:
        yield part
    elif isinstance(part, Composite):
        for child in part.children:
            yield from counted_parts(child)


def _with_minimum(workload: WorkloadObject, part: Part, minima: Mapping[str, int]) -> Part:
    if part.role:
        minimum = minima.get(part.role)
        if minimum is None:
            return part
        if isinstance(part, Leaf):
            most, limit, unit = part.pods, part.most, "pod"
        else:
            limit = max(part.most, len(part.children))
            # those of a JobSet that are left out
            ended = any(leaf.job_pods for leaf in leaves_of(part))
            most, unit = len(part.children) if ended else limit, "group"
        if minimum > limit:
            text = f"{part.role}={minimum} is more than the {counted(limit, unit)} that {part.role} has"
            raise invalid_annotation(workload, MIN_ANNOTATION, text)
        return replace(part, minimum=max(1, min(minimum, most)))
    if isinstance(part, Leaf):
        return part
    children = tuple(_with_minimum(workload, child, minima) for child in part.children)
    pairs = zip(part.children, children, strict=True)
    gangs = tuple(new.name for old, new in pairs if old.minimum == BASIC != new.minimum)
    part = replace(part, children=children)
    if not part.required or not gangs:
        return part
    required = (*part.required, *gangs)  # what has a minimum now is required as the others are
    return replace(part, minimum=len(required), required=required)


# --- nearness


def with_near(
    workload: WorkloadObject, roots: tuple[Part, ...], policy: TreePolicy
) -> tuple[tuple[Part, ...], tuple[Notice, ...]]:
    """Return the parts with the groups that they shall be near to, and a notice for each wish that no part has.

    Each part of a role gets the parts of the other one that are beside it below the lowest part that has both.
    """
    if not policy.near:
        return roots, ()
    near: dict[tuple[type, str], list[NearGroup]] = {}
    notices = []
    for wish in policy.near:
        before = sum(map(len, near.values()))
        for root in roots:
            _pair(root, wish, near)
        if sum(map(len, near.values())) == before:
            roles = dict.fromkeys(p.role for root in roots for p in parts_of(root) if p.role)
            text = f"{wish.to} is not beside {wish.role} in one tree, in at most {counted(NEAR_MAX, 'group')}; name two such roles"
            for role in (wish.to, wish.role):
                if role not in roles:
                    text = f"no role {role!r}; there are {', '.join(roles) or 'none'}{did_you_mean(role, roles)}"
            entry = f"metadata.annotations[{NEAR_ANNOTATION}]: {wish.role}={wish.to}~{wish.key}"
            text = f"{workload}: {entry} asks for nothing: {text}"
            notices.append(Notice(reason="NearNotUsed", message=text))
    return tuple(_with_near(root, near) for root in roots), tuple(notices)


def _pair(
    part: Part, wish: NearRole, near: dict[tuple[type, str], list[NearGroup]]
) -> tuple[list[Part], list[Part]]:
    """Return the parts of the two roles at and below a part, of the first one those that got no partner; add partners to `near`."""
    alone, partners = [], []
    children = part.children if isinstance(part, Composite) else ()
    below = [_pair(child, wish, near) for child in children]
    every = [other for _, others in below for other in others]
    for mine, inside in below:
        beside = len(every) - len(inside)
        if not beside:
            alone += mine
        elif mine and beside <= NEAR_MAX:
            names = [other.name for other in every if other not in inside]
            for each in mine:
                entries = near.setdefault((type(each), each.name), [])
                entries += [NearGroup(name, wish.key) for name in names]
    partners += every
    if part.role == wish.role:
        alone.append(part)
    elif part.role == wish.to:
        partners.append(part)
    return alone, partners


def _with_near(part: Part, near: Mapping[tuple[type, str], list[NearGroup]]) -> Part:
    part = with_children(part, lambda child: _with_near(child, near))
    entries = near.get((type(part), part.name))
    if entries is None:
        return part
    return with_constraints(part, near=tuple(dict.fromkeys(entries))[:NEAR_MAX])


def parts_of(part: Part) -> Iterable[Part]:
    """Yield a part and all parts below it."""
    yield part
    if isinstance(part, Composite):
        for child in part.children:
            yield from parts_of(child)


# Changes whenever the same input may give other groups or notices; recorded with each compiled tree.
TABLE_VERSION = 10

_HASH = "(-[0-9a-z]{10})?"  # that a controller may add to the name of a template

Outcome = Literal["compiled", "basic", "refused", "kept-out"]


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One group to create: a PodGroup or a CompositePodGroup in the namespace of the workload."""

    kind: Literal["PodGroup", "CompositePodGroup"]
    name: str
    parent: str = ""
    basic: bool = False
    minimum: int = 1  # minCount or minGroupCount; 1 when basic
    required: tuple[str, ...] = ()  # of a composite: requiredGroups, in order
    # its `constraints`, one by one as in the events of all versions
    topology: str = ""
    preferred: tuple[str, ...] = ()
    balanced: bool = False
    slices: tuple[SliceLevel, ...] = ()
    exclusive: ExclusiveDomain | None = None
    near: tuple[NearGroup, ...] = ()
    lost_members: LostMembers = "Wait"
    disruption_mode: Disruption = "single"
    priority_class: str = ""
    workload: str = ""  # the user's Workload that it is made from; empty: none
    template: str = ""  # its template there

    @property
    def constraints(self) -> SchedulingConstraints:
        """Return its constraints as one value."""
        values = {name: getattr(self, name) for name in SchedulingConstraints.__struct_fields__}
        topology = (self.topology,) if self.topology else ()
        return SchedulingConstraints(**(values | {"topology": topology}))


def constraint_fields(constraints: SchedulingConstraints) -> dict[str, Any]:
    """Return the fields of a `GroupSpec` with these constraints."""
    topology = constraints.topology[0] if constraints.topology else ""
    return msgspec.structs.asdict(constraints) | {"topology": topology}


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole input of one compilation; stored with the event, so that the result can be computed again."""

    workload: WorkloadObject
    owner: WorkloadObject | None = None  # whose annotations count: the TrainJob of a JobSet
    profile: TreeProfile | None  # None: the profile that the label names does not exist
    profile_name: str
    requested: bool = True  # the workload (or its owner) has the label; else only its namespace
    uses: tuple[LeafUse, ...] = ()  # in order of the names
    existing: tuple[ExistingGroup, ...] = ()  # in order of kind and name
    # The Workload that the annotation gang-extender.dev/workload names; None: it does not exist, or there is no annotation.
    templates: WorkloadObject | None = None
    # made by the controller of the workload, in order of the names
    native: tuple[NativeGroup, ...] = ()
    adopted: bool = False  # groups of its controller were adopted before, and stay so


class CompiledTree(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a workload.

    `refused`: `refusal` has the reason, no group is created and the pods wait. `basic`: `refusal` has the reason, each
    leaf is Basic, so that the pods run one by one. `kept-out`: the workload is scheduled by something else, and
    `refusal` has by what.
    """

    outcome: Outcome
    groups: tuple[GroupSpec, ...] = ()  # parents first
    adopted: tuple[AdoptedGroup, ...] = ()  # made by the controller of the workload
    refusal: TreeRefusal | None = None
    notices: tuple[Notice, ...] = ()


def compile_tree(kind: WorkloadKind, request: CompileRequest) -> CompiledTree:
    """Return the groups of a workload, or why there are none."""
    workload = request.workload
    if adopts_groups(kind, request):
        return _adopting(kind, request)
    if reason := kind.kept_out(workload):
        refusal = refusal_of(workload, "ScheduledByOther", "spec", reason)
        return CompiledTree(outcome="kept-out", refusal=refusal)
    try:
        policy = _policy(request)
    except InvalidPolicy as invalid:
        return _refused(kind, request, None, invalid.refusal)
    if not _kind_policy(request).enabled and not _has_tree(request):
        text = f"TreeProfile {request.profile_name!r} has the kind switched off: no gang is made"
        field = "metadata.labels[gang-extender.dev/tree]"
        return _basic(kind, request, policy, refusal_of(workload, "KindDisabled", field, text))
    notes = _field_notes(request)
    for refusal in (
        *kind.refusals(workload),
        *_bound_beforehand(kind, workload),
        *_lost_constraints(notes),
    ):
        return _refused(kind, request, policy, refusal)
    try:
        plan = workload_parts(kind, request, policy)
        roots = plan.roots
        if "Kueue" in _kind_policy(request).read_topology:
            ours = (request.owner or workload).annotations
            roots = tuple(_with_podsets(workload, root, policy, ours) for root in roots)
        ended = _roles_at_first(kind, request, policy) if policy.minima else frozenset()
        roots = with_minima(workload, roots, policy, ended)
        roots, unused = with_near(workload, roots, policy)
        groups = _groups(workload, roots, policy)
    except InvalidPolicy as invalid:
        return _refused(kind, request, policy, invalid.refusal)
    if NEAR_ANNOTATION not in (request.owner or workload).annotations or _has_tree(request):
        unused = ()  # a profile is for workloads of other roles too; of a running tree a role may have ended
    groups = _never_raised(groups, request)
    ignored = (Notice(reason="FieldNotUsed", message=f"{of}: {note}") for of, note in notes)
    notices = (
        *plan.notices,
        *unused,
        *_lost_members_unused(request, groups, _TOPOLOGY_HINT),
        *_topology_of_others(request),
        *ignored,
    )
    return CompiledTree(outcome="compiled", groups=groups, notices=notices)


_TOPOLOGY_HINT = f"write one into {TOPOLOGY_ANNOTATION}, such as leaf=net/rack, or leave it out"


def _lost_members_unused(
    request: CompileRequest, groups: Iterable[GroupSpec], hint: str
) -> Iterable[Notice]:
    """Yield a notice for an annotation about lost members where no group has a required topology."""
    source = request.owner or request.workload
    choice = source.annotations.get(LOST_MEMBERS_ANNOTATION, "Wait")
    if choice != "Wait" and not any(group.topology or group.slices for group in groups):
        text = f"{choice} asks for nothing: no group that this service makes has a required topology key or slices; {hint}"
        message = f"{source}: metadata.annotations[{LOST_MEMBERS_ANNOTATION}]: {text}"
        yield Notice(reason="LostMembersNotUsed", message=message)


# annotations of KAI and Volcano on workloads, and the same in TOPOLOGY_ANNOTATION
_TOPOLOGY_OF_OTHERS = {
    "kai.scheduler/topology-required-placement": "root=KEY",
    "kai.scheduler/topology-preferred-placement": "root=~KEY",
    "volcano.sh/network-topology-mode": "root=~KEY (soft) or root=KEY (hard)",
}


def _topology_of_others(request: CompileRequest) -> Iterable[Notice]:
    """Yield a notice for each annotation of another scheduler that asks for a topology, where none of ours does."""
    source = request.owner or request.workload
    if TOPOLOGY_ANNOTATION in source.annotations:
        return
    for annotation, ours in _TOPOLOGY_OF_OTHERS.items():
        if value := source.annotations.get(annotation):
            text = (
                f"{source}: metadata.annotations[{annotation}]: {value!r} is for another scheduler and is not read; "
                f"the same is {TOPOLOGY_ANNOTATION}: {ours} with the key of a node label"
            )
            yield Notice(reason="TopologyNotUsed", message=text)


def _roles_at_first(
    kind: WorkloadKind, request: CompileRequest, policy: TreePolicy
) -> frozenset[str]:
    """Return the roles that a workload has before any of its work is done."""
    uses = tuple(replace(use, finished=0) for use in request.uses)
    if uses == request.uses:
        return frozenset()
    plan = workload_parts(kind, replace(request, uses=uses), policy)
    return frozenset(part.role for root in plan.roots for part in counted_parts(root))


def _field_notes(request: CompileRequest) -> tuple[tuple[WorkloadObject, FieldNote], ...]:
    """Return the fields of a workload, and of the object that it was made from, that nothing here uses."""
    sources = (request.workload, request.owner)
    return tuple(
        (source, note)
        for source in sources
        if source is not None
        for note in field_notes(source.kind, {"spec": source.spec})
    )


def _bound_beforehand(kind: WorkloadKind, workload: WorkloadObject) -> Iterable[TreeRefusal]:
    """Yield a refusal for pods that have a node from the beginning: the policies leave them alone, so no member ever comes."""
    for template in pod_templates(kind.template_paths, workload.spec):
        if node := (template.get("spec") or {}).get("nodeName"):
            text = f"is {node!r}, so no scheduler looks at the pods and they join no group; take nodeSelector kubernetes.io/hostname"
            yield refusal_of(workload, "InvalidField", "the pod template, spec.nodeName", text)


def _lost_constraints(notes: Iterable[tuple[WorkloadObject, FieldNote]]) -> Iterable[TreeRefusal]:
    """Yield a refusal for each field that limits where pods may run, and whose meaning is not known (X14)."""
    for of, note in notes:
        if note.kind == "constraint":
            text = f"a tree without it might be placed where it must not be: leave it out, or upgrade the service; {note.text}"
            yield refusal_of(of, "UnknownConstraint", note.path, text)


def adopts_groups(kind: WorkloadKind, request: CompileRequest) -> bool:
    """Return whether the groups that the controller of the workload makes become its leaves."""
    workload = request.workload
    if request.adopted and has_native_groups(kind, workload):
        return True
    return adopts(kind, workload, request.profile)


def _adopting(kind: WorkloadKind, request: CompileRequest) -> CompiledTree:
    """Return the composites that are missing above the groups of the controller; these keep what they have."""
    workload, settings = request.workload, _kind_policy(request)
    try:
        policy = _policy(request)
        for refusal in kind.refusals(workload):
            return CompiledTree(outcome="refused", refusal=refusal)
        roots = native_roots(kind, workload, request.owner or workload, policy)
        groups = _groups(workload, roots, policy)
        adopted = _adopted_groups(workload, groups, request.native, policy.parent)
    except InvalidPolicy as invalid:
        return CompiledTree(outcome="refused", refusal=invalid.refusal)
    settled = _never_raised(groups, request)
    composites = tuple(group for group in settled if group.kind == "CompositePodGroup")
    hint = "annotate the PodGroups of its controller in its place, or leave it out"
    notices = (
        *_native_notices(workload, groups, adopted, settings),
        *_lost_members_unused(request, composites, hint),
    )
    return CompiledTree(outcome="compiled", groups=composites, adopted=adopted, notices=notices)


def _adopted_groups(
    workload: WorkloadObject,
    composed: Sequence[GroupSpec],
    native: Iterable[NativeGroup],
    parent: str,
) -> tuple[AdoptedGroup, ...]:
    """Return the groups of the controller with the composites above them, in the order of `native`.

    Args:
        composed: Its groups as the compiler made them, a PodGroup named as the template of the group to adopt; empty:
            each group of the controller is a root.
        parent: The composite of the user's above roots, or an empty string.

    Raises:
        InvalidPolicy: A group was made from a template that no part of the workload has.
    """
    if not composed:
        return tuple(AdoptedGroup(name=group.name, parent=parent) for group in native)
    above = {spec.name: spec.parent for spec in composed if spec.kind == "PodGroup"}
    adopted = []
    for group in native:
        template = _template_of(group, above)
        if template is None:
            text = (
                f"its controller made PodGroup {group.name} from the template {group.template!r}, but the groups of "
                f"{SCHEDULING_BLOCK} are {', '.join(above)}; write nativeGroups: Ignore into the TreeProfile to leave them alone"
            )
            raise _invalid(workload, "UnknownNativeGroup", SCHEDULING_BLOCK, text)
        adopted.append(AdoptedGroup(name=group.name, parent=above[template]))
    return tuple(adopted)


def _template_of(group: NativeGroup, templates: Mapping[str, str]) -> str | None:
    if group.template in templates:
        return group.template
    return next((n for n in templates if re.fullmatch(re.escape(n) + _HASH, group.template)), None)


def _native_notices(
    workload: WorkloadObject,
    composed: Sequence[GroupSpec],
    adopted: Sequence[AdoptedGroup],
    policy: KindPolicy,
) -> tuple[Notice, ...]:
    """Return what a user should know: groups that are not there yet, and topology that is not applied."""
    notices = []
    expected = sum(group.kind == "PodGroup" for group in composed) or 1
    if len(adopted) < expected:
        text = f"{workload}: {len(adopted)} of {counted(expected, 'group')} of its controller are there; the others are waited for"
        notices.append(Notice(reason="WaitingForGroups", message=text))
    of_root = policy.root_topology or policy.root_preferred
    asked = {
        "topology.leaf": policy.leaf_topology or policy.leaf_preferred,
        "topology.root": of_root and not composed,
        "topology.slices": policy.slices,
        "exclusive.leaf": policy.leaf_exclusive,
        "exclusive.root": policy.root_exclusive and not composed,
        "near": policy.near,
    }
    if levels := " and ".join(name for name, value in asked.items() if value):
        text = f"{workload}: {levels} of the TreeProfile is not applied to groups of its controller; set it in {SCHEDULING_BLOCK}"
        notices.append(Notice(reason="NativeGroupsKept", message=text))
    return tuple(notices)


def workload_parts(
    kind: WorkloadKind, request: CompileRequest, policy: TreePolicy
) -> WorkloadParts:
    """Return the parts of a workload, before policy is applied.

    Raises:
        InvalidPolicy: No tree can be made from what was observed.
    """
    assert kind.parts is not None, f"{kind.kind} has no parts"
    observed = Observed(uses=request.uses, existing=request.existing, templates=request.templates)
    return kind.parts(request.workload, policy, observed)


def _policy(request: CompileRequest) -> TreePolicy:
    workload = request.workload
    if request.profile is None:
        text = missing_profile(request.profile_name)
        raise _invalid(workload, "NoSuchProfile", "metadata.labels[gang-extender.dev/tree]", text)
    return read_policy(request.owner or workload, _kind_policy(request))


def _kind_policy(request: CompileRequest) -> KindPolicy:
    source = request.owner or request.workload
    return (request.profile or TreeProfile(name="")).of(source.kind)


def _has_tree(request: CompileRequest) -> bool:
    """Return whether a workload has more than Basic leaves; its leaves keep their parents, so nothing is taken from it."""
    return any(not group.basic or group.kind != "PodGroup" for group in request.existing)


def _refused(
    kind: WorkloadKind, request: CompileRequest, policy: TreePolicy | None, refusal: TreeRefusal
) -> CompiledTree:
    """Return the result for a workload that cannot be compiled.

    One that asked for a tree is held, and one that has gangs keeps them. One that is only covered by its namespace gets
    Basic leaves: it runs pod by pod.
    """
    if request.requested or any(not group.basic for group in request.existing):
        return CompiledTree(outcome="refused", refusal=refusal)
    return _basic(kind, request, policy, refusal)


def _basic(
    kind: WorkloadKind, request: CompileRequest, policy: TreePolicy | None, refusal: TreeRefusal
) -> CompiledTree:
    """Return Basic leaves under the names that the pods have: they are placed one by one."""
    workload = request.workload
    plain = policy or read_policy(replace(workload, annotations={}), _kind_policy(request))
    plain = replace(
        plain,
        root=SchedulingConstraints(),
        leaf=SchedulingConstraints(),
        near=(),
        parent="",
        workload="",
        minima={},
    )
    try:
        groups = _groups(workload, basic_leaves(workload_parts(kind, request, plain).roots), plain)
    except InvalidPolicy as invalid:
        return CompiledTree(outcome="refused", refusal=invalid.refusal)
    return CompiledTree(outcome="basic", groups=groups, refusal=refusal)


def _invalid(workload: WorkloadObject, reason: str, field: str, text: str) -> InvalidPolicy:
    return InvalidPolicy(refusal_of(workload, reason, field, text))


# --- the topology that Kueue reads

_KUEUE = "kueue.x-k8s.io/podset-"
_PODSET_WORDS = ("required", "preferred")
_EXAMPLE = '[{"topology": "net/block", "size": "64"}, {"topology": "net/rack", "size": "16"}]'
_SLICE_SIZE = f"{_KUEUE}slice-size"
_SLICE_LEVELS = f"{_KUEUE}slice-required-topology-constraints"


def _with_podsets(
    source: WorkloadObject, part: Part, policy: TreePolicy, ours: Mapping[str, str]
) -> Part:
    """Return a part with the topology that the annotations of its pod templates ask for, which Kueue reads.

    A pod set of Kueue is a part with a role: its pods have one template.

    Args:
        ours: The annotations of the workload, or of what it was made from: our topology and our slices take precedence, each by itself.

    Raises:
        InvalidPolicy: An annotation cannot be read.
    """
    if isinstance(part, Composite) and not part.role:
        return with_children(part, lambda child: _with_podsets(source, child, policy, ours))
    annotations: dict[str, str] = {}
    for template in (t for leaf in leaves_of(part) for t in (*leaf.leading, leaf.template)):
        annotations |= (template.get("metadata") or {}).get("annotations") or {}
    if TOPOLOGY_ANNOTATION not in ours:
        required, preferred = _podset(source, annotations, policy)
        own = part.constraints
        topology = own.topology or ((required,) if required else ())
        part = with_constraints(part, topology=topology, preferred=own.preferred or preferred)
    if SLICES_ANNOTATION in ours or not leaves_of(part):
        return part
    levels, problem = _podset_slices(leaves_of(part)[0], annotations)
    if not problem and isinstance(part, Composite):
        problem = _across_groups(part, levels)
    if problem:
        field = "the pod template, metadata.annotations[kueue.x-k8s.io/podset-slice-...]"
        raise _invalid(source, "InvalidAnnotation", field, problem)
    stem = f"-{part.role}-slice"
    return _with_slices(source, part, levels, stem, basic=not policy.minima)


def _across_groups(part: Composite, levels: Sequence[SliceLevel]) -> str:
    """Return why slices of a part with several groups cannot be made, and what would help; empty: each is a piece of one group, or some whole Jobs."""
    for leaf, level in itertools.product(leaves_of(part), levels):
        if leaf.most % level.size == 0:
            continue
        group, sizes = "group", f"write a size of which {leaf.most} is a multiple"
        other = "leave Kueue out of topology.readFrom of the TreeProfile"
        if leaf.job_pods:
            group, sizes = "Job", f"{sizes}, or a multiple of {leaf.most}"
            other = f"write the label {LEAF_LABEL}: replicated-job into the pod template, which makes one group of all its pods"
        text = f"a slice of {counted(level.size, 'pod')} by {level.key} would have pods of several {group}s of {leaf.most}"
        if not leaf.job_pods or level.size % leaf.most:
            return f"{text}; {sizes}, or {other}"
    return ""


def _with_slices(
    source: WorkloadObject, part: Part, levels: Sequence[SliceLevel], stem: str, *, basic: bool
) -> Part:
    """Return a part with slices: those of several Jobs are composites, smaller ones are slices of its leaves.

    Args:
        stem: What is behind the name of the workload in the names of slices: only that name may be shortened.
        basic: Whether the Jobs of a slice are each for itself where those of the part are.
    """
    if isinstance(part, Leaf):
        return with_constraints(part, slices=tuple(levels))
    jobs = leaves_of(part)
    each = levels[0].size // jobs[0].most if levels else 0
    if each <= 1:
        return with_children(
            part, lambda child: _with_slices(source, child, levels, stem, basic=basic)
        )
    uid = part.name.rpartition("-")[2]
    slices: list[Part] = []
    for number, group in itertools.groupby(jobs, key=lambda leaf: leaf.job_index // each):
        of_slice = tuple(group)
        composite = Composite(
            name=joined_name(source.name, f"{stem}-{number}-{uid}"),
            role="",
            children=of_slice,
            minimum=BASIC if basic and part.minimum == BASIC else len(of_slice),
            constraints=SchedulingConstraints(topology=(levels[0].key,)),
        )
        slices.append(_with_slices(source, composite, levels[1:], f"{stem}-{number}", basic=basic))
    return replace(
        part,
        children=tuple(slices),
        minimum=BASIC if part.minimum == BASIC else len(slices),
        most=-(-part.most // each),
    )


def _podset_slices(
    leaf: Leaf, annotations: Mapping[str, str]
) -> tuple[tuple[SliceLevel, ...], str]:
    """Return the slices of a leaf that annotations ask for, and what is wrong with them."""
    key, size = annotations.get(f"{_KUEUE}slice-required-topology"), annotations.get(_SLICE_SIZE)
    several = annotations.get(_SLICE_LEVELS)
    if several is not None:
        if key or size:
            text = "is there beside the annotations for one level; leave out one of the two"
            return (), f"{_SLICE_LEVELS} {text}"
        try:
            entries = msgspec.json.decode(several, type=list[dict[str, str]], strict=False)
            levels = tuple(SliceLevel(e["topology"], int(e["size"])) for e in entries)
        except (msgspec.MsgspecError, KeyError, ValueError):
            return (), f"{several!r} of {_SLICE_LEVELS} cannot be read; an example is {_EXAMPLE}"
    elif key:
        if size is None and leaf.job_pods:  # each of its Jobs is one
            size = str(leaf.job_pods)
        if size is None or not (size.isascii() and size.isdigit()):
            return (), f"{size or ''!r} of {_SLICE_SIZE} is not a number of at least 1, such as 4"
        levels = (SliceLevel(key, int(size)),)
    elif size is not None:
        text = f"is there without {_KUEUE}slice-required-topology; add the key of a node label"
        return (), f"{size!r} of {_SLICE_SIZE} {text}"
    else:
        return (), ""
    for level in levels:
        if not is_label_key(level.key):
            return (), not_a_key(level.key)
    return by_size(levels), slices_problem(levels)


def _podset(
    source: WorkloadObject, annotations: Mapping[str, str], policy: TreePolicy
) -> tuple[str, tuple[str, ...]]:
    """Return the required key of a pod set, or an empty string, and the preferred ones."""
    keys = {word: annotations.get(f"{_KUEUE}{word}-topology", "") for word in _PODSET_WORDS}
    for word, key in keys.items():
        if key and not is_label_key(key):
            field = f"the pod template, metadata.annotations[{_KUEUE}{word}-topology]"
            raise _invalid(source, "InvalidAnnotation", field, not_a_key(key, ZONE))
    if not (preferred := keys["preferred"]):
        return keys["required"], ()
    return keys["required"], from_level(preferred, policy.levels, balanced=policy.leaf.balanced)


# --- groups


def _groups(
    workload: WorkloadObject, roots: tuple[Part, ...], policy: TreePolicy
) -> tuple[GroupSpec, ...]:
    """Return the groups of the parts, parents first.

    Raises:
        InvalidPolicy: Two leaves have one name, a tree has two priority classes, or a composite has too many children.
    """
    specs: list[GroupSpec] = []
    for root in roots:
        priority_class = _one_priority_class(workload, root)
        depth = _depth(root) + bool(policy.parent)
        if depth > DEPTH_MAX:
            above = ""
            help_ = (
                "such as subgroups, the start-up policy LeaderReady, or slices of several Jobs, which the label "
                f"{LEAF_LABEL}: replicated-job in the pod template makes slices of one group"
            )
            if policy.parent:
                above, help_ = f" with its parent {policy.parent!r}", f"such as {PARENT_ANNOTATION}"
            text = f"the tree would have {depth} levels{above}, at most {DEPTH_MAX} are allowed; leave one out, {help_}"
            raise _invalid(workload, "TooDeep", "metadata.annotations", text)
        specs += _groups_of(workload, root, policy, priority_class, policy.parent, is_root=True)
    _check_names(workload, roots, specs)
    return tuple(specs)


def _called(part: Part, above: str = "") -> Iterator[tuple[tuple[str, str], str]]:
    """Yield kind and name of the group of each part, and what a user calls the part: its role, or one of the role above."""
    kind = "PodGroup" if isinstance(part, Leaf) else "CompositePodGroup"
    of = f"a group of {above}" if above else "the whole workload"
    yield (kind, part.name), part.role or of
    for child in () if isinstance(part, Leaf) else part.children:
        yield from _called(child, part.role or above)


def _check_names(
    workload: WorkloadObject, roots: Iterable[Part], groups: Iterable[GroupSpec]
) -> None:
    """Raise InvalidPolicy if a group cannot have its name, or two groups have one name."""
    taken = set()
    for group in groups:
        longest = LEAF_NAME_MAX if group.kind == "PodGroup" else NAME_MAX
        if not is_object_name(group.name, longest):
            text = (
                f"a {group.kind} cannot have the name {group.name!r}; names of the workload and its parts may have "
                f"lower case letters, digits and dashes, here at most {longest}"
            )
            raise _invalid(workload, "InvalidName", "metadata.name", text)
        if (group.kind, group.name) in taken:
            parts = (pair for root in roots for pair in _called(root))
            both = " and ".join(text for key, text in parts if key == (group.kind, group.name))
            cut = len(group.name) == LEAF_NAME_MAX
            shorter = ", a shorter one: of long names only the end is kept" if cut else ""
            text = f"{both} would both be {group.kind} {group.name}; give one of the two another name{shorter}"
            raise _invalid(workload, "NamesCollide", "spec", text)
        taken.add((group.kind, group.name))


def _groups_of(
    workload: WorkloadObject,
    part: Part,
    policy: TreePolicy,
    priority_class: str,
    parent: str,
    *,
    is_root: bool,
) -> Iterable[GroupSpec]:
    given = part.given
    constraints = given.constraints if given else _constraints(part, policy, is_root=is_root)
    is_leaf, required = isinstance(part, Leaf), set[str]()
    if isinstance(part, Composite) and part.minimum != BASIC:
        required = {child.name for child in part.children}.intersection(part.required)
    yield GroupSpec(
        kind="PodGroup" if is_leaf else "CompositePodGroup",
        name=part.name,
        parent=parent,
        basic=part.minimum == BASIC,
        minimum=max(1, part.minimum),
        required=tuple(sorted(required)),
        **constraint_fields(constraints),
        disruption_mode=_disruption(part, policy),
        priority_class=priority_class,
        workload=given.workload if given else "",
        template=given.template if given else "",
    )
    if isinstance(part, Leaf):
        return
    if len(part.children) > CHILDREN_MAX:
        text = (
            f"{part.name} would have {len(part.children)} groups, at most {CHILDREN_MAX} are allowed; make several "
            f"{workload.kind}s of it"
        )
        raise _invalid(workload, "TooManyGroups", "spec", text)
    for child in part.children:
        yield from _groups_of(workload, child, policy, priority_class, part.name, is_root=False)


def _constraints(part: Part, policy: TreePolicy, *, is_root: bool) -> SchedulingConstraints:
    """Return the constraints of a part: of each field its own, else the policy of leaves with several pods, else that of roots."""
    own, several = part.constraints, isinstance(part, Leaf) and part.most > 1
    leaf = policy.leaf if several else SchedulingConstraints()
    root = policy.root if is_root else SchedulingConstraints()
    topology = own.topology or leaf.topology or root.topology
    keys = own.preferred or leaf.preferred
    preferred = (*keys, *(() if own.preferred else root.preferred))  # of a leaf that is a root both
    balanced = policy.leaf.balanced if keys else policy.root.balanced
    slices = (own.slices or leaf.slices) if several else ()
    return SchedulingConstraints(
        topology=topology,
        preferred=tuple(dict.fromkeys(preferred))[:PREFERRED_MAX],
        balanced=balanced and bool(preferred),
        slices=slices,
        exclusive=leaf.exclusive or root.exclusive,
        near=own.near,
        lost_members=policy.root.lost_members if topology or slices else "Wait",
    )


def _depth(part: Part) -> int:
    children = () if isinstance(part, Leaf) else part.children
    return 1 + max(map(_depth, children), default=0)


def _disruption(part: Part, policy: TreePolicy) -> Disruption:
    """Return the disruption mode: a group is disrupted as a whole if everything below it is (B10).

    A basic group only where its author has it so (E11).
    """
    if part.given is not None:
        whole = part.given.disrupted_as_a_whole
    else:
        whole = policy.disruption_mode == "all" and not part.one_by_one
    if not whole or (part.minimum == BASIC and part.given is None):
        return "single"
    below = part.children if isinstance(part, Composite) else ()
    return "all" if all(_disruption(child, policy) == "all" for child in below) else "single"


def _one_priority_class(workload: WorkloadObject, root: Part) -> str:
    """Return the priority class of the pod templates below a root.

    Raises:
        InvalidPolicy: There are two (B9).
    """
    by_class: dict[str, str] = {}
    for leaf in leaves_of(root):
        name = leaf.role or leaf.name
        for template in leaf.leading:
            by_class.setdefault(_priority_class(template), f"the first pod of {name}")
        if leaf.most > len(leaf.leading):
            by_class.setdefault(_priority_class(leaf.template), name)
    if len(by_class) > 1:
        (first, of_first), (second, of_second) = list(by_class.items())[:2]
        text = (
            f"{of_first} has {first!r}, {of_second} has {second!r}, but all pods of one tree have one "
            f"priority; give them the same priorityClassName, or make a {workload.kind} of each"
        )
        raise _invalid(workload, "PrioritiesDiffer", "priorityClassName", text)
    return next(iter(by_class), "")


def _priority_class(template: Mapping[str, Any]) -> str:
    return str((template.get("spec") or {}).get("priorityClassName") or "")


def _never_raised(groups: tuple[GroupSpec, ...], request: CompileRequest) -> tuple[GroupSpec, ...]:
    """Return the groups with minima that running groups can have.

    A minimum is lowered at once. It is raised when the pods for it exist: a gang that runs is never broken by a count.
    """
    before = {(existing.kind, existing.name): existing for existing in request.existing}
    pods = {use.name: use.pods for use in request.uses}
    children = Counter(group.parent for group in groups)

    def settled(group: GroupSpec) -> GroupSpec:
        old = before.get((group.kind, group.name))
        if old is None or group.basic or old.basic or group.minimum <= old.minimum:
            return group
        present = pods.get(group.name, 0) if group.kind == "PodGroup" else children[group.name]
        if present >= group.minimum:
            return group
        return replace(group, minimum=old.minimum, required=old.required if group.required else ())

    return tuple(settled(group) for group in groups)
