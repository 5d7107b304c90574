"""What the table of workload kinds has for each kind, and what the entries of several kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Required, get_args, get_origin

import msgspec

from extender.core.model.errors import BadInput
from extender.core.workloads.name_rules import NameRule, without_ordinal
from extender.core.workloads.tree_parts import Leaf, LeafUse, Observed, Part
from extender.core.workloads.tree_policy import GangMode, TreePolicy, TreeRefusal, refusal_of
from extender.core.workloads.workload_object import (
    GANG_ANNOTATION,
    GROUP_LABELS,
    OTHER_SCHEDULERS,
    WORKLOAD_ANNOTATION,
    OwnerReference,
    WorkloadObject,
)

MANAGER_PATH: Final = ("managedBy",)  # below spec: the controller of an object


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a user should know about a tree that was made."""

    reason: str  # CamelCase, the reason of the Event
    message: str


class WorkloadParts(msgspec.Struct, frozen=True, kw_only=True):
    """The roots of the trees of one workload."""

    roots: tuple[Part, ...]
    notices: tuple[Notice, ...] = ()


# Returns the roots of the trees of a workload; raises InvalidPolicy where none can be made from what was observed.
Parts = Callable[[WorkloadObject, TreePolicy, Observed], WorkloadParts]
PodLabels = Callable[[WorkloadObject, Mapping[str, str], Leaf, int], Mapping[str, str]]


class HeldWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that the controller of another object makes from it."""

    spec: Mapping[str, Any] | None  # None: it makes none
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    metadata_at: str = "metadata"  # where the object has them; empty: nowhere
    note: str = ""  # what a plan of it leaves out


def held_workload(
    spec: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    metadata_at: str = "metadata",
    note: str = "",
) -> HeldWorkload:
    """Return a workload with labels and annotations of `metadata`; see `HeldWorkload`."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return HeldWorkload(
        spec=spec, labels=labels, annotations=annotations, metadata_at=metadata_at, note=note
    )


# Returns what the controller of an object makes of it; raises BadInput where the field with it is missing.
Holder = Callable[[Mapping[str, Any]], HeldWorkload]


class ObjectKind(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A kind of object, as its API server names it."""

    kind: str
    group: str
    versions: tuple[str, ...]
    plural: str


class RuntimePatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a list in `spec` by which a kind writes a label on the workload that its controller makes."""

    field: str  # of `spec`: the list
    key: str  # of its items: who wrote the item
    path: tuple[str, ...]  # of its items: where the labels are


class WorkloadKind(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table: everything that the service knows about a kind of workload."""

    kind: str
    group: str  # API group; empty: core
    versions: tuple[str, ...]  # newest first; the first one that is served is read
    plural: str  # name of the resource in URLs and RBAC; empty: its pods stand for it, there is no object
    # For the pods of this kind, the first one that applies. Empty: its pods have the labels of what it owns.
    name_rules: tuple[NameRule, ...] = ()
    name_label: str = ""  # on pods: the name of the workload object; every pod with a leaf has it
    name_has_ordinal: bool = False  # the number of the pod is behind the name in that label
    uid_label: str = ""  # on pods: the UID of the workload object; empty: they have none
    # on pods: all labels that its controllers write, by the workload, those that name rules read, the leaf and the number of the pod
    pod_labels: PodLabels | None = None
    # the name of a pod by the workload and those labels; empty: its controller makes the end of the name up. None: of all pods
    pod_name: Callable[[WorkloadObject, Mapping[str, str]], str] | None = None
    # Where pod templates are: dotted, `[]` behind a list. One that an object does not have is left out. Empty: it has
    # none, and its own tree label counts.
    template_paths: tuple[str, ...] = ()
    # The value of LEAF_LABEL for a pod template, of what has the template (the item of the list, or the object), in
    # Python and in CEL over `item`; None and empty: the kind has no such choice. An empty value is not written, and a
    # label that the template has already stays.
    leaf_label: Callable[[Mapping[str, Any]], str] | None = None
    leaf_label_cel: str = ""
    # The annotation that gives each group a domain alone, where the controller makes the other pods of a group only when the
    # first one has a node; and the level of EXCLUSIVE_ANNOTATION that is the same, in Python and in CEL over `object` and
    # `variables.annotations`; an empty value: none is.
    exclusive_annotation: str = ""
    exclusive_level: Callable[[WorkloadObject], str] | None = None
    exclusive_level_cel: str = "''"
    # where a workload has no pod templates: the objects whose labels its pods get from its controller
    labels_from: tuple[ObjectKind, ...] = ()
    # for a kind whose own label does not reach what its controller makes
    label_patch: RuntimePatch | None = None
    # Kinds of the same API group whose controller makes one object of this kind.
    holders: Mapping[str, Holder] = {}
    part_of: tuple[str, ...] = ()  # kinds of owners that make it part of the owner's tree
    # Kinds of owners whose annotations count instead of its own, and which own its groups.
    policy_from: tuple[str, ...] = ()
    manager: str = ""  # managedBy of its own controller; empty: it has no such field
    manager_path: tuple[str, ...] = MANAGER_PATH  # below spec: that field
    gang_modes: tuple[GangMode, ...] = ("all",)  # that profiles and annotations may ask for
    parts: Parts | None  # None: only the annotations of its objects count, for what they own
    # The parts of a workload whose controller makes the groups: a leaf for each, named as its template. Empty: each of
    # these groups is a root. None: the kind has no scheduling block of its own.
    native_parts: Callable[[WorkloadObject, TreePolicy], tuple[Part, ...]] | None = None
    # The leaves that a workload without pods will have, for `plan`, where `parts` goes by the pods; None: it does not.
    planned_uses: Callable[[WorkloadObject], tuple[LeafUse, ...]] | None = None
    # all its work is done: its groups are deleted
    finished: Callable[[WorkloadObject], bool] = lambda _: False
    # its controller keeps its pods away: its groups stay
    suspended: Callable[[WorkloadObject], bool] = lambda _: False
    # Why no tree can be made from the object, whatever its pods are.
    refusals: Callable[[WorkloadObject], Iterable[TreeRefusal]] = lambda _: ()
    kept_out: Callable[[WorkloadObject], str] = lambda _: ""  # why it is not ours; empty: it is
    # the fields of `spec` that the entry reads, with their types; objects of files are checked against it
    spec_type: type[msgspec.Struct] | None = None

    def is_part(self, workload: WorkloadObject) -> bool:
        """Return whether a workload of this kind is part of the tree of its owner."""
        return workload.owner is not None and workload.owner.kind in self.part_of

    def policy_owner(self, workload: WorkloadObject) -> OwnerReference | None:
        """Return the owner of a workload of this kind whose annotations count; None: its own count."""
        owner = workload.owner
        return owner if owner is not None and owner.kind in self.policy_from else None

    def name_in(self, labels: Mapping[str, str]) -> str | None:
        """Return the name of the workload that the labels of a pod have, or None."""
        value = labels.get(self.name_label)
        return without_ordinal(value) if value and self.name_has_ordinal else value


# --- what the entries of several kinds have in common


UID_PIECE = 8  # characters of a UID in names: 32 bits, unique among workloads of one name


def has_condition(workload: WorkloadObject, *types: str) -> bool:
    """Return whether one of these conditions is True."""
    conditions = workload.status.get("conditions") or ()
    return any(
        condition.get("type") in types and condition.get("status") == "True"
        for condition in conditions
    )


def is_suspended(workload: WorkloadObject) -> bool:
    """Return `spec.suspend`."""
    return bool(workload.spec.get("suspend"))


def number(fields: Mapping[str, Any], name: str, default: int) -> int:
    """Return a field that is a number; `default` where it is not set."""
    value = fields.get(name)
    return default if value is None else int(value)


def listed(names: Iterable[str]) -> str:
    """Return names in their order for a message."""
    return ", ".join(sorted(names)) or "none"


def template_label(template: Mapping[str, Any], key: str) -> str:
    """Return a label of a pod template, or an empty string."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(key, ""))


def template_kept_out(template: Mapping[str, Any]) -> str:
    """Return why the pods of a template are scheduled by something else, or an empty string."""
    spec = template.get("spec") or {}
    if spec.get("schedulingGroup"):
        return "its pods have spec.schedulingGroup, so the groups of another controller count"
    if (scheduler := spec.get("schedulerName")) in OTHER_SCHEDULERS:
        return f"its pods have schedulerName {scheduler!r}, so that scheduler places them"
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key in GROUP_LABELS:
        if key in labels:
            return f"its pods name the group {labels[key]!r} themselves"
    return ""


def scheduling_block(workload: WorkloadObject) -> str:
    """Return why a workload with `spec.scheduling` is left alone, or an empty string."""
    if workload.spec.get("scheduling"):
        return "spec.scheduling is set, so its own controller makes the groups"
    return ""


def managed_by_other(
    workload: WorkloadObject, own: str, path: tuple[str, ...] = MANAGER_PATH
) -> str:
    """Return why a workload whose controller, the field at `path` of `spec`, is not `own` is left alone, or an empty string."""
    manager: Any = workload.spec
    for field in path:
        manager = (manager or {}).get(field)
    if manager and manager != own:
        return f"spec.{'.'.join(path)} is {manager!r}, so another controller runs it"
    return ""


def required(obj: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return an object inside another one.

    Raises:
        BadInput: It is missing, or no object.
    """
    value: Any = obj
    for at, field in enumerate(path, start=1):
        value = value.get(field)
        if not isinstance(value, Mapping):
            state = "is missing" if value is None else "is no object"
            raise BadInput(f"{'.'.join(path[:at])}: {state}")
    result: Mapping[str, Any] = value
    return result


def only_whole(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    """Yield the refusals of a kind that has no choice of gangs and no templates of a Workload."""
    mode = workload.annotations.get(GANG_ANNOTATION, "all")
    if mode != "all":
        text = f"{mode!r} is for a JobSet; a {workload.kind} has only all"
        field = f"metadata.annotations[{GANG_ANNOTATION}]"
        yield refusal_of(workload, "InvalidAnnotation", field, text)
    if WORKLOAD_ANNOTATION in workload.annotations:
        text = f"is for a JobSet; a {workload.kind} has no templates to map"
        field = f"metadata.annotations[{WORKLOAD_ANNOTATION}]"
        yield refusal_of(workload, "InvalidAnnotation", field, text)


# --- types of the fields that entries read, for objects that no API server has checked; see `spec_type`

# that a plan makes of one workload; Kubernetes is made for 150,000 in a cluster
PODS_MAX: Final = 100_000
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PodCount = Annotated[int, msgspec.Meta(ge=0, le=PODS_MAX)]  # each one is a pod or a group at least
PodSize = Annotated[int, msgspec.Meta(ge=1, le=PODS_MAX)]


METADATA_FIELDS: Final = {"labels": dict[str, str], "annotations": dict[str, str]}
# what no plan reads of the spec of a pod; the rest is checked as that of a pod
POD_FIELDS: Final = {"restartPolicy": Literal["Always", "Never", "OnFailure"]}
TEMPLATE_FIELDS: Final = {"metadata": METADATA_FIELDS, "spec": POD_FIELDS}
# of a container; the quantities are checked as those of a pod
RESOURCE_FIELDS: Final = {
    "requests": dict[str, Any],
    "limits": dict[str, Any],
    "claims": list[dict[str, Any]],
}


def fields_type(name: str, fields: Mapping[str, Any]) -> type[msgspec.Struct]:
    """Return a type of objects with these fields; one that is not `Required` may be missing or null.

    Args:
        fields: The type of each field by its name in the API. A dict has the fields of an object, or with `*` those of
            each value of a map; a list has those of its items.
    """
    described: list[Any] = []
    for field, value in fields.items():
        is_required = get_origin(value) is Required
        of = _field_type(field, get_args(value)[0] if is_required else value)
        described.append((field, of) if is_required else (field, of | None, None))
    return msgspec.defstruct(name, described, frozen=True, kw_only=True, module=__name__)


def _field_type(name: str, of: Any) -> Any:  # noqa: ANN401 -- a type, or a description of one
    if isinstance(of, list):
        return tuple[_field_type(name, of[0]), ...]  # type: ignore[misc]  # computed
    if isinstance(of, dict) and "*" in of:
        return dict[str, _field_type(name, of["*"])]  # type: ignore[misc]  # computed
    return fields_type(name, of) if isinstance(of, dict) else of
