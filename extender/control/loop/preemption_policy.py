"""When a tree may preempt, and what a pending preemption means for its next plan (SPEC E-2, E-11, P15).

A tree whose victims still terminate is planned like any other, on capacity that is free or claimed for it. When
it fits, it is admitted at once. When it does not fit yet, it waits and nothing is recorded. When all its victims
are gone and it still does not fit, the preemption is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from extender.core.decisions.capacity.capacity_claims import victims_are_gone
from extender.core.decisions.preempt.disruption_units import may_preempt
from extender.core.decisions.preempt.preemption_lifecycle import (
    EvictionContext,
    better_offer,
    cancellation,
)
from extender.core.log.events import CancelReason, NewEvent, PreemptionCancelled
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.cluster_view import ClusterView, eviction_priority, groups_above
from extender.core.model.ids import GangUid, GroupKey
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Group, Tree
from extender.core.planner.plan_types import GIVEN, Plan, PlanRequest, Refusal, Verdict
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.victim_search import NoPreemption, may_trigger_preemption
from extender.ports.log_ports import Clock

AGAIN_MS: Final = 5_000  # a tree that no eviction helps searches victims again after this time, ...
AGAIN_PER_MS: Final = 20  # ... or after this many times as long as the search took
AGAIN_MS_MAX: Final = 300_000  # the longest wait after failed preemptions
LOWEST_MS: Final = 500  # how often the lowest priority of running pods is computed


def awaited_preemption(state: ReservationState, uid: GangUid) -> PendingPreemption | None:
    """Return the preemption that a tree waits for, or None.

    An admitted tree does not wait any more: later plans, for its extra members, do not concern the preemption.
    """
    preemption = state.preemptions.get(uid)
    if preemption is None or preemption.ended:
        return None
    root = state.gangs.get(uid)
    if root is None or preemption.claims:
        return preemption
    if preemption.extras:
        got = any(uid in root.reservations or uid in root.bound for uid in preemption.extras)
    else:
        got = bool(root.reservations) or root.phase == "scheduled"
    return None if got else preemption


def may_admit(
    view: ClusterView, preemption: PendingPreemption | None, verdict: Verdict | DeferredWork
) -> bool:
    """Return whether to act on the answer of the planner now.

    Extra members that preempt are not admitted in part while victims terminate (SPEC C.6).
    """
    if preemption is None or victims_are_gone(view, preemption):
        return True
    if isinstance(verdict, Refusal):
        return verdict.outcome == "waiting"  # incomplete now: `events_before_verdict` cancels it
    if not isinstance(verdict, Plan) or not verdict.assignments:
        return False
    wanted = {claim.uid for claims in preemption.claims.values() for claim in claims}
    return not preemption.extras or wanted <= {a.uid for a in verdict.assignments}


def events_before_verdict(
    view: ClusterView, preemption: PendingPreemption, verdict: Verdict, context: EvictionContext
) -> list[NewEvent]:
    """Return the events of a pending preemption that precede those of a verdict."""
    if isinstance(verdict, Plan) and verdict.assignments:
        nodes = frozenset(a.node for a in verdict.assignments)
        data = better_offer(view, preemption, nodes, context) if preemption.victims else None
    else:
        reason, text = _refused_reason(verdict)
        data = cancellation(view, preemption, context, reason=reason, text=text)
    return [context.draft(preemption, data)] if data is not None else []


def _refused_reason(verdict: Verdict) -> tuple[CancelReason, str]:
    text = verdict.reasons[0] if verdict.reasons else "no capacity"
    if isinstance(verdict, Refusal) and verdict.outcome == "waiting":
        return "invalid", f"the tree is not complete any more: {text}"
    if GIVEN in text:
        return "node-rejected", text
    return "capacity-lost", text


def next_preemption_us(root: GangState) -> int:
    """Return when a tree may preempt again, in microseconds since the epoch: each failed preemption doubles the wait.

    It follows from the log, so a restart does not shorten it.
    """
    if not root.failed_preemptions:
        return 0
    # more would only make large numbers
    doubled = min(root.failed_preemptions - 1, AGAIN_MS_MAX.bit_length())
    return root.failed_preemption_us + 1000 * min(AGAIN_MS << doubled, AGAIN_MS_MAX)


class PreemptionPolicy:
    """Decides which trees may preempt now, and keeps the reasons of the last search.

    The back-off after failed preemptions is part of the state; the rest is only in memory.
    """

    def __init__(self, clock: Clock, *, wanted: bool) -> None:
        """Prepare.

        Args:
            clock: For back-off.
            wanted: Whether preemption is switched on.
        """
        self._clock = clock
        self._wanted = wanted
        self._not_before: dict[GangUid, int] = {}
        self._incomplete: set[GangUid] = set()  # trees that were incomplete when their pause began
        self._considered: dict[GangUid, NoPreemption] = {}
        self._lowest: int | None = None  # priority of running pods; None: no pod runs
        self._lowest_ms = -LOWEST_MS
        self._lowest_held: IdentityMemo[int | None] = IdentityMemo()  # of trees with reservations

    def may_search(
        self, view: ClusterView, state: ReservationState, tree: Tree, *, complete: bool = False
    ) -> bool:
        """Return whether to search victims for a tree.

        Not while victims of the same tree terminate, nor for extra members before the minimum is bound (E-2), nor
        if nothing has a lower priority.

        Args:
            view: The cluster.
            state: The pending state.
            tree: The preemptor.
            complete: The tree waits for capacity, not for members: this ends a pause from before.
        """
        uid = tree.root.uid
        if not self._wanted or uid in state.preemptions:
            return False
        paused = self._clock.monotonic_ms() < self._not_before.get(uid, 0)
        if paused and not (complete and uid in self._incomplete):
            return False
        root = state.gangs.get(uid)
        if root is not None and root.phase == "admitted":
            return False
        if root is not None and self._clock.now_us() < next_preemption_us(root):
            return False
        return self.lower_priority_exists(view, state, tree.root.priority) and may_preempt(tree)

    def lower_priority_exists(
        self, view: ClusterView, state: ReservationState, priority: int
    ) -> bool:
        """Return whether preemption is on, and a pod, a reservation or a claim has a lower priority."""
        if not self._wanted:
            return False
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._lowest_ms >= LOWEST_MS:
            self._lowest_ms = now_ms
            self._lowest = _lowest_priority(view)
        held = (root.priority for root in state.gangs.values() if root.reservations)
        lowest_held = self._lowest_held.get(lambda: min(held, default=None), same=(state.gangs,))
        lowest = [p for p in (self._lowest, lowest_held) if p is not None]
        lowest += [p.priority for p in state.preemptions.values() if p.claims]
        return min(lowest, default=priority) < priority

    def start_pause(self, state: ReservationState, uid: GangUid, verdict: Verdict) -> None:
        """Start a pause of a refused tree, after which it may preempt.

        A running pause is not extended: on a busy cluster a tree is refused again and again, and would never
        preempt. A tree that lacks members, or whose last victims still terminate, may preempt as soon as that ends.
        """
        root = state.gangs.get(uid)
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

    def answered(self, uid: GangUid, answer: NoPreemption | None, took_ms: int) -> None:
        """Record the answer of a search; None: there are victims."""
        pause_ms = max(AGAIN_MS, AGAIN_PER_MS * took_ms)
        self._not_before[uid] = self._clock.monotonic_ms() + pause_ms
        self._incomplete.discard(uid)
        if answer is None or answer.cause == "not-triggered":
            self._considered.pop(uid, None)
        else:
            self._considered[uid] = answer

    def considered(self, uid: GangUid) -> tuple[str, ...]:
        """Return the reasons of the last search that found no victims."""
        found = self._considered.get(uid)
        return found.reasons if found is not None else ()

    def considered_reduced(self, uid: GangUid) -> tuple[str, ...]:
        """Return these reasons without names of other namespaces; empty: there are none in them."""
        found = self._considered.get(uid)
        return found.reduced if found is not None else ()

    def allow_retry(self, decided: Iterable[NewEvent]) -> None:
        """End the pause of preemptors whose capacity another one takes over by these drafts."""
        for draft in decided:
            if isinstance(draft.data, PreemptionCancelled) and draft.data.reason == "taken-over":
                self._not_before.pop(draft.gang_uid, None)

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees."""
        self._not_before = {uid: t for uid, t in self._not_before.items() if uid in roots}
        self._incomplete &= roots
        self._considered = {uid: c for uid, c in self._considered.items() if uid in roots}


def _lowest_priority(view: ClusterView) -> int | None:
    """Return the lowest priority by which a running pod is a victim; None: no pod runs."""
    of_group: dict[GroupKey, list[Group]] = {}
    lowest: int | None = None
    for pods in view.on_node.values():
        for pod in pods.values():
            above: list[Group] = []
            if pod.group is not None:
                if pod.group not in of_group:
                    of_group[pod.group] = groups_above(view, pod.group)
                above = of_group[pod.group]
            priority = eviction_priority(pod, above)
            lowest = priority if lowest is None else min(lowest, priority)
    return lowest


def may_lead_to_preemption(request: PlanRequest, verdict: Verdict | DeferredWork) -> bool:
    """Return whether an answer of the planner may lead to preemption; one that is not known yet may."""
    return True if isinstance(verdict, str) else may_trigger_preemption(request, verdict)
