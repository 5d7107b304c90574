"""Record what workloads become, and have the groups written that follow from it.

The leader compiles each workload again when the workload, its profile, its owner, or what its pods and Jobs use has
changed. A result that differs from the recorded one is appended to the log with its input; the groups are written
afterwards, from the committed state (`group_controller`). So a restart at any moment ends in the same groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from immutables import Map
from msgspec.structs import replace

from extender.control.log.leader import Leader
from extender.control.trees.group_controller import GroupController
from extender.control.trees.workload_notifier import WorkloadNotifier
from extender.core.log.events import EventSource, RetireReason
from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.errors import ClusterUnavailable, NotLeading, StoreUnavailable
from extender.core.model.ids import NIL_GANG
from extender.core.model.object_identity import same_objects
from extender.core.model.pod_groups import Group
from extender.core.planner.plan_types import DecisionInput
from extender.core.trees.leaves_in_use import LeafUses, WorkloadName, with_finished_pods
from extender.core.trees.tree_events import (
    TreeEvent,
    compile_request,
    decide_tree,
    profile_name,
    retire,
    with_native_groups,
)
from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.kinds.job_kind import JOB
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS, PlainPodGroups
from extender.core.workloads.native_groups import (
    NativeGroup,
    NativeOwners,
    adopts,
    is_native,
    native_groups_of,
)
from extender.core.workloads.tree_parts import LeafUse
from extender.core.workloads.tree_policy import profile_of_name
from extender.core.workloads.workload_object import (
    TEMPLATES_KIND,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
)
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import DecisionInputs
from extender.ports.workload_ports import Workloads, WorkloadView
from extender.runtime.periodic import ObjectFaults
from extender.runtime.wakeup import first_of
from extender.settings import Settings

log = logging.getLogger(__name__)

TICK_S = 1.0
SETTLE_S = 0.05  # changes come in bursts, and a tree is compiled once for all of them
SLICE = 128  # workloads compiled before other tasks run
_NO_OBJECTS: Map[str, WorkloadObject] = Map()


class _Reading(msgspec.Struct, frozen=True):
    """What follows from a workload alone, so that it changes only with the workload."""

    workload: WorkloadObject
    profile: str
    retire_reason: RetireReason | None


class TreeController:
    """Compiles workloads and records the results."""

    def __init__(
        self,
        cluster: Cluster,
        workloads: Workloads,
        leader: Leader,
        inputs: DecisionInputs,
        settings: Settings,
    ) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._leader = leader
        self._inputs = inputs
        self._settings = settings
        self._uses = LeafUses()
        self._native = NativeOwners()
        self._compiled: dict[str, tuple[object, ...]] = {}  # from what, by the UID of the workload
        self._readings: dict[str, _Reading] = {}  # by the UID of the workload
        self._faults: ObjectFaults[str] = ObjectFaults("trees")
        self._terms = -1  # of the leader, when `_compiled` was filled
        self._plain = PlainPodGroups()
        self.groups = GroupController(cluster, workloads, leader, self._plain)
        self.notifier = WorkloadNotifier(cluster, leader)

    async def run(self) -> None:
        """Work on each change of workloads, pods, groups or state; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.groups.run(), name="group writes")
            tasks.create_task(self.notifier.run(), name="workload messages")
            tasks.create_task(self._work(), name="tree controller")

    async def _work(self) -> None:
        while True:
            revisions = (self._workloads.view().revision, self._cluster.view().revision)
            state = self._leader.wakeup.revision
            try:
                with self._faults.alone("all workloads"):
                    if self._may_record():
                        await self.look()
                if self._faults.waits("all workloads"):
                    await asyncio.sleep(self._faults.pause_s("all workloads"))
            except (NotLeading, StoreUnavailable, ClusterUnavailable) as error:
                log.warning("trees not recorded", extra={"error": str(error)})
                await asyncio.sleep(0.2)
            await first_of(
                self._workloads.changed(revisions[0]),
                self._cluster.changed(revisions[1]),
                self._leader.wakeup.wait(state),
                timeout_s=TICK_S,
            )
            await asyncio.sleep(SETTLE_S)

    def _may_record(self) -> bool:
        reason = self._leader.recovery_reason or self._cluster.not_ready_reason()
        return self._leader.may_record() and not reason

    async def look(self) -> None:
        """Compile what has changed, record the results, and queue the writes that follow."""
        if self._terms != self._leader.terms:
            self._compiled, self._terms = {}, self._leader.terms
        view = self._with_plain_pods(self._workloads.view())
        if not view.objects and not self._leader.pending_state.trees:
            return
        uses = self._uses.of(self._cluster.view().members)
        for uid in [uid for uid in self._readings if uid not in view.objects]:
            del self._readings[uid]
            self._compiled.pop(uid, None)
        # the order in which they reach the log: that of a Map follows the hash seed
        ordered = map(view.objects.__getitem__, sorted(view.objects))
        due = [workload for workload in ordered if self._is_root(workload)]
        for start in range(0, len(due), SLICE):
            await self._record(self._decided(view, due[start : start + SLICE], uses))
        await self._record(self._retired(view))
        self._sync(view, uses)

    def _with_plain_pods(self, view: WorkloadView) -> WorkloadView:
        """Return the workloads with the groups of plain pods, all of which are known: the cluster is ready."""
        plain = self._plain.of(self._cluster.view().members)
        objects = view.objects.update(plain) if plain else view.objects
        return replace(view, objects=objects, synced=view.synced | {PLAIN_PODS.kind})

    def _is_root(self, workload: WorkloadObject) -> bool:
        """Return whether trees are made from a workload itself, not from its owner."""
        kind = BY_KIND[workload.kind]
        return kind.parts is not None and not kind.is_part(workload)

    # --- decisions

    def _decided(
        self,
        view: WorkloadView,
        workloads: Iterable[WorkloadObject],
        uses: Mapping[WorkloadName, tuple[LeafUse, ...]],
    ) -> Iterator[tuple[TreeEvent, bytes]]:
        """Yield the events of workloads that have changed, with their inputs."""
        trees = self._leader.pending_state.trees
        native = self._native.of(self._cluster.view().groups)
        for workload in workloads:
            name = _name_of(workload)
            if not self._faults.waits(name):
                decided = None
                with self._faults.alone(name):
                    decided = self._decide(view, workload, uses, trees, native)
                if decided is not None:
                    yield decided

    def _decide(
        self,
        view: WorkloadView,
        workload: WorkloadObject,
        uses: Mapping[WorkloadName, tuple[LeafUse, ...]],
        trees: Mapping[str, WorkloadTree],
        native: Mapping[str, tuple[NativeGroup, ...]],
    ) -> tuple[TreeEvent, bytes] | None:
        """Return the event of a workload with its input, or None if it has not changed or waits."""
        kind, before = BY_KIND[workload.kind], trees.get(workload.uid)
        reading = self._read(workload)
        name, reason = reading.profile, reading.retire_reason
        if before is not None and before.adopted:
            # Its composites stay, because groups of another controller are below them: it does not retire because its
            # label is gone, nor when it has finished while it has groups.
            if reason == "opted-out" or (reason == "finished" and before.groups):
                reason = None
            name = name or before.profile
        if reason:
            return (retire(before, reason), b"") if before is not None else None
        if name not in view.profiles and "TreeProfile" not in view.synced:
            return None
        # whose annotations count, and that owns the groups; None: the workload itself
        named = kind.policy_owner(workload)
        owner = view.objects.get(named.uid) if named is not None else None
        if named and owner is None and named.kind in view.synced | view.pending:
            return None  # it is not known yet
        owned = view.owned.get(workload.uid, _NO_OBJECTS)
        used = uses.get(WorkloadName(workload.kind, workload.namespace, workload.name), ())
        template_name = (owner or workload).annotations.get(WORKLOAD_ANNOTATION, "")
        if JOB.kind in view.pending or (template_name and TEMPLATES_KIND in view.pending):
            return None
        templates = view.templates.get((workload.namespace, template_name))
        native_groups = native.get(workload.uid, ()), *(native.get(uid, ()) for uid in owned)
        inputs = (workload, owner, view.profiles, used, owned, before, templates, *native_groups)
        last = self._compiled.get(workload.uid)
        if last is not None and same_objects(inputs, last):
            return None
        jobs = [job for job in owned.values() if job.kind == JOB.kind]
        request = compile_request(
            workload,
            owner=owner,
            name=name,
            profiles=view.profiles,
            uses=with_finished_pods(used, jobs),
            before=before,
            templates=templates,
        )
        made_by_others = native_groups_of(native, (workload.uid, *owned))
        event, encoded = decide_tree(with_native_groups(request, made_by_others), before)
        self._compiled[workload.uid] = inputs
        return (event, encoded) if event is not None else None

    def _read(self, workload: WorkloadObject) -> _Reading:
        reading = self._readings.get(workload.uid)
        if reading is None or reading.workload is not workload:
            kind = BY_KIND[workload.kind]
            name = profile_name(kind, workload)
            reason: RetireReason | None = None if name else "opted-out"
            if workload.deleting:
                reason = "deleted"
            elif kind.finished(workload):
                reason = "finished"
            reading = self._readings[workload.uid] = _Reading(workload, name, reason)
        return reading

    def _retired(self, view: WorkloadView) -> Iterator[tuple[TreeEvent, bytes]]:
        """Yield an event for each recorded workload that is gone."""
        trees = self._leader.pending_state.trees
        for uid in sorted(uid for uid in trees if uid not in view.objects):
            tree = trees[uid]
            if tree.kind in view.synced or tree.kind in view.absent:
                yield retire(tree, "deleted"), b""

    async def _record(self, decided: Iterable[tuple[TreeEvent, bytes]]) -> None:
        """Append events after their inputs; nothing is awaited between the decisions and the append."""
        decisions = list(decided)
        if not decisions:
            return
        source = EventSource(actor=self._settings.identity, cause="")
        drafts = [source.draft(NIL_GANG, "", event) for event, _ in decisions]
        heads = [encoded for _, encoded in decisions if encoded]

        async def save() -> None:  # at once: the store writes those that wait together
            await asyncio.gather(*(self._inputs.save(DecisionInput.of(head)) for head in heads))

        await self._leader.append_nowait(drafts, save if heads else None)

    # --- what follows

    def _sync(self, view: WorkloadView, uses: Mapping[WorkloadName, tuple[LeafUse, ...]]) -> None:
        """Queue the writes of groups, and the messages to users, from the committed state."""
        trees = self._leader.committed.trees
        owners = self._settled_owners(view, trees)
        native = self._native.of(self._cluster.view().groups)
        self._faults.attempt("group writes", lambda: self.groups.sync(trees, owners))
        self._faults.attempt(
            "workload messages",
            lambda: self.notifier.sync(view, trees, uses, native, self.groups.problems),
        )

    def _settled_owners(
        self, view: WorkloadView, trees: Mapping[str, WorkloadTree]
    ) -> frozenset[str]:
        """Return the owners of groups whose workloads are all recorded as they are now, by UID.

        Groups of the others stay: their workload is refused, or it was not compiled since the log lost events.
        """
        settled: set[str] = set()
        unsettled: set[str] = set()
        for workload in filter(self._is_root, view.objects.values()):
            kind, tree = BY_KIND[workload.kind], trees.get(workload.uid)
            if tree is not None:
                owner_uid, is_settled = tree.owner_uid, tree.outcome != "refused"
            else:
                owner_uid = (kind.policy_owner(workload) or workload).uid
                is_settled = False
                with self._faults.alone(f"end of {_name_of(workload)}"):
                    is_settled = self._read(workload).retire_reason is not None
            (settled if is_settled else unsettled).add(owner_uid)
        return frozenset(settled - unsettled)


def _name_of(workload: WorkloadObject) -> str:
    return f"{workload.kind}/{workload.namespace}/{workload.name}"


_NATIVE_KINDS = frozenset(kind.kind for kind in KINDS if kind.native_parts is not None)


class AdoptionHold:
    """Answers whether a root is a group of another controller that is to hang below a composite; cheap, from the newest views.

    Between its creation and our annotation on it, it looks like a tree of its own. Its pods are gated, so they wait; without this
    they could be placed alone, although the composite asks for more groups than this one.
    """

    def __init__(self, workloads: Workloads | None, leader: Leader) -> None:
        """Prepare; `workloads`: None: there are no trees of workloads, and nothing is held."""
        self._workloads = workloads
        self._leader = leader

    def __call__(self, root: Group) -> bool:
        """Return whether a root has to wait until it hangs below its composite, or is known to be a root."""
        if self._workloads is None or not is_native(root) or root.parent is not None:
            return False
        view = self._workloads.view()
        workload = view.objects.get(root.owner_uid)
        if workload is not None and workload.owner and BY_KIND[workload.kind].is_part(workload):
            workload = view.objects.get(workload.owner.uid)  # the tree is its
        if workload is None:
            # its owner may be among those that are not listed yet
            return bool(view.pending & _NATIVE_KINDS)
        kind = BY_KIND[workload.kind]
        profile = profile_of_name(profile_name(kind, workload), view.profiles)
        if profile is None and "TreeProfile" not in view.synced:
            return True
        tree = self._leader.committed.trees.get(workload.uid)
        if not adopts(kind, workload, profile) and not (tree is not None and tree.adopted):
            return False
        if tree is None or tree.outcome == "refused":
            return True
        parents = {adopted_group.name: adopted_group.parent for adopted_group in tree.adopted}
        return parents.get(root.key.name, "?") != ""
