"""Groups carry our finalizer while they are wanted, and go when nothing needs them (SPEC B12)."""

from __future__ import annotations

import pytest

from extender.cluster import api
from extender.cluster.parse import convert
from extender.cluster.world import World
from extender.core.decisions.protection import FINALIZER, decide_protection
from extender.core.errors import BadInput
from tests.builders import a_group, a_pod

OTHER = "example.com/mine"
BUILT_IN = "scheduling.k8s.io/v1beta1"
GONE = "2026-01-01T00:00:00Z"


def world(*things) -> World:
    made = World(guards=True)
    for thing in things:
        made.upsert(convert(api.KINDS[thing["kind"]], thing))
    return made


def group(name, *, deleting=False, finalizers=(), **more):
    metadata = {"uid": f"uid-{name}", "resourceVersion": "7", "finalizers": list(finalizers)}
    if deleting:
        metadata["deletionTimestamp"] = GONE
    return a_group(name, gang=1, metadata=metadata, **more)


def wanted(*things):
    return {p.group.name: p.finalizers for p in decide_protection(world(*things).view)}


def test_a_group_gets_it_once_and_those_of_others_stay():
    """Whoever put a finalizer there keeps it, before and after."""
    assert wanted(group("g", finalizers=[OTHER])) == {"g": (OTHER, FINALIZER)}
    assert wanted(group("g", finalizers=[FINALIZER])) == {}
    going = group("g", finalizers=[OTHER, FINALIZER], deleting=True)
    assert wanted(going) == {"g": (OTHER,)}


def test_a_group_that_is_going_gets_none():
    """An API server refuses new finalizers then."""
    assert wanted(group("g", deleting=True, finalizers=[OTHER])) == {}


def test_a_leaf_stays_while_pods_name_it():
    """One that is being deleted counts until it is gone, one that ended does not."""
    going = group("g", finalizers=[FINALIZER], deleting=True)
    pod = a_pod("p", "g", node="n", metadata={"uid": "p", "deletionTimestamp": GONE})
    assert wanted(going, pod) == {}
    ended = a_pod("p", "g", node="n", status={"phase": "Failed"}, metadata={"uid": "p"})
    assert wanted(going, ended) == {"g": ()}
    assert wanted(going, a_pod("q", "other", metadata={"uid": "q"}))["g"] == ()


@pytest.mark.parametrize("version", ["gang-extender.dev/v1alpha1", BUILT_IN])
def test_a_composite_stays_while_a_group_names_it(version):
    """Ours and built-in ones are one population."""
    root = group("r", composite=True, finalizers=[FINALIZER], deleting=True)
    child = group("c", parent="r", version=version, finalizers=[FINALIZER])
    assert wanted(root, child) == {}
    assert wanted(root, group("c", parent="x", finalizers=[FINALIZER])) == {"r": ()}


def test_what_goes_comes_before_what_is_new():
    """The order of writing: somebody waits for what goes."""
    root = group("r", composite=True, finalizers=[FINALIZER], deleting=True)
    leaf = group("a", finalizers=[FINALIZER], deleting=True)
    assert list(wanted(group("0"), root, leaf)) == ["a", "r", "0"]


def test_built_in_groups_are_left_alone():
    """Kubernetes protects its own."""
    assert wanted(group("g", version=BUILT_IN)) == {}
    assert wanted(group("g", version=BUILT_IN, deleting=True, finalizers=[FINALIZER])) == {}


def test_a_group_that_does_not_count_is_let_go():
    """Its name belongs to a built-in group now; the object must still be deletable."""
    ours = group("g", finalizers=[FINALIZER], deleting=True)
    assert wanted(ours, group("g", version=BUILT_IN)) == {"g": ()}


def test_a_group_that_says_nonsense_is_let_go():
    """Its spec is not read for this, and its parent hears of it all the same."""
    made = world()
    ours = group("g", finalizers=[FINALIZER], parent="r", deleting=True)
    ours["spec"]["schedulingPolicy"] = {}
    root = group("r", composite=True, finalizers=[FINALIZER], deleting=True)
    made.upsert(convert(api.CompositePodGroup, root))
    with pytest.raises(BadInput):
        made.upsert(convert(api.PodGroup, ours))
    assert [p.group.name for p in decide_protection(made.view)] == ["g"]
    made.delete(convert(api.PodGroup, ours))
    assert [p.group.name for p in decide_protection(made.view)] == ["r"]


def test_files_have_no_finalizers():
    """What leaves a manifest is gone."""
    made = World()
    made.upsert(convert(api.PodGroup, group("g")))
    assert not made.view.guards
