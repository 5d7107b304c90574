"""One object of a workload controller (Job, JobSet, LeaderWorkerSet, ...), as far as a tree is made from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

TREE_LABEL = "gang-extender.dev/tree"  # on workloads, namespaces and pod templates: the profile
# on pod templates: what one leaf holds, where a kind has a choice
LEAF_LABEL = "gang-extender.dev/leaf"
GROUP_LABEL = "gang-extender.dev/pod-group"  # on pods: the leaf
GROUP_LABELS = (GROUP_LABEL, "scheduling.x-k8s.io/pod-group")  # that name the group of a pod
GANG_ANNOTATION = "gang-extender.dev/gang"
TOPOLOGY_ANNOTATION = "gang-extender.dev/topology"
EXCLUSIVE_ANNOTATION = "gang-extender.dev/exclusive"
SLICES_ANNOTATION = "gang-extender.dev/slices"
NEAR_ANNOTATION = "gang-extender.dev/near"
LOST_MEMBERS_ANNOTATION = "gang-extender.dev/lost-members"
MIN_ANNOTATION = "gang-extender.dev/min"
# what a group has in its schedulingConstraints
CONSTRAINT_ANNOTATIONS = (
    *(TOPOLOGY_ANNOTATION, SLICES_ANNOTATION),
    *(EXCLUSIVE_ANNOTATION, NEAR_ANNOTATION),
)
# those that a TreeProfile, or a template of a Workload, can have instead
TREE_ANNOTATIONS = (
    GANG_ANNOTATION,
    *CONSTRAINT_ANNOTATIONS,
    *(LOST_MEMBERS_ANNOTATION, MIN_ANNOTATION),
)
WORKLOAD_ANNOTATION = "gang-extender.dev/workload"
# the writer of an entry in a list of patches, see `RuntimePatch`
PATCH_MANAGER = "gang-extender.dev/trees"
# of groups that are made from workloads: label app.kubernetes.io/managed-by, and the field manager
MANAGED_BY = "gang-extender-trees"
TEMPLATES_KIND = "Workload"  # what that annotation names
PARENT_ANNOTATION = "gang-extender.dev/parent"
# of upstream (KEP-5547), on the Jobs of a workload whose controller made the Workload of their groups
GROUP_TEMPLATE_ANNOTATION = "scheduling.k8s.io/group-template-name"
# names in spec.schedulerName that no kube-scheduler with this extender has
OTHER_SCHEDULERS = ("kai-scheduler", "runai-scheduler", "volcano", "yunikorn")
SOURCE_ANNOTATION = "gang-extender.dev/tree-from"  # on workloads, set when they are created
NAMESPACE = "namespace"  # as value of SOURCE_ANNOTATION: the profile is that of the namespace
OFF = "off"  # as value of TREE_LABEL: no tree


def tree_annotations(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the annotations of TREE_ANNOTATIONS that are there."""
    return tuple(key for key in TREE_ANNOTATIONS if key in annotations) if annotations else ()


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The controlling owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


class WorkloadObject(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as its API server stores it; `spec` and `status` are read by the table entry of its kind."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    generation: int = 0
    deleting: bool = False
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner: OwnerReference | None = None
    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def requested(self) -> bool:
        """Return whether the workload asks for a tree itself, and not only its namespace.

        The API server copies labels of the pod template of a Job without labels to the Job; the annotation is then there too.
        """
        inherited = self.annotations.get(SOURCE_ANNOTATION) == NAMESPACE
        return TREE_LABEL in self.labels and not inherited


def controller_reference(owner: WorkloadObject) -> dict[str, Any]:
    """Return the entry of `ownerReferences` of an object that the controller of another one makes."""
    names = {"kind": owner.kind, "name": owner.name, "uid": owner.uid}
    controls = {"controller": True, "blockOwnerDeletion": True}
    return {"apiVersion": owner.api_version, **names, **controls}


def pod_templates(paths: Iterable[str], spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the pod templates of a workload; `paths`: where they are: field names with dots between them, `[]` behind a list."""
    for path in paths:
        yield from _at({"spec": spec}, path.split("."))


def has_tree_label(paths: Iterable[str], spec: Mapping[str, Any]) -> bool:
    """Return whether a pod template of a workload has a tree label."""
    return any(
        TREE_LABEL in ((template.get("metadata") or {}).get("labels") or {})
        for template in pod_templates(paths, spec)
    )


def _at(part: object, steps: list[str]) -> Iterator[Mapping[str, Any]]:
    if not isinstance(part, Mapping):
        return
    if not steps:
        yield part
        return
    name, listed, _ = steps[0].partition("[]")
    value = part.get(name)
    for item in (value or ()) if listed else (value,):
        yield from _at(item, steps[1:])
