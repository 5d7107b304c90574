"""DisaggregatedSet: a gang over its roles per revision, replicas below."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extender.core.model.nodes import NEAR_MAX, NearGroup
from extender.core.workloads.kind_table import BY_KIND, kind_of_pod, leaf_of_pod
from extender.core.workloads.kinds.disaggregatedset_kind import REVISION_LABEL, ROLE_LABEL
from extender.core.workloads.name_rules import joined_name
from tests.support.hypothesis_profile import examples
from tests.support.planning.controller_records import labels_of, record, uses_of
from tests.support.planning.workload_builders import (
    compiled,
    drawn,
    existing,
    leader_worker,
    use,
    workload,
)

PREFIX = "disaggregatedset.x-k8s.io"


def disaggregated(name="pd", annotations=None, **roles):
    """Return a DisaggregatedSet; a role is its LeaderWorkerSetSpec, or how many replicas of two pods it has."""
    specs = {
        role: found if isinstance(found, dict) else leader_worker(found, 2)
        for role, found in (roles or {"prefill": 2, "decode": 1}).items()
    }
    items = [{"name": role, "spec": spec} for role, spec in specs.items()]
    return workload("DisaggregatedSet", name, {"roles": items}, annotations=annotations or {})


def pod(name="pd", revision="7a18afc7", role="decode", index=0, worker=0, template="7b44b86fd"):
    return {
        "gang-extender.dev/tree": "default",
        f"{PREFIX}/name": name,
        f"{PREFIX}/revision": revision,
        f"{PREFIX}/role": role,
        "leaderworkerset.sigs.k8s.io/name": f"{name}-{revision}-{role}",
        "leaderworkerset.sigs.k8s.io/group-index": str(index),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
        "leaderworkerset.sigs.k8s.io/template-revision-hash": template,
        "apps.kubernetes.io/pod-index": str(worker or index),
    }


def test_the_recorded_set_is_one_tree_with_all_its_pods():
    found = record("lws/disaggregated.json")
    result = compiled(found.of("DisaggregatedSet"), *uses_of(found.pods()))
    assert drawn(result) == [
        "+pd-7a18afc7: gang 2",
        "  +pd-7a18afc7-prefill: gang 1",
        "    pd-7a18afc7-prefill-0-678794cddb: gang 2, all",
        "    pd-7a18afc7-prefill-1-678794cddb: gang 2, all",
        "  +pd-7a18afc7-decode: gang 1",
        "    pd-7a18afc7-decode-0-7b44b86fd: gang 2, all",
    ]
    counts = Counter(leaf_of_pod(labels_of(one)) for one in found.pods())
    assert {one.name: one.minimum for one in result.groups if one.name in counts} == counts


def test_the_recorded_pods_have_the_leaf_that_the_recorded_policy_named():
    found = record("lws/disaggregated.json")
    for one in found.pods():
        labels = labels_of(one)
        assert leaf_of_pod(labels) == labels["gang-extender.dev/pod-group"]
        assert kind_of_pod(labels) is BY_KIND["DisaggregatedSet"]


def test_its_leader_worker_sets_are_no_trees_of_their_own():
    found = record("lws/disaggregated.json")
    assert [one.kind for one in found.roots()] == ["DisaggregatedSet"]


def test_without_pods_there_is_no_tree_yet():
    assert compiled(disaggregated()).groups == ()


def test_a_role_whose_pods_come_later_counts_from_the_start():
    assert drawn(compiled(disaggregated(), use("pd-r1-prefill-0-a"))) == [
        "+pd-r1: gang 2",
        "  +pd-r1-prefill: gang 1",
        "    pd-r1-prefill-0-a: gang 2, all",
        "  +pd-r1-decode: gang 1",
    ]


def test_minima_of_roles_count_replicas_that_will_be_there():
    found = disaggregated(annotations={"gang-extender.dev/min": "prefill=2,decode=1"})
    lines = drawn(compiled(found, use("pd-r1-prefill-0-a")))
    assert lines[1] == "  +pd-r1-prefill: gang 2"
    more = disaggregated(annotations={"gang-extender.dev/min": "prefill=3"})
    result = compiled(more, use("pd-r1-prefill-0-a"))
    assert "prefill=3 is more than the 2 groups that prefill has" in result.refusal.message


def test_a_role_is_near_another_role_of_its_revision():
    text = {"gang-extender.dev/near": "prefill=decode~net/block"}
    uses = [use(f"pd-{revision}-prefill-0-a") for revision in ("r1", "r2")]
    result = compiled(disaggregated(annotations=text), *uses)
    assert {group.name: group.near for group in result.groups if group.near} == {
        f"pd-{revision}-prefill": (NearGroup(f"pd-{revision}-decode", "net/block"),)
        for revision in ("r1", "r2")
    }


def test_a_role_is_not_near_many_groups_nor_what_is_below_it():
    """Leaders of more replicas than a group can name; the workers of the role itself."""
    text = {"gang-extender.dev/near": "prefill=leader~net/block"}
    roles = {"prefill": 1, "decode": leader_worker(NEAR_MAX + 1, 2, leaf="role")}
    uses = [use(f"pd-r1-decode-{n}-a-leader") for n in range(NEAR_MAX + 1)]
    few = compiled(disaggregated(annotations=text, **roles), *uses[1:])
    assert [len(group.near) for group in few.groups if group.near] == [NEAR_MAX]
    many = compiled(disaggregated(annotations=text, **roles), *uses)
    assert not any(group.near for group in many.groups)
    (notice,) = many.notices
    assert "leader is not beside prefill in one tree, in at most 4 groups" in notice.message
    below = {"gang-extender.dev/near": "decode=leader~net/block"}
    (notice,) = compiled(disaggregated(annotations=below, **roles), *uses).notices
    assert "leader is not beside decode in one tree" in notice.message


def test_two_revisions_are_two_trees():
    uses = [
        use("pd-r1-prefill-0-a"),
        use("pd-r1-decode-0-a"),
        use("pd-r2-prefill-0-b"),
        use("pd-r2-decode-0-b"),
    ]
    lines = drawn(compiled(disaggregated(), *uses))
    assert [line for line in lines if not line.startswith(" ")] == [
        "+pd-r1: gang 2",
        "+pd-r2: gang 2",
    ]


def test_an_old_revision_keeps_its_roles_when_a_new_one_has_more():
    old = compiled(disaggregated(), use("pd-r1-prefill-0-a"), use("pd-r1-decode-0-a"))
    three = disaggregated(prefill=2, decode=1, router=1)
    result = compiled(
        three,
        use("pd-r1-prefill-0-a"),
        use("pd-r1-decode-0-a", 0),
        use("pd-r2-prefill-0-b"),
        existing=existing(old),
    )
    assert drawn(result) == [
        "+pd-r1: gang 2",
        "  +pd-r1-decode: gang 1",
        "    pd-r1-decode-0-a: gang 2, all",
        "  +pd-r1-prefill: gang 1",
        "    pd-r1-prefill-0-a: gang 2, all",
        "+pd-r2: gang 3",
        "  +pd-r2-prefill: gang 1",
        "    pd-r2-prefill-0-b: gang 2, all",
        "  +pd-r2-decode: gang 1",
        "  +pd-r2-router: gang 1",
    ]


def test_a_half_made_tree_is_compiled_to_the_whole_one():
    whole = compiled(disaggregated(), use("pd-r1-prefill-0-a"))
    assert (
        compiled(disaggregated(), use("pd-r1-prefill-0-a"), existing=existing(whole)[:1]) == whole
    )


def test_a_revision_without_pods_is_gone():
    uses = [use("pd-r1-prefill-0-a", 0), use("pd-r1-decode-0-a", 0), use("pd-r2-prefill-0-b")]
    assert {one.name.split("-")[1] for one in compiled(disaggregated(), *uses).groups} == {"r2"}


def test_a_role_that_restarts_keeps_its_leaf():
    uses = [use("pd-r1-prefill-0-a"), use("pd-r1-decode-0-a", 0)]
    names = [one.name for one in compiled(disaggregated(), *uses).groups]
    assert "pd-r1-decode-0-a" in names


def test_scaled_to_zero_there_is_no_tree():
    uses = [use("pd-r1-prefill-0-a", 0), use("pd-r1-decode-0-a", 0)]
    assert compiled(disaggregated(prefill=0, decode=0), *uses).groups == ()


def test_a_role_with_leader_ready_has_two_gangs_per_replica():
    spec = leader_worker(1, 2, startup="LeaderReady")
    result = compiled(disaggregated(prefill=spec, decode=1), use("pd-r1-prefill-0-a-leader"))
    assert drawn(result)[2:5] == [
        "    +pd-r1-prefill-0-a: basic",
        "      pd-r1-prefill-0-a-leader: gang 1, all",
        "      pd-r1-prefill-0-a-worker: gang 1, all",
    ]
    assert "(role prefill)" in result.notices[0].message


def test_a_tree_with_a_level_too_many_is_refused():
    spec = leader_worker(1, 4, startup="LeaderReady", subGroupPolicy={"subGroupSize": 2})
    result = compiled(disaggregated(prefill=spec, decode=1), use("pd-r1-prefill-0-a-leader"))
    assert (result.outcome, result.refusal.reason) == ("refused", "TooDeep")
    assert "would have 5 levels, at most 4 are allowed; leave one out" in result.refusal.message


def test_exclusive_topology_of_a_role_is_refused():
    found = disaggregated()
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    found.spec["roles"][1]["metadata"] = {"annotations": {key: "net/rack"}}
    result = compiled(found)
    assert result.refusal.reason == "ExclusiveTopology"
    assert result.refusal.field == f"spec.roles[1].metadata.annotations[{key}]"


def test_more_replicas_of_a_role_than_groups_below_a_composite_are_refused():
    uses = [use(f"pd-r1-prefill-{index}-a") for index in range(513)]
    result = compiled(disaggregated(prefill=513, decode=1), *uses)
    assert (result.outcome, result.refusal.reason) == ("refused", "TooManyGroups")
    assert "pd-r1-prefill would have 513 groups, at most 512 are allowed" in result.refusal.message


@given(
    name=st.from_regex(r"[a-z][a-z0-9-]{0,40}[a-z0-9]", fullmatch=True),
    role=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True),
    index=st.integers(0, 3),
)
@examples(300)
def test_any_name_and_role_is_found_again(name, role, index):
    """Long names are cut: then the labels of the pods have the role."""
    labels = pod(name, role=role, index=index)
    leaf = leaf_of_pod(labels)
    found = disaggregated(name, **{role: 4, "other-role": 1})
    result = compiled(found, use(leaf, 2, **labels))
    assert leaf in {one.name for one in result.groups}
    if len(leaf) < 63:
        assert compiled(found, use(leaf, 2)) == result


@pytest.mark.parametrize("replicas", [0, 1])
def test_planned_replicas(replicas):
    found = disaggregated(prefill=2 * replicas, decode=replicas)
    planned = BY_KIND["DisaggregatedSet"].planned_uses
    assert planned is not None
    leaves = [one for one in compiled(found, *planned(found)).groups if one.kind == "PodGroup"]
    assert len(leaves) == 3 * replicas


@pytest.mark.parametrize("role", ["decode", "0" * 41, "a-1", "0" * 50])
@pytest.mark.parametrize("suffix", ["", "-leader", "-worker", "-s1"])
def test_a_role_is_found_by_its_labels_however_long(role, suffix):
    """Also where the name of the leaf has only the end of the role, and where its revision is a number."""
    leaf = joined_name("pd", f"-7a18afc7-{role}-0-123{suffix}")
    labels = {REVISION_LABEL: "7a18afc7", ROLE_LABEL: role}
    result = compiled(disaggregated("pd", **{role: 1, "other-role": 1}), use(leaf, 2, **labels))
    assert any(one.kind == "PodGroup" for one in result.groups), result
    other = use(leaf, 2, **(labels | {ROLE_LABEL: "other-role"}))
    result = compiled(disaggregated("pd", **{role: 1, "other-role": 1}), other)
    assert leaf not in {one.name for one in result.groups}


def test_a_role_that_is_scaled_up_from_zero_later_is_not_required():
    """L27: the tree keeps its gang of two roles, and the third does not stand in for one of them."""
    first = compiled(disaggregated(prefill=1, decode=1, router=0), use("pd-r1-prefill-0-a"))
    assert first.groups[0].required == ("pd-r1-decode", "pd-r1-prefill")
    uses = [use("pd-r1-prefill-0-a"), use("pd-r1-router-0-a")]
    later = compiled(disaggregated(), *uses, existing=existing(first))
    again = compiled(disaggregated(), *uses, existing=existing(later))
    assert [line.split(":")[0].strip() for line in drawn(again) if "+" in line] == [
        "+pd-r1", "+pd-r1-decode", "+pd-r1-prefill", "+pd-r1-router",
    ]  # fmt: skip
    for result in (later, again):
        assert (result.groups[0].minimum, result.groups[0].required) == (
            2,
            first.groups[0].required,
        )


def test_a_tree_that_was_made_before_groups_were_required_gets_their_names():
    old = [
        replace(one, required=())
        for one in existing(compiled(disaggregated(), use("pd-r1-prefill-0-a")))
    ]
    three = disaggregated(prefill=1, decode=1, router=1)
    uses = [use("pd-r1-prefill-0-a"), use("pd-r1-router-0-a")]
    root = compiled(three, *uses, existing=tuple(old)).groups[0]
    assert (root.minimum, root.required) == (2, ("pd-r1-decode", "pd-r1-prefill"))
