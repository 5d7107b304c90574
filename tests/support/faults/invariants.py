"""What must hold, looked at from outside: the objects of kube-apiserver and the rows of the log, never the state of the service.

Safety is looked at with each Binding, eviction and change of a pod; what must happen in time, every few seconds while
nothing goes wrong.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from extender.core.log.events import (
    CapacityHeld,
    CapacityHoldReleased,
    GangAdmitted,
    GangExtended,
    GangObserved,
    GangRemoved,
    GangUnschedulable,
    HistoryTruncated,
    MemberTerminated,
    NodeRejected,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReservationReleased,
)
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.pods import Pod
from extender.ports.cluster_ports import Binding
from extender.simulation.arrivals import ArrivingGroup
from extender.simulation.controllers import Job
from extender.store.log.event_codec import to_event
from tests.support.faults.cases import GPU, LONE

if TYPE_CHECKING:
    from tests.support.faults.run import Run

WITHIN_S: Final = 100.0  # of quiet, what is due has happened
OWNED_WITHIN_S: Final = 45.0  # and what is reserved for a pod that is gone is free again
RECENT_S: Final = 30.0


class Violated(Exception):
    """An invariant does not hold."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class Place(msgspec.Struct, frozen=True):
    """Capacity of a node for a pod."""

    node: str
    gpus: int
    gang: str  # UID of its root
    pod: str


class Ledger:
    """What the rows of the log promise, added up plainly."""

    def __init__(self) -> None:
        self.position = 0
        self.observed: set[str] = set()
        self.reserved: dict[str, Place] = {}  # by UID of the pod
        self.assigned: dict[tuple[str, str], Place] = {}  # ever, by UID and node
        self.released: dict[str, str] = {}  # the last reason, by UID
        self.claimed: dict[str, list[Place]] = {}  # of preemptions, by UID of the preemptor
        self.held: dict[str, list[Place]] = {}  # of capacity holds, by UID of the root
        self.hold_until_us: dict[str, int] = {}
        self.replaced: dict[str, tuple[Place, int]] = {}  # replacement holds and their ends
        self.rejected: dict[tuple[str, str], int] = {}  # gang, node -> until, in milliseconds
        self.refused: dict[str, GangUnschedulable] = {}
        self.victims: dict[
            str, tuple[int, int, str]
        ] = {}  # UID -> priority, that of the preemptor, position
        self.truncated = False

    def fold(self, event: RecordedEvent) -> None:
        """Take over one row."""
        data, gang = event.data, event.gang_uid
        self.position = event.position
        match data:
            case GangObserved():
                self.observed.add(gang)
            case GangAdmitted() | GangExtended():
                self.refused.pop(gang, None)
                for a in data.assignments:
                    place = Place(a.node, data.shapes[a.shape].get(GPU, 0), gang, a.pod)
                    self.reserved[a.uid] = self.assigned[a.uid, a.node] = place
                    self.released.pop(a.uid, None)
            case PodBound():
                place = self.reserved.pop(data.uid, None)
                if place is not None:
                    self.assigned[data.uid, data.node] = place
            case ReservationReleased():
                for pod in data.pods:
                    self.reserved.pop(pod.uid, None)
                    self.replaced.pop(pod.uid, None)
                    self.released[pod.uid] = data.reason
            case GangRemoved():
                self.reserved = {u: p for u, p in self.reserved.items() if p.gang != gang}
                self.replaced = {u: r for u, r in self.replaced.items() if r[0].gang != gang}
                self.observed.discard(gang)
            case GangUnschedulable():
                self.refused[gang] = data
            case MemberTerminated():
                self.reserved.pop(data.uid, None)
                place = self.assigned.get((data.uid, data.node))
                if data.held_until_us and place is not None:
                    self.replaced[data.uid] = (place, data.held_until_us)
            case PreemptionPlanned():
                self.claimed[gang] = [
                    Place(a.node, data.shapes[a.shape].get(GPU, 0), gang, a.pod)
                    for a in data.assignments
                ]
                for unit in data.victims:
                    for pod in unit.pods:
                        self.victims[pod.uid] = (unit.priority, data.priority, event.gang)
                for tree in data.superseded:
                    for pod in tree.pods:
                        self.reserved.pop(pod.uid, None)
            case PreemptionCompleted() | PreemptionCancelled():
                self.claimed.pop(gang, None)
            case CapacityHeld():
                self.held[gang] = [
                    Place(a.node, data.shapes[a.shape].get(GPU, 0), gang, a.pod)
                    for a in data.assignments
                ]
                self.hold_until_us[gang] = data.until_us
            case CapacityHoldReleased():
                self.held.pop(gang, None)
            case NodeRejected():
                self.rejected[gang, data.node] = data.until_ms
            case HistoryTruncated():
                self.truncated = True


class Truth:
    """The invariants of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ledger = Ledger()
        self.over = False
        self.violation: tuple[str, str] | None = None
        self._calls: dict[str, int] = defaultdict(int)  # bind calls that wait, by UID of the pod
        self._answered: dict[str, float] = {}  # when a bind call ended
        self._since: dict[str, float] = {}  # since when something is due
        self._started: set[str] = set()  # roots of which a member was bound
        self._gone: dict[str, tuple[float, Pod]] = {}  # when a pod went
        model, before = run.model, run.model.on_bound
        on_gone = model.on_gone
        self._evict = model.evict

        def bound(pod: Pod) -> None:
            before(pod)
            self.on_bound(pod)

        def on_end(pod: Pod) -> None:
            self._gone[pod.uid] = (run.loop.time(), pod)
            on_gone(pod)

        model.on_bound, model.on_gone = bound, on_end
        model.on_sent = self.on_sent
        model.evict = self.on_evict  # type: ignore[method-assign]

    def violate(self, kind: str, detail: str) -> None:
        """End the run."""
        if self.violation is None and not self.over:
            self.violation = (kind, detail)
            self.run.note(f"VIOLATED {kind}: {detail}")
            self.run.violated.set()

    def digest(self) -> str:
        """Return the SHA-256 of the story and the rows of the log."""
        whole = hashlib.sha256(repr(self.run.story).encode())
        for row, chain in self.run.database.shared.rows:
            whole.update(repr(tuple(row)).encode())
            whole.update(chain)
        return whole.hexdigest()

    def _read(self) -> None:
        rows = self.run.database.shared.rows
        if len(rows) == self.ledger.position:
            return
        for row, _ in rows[self.ledger.position :]:
            event = to_event(row)
            self.ledger.fold(event)
            if isinstance(event.data, (GangAdmitted, GangExtended, GangUnschedulable, ReservationReleased, PreemptionPlanned, GangRemoved, CapacityHeld)):  # fmt: skip
                text = type(event.data).__name__
                if isinstance(event.data, (GangAdmitted, GangExtended)):
                    text += " " + ", ".join(
                        a.pod.rpartition("/")[2] + "@" + a.node for a in event.data.assignments
                    )
                elif isinstance(event.data, GangUnschedulable):
                    text += f" {event.data.outcome}: {'; '.join(event.data.reasons)[:100]}"
                elif isinstance(event.data, ReservationReleased):
                    text += f" {event.data.reason}"
                self.run.note(f"log {row.position} (at {(row.at_us // 1000) % 10_000_000 / 1000:.2f}): {event.gang} {text}")  # fmt: skip

        reserved: dict[str, int] = defaultdict(int)
        for place in self.ledger.reserved.values():
            reserved[place.node] += place.gpus
        for node, gpus in reserved.items():
            if gpus > self.run.case.gpus:
                self.violate("capacity is reserved twice", f"{gpus} GPUs of {node}")

    # --- safety

    def arrived(self, uid: str) -> None:
        """Note that a bind call for a member began."""
        self._calls[uid] += 1

    def left(self, uid: str) -> None:
        """Note that a bind call has ended."""
        self._calls[uid] -= 1
        self._answered[uid] = self.run.loop.time()

    def on_bound(self, pod: Pod) -> None:
        """Judge a Binding that kube-apiserver has accepted."""
        self._read()
        stored = self.run.model.stored()
        node = stored.nodes.get(pod.node or "")
        used = self._used(pod.node or "")
        self.run.note(f"bound {pod.path} to {pod.node}")
        if node is not None and used > node.allocatable.get(GPU, 0):
            self.violate(
                "a node is over its capacity",
                f"{pod.node} has {used} of {node.allocatable.get(GPU, 0)} GPUs with {pod.path}",
            )
        if pod.group is None:
            return
        if (pod.uid, pod.node) not in self.ledger.assigned:
            self.violate("bound outside an admission", f"{pod.path} to {pod.node}")

    def on_sent(self, binding: Binding) -> None:
        """Judge a Binding of a member as it is sent."""
        pod = self.run.model.stored().pods.get(PodUid(binding.pod.uid))
        if pod is not None and pod.group is not None and pod.node is None:
            self._judge_minimum(pod)

    def _judge_minimum(self, pod: Pod) -> None:
        job = self._job_of(pod)
        if job is None or job.arrival is None:
            return
        root = self._root(job)
        if root is None or root in self._started:
            return
        self._started.add(root)
        now_s = self.run.loop.time()
        for group in job.arrival.groups:
            if group.minimum == 0:
                continue
            members = self._members(job, group)
            arrived = sum(
                m.node is not None or self._calls[m.uid] > 0 or now_s - self._answered.get(m.uid, -9.0) < 1.0
                for m in members
            )  # fmt: skip
            lost = sum(now_s - at_s < RECENT_S for at_s, p in self._gone.values() if p.group == _key(job, group))  # fmt: skip
            leaving = sum(m.deleting for m in members)
            if arrived + lost + leaving < group.minimum:
                self.violate(
                    "bound before its minimum had arrived",
                    f"{pod.path}: {arrived} of {group.minimum} of {group.name} have arrived",
                )

    async def on_evict(self, ref: object, via: object) -> None:
        """Judge a request to delete a pod, and carry it out."""
        self._read()
        uid, name = ref.uid, ref.name  # type: ignore[attr-defined]
        planned = self.ledger.victims.get(uid)
        self.run.note(f"evicts {name}")
        if planned is None:
            self.violate("evicted without a recorded preemption", name)
        elif planned[0] >= planned[1]:
            self.violate("evicted for a preemptor of no higher priority", f"{name} for {planned[2]}")  # fmt: skip
        await self._evict(ref, via)  # type: ignore[arg-type]

    def _used(self, node: str) -> int:
        pods = self.run.model.stored().pods.values()
        return sum(_gpus(pod) for pod in pods if pod.node == node)

    # --- what is due

    def look(self, *, in_burst: bool) -> None:
        """Look at everything."""
        self._read()
        if self.run.defects.texts:
            self.violate("a defect was logged", self.run.defects.texts[0])
        self._compare_memory()
        if in_burst:
            self._since.clear()
            return
        due: dict[str, tuple[str, str]] = {}
        self._due_of_claims(due)
        self._due_of_jobs(due)
        now_s = self.run.loop.time()
        self._since = {key: self._since.get(key, now_s) for key in due}
        for key, since_s in self._since.items():
            within_s = OWNED_WITHIN_S if key.startswith("reservation ") else WITHIN_S
            if now_s - since_s >= within_s:
                self.violate(*due[key])

    def _compare_memory(self) -> None:
        """Compare the reservations in memory of a leader with the rows of the log."""
        for replica in self.run.replicas:
            leader = replica.leader
            if replica.process.stopped or not leader.leads() or leader.in_flight:
                continue
            state = leader.committed
            if state.position != self.ledger.position:
                continue
            memory = {uid: r.node for gang in state.gangs.values() for uid, r in gang.reservations.items()}  # fmt: skip
            rows = {uid: place.node for uid, place in self.ledger.reserved.items()}
            if memory != rows:
                differ = sorted(set(memory.items()) ^ set(rows.items()))
                self.violate("a reservation was lost", f"memory and log differ: {differ[:3]}")
            on_nodes = {c.uid for claims in state.claims_on.values() for c in claims.values() if c.kind == "reservation"}  # fmt: skip
            if on_nodes != set(memory):
                self.violate("a claim without an owner", str(sorted(on_nodes ^ set(memory))[:3]))

    def _due_of_claims(self, due: dict[str, tuple[str, str]]) -> None:
        stored = self.run.model.stored()
        roots = {group.uid for group in stored.groups.values()}
        for uid, place in self.ledger.reserved.items():
            pod = stored.pods.get(PodUid(uid))
            if pod is None or place.gang not in roots:
                due[f"reservation {uid}"] = (
                    "a claim without an owner",
                    f"{place.node} is reserved for {place.pod}, which does not exist any more",
                )
            elif pod.node is None:
                due[f"unbound {uid}"] = ("reserved and never bound", f"{place.pod} for {place.node}")  # fmt: skip
        for text, table in (("preemption", self.ledger.claimed), ("hold", self.ledger.held)):
            for gang in table:
                if gang not in roots and gang not in stored.pods:
                    due[f"{text} {gang}"] = ("a claim without an owner", f"a {text} of a tree that is gone")  # fmt: skip
        now_us = self.run.clock.now_us()
        for gang in self.ledger.held:
            if self.ledger.hold_until_us[gang] < now_us:
                due[f"hold end {gang}"] = ("a hold never ends", f"a capacity hold of {gang}")
        for name, node in stored.nodes.items():
            promised = sum(p.gpus for u, p in self.ledger.reserved.items() if p.node == name and _unbound(stored, u))  # fmt: skip
            used = self._used(name)
            if used + promised > node.allocatable.get(GPU, 0):
                due[f"overcommitted {name}"] = (
                    "more is reserved than a node has", f"{name}: {used} used, {promised} reserved",
                )  # fmt: skip

    def _due_of_jobs(self, due: dict[str, tuple[str, str]]) -> None:
        stored = self.run.model.stored()
        for job in self.run.controllers.jobs:
            if job.ended_s is not None or job.arrival is None:
                continue
            if job.name.startswith(LONE):
                self._due_of_lone(job, due)
                continue
            root = self._root(job)
            leaves = [(group, self._members(job, group)) for group in job.arrival.groups]
            if root is None or any(_key(job, group) not in stored.groups for group, _ in leaves):
                continue
            if any(members for _, members in leaves) and root not in self.ledger.observed:
                due[f"observed {root}"] = ("a tree is never looked at", job.path)
                continue
            lacking_of = self._lacking(leaves)
            if lacking_of is None:
                continue  # not complete
            free = self._free_for(root, job.arrival.priority)
            if _fits(lacking_of, free, self._labels()):
                bound = sum(m.node is not None for _, members in leaves for m in members)
                refusal = self.ledger.refused.get(root)
                text = f"; refused as {refusal.outcome}: {'; '.join(refusal.reasons)[:160]}" if refusal else ""  # fmt: skip
                kind = (
                    "a started gang stays below its minimum" if bound else "what fits is not bound"
                )
                if refusal is not None and refusal.outcome == "impossible" and not bound:
                    kind = "a refusal is not true"
                due[f"fits {root}"] = (kind, f"{job.path} fits into {dict(free)}{text}")

    def _due_of_lone(self, job: Job, due: dict[str, tuple[str, str]]) -> None:
        for uid in job.live:
            pod = self.run.model.stored().pods.get(uid)
            if pod is None or pod.node is not None:
                continue
            free = self._free_for("", pod.priority)
            if any(amount >= _gpus(pod) for amount in free.values()):
                due[f"lone {uid}"] = ("what fits is not bound", f"{pod.path} fits into {dict(free)}")  # fmt: skip

    def _lacking(self, leaves: list[tuple[ArrivingGroup, list[Pod]]]) -> list[tuple[ArrivingGroup, int, list[str]]] | None:  # fmt: skip
        """Return of each leaf how many pods it lacks to its minimum, and the nodes of its bound ones; None: not complete, or none."""
        lacking_of, started = [], any(m.node is not None for _, ms in leaves for m in ms)
        for group, members in leaves:
            able = [m for m in members if not m.deleting]
            bound = [m for m in able if m.node is not None]
            minimum = group.minimum or 1
            if len(able) < minimum:
                return None
            if started and any(m.deleting for m in members):
                return None
            lacking_of.append((group, max(0, minimum - len(bound)), [m.node or "" for m in bound]))
        return lacking_of if any(count for _, count, _ in lacking_of) else None

    def _free_for(self, root: str, priority: int) -> dict[str, int]:
        """Return the free GPUs of each node that a tree may use for certain."""
        stored, ledger = self.run.model.stored(), self.ledger
        now_us = self.run.clock.now_us()
        free = {
            name: node.allocatable.get(GPU, 0) - self._used(name)
            for name, node in stored.nodes.items()
            if not node.unschedulable
        }
        kept = [p for u, p in ledger.reserved.items() if _unbound(stored, u)]
        kept += [p for places in ledger.claimed.values() for p in places]
        kept += [p for places in ledger.held.values() for p in places]
        kept += [p for p, until_us in ledger.replaced.values() if until_us > now_us]
        for place in kept:
            if place.gang != root and place.node in free:
                free[place.node] -= place.gpus
        for (gang, node), until_ms in ledger.rejected.items():
            if gang == root and until_ms * 1000 > now_us:
                free.pop(node, None)
        return dict(sorted(free.items()))

    def _labels(self) -> dict[str, dict[str, str]]:
        return {name: dict(node.labels) for name, node in self.run.model.stored().nodes.items()}

    def _job_of(self, pod: Pod) -> Job | None:
        return next((job for job in self.run.controllers.jobs if pod.uid in job.live), None)

    def _root(self, job: Job) -> str | None:
        assert job.arrival is not None
        several = len(job.arrival.groups) > 1
        key = GroupKey(job.namespace, job.name, "CompositePodGroup" if several else "PodGroup")
        group = self.run.model.stored().groups.get(key)
        return group.uid if group is not None else None

    def _members(self, job: Job, group: ArrivingGroup) -> list[Pod]:
        stored = self.run.model.stored()
        pods = [stored.pods[uid] for uid in job.live if uid in stored.pods]
        return [pod for pod in pods if pod.group == _key(job, group)]


def _key(job: Job, group: ArrivingGroup) -> GroupKey:
    assert job.arrival is not None
    several = len(job.arrival.groups) > 1
    return GroupKey(job.namespace, f"{job.name}-{group.name}" if several else job.name, "PodGroup")


def _unbound(stored: object, uid: str) -> bool:
    pod = stored.pods.get(PodUid(uid))  # type: ignore[attr-defined]
    return pod is None or pod.node is None


def _gpus(pod: Pod) -> int:
    return dict(pod.shape.requests).get(GPU, 0)


def _fits(
    lacking_of: list[tuple[ArrivingGroup, int, list[str]]],
    free: dict[str, int],
    labels: dict[str, dict[str, str]],
) -> bool:
    """Return whether a plain search finds a place for all that is lacking; it may overlook one."""

    def place(index: int, left: dict[str, int]) -> bool:
        if index == len(lacking_of):
            return True
        group, count, bound_on = lacking_of[index]
        amount = group.requests[GPU]
        domains: list[list[str]] = [sorted(left)]
        if group.topology_key:
            by_value: dict[str, list[str]] = defaultdict(list)
            for name in sorted(left):
                by_value[labels[name].get(group.topology_key, "")].append(name)
            if bound_on:
                values = {labels.get(name, {}).get(group.topology_key) for name in bound_on}
                if len(values) != 1:
                    return False
                domains = [by_value.get(next(iter(values)) or "", [])]
            else:
                domains = list(by_value.values())
        for names in domains:
            rest, lacking = dict(left), count
            for name in sorted(names, key=lambda name: rest[name]):
                while lacking and rest[name] >= amount:
                    rest[name] -= amount
                    lacking -= 1
            if not lacking and place(index + 1, rest):
                return True
        return False

    order = sorted(range(len(lacking_of)), key=lambda i: -lacking_of[i][0].requests[GPU])
    lacking_of = [lacking_of[i] for i in order]
    return place(0, dict(free))
