"""Execute admissions: nominate every member on its node, then remove our gate. Once per reservation.

A nomination that disappears later is not written again. After a restart, what the view shows as done is not
repeated. Nothing is written without the lease.

Members with required pod affinity or topology spread, which kube-scheduler checks against pods that it has placed,
and members for which it commits volumes or claims, are released in order: each stage when the one before it is
bound or at bind. A member without gate is held back by filter until its stage, and then retried by kube-scheduler.

Gated members whose victims still terminate are nominated too: so kube-scheduler keeps the freed capacity from pods
of lower or equal priority, also from pods for which it does not call this extender.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import msgspec

from extender.control.log.leader import Leader
from extender.control.published.held_back_members import HeldBackMembers
from extender.core.decisions.admit.gate_removal_order import (
    GateRemovalStages,
    next_to_release,
    spread_rules,
)
from extender.core.decisions.admit.plan_request import GATE
from extender.core.decisions.reconcile.reservation_checks import unassigned
from extender.core.decisions.verbs.filter_and_prioritize import COMMITTED_LAST, reservation_of
from extender.core.log.control_plane_features import native_on
from extender.core.log.preemption_state import CapacityClaim
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import PlanId, PodUid, RootUid
from extender.ports.cluster_ports import Cluster, PodRef

log = logging.getLogger(__name__)

WORKERS = 24  # connections to the API server that an ordinary account may use at once (DESIGN 9.4)
RETRY_S_MAX = 2.0


class ClaimedSeat(msgspec.Struct, frozen=True):
    """Capacity that becomes free for a gated member when victims are gone."""

    preemption: PlanId
    root_uid: RootUid
    claim: CapacityClaim


class Nominator:
    """Writes nominations and removes gates from a queue, a bounded number at a time."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leader,
        arrived: Callable[[PodUid], bool],
        held_back: HeldBackMembers,
    ) -> None:
        """Prepare.

        Args:
            cluster: What is written to.
            leader: Knows whether this process may act.
            arrived: Returns whether kube-scheduler has placed a member.
            held_back: Members that filter refused before their stage.
        """
        self._cluster = cluster
        self._leader = leader
        self._arrived = arrived
        self._queue: asyncio.Queue[Reservation | ClaimedSeat] = asyncio.Queue()
        self._claimed_seats: dict[PodUid, ClaimedSeat] = {}
        self._started: dict[PodUid, PlanId] = {}
        self._later: set[PodUid] = set()  # reserved, and waiting for their stage
        self._stale: asyncio.Queue[PodRef] = asyncio.Queue()
        self._clearing: set[PodUid] = set()
        self._held_back = held_back

    @property
    def released(self) -> Mapping[PodUid, PlanId]:
        """Return the plan of each member whose stage has come; `sync` replaces the mapping."""
        return self._started

    def sync(self, view: ClusterView, state: ReservationState) -> None:
        """Queue every reservation that has not been executed yet, tree after tree.

        A tree is bound when its last member is at bind; alternating between trees would delay all of them.
        """
        fresh: list[Reservation] = []
        current: dict[PodUid, PlanId] = {}
        later: set[PodUid] = set()
        in_turn: list[Reservation] = []  # topology spread: some of them may be released now
        at_once = native_on(state.features)
        done: list[Reservation] = []
        stages = GateRemovalStages(view, state, self._arrived)
        for held in state.held_on.values():
            for reservation in held.values():
                known = self._started.get(reservation.uid) == reservation.plan
                if known or _assigned(view, reservation.uid):
                    current[reservation.uid] = reservation.plan
                    done.append(reservation)
                elif at_once and _named_by_field(view, reservation):
                    current[reservation.uid] = (
                        reservation.plan
                    )  # no stages: kube-scheduler waits for the whole group
                    if not _done(view, reservation):
                        fresh.append(reservation)
                elif stages.must_wait(reservation):
                    later.add(reservation.uid)
                elif _done(view, reservation) and not self._is_held_back(view, reservation.uid):
                    current[reservation.uid] = reservation.plan
                    done.append(reservation)
                elif spread_rules(view, reservation):
                    in_turn.append(reservation)
                else:
                    current[reservation.uid] = reservation.plan
                    fresh.append(reservation)
        if in_turn:
            in_turn.sort(key=lambda r: r.pod)
            waiting = [r for r in done if unassigned(view, r.uid)]
            later |= {r.uid for r in in_turn}
            for reservation in next_to_release(view, in_turn, waiting, self._arrived):
                current[reservation.uid] = reservation.plan
                fresh.append(reservation)
                later.discard(reservation.uid)
        for reservation in sorted(fresh, key=lambda r: (-r.priority, r.at_us, r.root_uid, r.pod)):
            self._queue.put_nowait(reservation)
        self._started, self._later = current, later
        self._held_back.retain({*current, *later})
        self._queue_claimed_seats(view, state)
        self._clear_stale(view)

    def _queue_claimed_seats(self, view: ClusterView, state: ReservationState) -> None:
        """Queue the nominations of gated members whose victims still terminate."""
        before, self._claimed_seats = self._claimed_seats, {}
        for seat in claimed_seats(state):
            uid = seat.claim.uid
            pod = view.pods.get(uid)
            if pod is None or GATE not in pod.gates or uid in self._started or uid in self._later:
                continue
            self._claimed_seats[uid] = seat
            if before.get(uid) != seat and pod.nominated != seat.claim.node:
                self._queue.put_nowait(seat)

    def _clear_stale(self, view: ClusterView) -> None:
        """Queue the removal of nominations without a reservation, which kube-scheduler still counts."""
        stale = {
            pod.uid
            for pod in view.nominated.values()
            if pod.group is not None
            and not pod.deleting
            and pod.uid not in self._started
            and pod.uid not in self._later
            and pod.uid not in self._claimed_seats
        }
        for uid in stale - self._clearing:
            pod = view.pods[uid]
            self._stale.put_nowait(PodRef(namespace=pod.namespace, name=pod.name, uid=uid))
        self._clearing = stale

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"effects {number}")
            group.create_task(self._clear(), name="effects, stale nominations")

    async def _clear(self) -> None:
        while True:
            pod = await self._stale.get()
            await self._leader.until_may_act()
            if pod.uid in self._started or pod.uid in self._claimed_seats:
                continue  # planned again meanwhile
            try:
                await self._cluster.nominate(pod, None)
            except RequestRejected as error:
                log.info("nomination not cleared", extra={"pod": pod.name, "error": str(error)})
            except ClusterUnavailable as error:
                log.warning(
                    "nomination not cleared yet", extra={"pod": pod.name, "error": str(error)}
                )
                self._clearing.discard(pod.uid)  # the next pass queues it again

    async def _work(self) -> None:
        while True:
            seat = await self._queue.get()
            pod = seat.pod if isinstance(seat, Reservation) else seat.claim.pod
            pause_s = 0.05
            while self._wanted(seat):
                try:
                    await self._carry_out(seat)
                    break
                except RequestRejected as error:  # deleted or recreated: reconcile releases it
                    log.info("member not nominated", extra={"pod": pod, "error": str(error)})
                    break
                except ClusterUnavailable as error:
                    log.warning(
                        "member not nominated yet",
                        extra={"pod": pod, "error": str(error)},
                    )
                    await asyncio.sleep(max(pause_s, error.retry_after_s))
                    pause_s = min(pause_s * 2, RETRY_S_MAX)

    def _wanted(self, seat: Reservation | ClaimedSeat) -> bool:
        """Return whether a reservation or claim is still in the committed state."""
        state = self._leader.committed
        if isinstance(seat, ClaimedSeat):
            preemption = state.preemptions.get(seat.root_uid)
            return (
                preemption is not None
                and preemption.id == seat.preemption
                and seat.claim in preemption.claims.get(seat.claim.node, ())
            )
        now = reservation_of(state, seat.uid)
        return now is not None and now.plan == seat.plan

    async def _carry_out(self, seat: Reservation | ClaimedSeat) -> None:
        about = seat.claim if isinstance(seat, ClaimedSeat) else seat
        namespace, _, name = about.pod.partition("/")
        pod = PodRef(namespace=namespace, name=name, uid=about.uid)
        view = self._cluster.view()
        known = view.pods.get(about.uid)
        if (
            known is not None
            and known.nominated == about.node
            and self._is_held_back(view, about.uid)
        ):
            if not await self._wait_and_recheck(seat):
                return
            await self._cluster.nominate(
                pod, None
            )  # only a change makes kube-scheduler retry the pod
            known = None
        if known is None or known.nominated != about.node:
            if not await self._wait_and_recheck(seat):
                return
            await self._cluster.nominate(pod, about.node)
        self._held_back.discard(about.uid)
        if isinstance(seat, ClaimedSeat):
            return  # its gate stays until the capacity is free
        seen = view.pods.get(about.uid)
        if (seen is None or GATE in seen.gates) and await self._wait_and_recheck(seat):
            await self._cluster.remove_gate(pod)

    def _is_held_back(self, view: ClusterView, uid: PodUid) -> bool:
        """Return whether filter has held a member back, under this leader or an earlier one."""
        pod = view.pods.get(uid)
        return uid in self._held_back or (pod is not None and COMMITTED_LAST in pod.unschedulable)

    async def _wait_and_recheck(self, seat: Reservation | ClaimedSeat) -> bool:
        """Wait until this process may act; return whether the write is still wanted then."""
        await self._leader.until_may_act()
        return self._wanted(seat)


def claimed_seats(state: ReservationState) -> Iterator[ClaimedSeat]:
    """Yield the claimed capacity of all pending preemptions."""
    for root_uid, preemption in state.preemptions.items():
        for claims in preemption.claims.values():
            for claim in claims:
                yield ClaimedSeat(preemption.id, root_uid, claim)


def _named_by_field(view: ClusterView, reservation: Reservation) -> bool:
    pod = view.pods.get(reservation.uid)
    return pod is not None and pod.by_field


def _assigned(view: ClusterView, uid: PodUid) -> bool:
    pod = view.pods.get(uid)
    return pod is not None and pod.node is not None


def _done(view: ClusterView, reservation: Reservation) -> bool:
    pod = view.pods.get(reservation.uid)
    if pod is None:
        return False
    return pod.node is not None or (pod.nominated == reservation.node and GATE not in pod.gates)
