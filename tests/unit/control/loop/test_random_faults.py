"""Random mishaps over a whole life: whatever the order, nothing is bound unplanned and no capacity is used twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from typing import ClassVar

import msgspec
import pytest

from extender.control.actuators.finalizer_controller import FinalizerController
from extender.control.trees.tree_controller import TreeController
from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    MemberTerminated,
    PodBound,
)
from extender.core.log.reservation_state import EMPTY, claims_of_kind
from extender.core.log.state_projector import fold
from extender.core.model.cluster_view import without_pdb
from extender.core.model.errors import (
    BadInput,
    ClusterUnavailable,
    NotLeading,
    QueryUnavailable,
    RequestRejected,
    StoreUnavailable,
)
from extender.core.model.pods import PodEnd
from extender.queries.plan.moves_query import MovesInput, planned_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from extender.telemetry import METRICS
from tests.support.hypothesis_profile import daily
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import GATED, Stage, check_state
from tests.support.service.manifest_builders import GPU, a_budget, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.trees.test_tree_controller import a_jobset

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

    settings: ClassVar[dict[str, int]] = {}
    pod_metadata: ClassVar[dict[str, list[dict[str, object]]]] = {}
    nodes = 3

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.changes = Counter()
        nodes = (a_node(f"n{n}", gpu=4) for n in range(self.nodes))
        self.stage = Stage(*nodes, **self.settings)
        self.gangs = 0
        self.sizes = {}  # of a gang: how many pods, and GPUs of each

    async def begin(self):
        await self.stage.lead()
        self.stage.start(self.stage.parts.nominator.run())

    async def look(self):
        await self.do(self.stage.one_pass())

    async def do(self, work):
        with contextlib.suppress(NotLeading, StoreUnavailable):
            await work
        await eventually(self.stage.leader.may_record, "leading")

    async def kill(self):
        old = self.stage
        await old.killed()
        self.stage = Stage(
            database=old.database, cluster=old.cluster, clock=old.clock, **self.settings
        )
        self.stage.cluster.fault = lambda verb, name: None
        await self.begin()

    async def end(self):
        await self.stage.__aexit__()

    def call_bind(self):
        """Let kube-scheduler bring every member that is let go to bind."""
        for r in sorted(
            claims_of_kind(self.stage.leader.committed, "reservation"), key=lambda r: r.pod
        ):
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
        self.sizes[f"g{self.gangs}"] = (size, gpus := self.chance.randint(1, 2))
        objects = a_gang(f"g{self.gangs}", pods=size, minimum=self.chance.randint(1, size), metadata=self.pod_metadata,
                         requests={GPU: gpus}, schedulingGates=GATED, **topology)  # fmt: skip
        self.stage.cluster.add(*objects)

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
        for r in claims_of_kind(stage.leader.committed, "reservation"):
            pod = stage.cluster.seen.pods.get(r.uid)
            if pod is not None and pod.node is None:
                used[r.node] += r.requests[GPU]
        assert all(amount <= 4 for amount in used.values()), used


class ChangingLife(Life):
    """The same with all that writes and looks: preemption, capacity holds, status, finalizers and the trees of workloads.

    The cluster changes at each await of a pass, of the look at workloads, and of each search: a node, a root, a leaf, a pod, a budget
    or a workload comes, changes or goes.
    """

    settings: ClassVar[dict[str, int]] = {"hold_capacity_after_s": 1}

    def __init__(self, seed):
        super().__init__(seed)
        self.workloads = None
        self.stage.cluster.obeys = True  # victims go at once
        self.kinds = {
            self.change_node: 8, self.lose_node: 1, self.add_gang: 1, self.add_tree: 1, self.change_group: 1,
            self.delete_group: 2, self.delete_pod: 1, self.end_pod: 1, self.change_budget: 1, self.change_workload: 2,
        }  # fmt: skip

    async def begin(self):
        await super().begin()
        stage = self.stage
        if self.workloads is None:
            self.workloads = FakeWorkloads(stage.cluster)
        parts = stage.parts
        self.trees = TreeController(
            stage.cluster, self.workloads, stage.leader, stage.inputs, stage.settings
        )
        finalizers = FinalizerController(stage.cluster, stage.leader, stage.clock)
        for one in (
            parts.evictor,
            parts.gate_remover,
            stage.reporter,
            self.trees.groups,
            self.trees.notifier,
            finalizers,
        ):
            stage.start(one.run())

    async def look(self):
        if self.trees._may_record():
            await self.do(ChangedAtEachAwait(self.trees.look(), self.change))
        await self.do(ChangedAtEachAwait(self.stage.one_pass(), self.change))
        self.stage.conditions_due()

    def change(self):
        """Change something of the cluster."""
        (kind,) = self.chance.choices(list(self.kinds), list(self.kinds.values()))
        self.changes[kind.__name__] += 1
        kind()

    def some(self, names):
        """Return one of some names; None where there is none."""
        return self.chance.choice(sorted(names)) if names else None

    def change_node(self):
        if (name := self.some(self.stage.cluster.seen.nodes)) is not None:
            self.stage.cluster.change_node(name, labels={"change": str(self.changes.total())})

    def lose_node(self):
        """Let a node go, or one that has gone come again."""
        cluster = self.stage.cluster
        gone = [f"n{n}" for n in range(3) if f"n{n}" not in cluster.seen.nodes]
        if gone:
            cluster.objects = [
                one for one in cluster.objects if one["metadata"]["name"] not in gone
            ]
            cluster.add(*(a_node(name, gpu=4) for name in gone))
        else:
            cluster.delete_node(f"n{self.chance.randrange(3)}")

    def add_gang(self):
        if len(self.stage.cluster.seen.groups) < 10:
            super().add_gang()
            name = f"g{self.gangs}"
            priority = self.chance.choice([0, 0, 10])
            self.stage.cluster.change_group(name, priority=priority)
            for pod in list(self.stage.cluster.seen.pods.values()):
                if pod.name.startswith(f"{name}-"):
                    self.stage.cluster.change_pod(pod.path, priority=priority)

    def add_tree(self):
        """Create a root of two leaves, pods of one of them later."""
        if len(self.stage.cluster.seen.groups) < 10:
            self.gangs += 1
            root = f"t{self.gangs}"
            leaves = []
            for number in range(2):
                leaf, *pods = a_gang(
                    f"{root}-{number}", pods=2, requests={GPU: 1}, schedulingGates=GATED
                )
                leaf["spec"] |= a_group("any", gang=2, parent=root)["spec"]
                leaves += [leaf, *pods]
            self.stage.cluster.add(a_group(root, composite=True, gang=2), *leaves)

    def change_group(self):
        names = [key.name for key in self.stage.cluster.seen.groups if key.kind == "PodGroup"]
        if (name := self.some(names)) is not None:
            self.stage.cluster.change_group(name, minimum=self.chance.randint(1, 3))

    def delete_group(self):
        if (name := self.some([key.name for key in self.stage.cluster.seen.groups])) is not None:
            self.stage.cluster.delete_group(name)

    def delete_pod(self):
        if (
            path := self.some([pod.path for pod in self.stage.cluster.seen.pods.values()])
        ) is not None:
            self.stage.cluster.delete_pod(path)

    def end_pod(self):
        if (
            path := self.some([pod.path for pod in self.stage.cluster.seen.pods.values()])
        ) is not None:
            self.stage.cluster.end_pod(path, PodEnd("rejected-by-kubelet", "OutOfcpu"))

    def change_budget(self):
        cluster = self.stage.cluster
        if cluster.seen.budgets:
            cluster.seen = without_pdb(cluster.seen, *next(iter(cluster.seen.budgets)))
            cluster.objects = [
                one for one in cluster.objects if one["kind"] != "PodDisruptionBudget"
            ]
            cluster._notify()
        else:
            cluster.add(a_budget("budget", {}, allowed=self.chance.choice([0, 1, None])))

    def change_workload(self):
        """Create, change or delete a JobSet."""
        number = self.chance.randrange(2)
        jobset = a_jobset(f"w{number}", f"w{number}-0123456789", workers=self.chance.randint(1, 2))
        there = jobset["metadata"]["uid"] in self.workloads.view().objects
        if there and self.chance.random() < 0.3:
            self.workloads.remove(jobset)
        else:
            self.workloads.put(jobset)


class MovingLife(ChangingLife):
    """The same with free nodes for moves, which a user begins; now and then something changes at an await."""

    nodes = 6
    pod_metadata: ClassVar[dict[str, list[dict[str, object]]]] = {
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": True}
        ]
    }

    def __init__(self, seed):
        super().__init__(seed)
        self.kinds = {
            self.change_node: 8, self.lose_node: 1, self.delete_group: 1, self.delete_pod: 1, self.change_group: 1,
        }  # fmt: skip

    async def begin(self):
        await super().begin()
        self.stage.start(self.stage.parts.mover.run())

    async def look(self):
        self.replace_pods()
        await self.do(ChangedAtEachAwait(self.begin_moves(), self.change))
        await super().look()

    def change(self):
        if self.chance.random() < 0.05:
            super().change()

    async def begin_moves(self):
        """Have the pods of a node moved to the others, if they can be; moves that are under way go on."""
        stage = self.stage
        if stage.leader.committed.moves is not None or not stage.cluster.seen.nodes:
            return
        plan = PlanInput(groups=frozenset(), pods=frozenset(), state=stage.leader.pending_state)
        node = self.some(stage.cluster.seen.nodes)
        answer, request = planned_moves(
            stage.cluster.view(),
            MovesInput(plan=plan, asked=MovesQuestion(drain=(node,)), members_only=True),
        )
        if answer.moves:
            body = msgspec.json.encode(request, order="deterministic")
            with contextlib.suppress(BadInput, QueryUnavailable):
                await stage.parts.mover.begin(
                    answer.question, answer.moves, body, "ann", proved=True
                )

    def replace_pods(self):
        """Let the controllers of gangs make again what is gone."""
        cluster = self.stage.cluster
        have = Counter(pod.group.name for pod in cluster.seen.pods.values() if pod.group)
        for name, (size, gpus) in self.sizes.items():
            if 0 < have[name] < size:
                pod = f"{name}-new-{len(self.stage.events())}"
                spec = {"metadata": self.pod_metadata, "schedulingGates": GATED}
                cluster.add(a_pod(pod, name, requests={GPU: gpus}, **spec))


LIVES = {"between passes": Life, "at each await": ChangingLife, "with moves": MovingLife}


@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("seed", daily(3, range(12)))
async def test_no_order_of_mishaps_breaks_a_promise(seed, kind, monkeypatch):
    """Gangs, deletions, kills, lost appends and refusals in random order: capacity is used once, binds follow admissions, the log is the state.

    See `ChangingLife` and `MovingLife`; in these each pass yields wherever it may.
    """
    changes = kind != "between passes"
    if changes:
        monkeypatch.setattr("extender.runtime.cooperative_yield.SLICE_MS", 0)
    life, faults = LIVES[kind](seed), object_faults()
    await life.begin()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(life.end)
        for _ in range(STEPS):
            await life.step()
        stage = life.stage
        await eventually(
            lambda: (
                not stage.leader.appends.in_flight
                and stage.leader.committed.position == len(stage.events())
            ),
            "appends on their way",
        )
        assert stage.leader.committed == fold(EMPTY, stage.events())
        bound, lost = (
            Counter((e.gang_uid, e.data.uid) for e in stage.events() if isinstance(e.data, kind))
            for kind in (PodBound, MemberTerminated)
        )
        assert all(times <= 1 + lost[member] for member, times in bound.items())
        assert bool(life.changes) is changes
        assert object_faults() == faults, "exceptions in the work for one object"
