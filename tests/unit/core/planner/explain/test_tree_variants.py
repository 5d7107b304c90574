"""Changed trees that differ only in names and order of groups have one number, and one solve answers for all of them."""

from __future__ import annotations

import msgspec

from extender.core.model.ids import PodUid
from extender.core.planner.explain.relaxations import TreeForms
from extender.core.planner.plan_types import Plan, PlanRequest, Refusal, RequirementChange
from extender.core.planner.planning import plan
from tests.bench.planner import SHAPES, composite, leaf, make_nodes

PAIR = composite(
    "root",
    composite("c0", leaf("a", 4), leaf("b", 4), leaf("c", 5)),
    composite("c1", leaf("d", 4), leaf("e", 5), leaf("f", 4)),
)
KEYS = {g.key.name: g.key for c in PAIR.groups for g in (c, *c.groups)}


def changed(*names: str, minimum: int = 3) -> dict:
    return {KEYS[name]: RequirementChange(minimum=minimum) for name in names}


def test_interchangeable_changes_have_one_number():
    """Leaves of equal size in either composite; a larger leaf, another minimum and a second change differ."""
    forms = TreeForms(PAIR)
    a = forms.number(changed("a"))
    assert {forms.number(changed(name)) for name in "abdf"} == {a}
    others = [changed("c"), changed("a", minimum=2), changed("a", "b"), changed("a", "d"), {}]
    assert len({a, *map(forms.number, others)}) == len(others) + 1
    assert forms.number(changed("a", "d")) == forms.number(changed("b", "f"))


def test_a_change_of_a_changed_tree_is_the_two_changes():
    """The numbers of a changed tree are comparable with those of the tree."""
    forms = TreeForms(PAIR)
    assert forms.changed(changed("a")).number(changed("b")) == forms.number(changed("d", "f"))
    assert forms.changed(changed("a")).number({}) == forms.number(changed("f"))


def test_members_with_rejected_nodes_count_by_themselves():
    """A leaf with such a member is interchangeable with no other."""
    forms = TreeForms(PAIR, frozenset({PodUid("a-0")}))
    assert forms.number(changed("a")) != forms.number(changed("b"))
    assert forms.number(changed("b")) != forms.number(changed("d"))


def test_one_way_out_is_named_for_leaves_that_are_alike():
    """Ten leaves need a host each, and the cluster has nine: all minima conflict, and nine of ten leaves fit."""
    nodes = make_nodes(9, racks=3, zones=1, gpus=lambda i: 4)
    root = composite("root", *(leaf(f"l{j}", 4, topo=("host",)) for j in range(10)))
    request = PlanRequest(root=root, nodes=nodes, shapes=SHAPES)
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    lowered = [text for text in refusal.relaxations if text.startswith("minCount")]
    assert lowered == []  # a leaf needs a host of its own, with one pod too
    assert "minGroupCount 9 instead of 10 at CompositePodGroup ns/root" in refusal.relaxations
    assert {c.object for c in refusal.conflict if c.kind == "minCount"} == {
        f"PodGroup/ns/l{j}" for j in range(10)
    }
    fits = composite("root", *root.groups, minimum=9)
    assert isinstance(plan(PlanRequest(root=fits, nodes=nodes, shapes=SHAPES)), Plan)
    of_roles = msgspec.structs.replace(root, set_by="")  # of a workload that has no field for it
    refusal = plan(PlanRequest(root=of_roles, nodes=nodes, shapes=SHAPES))
    assert isinstance(refusal, Refusal)
    assert not [text for text in refusal.relaxations if "minGroupCount" in text]
    of_role = msgspec.structs.replace(root, set_by="annotation gang-extender.dev/min: worker=")
    refusal = plan(PlanRequest(root=of_role, nodes=nodes, shapes=SHAPES))
    assert isinstance(refusal, Refusal)
    text = "minGroupCount 9: annotation gang-extender.dev/min: worker=9 on its workload"
    assert text in refusal.relaxations
