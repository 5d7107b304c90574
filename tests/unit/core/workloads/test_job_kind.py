"""Job: one leaf whose minimum follows the remaining work downwards."""

from __future__ import annotations

import pytest

from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.kinds.job_kind import remaining_pods
from tests.support.planning.controller_records import record
from tests.support.planning.workload_builders import compiled, drawn, existing, job, template, use

LEAF = "fit-6f2f0f4a"


def minimum(found):
    (line,) = drawn(compiled(found))
    return line.removeprefix(f"{LEAF}: ")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "gang 1, all"),
        ({"parallelism": 4}, "gang 4, all"),
        ({"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, "gang 4, all"),
        ({"parallelism": 4, "completions": 2}, "gang 2, all"),
        ({"parallelism": 4, "completions": 5}, "basic"),
        ({"completions": 3}, "basic"),
    ],
    ids=[
        "defaults",
        "no completions",
        "indexed",
        "fewer completions",
        "more completions",
        "one at a time",
    ],
)
def test_a_job_is_a_gang_if_all_its_pods_run_at_once(spec, expected):
    assert minimum(job(**spec)) == expected


def test_a_minimum_makes_a_gang_of_a_job_that_runs_some_pods_at_a_time():
    found = job(4, completions=20, annotations={"gang-extender.dev/min": "4"})
    assert minimum(found) == "gang 4, all"


def test_the_last_pod_of_five_runs():
    """Edge case 1: completions 5, parallelism 4."""
    asked = {"gang-extender.dev/min": "4"}
    for succeeded, expected in [(0, 4), (1, 4), (2, 3), (4, 1)]:
        found = job(4, completions=5, annotations=asked, status={"succeeded": succeeded})
        assert minimum(found) == f"gang {expected}, all"


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({}, 4),
        ({"succeeded": 1}, 3),
        ({"failedIndexes": "0"}, 3),
        ({"succeeded": 1, "failedIndexes": "0,2-3"}, 0),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, 0),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, 0),
        ({"conditions": [{"type": "Complete", "status": "False"}]}, 4),
    ],
)
def test_pods_that_succeeded_or_failed_for_good_do_not_remain(status, left):
    assert remaining_pods(job(4, completions=4, status=status)) == left


def test_without_completions_active_pods_remain_after_the_first_success():
    assert remaining_pods(job(4, status={"active": 4})) == 4
    assert remaining_pods(job(4, status={"active": 2, "succeeded": 1})) == 2


def test_the_minimum_of_a_finished_job_stays_valid():
    done = {"succeeded": 4, "conditions": [{"type": "Complete", "status": "True"}]}
    found = job(4, completions=4, status=done)
    assert BY_KIND["Job"].finished(found)
    assert minimum(found) == "gang 1, all"


@pytest.mark.parametrize("spec", [{"parallelism": 0}, {"parallelism": 3, "completions": 0}])
def test_a_job_without_pods_has_no_group(spec):
    assert compiled(job(**spec)).groups == ()


def test_a_suspended_job_keeps_its_group():
    found = job(4, suspend=True)
    assert BY_KIND["Job"].suspended(found)
    assert minimum(found) == "gang 4, all"


def test_elastic_jobs_raise_the_minimum_when_the_pods_are_there():
    then = existing(compiled(job(2)))
    assert compiled(job(4), use(LEAF, 2), existing=then).groups[0].minimum == 2
    assert compiled(job(4), use(LEAF, 4), existing=then).groups[0].minimum == 4
    assert compiled(job(1), use(LEAF, 2), existing=then).groups[0].minimum == 1


def test_topology_and_priority():
    found = job(
        8,
        template=template("prod"),
        annotations={"gang-extender.dev/topology": "root=net/block,leaf=net/rack"},
    )
    assert minimum(found) == "gang 8, all, in net/rack, prod"


def test_a_job_of_one_pod_is_in_the_domain_of_the_root_only():
    asked = {"gang-extender.dev/topology": "root=net/block,leaf=net/rack"}
    assert minimum(job(1, annotations=asked)) == "gang 1, all, in net/block"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"scheduling": {"schedulingPolicy": {"gang": {}}}}, "spec.scheduling is set"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "'kueue.x-k8s.io/multikueue'"),
        (
            {"template": {"spec": {"schedulingGroup": {"podGroupName": "x"}}}},
            "spec.schedulingGroup",
        ),
        ({"template": {"metadata": {"labels": {"gang-extender.dev/pod-group": "g"}}}}, "'g'"),
    ],
    ids=["scheduling block", "other controller", "scheduling group", "own group"],
)
def test_a_job_that_something_else_schedules_is_left_alone(spec, reason):
    result = compiled(job(2, **spec))
    assert (result.outcome, result.groups) == ("kept-out", ())
    assert reason in result.refusal.message


def test_a_job_with_the_name_of_its_own_controller_is_compiled():
    assert minimum(job(2, managedBy="kubernetes.io/job-controller")) == "gang 2, all"


@pytest.mark.parametrize(
    ("key", "value"), [("gang", "per-job"), ("workload", "w")], ids=["gang", "workload"]
)
def test_annotations_of_a_jobset_are_refused(key, value):
    result = compiled(job(2, annotations={f"gang-extender.dev/{key}": value}))
    assert (result.outcome, result.refusal.reason) == ("refused", "InvalidAnnotation")
    assert "is for a JobSet" in result.refusal.message


def test_the_recorded_jobs():
    lines = {
        name: drawn(compiled(record(f"job/{name}.json").of("Job")))
        for name in ("plain", "plain-three-done", "indexed", "indexed-one-failed", "paused")
    }
    assert lines == {
        "plain": ["plain-00000000: basic"],
        "plain-three-done": ["plain-00000000: basic"],
        "indexed": ["indexed-00000000: gang 2, all"],
        "indexed-one-failed": ["indexed-00000000: gang 2, all"],
        "paused": ["paused-00000000: gang 2, all"],
    }


def test_the_recorded_job_with_a_scheduling_block_is_left_alone():
    assert compiled(record("job/native-scheduling-block.json").of("Job")).outcome == "kept-out"
