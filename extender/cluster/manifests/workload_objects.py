"""Groups and pods of workloads in files: those that are there, and those that the service and controllers would create."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Role, with_metadata
from extender.cluster.manifests.manifest_validation import check
from extender.cluster.read.object_decoding import (
    API_VERSION,
    BUILTIN_GROUP,
    bad,
    convert,
    key_of,
    profile_of,
    source_of,
    spec_body,
    without_nulls,
    workload_of,
)
from extender.cluster.read.pod_conversion import MARKERS, ended
from extender.core.model.errors import BadInput, BadQuantity, located
from extender.core.model.ids import GroupKey
from extender.core.model.pods import GATE, VolumeConstraints
from extender.core.model.quantities import exact, nanos
from extender.core.trees.leaves_in_use import with_finished_pods
from extender.core.workloads.kind_table import kind_of_pod
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS, policy_labels
from extender.core.workloads.kinds.trainjob_jobset import RuntimeName, runtime_of
from extender.core.workloads.name_rules import labels_of_leaf
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.tree_parts import ExistingGroup, Leaf, LeafUse
from extender.core.workloads.tree_policy import DEFAULT_PROFILE, TreeProfile
from extender.core.workloads.workload_kind import PODS_MAX, WorkloadKind
from extender.core.workloads.workload_object import (
    GROUP_LABEL,
    LEAF_LABEL,
    MANAGED_BY,
    TREE_LABEL,
    WorkloadObject,
)
from extender.ports.written_names import MANAGED_BY_LABEL, PARENT_ANNOTATIONS

_Name = tuple[str, str, str]  # kind, namespace, name
PodLabels = tuple[str, Mapping[str, str]]  # namespace and labels of a pod
LabelsOfPod = Callable[[int], Mapping[str, str]]  # by the number of a pod in its leaf
PodName = Callable[[WorkloadObject, Mapping[str, str]], str]

OUR_SCHEDULER: Final = "gang-scheduler"
DEFAULT_SCHEDULER: Final = "default-scheduler"
_PER_CONTAINER: Final = "Container"


def leaf_uses(pods: Iterable[PodLabels]) -> dict[tuple[str, str, str], tuple[LeafUse, ...]]:
    """Return the leaves that pods name, in order of their names, by kind, namespace and name of the workload."""
    counts: Counter[tuple[_Name, str]] = Counter()  # by workload and leaf
    first: dict[tuple[_Name, str], Mapping[str, str]] = {}
    for namespace, labels in pods:
        leaf = labels.get(GROUP_LABEL)
        kind = kind_of_pod(labels) if leaf and TREE_LABEL in labels else None
        if kind is None or leaf is None:
            continue
        of_leaf = ((kind.kind, namespace, kind.name_in(labels) or ""), leaf)
        counts[of_leaf] += 1
        if of_leaf not in first:
            read = {LEAF_LABEL, *(key for rule in kind.name_rules for key in rule.label_keys)}
            first[of_leaf] = {key: labels[key] for key in sorted(read) if key in labels}
    return {
        workload: tuple(
            LeafUse(name=of_leaf[1], pods=count, labels=first[of_leaf]) for of_leaf, count in items
        )
        for workload, items in itertools.groupby(sorted(counts.items()), lambda item: item[0][0])
    }


def with_leaf(pod: api.Pod) -> api.Pod:
    """Return a pod as the leaf policy stores it where it is one of a group of plain pods: it names its leaf."""
    metadata = pod.metadata
    if kind_of_pod(metadata.labels) not in (None, PLAIN_PODS):
        return pod
    added = policy_labels(
        metadata.labels,
        metadata.annotations,
        node_name=pod.spec.node_name,
        scheduler_name=pod.spec.scheduler_name,
    )
    return with_metadata(pod, labels={**metadata.labels, **added}) if added else pod


def check_number_of_pods(workload: WorkloadObject, leaves: Iterable[Leaf]) -> None:
    """Raise BadInput if a workload has more pods than are made of one."""
    if (pods := sum(leaf.pods for leaf in leaves)) > PODS_MAX:
        raise BadInput(
            f"{workload}: spec: asks for {pods} pods at once, at most {PODS_MAX} are planned"
        )


def controller_labels(
    kind: WorkloadKind, workload: WorkloadObject, leaf: Leaf, uses: Iterable[LeafUse]
) -> LabelsOfPod:
    """Return a function with the labels that controllers write on a pod of a leaf: rules of pods about each other select by them.

    Those of its template, of which a leader and its workers may have several, are not among them.
    """
    certain = {}
    if kind.name_label:
        certain[kind.name_label] = f"{workload.name}-0" if kind.name_has_ordinal else workload.name
    if kind.uid_label:
        certain[kind.uid_label] = workload.uid
    of_template: Mapping[str, str] = (leaf.template.get("metadata") or {}).get("labels") or {}
    for use in uses:  # a leaf may be a piece of what it was made for
        if f"{leaf.name}-".startswith(f"{use.name}-"):
            certain = {**use.labels, **certain}
            break
    read = labels_of_leaf(kind.name_rules, {**of_template, **certain}, leaf.name)
    own = {key: text for key, text in read.items() if key in certain or key not in of_template}
    pod_labels = kind.pod_labels
    if pod_labels is None:
        return lambda _: own
    return lambda number: pod_labels(workload, own, leaf, number)


def pods_of_leaf(
    leaf: Leaf,
    workload: WorkloadObject,
    numbers: Iterable[int],
    labels_of: LabelsOfPod,
    *,
    members: bool,
    pod_name: PodName | None = None,
) -> Iterator[api.Pod]:
    """Yield pods of a leaf as they are stored when they were created; none if it has no pod template.

    Args:
        numbers: The last parts of their names, where `pod_name` has none.
        labels_of: The labels of its controller, by the number of the pod.
        members: Whether the policies on pods apply to them: they name the leaf, and have gate, markers and scheduler.
        pod_name: Their names by the workload and their labels, as `WorkloadKind` has it.
    """
    templates: dict[int, api.Pod] = {}
    for number in numbers:
        template = leaf.template_of(number)
        if not template.get("spec"):
            continue
        if id(template) not in templates:
            templates[id(template)] = _pod_of(leaf, workload, template, members=members)
        pod = templates[id(template)]
        labels = labels_of(number)
        name = pod_name(workload, labels) if pod_name is not None else ""
        labels = {**pod.metadata.labels, **labels}
        yield with_metadata(pod, name=name or f"{leaf.name}-{number}", labels=labels)


def _pod_of(
    leaf: Leaf, workload: WorkloadObject, template: Mapping[str, Any], *, members: bool
) -> api.Pod:
    metadata = template.get("metadata") or {}
    own = dict(metadata.get("labels") or {})
    if members:
        own[GROUP_LABEL] = leaf.name
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": leaf.name,
            "labels": own,
            "annotations": metadata.get("annotations") or {},
        },
        "spec": template["spec"],
    }
    try:
        pod = convert(api.Pod, body)
        check(pod)
    except BadInput as fault:
        role = f" of {leaf.role}" if leaf.role else ""
        raise located(f"{workload}: pod template{role}", fault) from fault
    return admitted(pod) if members else pod


def admitted(pod: api.Pod) -> api.Pod:
    """Return a member as the policy gang-extender-members stores it: with scheduler, gate and marker resources."""
    spec = pod.spec
    if spec.scheduler_name in ("", DEFAULT_SCHEDULER):
        spec = replace(spec, scheduler_name=OUR_SCHEDULER)
    if all(gate.name != GATE for gate in spec.scheduling_gates):
        gates = (*spec.scheduling_gates, api.Named(name=GATE))
        spec = replace(spec, scheduling_gates=gates)
    containers = spec.containers
    missing = {
        marker: "1"
        for marker in sorted(MARKERS)
        if all(marker not in container.resources.limits for container in containers)
    }
    if containers and missing:
        first, needs = containers[0], containers[0].resources
        requests, limits = {**needs.requests, **missing}, {**needs.limits, **missing}
        needs = replace(needs, requests=requests, limits=limits)
        first = replace(first, resources=needs)
        spec = replace(spec, containers=(first, *containers[1:]))
    return replace(pod, spec=spec)


def with_limit_ranges(pod: api.Pod, ranges: Iterable[api.LimitRange]) -> api.Pod:
    """Return a pod whose containers have the requests and limits of the LimitRanges of its namespace, as admission stores it.

    Raises:
        BadInput: A container is outside of their bounds; an API server refuses it.

    Source:
        Admission plugin LimitRanger of Kubernetes 1.37, and SetDefaults_LimitRangeItem.
    """
    spec = pod.spec
    for limit_range in ranges:
        for item in limit_range.spec.limits:
            if item.type == _PER_CONTAINER:
                try:
                    for bound in (item.default, item.default_request, item.min, item.max):
                        exact(bound)
                except BadQuantity as fault:
                    raise bad(limit_range, "spec.limits", str(fault)) from fault
                limits = {**item.max, **item.default}
                bounds = _Bounds(limit_range.metadata.name, item, limits, {**item.min, **limits, **item.default_request})  # fmt: skip
                spec = replace(
                    spec,
                    containers=bounds.applied(pod, "containers", spec.containers),
                    init_containers=bounds.applied(pod, "initContainers", spec.init_containers),
                )
    return replace(pod, spec=spec)


class _Bounds(msgspec.Struct, frozen=True):
    name: str
    item: api.LimitRangeItem
    limits: Mapping[str, str | float]  # of containers that have none
    requests: Mapping[str, str | float]

    def applied(
        self, pod: api.Pod, field: str, containers: Iterable[api.Container]
    ) -> tuple[api.Container, ...]:
        """Return containers with what they do not have; BadInput where one is outside of the bounds."""
        result = []
        for n, container in enumerate(containers):
            own = container.resources
            requests = {**self.requests, **own.limits, **own.requests}
            limits = {**self.limits, **own.limits}
            self._check(pod, f"spec.{field}[{n}].resources", requests, limits)
            resources = replace(own, requests=requests, limits=limits)
            result.append(replace(container, resources=resources))
        return tuple(result)

    def _check(
        self,
        pod: api.Pod,
        path: str,
        requests: Mapping[str, str | float],
        limits: Mapping[str, str | float],
    ) -> None:
        of = f"of LimitRange {self.name}"
        bounds = (
            (requests, self.item.min, "requests", "less than the minimum"),
            (limits, self.item.max, "limits", "more than the maximum"),
            (requests, self.item.max, "requests", "more than the maximum"),
            (requests, limits, "requests", "more than the default limit"),
        )
        for have, bound, field, text in bounds:
            for key in sorted(bound.keys() & have.keys()):
                try:
                    above = nanos(have[key]) - nanos(bound[key])
                except BadQuantity as fault:
                    raise bad(pod, f"{path}.{field}", f"{key}: {fault}") from fault
                if (above < 0) if bound is self.item.min else (above > 0):
                    fault_text = f'{key}: "{have[key]}" is {text} {of}, which is {bound[key]}'
                    raise bad(pod, f"{path}.{field}", fault_text)


def with_runtime_class(pod: api.Pod, of: api.RuntimeClass) -> api.Pod:
    """Return a pod with overhead, node selector and tolerations of its RuntimeClass, as admission stores it.

    Raises:
        BadInput: The pod has another overhead, or another value for a label; an API server refuses it.

    Source:
        Admission plugin RuntimeClass of Kubernetes 1.37.
    """
    spec, name = pod.spec, of.metadata.name
    overhead = of.overhead.pod_fixed if of.overhead is not None else {}
    if spec.overhead and exact(spec.overhead) != exact(overhead):
        text = f"differs from that of RuntimeClass {name}; leave it out, admission adds it"
        raise bad(pod, "spec.overhead", text)
    scheduling = of.scheduling or api.RuntimeScheduling()
    for key, value in scheduling.node_selector.items():
        if (mine := spec.node_selector.get(key, value)) != value:
            text = f'{key} is "{mine}", and RuntimeClass {name} asks for "{value}"; leave it out'
            raise bad(pod, "spec.nodeSelector", text)
    spec = replace(
        spec,
        overhead=overhead,
        node_selector={**spec.node_selector, **scheduling.node_selector},
        tolerations=tuple(dict.fromkeys((*spec.tolerations, *scheduling.tolerations))),
    )
    return replace(pod, spec=spec)


def group_from(spec: GroupSpec) -> api.Group:
    """Return a group as the service creates it."""
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": spec.kind,
        "metadata": {
            "name": spec.name,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY},
            "annotations": {PARENT_ANNOTATIONS[0]: spec.parent} if spec.parent else {},
        },
        "spec": spec_body(spec),
    }
    if spec.workload:
        ref = {"workloadName": spec.workload, "templateName": spec.template}
        body["spec"]["workloadRef"] = ref
    return stored_group(body)


def stored_group(body: Mapping[str, Any]) -> api.Group:
    """Return the group of an object as it is written."""
    if body["kind"] == "PodGroup":
        return convert(api.PodGroup, body)
    return convert(api.CompositePodGroup, body)


class LiveSources(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in the files, but in the cluster of the service."""

    pods: tuple[PodLabels, ...] = ()  # that name a leaf
    profiles: tuple[TreeProfile, ...] = ()
    claims: Mapping[tuple[str, str], VolumeConstraints] = {}  # of volumes, that pods may use


class WorkloadSources:
    """What the files have beside the workload that is looked at."""

    def __init__(self, entries: Sequence[AnyEntry], live: LiveSources) -> None:
        self.profiles = {profile.name: profile for profile in (DEFAULT_PROFILE, *live.profiles)}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.workloads: dict[_Name, WorkloadObject] = {}
        self.groups: dict[GroupKey, tuple[str, api.Group]] = {}
        self.templates: dict[tuple[str, str], WorkloadObject] = {}  # the Workloads of users
        self.jobs: dict[_Name, list[WorkloadObject]] = {}  # by the object that owns them
        self.made: dict[str, list[ExistingGroup]] = {}  # groups by the UID of their owner
        self.runtimes: dict[RuntimeName, Mapping[str, Any]] = {}  # `spec` of each
        # of Grove's topologies, by name: keys of node labels by domain
        self.topologies: dict[str, dict[str, str]] = {}
        self._wanted: set[_Name] = set()  # the workloads of -f
        self._pods = [*live.pods]
        for entry in entries:
            try:
                self._add(entry.where, entry.obj, entry.role)
            except BadInput as fault:
                raise BadInput(f"{entry.where}: {fault}") from fault
        self.uses = leaf_uses(self._pods)
        for workload in self.workloads.values():
            if workload.kind == "Job" and (owner := self.owner_of(workload)) is not None:
                self.jobs.setdefault(_name(owner), []).append(workload)

    def _add(self, where: str, obj: api.KubernetesObject, role: Role) -> None:
        match obj:
            case api.Pod() if not ended(obj) and obj.metadata.deletion_timestamp is None:
                self._pods.append((obj.metadata.namespace, obj.metadata.labels))
            case api.PodGroup() | api.CompositePodGroup() if source_of(obj) == "crd":
                self.groups[key_of(obj)] = (where, obj)
                if uid := owner_uid(obj):
                    self.made.setdefault(uid, []).append(_existing(obj))
            case api.WorkloadManifest():
                self.workloads[(obj.kind, *obj.key)] = workload_of(obj)
                if role is Role.WANTED:
                    self._wanted.add((obj.kind, *obj.key))
            case api.TrainingRuntime():
                namespace, name = obj.key
                key = RuntimeName(kind=type(obj).__name__, namespace=namespace, name=name)
                self.runtimes[key] = obj.spec
            case api.ClusterTopology():
                levels = {level.domain: level.key for level in obj.spec.levels}
                self.topologies[obj.metadata.name] = levels
            case api.Workload():
                if obj.key not in self.templates or obj.api_version.startswith(BUILTIN_GROUP):
                    spec = without_nulls(msgspec.to_builtins(obj.spec))
                    self.templates[obj.key] = core_object(obj, cast("dict[str, Any]", spec))
            case api.TreeProfile():
                self.profiles[obj.metadata.name] = profile_of(obj)
            case api.Namespace():
                self.namespaces[obj.metadata.name] = obj.metadata.labels
            case _:
                pass  # nothing in a tree depends on it

    def owner_of(self, workload: WorkloadObject) -> WorkloadObject | None:
        """Return the controlling owner of a workload, if the files have it."""
        owner, namespace = workload.owner, workload.namespace
        return self.workloads.get((owner.kind, namespace, owner.name)) if owner else None

    def owned_by(self, owner: WorkloadObject, kinds: Collection[str]) -> WorkloadObject | None:
        """Return the first workload of some kinds that has another one as controlling owner, or None."""
        of_kinds = (each for each in self.workloads.values() if each.kind in kinds)
        of_files = self.workloads.get(_name(owner))
        return next(
            (each for each in of_kinds if of_files and self.owner_of(each) is of_files), None
        )

    def runtime(self, trainjob: WorkloadObject) -> Mapping[str, Any]:
        """Return the `spec` of the runtime of a TrainJob.

        Raises:
            BadInput: It names none, or the files do not have it.
        """
        runtime = runtime_of(trainjob)
        if runtime not in self.runtimes:
            text = f"{runtime} is not in the files; add the output of `{runtime.command}`"
            raise BadInput(f"spec.runtimeRef: {text}, or the JobSet that Trainer makes")
        return self.runtimes[runtime]

    def is_wanted(self, workload: WorkloadObject) -> bool:
        """Return whether a workload is one of -f."""
        return _name(workload) in self._wanted

    def uses_of(self, kind: WorkloadKind, workload: WorkloadObject) -> tuple[LeafUse, ...]:
        """Return the leaves that pods of a workload name; without pods those that they will name."""
        uses = self.uses.get(_name(workload), ())
        if not uses and kind.planned_uses is not None:
            uses = kind.planned_uses(workload)
        jobs = self.jobs.get(_name(workload), ())
        return with_finished_pods(uses, jobs) if jobs else uses

    def pods_of(self, workload: WorkloadObject) -> Mapping[str, int]:
        """Return how many pods of a workload there are, by leaf."""
        return {use.name: use.pods for use in self.uses.get(_name(workload), ())}

    def missing_numbers(
        self, kind: WorkloadKind, workload: WorkloadObject, leaf: Leaf, labels_of: LabelsOfPod
    ) -> Iterable[int]:
        """Return the numbers of the pods that a leaf has not yet.

        Args:
            labels_of: The labels of its pods by their numbers.
        """
        existing, pod_name = self.pods_of(workload).get(leaf.name, 0), kind.pod_name
        if pod_name is None or not existing:
            return range(existing, leaf.pods)
        taken = {
            pod_name(workload, labels)
            for namespace, labels in self._pods
            if namespace == workload.namespace
            and kind_of_pod(labels) is kind
            and kind.name_in(labels) == workload.name
        } - {""}
        free = (n for n in itertools.count() if pod_name(workload, labels_of(n)) not in taken)
        return tuple(itertools.islice(free, max(leaf.pods - existing, 0)))

    def existing_of(self, workload: WorkloadObject) -> tuple[ExistingGroup, ...]:
        """Return the groups that were made for a workload, in order of kind and name."""
        groups = self.made.get(workload.uid, ())
        return tuple(sorted(groups, key=lambda group: (group.kind, group.name)))


def _name(workload: WorkloadObject) -> _Name:
    return (workload.kind, workload.namespace, workload.name)


def owner_uid(obj: api.KubernetesObject) -> str:
    """Return the UID of the controlling owner of an object, or an empty string."""
    return next((owner.uid for owner in obj.metadata.owner_references if owner.controller), "")


def _existing(group: api.Group) -> ExistingGroup:
    policy, kind, name = group.spec.scheduling_policy, type(group).__name__, group.metadata.name
    gang = policy.gang if policy is not None else None
    if gang is None:
        return ExistingGroup(kind=kind, name=name, basic=True, minimum=1)
    minimum, required = gang.min_count or gang.min_group_count or 1, gang.required_groups
    return ExistingGroup(kind=kind, name=name, basic=False, minimum=minimum, required=required)


def core_object(obj: api.KubernetesObject, spec: Mapping[str, Any]) -> WorkloadObject:
    """Return an object of the API that is no workload as one of the core, with this spec."""
    namespace, name = obj.key
    return WorkloadObject(
        api_version=obj.api_version,
        kind=type(obj).__name__,
        namespace=namespace,
        name=name,
        uid=obj.metadata.uid,
        spec=spec,
    )
