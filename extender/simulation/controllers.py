"""The jobs of a simulation and what controllers do for them: make pods, make lost ones again, end the job and clean up.

A job runs while the minimum of each of its groups runs. When it loses that, its progress is lost: it begins again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import (
    AnyEntry,
    filled_in_uid,
    ident_of,
    with_metadata,
)
from extender.cluster.manifests.manifest_loader import Memory, complete
from extender.cluster.manifests.workload_expansion import ServedWorkloads
from extender.cluster.manifests.workload_objects import admitted, group_from
from extender.cluster.read.object_decoding import convert
from extender.core.model.ids import PodUid
from extender.core.model.pods import Pod, PodShape
from extender.core.model.quantities import written_amounts
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_object import GROUP_LABEL, WorkloadObject
from extender.simulation.arrivals import Arrival
from extender.simulation.simulated_cluster import SimulatedCluster
from extender.simulation.virtual_time import simulation_loop

T = TypeVar("T", bound=api.Readable)
AGAIN_S: Final = 1.0  # after the end of a pod its controller makes another one
CLEANED_AFTER_S: Final = 1.0  # a job that has ended is deleted
PODS: Final = "pods"  # as a resource: one of each pod


class GivenTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree whose groups are there without a workload.

    Attributes:
        groups: Parents first.
        members: Name of the leaf and shape of each pod; of a shape requests, selectors and tolerations count.
        priority: Of its groups and pods.
    """

    groups: tuple[GroupSpec, ...]
    members: tuple[tuple[str, PodShape], ...]
    priority: int


def tree_of(arrival: Arrival) -> GivenTree:
    """Return the tree of an arrival of a trace: a leaf for each of its groups, under a composite if there are several."""
    several = len(arrival.groups) > 1
    specs = []
    if several:
        specs.append(
            GroupSpec(kind="CompositePodGroup", name=arrival.name, minimum=len(arrival.groups))
        )
    members: list[tuple[str, PodShape]] = []
    for group in arrival.groups:
        leaf = f"{arrival.name}-{group.name}" if several else arrival.name
        specs.append(
            GroupSpec(
                kind="PodGroup",
                name=leaf,
                parent=arrival.name if several else "",
                basic=group.minimum == 0,
                minimum=max(group.minimum, 1),
                topology=group.topology_key,
                disruption_mode="all",
            )
        )
        members += [(leaf, PodShape(requests=tuple(group.requests.items())))] * group.pods
    return GivenTree(groups=tuple(specs), members=tuple(members), priority=arrival.priority)


def pod_body(shape: PodShape, priority: int) -> dict[str, Any]:
    """Return a pod of a shape as a manifest without metadata; it has neither volumes nor rules about other pods."""
    requests = written_amounts({name: n for name, n in shape.requests if name != PODS})
    container = {"name": "main", "resources": {"requests": requests, "limits": requests}}
    spec: dict[str, Any] = {"priority": priority, "containers": [container]}
    if shape.node_selector:
        spec["nodeSelector"] = dict(shape.node_selector)
    if shape.tolerations:
        spec["tolerations"] = [
            {key: text for key, text in msgspec.structs.asdict(toleration).items() if text}
            for toleration in shape.tolerations
        ]
    terms = [
        {
            field: [
                {"key": each.key, "operator": each.operator, "values": list(each.values)}
                for each in expressions
            ]
            for field, expressions in (
                ("matchExpressions", term.labels),
                ("matchFields", term.fields),
            )
            if expressions
        }
        for selector in shape.selectors
        if not selector.volume
        for term in selector.terms
    ]
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


class Job(msgspec.Struct, kw_only=True):
    """A workload from its arrival to its end. Times are seconds of the simulation; None: not yet."""

    namespace: str
    name: str
    at_s: float
    runs_for_s: float
    objects: tuple[AnyEntry, ...] = ()  # of files; its pods are made from them
    arrival: Arrival | None = None  # of a trace
    tree: GivenTree | None = None  # of a log
    size: int = 0  # units of the counted resource in all its pods
    pods: dict[str, api.Pod] = {}  # by name, without UIDs
    live: dict[PodUid, str] = {}
    running: dict[PodUid, int] = {}  # units of each
    owned: list[str] = []  # UIDs of what is deleted with it, beside its pods
    complete_s: float | None = None
    bound_s: float | None = None
    began_s: float | None = None  # of the run that goes on
    ended_s: float | None = None
    evictions: int = 0  # how often it lost its minimum while it ran
    lost_unit_s: float = 0.0  # of the counted resource: runs that were lost
    ends: asyncio.TimerHandle | None = None

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Controllers:
    """Makes the objects of jobs, and reacts to what becomes of their pods.

    Attributes:
        jobs: All that have arrived, in the order of their arrival.
        used_unit_s: The integral of the counted resource that bound pods used, in units times seconds.
        used: Since when how many units of it are used, in the order of time.
    """

    def __init__(
        self, cluster: SimulatedCluster, context: Sequence[AnyEntry], counted: str
    ) -> None:
        """Prepare.

        Args:
            context: Objects of files that workloads are read with: priority classes, profiles, namespaces, limits.
            counted: Name of the resource in which jobs and nodes are measured.
        """
        self._cluster = cluster
        self._context = tuple(context)
        self._counted = counted
        self.jobs: list[Job] = []
        self._job_of: dict[PodUid, Job] = {}
        self._manifests: dict[str, api.WorkloadManifest] = {}
        self._profiles: Mapping[str, TreeProfile] = {}
        self._templates: Mapping[tuple[str, str], WorkloadObject] = {}
        self._used = 0
        self._unbound = 0  # pods of jobs without a node
        self._used_since_s = 0.0
        self.used_unit_s = 0.0
        self.used: list[tuple[float, int]] = []
        self._memory = Memory(incarnation=cluster.incarnations())
        cluster.on_running, cluster.on_gone, cluster.on_bound = (
            self._on_running,
            self._on_gone,
            self._on_bound,
        )

    # --- a job arrives and ends

    def arrive(self, job: Job) -> None:
        """Create the objects of a job.

        Raises:
            BadInput: An API server would refuse one of them.
        """
        self.jobs.append(job)
        tree = tree_of(job.arrival) if job.arrival is not None else job.tree
        pods = self._of_tree(job, tree) if tree is not None else self._of_files(job)
        job.pods = {pod.metadata.name: pod for pod in pods}
        job.complete_s = self._now_s()
        for name in job.pods:
            self._make(job, name)
        job.size = sum(self._units(self._cluster.pod(uid)) for uid in job.live)

    def _of_tree(self, job: Job, tree: GivenTree) -> list[api.Pod]:
        for spec in tree.groups:
            group_object = self._identified(group_from(spec), job.namespace)
            group_object = msgspec.structs.replace(
                group_object,
                spec=msgspec.structs.replace(group_object.spec, priority=tree.priority),
            )
            self._cluster.put(group_object)
            job.owned.append(group_object.metadata.uid)
        pods = []
        numbers: Counter[str] = Counter()
        templates: dict[tuple[str, PodShape], api.Pod] = {}
        for leaf, shape in tree.members:
            if (leaf, shape) not in templates:
                body = pod_body(shape, tree.priority)
                body["metadata"] = {"namespace": job.namespace, "labels": {GROUP_LABEL: leaf}}
                templates[leaf, shape] = admitted(convert(api.Pod, body))
            pods.append(with_metadata(templates[leaf, shape], name=f"{leaf}-{numbers[leaf]}"))
            numbers[leaf] += 1
        return pods

    def _of_files(self, job: Job) -> list[api.Pod]:
        now = self._cluster.now()
        dated = tuple(
            msgspec.structs.replace(entry, obj=with_metadata(entry.obj, creation_timestamp=now))
            for entry in job.objects
        )
        stored = complete((*self._context, *dated), self._memory, serving=True)
        served = stored.served
        self._profiles, self._templates = served.profiles, served.templates
        pods_of = {entry.ident for entries in served.pods.values() for entry in entries}
        own = {entry.ident for entry in dated}
        for manifest in served.manifests:
            self._manifests[manifest.metadata.uid] = manifest
            job.owned.append(manifest.metadata.uid)
        self._serve()
        pods = []
        for entry in stored.entries:
            if isinstance(entry.obj, api.Pod) and entry.ident in pods_of | own:
                pods.append(entry.obj)
            elif entry.ident in own:
                self._cluster.put(entry.obj)
                job.owned.append(entry.obj.metadata.uid)
        return pods

    def _serve(self) -> None:
        self._cluster.serve(
            ServedWorkloads(
                manifests=tuple(self._manifests.values()),
                profiles=self._profiles,
                templates=self._templates,
            )
        )

    def _make(self, job: Job, name: str) -> None:
        """Create a pod of a job under its name."""
        pod = self._identified(job.pods[name], job.namespace)
        uid = PodUid(pod.metadata.uid)
        job.live[uid] = name
        self._job_of[uid] = job
        self._unbound += 1
        self._cluster.put(pod)

    def _identified(self, obj: T, namespace: str) -> T:
        """Return an object of a namespace with UID and creation time, as it is stored."""
        obj = with_metadata(obj, namespace=namespace, creation_timestamp=self._cluster.now())
        ident = ident_of(obj)
        return with_metadata(obj, uid=filled_in_uid(ident, self._memory.incarnation.get(ident, 0)))

    def _end(self, job: Job) -> None:
        """Let all pods of a job end with success; the job is cleaned up soon after."""
        job.ended_s = self._now_s()
        for uid in job.live:
            pod = self._cluster.stored().pods.get(uid)
            if pod is not None and pod.node is not None:
                self._use(-self._units(pod))
                self._cluster.succeed(uid)
        simulation_loop().act_later(CLEANED_AFTER_S, self._clean_up, job)

    def _clean_up(self, job: Job) -> None:
        pods, job.live = list(job.live), {}
        for uid in pods:
            self._job_of.pop(uid, None)
            self._cluster.remove(uid)
        served = len(self._manifests)
        for owner in job.owned:
            for group in self._cluster.groups_owned_by(owner):
                self._cluster.remove(group)
            if self._manifests.pop(owner, None) is None:
                self._cluster.remove(owner)
        if len(self._manifests) < served:
            self._serve()

    # --- what becomes of pods

    def _on_bound(self, pod: Pod) -> None:
        self._use(self._units(pod))
        job = self._job_of.get(pod.uid)
        if job is not None:
            self._unbound -= 1
        if job is not None and job.bound_s is None:
            job.bound_s = self._now_s()

    def _on_running(self, uid: PodUid) -> None:
        job = self._job_of.get(uid)
        if job is None or job.ended_s is not None:
            return
        job.running[uid] = self._units(self._cluster.pod(uid))
        if job.began_s is None and self._minimum_runs(job):
            job.began_s = self._now_s()
            if math.isfinite(job.runs_for_s):
                job.ends = simulation_loop().act_later(job.runs_for_s, self._end, job)

    def _on_gone(self, pod: Pod) -> None:
        """Count what was lost with a pod, and make another one under its name."""
        job = self._job_of.pop(pod.uid, None)
        if job is not None and pod.node is None:
            self._unbound -= 1
        ended = job is not None and job.ended_s is not None
        if pod.node is not None and not ended:
            self._use(-self._units(pod))
        if job is None or ended:
            return
        name = job.live.pop(pod.uid)
        ran_units = sum(job.running.values())
        job.running.pop(pod.uid, None)
        if job.began_s is not None and not self._minimum_runs(job):
            job.lost_unit_s += ran_units * (self._now_s() - job.began_s)
            job.evictions += 1
            job.began_s = None
            if job.ends is not None:
                job.ends.cancel()
        simulation_loop().act_later(AGAIN_S, self._make_again, job, name)

    def _make_again(self, job: Job, name: str) -> None:
        if job.ended_s is None:
            self._make(job, name)

    def _minimum_runs(self, job: Job) -> bool:
        """Return whether as many pods run in each group of a job as its minimum is; without a group, all."""
        stored = self._cluster.stored()
        pods = [stored.pods[uid] for uid in job.live if uid in stored.pods]
        for leaf in {pod.group: None for pod in pods}:
            members = [pod for pod in pods if pod.group == leaf]
            group = stored.groups.get(leaf) if leaf is not None else None
            minimum = group.minimum if group is not None else len(members)
            if sum(pod.uid in job.running for pod in members) < minimum:
                return False
        return bool(pods)

    def waits(self) -> bool:
        """Return whether a job waits for a place for one of its pods, or for its controller."""
        return self._unbound > 0

    def _units(self, pod: Pod) -> int:
        return dict(pod.shape.requests).get(self._counted, 0)

    def _use(self, units: int) -> None:
        now_s = self._now_s()
        self.used_unit_s += self._used * (now_s - self._used_since_s)
        self._used, self._used_since_s = self._used + units, now_s
        if self.used and self.used[-1][0] == now_s:
            self.used.pop()
        self.used.append((now_s, self._used))

    def used_until(self, at_s: float) -> float:
        """Return `used_unit_s` up to a time that is not past yet for the simulation."""
        return self.used_unit_s + self._used * (at_s - self._used_since_s)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
