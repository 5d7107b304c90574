"""Create, change and delete the groups of workloads, as the committed state has them.

The keys of groups are in a work queue; what a key needs is decided when its turn comes, from the committed state and
the view of that moment. So a write that was lost, or a group that was deleted by hand, is written again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from immutables import Map
from msgspec.structs import replace

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.control.log.leader import Leader
from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted
from extender.core.model.object_identity import changed_keys
from extender.core.model.pod_groups import Group, composite_key
from extender.core.trees.group_writes import (
    GroupWrite,
    Link,
    Wanted,
    WantedGroups,
    frozen_differences,
    group_write,
    is_blocked,
    is_taken,
    link_write,
    may_delete,
    wanted_links,
)
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS, PlainPodGroups, plain_uid
from extender.core.workloads.tree_compiler import GroupSpec, constraint_fields
from extender.core.workloads.workload_kind import Notice
from extender.core.workloads.workload_object import WorkloadObject
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import GroupLink, GroupManifest, Workloads
from extender.runtime.periodic import ObjectFaults

# --- what is wrong with groups


def by_workload(
    problem_of: Mapping[GroupKey, Mapping[str, Notice]],
) -> Mapping[str, tuple[Notice, ...]]:
    """Return the problems by the UID of the workload: one of each reason, with the number of other groups that have it."""
    messages: dict[str, dict[str, list[str]]] = {}
    for key in sorted(problem_of, key=str):
        for uid, problem in problem_of[key].items():
            messages.setdefault(uid, {}).setdefault(problem.reason, []).append(problem.message)
    return {
        uid: tuple(
            Notice(
                reason=reason,
                message=f"{text} (and {counted(len(others), 'other group')})" if others else text,
            )
            for reason, (text, *others) in reasons.items()
        )
        for uid, reasons in messages.items()
    }


def contested_problem(key: GroupKey, tree: WorkloadTree, other: WorkloadTree) -> Notice:
    """Return the problem of a tree whose group has the name of another tree's group."""
    text = (
        f"{key} is the group of {other.kind} {other.workload}, so pods of {tree.kind} {tree.workload} are in it too: "
        "give one of the workloads another name"
    )
    return Notice(reason="NameTaken", message=text)


def group_problem(desired: Wanted, group: Group) -> Notice | None:
    """Return the problem of a wanted group, when this is the group that has its name; None: there is none."""
    workload = f"{desired.tree.kind} {desired.tree.workload}"
    if is_taken(desired, group):
        text = f"{group.key} exists already and was not made for {workload}; it is not changed: delete it, or give the workload another name"
        if group.deleting:
            text = (
                f"{group.key} was made for another object and is being deleted, which ends with the last of its pods; the "
                f"group of {workload} is created then: delete these pods to have it now"
            )
        return Notice(reason="NameTaken", message=text)
    if group.deleting or not (fields := frozen_differences(desired.spec, group)):
        return None
    text = (
        f"{group.key} keeps its {', '.join(fields)}: these fields are immutable; "
        f"delete {workload} and create it again to change them"
    )
    return Notice(reason="ShapeChanged", message=text)


def link_problem(link: Link, group: Group) -> Notice | None:
    """Return the problem of an adopted group that should be below a composite; None: there is none."""
    if group.source != "builtin":
        text = (
            f"{group.key} of gang-extender.dev hides the group of the same name that was made for "
            f"{link.tree.kind} {link.tree.workload}; delete it"
        )
        return Notice(reason="NameTaken", message=text)
    if group.parent in (None, link.parent):
        return None
    text = (
        f"{group.key} is below {group.parent} and not below {link.parent}; its parent is not changed: delete "
        f"{link.tree.kind} {link.tree.workload} and create it again, or remove what names {group.parent}"
    )
    return Notice(reason="ShapeChanged", message=text)


log = logging.getLogger(__name__)

WORKERS = 8
# A write that the view does not show after this time is made again: the group may have gone in between.
UNSEEN_S = 3.0
POLICY = RetryPolicy(first_s=0.2, max_s=30.0, after_failure="continue")


class GroupController:
    """Writes the groups of workloads; no other code does."""

    def __init__(
        self, cluster: Cluster, workloads: Workloads, leader: Leader, plain: PlainPodGroups
    ) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._plain = plain
        self._leader = leader
        self._desired = WantedGroups()
        self._links: Mapping[GroupKey, Link] = {}
        self._trees_of_links: object = None  # the trees that the links are of
        self._groups: Map[GroupKey, Group] = Map()  # of the view that was looked at last
        self._owners: AbstractSet[str] = frozenset()
        # compared again by the next `sync` although nothing changed: the owner is not known, the parent is being deleted, or
        # the API server rejected the write
        self._to_recheck: set[GroupKey] = set()
        self._problem_of: dict[GroupKey, dict[str, Notice]] = {}  # by the UID of the workload
        # What the view showed at the last write, and when that was, in seconds of the event loop.
        self._written: dict[GroupKey, tuple[Group | None, float]] = {}
        self._rejections: dict[GroupKey, Notice] = {}
        self._faults: ObjectFaults[GroupKey] = ObjectFaults("group writes")
        self.problems: Mapping[str, tuple[Notice, ...]] = {}  # by the UID of the workload
        self._queue: WorkQueue[GroupKey] = WorkQueue(
            "group writes", self._process, leader.until_may_act, workers=WORKERS, policy=POLICY
        )
        self.run = self._queue.run

    def sync(self, trees: Mapping[str, WorkloadTree], owners: AbstractSet[str]) -> None:
        """Queue every group that differs from what the trees have.

        Args:
            owners: UIDs of owners whose groups may be deleted.
        """
        groups = self._cluster.view().groups
        due = self._desired.update(trees) | self._to_recheck | self._written.keys()
        due.update(changed_keys(self._groups, groups))
        if trees is not self._trees_of_links:
            due.update(self._links)
            self._links, self._trees_of_links = wanted_links(trees.values()), trees
            due.update(self._links)
        if owners != self._owners:
            changed = owners ^ self._owners
            due.update(key for key, group in groups.items() if may_delete(group, changed))
        self._groups, self._owners, self._to_recheck = groups, owners, set()
        for key in sorted(due, key=str):
            if not self._faults.attempt(key, functools.partial(self._look_at, key)):
                self._to_recheck.add(key)

    def _look_at(self, key: GroupKey) -> None:
        """Queue a group if it differs from what the trees have."""
        group = self._groups.get(key)
        is_desired = key in self._links or self._desired.of(key)
        if is_desired or (group is not None and self._may_delete(group)):
            if self._write(key) is not None:
                self._queue.add(key)
        else:
            self._rejections.pop(key, None)
            self._written.pop(key, None)
        self._note_problems(key, group)

    def _may_delete(self, group: Group) -> bool:
        """Return whether a group that no tree has is deleted; of plain pods no owner is left that a collector looks for."""
        key = group.key
        is_plain = group.owner_uid == plain_uid(key.namespace, key.name)
        without_pods = is_plain and group.owner_uid not in self._plain.objects
        return may_delete(group, {group.owner_uid} if without_pods else self._owners)

    def _write(self, key: GroupKey) -> GroupWrite | None:
        """Return the write that a group needs; None while the view does not show the last one yet, or without its owner."""
        group = self._cluster.view().groups.get(key)
        if key in self._written:
            previous, at_s = self._written[key]
            if previous is group and asyncio.get_running_loop().time() - at_s < UNSEEN_S:
                return None
            del self._written[key]
        link = self._links.get(key)
        if link is not None:
            return link_write(key, link, group)
        desired = self._desired.get(key, group)
        write = group_write(key, desired, group)
        if write is None or desired is None:
            return write
        if self._owner(desired.tree) is None or (group is None and self._is_blocked(key, desired)):
            self._to_recheck.add(key)
            return None
        return write

    def _is_blocked(self, key: GroupKey, desired: Wanted) -> bool:
        parent = composite_key(key.namespace, desired.spec.parent)
        own = any(of_parent.tree is desired.tree for of_parent in self._desired.of(parent))
        return is_blocked(desired, self._cluster.view().groups.get(parent), own=own)

    async def _process(self, key: GroupKey) -> Retry | None:
        write = self._write(key)
        if write is None:
            return None
        group = self._cluster.view().groups.get(key)
        try:
            await self._execute(write, group)
        except RequestRejected as error:
            self._rejections[key] = Notice(reason="GroupRejected", message=str(error))
            self._to_recheck.add(key)
            log.warning("group of a workload rejected", extra={"error": str(error)})
            return Retry(POLICY.max_s)
        except ClusterUnavailable as error:
            log.warning("group of a workload not written yet", extra={"error": str(error)})
            return Retry(error.retry_after_s)
        if self._rejections.pop(key, None) is not None:
            self._to_recheck.add(key)
        self._written[key] = (group, asyncio.get_running_loop().time())
        return None

    async def _execute(self, write: GroupWrite, existing: Group | None) -> None:
        if write.action == "delete":
            await self._workloads.delete_group(write.key, write.uid)
            return
        if write.action == "link":
            assert existing is not None
            link = GroupLink(
                key=write.key, uid=write.uid, api_version=existing.api_version, parent=write.parent
            )
            await self._workloads.link_group(link)
            return
        assert write.spec is not None
        assert write.tree is not None
        manifest = self._manifest(write.key.namespace, write.tree, write.spec)
        if write.action == "create":
            await self._workloads.create_group(manifest)
        else:
            assert existing is not None
            clears = bool(existing.required) and not write.spec.required
            manifest = replace(manifest, clears_required=clears)
            await self._workloads.apply_group(_with_frozen_fields(manifest, existing), write.uid)

    def _owner(self, tree: WorkloadTree) -> WorkloadObject | None:
        """Return the owner of the groups of a tree; None: it is gone, or its kind is switched off or not served."""
        plain = tree.kind == PLAIN_PODS.kind
        objects = self._plain.objects if plain else self._workloads.view().objects
        owner = objects.get(tree.owner_uid)
        return None if owner is None or owner.deleting else owner

    def _manifest(self, namespace: str, tree: WorkloadTree, spec: GroupSpec) -> GroupManifest:
        owner = self._owner(tree)
        assert owner is not None, "looked up when the write was decided"
        return GroupManifest(
            namespace=namespace,
            spec=spec,
            template_of=self._template_of(namespace, tree, spec),
            profile=tree.profile,
            owner_api_version=owner.api_version,
            owner_kind=owner.kind,
            owner_name=owner.name,
            owner_uid=owner.uid,
        )

    def _template_of(self, namespace: str, tree: WorkloadTree, spec: GroupSpec) -> str:
        """Return the name of the Workload that all groups of a tree reference (B8).

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

    def _note_problems(self, key: GroupKey, group: Group | None) -> None:
        problems: dict[str, Notice] = {}
        link = self._links.get(key)
        if link is not None:
            problem = self._rejections.get(key)
            if group is not None and not group.deleting:
                problem = link_problem(link, group) or problem
            if problem is not None:
                problems[link.tree.uid] = problem
        chosen = self._desired.get(key, group)
        for desired in self._desired.of(key):
            problem = self._rejections.get(key)
            if chosen is not None and desired is not chosen:
                problem = contested_problem(key, desired.tree, chosen.tree)
            elif group is not None:
                problem = group_problem(desired, group) or problem
            if problem is not None:
                problems[desired.tree.uid] = problem
        if problems != self._problem_of.pop(key, {}):
            self.problems = by_workload(self._problem_of | ({key: problems} if problems else {}))
        if problems:
            self._problem_of[key] = problems


def _with_frozen_fields(manifest: GroupManifest, group: Group) -> GroupManifest:
    """Return a manifest that changes only what may change of a group: its minimum."""
    spec = replace(
        manifest.spec,
        parent=group.parent or "",
        basic=group.basic,
        **constraint_fields(group.constraints),
        disruption_mode=group.disruption_mode,
        priority_class=group.priority_class,
    )
    return replace(manifest, spec=spec)
