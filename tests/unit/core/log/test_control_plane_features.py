"""What follows from dry runs of full objects and from the gates of kube-scheduler (K60)."""

from __future__ import annotations

import copy

import pytest

from extender.core.admit.native_gang_scheduling import native_on
from extender.core.log.control_plane_features import (
    NOT_CONFIGURED,
    DryRunResult,
    PriorityOf,
    SchedulerGates,
    features_of,
    features_summary,
    lost_fields,
    samples,
)
from extender.core.model.dropped_fields import GATES, dropped_field_text, gate_of

GATE = "gang-extender.dev/admission"
NEW = [
    ("scheduling.k8s.io/v1beta1", "podgroups"),
    ("scheduling.k8s.io/v1alpha3", "compositepodgroups"),
    ("scheduling.k8s.io/v1beta1", "workloads"),
]
ON = SchedulerGates({"GenericWorkload": True})
SILENT = SchedulerGates(None, "https://127.0.0.1:10259/metrics: connection refused")


def kept(sample, *drops):
    """Answer as an API server that drops some fields, wherever they stand."""

    def without(thing):
        if isinstance(thing, dict):
            return {k: without(v) for k, v in thing.items() if k not in drops}
        return [without(one) for one in thing] if isinstance(thing, list) else thing

    return DryRunResult(sample, without(copy.deepcopy(dict(sample.body))))


def found(*drops, served=NEW, scheduler=ON, before=None):
    every = samples(served, PriorityOf("gang", "PreemptLowerPriority"))
    return features_of([kept(one, *drops) for one in every], scheduler, GATE, before)


def test_an_api_server_that_keeps_everything_loses_nothing():
    full = found()
    assert full.dropped_fields == ()
    assert full.untested == ()
    assert [one.split()[1] for one in full.served] == ["CompositePodGroup", "PodGroup", "Workload"]


@pytest.mark.parametrize("field", sorted(GATES))
def test_every_field_that_a_gate_guards_is_sent_and_missed(field):
    """A field that is not in any full object could be lost unseen."""
    old = [("scheduling.k8s.io/v1alpha2", "podgroups"), ("scheduling.k8s.io/v1alpha2", "workloads")]
    lost = found(field, served=NEW + old).dropped_fields
    assert lost
    assert {one.gate for one in lost} == {GATES[field]}
    assert all(one.field.endswith(f".{field}") for one in lost)


def test_a_loss_deep_in_a_template_is_named_by_its_path():
    (one,) = [
        x for x in found("schedulingConstraints").dropped_fields if x.object.endswith("Workload")
    ]
    assert one.field == "spec.podGroupTemplates.schedulingConstraints"
    assert one.object == "scheduling.k8s.io/v1beta1 Workload"


def test_what_is_filled_in_is_no_loss():
    assert lost_fields({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}, {"b": 3}], "d": 4}, "spec") == []
    assert lost_fields({"a": [{"b": 1}]}, {"a": []}, "spec") == ["spec.a"]
    assert lost_fields({"a": 1}, {"a": 2}, "spec") == ["spec.a"]
    assert lost_fields({"a": {"b": 1}}, None, "spec") == ["spec.a"]


def test_a_trial_that_was_refused_is_neither_kept_nor_lost():
    pod, group = samples(NEW[:1])
    answer = features_of(
        [DryRunResult(pod, None, "403 Forbidden: no"), kept(group)], ON, GATE, before=None
    )
    assert answer.untested == ("v1 Pod: 403 Forbidden: no",)
    assert answer.admission_policy == "unknown"
    assert answer.dropped_fields == ()


def test_the_admission_policy_is_seen_by_our_gate():
    (pod,) = samples([])
    held = DryRunResult(
        pod, {"spec": dict(pod.body["spec"]) | {"schedulingGates": [{"name": GATE}]}}
    )
    assert features_of([held], ON, GATE, None).admission_policy == "on"
    assert features_of([kept(pod)], ON, GATE, None).admission_policy == "off"


@pytest.mark.parametrize(
    ("gates", "native"),
    [
        ({"GenericWorkload": True}, "on"),
        (
            {"GenericWorkload": True, "GangScheduling": False},
            "on",
        ),  # 1.36: cycles of groups without a minimum
        ({"GenericWorkload": False, "GangScheduling": False}, "off"),
        ({"SchedulerAsyncPreemption": True}, "off"),
    ],
)
def test_the_gates_of_kube_scheduler(gates, native):
    answer = found(scheduler=SchedulerGates(gates))
    assert answer.native_group_scheduling == native
    assert native_on(answer) == (native == "on")
    assert all(
        f"{name}=" in answer.message
        for name in gates
        if name in ("GenericWorkload", "GangScheduling")
    )


def test_a_kube_scheduler_that_does_not_answer_is_what_it_was():
    """A restart of kube-scheduler does not hand its conditions back to us for a minute."""
    before = found()
    assert found(scheduler=SILENT, before=before) == before
    assert found(scheduler=SILENT).native_group_scheduling == "unknown"
    assert found(scheduler=SILENT).message == SILENT.problem
    unset = found(scheduler=SchedulerGates(None, NOT_CONFIGURED), before=before)
    assert (unset.native_group_scheduling, unset.message) == ("unknown", NOT_CONFIGURED)


@pytest.mark.parametrize(
    ("scheduler", "native", "words"),
    [
        (SchedulerGates({"GenericWorkload": False}), "off", "GenericWorkload=false"),
        (SchedulerGates({"GenericWorkload": True}), "on", "GenericWorkload=true"),
        # a gate disappears some versions after its feature is generally available
        (SchedulerGates({"Other": False}), "on", "kube-scheduler has no feature gate GenericWorkload"),
        (SchedulerGates(None, NOT_CONFIGURED), "on", NOT_CONFIGURED),
        (SILENT, "on", SILENT.problem),
    ],
)  # fmt: skip
def test_where_pod_groups_are_in_v1_group_scheduling_is_on_by_default(scheduler, native, words):
    """A later version, generally available: it is off only where its gate is read as false."""
    general = [("scheduling.k8s.io/v1", "podgroups"), ("scheduling.k8s.io/v1", "workloads")]
    answer = found(served=general, scheduler=scheduler)
    assert answer.native_group_scheduling == native
    assert words in answer.message
    assert ("scheduling.k8s.io/v1 PodGroup is served" in answer.message) == ("=" not in words)


def test_what_was_read_of_kube_scheduler_holds_while_it_does_not_answer():
    """Also where PodGroups are in v1: a gate that was off stays off."""
    general = [("scheduling.k8s.io/v1", "podgroups")]
    before = found(served=general, scheduler=SchedulerGates({"GenericWorkload": False}))
    assert found(served=general, scheduler=SILENT, before=before) == before


def test_the_text_for_the_operator():
    text = features_summary(found("parentCompositePodGroupName"))
    lost = "parentCompositePodGroupName of CompositePodGroup, PodGroup"
    assert f"kube-apiserver drops {lost} (feature gate CompositePodGroup is off)" in text
    assert "group scheduling is on" in text
    assert features_summary(None) == ""


def test_a_refusal_names_object_field_and_help():
    text = dropped_field_text("PodGroup/default/g", "schedulingConstraints")
    assert "PodGroup/default/g" in text
    assert "spec.schedulingConstraints" in text
    assert "TopologyAwareWorkloadScheduling on in kube-apiserver" in text
    assert gate_of("spec.image") == ""
