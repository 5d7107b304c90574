"""Scores of nodes by the soft rules of pods, with the weights and the normalisation of kube-scheduler (K77).

They are compared only between nodes that are equal by all that comes before, and never refuse one. Pods in the cluster are
counted as they are before the plan: members that are placed together do not count for one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from extender.core.model.pods import PodShape
from extender.core.planner.model.node_filters import avoided_taints, matches, selected, tolerated
from extender.core.planner.model.node_table import Bools, Ints, Level, NodeTable
from extender.core.planner.model.problem import PlacementProblem
from extender.core.planner.plan_types import PlanPreference, PlanRequest

SCORE_MAX = 100  # of one plugin on one node, before its weight
# Weights of the plugins in the default profile of kube-scheduler.
TAINTS_WEIGHT = 3
AFFINITY_WEIGHT = 2
PODS_WEIGHT = 2
SPREAD_WEIGHT = 2
_FINE = 1_000  # logarithms are rounded to thousandths, so that all other numbers are integers


def node_scores(problem: PlacementProblem) -> Ints | None:
    """Return the score of each node for a pod of each kind, shape (kinds, nodes); None if no pod prefers any node.

    As kube-scheduler does, a kind compares the nodes on which a pod of it fits now; those on which none fits have no meaning.

    Source:
        Plugins TaintToleration, NodeAffinity, InterPodAffinity and PodTopologySpread: Score and NormalizeScore.
    """
    table = problem.node_table
    avoided = any(t.effect == "PreferNoSchedule" for taints in table.taints()[1] for t in taints)
    if not avoided and not problem.preferences and not any(s.soft for s in problem.shapes):
        return None
    scores = np.zeros((len(problem.kinds), table.size), dtype=np.int64)
    for kind, shape in enumerate(problem.shapes):
        feasible = problem.counts[kind] > 0
        if not feasible.any():
            continue
        if avoided:
            scores[kind] += TAINTS_WEIGHT * _fewest(avoided_taints(table, shape), feasible)
        if shape.soft and shape.soft.nodes:
            scores[kind] += AFFINITY_WEIGHT * _most(_preferred_nodes(table, shape), feasible)
        own = [p for p in problem.preferences if problem.kinds[kind] in p.shapes]
        if about := [p for p in own if p.kind != "spread"]:
            scores[kind] += PODS_WEIGHT * _between(_near_pods(table, about), feasible)
        if spread := [p for p in own if p.kind == "spread"]:
            scores[kind] += SPREAD_WEIGHT * _evenly(table, shape, spread, feasible)
    return scores if (scores != scores[:, :1]).any() else None


def domain_scores(scores: Ints, counts: Ints, level: Level, pods: Mapping[int, int]) -> Ints:
    """Return for each domain the largest sum of the scores of so many pods of each kind there.

    Each kind is counted as if it were alone, so that the sum may be out of reach: it only decides which domain is tried first.

    Args:
        counts: Pods of each kind that fit on each node.
    """
    sums = np.zeros(level.count, dtype=np.int64)
    for kind, amount in pods.items():
        nodes = np.flatnonzero((level.domain >= 0) & (counts[kind] > 0))
        domain, fit, score = level.domain[nodes], counts[kind][nodes], scores[kind][nodes]
        sums += largest_sums(domain, fit, score, amount, level.count)
    return sums


def largest_sums(domain: Ints, fit: Ints, scores: Ints, amount: int, count: int) -> Ints:
    """Return for each domain the largest sum of the scores of so many pods there, shape (count,).

    Args:
        fit: How many of the pods fit on each node.
    """
    order = np.lexsort((-scores, domain))
    domain, fit = domain[order], np.minimum(fit[order], amount)
    before = np.cumsum(fit) - fit
    first = np.searchsorted(domain, domain)  # of the nodes of the same domain
    taken = np.clip(amount - (before - before[first]), 0, fit)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, domain, taken * scores[order])
    return sums


def uncounted_preferences(request: PlanRequest) -> Iterator[str]:
    """Yield what no score takes into account, of the preferences of the waiting members."""
    for shape in request.shapes:
        if shape.soft:
            yield from shape.soft.unseen
    for preference in request.preferences or ():
        if preference.among:
            words = {"near": "pod affinity", "apart": "pod anti-affinity", "spread": "spread"}
            yield f"preferred {words[preference.kind]} over {preference.key} among its own members"


def _preferred_nodes(table: NodeTable, shape: PodShape) -> Ints:
    weights = np.zeros(table.size, dtype=np.int64)
    for preferred in shape.soft.nodes if shape.soft else ():
        weights += preferred.weight * matches(table, preferred.term)
    return weights


def _near_pods(table: NodeTable, preferences: list[PlanPreference]) -> Ints:
    """Return per node the weighted number of pods in its domains, less those that the pod prefers to be away from."""
    sums = np.zeros(table.size, dtype=np.int64)
    for preference in preferences:
        codes, values = table.label(preference.key)
        placed = dict(preference.there)
        amounts = np.array([*(placed.get(value, 0) for value in values), 0], dtype=np.int64)
        sign = -1 if preference.kind == "apart" else 1
        sums += sign * preference.weight * amounts[codes]  # code -1 picks the last entry
    return sums


def _evenly(
    table: NodeTable, shape: PodShape, preferences: list[PlanPreference], feasible: Bools
) -> Ints:
    """Return the scores by spread: the fewer pods are in the domains of a node, the more; 0 for a node without one of the keys."""
    sums = np.zeros(table.size, dtype=np.int64)
    labelled = feasible.copy()
    for preference in preferences:
        labelled &= table.label(preference.key)[0] >= 0
    if not labelled.any():
        return sums
    for preference in preferences:
        codes, values = table.label(preference.key)
        counted = codes >= 0
        if preference.honors_affinity:
            counted &= selected(table, shape)
        if preference.honors_taints:
            counted &= tolerated(table, shape, cordons=False)
        placed = dict(preference.there)
        pods = np.array([placed.get(node.name, 0) for node in table.nodes], dtype=np.int64)
        amounts = np.bincount(codes[counted], weights=pods[counted], minlength=len(values))
        domains = len(np.unique(codes[labelled]))
        weight = round(_FINE * math.log(domains + 2))
        sums += amounts.astype(np.int64)[codes] * weight + _FINE * (preference.skew - 1)
    sums = (sums + _FINE // 2) // _FINE
    most, least = int(sums[labelled].max()), int(sums[labelled].min())
    if not most:
        return np.where(labelled, SCORE_MAX, 0)
    return np.where(labelled, SCORE_MAX * (most + least - sums) // most, 0)


def _most(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of which a larger one is better, as shares of the largest."""
    most = int(raw[feasible].max())
    return SCORE_MAX * raw // most if most > 0 else np.zeros_like(raw)


def _fewest(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of which a smaller one is better."""
    return SCORE_MAX - _most(raw, feasible)


def _between(raw: Ints, feasible: Bools) -> Ints:
    """Return the scores of numbers of either sign, from the smallest to the largest."""
    least, most = int(raw[feasible].min()), int(raw[feasible].max())
    return SCORE_MAX * (raw - least) // (most - least) if most > least else np.zeros_like(raw)
