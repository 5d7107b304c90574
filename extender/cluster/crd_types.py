"""The kinds of `gang-extender.dev/v1alpha1`, written once: fields, bounds, and rules in CEL.

Owns what a user may store; `crds.py` renders it as CustomResourceDefinitions. The field names are
those of the built-in `scheduling.k8s.io` kinds, so that a manifest moves between the groups by its
`apiVersion` alone. These types are never decoded from: the service reads groups of every source
with `parse.py`, which is forgiving; here is what an API server refuses.

Numbers E01 to E14 are those of SPEC A.7. What CEL cannot say (E08: does the class exist; E15: is
the parent being deleted; what two objects must share) is judged at runtime (`core/groups.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

LABEL_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)
SEGMENT_PATTERN = r"^[^/%]+$"
PRIORITY_MAX = 1_000_000_000  # above it are the classes of the system


class Rule(Struct, frozen=True):
    """A rule in CEL and what the user reads when it does not hold."""

    rule: str
    message: str


def _exactly_one(first: str, second: str) -> Rule:
    return Rule(
        f"has(self.{first}) != has(self.{second})", f"choose exactly one of {first}, {second}"
    )


def _frozen(field: str, *, why: str = "recreate the object") -> Rule:
    """Let a field neither change nor come nor go.

    Written with `has`: the size of an optional is unknown to the cost estimate of an API server.
    """
    same = f"has(self.{field}) == has(oldSelf.{field})"
    rule = f"{same} && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(rule, f"{field} is immutable; {why}")


Label = Annotated[str, Meta(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
Subdomain = Annotated[str, Meta(min_length=1, max_length=253, pattern=SUBDOMAIN_PATTERN)]
Segment = Annotated[str, Meta(min_length=1, max_length=253, pattern=SEGMENT_PATTERN)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Priority = Annotated[int, Meta(ge=-(2**31), le=PRIORITY_MAX, extra_json_schema={"format": "int32"})]
PreemptionPolicy = Annotated[
    str,
    Meta(
        max_length=20,
        description="Whether the tree may preempt others; unset is PreemptLowerPriority.",
        extra_json_schema={"enum": ["Never", "PreemptLowerPriority"]},
    ),
]


class Empty(Struct):
    """Chosen by being there; it has no settings."""


class GangPolicy(Struct, rename="camel"):
    """All or nothing: no pod is bound before `minCount` of them can be."""

    min_count: Annotated[Count, Meta(description="Least pods to run together; may be changed.")]


class CompositeGangPolicy(Struct, rename="camel"):
    """All or nothing: nothing is bound before `minGroupCount` children can have their minimum."""

    min_group_count: Annotated[Count, Meta(description="Least child groups to run together.")]


class LeafPolicy(Struct, rename="camel"):
    """Exactly one of basic (pods on their own) and gang."""

    RULES: ClassVar = (
        _exactly_one("basic", "gang"),
        Rule(
            "has(self.gang) == has(oldSelf.gang)",
            "basic and gang cannot be switched; recreate the object",
        ),
    )
    basic: Empty | UnsetType = UNSET
    gang: GangPolicy | UnsetType = UNSET


class CompositePolicy(Struct, rename="camel"):
    """Exactly one of basic (children on their own) and gang."""

    RULES: ClassVar = (_exactly_one("basic", "gang"),)
    basic: Empty | UnsetType = UNSET
    gang: CompositeGangPolicy | UnsetType = UNSET


class TopologyConstraint(Struct):
    """Keep the whole group within one value of a node label."""

    key: Annotated[str, Meta(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]


class Constraints(Struct):
    """Where a group may run as a whole."""

    topology: (
        Annotated[
            list[TopologyConstraint],
            Meta(max_length=1, extra_json_schema={"x-kubernetes-list-type": "atomic"}),
        ]
        | UnsetType
    ) = UNSET


class Disruption(Struct):
    """Exactly one of single (unset means this) and all: what is preempted goes alone or together."""

    RULES: ClassVar = (_exactly_one("single", "all"),)
    single: Empty | UnsetType = UNSET
    all: Empty | UnsetType = UNSET


class ResourceClaim(Struct, rename="camel"):
    """A claim that all pods of the group share."""

    RULES: ClassVar = (_exactly_one("resourceClaimName", "resourceClaimTemplateName"),)
    name: Label
    resource_claim_name: Subdomain | UnsetType = UNSET
    resource_claim_template_name: Subdomain | UnsetType = UNSET


class WorkloadReference(Struct, rename="camel"):
    """The template a group was made from; the Workload need not exist."""

    workload_name: Subdomain
    template_name: Label


class Condition(Struct, rename="camel"):
    """As every Kubernetes condition."""

    type: Annotated[str, Meta(max_length=316)]
    status: Annotated[
        str, Meta(max_length=7, extra_json_schema={"enum": ["True", "False", "Unknown"]})
    ]
    last_transition_time: Annotated[
        str, Meta(max_length=64, extra_json_schema={"format": "date-time"})
    ]
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    message: Annotated[str, Meta(max_length=32768)]
    observed_generation: (
        Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})] | UnsetType
    ) = UNSET


def _keyed_by(key: str) -> dict[str, object]:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


ClaimList = Annotated[list[ResourceClaim], Meta(max_length=4, extra_json_schema=_keyed_by("name"))]
ConditionList = Annotated[list[Condition], Meta(max_length=32, extra_json_schema=_keyed_by("type"))]

ALL_NEEDS_A_GANG = Rule(
    "!(has(self.disruptionMode) && has(self.disruptionMode.all) && has(self.schedulingPolicy.basic))",
    "disruptionMode all needs schedulingPolicy gang, but it is basic",
)


class _Policies(Struct, rename="camel", kw_only=True):
    """What leaves and composites, groups and templates have in common."""

    scheduling_constraints: Constraints | UnsetType = UNSET
    disruption_mode: Disruption | UnsetType = UNSET
    priority_class_name: Subdomain | UnsetType = UNSET
    priority: (
        Annotated[Priority, Meta(description="Normally unset: the value of the class.")] | UnsetType
    ) = UNSET
    preemption_policy: PreemptionPolicy | UnsetType = UNSET


FROZEN_POLICIES = tuple(
    _frozen(field)
    for field in (
        "schedulingConstraints",
        "disruptionMode",
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    )
)
PARENT = Annotated[
    Subdomain, Meta(description="CompositePodGroup in this namespace; unset: this is a root.")
]


class PodGroupSpec(_Policies, rename="camel", kw_only=True):
    """A leaf group of pods; all but `minCount` is frozen."""

    RULES: ClassVar = (
        ALL_NEEDS_A_GANG,
        Rule(
            "!has(self.parentCompositePodGroupName) || has(self.workloadRef)",
            "workloadRef is required with parentCompositePodGroupName",
        ),
        _frozen("parentCompositePodGroupName"),
        _frozen("workloadRef"),
        _frozen("resourceClaims"),
        *FROZEN_POLICIES,
    )
    parent_composite_pod_group_name: PARENT | UnsetType = UNSET
    workload_ref: WorkloadReference | UnsetType = UNSET
    scheduling_policy: LeafPolicy
    resource_claims: ClaimList | UnsetType = UNSET


class CompositePodGroupSpec(_Policies, rename="camel", kw_only=True):
    """A group of groups; everything is frozen."""

    RULES: ClassVar = (
        _frozen("parentCompositePodGroupName"),
        _frozen("workloadRef"),
        _frozen("schedulingPolicy"),
        *FROZEN_POLICIES,
    )
    parent_composite_pod_group_name: PARENT | UnsetType = UNSET
    workload_ref: WorkloadReference
    scheduling_policy: CompositePolicy


class GroupStatus(Struct):
    """What was decided about the group, written by the extender."""

    conditions: ConditionList | UnsetType = UNSET


class PodGroupTemplate(_Policies, rename="camel", kw_only=True):
    """A leaf of the tree; only `gang.minCount` changes."""

    RULES: ClassVar = (ALL_NEEDS_A_GANG, _frozen("resourceClaims"), *FROZEN_POLICIES)
    name: Label
    scheduling_policy: LeafPolicy
    resource_claims: ClaimList | UnsetType = UNSET


def _same_names(field: str) -> Rule:
    """Let no template come or go; written by name, so that order does not matter."""
    rule = (
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field})"
        f" || (size(self.{field}) == size(oldSelf.{field})"
        f" && self.{field}.all(t, oldSelf.{field}.exists(o, o.name == t.name))))"
    )
    return Rule(rule, f"no item of {field} can be added or removed; recreate the workload")


def _size(field: str) -> str:
    return f"(has(self.{field}) ? size(self.{field}) : 0)"


def _or(owner: str, field: str, default: str) -> str:
    return f"(has({owner}.{field}) ? {owner}.{field} : {default})"


def _every_child(holds: str, lists: tuple[str, ...]) -> str:
    """Say in CEL that `holds` is true of every child template `t`."""
    return " && ".join(f"(!has(self.{name}) || self.{name}.all(t, {holds}))" for name in lists)


LISTS = ("podGroupTemplates", "compositePodGroupTemplates")


def _unique_names(below: tuple[str, ...]) -> tuple[Rule, ...]:
    """Let template names differ between children, and between the children of two children.

    Names of further relatives are not compared: all pairs of 4,672 names are beyond what an API
    server lets a rule cost.

    Args:
        below: Lists whose names are compared between composite children; none: too many to.
    """
    leaves, inner = (f"self.{name}" for name in LISTS)
    children = (
        f"!has({leaves}) || !has({inner})"
        f" || !{inner}.exists(c, {leaves}.exists(t, t.name == c.name))"
    )
    cousins = [
        f"(a.name == b.name || !has(a.{one}) || !has(b.{two})"
        f" || !a.{one}.exists(x, b.{two}.exists(y, x.name == y.name)))"
        for one in below
        for two in below
    ]
    uncles = [
        f"(!has(a.{name}) || !a.{name}.exists(x, x.name == a.name || x.name == b.name))"
        for name in below
    ]
    message = "template names are unique in the whole Workload"
    if not below:
        return (Rule(children, message),)
    relatives = f"!has({inner}) || {inner}.all(a, {inner}.all(b, {' && '.join(cousins + uncles)}))"
    return (Rule(children, message), Rule(relatives, message))


def _composite_rules(lists: tuple[str, ...], below: tuple[str, ...]) -> tuple[Rule, ...]:
    """Give the rules of a composite template.

    Args:
        lists: Where its children are.
        below: As in `_unique_names`.
    """
    is_all = "has(t.disruptionMode) && has(t.disruptionMode.all)"
    alike = [
        Rule(
            _every_child(f"{_or('t', field, default)} == {_or('self', field, default)}", lists),
            f"all templates of one tree share one {field}",
        )
        for field, default in (("priorityClassName", "''"), ("priority", "0"))
    ]
    return (
        Rule(
            f"{' + '.join(_size(name) for name in lists)} > 0",
            "a composite template needs at least one child template",
        ),
        Rule(
            "!(has(self.disruptionMode) && has(self.disruptionMode.all))"
            f" || ({_every_child(is_all, lists)})",
            "a template that is disrupted as a whole (all) has only children that are all",
        ),
        *(_unique_names(below) if len(lists) > 1 else ()),
        *alike,
        _frozen("schedulingPolicy"),
        *(_same_names(name) for name in lists),
        *FROZEN_POLICIES,
    )


class _CompositeTemplate(_Policies, rename="camel", kw_only=True):
    """An inner node of the tree."""

    RULES: ClassVar = _composite_rules(LISTS, below=LISTS[:1])
    name: Label
    scheduling_policy: CompositePolicy
    pod_group_templates: (
        Annotated[list[PodGroupTemplate], Meta(max_length=8, extra_json_schema=_keyed_by("name"))]
        | UnsetType
    ) = UNSET


class TooDeep(Struct):
    """Never accepted: a fifth level."""

    name: Label


TooDeepList = Annotated[
    list[TooDeep],
    Meta(
        max_length=0,
        description="A template tree has at most 4 levels: this list must be empty.",
        extra_json_schema=_keyed_by("name"),
    ),
]


class LowestComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template whose children are leaves."""

    RULES: ClassVar = _composite_rules(LISTS[:1], below=())
    composite_pod_group_templates: TooDeepList | UnsetType = UNSET


class MiddleComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template below the top."""

    RULES: ClassVar = _composite_rules(LISTS, below=())
    composite_pod_group_templates: (
        Annotated[list[LowestComposite], Meta(max_length=8, extra_json_schema=_keyed_by("name"))]
        | UnsetType
    ) = UNSET


class TopComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template at the top of a tree."""

    composite_pod_group_templates: (
        Annotated[list[MiddleComposite], Meta(max_length=8, extra_json_schema=_keyed_by("name"))]
        | UnsetType
    ) = UNSET


class ControllerReference(Struct, rename="camel", kw_only=True):
    """The object the Workload was made for; a hint for tools."""

    api_group: Annotated[str, Meta(max_length=253)] | UnsetType = UNSET
    kind: Segment
    name: Segment


def _all_alike(field: str, default: str) -> Rule:
    """Compare the tops of the lists, of which each is like its children already."""
    each = [
        f"(!has(self.{name}) || self.{name}.all(t, {_or('t', field, default)}"
        f" == {_or(f'self.{name}[0]', field, default)}))"
        for name in LISTS
    ]
    return Rule(" && ".join(each), f"all templates of one Workload share one {field}")


class WorkloadSpec(Struct, rename="camel", kw_only=True):
    """Templates of one tree (or of flat groups); never consulted for a running group."""

    RULES: ClassVar = (
        Rule(
            f"({_size(LISTS[0])} > 0) != ({_size(LISTS[1])} > 0)",
            "set podGroupTemplates or compositePodGroupTemplates, not both, not neither",
        ),
        *_unique_names(below=LISTS),
        _all_alike("priorityClassName", "''"),
        _all_alike("priority", "0"),
        _frozen("controllerRef"),
        _same_names("podGroupTemplates"),
        _same_names("compositePodGroupTemplates"),
    )
    controller_ref: ControllerReference | UnsetType = UNSET
    pod_group_templates: (
        Annotated[list[PodGroupTemplate], Meta(max_length=8, extra_json_schema=_keyed_by("name"))]
        | UnsetType
    ) = UNSET
    composite_pod_group_templates: (
        Annotated[list[TopComposite], Meta(max_length=8, extra_json_schema=_keyed_by("name"))]
        | UnsetType
    ) = UNSET
