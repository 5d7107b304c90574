"""Execute admissions: nominate every member on its node, then remove our gate. Once per reservation.

A nomination that disappears later is not written again. After a restart, what the view shows as done is not
repeated. Nothing is written without the lease.

Members with required pod affinity or topology spread, which kube-scheduler checks against pods that it has placed,
and members for which it commits volumes or claims, are released in order: each stage when the one before it is
bound or at bind. A member without gate is held back by filter until its stage, and then retried by kube-scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto

from immutables import Map, MapMutation

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue, retried
from extender.control.log.leader import Leader
from extender.control.published.shared_state import RefusedPod
from extender.core.admit.gate_removal_order import GateRemovalStages, next_to_release, spread_rules
from extender.core.admit.native_gang_scheduling import native_on
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim, ClaimsOnNode
from extender.core.log.reservation_state import (
    ChangedMembers,
    Reservation,
    ReservationState,
    claims_of,
    claims_of_kind,
    reservation_of,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pods import GATE, Pod
from extender.core.model.quantities import add_amounts
from extender.core.reconcile.reservation_checks import is_unassigned
from extender.core.verbs.filter_and_prioritize import fits_beside_held, is_refused_member
from extender.ports.cluster_ports import Cluster, PodRef
from extender.ports.log_ports import Clock
from extender.runtime.periodic import ObjectFaults
from extender.settings import API_REQUESTS_MAX

log = logging.getLogger(__name__)

# Members are nominated tree after tree: a failure does not change their order.
# kube-scheduler looks at so many feasible nodes, whatever percentageOfNodesToScore is (minFeasibleNodesToFind).
NODES_ALL_OFFERED = 100
RETRIES = RetryPolicy(first_s=0.05, max_s=2.0, after_failure="repeat")
CLEAR_RETRIES = RetryPolicy(first_s=1.0, max_s=2.0, after_failure="continue")


class Step(Enum):
    """What is to be done next for a reservation."""

    NOTHING = auto()  # the view shows it as done
    RELEASE = auto()  # nominate the member, and remove its gate
    RELEASE_IN_TURN = auto()  # the same, when its topology spread allows it
    WAIT = auto()  # the stage of the member has not come


class Nominator:
    """Writes nominations and removes gates from a queue, a bounded number at a time."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leader,
        arrived: Callable[[PodUid], bool],
        held_back: set[PodUid],
        delay_s: float = 0.0,
    ) -> None:
        """Prepare.

        Args:
            arrived: Returns whether kube-scheduler has placed a member.
            delay_s: After the removal of its gate a member of a small cluster is nominated if it is not at bind by
                then; 0: members are nominated before their gate is removed.
        """
        self._delay_s = delay_s
        self._cluster = cluster
        self._leader = leader
        self._arrived = arrived
        self._queue = WorkQueue(
            "nominations",
            self._execute,
            leader.until_may_act,
            workers=API_REQUESTS_MAX,
            policy=RETRIES,
        )
        self._queue.name_of = self._name_of
        self._stale = WorkQueue(
            "stale nominations", self._clear, leader.until_may_act, workers=1, policy=CLEAR_RETRIES
        )
        self._stale.name_of = lambda uid: self._clearing[uid].path if uid in self._clearing else uid
        self._faults: ObjectFaults[str] = ObjectFaults("nominations")
        self._promised: dict[PodUid, CapacityClaim] = {}
        self._started: Map[PodUid, PlanId] = Map()
        self._changed_members = ChangedMembers()
        self._changed: set[PodUid] = set()  # since the last run that was not ended by a defect
        self._let_go: dict[PodUid, PlanId] = {}  # gate removed, to be nominated if they are late
        # pods that are no members, and could take the capacity of a member
        self._others_wait = False
        self._later: set[PodUid] = set()  # reserved, and waiting for their stage
        self._clearing: dict[PodUid, Pod] = {}  # pods with a stale nomination
        self._held_back = held_back

    @property
    def released(self) -> Mapping[PodUid, PlanId]:
        """Return the plan of each member whose stage has come; the mapping does not change."""
        return self._started

    @property
    def has_later_stages(self) -> bool:
        """Return whether members with a reservation wait for others to be placed."""
        return bool(self._later)

    def sync(self, view: ClusterView, state: ReservationState) -> None:
        """Queue every reservation that has not been executed yet, tree after tree.

        A tree is bound when its last member is at bind; alternating between trees would delay all of them.
        """
        stages = GateRemovalStages(view, state, self._arrived)
        at_once = native_on(state.features)
        fresh: list[Reservation] = []
        in_turn: list[Reservation] = []  # topology spread: some of them may be released now
        started = self._started.mutate()
        self._changed |= self._changed_members.since_last(view, state)
        for reservation in self._to_look_at(state, started):
            uid = reservation.uid
            step = Step.WAIT  # also after a defect: it is looked at again
            if not self._faults.waits(reservation.pod):
                with self._faults.alone(reservation.pod):
                    step = next_step(reservation, view, stages, self._held_back, at_once=at_once)
            self._later.discard(uid)
            match step:
                case Step.NOTHING:
                    started[uid] = reservation.plan
                case Step.RELEASE:
                    started[uid] = reservation.plan
                    fresh.append(reservation)
                case Step.RELEASE_IN_TURN:
                    in_turn.append(reservation)
                case Step.WAIT:
                    self._later.add(uid)
        self._started = started.finish()
        if in_turn:
            fresh += self._release_in_turn(view, state, in_turn, {r.uid for r in fresh})
        self._let_go = {u: plan for u, plan in self._let_go.items() if self._started.get(u) == plan}
        self._held_back -= {
            u for u in self._held_back & self._changed if not is_unassigned(view.pods.get(u))
        }
        if fresh and self._delay_s > 0 and len(view.nodes) <= NODES_ALL_OFFERED:
            self._others_wait = any(
                pod.node is None and pod.group is None and not pod.gates and not pod.deleting
                for pod in view.pods.values()
            )
        for reservation in sorted(fresh, key=lambda r: (-r.priority, r.at_us, r.gang_uid, r.pod)):
            self._queue.add(reservation.uid)
        candidates = self._changed | self._promised.keys()
        self._queue_promised(view, state)
        self._clear_stale(view, candidates)
        self._changed = set()

    def _to_look_at(
        self, state: ReservationState, started: MapMutation[PodUid, PlanId]
    ) -> list[Reservation]:
        """Return the reservations that are new, or wait for their stage; forget those that have ended."""
        due: list[Reservation] = []
        for uid in self._changed | self._later:
            reservation = reservation_of(state, uid)
            if reservation is not None and started.get(uid) == reservation.plan:
                continue
            started.pop(uid, None)
            if reservation is not None:
                due.append(reservation)
            else:
                self._later.discard(uid)
        return due

    def _release_in_turn(
        self,
        view: ClusterView,
        state: ReservationState,
        in_turn: list[Reservation],
        fresh: Collection[PodUid],
    ) -> list[Reservation]:
        """Return the members whose topology spread allows their release now; the others wait."""
        released = self._started
        waiting = [
            r
            for r in claims_of_kind(state, "reservation")
            if released.get(r.uid) == r.plan
            and r.uid not in fresh
            and is_unassigned(view.pods.get(r.uid))
        ]
        in_turn.sort(key=lambda r: r.pod)
        now = list(next_to_release(view, in_turn, waiting, self._arrived))
        self._started = released.update({r.uid: r.plan for r in now})
        self._later |= {r.uid for r in in_turn} - {r.uid for r in now}
        return now

    def _queue_promised(self, view: ClusterView, state: ReservationState) -> None:
        """Queue the nominations of gated members whose victims still terminate.

        By these kube-scheduler keeps the freed capacity from pods of lower or equal priority, also from pods for which it does
        not call this extender.
        """
        before, self._promised = self._promised, {}
        fresh: list[CapacityClaim] = []
        for claim in claims_of((), state.preemptions.values(), ()):
            uid = claim.uid
            pod = view.pods.get(uid)
            if pod is None or GATE not in pod.gates or uid in self._started or uid in self._later:
                continue
            self._promised[uid] = claim
            if before.get(uid) != claim and pod.nominated != claim.node:
                fresh.append(claim)
        # the map's order differs in each process
        for claim in sorted(fresh, key=lambda c: (-c.priority, c.at_us, c.gang_uid, c.pod)):
            self._queue.add(claim.uid)

    def _clear_stale(self, view: ClusterView, candidates: Iterable[PodUid]) -> None:
        """Queue the removal of nominations of members without a reservation or claim: kube-scheduler counts them until the pod is gone.

        Args:
            candidates: Pods that have changed since the last run, or whose claim or reservation has ended.
        """
        before, self._clearing = self._clearing, {}
        for uid in {*before, *candidates}:
            pod = view.nominated.get(uid)
            is_used = uid in self._started or uid in self._later or uid in self._promised
            if pod is not None and pod.group is not None and not is_used:
                self._clearing[uid] = pod
        fresh = [pod for uid, pod in self._clearing.items() if uid not in before]
        for pod in sorted(fresh, key=lambda p: p.path):  # the set's order differs in each process
            self._stale.add(pod.uid)
        self._stale.retain_only(self._clearing.keys())

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(), name="nominations")
            group.create_task(self._stale.run(), name="stale nominations")

    def _name_of(self, uid: PodUid) -> str:
        claim = self._claim_of(uid)
        return uid if claim is None else claim.pod

    async def _clear(self, uid: PodUid) -> Retry | None:
        if (pod := self._clearing.get(uid)) is None:  # planned again, or gone
            return None
        clearing = self._cluster.nominate(PodRef.at(pod.path, uid), None)
        return await retried(clearing, log, "nomination not cleared", pod=pod.name)

    async def _execute(self, uid: PodUid) -> Retry | None:
        claim = self._claim_of(uid)
        if claim is None:
            return None
        # of a rejected one the member was deleted or recreated: reconcile releases it
        return await retried(self._carry_out(claim), log, "member not nominated", pod=claim.pod)

    def _claim_of(self, uid: PodUid) -> CapacityClaim | None:
        """Return what is to be executed for a member: its released reservation, or what its preemption frees for it."""
        plan = self._started.get(uid)
        if plan is not None:
            held = reservation_of(self._leader.committed, uid)
            return held if held is not None and held.plan == plan else None
        claim = self._promised.get(uid)
        return claim if claim is not None and self._is_current(claim) else None

    def _is_current(self, claim: CapacityClaim) -> bool:
        """Return whether a reservation or claim is still in the committed state."""
        now = self._leader.committed.claims_on.get(claim.node, NO_CLAIMS).get(claim.key)
        return now is not None and now.plan == claim.plan

    async def _carry_out(self, claim: CapacityClaim) -> None:
        """Nominate a member and remove its gate, after the queue has waited until this process may act.

        The nomination of a member that kube-scheduler finds without it comes last, if it is needed at all.
        """
        pod = PodRef.at(claim.pod, claim.uid)
        view = self._cluster.view()
        member = view.pods.get(claim.uid)
        if claim.kind == "reservation":
            let_go = self._let_go.get(claim.uid) == claim.plan
            has_node = member is not None and member.node is not None
            if let_go and (has_node or self._arrived(claim.uid)):
                return
            if not let_go and member is not None and self._needs_no_nomination(view, member):
                await self._cluster.remove_gate(pod)
                self._let_go[claim.uid] = claim.plan
                self._queue.add_after(claim.uid, self._delay_s)
                return
        nominated = member.nominated if member is not None else None
        if nominated == claim.node and _was_held_back(member, claim.uid, self._held_back):
            # Only a change makes kube-scheduler retry the pod.
            await self._cluster.nominate(pod, None)
            nominated = None
            if not await self._wait_and_recheck(claim):
                return
        if nominated != claim.node:
            await self._cluster.nominate(pod, claim.node)
        self._held_back.discard(claim.uid)
        if claim.kind == "preemption":
            # Its gate stays until the capacity is free.
            return
        has_gate = claim.uid not in self._let_go and (member is None or GATE in member.gates)
        if has_gate and await self._wait_and_recheck(claim):
            await self._cluster.remove_gate(pod)

    def _needs_no_nomination(self, view: ClusterView, pod: Pod) -> bool:
        """Return whether kube-scheduler will find the node of a member without a nomination, which costs a request.

        It offers every feasible node to filter where there are at most `NODES_ALL_OFFERED`, and filter passes the
        reserved one. A member that was refused before, or that other gates hold, is nominated first; so is every
        member while other pods wait, because only the nomination keeps those from its node that filter does not see.
        """
        return (
            self._delay_s > 0
            and not self._others_wait
            and pod.gates == (GATE,)
            and pod.nominated is None
            and not pod.by_field
            and not _was_held_back(pod, pod.uid, self._held_back)
            and len(view.nodes) <= NODES_ALL_OFFERED
        )

    async def _wait_and_recheck(self, claim: CapacityClaim) -> bool:
        """Wait until this process may act; return whether the write is still wanted then."""
        await self._leader.until_may_act()
        return self._is_current(claim)


def next_step(
    reservation: Reservation,
    view: ClusterView,
    stages: GateRemovalStages,
    held_back: set[PodUid],
    *,
    at_once: bool,
) -> Step:
    """Return what is to be done for a reservation that was not released before.

    Args:
        at_once: Whether kube-scheduler schedules groups itself: members that are in their group by `schedulingGroup`
            have no stages then, because it waits for the whole group.
    """
    pod = view.pods.get(reservation.uid)
    if pod is not None and pod.node is not None:
        return Step.NOTHING
    done = pod is not None and pod.nominated == reservation.node and GATE not in pod.gates
    if at_once and pod is not None and pod.by_field:
        return Step.NOTHING if done else Step.RELEASE
    if stages.must_wait(reservation):
        return Step.WAIT
    if done and not _was_held_back(pod, reservation.uid, held_back):
        return Step.NOTHING
    return Step.RELEASE_IN_TURN if spread_rules(view, reservation) else Step.RELEASE


def _was_held_back(pod: Pod | None, uid: PodUid, held_back: set[PodUid]) -> bool:
    """Return whether filter has refused a member before its plan or its stage, under this leader or, by its condition, an earlier one."""
    return uid in held_back or (pod is not None and is_refused_member(pod))


REMOVING_WORKERS = 4  # beside those of the nominator
REMOVAL_PAUSE_S = 0.5


class GateRemover:
    """Removes our gate from members without a reservation, for kube-scheduler's own group scheduling or for autoscalers.

    See `native_gang_scheduling.gates_to_remove` (K55) and `plan_request.refused_members`.
    """

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        # Queued, or removed and not seen yet
        self._due: Mapping[PodUid, Pod] = {}
        self._queue = WorkQueue(
            "gate removal",
            self._remove,
            leader.until_may_act,
            workers=REMOVING_WORKERS,
            policy=RetryPolicy(
                first_s=REMOVAL_PAUSE_S, max_s=REMOVAL_PAUSE_S, after_failure="rest"
            ),
        )
        self._queue.name_of = lambda uid: self._due[uid].path if uid in self._due else uid
        self.run = self._queue.run

    def sync(self, held: Iterable[Pod]) -> None:
        """Queue the members whose gate is to be removed, and drop queued members that are not in `held`."""
        before, self._due = self._due, {pod.uid: pod for pod in held}
        self._queue.retain_only(self._due.keys())
        for uid in self._due:
            if uid not in before:
                self._queue.add(uid)

    async def _remove(self, uid: PodUid) -> Retry | None:
        if (pod := self._due.get(uid)) is None:  # it has a reservation now, or is gone
            return None
        ref = PodRef.at(pod.path, uid)
        return await retried(self._cluster.remove_gate(ref), log, "gate not removed", pod=pod.name)


WAKE_UPS_PER_S = 10
# The longest back-off of kube-scheduler is 10 s: a pod that it has not bound by then has no use for its nomination
WAKE_UP_ENDS_S = 15.0
PAIRS_MAX = 2_500  # of a refused pod and a node, looked at in one pass: some 50 ms


class PodWaker:
    """Wakes pods outside of gangs that filter refused for capacity that is no longer held.

    kube-scheduler tries a refused pod again after a change of the cluster, or minutes later (K26), and the end of a claim
    is no change. A nomination wakes the pod, and has it try that node first (K21). A pod is nominated only where it fits beside
    those that were nominated before it. A nomination that does not end in a Binding is cleared, because it keeps others off (K22).
    """

    def __init__(
        self,
        cluster: Cluster,
        leader: Leader,
        clock: Clock,
        refused: dict[PodUid, RefusedPod],
    ) -> None:
        """Prepare; `refused`: the pods without a node, which filter adds and removes."""
        self._cluster = cluster
        self._leader = leader
        self._clock = clock
        self._refused = refused
        self._targets: dict[PodUid, NodeName] = {}  # of pods that are to be nominated, or were
        self._woken: set[PodUid] = set()  # nominated
        self._queue = WorkQueue(
            "nominations",
            self._wake_or_clear,
            leader.until_may_act,
            workers=1,
            policy=CLEAR_RETRIES,
        )
        self._queue.name_of = self._path_of
        self.run = self._queue.run

    def sync(self, view: ClusterView, state: ReservationState) -> None:
        """Queue the refused pods for which a node has capacity now, because claims on it have changed."""
        for uid in [u for u in self._targets if not is_unassigned(view.pods.get(u))]:
            self._forget(uid)
        self._drop_gone(view)
        # by their id, the claims that are compared with the present ones
        compared: dict[int, tuple[object, frozenset[NodeName]]] = {}
        due: list[tuple[Pod, frozenset[NodeName]]] = []
        for uid, refused in self._refused.items():
            before = refused.claims_on
            if before is state.claims_on or uid in self._targets or refused.unseen_until_ms:
                continue
            if id(before) not in compared:
                names = (n for n in before if state.claims_on.get(n) is not before[n])
                compared[id(before)] = (before, frozenset(names))
            if nodes := refused.nodes & compared[id(before)][1]:
                due.append((view.pods[uid], nodes))
            else:
                refused.claims_on = state.claims_on
        if not due:
            return
        expected = self._expected(view)
        due.sort(key=lambda entry: (-entry[0].priority, entry[0].created_us, entry[0].path))
        pairs = 0
        for pod, nodes in due:
            if pairs and pairs + len(nodes) > PAIRS_MAX:
                break  # the next pass goes on
            pairs += len(nodes)
            self._refused[pod.uid].claims_on = state.claims_on
            if node := self._free_node(view, state, pod, nodes, expected):
                self._targets[pod.uid] = node
                expected.setdefault(node, {})[pod.uid] = pod
                self._queue.add(pod.uid)

    def _drop_gone(self, view: ClusterView) -> None:
        """Forget the refused pods that are gone or have a node; those that are yet to be shown are expected for a time."""
        now_ms = self._clock.monotonic_ms()
        for uid, refused in [*self._refused.items()]:
            if uid in view.pods:
                refused.unseen_until_ms = 0
            if refused.unseen_until_ms <= now_ms and not is_unassigned(view.pods.get(uid)):
                del self._refused[uid]

    def _free_node(
        self,
        view: ClusterView,
        state: ReservationState,
        pod: Pod,
        nodes: frozenset[NodeName],
        expected: Mapping[NodeName, Mapping[PodUid, Pod]],
    ) -> NodeName | None:
        """Return the first node, by name, where a pod fits beside what is held and the pods that are expected."""
        for name in sorted(nodes) if pod.nominated is None else nodes & {pod.nominated}:
            if _fits_beside(view, name, pod, expected.get(name, {})) and fits_beside_held(
                view, state, name, pod
            ):
                return name
        return None

    def _expected(self, view: ClusterView) -> dict[NodeName, dict[PodUid, Pod]]:
        """Return by node the pods that are nominated there, or will be."""
        expected: dict[NodeName, dict[PodUid, Pod]] = {}
        for uid, pod in view.nominated.items():
            if pod.nominated is not None and pod.node is None:
                expected.setdefault(pod.nominated, {})[uid] = pod
        for uid, node in self._targets.items():
            expected.setdefault(node, {})[uid] = view.pods[uid]
        return expected

    def _forget(self, uid: PodUid) -> None:
        self._targets.pop(uid, None)
        self._woken.discard(uid)

    def _give_up(self, uid: PodUid, node: NodeName) -> None:
        """Forget a pod that is not expected on a node any more, and let the other refused pods look at that node again."""
        self._forget(uid)
        renewed: dict[int, tuple[object, Map[NodeName, ClaimsOnNode]]] = {}
        for other, refused in self._refused.items():
            before = refused.claims_on
            if other != uid and node in refused.nodes:
                if id(before) not in renewed:
                    renewed[id(before)] = (before, before.set(node, NO_CLAIMS))
                refused.claims_on = renewed[id(before)][1]

    def _path_of(self, uid: PodUid) -> str:
        pod = self._cluster.view().pods.get(uid)
        return uid if pod is None else pod.path

    async def _wake_or_clear(self, uid: PodUid) -> Retry | None:
        """Nominate a pod, or clear its nomination when its time is over."""
        node, view = self._targets.get(uid), self._cluster.view()
        pod = view.pods.get(uid)
        if node is None or pod is None or not is_unassigned(pod):
            return None
        ref, retry = PodRef.at(pod.path, uid), None
        if uid in self._woken:
            if pod.nominated == node:
                clearing = self._cluster.nominate(ref, None)
                retry = await retried(clearing, log, "nomination not cleared", pod=pod.name)
            if retry is None:
                self._give_up(uid, node)
            return retry
        # an admission that is not committed yet may have the capacity
        states = (self._leader.committed, self._leader.pending_state)
        fits = all(fits_beside_held(view, state, node, pod) for state in states)
        if uid not in self._refused or not fits:
            self._give_up(uid, node)
            return None
        # only a change wakes it
        waking = self._cluster.nominate(ref, None if pod.nominated == node else node)
        retry = await retried(waking, log, "refused pod not woken", pod=pod.name)
        if retry is None:
            self._woken.add(uid)
            self._queue.add_after(uid, WAKE_UP_ENDS_S)
            await asyncio.sleep(1 / WAKE_UPS_PER_S)
        return retry


def _fits_beside(
    view: ClusterView, name: NodeName, pod: Pod, expected: Mapping[PodUid, Pod]
) -> bool:
    """Return whether a pod fits on a node beside the pods there and those that are expected, whatever is held."""
    node = view.nodes.get(name)
    if node is None or node.unschedulable or node.deleting:
        return False
    used = dict(view.usage.get(name, NOTHING).requests)
    for uid, other in expected.items():
        if uid != pod.uid and other.priority >= pod.priority:
            add_amounts(used, dict(other.shape.requests))
    return all(
        used.get(resource, 0) + amount <= node.allocatable.get(resource, 0)
        for resource, amount in pod.shape.requests
        if amount
    )
