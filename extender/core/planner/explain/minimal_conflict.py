"""A small set of requirements that cannot hold together: each is needed, dropping it could make the rest satisfiable."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import UnsetType

from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import counted, join_names
from extender.core.model.pods import PodRule, PodShape
from extender.core.planner.explain.refusal_causes import closed_texts, volume_text
from extender.core.planner.explain.relaxation_solver import (
    PlacementRequirement,
    RequirementSolver,
)
from extender.core.planner.explain.tree_variants import walk
from extender.core.planner.model.feasibility import (
    admissible,
    domain_keys,
    is_leaf,
    present,
    required_names,
    threshold,
)
from extender.core.planner.model.leaf_slices import (
    group_name,
    is_slice,
    is_sliced,
    minimum_pods,
)
from extender.core.planner.model.node_filters import without_volumes
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanExclusive, PlanGroup, PlanRequest

OF_GROUPS = (
    "minCount",
    "minGroupCount",
    "exclusive",
    "topology",
)  # kinds of requirements of a single group


def requirements_of(request: PlanRequest, node_table: NodeTable) -> list[PlacementRequirement]:
    """List what can be dropped, the least informative requirements first: these are dropped first."""
    groups = walk(request.root)
    shapes = [request.shapes[s] for s in sorted({m.shape for g in groups for m in g.members})]
    text = "pods fit the free capacity of their nodes"
    if any(s.host_ports for s in shapes):
        text += ", host ports included"
    if any(s.exclusive_claims for s in shapes):
        text += "; a ReadWriteOncePod claim is used by one pod"
    resources = PlacementRequirement("resources", request.root.key, text)
    return [*_of_nodes(request, node_table, shapes), *_of_groups(groups), resources]


def _of_nodes(
    request: PlanRequest, node_table: NodeTable, shapes: list[PodShape]
) -> Iterator[PlacementRequirement]:
    """Yield what keeps pods off nodes, apart from their capacity."""
    root = request.root.key
    if reserved := [n.name for n in request.nodes if n.reserved]:
        text = f"capacity on {counted(len(reserved), 'node')} is reserved for other trees"
        yield PlacementRequirement("reservation", root, text)
    if not isinstance(request.closed, UnsetType):
        text = f"exclusive groups of other trees have {join_names(closed_texts(request.closed))}"
        yield PlacementRequirement("exclusive", root, text, part="otherTrees")
    if taints := hard_taints(node_table):
        text = f"taints of nodes are respected: {join_names(taints)}"
        yield PlacementRequirement("taint", root, text)
    if cordoned := cordoned_nodes(node_table):
        text = f"cordoned nodes get no pods: {join_names([*cordoned])}"
        yield PlacementRequirement("taint", root, text, part="cordons")
    if request.rules:
        text = f"rules about other pods hold: {join_names(rule_texts(request))}"
        yield PlacementRequirement("selector", root, text, part="podRules")
    if any(selector.volume for s in shapes for selector in s.selectors):
        text = f"pods run where their volumes are: {volume_text(shapes)}"
        yield PlacementRequirement("selector", root, text, part="volumes")
    if any(s.node_selector or without_volumes(s).selectors for s in shapes):
        text = "node selectors and required affinity hold"
        yield PlacementRequirement("selector", root, text)


def _of_groups(groups: list[PlanGroup]) -> Iterator[PlacementRequirement]:
    """Yield minima, exclusive domains and topology constraints."""
    for group in groups:
        if is_leaf(group):
            of = f" of {group_name(group.key)}" if is_slice(group.key) else ""
            text = f"at least {counted(threshold(group), 'pod')}{of} together{_incomplete(group)}"
            yield PlacementRequirement("minCount", group.key, text)
    for group in reversed(groups):
        if is_sliced(group):
            pods = counted(minimum_pods(group), "pod")
            text = f"at least {pods} together, in {counted(threshold(group), 'slice')}"
            yield PlacementRequirement("minCount", group.key, text + _incomplete(group))
        elif not is_leaf(group):
            text = f"at least {threshold(group)} of {counted(len(group.groups), 'child group')} together"
            if names := required_names(group):
                text += f", {join_names(names)} among them"
            yield PlacementRequirement("minGroupCount", group.key, text + _incomplete(group))
    for group in groups:
        if not isinstance(group.exclusive, UnsetType):
            yield PlacementRequirement("exclusive", group.key, exclusive_text(group.exclusive))
    for group in groups:
        if domain_keys(group):
            text = topology_text(group)
            bound = next((b for g in walk(group) for b in g.bound), None)
            if bound is not None:
                text += f"; {bound.pod} is bound to {bound.node}"
            yield PlacementRequirement("topology", group.key, text)


def topology_text(group: PlanGroup) -> str:
    """Return the topology constraint of a group, `all pods in one zone and rack`."""
    of = f" of {group_name(group.key)}" if is_slice(group.key) else ""
    return f"all pods{of} in one {' and '.join(domain_keys(group))}"


def exclusive_text(exclusive: PlanExclusive) -> str:
    """Return that a group shares its domain with no other one, and which domains others have."""
    text = f"no other group or tree in its {exclusive.key}"
    return f"{text}; others have {join_names([*exclusive.taken])}" if exclusive.taken else text


def hard_taints(node_table: NodeTable) -> list[str]:
    """Return the keys of all taints that keep pods off nodes, sorted."""
    lists = node_table.taints()[1]
    return sorted({t.key for taints in lists for t in taints if t.effect != "PreferNoSchedule"})


def cordoned_nodes(node_table: NodeTable) -> list[NodeName]:
    """Return the names of the nodes that are marked unschedulable, sorted."""
    return [node_table.nodes[i].name for i in np.flatnonzero(node_table.cordoned()).tolist()]


def rule_texts(request: PlanRequest) -> list[str]:
    """Return the rules between pods as texts, each once; those of pods that are there already are marked."""
    texts = (
        PodRule(r.kind, r.keys, ()).text + ("" if r.shapes else " of the pods there")
        for r in request.rules
    )
    return list(dict.fromkeys(texts))


def _incomplete(group: PlanGroup) -> str:
    """Return what an incomplete group has, or nothing."""
    if admissible(group):
        return ""
    return f"; {present(group)} {'present' if is_leaf(group) else 'ready'}"


def minimal_conflict(
    solver: RequirementSolver, requirements: list[PlacementRequirement]
) -> list[PlacementRequirement]:
    """Drop requirements as long as the rest still conflicts; halves first, so that many are dropped at once.

    If one of several interchangeable requirements is needed, all of them are: one solve settles them.
    """
    dropped: set[PlacementRequirement] = set()

    def filter_out(part: list[PlacementRequirement]) -> None:
        if not part or solver.exhausted:
            return
        if solver.without(dropped | set(part)) is False:
            dropped.update(part)
        elif len(part) > 1:
            alike = solver.most_alike(dropped, part) if part[0].kind in OF_GROUPS else []
            if len(alike) > 1 and solver.without({*dropped, alike[0]}):
                filter_out([r for r in part if r not in set(alike)])
                return
            half = len(part) // 2
            filter_out(part[:half])
            filter_out(part[half:])

    split = [r for r in requirements if r.kind in {"reservation", "taint", "selector"} or r.part]
    filter_out(split)
    for kind in (*OF_GROUPS, "resources"):
        filter_out([r for r in requirements if r.kind == kind and r not in split])
    return [r for r in requirements if r not in dropped]
