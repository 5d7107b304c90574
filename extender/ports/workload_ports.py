"""Port to workload objects (Job, JobSet, ...) and the groups that are created for them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec
from immutables import Map

from extender.core.model.ids import GroupKey
from extender.core.workloads.admission_checks import (
    AdmissionCheck,
    CheckAnswer,
    Flavor,
    QueuedWorkload,
)
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_object import WorkloadObject


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads of a cluster at one instant: those with a tree label, on themselves or in a pod template."""

    objects: Map[str, WorkloadObject] = Map()  # by UID
    owned: Map[str, Map[str, WorkloadObject]] = Map()  # by the UID of the controlling owner
    profiles: Map[str, TreeProfile] = Map()  # by name
    # Workloads of users, by namespace and name
    templates: Map[tuple[str, str], WorkloadObject] = Map()
    synced: frozenset[str] = frozenset()  # kinds whose objects are all known
    # kinds that are not served in any version: there are no objects
    absent: frozenset[str] = frozenset()
    # kinds that are served and whose objects are not all known yet
    pending: frozenset[str] = frozenset()
    checks: Map[str, AdmissionCheck] = Map()  # of Kueue, with our controller name; by name
    queued: Map[str, QueuedWorkload] = Map()  # Workloads of Kueue that have quota, by UID
    flavors: Map[str, Flavor] = Map()  # of Kueue, by name
    revision: int = 0  # grows with each change


class GroupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A group to write, with the workload that owns it."""

    namespace: str
    spec: GroupSpec
    template_of: str  # workloadRef.workloadName, which all groups of a tree share; there need not be such a Workload
    profile: str
    owner_api_version: str
    owner_kind: str
    owner_name: str
    owner_uid: str
    # The stored group requires children and this one none: an empty list is applied, since a field that an apply leaves
    # out stays when it was written at the creation.
    clears_required: bool = False

    @property
    def key(self) -> GroupKey:
        """Return the key of the group."""
        return GroupKey(self.namespace, self.spec.name, self.spec.kind)


class GroupLink(msgspec.Struct, frozen=True, kw_only=True):
    """The composite above a group that another controller made."""

    key: GroupKey
    uid: str
    api_version: str
    parent: str  # name of a CompositePodGroup


class Workloads(Protocol):
    """The view of workloads, and the writes of their groups."""

    def view(self) -> WorkloadView:
        """Return the newest view; cheap, never waits."""

    def changed(self, revision: int) -> Awaitable[object]:
        """Wait until the revision of the view differs from `revision`."""

    async def create_group(self, group: GroupManifest) -> None:
        """Create a group; do nothing if one with its name exists.

        Raises:
            RequestRejected: The API server refuses it for good, or the namespace is being deleted.
        """

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Apply the fields of a group that exists; `uid` is a precondition, and a field without a value stays.

        Raises:
            RequestRejected: A field is immutable, or the API server refuses it for good.
            ClusterUnavailable: Try again later; also if it is gone or was recreated, which the view will show.
        """

    async def link_group(self, link: GroupLink) -> None:
        """Write the composite above a group of another controller on it; nothing else of it is changed.

        Raises:
            RequestRejected: The API server refuses it for good: a right is missing, or a webhook rejects it.
            ClusterUnavailable: Try again later; also if it is gone, was recreated, or another client wrote the parent.
        """

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group; `uid` is a precondition. A group that is gone is a success.

        Raises:
            ClusterUnavailable: Try again later; also if it was recreated, which the view will show.
        """


class AdmissionChecks(Protocol):
    """The checks of Kueue on a real API server, in the view of the workloads, and the answers."""

    def view(self) -> WorkloadView:
        """Return the newest view; cheap, never waits."""

    def changed(self, revision: int) -> Awaitable[object]:
        """Wait until the revision of the view differs from `revision`."""

    async def answer_check(self, queued: QueuedWorkload, check: str, answer: CheckAnswer) -> None:
        """Write the answer to a check of a Workload of Kueue, if that is still as in `queued`.

        Raises:
            ClusterUnavailable: Try again later; also if the Workload has changed or is gone, which the view will show.
        """

    async def activate_check(self, check: AdmissionCheck) -> None:
        """Write that an AdmissionCheck is answered."""
