"""LeaderWorkerSet: a root per replica and template revision, a gang of leader and workers.

Source: leaderworkerset.x-k8s.io/v1 of sigs.k8s.io/lws v0.9.0. Replicas scale and roll one by one, so each is a tree of
its own; with the annotation `gang-extender.dev/gang: all` a Basic root is above them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from extender.core.workloads.kinds import leader_worker_replicas as lws
from extender.core.workloads.name_rules import LabelValue, joined_name
from extender.core.workloads.tree_parts import BASIC, Composite, LeafUse, Observed, Part
from extender.core.workloads.tree_policy import TreePolicy, TreeRefusal
from extender.core.workloads.workload_fields import LeaderWorkerSetFields
from extender.core.workloads.workload_kind import (
    UID_PIECE,
    Notice,
    WorkloadKind,
    WorkloadParts,
    number,
    only_whole,
    scheduling_block,
)
from extender.core.workloads.workload_object import GANG_ANNOTATION, WorkloadObject

_TAIL = re.compile(lws.TAIL)


def _parts(workload: WorkloadObject, policy: TreePolicy, observed: Observed) -> WorkloadParts:
    del policy

    def replica_of(name: str, labels: Mapping[str, str]) -> lws.Replica | None:
        del labels
        return lws.split_replica(_TAIL, workload.name, name)

    replicas = lws.observed_replicas(observed, replica_of, lambda _: _replicas(workload))
    roots: tuple[Part, ...] = tuple(
        lws.replica_part(
            workload, workload.spec, workload.annotations, replica.namer(workload.name)
        )
        for replica in replicas
    )
    notices: tuple[Notice, ...] = ()
    if workload.spec.get("startupPolicy") == "LeaderReady":
        notices = (Notice(reason="SequencedStart", message=lws.starts_leader_first(workload, "")),)
    if roots and workload.annotations.get(GANG_ANNOTATION) == "all":
        name = joined_name(workload.name, f"-{workload.uid[:UID_PIECE]}")
        roots = (Composite(name=name, role="", children=roots, minimum=BASIC),)
    return WorkloadParts(roots=roots, notices=notices)


def _replicas(workload: WorkloadObject) -> int:
    return number(workload.spec, "replicas", 1)


def _planned_uses(workload: WorkloadObject) -> tuple[LeafUse, ...]:
    names = (f"-{index}-{lws.PLANNED}" for index in range(_replicas(workload)))
    return tuple(LeafUse(name=joined_name(workload.name, name), pods=1) for name in names)


def _refusals(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    yield from lws.replica_refusals(workload, "", workload.annotations, workload.spec)
    yield from only_whole(workload)


def _kept_out(workload: WorkloadObject) -> str:
    return scheduling_block(workload) or lws.replica_kept_out(workload.spec)


def _pod_name(workload: WorkloadObject, labels: Mapping[str, str]) -> str:
    """Return the name of a pod; empty for a worker of a subgroup, whose place in its replica is not among the labels."""
    replica, worker = labels.get(lws.GROUP_INDEX), labels.get(lws.WORKER_INDEX)
    if replica is None or worker is None:
        return ""
    leader = f"{workload.name}-{replica}"
    return leader if worker == "0" else f"{leader}-{worker}"


LEADERWORKERSET = WorkloadKind(
    kind="LeaderWorkerSet",
    group="leaderworkerset.x-k8s.io",
    versions=("v1",),
    plural="leaderworkersets",
    spec_type=LeaderWorkerSetFields,
    name_rules=lws.replica_rules(LabelValue(key=lws.NAME_LABEL)),
    name_label=lws.NAME_LABEL,
    pod_labels=lws.pod_labels,
    pod_name=_pod_name,
    template_paths=(
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
    leaf_label=lws.leaf_label,
    leaf_label_cel=lws.LEAF_LABEL_CEL,
    exclusive_annotation=lws.EXCLUSIVE,
    exclusive_level=lambda workload: lws.exclusive_level(workload.spec, workload.annotations),
    exclusive_level_cel=lws.EXCLUSIVE_LEVEL_CEL,
    part_of=("DisaggregatedSet",),
    parts=_parts,
    planned_uses=_planned_uses,
    refusals=_refusals,
    kept_out=_kept_out,
    native_parts=lambda _, __: (),
)
