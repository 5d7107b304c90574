"""What the control plane was found to do is recorded once per change, by the leader; conditions have one writer."""

from __future__ import annotations

import pytest

from extender.control.monitors import feature_gate_monitor
from extender.control.monitors.feature_gate_monitor import FeatureGateMonitor
from extender.core.log.control_plane_features import DryRunResult, SchedulerGates, samples
from extender.core.log.events import ControlPlaneFeaturesDetected, GangUnschedulable
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import NIL_GANG
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang, a_group, a_pod
from tests.support.waiting import eventually

NATIVE = "scheduling.k8s.io/v1beta1"
ASK_MS, TRY_MS = 100, 300  # shorter than the lease of the stage


class FakePlane:
    """Answers what a test has set, and counts the questions."""

    def __init__(self):
        self.discovery_revision = 1
        self.drops = ()
        self.gates = SchedulerGates({"GenericWorkload": False})
        self.fault = None
        self.tried = self.asked = 0

    async def dry_runs(self):
        self.tried += 1
        if self.fault is not None:
            raise self.fault
        gates = [{"name": "gang-extender.dev/admission"}]
        made = []
        for one in samples([(NATIVE, "podgroups")]):
            spec = {k: v for k, v in one.body["spec"].items() if k not in self.drops}
            made.append(DryRunResult(one, {"spec": spec | {"schedulingGates": gates}}))
        return made

    async def scheduler_gates(self):
        self.asked += 1
        return self.gates


@pytest.fixture
async def stage():
    async with Stage(*a_fleet("2 nodes")) as made:
        await made.lead()
        yield made


def watch(stage, plane):
    return FeatureGateMonitor(stage.cluster, plane, stage.leader, stage.clock)


def recorded(stage):
    return [e for e in stage.events() if isinstance(e.data, ControlPlaneFeaturesDetected)]


async def test_what_did_not_change_is_recorded_once(stage):
    """Also by another process later: the state remembers."""
    plane = FakePlane()
    looking = watch(stage, plane)
    assert await looking.look()
    assert not await looking.look()
    assert (plane.tried, plane.asked) == (1, 1)
    assert not await watch(stage, plane).look()
    (event,) = recorded(stage)
    assert event.gang_uid == NIL_GANG
    assert stage.leader.committed.features == event.data
    again = decode_state(encode_state(stage.leader.committed))
    assert again.features == event.data


async def test_a_change_is_seen_when_its_time_comes(stage, monkeypatch):
    """kube-scheduler often, kube-apiserver seldom or when it serves other kinds."""
    monkeypatch.setattr(feature_gate_monitor, "SCHEDULER_EVERY_MS", ASK_MS)
    monkeypatch.setattr(feature_gate_monitor, "TRY_EVERY_MS", TRY_MS)
    plane = FakePlane()
    looking = watch(stage, plane)
    await looking.look()
    plane.gates = SchedulerGates({"GenericWorkload": True})
    assert not await looking.look()
    stage.clock.advance(ASK_MS / 1000)
    assert await looking.look()
    assert recorded(stage)[-1].data.native_group_scheduling == "on"
    plane.drops = ("schedulingConstraints",)
    stage.clock.advance(ASK_MS / 1000)
    assert not await looking.look()
    plane.discovery_revision += 1
    assert await looking.look()
    assert [one.field for one in recorded(stage)[-1].data.dropped_fields] == [
        "spec.schedulingConstraints"
    ]
    plane.drops = ()
    stage.clock.advance(TRY_MS / 1000)
    assert await looking.look()
    assert recorded(stage)[-1].data.dropped_fields == ()


async def test_an_api_server_that_does_not_answer_is_asked_again(stage):
    plane = FakePlane()
    plane.fault = ClusterUnavailable("no answer")
    looking = watch(stage, plane)
    with pytest.raises(ClusterUnavailable):
        await looking.look()
    assert recorded(stage) == []
    plane.fault = None
    assert await looking.look()


async def test_a_follower_asks_nothing():
    async with Stage(*a_fleet("1 nodes")) as stage:
        plane = FakePlane()
        assert not await watch(stage, plane).look()
        assert (plane.tried, plane.asked) == (0, 0)


def builtin_gang():
    group, *pods = a_gang("g", pods=2, requests={GPU: 8})
    return [group | {"apiVersion": NATIVE}, *pods]


@pytest.mark.parametrize(
    ("native", "type_", "reason"),
    [
        (True, "PlacementExplained", "NeverFits"),
        (False, "PodGroupInitiallyScheduled", "Unschedulable"),
    ],
)
async def test_each_condition_has_one_writer(native, type_, reason):
    """kube-scheduler writes PodGroupInitiallyScheduled of a built-in group when its own scheduling is on.

    The type of Kubernetes has no reason of our own.
    """
    async with Stage(*a_fleet("1 nodes"), *builtin_gang()) as stage:
        await stage.lead()
        plane = FakePlane()
        plane.gates = SchedulerGates({"GenericWorkload": native})
        await watch(stage, plane).look()
        stage.start(stage.reporter.run())
        await stage.one_pass()
        stage.conditions_due()
        await eventually(lambda: stage.cluster.group("g").conditions, "a condition")
        ((*written, _),) = stage.cluster.group("g").conditions
        assert written == [type_, "False", reason]


@pytest.mark.parametrize(
    ("native", "version", "type_"),
    [
        (True, "v1beta1", "PlacementExplained"),
        (True, "v1", "PlacementExplained"),
        (True, "v1alpha3", "CompositePodGroupInitiallyScheduled"),
        (False, "v1beta1", "CompositePodGroupInitiallyScheduled"),
    ],
)
@pytest.mark.parametrize("broken", [False, True], ids=["refused", "invalid"])
async def test_conditions_of_composites_are_those_of_kube_scheduler_since_1_38(
    native, version, type_, broken
):
    """1.37 serves composites in v1alpha3 alone and writes none of their conditions; also of a tree that breaks a rule."""
    version = f"scheduling.k8s.io/{version}"
    root = a_group("root", composite=True, gang=1, version=version)
    more = {"priority": 7} if broken else {}
    leaf = a_group("leaf", gang=2, parent="root", version=version, **more)
    pods = [a_pod(f"p{n}", "leaf", requests={GPU: 8}) for n in range(2)]
    async with Stage(*a_fleet("1 nodes"), root, leaf, *pods) as stage:
        await stage.lead()
        plane = FakePlane()
        plane.gates = SchedulerGates({"GenericWorkload": native})
        await watch(stage, plane).look()
        stage.start(stage.reporter.run())
        await stage.one_pass()
        stage.conditions_due()
        await eventually(lambda: stage.cluster.group("root").conditions, "a condition")
        assert [one[0] for one in stage.cluster.group("root").conditions] == [type_]


async def test_readiness_names_what_is_lost(stage):
    plane = FakePlane()
    plane.drops = ("schedulingGroup",)
    await watch(stage, plane).look()
    await stage.one_pass()
    check = next(c for c in stage.extender_service.checks() if c.name == "cluster")
    assert check.ok
    assert "drops schedulingGroup of Pod (feature gate GenericWorkload is off)" in check.reason


def field_gang(pods, minimum, name="g"):
    group, *_ = a_gang(name, pods=1, minimum=minimum)
    gate = [{"name": "gang-extender.dev/admission"}]
    field = {"schedulingGroup": {"podGroupName": name}, "schedulingGates": gate}
    made = [a_pod(f"{name}-{n}", requests={GPU: 8}, **field) for n in range(pods)]
    return [group | {"apiVersion": NATIVE}, *made]


async def native(stage):
    plane = FakePlane()
    plane.gates = SchedulerGates({"GenericWorkload": True})
    await watch(stage, plane).look()


async def test_who_finds_no_capacity_does_not_hold_up_the_others():
    """kube-scheduler 1.37 looks at a group when no pod of it is gated: all gates go with the admission."""
    async with Stage(*a_fleet("2 nodes"), *field_gang(3, 2)) as stage:
        await stage.lead()
        await native(stage)
        stage.start(stage.parts.nominator.run())
        stage.start(stage.parts.gate_remover.run())
        await stage.one_pass()
        await stage.one_pass()
        await eventually(lambda: len(stage.cluster.did("remove_gate")) == 3, "all are let go")
        assert len(stage.cluster.did("nominate")) == 2


async def test_no_gate_of_a_tree_without_capacity_is_removed():
    async with Stage(*a_fleet("1 nodes"), *field_gang(3, 2)) as stage:
        await stage.lead()
        await native(stage)
        stage.start(stage.parts.gate_remover.run())
        await stage.one_pass()
        await stage.one_pass()
        assert stage.cluster.did("remove_gate") == []
        assert not stage.leader.committed.claims_on


async def test_a_tree_that_would_never_come_to_bind_holds_no_capacity():
    """Its reason is recorded once, and it is planned when the reason is gone."""
    group, *pods = field_gang(2, 2)
    group = group | {"apiVersion": "gang-extender.dev/v1alpha1"}
    async with Stage(*a_fleet("2 nodes"), group, *pods) as stage:
        await stage.lead()
        await native(stage)
        for _ in range(3):
            await stage.one_pass()
        (refused,) = [e.data for e in stage.events() if isinstance(e.data, GangUnschedulable)]
        assert refused.outcome == "waiting"
        assert "label gang-extender.dev/pod-group instead" in refused.reasons[0]
        assert not stage.leader.committed.claims_on
        plane = FakePlane()  # switched off
        await watch(stage, plane).look()
        await stage.one_pass()
        assert len(stage.leader.committed.claims_on) == 2
