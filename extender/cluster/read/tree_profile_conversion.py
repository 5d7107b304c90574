"""Convert a TreeProfile of the API to the profile of the core."""

from __future__ import annotations

from extender.cluster import types as api
from extender.cluster.types import ExclusiveEntry, ProfileNear, SliceEntry
from extender.core.model.errors import BadInput
from extender.core.model.scheduling_constraints import (
    PREFERRED_MAX,
    ExclusiveDomain,
    SliceLevel,
    by_size,
    slices_problem,
)
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import (
    LEVELS_MAX,
    NEAR_ENTRIES_MAX,
    KindPolicy,
    NearRole,
    TreeProfile,
    is_label_key,
    near_problem,
)

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
            root_topology=_key(f"{field}.topology.root", entry.topology.root or None),
            leaf_topology=_key(f"{field}.topology.leaf", entry.topology.leaf or None),
            root_preferred=_keys(f"{field}.topology.rootPreferred", entry.topology.root_preferred),
            leaf_preferred=_keys(f"{field}.topology.leafPreferred", entry.topology.leaf_preferred),
            balanced=entry.topology.balanced,
            slices=_slices(f"{field}.topology.slices", entry.topology.slices),
            levels=_keys(f"{field}.topology.levels", entry.topology.levels, LEVELS_MAX),
            read_topology=entry.topology.read_from,
            root_exclusive=_exclusive(f"{field}.exclusive.root.key", entry.exclusive.root),
            leaf_exclusive=_exclusive(f"{field}.exclusive.leaf.key", entry.exclusive.leaf),
            near=_near(f"{field}.near", entry.near),
            lost_members=entry.lost_members,
            disruption_mode=entry.disruption_mode,
            native_groups=entry.native_groups,
        )
    return TreeProfile(name=profile.metadata.name, kinds=kinds)


def _key(field: str, key: str | None, example: str = "net/rack") -> str:
    """Return a key of a node label; empty for None, which is none."""
    if key is not None and not is_label_key(key):
        raise BadInput(f"{field}: {key!r} is not the key of a node label, such as {example}")
    return key or ""


def _exclusive(field: str, entry: ExclusiveEntry | None) -> ExclusiveDomain | None:
    if entry is None:
        return None
    return ExclusiveDomain(_key(field, entry.key), entry.scope, entry.resource)


def _slices(field: str, entries: tuple[SliceEntry, ...]) -> tuple[SliceLevel, ...]:
    levels = tuple(SliceLevel(_key(field, entry.key), entry.size) for entry in entries)
    if problem := slices_problem(levels):
        raise BadInput(f"{field}: {problem}")
    return by_size(levels)


def _near(field: str, entries: tuple[ProfileNear, ...]) -> tuple[NearRole, ...]:
    if len(entries) > NEAR_ENTRIES_MAX:
        raise BadInput(
            f"{field}: {len(entries)} entries, at most {NEAR_ENTRIES_MAX}; leave out the last"
        )
    for n, entry in enumerate(entries):
        for name, role in (("role", entry.role), ("to", entry.to)):
            if not role:
                text = "is empty; name a role of the workloads, such as a ReplicatedJob"
                raise BadInput(f"{field}[{n}].{name}: {text}")
        if entry.role == entry.to:
            raise BadInput(f"{field}[{n}].to: {entry.to!r} is the role itself; name another one")
        _key(f"{field}[{n}].key", entry.key, "net/block")
    wishes = tuple(NearRole(entry.role, entry.to, entry.key) for entry in entries)
    if problem := near_problem(wishes):
        raise BadInput(f"{field}: {problem}")
    return wishes


def _keys(field: str, keys: tuple[str, ...], most: int = PREFERRED_MAX) -> tuple[str, ...]:
    for key in keys:
        _key(field, key)
    if len(keys) > most:
        raise BadInput(f"{field}: {len(keys)} keys, at most {most}; leave out the widest")
    if len({*keys}) < len(keys):
        text = f"{', '.join(keys)} has a key twice; name each once, the narrowest first"
        raise BadInput(f"{field}: {text}")
    return keys
