"""Convert a TreeProfile of the API to the profile of the core."""

from __future__ import annotations

from extender.cluster import types as api
from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile


def profile_of(found: api.TreeProfile) -> TreeProfile:
    """Return the profile of the core.

    The rules of the CustomResourceDefinition are checked here too, for profiles that were read from a file.

    Raises:
        BadInput: A kind is unknown or there twice, or does not have the gang mode; names object, field and value.
    """
    kinds: dict[str, KindPolicy] = {}
    for index, one in enumerate(found.spec.kinds):
        field = f"{found.label}: spec.kinds[{index}]"
        kind = BY_KIND.get(one.kind)
        if kind is None:
            raise BadInput(f"{field}.kind: {one.kind!r} is none of {', '.join(BY_KIND)}")
        if one.kind in kinds:
            raise BadInput(f"{field}.kind: {one.kind!r} is there twice; write one entry per kind")
        if one.gang not in kind.gang_modes:
            modes = ", ".join(kind.gang_modes)
            raise BadInput(f"{field}.gang: {one.gang!r} is not for {one.kind}; it has {modes}")
        if one.native_groups != "Ignore" and kind.native_parts is None:
            able = ", ".join(name for name, one in BY_KIND.items() if one.native_parts is not None)
            text = f"{one.native_groups!r} is not for {one.kind}, whose controller makes no groups; it is for {able}"
            raise BadInput(f"{field}.nativeGroups: {text}")
        kinds[one.kind] = KindPolicy(
            enabled=one.enabled,
            gang=one.gang,
            root_topology=one.topology.root,
            leaf_topology=one.topology.leaf,
            disruption_mode=one.disruption_mode,
            native_groups=one.native_groups,
        )
    return TreeProfile(name=found.metadata.name, kinds=kinds)
