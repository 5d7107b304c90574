"""Grove's PodGang: a root gang over its pod groups; below it a composite per topology group.

Source: scheduler.grove.io/v1alpha1 of Grove v0.1.0-alpha.12. Its operator makes the PodGang empty, then the pods, which it
holds with a gate of its own, then fills it. The names of its pod groups are the label `grove.io/podclique` of their pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from extender.core.model.nodes import SchedulingConstraints
from extender.core.workloads.name_rules import LabelCondition, LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, Observed, Part
from extender.core.workloads.tree_policy import (
    ZONE,
    InvalidPolicy,
    TreePolicy,
    TreeRefusal,
    from_level,
    is_label_key,
    not_a_key,
    refusal_of,
)
from extender.core.workloads.workload_kind import (
    Notice,
    ObjectKind,
    WorkloadKind,
    WorkloadParts,
    listed,
    number,
    only_whole,
)
from extender.core.workloads.workload_object import WorkloadObject

NAME_LABEL = "grove.io/podgang"
CLIQUE_LABEL = "grove.io/podclique"
SCHEDULER_LABEL = "grove.io/scheduler-name"  # on a PodGang: whose backend its operator uses
OTHER_SCHEDULERS = ("kai-scheduler", "volcano")

Item = Mapping[str, Any]


def _parts(workload: WorkloadObject, policy: TreePolicy, observed: Observed) -> WorkloadParts:
    groups = _items(workload, "podgroups")
    leaves = {str(group["name"]): _leaf(workload, group, policy) for group in groups}
    _check_shape(workload, leaves.values(), observed)
    children: list[Part] = []
    inner: dict[str, Composite] = {}
    for config in _items(workload, "topologyConstraintGroupConfigs"):
        names = [str(name) for name in config.get("podGroupNames") or () if name in leaves]
        names = [name for name in dict.fromkeys(names) if name not in inner]
        if names:
            composite = Composite(
                name=joined_name(workload.name, f"-{config['name']}"),
                role="",
                children=tuple(leaves[name] for name in names),
                minimum=len(names),
                constraints=_constraints(config, policy),
            )
            children.append(composite)
            inner.update(dict.fromkeys(names, composite))
    children += [leaf for name, leaf in leaves.items() if name not in inner]
    if not children:
        return WorkloadParts(roots=())
    root = Composite(
        name=workload.name,
        role="",
        children=tuple(children),
        minimum=len(children),
        constraints=_constraints(workload.spec, policy),
    )
    return WorkloadParts(roots=(root,), notices=tuple(_notices(workload)))


def _items(workload: WorkloadObject, field: str) -> tuple[Item, ...]:
    return tuple(workload.spec.get(field) or ())


def _leaf(workload: WorkloadObject, group: Item, policy: TreePolicy) -> Leaf:
    minimum = max(0, number(group, "minReplicas", 1))
    pods = max(1, minimum, len(group.get("podReferences") or ()))
    its_class = workload.spec.get("priorityClassName")
    return Leaf(
        name=joined_name(str(group["name"]), ""),
        role=str(group["name"]),
        pods=pods,
        most=pods,
        minimum=minimum or BASIC,
        template={"spec": {"priorityClassName": its_class}} if its_class else {},
        constraints=_constraints(group, policy),
    )


def _check_shape(workload: WorkloadObject, leaves: Iterable[Leaf], observed: Observed) -> None:
    """Raise InvalidPolicy if the groups that exist are for other pod groups: a tree does not change its shape."""
    now = {leaf.name for leaf in leaves}
    then = {group.name for group in observed.existing if group.kind == "PodGroup"}
    if then and then != now:
        text = (
            f"they are {listed(now)}, but the tree was made for {listed(then)}; it stays "
            "as it is until the PodGang and its pods are made anew"
        )
        raise InvalidPolicy(refusal_of(workload, "ShapeChanged", "spec.podgroups", text))


def _pack(item: Item, field: str) -> str:
    constraint = (item.get("topologyConstraint") or {}).get("packConstraint") or {}
    return str(constraint.get(field) or "")


def _constraints(item: Item, policy: TreePolicy) -> SchedulingConstraints:
    """Return the constraints of an item: by a preferred key Grove means that one, then the wider ones."""
    required, preferred = _pack(item, "required"), _pack(item, "preferred")
    return SchedulingConstraints(
        topology=(required,) if required else (),
        preferred=from_level(preferred, policy.levels) if is_label_key(preferred) else (),
    )


def _constrained(workload: WorkloadObject) -> Iterable[tuple[str, Item]]:
    yield "spec", workload.spec
    for field in ("podgroups", "topologyConstraintGroupConfigs"):
        for index, item in enumerate(_items(workload, field)):
            yield f"spec.{field}[{index}]", item


def _notices(workload: WorkloadObject) -> Iterable[Notice]:
    for place, item in _constrained(workload):
        preferred = _pack(item, "preferred")
        if preferred and not is_label_key(preferred):
            text = (
                f"{workload}: {place}.topologyConstraint.packConstraint.preferred: {preferred!r} is not used; "
                "it is not the key of a node label, such as topology.kubernetes.io/zone"
            )
            yield Notice(reason="PreferredTopologyDropped", message=text)


def _refusals(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    for place, item in _constrained(workload):
        required = _pack(item, "required")
        if required and not is_label_key(required):
            field = f"{place}.topologyConstraint.packConstraint.required"
            yield refusal_of(workload, "InvalidTopology", field, not_a_key(required, ZONE))
    yield from only_whole(workload)


def _kept_out(workload: WorkloadObject) -> str:
    scheduler = workload.labels.get(SCHEDULER_LABEL, "")
    if scheduler in OTHER_SCHEDULERS:
        return f"its label {SCHEDULER_LABEL} is {scheduler!r}, so that scheduler reads the PodGang"
    return ""


PODGANG = WorkloadKind(
    kind="PodGang",
    group="scheduler.grove.io",
    versions=("v1alpha1",),
    plural="podgangs",
    name_rules=(
        NameRule(when=(LabelCondition(key=NAME_LABEL),), head=LabelValue(key=CLIQUE_LABEL)),
    ),
    name_label=NAME_LABEL,
    labels_from=(
        ObjectKind(kind="PodClique", group="grove.io", versions=("v1alpha1",), plural="podcliques"),
    ),
    parts=_parts,
    refusals=_refusals,
    kept_out=_kept_out,
)
