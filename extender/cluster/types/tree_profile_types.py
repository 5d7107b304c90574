"""TreeProfiles, which operators write and the label gang-extender.dev/tree names."""

from __future__ import annotations

from extender.cluster.types.common_types import KubernetesObject, Part
from extender.cluster.types.group_types import ExclusiveEntry, SliceEntry
from extender.core.model.scheduling_constraints import LostMembers
from extender.core.workloads.tree_policy import Disruption, GangMode, NativeGroups, TopologySource


class ProfileTopology(Part, frozen=True, kw_only=True):
    """Node labels of the domain of the whole tree, and of each leaf; preferred ones are narrowest first."""

    root: str = ""
    leaf: str = ""
    root_preferred: tuple[str, ...] = ()
    leaf_preferred: tuple[str, ...] = ()
    balanced: bool = False
    slices: tuple[SliceEntry, ...] = ()
    levels: tuple[str, ...] = ()
    read_from: tuple[TopologySource, ...] = ()


class ProfileExclusive(Part, frozen=True, kw_only=True):
    """The domains that the whole tree, and each leaf, have alone."""

    root: ExclusiveEntry | None = None
    leaf: ExclusiveEntry | None = None


class ProfileNear(Part, frozen=True, kw_only=True):
    """Two roles of a workload, and the node label of which both should have the same domain."""

    role: str = ""
    to: str = ""
    key: str = ""


class KindProfile(Part, frozen=True, kw_only=True):
    """How the trees of one kind of workload are made."""

    kind: str
    enabled: bool = True
    gang: GangMode = "all"
    topology: ProfileTopology = ProfileTopology()
    exclusive: ProfileExclusive = ProfileExclusive()
    near: tuple[ProfileNear, ...] = ()
    lost_members: LostMembers = "Wait"
    disruption_mode: Disruption = "all"
    native_groups: NativeGroups = "Ignore"


class TreeProfileSpec(Part, frozen=True, kw_only=True):
    """The kinds that do not have the defaults."""

    kinds: tuple[KindProfile, ...] = ()


class TreeProfile(KubernetesObject, frozen=True, kw_only=True):
    """A TreeProfile."""

    spec: TreeProfileSpec = TreeProfileSpec()
