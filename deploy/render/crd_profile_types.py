"""TreeProfile of `gang-extender.dev/v1alpha1`: fields, bounds, and rules in CEL.

Owns what an operator may store; `render_crds.py` renders it. What a profile means is in `core/workloads/tree_policy.py`,
and which kinds there are in `core/workloads/kind_table.py`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from deploy.render.crd_group_types import (
    LOST_MEMBERS,
    Exclusive,
    PreferredKeys,
    Rule,
    Slices,
    Subdomain,
    TopologyKey,
    keyed_by,
    no_repetition,
)
from extender.core.model.nodes import LostMembers
from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.tree_policy import (
    LEVELS_MAX,
    NEAR_ENTRIES_MAX,
    GangMode,
    NativeGroups,
    TopologySource,
)
from extender.core.workloads.tree_policy import Disruption as DisruptionWord


def _one_of(description: str, *words: str) -> Meta:
    longest = max(map(len, words))
    return Meta(
        max_length=longest, description=description, extra_json_schema={"enum": list(words)}
    )


def _rules_of_modes() -> tuple[Rule, ...]:
    """Return a rule for each gang mode that not all kinds have."""
    rules = []
    for mode in get_args(GangMode):
        kinds = [kind.kind for kind in KINDS if mode in kind.gang_modes]
        if len(kinds) < len(KINDS):
            listed = ", ".join(f"'{kind}'" for kind in kinds)
            rule = f"!has(self.gang) || self.gang != '{mode}' || self.kind in [{listed}]"
            rules.append(Rule(rule, f"gang {mode} is for {', '.join(kinds)}"))
    return tuple(rules)


def _rules_of_native_groups() -> tuple[Rule, ...]:
    """Return the rule that groups are adopted only of kinds whose controllers make groups."""
    kinds = [kind.kind for kind in KINDS if kind.native_parts is not None]
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    rule = f"!has(self.nativeGroups) || self.nativeGroups == 'Ignore' || self.kind in [{listed}]"
    return (Rule(rule, f"nativeGroups Adopt is for {', '.join(kinds)}"),)


class ProfileTopology(Struct, rename="camel"):
    """Node labels: the whole tree, and each leaf with more than one pod, within one value."""

    RULES: ClassVar = (no_repetition("rootPreferred"), no_repetition("leafPreferred"))
    root: TopologyKey | UnsetType = UNSET
    leaf: TopologyKey | UnsetType = UNSET
    root_preferred: PreferredKeys | UnsetType = UNSET
    leaf_preferred: PreferredKeys | UnsetType = UNSET
    balanced: (
        Annotated[
            bool,
            Meta(
                description="Equal shares over preferred domains, also over those that Grove or Kueue names; unset is false."
            ),
        ]
        | UnsetType
    ) = UNSET
    slices: Slices | UnsetType = UNSET
    levels: (
        Annotated[
            list[TopologyKey],
            Meta(
                max_length=LEVELS_MAX,
                description="Node labels, the narrowest first: a key that Grove or Kueue prefers is followed by those after it.",
                extra_json_schema={"x-kubernetes-list-type": "atomic"},
            ),
        ]
        | UnsetType
    ) = UNSET
    read_from: (
        Annotated[
            list[Annotated[str, _one_of("A project.", *get_args(TopologySource))]],
            Meta(
                max_length=4,
                description="Projects whose annotations of pod templates ask for a topology, too.",
                extra_json_schema={"x-kubernetes-list-type": "set"},
            ),
        ]
        | UnsetType
    ) = UNSET


class ProfileExclusive(Struct):
    """The domain that the whole tree, and each leaf with more than one pod, has alone."""

    root: Exclusive | UnsetType = UNSET
    leaf: Exclusive | UnsetType = UNSET


class ProfileNear(Struct):
    """As few pairs of pods as possible, one of each role, in different values of a node label."""

    RULES: ClassVar = (Rule("self.role != self.to", "to is the role itself; name another one"),)
    role: Annotated[
        Subdomain,
        Meta(
            description="A role of the workloads, such as a ReplicatedJob; workloads without it have no such wish."
        ),
    ]
    to: Annotated[Subdomain, Meta(description="Another role of the same tree.")]
    key: TopologyKey


class KindProfile(Struct, rename="camel", kw_only=True):
    """How the trees of one kind of workload are made; a field that is not set has its default."""

    RULES: ClassVar = (*_rules_of_modes(), *_rules_of_native_groups())
    kind: Annotated[str, _one_of("Kind of workload.", *BY_KIND)]
    enabled: (
        Annotated[bool, Meta(description="Whether trees are made; unset is true.")] | UnsetType
    ) = UNSET
    gang: (
        Annotated[str, _one_of("What is placed all or nothing; unset is all.", *get_args(GangMode))]
        | UnsetType
    ) = UNSET
    topology: ProfileTopology | UnsetType = UNSET
    exclusive: ProfileExclusive | UnsetType = UNSET
    near: (
        Annotated[
            list[ProfileNear],
            Meta(
                max_length=NEAR_ENTRIES_MAX,
                extra_json_schema={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["role", "to", "key"],
                },
            ),
        ]
        | UnsetType
    ) = UNSET
    lost_members: (
        Annotated[
            str,
            _one_of(f"{LOST_MEMBERS}.", *get_args(LostMembers)),
        ]
        | UnsetType
    ) = UNSET
    disruption_mode: (
        Annotated[
            str,
            _one_of("Whether gangs are preempted whole; unset is all.", *get_args(DisruptionWord)),
        ]
        | UnsetType
    ) = UNSET
    native_groups: (
        Annotated[
            str,
            _one_of(
                "Whether groups that the controller of a workload makes get a composite above them; unset is Ignore.",
                *get_args(NativeGroups),
            ),
        ]
        | UnsetType
    ) = UNSET


class TreeProfileSpec(Struct):
    """The kinds that do not have the defaults."""

    kinds: (
        Annotated[list[KindProfile], Meta(max_length=32, extra_json_schema=keyed_by("kind"))]
        | UnsetType
    ) = UNSET
