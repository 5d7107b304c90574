"""Which groups the controllers of workloads made themselves, by the workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from immutables import Map

from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.workloads.native.native_groups import NativeGroup


class NativeOwners:
    """The built-in PodGroups by their controlling owner; computed again only when the groups have changed."""

    def __init__(self) -> None:
        self._groups: Map[GroupKey, Group] | None = None
        self._by_owner: dict[str, tuple[NativeGroup, ...]] = {}

    def of(self, groups: Map[GroupKey, Group]) -> Mapping[str, tuple[NativeGroup, ...]]:
        """Return the groups by the UID of their owner, sorted by name; what did not change is the same object.

        Groups that are being deleted are left out.
        """
        if groups is not self._groups:
            by_owner: dict[str, list[NativeGroup]] = {}
            for key, group in groups.items():
                if is_native(group) and not group.deleting:
                    native = NativeGroup(name=key.name, template=group.template or "")
                    by_owner.setdefault(group.owner_uid, []).append(native)
            fresh = {}
            for uid, several in by_owner.items():
                now, before = tuple(sorted(several, key=_by_name)), self._by_owner.get(uid)
                fresh[uid] = before if before == now else now
            self._groups, self._by_owner = groups, fresh
        return self._by_owner


def is_native(group: Group) -> bool:
    """Return whether a group is a built-in PodGroup that a controller made."""
    return bool(group.source == "builtin" and group.owner_uid and group.key.kind == "PodGroup")


def native_groups_of(
    by_owner: Mapping[str, tuple[NativeGroup, ...]], owners: Iterable[str]
) -> tuple[NativeGroup, ...]:
    """Return the groups of a workload, sorted by name.

    Args:
        owners: UIDs of the workload and of the objects that it owns.
    """
    owned = [group for uid in owners for group in by_owner.get(uid, ())]
    return tuple(sorted(owned, key=_by_name))


def _by_name(group: NativeGroup) -> str:
    return group.name
