"""How long gangs waited is counted once, by the leader that appended it; gauges are those of the committed state."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.monitors.capacity_sampler import CapacitySampler
from extender.control.monitors.state_metrics import NAMESPACES_MAX, DatabaseSize, StateMetrics
from extender.core.log.events import NewEvent, TreeCompiled
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import NIL_GANG
from extender.core.workloads.tree_compiler import GroupSpec
from extender.telemetry import METRICS, NO_CLASS, OTHERS, PRIORITY_CLASSES_MAX, Metrics
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang, a_node, a_pod


def value(name, **labels):
    return METRICS.registry.get_sample_value(f"gang_extender_{name}", labels)


def counted():
    """Return sum and count of each stage of gangs without a priority class."""
    return {
        stage: tuple(
            value(f"gang_wait_seconds_{part}", stage=stage, priority_class=NO_CLASS) or 0
            for part in ("count", "sum")
        )
        for stage in ("complete", "admitted", "scheduled")
    }


def added(before):
    return {
        stage: (count - before[stage][0], total - before[stage][1])
        for stage, (count, total) in counted().items()
    }


class Watched:
    """The metrics of a stage."""

    def __init__(self, stage):
        self.sampler = CapacitySampler(stage.cluster, stage.leader, stage.settings)
        self.metrics = StateMetrics(
            stage.cluster, stage.leader, stage.parts.exchange.published, self.sampler, stage.clock
        )

    async def scraped(self):
        await self.sampler.look()
        self.metrics.set_gauges()


async def bound(stage, *names):
    """Bind members together, as their barrier demands."""
    assert await asyncio.gather(*(stage.bind(name) for name in names)) == [""] * len(names)


def created(stage, name):
    """Let a gang have been created now."""
    stage.cluster.change_group(name, created_us=stage.clock.us)


async def test_a_gang_is_counted_at_each_stage_once():
    """From the creation of its group; what it waited for capacity is between complete and admitted."""
    async with Stage(a_node("n", gpu=8), a_pod("alone", node="n", requests={GPU: 8})) as stage:
        await stage.lead()
        Watched(stage)
        before = counted()
        stage.cluster.add(*a_gang("g", pods=2))
        created(stage, "g")
        stage.later(5)
        await stage.settled()
        assert stage.root("g").phase == "unschedulable"
        assert added(before) == dict.fromkeys(("complete", "admitted", "scheduled"), (0, 0))
        stage.later(60)
        stage.cluster.delete_pod("alone")
        await stage.settled()
        assert added(before)["complete"] == (1, 5)
        assert added(before)["admitted"] == (1, 65)
        stage.later(10)
        await bound(stage, "g-0", "g-1")
        await stage.settled()
        assert stage.root("g").phase == "scheduled"
        assert added(before)["scheduled"] == (1, 75)
        stage.cluster.delete_pod("g-0")
        await stage.settled()
        assert {count for count, _ in added(before).values()} == {1}


@pytest.mark.parametrize("owner", ["w", "above"])
async def test_the_time_of_a_suspended_workload_is_not_counted(owner):
    """Its group is there before it is resumed; the owner of the group may be what the workload belongs to."""

    def compiled(*, suspended):
        data = TreeCompiled(
            kind="Job", workload="default/job", uid="w", generation=1, table_version=1, profile="", owner_uid="above",
            groups=(GroupSpec(kind="PodGroup", name="g"),), suspended=suspended,
        )  # fmt: skip
        return NewEvent(gang_uid=NIL_GANG, gang="", data=data, actor="test")

    async with Stage(a_node("n", gpu=8)) as stage:
        await stage.lead()
        Watched(stage)
        before = counted()
        await stage.leader.append([compiled(suspended=True)])
        group, *pods = a_gang("g", pods=2)
        stage.cluster.add(group)
        stage.cluster.change_group("g", created_us=stage.clock.us, owner_uid=owner)
        stage.later(1000)
        await stage.leader.append([compiled(suspended=False)])
        stage.later(7)
        stage.cluster.add(*pods)
        stage.cluster.change_group("g", owner_uid=owner)
        await stage.settled()
        assert stage.root("g").phase == "admitted"
        count, seconds = added(before)["admitted"]
        assert count == 1
        assert 7 <= seconds < 1000


async def test_another_leader_counts_only_what_it_appends():
    """What the leader before has appended is loaded, not counted again."""
    async with Stage(a_node("n", gpu=8)) as stage:
        await stage.lead()
        Watched(stage)
        before = counted()
        stage.cluster.add(*a_gang("g", pods=2))
        created(stage, "g")
        await stage.settled()
        assert added(before)["admitted"][0] == 1
        await stage.stop_leading()
        async with Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock, holder="other"
        ) as heir:
            await heir.lead()
            Watched(heir)
            await heir.settled()
            assert added(before)["admitted"][0] == 1
            await bound(heir, "g-0", "g-1")
            await heir.settled()
            assert added(before)["scheduled"][0] == 1


async def test_who_waits_and_for_what_by_namespace_and_state():
    """A gang without capacity and one without its members; pods that have a node are not requested again."""
    async with Stage(a_node("n", gpu=8)) as stage:
        await stage.lead()
        watched = Watched(stage)
        stage.cluster.add(*a_gang("large", pods=3, requests={GPU: 4}))
        stage.cluster.add(*a_gang("partly", pods=1, minimum=3))
        await stage.settled()
        stage.later(100)
        await watched.scraped()
        labels = {"namespace": "default", "state": "unschedulable"}
        assert value("gangs_waiting", **labels) == 1
        assert value("gangs_waiting", namespace="default", state="waiting") == 1
        assert value("gangs_waiting_requests", **labels, resource=GPU) == 12
        assert value("oldest_waiting_gang_seconds", state="unschedulable") == 100
        assert value("oldest_waiting_gang_seconds", state="preempting") == 0
        assert value("capacity", resource=GPU, use="free") == 8
        stage.cluster.add(a_node("m", gpu=8))
        await stage.settled()
        await watched.scraped()
        assert value("gangs_waiting", **labels) is None
        assert value("gangs_waiting", namespace="default", state="admitted") == 1
        assert value("capacity", resource=GPU, use="reserved") == 12
        await bound(stage, "large-0", "large-1", "large-2")
        await stage.settled()
        await watched.scraped()
        assert value("gangs_waiting", namespace="default", state="admitted") is None
        assert value("capacity", resource=GPU, use="bound") == 12


async def test_a_gang_that_is_deleted_leaves_no_series():
    """Those of its namespace and its state are gone with it; what was counted stays."""
    async with Stage(a_node("n", gpu=8)) as stage:
        await stage.lead()
        watched = Watched(stage)
        group, pod = a_gang("large", pods=1, requests={GPU: 9})
        for part in (group, pod):
            part["metadata"]["namespace"] = "team-a"
        stage.cluster.add(group, pod)
        await stage.settled()
        await watched.scraped()
        assert value("gangs_waiting", namespace="team-a", state="unschedulable") == 1
        stage.cluster.delete_pod("team-a/large-0")
        stage.cluster.delete_group("large")
        await stage.settled()
        await watched.scraped()
        left = [
            sample
            for family in METRICS.registry.collect()
            if family.type == "gauge"
            for sample in family.samples
            if {"team-a", "large"} & {*sample.labels.values()}
        ]
        assert left == []
        assert value("oldest_waiting_gang_seconds", state="unschedulable") == 0


async def test_a_replica_that_does_not_lead_has_no_series():
    """Those of before its lease was lost are gone, too."""
    async with Stage(
        *a_fleet("1 racks x 1 nodes"), *a_gang("g", pods=1, requests={GPU: 99})
    ) as stage:
        await stage.lead()
        watched = Watched(stage)
        await stage.settled()
        await watched.scraped()
        assert value("oldest_waiting_gang_seconds", state="unschedulable") is not None
        stage.leader.lose("another leads")
        watched.metrics.set_gauges()
        for gauge in (METRICS.oldest_waiting_gang_seconds, METRICS.gangs_waiting, METRICS.capacity):
            (family,) = gauge.collect()
            assert family.samples == []


async def test_the_number_of_namespaces_is_limited():
    """Those with the most gangs have series of their own, all others one together."""
    async with Stage(a_node("n", gpu=1)) as stage:
        await stage.lead()
        watched = Watched(stage)
        names = [f"ns{number}" for number in range(NAMESPACES_MAX + 4)]
        for namespace in ("other", "other", *names):  # a namespace may have any name
            gang = "g" if namespace != "other" else f"g{len(stage.cluster.view().groups)}"
            group, pod = a_gang(gang, pods=1, requests={GPU: 9})
            for part in (group, pod):
                part["metadata"]["namespace"] = namespace
            stage.cluster.add(group, pod)
        await stage.settled()
        await watched.scraped()
        (family,) = METRICS.gangs_waiting.collect()
        namespaces = {sample.labels["namespace"] for sample in family.samples}
        assert len(namespaces) == NAMESPACES_MAX + 1
        assert value("gangs_waiting", namespace="other", state="unschedulable") == 2
        assert value("gangs_waiting", namespace=OTHERS, state="unschedulable") == 5


def test_the_number_of_priority_classes_is_limited():
    """Further classes share one label."""
    metrics = Metrics()
    for number in range(PRIORITY_CLASSES_MAX + 3):
        metrics.gang_waited("admitted", f"class-{number}", 1)
    classes = {
        sample.labels["priority_class"]
        for sample in next(iter(metrics.gang_wait_seconds.collect())).samples
        if sample.labels["stage"] == "admitted"
    }
    assert len(classes - {NO_CLASS}) == PRIORITY_CLASSES_MAX + 1
    assert OTHERS in classes


async def test_the_disk_is_measured_where_the_database_is_embedded(tmp_path):
    """Its free part also while the database does not answer."""

    async def size():
        return 4711

    async def no_answer():
        raise StoreUnavailable("no answer")

    await DatabaseSize(size, "").look()
    assert value("database_size_bytes") == 4711
    with pytest.raises(StoreUnavailable):
        await DatabaseSize(no_answer, str(tmp_path)).look()
    assert value("database_disk_free_bytes", folder=str(tmp_path)) > 0
