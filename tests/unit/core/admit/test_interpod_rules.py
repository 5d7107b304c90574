"""Rules between pods in the planner's input: who is counted, who is meant, and nothing that is stale."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.interpod_rules import InterpodRules
from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import AssignmentRecord, GangAdmitted, GangObserved, GroupRecord
from extender.core.log.reservation_state import EMPTY
from extender.core.model.cluster_view import without_pod
from extender.core.model.ids import NodeName, PlanId
from extender.core.planner.plan_types import PlanRequest
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.core.support import folded

HOST, ZONE = "kubernetes.io/hostname", "zone"


def term(app, key=ZONE, **rest):
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **rest}


def required(kind, *terms):
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def preferred(kind, weight, *terms):
    listed = [{"weight": weight, "podAffinityTerm": term_} for term_ in terms]
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": listed}}


def spread(app, key=ZONE):
    one = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**one, "labelSelector": {"matchLabels": {"app": app}}}]


def called(name, app, node="", namespace="default", **rest):
    metadata = {"labels": {"app": app}}
    return a_pod(name, node=node, namespace=namespace, metadata=metadata, **rest)


def cluster_of(*objects, **spec):
    nodes = (a_node(f"n{i}", {ZONE: f"z{i % 2}"}, gpu=8) for i in range(4))
    gang = a_gang("g", pods=2, metadata={"labels": {"app": "g"}}, **spec)
    return FakeCluster(*nodes, *gang, *objects)


def asked(cluster, state=EMPTY, book=None, rows=None, parts=None) -> PlanRequest:
    tree = next(t for t in forest_of(cluster.seen).trees.values() if t.root.key.name == "g")
    part = (parts or TreeParts()).of(tree, state.gangs.get(tree.root.uid))
    return plan_request(
        cluster.seen, state, part, rows=rows or NodeRowCache(), budget=1000, book=book
    )


def test_a_tree_without_rules_in_a_cluster_without_any_has_none():
    assert asked(cluster_of(called("x", "g", "n0"))).rules == ()


def test_anti_affinity_counts_pods_that_are_or_will_be_there():
    """Running, terminating and nominated pods of its namespace, per value of the key."""
    cluster = cluster_of(
        called("runs", "noise", "n0"),
        called("goes", "noise", "n1"),
        called("comes", "noise", status={"nominatedNodeName": "n1"}),
        called("waits", "noise"),
        called("stranger", "noise", "n0", namespace="other"),
        called("quiet", "silence", "n0"),
        affinity=required("podAntiAffinity", term("noise")),
    )
    cluster.change_pod("goes", deleting=True)
    (rule,) = asked(cluster).rules
    assert (rule.kind, rule.keys, rule.shapes, rule.about) == ("apart", (ZONE,), (0,), ())
    assert rule.there == ((("z0", 1), ("z1", 2)),)


def test_a_namespace_selector_that_takes_all_reaches_other_namespaces():
    everywhere = term("noise", namespaceSelector={})
    cluster = cluster_of(
        called("stranger", "noise", "n0", namespace="other"),
        affinity=required("podAntiAffinity", everywhere),
    )
    assert asked(cluster).rules[0].there == ((("z0", 1),),)


def test_spread_counts_per_node_and_not_what_goes():
    cluster = cluster_of(
        called("runs", "g", "n0"),
        called("goes", "g", "n0"),
        called("too", "g", "n2"),
        topologySpreadConstraints=spread("g"),
    )
    cluster.change_pod("goes", deleting=True)
    (rule,) = asked(cluster).rules
    assert (rule.kind, rule.shapes, rule.about) == ("spread", (0,), (0,))
    assert rule.there == ((("n0", 1), ("n2", 1)),)


def test_affinity_counts_only_who_is_there_for_certain():
    """A nomination may come to nothing; a node without the key is in no domain."""
    cluster = cluster_of(
        a_node("bare"),
        called("runs", "db", "n3"),
        called("lost", "db", "bare"),
        called("comes", "db", status={"nominatedNodeName": "n0"}),
        affinity=required("podAffinity", term("db"), term("db", HOST)),
    )
    (rule,) = asked(cluster).rules
    assert rule.keys == (ZONE, HOST)
    assert rule.there == ((("z1", 1),), (("bare", 1), ("n3", 1)))


@pytest.mark.parametrize("where", ["running", "held"])
def test_pods_that_are_there_keep_members_off(where):
    """Anti-affinity works both ways; that of a pod that only waits keeps no member off."""
    away = required("podAntiAffinity", term("g"))
    other = [a_group("other", gang=1), a_pod("o", "other", requests={GPU: 1}, affinity=away)]
    cluster = cluster_of(*other, called("waits", "x", affinity=away))
    state = EMPTY
    if where == "running":
        cluster.change_pod("o", node=NodeName("n0"))
    else:
        assert asked(cluster).rules == ()
        seat = AssignmentRecord(
            pod="default/o", uid=cluster.pod("o").uid, group="other", node=NodeName("n0")
        )
        event = GangAdmitted(
            plan=PlanId("plan"), kind="PodGroup", priority=0, assignments=(seat,),
            groups=(GroupRecord(kind="PodGroup", name="other", minimum=1),), shapes=({GPU: 1},),
        )  # fmt: skip
        about = (cluster.group("other").uid, "default/other")
        state = folded(EMPTY, (*about, GangObserved(kind="PodGroup")), (*about, event))
    (rule,) = asked(cluster, state).rules
    assert (rule.kind, rule.shapes, rule.about) == ("apart", (), (0,))
    assert rule.there == ((("z0", 1),),)


def test_shapes_differ_only_by_the_pods_that_rules_select():
    """An index in the labels makes no difference until a rule selects by it."""
    cluster = cluster_of(called("x", "x", "n0", affinity=required("podAntiAffinity", term("lead"))))
    assert asked(cluster).shapes == (cluster.pod("g-0").shape,)
    assert asked(cluster).rules == (), "it means no member"
    cluster.change_pod("g-1", labels={"app": "lead"})
    request = asked(cluster)
    assert [m.shape for m in request.root.members] == [0, 1]
    assert request.shapes[0] == request.shapes[1]
    assert request.rules[0].about == (1,)


def test_preferences_count_pods_as_they_are_before_the_plan():
    """Affinity and anti-affinity per value of the key, spread per node and without what goes; its own members are not counted."""
    anyway = [{**spread("noise")[0], "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2}]
    cluster = cluster_of(
        called("runs", "noise", "n0"),
        called("goes", "noise", "n1"),
        called("comes", "noise", status={"nominatedNodeName": "n1"}),
        called("stranger", "noise", "n0", namespace="other"),
        affinity=preferred("podAffinity", 7, term("noise"))
        | preferred("podAntiAffinity", 9, term("g", HOST)),
        topologySpreadConstraints=anyway,
    )
    cluster.change_pod("goes", deleting=True)
    request = asked(cluster)
    assert request.rules == ()
    apart, near, spread_ = sorted(request.preferences, key=lambda p: p.kind)
    assert (near.key, near.weight, near.shapes, near.among) == (ZONE, 7, (0,), False)
    assert near.there == (("z0", 1), ("z1", 2))
    assert (apart.key, apart.weight, apart.there, apart.among) == (HOST, 9, (), True)
    assert (spread_.key, spread_.skew, spread_.there) == (ZONE, 2, (("n0", 1), ("n1", 1)))
    assert {a.node for a in plan(request).assignments} <= {"n1", "n3"}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["move", "label", "go", "delete", "rule", "priority"]),
        st.sampled_from(["a", "b", "c", "g-0", "g-1"]),
        st.integers(0, 3),
    ),
    max_size=6,
)


@examples(150)
@given(CHANGES, st.sampled_from(["apart", "near", "spread", "soft", "none"]))
def test_what_is_kept_changes_nothing(changes, kind):
    """A book used before gives what a new one gives."""
    spec = {
        "apart": {"affinity": required("podAntiAffinity", term("g"), term("a", HOST))},
        "near": {"affinity": required("podAffinity", term("g"))},
        "spread": {"topologySpreadConstraints": spread("g")},
        "soft": {"affinity": preferred("podAffinity", 5, term("g"), term("a", HOST))},
        "none": {},
    }[kind]
    off = required("podAntiAffinity", term("g"))
    cluster = cluster_of(called("a", "a", "n0"), called("b", "g", "n1"), called("c", "c"), **spec)
    ruled = FakeCluster(called("r", "r", affinity=off)).pod("r").shape
    kept = {"book": InterpodRules(), "rows": NodeRowCache(), "parts": TreeParts()}
    for what, name, n in (*changes, ("move", "a", 1)):
        if name not in {p.name for p in cluster.seen.pods.values()}:
            continue
        pod = cluster.pod(name)
        match what:
            case "move":
                cluster.change_pod(name, node=NodeName(f"n{n}"))
            case "label":
                cluster.change_pod(name, labels={**pod.labels, "app": ["a", "g", "c", "lead"][n]})
            case "go":
                cluster.change_pod(name, deleting=True)
            case "delete":
                cluster.seen = without_pod(cluster.seen, pod.uid)
            case "rule":
                cluster.change_pod(
                    name, shape=msgspec.structs.replace(pod.shape, rules=ruled.rules)
                )
            case "priority":
                cluster.change_pod(name, nominated=NodeName(f"n{n}"), priority=n - 1)
        assert asked(cluster, **kept) == asked(cluster)
