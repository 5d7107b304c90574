"""Create, change and delete the groups of workloads, as the committed state has them.

The keys of groups are in a work queue; what a key needs is decided when its turn comes, from the committed state and
the view of that moment. So a write that was lost, or a group that was deleted by hand, is written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.control.log.leader import Leader
from extender.core.decisions.trees.group_writes import (
    GroupWrite,
    Wanted,
    contested_groups,
    frozen_differences,
    group_write,
    is_blocked,
    is_taken,
    superfluous,
    wanted_groups,
)
from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group, composite_key
from extender.core.workloads.tree_compiler import GroupSpec
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import GroupManifest, Workloads

log = logging.getLogger(__name__)

WORKERS = 8
# A write that the view does not show after this time is made again: the group may have gone in between.
UNSEEN_S = 3.0
POLICY = RetryPolicy(first_s=0.2, max_s=30.0, after_failure="continue")


class GroupProblem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a group of a workload is not as it should be."""

    reason: str  # CamelCase, the reason of the Event
    message: str


class GroupController:
    """Writes the groups of workloads; no other code does."""

    def __init__(self, cluster: Cluster, workloads: Workloads, leader: Leader) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._leader = leader
        self._wanted: dict[GroupKey, Wanted] = {}
        self._contested: dict[str, GroupProblem] = {}  # by the UID of the workload
        self._seen: object = None  # the trees that `_wanted` was made of
        # What the view showed at the last write, and when that was, in seconds of the event loop.
        self._written: dict[GroupKey, tuple[Group | None, float]] = {}
        self._rejected: dict[GroupKey, GroupProblem] = {}
        self.problems: Mapping[str, tuple[GroupProblem, ...]] = {}  # by the UID of the workload
        self._queue: WorkQueue[GroupKey] = WorkQueue(
            "group writes", self._process, leader.until_may_act, workers=WORKERS, policy=POLICY
        )

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    def sync(self, trees: Mapping[str, WorkloadTree], owners: AbstractSet[str]) -> None:
        """Queue every group that differs from what the trees have.

        Args:
            trees: The committed trees, by the UID of the workload.
            owners: UIDs of owners whose groups may be deleted.
        """
        if trees is not self._seen:
            self._seen, self._wanted = trees, wanted_groups(trees.values())
            self._contested = dict(_contested(trees.values(), self._wanted))
        groups = self._cluster.view().groups
        for key in self._wanted:
            if self._write(key) is not None:
                self._queue.add(key)
        for key in superfluous(groups, self._wanted, owners):
            if self._write(key) is not None:
                self._queue.add(key)
        self._rejected = {key: one for key, one in self._rejected.items() if key in self._wanted}
        self.problems = self._problems(groups)

    def _write(self, key: GroupKey) -> GroupWrite | None:
        """Return the write that a group needs; None while the view does not show the last one yet."""
        group = self._cluster.view().groups.get(key)
        if key in self._written:
            seen, at_s = self._written[key]
            if seen is group and asyncio.get_running_loop().time() - at_s < UNSEEN_S:
                return None
            del self._written[key]
        wanted = self._wanted.get(key)
        if group is None and wanted is not None and self._is_blocked(key, wanted):
            return None
        return group_write(key, wanted, group)

    def _is_blocked(self, key: GroupKey, wanted: Wanted) -> bool:
        parent = composite_key(key.namespace, wanted.spec.parent)
        return is_blocked(self._cluster.view().groups.get(parent), self._wanted.get(parent))

    async def _process(self, key: GroupKey) -> Retry | None:
        write = self._write(key)
        if write is None:
            return None
        seen = self._cluster.view().groups.get(key)
        try:
            await self._execute(write, seen)
        except RequestRejected as error:
            self._rejected[key] = GroupProblem(reason="GroupRejected", message=str(error))
            log.warning("group of a workload rejected", extra={"error": str(error)})
            return Retry(POLICY.max_s)
        except ClusterUnavailable as error:
            log.warning("group of a workload not written yet", extra={"error": str(error)})
            return Retry(error.retry_after_s)
        self._rejected.pop(key, None)
        self._written[key] = (seen, asyncio.get_running_loop().time())
        return None

    async def _execute(self, write: GroupWrite, seen: Group | None) -> None:
        if write.action == "delete":
            await self._workloads.delete_group(write.key, write.uid)
            return
        assert write.spec is not None
        assert write.tree is not None
        manifest = self._manifest(write)
        if manifest is None:
            return
        if write.action == "create":
            await self._workloads.create_group(manifest)
        else:
            assert seen is not None
            await self._workloads.apply_group(_with_frozen_fields(manifest, seen), write.uid)

    def _manifest(self, write: GroupWrite) -> GroupManifest | None:
        """Return the group to write; None if its owner is gone."""
        assert write.spec is not None
        assert write.tree is not None
        owner = self._workloads.view().objects.get(write.tree.owner_uid)
        if owner is None or owner.deleting:
            return None
        return GroupManifest(
            namespace=owner.namespace,
            spec=write.spec,
            template_of=self._template_of(write.key.namespace, write.tree, write.spec),
            profile=write.tree.profile,
            owner_api_version=owner.api_version,
            owner_kind=owner.kind,
            owner_name=owner.name,
            owner_uid=owner.uid,
        )

    def _template_of(self, namespace: str, tree: WorkloadTree, spec: GroupSpec) -> str:
        """Return the name of the Workload that all groups of a tree reference (SPEC B8).

        A tree below a composite of the user's references the same one; another tree its root.
        """
        parents = {group.name: group.parent for group in tree.groups if group.kind != "PodGroup"}
        top = spec.name
        above = spec.parent
        while above in parents:
            top, above = above, parents[above]
        if not above:
            return top
        parent = self._cluster.view().groups.get(composite_key(namespace, above))
        return (parent.workload if parent is not None else None) or above

    def _problems(self, groups: Mapping[GroupKey, Group]) -> Mapping[str, tuple[GroupProblem, ...]]:
        found: dict[str, list[GroupProblem]] = {}
        for key, wanted in self._wanted.items():
            group = groups.get(key)
            problem = self._rejected.get(key)
            if group is not None:
                problem = _problem(wanted, group) or problem
            if problem is not None:
                found.setdefault(wanted.tree.uid, []).append(problem)
        for uid, contested in self._contested.items():
            found.setdefault(uid, []).append(contested)
        return {uid: tuple(problems) for uid, problems in found.items()}


def _contested(
    trees: Iterable[WorkloadTree], wanted: Mapping[GroupKey, Wanted]
) -> Iterator[tuple[str, GroupProblem]]:
    """Yield a problem, with the UID of the workload, for each tree whose group has the name of another tree's."""
    for tree, key in contested_groups(trees, wanted):
        other = wanted[key].tree
        text = (
            f"{key} is the group of {other.kind} {other.workload}, so pods of {tree.kind} {tree.workload} are in it too: "
            "give one of the workloads another name"
        )
        yield tree.uid, GroupProblem(reason="NameTaken", message=text)


def _problem(wanted: Wanted, group: Group) -> GroupProblem | None:
    if group.deleting:
        if not is_taken(wanted, group):
            return None
        text = (
            f"{group.key} was made for another object and is being deleted, which ends with the last of its pods; the "
            f"group of {wanted.tree.kind} {wanted.tree.workload} is created then: delete these pods to have it now"
        )
        return GroupProblem(reason="NameTaken", message=text)
    if is_taken(wanted, group):
        text = (
            f"{group.key} exists already and was not made for {wanted.tree.kind} {wanted.tree.workload}; "
            "it is not changed: delete it, or give the workload another name"
        )
        return GroupProblem(reason="NameTaken", message=text)
    fields = frozen_differences(wanted, group)
    if fields:
        text = (
            f"{group.key} keeps its {', '.join(fields)}: these fields are immutable; "
            f"delete {wanted.tree.kind} {wanted.tree.workload} and create it again to change them"
        )
        return GroupProblem(reason="ShapeChanged", message=text)
    return None


def _with_frozen_fields(manifest: GroupManifest, group: Group) -> GroupManifest:
    """Return a manifest that changes only what may change of a group: its minimum."""
    spec = msgspec.structs.replace(
        manifest.spec,
        parent=group.parent or "",
        basic=group.basic,
        topology=group.topology[0] if group.topology else "",
        disruption_mode=group.disruption_mode,
        priority_class=group.priority_class,
    )
    return msgspec.structs.replace(manifest, spec=spec)
