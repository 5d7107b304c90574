"""When a tree asks for victims, and what a pending preemption means for its next plan (SPEC E-2, E-11, P15).

A tree whose victims are still going is planned like any other, on the room that is free and that is held for
it: when it fits, it is admitted at once. When it does not fit yet, it waits and says nothing new. When all its
victims are gone and it does not fit all the same, the preemption is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from extender.core.decisions.capacity.capacity_claims import cleared
from extender.core.decisions.preempt.disruption_units import may_preempt
from extender.core.decisions.preempt.preemption_lifecycle import (
    EvictionContext,
    abandonment,
    better_offer,
)
from extender.core.log.events import AbandonReason, NewEvent, PreemptionAbandoned
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import RootUid
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import GIVEN, Plan, PlanRequest, Refusal, Verdict
from extender.core.planner.planning import Later
from extender.core.planner.preempt.victim_search import NoPreemption, may_ask
from extender.ports.protocols import Clock

AGAIN_MS: Final = 5_000  # a tree that no eviction helped asks again after this time, ...
AGAIN_PER_MS: Final = 20  # ... or after this many times as long as the search took
AGAIN_MS_MAX: Final = 300_000  # who evicted in vain waits no longer than that
LOWEST_MS: Final = 500  # how often the least priority of all that runs is looked up anew


def under_way(state: ReservationState, uid: RootUid) -> PendingPreemption | None:
    """Give the preemption by which a tree waits for room, if it does.

    Who was admitted has the room, as reservations or bound; what is planned for it from then on, its extras, says
    nothing about the preemption any more.
    """
    preemption = state.preemptions.get(uid)
    if preemption is None or preemption.ended:
        return None
    root = state.roots.get(uid)
    if root is None or preemption.claims:
        return preemption
    if preemption.extras:
        got = any(uid in root.held or uid in root.bound for uid in preemption.extras)
    else:
        got = bool(root.held) or root.phase == "satisfied"
    return None if got else preemption


def may_admit(
    view: ClusterView, preemption: PendingPreemption | None, verdict: Verdict | Later
) -> bool:
    """Say whether the answer of the planner is to be acted on now.

    Extras for which room is made are not admitted in part while victims go (SPEC C.6).
    """
    if preemption is None or cleared(view, preemption):
        return True
    if isinstance(verdict, Refusal):
        return verdict.outcome == "waiting"  # not complete any more: given up below
    if not isinstance(verdict, Plan) or not verdict.assignments:
        return False
    wanted = {claim.uid for claims in preemption.claims.values() for claim in claims}
    return not preemption.extras or wanted <= {a.uid for a in verdict.assignments}


def events_before_verdict(
    view: ClusterView, preemption: PendingPreemption, verdict: Verdict, context: EvictionContext
) -> list[NewEvent]:
    """Give the facts of a pending preemption that come before those of a verdict that is acted on."""
    if isinstance(verdict, Plan) and verdict.assignments:
        nodes = frozenset(a.node for a in verdict.assignments)
        fact = better_offer(view, preemption, nodes, context) if preemption.victims else None
    else:
        why, text = _why_refused(verdict)
        fact = abandonment(view, preemption, context, why=why, text=text)
    return [context.draft(preemption, fact)] if fact is not None else []


def _why_refused(verdict: Verdict) -> tuple[AbandonReason, str]:
    text = verdict.reasons[0] if verdict.reasons else "no room"
    if isinstance(verdict, Refusal) and verdict.outcome == "waiting":
        return "invalid", f"the tree is not complete any more: {text}"
    if GIVEN in text:
        return "vetoed", text
    return "room-lost", text


def next_preemption_us(root: GangState) -> int:
    """Say from when on a tree may evict again: who did so in vain waits, twice as long each time (no thrash).

    It follows from the log, so a restart does not shorten it.
    """
    if not root.in_vain:
        return 0
    doubled = min(root.in_vain - 1, AGAIN_MS_MAX.bit_length())  # more would only make large numbers
    return root.in_vain_us + 1000 * min(AGAIN_MS << doubled, AGAIN_MS_MAX)


class PreemptionPolicy:
    """Which trees may ask for victims now, and what the last search said.

    How long who evicted in vain has to wait is in the state; the rest is memory only.
    """

    def __init__(self, clock: Clock, *, wanted: bool) -> None:
        """Prepare.

        Args:
            clock: For back-off.
            wanted: Whether anybody may be evicted at all.
        """
        self._clock = clock
        self._wanted = wanted
        self._not_before: dict[RootUid, int] = {}
        self._incomplete: set[RootUid] = set()  # whose pause began when they were not complete yet
        self._considered: dict[RootUid, tuple[str, ...]] = {}
        self._lowest: int | None = None  # of pods that run, None: nobody does
        self._lowest_ms = -LOWEST_MS
        self._lowest_held: int | None = None  # of trees that hold room
        self._holders: object = None  # roots that this was looked up among

    def may(
        self, view: ClusterView, state: ReservationState, tree: Tree, *, complete: bool = False
    ) -> bool:
        """Say whether a search for victims is worth its time.

        Not while victims of the same tree are going, nor for extras before the minimum is bound (E-2), nor where
        nobody of lower priority is there.

        Args:
            view: The cluster.
            state: What is held.
            tree: Who asks.
            complete: It waits for room, not for members: then it may ask at once if it was put off before that.
        """
        uid = tree.root.uid
        if not self._wanted or uid in state.preemptions:
            return False
        paused = self._clock.monotonic_ms() < self._not_before.get(uid, 0)
        if paused and not (complete and uid in self._incomplete):
            return False
        root = state.roots.get(uid)
        if root is not None and root.phase == "admitted":
            return False
        if root is not None and self._clock.now_us() < next_preemption_us(root):
            return False
        return self.lower_priority_exists(view, state, tree.root.priority) and may_preempt(tree)

    def lower_priority_exists(
        self, view: ClusterView, state: ReservationState, priority: int
    ) -> bool:
        """Say whether anybody may be evicted, and of lower priority somebody runs or holds room."""
        if not self._wanted:
            return False
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._lowest_ms >= LOWEST_MS:
            self._lowest_ms = now_ms
            running = (p.priority for pods in view.on_node.values() for p in pods.values())
            self._lowest = min(running, default=None)
        if self._holders is not state.roots:
            self._holders = state.roots
            held = (root.priority for root in state.roots.values() if root.held)
            self._lowest_held = min(held, default=None)
        lowest = [p for p in (self._lowest, self._lowest_held) if p is not None]
        lowest += [p.priority for p in state.preemptions.values() if p.claims]
        return min(lowest, default=priority) < priority

    def put_off(self, state: ReservationState, uid: RootUid, verdict: Verdict) -> None:
        """Hear that a tree was refused, whether or not it asked: it may ask again after a while.

        A pause that is under way is not made longer: on a busy cluster a tree is refused again and again, and would
        never ask. A tree that could not ask yet, because its minimum is not bound, because members are missing or
        because its last victims still go, asks as soon as that is different.
        """
        root = state.roots.get(uid)
        if root is not None and root.phase == "admitted":
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._not_before.get(uid, 0):
            return
        self._not_before[uid] = now_ms + AGAIN_MS
        waits = isinstance(verdict, Refusal) and verdict.outcome == "waiting"
        if waits or uid in state.preemptions:
            self._incomplete.add(uid)
        else:
            self._incomplete.discard(uid)

    def answered(self, uid: RootUid, answer: NoPreemption | None, took_ms: int) -> None:
        """Remember what a search said; None: there are victims."""
        pause_ms = max(AGAIN_MS, AGAIN_PER_MS * took_ms)
        self._not_before[uid] = self._clock.monotonic_ms() + pause_ms
        self._incomplete.discard(uid)
        if answer is None or answer.cause == "not-triggered":
            self._considered.pop(uid, None)
        else:
            self._considered[uid] = answer.reasons

    def considered(self, uid: RootUid) -> tuple[str, ...]:
        """Give the words of the last search that found nobody."""
        return self._considered.get(uid, ())

    def allow_retry(self, decided: Iterable[NewEvent]) -> None:
        """Hear what is about to be recorded: who is outranked may ask at once for other victims."""
        for draft in decided:
            if isinstance(draft.fact, PreemptionAbandoned) and draft.fact.why == "outranked":
                self._not_before.pop(draft.root_uid, None)

    def retain(self, roots: set[RootUid]) -> None:
        """Forget all other trees."""
        self._not_before = {uid: t for uid, t in self._not_before.items() if uid in roots}
        self._incomplete &= roots
        self._considered = {uid: c for uid, c in self._considered.items() if uid in roots}


def may_lead_to_preemption(request: PlanRequest, verdict: Verdict | Later) -> bool:
    """Say whether an answer of the planner may lead to preemption; what is not context yet may."""
    return True if isinstance(verdict, str) else may_ask(request, verdict)
