"""Random mishaps over a whole life: whatever the order, nothing is bound unplanned and no capacity is used twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter

import pytest

from extender.core.log.events import GangAdmitted, GangExtended, PodBound
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import (
    ClusterUnavailable,
    NotLeading,
    RequestRejected,
    StoreUnavailable,
)
from extender.telemetry import METRICS
from tests.support.service.fakes import GATED, Stage, check_state
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.support.waiting import eventually

STEPS = 40


class ChangedAtEachAwait:
    """A coroutine at each await of which something else is done, before what it waits for."""

    def __init__(self, work, change):
        self.work = work
        self.change = change

    def __await__(self):
        steps = self.work.__await__()
        go_on = functools.partial(steps.send, None)
        while True:
            try:
                awaited = go_on()
            except StopIteration as end:
                return end.value
            self.change()
            try:
                yield awaited
            except BaseException as error:
                go_on = functools.partial(steps.throw, error)
            else:
                go_on = functools.partial(steps.send, None)


def object_faults():
    """Return how many exceptions were raised in the work for one object, in all parts."""
    (family,) = METRICS.object_faults.collect()
    return sum(s.value for s in family.samples if s.name.endswith("_total"))


class Life:
    """A cluster with a service on it that is killed now and then."""

    def __init__(self, seed, *, changes_in_passes=False):
        self.chance = random.Random(seed)
        self.changes_in_passes = changes_in_passes
        self.changes = 0
        self.stage = Stage(*(a_node(f"n{n}", gpu=4) for n in range(3)))
        self.gangs = 0

    async def begin(self):
        await self.stage.lead()
        self.stage.start(self.stage.parts.nominator.run())

    async def look(self):
        work = self.stage.one_pass()
        with contextlib.suppress(NotLeading, StoreUnavailable):
            await (ChangedAtEachAwait(work, self.change) if self.changes_in_passes else work)
        await eventually(self.stage.leader.may_record, "leading")

    async def kill(self):
        old = self.stage
        await old.killed()
        self.stage = Stage(database=old.database, cluster=old.cluster, clock=old.clock)
        self.stage.cluster.fault = lambda verb, name: None
        await self.begin()

    async def end(self):
        await self.stage.__aexit__()

    def call_bind(self):
        """Let kube-scheduler bring every member that is let go to bind."""
        for held in list(self.stage.leader.committed.reservations_on.values()):
            for r in held.values():
                pod = self.stage.cluster.seen.pods.get(r.uid)
                if (
                    pod is not None
                    and not pod.gates
                    and pod.node is None
                    and self.chance.random() < 0.8
                ):
                    self.stage.bind(pod.path, r.node)

    def add_gang(self):
        """Create a gang of up to five pods; of some, the reporter has something to warn about."""
        self.gangs += 1
        size = self.chance.randint(1, 5)
        topology = {"topo": "example.com/nowhere"} if self.chance.random() < 0.3 else {}
        objects = a_gang(f"g{self.gangs}", pods=size, minimum=self.chance.randint(1, size),
                         requests={GPU: self.chance.randint(1, 2)}, schedulingGates=GATED, **topology)  # fmt: skip
        self.stage.cluster.add(*objects)

    def change(self):
        """Change the view: mostly a node, now and then a group or a pod comes or goes."""
        cluster, chance = self.stage.cluster, self.chance
        self.changes += 1
        pods = sorted(pod.path for pod in cluster.seen.pods.values())
        groups = sorted(group.key.name for group in cluster.seen.groups.values())
        what = chance.choices(["node", "group", "pod", "gang"], [10, 2, 1, 1])[0]
        if what == "group" and groups:
            cluster.delete_group(chance.choice(groups))
        elif what == "pod" and pods:
            cluster.delete_pod(chance.choice(pods))
        elif what == "gang" and len(groups) < 8:
            self.add_gang()
        else:
            cluster.change_node(f"n{chance.randrange(3)}", labels={"change": str(self.changes)})

    async def step(self):
        stage, chance = self.stage, self.chance
        what = chance.choice(["gang", "gang", "bind", "bind", "bind", "pod", "group", "kill", "answer",
                              "append", "busy", "refuse", "time"])  # fmt: skip
        pods = sorted(pod.path for pod in stage.cluster.seen.pods.values())
        groups = sorted(group.key.name for group in stage.cluster.seen.groups.values())
        if what == "gang":
            self.add_gang()
        elif what == "bind":
            self.call_bind()
        elif what == "pod" and pods:
            stage.cluster.delete_pod(chance.choice(pods))
        elif what == "group" and groups:
            stage.cluster.delete_group(chance.choice(groups))
        elif what == "kill":
            await self.kill()
        elif what == "answer":
            stage.log.lose_next_answer()
        elif what == "append":
            stage.log.lose_next_append()
        elif what in ("busy", "refuse"):
            fault = ClusterUnavailable("503") if what == "busy" else RequestRejected("409")
            faults = [fault] * 2
            stage.cluster.fault = lambda verb, name: (
                faults.pop() if faults and verb == "bind" else None
            )
        elif what == "time":
            stage.clock.advance(chance.choice([1, 400]))
            stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await self.look()
        for _ in range(10):
            await asyncio.sleep(0)
        self.check()

    def check(self):
        stage = self.stage
        check_state(stage.leader.committed)
        promised = {
            (a.uid, entry.plan): a.node
            for entry in stage.event_data(GangAdmitted, GangExtended) for a in entry.assignments
        }  # fmt: skip
        for binding in stage.cluster.bindings:
            assert promised[binding.pod.uid, binding.plan] == binding.node, (
                "bound outside an admission"
            )
        used = Counter()
        for pod in stage.cluster.seen.pods.values():
            if pod.node is not None:
                used[pod.node] += dict(pod.shape.requests)[GPU]
        for node, held in stage.leader.committed.reservations_on.items():
            for r in held.values():
                pod = stage.cluster.seen.pods.get(r.uid)
                if pod is not None and pod.node is None:
                    used[node] += r.requests[GPU]
        assert all(amount <= 4 for amount in used.values()), used


@pytest.mark.parametrize("changes", [False, True], ids=["between passes", "at each await"])
@pytest.mark.parametrize("seed", range(12))
async def test_no_order_of_mishaps_breaks_a_promise(seed, changes, monkeypatch):
    """Gangs, deletions, kills, lost appends and refusals in random order: capacity is used once, binds follow admissions, the log is the state.

    With `changes` the cluster also changes at each await of each pass, and each pass yields wherever it may.
    """
    if changes:
        monkeypatch.setattr("extender.runtime.cooperative_yield.SLICE_MS", 0)
    life, faults = Life(seed, changes_in_passes=changes), object_faults()
    await life.begin()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(life.end)
        for _ in range(STEPS):
            await life.step()
        stage = life.stage
        await eventually(
            lambda: (
                not stage.leader.in_flight
                and stage.leader.committed.position == len(stage.events())
            ),
            "appends on their way",
        )
        assert stage.leader.committed == fold(EMPTY, stage.events())
        once = Counter(
            (event.gang_uid, event.data.uid)
            for event in stage.events()
            if isinstance(event.data, PodBound)
        )
        assert set(once.values()) <= {1}
        assert bool(life.changes) is changes
        assert object_faults() == faults, "exceptions in the work for one object"
