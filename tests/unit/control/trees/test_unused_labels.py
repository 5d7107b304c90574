"""A label that does not reach the pods of a workload is not dropped silently: an Event on the workload has what helps."""

from __future__ import annotations

import copy

import pytest

from extender.core.log.events import TreeCompiled, TreeRefused
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage, idle
from tests.support.waiting import eventually
from tests.unit.control.trees.test_tree_controller import TREE, a_jobset, controller

TRAINJOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
    "metadata": {
        "name": "tune", "namespace": "default", "uid": "trainjob", "generation": 1,
        "labels": {TREE: "default"},
    },
    "spec": {}, "status": {"jobsStatus": [{"name": "node", "active": 1}]},
}  # fmt: skip


def without_stamps(jobset):
    """Return a JobSet whose templates have no label: it was created before its label."""
    jobset = copy.deepcopy(jobset)
    for job in jobset["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["metadata"]["labels"] = {}
    return jobset


def passed_on(trainjob):
    patch = {"manager": "gang-extender.dev/trees"}
    return trainjob | {"spec": {"runtimePatches": [patch]}}


async def notices_about(*objects):
    """Return reason and text of each Event."""
    stage = Stage()
    workloads = FakeWorkloads(stage.cluster, *objects)
    async with stage:
        await stage.lead()
        stage.start(controller(stage, workloads).run())
        await idle()
        await eventually(lambda: not stage.leader.recovery_reason, "leading")
        await idle()
        assert not [
            *stage.event_data(TreeCompiled),
            *stage.event_data(TreeRefused),
        ]
        return [(one.kind, one.reason, one.message, one.warning) for one in stage.cluster.notices]


@pytest.mark.parametrize(
    "workload", [without_stamps(a_jobset()), TRAINJOB], ids=lambda w: w["kind"]
)
async def test_the_user_is_shown_that_the_label_has_no_effect(workload):
    """Once, as a warning, with what to do."""
    ((kind, reason, text, warning),) = await notices_about(workload)
    assert (kind, reason, warning) == (workload["kind"], "LabelNotUsed", True)
    assert f"{kind} default/{workload['metadata']['name']}" in text
    assert "create the workload again" in text


@pytest.mark.parametrize(
    "workload",
    [
        without_stamps(a_jobset(labels={TREE: "off"})),
        without_stamps(a_jobset(labels={})),
        without_stamps(a_jobset(managedBy="other.example.com/controller")),
        passed_on(TRAINJOB),
        TRAINJOB | {"status": {}},
    ],
    ids=["off", "no label", "managed by another", "passed on", "not started"],
)
async def test_others_get_no_event(workload):
    """Without a label of its own, or when it reaches the pods, or when another controller has the workload."""
    assert await notices_about(workload) == []
