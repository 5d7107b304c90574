"""Make moves from the log: evict one pod at a time through the Eviction API, when the one before runs on its new node.

The plan is durable before the first request, and all state is in the log: after a restart the current pod is looked at again, and
evicted by UID if it still runs. The control loop records what became of it (`decide`), and users pause, resume and stop
the moves.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.control.log.leader import Leader
from extender.core.log import events as ev
from extender.core.log.gang_phase import HOLDS_CAPACITY, WaitingGangs
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import (
    BadInput,
    ClusterUnavailable,
    NotFound,
    NotLeading,
    QueryUnavailable,
    RequestRejected,
    StoreUnavailable,
    TooManyQueries,
)
from extender.core.model.ids import NIL_GANG, GangUid, PlanId, PodUid
from extender.core.model.pod_groups import Forest
from extender.core.model.visibility import namespace_of
from extender.core.planner.moves.move_types import Move
from extender.core.planner.plan_types import PLANNER_VERSION, DecisionInput
from extender.core.preempt.moves_lifecycle import (
    MovesContext,
    decide_moves,
    ended,
    lost_place,
    what_keeps,
)
from extender.ports.cluster_ports import Cluster, K8sEvent, PodRef
from extender.ports.log_ports import Clock, DecisionInputs
from extender.ports.query_ports import EventFilter, EventQueries
from extender.runtime.periodic import PeriodicTask
from extender.runtime.stall_timer import IdleTimes
from extender.settings import Settings
from extender.telemetry import HOUR_US, METRICS

log = logging.getLogger(__name__)

RETRIES = RetryPolicy(first_s=2.0, max_s=30.0, after_failure="continue")


class MoveController:
    """Makes the moves that are under way."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leader,
        inputs: DecisionInputs,
        clock: Clock,
        settings: Settings,
        forest_of: Callable[[ClusterView], Forest],
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._inputs = inputs
        self._clock = clock
        self._settings = settings
        self._forest_of = forest_of
        self._queue: WorkQueue[PodUid] = WorkQueue(
            "moves",
            self._process,
            leader.until_may_act,
            workers=1,
            policy=RETRIES,
            now_s=lambda: clock.monotonic_ms() / 1000,
        )
        self.run = self._queue.run
        self._idle: IdleTimes[PlanId] = IdleTimes(clock)
        self._refusal = ""  # of the API server, for the last eviction
        self.waits_for = ""  # why the pod of the current move is not evicted

    # -- for users ---------------------------------------------------------------------------------

    async def begin(
        self,
        question: str,
        moves: Sequence[Move],
        request: bytes,
        by: str,
        *,
        proved: bool,
        tree: str = "",
    ) -> PlanId:
        """Record moves, which are made from then on; return their id.

        Args:
            question: What they make room for.
            request: The canonical input of the planner.
            by: The user who asks for them; empty: not known.
            proved: No fewer moves lead there.
            tree: For which they make room, as Kind/namespace/name; empty: for none.

        Raises:
            BadInput: Other moves are under way, or a pod or a node is not as it was when they were planned.
            QueryUnavailable: This replica does not lead, or the log does not answer.
        """
        state, view = self.require_none(), self._cluster.view()
        encoded = DecisionInput.of(request)
        waiting = (g for g in state.gangs.values() if g.phase not in HOLDS_CAPACITY)
        asker = next((g for g in waiting if f"{g.kind}/{g.gang}" == tree), None)
        data = ev.MovesPlanned(
            plan=PlanId(self._clock.new_id()),
            question=question,
            by=by,
            moves=tuple(_record(move, view, state) for move in moves),
            planner=PLANNER_VERSION,
            input_digest=encoded.digest,
            exhausted=proved,
            for_gang=asker.gang if asker is not None else "",
            for_uid=asker.uid if asker is not None else NIL_GANG,
        )
        if text := lost_place(view, state, data.moves):
            raise BadInput(f"moves: {text}; ask for the moves again")
        draft = self._source(question).draft(NIL_GANG, "", data)
        await self._append(draft, functools.partial(self._inputs.save, encoded))
        return data.plan

    def require_none(self) -> ReservationState:
        """Return the state, in which no moves are under way; raises as `begin`."""
        state = self._writable()
        if (other := state.moves) is not None:
            raise BadInput(
                f"moves: {other.made} of {len(other.moves)} moves for {other.question} are made, and one plan is made at a time; wait for "
                "its end, or end it with `gang-extender moves stop`"
            )
        return state

    async def pause(self, by: str, *, paused: bool) -> None:
        """Pause or resume the moves that are under way; one that has begun is made to its end.

        Raises:
            NotFound: None are under way.
            QueryUnavailable: This replica does not lead, or the log does not answer.
        """
        moves = self._under_way()
        if moves.paused != paused:
            data = ev.MovesPaused(plan=moves.id, paused=paused, by=by)
            await self._append(self._source(f"request of {by}").draft(NIL_GANG, "", data))

    async def stop(self, by: str) -> None:
        """End the moves that are under way; what is held for them is free. Raises as `pause`."""
        moves = self._under_way()
        text = "the pod of the current move has left its node" if moves.lost_us else ""
        await self._append(ended(moves, self._source(f"request of {by}"), "stopped", text, by=by))

    def _writable(self) -> ReservationState:
        if not self._leader.may_record():
            raise QueryUnavailable(
                f"moves are made by the replica that leads, and {self._settings.identity} does not: {self._leader.not_ready_reason()}"
            )
        if reason := self._cluster.not_ready_reason():
            raise QueryUnavailable(f"the view of the cluster is not current: {reason}")
        return self._leader.pending_state

    def _under_way(self) -> PendingMoves:
        moves = self._writable().moves
        if moves is None:
            raise NotFound("moves: none are under way")
        return moves

    async def _append(
        self, draft: ev.NewEvent, after: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        try:
            await self._leader.append_nowait([draft], after)
        except (NotLeading, StoreUnavailable) as error:
            text = f"moves: {error}; look at `gang-extender moves` again"
            raise QueryUnavailable(text) from error

    def _source(self, cause: str) -> ev.EventSource:
        return ev.EventSource(actor=self._settings.identity, cause=cause)

    # -- for the control loop ----------------------------------------------------------------------

    def decide(
        self, view: ClusterView, forest: Forest, state: ReservationState, cause: str
    ) -> list[ev.NewEvent]:
        """Return the events that bring the moves up to date with a state."""
        moves = state.moves
        if moves is None:
            return []
        self._idle.begin_round(self._leader.terms)
        mark = (moves.made, moves.lost_us, moves.paused, moves.current.uid in view.pods)
        context = MovesContext(
            actor=self._settings.identity,
            cause=cause,
            now_us=self._clock.now_us(),
            idle_us=self._idle.idle_ms(moves.id, moves.progress_us, mark) * 1000,
            longest_us=self._settings.reservation_ttl_s * 1_000_000,
            refusal=self._refusal,
        )
        return list(decide_moves(view, state, forest, moves, context))

    def sync(self, view: ClusterView, forest: Forest, state: ReservationState) -> None:
        """Queue the eviction that is due by the committed state, and forget moves that are over."""
        moves = state.moves
        METRICS.moves_left.set(len(moves.moves) - moves.made if moves is not None else 0)
        if moves is None or moves.lost_us:
            self._idle.retain(() if moves is None else (moves.id,))
            self._queue.retain_only(set())
            self._refusal = self.waits_for = ""
            return
        uid = moves.current.uid
        self._queue.retain_only({uid})
        self.waits_for = what_keeps(view, state, forest, moves) or self._refusal
        if not moves.paused and not self._queue.is_processing(uid):
            self._queue.add(uid)

    # -- the work ----------------------------------------------------------------------------------

    async def _process(self, uid: PodUid) -> Retry | None:
        await self._leader.until_may_act()
        moves = self._leader.committed.moves
        if moves is None or moves.current.uid != uid or self._keeps(moves):
            return None  # a pass queues it again
        move = moves.current
        pod = PodRef.at(move.pod, uid)
        try:
            await self._cluster.evict(pod, "evicted")
        except (RequestRejected, ClusterUnavailable) as error:
            self._refusal = str(error)
            log.info("pod not evicted for a move", extra={"pod": move.pod, "error": str(error)})
            return Retry(error.retry_after_s if isinstance(error, ClusterUnavailable) else 0.0)
        self._refusal = ""
        # what for is not in it: that may be a gang of another namespace
        text = f"moved: it leaves {move.source}, and {move.target} is held for the pod that its controller makes"
        await self._cluster.notice(K8sEvent.about(pod, text, reason="Moved", action="Moving"))
        return None

    def _keeps(self, moves: PendingMoves) -> bool:
        """Return whether the pod of the current move must not be evicted now, by the newest view and all that was decided."""
        pending, view = self._leader.pending_state, self._cluster.view()
        if self._cluster.not_ready_reason() or moves.paused or moves.lost_us:
            return True
        if pending.moves != moves:
            return True
        return bool(what_keeps(view, pending, self._forest_of(view), moves))


def _record(move: Move, view: ClusterView, state: ReservationState) -> ev.MoveRecord:
    """Return a move as the log has it.

    Raises:
        BadInput: The pod is not as it was when the move was planned.
    """
    pod = view.pods.get(move.uid)
    root = state.gangs.get(state.gang_of.get(move.uid, NIL_GANG))
    if pod is None or pod.node != move.source or root is None or move.uid not in root.bound:
        raise BadInput(
            f"moves: pod {move.pod} does not run on {move.source} any more; ask for the moves again"
        )
    return ev.MoveRecord(
        pod=move.pod,
        uid=move.uid,
        group=root.bound[move.uid].group,
        gang=root.gang,
        gang_uid=root.uid,
        source=move.source,
        target=move.target,
        requests=dict(pod.shape.requests),
        priority=root.priority,
        lost_min=move.lost_min,
    )


POLICY: Final = "the policy (moves_after_s)"
EVERY_S: Final = 10.0
AGAIN_US: Final = 300_000_000  # a gang that got no moves is asked about again after this


class _Answer(msgspec.Struct, frozen=True):
    question: str
    moves: tuple[Move, ...] = ()
    least: int = 0
    lost_min: int = 0


class _Planned(msgspec.Struct, frozen=True):
    answer: _Answer
    request: bytes
    tree: str = ""


class MovesPolicy:
    """Has moves made for gangs that have waited for long, within limits; off unless `moves_after_s` is set.

    What was planned within the last hour is read from the log, so the limits hold across restarts.

    Args:
        ask: Sends the body of a question about moves that are to be made to the planner, and returns JSON of `PlannedMoves`.
    """

    def __init__(
        self,
        mover: MoveController,
        leader: Leader,
        events: EventQueries,
        ask: Callable[[bytes], Awaitable[bytes]],
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._mover = mover
        self._leader = leader
        self._events = events
        self._ask = ask
        self._clock = clock
        self._settings = settings
        self._waiting = WaitingGangs()
        self._asked: dict[GangUid, int] = {}  # when
        self.run = PeriodicTask(
            name="moves policy",
            work=self.look,
            every_s=EVERY_S,
            expected=(BadInput, ClusterUnavailable, QueryUnavailable, TooManyQueries),
            failure="no moves were planned for a gang that waits",
            condition=leader.may_record,
        ).run

    async def look(self) -> None:
        """Begin the moves for the gang of the highest priority that has waited for too long and was not asked about of late."""
        state, now_us = self._leader.committed, self._clock.now_us()
        longest_us = self._settings.moves_after_s * 1_000_000
        self._asked = {uid: at for uid, at in self._asked.items() if now_us - at < AGAIN_US}
        due = [
            gang
            for gang in self._waiting.of(state)
            if gang.root.phase == "unschedulable"
            # complete since, but not before its workload was resumed
            and gang.root.refused_since_us
            and now_us - max(gang.since_us, gang.root.refused_since_us) >= longest_us
            and gang.root.uid not in self._asked
            and gang.root.uid not in state.preemptions
        ]
        if not due or state.moves is not None:
            return
        root = min(due, key=lambda gang: (-gang.root.priority, gang.since_us, gang.root.uid)).root
        self._asked[root.uid] = now_us
        recent = await self._events.events(
            EventFilter(types=("MovesPlanned",), since_us=now_us - HOUR_US)
        )
        plans = [event.data for event in recent if isinstance(event.data, ev.MovesPlanned)]
        namespace = namespace_of(root.gang)
        spent = sum(
            len(p.moves) for p in _of_policy(plans) if namespace_of(p.for_gang) == namespace
        )
        budget = min(self._settings.moves_at_most, self._settings.moves_per_hour - spent)
        if budget <= 0:
            return
        question = {
            "groups": [f"{root.kind}/{root.gang}"],
            "budget": budget,
            "max_priority": root.priority,
        }
        planned = msgspec.json.decode(await self._ask(msgspec.json.encode(question)), type=_Planned)
        answer = planned.answer
        why = self._refusal(answer, plans)
        if why:
            log.info("no moves for a gang that waits", extra={"gang": root.gang, "reason": why})
        elif answer.moves:
            proved, request = answer.least == len(answer.moves), planned.request
            await self._mover.begin(
                answer.question, answer.moves, request, POLICY, proved=proved, tree=planned.tree
            )

    def _refusal(self, answer: _Answer, plans: Sequence[ev.MovesPlanned]) -> str:
        """Return which limit moves would exceed; empty: none."""
        most, per_hour = self._settings.moves_lost_work_min, self._settings.moves_per_hour
        if answer.lost_min > most:
            return f"they lose {answer.lost_min} GPU-minutes of work; moves_lost_work_min is {most}"
        spent = Counter(namespace_of(m.pod) for p in _of_policy(plans) for m in p.moves)
        spent.update(namespace_of(move.pod) for move in answer.moves)
        for namespace, count in spent.items():
            if count > per_hour:
                return f"{count} pods of namespace {namespace} would move within an hour; moves_per_hour is {per_hour}"
        state = self._leader.pending_state
        moved = {move.gang_uid: move.gang for plan in plans for move in plan.moves}
        for move in answer.moves:
            if gang := moved.get(state.gang_of.get(move.uid, NIL_GANG)):
                return f"gang {gang} was moved within the last hour"
        return ""


def _of_policy(plans: Sequence[ev.MovesPlanned]) -> list[ev.MovesPlanned]:
    return [plan for plan in plans if plan.by == POLICY]
