"""The bind barrier: no member of a gang is bound before its whole minimum has reached bind (K33).

A barrier belongs to a root and the group with the minimum: the root, or below basic-policy parents the first gang.
It opens when the members that are bound or have arrived meet that minimum; later members are bound as they
arrive, because a started gang is completed. Calls wait as long as further members arrive, up to the time that their Bindings need: kube-scheduler brings members one
after the other, so a large gang takes longer than a small one. After the deadline every waiting call gets an error and
none is bound. Its reservations are released and the tree is planned again, unless the gang has started and they
complete its minimum.

Nothing here survives a restart: kube-scheduler calls again, and the informers show which pods are bound.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeAlias

import msgspec

from extender.control.log.leader import Leader
from extender.core.admit.gate_removal_order import unit_key
from extender.core.capacity.capacity_claims import released_pods
from extender.core.log import events as ev
from extender.core.log.gang_phase import missing
from extender.core.log.reservation_state import (
    STILL_ARRIVING,
    GangState,
    Reservation,
    ReservationState,
    reservation_of,
)
from extender.core.model.errors import (
    ClusterUnavailable,
    NotLeading,
    RequestRejected,
    StoreUnavailable,
)
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from extender.core.model.pods import Pod
from extender.core.reconcile.reservation_checks import OversubscriptionTracker, is_unassigned
from extender.ports.cluster_ports import Binding, Cluster, PodRef
from extender.ports.log_ports import Clock
from extender.runtime.periodic import ObjectFaults
from extender.runtime.wakeup import Wakeup
from extender.settings import API_REQUESTS_MAX, Settings


class _Mark(msgspec.Struct, frozen=True):
    plan: PlanId
    since_ms: int  # monotonic
    message: str  # the PodScheduled message before the mark


class PreBindTracker:
    """The members with volumes or claims between filter and bind."""

    def __init__(self, clock: Clock, counts_s: float) -> None:
        """Prepare; `counts_s`: how long a marked member counts as arrived."""
        self._clock = clock
        self._counts_ms = counts_s * 1000
        self._marks: dict[PodUid, _Mark] = {}

    def mark(self, reservation: Reservation, pod: Pod) -> bool:
        """Mark a member; return False if it counted as arrived already."""
        before, had_arrived = self._marks.get(pod.uid), self.has_arrived(reservation)
        message = before.message if before is not None and had_arrived else pod.unschedulable
        self._marks[pod.uid] = _Mark(reservation.plan, self._clock.monotonic_ms(), message)
        return not had_arrived

    def unmark(self, uid: PodUid) -> None:
        """Remove the mark of a member."""
        self._marks.pop(uid, None)

    def clear(self) -> None:
        """Remove all marks."""
        self._marks.clear()

    def retain_reserved(self, state: ReservationState) -> None:
        """Remove the marks of members without the reservation of their mark."""
        for uid, mark in list(self._marks.items()):
            held = reservation_of(state, uid)
            if held is None or held.plan != mark.plan:
                del self._marks[uid]

    def has_arrived(self, reservation: Reservation) -> bool:
        """Return whether a member counts as arrived by its mark."""
        mark = self._marks.get(reservation.uid)
        if mark is None or mark.plan != reservation.plan:
            return False
        return self._clock.monotonic_ms() - mark.since_ms < self._counts_ms

    def arrived_of(self, root: GangState) -> tuple[Reservation, ...]:
        """Return the reservations of a root whose members count as arrived."""
        held = (root.reservations.get(uid) for uid in self._marks)
        return tuple(r for r in held if r is not None and self.has_arrived(r))

    def in_progress(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has not changed the message of a pod since its mark, of any age."""
        mark = self._marks.get(pod.uid)
        return mark is not None and mark.message == pod.unschedulable


log = logging.getLogger(__name__)

RETRY_S_MAX = 1.0
# after a Binding without an answer: by then the informers show whether the pod is bound
UNSURE_MS = 15_000
STILL_ARRIVING_S = 5.0  # since the last member
DEFECT = "internal error, see the log of gang-extender"
RELEASED = "the reservation of pod {pod} was released; it will be planned again"
TOO_LATE = "too late: kube-scheduler is about to give this call up"
UnitKey: TypeAlias = tuple[str, str]  # kind and name: a leaf may have the name of its root


class BindCall(msgspec.Struct, eq=False):
    """One call of the bind verb that waits for its answer."""

    pod: PodRef
    node: NodeName
    arrived_ms: int  # monotonic
    alive: Callable[[], bool]  # whether the caller is still connected
    answer: asyncio.Future[str]  # error text; empty when bound


class _Arrival(msgspec.Struct, eq=False):
    """A member that has reached bind, with all calls for it."""

    reservation: Reservation
    calls: list[BindCall]
    posting: bool = False

    def alive(self) -> bool:
        return any(call.alive() for call in self.calls)

    def finish(self, error: str) -> None:
        for call in self.calls:
            if not call.answer.done():
                call.answer.set_result(error)


class _Barrier:
    """The members of one unit that have arrived and are not answered yet."""

    def __init__(self, gang_uid: GangUid, key: UnitKey) -> None:
        self.gang_uid = gang_uid
        self.key = key
        self.unit = key[1]  # name, for log lines
        self.label = f"{key[0]} {key[1]} of {gang_uid}"
        self.arrivals: dict[PodUid, _Arrival] = {}
        # bound, maybe not seen by the informers yet: leaf by UID
        self.posted: dict[PodUid, str] = {}
        self.sent: set[PodUid] = set()  # Binding in flight
        self.opened = False
        # by member: until then its unanswered Binding may show (monotonic)
        self.unsure_until_ms: dict[PodUid, int] = {}
        self.first_ms = 0
        self.latest_s = 0.0  # when the latest member arrived, by the clock of the event loop
        self.missing_count = 0  # members that must still arrive before the next count
        self.timer: asyncio.Task[None] | None = None
        self.root: GangState | None = None  # with which the arrivals were compared last

    def group(self, root: GangState) -> ev.GroupRecord | None:
        """Return the group with the minimum; None: it is not in the newest admission."""
        return next((g for g in root.groups if (g.kind, g.name) == self.key), None)

    def count_arrival(self) -> None:
        """Count one more member that has arrived."""
        self.latest_s = asyncio.get_running_loop().time()
        self.missing_count -= 1

    def unsure(self, now_ms: int) -> list[PodUid]:
        """Return the members whose Binding got no answer, and may still show."""
        return [uid for uid, until_ms in self.unsure_until_ms.items() if now_ms < until_ms]

    def waits(self) -> bool:
        """Return whether members have arrived, and more must arrive before the barrier can open."""
        return bool(self.arrivals) and self.missing_count > 0 and not self.opened


class BindBarriers:
    """All barriers of this process."""

    def __init__(
        self, *, cluster: Cluster, leader: Leader, clock: Clock, settings: Settings
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._clock = clock
        self._settings = settings
        self._barriers: dict[tuple[GangUid, UnitKey], _Barrier] = {}
        self._progress_us: dict[GangUid, int] = {}
        self.prebinding = PreBindTracker(clock, settings.barrier_limit_s)
        self._oversubscription = OversubscriptionTracker()
        self._slots = asyncio.Semaphore(API_REQUESTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: ObjectFaults[str] = ObjectFaults("bind barriers", clock.monotonic_ms)
        self.wakeup = Wakeup()  # wakes the control loop

    # -- for the control loop -------------------------------------------------------------------

    def started(self) -> frozenset[GangUid]:
        """Return the roots of which members are, or may be, bound: they are not released as a whole."""
        now_ms = self._clock.monotonic_ms()
        return frozenset(
            b.gang_uid for b in self._barriers.values() if b.opened or b.unsure(now_ms)
        )

    def binding(self) -> frozenset[PodUid]:
        """Return the members whose Binding is in flight, or succeeded and is maybe not seen yet."""
        return frozenset(uid for b in self._barriers.values() for uid in (*b.sent, *b.posted))

    def maybe_bound(self) -> frozenset[PodUid]:
        """Return the members that may be bound already: those of `binding`, and those whose Binding got no answer lately."""
        now_ms = self._clock.monotonic_ms()
        unsure = (uid for b in self._barriers.values() for uid in b.unsure(now_ms))
        return self.binding().union(unsure)

    def posted(self) -> frozenset[PodUid]:
        """Return the members whose Binding the API server accepted."""
        return frozenset(uid for b in self._barriers.values() for uid in b.posted)

    def at_bind(self, uid: PodUid) -> bool:
        """Return whether a member is at bind now."""
        arrivals = (barrier.arrivals.get(uid) for barrier in self._barriers.values())
        return any(arrival is not None and arrival.alive() for arrival in arrivals)

    def members_at_bind(self) -> frozenset[PodUid]:
        """Return the members that are at bind now."""
        arrivals = (a for barrier in self._barriers.values() for a in barrier.arrivals.items())
        return frozenset(uid for uid, arrival in arrivals if arrival.alive())

    def arrived(self, uid: PodUid) -> bool:
        """Return whether kube-scheduler has placed a member: it is at bind, or its volumes and claims are committed."""
        reservation = reservation_of(self._leader.committed, uid)
        prebinding = reservation is not None and self.prebinding.has_arrived(reservation)
        return prebinding or self.at_bind(uid)

    def mark_prebinding(self, reservation: Reservation, pod: Pod) -> None:
        """Count a member with volumes or claims as arrived, because filter has let it through, as the last of its gang.

        What kube-scheduler commits for it between filter and bind cannot be undone, and a volume may take minutes (K35).
        """
        if not self.prebinding.mark(reservation, pod):
            return
        self._progress_us[reservation.gang_uid] = self._clock.now_us()
        root = self._leader.committed.gangs[reservation.gang_uid]
        unit = unit_key(root, reservation.group)
        barrier = self._barriers.get((root.uid, unit)) if unit is not None else None
        if barrier is not None and not barrier.opened and barrier.arrivals:
            barrier.count_arrival()
            if barrier.missing_count <= 0:
                self._evaluate(barrier)
        self.wakeup.wake()  # the next stage of gate removals may begin

    def progress_us(self, gang_uid: GangUid) -> int:
        """Return when a member of this root last arrived (wall clock), or 0. It is forgotten when none has a reservation."""
        return self._progress_us.get(gang_uid, 0)

    def sync(self, state: ReservationState) -> None:
        """Drop arrivals without a current reservation and barriers without reservations; evaluate the others."""
        for key, barrier in list(self._barriers.items()):
            root = state.gangs.get(barrier.gang_uid)
            if root is not None and root is barrier.root and barrier.waits():
                continue  # each arrival was compared with this state when it came
            if self._faults.attempt(barrier.label, functools.partial(self._compare, barrier, root)):
                barrier.root = root
            if (root is None or not root.reservations) and not barrier.arrivals:
                self._stop_timer(barrier)
                del self._barriers[key]
        # the tracker keeps its last view, and with it all pods of that time, in memory
        if not self._barriers:
            self._oversubscription = OversubscriptionTracker()
        self.prebinding.retain_reserved(state)
        self._progress_us = {
            uid: at_us
            for uid, at_us in self._progress_us.items()
            if (root := state.gangs.get(uid)) is not None and root.reservations
        }

    def _compare(self, barrier: _Barrier, root: GangState | None) -> None:
        """Drop what a barrier has of ended reservations, close it if nothing is bound any more, and open it if its minimum has arrived."""
        barrier.posted = {
            uid: leaf for uid, leaf in barrier.posted.items() if self._may_be_unseen(root, uid)
        }
        self._close_unless_started(barrier)
        for uid, arrival in list(barrier.arrivals.items()):
            current = root.reservations.get(uid) if root is not None else None
            if not arrival.posting and (
                current is None or current.plan != arrival.reservation.plan
            ):
                del barrier.arrivals[uid]
                arrival.finish(RELEASED.format(pod=arrival.reservation.pod))
        if not barrier.opened and barrier.arrivals:
            self._evaluate(barrier)  # the minimum may be lower now, or more of it bound

    # -- the bind verb --------------------------------------------------------------------------

    async def bind(self, call: BindCall) -> str:
        """Hold a call until its member may be bound, bind it, and return the error text, or an empty string."""
        reservation = reservation_of(self._leader.committed, call.pod.uid)
        if reservation is None:
            return f"pod {call.pod.namespace}/{call.pod.name} holds no reservation; it will be planned again"
        if reservation.node != call.node:
            return (
                f"pod {reservation.pod} has its reservation on node {reservation.node}, "
                f"not on {call.node}; nothing was bound"
            )
        root = self._leader.committed.gangs[reservation.gang_uid]
        unit = unit_key(root, reservation.group)
        if unit is None:
            return f"group {reservation.group} of pod {reservation.pod} left its gang; it will be planned again"
        barrier = self._barriers.setdefault((root.uid, unit), _Barrier(root.uid, unit))
        self._close_unless_started(barrier)  # its bound members may be lost since the last pass
        self._arrive(barrier, reservation, call)
        if barrier.opened or barrier.missing_count <= 0:
            self._evaluate(barrier)
        return await call.answer

    def _arrive(self, barrier: _Barrier, reservation: Reservation, call: BindCall) -> None:
        self._progress_us[barrier.gang_uid] = self._clock.now_us()
        if not any(other.alive() for other in barrier.arrivals.values()):
            self._stop_timer(barrier)  # no live caller: restart the deadline
        arrival = barrier.arrivals.get(call.pod.uid)
        if arrival is None or (
            arrival.reservation.plan != reservation.plan and not arrival.posting
        ):
            if arrival is not None:
                arrival.finish("superseded by a later call for another plan")
            arrival = barrier.arrivals[call.pod.uid] = _Arrival(reservation, [])
        if not arrival.alive():
            barrier.count_arrival()
        # from here on its connection shows whether it waits
        self.prebinding.unmark(reservation.uid)
        arrival.calls.append(call)
        if not barrier.opened and barrier.timer is None:
            barrier.first_ms = self._clock.monotonic_ms()
            barrier.timer = self._spawn(self._expire(barrier), f"barrier {barrier.unit}")

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _evaluate(self, barrier: _Barrier) -> None:
        """Open the barrier if its minimum has arrived, and bind the arrived members of an open one."""
        root = self._leader.committed.gangs.get(barrier.gang_uid)
        if root is None:
            return
        if not barrier.opened:
            counts = self._counts(barrier, root)
            unit = barrier.group(root)
            barrier.missing_count = missing(root.groups, counts, unit) if unit is not None else 0
            if unit is None or barrier.missing_count:
                return
            if self._overtaken(arrival.reservation for arrival in barrier.arrivals.values()):
                self.wakeup.wake()  # the next pass releases the reservations and answers all calls
                return
            barrier.opened = True
            self._stop_timer(barrier)
            log.info(
                "barrier open",
                extra={
                    "gang": root.gang,
                    "unit": barrier.unit,
                    "arrived": len(barrier.arrivals),
                    "waited_ms": self._clock.monotonic_ms() - barrier.first_ms,
                },
            )
        for arrival in list(barrier.arrivals.values()):
            if not arrival.posting:
                arrival.posting = True
                self._spawn(self._post(barrier, arrival), f"bind {arrival.reservation.pod}")

    def _counts(self, barrier: _Barrier, root: GangState) -> dict[str, int]:
        """Return by leaf how many members are bound, at bind, or committed before bind, or have succeeded."""
        leaves = {uid: member.group for uid, member in root.bound.items()}
        leaves |= {r.uid: r.group for r in self.prebinding.arrived_of(root)}
        for uid, arrival in barrier.arrivals.items():
            current = root.reservations.get(uid)
            if current is not None and current.plan == arrival.reservation.plan and arrival.alive():
                leaves[uid] = current.group
        leaves |= {u: leaf for u, leaf in barrier.posted.items() if self._may_be_unseen(root, u)}
        return Counter(leaves.values()) + Counter(root.succeeded)

    def _stop_timer(self, barrier: _Barrier) -> None:
        if barrier.timer is not None and barrier.timer is not asyncio.current_task():
            barrier.timer.cancel()
        barrier.timer = None

    # -- binding --------------------------------------------------------------------------------

    async def _post(self, barrier: _Barrier, arrival: _Arrival) -> None:
        try:
            async with self._slots:
                error = await self._post_binding(barrier, arrival)
        except Exception as defect:  # noqa: BLE001 -- logged and counted by `failed`
            self._faults.failed(arrival.reservation.pod, defect)
            error = DEFECT
        barrier.arrivals.pop(arrival.reservation.uid, None)
        arrival.finish(error)
        self._close_unless_started(barrier)

    def _close_unless_started(self, barrier: _Barrier) -> None:
        """Close an open barrier of which no member is bound: callers disconnected, the lease expired, or all bound ones are lost."""
        if not barrier.opened or any(arrival.posting for arrival in barrier.arrivals.values()):
            return
        if not self._is_started(barrier, self._leader.committed.gangs.get(barrier.gang_uid)):
            barrier.opened = False

    def _is_started(self, barrier: _Barrier, root: GangState | None) -> bool:
        """Return whether a member of a barrier is bound."""
        bound = root.bound.values() if root is not None else ()
        return any(root and unit_key(root, m.group) == barrier.key for m in bound) or any(
            self._may_be_unseen(root, uid) for uid in barrier.posted
        )

    def _may_be_unseen(self, root: GangState | None, uid: PodUid) -> bool:
        """Return whether a posted member is bound although its PodBound is not in the log: its reservation stays, or the view shows it unbound."""
        is_reserved = root is not None and uid in root.reservations
        return is_reserved or is_unassigned(self._cluster.view().pods.get(uid))

    async def _post_binding(self, barrier: _Barrier, arrival: _Arrival) -> str:
        """Post the Binding, retrying 429 and 5xx while a caller waits; return the error text, or an empty string."""
        reservation = arrival.reservation
        pause_s = 0.05
        problem = ""
        while True:
            refusal = self._may_post(arrival)
            if problem and refusal == TOO_LATE:
                await self._record_failure(reservation, problem)
                return f"{refusal}; {problem}"
            if refusal:
                return refusal
            binding = Binding(
                pod=arrival.calls[-1].pod, node=reservation.node, plan=reservation.plan
            )
            barrier.sent.add(reservation.uid)
            try:
                await self._cluster.bind(binding)
            except ClusterUnavailable as error:
                problem = str(error)
                barrier.unsure_until_ms[reservation.uid] = self._clock.monotonic_ms() + UNSURE_MS
                barrier.sent.discard(reservation.uid)
                log.warning("bind retried", extra={"pod": reservation.pod, "error": problem})
                await asyncio.sleep(max(pause_s, error.retry_after_s))
                pause_s = min(pause_s * 2, RETRY_S_MAX)
            except RequestRejected as error:
                await self._record_failure(reservation, str(error))
                return str(error)
            else:
                barrier.posted[reservation.uid] = reservation.group
                return ""
            finally:
                barrier.sent.discard(reservation.uid)

    def _may_post(self, arrival: _Arrival) -> str:
        """Return the reason why a Binding must not be posted now, or an empty string."""
        reservation = arrival.reservation
        if not self._leader.may_act():
            return "cannot answer now: the lease has run out"
        # A release in the pending state counts too: its capacity is already given to other pods.
        for state in (self._leader.committed, self._leader.pending_state):
            current = reservation_of(state, reservation.uid)
            if current is None or (current.plan, current.node) != (
                reservation.plan,
                reservation.node,
            ):
                return RELEASED.format(pod=reservation.pod)
        if self._overtaken([reservation]):
            self.wakeup.wake()
            return f"other pods took the reserved capacity of pod {reservation.pod}; it will be planned again"
        live = [call for call in arrival.calls if call.alive()]
        if not live:
            return "the caller has gone"
        age_ms = self._clock.monotonic_ms() - max(call.arrived_ms for call in live)
        return TOO_LATE if age_ms > self._settings.bind_post_within_ms else ""

    def _overtaken(self, reservations: Iterable[Reservation]) -> bool:
        """Return whether the view shows other pods in the capacity of one of these, before a pass has recorded it."""
        view, state = self._cluster.view(), self._leader.committed
        on_node: dict[NodeName, set[PodUid]] = {}  # each node is examined once
        for reservation in reservations:
            on_node.setdefault(reservation.node, set()).add(reservation.uid)
        return any(
            uid in uids
            for node, uids in on_node.items()
            for uid in self._oversubscription.oversubscribed_on(view, state, node)
        )

    async def _record_failure(self, reservation: Reservation, error: str) -> None:
        data = ev.PodBindFailed(
            plan=reservation.plan,
            pod=reservation.pod,
            uid=reservation.uid,
            node=reservation.node,
            error=error,
        )
        try:
            if reservation.gang_uid in self._leader.pending_state.gangs:  # else the tree is gone
                await self._leader.append([self._draft(reservation, data, "bind verb")])
        except (NotLeading, StoreUnavailable) as fault:
            log.warning(
                "bind failure not recorded", extra={"pod": reservation.pod, "error": str(fault)}
            )
        self.wakeup.wake()

    def _draft(self, reservation: Reservation, data: ev.AnyEventData, cause: str) -> ev.NewEvent:
        root = self._leader.pending_state.gangs[reservation.gang_uid]
        source = ev.EventSource(actor=self._settings.identity, cause=cause)
        return source.draft(root.uid, root.gang, data)

    # -- the deadline ---------------------------------------------------------------------------

    async def _expire(self, barrier: _Barrier) -> None:
        still_arriving = await self._deadline(barrier)
        barrier.timer = None
        error = DEFECT
        with self._faults.alone(barrier.label):
            # members whose callers have disconnected do not count as arrived
            for uid, arrival in list(barrier.arrivals.items()):
                if not arrival.posting and not arrival.alive():
                    del barrier.arrivals[uid]
                    arrival.finish("the caller has gone")
            self._evaluate(barrier)
            if barrier.opened:
                return
            error = ""
        arrivals = dict(barrier.arrivals)
        barrier.arrivals.clear()
        if arrivals and not error:
            error = DEFECT
            with self._faults.alone(barrier.label):
                error = await self._record_expiry(barrier, arrivals, still_arriving=still_arriving)
        for arrival in arrivals.values():
            arrival.finish(error)
        if arrivals:
            self.wakeup.wake()

    async def _deadline(self, barrier: _Barrier) -> bool:
        """Wait as long as members arrive, up to the limit; return whether they still arrived then."""
        now_s = asyncio.get_running_loop().time
        timeout_s, limit_s = self._settings.barrier_timeout_s, self._settings.barrier_limit_s
        first_s = now_s()
        while (left_s := min(barrier.latest_s + timeout_s, first_s + limit_s) - now_s()) > 0:  # noqa: ASYNC110 - moves
            await asyncio.sleep(left_s)
        return now_s() - barrier.latest_s < min(timeout_s, STILL_ARRIVING_S)

    async def _record_expiry(
        self, barrier: _Barrier, arrivals: dict[PodUid, _Arrival], *, still_arriving: bool
    ) -> str:
        root = self._leader.pending_state.gangs.get(barrier.gang_uid)
        reserved = root.reservations.items() if root is not None else ()
        unit = {uid: r for uid, r in reserved if root and unit_key(root, r.group) == barrier.key}
        if root is None or not unit:
            return "the gang was released while its members waited"
        any_held = next(iter(unit.values()))
        came = {r.uid for r in self.prebinding.arrived_of(root)} | set(arrivals)
        for uid in unit:
            self.prebinding.unmark(uid)
        waited_ms = self._clock.monotonic_ms() - barrier.first_ms
        events: list[ev.AnyEventData] = [
            ev.BindBarrierTimedOut(
                plan=any_held.plan,
                waited_ms=waited_ms,
                arrived=tuple(sorted(r.pod for uid, r in unit.items() if uid in came)),
                missing=tuple(sorted(r.pod for uid, r in unit.items() if uid not in came)),
                still_arriving=still_arriving,
            )
        ]
        started = self._is_started(barrier, root)
        placed = Counter(member.group for member in root.bound.values())
        placed.update(reservation.group for reservation in root.reservations.values())
        placed.update(root.succeeded)
        # members without a reservation are missing: no arrival opens the barrier
        if not started or missing(root.groups, placed, barrier.group(root)):
            released = released_pods(sorted(unit.values(), key=lambda r: r.pod))
            text = "the minimum did not reach bind in time"
            events.append(
                ev.ReservationReleased(
                    plan=any_held.plan, reason="expired", pods=released, message=text
                )
            )
        try:
            await self._leader.append([self._draft(any_held, f, "bind barrier") for f in events])
        except (NotLeading, StoreUnavailable) as fault:
            log.warning("expiry not recorded", extra={"gang": root.gang, "error": str(fault)})
        return (
            f"gang {root.gang}: not all of its minimum reached bind within {waited_ms // 1000} s, no member was bound"
            f"{STILL_ARRIVING if still_arriving else ''}"
        )

    def fail_waiting_calls(self) -> None:
        """Answer all waiting calls with an error, because this process does not lead any more."""
        for barrier in self._barriers.values():
            self._stop_timer(barrier)
            for uid, arrival in list(barrier.arrivals.items()):
                if not arrival.posting:
                    del barrier.arrivals[uid]
                    arrival.finish(
                        f"cannot answer now: {self._leader.not_ready_reason() or 'stopping'}"
                    )
        self.prebinding.clear()
        # the next leader sees bound pods in the cluster
        self._barriers = {key: b for key, b in self._barriers.items() if b.arrivals}

    async def stop(self) -> None:
        """Answer all waiting calls with an error, and wait for Bindings in flight."""
        self.fail_waiting_calls()
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.shutdown_grace_s)
