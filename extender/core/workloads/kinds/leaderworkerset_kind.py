"""LeaderWorkerSet: a root per replica and template revision, a gang of leader and workers; replicas also of a DisaggregatedSet.

Replicas scale and roll one by one, so each is a tree of its own; with the annotation `gang-extender.dev/gang: all` a Basic
root is above them.

Source: leaderworkerset.x-k8s.io/v1 of sigs.k8s.io/lws v0.9.0, pkg/webhooks/pod_webhook.go and pkg/controllers. The pods of a replica are known by its
index and by the revision of the template. The StatefulSet controller writes a leader's index into
`apps.kubernetes.io/pod-index`; the webhook of LeaderWorkerSet adds the labels that only the second pass of the policy sees.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from extender.core.model.message_formatting import counted
from extender.core.model.pod_groups import CHILDREN_MAX
from extender.core.workloads.kinds.statefulset_kind import LEADER_WORKER_SET_NAME, POD_INDEX
from extender.core.workloads.name_rules import (
    LabelCondition,
    LabelValue,
    NameRule,
    Piece,
    joined_name,
    split_name,
)
from extender.core.workloads.tree_parts import (
    BASIC,
    Composite,
    Leaf,
    LeafUse,
    Observed,
    Part,
    PartStep,
)
from extender.core.workloads.tree_policy import (
    InvalidPolicy,
    TreePolicy,
    TreeRefusal,
    is_label_key,
    not_a_key,
    refusal_of,
)
from extender.core.workloads.workload_kind import (
    TEMPLATE_FIELDS,
    UID_PIECE,
    Notice,
    PodCount,
    PodSize,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    number,
    only_whole,
    scheduling_block,
    template_kept_out,
    template_label,
)
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    GANG_ANNOTATION,
    LEAF_LABEL,
    WorkloadObject,
)

PREFIX: Final = "leaderworkerset.sigs.k8s.io"
NAME_LABEL: Final = LEADER_WORKER_SET_NAME
REVISION_LABEL: Final = f"{PREFIX}/template-revision-hash"
WORKER_INDEX: Final = f"{PREFIX}/worker-index"
GROUP_INDEX: Final = f"{PREFIX}/group-index"
SUBGROUP_INDEX: Final = f"{PREFIX}/subgroup-index"
EXCLUSIVE: Final = f"{PREFIX}/exclusive-topology"
SUBGROUP_EXCLUSIVE: Final = f"{PREFIX}/subgroup-exclusive-topology"
SUBGROUP_KEY: Final = f"{PREFIX}/subgroup-key"
# Values of LEAF_LABEL; without it, one leaf holds a replica.
ROLE: Final = "role"  # the leader, and all workers
SUBGROUP: Final = "subgroup"  # a subgroup; the leader is in the first one
LEADER_AND_SUBGROUPS: Final = "leader-and-subgroups"  # the leader, and the workers of each subgroup
PLANNED: Final = "planned"  # stands for the revision of pods that do not exist yet
TAIL: Final = r"-(?P<index>\d+)-(?P<revision>[a-z0-9]+)(?:-leader|-worker|-s\d+)?"

# Of a leaf label, where `item` has the LeaderWorkerSetSpec in `spec`.
LEAF_LABEL_CEL: Final = (
    "has(item.spec.leaderWorkerTemplate.subGroupPolicy) ? (((has(item.spec.startupPolicy)"
    " && item.spec.startupPolicy == 'LeaderReady')"
    " || (has(item.spec.leaderWorkerTemplate.subGroupPolicy.subGroupPolicyType)"
    " && item.spec.leaderWorkerTemplate.subGroupPolicy.subGroupPolicyType == 'LeaderExcluded'))"
    f" ? '{LEADER_AND_SUBGROUPS}' : '{SUBGROUP}')"
    " : ((has(item.spec.startupPolicy) && item.spec.startupPolicy == 'LeaderReady')"
    f" ? '{ROLE}' : '')"
)


EXCLUSIVE_LEVEL_CEL: Final = (
    f"({LEAF_LABEL_CEL.replace('item.', 'object.')}) == ''"
    " && has(object.spec.leaderWorkerTemplate.size) && object.spec.leaderWorkerTemplate.size > 1 ? 'leaf'"
    f" : '{GANG_ANNOTATION}' in variables.annotations && variables.annotations['{GANG_ANNOTATION}'] == 'all' ? '' : 'root'"
)


def leaf_label(item: Mapping[str, Any]) -> str:
    """Return the leaf label for the pod templates of `item.spec`; the twin of LEAF_LABEL_CEL."""
    spec = item.get("spec") or {}
    subgroups = (spec.get("leaderWorkerTemplate") or {}).get("subGroupPolicy")
    if subgroups is None:
        return ROLE if _leader_first(spec) else ""
    excluded = subgroups.get("subGroupPolicyType") == "LeaderExcluded"
    return LEADER_AND_SUBGROUPS if excluded or _leader_first(spec) else SUBGROUP


def replica_rules(head: LabelValue, *middle: Piece) -> tuple[NameRule, ...]:
    """Return the name rules of pods whose leaf has the name `<head><middle>-<index>-<revision>` and a suffix for its part.

    A worker's pod index is its place among the workers, so it counts for leaders only. Without the webhook's labels a pod
    of a subgroup has no name.
    """
    leader = LabelCondition(key=WORKER_INDEX, value="0")
    worker = LabelCondition(key=WORKER_INDEX, value="0", absent=True)
    leaf = {value: LabelCondition(key=LEAF_LABEL, value=value) for value in _LEAVES}
    whole = tuple(LabelCondition(key=LEAF_LABEL, value=value, absent=True) for value in _LEAVES)

    def rule(when: tuple[LabelCondition, ...], index: str, *suffix: Piece) -> NameRule:
        number_, revision = LabelValue(key=index), LabelValue(key=REVISION_LABEL)
        rest = (*middle, "-", number_, "-", revision, *suffix)
        return NameRule(when=when, head=head, rest=rest)

    subgroup: tuple[Piece, ...] = ("-s", LabelValue(key=SUBGROUP_INDEX))
    leading = [
        rule((leaf[value], leader), index, "-leader")
        for value in (ROLE, LEADER_AND_SUBGROUPS)
        for index in (POD_INDEX, GROUP_INDEX)
    ]
    return (
        *leading,
        rule((leaf[ROLE], worker), GROUP_INDEX, "-worker"),
        rule((leaf[LEADER_AND_SUBGROUPS], worker), GROUP_INDEX, *subgroup),
        rule((leaf[SUBGROUP],), GROUP_INDEX, *subgroup),
        rule((*whole, leader), POD_INDEX),
        rule(whole, GROUP_INDEX),
    )


_LEAVES = (ROLE, SUBGROUP, LEADER_AND_SUBGROUPS)


# --- which replicas there are


class Replica(msgspec.Struct, frozen=True, order=True, gc=False):
    """A replica: its index and the revision of its template, in a DisaggregatedSet also the set's revision and the role."""

    set_revision: str
    role: str
    index: int
    revision: str

    @property
    def rest(self) -> str:
        """Return what follows the name of the workload in the name of the replica."""
        middle = f"-{self.set_revision}-{self.role}" if self.role else ""
        return f"{middle}-{self.index}-{self.revision}"

    def namer(self, workload: str) -> Callable[[str], str]:
        """Return the function that gives the name of a group of this replica by its suffix."""
        return lambda suffix: joined_name(workload, self.rest + suffix)


def observed_replicas(
    observed: Observed,
    replica_of: Callable[[str, Mapping[str, str]], Replica | None],
    desired: Callable[[Replica], int],
) -> tuple[Replica, ...]:
    """Return the replicas that have pods, and those without pods that will have some again, in order.

    Pods decide and not `replicas`: a rollout makes indexes beyond it, and two revisions of one index.

    Args:
        replica_of: The replica of a leaf by its name and the labels of a pod; None: it is not one.
        desired: How many replicas there should be of the kind of a replica.
    """
    pods: dict[Replica, int] = {}
    for use in observed.uses:
        if (replica := replica_of(use.name, use.labels)) is not None:
            pods[replica] = pods.get(replica, 0) + use.pods
    for group in observed.existing:
        if group.kind == "PodGroup" and (replica := replica_of(group.name, {})) is not None:
            pods.setdefault(replica, 0)
    live = [replica for replica, count in pods.items() if count]
    return tuple(
        replica
        for replica in sorted(pods)
        if pods[replica] or (replica.index < desired(replica) and _may_return(replica, live))
    )


def _may_return(replica: Replica, live: list[Replica]) -> bool:
    """Return whether the controller makes the pods of a replica again, beside those that have pods: not when its revision is gone."""
    if not live:
        return True
    role = (replica.set_revision, replica.role)
    of_role = [other for other in live if (other.set_revision, other.role) == role]
    if any(other.index == replica.index for other in of_role):
        return False  # its index has another revision now
    if of_role:
        return any(other.revision == replica.revision for other in of_role)
    return any(other.set_revision == replica.set_revision for other in live)


def split_replica(pattern: re.Pattern[str], head: str, name: str) -> Replica | None:
    """Return the replica of a leaf by its name alone; None: the leaf belongs to another workload.

    Args:
        pattern: What follows the name of the workload, with TAIL at its end; may have the groups `set` and `role`.
    """
    match = split_name(pattern, head, name)
    if match is None:
        return None
    parts = match.groupdict()
    return Replica(
        parts.get("set", ""), parts.get("role", ""), int(parts["index"]), parts["revision"]
    )


# --- the parts of a replica


def replica_part(
    workload: WorkloadObject,
    spec: Mapping[str, Any],
    annotations: Mapping[str, str],
    name_of: Callable[[str], str],
) -> Part:
    """Return the part of one replica.

    Args:
        name_of: The name of a group of the replica by its suffix.

    Raises:
        InvalidPolicy: It would have too many groups.
    """
    template = spec.get("leaderWorkerTemplate") or {}
    size = max(1, number(template, "size", 1))
    sizes = _subgroups(workload, template, size) if template.get("subGroupPolicy") else {}
    templates = _Templates(template, annotations.get(SUBGROUP_EXCLUSIVE, ""), name_of(""), sizes)
    of_workers, of_leader = templates.of_workers, templates.of_leader
    gang = not _leader_first(spec)
    held = template_label(of_workers, LEAF_LABEL)
    if held not in _LEAVES:
        return Leaf(
            name=name_of(""),
            role="replica",
            pods=size,
            most=size,
            minimum=size if gang or size == 1 else BASIC,
            template=of_workers,
            leading=templates.of_pods() or (of_leader,),
        )
    (leader,) = _workers(name_of("-leader"), 1, of_leader, role="leader")
    if held == ROLE:
        workers = _workers(name_of("-worker"), size - 1, of_workers, role="worker")
        return _over(name_of(""), "", (leader, *workers), gang=gang)
    if held == SUBGROUP:
        return _with_leader(name_of, sizes, templates, gang=gang)
    subgroups = tuple(
        leaf
        for index, pods in sizes.items()
        for leaf in _workers(name_of(f"-s{index}"), pods, templates.in_subgroup(index), role="")
    )
    if gang or not subgroups:
        return _over(name_of(""), "", (leader, *subgroups), gang=gang)
    below = _over(name_of("-workers"), "worker", subgroups, gang=True)
    return _over(name_of(""), "", (leader, below), gang=False)


class _Templates:
    """The pod templates of a replica, with what the webhook of LeaderWorkerSet adds to pods of exclusive subgroups.

    Source: `SetExclusiveAffinities` of sigs.k8s.io/lws v0.9.0: the pods of a subgroup are in one domain of a topology, and
    no other subgroup, of whatever LeaderWorkerSet, has a pod there.
    """

    def __init__(
        self, template: Mapping[str, Any], topology: str, replica: str, sizes: Mapping[int, int]
    ) -> None:
        """Take the leaderWorkerTemplate, the key of the topology or nothing, and how many workers each subgroup has."""
        policy = template.get("subGroupPolicy")
        self.of_workers: Mapping[str, Any] = template.get("workerTemplate") or {}
        self._topology = topology if policy else ""
        self._replica = replica
        self._sizes = sizes
        leads = (policy or {}).get("subGroupPolicyType") != "LeaderExcluded"
        plain: Mapping[str, Any] = template.get("leaderTemplate") or self.of_workers
        self.of_leader = self._exclusive(plain, 0) if leads else plain

    def in_subgroup(self, index: int) -> Mapping[str, Any]:
        """Return the template of the workers of a subgroup."""
        return self._exclusive(self.of_workers, index)

    def of_pods(self) -> tuple[Mapping[str, Any], ...]:
        """Return the templates of all pods one by one, the leader first; empty where all workers have the same."""
        if not self._topology:
            return ()
        workers = ((self.in_subgroup(index),) * pods for index, pods in self._sizes.items())
        return (self.of_leader, *itertools.chain.from_iterable(workers))

    def _exclusive(self, template: Mapping[str, Any], index: int) -> Mapping[str, Any]:
        if not self._topology:
            return template
        key = f"{self._replica}-{index}"  # the webhook writes a hash, of which only the identity counts
        metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
        affinity = {**(spec.get("affinity") or {})}
        any_: dict[str, Any] = {"key": SUBGROUP_KEY, "operator": "Exists"}
        expressions = {
            "podAffinity": [any_ | {"operator": "In", "values": [key]}],
            "podAntiAffinity": [any_, any_ | {"operator": "NotIn", "values": [key]}],
        }
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        for field, selected in expressions.items():
            before = affinity.get(field) or {}
            term = {"topologyKey": self._topology, "labelSelector": {"matchExpressions": selected}}
            affinity[field] = {**before, required: [*(before.get(required) or ()), term]}
        labels = {**(metadata.get("labels") or {}), SUBGROUP_KEY: key}
        return {
            **template,
            "metadata": {**metadata, "labels": labels},
            "spec": {**spec, "affinity": affinity},
        }


def pod_labels(
    _workload: WorkloadObject, labels: Mapping[str, str], leaf: Leaf, number_: int
) -> Mapping[str, str]:
    """Return the labels of a pod with its place in its replica, which a worker of a subgroup has no label for here."""
    index = labels.get(GROUP_INDEX) or labels.get(POD_INDEX, "")
    own = {key: text for key, text in labels.items() if key not in (WORKER_INDEX, POD_INDEX)}
    own[GROUP_INDEX] = index
    if leaf.role == "leader" or (leaf.leading and number_ == 0):
        return {**own, WORKER_INDEX: "0", POD_INDEX: index}
    if leaf.role in ("replica", "worker"):
        own[WORKER_INDEX] = str(number_ if leaf.role == "replica" else number_ + 1)
    return own


def _leader_first(spec: Mapping[str, Any]) -> bool:
    return spec.get("startupPolicy") == "LeaderReady"


def _over(name: str, role: str, children: tuple[Part, ...], *, gang: bool) -> Composite:
    """Return a composite; of parts that are no gang the first one is the leader, which the others wait for."""
    if gang or len(children) == 1:
        minimum = len(children) if gang else BASIC
        return Composite(name=name, role=role, children=children, minimum=minimum)
    names = tuple(child.name for child in children)
    steps = tuple(
        PartStep(
            child=child.name,
            name=child.role or child.name,
            runs=names[: number_ + 1],
            after="the leader is ready" if number_ else "",
        )
        for number_, child in enumerate(children)
    )
    return Composite(name=name, role=role, children=children, minimum=BASIC, steps=steps)


def _workers(name: str, pods: int, template: Mapping[str, Any], *, role: str) -> tuple[Leaf, ...]:
    """Return the leaf of some workers, or of the leader; nothing where there are none."""
    if pods <= 0:
        return ()
    return (Leaf(name=name, role=role, pods=pods, most=pods, minimum=pods, template=template),)


def _with_leader(
    name_of: Callable[[str], str], sizes: Mapping[int, int], templates: _Templates, *, gang: bool
) -> Composite:
    """Return the subgroups of a replica, the leader in the first one."""
    pods = {0: 1} | {index: workers + (index == 0) for index, workers in sizes.items()}
    leaves = tuple(
        Leaf(
            name=name_of(f"-s{index}"),
            role="",
            pods=count,
            most=count,
            minimum=count if gang else BASIC,
            template=templates.in_subgroup(index),
            leading=(templates.of_leader,) if index == 0 else (),
        )
        for index, count in pods.items()
    )
    minimum = len(leaves) if gang else BASIC
    return Composite(name=name_of(""), role="replica", children=leaves, minimum=minimum)


def _subgroups(
    workload: WorkloadObject, template: Mapping[str, Any], size: int
) -> Mapping[int, int]:
    """Return how many workers each subgroup has, as `getSubGroupIndex` of the webhook computes it.

    Raises:
        InvalidPolicy: There are too many.
    """
    each = max(1, number(template.get("subGroupPolicy") or {}, "subGroupSize", 1))
    first = 1 if (size - 1) % each == 0 else 0  # the worker index at which subgroup 0 begins
    count = (size - 1 - first) // each + 1 if size > 1 else 0
    if count >= CHILDREN_MAX:
        field = "spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"
        text = (
            f"{counted(each, 'pod')} of {size} in each are {count} subgroups, at most {CHILDREN_MAX - 1} are allowed; "
            "make the subgroups larger"
        )
        raise InvalidPolicy(refusal_of(workload, "TooManyGroups", field, text))
    begins = {index: index * each + first for index in range(count)}
    return {index: min(size, at + each) - max(1, at) for index, at in begins.items()}


# --- what both kinds refuse


def replica_refusals(
    workload: WorkloadObject, place: str, annotations: Mapping[str, str], spec: Mapping[str, Any]
) -> Iterable[TreeRefusal]:
    """Yield the refusals of a LeaderWorkerSetSpec.

    Args:
        place: What is before `metadata` and `spec`: empty, or a path with a dot at its end.
    """
    # Not of subgroups (pkg/controllers/pod_controller.go looks only at this one): their annotation is affinity and
    # anti-affinity between pods, which are there at once, and a gang is placed by it.
    key = annotations.get(EXCLUSIVE)
    if key:
        level = exclusive_level(spec, annotations)
        field = f"{place}metadata.annotations[{EXCLUSIVE}]"
        instead = f"use {EXCLUSIVE_ANNOTATION}: {level or 'root'}={key} instead"
        if not level:
            instead += f", without {GANG_ANNOTATION}: all"
        text = (
            f"{key!r}: LeaderWorkerSet makes the workers of a replica only when its leader has "
            f"a node, so no gang of them can start; {instead}"
        )
        if not is_label_key(key):
            text = not_a_key(key)
        yield refusal_of(workload, "ExclusiveTopology", field, text)
    # the webhook of LeaderWorkerSet refuses such subgroups: a tree with them would differ from the request
    template = spec.get("leaderWorkerTemplate") or {}
    policy, size = template.get("subGroupPolicy") or {}, number(template, "size", 1)
    each = number(policy, "subGroupSize", 1)
    excluded = policy.get("subGroupPolicyType") == "LeaderExcluded"
    whole = (size - 1,) if excluded else (size, size - 1)
    of_size = f"{place}spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"
    if template.get("subGroupPolicy") is None:
        if key := annotations.get(SUBGROUP_EXCLUSIVE):
            field = f"{place}metadata.annotations[{SUBGROUP_EXCLUSIVE}]"
            text = f"{key!r}: there are no subgroups; set {of_size}"
            yield refusal_of(workload, "InvalidField", field, text)
    elif each < 1 or each > size or all(pods % each for pods in whole):
        text = f"{each}: {' or '.join(map(str, whole))} pods cannot be divided into subgroups of {each}"
        yield refusal_of(workload, "InvalidField", of_size, text)
    # Kubernetes refuses such StatefulSets (ValidateStatefulSetSpec in pkg/apis/apps/validation of 1.37), so there are no pods
    for name in ("leaderTemplate", "workerTemplate"):
        restart = ((template.get(name) or {}).get("spec") or {}).get("restartPolicy") or "Always"
        if restart != "Always":
            field = f"{place}spec.leaderWorkerTemplate.{name}.spec.restartPolicy"
            text = f"is {restart!r}; the pods are those of StatefulSets, which have Always: leave it out"
            yield refusal_of(workload, "InvalidField", field, text)


def exclusive_level(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """Return the level of our annotation that gives each replica a domain alone; empty: none does. The twin of EXCLUSIVE_LEVEL_CEL."""
    size = number(spec.get("leaderWorkerTemplate") or {}, "size", 1)
    if not leaf_label({"spec": spec}) and size > 1:
        return "leaf"
    return "" if annotations.get(GANG_ANNOTATION) == "all" else "root"


def replica_kept_out(spec: Mapping[str, Any]) -> str:
    """Return why the pods of a LeaderWorkerSetSpec are scheduled by something else, or an empty string."""
    template = spec.get("leaderWorkerTemplate") or {}
    for name in ("leaderTemplate", "workerTemplate"):
        if reason := template_kept_out(template.get(name) or {}):
            return f"{name}: {reason}"
    return ""


def starts_leader_first(workload: WorkloadObject, suffix: str) -> str:
    """Return what a user should know about the start-up policy LeaderReady."""
    return (
        f"{workload}{suffix} makes the workers of a replica when its leader is ready, so they are groups of their own; "
        "capacity for workers is not reserved while the leader starts"
    )


# --- LeaderWorkerSet


_TAIL = re.compile(TAIL)


def _parts(workload: WorkloadObject, _policy: TreePolicy, observed: Observed) -> WorkloadParts:
    def replica_of(name: str, _labels: Mapping[str, str]) -> Replica | None:
        return split_replica(_TAIL, workload.name, name)

    replicas = observed_replicas(
        observed, replica_of, lambda _: number(workload.spec, "replicas", 1)
    )
    roots: tuple[Part, ...] = tuple(
        replica_part(workload, workload.spec, workload.annotations, replica.namer(workload.name))
        for replica in replicas
    )
    notices: tuple[Notice, ...] = ()
    if workload.spec.get("startupPolicy") == "LeaderReady":
        notices = (Notice(reason="SequencedStart", message=starts_leader_first(workload, "")),)
    if roots and workload.annotations.get(GANG_ANNOTATION) == "all":
        name = joined_name(workload.name, f"-{workload.uid[:UID_PIECE]}")
        roots = (Composite(name=name, role="", children=roots, minimum=BASIC),)
    return WorkloadParts(roots=roots, notices=notices)


def _planned_uses(workload: WorkloadObject) -> tuple[LeafUse, ...]:
    names = (f"-{index}-{PLANNED}" for index in range(number(workload.spec, "replicas", 1)))
    return tuple(LeafUse(name=joined_name(workload.name, name), pods=1) for name in names)


def _refusals(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    yield from replica_refusals(workload, "", workload.annotations, workload.spec)
    yield from only_whole(workload)


def _kept_out(workload: WorkloadObject) -> str:
    return scheduling_block(workload) or replica_kept_out(workload.spec)


def _pod_name(workload: WorkloadObject, labels: Mapping[str, str]) -> str:
    """Return the name of a pod; empty for a worker of a subgroup, whose place in its replica is not among the labels."""
    replica, worker = labels.get(GROUP_INDEX), labels.get(WORKER_INDEX)
    if replica is None or worker is None:
        return ""
    leader = f"{workload.name}-{replica}"
    return leader if worker == "0" else f"{leader}-{worker}"


SPEC_FIELDS: Final[Mapping[str, Any]] = {
    "replicas": PodCount,
    "startupPolicy": Literal["LeaderCreated", "LeaderReady"],
    "scheduling": dict[str, Any],
    "leaderWorkerTemplate": {
        "size": PodSize,
        "leaderTemplate": TEMPLATE_FIELDS,
        "workerTemplate": TEMPLATE_FIELDS,
        "subGroupPolicy": {
            "subGroupSize": PodSize,
            "subGroupPolicyType": Literal["LeaderWorker", "LeaderExcluded"],
        },
    },
}

LEADERWORKERSET = WorkloadKind(
    kind="LeaderWorkerSet",
    group="leaderworkerset.x-k8s.io",
    versions=("v1",),
    plural="leaderworkersets",
    spec_type=fields_type("LeaderWorkerSetSpec", SPEC_FIELDS),
    name_rules=replica_rules(LabelValue(key=NAME_LABEL)),
    name_label=NAME_LABEL,
    pod_labels=pod_labels,
    pod_name=_pod_name,
    template_paths=(
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
    leaf_label=leaf_label,
    leaf_label_cel=LEAF_LABEL_CEL,
    exclusive_annotation=EXCLUSIVE,
    exclusive_level=lambda workload: exclusive_level(workload.spec, workload.annotations),
    exclusive_level_cel=EXCLUSIVE_LEVEL_CEL,
    part_of=("DisaggregatedSet",),
    parts=_parts,
    planned_uses=_planned_uses,
    refusals=_refusals,
    kept_out=_kept_out,
    native_parts=lambda _, __: (),
)
