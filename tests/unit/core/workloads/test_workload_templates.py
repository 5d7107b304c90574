"""The user's Workload gives the tree of a JobSet: names and counts fit, or the refusal names both."""

from __future__ import annotations

from typing import Any

import pytest

from extender.core.model.nodes import NearGroup
from extender.core.workloads.tree_parts import LeafUse
from extender.core.workloads.workload_object import WorkloadObject
from tests.support.planning.workload_builders import (
    UID,
    compiled,
    drawn,
    jobset,
    replicated,
    template,
)

ANNOTATION = {"gang-extender.dev/workload": "plan"}
JOBS = [replicated("driver"), replicated("worker", 2, 4, leaf="replicated-job")]


def leaf(name: str, count: int | None = None, **more: Any) -> dict[str, Any]:
    policy = {"basic": {}} if count is None else {"gang": {"minCount": count}}
    return {"name": name, "schedulingPolicy": policy} | more


def inner(
    name: str, *below: dict[str, Any], count: int | None = None, **more: Any
) -> dict[str, Any]:
    policy = {"basic": {}} if count is None else {"gang": {"minGroupCount": count}}
    lists = {
        "podGroupTemplates": [one for one in below if "compositePodGroupTemplates" not in one],
        "compositePodGroupTemplates": [one for one in below if "compositePodGroupTemplates" in one],
    }
    return {"name": name, "schedulingPolicy": policy, **lists} | more


def plan(**spec: Any) -> WorkloadObject:
    return WorkloadObject(
        api_version="gang-extender.dev/v1alpha1",
        kind="Workload",
        namespace="team",
        name="plan",
        uid=UID,
        spec=spec,
    )


def flat(*templates: dict[str, Any]) -> WorkloadObject:
    return plan(podGroupTemplates=list(templates))


def tree(*templates: dict[str, Any]) -> WorkloadObject:
    return plan(compositePodGroupTemplates=list(templates))


def refused(
    templates: WorkloadObject | None, *jobs: dict[str, Any], **more: Any
) -> tuple[str, str]:
    result = compiled(jobset(*(jobs or JOBS), annotations=ANNOTATION, **more), templates=templates)
    assert (result.outcome, result.groups) == ("refused", ())
    assert result.refusal.field == "metadata.annotations[gang-extender.dev/workload]"
    assert result.refusal.message.startswith(
        f"JobSet/team/train: {result.refusal.field}: Workload plan: "
    )
    return result.refusal.reason, result.refusal.message


def test_a_basic_template_may_be_disrupted_as_a_whole():
    """Our kinds accept it (E11); what we make by ourselves is never so."""
    driver = leaf("driver", 1, disruptionMode={"all": {}})
    driver["schedulingPolicy"] = {"basic": {}}
    made = compiled(
        jobset(*JOBS, annotations=ANNOTATION),
        templates=tree(inner("root", driver, leaf("worker", 6), count=1)),
    )
    modes = {group.template: (group.basic, group.disruption_mode) for group in made.groups}
    assert modes["driver"] == (True, "all")


def test_the_tree_is_that_of_the_templates():
    rack = {"topology": [{"key": "net/rack"}]}
    templates = tree(
        inner(
            "root",
            leaf("driver", 1, disruptionMode={"all": {}}),
            inner("slices", leaf("worker", 6, schedulingConstraints=rack), count=1),
            count=2,
            schedulingConstraints={"topology": [{"key": "net/block"}]},
        )
    )
    result = compiled(jobset(*JOBS, annotations=ANNOTATION), templates=templates)
    assert drawn(result) == [
        "+train-root-6f2f0f4a: gang 2, in net/block",
        "  +train-slices-6f2f0f4a: gang 1",
        "    train-worker-6f2f0f4a: gang 6, in net/rack",
        "  train-driver-6f2f0f4a: gang 1, all",
    ]
    named = [(one.name, one.workload, one.template) for one in result.groups]
    assert named[0] == ("train-root-6f2f0f4a", "plan", "root")
    assert named[-1] == ("train-driver-6f2f0f4a", "plan", "driver")


def test_templates_are_near_the_groups_of_other_templates():
    """Names are those of templates; the groups have other ones."""
    near = [{"group": "driver", "key": "net/rack"}, {"group": "slices", "key": "net/block"}]
    templates = tree(
        inner(
            "root",
            leaf("driver", 1, schedulingConstraints={"near": near[1:]}),
            inner("slices", leaf("worker", 6), count=1, schedulingConstraints={"near": near[:1]}),
            count=2,
        )
    )
    jobs = jobset(*JOBS, annotations=ANNOTATION)
    groups = {group.template: group for group in compiled(jobs, templates=templates).groups}
    assert groups["slices"].near == (NearGroup("train-driver-6f2f0f4a", "net/rack"),)
    assert groups["driver"].near == (NearGroup("train-slices-6f2f0f4a", "net/block"),)
    left = LeafUse(name="train-driver-6f2f0f4a", finished=1)
    assert not any(group.near for group in compiled(jobs, left, templates=templates).groups)


def test_flat_templates_are_roots_and_the_profile_adds_nothing():
    result = compiled(
        jobset(*JOBS, annotations=ANNOTATION), templates=flat(leaf("worker", 8), leaf("driver"))
    )
    assert drawn(result) == ["train-worker-6f2f0f4a: gang 8", "train-driver-6f2f0f4a: basic"]


def test_a_finished_replicated_job_is_left_out_and_the_gang_is_smaller():
    left = LeafUse(name="train-driver-6f2f0f4a", finished=1)
    result = compiled(
        jobset(*JOBS, annotations=ANNOTATION),
        left,
        templates=tree(inner("root", leaf("driver", 1), leaf("worker", 8), count=2)),
    )
    assert drawn(result) == ["+train-root-6f2f0f4a: gang 1", "  train-worker-6f2f0f4a: gang 8"]


@pytest.mark.parametrize("other", [None, "another"])
def test_the_jobset_is_held_until_the_workload_is_there(other):
    templates = None
    if other is not None:
        templates = WorkloadObject(
            api_version="gang-extender.dev/v1alpha1",
            kind="Workload",
            namespace="team",
            name=other,
            uid=UID,
        )
    reason, message = refused(templates)
    assert reason == "WorkloadMissing"
    assert "does not exist in this namespace yet" in message


def test_a_jobset_that_only_its_namespace_covers_runs_pod_by_pod_without_the_workload():
    result = compiled(jobset(*JOBS, annotations=ANNOTATION), requested=False)
    assert (result.outcome, result.refusal.reason) == ("basic", "WorkloadMissing")
    assert drawn(result) == ["train-driver-6f2f0f4a: basic", "train-worker-6f2f0f4a: basic"]


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        (flat(leaf("driver", 1)), "are driver, but the parts are driver, worker"),
        (
            flat(
                leaf("driver", 1),
                leaf("worker", 8, schedulingConstraints={"near": [{"group": "eval", "key": "k"}]}),
            ),
            "template worker has schedulingConstraints.near with group 'eval' and key 'k'; name another template, of driver, and",
        ),
        (
            flat(leaf("driver", 1), leaf("worker", 8), leaf("eval", 1)),
            "are driver, eval, worker, but the parts are driver, worker",
        ),
        (
            flat(leaf("driver", 1), leaf("workers", 8)),
            "are driver, workers, but the parts are driver, worker",
        ),
        (plan(), "are none, but the parts are driver, worker"),
        (
            flat(leaf("driver", 1), leaf("worker", 9)),
            "template worker has minCount 9, but there are only 8 pods",
        ),
        (
            tree(inner("root", leaf("driver", 1), leaf("worker", 8), count=3)),
            "template root has minGroupCount 3, but there are only 2 groups",
        ),
        (
            flat(leaf("driver", 1), leaf("worker", 8, resourceClaims=[{"name": "gpu"}])),
            "template worker has resourceClaims, which is not copied",
        ),
        (
            tree(inner("root", leaf("driver", 1), leaf("worker", 8), preemptionPolicy="Never")),
            "template root has preemptionPolicy, which is not copied",
        ),
    ],
)
def test_names_and_counts_fit(templates, expected):
    reason, message = refused(templates)
    assert reason == "WorkloadDiffers"
    assert expected in message


def test_a_replicated_job_of_several_leaves_is_refused_with_the_label_that_helps():
    reason, message = refused(flat(leaf("worker", 8)), replicated("worker", 2, 4))
    assert reason == "WorkloadDiffers"
    assert (
        "worker has 2 groups, one per Job; write the label gang-extender.dev/leaf: replicated-job"
        in message
    )


def test_another_priority_than_that_of_the_pods_is_refused():
    jobs = [replicated("w", spec={"template": template("prod")})]
    reason, message = refused(flat(leaf("w", 1, priorityClassName="test")), *jobs)
    assert reason == "PrioritiesDiffer"
    assert "template w has priorityClassName 'test', its pods have 'prod'" in message
    same = flat(leaf("w", 1, priorityClassName="prod"))
    result = compiled(jobset(*jobs, annotations=ANNOTATION), templates=same)
    assert drawn(result) == ["train-w-6f2f0f4a: gang 1, prod"]


def test_a_gang_over_steps_that_start_one_after_the_other_is_refused():
    jobs = [
        replicated("data"),
        replicated("node", dependsOn=[{"name": "data", "status": "Complete"}]),
    ]
    leaves = [leaf("data", 1), leaf("node", 1)]
    reason, message = refused(tree(inner("root", *leaves, count=2)), *jobs)
    assert reason == "WorkloadDiffers"
    assert "template root is a gang of data and node, but they start one after the other" in message
    basic = compiled(jobset(*jobs, annotations=ANNOTATION), templates=tree(inner("root", *leaves)))
    assert drawn(basic)[0] == "+train-root-6f2f0f4a: basic"


def test_more_levels_than_a_tree_may_have_are_refused():
    deep = leaf("driver", 1)
    for level in range(5):
        deep = inner(f"level{level}", deep)
    reason, message = refused(tree(deep), JOBS[0])
    assert reason == "TooDeep"
    assert "more than 4 levels" in message


def test_below_a_parent_of_the_user_the_levels_are_counted():
    three = tree(inner("a", inner("b", inner("c", leaf("driver", 1)))))
    both = ANNOTATION | {"gang-extender.dev/parent": "search"}
    assert compiled(jobset(JOBS[0], annotations=ANNOTATION), templates=three).outcome == "compiled"
    result = compiled(jobset(JOBS[0], annotations=both), templates=three)
    assert result.refusal.reason == "TooDeep"
    assert (
        "the tree would have 5 levels with its parent 'search', at most 4" in result.refusal.message
    )


def test_templates_name_the_groups_that_a_gang_cannot_do_without():
    """L27: by the names of the templates; the groups have names of their own."""
    one = leaf("driver", 1)
    root = inner("root", one, inner("rest", leaf("worker", 4), count=1), count=1)
    for name in ("driver", "rest"):
        root["schedulingPolicy"] = {"gang": {"minGroupCount": 1, "requiredGroups": [name]}}
        groups = compiled(jobset(*JOBS, annotations=ANNOTATION), templates=tree(root)).groups
        (required,) = groups[0].required
        assert next(group for group in groups if group.name == required).template == name
    root["schedulingPolicy"] = {"gang": {"minGroupCount": 1, "requiredGroups": ["worker"]}}
    result = compiled(jobset(*JOBS, annotations=ANNOTATION), templates=tree(root))
    assert result.refusal.reason == "WorkloadDiffers"
    assert "template root has 'worker' in requiredGroups, but below it are driver, rest" in (
        result.refusal.message
    )
