"""Lost members of a running gang of which no node of their domain is left: what `lostMembers` of their group asks for (D26).

The proof comes first: the planner has refused the tree as impossible, and no node has gained capacity since. Then the required
key of a group with `Widen` is a wish, and of a gang with `GiveUp` all pods are evicted, if the whole tree fits without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from immutables import Map

from extender.core.log.capacity_claim import claims_by_node
from extender.core.log.reservation_state import EMPTY, ReservationState, claims_of
from extender.core.model.cluster_view import ClusterView, with_pod
from extender.core.model.ids import NodeName
from extender.core.model.pod_groups import Tree
from extender.core.model.scheduling_constraints import LostMembers
from extender.core.planner.explain.relaxation_solver import map_groups, walk
from extender.core.planner.model.leaf_slices import object_key
from extender.core.planner.plan_types import (
    PlanGroup,
    PlanNode,
    PlanRequest,
    Refusal,
    Verdict,
    satisfied_by_bound,
)

_PROVED: Final = "impossible"  # outcome of the last decision


def choices_of(state: ReservationState, tree: Tree, request: PlanRequest) -> frozenset[LostMembers]:
    """Return what the groups of a running gang ask for whose lost members have no node in a domain that others fix.

    Args:
        state: The reservation state; its last decision about the tree is a refusal of the request.
        request: Its plan request, with the required keys.
    """
    root = state.gangs.get(tree.root.uid)
    if root is None or root.last_decision is None or root.last_decision.outcome != _PROVED:
        return frozenset()
    return choices_when_refused(state, tree, request)


def choices_when_refused(
    state: ReservationState, tree: Tree, request: PlanRequest
) -> frozenset[LostMembers]:
    """Return the same of a request that was just refused as impossible, whatever the last decision is.

    Args:
        state: Empty: nothing is known but the pods, and a gang of which some have a node runs.
        request: Its plan request, with the required keys.
    """
    asking = {
        g.key: g.constraints.lost_members
        for g in tree.groups
        if g.constraints.lost_members != "Wait"
    }
    root = state.gangs.get(tree.root.uid)
    if not asking or (root is None and state is not EMPTY):
        return frozenset()
    if root is not None and (root.phase != "scheduled" or root.last_loss is None):
        return frozenset()
    if satisfied_by_bound(request.root):  # members beyond the minimum wait
        return frozenset()
    nodes = _Nodes(request)
    return frozenset(
        asking[object_key(group.key)]
        for group in walk(request.root)
        if object_key(group.key) in asking
        and any(below.members for below in walk(group))
        and nodes.one_domain(group)
    )


def with_wider_domains(request: PlanRequest, tree: Tree, *, proved: bool) -> PlanRequest:
    """Return a request in which the required key of groups with `Widen`, and of their slices, is a wish; the same object where it is none.

    It is one when this is proved necessary, and from then on: of a group whose bound members are in several domains.

    Args:
        request: With the required keys.
        proved: Whether it is proved that no node of their domain can take the lost members.
    """
    widened = {g.key for g in tree.groups if g.constraints.lost_members == "Widen"}
    if not widened:
        return request
    nodes = _Nodes(request)
    levels = request.levels or ()

    def change(group: PlanGroup) -> PlanGroup:
        if object_key(group.key) not in widened or not group.topology:
            return group
        if not (nodes.several_domains(group) or (proved and nodes.one_domain(group))):
            return group
        key = group.topology[-1]
        wider = group.preferred or (levels[levels.index(key) + 1 :] if key in levels else ())
        preferred = tuple(dict.fromkeys((key, *wider)))
        return msgspec.structs.replace(group, topology=(), preferred=preferred)

    root = map_groups(request.root, change)
    return request if root == request.root else msgspec.structs.replace(request, root=root)


def in_vain_text(choice: LostMembers, verdict: Verdict) -> str:
    """Return that a choice did not help lost members, as a reason why they wait.

    Args:
        choice: `Widen` or `GiveUp`.
        verdict: The answer of the planner; no plan that places any.
    """
    text = "the lost members have no place outside of the domain either"
    if choice == "GiveUp":
        text = "the whole gang has no other place without its own pods either, so it is not evicted"
    proved = isinstance(verdict, Refusal) and verdict.outcome == _PROVED
    return (
        f"lostMembers {choice} was tried in vain: {text} ({'proved' if proved else 'not proved'})"
    )


class _Nodes:
    """The domains that bound members are in."""

    def __init__(self, request: PlanRequest) -> None:
        bound = {pod.node for group in walk(request.root) for pod in group.bound}
        self._nodes: Mapping[NodeName, PlanNode] = {
            node.name: node for node in request.nodes if node.name in bound
        }

    def _values(self, group: PlanGroup) -> set[str | None]:
        """Return the values of the required key; None: of a node that is gone, or has no such label."""
        key = group.topology[-1]
        nodes = (self._nodes.get(pod.node) for below in walk(group) for pod in below.bound)
        return {node.labels.get(key) if node is not None else None for node in nodes}

    def several_domains(self, group: PlanGroup) -> bool:
        return len(self._values(group) - {None}) > 1

    def one_domain(self, group: PlanGroup) -> bool:
        """Return whether bound members fix the domain of a required key; where the node of one is not known, there is no proof about it."""
        values = self._values(group) if group.topology else set()
        return len(values) == 1 and None not in values


def vacated(
    view: ClusterView, state: ReservationState, trees: Iterable[Tree]
) -> tuple[ClusterView, ReservationState]:
    """Return the cluster and the state as if no pod of some trees had a node, and the log did not have them."""
    uids = set()
    for tree in trees:
        uids.add(tree.root.uid)
        for pod in tree.pods:
            if pod.node is not None and not pod.deleting:
                view = with_pod(view, msgspec.structs.replace(pod, node=None, nominated=None))
    left = {uid: gang for uid, gang in state.gangs.items() if uid not in uids}
    preemptions = {uid: each for uid, each in state.preemptions.items() if uid not in uids}
    holds = {uid: hold for uid, hold in state.capacity_holds.items() if uid not in uids}
    return view, msgspec.structs.replace(
        state,
        gangs=Map(left),
        gang_of=Map({pod: uid for pod, uid in state.gang_of.items() if uid not in uids}),
        preemptions=Map(preemptions),
        capacity_holds=Map(holds),
        claims_on=claims_by_node(claims_of(left.values(), preemptions.values(), holds.values())),
    )
