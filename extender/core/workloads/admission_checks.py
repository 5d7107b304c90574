"""AdmissionChecks of Kueue: which of its Workloads wait for our answer, what is planned for one, and the answer.

Kueue calls its objects Workload too; here one is a `QueuedWorkload`. Kueue reserves quota, then it waits for all checks of
the Workload; only with all of them *Ready* may the pods run. So a check is answered while quota is reserved and not used.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import TreeProfile, missing_profile, profile_of_name
from extender.core.workloads.workload_object import (
    GROUP_LABEL,
    OFF,
    TREE_LABEL,
    WORKLOAD_ANNOTATION,
    OwnerReference,
    WorkloadObject,
    pod_templates,
)

CONTROLLER: Final = "gang-extender.dev/admission-check"  # spec.controllerName of an AdmissionCheck
API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
MESSAGE_MAX: Final = 32768  # of a check
SAME_COMPLETIONS: Final = "kueue.x-k8s.io/job-completions-equal-parallelism"
OWN_LABELS: Final = "gang-extender.dev/"
HELP_MAX: Final = 3  # lines of what would help
# conditions with which the quota goes
_ENDING: Final = frozenset({"Finished", "Evicted", "DeactivationTarget"})
CheckState = Literal["Pending", "Ready", "Retry", "Rejected"]


class _Read(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class: fields are in camelCase."""


class _PodSet(_Read, frozen=True, kw_only=True):
    name: str = "main"
    count: int = 1
    template: Mapping[str, Any] = {}


class _Spec(_Read, frozen=True, kw_only=True):
    pod_sets: tuple[_PodSet, ...] = ()
    active: bool = True


class _Check(_Read, frozen=True, kw_only=True):
    name: str
    state: CheckState


class _Condition(_Read, frozen=True, kw_only=True):
    type: str
    status: str
    last_transition_time: str = ""


class _Assignment(_Read, frozen=True, kw_only=True):
    name: str = "main"
    flavors: Mapping[str, str] = {}  # by resource
    count: int | None = None  # less than that of the pod set, where Kueue admits a part


class _Admission(_Read, frozen=True, kw_only=True):
    pod_set_assignments: tuple[_Assignment, ...] = ()


class _Status(_Read, frozen=True, kw_only=True):
    admission_checks: tuple[_Check, ...] = ()
    conditions: tuple[_Condition, ...] = ()
    admission: _Admission | None = None


class Flavor(_Read, frozen=True, kw_only=True):
    """The spec of a ResourceFlavor: Kueue adds it to the pods that get quota of it."""

    node_labels: Mapping[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()


class AdmissionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """An AdmissionCheck with our controller name."""

    name: str
    uid: str = ""
    generation: int = 0
    active: bool = False  # its condition Active is true for this generation


class QueuedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A Workload of Kueue that has quota."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner: OwnerReference | None
    reserved_at: str  # RFC 3339: since when it has quota
    admitted: bool  # its pods may run
    checks: Mapping[str, CheckState]
    pod_sets: tuple[_PodSet, ...]
    assignments: Mapping[str, _Assignment]  # by the name of the pod set

    def states(self, checks: Mapping[str, AdmissionCheck]) -> Iterator[tuple[str, CheckState]]:
        """Yield our checks of the Workload with their states."""
        return ((name, state) for name, state in self.checks.items() if name in checks)


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is written into a check."""

    state: CheckState
    message: str
    retry_after_s: int = 0  # of Retry: when Kueue queues the Workload again


class VerdictLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the answer for one tree, as `POST /v1/plan` has them, that decide about a check."""

    gang: str
    kind: str
    verdict: Literal["placed", "waiting", "unknown", "impossible", "invalid"]
    workload: str = ""
    reasons: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    when_empty: str = ""
    reasons_when_empty: tuple[str, ...] = ()
    node_groups: tuple[Any, ...] = ()


def queued_workload(workload: WorkloadObject, resource_version: str) -> QueuedWorkload | None:
    """Return a Workload of Kueue that has quota to keep and is active and not finished; None for any other.

    Kueue evicts in two writes: the first sets Evicted and makes the checks Pending, the second takes the quota. A check
    that is answered between them keeps its answer without quota, and a Retry there is never queued again (Kueue 0.19).
    With DeactivationTarget, as after a check that is Rejected, it is evicted next.

    Raises:
        BadInput: A field has another form than in the API version that is read.
    """
    try:
        spec = msgspec.convert(workload.spec, _Spec)
        status = msgspec.convert(workload.status, _Status)
    except msgspec.ValidationError as error:
        raise BadInput(f"Workload/{workload.namespace}/{workload.name}: {error}") from error
    true = {of.type: of.last_transition_time for of in status.conditions if of.status == "True"}
    has_quota = spec.active and "QuotaReserved" in true and _ENDING.isdisjoint(true)
    if workload.deleting or not has_quota:
        return None
    assignments = () if status.admission is None else status.admission.pod_set_assignments
    pod_sets = spec.pod_sets
    if "Admitted" in true:  # thousands run: their templates are not read any more
        pod_sets = tuple(_PodSet(name=each.name, count=each.count) for each in pod_sets)
    return QueuedWorkload(
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
        resource_version=resource_version,
        owner=workload.owner,
        reserved_at=true["QuotaReserved"],
        admitted="Admitted" in true,
        checks={check.name: check.state for check in status.admission_checks},
        pod_sets=pod_sets,
        assignments={each.name: each for each in assignments},
    )


def objects_of(
    queued: QueuedWorkload,
    trees: Sequence[WorkloadObject],
    flavors: Mapping[str, Flavor],
    user_workloads: Mapping[tuple[str, str], WorkloadObject],
) -> list[dict[str, Any]]:
    """Return what is planned for a Workload of Kueue, as objects of Kubernetes.

    Args:
        trees: What trees are made from: its owner, or what that owns. Without any, all pods of the Workload are planned
            as one gang.
        flavors: By name; their node labels and tolerations are added, as Kueue does when it admits.
        user_workloads: Workloads of users, by namespace and name: those that the trees name are added.
    """
    if not trees:
        return _one_gang(queued, flavors)
    objects: list[dict[str, Any]] = []
    for tree in trees:
        named = user_workloads.get((tree.namespace, tree.annotations.get(WORKLOAD_ANNOTATION, "")))
        if named is not None:
            objects.append(_object(named, named.spec))
        spec = copy.deepcopy(dict(tree.spec)) | _admitted_part(queued, tree)
        templates = [*pod_templates(BY_KIND[tree.kind].template_paths, spec)]
        by_template = _flavors_by_template(queued, len(templates))
        for template, names in zip(templates, by_template, strict=True):
            _add_flavors(template, names, flavors)
        labels = {**tree.labels, TREE_LABEL: _profile(tree, templates)}
        objects.append(_object(tree, spec, labels=labels, annotations=dict(tree.annotations)))
    return objects


def _object(
    workload: WorkloadObject, spec: Mapping[str, Any], **metadata: Mapping[str, str]
) -> dict[str, Any]:
    names = {"name": workload.name, "namespace": workload.namespace}
    head = {"apiVersion": workload.api_version, "kind": workload.kind}
    return {**head, "metadata": {**names, **metadata}, "spec": spec}


def _admitted_part(queued: QueuedWorkload, tree: WorkloadObject) -> dict[str, int]:
    """Return the fields of a Job that Kueue changes where it admits a part; it does so for no other kind."""
    if (tree.api_version, tree.kind) != ("batch/v1", "Job"):
        return {}
    for pod_set in queued.pod_sets:
        assignment = queued.assignments.get(pod_set.name)
        if assignment is not None and assignment.count not in (None, pod_set.count):
            same = tree.annotations.get(SAME_COMPLETIONS) == "true"
            fields = ("parallelism", "completions") if same else ("parallelism",)
            return dict.fromkeys(fields, assignment.count)
    return {}


def _profile(tree: WorkloadObject, templates: Iterable[Mapping[str, Any]]) -> str:
    """Return the profile of a workload; its pod templates have it where only the namespace has the label."""
    labels = [(each.get("metadata") or {}).get("labels") or {} for each in templates]
    of_templates = (each[TREE_LABEL] for each in labels if TREE_LABEL in each)
    return str(next(of_templates, tree.labels.get(TREE_LABEL, "default")))


def waits_for_owner(
    queued: QueuedWorkload, synced: Collection[str], pending: Collection[str]
) -> bool:
    """Return whether a Workload without its owner cannot be answered yet.

    Args:
        synced: Kinds whose objects are all known: the pods ask for a tree, so the owner is only not read yet.
        pending: Kinds whose objects are not: the owner may ask for a tree, also where its pods do not.
    """
    if queued.owner is None or queued.owner.kind in pending:
        return queued.owner is not None
    return queued.owner.kind in synced and any(
        TREE_LABEL in ((pod_set.template.get("metadata") or {}).get("labels") or {})
        for pod_set in queued.pod_sets
    )


def _flavors_by_template(queued: QueuedWorkload, count: int) -> list[frozenset[str]]:
    """Return the flavors of each pod template of the owner; none where it is not known which pod set it is."""
    assigned = [queued.assignments.get(each.name, _Assignment()) for each in queued.pod_sets]
    named = [frozenset(assignment.flavors.values()) for assignment in assigned]
    if len(named) == count:  # Kueue makes a pod set of each template, in their order
        return named
    return [named[0] if len(set(named)) == 1 else frozenset[str]()] * count


def _add_flavors(
    template: Mapping[str, Any], names: Iterable[str], flavors: Mapping[str, Flavor]
) -> None:
    spec = template.get("spec")
    for flavor in [flavors[name] for name in sorted(names) if name in flavors]:
        if isinstance(spec, dict):
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **flavor.node_labels}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), *flavor.tolerations]


def _one_gang(queued: QueuedWorkload, flavors: Mapping[str, Flavor]) -> list[dict[str, Any]]:
    """Return a PodGroup with all pods of a Workload."""
    name = f"kueue-{queued.uid}"
    pods: list[dict[str, Any]] = []
    for number, pod_set in enumerate(queued.pod_sets):
        assignment = queued.assignments.get(pod_set.name, _Assignment())
        template = {"spec": copy.deepcopy(pod_set.template.get("spec") or {})}
        _add_flavors(template, set(assignment.flavors.values()), flavors)
        template["spec"].pop("schedulingGates", None)  # what they wait for is this answer
        labels = (pod_set.template.get("metadata") or {}).get("labels") or {}
        # Those of the pods, which their affinity and spread may select; ours would make them members of other groups.
        labels = {k: v for k, v in labels.items() if not k.startswith(OWN_LABELS)}
        count = pod_set.count if assignment.count is None else assignment.count
        for index in range(count):
            metadata = {
                "name": f"{name}-{number}-{index}",
                "namespace": queued.namespace,
                "labels": {**labels, GROUP_LABEL: name},
            }
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **template})
    group = {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": queued.namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(pods)}}},
    }
    return [group, *pods] if pods else []


def in_namespace(
    objects: Iterable[dict[str, Any]], namespace: str, mark: str
) -> list[dict[str, Any]]:
    """Return objects of another namespace as ones of this: an answer must not name what its readers do not see.

    Args:
        objects: The objects; unchanged where they are in the namespace already.
        namespace: Where they are planned.
        mark: Makes their names different from those there.
    """
    moved = []
    for each in objects:
        metadata = each["metadata"]
        if metadata["namespace"] != namespace:
            name = f"{mark}-{metadata['name']}"
            metadata = {**metadata, "namespace": namespace, "name": name}
            annotations = metadata.get("annotations", {})
            if WORKLOAD_ANNOTATION in annotations:
                workload = f"{mark}-{annotations[WORKLOAD_ANNOTATION]}"
                metadata["annotations"] = {**annotations, WORKLOAD_ANNOTATION: workload}
        moved.append({**each, "metadata": metadata})
    return moved


def lines_of(
    objects: Iterable[dict[str, Any]], lines: Iterable[VerdictLine]
) -> Sequence[VerdictLine]:
    """Return the answers of a plan query that are about some of its objects."""
    metadata = ((each["kind"], each["metadata"]) for each in objects)
    names = {f"{kind}/{own['namespace']}/{own['name']}" for kind, own in metadata}
    return [line for line in lines if (line.workload or f"{line.kind}/{line.gang}") in names]


def without_profile(
    objects: Iterable[dict[str, Any]], profiles: Mapping[str, TreeProfile]
) -> CheckAnswer | None:
    """Return the answer where the TreeProfile that an object names does not exist: it may come; None: all exist."""
    for each in objects:
        name = each["metadata"].get("labels", {}).get(TREE_LABEL, OFF)
        if name != OFF and profile_of_name(name, profiles) is None:
            return CheckAnswer(state="Retry", message=missing_profile(name))
    return None


def answer_of(mine: Sequence[VerdictLine]) -> CheckAnswer:
    """Return the answer to a check: the worst of those for its objects, see `lines_of`."""
    if not mine:
        return CheckAnswer(state="Ready", message="asks for no node: it has no pods to place")
    order: Sequence[CheckState] = ("Ready", "Retry", "Rejected")
    line = max(mine, key=lambda line: order.index(_state(line)))  # the first one of them
    state, reasons = _state(line), line.reasons
    helps = [f"would help: {text}" for text in line.help[:HELP_MAX]]
    if state == "Ready":
        first, helps = "fits now", []
    elif state == "Rejected":
        reasons = line.reasons_when_empty or line.reasons
        first = "is not valid" if line.verdict == "invalid" else "never fits, whatever else runs"
    else:
        first = "does not fit now" if line.verdict == "impossible" else "is not known to fit now"
    return CheckAnswer(state=state, message="; ".join((first, *reasons, *helps))[:MESSAGE_MAX])


def _state(line: VerdictLine) -> CheckState:
    if line.verdict == "placed":
        return "Ready"
    never = line.verdict == "impossible" and line.when_empty == "never" and not line.node_groups
    return "Rejected" if never or line.verdict == "invalid" else "Retry"
