"""The answers to filter and prioritize. This module neither plans nor changes state.

Refusal texts are a function of state only: a text that changes without a change of state makes kube-scheduler
retry without end (K25). Counts are therefore in the conditions of the groups, never in these texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from extender.core.capacity.capacity_claims import (
    CLAIM_RULES,
    claims_against,
    is_in_use,
    nodes_of_preemptors,
    not_free,
)
from extender.core.log.capacity_claim import NO_CLAIMS
from extender.core.log.gang_phase import PREEMPTING, TAKEN, capacity_was_taken
from extender.core.log.reservation_state import GangState, ReservationState, reservation_of
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Forest, Tree, foreign_gates
from extender.core.model.pods import Pod
from extender.core.model.quantities import add_amounts
from extender.core.planner.plan_types import COMPLETE, EVICTING, GIVEN, TERMINATES

FilterOutcome = Literal["redeemed", "not-offered", "held-back", "refused", "passed", "protected"]
COMMITTED_LAST = "volumes and claims are committed when the rest of the gang has reached its nodes"
SCORE_MAX = 10  # MaxExtenderPriority of kube-scheduler
PRIORITY_LOWEST = -(2**31)  # below that of any pod
NAMED_MAX = 64  # nodes in an answer to prioritize; each costs kube-scheduler some microseconds


class FilterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the offered nodes pass, and the reason for the others."""

    outcome: FilterOutcome
    passed: tuple[NodeName, ...]
    # Those with a reason; kube-scheduler takes a node that is in neither as refused.
    refused: tuple[NodeName, ...] = ()
    reason: str = ""  # for every refused node
    node: NodeName | None = None  # of the reservation, if there is one


def decide_filter(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    pod: Pod,
    offered: Sequence[NodeName],
    *,
    held_back: bool = False,
) -> FilterDecision:
    """Answer /filter.

    A member gets its reserved node or no node. Any other pod gets all nodes except those whose capacity is reserved
    for trees of equal or higher priority, and, if it can run elsewhere, those where it would use capacity for which a
    preemptor of lower priority evicts pods.

    Args:
        held_back: Its volumes and claims must not be committed yet.
    """
    reservation = reservation_of(state, pod.uid)
    if reservation is not None:
        node = reservation.node
        outcome: FilterOutcome = "not-offered"
        reason = f"capacity is reserved on node {node}, which kube-scheduler did not offer"
        if node in offered:
            if not held_back:
                # kube-scheduler takes a node that is not named as refused; reasons are shown only for a pod that gets no node.
                return FilterDecision(outcome="redeemed", passed=(node,), node=node)
            outcome, reason = "held-back", COMMITTED_LAST
        reason = f"gang {state.gangs[reservation.gang_uid].gang}: {reason}"
        return FilterDecision(
            outcome=outcome, passed=(), refused=tuple(offered), reason=reason, node=node
        )
    if pod.group is not None:
        reason = pending_reason(state, forest, view, pod.group)
        return FilterDecision(outcome="refused", passed=(), refused=tuple(offered), reason=reason)
    return _protect(view, state, pod, offered)


def is_refused_member(pod: Pod) -> bool:
    """Return whether kube-scheduler shows in the condition of a pod that filter has refused it as a member of a gang."""
    return f"gang {pod.namespace}/" in pod.unschedulable


def pending_reason(
    state: ReservationState, forest: Forest, view: ClusterView, leaf: GroupKey
) -> str:
    """Return the reason why a member has no node; the text changes only with the kind of reason."""
    if leaf not in view.groups:
        return f"gang {leaf.path}: waiting for {leaf}, which does not exist"
    orphan = forest.orphans.get(leaf)
    if orphan is not None:
        return f"gang {leaf.path}: {orphan.problem.message}"
    tree = forest.tree_of(leaf)
    if tree is None:
        return f"gang {leaf.path}: not planned yet"
    if view.groups[leaf].deleting and not (tree.problems or tree.root.deleting):
        return f"gang {tree.root.key.path}: {leaf} is being deleted"
    return tree_reason(state, tree)


def tree_reason(state: ReservationState, tree: Tree) -> str:
    """Return the reason why a tree, or the rest of it, is pending."""
    name = tree.root.key.path
    if tree.problems:
        return f"gang {name}: invalid: {tree.problems[0].message}"
    if tree.root.deleting:
        return f"gang {name}: its root group is being deleted"
    root = state.gangs.get(tree.root.uid)
    if root is not None and capacity_was_taken(root):
        return f"gang {name}: {TAKEN}"
    if root is None or root.last_decision is None:
        return f"gang {name}: not planned yet"
    gates = foreign_gates(tree)
    if root.last_decision.outcome == "waiting" and gates:
        return f"gang {name}: waiting for members that scheduling gates hold: {', '.join(gates)}"
    return f"gang {name}: {_answer_words(root, tree)}"


def possible_pod_rules(root: GangState, tree: Tree) -> tuple[str, ...]:
    """Return the rules between pods that may be why kube-scheduler rejects nodes with free capacity (H10)."""
    if not _refused_by_scheduler(root):
        return ()
    waiting = (pod for pod in tree.pods if pod.node is None)
    return tuple(sorted({text for pod in waiting for text in pod.shape.pod_rules}))


def _refused_by_scheduler(root: GangState) -> bool:
    answer = root.last_decision
    return (
        answer is not None
        and answer.outcome == "unknown"
        and any(GIVEN in text for text in answer.reasons)
    )


def _answer_words(root: GangState, tree: Tree) -> str:
    assert root.last_decision is not None
    if root.last_decision.outcome == "waiting":
        first = next(iter(root.last_decision.reasons), "")
        if first == COMPLETE:
            return COMPLETE
        return "waiting for pods that terminate" if TERMINATES in first else "waiting for members"
    if root.last_decision.outcome == PREEMPTING:
        return "waits for its preemption to finish"
    if root.last_decision.outcome == "invalid":
        return "not planned yet"  # it is valid again, and the next pass plans it
    beyond = root.phase in ("admitted", "scheduled")
    if root.last_decision.outcome == "unknown":
        subject = "more members" if beyond else "its minimum"
        if _refused_by_scheduler(root):
            text = f"kube-scheduler refuses every node with capacity for {subject}"
            if rules := possible_pod_rules(root, tree):
                text += f"; rules between pods may be the cause: {', '.join(rules)}"
            return text
        return f"no capacity for {subject} was found within the search budget"
    if root.last_decision.when_empty == "never":
        return "no capacity for its minimum, not even when no other pod runs"
    text = "no capacity for more members" if beyond else "no capacity for its minimum"
    if any(reason.startswith(EVICTING) for reason in root.last_decision.reasons):
        text += ", not even when every unit of lower priority is evicted"
    return text


def _protect(
    view: ClusterView, state: ReservationState, pod: Pod, offered: Sequence[NodeName]
) -> FilterDecision:
    if pod.pinned is not None or not state.claims_on:
        return FilterDecision(outcome="passed", passed=tuple(offered))
    refused = {
        name
        for name in offered
        if name in state.claims_on and not fits_beside_held(view, state, name, pod)
    }
    reason = "capacity is reserved for a gang of equal or higher priority"
    freed = nodes_of_preemptors(state)
    costly = {
        name
        for name in offered
        if name in freed
        and name not in refused
        and not fits_beside_held(view, state, name, pod, lower=True)
    }
    if costly and len(refused) + len(costly) < len(offered):
        refused |= costly
        reason = "capacity is reserved for a gang, or freed for one while other nodes have capacity"
    if not refused:
        return FilterDecision(outcome="passed", passed=tuple(offered))
    return FilterDecision(
        outcome="protected",
        passed=tuple(name for name in offered if name not in refused),
        refused=tuple(name for name in offered if name in refused),
        reason=reason,
    )


def fits_beside_held(
    view: ClusterView, state: ReservationState, name: NodeName, pod: Pod, *, lower: bool = False
) -> bool:
    """Return whether a pod fits on a node beside what is held there against it; see `free_beside_held`."""
    left = free_beside_held(view, state, name, pod, lower=lower)
    asks = dict(pod.shape.requests)
    return left is None or all(amount >= asks[resource] for resource, amount in left.items())


def free_beside_held(
    view: ClusterView,
    state: ReservationState,
    name: NodeName,
    pod: Pod,
    without: Collection[PodUid] = (),
    *,
    lower: bool = False,
) -> dict[str, int] | None:
    """Return what a node has left for a pod beside what is held there against it, for each resource that it requests.

    Args:
        without: Pods to be counted as gone, so that filter and preempt give the same answer.
        lower: Also count what preemptors of lower priority hold.

    Returns:
        None where nothing is held: kube-scheduler alone decides about such a node. Resources that the node does not
        have are left out.
    """
    node = view.nodes.get(name)
    if node is None:
        return None
    taken = dict(view.usage.get(name, NOTHING).requests)
    for uid in without:
        leaver = view.pods.get(uid)
        if leaver is not None and leaver.node == name:
            add_amounts(taken, dict(leaver.shape.requests), -1)
    claims = claims_against(state, name, priority=pod.priority, gang_uid=pod.uid, lower=lower)
    if all(is_in_use(view, c) and not CLAIM_RULES[c.kind].while_used for c in claims):
        return None
    add_amounts(taken, not_free(view, state, name, claims, pod.uid))
    return {
        resource: node.allocatable[resource] - taken.get(resource, 0)
        for resource, _ in pod.shape.requests
        if resource in node.allocatable
    }


def decide_prioritize(
    view: ClusterView,
    state: ReservationState,
    pod: Pod,
    offered: Sequence[NodeName],
    scores: Callable[[], Mapping[NodeName, int]],
) -> tuple[tuple[NodeName, int], ...]:
    """Return the best of the offered nodes, with the amount by which they score above the others, at most 10.

    A member gets its reserved node. For any other pod the score of a node is higher, the fewer nodes of its domains
    are empty, by share and by number, so that the largest free domains stay whole; a node where it would take what is held
    for a gang of lower priority is the last one. kube-scheduler adds these scores to its own: an equal
    score for all nodes has no effect, and each entry costs time. So the answer has at most `NAMED_MAX` nodes, from
    the best score down, all nodes of one score or none; their scores are the difference to the best score that is
    left out. It is empty where more nodes than that share the best score.

    Args:
        scores: Returns `domain_scores`, perhaps from an earlier call; called only where it is needed.
    """
    reservation = reservation_of(state, pod.uid)
    if reservation is not None:
        return ((reservation.node, SCORE_MAX),) if reservation.node in offered else ()
    by_node = scores()
    # beside everything that is held, whatever the priority
    lowest = msgspec.structs.replace(pod, priority=PRIORITY_LOWEST)
    reserved = {
        name
        for name in offered
        if name in state.claims_on and not fits_beside_held(view, state, name, lowest)
    }
    if not (by_node or reserved) or not offered:
        return ()
    of_offered = [-1 if name in reserved else by_node.get(name, SCORE_MAX) for name in offered]
    named, left_out = 0, min(of_offered)
    for score, nodes in sorted(Counter(of_offered).items(), reverse=True):
        named += nodes
        if named > NAMED_MAX:
            left_out = score
            break
    return tuple(
        (name, min(score - left_out, SCORE_MAX))
        for name, score in zip(offered, of_offered, strict=True)
        if score > left_out
    )


def domain_scores(
    view: ClusterView, state: ReservationState, keys: Sequence[str]
) -> Mapping[NodeName, int]:
    """Return scores by the share of empty nodes in the domains of a node, averaged over the topology keys: 10 for none.

    Of equal shares that of a domain with more empty nodes counts more, n of them n/(n + 1) times: there is more to keep whole.
    Nodes without any of the keys have no score. An empty node has no reservations and no pods with requests other than `pods`.
    The function reads every node.
    """
    if not keys:
        return {}
    totals: dict[tuple[str, str], int] = {}
    empties: dict[tuple[str, str], int] = {}
    for name, node in view.nodes.items():
        claims = state.claims_on.get(name, NO_CLAIMS).values()
        busy = any(not CLAIM_RULES[claim.kind].empty_node for claim in claims) or any(
            resource != "pods" for resource in view.usage.get(name, NOTHING).requests
        )
        for key in keys:
            value = node.labels.get(key)
            if value is not None:
                totals[key, value] = totals.get((key, value), 0) + 1
                empties[key, value] = empties.get((key, value), 0) + (not busy)
    scores: dict[NodeName, int] = {}
    for name, node in view.nodes.items():
        domains = [(key, node.labels[key]) for key in keys if key in node.labels]
        if domains:
            shares = (empties[d] / totals[d] * empties[d] / (empties[d] + 1) for d in domains)
            scores[name] = round(SCORE_MAX * (1 - sum(shares) / len(domains)))
    return scores
