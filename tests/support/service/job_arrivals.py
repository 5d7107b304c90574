"""Jobs that come, run, are evicted, come back and end: the control loop on a fake cluster, with the rest simulated.

kube-scheduler offers nodes, calls filter, bind and preempt, and deletes the victims of ordinary pods; the kubelet
lets pods that were deleted go after a while; a job's controller makes again what was evicted, under new UIDs.
Chance is seeded and time is the fake clock's, one second per step, so a seed is one story. The jobs of a seed are the same whatever
the service does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import Pod
from extender.core.verbs.preempt_verb import NodeCandidate
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import (
    BLOCK,
    GPU,
    RACK,
    Object,
    a_fleet,
    a_group,
    a_pod,
)

Shape = Literal["pod", "gang", "racked", "elastic", "loose", "composite"]
SHAPES: Final[tuple[Shape, ...]] = ("pod", "gang", "racked", "elastic", "loose", "composite")
WHOLE: Final = ("gang", "racked", "elastic", "composite")  # disrupted as a whole
PRIORITIES: Final = (10, 20, 30)
FLEET: Final = "2 blocks x 3 racks x 3 nodes"
GPUS: Final = 4  # of a node
GOES_WITHIN: Final = 60  # steps; a unit of which one pod was evicted has gone whole by then


@dataclass
class Job:
    """A job and its controller."""

    name: str
    shape: Shape
    priority: int
    leaves: list[tuple[str, int, int]]  # name, minimum, pods
    size: int  # GPUs of a pod
    lasts: int  # steps that it runs
    gives_up: int  # step at which its user deletes it, whatever it does then
    incarnation: int = 0
    began: int = -1  # step since which its minimum runs
    again: dict[str, int] = field(default_factory=dict)  # pod, or the job itself -> step
    disrupted: int = -1  # step at which the first pod of this incarnation was taken from it
    over: bool = False

    def groups(self) -> list[str]:
        leaves = [leaf for leaf, _, _ in self.leaves]
        return (
            []
            if self.shape == "pod"
            else [self.name]
            if leaves == [self.name]
            else [self.name, *leaves]
        )

    def pods(self) -> list[str]:
        if self.shape == "pod":
            return [self.name]
        return [f"{leaf}-{n}" for leaf, _, count in self.leaves for n in range(count)]

    def minimum(self) -> int:
        return sum(minimum for _, minimum, _ in self.leaves)

    def named(self, name: str, number: int) -> Object:
        return {"uid": f"{name}#{self.incarnation}.{number}"}

    def a_pod(self, name: str, leaf: str, number: int = 0) -> Object:
        gated = {"schedulingGates": GATED} if leaf else {}
        return a_pod(
            name, leaf, requests={GPU: self.size}, priority=self.priority,
            metadata=self.named(name, number), **gated,
        )  # fmt: skip

    def objects(self) -> Iterator[Object]:
        """Make what its controller creates, under the UIDs of this incarnation."""
        if self.shape == "pod":
            yield self.a_pod(self.name, "")
            return
        composite, whole = self.shape == "composite", self.shape in WHOLE
        rest = {"whole": whole, "priority": self.priority}
        if composite:
            top = self.named(self.name, 0)
            yield a_group(
                self.name, gang=len(self.leaves), composite=True, topo=BLOCK, metadata=top, **rest
            )
        topo = RACK if self.shape == "racked" else ""
        for leaf, minimum, pods in self.leaves:
            parent = self.name if composite else ""
            named = self.named(leaf, 0)
            yield a_group(leaf, gang=minimum, parent=parent, topo=topo, metadata=named, **rest)
            for n in range(pods):
                yield self.a_pod(f"{leaf}-{n}", leaf)


class Arrivals:
    """One run: so many jobs arrive, and it ends when all of them are over."""

    def __init__(self, stage: Stage, *, jobs: int, seed: int, per_step: float = 0.6) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        # Which jobs come, and when: nothing that the service does changes it, so runs of two versions can be compared.
        self.chance = random.Random(seed)
        self.reactions = random.Random(f"reactions {seed}")  # of controllers and kubelet
        self.left = jobs
        self.per_step = per_step
        self.step_number = 0
        self.made = 0
        self.jobs: dict[str, Job] = {}  # those that are not over
        self.priority_of: dict[str, int] = {}  # of every job there was
        self.withdrawn: set[str] = set()  # UIDs of roots that their user deleted, or that were done
        self.goes: dict[PodUid, int] = {}  # deleted pods -> step at which the kubelet lets them go
        self.ran_alone: set[str] = set()  # UIDs of ordinary pods that got a node
        self.broken: list[str] = []  # units that did not go whole

    async def run(self, steps_max: int) -> None:
        """Run until all jobs are over.

        Raises:
            AssertionError: Some never get there.
        """
        while self.left or self.jobs:
            await self.step()
            assert self.step_number < steps_max, (
                f"{self.left} to come, not over: {sorted(self.jobs)}"
            )
        for _ in range(10):
            await self.step()

    async def step(self) -> None:
        self.step_number += 1
        self.stage.later(1)
        self._users()
        self._kubelet()
        for job in list(self.jobs.values()):
            self._controller(job)
        await self.stage.one_pass()
        await self._quiet()
        await self._kube_scheduler()
        await self._quiet()

    async def _quiet(self) -> None:
        """Carry out deletions, nominations and bindings."""
        still, revision = 0, -1
        while still < 30:
            await asyncio.sleep(0)
            now = self.cluster.seen.revision
            still, revision = (still + 1 if now == revision else 0), now

    # -- users and controllers -------------------------------------------------------------------

    def _users(self) -> None:
        while self.left and self.chance.random() < self.per_step / (1 + self.per_step):
            self.left -= 1
            self._create(self._a_job())

    def _a_job(self) -> Job:
        self.made += 1
        chance = self.chance
        shape = chance.choices(SHAPES, (3, 3, 2, 2, 2, 2))[0]
        name, pods = f"{shape}{self.made}", chance.randint(2, 6)
        minimum = chance.randint(1, pods - 1) if shape in ("elastic", "loose") else pods
        leaves = [(name, minimum, pods)]
        if shape == "composite":
            leaves = [(f"{name}-{side}", pods // 2, pods // 2) for side in ("left", "right")]
        elif shape == "pod":
            leaves = [(name, 1, 1)]
        gives_up = chance.randint(1, 12) if chance.random() < 0.06 else 10**9
        return Job(
            name=name, shape=shape, priority=chance.choices(PRIORITIES, (3, 2, 1))[0], leaves=leaves,
            size=chance.choice((1, 2) if shape == "racked" else (1, 1, 2, 4)), lasts=chance.randint(8, 30),
            gives_up=self.step_number + gives_up,
        )  # fmt: skip

    def _create(self, job: Job) -> None:
        self.jobs[job.name] = job
        self.priority_of[job.name] = job.priority
        job.began = job.disrupted = -1
        job.again = {}
        self._add(*job.objects())

    def _add(self, *things: Object) -> None:
        for number, thing in enumerate(things):
            at = (self.stage.clock.us + number) // 1_000_000
            thing["metadata"]["creationTimestamp"] = _rfc3339(at)
        self.cluster.objects.clear()  # it would make all of them anew
        self.cluster.add(*things)

    def _there(self, job: Job) -> dict[str, Pod]:
        mine = set(job.pods())
        return {p.name: p for p in self.by_name.values() if p.name in mine}

    @property
    def by_name(self) -> dict[str, Pod]:
        return {pod.name: pod for pod in self.cluster.seen.pods.values()}

    def _controller(self, job: Job) -> None:
        """End a job, or make again what was taken from it."""
        if job.name in job.again:
            if self.step_number >= job.again[job.name]:
                job.incarnation += 1
                self._create(job)
            return
        there = self._there(job)
        if self._ends(job, there):
            return
        runs = [p for p in there.values() if p.node is not None and not p.deleting]
        if len(runs) >= job.minimum() and job.began < 0:
            job.began = self.step_number
        taken = [
            n for n in job.pods() if n not in job.again and (n not in there or there[n].deleting)
        ]
        if job.shape in ("pod", "loose"):
            for name in taken:
                job.again[name] = self.step_number + self.reactions.randint(5, 12)
            self._again(job, there)
        elif taken:
            self._whole(job, there)

    def _ends(self, job: Job, there: dict[str, Pod]) -> bool:
        done = 0 <= job.began <= self.step_number - job.lasts
        if not job.over and job.disrupted < 0 and (done or self.step_number >= job.gives_up):
            job.over = True
            self.withdrawn |= self._root_uid(job)
            for pod in there.values():
                self._delete(pod)
        if job.over and not there:
            self._delete_groups(job)
            del self.jobs[job.name]
        return job.over

    def _again(self, job: Job, there: dict[str, Pod]) -> None:
        """Make single pods again, in the same group."""
        for name, at in list(job.again.items()):
            if self.step_number >= at and name not in there:
                del job.again[name]
                job.incarnation += 1
                leaf = "" if job.shape == "pod" else job.name
                self._add(job.a_pod(name, leaf, job.incarnation))

    def _whole(self, job: Job, there: dict[str, Pod]) -> None:
        """Wait until the unit has gone, then make the whole job again after a while."""
        if job.disrupted < 0:
            job.disrupted = self.step_number
        running = [p for p in there.values() if p.node is not None]
        if running:
            if self.step_number - job.disrupted > GOES_WITHIN:
                self.broken.append(f"{job.name}: {sorted(p.name for p in running)} still run")
                job.over = True
            return
        for pod in there.values():
            self.cluster.delete_pod(pod.path)
        self._delete_groups(job)
        job.again = {job.name: self.step_number + self.reactions.randint(3, 10)}

    def _root_uid(self, job: Job) -> set[str]:
        if job.shape == "pod":
            return {p.uid for p in self._there(job).values()}
        return {g.uid for g in self.cluster.seen.groups.values() if g.key.name == job.name}

    def _delete_groups(self, job: Job) -> None:
        for name in job.groups():
            self.cluster.delete_group(name)

    # -- kubelet ---------------------------------------------------------------------------------

    def _delete(self, pod: Pod) -> None:
        if pod.node is None:
            self.cluster.delete_pod(pod.path)
        else:
            self.cluster.change_pod(pod.path, deleting=True)

    def _kubelet(self) -> None:
        for pod in sorted(self.cluster.seen.pods.values(), key=lambda p: p.path):
            if not pod.deleting:
                continue
            at = self.goes.setdefault(pod.uid, self.step_number + self.reactions.randint(0, 5))
            if self.step_number >= at:
                del self.goes[pod.uid]
                self.cluster.delete_pod(pod.path)

    # -- kube-scheduler --------------------------------------------------------------------------

    async def _kube_scheduler(self) -> None:
        """Try every pod that is not gated, most important first; members wait at bind for one another."""
        queue = [
            p for p in self.cluster.seen.pods.values() if p.node is None and not p.gates and not p.deleting
        ]  # fmt: skip
        queue.sort(key=lambda p: (-p.priority, p.created_us, p.path))
        assumed: dict[PodUid, NodeName] = {}
        for pod in queue:
            fits = [n for n in self.cluster.seen.nodes if self._free(n, pod, assumed) >= _size(pod)]
            passed = self.stage.extender_service.filter(pod, fits).passed
            if passed:
                assumed[pod.uid] = node = min(
                    passed, key=lambda n: (self._free(n, pod, assumed), n)
                )
                self.stage.bind(pod.path, node)
                if pod.group is None:
                    self.ran_alone.add(pod.uid)
            elif pod.group is None:
                await self._preempt(pod)

    def _free(self, node: NodeName, pod: Pod, assumed: dict[PodUid, NodeName]) -> int:
        """Return what kube-scheduler counts as free on a node for a pod; nominated pods count like running ones."""
        view = self.cluster.seen
        here = set(view.on_node.get(node, {}))
        here |= {uid for uid, where in assumed.items() if where == node}
        here |= {
            other.uid
            for other in view.nominated.values()
            if other.nominated == node and other.priority >= pod.priority
        }
        used = sum(_size(view.pods[uid]) for uid in here if uid != pod.uid and uid in view.pods)
        return GPUS - used

    async def _preempt(self, pod: Pod) -> None:
        """Do what kube-scheduler does for a pod that fits nowhere (K40)."""
        view = self.cluster.seen
        if pod.nominated is not None and any(
            p.deleting and p.priority < pod.priority for p in view.on_node.get(NodeName(pod.nominated), {}).values()
        ):  # fmt: skip
            return
        offered = [
            c for node in sorted(view.nodes) if (c := self._candidate(node, pod)) is not None
        ]
        answer = await self.stage.extender_service.preempt(pod, offered) if offered else ()
        if not answer:
            return
        pods = self.cluster.seen.pods
        chosen = min(
            answer,
            key=lambda c: (max((pods[u].priority for u in c.victims if u in pods), default=0), len(c.victims), c.node),
        )  # fmt: skip
        for uid in chosen.victims:
            if uid in self.cluster.seen.pods:
                self.cluster.change_pod(
                    pods[uid].path, disruption_target="PreemptionByScheduler", deleting=True
                )
        self.cluster.change_pod(pod.path, nominated=chosen.node)

    def _candidate(self, node: NodeName, pod: Pod) -> NodeCandidate | None:
        """Remove all of lower priority, put back the most important ones that leave enough capacity; None where it never fits."""
        lower = [
            p for p in self.cluster.seen.on_node.get(node, {}).values() if p.priority < pod.priority
        ]
        free = self._free(node, pod, {}) + sum(_size(p) for p in lower)
        if free < _size(pod):
            return None
        victims = []
        for other in sorted(lower, key=lambda p: (-p.priority, p.created_us)):
            if free - _size(other) >= _size(pod):
                free -= _size(other)
            else:
                victims.append(other.uid)
        return NodeCandidate(node=node, victims=tuple(victims)) if victims else None


def _size(pod: Pod) -> int:
    return dict(pod.shape.requests).get(GPU, 0)


def _rfc3339(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def the_fleet() -> list[Object]:
    return a_fleet(FLEET, gpu=GPUS)
