"""Groups carry our finalizer while they are wanted, and go when nothing needs them (B12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster import types as api
from extender.cluster.read.object_decoding import convert
from extender.cluster.read.object_store import ObjectStore
from extender.core.model.errors import BadInput
from extender.core.model.pod_groups import leaf_key
from extender.core.model.pods import GATE
from extender.core.reconcile.finalizer_rules import (
    FINALIZER,
    decide_protection,
    may_remove_finalizer,
)
from tests.support.service.manifest_builders import a_group, a_pod

OTHER = "example.com/mine"
BUILT_IN = "scheduling.k8s.io/v1beta1"
GONE = "2026-01-01T00:00:00Z"


def world(*things) -> ObjectStore:
    made = ObjectStore(guards=True)
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
    """A finalizer of another controller stays, before and after."""
    assert wanted(group("g", finalizers=[OTHER])) == {"g": (OTHER, FINALIZER)}
    assert wanted(group("g", finalizers=[FINALIZER])) == {}
    going = group("g", finalizers=[OTHER, FINALIZER], deleting=True)
    assert wanted(going) == {"g": (OTHER,)}


def test_a_group_that_is_going_gets_none():
    """An API server refuses new finalizers then."""
    assert wanted(group("g", deleting=True, finalizers=[OTHER])) == {}


@pytest.mark.parametrize("more", [{}, {"schedulingGates": [{"name": GATE}]}])
def test_a_leaf_is_not_kept_by_pods_that_were_never_bound(more):
    """They wait for the group: with it they would wait for each other (gated or not)."""
    going = group("g", finalizers=[FINALIZER], deleting=True)
    waits = a_pod("p", "g", metadata={"uid": "p"}, **more)
    assert wanted(going, waits) == {"g": ()}
    runs = a_pod("r", "g", node="n", metadata={"uid": "r"})
    assert wanted(going, waits, runs) == {}
    ended = a_pod("r", "g", node="n", status={"phase": "Succeeded"}, metadata={"uid": "r"})
    assert wanted(going, waits, ended) == {"g": ()}


def test_a_leaf_stays_while_a_member_holds_a_reservation():
    """Its Binding may be on its way; the groups above it stay because it names them."""
    made = world(
        group("g", finalizers=[FINALIZER], deleting=True, parent="r"),
        group("h", finalizers=[FINALIZER], deleting=True, parent="r"),
        group("r", composite=True, finalizers=[FINALIZER], deleting=True),
        a_pod("p", "g", metadata={"uid": "p"}),
        a_pod("q", "h", metadata={"uid": "q"}),
    )
    held = {leaf_key("default", "g")}
    assert [p.group.name for p in decide_protection(made.view, lambda: held)] == ["h"]
    assert not may_remove_finalizer(made.view, leaf_key("default", "g"), held)
    assert [p.group.name for p in decide_protection(made.view)] == ["g", "h"]


def test_a_deleted_tree_of_pods_that_were_never_bound_goes_from_below():
    """The composite waits for its children alone, and they wait for nothing."""
    root = group("r", composite=True, finalizers=[FINALIZER], deleting=True)
    child = group("c", parent="r", finalizers=[FINALIZER], deleting=True)
    pod = a_pod("p", "c", schedulingGates=[{"name": GATE}], metadata={"uid": "p"})
    assert wanted(root, child, pod) == {"c": ()}
    assert wanted(root, pod) == {"r": ()}


def test_groups_on_a_cycle_of_parents_do_not_keep_one_another():
    """To delete one of them is what its problem asks for (B6); a leaf below it still keeps it."""
    a = group("a", composite=True, parent="b", finalizers=[FINALIZER], deleting=True)
    b = group("b", composite=True, parent="a", finalizers=[FINALIZER])
    itself = group("s", composite=True, parent="s", finalizers=[FINALIZER], deleting=True)
    assert wanted(a, b, itself) == {"a": (), "s": ()}
    assert wanted(a, b, group("x", parent="a", finalizers=[FINALIZER])) == {}
    assert wanted(a, group("b", composite=True, parent="c", finalizers=[FINALIZER])) == {"a": ()}


deleted = st.builds(
    lambda name, parent, composite, deleting: group(
        name, composite=composite, parent=parent, deleting=deleting, finalizers=[FINALIZER]
    ),
    st.sampled_from("abcdef"), st.sampled_from(["", *"abcdef"]), st.sampled_from([True, True, False]), st.booleans(),
)  # fmt: skip


@given(st.lists(deleted, max_size=7, unique_by=lambda g: (g["kind"], g["metadata"]["name"])))
def test_one_group_is_judged_as_all_are(some):
    """What is looked at again before it is written is decided in the same way, for any graph of parents."""
    view = world(*some).view
    going = {p.group for p in decide_protection(view)}
    assert going == {
        k for k, guard in view.guards.items() if guard.deleting and may_remove_finalizer(view, k)
    }


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
    """Deleted groups are written first: a deletion is waiting for them."""
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


def test_a_group_with_an_invalid_spec_is_let_go():
    """Its spec is not read for this, and its parent is released all the same."""
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
    made = ObjectStore()
    made.upsert(convert(api.PodGroup, group("g")))
    assert not made.view.guards
