"""What must hold, looked at from outside: the objects of kube-apiserver, the calls of kube-scheduler and the rows of the log.

Safety is looked at with each row, Binding, eviction and answer; what must happen in time, every few seconds while
nothing hinders the service. Of the state of the service only this is read: its copies of the log and of the objects are
compared with both.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from extender.core.log.events import (
    AssignmentRecord,
    CapacityHeld,
    CapacityHoldReleased,
    GangAdmitted,
    GangExtended,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    HistoryTruncated,
    LeaseAcquired,
    MemberTerminated,
    NodeRejected,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReservationReleased,
    VictimGone,
)
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import Pod
from extender.ports.log_ports import LeaseGrant
from extender.simulation.arrivals import ArrivingGroup
from extender.simulation.controllers import Job
from extender.store.log.event_codec import to_event
from tests.support.faults.cases import ALONE, GPU, LONE, RACK

if TYPE_CHECKING:
    from tests.support.faults.processes import Process
    from tests.support.faults.run import BindCallOf, Replica, Run
    from tests.support.faults.servers import ServedCluster

WITHIN_S: Final = 60.0  # without trouble, what is due has happened
# ... and sooner what begins like this
SOONER_S: Final = {
    "reservation ": 10.0, "unbound ": 25.0, "gate ": 10.0, "victim ": 15.0, "view ": 25.0, "behind ": 15.0, "call ": 10.0, "unused ": 10.0, "verdict ": 40.0,
    "refused victim ": 35.0,  # a deletion that failed is tried again after 2 to 30 s, and time goes on in steps
    "hold ": 15.0, "replacement ": 15.0, "overcommitted ": 20.0, "leader ": 40.0,
}  # fmt: skip
RECENT_S: Final = 30.0
STALE_S: Final = 2.0  # after a change without trouble nothing is decided by what was before
UNSURE_S: Final = 15.0  # after a Binding without an answer its pod may be bound
SETTLED_S: Final = 20.0  # after the last change, with nothing due


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
        self.scheduled: set[str] = set()  # whose minimum was bound once
        self.reserved: dict[str, Place] = {}  # by UID of the pod
        self.assigned: dict[tuple[str, str], Place] = {}  # ever, by UID and node
        self.released: dict[str, str] = {}  # the last reason, by UID
        self.claimed: dict[str, list[Place]] = {}  # of preemptions, by UID of the preemptor
        self.leaving: dict[
            str, dict[str, str]
        ] = {}  # the same: victims that are not gone, by UID, and their units
        # of preemptions that were taken over: the rest, which stays until their victims are gone
        self.claim_rests: dict[str, list[Place]] = {}
        self.held: dict[str, list[Place]] = {}  # of capacity holds, by UID of the root
        self.hold_until_us: dict[str, int] = {}
        self.replaced: dict[str, tuple[Place, int]] = {}  # replacement holds and their ends
        self.rejected: dict[tuple[str, str], int] = {}  # gang, node -> until, in milliseconds
        self.refused: dict[str, GangUnschedulable] = {}
        # UID -> priority, that of the preemptor, its name, its UID
        self.victims: dict[str, tuple[int, int, str, str]] = {}
        self.victim_paths: dict[str, set[str]] = {}  # of pods, by UID of the preemptor
        # when a member of each gang got a reservation or was bound last, by UID of the root
        self.used_us: dict[str, int] = {}
        # what was released last and when, by UID of the pod
        self.given_up: dict[str, tuple[Place, int]] = {}

    def fold(self, event: RecordedEvent) -> None:
        """Take over one row."""
        data, gang = event.data, event.gang_uid
        self.position = event.position
        match data:
            case GangObserved():
                self.observed.add(gang)
            case GangScheduled():
                self.scheduled.add(gang)
            case GangAdmitted() | GangExtended():
                self.refused.pop(gang, None)
                for a in data.assignments:
                    place = Place(a.node, data.shapes[a.shape].get(GPU, 0), gang, a.pod)
                    self.reserved[a.uid] = self.assigned[a.uid, a.node] = place
                    self.released.pop(a.uid, None)
                self.used_us[gang] = event.at_us
                self._use_holds(gang, [(_leaf(a.pod), a.node) for a in data.assignments])
            case PodBound():
                self.used_us[gang] = event.at_us
                place = self.reserved.pop(data.uid, None)
                if place is not None:
                    self.assigned[data.uid, data.node] = place
                else:
                    self._use_holds(gang, [(_leaf(data.pod), data.node)])
            case ReservationReleased():
                for pod in data.pods:
                    place = self.reserved.pop(pod.uid, None)
                    if place is not None:
                        self.given_up[pod.uid] = (place, event.at_us)
                    self.replaced.pop(pod.uid, None)
                    self.released[pod.uid] = data.reason
            case GangRemoved():
                self.reserved = {u: p for u, p in self.reserved.items() if p.gang != gang}
                self.replaced = {u: r for u, r in self.replaced.items() if r[0].gang != gang}
                self.claim_rests.pop(gang, None)
                self.observed.discard(gang)
                self.scheduled.discard(gang)
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
                self.claim_rests.pop(gang, None)
                self.leaving[gang] = {
                    p.uid: f"{unit.kind}/{unit.path}" for unit in data.victims for p in unit.pods
                }
                for unit in data.victims:
                    for pod in unit.pods:
                        self.victim_paths.setdefault(gang, set()).add(pod.pod)
                        self.victims[pod.uid] = (unit.priority, data.priority, event.gang, gang)
                for tree in data.superseded:
                    for pod in tree.pods:
                        self.reserved.pop(pod.uid, None)
            case PreemptionCompleted() | PreemptionCancelled():
                claimed = self.claimed.pop(gang, [])
                if isinstance(data, PreemptionCancelled) and data.reason == "taken-over":
                    in_progress = data.units_in_progress
                    left = {u: v for u, v in self.leaving[gang].items() if v in in_progress}
                    self.leaving[gang] = left
                    if left and gang in self.observed:  # not of a lone pod
                        lost = data.taken_over_nodes
                        self.claim_rests[gang] = [p for p in claimed if p.node not in lost]
            case VictimGone():
                left = self.leaving.get(gang, {})
                left.pop(data.uid, None)
                if not left:
                    self.claim_rests.pop(gang, None)
                # the lifetime of reservations begins when the last victim is gone
                self.used_us[gang] = event.at_us
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

    def _use_holds(self, gang: str, places: Sequence[tuple[str, str]]) -> None:
        """End the replacement holds that new members of a gang use: those of their leaf and node first."""
        for leaf, node in sorted(places, key=lambda place: place[1] not in self._held_nodes(gang)):
            held = [(p.node != node, until_us, uid) for uid, (p, until_us) in self.replaced.items() if p.gang == gang and _leaf(p.pod) == leaf]  # fmt: skip
            if held:
                del self.replaced[min(held)[2]]

    def _held_nodes(self, gang: str) -> set[str]:
        return {place.node for place, _ in self.replaced.values() if place.gang == gang}


def _leaf(pod: str) -> str:
    """Return the name of the group of a pod of a job."""
    return pod.rpartition("/")[2].rpartition("-")[0]


class Truth:
    """The invariants of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ledger = Ledger()
        self.over = False
        self.violation: tuple[str, str] | None = None
        self._calls: dict[str, list[BindCallOf]] = defaultdict(list)  # by UID of the pod
        self._arrived_s: dict[str, float] = {}  # when a bind call began last, by UID of the root
        self._failed: dict[str, float] = {}  # when a Binding failed that may be tried again
        self._refused_victims: set[str] = set()  # of which a request to evict has failed
        self._sent_s: dict[str, float] = {}  # when a Binding was sent last
        self._opened: dict[
            str, list[BindCallOf]
        ] = {}  # by root: the calls that waited when its minimum had arrived
        self._bound_s: dict[str, float] = {}
        self._admitted_s: dict[str, float] = {}  # when each pod got its reservation, by UID
        self._leaf_uids: dict[str, str] = {}  # of the group of each pod when it was admitted
        self._led_since_s = 0.0  # the time of the last LeaseAcquired
        self._changed: tuple[int, int] = (
            0,
            0,
        )  # position of the log and version of the objects ...
        self._changed_s = 0.0  # ... and when they changed last
        self._since: dict[str, float] = {}  # since when something is due
        self._gone: dict[str, tuple[float, Pod]] = {}  # when a pod went
        # the end of the log that an older copy has replaced, while no leader has recorded that; 0: none
        self._lost_until = 0
        self._may_record_loss = False  # the lease was that of an older copy, its rows were not
        self._restored_s = -math.inf
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
        model.on_sending = self.on_sending
        model.on_failed = self.on_failed
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
            self._judge_refusal(event)
            self._judge_view(event)
            self._judge_victims(event)
            self.ledger.fold(event)
            if isinstance(event.data, LeaseAcquired):
                self._led_since_s = self.run.loop.time()
            elif isinstance(event.data, HistoryTruncated):
                if not (self._lost_until or self._may_record_loss):
                    self.violate("a loss of history that was none", event.data.message)
                self._lost_until, self._may_record_loss = 0, False
            elif isinstance(event.data, (GangAdmitted, GangExtended)):
                self._note_leaves(event.data.assignments)
                self._admitted_s |= dict.fromkeys((a.uid for a in event.data.assignments), self.run.loop.time())  # fmt: skip
                self._judge_admission(event.gang, {a.node for a in event.data.assignments})
            if isinstance(event.data, (GangAdmitted, GangExtended, GangUnschedulable, ReservationReleased, PreemptionPlanned, GangRemoved, CapacityHeld, LeaseAcquired)):  # fmt: skip
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

    def on_restored(self, end: int, *, is_older: bool = False) -> None:
        """Take over the log of an older copy of the database; what was promised or evicted before stays so.

        Args:
            end: Position of the last row that there was.
            is_older: Whether its lease is of a lower epoch: a leader may record that as a loss, with all rows there.
        """
        before, self.ledger = self.ledger, Ledger()
        self._restored_s = self.run.loop.time()
        rows = self.run.database.shared.rows
        if len(rows) < end:
            self._lost_until = max(self._lost_until, end)
        self._may_record_loss |= is_older
        for row, _ in rows:
            self.ledger.fold(to_event(row))
        self.ledger.assigned = before.assigned | self.ledger.assigned
        self.ledger.victims = before.victims | self.ledger.victims
        self.ledger.victim_paths = before.victim_paths | self.ledger.victim_paths

    def on_rewritten(self) -> None:
        """Take over a log of which a row is another one; its leader finds that, and records a loss."""
        self.on_restored(len(self.run.database.shared.rows))
        self._lost_until = len(self.run.database.shared.rows)

    def on_misfit(self, grant: LeaseGrant, position: int) -> None:
        """Judge an append that does not continue the log: its sender began from an older state."""
        database = self.run.database.shared
        is_old = position <= len(database.rows)  # else an append that it follows has failed
        if is_old and grant.lease == database.lease and self._restored_s < self._led_since_s:
            self.violate("a leader continues an old log", f"{database.holder} appends at {position}, the log ends at {len(database.rows)}")  # fmt: skip

    def on_appended(self) -> None:
        """Read what was appended."""
        if not self.over:
            self._read()

    def _note_leaves(self, assignments: Sequence[AssignmentRecord]) -> None:
        stored = self.run.model.stored()
        for a in assignments:
            pod = stored.pods.get(a.uid)
            leaf = stored.groups.get(pod.group) if pod is not None and pod.group is not None else None  # fmt: skip
            self._leaf_uids[a.uid] = leaf.uid if leaf is not None else ""

    def _judge_view(self, event: RecordedEvent) -> None:
        """Judge whether a leader has read what was bound before it led, when it decides."""
        database = self.run.database.shared
        if not isinstance(event.data, (GangObserved, GangAdmitted, GangUnschedulable)) or event.epoch != database.epoch:  # fmt: skip
            return
        for replica in self.run.replicas:
            if replica.name != database.holder or replica.process.dead:
                continue
            view = replica.cluster.view()
            for pod in self.run.model.stored().pods.values():
                copy = view.pods.get(pod.uid)
                if pod.node and self._bound_s.get(pod.uid, 0.0) < self._led_since_s and (copy is None or copy.node is None):  # fmt: skip
                    self.violate("a new leader decides by an old copy", f"{event.gang}: {replica.name} does not have {pod.path} on {pod.node}")  # fmt: skip

    def _judge_admission(self, gang: str, nodes: set[str]) -> None:
        """Judge an admission by what ran before its leader: it has seen that."""
        stored = self.run.model.stored()
        for name in nodes & set(stored.nodes):
            used = sum(
                _gpus(pod) for pod in stored.pods.values()
                if pod.node == name and self._bound_s.get(pod.uid, 0.0) < self._led_since_s
            )  # fmt: skip
            used += sum(p.gpus for u, p in self.ledger.reserved.items() if p.node == name and _unbound(stored, u))  # fmt: skip
            allocatable = stored.nodes[name].allocatable.get(GPU, 0)
            if used > allocatable:
                self.violate("an admission ignores what runs", f"{gang}: {name} has {used} of {allocatable} GPUs with it")  # fmt: skip

    def _judge_victims(self, event: RecordedEvent) -> None:
        """Judge the victims of a preemption by their cost: none of them could stay, nor all of their priority.

        Victims of another preemption go anyway, and cost nothing; those that it may not evict itself count when they terminate (E-2).
        What is freed while a preemption is appended, its writer had not read.
        """
        data = event.data
        if not isinstance(data, PreemptionPlanned) or not (data.exhausted and data.assignments and data.victims):  # fmt: skip
            return
        leader = self._holder()
        job = next((j for j in self.run.controllers.jobs if j.ended_s is None and j.arrival and self._root(j) == event.gang_uid), None)  # fmt: skip
        if leader is None or job is None or job.arrival is None or not self._is_current(leader):
            return
        if self._has_freed_since(event):
            return
        lacking_of = self._lacking([(g, self._members(job, g)) for g in job.arrival.groups])
        if lacking_of is None:
            return
        stored = self.run.model.stored()
        free = self._free_for(event.gang_uid, job.arrival.priority)
        given_up = self._given_up_with(data, event.at_us)

        def fits_without(uids: Collection[str]) -> bool:
            freed = dict(free)
            for place, victims in given_up:
                if place.node in freed and not victims <= set(uids):
                    freed[place.node] -= place.gpus
            for pod in stored.pods.values():
                if pod.uid in uids and pod.node in freed:
                    freed[pod.node] += _gpus(pod)
            return _fits(lacking_of, freed, self._labels())

        pending = (self.ledger.claimed.keys() | self.ledger.claim_rests.keys()) - {event.gang_uid}
        leaving = {
            uid for gang in pending for uid in self.ledger.leaving.get(gang, ())
            if (pod := stored.pods.get(uid)) is None or pod.deleting or pod.priority < job.arrival.priority
        }  # fmt: skip
        costly = [u for u in data.victims if not leaving.issuperset(pod.uid for pod in u.pods)]
        highest = max((unit.priority for unit in costly), default=-math.inf)
        # no preemptor evicts the same unit twice, pods outside of groups neither
        paths = self.ledger.victim_paths.get(event.gang_uid, set())
        lower = {
            pod.uid for pod in stored.pods.values()
            if pod.uid in leaving or (pod.priority < highest and not pod.deleting and pod.path not in paths)
        }  # fmt: skip
        if costly and fits_without(lower):
            self.violate("a victim of higher priority than needed", f"{job.path}: {highest}")
        for unit in costly:
            others = leaving | {pod.uid for other in data.victims if other is not unit for pod in other.pods}  # fmt: skip
            if not unit.not_reprieved_reason and fits_without(others):
                self.violate("a victim that could stay", f"{job.path}: {unit.name}")

    def _given_up_with(self, plan: PreemptionPlanned, at_us: int) -> list[tuple[Place, set[str]]]:
        """Return the reservations that are released because their gang is a victim, and that stay without its eviction (E-10), with the pods of that unit.

        They stay while the gang has started and its minimum is not bound, and while the member may be bound already.
        """
        now_s = self.run.loop.time()
        return [
            (place, {pod.uid for pod in unit.pods})
            for unit in plan.victims
            for uid, (place, released_us) in self.ledger.given_up.items()
            if released_us == at_us
            and (
                place.gang not in self.ledger.scheduled
                or now_s - self._sent_s.get(uid, -math.inf) < UNSURE_S
            )
            and place.pod.startswith(f"{unit.path}-")
        ]

    def _holder(self) -> Replica | None:
        """Return the replica that has the lease, if it lives."""
        holder = self.run.database.shared.holder
        return next((r for r in self.run.replicas if r.name == holder and not r.process.dead), None)

    def _has_freed_since(self, event: RecordedEvent) -> bool:
        """Return whether objects may have freed capacity since the leader decided an event."""
        age_s = self.run.loop.time() - self.run.model.freed_s
        return age_s <= STALE_S and not self._is_of_now(event)

    def _is_of_now(self, event: RecordedEvent) -> bool:
        """Return whether the leader has decided an event with all pods and nodes as they are."""
        leader = self._holder()
        return (
            leader is not None
            and event.cause == f"cluster revision {leader.cluster.view().revision}"
            and self._is_current(leader)
        )

    def _is_current(self, replica: Replica) -> bool:
        """Return whether a replica has read all pods and nodes as they are."""
        read, stored = (
            (
                {pod.uid: (pod.node, pod.deleting) for pod in view.pods.values()},
                {node.name: node.unschedulable for node in view.nodes.values()},
            )
            for view in (replica.cluster.view(), self.run.model.stored())
        )
        return read == stored

    def _judge_refusal(self, event: RecordedEvent) -> None:
        """Judge a refusal by what is free; not if objects freed capacity lately that its writer had not read.

        What the log frees the writer has at once.
        """
        data, now_s = event.data, self.run.loop.time()
        if not isinstance(data, GangUnschedulable) or data.outcome != "impossible":
            return
        if now_s - self.run.troubled_until_s <= STALE_S:
            return
        if self._has_freed_since(event):
            return
        job = next((j for j in self.run.controllers.jobs if j.ended_s is None and j.arrival and self._root(j) == event.gang_uid), None)  # fmt: skip
        if job is None or job.arrival is None:
            return
        if any(place.gang == event.gang_uid for place in self.ledger.reserved.values()):
            return  # of more members
        lacking_of = self._lacking([(g, self._members(job, g)) for g in job.arrival.groups])
        free = self._free_for(event.gang_uid, job.arrival.priority)
        if lacking_of is not None and _fits(lacking_of, free, self._labels()):
            self.violate("a refusal is not true", f"{job.path} fits into {free}; {'; '.join(data.reasons)[:160]}")  # fmt: skip

    # --- safety

    def arrived(self, call: BindCallOf) -> None:
        """Note that a bind call began."""
        self._calls[call.uid].append(call)
        place = self.ledger.reserved.get(call.uid)
        if place is not None:
            self._arrived_s[place.gang] = call.began_s
        self.run.moment("waits at bind", {call.uid})

    def answered(self, call: BindCallOf, answer: str) -> None:
        """Judge the answer to a bind call."""
        self._read()
        failed_s = self._failed.pop(call.uid, -1.0)
        place = self.ledger.reserved.get(call.uid)
        now_s, leader = self.run.loop.time(), call.replica.leader
        if not answer or failed_s < call.began_s or now_s - failed_s > 1.0 or place is None:
            return
        pod = self.run.model.stored().pods.get(PodUid(call.uid))
        node = self.run.model.stored().nodes.get(NodeName(place.node))
        if pod is None or pod.node is not None or pod.deleting or node is None:
            return
        if self._admitted_s.get(call.uid, 0.0) > call.began_s:
            return  # its reservation is another one
        is_late = (now_s - call.began_s) * 1000 > self.run.settings.bind_post_within_ms
        taken = self._used(place.node) + place.gpus > node.allocatable.get(GPU, 0)
        if leader.may_act() and not leader.appends.in_flight and not is_late and not taken:
            self.violate("a Binding that failed is not tried again", f"{place.pod}: {answer}")

    def on_filtered(self, replica: Replica, pod: Pod, passed: Collection[str]) -> None:
        """Judge an answer of filter about a pod outside of groups."""
        self._read()
        now_s, stored = self.run.loop.time(), self.run.model.stored()
        if now_s < self.run.troubled_until_s:
            return
        if (
            replica.leader.committed.position != self.ledger.position
            or replica.leader.appends.in_flight
        ):
            return
        for name in passed:
            reserved = sum(
                p.gpus for u, p in self.ledger.reserved.items()
                if p.node == name and _unbound(stored, u) and u in stored.pods
                and stored.pods[PodUid(u)].priority >= pod.priority
            )  # fmt: skip
            used = sum(_gpus(p) for p in stored.pods.values() if p.node == name and self._bound_s.get(p.uid, 0.0) < now_s - 1.0)  # fmt: skip
            node = stored.nodes.get(NodeName(name))
            allocatable = node.allocatable.get(GPU, 0) if node is not None else 0
            if reserved and used + reserved <= allocatable < used + reserved + _gpus(pod):
                self.violate("filter offers reserved capacity", f"{name} to {pod.path}: {used} used, {reserved} reserved")  # fmt: skip

    def on_bound(self, pod: Pod) -> None:
        """Judge a Binding that kube-apiserver has accepted."""
        self._read()
        stored = self.run.model.stored()
        node = stored.nodes.get(pod.node or "")
        used = self._used(pod.node or "")
        self._bound_s[pod.uid] = self.run.loop.time()
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
        self._judge_alone(pod)

    def _judge_alone(self, pod: Pod) -> None:
        """Judge whether a tree that has its rack alone gets company by a Binding."""
        job, stored = self._job_of(pod), self.run.model.stored()
        node = stored.nodes.get(pod.node or "")
        if job is None or node is None or math.isfinite(self._restored_s):
            return
        there = [p for p in stored.pods.values() if p.group is not None and not p.deleting and self._rack(p.node) == node.labels.get(RACK)]  # fmt: skip
        jobs = [(j.path, p.node) for p in there if p.uid != pod.uid and (j := self._job_of(p)) is not None]  # fmt: skip
        if any(path == job.path for path, _ in jobs):
            return  # it is completed there
        # A node that joins the rack belongs to it, with what runs there, and nothing is moved (D20): the tree was placed
        # while it was away, or STALE_S after it was back, when who places may not have read of it.
        placed_s = self._admitted_s.get(pod.uid, math.inf)
        joined_s = {name: at_s + STALE_S for name, at_s in self.run.joined_s.items()}
        others = [path for path, on in jobs if joined_s.get(on or "", -math.inf) < placed_s]
        if other := next((path for path in others if ALONE in path + job.path), None):
            self.violate("a rack that a tree has alone has another tree", f"{pod.path} to {pod.node}, beside {other}")  # fmt: skip

    def _rack(self, name: str | None) -> str | None:
        node = self.run.model.stored().nodes.get(NodeName(name or ""))
        return node.labels.get(RACK) if node is not None else None

    def on_sending(self, cluster: ServedCluster, verb: str, uid: str) -> None:
        """Judge a write of a process as it is sent."""
        database, grant = self.run.database.shared, cluster.grant()
        holder = cluster.process.name.partition(".")[0]
        if grant is not None and database.holder != holder and not self._restored_lately():
            self.violate("a write without the lease", f"{verb} of {cluster.process.name}, while {database.holder} leads")  # fmt: skip
        pod = self.run.model.stored().pods.get(PodUid(uid))
        if verb == "bind" and pod is not None and pod.group is not None and pod.node is None:
            self._sent_s[uid] = self.run.loop.time()
            if not any(call.alive() for call in self._calls[uid]):
                self.violate("a Binding is sent though its caller has gone", pod.path)
            self._judge_minimum(pod)
        self.run.moment(verb, {uid})

    def on_caller_gone(self, caller: Process) -> None:
        """Note that kube-scheduler has died: its calls have ended."""
        for call in (c for calls in self._calls.values() for c in calls if c.caller is caller):
            if call.ended_s is None:
                call.ended_s = self.run.loop.time()

    def on_failed(self, verb: str, uid: str) -> None:
        """Note a write that failed."""
        if verb == "bind":
            self._failed[uid] = self.run.loop.time()
        elif verb in {"mark", "evict"}:
            self._refused_victims.add(uid)
        self.run.moment(f"{verb} fails", {uid})

    def _judge_minimum(self, pod: Pod) -> None:
        """Judge the first Binding of a tree of which nothing is bound: all of its minimum waits, or waited when it began."""
        job = self._job_of(pod)
        root = self._root(job) if job is not None and job.arrival is not None else None
        if job is None or job.arrival is None or root is None:
            return
        now_s = self.run.loop.time()
        members = {group.name: self._members(job, group) for group in job.arrival.groups}
        everyone = [m for ms in members.values() for m in ms]
        if any(m.node is not None for m in everyone) or job.ended_s is not None:
            return  # of a job that has ended, the minimum has succeeded: others may be bound until it is cleaned up
        waiting = [call for m in everyone for call in self._calls[m.uid] if call.alive()]
        if any(call.alive() for call in self._opened.get(root, ())):
            return
        admitted = self._leaf_uids.get(pod.uid)
        leaf = self.run.model.stored().groups.get(pod.group) if pod.group is not None else None
        again_s = self.run.again_s.get(str(pod.group), now_s)
        if leaf is not None and admitted != leaf.uid and min(now_s - again_s, now_s - self.run.troubled_until_s) > STALE_S:  # fmt: skip
            self.violate("bound by an admission from before its group", f"{pod.path}: {pod.group} was created again")  # fmt: skip
        self._opened[root] = waiting
        for group in job.arrival.groups:
            if group.minimum == 0:
                continue
            arrived = sum(
                any(call.alive() or (call.ended_s is not None and now_s - call.ended_s < 0.1) for call in self._calls[m.uid])
                for m in members[group.name]
            )  # fmt: skip
            lost = sum(now_s - at_s < RECENT_S for at_s, p in self._gone.values() if p.group == _key(job, group) and self._calls.get(p.uid))  # fmt: skip
            leaving = sum(m.deleting for m in members[group.name])
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

    def look(self, *, troubled: bool) -> None:
        """Look at everything; what is due counts from the end of the last trouble."""
        self._read()
        now_s = self.run.loop.time()
        changed = (self.ledger.position, self.run.model.version)
        if changed != self._changed:
            self._changed, self._changed_s = changed, now_s
        for uid, calls in list(self._calls.items()):
            self._calls[uid] = [c for c in calls if c.alive() or now_s - (c.ended_s or now_s) < RECENT_S]  # fmt: skip
        if self.run.defects.texts:
            self.violate("a defect was logged", self.run.defects.texts[0])
        self._compare_memory()
        due: dict[str, tuple[str, str]] = {}
        if self.run.scheduler_away:
            self._due_of_unused(due)
        elif troubled:
            self._since.clear()
            return
        else:
            self._due_of_claims(due)
            self._due_of_jobs(due)
            self._due_of_processes(due)
        self._since = {key: self._since.get(key, now_s) for key in due}
        for key, since_s in self._since.items():
            within_s = next((s for text, s in SOONER_S.items() if key.startswith(text)), WITHIN_S)
            if now_s - since_s >= within_s:
                self.violate(*due[key])

    def is_settled(self) -> bool:
        """Return whether nothing is due, and nothing will happen by itself that is worth waiting for."""
        ledger, stored, now_s = self.ledger, self.run.model.stored(), self.run.loop.time()
        now_us = self.run.clock.now_us()
        return not (
            self._since
            or now_s - self._changed_s < SETTLED_S
            or now_s - self.run.troubled_until_s < SETTLED_S
            or ledger.held
            or ledger.claimed
            or ledger.replaced
            or any(until_ms * 1000 > now_us for until_ms in ledger.rejected.values())
            or any(pod.deleting for pod in stored.pods.values())
            or any(_unbound(stored, uid) for uid in ledger.reserved)
            or (self.run.controllers.waits() and any(job.ends is not None and job.ended_s is None for job in self.run.controllers.jobs))
        )  # fmt: skip

    def _due_of_unused(self, due: dict[str, tuple[str, str]]) -> None:
        """Without kube-scheduler reservations are not used, and expire: so long after a member of their gang got one, arrived or was bound."""
        now_us, now_s = self.run.clock.now_us(), self.run.loop.time()
        stored = self.run.model.stored()
        started = {p.gang for (uid, _), p in self.ledger.assigned.items() if not _unbound(stored, uid)}  # fmt: skip
        # a group that was created again has members that were bound below the one before, and has started with them
        started |= {self._root(job) for job in self.run.controllers.jobs if job.arrival is not None and not all(_unbound(stored, uid) for uid in job.live)}  # fmt: skip
        for uid, place in self.ledger.reserved.items():
            unused_s = (now_us - self.ledger.used_us.get(place.gang, now_us)) / 1e6
            unused_s = min(unused_s, now_s - self._arrived_s.get(place.gang, -math.inf))
            if unused_s > self.run.settings.reservation_ttl_s and place.gang not in started | set(self.ledger.claimed):  # fmt: skip
                due[f"unused {uid}"] = ("an unused reservation does not expire", f"{place.node} for {place.pod}, unused for {unused_s:.0f} s")  # fmt: skip

    def _due_of_processes(self, due: dict[str, tuple[str, str]]) -> None:
        """What each process has read follows the objects, one of them leads, and calls are answered."""
        model = self.run.model
        stored = model.stored()
        objects = {pod.uid: pod.node for pod in stored.pods.values()}
        clusters = [(r.name, r.cluster) for r in self.run.replicas if not r.process.dead]
        for name, cluster in (*clusters, ("kube-scheduler", self.run.scheduler_cluster)):
            view = cluster.view()
            copy = {pod.uid: pod.node for pod in view.pods.values()}
            if copy != objects or set(view.groups) != set(stored.groups) or set(view.nodes) != set(stored.nodes):  # fmt: skip
                differ = sorted(set(copy.items()) ^ set(objects.items()), key=str)[:2]
                due[f"view {name}"] = ("a copy of the objects stays old", f"that of {name}: {differ}")  # fmt: skip
        anchors = model._anchors
        if self._lost_until and anchors and anchors[-1].position > self.ledger.position:
            due["loss "] = (
                "a loss of history is not recorded",
                f"the log ended at {self._lost_until}",
            )
        if not any(r.leader.may_act() and not r.process.dead for r in self.run.replicas):
            due["leader "] = ("no replica leads", str([r.leader.not_leading_reason for r in self.run.replicas]))  # fmt: skip
        for replica in self.run.replicas:
            position = replica.leader.committed.position
            if not replica.process.dead and position < self.ledger.position and not self._lost_until:  # fmt: skip
                due[f"behind {replica.name}"] = ("a copy of the log stays old", f"{replica.name} is at {position}, the log at {self.ledger.position}")  # fmt: skip
        for uid, calls in self._calls.items():
            pod = stored.pods.get(PodUid(uid))
            waits = [c for c in calls if c.alive() and not c.replica.process.dead]
            is_reserved = uid in self.ledger.reserved
            outdated = [c for c in waits if c.began_s < self._admitted_s.get(uid, 0.0)]
            if pod is not None and pod.node is not None:
                continue
            if outdated or (waits and not is_reserved):
                due[f"call {uid}"] = ("a bind call waits for nothing", f"{uid}: {self.ledger.released.get(uid, 'admitted again')}")  # fmt: skip

    def _compare_memory(self) -> None:
        """Compare the reservations in memory of a leader with the rows of the log."""
        for replica in self.run.replicas:
            leader = replica.leader
            if (
                replica.process.stopped
                or not leader.leads()
                or leader.appends.in_flight
                or self._lost_until
                or self._is_outdated(replica)
            ):
                continue
            state = leader.committed
            if leader.pending_state.position != state.position:
                self.violate("a reservation was lost", f"{leader.pending_state.position - state.position} events are pending, and none is appended")  # fmt: skip
            if state.position > self.ledger.position:
                self.violate("a reservation was lost", f"{replica.name} is at {state.position}, the log at {self.ledger.position}")  # fmt: skip
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

    def _is_outdated(self, replica: Replica) -> bool:
        """Return whether a replica leads by a lease that the older copy of the database, in place of the newer, does not have.

        It learns that at its next renewal; without an answer its lease runs out.
        """
        lease = replica.leader.lease
        if lease.grant is None or lease.grant.lease == self.run.database.shared.lease:
            return False
        return self._restored_lately() or (math.isfinite(self._restored_s) and not lease.holds())

    def _restored_lately(self) -> bool:
        """Return whether a lease of before the last older copy of the database may still count at its holder."""
        lately_s = self.run.loop.time() - self._restored_s
        return lately_s * 1000 <= self.run.database.shared.ttl_ms

    def _due_of_claims(self, due: dict[str, tuple[str, str]]) -> None:
        stored = self.run.model.stored()
        roots = {group.uid for group in stored.groups.values() if not group.deleting}
        behind_victims = {p.gang for uid, p in self.ledger.reserved.items() if self._is_behind_victims(stored.pods.get(PodUid(uid)), p.node)}  # fmt: skip
        for uid, place in self.ledger.reserved.items():
            pod = stored.pods.get(PodUid(uid))
            if pod is None or place.gang not in roots or (pod.deleting and pod.node is None):
                due[f"reservation {uid}"] = (
                    "a claim without an owner",
                    f"{place.node} is reserved for {place.pod}, which does not exist any more",
                )
            elif NodeName(place.node) not in stored.nodes:
                due[f"reservation {uid}"] = ("a claim without an owner", f"{place.node}, which does not exist, is reserved for {place.pod}")  # fmt: skip
            elif pod.node is None:
                if pod.gates:
                    due[f"gate {uid}"] = ("a gate is not removed", f"{place.pod} for {place.node}")
                # the minimum of a gang waits for each of its members
                if place.gang not in behind_victims:
                    due[f"unbound {uid}"] = ("reserved and never bound", f"{place.pod} for {place.node}")  # fmt: skip
        for text, table in (("preemption", self.ledger.claimed), ("hold", self.ledger.held)):
            for gang in table:
                if gang not in roots and gang not in stored.pods:
                    due[f"reservation {text} {gang}"] = ("a claim without an owner", f"a {text} of a tree that is gone")  # fmt: skip
        now_us = self.run.clock.now_us()
        for gang in self.ledger.held:
            if self.ledger.hold_until_us[gang] < now_us:
                due[f"hold {gang}"] = ("a hold never ends", f"a capacity hold of {gang}")
        for uid, (place, until_us) in self.ledger.replaced.items():
            if until_us < now_us:
                due[f"replacement {uid}"] = ("a hold never ends", f"{place.node} for a replacement of {place.pod}")  # fmt: skip
        for uid, (_, _, preemptor, gang) in self.ledger.victims.items():
            pod = stored.pods.get(PodUid(uid))
            is_due = gang in self.ledger.claimed and uid in self.ledger.leaving[gang]
            if is_due and pod is not None and not pod.deleting:
                text = "refused victim" if uid in self._refused_victims else "victim"
                due[f"{text} {uid}"] = ("a victim is not evicted", f"{pod.path} for {preemptor}")
        for name, node in stored.nodes.items():
            promised = sum(p.gpus for u, p in self.ledger.reserved.items() if p.node == name and _unbound(stored, u))  # fmt: skip
            used = self._used(name)
            if used + promised > node.allocatable.get(GPU, 0):
                due[f"overcommitted {name}"] = (
                    "more is reserved than a node has", f"{name}: {used} used, {promised} reserved",
                )  # fmt: skip

    def _is_behind_victims(self, pod: Pod | None, node: str) -> bool:
        """Return whether kube-scheduler refuses the node of a member while victims terminate there.

        It counts them, and the pods that are nominated to use what they free: see *No node rejection is learned behind the
        victims of another preemptor* in docs/explanation/design-decisions.md.
        """
        stored = self.run.model.stored()
        pods = stored.pods.values()
        is_left = any(p.deleting and p.node == node and p.uid in self.ledger.victims for p in pods)
        if pod is None or pod.node is not None or NodeName(node) not in stored.nodes or not is_left:
            return False
        nominated = sum(
            _gpus(p) for p in pods
            if p.nominated == node and p.node is None and p.uid != pod.uid and p.priority >= pod.priority
        )  # fmt: skip
        allocatable = stored.nodes[NodeName(node)].allocatable.get(GPU, 0)
        return self._used(node) + nominated + _gpus(pod) > allocatable

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
            groups = [stored.groups.get(_key(job, group)) for group, _ in leaves]
            if root is None or any(group is None or group.deleting for group in groups):
                continue
            if any(members for _, members in leaves) and root not in self.ledger.observed:
                due[f"verdict observed {root}"] = ("a tree is never looked at", job.path)
                continue
            lacking_of = self._lacking(leaves)
            if lacking_of is None:
                continue  # not complete
            reserved = any(place.gang == root for place in self.ledger.reserved.values())
            if not reserved and not self.ledger.claimed.get(root) and root not in self.ledger.refused and not any(m.node for _, members in leaves for m in members):  # fmt: skip
                due[f"verdict {root}"] = ("a complete tree has no verdict", job.path)
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
        for table in (ledger.claimed, ledger.claim_rests, ledger.held):
            kept += [p for places in table.values() for p in places]
        kept += [p for p, until_us in ledger.replaced.values() if until_us > now_us]
        for place in kept:
            if place.gang != root and place.node in free:
                free[place.node] -= place.gpus
        for (gang, node), until_ms in ledger.rejected.items():
            if gang == root and until_ms * 1000 > now_us:
                free.pop(node, None)
        for node in self._kept_out(root, [place for place in kept if place.gang != root]):
            free.pop(node, None)
        return dict(sorted(free.items()))

    def _kept_out(self, root: str, kept: Sequence[Place]) -> set[str]:
        """Return the nodes of racks that another tree has alone, or that have other trees where this one wants one alone."""
        jobs = {str(uid): job for job in self.run.controllers.jobs for uid in job.live}
        own = next((job for job in self.run.controllers.jobs if job.arrival and root and self._root(job) == root), None)  # fmt: skip
        places = [(pod.node or "", jobs[pod.uid].name) for pod in self.run.model.stored().pods.values() if pod.node and pod.group is not None and pod.uid in jobs and jobs[pod.uid] is not own]  # fmt: skip
        places += [(place.node, _leaf(place.pod)) for place in kept]
        is_alone = own is not None and own.name.startswith(ALONE)
        racks = {self._rack(node) for node, name in places if own is not None and (is_alone or name.startswith(ALONE))}  # fmt: skip
        return {name for name in self.run.model.stored().nodes if self._rack(name) in racks}

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
