"""JobSet: the tree in each mode, sequences of steps, and what is refused."""

from __future__ import annotations

import pytest

from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_parts import ExistingGroup, LeafUse
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from tests.support.planning.controller_records import record, uses_of
from tests.support.planning.workload_builders import (
    compiled,
    drawn,
    existing,
    jobset,
    replicated,
    template,
)

DRIVER, WORKER = replicated("driver"), replicated("worker", 2, 4)
WHOLE = [
    "+train-6f2f0f4a: gang 2, all",
    "  train-driver-6f2f0f4a: gang 1, all",
    "  +train-worker-6f2f0f4a: gang 2, all",
    "    train-worker-0-6f2f0f4a: gang 4, all",
    "    train-worker-1-6f2f0f4a: gang 4, all",
]
STEPS = [replicated("data"), replicated("fetch"), replicated("node", 1, 3)]
AFTER = [{"name": "data", "status": "Complete"}, {"name": "fetch", "status": "Complete"}]


def annotated(*jobs, **annotations):
    keys = {
        f"gang-extender.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return jobset(*jobs, annotations=keys)


def test_a_jobset_is_a_gang_over_its_replicated_jobs():
    assert drawn(compiled(jobset(DRIVER, WORKER))) == WHOLE


@pytest.mark.parametrize(
    ("mode", "lines"),
    [
        ("all", WHOLE),
        ("per-replicated-job", ["+train-6f2f0f4a: basic", *WHOLE[1:]]),
        (
            "per-job",
            [
                "+train-6f2f0f4a: basic",
                "  train-driver-6f2f0f4a: basic",
                "  +train-worker-6f2f0f4a: basic",
                *WHOLE[3:],
            ],
        ),
    ],
)
def test_modes(mode, lines):
    assert drawn(compiled(annotated(DRIVER, WORKER, gang=mode))) == lines


def test_topology_of_root_and_leaves():
    lines = drawn(compiled(annotated(DRIVER, WORKER, topology="root=net/block,leaf=net/rack")))
    assert lines == [
        "+train-6f2f0f4a: gang 2, all, in net/block",
        "  train-driver-6f2f0f4a: gang 1, all",
        "  +train-worker-6f2f0f4a: gang 2, all",
        "    train-worker-0-6f2f0f4a: gang 4, all, in net/rack",
        "    train-worker-1-6f2f0f4a: gang 4, all, in net/rack",
    ]


def test_jobs_of_one_pod_are_one_leaf():
    lines = drawn(compiled(jobset(DRIVER, replicated("w", 8))))
    assert lines == [
        "+train-6f2f0f4a: gang 2, all",
        "  train-driver-6f2f0f4a: gang 1, all",
        "  train-w-6f2f0f4a: gang 8, all",
    ]


@pytest.mark.parametrize("gang", ["all", "per-replicated-job", "per-job"])
def test_a_single_replicated_job_has_no_composite_above_it(gang):
    """W1: it would have one child. A topology for the tree is then that of its only part."""
    assert drawn(compiled(annotated(replicated("w", 1, 4), gang=gang))) == [
        "train-w-0-6f2f0f4a: gang 4, all"
    ]
    at_once = compiled(annotated(replicated("w", 2, 4), gang=gang, topology="root=net/block"))
    first = "basic" if gang == "per-job" else "gang 2, all"
    assert drawn(at_once)[0] == f"+train-w-6f2f0f4a: {first}, in net/block"
    in_order = jobset(
        replicated("w", 1, 4), spec={"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    )
    assert (len(compiled(in_order).groups), compiled(in_order).notices) == (1, ())


def test_a_composite_above_a_single_replicated_job_stays_or_has_a_topology_of_its_own():
    only = annotated(replicated("w", 1, 4), topology="root=net/block,leaf=net/rack")
    assert len(compiled(only).groups) == 2
    (leaf,) = compiled(annotated(replicated("w", 1, 4))).groups
    before = (
        ExistingGroup(kind="CompositePodGroup", name="train-6f2f0f4a", basic=False, minimum=1),
        ExistingGroup(kind="PodGroup", name=leaf.name, basic=False, minimum=4),
    )
    after = compiled(annotated(replicated("w", 1, 4)), existing=before)
    assert [(one.name, one.parent) for one in after.groups] == [
        ("train-6f2f0f4a", ""), (leaf.name, "train-6f2f0f4a"),
    ]  # fmt: skip


def test_more_than_512_jobs_are_one_leaf_and_a_notice():
    """Edge case 7: coarser leaves."""
    result = compiled(jobset(replicated("w", 513, 2)))
    assert drawn(result) == ["train-w-6f2f0f4a: gang 1026, all"]
    (notice,) = result.notices
    assert notice.reason == "CoarserLeaves"
    assert "ReplicatedJob w has 513 Jobs, more than 512 groups" in notice.message


def test_more_than_512_leaves_that_pods_name_already_are_refused():
    result = compiled(jobset(replicated("w", 513, 2, leaf="job")))
    assert (result.outcome, result.refusal.reason) == ("refused", "TooManyGroups")
    assert "513 Jobs would be 513 groups, at most 512" in result.refusal.message
    assert "gang-extender.dev/leaf: replicated-job" in result.refusal.message


def test_a_replicated_job_without_jobs_is_no_part():
    assert drawn(compiled(jobset(DRIVER, replicated("off", 0, 4)))) == [
        "+train-6f2f0f4a: gang 1, all",
        "  train-driver-6f2f0f4a: gang 1, all",
    ]


def test_pods_that_do_not_run_at_once_are_basic_and_a_notice():
    some = replicated("w", 1, 2, spec={"completions": 9})
    result = compiled(jobset(DRIVER, some))
    assert drawn(result)[-1] == "  train-w-0-6f2f0f4a: basic"
    assert [notice.reason for notice in result.notices] == ["NotAllAtOnce"]
    assert "runs 9 pods, 2 at a time" in result.notices[0].message


def test_the_remaining_work_of_a_leaf_is_its_minimum_and_a_finished_leaf_is_gone():
    left = (
        LeafUse(name="train-driver-6f2f0f4a", finished=1),
        LeafUse(name="train-worker-1-6f2f0f4a", finished=1),
    )
    assert drawn(compiled(jobset(DRIVER, WORKER), *left)) == [
        "+train-6f2f0f4a: gang 1, all",
        "  +train-worker-6f2f0f4a: gang 2, all",
        "    train-worker-0-6f2f0f4a: gang 4, all",
        "    train-worker-1-6f2f0f4a: gang 3, all",
    ]


def test_finished_jobs_do_not_count_in_the_minimum():
    """Of the two Jobs of a ReplicatedJob one is finished: the other alone is the gang."""
    left = LeafUse(name="train-worker-1-6f2f0f4a", finished=4)
    assert drawn(compiled(jobset(DRIVER, WORKER), left)) == [
        *WHOLE[:2],
        "  +train-worker-6f2f0f4a: gang 1, all",
        "    train-worker-0-6f2f0f4a: gang 4, all",
    ]


def test_no_group_changes_its_parent_or_its_disruption_when_jobs_finish():
    """The fields are immutable."""
    some = replicated("some", 1, 2, spec={"completions": 9})
    two = [replicated("launcher", dependsOn=AFTER), replicated("node", 1, 3, dependsOn=AFTER)]
    for jobs in ([DRIVER, WORKER, some], [*STEPS[:2], *two]):
        before = {one.name: one for one in compiled(jobset(*jobs)).groups}
        leaves = [one.name for one in before.values() if one.kind == "PodGroup"]
        for leaf in leaves:
            after = compiled(jobset(*jobs), LeafUse(name=leaf, finished=9)).groups
            assert leaf not in {one.name for one in after}
            for one in after:
                then = before[one.name]
                assert (one.parent, one.disruption_mode) == (then.parent, then.disruption_mode)


def test_a_jobset_whose_jobs_are_all_finished_has_no_group():
    left = LeafUse(name="train-driver-6f2f0f4a", finished=1)
    assert compiled(jobset(DRIVER), left).groups == ()


# --- steps (edge case 3)


def test_replicated_jobs_with_the_same_dependencies_are_one_step():
    two = [replicated("launcher", dependsOn=AFTER), replicated("node", 1, 3, dependsOn=AFTER)]
    result = compiled(jobset(*STEPS[:2], *two))
    assert drawn(result) == [
        "+train-6f2f0f4a: basic",
        "  +train-step1-6f2f0f4a: gang 2, all",
        "    train-data-6f2f0f4a: gang 1, all",
        "    train-fetch-6f2f0f4a: gang 1, all",
        "  +train-step2-6f2f0f4a: gang 2, all",
        "    train-launcher-6f2f0f4a: gang 1, all",
        "    train-node-0-6f2f0f4a: gang 3, all",
    ]
    (notice,) = result.notices
    assert notice.reason == "SequencedStart"
    assert "capacity for later steps is not reserved" in notice.message


def test_in_order_every_replicated_job_is_a_step():
    spec = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert drawn(compiled(jobset(DRIVER, WORKER, spec=spec))) == [
        "+train-6f2f0f4a: basic",
        *WHOLE[1:],
    ]


def test_the_groups_of_all_steps_are_the_same_before_and_after_the_first_one():
    """A later step that does not exist yet holds no other: its groups are there, without pods."""
    names = [
        {one.name for one in compiled(found, *uses_of(record(name).pods(), "")).groups}
        for name in ("jobset/depends-on-first-step.json", "jobset/depends-on-second-step.json")
        for found in [record(name).of("JobSet")]
    ]
    assert names[0] == names[1]
    assert len(names[0]) > 2


# --- restart, suspension and a name used again (edge case 2)


def test_a_restart_changes_no_group():
    before, after = (
        record(f"jobset/{one}.json").of("JobSet") for one in ("any-order", "after-restart")
    )
    assert before.status["restarts"] < after.status["restarts"]
    assert drawn(compiled(before)) == drawn(compiled(after))


def test_suspension_changes_no_group():
    found = [record(f"jobset/{one}.json").of("JobSet") for one in ("suspended", "resumed")]
    assert [BY_KIND["JobSet"].suspended(one) for one in found] == [True, False]
    assert drawn(compiled(found[0])) == drawn(compiled(found[1]))


def test_a_jobset_with_the_name_of_a_deleted_one_has_other_groups():
    first, second = (compiled(jobset(DRIVER, uid=f"{one}6f2f0f4-1")) for one in "ab")
    assert not {one.name for one in first.groups} & {one.name for one in second.groups}


# --- minima and priorities


def test_a_minimum_of_a_role_counts_jobs_or_pods():
    lines = drawn(compiled(annotated(replicated("one", 1, 4), WORKER, min="one=3,worker=1")))
    assert lines == [
        "+train-6f2f0f4a: gang 2, all",
        "  train-one-0-6f2f0f4a: gang 3, all",
        "  +train-worker-6f2f0f4a: gang 1, all",
        *WHOLE[3:],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", "2 is for one role, but there are several; write one of driver=N, worker=N"),
        ("boss=1", "no role 'boss'; there are driver, worker"),
        ("worker=3", "worker=3 is more than the 2 groups that worker has"),
        ("driver=2", "driver=2 is more than the 1 pod that driver has"),
    ],
)
def test_a_minimum_that_does_not_fit_is_refused(text, expected):
    result = compiled(annotated(DRIVER, WORKER, min=text))
    assert (result.outcome, result.refusal.reason) == ("refused", "InvalidAnnotation")
    assert expected in result.refusal.message


def test_two_priorities_in_one_tree_are_refused():
    """Edge case 7."""
    jobs = [replicated(name, spec={"template": template(name)}) for name in ("high", "low")]
    result = compiled(jobset(*jobs))
    assert (result.outcome, result.refusal.reason) == ("refused", "PrioritiesDiffer")
    assert "high has 'high', low has 'low'" in result.refusal.message
    assert result.refusal.message.endswith(
        "give them the same priorityClassName, or make a JobSet of each"
    )


@pytest.mark.parametrize("gang", ["per-replicated-job", "per-job"])
def test_no_mode_makes_several_trees_of_one_jobset(gang):
    """So the annotation is no way out of two priorities."""
    jobs = [replicated(name, spec={"template": template(name)}) for name in ("high", "low")]
    result = compiled(annotated(*jobs, gang=gang))
    assert (result.outcome, result.refusal.reason) == ("refused", "PrioritiesDiffer")


def test_a_minimum_of_a_replicated_job_that_has_ended_is_no_mistake():
    """It was one when the JobSet was made; one that never was is refused."""
    jobs = [replicated("driver"), replicated("worker", 2, 4)]
    text = {"gang-extender.dev/min": "driver=1,worker=1"}
    ended = LeafUse(name="train-driver-6f2f0f4a", finished=1)
    result = compiled(jobset(*jobs, annotations=text), ended)
    assert result.outcome == "compiled"
    assert not any("driver" in group.name for group in result.groups)
    assert [group.minimum for group in result.groups if group.name == "train-worker-6f2f0f4a"] == [
        1
    ]
    wrong = {"gang-extender.dev/min": "drivre=1,worker=1"}
    refusal = compiled(jobset(*jobs, annotations=wrong), ended).refusal
    assert "no role 'drivre'; there are worker" in refusal.message


def test_exclusive_topology_is_refused_with_the_annotation_to_use_instead():
    """Edge case 5."""
    result = compiled(record("jobset/exclusive-topology-no-leader-bound.json").of("JobSet"))
    assert (result.outcome, result.refusal.reason) == ("refused", "ExclusiveTopology")
    assert "gang-extender.dev/exclusive: leaf=" in result.refusal.message
    assert "exclusive-topology" in result.refusal.field


@pytest.mark.parametrize(
    ("jobs", "key", "text"),
    [
        ([replicated("a"), replicated("b")], "net/rack", "each Job has one pod; use a required podAntiAffinity"),
        ([replicated("a", 2, 2)], "net/rack:Cluster", "'net/rack:Cluster' is not the key of a node label, such as net/rack"),
    ],
)  # fmt: skip
def test_exclusive_topology_that_is_not_replaced_is_refused_with_what_helps(jobs, key, text):
    """No leaf of these has a domain alone with `leaf=`; and ours would read the colon."""
    annotation = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    refusal = compiled(jobset(*jobs, annotations={annotation: key})).refusal
    assert refusal.field == f"metadata.annotations[{annotation}]"
    assert text in refusal.message


@pytest.mark.parametrize("place", ["JobSet", "ReplicatedJob"])
def test_exclusive_topology_with_a_node_selector_is_compiled(place):
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    both = {key: "net/rack", "alpha.jobset.sigs.k8s.io/node-selector": "true"}
    for found_there, outcome in ((both, "compiled"), ({key: "net/rack"}, "refused")):
        job = replicated("w", 2, 2)
        if place == "JobSet":
            found = jobset(job, annotations=found_there)
        else:
            job["template"]["metadata"] = {"annotations": found_there}
            found = jobset(job)
        assert compiled(found).outcome == outcome


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"scheduling": {"schedulingPolicy": {}}}, "spec.scheduling is set"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "another controller runs it"),
    ],
)
def test_a_jobset_that_something_else_schedules_is_left_alone(spec, reason):
    result = compiled(jobset(DRIVER, spec=spec))
    assert result.outcome == "kept-out"
    assert reason in result.refusal.message


def test_a_replicated_job_with_a_group_of_its_own_keeps_the_jobset_out():
    own = template(**{"pod-group": "mine"})
    result = compiled(jobset(DRIVER, replicated("w", spec={"template": own})))
    assert result.outcome == "kept-out"
    assert "ReplicatedJob w: its pods name the group 'mine'" in result.refusal.message


def test_long_names_are_shortened_at_the_front_and_stay_unique():
    """Edge case 7."""
    found = jobset(DRIVER, WORKER, name="very-long-name-" * 4 + "x")
    names = [one.name for one in compiled(found).groups]
    assert max(map(len, names)) <= 63
    assert len(set(names)) == len(names)
    assert all(name.endswith("-6f2f0f4a") for name in names)


def test_the_profile_of_its_kind_counts():
    profile = TreeProfile(
        name="queue",
        kinds={"JobSet": KindPolicy(gang="per-replicated-job", disruption_mode="single")},
    )
    two = jobset(DRIVER, replicated("w"))
    lines = drawn(compiled(two, profile=profile, profile_name="queue"))
    assert lines == [
        "+train-6f2f0f4a: basic", "  train-driver-6f2f0f4a: gang 1", "  train-w-6f2f0f4a: gang 1",
    ]  # fmt: skip


def test_a_tree_below_a_composite_of_the_user_has_it_as_parent():
    result = compiled(annotated(DRIVER, WORKER, parent="search"))
    assert [one.parent for one in result.groups][:2] == ["search", "train-6f2f0f4a"]


def test_compiling_again_with_its_own_groups_changes_nothing():
    result = compiled(jobset(DRIVER, WORKER))
    assert compiled(jobset(DRIVER, WORKER), existing=existing(result)) == result
