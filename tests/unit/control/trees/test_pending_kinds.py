"""While the objects of a kind are being listed, nothing that depends on them is decided."""

from __future__ import annotations

import pytest

from extender.core.log.events import TreeCompiled, TreeRefused
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage, idle
from tests.support.waiting import eventually
from tests.unit.control.trees.test_tree_controller import UID, a_jobset, controller

OWNER = "fedcba9876543210"


def a_trainjob():
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {
            "name": "train", "namespace": "default", "uid": OWNER, "generation": 1, "labels": {},
            "annotations": {"gang-extender.dev/topology": "leaf=net/rack"},
        },
        "spec": {},
    }  # fmt: skip


def owned_jobset():
    jobset = a_jobset()
    jobset["metadata"]["ownerReferences"] = [{
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "train", "uid": OWNER, "controller": True,
    }]  # fmt: skip
    return jobset


@pytest.mark.parametrize(
    ("kind", "workload"),
    [
        ("TrainJob", owned_jobset()),
        ("Job", a_jobset()),
        ("Workload", a_jobset(annotations={"gang-extender.dev/workload": "shape"})),
    ],
    ids=["owner", "jobs", "templates"],
)
async def test_a_workload_waits_for_the_kinds_that_it_depends_on(kind, workload):
    """A TrainJob owns the groups, Jobs lower the minima, a Workload has the shape: without them the result is wrong."""
    stage = Stage()
    workloads = FakeWorkloads(stage.cluster, workload)
    workloads.store.set_synced(kind, synced=False)
    workloads.store.set_served({kind})
    async with stage:
        await stage.lead()
        stage.start(controller(stage, workloads).run())
        await idle()
        assert not stage.event_data(TreeCompiled) + stage.event_data(TreeRefused)
        workloads.put(*([a_trainjob()] if kind == "TrainJob" else []))
        workloads.store.set_synced(kind, synced=True)
        workloads.put()
        await eventually(
            lambda: stage.event_data(TreeCompiled) + stage.event_data(TreeRefused), "event"
        )
        (event,) = stage.event_data(TreeCompiled) + stage.event_data(TreeRefused)
        assert event.uid == UID
        if kind == "TrainJob":
            assert event.owner_uid == OWNER
            assert {one.topology for one in event.groups if one.minimum > 1} >= {"net/rack"}


async def test_a_kind_that_is_not_served_is_not_waited_for():
    """Without Trainer on the cluster a JobSet that a TrainJob owned is a tree of its own."""
    stage = Stage()
    workloads = FakeWorkloads(stage.cluster, owned_jobset())
    workloads.store.set_synced("TrainJob", synced=False)
    async with stage:
        await stage.lead()
        stage.start(controller(stage, workloads).run())
        await eventually(lambda: stage.event_data(TreeCompiled), "event")
        assert stage.event_data(TreeCompiled)[0].owner_uid in {"", UID}
