"""Warnings W1 to W4 and template mismatches (B11), for trees that are scheduled all the same."""

from __future__ import annotations

import pytest

from extender.core.admit.tree_warnings import collect_warnings, template_mismatches
from extender.core.model.pod_groups import PROBLEMS_NAMED_MAX, build_forest
from extender.core.workloads.workload_object import MANAGED_BY
from tests.support.service.manifest_builders import a_group, a_node, a_pod, a_world, an_object


def tree_of(*things):
    view = a_world(*things).view
    members = {leaf: tuple(pods.values()) for leaf, pods in view.members.items()}
    forest = build_forest(dict(view.groups.items()), members)
    (tree,) = forest.trees.values()
    return view, tree


def test_composite_with_one_child_is_questionable():
    """W1."""
    view, tree = tree_of(
        a_group("root", gang=1, composite=True), a_group("only", gang=1, parent="root")
    )
    assert [t for texts in collect_warnings(view, tree).values() for t in texts] == [
        "CompositePodGroup/default/root has one child group; it could be left out (W1)"
    ]


def test_a_basic_leaf_below_a_gang_is_questionable():
    """X10: both groups are named; a basic leaf below a basic composite, or alone, is not."""
    view, tree = tree_of(
        a_group("root", gang=2, composite=True),
        a_group("leader", parent="root"),
        a_group("workers", gang=2, parent="root"),
    )
    assert not tree.problems
    ((key, (text,)),) = collect_warnings(view, tree).items()
    assert (key.kind, key.name) == ("PodGroup", "leader")
    assert "PodGroup/default/leader is basic below CompositePodGroup/default/root" in text
    assert "Kubernetes 1.38 refuses such a tree of built-in groups" in text
    assert "minCount 1" in text
    for alone in (
        [a_group("leader")],
        [
            a_group("root", composite=True),
            a_group("leader", parent="root"),
            a_group("workers", gang=2, parent="root"),
        ],
    ):
        assert collect_warnings(*tree_of(*alone)) == {}


def test_how_a_tree_of_a_workload_is_built_is_no_warning():
    """W1 and X10 are for people who wrote the groups: a workload has no other tree."""
    ours = {"labels": {"app.kubernetes.io/managed-by": MANAGED_BY}}
    only = [
        a_group("root", gang=1, composite=True, metadata=ours),
        a_group("only", parent="root", metadata=ours),
    ]
    assert collect_warnings(*tree_of(*only)) == {}
    view, tree = tree_of(a_group("root", gang=1, composite=True), only[1])
    assert [key.name for key in collect_warnings(view, tree)] == ["root"]


def test_many_basic_leaves_of_one_gang_are_named_once_for_the_first():
    """A tree of 512 basic leaves does not give 512 Events."""
    leaves = [a_group(f"leaf-{n}", parent="root") for n in range(20)]
    view, tree = tree_of(a_group("root", gang=2, composite=True), *leaves)
    assert len(collect_warnings(view, tree)) == PROBLEMS_NAMED_MAX


@pytest.mark.parametrize(
    ("outer", "inner", "rule"),
    [("rack", "block", "W2"), ("zone", "rack", "W4"), ("block", "nowhere", "W3")],
)
def test_questionable_topology_keys(outer, inner, rule):
    """A narrower key above a wider one, a value under several parents, a key on no node."""
    nodes = [
        a_node("a", {"rack": "r1", "block": "x", "zone": "z1"}),
        a_node("b", {"rack": "r2", "block": "x", "zone": "z1"}),
        a_node("c", {"rack": "r1", "block": "x", "zone": "z2"}),
    ]
    if rule in {"W2", "W3"}:
        nodes = nodes[:2]
    view, tree = tree_of(
        *nodes,
        a_group("root", gang=2, composite=True, topo=outer),
        a_group("one", gang=1, parent="root", topo=inner),
        a_group("two", gang=1, parent="root"),
    )
    (texts,) = collect_warnings(view, tree).values()
    assert len(texts) == 1
    assert texts[0].endswith(f"({rule})")
    assert inner in texts[0]


@pytest.mark.parametrize(
    ("topo", "preferred", "expected"),
    [
        ("", ("rack", "block"), []),
        ("block", ("rack",), []),
        ("", ("block", "rack"), ["block is wider than rack, which is named after it; name the narrowest first (W2)"]),
        ("rack", ("rack",), ["rack is required, too, so it asks for nothing more; leave it out (W2)"]),
        ("rack", ("block",), ["block is wider than rack, which is required, so it asks for nothing more; leave it out (W2)"]),
        ("", ("blocks",), ["blocks is on no node (W3); did you mean block?"]),
    ],
)  # fmt: skip
def test_questionable_preferred_keys(topo, preferred, expected):
    """A wide key before a narrower one, a key that asks for nothing more than what is required, a key on no node."""
    nodes = [a_node("a", {"rack": "r1", "block": "x"}), a_node("b", {"rack": "r2", "block": "x"})]
    constraints = {"preferred": [*preferred]}
    if topo:
        constraints["topology"] = [{"key": topo}]
    view, tree = tree_of(*nodes, a_group("one", gang=1, schedulingConstraints=constraints))
    assert tree.root.constraints.preferred == preferred
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert [text.partition(" key ")[2] for text in texts] == expected


def test_well_nested_keys_are_not_questionable():
    """Racks inside blocks are the usual case."""
    nodes = [a_node("a", {"rack": "r1", "block": "x"}), a_node("b", {"rack": "r2", "block": "x"})]
    view, tree = tree_of(
        *nodes,
        a_group("root", gang=2, composite=True, topo="block"),
        a_group("one", gang=1, parent="root", topo="rack"),
        a_group("two", gang=1, parent="root", topo="rack"),
    )
    assert collect_warnings(view, tree) == {}


def workload(*templates):
    policy = {"schedulingPolicy": {"gang": {"minGroupCount": 1}}}
    leaf_policy = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    kids = [{"name": name, **leaf_policy} for name in templates]
    root = {"name": "t", **policy, "podGroupTemplates": kids}
    return an_object("Workload", "w", spec={"compositePodGroupTemplates": [root]})


REPEATED = "value R1 of net/rack is on nodes of several values of net/zone (Z1, Z2)"


@pytest.mark.parametrize(
    ("labels", "warns"),
    [
        ([("Z1", "R1"), ("Z2", "R1")], True),
        ([("Z1", "R1"), ("Z1", "R2"), ("Z2", "R1"), ("Z2", "R3")], True),
        ([("Z1", "R1"), ("Z2", "R2")], False),
    ],
)
def test_a_value_that_two_places_share_is_questionable_for_one_key_too(labels, warns):
    """V20 and W4, peer case F5: two racks R1 in two zones are one domain; the values are named, and what to do."""
    nodes = [
        a_node(f"n{i}", {"net/zone": zone, "net/rack": rack})
        for i, (zone, rack) in enumerate(labels)
    ]
    found = collect_warnings(*tree_of(*nodes, a_group("g", gang=1, topo="net/rack")))
    texts = [text for texts in found.values() for text in texts]
    assert [text.startswith(f"PodGroup/default/g: {REPEATED}") for text in texts] == [True] * warns
    above = [a_group("top", gang=1, composite=True, topo="net/zone"), a_group("g", gang=1, parent="top", topo="net/rack")]  # fmt: skip
    found = collect_warnings(*tree_of(*nodes, *above))
    assert not any(REPEATED in text for texts in found.values() for text in texts)


@pytest.mark.parametrize("key", ["net/zone", "net/colour", "kubernetes.io/hostname"])
def test_a_wide_key_and_labels_that_are_no_places_are_not_questionable(key):
    """A zone has several racks, a colour is anywhere, and a type of node is no place."""
    nodes = [
        a_node(f"n{i}", {"net/zone": f"Z{i // 4}", "net/rack": f"R{i // 2}", "net/colour": "ab"[i % 2],
                         "node.kubernetes.io/instance-type": "cd"[i % 2], "kubernetes.io/hostname": f"n{i}"})
        for i in range(8)
    ]  # fmt: skip
    assert collect_warnings(*tree_of(*nodes, a_group("g", gang=1, topo=key))) == {}


def test_a_basic_leaf_that_is_disrupted_as_a_whole_is_questionable():
    """Kubernetes 1.37 accepts it (peer case F3), 1.38 does not; it is scheduled, and its pods are one unit."""
    view, tree = tree_of(a_group("g", whole=True))
    assert not tree.problems
    ((text,),) = collect_warnings(view, tree).values()
    assert "each pod is placed by itself, and all of them are evicted together" in text
    assert "refused by Kubernetes 1.38 in built-in groups" in text


def test_a_basic_composite_that_is_disrupted_as_a_whole_is_questionable():
    leaves = [a_group(name, gang=1, whole=True, parent="root") for name in ("a", "b")]
    view, tree = tree_of(a_group("root", composite=True, whole=True), *leaves)
    assert not tree.problems
    ((key, (text,)),) = collect_warnings(view, tree).items()
    assert key.name == "root"
    assert "each child group is placed by itself" in text


def test_group_that_does_not_match_its_template_is_named():
    """B11: wrong kind, unknown name, wrong parent; a group like its template is not named."""
    leaf = a_group("leaf", gang=1, parent="root")
    leaf["spec"]["workloadRef"]["templateName"] = "replica"
    odd = a_group("odd", gang=1, parent="root")  # template "t" is the composite's
    lost = a_group("lost", gang=1, parent="root")
    lost["spec"]["workloadRef"]["templateName"] = "gone"
    root = a_group("root", gang=1, composite=True)
    view, tree = tree_of(workload("replica"), root, leaf, odd, lost)
    found = {key.name: text for key, text in template_mismatches(view, tree).items()}
    assert found == {
        "odd": 'PodGroup/default/odd names template "t", which is for a CompositePodGroup in Workload "w"',
        "lost": 'PodGroup/default/lost names template "gone", which Workload "w" does not have',
    }


def test_template_of_another_parent_is_named():
    """B11: more levels or another place than the Workload has."""
    leaf = a_group("leaf", gang=1)
    leaf["spec"]["workloadRef"] = {"workloadName": "w", "templateName": "replica"}
    view, tree = tree_of(workload("replica"), leaf)
    (text,) = template_mismatches(view, tree).values()
    assert 'stands below template "none"' in text
    assert 'below "t"' in text


def test_a_missing_workload_gives_no_warning():
    """Groups are self-contained; the Workload need not exist."""
    view, tree = tree_of(
        a_group("root", gang=1, composite=True),
        a_group("a", gang=1, parent="root"),
        a_group("b", gang=1, parent="root"),
    )
    assert template_mismatches(view, tree) == {}


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        (("b", "rack"), []),
        (("b", "racks"), ["racks is on no node"]),
        (("c", "rack"), ["near c: the tree has no such group that is neither above nor below this one, so it asks for nothing; name one by its metadata.name (b, decode), or leave it out (W5)"]),
        (("decod", "rack"), ["name one by its metadata.name (b, decode), or leave it out (W5); did you mean decode?"]),
        (("root", "rack"), ["near root: the tree has no such group"]),
    ],
)  # fmt: skip
def test_questionable_groups_to_be_near_to(near, expected):
    """One that is not there, one above, a key on no node."""
    entry = {"near": [{"group": near[0], "key": near[1]}]}
    view, tree = tree_of(
        a_node("n", {"rack": "r1"}),
        a_group("root", composite=True, gang=2),
        a_group("a", gang=1, parent="root", schedulingConstraints=entry),
        a_group("b", gang=1, parent="root"),
        a_group("decode", gang=1, parent="root"),
    )
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert len(texts) == len(expected)
    assert all(words in text for words, text in zip(expected, texts, strict=True))


def test_a_group_without_another_one_beside_it_leaves_near_out():
    """No name would help."""
    entry = {"near": [{"group": "b", "key": "rack"}]}
    view, tree = tree_of(
        a_node("n", {"rack": "r1"}), a_group("a", gang=1, schedulingConstraints=entry)
    )
    ((text,),) = collect_warnings(view, tree).values()
    assert text.endswith("so it asks for nothing; there is none to name: leave it out (W5)")


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [
        ({"lostMembers": "Wait"}, []),
        ({"lostMembers": "Widen", "topology": [{"key": "rack"}]}, []),
        ({"lostMembers": "Widen", "preferred": ["rack"]}, ["lostMembers Widen: the group has no required topology key and no slices, so it asks for nothing"]),
        ({"lostMembers": "GiveUp", "exclusive": {"key": "rack"}}, ["lostMembers GiveUp: the group has no required topology key and no slices, so it asks for nothing"]),
    ],
)  # fmt: skip
def test_a_questionable_choice_for_lost_members(constraints, expected):
    """A domain that a group has alone is never left (D26)."""
    racks = [a_node(f"n{n}", {"rack": f"r{n}"}) for n in range(2)]
    view, tree = tree_of(*racks, a_group("g", gang=1, schedulingConstraints=constraints))
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert len(texts) == len(expected)
    assert all(words in text for words, text in zip(expected, texts, strict=True))


@pytest.mark.parametrize(
    ("app", "selector", "expected"),
    [
        ("x", {}, ["PodGroup/default/g: preferred pod anti-affinity over rack among the members of its tree is not taken into account (W7)"]),
        ("y", {}, []),
        ("y", {"namespaceSelector": {"matchLabels": {"a": "b"}}}, ["PodGroup/default/g: preferred pod anti-affinity over rack of namespaces that a label selects is not"]),
    ],
)  # fmt: skip
def test_a_preference_that_is_not_scored_is_named_once(app, selector, expected):
    """D22: members of one tree do not count for one another, also those of another leaf."""
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "x"}}, **selector}
    soft = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}  # fmt: skip
    view, tree = tree_of(
        a_node("n", {"rack": "r"}),
        a_group("top", gang=2, composite=True),
        a_group("g", gang=2, parent="top"),
        a_group("h", gang=1, parent="top"),
        *(a_pod(f"g{n}", "g", affinity=soft) for n in range(2)),
        a_pod("h0", "h", metadata={"labels": {"app": app}}),
    )
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert len(texts) == len(expected)
    assert all(text.startswith(words) for words, text in zip(expected, texts, strict=True))


@pytest.mark.parametrize(
    ("topology", "key", "expected"),
    [
        ("zone", "rack", []),
        ("zone", "racks", ["racks is on no node"]),
        ("rack", "zone", ["slices of 2 by zone: the whole group is in one rack, so they ask"]),
        ("rack", "rack", ["slices of 2 by rack: the whole group is in one rack, so they ask"]),
    ],
)
def test_questionable_slices(topology, key, expected):
    """A key on no node, and one that the whole group is in."""
    entry = {"topology": [{"key": topology}], "slices": [{"size": 2, "key": key}]}
    racks = [a_node(f"n{n}", {"rack": f"r{n}", "zone": f"z{n // 2}"}) for n in range(4)]
    view, tree = tree_of(*racks, a_group("g", gang=1, schedulingConstraints=entry))
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert len(texts) == len(expected)
    assert all(words in text for words, text in zip(expected, texts, strict=True))


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("zone", "rack", []),
        ("rack", "zone", ["slices of 2 by zone: each slice of 4 is in one rack, so they ask for nothing more; give zone the larger size"]),
        ("racks", "zone", ["racks is on no node"]),
    ],
)  # fmt: skip
def test_questionable_slices_inside_of_slices(outer, inner, expected):
    """A key that is wider than that of the larger slices is a requirement that these have met."""
    entry = {"slices": [{"size": 2, "key": inner}, {"size": 4, "key": outer}]}
    racks = [a_node(f"n{n}", {"rack": f"r{n}", "zone": f"z{n // 2}"}) for n in range(4)]
    view, tree = tree_of(*racks, a_group("g", gang=1, schedulingConstraints=entry))
    texts = [text for several in collect_warnings(view, tree).values() for text in several]
    assert len(texts) == len(expected)
    assert all(words in text for words, text in zip(expected, texts, strict=True))


INDEX, JOB = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([{INDEX: "1"}, {INDEX: "0"}], ""),
        ([{}, {}], ""),
        ([{INDEX: "x"}], ""),
        ([{JOB: "0", INDEX: "0"}, {JOB: "1", INDEX: "0"}], ""),
        ([{INDEX: "0"}, {INDEX: "1"}, {INDEX: "0"}], f"Pods default/p0 and default/p2 have the same {INDEX} 0"),
        ([{INDEX: "0"}, {INDEX: "00"}], f"Pods default/p0 and default/p1 have the same {INDEX} 00"),
        ([{JOB: "1", INDEX: "0"}, {JOB: "1", INDEX: "0"}], f"Pods default/p0 and default/p1 have the same {JOB} 1 and {INDEX} 0"),
        ([{}, {INDEX: "0"}, {INDEX: "1"}], f"Pod default/p0 has no label {INDEX}, which other pods of the group have"),
        ([{INDEX: "0"}, {}], f"Pod default/p1 has no label {INDEX}, which other pods of the group have"),
        ([{INDEX: "0"}, {INDEX: str(10**30)}], f'label {INDEX} of Pod default/p1 is "1{"0" * 30}", which is no number of at most 9 digits'),
        ([{INDEX: "0"}, {INDEX: "last"}], f'label {INDEX} of Pod default/p1 is "last", which is no number of at most 9 digits'),
    ],
)  # fmt: skip
def test_indexes_that_give_no_order_are_named_once(labels, problem):
    """W8: no pod with an index, or a single pod, is the usual case."""
    pods = [a_pod(f"p{n}", "g", metadata={"labels": own}) for n, own in enumerate(labels)]
    view, tree = tree_of(a_group("g", gang=1), *pods)
    end = ", so it has no rank order (W8); give each pod an index of its own, or none"
    expected = [f"PodGroup/default/g: {problem}{end}"] if problem else []
    assert [
        text for several in collect_warnings(view, tree).values() for text in several
    ] == expected
