"""Read a cluster from files, for `plan` and `serve --cluster`.

Files contain the output of `kubectl get ... -o yaml`, or are written by users. No admission runs on
them, so this module fills in what an API server would: namespace, UID, creation time, the
value of a priority class, `allocatable` from `capacity`. What an API server would refuse is
`BadInput`, with file, document, object, field and value. Gates, markers and a scheduler name are not
added to pods of the files: on a real cluster the MutatingAdmissionPolicy in `deploy/` does that. Workloads
(Job, JobSet, ...) of -f are replaced by the groups and pods that they become, see `workload_expansion`; those of
a service are kept, with the pods that their controllers would make, see there too.

Note: a node without `pods` in its capacity gets 110, the kubelet's default, and a warning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import (
    AnyEntry,
    Entry,
    Ident,
    Role,
    SomeEntry,
    SourceEntry,
    filled_in_uid,
    has_no_pods,
    read_all,
    with_metadata,
)
from extender.cluster.manifests.manifest_validation import admission_warnings
from extender.cluster.manifests.workload_expansion import (
    NO_LIVE_SOURCES,
    Expansion,
    ServedWorkloads,
    expand,
    served_workloads,
)
from extender.cluster.manifests.workload_objects import (
    LiveSources,
    with_leaf,
    with_limit_ranges,
    with_runtime_class,
)
from extender.cluster.manifests.yaml_reader import Progress, no_progress
from extender.cluster.read.object_decoding import key_of
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.read.pod_conversion import ended, with_status
from extender.cluster.read.priority_classes import Priorities
from extender.core.model.errors import BadInput, located, several, texts_of
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.message_formatting import counted, did_you_mean
from extender.core.model.pods import VolumeConstraints
from extender.queries.plan.plan_steps import GroupOrigin, RefusedWorkload

KUBELET_PODS_MAX: Final = 110  # the kubelet's default of maxPods
_QUOTA: Final = "ResourceQuota"  # admission reads it for each pod
STEP: Final = timedelta(seconds=1)  # between objects that have no creation time of their own
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)  # used if no object has a creation time
_FEED_ORDER: Final[tuple[type[api.Readable], ...]] = (  # referenced objects first
    api.PriorityClass,
    api.StorageClass,
    api.PersistentVolume,
    api.PersistentVolumeClaim,
    api.Node,
    api.Workload,
    api.PodDisruptionBudget,
    api.PodGroup,
    api.CompositePodGroup,
    api.Pod,
)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of the files, and what is to be planned on it."""

    world: ObjectStore
    groups: tuple[GroupKey, ...]  # from -f, in file order
    pods: tuple[PodUid, ...]  # from -f, in file order; ended ones left out
    order: Mapping[GroupKey | PodUid, int]  # file order of all groups and pods, breaks ties
    warnings: tuple[str, ...]
    origins: Mapping[GroupKey, GroupOrigin] = {}  # of the groups that were made from workloads
    refused: tuple[RefusedWorkload, ...] = ()  # workloads of -f that no tree can be made from


def load(cluster: Sequence[str], to_plan: Sequence[str] = ()) -> Manifest:
    """Read files and return the cluster they describe.

    Args:
        cluster: Paths given with --cluster: files, directories, or `-` for standard input.
        to_plan: Paths given with -f; their objects replace the same objects of `cluster`.

    Raises:
        BadInput: An object cannot be read, or an API server would refuse it. Show the message.
    """
    return build(complete(read_entries(cluster, to_plan)))


def read_entries(
    cluster: Sequence[str], to_plan: Sequence[str] = (), progress: Progress = no_progress
) -> tuple[AnyEntry, ...]:
    """Return the objects of files, those of `to_plan` last; see `load`."""
    return read_all(((cluster, Role.CLUSTER), (to_plan, Role.WANTED)), progress)


# --- filling in


class Memory(msgspec.Struct, kw_only=True):
    """What a manifest cluster keeps from one reading of the files to the next."""

    created: dict[Ident, datetime] = {}  # creation times that were filled in
    incarnation: dict[Ident, int] = {}  # how often an object of this name was deleted


class CompleteManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Objects as an API server would store them."""

    # every object once, in file order, --cluster before -f; nodes that lack nothing before all others
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...]
    served: ServedWorkloads = ServedWorkloads()  # of a service
    origins: Mapping[GroupKey, GroupOrigin] = {}
    refused: tuple[RefusedWorkload, ...] = ()
    claims: Mapping[tuple[str, str], VolumeConstraints] = {}  # of the cluster of the service


def complete(
    entries: Iterable[AnyEntry],
    memory: Memory | None = None,
    *,
    serving: bool = False,
    live: LiveSources = NO_LIVE_SOURCES,
) -> CompleteManifest:
    """Return the objects with the fields that an API server or a kubelet would fill in, and what workloads become.

    Args:
        entries: In file order, --cluster before -f; of several entries of one object the last counts.
        memory: Gets the creation times that are filled in, for the next call.
        serving: Keep the workloads for a service, and make their pods; otherwise groups and pods are made from those of -f.
        live: The cluster of the service: pods of a workload of -f that exist already, profiles, and claims.

    Raises:
        BadInput: An object names a priority class that does not exist, or a workload cannot be read.
    """
    memory = Memory() if memory is None else memory
    last: dict[Ident, AnyEntry] = {}
    warnings = []
    for entry in entries:
        ident = entry.ident
        before = last.pop(ident, None)
        if before is not None and before.role is entry.role:
            warnings.append(
                f"{entry.obj.label}: found twice, in {before.where} and {entry.where}; the second one counts"
            )
        last[ident] = entry if before is None else _inherited(entry, before)
    last = _without_made(last)
    warnings += (f"{entry.where}: {text}" for entry in last.values() for text in entry.notes)
    warnings += _left_out(last.values())
    complete_nodes = [e for e in last.values() if isinstance(e, Entry) and _is_complete_node(e.obj)]
    others = [e for e in last.values() if not _is_complete_node(e.obj)]
    created = (entry.obj.metadata.creation_timestamp or _BEGINNING for entry in complete_nodes)
    latest = max(created, default=None)
    labelled = (
        replace(entry, obj=with_leaf(entry.obj)) if isinstance(entry.obj, api.Pod) else entry
        for entry in others
    )
    identified = [_identified(entry, memory) for entry in labelled]
    _check_uids(identified)
    if serving:
        identified = list(_dated(identified, memory, latest))
        expansion, served = Expansion(), served_workloads(identified)
    else:
        expansion, served = expand(identified, live=live), ServedWorkloads()
        if expansion.not_planned:
            identified = [e for e in identified if e.ident not in expansion.not_planned]
    expanded = {**expansion.made, **served.pods}
    complete_entries = (*_with_made(identified, expanded), *expansion.plain)
    filled = [_identified(entry, memory) for entry in complete_entries]
    filled = list(_dated(filled, memory, latest))
    filled, of_classes = _admitted(filled, others, expanded)
    warnings += of_classes
    converted = _with_counts([_with_allocatable(entry) for entry in filled])
    nodes = (entry.obj for entry in filled if isinstance(entry.obj, api.Node))
    limited = [n for n in nodes if "pods" not in (n.status.allocatable or n.status.capacity)]
    if limited:
        warnings.append(
            f"{counted(len(limited), 'node')} without pods in the capacity, such as {limited[0].label}; "
            f"{KUBELET_PODS_MAX} is assumed, the kubelet's default"
        )
    warnings += [text for entry in converted for text in admission_warnings(entry.obj)]
    _check_priorities(converted)
    return CompleteManifest(
        entries=(*complete_nodes, *converted),
        warnings=(*warnings, *expansion.warnings),
        served=served,
        origins=expansion.origins,
        refused=tuple(expansion.refused),
        claims=live.claims,
    )


def _is_complete_node(obj: api.KubernetesObject) -> bool:
    """Return whether an object is a node to which nothing is to be added, as an API server has them: of a large cluster most objects."""
    if not isinstance(obj, api.Node) or "pods" not in obj.status.allocatable:
        return False
    return bool(obj.metadata.uid) and obj.metadata.creation_timestamp is not None


def _without_made(entries: Mapping[Ident, AnyEntry]) -> dict[Ident, AnyEntry]:
    """Return the entries without the workloads that are made from an object and that the files have besides it."""
    owners = {
        (owner.kind, entry.obj.metadata.namespace, owner.name)
        for entry in entries.values()
        for owner in entry.obj.metadata.owner_references
        if owner.controller and isinstance(entry, SourceEntry)
    }
    return {
        ident: entry
        for ident, entry in entries.items()
        if not (isinstance(entry, SourceEntry) and entry.holder in owners)
    }


def _left_out(entries: Iterable[AnyEntry]) -> Iterator[str]:
    """Yield a line with the objects of -f that have nothing to plan, and one with those of which that is not known."""
    others = [entry.obj for entry in entries if isinstance(entry.obj, api.OtherObject)]
    for without_pods, text in (
        (None, "left out; how many pods they allow is not in the plan"),
        (True, "left out, as they have no pods"),
        (False, "left out; if they make pods, give those in the files"),
    ):
        kinds = Counter(
            obj.kind
            for obj in others
            if (None if obj.kind == _QUOTA else has_no_pods(obj)) is without_pods
        )
        if kinds:
            yield f"{text}: " + ", ".join(f"{kind} ({n})" for kind, n in sorted(kinds.items()))


def _with_made(
    entries: Sequence[AnyEntry], made_of: Mapping[Ident, tuple[Entry, ...]]
) -> list[Entry]:
    """Return the entries, with what was made from each workload in its place and in place of the same objects."""
    if not made_of:
        return [entry for entry in entries if isinstance(entry, Entry)]
    plain = {entry.ident: entry for entry in entries if isinstance(entry, Entry)}
    new = {new_entry.ident for new_entry in chain.from_iterable(made_of.values())}
    result: list[Entry] = []
    for entry in entries:
        if isinstance(entry, SourceEntry):
            for new_entry in made_of.get(entry.ident, ()):
                before = plain.get(new_entry.ident)
                result.append(new_entry if before is None else _inherited(new_entry, before))
        elif entry.ident not in new:
            result.append(entry)
    return result


def _inherited(entry: SomeEntry, before: AnyEntry) -> SomeEntry:
    """Return an object of -f with UID and creation time of the object it replaces, as with `kubectl apply`."""
    mine, theirs = entry.obj.metadata, before.obj.metadata
    obj = with_metadata(
        entry.obj,
        uid=mine.uid or theirs.uid,
        creation_timestamp=mine.creation_timestamp or theirs.creation_timestamp,
    )
    return replace(entry, obj=obj)


def _identified(entry: SomeEntry, memory: Memory) -> SomeEntry:
    if entry.obj.metadata.uid:
        return entry
    uid = filled_in_uid(entry.ident, memory.incarnation.get(entry.ident, 0))
    return replace(entry, obj=with_metadata(entry.obj, uid=uid))


def _dated(
    entries: Sequence[SomeEntry], memory: Memory, latest: datetime | None
) -> Iterator[SomeEntry]:
    """Yield the objects; those without a creation time get one after all others, a second apart, in file order.

    Args:
        latest: The last creation time of further objects; None: there are none.
    """
    times = [latest, *(e.obj.metadata.creation_timestamp for e in entries)]
    last = max([at for at in times if at] + list(memory.created.values()), default=_BEGINNING)
    for entry in entries:
        if entry.obj.metadata.creation_timestamp is not None:
            yield entry
            continue
        at = memory.created.setdefault(entry.ident, last + STEP)
        last = max(last, at)
        obj = with_metadata(entry.obj, creation_timestamp=at)
        yield replace(entry, obj=obj)


def _admitted(
    entries: Sequence[Entry],
    sources: Iterable[AnyEntry],
    expanded: Mapping[Ident, tuple[Entry, ...]],
) -> tuple[list[Entry], list[str]]:
    """Return the entries, with what admission adds to pods of -f and to made ones; and warnings.

    That is what their RuntimeClass has, and the LimitRanges of their namespace.
    """
    objects = sorted((entry.obj for entry in sources), key=lambda obj: obj.key)
    classes = {obj.metadata.name: obj for obj in objects if isinstance(obj, api.RuntimeClass)}
    ranges: defaultdict[str, list[api.LimitRange]] = defaultdict(list)
    for obj in objects:
        if isinstance(obj, api.LimitRange):
            ranges[obj.metadata.namespace].append(obj)
    new = {new_entry.ident for new_entry in chain.from_iterable(expanded.values())}
    specs: dict[tuple[int, str], api.PodSpec] = {}  # pods of one template share theirs
    absent: Counter[str] = Counter()
    faults: list[str] = []
    result = []
    for entry in entries:
        pod = entry.obj
        added = entry.role is Role.WANTED or entry.ident in new
        if not isinstance(pod, api.Pod) or not added:
            result.append(entry)
            continue
        name, namespace = pod.spec.runtime_class_name, pod.metadata.namespace
        if name and name not in classes:
            absent[name] += not pod.spec.overhead
        template = (id(pod.spec), namespace)
        try:
            if template not in specs:
                limited = with_limit_ranges(pod, ranges.get(namespace, ()))
                runtime = classes.get(name)
                if runtime is not None:
                    limited = with_runtime_class(limited, runtime)
                specs[template] = limited.spec
        except BadInput as fault:
            specs[template] = pod.spec
            faults += texts_of(located(entry.where, fault))
        admitted = replace(pod, spec=specs[template])
        result.append(replace(entry, obj=admitted))
    if faults:
        raise several(tuple(faults))
    return result, [
        f"RuntimeClass {name} is not in the files: what it adds to {counted(pods, 'pod')} (overhead, node selector, "
        f"tolerations) is not in the plan; add the output of `kubectl get runtimeclass {name} -o yaml`"
        for name, pods in sorted(absent.items())
        if pods
    ]


def _with_allocatable(entry: Entry) -> Entry:
    node = entry.obj
    if not isinstance(node, api.Node):
        return entry
    resources = node.status.allocatable or node.status.capacity
    if resources is node.status.allocatable and "pods" in resources:
        return entry
    pods = node.status.capacity.get("pods", KUBELET_PODS_MAX)
    status = replace(node.status, allocatable={"pods": pods, **resources})
    return replace(entry, obj=replace(node, status=status))


def _with_counts(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with the status of PodDisruptionBudgets computed if it is missing."""
    pods = [entry.obj for entry in entries if isinstance(entry.obj, api.Pod)]

    def filled(entry: Entry) -> Entry:
        if not isinstance(entry.obj, api.PodDisruptionBudget):
            return entry
        try:
            return replace(entry, obj=with_status(entry.obj, pods))
        except BadInput as fault:
            raise BadInput(f"{entry.where}: {fault}") from fault

    return [filled(entry) for entry in entries]


def _check_uids(entries: Iterable[AnyEntry]) -> None:
    """Raise BadInput for pods and groups of different names with the same UID: one would replace the other."""
    of_uid: dict[str, AnyEntry] = {}
    faults = []
    for entry in entries:
        obj, uid = entry.obj, entry.obj.metadata.uid
        if isinstance(obj, api.Pod | api.Group):
            first = of_uid.setdefault(uid, entry)
            if first is not entry:
                text = f"{uid!r} is that of {first.obj.label} as well; leave it out of one"
                faults.append(f"{entry.where}: {obj.label}: metadata.uid: {text}")
    if faults:
        raise several(tuple(faults))


def _check_priorities(entries: Sequence[Entry]) -> None:
    """Raise BadInput if objects name a priority class that does not exist, and have no number."""
    classes = Priorities()
    for entry in entries:
        if isinstance(entry.obj, api.PriorityClass):
            classes.put(entry.obj)
    faults = []
    for entry in entries:
        obj = entry.obj
        if not isinstance(obj, api.Pod | api.Group) or (isinstance(obj, api.Pod) and ended(obj)):
            continue
        name = obj.spec.priority_class_name
        if classes.resolve(obj.spec.priority, name, "").unknown:
            text = f'no PriorityClass "{name}" in the files{did_you_mean(name, classes.names())}'
            faults.append(f"{entry.where}: {obj.label}: spec.priorityClassName: {text}")
    if faults:
        raise several(tuple(faults))


# --- building


def build(manifest: CompleteManifest) -> Manifest:
    """Return the cluster of complete objects."""
    world = ObjectStore(claims=manifest.claims)
    entries = in_feed_order(manifest.entries)
    faults = world.upsert_all(entry.obj for entry in entries)
    if faults:
        texts = (texts_of(located(entries[n].where, fault)) for n, fault in faults.items())
        raise several(tuple(chain.from_iterable(texts)))
    order: dict[GroupKey | PodUid, int] = {}
    to_plan: list[GroupKey | PodUid] = []
    for n, entry in enumerate(manifest.entries):
        obj = entry.obj
        if isinstance(obj, api.Group) or (isinstance(obj, api.Pod) and not ended(obj)):
            key = key_of(obj) if isinstance(obj, api.Group) else PodUid(obj.metadata.uid)
            order[key] = n
            if entry.role is Role.WANTED:
                to_plan.append(key)
    return Manifest(
        world=world,
        groups=tuple(dict.fromkeys(key for key in to_plan if isinstance(key, GroupKey))),
        pods=tuple(key for key in to_plan if not isinstance(key, GroupKey)),
        order=order,
        warnings=(*manifest.warnings, *world.warnings),
        origins=manifest.origins,
        refused=manifest.refused,
    )


def in_feed_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return the objects sorted so that referenced kinds come first."""
    return sorted(entries, key=lambda entry: _FEED_ORDER.index(type(entry.obj)))
