"""Verdicts in random small clusters with claims on capacity, by a table and a search of the test's own: verdict, cause, ways out.

A reservation, a claim of a preemption, a replacement hold, a capacity hold and a move, of the tree and of others, beside pods that
terminate and pods of lower priority. `tests/support/refusals/claimed_clusters.py` has what is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from hypothesis import HealthCheck, given, note

from extender.core.admit.plan_request import TreeParts, plan_request, ruled_part
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.holds.hold_planning import HELD, HELD_FOR_MOVES, held_against
from extender.core.planner.plan_types import Plan, PlanRequest, Refusal, Relaxation
from extender.core.planner.planning import plan
from extender.core.planner.preempt.judgement import Judgement, judge
from extender.core.planner.preempt.victim_search import PreemptionPlan, may_trigger_preemption
from extender.core.preempt.preemption_planning import preemption_request
from tests.support.hypothesis_profile import examples
from tests.support.refusals.claimed_clusters import (
    PRIORITY,
    TREE,
    ZONE,
    Claim,
    ClaimedCluster,
    RunningPod,
    claimed_clusters,
    planned_input,
)
from tests.support.service.fakes import forest_of
from tests.support.service.manifest_builders import GPU

replace = msgspec.structs.replace
NAMED = re.compile(r"\((?:(?:at least )?\d+ missing|not all together): (.*?)\)(?:;|$)")
SEEDED = {"suppress_health_check": list(HealthCheck), "derandomize": True}


class Answer(msgspec.Struct, frozen=True):
    """What the service answers about the tree."""

    judged: Judgement
    held: str  # that capacity is held for others

    @property
    def word(self) -> str:
        """Return placed, waiting, preempts or impossible."""
        verdict = self.judged.verdict
        if isinstance(verdict, Plan):
            return "placed"
        return "preempts" if isinstance(self.judged.preemption, PreemptionPlan) else verdict.outcome

    @property
    def changes(self) -> tuple[Relaxation, ...]:
        """Return what would help, of a refusal."""
        is_refused = self.word in ("impossible", "unknown")
        return self.judged.verdict.changes if is_refused else ()


def answer(cluster: ClaimedCluster) -> Answer:
    """Return the answer as the control loop makes it."""
    view, state = planned_input(cluster)
    forest = forest_of(view)
    tree = next(tree for tree in forest.trees.values() if tree.root.key.name == TREE)
    part, rows = TreeParts().of(tree, state.gangs[tree.root.uid]), NodeRowCache()
    bare = replace(plan_request(view, state, part, rows=rows, budget=2_000), explain=True)
    request: PlanRequest = bare
    if may_trigger_preemption(bare, plan(replace(bare, explain=False))):
        ruled = ruled_part(view, state, part, rows=rows)
        request = preemption_request(view, state, forest, tree, bare, ruled=ruled)
    held = held_against(
        view, state, bare.nodes, bare.shapes, priority=PRIORITY, gang_uid=tree.root.uid
    )
    return Answer(judge(request), held)


# --- what is named, left out of a cluster


def is_against(claim: Claim) -> bool:
    """Return whether a claim is one that the tree may have to leave free: also that of its own member that is to be moved."""
    return claim.gang != TREE or claim.kind == "move"


def without(cluster: ClaimedCluster, cause: str) -> ClaimedCluster:
    """Return a cluster without what a text names."""
    if cause == "capacity reserved for other trees or for moves":
        return replace(cluster, claims=tuple(c for c in cluster.claims if not is_against(c)))
    if cause == GPU:
        return replace(cluster, sizes=tuple(0 for _ in cluster.sizes))
    assert cause == f"one {ZONE} for PodGroup default/{TREE}"
    return replace(cluster, one_zone=False)


def fits_without(cluster: ClaimedCluster, causes: list[str]) -> bool:
    """Return whether the tree fits now without some causes."""
    for cause in causes:
        cluster = without(cluster, cause)
    return cluster.fits()


def wrong_causes(cluster: ClaimedCluster, refusal: Refusal) -> Iterator[str]:
    """Yield the causes that are not enough, or are named without need."""
    for reason in refusal.reasons:
        named = NAMED.search(reason)
        for alternative in named[1].split(", or ") if named else ():
            causes = alternative.split(" together with ")
            if not fits_without(cluster, causes):
                yield f"{causes} is not enough: {reason}"
            for cause in causes:
                if fits_without(cluster, [other for other in causes if other != cause]):
                    yield f"{cause} is named without need: {reason}"


def wrong_note(cluster: ClaimedCluster, held: str) -> Iterator[str]:
    """Yield that held capacity is named, or is not, where that decides by itself how many pods of one size fit, in no domain."""
    if cluster.one_zone or len({*cluster.sizes}) > 1:
        return
    now = cluster.places({node: cluster.free(node) for node in cluster.nodes})
    for kind, text in (("hold", HELD), ("move", HELD_FOR_MOVES)):
        rest = replace(cluster, claims=tuple(c for c in cluster.claims if c.kind != kind))
        most = rest.places({node: rest.free(node) for node in rest.nodes})
        if (held == text) != (most > now):
            yield f"{now} pods fit, {most} without what is held: {held!r}"
        if held == text:
            return


def changed(cluster: ClaimedCluster, change: Relaxation) -> ClaimedCluster:
    """Return a cluster with a change made."""
    match change.kind:
        case "minCount":
            return replace(cluster, minimum=change.minimum)
        case "topology":
            return replace(cluster, one_zone=False)
        case "reservation":
            claims = (c for c in cluster.claims if not (c.node in change.nodes and is_against(c)))
            return replace(cluster, claims=tuple(claims))
    assert change.kind == "nodes"
    nodes, zones = dict(cluster.nodes), dict(cluster.zones)
    for added in change.added:
        for number in range(added.count):
            name = f"{added.like}+{number}"
            nodes[name] = nodes[added.like]
            zones[name] = name if ZONE in added.own_labels else zones[added.like]
    return replace(cluster, nodes=nodes, zones=zones)


def smaller(cluster: ClaimedCluster, change: Relaxation) -> Iterator[Relaxation]:
    """Yield the next smaller changes of the same kind."""
    if change.kind == "minCount" and change.minimum + 1 < cluster.minimum:
        yield replace(change, minimum=change.minimum + 1)
    for name in change.nodes if change.kind == "reservation" else ():
        yield replace(change, nodes=tuple(node for node in change.nodes if node != name))
    for place, added in enumerate(change.added):
        rest = replace(added, count=added.count - 1)
        yield replace(change, added=(*change.added[:place], rest, *change.added[place + 1 :]))


def wrong_change(cluster: ClaimedCluster, change: Relaxation) -> Iterator[str]:
    """Yield that a change does not help with what it evicts, that less would do, or that an eviction is not needed."""
    evicted = {name.split(" (")[0].removeprefix("Pod/default/") for name in change.evicts}
    after = changed(cluster, change)
    if not after.fits(evicted):
        yield f"it does not fit after {change.text}"
    for name in evicted:
        if after.fits(evicted - {name}):
            yield f"{name} need not go: {change.text}"
    for less in smaller(cluster, change):
        rest = changed(cluster, less)
        sets = [evicted] if change.kind == "reservation" else rest.sets()
        if rest.fits() or any(map(rest.fits, sets)):
            yield f"less would do: {less}"


@examples(2_000, quick=60, **SEEDED)
@given(claimed_clusters())
def test_what_is_answered_beside_claims_is_true(cluster):
    """Placed, waiting, evicting or impossible; without a named cause alone it fits; each way out helps, and nothing smaller does."""
    given_answer = answer(cluster)
    note(f"{cluster}\n{given_answer.judged.verdict}")
    assert given_answer.word == cluster.verdict()
    verdict = given_answer.judged.verdict
    if isinstance(verdict, Refusal):
        assert not [*wrong_causes(cluster, verdict), *wrong_note(cluster, given_answer.held)]
    assert not [text for change in given_answer.changes for text in wrong_change(cluster, change)]


# --- the faults that it has shown


def beside(nodes: dict[str, int], *claims: Claim, sizes: tuple[int, ...]) -> ClaimedCluster:
    """Return nodes in one zone with claims of gangs of the same priority, and a gang that needs all its pods."""
    return ClaimedCluster(
        nodes=nodes, zones=dict.fromkeys(nodes, "a"), pods=(), claims=claims, sizes=sizes, minimum=len(sizes)
    )  # fmt: skip


def claim(kind: str, node: str, size: int, gang: str = "other") -> Claim:
    """Return a claim for one pod of another gang."""
    return Claim(kind, gang, PRIORITY, node, size, f"{gang}-{node}")


def test_what_others_have_reserved_is_no_cause_where_pods_use_the_rest():
    """One GPU of four is reserved, and three are used: without the reservation no pod of two fits either."""
    cluster = beside({"n0": 4}, claim("reservation", "n0", 1), sizes=(2,))
    cluster = replace(cluster, pods=(RunningPod("runs", "n0", 3, PRIORITY),))
    refusal = answer(cluster).judged.verdict
    assert refusal.reasons[0].endswith(f"(1 missing: {GPU})")
    assert not any(c.kind == "reservation" for c in (*refusal.conflict, *refusal.changes))


def test_the_fewest_nodes_are_named_whose_reserved_capacity_helps():
    """One of three would do."""
    claims = (claim("reservation", node, 1, f"other-{node}") for node in ("n0", "n1", "n2"))
    cluster = beside({"n0": 1, "n1": 2, "n2": 1}, *claims, sizes=(2,))
    texts = answer(cluster).judged.verdict.relaxations
    assert "the capacity reserved for other trees or for moves on n1 becomes free" in texts


def test_capacity_for_the_move_of_its_own_member_is_not_called_that_of_other_trees_alone():
    """The only free GPU is for its member that moves there; the member that waits has no place."""
    own = claim("move", "n1", 1, TREE)
    cluster = replace(
        beside({"n0": 1, "n1": 1}, own, sizes=(1,)),
        pods=(RunningPod(own.pod, "n0", 1, PRIORITY, gang=TREE),),
        minimum=2,
        may_preempt=False,
    )
    refusal = answer(cluster).judged.verdict
    assert [c.kind for c in refusal.changes if c.kind == "reservation"] == ["reservation"]
    sentences = [*refusal.reasons, *refusal.relaxations, *(c.message for c in refusal.conflict)]
    named = [text for text in sentences if "reserved" in text]
    assert len(named) > 2
    assert all("for other trees or for moves" in text for text in named)


def test_held_capacity_is_named_where_it_keeps_off_the_second_pod():
    """One of two pods fits beside the hold; without it both do."""
    cluster = beside({"n0": 2}, claim("hold", "n0", 1), sizes=(1, 1))
    assert answer(cluster).held == HELD
