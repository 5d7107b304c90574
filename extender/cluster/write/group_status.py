"""Write conditions into the status of groups, and their finalizers.

Owns the merge: conditions of other writers stay, ours are written only when they differ, and
`lastTransitionTime` changes only with `status`. A CRD has no strategic merge patch, so the whole list
is written, for CRDs and built-in kinds alike, with the resourceVersion of the list as a precondition.
The object is read first only if its conditions are not completely known, or another writer changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from extender.cluster.connection.api_client import MERGE_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.write.pod_writer import MESSAGE_MAX, fault_of, rfc3339
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.pod_groups import Group
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.ports.cluster_ports import Condition
from extender.ports.log_ports import Clock

PLURALS: Final = {"PodGroup": "podgroups", "CompositePodGroup": "compositepodgroups"}
TRIES_MAX = 4  # against other writers of the same status; there are few


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int | msgspec.UnsetType = msgspec.UNSET


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    generation: int = 0


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Stored(msgspec.Struct):
    metadata: _Meta
    status: _Status | None = None

    def conditions(self) -> list[_Condition]:
        """Return the conditions, none if nothing is written yet."""
        return (self.status.conditions if self.status else None) or []

    def as_tuples(self) -> list[tuple[str, str, str, str]]:
        """Return type, status, reason and message of each condition."""
        return [(c.type, c.status, c.reason, c.message) for c in self.conditions()]


def differing(
    stored: Sequence[tuple[str, str, str, str]], desired: Sequence[Condition]
) -> list[Condition]:
    """Return the desired conditions that are not stored, or stored differently."""
    have = {entry[0]: entry[1:] for entry in stored}
    return [
        condition
        for condition in desired
        if have.get(condition.type) != (condition.status, condition.reason, condition.message)
    ]


class GroupStatusWriter:
    """Writes the conditions of groups."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._objects: dict[str, _Stored] = {}  # UID -> object of our last write or read

    async def set_conditions(self, group: Group, conditions: Sequence[Condition]) -> None:
        """Merge conditions into the status of a group as the view knows it.

        Raises:
            RequestRejected: The group was deleted or recreated.
        """
        cut = [msgspec.structs.replace(c, message=c.message[:MESSAGE_MAX]) for c in conditions]
        if not differing(group.conditions, cut) and self._has_seen_our_write(group):
            return
        path = (
            f"/apis/{group.api_version}/namespaces/{group.key.namespace}"
            f"/{PLURALS[group.key.kind]}/{group.key.name}"
        )
        try:
            stored = self._last_stored(group)
            if stored is not None and not differing(stored.as_tuples(), cut):
                stored = None  # only a read of the object proves that nothing is to be written
            for _ in range(TRIES_MAX):
                stored = stored or await self._stored(Request(method="GET", path=path))
                if await self._merge(path, group, cut, stored):
                    return
                stored = None  # outdated
        except ApiResponse as refusal:
            raise fault_of(f"conditions of {group.key}", refusal) from refusal
        raise ClusterUnavailable(f"conditions of {group.key}: {TRIES_MAX} conflicts in a row")

    def forget(self, uids: set[str]) -> None:
        """Drop the known objects of groups that are not in `uids`."""
        for uid in self._objects.keys() - uids:
            del self._objects[uid]

    def _has_seen_our_write(self, group: Group) -> bool:
        """Return whether the view is at least as new as our last write; an older view proves nothing."""
        last = self._objects.get(group.uid)
        return last is None or not _newer(last.metadata.resource_version, group.resource_version)

    def _last_stored(self, group: Group) -> _Stored | None:
        """Return the object with its conditions, or None if it must be read; a stale one gives a conflict later."""
        last = self._objects.get(group.uid)
        if last is not None and not _newer(group.resource_version, last.metadata.resource_version):
            return last
        if group.conditions or not group.resource_version:
            return None  # a view has conditions without their times
        metadata = _Meta(
            uid=group.uid, resource_version=group.resource_version, generation=group.generation
        )
        return _Stored(metadata=metadata)

    async def _merge(
        self, path: str, group: Group, desired: Sequence[Condition], stored: _Stored
    ) -> bool:
        """Merge and write; return false if another writer has changed the object since."""
        if stored.metadata.uid != group.uid:
            raise RequestRejected(f"conditions of {group.key}: it was deleted and recreated")
        changed = differing(stored.as_tuples(), desired)
        if not changed:
            self._objects[group.uid] = stored
            return True
        body = {
            "metadata": {
                "uid": stored.metadata.uid,
                "resourceVersion": stored.metadata.resource_version,
            },
            "status": {"conditions": self._merged(stored, changed)},
        }
        try:
            written = await self._stored(
                Request(
                    method="PATCH",
                    path=f"{path}/status",
                    body=msgspec.json.encode(body),
                    content_type=MERGE_PATCH,
                    effect=True,
                )
            )
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.CONFLICT:
                return False
            raise
        self._objects[group.uid] = written
        return True

    async def _stored(self, request: Request) -> _Stored:
        body = await self._server.call(request)
        try:
            return msgspec.json.decode(body, type=_Stored)
        except msgspec.DecodeError as problem:
            raise ClusterUnavailable(f"{request.path}: {problem}") from problem

    def _merged(self, stored: _Stored, changed: Sequence[Condition]) -> list[_Condition]:
        """Return the stored conditions with the changed ones replaced in place and new ones at the end."""
        by_type = {condition.type: condition for condition in stored.conditions()}
        for condition in changed:
            before = by_type.get(condition.type)
            since = rfc3339(self._clock.now_us())
            if before is not None and before.status == condition.status:
                since = before.last_transition_time or since
            by_type[condition.type] = _Condition(
                type=condition.type,
                status=condition.status,
                last_transition_time=since,
                reason=condition.reason,
                message=condition.message,
                observed_generation=stored.metadata.generation or msgspec.UNSET,
            )
        return list(by_type.values())


def _newer(version: str, other: str) -> bool:
    """Return whether a resourceVersion is newer than another, or not comparable with it."""
    if not version.isdigit() or not other.isdigit():
        return version != other
    return int(version) > int(other)


OUR_GROUPS = "/apis/gang-extender.dev/v1alpha1/namespaces"


async def write_finalizers(server: ApiServer, change: FinalizerChange) -> None:
    """Replace the finalizers of a group.

    Raises:
        RequestRejected: The group was deleted or recreated, or the request is invalid.
        ClusterUnavailable: No answer, not allowed, or the group has changed since; try again later.
    """
    key, guard = change.group, change.guard
    body = {
        "metadata": {
            "uid": guard.uid,
            "resourceVersion": guard.resource_version,
            "finalizers": list(change.finalizers),
        }
    }
    request = Request(
        method="PATCH",
        path=f"{OUR_GROUPS}/{key.namespace}/{PLURALS[key.kind]}/{key.name}",
        body=msgspec.json.encode(body),
        content_type=MERGE_PATCH,
        effect=True,
    )
    try:
        await server.call(request)
    except ApiResponse as refusal:
        raise fault_of(f"finalizers of {key}", refusal) from refusal
