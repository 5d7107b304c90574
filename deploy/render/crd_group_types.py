"""The kinds of `gang-extender.dev/v1alpha1`: fields, bounds, and rules in CEL.

Owns what a user may store; `render_crds.py` renders it as CustomResourceDefinitions. The field names are
those of the built-in `scheduling.k8s.io` kinds, so that a manifest moves between the API groups by its
`apiVersion` alone. The service does not decode these types: it reads groups of both API groups with
`object_decoding.py`, which accepts more than an API server does.

Numbers E01 to E14: docs/reference/groups.md. Rules about several objects (E08: the class exists; E15: the parent
is not being deleted; values that two objects must share) are checked at runtime (`core/model/pod_groups.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, get_args

from msgspec import UNSET, Meta, Struct

from extender.core.model.nodes import (
    NEAR_MAX,
    PREFERRED_MAX,
    SLICES_MAX,
    ExclusiveScope,
    LostMembers,
)
from extender.core.model.pod_groups import CHILDREN_MAX

LABEL_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)
SEGMENT_PATTERN = r"^[^/%]+$"
PRIORITY_MAX = 1_000_000_000  # higher values are reserved for system classes
OPTIONAL: Any = (
    UNSET  # as default: the field need not be there; types are rendered, and have no instances
)
ATOMIC = {"x-kubernetes-list-type": "atomic"}


class Rule(Struct, frozen=True):
    """A rule in CEL and the message for the user if it is violated."""

    rule: str
    message: str


def _exactly_one(first: str, second: str) -> Rule:
    return Rule(
        f"has(self.{first}) != has(self.{second})", f"choose exactly one of {first}, {second}"
    )


def frozen(field: str, *, reason: str = "recreate the object") -> Rule:
    """Return the rule that a field is not changed, added or removed.

    It uses `has`, because the cost estimate of an API server does not know the size of an optional.
    """
    same = f"has(self.{field}) == has(oldSelf.{field})"
    rule = f"{same} && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(rule, f"{field} is immutable; {reason}")


def keyed_by(*fields: str) -> dict[str, object]:
    """Return the schema of a list with one item per value of some fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*fields]}


def one_of(description: str | None, *words: str) -> Meta:
    """Return the schema of a field that has one of these words."""
    longest = max(map(len, words))
    return Meta(max_length=longest, description=description, extra_json_schema={"enum": [*words]})


Label = Annotated[str, Meta(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
Subdomain = Annotated[str, Meta(min_length=1, max_length=253, pattern=SUBDOMAIN_PATTERN)]
Segment = Annotated[str, Meta(min_length=1, max_length=253, pattern=SEGMENT_PATTERN)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Priority = Annotated[int, Meta(ge=-(2**31), le=PRIORITY_MAX, extra_json_schema={"format": "int32"})]
PREEMPTION = "Whether the tree may preempt others; unset is PreemptLowerPriority."
PreemptionPolicy = Annotated[str, one_of(PREEMPTION, "Never", "PreemptLowerPriority")]


class Empty(Struct):
    """Selected by being set; it has no fields."""


class GangPolicy(Struct, rename="camel"):
    """All or nothing: no pod is bound before `minCount` pods can be bound."""

    min_count: Annotated[Count, Meta(description="Least pods to run together; may be changed.")]


class CompositeGangPolicy(Struct, rename="camel"):
    """All or nothing: nothing is bound before `minGroupCount` children can have their minimum."""

    RULES: ClassVar = (
        Rule(
            "!has(self.requiredGroups) || size(self.requiredGroups) <= self.minGroupCount",
            "requiredGroups count towards minGroupCount, so it is at least their number",
        ),
    )
    min_group_count: Annotated[
        Count, Meta(description="Least child groups to run together; may be changed.")
    ]
    required_groups: Annotated[
        list[Subdomain],
        Meta(
            max_length=CHILDREN_MAX,
            description="Names of child groups that are always among them, such as the head of a cluster; may be changed.",
            # as a whole: a set would keep names that an apply leaves out, because another write had made them
            extra_json_schema=ATOMIC,
        ),
    ] = OPTIONAL


_NOT_SWITCHED = Rule(
    "has(self.gang) == has(oldSelf.gang)",
    "basic and gang cannot be switched; recreate the object",
)


class LeafPolicy(Struct, rename="camel"):
    """Exactly one of basic (pods on their own) and gang."""

    RULES: ClassVar = (_exactly_one("basic", "gang"), _NOT_SWITCHED)
    basic: Empty = OPTIONAL
    gang: GangPolicy = OPTIONAL


class CompositePolicy(Struct, rename="camel"):
    """Exactly one of basic (children on their own) and gang."""

    RULES: ClassVar = (_exactly_one("basic", "gang"), _NOT_SWITCHED)
    basic: Empty = OPTIONAL
    gang: CompositeGangPolicy = OPTIONAL


TopologyKey = Annotated[str, Meta(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
PreferredKeys = Annotated[
    list[TopologyKey],
    Meta(
        max_length=PREFERRED_MAX,
        description="Node labels, the narrowest first: the whole group within one value of the first that can be.",
        # the order counts: the items of a set could be put into another one
        extra_json_schema=ATOMIC,
    ),
]


def no_repetition(field: str) -> Rule:
    """Return the rule that a list of preferred keys has each once."""
    rule = (
        f"!has(self.{field}) || self.{field}.all(key, self.{field}.exists_one(other, other == key))"
    )
    return Rule(rule, f"{field} has a key twice; name each once, the narrowest first")


class TopologyConstraint(Struct):
    """Keep the whole group within one value of a node label."""

    key: TopologyKey


SCOPE = "Which other trees: of the same TreeProfile, of the namespace, or all; unset is Profile."
RESOURCE = "Nor pods that request this resource, whether they belong to a tree or not."


class Exclusive(Struct):
    """Keep the whole group within one value of a node label that no other tree of the scope has pods in."""

    key: TopologyKey
    scope: Annotated[str, one_of(SCOPE, *get_args(ExclusiveScope))] = OPTIONAL
    resource: Annotated[TopologyKey, Meta(description=RESOURCE)] = OPTIONAL


class Near(Struct):
    """As few pairs of pods as possible, one of each group, in different values of a node label."""

    group: Annotated[
        Subdomain,
        Meta(description="Name of a group of the same tree, neither above nor below this one."),
    ]
    key: TopologyKey


class Slice(Struct):
    """Each so many pods, by their rank, within one value of a node label."""

    size: Count
    key: TopologyKey


Slices = Annotated[
    list[Slice],
    Meta(
        max_length=SLICES_MAX,
        description="Each so many pods of a leaf in one domain; each size is a multiple of the next smaller one.",
        extra_json_schema=keyed_by("key"),
    ),
]


LOST_MEMBERS_TEXT = (
    "What becomes of a running gang when no node of the required domain can take its lost members: they wait, "
    "the key becomes a preferred one, or the gang is evicted to be placed anew; unset is Wait."
)
LostMembersWord = Annotated[str, one_of(LOST_MEMBERS_TEXT, *get_args(LostMembers))]
BALANCED = (
    "In the fewest domains of the first preferred key, shares as equal as can be; unset is false."
)


class Constraints(Struct, rename="camel"):
    """Constraints on the nodes of the whole group; `preferred`, `balanced` and `near` are wishes, which refuse no placement."""

    RULES: ClassVar = (
        no_repetition("preferred"),
        Rule(
            "!has(self.balanced) || !self.balanced || has(self.preferred)",
            "balanced needs preferred: it is about the shares of preferred domains",
        ),
    )
    topology: Annotated[list[TopologyConstraint], Meta(max_length=1, extra_json_schema=ATOMIC)] = (
        OPTIONAL
    )
    preferred: PreferredKeys = OPTIONAL
    balanced: Annotated[bool, Meta(description=BALANCED)] = OPTIONAL
    exclusive: Exclusive = OPTIONAL
    # each pair once; a rule in CEL would be above the cost that an API server allows below three lists of templates
    near: Annotated[
        list[Near], Meta(max_length=NEAR_MAX, extra_json_schema=keyed_by("group", "key"))
    ] = OPTIONAL
    lost_members: LostMembersWord = OPTIONAL


class LeafConstraints(Constraints):
    """Constraints on the nodes of the whole group, and of its slices; `preferred`, `balanced` and `near` are wishes, which refuse no placement."""

    slices: Slices = OPTIONAL


class Disruption(Struct):
    """Exactly one of single (the default) and all: whether pods are preempted one by one or together."""

    RULES: ClassVar = (_exactly_one("single", "all"),)
    single: Empty = OPTIONAL
    all: Empty = OPTIONAL


class ResourceClaim(Struct, rename="camel"):
    """A claim that all pods of the group share."""

    RULES: ClassVar = (_exactly_one("resourceClaimName", "resourceClaimTemplateName"),)
    name: Label
    resource_claim_name: Subdomain = OPTIONAL
    resource_claim_template_name: Subdomain = OPTIONAL


class WorkloadReference(Struct, rename="camel"):
    """The template from which the group was created; the Workload need not exist."""

    workload_name: Subdomain
    template_name: Label


class Condition(Struct, rename="camel"):
    """A condition, as in other Kubernetes objects."""

    type: Annotated[str, Meta(max_length=316)]
    status: Annotated[str, one_of(None, "True", "False", "Unknown")]
    last_transition_time: Annotated[
        str, Meta(max_length=64, extra_json_schema={"format": "date-time"})
    ]
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    message: Annotated[str, Meta(max_length=32768)]
    observed_generation: Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})] = (
        OPTIONAL
    )


ClaimList = Annotated[list[ResourceClaim], Meta(max_length=4, extra_json_schema=keyed_by("name"))]
ConditionList = Annotated[list[Condition], Meta(max_length=32, extra_json_schema=keyed_by("type"))]


class Policies(Struct, rename="camel", kw_only=True):
    """The fields that leaves and composites, groups and templates share."""

    scheduling_constraints: Constraints = OPTIONAL
    disruption_mode: Disruption = OPTIONAL
    priority_class_name: Subdomain = OPTIONAL
    priority: Annotated[Priority, Meta(description="Normally unset: the value of the class.")] = (
        OPTIONAL
    )
    preemption_policy: PreemptionPolicy = OPTIONAL


FROZEN_POLICIES = tuple(
    frozen(field)
    for field in (
        "schedulingConstraints",
        "disruptionMode",
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    )
)
FROZEN_REFERENCES = (frozen("parentCompositePodGroupName"), frozen("workloadRef"))
PARENT = Annotated[
    Subdomain, Meta(description="CompositePodGroup in this namespace; unset: this is a root.")
]


class PodGroupSpec(Policies, rename="camel", kw_only=True):
    """A leaf group of pods; all but `minCount` is frozen."""

    RULES: ClassVar = (
        Rule(
            "!has(self.parentCompositePodGroupName) || has(self.workloadRef)",
            "workloadRef is required with parentCompositePodGroupName",
        ),
        *FROZEN_REFERENCES,
        frozen("resourceClaims"),
        *FROZEN_POLICIES,
    )
    parent_composite_pod_group_name: PARENT = OPTIONAL
    workload_ref: WorkloadReference = OPTIONAL
    scheduling_policy: LeafPolicy
    scheduling_constraints: LeafConstraints = OPTIONAL
    resource_claims: ClaimList = OPTIONAL


class CompositePodGroupSpec(Policies, rename="camel", kw_only=True):
    """A group of groups; all but `minGroupCount` and `requiredGroups` is frozen."""

    RULES: ClassVar = (*FROZEN_REFERENCES, *FROZEN_POLICIES)
    parent_composite_pod_group_name: PARENT = OPTIONAL
    workload_ref: WorkloadReference
    scheduling_policy: CompositePolicy


class GroupStatus(Struct):
    """The status of the group, written by the extender."""

    conditions: ConditionList = OPTIONAL
