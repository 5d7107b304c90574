"""Write conditions into the status of groups.

Owns the merge: conditions of others stay, ours are written only when they differ, and
`lastTransitionTime` moves only with `status`. Works on our CRDs and on every version of the
built-in kinds alike, so it writes the whole list under the resourceVersion that the list is known
from: a CRD knows no strategic merge. The object is read only where its conditions are not known as a
whole, or somebody else wrote since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec

from extender.cluster.connection.api_client import MERGE_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.write.pod_writer import fault_of
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.pod_groups import Group
from extender.ports.protocols import Clock, Condition

PLURALS: Final = {"PodGroup": "podgroups", "CompositePodGroup": "compositepodgroups"}
TRIES_MAX = 4  # against other writers of the same status; there are few
MESSAGE_MAX = 32768  # of a condition, in every version


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
        """Give the conditions, none where nothing is written yet."""
        return (self.status.conditions if self.status else None) or []

    def said(self) -> list[tuple[str, str, str, str]]:
        """Give type, status, reason and message of each."""
        return [(c.type, c.status, c.reason, c.message) for c in self.conditions()]


def rfc3339(at_us: int, *, micro: bool = False) -> str:
    """Write an instant as the API does."""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def differing(
    stored: Sequence[tuple[str, str, str, str]], wanted: Sequence[Condition]
) -> list[Condition]:
    """Give the wanted conditions that are not stored like that."""
    have = {entry[0]: entry[1:] for entry in stored}
    return [
        condition
        for condition in wanted
        if have.get(condition.type) != (condition.status, condition.reason, condition.message)
    ]


class GroupStatusWriter:
    """Conditions of groups."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._known: dict[str, _Stored] = {}  # UID -> as our last write or look found it

    async def set_conditions(self, group: Group, conditions: Sequence[Condition]) -> None:
        """Merge conditions into the status of a group as the view knows it.

        Raises:
            BindRefused: The group is gone or was made again.
            ClusterUnavailable: Try again later.
        """
        cut = [msgspec.structs.replace(c, message=c.message[:MESSAGE_MAX]) for c in conditions]
        if not differing(group.conditions, cut) and self._has_seen_our_write(group):
            return
        path = (
            f"/apis/{group.api_version}/namespaces/{group.key.namespace}"
            f"/{PLURALS[group.key.kind]}/{group.key.name}"
        )
        try:
            stored = self._as_known(group)
            if stored is not None and not differing(stored.said(), cut):
                stored = None  # that nothing is to be done takes more than memory
            for _ in range(TRIES_MAX):
                stored = stored or await self._stored(Request(method="GET", path=path))
                if await self._merge(path, group, cut, stored):
                    return
                stored = None  # it is not so any more
        except ApiResponse as refusal:
            raise fault_of(f"conditions of {group.key}", refusal) from refusal
        raise ClusterUnavailable(f"conditions of {group.key}: {TRIES_MAX} conflicts in a row")

    def forget(self, uids: set[str]) -> None:
        """Drop what is remembered of groups that are not in `uids`."""
        for uid in self._known.keys() - uids:
            del self._known[uid]

    def _has_seen_our_write(self, group: Group) -> bool:
        """Say whether the view is as new as what we wrote; otherwise it proves nothing."""
        known = self._known.get(group.uid)
        return known is None or not _newer(known.metadata.resource_version, group.resource_version)

    def _as_known(self, group: Group) -> _Stored | None:
        """Give the object as far as conditions go, if it need not be read; a conflict tells when it is not so."""
        known = self._known.get(group.uid)
        if known is not None and not _newer(
            group.resource_version, known.metadata.resource_version
        ):
            return known
        if group.conditions or not group.resource_version:
            return None  # a view has conditions without their times
        seen = _Meta(
            uid=group.uid,
            resource_version=group.resource_version,
            generation=group.generation,
        )
        return _Stored(metadata=seen)

    async def _merge(
        self, path: str, group: Group, wanted: Sequence[Condition], stored: _Stored
    ) -> bool:
        """Merge, write; false when somebody else wrote since."""
        if stored.metadata.uid != group.uid:
            raise RequestRejected(f"conditions of {group.key}: it was deleted and made again")
        changed = differing(stored.said(), wanted)
        if not changed:
            self._known[group.uid] = stored
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
        self._known[group.uid] = written
        return True

    async def _stored(self, request: Request) -> _Stored:
        body = await self._server.call(request)
        try:
            return msgspec.json.decode(body, type=_Stored)
        except msgspec.DecodeError as problem:
            raise ClusterUnavailable(f"{request.path}: {problem}") from problem

    def _merged(self, stored: _Stored, changed: Sequence[Condition]) -> list[_Condition]:
        """Put changed conditions in their places; new ones at the end."""
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


def _newer(one: str, other: str) -> bool:
    """Say whether a resourceVersion is not known to be as old as another, or older."""
    if not one.isdigit() or not other.isdigit():
        return one != other
    return int(one) > int(other)
