"""Pods without a controller that name a group and how many pods it has: one gang of that many.

Two labels, or those of Kueue's plain pod groups (label and annotation, Kueue v0.19.1) with a tree label: a policy writes
both as ours. There is no object with the name of the group; the pods that are there stand for it, and the oldest one
for what all have.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from immutables import Map

from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.pods import Pod
from extender.core.workloads.name_rules import LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import Leaf, Observed
from extender.core.workloads.tree_policy import (
    DEFAULT_PROFILE,
    InvalidPolicy,
    TreePolicy,
    TreeRefusal,
    refusal_of,
)
from extender.core.workloads.workload_kind import PODS_MAX, WorkloadKind, WorkloadParts
from extender.core.workloads.workload_object import (
    GROUP_LABEL,
    GROUP_LABELS,
    OFF,
    OTHER_SCHEDULERS,
    TREE_LABEL,
    WorkloadObject,
)

NAME_LABEL: Final = "gang-extender.dev/group"
TOTAL_LABEL: Final = "gang-extender.dev/total"
KUEUE_NAME: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_RULE: Final = NameRule(when=(), head=LabelValue(key=KUEUE_NAME))  # before it has our label
_UIDS: Final = uuid.UUID("b0a4c9a2-6c1e-5d0e-9a8e-3f2b1d7c5e10")  # any fixed one

Members = Mapping[PodUid, Pod]


def plain_uid(namespace: str, name: str) -> str:
    """Return what stands for the UID of a group of plain pods: it is that of its name, as there is no object."""
    return str(uuid.uuid5(_UIDS, f"{namespace}/{name}"))


class PlainPodGroups:
    """The groups of plain pods in a view, as workloads; a group whose pods did not change is the same object."""

    def __init__(self) -> None:
        self._members: Map[GroupKey, Map[PodUid, Pod]] | None = None
        self._entries: dict[GroupKey, tuple[Members, WorkloadObject | None]] = {}
        self.objects: Map[str, WorkloadObject] = Map()  # by UID

    def of(self, members: Map[GroupKey, Map[PodUid, Pod]]) -> Map[str, WorkloadObject]:
        """Return the groups of plain pods, by UID."""
        if members is self._members:
            return self.objects
        entries: dict[GroupKey, tuple[Members, WorkloadObject | None]] = {}
        for key, pods in members.items():
            entry = self._entries.get(key)
            if entry is None or entry[0] is not pods:
                workload = _workload(key, pods.values())
                same = entry is not None and entry[1] == workload
                entry = (pods, entry[1] if same and entry is not None else workload)
            entries[key] = entry
        fresh = Map({workload.uid: workload for _, workload in entries.values() if workload})
        self.objects = self.objects if self.objects == fresh else fresh
        self._members, self._entries = members, entries
        return self.objects


def _workload(key: GroupKey, pods: Iterable[Pod]) -> WorkloadObject | None:
    """Return what stands for the plain pods of a leaf; None: there are none."""
    plain = sorted(
        (pod for pod in pods if is_plain(pod.labels) and not pod.deleting),
        key=lambda pod: (pod.created_us, pod.uid),
    )
    if not plain:
        return None
    first = plain[0]
    totals = sorted({pod.labels[TOTAL_LABEL] for pod in plain})
    classes = sorted({pod.priority_class for pod in plain})
    annotations = sorted({key for pod in plain for key in pod.tree_annotations})
    return plain_workload(
        key.namespace, key.name, first.labels[TREE_LABEL], totals, classes, annotations
    )


def plain_workload(
    namespace: str,
    name: str,
    profile: str,
    totals: Iterable[str],
    classes: Iterable[str],
    annotations: Iterable[str] = (),
) -> WorkloadObject:
    """Return what stands for a group of plain pods.

    Args:
        profile: The value of the tree label.
        totals: The values of TOTAL_LABEL of its pods.
        annotations: Those of workloads that its pods have, see `tree_annotations`.
    """
    spec = {"totals": list(totals), "priorityClassNames": list(classes)}
    if not_read := list(annotations):
        spec["annotations"] = not_read
    return WorkloadObject(
        api_version="v1",
        kind=KIND,
        namespace=namespace,
        name=name,
        uid=plain_uid(namespace, name),
        labels={TREE_LABEL: profile},
        spec=spec,
    )


def is_plain(labels: Mapping[str, str]) -> bool:
    """Return whether a pod with these labels is one of a group of plain pods, as the policy leaves it."""
    return (
        TREE_LABEL in labels
        and TOTAL_LABEL in labels
        and NAME_LABEL in labels
        and labels.get(GROUP_LABEL) == joined_name(labels[NAME_LABEL], "")
    )


def policy_labels(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    node_name: str = "",
    scheduler_name: str = "",
) -> Mapping[str, str]:
    """Return what the leaf policy adds to the labels of a plain pod; nothing where it is none. The twin of its expressions."""
    if node_name or scheduler_name in OTHER_SCHEDULERS:
        return {}
    own = {key: labels[key] for key in (NAME_LABEL, TOTAL_LABEL) if key in labels}
    if KUEUE_NAME in labels:
        own.setdefault(NAME_LABEL, labels[KUEUE_NAME])
        if KUEUE_TOTAL in annotations:
            own.setdefault(TOTAL_LABEL, annotations[KUEUE_TOTAL])
    both = NAME_LABEL in labels and TOTAL_LABEL in labels
    profile = labels.get(TREE_LABEL, DEFAULT_PROFILE.name if both else OFF)
    if profile == OFF or NAME_LABEL not in own or any(key in labels for key in GROUP_LABELS):
        return {}
    return {TREE_LABEL: profile, **own, GROUP_LABEL: joined_name(own[NAME_LABEL], "")}


def _parts(workload: WorkloadObject, _policy: TreePolicy, _observed: Observed) -> WorkloadParts:
    for refusal in _refusals(workload):
        raise InvalidPolicy(refusal)
    total = int(workload.spec["totals"][0])
    classes = workload.spec["priorityClassNames"]
    template: Mapping[str, Any] = {"spec": {"priorityClassName": classes[0]}}
    leaf = Leaf(
        name=workload.name, role="pods", pods=total, most=total, minimum=total, template=template
    )
    return WorkloadParts(roots=(leaf,))


def _refusals(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    """Yield a refusal where the pods of a group have no name for it, do not fit together, or ask for what is not read."""
    if not workload.name:
        text = "is empty; write the name of the group"
        yield refusal_of(workload, "InvalidField", f"metadata.labels[{NAME_LABEL}]", text)
    totals, classes = workload.spec["totals"], workload.spec["priorityClassNames"]
    field = f"metadata.labels[{TOTAL_LABEL}]"
    if len(totals) > 1:
        text = f"its pods have {' and '.join(map(repr, totals))}; all of them have the same number"
        yield refusal_of(workload, "InvalidField", field, text)
    elif not (totals[0].isascii() and totals[0].isdigit() and 1 <= int(totals[0]) <= PODS_MAX):
        text = f"is {totals[0]!r}; write how many pods the group has, from 1 to {PODS_MAX}"
        yield refusal_of(workload, "InvalidField", field, text)
    if len(classes) > 1:
        text = (
            f"its pods have {classes[0]!r} and {classes[1]!r}, but all pods of one tree have one priority; "
            "give them the same priorityClassName, or make a group of each"
        )
        yield refusal_of(workload, "PrioritiesDiffer", "spec.priorityClassName", text)
    for key in workload.spec.get("annotations", ()):
        text = f"is not read on plain pods; make a TreeProfile for the kind {KIND} and write its name into {TREE_LABEL}"
        yield refusal_of(workload, "InvalidAnnotation", f"metadata.annotations[{key}]", text)


KIND: Final = "PlainPods"
PLAIN_PODS: Final = WorkloadKind(
    kind=KIND,
    group="",
    versions=(),
    plural="",  # there is no such resource
    name_rules=(NameRule(when=(), head=LabelValue(key=NAME_LABEL)),),
    name_label=NAME_LABEL,
    parts=_parts,
    refusals=_refusals,
)
