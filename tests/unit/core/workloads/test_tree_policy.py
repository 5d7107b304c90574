"""Profiles and annotations: what is read, and what an error names."""

from __future__ import annotations

import pytest

from extender.core.model.nodes import ExclusiveDomain
from extender.core.workloads.tree_policy import (
    DEFAULT_PROFILE,
    InvalidPolicy,
    KindPolicy,
    NearRole,
    TreeProfile,
    is_label_key,
    read_policy,
)
from tests.support.planning.workload_builders import job


def read(kind=None, /, **annotations):
    keys = {f"gang-extender.dev/{key}": value for key, value in annotations.items()}
    return read_policy(job(annotations=keys), kind or KindPolicy())


def test_without_annotations_the_profile_counts():
    kind = KindPolicy(
        gang="per-job",
        root_topology="net/block",
        leaf_topology="net/rack",
        disruption_mode="single",
    )
    policy = read(kind)
    assert policy.gang == "per-job"
    assert (policy.root.topology, policy.leaf.topology) == (("net/block",), ("net/rack",))
    assert policy.disruption_mode == "single"
    assert (policy.minima, policy.workload, policy.parent) == ({}, "", "")


def test_annotations_refine_the_profile_level_by_level():
    kind = KindPolicy(root_topology="net/block", leaf_topology="net/rack")
    policy = read(kind, topology="leaf=kubernetes.io/hostname", gang="per-replicated-job")
    assert (policy.root.topology, policy.leaf.topology) == (
        ("net/block",),
        ("kubernetes.io/hostname",),
    )
    assert policy.gang == "per-replicated-job"


@pytest.mark.parametrize(
    ("text", "root", "leaf"),
    [
        ("leaf=~net/rack", ("net/block", ("net/zone",)), ("", ("net/rack",))),
        ("leaf=net/zone ~ net/rack~net/block", ("net/block", ("net/zone",)), ("net/zone", ("net/rack", "net/block"))),
        ("root=net/zone", ("net/zone", ()), ("net/row", ("net/rack",))),
        ("", ("net/block", ("net/zone",)), ("net/row", ("net/rack",))),
    ],
)  # fmt: skip
def test_an_entry_takes_the_place_of_all_that_the_profile_has_for_its_level(text, root, leaf):
    kind = KindPolicy(
        root_topology="net/block",
        root_preferred=("net/zone",),
        leaf_topology="net/row",
        leaf_preferred=("net/rack",),
    )
    policy = read(kind, topology=text)
    assert ("".join(policy.root.topology), policy.root.preferred) == root
    assert ("".join(policy.leaf.topology), policy.leaf.preferred) == leaf


@pytest.mark.parametrize(
    ("text", "root", "leaf"),
    [
        ("", None, ExclusiveDomain("net/rack", "Cluster")),
        ("leaf=net/row", None, ExclusiveDomain("net/row")),
        ("root=net/block : Namespace", ExclusiveDomain("net/block", "Namespace"), ExclusiveDomain("net/rack", "Cluster")),
    ],
)  # fmt: skip
def test_exclusive_domains_refine_the_profile_level_by_level(text, root, leaf):
    kind = KindPolicy(leaf_exclusive=ExclusiveDomain("net/rack", "Cluster"))
    policy = read(kind, exclusive=text)
    assert (policy.root.exclusive, policy.leaf.exclusive) == (root, leaf)


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("", [("router", "decode", "net/zone")]),
        ("prefill=decode~net/rack ~ net/block", [("prefill", "decode", "net/rack"), ("prefill", "decode", "net/block")]),
        ("a=b~k, a=c~k,b=c~k", [("a", "b", "k"), ("a", "c", "k"), ("b", "c", "k")]),
    ],
)  # fmt: skip
def test_roles_to_be_near_to_take_the_place_of_those_of_the_profile(text, wishes):
    kind = KindPolicy(near=(NearRole("router", "decode", "net/zone"),))
    assert read(kind, near=text).near == tuple(NearRole(*wish) for wish in wishes)


def test_a_profile_has_defaults_for_kinds_that_it_does_not_name():
    profile = TreeProfile(name="p", kinds={"JobSet": KindPolicy(gang="per-job")})
    assert profile.of("JobSet").gang == "per-job"
    assert profile.of("Job") == KindPolicy() == DEFAULT_PROFILE.of("JobSet")


@pytest.mark.parametrize(
    ("text", "minima"),
    [("3", {"": 3}), ("prefill=2, decode=1", {"prefill": 2, "decode": 1}), (" 4 ", {"": 4})],
)
def test_minima(text, minima):
    assert read(min=text).minima == minima


def test_names_of_objects():
    policy = read(workload="plan-1.a", parent="search")
    assert (policy.workload, policy.parent) == ("plan-1.a", "search")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("gang", "some", "'some' is none of all, per-replicated-job, per-job"),
        (
            "topology",
            "net/rack",
            "'net/rack' is not NAME=VALUE; an example is root=net/block,leaf=net/rack",
        ),
        ("topology", "rack=net/rack", "'rack' is none of root, leaf"),
        ("topology", "leaf=a,leaf=b", "'leaf' is there twice"),
        (
            "topology",
            "leaf=/x",
            "leaf='/x' is not the key of a node label, such as topology.kubernetes.io/zone",
        ),
        ("topology", f"leaf={'a' * 254}/x", "is not the key of a node label"),
        (
            "topology",
            "leaf=net/zone~~net/rack",
            "leaf='' is not the key of a node label, such as topology.kubernetes.io/zone; an example with preferred keys is "
            "leaf=net/zone~net/rack~net/block",
        ),
        ("topology", "root=~a|b", "root='a|b' is not the key of a node label"),
        ("topology", "leaf=~", "leaf='' is not the key"),
        ("lost-members", "Move", "'Move' is none of Wait, Widen, GiveUp"),
        ("exclusive", "leaf=a|b", "leaf='a|b' is not the key of a node label, such as net/rack"),
        ("exclusive", "rack=a", "'rack' is none of root, leaf"),
        (
            "exclusive",
            "leaf=a:all",
            "leaf='a:all': the scope 'all' is none of Profile, Namespace, Cluster; an example is leaf=a:Cluster",
        ),
        ("near", "prefill", "'prefill' is not NAME=VALUE; an example is prefill=decode~net/block"),
        (
            "near",
            "prefill=decode@net/block",
            "prefill='decode@net/block' is not ROLE~KEY; an example is prefill=decode~net/block",
        ),
        ("near", "a=~k", "a='~k' is not ROLE~KEY; an example is prefill=decode~net/block"),
        ("near", "a=b~", "a='' is not the key of a node label, such as net/block; an example is"),
        ("near", "a=a~k", "a='a' is itself; name another role of the workload"),
        ("near", "a=b~k,a=b~k", "a is near b by k twice; name each pair once"),
        ("near", "a=b~k~l~m~n~o", "a has 5 wishes to be near, at most 4 are possible"),
        ("topology", "leaf=~a~b~a", "leaf='~a~b~a' has a preferred key twice; name each once"),
        ("topology", "leaf=~a~b~c~d~e", "leaf='~a~b~c~d~e' has 5 preferred keys, at most 4"),
        ("min", "0", "'0' is not a number of at least 1, such as 4"),
        ("min", "", "'' is not a number of at least 1, such as 4"),
        ("min", "many", "'many' is not a number of at least 1, such as 4"),
        ("min", "a=-1", "a='-1' is not a number of at least 1, such as 4"),
        ("min", "a=²", "'²' is not a number of at least 1"),
        ("min", "a=99999999999", "'99999999999' is not a number of at least 1"),
        ("min", "a=1,b", "'b' is not NAME=VALUE; an example is prefill=2,decode=1"),
        ("workload", "No Name", "'No Name' is not the name of an object"),
        ("parent", "a" * 254, "is not the name of an object"),
    ],
)
def test_an_error_names_object_field_and_value(annotation, value, expected):
    with pytest.raises(InvalidPolicy) as caught:
        read(**{annotation: value})
    refusal = caught.value.refusal
    assert refusal.reason == "InvalidAnnotation"
    assert refusal.field == f"metadata.annotations[gang-extender.dev/{annotation}]"
    assert refusal.message.startswith(f"Job/team/fit: {refusal.field}: ")
    assert expected in refusal.message
    assert str(caught.value) == refusal.message


@pytest.mark.parametrize(
    ("annotation", "value"), [("gang", "all"), ("topology", "leaf=x"), ("min", "2")]
)
def test_what_the_templates_of_a_workload_set_is_not_asked_for_twice(annotation, value):
    with pytest.raises(InvalidPolicy, match=r"cannot be combined with gang-extender\.dev/workload"):
        read(workload="w", **{annotation: value})


@pytest.mark.parametrize("key", ["zone", "net/rack", "topology.kubernetes.io/zone", "a.b/C_d.e"])
def test_label_keys(key):
    assert is_label_key(key)


@pytest.mark.parametrize("key", ["", "a/b/c", "-a", "a/", "A/b", "a" * 64, "x y"])
def test_no_label_keys(key):
    assert not is_label_key(key)
