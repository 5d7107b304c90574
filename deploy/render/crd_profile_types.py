"""TreeProfile of `gang-extender.dev/v1alpha1`: fields, bounds, and rules in CEL.

Owns what an operator may store; `render_crds.py` renders it. What a profile means is in `core/workloads/tree_policy.py`,
and which kinds there are in `core/workloads/kind_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, get_args

from msgspec import Meta, Struct

from deploy.render.crd_group_types import (
    ATOMIC,
    OPTIONAL,
    Exclusive,
    LostMembersWord,
    PreferredKeys,
    Rule,
    Slices,
    Subdomain,
    TopologyKey,
    keyed_by,
    no_repetition,
    one_of,
)
from deploy.render.tree_policy_expressions import texts
from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.tree_policy import (
    LEVELS_MAX,
    NEAR_ENTRIES_MAX,
    Disruption,
    GangMode,
    NativeGroups,
    TopologySource,
)
from extender.core.workloads.workload_kind import WorkloadKind


def _only_for(
    field: str, holds: str, choice: str, has: Callable[[WorkloadKind], bool]
) -> Iterator[Rule]:
    """Yield the rule that a field is as `holds` but for some kinds, unless all kinds have the choice."""
    kinds = [kind.kind for kind in KINDS if has(kind)]
    if len(kinds) < len(KINDS):
        rule = f"!has(self.{field}) || self.{field} {holds} || self.kind in {texts(kinds)}"
        yield Rule(rule, f"{choice} is for {', '.join(kinds)}")


def _rules() -> Iterator[Rule]:
    for mode in get_args(GangMode):
        yield from _only_for(
            "gang", f"!= '{mode}'", f"gang {mode}", lambda kind, mode=mode: mode in kind.gang_modes
        )
    yield from _only_for(
        "nativeGroups",
        "== 'Ignore'",
        "nativeGroups Adopt",
        lambda kind: kind.native_parts is not None,
    )


BALANCED = "Equal shares over preferred domains, also over those that Grove or Kueue names; unset is false."
LEVELS = "Node labels, the narrowest first: a key that Grove or Kueue prefers is followed by those after it."
READ_FROM = Meta(
    max_length=4,
    description="Projects whose annotations of pod templates ask for a topology, too.",
    extra_json_schema={"x-kubernetes-list-type": "set"},
)
ROLE = "A role of the workloads, such as a ReplicatedJob; workloads without it have no such wish."
DISRUPTION = "Whether gangs are preempted whole; unset is all."
NATIVE = "Whether groups that the controller of a workload makes get a composite above them; unset is Ignore."


class ProfileTopology(Struct, rename="camel"):
    """Node labels: the whole tree, and each leaf with more than one pod, within one value."""

    RULES: ClassVar = (no_repetition("rootPreferred"), no_repetition("leafPreferred"))
    root: TopologyKey = OPTIONAL
    leaf: TopologyKey = OPTIONAL
    root_preferred: PreferredKeys = OPTIONAL
    leaf_preferred: PreferredKeys = OPTIONAL
    balanced: Annotated[bool, Meta(description=BALANCED)] = OPTIONAL
    slices: Slices = OPTIONAL
    levels: Annotated[
        list[TopologyKey],
        Meta(max_length=LEVELS_MAX, description=LEVELS, extra_json_schema=ATOMIC),
    ] = OPTIONAL
    read_from: Annotated[
        list[Annotated[str, one_of("A project.", *get_args(TopologySource))]], READ_FROM
    ] = OPTIONAL


class ProfileExclusive(Struct):
    """The domain that the whole tree, and each leaf with more than one pod, has alone."""

    root: Exclusive = OPTIONAL
    leaf: Exclusive = OPTIONAL


class ProfileNear(Struct):
    """As few pairs of pods as possible, one of each role, in different values of a node label."""

    RULES: ClassVar = (Rule("self.role != self.to", "to is the role itself; name another one"),)
    role: Annotated[Subdomain, Meta(description=ROLE)]
    to: Annotated[Subdomain, Meta(description="Another role of the same tree.")]
    key: TopologyKey


class KindProfile(Struct, rename="camel", kw_only=True):
    """How the trees of one kind of workload are made; a field that is not set has its default."""

    RULES: ClassVar = tuple(_rules())
    kind: Annotated[str, one_of("Kind of workload.", *BY_KIND)]
    enabled: Annotated[bool, Meta(description="Whether trees are made; unset is true.")] = OPTIONAL
    gang: Annotated[
        str, one_of("What is placed all or nothing; unset is all.", *get_args(GangMode))
    ] = OPTIONAL
    topology: ProfileTopology = OPTIONAL
    exclusive: ProfileExclusive = OPTIONAL
    near: Annotated[
        list[ProfileNear],
        Meta(max_length=NEAR_ENTRIES_MAX, extra_json_schema=keyed_by("role", "to", "key")),
    ] = OPTIONAL
    lost_members: LostMembersWord = OPTIONAL
    disruption_mode: Annotated[str, one_of(DISRUPTION, *get_args(Disruption))] = OPTIONAL
    native_groups: Annotated[str, one_of(NATIVE, *get_args(NativeGroups))] = OPTIONAL


class TreeProfileSpec(Struct):
    """The kinds that do not have the defaults."""

    kinds: Annotated[list[KindProfile], Meta(max_length=32, extra_json_schema=keyed_by("kind"))] = (
        OPTIONAL
    )
