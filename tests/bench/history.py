"""A log as a busy cluster leaves it: thousands of roots over their whole life, written into a database at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from uuid import UUID

from extender.core.log.events import (
    AnyEventData,
    AssignmentRecord,
    BindBarrierTimedOut,
    CapacityMeasured,
    FreeDomainRecord,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    LeaseAcquired,
    MemberTerminated,
    NodeRejected,
    PodBound,
    RecordedEvent,
    ReleasedPod,
    ReservationReleased,
)
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.store.connections import ConnectionPool
from extender.store.log.event_codec import EMPTY_CHAIN
from extender.store.projections import PostgresReadModels
from tests.support.logs.bulk_log import copy_events, writing_connection

CHUNK = 10_000
LIVING = 2000  # roots at any time
NODES = 5000
START_US = 1_790_000_000_000_000


def uuid_of(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def event_id_of(chance: random.Random, at_us: int) -> str:
    """Return a UUID of version 7, as the service's clock makes them."""
    return str(UUID(int=at_us // 1000 << 80 | 0x7 << 76 | 0x2 << 62 | chance.getrandbits(62)))


def node_of(number: int) -> tuple[NodeName, dict[str, str]]:
    rack = number // 50
    name = f"node-{number:05}.cluster.internal"
    zone, key = f"zone-{rack // 20}", "topology.kubernetes.io"
    return NodeName(name), {f"{key}/zone": zone, f"{key}/rack": f"rack-{rack:03}"}


def admission(
    chance: random.Random, name: str, *, pods: int = 4, plan: str = "", uid: str = ""
) -> GangAdmitted:
    """Admit a composite of two leaves to one rack."""
    rack = chance.randrange(NODES // 50)
    nodes = [node_of(rack * 50 + chance.randrange(50)) for _ in range(pods)]
    domain = dict(nodes[0][1])
    leaves = (f"{name}-prefill", f"{name}-decode")
    return GangAdmitted(
        plan=PlanId(plan or uuid_of(chance)),
        kind="CompositePodGroup",
        priority=100,
        groups=(
            GroupRecord(
                kind="CompositePodGroup", name=name, minimum=2, domain=domain, members=pods,
                uid=uid or uuid_of(chance),
            ),
            *(
                GroupRecord(
                    kind="PodGroup", name=leaf, parent=name, minimum=pods // 2, domain=domain,
                    members=pods // 2, uid=uuid_of(chance),
                )
                for leaf in leaves
            ),
        ),
        shapes=(
            {"cpu": 4000, "memory": 32 << 30, "nvidia.com/gpu": 1, "pods": 1},
            {"cpu": 8000, "memory": 16 << 30, "nvidia.com/gpu": 2, "pods": 1},
        ),
        assignments=tuple(
            AssignmentRecord(
                pod=f"serve/{leaves[i % 2]}-{i}", uid=PodUid(uuid_of(chance)),
                group=leaves[i % 2], node=nodes[i][0], shape=i % 2,
            )
            for i in range(pods)
        ),
        topology=dict(nodes),
        planner="bench",
        input_digest=f"{chance.getrandbits(256):064x}",
        search_nodes=12,
        exhausted=True,
    )  # fmt: skip


def life(chance: random.Random, name: str) -> Iterator[AnyEventData]:
    """Yield the events of one root from its first to its last."""
    yield GangObserved(kind="CompositePodGroup", priority=100, groups=3, members=4)
    for why in ("waiting", "impossible"):
        if chance.random() < 0.4:
            yield GangUnschedulable(
                outcome=why,
                reasons=(f"CompositePodGroup serve/{name} needs 4 pods in one rack, 2 fit",),
                planner="bench",
                input_digest=f"{chance.getrandbits(256):064x}",
                search_nodes=7,
            )
    event = admission(chance, name)
    yield event
    if chance.random() < 0.1:  # a node is rejected and the whole tree placed again
        first = event.assignments[0]
        if chance.random() < 0.5:
            yield NodeRejected(
                pod=first.pod, uid=first.uid, node=first.node, by_shape=True, until_ms=1 << 41
            )
        else:
            names = tuple(record.pod for record in event.assignments)
            yield BindBarrierTimedOut(
                plan=event.plan, waited_ms=20_000, arrived=names[1:], missing=names[:1]
            )
        pods = tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in event.assignments)
        yield ReservationReleased(plan=event.plan, reason="node-rejected", pods=pods)
        event = admission(chance, name)
        yield event
    for record in event.assignments:
        yield PodBound(
            plan=event.plan, pod=record.pod, uid=record.uid, node=record.node, group=record.group
        )
    yield GangScheduled(plan=event.plan, bound=len(event.assignments))
    for record in event.assignments:
        if chance.random() < 0.25:
            yield MemberTerminated(
                pod=record.pod, uid=record.uid, node=record.node, cause="unknown"
            )
    yield GangRemoved(reason="deleted")


def measured_capacity(chance: random.Random, known: int) -> CapacityMeasured:
    """Measure the capacity on some node and in its domains."""
    name, labels = node_of(chance.randrange(NODES))
    places = {"": name, **labels}
    return CapacityMeasured(
        as_of=Position(known),
        largest_free=tuple(
            FreeDomainRecord(
                resource="nvidia.com/gpu", key=key, domain=domain, free=chance.randrange(400),
                nodes=1 + chance.randrange(50), total=8 * NODES,
            )
            for key, domain in places.items()
        ),
    )  # fmt: skip


def history(
    *, seed: int = 7, epoch: int = 1, pace_us: int = 1000, measured_every: int = 0
) -> Iterator[RecordedEvent]:
    """Yield events without end, the lives of `LIVING` roots interleaved; valid wherever it is cut.

    Args:
        seed: Same seed, same events.
        epoch: Of all of them.
        pace_us: Microseconds from one to the next on average.
        measured_every: Every so many events the capacity is measured; 0: never.
    """
    chance = random.Random(seed)
    number = position = 0
    at_us = START_US
    lives: list[tuple[GangUid, str, Iterator[AnyEventData], int]] = []
    while True:
        while len(lives) < LIVING:
            name = f"model-{number:07}"
            lives.append((GangUid(uuid_of(chance)), f"serve/{name}", life(chance, name), 0))
            number += 1
        if position == 0:
            gang_uid, root, version = NIL_GANG, "", 1
            event: AnyEventData = LeaseAcquired(holder="bench-0", address="10.0.0.1:8888")
        elif measured_every and position % measured_every == 0:
            gang_uid, root, version = NIL_GANG, "", 1 + position // measured_every
            event = measured_capacity(chance, position)
        else:
            at = chance.randrange(LIVING)
            gang_uid, root, entries, version = lives[at]
            version += 1
            event = next(entries)
            lives[at] = (gang_uid, root, entries, version)
            if isinstance(event, GangRemoved):
                lives[at] = lives[-1]
                lives.pop()
        position += 1
        at_us += chance.randrange(2 * pace_us)
        yield RecordedEvent(
            position=Position(position), event_id=event_id_of(chance, at_us), epoch=Epoch(epoch), at_us=at_us,
            gang_uid=gang_uid, stream_version=version, gang=root, actor="gang-extender-0",
            cause="filter of pod serve/x" if position % 3 else "", data=event,
        )  # fmt: skip


async def write_history(url: str, count: int, **paced: int) -> int:
    """Fill an empty log with `count` events of `history`, chained, past the fence (there is no other writer yet).

    Returns:
        Bytes of all payloads.
    """
    connection = await writing_connection(url)
    size, previous = 0, EMPTY_CHAIN
    try:
        events = islice(history(**paced), count)
        while chunk := list(islice(events, CHUNK)):
            previous, bytes_ = await copy_events(connection, chunk, previous)
            size += bytes_
        await connection.execute("UPDATE gx.lease SET epoch = 1")
        await connection.execute("VACUUM (ANALYZE) gx.event", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
    finally:
        await connection.close()
    return size


async def note_names(url: str) -> None:
    """Index what the events of a log name, as the service does behind its appends."""
    engine = ConnectionPool(url, name="bench")
    while await PostgresReadModels(engine).index(1000):
        pass
    await engine.close()
