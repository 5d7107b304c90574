"""StatefulSet: one leaf, a gang if all its pods start at once (podManagementPolicy Parallel).

Source: apps/v1 of Kubernetes 1.37, pkg/controller/statefulset. Its pods have the name of the set only before the ordinal
in their own. Those of a LeaderWorkerSet are part of its tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from extender.core.workloads.name_rules import LabelCondition, LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import BASIC, Leaf, Observed
from extender.core.workloads.tree_policy import TreePolicy, TreeRefusal, refusal_of
from extender.core.workloads.workload_kind import (
    TEMPLATE_FIELDS,
    Count,
    Notice,
    PodCount,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    number,
    only_whole,
    template_kept_out,
)
from extender.core.workloads.workload_object import WorkloadObject

POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
LEADER_WORKER_SET_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_TAIL: Final = "-sts"


def _parts(workload: WorkloadObject, _policy: TreePolicy, _observed: Observed) -> WorkloadParts:
    spec = workload.spec
    pods = number(spec, "replicas", 1)
    at_once = spec.get("podManagementPolicy") == "Parallel" or pods == 1
    leaf = Leaf(
        name=joined_name(workload.name, _TAIL),
        role="pods",
        pods=pods,
        most=pods,
        minimum=pods if at_once else BASIC,
        template=spec.get("template") or {},
    )
    text = (
        f"{workload} starts its pods one after the other, so they are placed one by one; "
        "spec.podManagementPolicy: Parallel makes them a gang"
    )
    notices = () if at_once else (Notice(reason="NotAllAtOnce", message=text),)
    return WorkloadParts(roots=(leaf,) if pods else (), notices=notices if pods else ())


def _refusals(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    yield from only_whole(workload)
    template = workload.spec.get("template") or {}
    restart = (template.get("spec") or {}).get("restartPolicy")
    if restart not in (None, "Always"):
        text = f"is {restart!r}; pods of a StatefulSet have Always: leave it out"
        yield refusal_of(workload, "InvalidField", "spec.template.spec.restartPolicy", text)


def _pod_labels(
    workload: WorkloadObject, labels: Mapping[str, str], _leaf: Leaf, number_: int
) -> Mapping[str, str]:
    ordinal = number(workload.spec.get("ordinals") or {}, "start", 0) + number_
    return {**labels, POD_NAME_LABEL: f"{workload.name}-{ordinal}", POD_INDEX: str(ordinal)}


STATEFULSET: Final = WorkloadKind(
    kind="StatefulSet",
    group="apps",
    versions=("v1",),
    plural="statefulsets",
    spec_type=fields_type(
        "StatefulSetSpec",
        {
            "replicas": PodCount,
            "podManagementPolicy": Literal["OrderedReady", "Parallel"],
            "template": TEMPLATE_FIELDS,
            "ordinals": {"start": Count},
        },
    ),
    name_rules=(
        NameRule(
            # a pod of a subgroup has no name by its own rules before the webhook's labels are there
            when=(LabelCondition(key=LEADER_WORKER_SET_NAME, absent=True),),
            head=LabelValue(key=POD_NAME_LABEL, ordinal=True),
            rest=(_TAIL,),
        ),
    ),
    name_label=POD_NAME_LABEL,
    name_has_ordinal=True,
    pod_labels=_pod_labels,
    pod_name=lambda _, labels: labels[POD_NAME_LABEL],
    template_paths=("spec.template",),
    # of a LeaderWorkerSet the set of leaders is its own, and the set of the workers of a replica is the leader's
    part_of=("LeaderWorkerSet", "Pod"),
    parts=_parts,
    refusals=_refusals,
    kept_out=lambda workload: template_kept_out(workload.spec.get("template") or {}),
)
