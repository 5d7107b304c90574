"""Decode bytes, or the dicts of a YAML reader, to the Structs of `extender.cluster.types`, and convert them to the core.

Owns decoding, its error messages, and the conversion of nodes and groups; pods are converted in
`pod_conversion`. It also finds the fields of a built-in group that the API server dropped. The module has no state.

Note: objects are decoded directly first; only if that fails, nulls are dropped and the wrong field is
searched. So a list of 5,000 nodes takes milliseconds, and an error still names its field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar, cast, get_args

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.read.field_problems import field_problems, shown
from extender.cluster.read.priority_classes import Priorities
from extender.cluster.read.unknown_fields import fields_not_read
from extender.core.model import nodes as core
from extender.core.model.cluster_view import Guard
from extender.core.model.errors import BadInput, BadQuantity, several
from extender.core.model.ids import GangUid, GroupKey, GroupKind, NodeName
from extender.core.model.nodes import Node, Taint
from extender.core.model.pod_groups import Blueprint, Group, Mode, Source, composite_key, leaf_key
from extender.core.model.pods import NodeSelector, NodeSelectorRequirement, Operator, SelectorTerm
from extender.core.model.quantities import Written, amounts
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.kinds.plain_pods_kind import plain_uid
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.tree_policy import (
    LEVELS_MAX,
    NEAR_ENTRIES_MAX,
    KindPolicy,
    NearRole,
    TreeProfile,
    is_label_key,
    near_problem,
    not_a_key,
)
from extender.core.workloads.workload_object import (
    CONSTRAINT_ANNOTATIONS,
    LOST_MEMBERS_ANNOTATION,
    MANAGED_BY,
    OwnerReference,
    WorkloadObject,
)
from extender.ports.written_names import MANAGED_BY_LABEL, PARENT_ANNOTATIONS

WRITTEN: Final = "gang-extender.dev/written"  # fields of the spec, separated by commas
APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# preemptionPolicy is not listed: that of the pods takes precedence (B9).
FIELDS: Final = (
    "disruptionMode",
    "parentCompositePodGroupName",
    "priorityClassName",
    "resourceClaims",
    "schedulingConstraints",
)


class _Applied(msgspec.Struct):
    spec: dict[str, Any] = {}


def dropped_fields_of(group: api.Group, parent: str) -> tuple[str, ...]:
    """Return the fields of its spec that a built-in group was written with and does not have, sorted."""
    annotations = group.metadata.annotations
    written = {name.strip() for name in annotations.get(WRITTEN, "").split(",")}
    if APPLIED in annotations:
        written |= requested_fields(_spec_of(annotations[APPLIED]))
    spec = group.spec
    present = {
        field.encode_name
        for field in msgspec.structs.fields(spec)
        if getattr(spec, field.name) != field.default
    }
    present |= {"parentCompositePodGroupName"} if parent else set()
    return tuple(name for name in FIELDS if name in written - present)


def requested_fields(spec: Mapping[str, Any]) -> set[str]:
    """Return the fields of a spec whose loss would change its meaning."""
    mode = spec.get("disruptionMode")
    whole = mode == "PodGroup" or (isinstance(mode, Mapping) and "all" in mode)
    fields_set = {name for name in FIELDS if spec.get(name)}
    return fields_set if whole else fields_set - {"disruptionMode"}


def _spec_of(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=_Applied).spec
    except msgspec.MsgspecError:  # any client may write the annotation; an invalid one is ignored
        return {}


BUILTIN_GROUP: Final = "scheduling.k8s.io"
OUR_GROUP: Final = "gang-extender.dev"
API_VERSION: Final = f"{OUR_GROUP}/v1alpha1"

T = TypeVar("T", bound=api.KubernetesObject)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# of nodes with equal capacity or taints that share them; a cluster has some hundred
_CLASSES: Final = 4_096


# --- decoding


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] | None = ()


class ObjectPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list call."""

    items: tuple[api.Watched, ...]
    bad: tuple[BadInput, ...]  # objects that could not be read; they are not in `items`
    resource_version: str
    continue_: str


class WatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a watch; `type` determines how `decode` reads `object`."""

    type: str  # ADDED | MODIFIED | DELETED | BOOKMARK | ERROR
    object: msgspec.Raw = msgspec.Raw(b"{}")


_watch = msgspec.json.Decoder(WatchLine)
_raw_list = msgspec.json.Decoder(_RawList)
_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (*api.KINDS.values(), api.WorkloadManifest, api.TreeProfile)
}


def decode(kind: type[T], body: bytes | msgspec.Raw) -> T:
    """Return one object, decoded from JSON.

    Raises:
        BadInput: Not JSON, or a field of the wrong type; names object, field and value.
    """
    try:
        decoded: T = _decoders[kind].decode(body)
    except msgspec.ValidationError:
        return convert(kind, msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError) as fault:
        raise BadInput(f"{kind.__name__}: not JSON: {fault}") from fault
    return decoded


def convert(kind: type[T], value: object) -> T:
    """Return the Struct of an object that was read from YAML or JSON into dicts and lists.

    Raises:
        BadInput: A field of the wrong type; names object, field and value.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        plain = without_nulls(value)
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as fault:
        name = named(kind.__name__, plain)
        problems = [*map(str, field_problems(plain, kind, fields_not_read))]
        texts = problems or ["a field has another type than in the API"]
        raise several(tuple(f"{name}: {text}" for text in texts)) from fault


def decode_page(kind: type[api.Watched], body: bytes) -> ObjectPage:
    """Return the page of a list call; objects that cannot be read are in `bad`.

    Raises:
        BadInput: The answer is not a list of the Kubernetes API.
    """
    try:
        raw = _raw_list.decode(body)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise BadInput(f"list of {kind.__name__}: {fault}") from fault
    items: list[api.Watched] = []
    bad: list[BadInput] = []
    for item in raw.items or ():
        try:
            decoded = decode(kind, item)
        except BadInput as fault:
            bad.append(fault)
            continue
        if not decoded.api_version:  # items of built-in lists omit it
            decoded = replace(decoded, api_version=raw.api_version)
        items.append(decoded)
    return ObjectPage(
        items=tuple(items),
        bad=tuple(bad),
        resource_version=raw.metadata.resource_version,
        continue_=raw.metadata.continue_,
    )


def decode_watch(line: bytes) -> WatchLine:
    """Return a watch line with its object not yet decoded.

    Raises:
        BadInput: The line cannot be read (a broken connection can end inside a line).
    """
    try:
        return _watch.decode(line)
    except msgspec.DecodeError as fault:
        raise BadInput(f"watch line: {fault}") from fault


def without_nulls(nested: object) -> object:
    """Return a copy of nested dicts and lists without the fields that are null."""
    if isinstance(nested, dict):
        return {key: without_nulls(value) for key, value in nested.items() if value is not None}
    if isinstance(nested, list):
        return [without_nulls(value) for value in nested]
    return nested


def named(kind: str, value: object) -> str:
    """Return `Kind/namespace/name` of an object that may be malformed, without the missing parts."""
    metadata = value.get("metadata") if isinstance(value, Mapping) else None
    if not isinstance(metadata, Mapping):
        return kind
    parts = (kind, metadata.get("namespace"), metadata.get("name"))
    return "/".join(str(part) for part in parts if part)


# --- small conversions


def bad(api_object: api.KubernetesObject, field: str, text: str) -> BadInput:
    """Return an error that names object and field."""
    return BadInput(f"{api_object.label}: {field}: {text}")


def micros(at: datetime | None) -> int:
    """Return an instant in microseconds since 1970; 0 for None."""
    return 0 if at is None else (at - _EPOCH) // _MICROSECOND


def node_selector(required: api.RequiredNodes) -> NodeSelector:
    """Return the node selector of a required node affinity.

    Raises:
        BadInput: An operator has a wrong number of values; names the field below the terms.
    """
    terms = enumerate(required.node_selector_terms)
    return NodeSelector(
        terms=tuple(selector_term(f"nodeSelectorTerms[{n}]", term) for n, term in terms)
    )


def selector_term(path: str, term: api.NodeSelectorTerm) -> SelectorTerm:
    """Return a term of node affinity.

    Raises:
        BadInput: An operator has a wrong number of values; names the field below `path`.
    """
    return SelectorTerm(
        labels=tuple(_requirement(path, "matchExpressions", r) for r in term.match_expressions),
        fields=tuple(_requirement(path, "matchFields", r) for r in term.match_fields),
    )


def _requirement(
    path: str, where: str, requirement: api.SelectorRequirement
) -> NodeSelectorRequirement:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    wrong = _wrong_values(operator, values)
    if where == "matchFields" and not (key == "metadata.name" and operator in {"In", "NotIn"}):
        wrong = "only metadata.name with In or NotIn exists"
    if wrong:
        raise BadInput(f"{path}.{where}: {key} {operator} {shown(values)}: {wrong}")
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def _wrong_values(operator: Operator, values: tuple[str, ...]) -> str:
    match operator:
        case "In" | "NotIn":
            return "" if values else "needs at least one value"
        case "Exists" | "DoesNotExist":
            return "takes no value" if values else ""
        case "Gt" | "Lt":
            whole = len(values) == 1 and re.fullmatch(r"[+-]?[0-9]{1,19}", values[0])
            return "" if whole else "needs exactly one whole number"


# --- nodes


@lru_cache(maxsize=_CLASSES)
def _amounts(resources: tuple[tuple[str, Written], ...]) -> dict[str, int]:
    """Return `amounts`: one object for the nodes of a class, which nothing changes."""
    return amounts(dict(resources))


@lru_cache(maxsize=_CLASSES)
def _taints(taints: tuple[api.NodeTaint, ...]) -> tuple[Taint, ...]:
    return tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in taints)


def node_of(node: api.Node) -> Node:
    """Return the node of the core."""
    try:
        allocatable = _amounts(tuple(node.status.allocatable.items()))
    except BadQuantity as fault:
        raise bad(node, "status.allocatable", str(fault)) from fault
    return Node(
        name=NodeName(node.metadata.name),
        uid=node.metadata.uid,
        labels=node.metadata.labels,
        taints=_taints(node.spec.taints),
        unschedulable=node.spec.unschedulable,
        allocatable=allocatable,
        deleting=node.metadata.deletion_timestamp is not None,
    )


# --- groups


def source_of(group: api.Group) -> Source:
    """Return which of the two API groups an object belongs to."""
    return "builtin" if group.api_version.startswith(BUILTIN_GROUP + "/") else "crd"


def key_of(group: api.Group) -> GroupKey:
    """Return the key of a group."""
    namespace, name = group.key
    if isinstance(group, api.PodGroup):
        return leaf_key(namespace, name)
    return composite_key(namespace, name)


def group_of(group: api.Group, priorities: Priorities) -> Group:
    """Return the group of the core for a PodGroup or CompositePodGroup of any version.

    Args:
        priorities: The known priority classes, for a group without a number in `spec.priority`.

    Raises:
        BadInput: A union has no or several members, a minimum is missing, or a value is unknown.
    """
    spec = group.spec
    ref, old = spec.workload_ref, spec.pod_group_template_ref
    workload, template = (ref.workload_name, ref.template_name) if ref is not None else ("", "")
    if ref is None and old is not None and old.workload is not None:
        workload, template = old.workload.workload_name, old.workload.pod_group_template_name
    if _is_linked(group):
        workload = ""
    priority = priorities.resolve(spec.priority, spec.priority_class_name, spec.preemption_policy)
    basic, minimum = _policy(group)
    required = _required(group)
    parent, source = parent_of(group), source_of(group)
    return Group(
        key=key_of(group),
        uid=GangUid(group.metadata.uid),
        parent=parent or None,
        workload=workload or None,
        template=template or None,
        basic=basic,
        minimum=minimum,
        required=required,
        constraints=_constraints(group),
        disruption_mode=_mode(group),
        priority=priority.value,
        priority_class=priority.class_name,
        preemption_policy=priority.preemption_policy,
        created_us=micros(group.metadata.creation_timestamp),
        deleting=group.metadata.deletion_timestamp is not None,
        deleted_us=micros(group.metadata.deletion_timestamp),
        source=source,
        lost=dropped_fields_of(group, parent) if source == "builtin" else (),
        resource_version=group.metadata.resource_version,
        generation=group.metadata.generation,
        api_version=group.api_version,
        owner_uid=_owner_uid(group),
        managed_by=group.metadata.labels.get(MANAGED_BY_LABEL, ""),
        labels=group.metadata.labels,
        conditions=tuple((c.type, c.status, c.reason, c.message) for c in group.status.conditions),
    )


def _owner_uid(group: api.Group) -> str:
    """Return the UID of the controlling owner; that of plain pods for a group that was made for such, which has none."""
    metadata = group.metadata
    owners = [owner.uid for owner in metadata.owner_references if owner.controller]
    if not owners and metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY:
        return plain_uid(metadata.namespace, metadata.name)
    return next(iter(owners), "")


def guard_of(group: api.Group) -> Guard:
    """Return the metadata on which the deletion of a group depends; works for an invalid spec too."""
    metadata = group.metadata
    return Guard(
        uid=GangUid(metadata.uid),
        parent=parent_of(group) or None,
        deleting=metadata.deletion_timestamp is not None,
        finalizers=metadata.finalizers,
        resource_version=metadata.resource_version,
    )


def parent_of(group: api.Group) -> str:
    """Return the name of a group's parent: the field, else the first annotation that is set, else empty."""
    if group.spec.parent_composite_pod_group_name:
        return group.spec.parent_composite_pod_group_name
    annotations = group.metadata.annotations
    return next((annotations[name] for name in PARENT_ANNOTATIONS if annotations.get(name)), "")


def _is_linked(group: api.Group) -> bool:
    """Return whether our annotation hangs a group of another controller below a composite.

    It references the Workload of that controller, which is not the one of the tree: B8 does not count it.
    """
    return (
        source_of(group) == "builtin"
        and not group.spec.parent_composite_pod_group_name
        and bool(group.metadata.annotations.get(PARENT_ANNOTATIONS[0]))
        and any(owner.controller for owner in group.metadata.owner_references)
    )


def blueprints_of(workload: api.Workload) -> tuple[Blueprint, ...]:
    """Return the templates of a Workload, each with the name of its parent template."""
    return tuple(_blueprints(workload.spec, ""))


def _blueprints(holder: api.WorkloadSpec | api.Template, parent: str) -> Iterator[Blueprint]:
    kinds: tuple[tuple[GroupKind, tuple[api.Template, ...]], ...] = (
        ("PodGroup", holder.pod_group_templates),
        ("CompositePodGroup", holder.composite_pod_group_templates),
    )
    for kind, templates in kinds:
        for template in templates:
            yield Blueprint(template.name, kind, parent)
            yield from _blueprints(template, template.name)


def group_warnings(group: api.Group) -> tuple[str, ...]:
    """Return a warning for each field in an accepted but deprecated spelling (X1), and for an annotation that is not used."""
    constraints = group.spec.scheduling_constraints
    warnings = []
    if constraints.topology_constraints:
        warnings.append("schedulingConstraints.topologyConstraints is read as topology")
    for entry in (*constraints.topology, *constraints.topology_constraints):
        if not entry.key:
            alias = "level" if entry.level else "topologyKey"
            warnings.append(f"schedulingConstraints.topology[].{alias} is read as key")
    texts = [f"spec.{text}" for text in dict.fromkeys(warnings)]
    choice = group.metadata.annotations.get(LOST_MEMBERS_ANNOTATION)
    if choice is not None and _lost_members(group) is None:
        problem = f"is read of built-in groups alone; write spec.schedulingConstraints.lostMembers: {choice}"
        if source_of(group) == "builtin":
            problem = f"{choice!r} is none of {', '.join(get_args(core.LostMembers))}"
        texts.append(f"metadata.annotations[{LOST_MEMBERS_ANNOTATION}]: {problem}")
    if source_of(group) == "crd":
        text = "is read of workloads alone; a group has it in spec.schedulingConstraints"
        unread = (name for name in CONSTRAINT_ANNOTATIONS if name in group.metadata.annotations)
        texts += [f"metadata.annotations[{name}]: {text}" for name in unread]
    return tuple(f"{group.label}: {text}" for text in texts)


def _policy(group: api.Group) -> tuple[bool, int]:
    policy = group.spec.scheduling_policy or api.SchedulingPolicy()
    if (policy.basic is None) == (policy.gang is None):
        text = f"choose exactly one of basic, gang; found {'neither' if policy.gang is None else 'both'}"
        raise bad(group, "spec.schedulingPolicy", text)
    if policy.gang is None:
        return True, 1
    leaf = isinstance(group, api.PodGroup)
    minimum = policy.gang.min_count if leaf else policy.gang.min_group_count
    if minimum is None:
        field = "minCount" if leaf else "minGroupCount"
        raise bad(group, f"spec.schedulingPolicy.gang.{field}", "is required, at least 1")
    return False, minimum


def _required(group: api.Group) -> tuple[str, ...]:
    """Return the names of the children that always count, each once; only our composites have them."""
    policy = group.spec.scheduling_policy
    names = policy.gang.required_groups if policy is not None and policy.gang is not None else ()
    if names and (isinstance(group, api.PodGroup) or source_of(group) == "builtin"):
        text = f"only a CompositePodGroup of {OUR_GROUP} has it; found {', '.join(names)}"
        raise bad(group, "spec.schedulingPolicy.gang.requiredGroups", text)
    return tuple(dict.fromkeys(names))


def constraints_body(constraints: core.SchedulingConstraints) -> dict[str, Any]:
    """Return the constraints of a group as the API server stores them, without those that are not set."""
    body: dict[str, Any] = {
        field.encode_name: msgspec.to_builtins(value)
        for field in msgspec.structs.fields(constraints)
        if (value := getattr(constraints, field.name)) != field.default
    }
    if constraints.topology:
        body["topology"] = [{"key": key} for key in constraints.topology]
    if constraints.exclusive is not None:  # the default too: the field never changes
        body["exclusive"]["scope"] = constraints.exclusive.scope
    return body


def spec_body(spec: GroupSpec, *, clears_required: bool = False) -> dict[str, Any]:
    """Return the `spec` of a group without its parent and its Workload; see `GroupManifest` for `clears_required`."""
    policy: dict[str, object] = {"basic": {}}
    if not spec.basic:
        field = "minCount" if spec.kind == "PodGroup" else "minGroupCount"
        gang: dict[str, object] = {field: spec.minimum}
        if spec.required or clears_required:
            gang["requiredGroups"] = list(spec.required)
        policy = {"gang": gang}
    body: dict[str, Any] = {
        "schedulingPolicy": policy,
        "disruptionMode": {spec.disruption_mode: {}},
    }
    if constraints := constraints_body(spec.constraints):
        body["schedulingConstraints"] = constraints
    if spec.priority_class:
        body["priorityClassName"] = spec.priority_class
    return body


def _constraints(group: api.Group) -> core.SchedulingConstraints:
    """Return the constraints of a group; but for `topology` only our kinds have them."""
    given = group.spec.scheduling_constraints
    if given == api.SchedulingConstraints():
        return core.SchedulingConstraints()
    topology = _topology(group)
    for field, text in (*_not_built_in(group), *_impossible(group)):
        raise bad(group, f"spec.schedulingConstraints.{field}", text)
    given = replace(given, topology=())
    constraints = msgspec.convert(given, core.SchedulingConstraints, from_attributes=True)
    return replace(
        constraints,
        topology=topology,
        lost_members=_lost_members(group) or constraints.lost_members,
        preferred=tuple(dict.fromkeys(constraints.preferred)),
        near=tuple(dict.fromkeys(constraints.near)),
        slices=core.by_size(constraints.slices),
    )


def _lost_members(group: api.Group) -> core.LostMembers | None:
    """Return what the annotation of a built-in group, whose spec has no such field, asks for; None: nothing that is known."""
    choice = group.metadata.annotations.get(LOST_MEMBERS_ANNOTATION)
    is_one = source_of(group) == "builtin" and choice in get_args(core.LostMembers)
    return cast("core.LostMembers", choice) if is_one else None


def _topology(group: api.Group) -> tuple[str, ...]:
    constraints = group.spec.scheduling_constraints
    keys = []
    for entry in (*constraints.topology, *constraints.topology_constraints):
        key = entry.key or entry.level or entry.topology_key
        if not key:
            raise bad(group, "spec.schedulingConstraints.topology", "an entry has no key")
        keys.append(key)
    return tuple(dict.fromkeys(keys))


def _not_built_in(group: api.Group) -> Iterable[tuple[str, str]]:
    """Yield the fields that only groups of our kinds have, of one that is built in, each with what is wrong."""
    if source_of(group) != "builtin":
        return
    for field, value in group.spec.scheduling_constraints.of_our_kinds():
        match value:
            case (str(), *_):
                text = ", ".join(value)
            case (api.NearEntry(), *_):
                text = ", ".join(entry.group for entry in value)
            case api.ExclusiveEntry():
                text = f"key {value.key}"
            case (api.SliceEntry(), *_):
                yield field, f"only PodGroups of {OUR_GROUP} have them; found {len(value)}"
                continue
            case _:
                text = "true" if value is True else str(value)
        yield field, f"only groups of {OUR_GROUP} have it; found {text}"


def _impossible(group: api.Group) -> Iterable[tuple[str, str]]:
    """Yield the fields whose values are not possible, each with what is wrong."""
    given = group.spec.scheduling_constraints
    if "" in given.preferred:
        yield "preferred", "an entry is empty; name the key of a node label, or leave it out"
    if given.exclusive is not None and not given.exclusive.key:
        yield "exclusive.key", "is empty; name the key of a node label, such as net/rack"
    if given.balanced and not given.preferred:
        yield "balanced", core.UNBALANCED
    for n, entry in enumerate(given.near):
        if not entry.group:
            yield f"near[{n}].group", "is empty; name another group of the tree"
        if not entry.key:
            yield f"near[{n}].key", "is empty; name the key of a node label, such as net/block"
        if entry.group == group.metadata.name:
            yield f"near[{n}].group", f"{entry.group} is itself; name another group of the tree"
    if given.slices and group.kind != "PodGroup":
        yield "slices", f"only PodGroups of {OUR_GROUP} have them; found {len(given.slices)}"
    levels = tuple(core.SliceLevel(entry.key, entry.size) for entry in given.slices)
    if problem := core.slices_problem(levels):
        yield "slices", problem


def _mode(group: api.Group) -> Mode:
    match group.spec.disruption_mode:
        case None | "Pod":
            return "single"
        case "PodGroup":
            return "all"
        case str(word):
            text = f'"{word}" is none of Pod, PodGroup, single, all'
            raise bad(group, "spec.disruptionMode", text)
        case mode:
            if mode.single is not None and mode.all is not None:
                text = "choose exactly one of single, all; found both"
                raise bad(group, "spec.disruptionMode", text)
            return "all" if mode.all is not None else "single"


def workload_of(manifest: api.WorkloadManifest) -> WorkloadObject:
    """Return the workload of the core."""
    metadata = manifest.metadata
    owner = next((owner for owner in metadata.owner_references if owner.controller), None)
    return WorkloadObject(
        api_version=manifest.api_version,
        kind=manifest.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        deleting=metadata.deletion_timestamp is not None,
        labels=metadata.labels,
        annotations=metadata.annotations,
        owner=msgspec.convert(owner, OwnerReference, from_attributes=True) if owner else None,
        spec=manifest.spec,
        status=manifest.status,
    )


_NO_POD_SETS = ("DisaggregatedSet", "PodGang")


def profile_of(profile: api.TreeProfile) -> TreeProfile:
    """Return the profile of the core.

    The rules of the CustomResourceDefinition are checked here too, for profiles that were read from a file.

    Raises:
        BadInput: A kind is unknown or there twice, or does not have the gang mode; names object, field and value.
    """
    kinds: dict[str, KindPolicy] = {}
    for index, entry in enumerate(profile.spec.kinds):
        field = f"{profile.label}: spec.kinds[{index}]"
        kind = BY_KIND.get(entry.kind)
        if kind is None:
            raise BadInput(f"{field}.kind: {entry.kind!r} is none of {', '.join(BY_KIND)}")
        if entry.kind in kinds:
            raise BadInput(f"{field}.kind: {entry.kind!r} is there twice; write one entry per kind")
        if entry.gang not in kind.gang_modes:
            modes = ", ".join(kind.gang_modes)
            raise BadInput(f"{field}.gang: {entry.gang!r} is not for {entry.kind}; it has {modes}")
        if entry.native_groups != "Ignore" and kind.native_parts is None:
            able = ", ".join(name for name, of in BY_KIND.items() if of.native_parts is not None)
            text = f"{entry.native_groups!r} is not for {entry.kind}, whose controller makes no groups; it is for {able}"
            raise BadInput(f"{field}.nativeGroups: {text}")
        if entry.topology.read_from and entry.kind in _NO_POD_SETS:
            text = f"{entry.topology.read_from[0]!r} is not for {entry.kind}, of which Kueue reads no topology"
            raise BadInput(f"{field}.topology.readFrom: {text}; leave it out")
        kinds[entry.kind] = KindPolicy(
            enabled=entry.enabled,
            gang=entry.gang,
            root_topology=_key(f"{field}.topology.root", entry.topology.root or None),
            leaf_topology=_key(f"{field}.topology.leaf", entry.topology.leaf or None),
            root_preferred=_keys(f"{field}.topology.rootPreferred", entry.topology.root_preferred),
            leaf_preferred=_keys(f"{field}.topology.leafPreferred", entry.topology.leaf_preferred),
            balanced=entry.topology.balanced,
            slices=_slices(f"{field}.topology.slices", entry.topology.slices),
            levels=_keys(f"{field}.topology.levels", entry.topology.levels, LEVELS_MAX),
            read_topology=entry.topology.read_from,
            root_exclusive=_exclusive(f"{field}.exclusive.root.key", entry.exclusive.root),
            leaf_exclusive=_exclusive(f"{field}.exclusive.leaf.key", entry.exclusive.leaf),
            near=_near(f"{field}.near", entry.near),
            lost_members=entry.lost_members,
            disruption_mode=entry.disruption_mode,
            native_groups=entry.native_groups,
        )
    return TreeProfile(name=profile.metadata.name, kinds=kinds)


def _key(field: str, key: str | None, example: str = "net/rack") -> str:
    """Return a key of a node label; empty for None, which is none."""
    if key is not None and not is_label_key(key):
        raise BadInput(f"{field}: {not_a_key(key, example)}")
    return key or ""


def _exclusive(field: str, entry: api.ExclusiveEntry | None) -> core.ExclusiveDomain | None:
    if entry is None:
        return None
    return core.ExclusiveDomain(_key(field, entry.key), entry.scope, entry.resource)


def _slices(field: str, entries: tuple[api.SliceEntry, ...]) -> tuple[core.SliceLevel, ...]:
    levels = tuple(core.SliceLevel(_key(field, entry.key), entry.size) for entry in entries)
    if problem := core.slices_problem(levels):
        raise BadInput(f"{field}: {problem}")
    return core.by_size(levels)


def _near(field: str, entries: tuple[api.ProfileNear, ...]) -> tuple[NearRole, ...]:
    if len(entries) > NEAR_ENTRIES_MAX:
        text = f"{len(entries)} entries, at most {NEAR_ENTRIES_MAX}; leave out the last"
        raise BadInput(f"{field}: {text}")
    for n, entry in enumerate(entries):
        for name, role in (("role", entry.role), ("to", entry.to)):
            if not role:
                text = "is empty; name a role of the workloads, such as a ReplicatedJob"
                raise BadInput(f"{field}[{n}].{name}: {text}")
        if entry.role == entry.to:
            raise BadInput(f"{field}[{n}].to: {entry.to!r} is the role itself; name another one")
        _key(f"{field}[{n}].key", entry.key, "net/block")
    wishes = tuple(NearRole(entry.role, entry.to, entry.key) for entry in entries)
    if problem := near_problem(wishes):
        raise BadInput(f"{field}: {problem}")
    return wishes


def _keys(field: str, keys: tuple[str, ...], most: int = core.PREFERRED_MAX) -> tuple[str, ...]:
    for key in keys:
        _key(field, key)
    if len(keys) > most:
        raise BadInput(f"{field}: {len(keys)} keys, at most {most}; leave out the widest")
    if len({*keys}) < len(keys):
        text = f"{', '.join(keys)} has a key twice; name each once, the narrowest first"
        raise BadInput(f"{field}: {text}")
    return keys
