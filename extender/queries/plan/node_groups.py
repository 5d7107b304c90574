"""Node groups of a cluster autoscaler: whether a refused tree would fit if one of them grew, and by how many nodes.

A new node has the labels, the taints and the allocatable resources of the template of its group, a hostname of its
own, and no pods. The smallest number of nodes is found by planning the tree with them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cache, partial
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName
from extender.core.model.message_formatting import counted
from extender.core.model.nodes import Node
from extender.core.planner.plan_types import Plan, PlanGroup, PlanNode, PlanRequest
from extender.core.planner.preempt.judgement import judge
from extender.core.planner.preempt.victim_search import PreemptionPlan
from extender.queries.plan.cluster_changes import HOSTNAME
from extender.queries.plan.plan_dto import NodeGroupGrowth

BUDGET: Final = 20_000  # search nodes of each plan
GROUPS_MAX: Final = 100


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A node group with a node as its template."""

    name: str
    max: int
    node: Node


def growths(
    view: ClusterView, request: PlanRequest, groups: Iterable[NodeGroup]
) -> tuple[NodeGroupGrowth, ...]:
    """Return the node groups of which one alone would make a tree fit, those with the fewest new nodes first.

    Args:
        view: The cluster, for the number of nodes that each group has.
    """
    sufficient = []
    for group in groups:
        labels = {key: value for key, value in group.node.labels.items() if key != HOSTNAME}
        now = sum(labels.items() <= node.labels.items() for node in view.nodes.values())
        # a new node that gets no member does not help
        most = min(group.max - now, _waiting(request.root))
        evicted = cache(partial(_evicted, request, group))
        if most > 0 and evicted(most) is not None:
            # the smallest number that was found to suffice; `most` suffices
            nodes = 1 + bisect_left(range(1, most), x=True, key=lambda n: evicted(n) is not None)
            evicts = evicted(nodes) or 0
            sufficient.append(
                NodeGroupGrowth(name=group.name, nodes=nodes, now=now, max=group.max, evicts=evicts)
            )
    return tuple(sorted(sufficient, key=lambda growth: growth.nodes))


def growth_text(growth: NodeGroupGrowth) -> str:
    """Return what would help, as a text."""
    nodes = counted(growth.nodes, "more node")
    text = f"{nodes} of node group {growth.name}, which has {growth.now} of {growth.max}"
    if growth.evicts:
        text += f", and evicting {counted(growth.evicts, 'unit')} of lower priority"
    return text


def _waiting(group: PlanGroup) -> int:
    return len(group.members) + sum(map(_waiting, group.groups))


def _evicted(request: PlanRequest, group: NodeGroup, count: int) -> int | None:
    """Return how many units are evicted where a tree fits on so many more nodes; None: it does not fit."""
    taken = {node.name for node in request.nodes}
    new = [_new_node(group.node, f"{group.name}-new-{n}", taken) for n in range(1, count + 1)]
    nodes = tuple(sorted((*request.nodes, *new), key=lambda node: node.name))
    budget = min(request.budget, BUDGET)
    bigger = replace(request, nodes=nodes, explain=False, budget=budget)
    judged = judge(bigger)
    if isinstance(judged.preemption, PreemptionPlan):
        return len(judged.preemption.victims) + len(judged.preemption.superseded)
    verdict = judged.verdict
    return 0 if isinstance(verdict, Plan) and verdict.assignments else None


def _new_node(template: Node, name: str, taken: set[NodeName]) -> PlanNode:
    while name in taken:
        name += "-"
    return PlanNode(
        name=NodeName(name),
        labels=template.labels | {HOSTNAME: name},
        taints=template.taints,
        unschedulable=template.unschedulable,
        allocatable=template.allocatable,
        free=template.allocatable,
    )
