"""Convert a TreeProfile of the API to the profile of the core."""

from __future__ import annotations

from extender.cluster import types as api
from extender.cluster.types.group_types import ExclusiveEntry
from extender.core.model.errors import BadInput
from extender.core.model.pod_groups import PREFERRED_MAX, ExclusiveDomain
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import LEVELS_MAX, KindPolicy, TreeProfile, is_label_key

_NO_POD_SETS = ("DisaggregatedSet", "PodGang")


def profile_of(profile: api.TreeProfile) -> TreeProfile:
    """Return the profile of the core.

    The rules of the CustomResourceDefinition are checked here too, for profiles that were read from a file.

    Raises:
        BadInput: A kind is unknown or there twice, or does not have the gang mode; names object, field and value.
    """
    kinds: dict[str, KindPolicy] = {}
    for index, entry in enumerate(profile.spec.kinds):
        field = f"{profile.label}: spec.kinds[{index}]"
        kind = BY_KIND.get(entry.kind)
        if kind is None:
            raise BadInput(f"{field}.kind: {entry.kind!r} is none of {', '.join(BY_KIND)}")
        if entry.kind in kinds:
            raise BadInput(f"{field}.kind: {entry.kind!r} is there twice; write one entry per kind")
        if entry.gang not in kind.gang_modes:
            modes = ", ".join(kind.gang_modes)
            raise BadInput(f"{field}.gang: {entry.gang!r} is not for {entry.kind}; it has {modes}")
        if entry.native_groups != "Ignore" and kind.native_parts is None:
            able = ", ".join(
                name for name, other_kind in BY_KIND.items() if other_kind.native_parts is not None
            )
            text = f"{entry.native_groups!r} is not for {entry.kind}, whose controller makes no groups; it is for {able}"
            raise BadInput(f"{field}.nativeGroups: {text}")
        if entry.topology.read_from and entry.kind in _NO_POD_SETS:
            text = f"{entry.topology.read_from[0]!r} is not for {entry.kind}, of which Kueue reads no topology"
            raise BadInput(f"{field}.topology.readFrom: {text}; leave it out")
        kinds[entry.kind] = KindPolicy(
            enabled=entry.enabled,
            gang=entry.gang,
            root_topology=entry.topology.root,
            leaf_topology=entry.topology.leaf,
            root_preferred=_keys(f"{field}.topology.rootPreferred", entry.topology.root_preferred),
            leaf_preferred=_keys(f"{field}.topology.leafPreferred", entry.topology.leaf_preferred),
            levels=_keys(f"{field}.topology.levels", entry.topology.levels, LEVELS_MAX),
            read_topology=entry.topology.read_from,
            root_exclusive=_exclusive(f"{field}.exclusive.root.key", entry.exclusive.root),
            leaf_exclusive=_exclusive(f"{field}.exclusive.leaf.key", entry.exclusive.leaf),
            lost_members=entry.lost_members,
            disruption_mode=entry.disruption_mode,
            native_groups=entry.native_groups,
        )
    return TreeProfile(name=profile.metadata.name, kinds=kinds)


def _exclusive(field: str, entry: ExclusiveEntry | None) -> ExclusiveDomain | None:
    if entry is None:
        return None
    if not is_label_key(entry.key):
        raise BadInput(f"{field}: {entry.key!r} is not the key of a node label, such as net/rack")
    return ExclusiveDomain(entry.key, entry.scope, entry.resource)


def _keys(field: str, keys: tuple[str, ...], most: int = PREFERRED_MAX) -> tuple[str, ...]:
    for key in keys:
        if not is_label_key(key):
            raise BadInput(f"{field}: {key!r} is not the key of a node label, such as net/rack")
    if len(keys) > most:
        raise BadInput(f"{field}: {len(keys)} keys, at most {most}; leave out the widest")
    if len({*keys}) < len(keys):
        text = f"{', '.join(keys)} has a key twice; name each once, the narrowest first"
        raise BadInput(f"{field}: {text}")
    return keys
