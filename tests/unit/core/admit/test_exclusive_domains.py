"""Which domains a tree cannot have: those of other trees of its scope, and those that exclusive trees have alone."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from extender.core.admit.verdict_events import ComparedNodes, still_holds, would_be_refused
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName
from extender.core.planner.plan_types import Plan, PlanExclusive
from extender.core.planner.planning import plan
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.core.admit.test_plan_request import _holding, _request

RACK = "net/rack"
PROFILE = {"labels": {"gang-extender.dev/tree": "training"}}


def racks(count: int, gpu: int = 8):
    return [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=gpu) for n in range(count)]


def alone(name, pods=2, scope="Profile", namespace="default", metadata=None, **more):
    """Make a gang that has a rack alone."""
    exclusive = {"key": RACK, "scope": scope, **more}
    group = a_group(
        name,
        gang=pods,
        namespace=namespace,
        metadata=metadata,
        schedulingConstraints={"exclusive": exclusive},
    )
    return [group, *(a_pod(f"{name}-{n}", name, namespace=namespace) for n in range(pods))]


def placed_on(cluster, name, node, pods=2):
    for n in range(pods):
        cluster.change_pod(f"{name}-{n}", node=NodeName(node))


def taken(cluster, name, state=EMPTY):
    exclusive = _request(cluster.seen, state, name).root.exclusive
    return None if exclusive is UNSET else exclusive.taken


def test_without_exclusive_groups_a_request_has_nothing_of_them():
    """The bytes of recorded inputs stay the same."""
    cluster = FakeCluster(*racks(2), *a_gang("g", pods=2), *a_gang("other", pods=2))
    placed_on(cluster, "other", "n0")
    request = _request(cluster.seen, EMPTY, "g")
    assert request.closed is UNSET
    assert request.root.exclusive is UNSET


def test_a_domain_with_bound_or_reserved_members_of_another_tree_is_taken():
    """Whether the other tree is exclusive or not."""
    cluster = FakeCluster(*racks(4), *alone("g"), *a_gang("bound", pods=2), *alone("held"))
    placed_on(cluster, "bound", "n1")
    state = _holding(cluster, "held", ["held-0", "held-1"], node="n3")
    assert taken(cluster, "g", state) == ("r1", "r3")
    request = _request(cluster.seen, state, "g")
    assert request.closed == (PlanExclusive(key=RACK, taken=("r3",)),)
    verdict = plan(request)
    assert isinstance(verdict, Plan)
    assert {a.node for a in verdict.assignments} <= {"n0", "n2"}


def test_an_exclusive_group_keeps_others_out_of_its_domain():
    """A tree without a constraint of its own, too; from the end of its last pod on the domain is free."""
    cluster = FakeCluster(*racks(2), *alone("a"), *a_gang("g", pods=9))
    placed_on(cluster, "a", "n1")
    verdict = plan(_request(cluster.seen, EMPTY, "g"))
    assert verdict.outcome == "impossible"
    assert verdict.reasons == (
        "PodGroup default/g needs 9 pods; the cluster holds 8 (1 missing: exclusive groups of other trees in net/rack=r1, "
        "or nvidia.com/gpu)",
    )
    assert ("exclusive", "otherTrees") in {(c.kind, c.part) for c in verdict.conflict}
    assert "exclusive groups of other trees leave net/rack=r1" in verdict.relaxations
    for n in range(2):
        cluster.delete_pod(f"a-{n}")
    assert isinstance(plan(_request(cluster.seen, EMPTY, "g")), Plan)


@pytest.mark.parametrize(
    ("scope", "namespace", "metadata", "expected"),
    [
        ("Profile", "default", None, ("r0",)),
        ("Profile", "default", PROFILE, ()),  # another profile
        ("Profile", "team-b", None, ("r0",)),
        ("Namespace", "team-b", None, ()),
        ("Namespace", "default", PROFILE, ("r0",)),
        ("Cluster", "team-b", PROFILE, ("r0",)),
    ],
)
def test_the_scope_is_about_other_trees(scope, namespace, metadata, expected):
    """Those of the same TreeProfile, of the same namespace, or all."""
    other = [
        a_group("other", gang=1, namespace=namespace, metadata=metadata),
        a_pod("other-0", "other", namespace=namespace),
    ]
    cluster = FakeCluster(*racks(2), *alone("g", scope=scope), *other)
    placed_on(cluster, f"{namespace}/other", "n0", pods=1)
    assert taken(cluster, "g") == expected


def test_own_members_take_nothing_from_their_group():
    """A group that lost a member gets its replacement in its domain, also where another tree has come into it."""
    cluster = FakeCluster(*racks(2), *alone("g", pods=3), *a_gang("other", pods=2))
    placed_on(cluster, "g", "n0", pods=2)
    placed_on(cluster, "other", "n0")
    verdict = plan(_request(cluster.seen, EMPTY, "g"))
    assert isinstance(verdict, Plan)
    assert [(a.pod, a.node) for a in verdict.assignments] == [("default/g-2", "n0")]


def test_a_tree_that_is_in_the_domain_already_is_not_kept_out():
    """It was there before the exclusive group came, or is completed there."""
    cluster = FakeCluster(*racks(2), *alone("a"), *a_gang("g", pods=3, topo=RACK))
    placed_on(cluster, "a", "n0")
    placed_on(cluster, "g", "n0")
    assert _request(cluster.seen, EMPTY, "g").closed is UNSET
    assert isinstance(plan(_request(cluster.seen, EMPTY, "g")), Plan)


def test_a_node_that_joins_a_domain_belongs_to_it():
    """Of a running exclusive group: it is kept from others, and nothing moves."""
    cluster = FakeCluster(*racks(1), *alone("a"), *a_gang("g", pods=2))
    placed_on(cluster, "a", "n0")
    cluster.add(a_node("new", {RACK: "r0"}, gpu=8))
    assert plan(_request(cluster.seen, EMPTY, "g")).outcome == "impossible"
    cluster.add(a_node("free", {RACK: "r9"}, gpu=8))
    verdict = plan(_request(cluster.seen, EMPTY, "g"))
    assert {a.node for a in verdict.assignments} == {"free"}


def test_all_racks_taken_is_a_refusal_with_what_is_taken_and_what_would_help():
    cluster = FakeCluster(*racks(2), *alone("a"), *alone("b"), *a_gang("c", pods=1), *alone("g"))
    placed_on(cluster, "a", "n0")
    placed_on(cluster, "c", "n1", pods=1)
    verdict = plan(_request(cluster.seen, EMPTY, "g"))
    assert verdict.outcome == "impossible"
    assert verdict.status == "UnschedulableAndUnresolvable"
    assert verdict.when_empty == "fits"
    assert verdict.reasons == (
        "PodGroup default/g needs 2 pods in one net/rack; 2 of 2 domains of net/rack are taken (r0, r1); free: none",
    )
    assert "let PodGroup default/g share a net/rack with others" in verdict.relaxations


@pytest.mark.parametrize("own", [alone("g"), a_gang("g", pods=2)], ids=["exclusive", "other"])
def test_a_plan_made_before_another_tree_took_its_domain_falls(own):
    """The search ran in another process while an exclusive gang was admitted."""
    cluster = FakeCluster(*racks(2), *own, *alone("a"))
    request = _request(cluster.seen, EMPTY, "g")
    verdict = plan(request)
    assert isinstance(verdict, Plan)
    assert still_holds(request, verdict, _request(cluster.seen, EMPTY, "g"))
    (node,) = {a.node for a in verdict.assignments}
    state = _holding(cluster, "a", ["a-0", "a-1"], node=node)
    now = _request(cluster.seen, state, "g")
    assert not still_holds(request, verdict, now)
    assert not would_be_refused(request, now, ComparedNodes())


def test_with_a_resource_all_pods_that_request_it_count():
    """Those of no group, too; other pods may be there, such as those of a DaemonSet."""
    others = [
        a_pod("lone", node="n0", requests={GPU: 1}),
        a_pod("agent", node="n1", requests={"cpu": 1}),
    ]
    cluster = FakeCluster(*racks(2), *alone("g", resource=GPU), *others)
    assert taken(cluster, "g") == ("r0",)
    placed_on(cluster, "g", "n1")
    assert taken(cluster, "g") == ("r0",)


def test_with_a_resource_reservations_count_as_the_pods_that_they_are_for():
    """D20: of a tree out of the scope as well; of one that does not request the resource they do not."""
    trees = [*a_gang("other", pods=1), *a_gang("agents", pods=1)]
    cluster = FakeCluster(*racks(2), *alone("g", resource=GPU, scope="Profile"), *trees)
    for name in ("other", "agents"):
        cluster.change_group(name, labels={"gang-extender.dev/tree": "training"})
    shape = cluster.pod("agents-0").shape
    cluster.change_pod("agents-0", shape=msgspec.structs.replace(shape, requests=(("cpu", 1),)))
    state = _holding(cluster, "other", ["other-0"], node="n0")
    assert taken(cluster, "g", state) == ("r0",)
    assert taken(cluster, "g", _holding(cluster, "agents", ["agents-0"], node="n0")) == ()
