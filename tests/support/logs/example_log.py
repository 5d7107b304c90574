"""A Tuesday in a small cluster, as events with fixed times: the log behind the answers of deploy/QUESTIONS.md.

Two racks of four nodes with 8 GPUs each. A sweep takes half of one rack and a batch job of priority 0 a node of
the other, so a training of priority 1000 finds no rack with four free nodes. A probe of priority 0, which takes one,
is let in front of it; the batch job has to go for it. Later a node of the sweep is lost. An evaluation waits for its
fourth pod until the end.
"""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import msgspec

from extender.core.log.events import (
    AnyEventData,
    AssignmentRecord,
    CapacityMeasured,
    FreeDomainRecord,
    GangAdmitted,
    GangObserved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    LeaseAcquired,
    MemberTerminated,
    PodBound,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.model.ids import NIL_GANG, NodeName, PlanId, PodUid, Position
from extender.ports.log_ports import LeaseGrant
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import Script

GPU, RACK = "nvidia.com/gpu", "topology.example.com/rack"
SWEEP, TRAIN, EVAL = "research/sweep", "team-a/train", "team-c/eval"
BATCH, PROBE = "team-b/batch", "team-b/probe"
KINDS = {TRAIN: "CompositePodGroup"}
PRIORITIES = {SWEEP: 100, TRAIN: 1000, BATCH: 0, PROBE: 0, EVAL: 100}


def at(clock: str) -> int:
    """Return microseconds since 1970 of a time of that day, HH:MM:SS."""
    moment = datetime.fromisoformat(f"2026-11-17T{clock}").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000


def node(rack: int, number: int) -> NodeName:
    return NodeName(f"r{rack}-n{number}")


def uid(pod: str) -> PodUid:
    return PodUid(f"uid-of-{pod}")


def admitted(root: str, rack: int, first: int, pods: int) -> GangAdmitted:
    """Place pods of 8 GPUs on nodes of a rack, one on each from `first` on."""
    name = root.partition("/")[2]
    nodes = [node(rack, first + n) for n in range(pods)]
    return GangAdmitted(
        plan=PlanId(f"plan-of-{root}"),
        kind=KINDS.get(root, "PodGroup"),
        priority=PRIORITIES[root],
        groups=(GroupRecord(kind="PodGroup", name=name, minimum=pods, members=pods),),
        shapes=({"cpu": 16_000, GPU: 8, "pods": 1},),
        assignments=tuple(
            AssignmentRecord(pod=f"{root}-{n}", uid=uid(f"{root}-{n}"), group=name, node=where)
            for n, where in enumerate(nodes)
        ),
        topology={where: {RACK: f"r{rack}"} for where in nodes},
        planner="story",
    )


def bound(root: str, data: GangAdmitted) -> list[tuple[str, AnyEventData]]:
    """Bind all pods of an admission, and satisfy it."""
    entries: list[AnyEventData] = [
        PodBound(plan=data.plan, pod=a.pod, uid=a.uid, node=a.node, group=a.group)
        for a in data.assignments
    ]
    return [(root, f) for f in (*entries, GangScheduled(plan=data.plan, bound=len(entries)))]


def capacity_measured(*, rack: tuple[str, int, int], one: str, total: int) -> CapacityMeasured:
    """Measure: the best rack (name, free, nodes), the best single node (always 8 free), the total."""
    domain, free, nodes = rack
    return CapacityMeasured(
        as_of=Position(0),  # set when the event gets its position
        largest_free=(
            FreeDomainRecord(resource=GPU, key="", domain=one, free=8, nodes=1, total=total),
            FreeDomainRecord(
                resource=GPU, key=RACK, domain=domain, free=free, nodes=nodes, total=total
            ),
        ),
    )


def observed(root: str, members: int) -> tuple[str, AnyEventData]:
    return root, GangObserved(
        kind=KINDS.get(root, "PodGroup"), priority=PRIORITIES[root], members=members
    )


def refused(root: str, outcome: str, reason: str) -> tuple[str, AnyEventData]:
    return root, GangUnschedulable(outcome=outcome, reasons=(reason,), planner="story")


def tuesday(grant: LeaseGrant) -> list[RecordedEvent]:
    """Return the events of the day, in the empty log of a grant."""
    sweep, train = admitted(SWEEP, 1, 1, 2), admitted(TRAIN, 2, 1, 4)
    batch, probe = admitted(BATCH, 2, 1, 1), admitted(PROBE, 1, 3, 1)
    gone = VictimPod(pod=f"{BATCH}-0", uid=uid(f"{BATCH}-0"), node=node(2, 1), group="batch")
    unit = VictimUnit(kind="PodGroup", path=BATCH, uid="uid-of-batch", priority=0, pods=(gone,))
    plan = PreemptionPlanned(
        preemption=PlanId("preemption-of-train"), kind="CompositePodGroup", priority=1000,
        victims=(unit,), cost={"pods": 1}, alternatives=(), shapes=train.shapes,
        assignments=train.assignments, planner="story",
    )  # fmt: skip
    evicted = VictimGone(
        preemption=plan.preemption, unit=unit.name, pod=gone.pod, uid=gone.uid, node=gone.node,
        via="deleted", requested_us=at("08:30:01"), gone_us=at("08:30:31"),
    )  # fmt: skip
    no_rack = f"CompositePodGroup {TRAIN} needs 4 nodes with 8 {GPU} in one rack, 3 are free"
    day: list[tuple[str, list[tuple[str, AnyEventData]]]] = [
        ("00:00:00", [("", LeaseAcquired(holder="gang-extender-0", address="http://10.0.0.7:8888"))]),
        ("08:00:00", [("", capacity_measured(rack=("r1", 32, 4), one="r1-n1", total=64))]),
        ("08:05:00", [observed(SWEEP, 2), (SWEEP, sweep)]),
        ("08:05:20", bound(SWEEP, sweep)),
        ("08:06:00", [("", capacity_measured(rack=("r2", 32, 4), one="r1-n3", total=48))]),
        ("08:09:00", [observed(BATCH, 1), (BATCH, batch)]),
        ("08:09:10", [*bound(BATCH, batch), ("", capacity_measured(rack=("r2", 24, 3), one="r1-n3", total=40))]),
        ("08:10:00", [observed(TRAIN, 4), refused(TRAIN, "waiting", "PodGroup team-a/train needs 4 pods, 3 present")]),
        ("08:12:00", [refused(TRAIN, "impossible", no_rack)]),
        ("08:20:00", [observed(EVAL, 3), refused(EVAL, "waiting", "PodGroup team-c/eval needs 4 pods, 3 present")]),
        ("08:25:00", [observed(PROBE, 1), (PROBE, probe)]),
        ("08:25:05", [*bound(PROBE, probe), ("", capacity_measured(rack=("r2", 24, 3), one="r1-n4", total=32))]),
        ("08:30:00", [(TRAIN, plan)]),
        ("08:30:02", [(BATCH, MemberTerminated(pod=gone.pod, uid=gone.uid, node=gone.node, cause="preempted"))]),
        ("08:30:31", [(TRAIN, evicted), (TRAIN, train)]),
        ("08:32:00", [*bound(TRAIN, train), (TRAIN, PreemptionCompleted(preemption=plan.preemption, bound=4, evicted=1, duration_ms=120_000))]),
        ("08:33:00", [("", capacity_measured(rack=("r1", 8, 1), one="r1-n4", total=8))]),
        ("09:15:00", [(SWEEP, MemberTerminated(pod=f"{SWEEP}-1", uid=uid(f"{SWEEP}-1"), node=node(1, 2), cause="node-lost"))]),
    ]  # fmt: skip
    script = Script(grant)
    events = []
    for clock, entries in day:
        for root, data in entries:
            stored = data
            if isinstance(data, CapacityMeasured):
                stored = msgspec.structs.replace(data, as_of=Position(script.position))
            stream = f"uid-of-{root}" if root else NIL_GANG
            events.append(script.next(stored, gang=root, uid=stream, at_us=at(clock)))
    return events


async def write_tuesday(url: str) -> list[RecordedEvent]:
    """Append the day to the empty log of a migrated database, and project it."""
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="gang-extender-0", address="", ttl_ms=60_000)
        events = tuesday(grant)
        await log.append(grant, events)
    connection = await asyncpg.connect(url)
    try:
        end = await connection.fetchval("SELECT gx.project($1, 1000)", len(events))
        assert end == len(events)
    finally:
        await connection.close()
    return events
