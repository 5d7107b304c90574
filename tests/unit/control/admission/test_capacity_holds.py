"""A tree that waits for long gets capacity held as it frees, against an endless stream of smaller gangs."""

from __future__ import annotations

from extender.core.holds.hold_planning import HELD
from extender.core.log.events import CapacityHeld, CapacityHoldReleased
from extender.core.model.ids import NodeName
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

AFTER_S = 600
LEASE_MS = 3_600_000_000
NODES = 4
OTHERS = "others"
WHOLE = {"hold_capacity_max_percent": 100}  # the large gang needs all of the cluster


def bind(stage, name):
    """Bind the members of an admitted gang, as kube-scheduler does."""
    for pod, node in stage.where(name).items():
        path = f"{name.rpartition('/')[0] or 'default'}/{pod}"
        stage.cluster.change_pod(path, node=NodeName(node), phase="Running")


def held_for(stage, name):
    """Return the capacity hold of a gang, or None."""
    return stage.leader.committed.capacity_holds.get(stage.root(name).uid)


async def held(**settings):
    """The crowded cluster, with capacity held for the large gang."""
    stage, stream = await crowded(**settings)
    stage.clock.advance(AFTER_S)
    await stage.settled()
    assert held_for(stage, "large") is not None
    return stage, stream


def ended(stage):
    """Return why holds of the large gang have ended."""
    return [
        event.data.reason
        for event in stage.events()
        if isinstance(event.data, CapacityHoldReleased) and event.gang == "default/large"
    ]


def a_small_gang(name):
    """Return a gang of one pod in the other namespace."""
    return [
        a_group(name, gang=1, namespace=OTHERS),
        a_pod(f"{name}-0", name, namespace=OTHERS, requests={GPU: 1}),
    ]


class Stream:
    """Small gangs of one pod that keep a cluster full: whenever one ends, another one waits already."""

    def __init__(self, stage):
        self.stage = stage
        self.made = 0
        self.running = []
        self.waiting = []

    async def fill(self):
        while len(self.waiting) < 2:
            name = f"small-{self.made}"
            self.made += 1
            self.stage.cluster.add(*a_small_gang(name))
            self.waiting.append(f"{OTHERS}/{name}")
        await self.stage.settled()
        for name in list(self.waiting):
            if self.stage.root(name).phase == "admitted":
                bind(self.stage, name)
                self.waiting.remove(name)
                self.running.append(name)

    def delete(self, name):
        self.stage.cluster.delete_pod(f"{name}-0")
        self.stage.cluster.delete_group(name.rpartition("/")[2])

    async def one_ends(self):
        self.delete(self.running.pop(0))
        await self.stage.settled()


async def crowded(after_s=AFTER_S, **settings):
    """A full cluster of single GPUs, a stream of small gangs, and one gang that needs all of it."""
    stage = Stage(
        *(a_node(f"n{i}", gpu=1) for i in range(NODES)), ttl_ms=LEASE_MS, preemption=False,
        hold_capacity_after_s=after_s, **{**WHOLE, **settings},
    )  # fmt: skip
    await stage.lead()
    stream = Stream(stage)
    for _ in range(NODES):
        await stream.fill()
    stage.cluster.add(*a_gang("large", pods=NODES))
    await stream.fill()
    assert stage.root("large").phase == "unschedulable"
    return stage, stream


async def test_a_large_gang_is_admitted_at_last():
    """What the small gangs free is held for it, and the hold ends with its admission."""
    stage, stream = await held()
    (recorded,) = stage.event_data(CapacityHeld)
    assert sorted(a.node for a in recorded.assignments) == [f"n{i}" for i in range(NODES)]
    for _ in range(NODES):
        assert stage.root("large").phase == "unschedulable"
        await stream.one_ends()
        await stream.fill()
    assert stage.root("large").phase == "admitted"
    assert held_for(stage, "large") is None
    assert ended(stage) == ["admitted"]
    await stage.killed()


async def test_without_holds_it_starves():
    """The control: the same stream with holds off."""
    stage, stream = await crowded(after_s=0)
    stage.clock.advance(AFTER_S)
    for _ in range(3 * NODES):
        await stream.one_ends()
        await stream.fill()
    assert stage.root("large").phase == "unschedulable"
    assert stage.event_data(CapacityHeld) == []
    await stage.killed()


async def test_a_new_leader_holds_the_same_capacity():
    """After a kill -9 the hold is as it was, and small gangs stay refused."""
    stage, stream = await held()
    before = held_for(stage, "large")
    await stage.killed()
    again = stream.stage = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock, preemption=False,
        hold_capacity_after_s=AFTER_S, ttl_ms=LEASE_MS, **WHOLE,
    )  # fmt: skip
    await again.lead()
    await again.settled()
    assert held_for(again, "large") == before
    await stream.one_ends()
    await stream.fill()
    assert all(again.root(name).phase == "unschedulable" for name in stream.waiting)
    assert len(again.event_data(CapacityHeld)) == 1
    await again.killed()


async def test_refused_gangs_learn_that_capacity_is_held_and_get_it_when_the_hold_ends():
    """Their recorded reason has it without names; the end of the hold wakes them."""
    stage, stream = await held()
    await stream.one_ends()
    await stream.fill()
    refused = [stage.root(name) for name in stream.waiting]
    assert any(HELD in root.last_decision.reasons for root in refused)
    stage.cluster.delete_group("large")
    for i in range(NODES):
        stage.cluster.delete_pod(f"large-{i}")
    await stage.settled()
    assert [stage.root(root.gang).phase for root in refused].count("admitted") == 1
    assert ended(stage) == ["deleted"]
    await stage.killed()


async def test_a_higher_priority_may_take_it_and_ordinary_pods_of_the_same_may_not():
    """For filter a hold is like a reservation of its priority."""
    stage, stream = await held()
    node = NodeName(stage.cluster.pod(f"{stream.running[0]}-0").node)
    await stream.one_ends()
    stage.cluster.add(
        a_pod("alone", requests={GPU: 1}), a_pod("above", requests={GPU: 1}, priority=9)
    )
    alone, above = stage.cluster.pod("alone"), stage.cluster.pod("above")
    assert stage.extender_service.filter(alone, [node]).refused == (node,)
    assert stage.extender_service.filter(above, [node]).passed == (node,)
    stage.cluster.add(
        a_group("urgent", gang=1, priority=9),
        a_pod("urgent-0", "urgent", requests={GPU: 1}, priority=9),
    )
    await stage.settled()
    assert stage.root("urgent").phase == "admitted"
    assert ended(stage) == ["superseded"]
    await stage.killed()


async def test_a_hold_ends_in_time_and_the_next_one_waits_as_long():
    """The first delay of a namespace is as long as the hold that was not used."""
    stage, _ = await held(hold_capacity_for_s=1000)
    stage.clock.advance(1000)
    await stage.settled()
    assert ended(stage) == ["expired"]
    assert held_for(stage, "large") is None
    stage.clock.advance(990)
    await stage.settled()
    assert held_for(stage, "large") is None
    for _ in range(3):  # the small gangs that wait have their turn first, and get none
        stage.clock.advance(10)
        await stage.settled()
    assert held_for(stage, "large") is not None
    await stage.killed()


async def test_a_cordoned_node_or_a_lost_member_ends_it():
    """A place that cannot be had any more is not held, and neither is capacity for another tree than was planned."""
    stage, stream = await crowded()
    for name in stream.waiting:
        stream.delete(name)
    stage.clock.advance(AFTER_S)
    await stage.settled()
    stage.cluster.change_node("n0", unschedulable=True)
    await stage.settled()
    assert ended(stage) == ["node-lost"]
    assert held_for(stage, "large") is None
    stage.cluster.change_node("n0", unschedulable=False)
    stage.clock.advance(60)
    await stage.settled()
    assert held_for(stage, "large") is not None
    stage.cluster.delete_pod("large-0")
    await stage.settled()
    assert ended(stage) == ["node-lost", "changed"]
    await stage.killed()


async def test_no_capacity_is_held_for_a_tree_that_never_fits():
    """Neither one that is larger than the cluster, nor one that would need nodes whose pods stay."""
    stage, _ = await crowded()
    stage.cluster.add(*a_gang("giant", pods=NODES + 1))
    await stage.settled()
    stage.clock.advance(AFTER_S)
    await stage.settled()
    assert held_for(stage, "giant") is None
    assert held_for(stage, "large") is not None
    await stage.killed()


async def test_its_condition_has_how_much_of_it_would_fit():
    """The group of the large gang shows it; that of a gang that is not recorded yet shows that it waits for its turn."""
    stage, stream = await held(max_new_gangs_per_minute=NODES + 4)
    await stream.one_ends()
    await stream.fill()
    names = [f"late-{i}" for i in range(NODES + 6)]
    for name in names:
        stage.cluster.add(*a_gang(name, pods=1))
    await stage.settled()
    last = next(name for name in names if stage.root(name) is None)
    stage.start(stage.reporter.run())
    stage.conditions_due()
    texts = {
        "large": f"capacity is held for it on {NODES} nodes as it frees: 1 of {NODES} pods would fit now",
        last: "waits for its turn: its namespace has more than 8 new gangs per minute",
    }

    def shown(name):
        group = stage.cluster.group(name)
        return any(texts[name] in condition[3] for condition in group.conditions)

    for name in texts:
        await eventually(lambda name=name: shown(name), f"the condition of {name}")
    await stage.killed()
