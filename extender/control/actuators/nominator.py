"""Carry admissions out: nominate every member on its node, then lift our gate. Once per reservation.

A nomination that vanished later is evidence for whoever looks, never a cue to write it again. After
a restart what the view shows as done is not done again. Nothing happens outside the lease.

Members that kube-scheduler judges by what it has placed (required pod affinity, topology spread), and those for
which it commits volumes or claims, are let go in turn, as those before them are bound or at bind. Who has lost
its gate already is held back by filter meanwhile, and woken when its turn comes.

Members that wait for victims to go are nominated as well where our gate holds them: kube-scheduler does not
look at them yet, and keeps the room that comes free from pods of lower and equal priority, also from those that
no filter call of ours is asked about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import msgspec

from extender.control.log.leader import Leader
from extender.core.decisions.admit.gate_removal_order import (
    GateRemovalStages,
    spread_rules,
    whose_turn,
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
from extender.ports.protocols import Cluster, PodRef

log = logging.getLogger(__name__)

WORKERS = 24  # connections to the API server that an ordinary account may use at once (DESIGN 9.4)
RETRY_S_MAX = 2.0


class ClaimedSeat(msgspec.Struct, frozen=True):
    """Room that comes free for a gated member when victims are done."""

    preemption: PlanId
    root_uid: RootUid
    claim: CapacityClaim


class Nominator:
    """Works off nominations and gates, a bounded number at a time."""

    def __init__(self, cluster: Cluster, leader: Leader, arrived: Callable[[PodUid], bool]) -> None:
        """Prepare.

        Args:
            cluster: Where effects happen.
            leader: Says whether they may.
            arrived: Says whether kube-scheduler has placed a member now.
        """
        self._cluster = cluster
        self._leader = leader
        self._arrived = arrived
        self._queue: asyncio.Queue[Reservation | ClaimedSeat] = asyncio.Queue()
        self._claimed_seats: dict[PodUid, ClaimedSeat] = {}
        self._started: dict[PodUid, PlanId] = {}
        self._later: set[PodUid] = set()  # hold room, and wait until others are at bind
        self._stale: asyncio.Queue[PodRef] = asyncio.Queue()
        self._clearing: set[PodUid] = set()
        self._held_back: set[PodUid] = set()  # refused by filter before their turn: they sleep

    def held_back(self, reservation: Reservation) -> bool:
        """Say whether it is not a member's turn yet to have volumes and claims committed."""
        return self._started.get(reservation.uid) != reservation.plan

    def mark_held_back(self, uid: PodUid) -> None:
        """Hear that filter has held a member back: kube-scheduler looks at it again when it is woken."""
        self._held_back.add(uid)

    def sync(self, view: ClusterView, state: ReservationState) -> None:
        """Take on every held reservation that has not been carried out yet, tree after tree.

        A tree is bound when its last member has come; members of many trees in turns would leave all of
        them waiting for the end.
        """
        fresh: list[Reservation] = []
        current: dict[PodUid, PlanId] = {}
        later: set[PodUid] = set()
        in_turn: list[Reservation] = []  # spread: some of them may go now
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
                    )  # no turns: it waits for all of a group
                    if not _done(view, reservation):
                        fresh.append(reservation)
                elif stages.comes_later(reservation):
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
            for reservation in whose_turn(view, in_turn, waiting, self._arrived):
                current[reservation.uid] = reservation.plan
                fresh.append(reservation)
                later.discard(reservation.uid)
        for reservation in sorted(fresh, key=lambda r: (-r.priority, r.at_us, r.root_uid, r.pod)):
            self._queue.put_nowait(reservation)
        self._started, self._later = current, later
        self._held_back &= {*current, *later}
        self._queue_claimed_seats(view, state)
        self._clear_stale(view)

    def _queue_claimed_seats(self, view: ClusterView, state: ReservationState) -> None:
        """Take on the nominations of gated members for whom victims are going."""
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
        """Take nominations off members that hold no room any more: kube-scheduler still counts them."""
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
        """Work for ever."""
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
                self._clearing.discard(pod.uid)  # the next pass asks again

    async def _work(self) -> None:
        while True:
            seat = await self._queue.get()
            pod = seat.pod if isinstance(seat, Reservation) else seat.claim.pod
            pause_s = 0.05
            while self._wanted(seat):
                try:
                    await self._carry_out(seat)
                    break
                except (
                    RequestRejected
                ) as error:  # done or recreated: the informer tells, reconcile releases
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
        """Say whether a seat still stands: in the log as we know it now, not only at the last look."""
        state = self._leader.acknowledged
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
            await self._cluster.nominate(pod, None)  # what does not change wakes nobody
            known = None
        if known is None or known.nominated != about.node:
            if not await self._wait_and_recheck(seat):
                return
            await self._cluster.nominate(pod, about.node)
        self._held_back.discard(about.uid)
        if isinstance(seat, ClaimedSeat):
            return  # its gate stays until the room is there
        seen = view.pods.get(about.uid)
        if (seen is None or GATE in seen.gates) and await self._wait_and_recheck(seat):
            await self._cluster.lift_gate(pod)

    def _is_held_back(self, view: ClusterView, uid: PodUid) -> bool:
        """Say whether a member was held back by filter, by us or by who led before."""
        pod = view.pods.get(uid)
        return uid in self._held_back or (pod is not None and COMMITTED_LAST in pod.unschedulable)

    async def _wait_and_recheck(self, seat: Reservation | ClaimedSeat) -> bool:
        """Wait for the lease, immediately before each request, and say whether it is still wanted then."""
        await self._leader.until_may_act()
        return self._wanted(seat)


def claimed_seats(state: ReservationState) -> Iterator[ClaimedSeat]:
    """Give the seats that pending preemptions make."""
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
