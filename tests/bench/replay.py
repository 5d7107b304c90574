"""`decision replay --all` over a log of admissions and refusals, in decisions per second.

Each decision was planned when the log was written: gangs of 2 to 64 pods of one GPU arrive on a fleet that is more than half full, and
the oldest leave when one does not fit; each tenth is of 8 pods of whole nodes, of which none is free, and is refused. The command is a process, and the log is in a durable PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator

import msgspec

from extender.core.log.events import (
    AnyEventData,
    AssignmentRecord,
    GangAdmitted,
    GangUnschedulable,
    RecordedEvent,
)
from extender.core.model.ids import Epoch, GangUid, PlanId, Position
from extender.core.model.pods import PodShape
from extender.core.planner.codec.request_codec import Encoder
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    PLANNER_VERSION,
    Assignment,
    DecisionInput,
    Plan,
    PlanNode,
    PlanRequest,
)
from extender.core.planner.planning import plan
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from tests.bench.figures import Figure, Scale
from tests.bench.history import START_US
from tests.bench.planner import leaf, make_nodes
from tests.bench.store import server
from tests.support.logs.bulk_log import copy_events, writing_connection
from tests.support.logs.postgres import fresh_database

SIZES = (2, 4, 8, 16, 64)
EVERY_REFUSED = 10
WHOLE_NODES = 8  # pods of a gang that is refused
SMALL, WHOLE = (
    PodShape(requests=(("cpu", 4000), ("memory", 32 << 30), ("nvidia.com/gpu", gpus), ("pods", 1)))
    for gpus in (1, 8)
)
REQUESTS = dict(SMALL.requests)


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure fleets of several sizes."""
    for nodes in (100, 1000, 5000):
        case = f"{nodes} nodes"
        if not scale.wants("replay", case):
            continue
        count = 200 if scale.quick else 2000
        with server() as url, fresh_database(url) as database:
            asyncio.run(fill(database, nodes, count))
            rates = [rate(database, count) for _ in range(scale.rounds)]
        yield [
            Figure(
                bench="replay", what=f"{case}: {count} decisions made again, two processes", unit="decisions/s",
                better="higher", values=tuple(rates), target="167/s: 100,000 in ten minutes",
            )
        ]  # fmt: skip


def rate(database: str, count: int) -> float:
    """Return the rate that the command prints; all decisions must be the same."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "extender", "decision", "replay", "--all", "--processes", "2", "-o", "json",
             "--database-url", database, "--data-dir", folder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    assert msgspec.json.decode(done.stdout)["same"] == count
    took_s = float(done.stderr.split(" s, ")[0].rpartition(" ")[2].rpartition("\n")[2])
    return count / took_s


async def fill(url: str, nodes: int, count: int) -> None:
    """Write so many decisions and their inputs."""
    await schema_migration.upgrade(url)
    engine = ConnectionPool(url, name="bench")
    connection = await writing_connection(url)
    try:
        inputs = PostgresDecisionInputs(engine)
        events = [
            event
            async for event in decisions(inputs, make_nodes(nodes, gpus=lambda i: i % 4), count)
        ]
        await copy_events(connection, events)
        await connection.execute("UPDATE gx.lease SET epoch = 1")
        await connection.execute("VACUUM (ANALYZE)", timeout=600)
    finally:
        await connection.close()
        await engine.close()


async def decisions(
    inputs: PostgresDecisionInputs, nodes: tuple[PlanNode, ...], count: int
) -> AsyncIterator[RecordedEvent]:
    """Yield admissions and refusals; their inputs are stored."""
    chance, encoder, table = random.Random(7), Encoder(), NodeTable(nodes)
    running: deque[tuple[Assignment, ...]] = deque()
    number = 0
    while number < count:
        refused = number % EVERY_REFUSED == EVERY_REFUSED - 1
        pods, shape = (WHOLE_NODES, WHOLE) if refused else (chance.choice(SIZES), SMALL)
        name = f"gang-{number:06}"
        request = PlanRequest(root=leaf(name, pods), nodes=nodes, shapes=(shape,))
        table = table.renewed(nodes)
        verdict = plan(request, node_table=table)
        if not isinstance(verdict, Plan) and not refused:
            nodes = _moved(nodes, running.popleft(), -1)
            continue
        encoded = encoder.encode(request)
        await inputs.save(
            DecisionInput(
                digest=encoded.digest, head=encoded.head, parts=encoded.parts, hashes=encoded.hashes
            )
        )
        number += 1
        data: AnyEventData
        if isinstance(verdict, Plan):
            running.append(verdict.assignments)
            nodes = _moved(nodes, verdict.assignments, 1)
            data = _admitted(name, verdict, encoded.digest)
        else:
            data = GangUnschedulable(
                outcome=verdict.outcome, reasons=verdict.reasons, help=verdict.relaxations, when_empty=verdict.when_empty,
                planner=PLANNER_VERSION, input_digest=encoded.digest,
            )  # fmt: skip
        uid = f"{number:08}-0000-4000-8000-000000000000"
        yield RecordedEvent(
            position=Position(number), event_id=uid, epoch=Epoch(1), at_us=START_US + number * 1_000_000,
            gang_uid=GangUid(uid), stream_version=1, gang=f"ns/{name}", actor="gang-extender-0", cause="", data=data,
        )  # fmt: skip


def _admitted(name: str, verdict: Plan, digest: str) -> GangAdmitted:
    return GangAdmitted(
        plan=PlanId(name), kind="PodGroup", priority=0, groups=(), shapes=(REQUESTS,),
        assignments=tuple(
            AssignmentRecord(pod=a.pod, uid=a.uid, group=a.group.name, node=a.node, shape=a.shape, extra=a.extra)
            for a in verdict.assignments
        ),
        planner=PLANNER_VERSION, input_digest=digest,
    )  # fmt: skip


def _moved(
    nodes: tuple[PlanNode, ...], assignments: tuple[Assignment, ...], sign: int
) -> tuple[PlanNode, ...]:
    """Return the nodes with assignments taken (1) or freed (-1)."""
    free: dict[str, dict[str, int]] = {}
    at = {node.name: node for node in nodes}
    for a in assignments:
        row = free.setdefault(a.node, dict(at[a.node].free))
        for resource, amount in REQUESTS.items():
            row[resource] = row.get(resource, 0) - sign * amount
    return tuple(
        msgspec.structs.replace(node, free=free[node.name]) if node.name in free else node
        for node in nodes
    )
