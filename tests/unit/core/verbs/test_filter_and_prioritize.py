"""The answers to kube-scheduler: redeem, refuse in constant words, protect reserved capacity, score."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.log.events import GangInvalid, GangObserved, GangUnschedulable
from extender.core.log.reservation_state import EMPTY, reservation_of
from extender.core.model.ids import NodeName
from extender.core.model.pod_groups import leaf_key
from extender.core.planner.plan_types import GIVEN
from extender.core.verbs.filter_and_prioritize import (
    NAMED_MAX,
    SCORE_MAX,
    decide_filter,
    decide_prioritize,
    domain_scores,
    pending_reason,
)
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_fleet,
    a_gang,
    a_group,
    a_node,
    a_pod,
)
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import folded

N0, N1, N2 = NodeName("n0"), NodeName("n1"), NodeName("n2")


@pytest.fixture
def cluster():
    return FakeCluster(
        a_node("n0", gpu=4), a_node("n1", gpu=4), a_node("n2", gpu=4), *a_gang("g", pods=2)
    )


@pytest.fixture
def state(cluster):
    return admitted(EMPTY, cluster, "g", {"g-0": "n0", "g-1": "n1"}, priority=10)


def ask(cluster, state, name, *offered):
    pod = cluster.pod(name)
    return decide_filter(cluster.seen, state, forest_of(cluster.seen), pod, offered)


def test_a_member_redeems_its_node_and_no_other(cluster, state):
    """Only the reserved node passes, asking twice gives the same answer."""
    first = ask(cluster, state, "g-0", N2, N0, N1)
    assert (first.outcome, first.passed, first.refused) == ("redeemed", (N0,), ())
    assert ask(cluster, state, "g-0", N2, N0, N1) == first


def test_a_reserved_node_that_is_not_offered_is_not_answered(cluster, state):
    """kube-scheduler did not offer the node: everything is refused, in words that name the node."""
    decision = ask(cluster, state, "g-0", N1, N2)
    assert (decision.outcome, decision.passed, decision.refused) == ("not-offered", (), (N1, N2))
    assert (
        decision.reason
        == "gang default/g: capacity is reserved on node n0, which kube-scheduler did not offer"
    )
    assert ask(cluster, state, "g-0").passed == ()


def test_a_member_without_a_reservation_gets_nothing(cluster):
    """Refused on every node, with the reason of its tree."""
    decision = ask(cluster, EMPTY, "g-0", N0, N1)
    assert (decision.outcome, decision.passed, decision.refused) == ("refused", (), (N0, N1))
    assert decision.reason == "gang default/g: not planned yet"


@given(st.integers(0, 9), st.integers(1, 9), st.sampled_from(["waiting", "impossible", "unknown"]))
def test_words_do_not_change_with_counts(have, want, outcome):
    """A text changes with the kind of reason only; counts would make kube-scheduler spin (K25)."""
    cluster = FakeCluster(a_node("n0"), *a_gang("g", pods=1))
    uid, root = cluster.group("g").uid, "default/g"

    def words(text):
        refused = GangUnschedulable(outcome=outcome, reasons=(text,))
        state = folded(EMPTY, (uid, root, GangObserved(kind="PodGroup")), (uid, root, refused))
        return pending_reason(
            state, forest_of(cluster.seen), cluster.seen, leaf_key("default", "g")
        )

    assert words(f"{have} of {want} members") == words("something else")
    assert not any(digit in words(f"{have} of {want}") for digit in "0123456789")


def test_the_reason_names_the_leaf_that_is_being_deleted():
    """Members that were never bound are not planned while others keep their leaf."""
    cluster = FakeCluster(
        a_node("n0"), a_group("root", gang=1, composite=True), a_group("leaf", gang=1, parent="root"), a_pod("p", "leaf"),
    )  # fmt: skip
    cluster.change_group("leaf", deleting=True)
    found = ask(cluster, EMPTY, "p", N0).reason
    assert found == "gang default/root: PodGroup/default/leaf is being deleted"


def test_the_reason_names_what_is_missing():
    """A leaf that does not exist, a parent that does not exist, a root being deleted, an invalid tree: each in its words."""
    cluster = FakeCluster(
        a_node("n0"), a_pod("p", "nowhere"), a_group("kid", gang=1, parent="absent"), a_pod("k", "kid"),
        *a_gang("going", pods=1), *a_gang("bad", pods=1),
    )  # fmt: skip
    cluster.change_group("going", deleting=True)
    cluster.change_pod("bad-0", priority=7)
    assert ask(cluster, EMPTY, "p", N0).reason.endswith(
        "waiting for PodGroup/default/nowhere, which does not exist"
    )
    assert (
        "waits for its parent CompositePodGroup/default/absent"
        in ask(cluster, EMPTY, "k", N0).reason
    )
    assert (
        ask(cluster, EMPTY, "going-0", N0).reason
        == "gang default/going: its root group is being deleted"
    )
    assert ask(cluster, EMPTY, "bad-0", N0).reason.startswith(
        "gang default/bad: invalid: Pod/default/bad-0 has priority 7"
    )


def test_the_reason_of_a_repaired_tree_is_not_a_lack_of_capacity(cluster):
    """Between the repair of an invalid tree and its next plan the reason is that it is not planned yet."""
    uid = cluster.group("g").uid
    root = (uid, "default/g")
    state = folded(
        EMPTY, (*root, GangObserved(kind="PodGroup")), (*root, GangInvalid(problems=("B9: x",)))
    )
    assert ask(cluster, state, "g-0", N0).reason == "gang default/g: not planned yet"


@pytest.mark.parametrize(("ruled", "words"), [
    (False, "kube-scheduler refuses every node with capacity for its minimum"),
    (True, "kube-scheduler refuses every node with capacity for its minimum; "
           "rules between pods may be the cause: pod anti-affinity over rack"),
])  # fmt: skip
def test_a_refusal_that_rests_on_rejections_is_not_a_budget(ruled, words):
    """Nothing was searched for too short; where a rule between pods may be the cause, it is named (H10)."""
    elsewhere = {"topologyKey": "rack", "namespaceSelector": {"matchLabels": {"team": "x"}}}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [elsewhere]}
    spec = {"affinity": {"podAntiAffinity": rule}} if ruled else {}
    cluster = FakeCluster(a_node("n0"), *a_gang("g", pods=1, **spec))
    root = (cluster.group("g").uid, "default/g")
    text = f"PodGroup default/g: {GIVEN} kube-scheduler refused n0"
    state = folded(
        EMPTY, (*root, GangObserved(kind="PodGroup")),
        (*root, GangUnschedulable(outcome="unknown", reasons=(text,))),
    )  # fmt: skip
    assert ask(cluster, state, "g-0", N0).reason == f"gang default/g: {words}"


def test_the_reason_of_an_extra_does_not_name_the_minimum(cluster, state):
    """After the admission the reason speaks of more members."""
    uid = cluster.group("g").uid
    refused = GangUnschedulable(outcome="impossible", reasons=("1 of 3",))
    state = folded(state, (uid, "default/g", refused))
    cluster.add(a_pod("g-2", "g"))
    assert ask(cluster, state, "g-2", N0).reason == "gang default/g: no capacity for more members"


@pytest.mark.parametrize("units", ["every lower-priority unit (2)", "Pod/default/a, the only"])
def test_the_reason_of_a_member_names_a_useless_eviction(cluster, units):
    """The condition of the group counts the pods; the reason for kube-scheduler has no number."""
    root = (cluster.group("g").uid, "default/g")
    considered = (f"evicting {units} yields 1 of 2 pods",)
    refused = GangUnschedulable(
        outcome="impossible", reasons=("0 of 2",), preemption_notes=considered
    )
    state = folded(EMPTY, (*root, GangObserved(kind="PodGroup")), (*root, refused))
    text = "no capacity for its minimum, not even when every unit of lower priority is evicted"
    assert ask(cluster, state, "g-0", N0).reason == f"gang default/g: {text}"


@pytest.mark.parametrize(("priority", "passes"), [(9, False), (10, False), (11, True)])
def test_reserved_capacity_is_kept_from_equal_and_lower_priority(cluster, state, priority, passes):
    """A foreign pod that would need reserved capacity is kept out unless its priority is higher."""
    cluster.add(a_pod("alien", requests={GPU: 4}))
    cluster.change_pod("alien", priority=priority)
    decision = ask(cluster, state, "alien", N0, N1, N2)
    assert decision.passed == ((N0, N1, N2) if passes else (N2,))
    if not passes:
        assert (decision.outcome, decision.refused) == ("protected", (N0, N1))
        assert decision.reason == "capacity is reserved for a gang of equal or higher priority"


def test_capacity_beside_a_reservation_is_free_for_all(cluster, state):
    """Only the node whose rest is too small is taken away; running pods count, the reserved pod once."""
    cluster.add(a_pod("small", requests={GPU: 3}), a_pod("filler", node="n1", requests={GPU: 1}))
    assert ask(cluster, state, "small", N0, N1, N2).passed == (N0, N2)
    cluster.change_pod("g-0", node=N0)  # bound, but not yet recorded: counted once
    assert ask(cluster, state, "small", N0, N1, N2).passed == (N0, N2)


def test_pinned_pods_always_pass(cluster, state):
    """DaemonSet pods have one node only; refusing them there would help no pod."""
    cluster.add(a_pod("daemon", requests={GPU: 4}))
    cluster.change_pod("daemon", pinned=N0)
    assert ask(cluster, state, "daemon", N0).outcome == "passed"


def test_unknown_nodes_and_resources_are_kube_schedulers_business(cluster, state):
    """A node we have not seen passes; so does a resource that no reservation touches on the node."""
    cluster.add(a_pod("alien", requests={"example.com/odd": 1}))
    assert ask(cluster, state, "alien", N0, NodeName("new")).passed == (N0, NodeName("new"))


@given(st.permutations([N0, N1, N2]))
def test_filter_keeps_the_order_and_invents_nothing(offered):
    """Passed and refused are a partition of what was offered, in its order; a member that passes needs no refusals."""
    cluster = FakeCluster(
        a_node("n0", gpu=1), a_node("n1", gpu=1), a_node("n2", gpu=1), *a_gang("g", pods=1)
    )
    state = admitted(EMPTY, cluster, "g", {"g-0": "n1"}, priority=1)
    cluster.add(a_pod("alien", requests={GPU: 1}))
    for name in ("alien", "g-0"):
        decision = ask(cluster, state, name, *offered)
        named = decision.passed + decision.refused
        assert sorted(named) == ([NodeName("n1")] if name == "g-0" else [N0, N1, N2])
        assert [n for n in offered if n in decision.refused] == list(decision.refused)


def test_the_planned_node_wins(cluster, state):
    """A member's node gets the maximum, everything else nothing; where it is not offered no node does."""
    member = cluster.pod("g-1")
    assert decide_prioritize(cluster.seen, state, member, [N0, N1, N2], dict) == ((N1, SCORE_MAX),)
    assert decide_prioritize(cluster.seen, state, member, [N0, N2], dict) == ()


def test_large_free_domains_stay_whole():
    """An ordinary pod is drawn to the rack that is in use already; the empty rack scores least, so it is not named."""
    cluster = FakeCluster(
        *a_fleet("2 racks x 2 nodes"), a_pod("filler", node="r0-n0"), a_pod("alien")
    )
    names = sorted(cluster.seen.nodes)
    found = domain_scores(cluster.seen, EMPTY, [RACK])
    scores = dict(
        decide_prioritize(cluster.seen, EMPTY, cluster.pod("alien"), names, lambda: found)
    )
    assert scores == {"r0-n0": 5, "r0-n1": 5}
    assert (
        decide_prioritize(cluster.seen, EMPTY, cluster.pod("alien"), names[:2], lambda: found) == ()
    ), "all alike"


def test_of_empty_racks_the_larger_one_stays_whole():
    """None of the nodes is in use, so the shares are alike; the small rack is named."""
    cluster = FakeCluster(
        *(a_node(f"large{i}", labels={RACK: "large"}) for i in range(8)),
        *(a_node(f"small{i}", labels={RACK: "small"}) for i in range(2)),
        a_pod("alien"),
    )
    scores = domain_scores(cluster.seen, EMPTY, [RACK])
    named = decide_prioritize(
        cluster.seen, EMPTY, cluster.pod("alien"), sorted(cluster.seen.nodes), lambda: scores
    )
    assert {name for name, _ in named} == {"small0", "small1"}


@pytest.mark.parametrize("keys", [[RACK], []])
def test_free_nodes_come_before_reserved_ones(keys):
    """A pod of higher priority may take what is reserved for a gang; where another node is free it is drawn there."""
    cluster = FakeCluster(
        *a_fleet("2 racks x 2 nodes"),
        *a_gang("g", pods=2, requests={GPU: 8}),
        a_pod("urgent", requests={GPU: 8}, priority=100),
        a_pod("small", requests={"cpu": "1"}, priority=100),
    )
    reserved = [NodeName("r0-n0"), NodeName("r0-n1")]
    state = admitted(EMPTY, cluster, "g", dict(zip(("g-0", "g-1"), reserved, strict=True)))
    names = sorted(cluster.seen.nodes)
    scores = domain_scores(cluster.seen, state, keys)
    named = dict(
        decide_prioritize(cluster.seen, state, cluster.pod("urgent"), names, lambda: scores)
    )
    assert named.keys() == set(names) - set(reserved)
    beside = decide_prioritize(cluster.seen, state, cluster.pod("small"), names, lambda: scores)
    assert {name for name, _ in beside} == (set(reserved) if keys else set())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6),
    st.integers(1, 4),
    st.booleans(),
)
def test_scores_are_integers_from_zero_to_ten(pods, racks, keyed):
    """kube-scheduler drops a list with anything but integers in it; who is not named has the lowest score."""
    cluster = FakeCluster(
        *a_fleet(f"{racks} racks x 2 nodes"), *a_gang("g", pods=1), a_pod("alien")
    )
    names = sorted(cluster.seen.nodes)
    for number, (where, _) in enumerate(pods):
        cluster.add(a_pod(f"f{number}", node=names[where % len(names)]))
    state = admitted(EMPTY, cluster, "g", {"g-0": names[0]})
    offered = [*names, NodeName("unknown")]
    found = domain_scores(cluster.seen, state, [RACK] if keyed else [])
    scores = decide_prioritize(cluster.seen, state, cluster.pod("alien"), offered, lambda: found)
    assert all(type(score) is int and 0 < score <= SCORE_MAX for _, score in scores)
    whole = {name: found.get(name, SCORE_MAX) for name in offered}
    lowest = min(whole.values())
    above = {name: score - lowest for name, score in whole.items() if score > lowest}
    assert dict(scores) == (above if keyed else {})
    assert not keyed or found[names[0]] > 0  # something is held there


@given(st.lists(st.integers(0, SCORE_MAX), min_size=1, max_size=3 * NAMED_MAX))
def test_few_nodes_are_named_and_always_the_best(of_nodes):
    """Of each score all or none, from the best down, with true distances to the best that is not named."""
    cluster = FakeCluster(a_pod("alien"))
    found = {NodeName(f"n{number}"): score for number, score in enumerate(of_nodes)}
    named = dict(
        decide_prioritize(cluster.seen, EMPTY, cluster.pod("alien"), list(found), lambda: found)
    )
    assert len(named) <= NAMED_MAX
    unnamed = {name: score for name, score in found.items() if name not in named}
    base = max(unnamed.values())
    assert named == {name: score - base for name, score in found.items() if score > base}
    capacity = NAMED_MAX - len(named)
    assert base == min(of_nodes) or list(unnamed.values()).count(base) > capacity, (
        "no need to be short"
    )


def test_a_reservation_is_found_by_uid_only(cluster, state):
    """A recreated pod of the same name holds nothing."""
    pod = cluster.pod("g-0")
    assert reservation_of(state, pod.uid).node == N0
    again = msgspec.structs.replace(pod, uid="another")
    assert reservation_of(state, again.uid) is None
