"""Which leaves the pods and Jobs of a workload use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec
from immutables import Map
from msgspec.structs import replace

from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.pods import Pod
from extender.core.workloads.kind_table import kind_of_pod, leaf_of_pod
from extender.core.workloads.kinds.job_kind import pods_at_once, remaining_pods
from extender.core.workloads.tree_parts import LeafUse
from extender.core.workloads.workload_kind import has_condition
from extender.core.workloads.workload_object import LEAF_LABEL, TREE_LABEL, WorkloadObject

Members = Map[PodUid, Pod]


class WorkloadName(msgspec.Struct, frozen=True, gc=False):
    """Kind, namespace and name of a workload."""

    kind: str
    namespace: str
    name: str


_Use = tuple[WorkloadName, LeafUse]


class LeafUses:
    """The leaves that pods with a tree label name, by workload; leaves without a change are not examined again."""

    def __init__(self) -> None:
        self._members: Map[GroupKey, Members] | None = None
        self._entries: dict[GroupKey, tuple[Members, tuple[_Use, ...]]] = {}
        self._by_workload: dict[WorkloadName, tuple[LeafUse, ...]] = {}

    def of(self, members: Map[GroupKey, Members]) -> Mapping[WorkloadName, tuple[LeafUse, ...]]:
        """Return the uses of all workloads, sorted by leaf; a use that did not change is the same object."""
        if members is self._members:
            return self._by_workload
        entries: dict[GroupKey, tuple[Members, tuple[_Use, ...]]] = {}
        by_workload: dict[WorkloadName, list[LeafUse]] = {}
        for key, pods in members.items():
            entry = self._entries.get(key)
            if entry is None or entry[0] is not pods:
                last = dict(entry[1]) if entry else {}
                entry = (pods, tuple(_uses(key, list(pods.values()), last)))
            entries[key] = entry
            for name, use in entry[1]:
                by_workload.setdefault(name, []).append(use)
        fresh = {}
        for name, uses in by_workload.items():
            now = tuple(sorted(uses, key=attrgetter("name")))
            before = self._by_workload.get(name)
            fresh[name] = before if before == now else now
        self._members, self._entries, self._by_workload = members, entries, fresh
        return fresh


def _uses(key: GroupKey, pods: list[Pod], before: Mapping[WorkloadName, LeafUse]) -> Iterator[_Use]:
    """Yield the workloads of a leaf's pods, and how they use it; nothing if they were not made from a workload.

    Two workloads use one leaf where their long names are cut to the same.
    """
    while pods:
        pod = min(pods, key=lambda p: (p.created_us, p.uid))
        kind = kind_of_pod(pod.labels) if TREE_LABEL in pod.labels else None
        if kind is None:
            return
        named = kind.name_in(pod.labels) or ""
        mine = [p for p in pods if kind.name_in(p.labels) == named]
        read = {LEAF_LABEL}
        for rule in kind.name_rules:
            read.update(rule.label_keys, (condition.key for condition in rule.when))
        use = LeafUse(
            name=key.name,
            pods=sum(not p.deleting for p in mine),
            labels={label: pod.labels[label] for label in sorted(read) if label in pod.labels},
        )
        workload = WorkloadName(kind.kind, key.namespace, named)
        yield workload, before[workload] if before.get(workload) == use else use
        if len(mine) == len(pods):
            return
        pods = [p for p in pods if kind.name_in(p.labels) != named]


def with_finished_pods(
    uses: Iterable[LeafUse], jobs: Iterable[WorkloadObject]
) -> tuple[LeafUse, ...]:
    """Return the uses with the pods that Jobs of the workload do not run any more.

    A Job that failed is not counted: what owns it makes it again, or ends as a whole.
    """
    finished: dict[str, int] = {}
    for job in jobs:
        template = job.spec.get("template") or {}
        leaf = leaf_of_pod((template.get("metadata") or {}).get("labels") or {})
        if leaf and not has_condition(job, "Failed"):
            done = pods_at_once(job.spec) - remaining_pods(job)
            finished[leaf] = finished.get(leaf, 0) + done
    by_leaf = {use.name: use for use in uses}
    for leaf, count in finished.items():
        if count:
            use = by_leaf.get(leaf, LeafUse(name=leaf))
            by_leaf[leaf] = replace(use, finished=count)
    return tuple(by_leaf[name] for name in sorted(by_leaf))
