"""Show users what became of their workloads: Events on the workload, and the reason in the condition of pods that wait.

Everything is in the log already; this only repeats it where users look. An Event is written when its text is new.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.control.log.leader import Leader
from extender.core.log.events import NoticeRecord
from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import PodUid
from extender.core.model.message_formatting import counted
from extender.core.model.object_identity import same_objects
from extender.core.model.pod_groups import leaf_key
from extender.core.model.pods import GATE, Pod
from extender.core.trees.leaves_in_use import WorkloadName
from extender.core.trees.tree_events import unused_label
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS
from extender.core.workloads.native_groups import NativeGroup
from extender.core.workloads.tree_parts import LeafUse
from extender.core.workloads.workload_kind import Notice
from extender.core.workloads.workload_object import WorkloadObject
from extender.ports.cluster_ports import Cluster, K8sEvent, PodRef
from extender.ports.workload_ports import WorkloadView
from extender.runtime.periodic import ObjectFaults

POLICY = RetryPolicy(first_s=1.0, max_s=60.0, after_failure="continue")
POD_WORKERS = 4


class WorkloadNotifier:
    """Writes Events about workloads, and the PodScheduled condition of their pods while no tree can be made."""

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        self._noticed: dict[str, tuple[K8sEvent, ...]] = {}  # by the UID of the workload
        self._shown: dict[str, tuple[object, ...]] = {}  # what `_noticed` was made of
        self._pods: dict[PodUid, tuple[Pod, str]] = {}  # that wait, and why
        self._explained: dict[PodUid, str] = {}
        self._faults: ObjectFaults[str] = ObjectFaults("workload events")
        self._events: WorkQueue[K8sEvent] = WorkQueue(
            "workload events", self._notice, leader.until_may_act, workers=1, policy=POLICY
        )
        self._conditions: WorkQueue[PodUid] = WorkQueue(
            "pod explanations", self._explain, leader.until_may_act, workers=POD_WORKERS, policy=POLICY
        )  # fmt: skip

    async def run(self) -> None:
        """Write until cancelled."""
        await asyncio.gather(self._events.run(), self._conditions.run())

    def sync(
        self,
        view: WorkloadView,
        trees: Mapping[str, WorkloadTree],
        uses: Mapping[WorkloadName, tuple[LeafUse, ...]],
        native: Mapping[str, tuple[NativeGroup, ...]],
        problems: Mapping[str, tuple[Notice, ...]],
    ) -> None:
        """Queue what is new.

        Args:
            native: The groups that other controllers made, by the UID of the owner.
        """
        for uid, workload in view.objects.items():
            if workload.kind == PLAIN_PODS.kind:
                continue  # there is no object to write an Event about; its pods have the text
            shown = (workload, trees.get(uid), view.owned.get(uid), problems.get(uid, ()))
            if uid in self._shown and same_objects(self._shown[uid], shown):
                continue
            report = functools.partial(self._report, *shown)
            name = f"{workload.kind}/{workload.namespace}/{workload.name}"
            if self._faults.attempt(name, report):
                self._shown[uid] = shown
        for uid in [uid for uid in self._shown if uid not in view.objects]:
            del self._shown[uid]
            self._noticed.pop(uid, None)
        self._pods = dict(self._waiting(view, trees, uses, native))
        for uid, (_, message) in self._pods.items():
            if self._explained.get(uid) != message:
                self._conditions.add(uid)
        self._explained = {
            uid: message for uid, message in self._explained.items() if uid in self._pods
        }

    def _report(
        self,
        workload: WorkloadObject,
        tree: WorkloadTree | None,
        owned: Mapping[str, WorkloadObject] | None,
        problems: tuple[Notice, ...],
    ) -> None:
        """Queue the Events about one workload that it did not have before."""
        if tree is not None:
            events = tuple(_events(workload, tree, problems))
        else:
            unused = unused_label(workload, owned.values() if owned else ())
            events = (_event(workload, unused, warning=True),) if unused else ()
        before = self._noticed.pop(workload.uid, ())
        for event in events:
            if event not in before:
                self._events.add(event)
        if events:
            self._noticed[workload.uid] = events

    def _waiting(
        self,
        view: WorkloadView,
        trees: Mapping[str, WorkloadTree],
        uses: Mapping[WorkloadName, tuple[LeafUse, ...]],
        native: Mapping[str, tuple[NativeGroup, ...]],
    ) -> Iterator[tuple[PodUid, tuple[Pod, str]]]:
        """Yield the gated pods of refused workloads, with the reason."""
        members = self._cluster.view().members
        for tree in trees.values():
            workload = view.objects.get(tree.uid)
            if tree.outcome != "refused" or workload is None:
                continue
            name = WorkloadName(workload.kind, workload.namespace, workload.name)
            leaves = [use.name for use in uses.get(name, ())]
            leaves += [group.name for group in native.get(workload.uid, ())]
            for leaf in leaves:
                for pod in members.get(leaf_key(workload.namespace, leaf), {}).values():
                    if GATE in pod.gates and not pod.deleting:
                        yield pod.uid, (pod, tree.message)

    async def _notice(self, event: K8sEvent) -> Retry | None:
        await self._cluster.notice(event)
        return None

    async def _explain(self, uid: PodUid) -> Retry | None:
        if uid in self._pods:
            pod, message = self._pods[uid]
            try:
                await self._cluster.explain_waiting(PodRef.at(pod.path, uid), message)
                self._explained[uid] = message
            except RequestRejected:  # deleted or recreated: the informer will show it
                return None
            except ClusterUnavailable as error:
                return Retry(error.retry_after_s)
        return None


def _events(
    workload: WorkloadObject, tree: WorkloadTree, problems: tuple[Notice, ...]
) -> Iterator[K8sEvent]:
    if tree.reason:
        yield _event(workload, Notice(reason=tree.reason, message=tree.message), warning=True)
    for notice in tree.notices:
        yield _event(workload, notice, warning=False)
    for problem in problems:
        yield _event(workload, problem, warning=True)
    if tree.outcome == "compiled":
        roots = [group.name for group in tree.groups if not group.parent]
        roots += [group.name for group in tree.adopted if not group.parent]
        if roots:
            count = len(tree.groups) + len(tree.adopted)
            text = f"{counted(count, 'group')}, roots: {', '.join(roots[:3])}"
            yield _event(workload, Notice(reason="TreeCompiled", message=text), warning=False)


def _event(workload: WorkloadObject, notice: Notice | NoticeRecord, *, warning: bool) -> K8sEvent:
    return K8sEvent(
        kind=workload.kind,
        api_version=workload.api_version,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
        reason=notice.reason,
        message=notice.message,
        warning=warning,
        action="Compile",
    )
