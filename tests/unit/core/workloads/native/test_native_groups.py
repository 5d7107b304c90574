"""Groups that the controller of a workload makes: which composites are missing above them, and which group hangs where."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.trees.tree_events import decide_tree, replay_tree
from extender.core.workloads.native_groups import NativeGroup
from extender.core.workloads.tree_compiler import CompileRequest
from extender.core.workloads.tree_policy import KindPolicy, NearRole, TreeProfile
from tests.support.planning.workload_builders import (
    compiled,
    drawn,
    job,
    jobset,
    lws,
    replicated,
    template,
)

ALL = {"disruptionMode": {"all": {}}}
GANG = {"schedulingPolicy": {"gang": {}}}
DRIVER, WORKER = replicated("driver"), replicated("worker", 2, 4)
PER_REPLICATED_JOB = {
    "replicatedJobs": [
        {"targetReplicatedJobs": ["driver"], **GANG, **ALL},
        {"targetReplicatedJobs": ["worker"], **GANG, **ALL},
    ]
}
PER_JOB = {
    "replicatedJobs": [
        {"targetReplicatedJobs": ["driver"], **GANG, **ALL},
        {"targetReplicatedJobs": ["worker"], "job": {**GANG, **ALL}},
    ]
}


def adopting(*kinds, **policy):
    """Return a profile that adopts the groups of some kinds."""
    names = kinds or ("Job", "JobSet", "LeaderWorkerSet")
    found = KindPolicy(native_groups="Adopt", **policy)
    return TreeProfile(name="default", kinds=dict.fromkeys(names, found))


def made(*templates):
    """Return the groups that a controller made from templates."""
    return tuple(NativeGroup(name=f"pg-{one}", template=one) for one in templates)


def scheduled(*jobs, block, spec=None, **more):
    return jobset(*jobs, spec={"scheduling": block} | (spec or {}), **more)


def result_of(found, *templates, profile=None, **request):
    return compiled(found, profile=profile or adopting(), native=made(*templates), **request)


def links(result):
    assert result.outcome == "compiled", result
    return {one.name: one.parent for one in result.adopted}


def annotated(**annotations):
    return {f"gang-extender.dev/{key}": value for key, value in annotations.items()}


def test_a_group_per_replicated_job_hangs_below_a_gang_over_them():
    """The composite asks for all of them from the start, also while one of them is not there yet."""
    found = scheduled(DRIVER, WORKER, block=PER_REPLICATED_JOB)
    result = result_of(found, "driver", "worker")
    assert drawn(result) == ["+train-6f2f0f4a: gang 2, all"]
    assert links(result) == {"pg-driver": "train-6f2f0f4a", "pg-worker": "train-6f2f0f4a"}
    assert not result.notices
    early = result_of(found, "worker")
    assert early.groups == result.groups
    assert links(early) == {"pg-worker": "train-6f2f0f4a"}
    (notice,) = early.notices
    assert notice.reason == "WaitingForGroups"
    assert "1 of 2 groups" in notice.message


def test_a_group_per_job_hangs_below_the_composite_of_its_replicated_job():
    result = result_of(
        scheduled(DRIVER, WORKER, block=PER_JOB), "driver", "worker-0-a1b2c3d4e5", "worker-1"
    )
    assert drawn(result) == [
        "+train-6f2f0f4a: gang 2, all",
        "  +train-worker-6f2f0f4a: gang 2, all",
    ]
    assert links(result) == {
        "pg-driver": "train-6f2f0f4a",
        "pg-worker-0-a1b2c3d4e5": "train-worker-6f2f0f4a",
        "pg-worker-1": "train-worker-6f2f0f4a",
    }


@pytest.mark.parametrize(
    "block", [GANG, {"replicatedJobs": [{"targetReplicatedJobs": ["driver", "worker"], **GANG}]}]
)
def test_one_group_for_all_needs_no_composite(block):
    """Only a composite of the user's can be above it."""
    alone = result_of(scheduled(DRIVER, WORKER, block=block), "train-0123456789")
    assert (alone.groups, links(alone)) == ((), {"pg-train-0123456789": ""})
    below = scheduled(DRIVER, WORKER, block=block, annotations=annotated(parent="search"))
    linked = result_of(below, "train-0123456789")
    assert (linked.groups, links(linked)) == ((), {"pg-train-0123456789": "search"})


def test_the_group_of_a_job_hangs_below_a_composite_of_the_user():
    found = job(4, scheduling=GANG, annotations=annotated(parent="search"))
    result = result_of(found, "fit-pgt-0")
    assert (result.groups, links(result)) == ((), {"pg-fit-pgt-0": "search"})
    assert links(result_of(found)) == {}
    assert result_of(found).notices[0].reason == "WaitingForGroups"


def test_the_groups_of_replicas_hang_below_a_composite_of_the_user():
    found = lws(annotations=annotated(parent="search"))
    found = msgspec.structs.replace(found, spec={**found.spec, "scheduling": GANG})
    result = result_of(found, "0-rev", "1-rev")
    assert (result.groups, links(result)) == ((), {"pg-0-rev": "search", "pg-1-rev": "search"})


def test_several_replicated_jobs_share_a_group():
    """Targets of one entry are one leaf, named by their names with a dash between."""
    block = {
        "replicatedJobs": [
            {"targetReplicatedJobs": ["driver", "worker"], **GANG, **ALL},
            {"targetReplicatedJobs": ["eval"], "schedulingPolicy": {"basic": {}}},
        ]
    }
    result = result_of(
        scheduled(DRIVER, WORKER, replicated("eval"), block=block), "driver-worker", "eval"
    )
    assert drawn(result) == ["+train-6f2f0f4a: gang 2"]
    assert set(links(result).values()) == {"train-6f2f0f4a"}


def test_a_jobset_that_starts_in_order_has_a_basic_root_over_its_groups():
    block = {**GANG, **ALL}
    spec = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    result = result_of(scheduled(DRIVER, WORKER, block=block, spec=spec), "driver", "worker")
    assert drawn(result) == ["+train-6f2f0f4a: basic"]
    assert set(links(result).values()) == {"train-6f2f0f4a"}


def test_steps_of_a_jobset_are_gangs_over_their_groups():
    after = [{"name": "driver", "status": "Complete"}]
    jobs = [DRIVER, replicated("a", dependsOn=after), replicated("b", dependsOn=after)]
    result = result_of(scheduled(*jobs, block={**GANG, **ALL}), "driver", "a", "b")
    assert drawn(result) == ["+train-6f2f0f4a: basic", "  +train-step2-6f2f0f4a: gang 2, all"]
    assert links(result) == {
        "pg-driver": "train-6f2f0f4a",
        "pg-a": "train-step2-6f2f0f4a",
        "pg-b": "train-step2-6f2f0f4a",
    }


def test_a_composite_is_disrupted_as_a_whole_only_if_all_its_groups_are():
    block = {
        "replicatedJobs": [
            {"targetReplicatedJobs": ["driver"], **GANG},
            {"targetReplicatedJobs": ["worker"], **GANG, **ALL},
        ]
    }
    assert drawn(result_of(scheduled(DRIVER, WORKER, block=block))) == ["+train-6f2f0f4a: gang 2"]


def test_priority_and_topology_of_the_root_are_those_of_pods_and_policy():
    jobs = [replicated(name, spec={"template": template("prod")}) for name in ("driver", "worker")]
    found = scheduled(
        *jobs, block=PER_REPLICATED_JOB, annotations=annotated(topology="root=net/block")
    )
    assert drawn(result_of(found)) == ["+train-6f2f0f4a: gang 2, all, in net/block, prod"]
    jobs[0] = replicated("driver", spec={"template": template("low")})
    assert (
        result_of(scheduled(*jobs, block=PER_REPLICATED_JOB)).refusal.reason == "PrioritiesDiffer"
    )


@pytest.mark.parametrize(
    ("annotations", "value"),
    [
        (annotated(min="2"), "'2'"),
        (annotated(workload="mine"), "'mine'"),
        (annotated(near="worker=driver~net/rack"), "'worker=driver~net/rack'"),
        (annotated(topology="root=net/block,leaf=net/rack"), "'leaf=net/rack'"),
    ],
)
def test_what_only_the_controller_can_do_is_refused(annotations, value):
    found = scheduled(DRIVER, WORKER, block=PER_REPLICATED_JOB, annotations=annotations)
    refusal = result_of(found).refusal
    assert refusal.reason == "InvalidAnnotation"
    assert value in refusal.message
    assert "spec.scheduling" in refusal.message


def test_topology_of_one_group_is_refused_and_that_of_a_profile_is_named():
    asked = job(4, scheduling=GANG, annotations=annotated(topology="root=net/block"))
    assert result_of(asked, "fit").refusal.reason == "InvalidAnnotation"
    near = (NearRole("a", "b", "net/rack"),)
    profile = adopting("Job", root_topology="net/block", leaf_topology="net/rack", near=near)
    (notice,) = result_of(job(4, scheduling=GANG), "fit", profile=profile).notices
    assert "topology.leaf and topology.root and near of the TreeProfile" in notice.message


def test_a_choice_for_lost_members_is_for_composites_with_a_topology():
    """The controller's own groups have none."""
    lost = {"lost-members": "Widen"}
    asked = job(4, scheduling=GANG, annotations=annotated(**lost))
    (notice,) = result_of(asked, "fit").notices
    assert notice.reason == "LostMembersNotUsed"
    assert (
        "annotate the PodGroups of its controller in its place, or leave it out" in notice.message
    )
    above = annotated(topology="root=net/block", **lost)
    jobs = scheduled(DRIVER, WORKER, block=PER_REPLICATED_JOB, annotations=above)
    result = result_of(jobs, "driver", "worker")
    assert [group.lost_members for group in result.groups] == ["Widen"]
    assert result.notices == ()


def test_a_group_of_an_unknown_template_is_refused():
    refusal = result_of(scheduled(DRIVER, WORKER, block=PER_JOB), "driver", "other").refusal
    assert refusal.reason == "UnknownNativeGroup"
    assert "PodGroup pg-other" in refusal.message
    assert "driver, worker-0, worker-1" in refusal.message


@pytest.mark.parametrize(
    ("found", "profile"),
    [
        (job(4, scheduling=GANG), TreeProfile(name="default")),
        (job(4, scheduling=GANG), adopting("Job", enabled=False)),
        (job(4, scheduling=GANG, managedBy="kueue.x-k8s.io/multikueue"), adopting()),
        (job(4, scheduling=GANG, template={"spec": {"schedulingGroup": {"podGroupName": "x"}}}), adopting()),
        (msgspec.structs.replace(job(4, scheduling=GANG), labels={}), adopting()),
    ],
    ids=["the default", "kind disabled", "another manager", "a group of the user", "only the namespace"],
)  # fmt: skip
def test_other_workloads_are_left_alone(found, profile):
    assert result_of(found, "fit", profile=profile).outcome == "kept-out"


def test_a_workload_without_a_block_is_compiled_as_ever():
    assert drawn(result_of(job(4))) == ["fit-6f2f0f4a: gang 4, all"]


def test_groups_that_were_adopted_stay_so():
    """The profile was changed meanwhile: running groups do not lose their composite."""
    ignoring = TreeProfile(name="default")
    found = scheduled(DRIVER, WORKER, block=PER_REPLICATED_JOB)
    result = result_of(found, "driver", "worker", profile=ignoring, adopted=True)
    assert set(links(result).values()) == {"train-6f2f0f4a"}


def test_the_recorded_event_is_decided_equal():
    found = scheduled(DRIVER, WORKER, block=PER_JOB)
    request = CompileRequest(
        workload=found,
        profile=adopting(),
        profile_name="default",
        native=made("driver", "worker-0", "worker-1"),
    )
    event, _ = decide_tree(request, None)
    assert {one.name for one in event.adopted} == {"pg-driver", "pg-worker-0", "pg-worker-1"}
    assert replay_tree(request, event.input_digest) == event
