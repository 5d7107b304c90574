"""LeaderWorkerSet: a root per replica and revision; both passes of the policy name the same leaf."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.kinds.leaderworkerset_kind import leaf_label
from tests.support.hypothesis_profile import examples
from tests.support.planning.controller_records import labels_of, record, uses_of
from tests.support.planning.workload_builders import (
    compiled,
    drawn,
    existing,
    leader_worker,
    lws,
    template,
    use,
    workload,
)

PREFIX = "leaderworkerset.sigs.k8s.io"
REVISION = "54878d4dc7"
RECORDED = [
    "leader-created",
    "scaled-up",
    "rolled",
    "gated-worker-deleted",
    "running-after-rolling-update",
]


def pod(index, worker, leaf="", subgroup=None, revision=REVISION):
    """Return the labels of a pod in the second pass."""
    labels = {
        "gang-extender.dev/tree": "default",
        f"{PREFIX}/name": "serve",
        f"{PREFIX}/group-index": str(index),
        f"{PREFIX}/worker-index": str(worker),
        f"{PREFIX}/template-revision-hash": revision,
        "apps.kubernetes.io/pod-index": str(worker or index),
    }
    if leaf:
        labels["gang-extender.dev/leaf"] = leaf
    if subgroup is not None:
        labels[f"{PREFIX}/subgroup-index"] = str(subgroup)
    return labels


def first_pass(labels):
    """Return the labels of a pod before the webhook of LeaderWorkerSet has seen it."""
    of_webhook = {f"{PREFIX}/subgroup-index"}
    leader = labels[f"{PREFIX}/worker-index"] == "0"
    of_webhook |= {f"{PREFIX}/group-index"} if leader else {f"{PREFIX}/worker-index"}
    return {key: value for key, value in labels.items() if key not in of_webhook}


def subgroup_index(worker, size, each, kind="LeaderWorker"):
    """Return what the webhook writes: `getSubGroupIndex` of pkg/webhooks/pod_webhook.go."""
    if worker == 0:
        return None if kind == "LeaderExcluded" else 0
    return (worker - 1) // each if (size - 1) % each == 0 else worker // each


def leaves(found, *uses):
    return {
        one.name: one.minimum for one in compiled(found, *uses).groups if one.kind == "PodGroup"
    }


# --- names


@pytest.mark.parametrize("name", RECORDED)
def test_both_passes_name_the_leaf_that_the_recorded_policy_named(name):
    for one in record(f"lws/{name}.json").pods():
        labels = labels_of(one)
        expected = labels.pop("gang-extender.dev/pod-group", leaf_of_pod(labels))
        assert expected
        assert leaf_of_pod(labels) == leaf_of_pod(first_pass(labels)) == expected


@pytest.mark.parametrize("leaf", ["", "role"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_both_passes_name_one_leaf(leaf, worker):
    labels = pod(7, worker, leaf)
    suffix = "" if not leaf else "-leader" if worker == 0 else "-worker"
    assert leaf_of_pod(labels) == leaf_of_pod(first_pass(labels)) == f"serve-7-{REVISION}{suffix}"


def test_a_worker_is_never_named_by_its_pod_index():
    labels = pod(0, 2)
    del labels[f"{PREFIX}/group-index"]
    assert leaf_of_pod(labels) == ""


@pytest.mark.parametrize(
    ("leaf", "worker", "subgroup", "passes"),
    [
        ("subgroup", 0, 0, ("", "-s0")),
        ("subgroup", 5, 2, ("", "-s2")),
        ("leader-and-subgroups", 0, None, ("-leader", "-leader")),
        ("leader-and-subgroups", 5, 2, ("", "-s2")),
    ],
)
def test_a_pod_of_a_subgroup_has_its_leaf_when_the_webhook_has_seen_it(
    leaf, worker, subgroup, passes
):
    labels = pod(1, worker, leaf, subgroup)
    names = [suffix and f"serve-1-{REVISION}{suffix}" for suffix in passes]
    assert [leaf_of_pod(first_pass(labels)), leaf_of_pod(labels)] == names


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ""),
        ({"startup": "LeaderReady"}, "role"),
        ({"startup": "LeaderCreated"}, ""),
        ({"subGroupPolicy": {"subGroupSize": 2}}, "subgroup"),
        ({"subGroupPolicy": {"subGroupPolicyType": "LeaderWorker"}}, "subgroup"),
        ({"subGroupPolicy": {"subGroupPolicyType": "LeaderExcluded"}}, "leader-and-subgroups"),
        ({"startup": "LeaderReady", "subGroupPolicy": {"subGroupSize": 2}}, "leader-and-subgroups"),
    ],
)
def test_what_a_leaf_holds(spec, expected):
    assert leaf_label({"spec": leader_worker(leaf="", **spec)}) == expected


# --- trees


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_replica_is_a_root_with_all_its_pods(name):
    found = record(f"lws/{name}.json")
    counts = Counter(leaf_of_pod(labels_of(one)) for one in found.pods())
    result = compiled(found.of("LeaderWorkerSet"), *uses_of(found.pods()))
    assert {one.name: one.minimum for one in result.groups} == counts
    assert {(one.kind, one.parent, one.disruption_mode) for one in result.groups} == {
        ("PodGroup", "", "all")
    }


def test_the_topology_annotation_is_for_each_replica():
    found = lws(annotations={"gang-extender.dev/topology": "leaf=net/rack"})
    assert drawn(compiled(found, use("serve-0-a"), use("serve-1-a"))) == [
        "serve-0-a: gang 3, all, in net/rack",
        "serve-1-a: gang 3, all, in net/rack",
    ]


def test_the_annotation_all_puts_a_basic_root_above_the_replicas():
    found = lws(
        annotations={"gang-extender.dev/gang": "all", "gang-extender.dev/topology": "root=z"}
    )
    assert drawn(compiled(found, use("serve-0-a"), use("serve-1-a"))) == [
        "+serve-6f2f0f4a: basic, in z",
        "  serve-0-a: gang 3, all",
        "  serve-1-a: gang 3, all",
    ]


def test_with_leader_ready_leader_and_workers_are_gangs_of_their_own():
    result = compiled(lws(startup="LeaderReady"), use("serve-0-a-leader"))
    assert drawn(result) == [
        "+serve-0-a: basic",
        "  serve-0-a-leader: gang 1, all",
        "  serve-0-a-worker: gang 2, all",
    ]
    (notice,) = result.notices
    assert notice.reason == "SequencedStart"
    assert "capacity for workers is not reserved while the leader starts" in notice.message


def test_the_recorded_leader_that_is_not_ready_waits_alone():
    found = record("lws/leader-ready-leader-not-ready.json")
    both = found.of("LeaderWorkerSet").spec
    stamped = leader_worker(
        **(both["leaderWorkerTemplate"] | {"replicas": 1}), startup=both["startupPolicy"]
    )
    result = compiled(
        workload("LeaderWorkerSet", "ready", stamped), *uses_of(found.pods(), leaf="role")
    )
    assert drawn(result)[1] == f"  ready-0-{REVISION}-leader: gang 1, all"


def test_leader_ready_without_the_label_in_the_template_is_no_gang():
    """Its pods all name one leaf, and the workers come after the leader."""
    assert drawn(compiled(lws(startup="LeaderReady", leaf=""), use("serve-0-a"))) == [
        "serve-0-a: basic"
    ]


def test_a_replica_of_one_pod_is_a_gang_of_one():
    assert leaves(lws(size=None)) == {}
    assert drawn(compiled(lws(size=None), use("serve-0-a"))) == ["serve-0-a: gang 1, all"]
    assert drawn(compiled(lws(size=1, startup="LeaderReady"), use("serve-0-a-leader"))) == [
        "+serve-0-a: basic",
        "  serve-0-a-leader: gang 1, all",
    ]


def test_subgroups_are_leaves_of_a_gang():
    found = lws(size=5, subGroupPolicy={"subGroupSize": 2})
    assert drawn(compiled(found, use("serve-0-a-s1"))) == [
        "+serve-0-a: gang 2, all",
        "  serve-0-a-s0: gang 3, all",
        "  serve-0-a-s1: gang 2, all",
    ]


def test_subgroups_without_the_leader():
    policy = {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}
    assert drawn(compiled(lws(size=5, subGroupPolicy=policy), use("serve-0-a-s1"))) == [
        "+serve-0-a: gang 3, all",
        "  serve-0-a-leader: gang 1, all",
        "  serve-0-a-s0: gang 2, all",
        "  serve-0-a-s1: gang 2, all",
    ]


def test_subgroups_after_the_leader():
    found = lws(size=4, startup="LeaderReady", subGroupPolicy={"subGroupSize": 2})
    assert drawn(compiled(found, use("serve-0-a-leader"))) == [
        "+serve-0-a: basic",
        "  serve-0-a-leader: gang 1, all",
        "  +serve-0-a-workers: gang 2, all",
        "    serve-0-a-s0: gang 1, all",
        "    serve-0-a-s1: gang 2, all",
    ]


@given(
    size=st.integers(1, 40),
    each=st.integers(1, 12),
    kind=st.sampled_from(["LeaderWorker", "LeaderExcluded"]),
    startup=st.sampled_from(["LeaderCreated", "LeaderReady"]),
)
@examples(400, quick=60)
def test_the_leaves_of_subgroups_have_the_pods_that_the_webhook_puts_there(
    size, each, kind, startup
):
    whole = (size - 1,) if kind == "LeaderExcluded" else (size, size - 1)
    assume(each <= size and any(one % each == 0 for one in whole))  # the webhook refuses others
    policy = {"subGroupSize": each, "subGroupPolicyType": kind}
    found = lws(size=size, startup=startup, subGroupPolicy=policy)
    held = leaf_label({"spec": found.spec})
    pods = Counter(
        leaf_of_pod(pod(0, worker, held, subgroup_index(worker, size, each, kind)))
        for worker in range(size)
    )
    assert leaves(found, *(use(name) for name in pods)) == pods


def test_too_many_subgroups_are_refused():
    found = lws(size=2000, subGroupPolicy={"subGroupSize": 1})
    result = compiled(found, use("serve-0-a-s1"))
    assert (result.outcome, result.refusal.reason) == ("refused", "TooManyGroups")
    assert result.refusal.field == "spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"
    assert "1 pod of 2000 in each are 1999 subgroups" in result.refusal.message


# --- scaling, rollouts, restarts (edge case 4)


def test_scaling_up_and_down_and_to_zero():
    uses = [use(f"serve-{index}-a", 3) for index in range(3)]
    assert len(leaves(lws(replicas=3), *uses)) == 3
    gone = [uses[0], use("serve-1-a", 0), use("serve-2-a", 0)]
    assert list(leaves(lws(replicas=1), *gone)) == ["serve-0-a"]
    assert leaves(lws(replicas=0), use("serve-0-a", 0)) == {}


def test_a_replica_beyond_replicas_has_a_leaf_while_it_has_pods():
    assert list(leaves(lws(replicas=1), use("serve-0-a"), use("serve-1-a"))) == [
        "serve-0-a",
        "serve-1-a",
    ]


def test_a_rollout_with_surge_has_two_revisions_of_one_index():
    """Recorded: index 2 of two replicas from the first moment, old and new pods of index 1 side by side."""
    old, new, surge = use("serve-1-old"), use("serve-1-new"), use("serve-2-new")
    started = leaves(lws(), use("serve-0-old"), new, old, surge)
    assert list(started) == ["serve-0-old", "serve-1-new", "serve-1-old", "serve-2-new"]


def test_an_old_revision_without_pods_is_gone():
    uses = (use("serve-0-old", 0), use("serve-0-new"), use("serve-1-old"), use("serve-1-new", 0))
    assert list(leaves(lws(), *uses)) == ["serve-0-new", "serve-1-old"]


def test_a_replica_that_restarts_keeps_its_leaf_though_it_has_no_pod_for_a_moment():
    result = compiled(lws(), use("serve-0-a", 3), use("serve-1-a", 3))
    after = compiled(lws(), use("serve-0-a", 3), existing=existing(result))
    assert [one.name for one in after.groups] == ["serve-0-a", "serve-1-a"]
    alone = compiled(lws(replicas=1), use("serve-0-a", 0), existing=existing(result)[:1])
    assert [one.name for one in alone.groups] == ["serve-0-a"]


def test_another_size_is_another_revision_and_the_old_gang_is_not_raised():
    then = existing(compiled(lws(size=3), use("serve-0-old", 3)))
    result = compiled(lws(size=4), use("serve-0-old", 3), use("serve-1-new", 1), existing=then)
    assert {one.name: one.minimum for one in result.groups} == {"serve-0-old": 3, "serve-1-new": 4}


def test_a_long_name_is_found_again_by_the_name_of_its_leaf():
    name = "a-very-long-name-of-a-leader-worker-set-" + "x" * 15
    labels = pod(1, 0, revision=REVISION) | {f"{PREFIX}/name": name}
    leaf = leaf_of_pod(labels)
    assert len(leaf) == 63
    assert leaves(lws(name), use(leaf)) == {leaf: 3}


# --- minima, priorities, refusals


def test_the_minimum_of_a_replica():
    found = lws(annotations={"gang-extender.dev/min": "2"})
    assert leaves(found, use("serve-0-a")) == {"serve-0-a": 2}
    assert compiled(found).outcome == "compiled"


@pytest.mark.parametrize("leader", ["low", ""])
def test_leader_and_workers_of_two_priorities_are_refused(leader):
    found = lws(workerTemplate=template("high"), leaderTemplate=template(leader))
    result = compiled(found, use("serve-0-a"))
    assert (result.outcome, result.refusal.reason) == ("refused", "PrioritiesDiffer")
    assert f"the first pod of replica has {leader!r}, replica has 'high'" in result.refusal.message


def test_without_a_leader_template_the_leader_is_as_the_workers():
    found = lws(workerTemplate=template("high"))
    assert drawn(compiled(found, use("serve-0-a"))) == ["serve-0-a: gang 3, all, high"]


def test_the_recorded_exclusive_topology_is_refused():
    """Edge case 5."""
    found = record("lws/exclusive-topology-leader-not-bound.json")
    result = compiled(found.of("LeaderWorkerSet"), *uses_of(found.pods()))
    assert (result.outcome, result.refusal.reason) == ("refused", "ExclusiveTopology")
    assert "use gang-extender.dev/exclusive: leaf=net/rack instead" in result.refusal.message


def test_an_exclusive_topology_that_is_no_label_key_is_refused_with_its_own_field():
    key = f"{PREFIX}/exclusive-topology"
    refusal = compiled(lws(annotations={key: "net/rack,root=net/zone"})).refusal
    assert refusal.field == f"metadata.annotations[{key}]"
    assert "'net/rack,root=net/zone' is not the key of a node label" in refusal.message


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"startup": "LeaderReady"}, "root=net/rack"),
        ({"subGroupPolicy": {"subGroupSize": 1}}, "root=net/rack"),
    ],
)
def test_exclusive_topology_names_the_level_that_is_the_same(spec, expected):
    """As it is stored without the admission policy, which would write this in its place."""
    key = f"{PREFIX}/exclusive-topology"
    result = compiled(lws(annotations={key: "net/rack"}, **spec))
    assert result.refusal.field == f"metadata.annotations[{key}]"
    assert result.refusal.message.endswith(f"use gang-extender.dev/exclusive: {expected} instead")
    both = {key: "net/rack", "gang-extender.dev/gang": "all"}
    refusal = compiled(lws(annotations=both, **spec)).refusal
    assert refusal.message.endswith(f"{expected} instead, without gang-extender.dev/gang: all")


def test_exclusive_topology_of_subgroups_alone_is_compiled():
    """LeaderWorkerSet makes the workers at once: only the annotation of whole replicas waits for the leader's node."""
    subgroups = {"subGroupPolicy": {"subGroupSize": 1}}
    key = f"{PREFIX}/subgroup-exclusive-topology"
    result = compiled(lws(annotations={key: "net/rack"}, **subgroups), use("serve-0-a-s0"))
    assert result == compiled(lws(**subgroups), use("serve-0-a-s0"))
    assert result.outcome == "compiled"


@pytest.mark.parametrize("which", ["leaderTemplate", "workerTemplate"])
def test_pods_with_a_group_of_their_own_keep_it_out(which):
    result = compiled(lws(**{which: template(**{"pod-group": "mine"})}), use("serve-0-a"))
    assert result.outcome == "kept-out"
    assert f"{which}: its pods name the group 'mine'" in result.refusal.message


def test_planned_replicas_have_the_tree_of_real_ones():
    planned = BY_KIND["LeaderWorkerSet"].planned_uses
    assert planned is not None
    for spec in ({}, {"startup": "LeaderReady"}, {"subGroupPolicy": {"subGroupSize": 1}}):
        found = lws(**spec)
        real = compiled(found, use("serve-0-planned"), use("serve-1-planned"))
        assert compiled(found, *planned(found)) == real
        assert len({one.name for one in real.groups}) == len(real.groups) > 1
