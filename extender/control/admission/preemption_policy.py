"""When a tree may preempt, and what a pending preemption means for its next plan (E-2, E-11, P15).

A tree whose victims still terminate is planned like any other, on capacity that is free or claimed for it. When
it fits, it is admitted at once. When it does not fit yet, it waits and nothing is recorded. When all its victims
are gone and it still does not fit, the preemption is cancelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from extender.core.capacity.capacity_claims import victims_are_gone
from extender.core.log.events import CancelReason, NewEvent, PreemptionCancelled
from extender.core.log.gang_phase import minimum_is_bound
from extender.core.log.reservation_state import (
    GangState,
    PendingPreemption,
    ReservationState,
    reservations_on,
)
from extender.core.model.cluster_view import ClusterView, eviction_priority, groups_above
from extender.core.model.ids import GangUid, GroupKey, PodUid
from extender.core.model.object_identity import IdentityMemo, changed_keys
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import GIVEN, Evictable, Plan, PlanRequest, Refusal, Verdict
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.victim_search import NoPreemption, PreemptionVerdict
from extender.core.preempt.disruption_units import may_preempt
from extender.core.preempt.preemption_lifecycle import EvictionContext, better_offer, cancellation
from extender.ports.log_ports import Clock

AGAIN_MS: Final = 5_000  # a tree that no eviction helps searches victims again after this time, ...
AGAIN_PER_MS: Final = 20  # ... or after this many times as long as the search took, ...
PAUSE_MS_MAX: Final = 60_000  # ... but not later than this
# a change ends the pause after this many times as long as the search took
CHANGED_PER_MS: Final = 5
EARLIER: Final = "when victims were last searched for it: "  # before a reason that is not of now
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

    Extra members that preempt are not admitted in part while victims terminate (C.6).
    """
    if preemption is None or victims_are_gone(view, preemption):
        return True
    if isinstance(verdict, Refusal):
        return verdict.outcome == "waiting"  # incomplete now: `events_before_verdict` cancels it
    if not isinstance(verdict, Plan) or not verdict.assignments:
        return False
    claimants = {claim.uid for claims in preemption.claims.values() for claim in claims}
    return not preemption.extras or claimants <= {a.uid for a in verdict.assignments}


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
    return [context.follow(preemption, data)] if data is not None else []


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


class SearchedCapacity(msgspec.Struct, frozen=True):
    """What a search for victims has seen: whether capacity has come since, which it did not count, is read from it.

    It counted free capacity, that of terminating pods, and that of units that may be evicted.
    """

    view: ClusterView
    state: ReservationState
    tree: tuple[object, ...]
    counted: frozenset[PodUid]  # pods whose capacity it counted, terminating ones included

    @staticmethod
    def of(
        view: ClusterView, state: ReservationState, tree: Tree, request: PlanRequest
    ) -> SearchedCapacity:
        """Return what a search of a request with `evictable` has seen."""
        source = request.evictable or Evictable(priority=0)
        pods = (p for pods in (*(u.pods for u in source.units), source.going) for p in pods)
        return SearchedCapacity(view, state, _asks_of(tree), frozenset(p.uid for p in pods))

    def has_more(self, view: ClusterView, state: ReservationState, tree: Tree) -> bool:
        """Return whether a search may find victims now that this one did not.

        Looked at are nodes that are new or changed, pods and reservations that the search had to leave where they
        were and that are gone or going now, and the tree itself.
        """
        if _asks_of(tree) != self.tree or self._claims_have_ended(state, tree):
            return True
        if view.nodes is not self.view.nodes and any(
            self.view.nodes.get(name) is not node for name, node in view.nodes.items()
        ):
            return True
        return self._pods_have_left(view) or self._reservations_have_ended(state, view)

    def _claims_have_ended(self, state: ReservationState, tree: Tree) -> bool:
        if state.preemptions is self.state.preemptions:
            return False
        for uid, before in self.state.preemptions.items():
            if before.ended or before.priority < tree.root.priority or uid == tree.root.uid:
                continue
            now = state.preemptions.get(uid)
            if before.claims and (now is None or now.ended or not now.claims):
                return True
        return False

    def _pods_have_left(self, view: ClusterView) -> bool:
        if view.on_node is self.view.on_node:
            return False
        for name, before in self.view.on_node.items():
            now = view.on_node.get(name)
            if now is before or name not in self.view.nodes:
                continue
            for uid, pod in before.items():
                left = now.get(uid) if now is not None else None
                stayed = left is not None and (pod.deleting or not left.deleting)
                if not stayed and uid not in self.counted:
                    return True
        return False

    def _reservations_have_ended(self, state: ReservationState, view: ClusterView) -> bool:
        for name in changed_keys(self.state.claims_on, state.claims_on):
            now = reservations_on(state, name)
            for uid in reservations_on(self.state, name).keys() - now.keys():
                pod = view.pods.get(uid)
                runs = pod is not None and pod.node == name
                if not runs and uid not in self.counted:
                    return True
        return False


def _binds_its_minimum(root: GangState) -> bool:
    """Return whether a tree has reservations for its minimum that are not bound yet: for the first time, or again after a loss."""
    return root.phase == "admitted" or (bool(root.reservations) and not minimum_is_bound(root))


def _asks_of(tree: Tree) -> tuple[object, ...]:
    """Return what a tree asks for."""
    groups = tuple(
        (g.key, g.basic, g.minimum, g.constraints.domain_keys, g.priority) for g in tree.groups
    )
    pods = frozenset((p.uid, p.shape) for p in tree.pods if p.node is None and not p.deleting)
    return (groups, pods)


class _LastSearch(msgspec.Struct, eq=False):
    """What is remembered about the last search for victims of a tree; times are monotonic, in milliseconds."""

    not_before_ms: int = 0  # the end of the pause
    changed_after_ms: int = 0  # from then on a change ends the pause
    searched: SearchedCapacity | None = None  # by the search that began the pause
    incomplete: bool = False  # whether the tree was incomplete when the pause began
    answer: NoPreemption | None = None  # why it has no victims


class _RunningPods(NamedTuple):
    """What the policy needs of the pods on nodes."""

    lowest: int | None  # the lowest priority by which one is a victim; None: no pod runs
    is_one_terminating: bool


class PreemptionPolicy:
    """Decides which trees may preempt now, and keeps the reasons of the last search.

    The back-off after failed preemptions is part of the state; the rest is only in memory.
    """

    def __init__(self, clock: Clock, *, enabled: bool) -> None:
        self._clock = clock
        self.enabled = enabled
        self._last: defaultdict[GangUid, _LastSearch] = defaultdict(_LastSearch)
        self._running = _RunningPods(None, is_one_terminating=False)
        self._running_pods: IdentityMemo[_RunningPods] = IdentityMemo()
        self._lowest_ms = -LOWEST_MS
        self._lowest_held: IdentityMemo[int | None] = IdentityMemo()  # of trees with reservations

    def may_search(
        self, view: ClusterView, state: ReservationState, tree: Tree, *, complete: bool = False
    ) -> bool:
        """Return whether to search victims for a tree.

        Not while victims of the same tree terminate, nor for extra members before the minimum is bound (E-2), nor
        if nothing has a lower priority.

        Args:
            complete: The tree waits for capacity, not for members: this ends a pause from before.
        """
        uid = tree.root.uid
        if uid in state.preemptions:
            return False
        last, now_ms = self._last[uid], self._clock.monotonic_ms()
        if now_ms < last.not_before_ms and not (complete and last.incomplete):
            # capacity that the search did not count ends the pause
            searched = last.searched if now_ms >= last.changed_after_ms else None
            if searched is None or not searched.has_more(view, state, tree):
                return False
        root = state.gangs.get(uid)
        if root is not None and _binds_its_minimum(root):
            return False
        if root is not None and self._clock.now_us() < next_preemption_us(root):
            return False
        # terminating pods may be all that is in the way (E-2)
        return self.may_evict_for(view, state, tree) or self.some_terminate(view)

    def may_evict_for(self, view: ClusterView, state: ReservationState, tree: Tree) -> bool:
        """Return whether something may be evicted for a tree: it may preempt, and something has a lower priority."""
        return may_preempt(tree) and self.lower_priority_exists(view, state, tree.root.priority)

    def some_terminate(self, view: ClusterView) -> bool:
        """Return whether a pod on a node terminates."""
        self._look_at(view)
        return self._running.is_one_terminating

    def pauses(self, uid: GangUid) -> bool:
        """Return whether a tree must not search victims now, unless capacity comes."""
        return self._clock.monotonic_ms() < self._last[uid].not_before_ms

    def searches_again_us(self, state: ReservationState) -> Mapping[GangUid, int]:
        """Return when victims are searched again for each tree that pauses, in microseconds since the epoch; never where it is off."""
        now_ms, now_us = self._clock.monotonic_ms(), self._clock.now_us()
        again_us = {
            uid: max(
                now_us + (last.not_before_ms - now_ms) * 1000,
                next_preemption_us(state.gangs[uid]) if uid in state.gangs else 0,
            )
            for uid, last in (self._last.items() if self.enabled else ())
            if last.not_before_ms
        }
        return {uid: time_us for uid, time_us in again_us.items() if time_us > now_us}

    def _look_at(self, view: ClusterView) -> None:
        """Find the lowest priority of running pods and whether one terminates, not more often than `LOWEST_MS`."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._lowest_ms >= LOWEST_MS:
            self._lowest_ms = now_ms
            self._running = self._running_pods.get(
                lambda: _running_pods(view), same=(view.on_node, view.groups)
            )

    def lower_priority_exists(
        self, view: ClusterView, state: ReservationState, priority: int
    ) -> bool:
        """Return whether preemption is on, and a pod, a reservation or a claim has a lower priority."""
        if not self.enabled:
            return False
        self._look_at(view)
        held = (root.priority for root in state.gangs.values() if root.reservations)
        lowest_held = self._lowest_held.get(lambda: min(held, default=None), same=(state.gangs,))
        lowest = [p for p in (self._running.lowest, lowest_held) if p is not None]
        lowest += [p.priority for p in state.preemptions.values() if p.claims]
        return min(lowest, default=priority) < priority

    def start_pause(self, state: ReservationState, uid: GangUid, verdict: Verdict) -> None:
        """Start a pause of a refused tree, after which it may preempt.

        A running pause is not extended: on a busy cluster a tree is refused again and again, and would never
        preempt. A tree that lacks members, or whose last victims still terminate, may preempt as soon as that ends.
        """
        root = state.gangs.get(uid)
        if root is not None and _binds_its_minimum(root):
            return
        last, now_ms = self._last[uid], self._clock.monotonic_ms()
        if now_ms < last.not_before_ms:
            return
        last.not_before_ms = now_ms + AGAIN_MS
        waits = isinstance(verdict, Refusal) and verdict.outcome == "waiting"
        last.incomplete = waits or uid in state.preemptions

    def answered(
        self,
        uid: GangUid,
        answer: PreemptionVerdict | None,
        took_ms: int,
        searched: SearchedCapacity | None = None,
    ) -> None:
        """Record the answer of a search.

        Args:
            answer: The answer; None: there are victims, or there was no search after all.
            searched: What it has seen; None: no change ends the pause.
        """
        now_ms = self._clock.monotonic_ms()
        pause_ms = min(max(AGAIN_MS, AGAIN_PER_MS * took_ms), max(PAUSE_MS_MAX, took_ms))
        no_victims = answer if isinstance(answer, NoPreemption) and self.enabled else None
        final = no_victims is not None and no_victims.cause in {"impossible", "unknown", "never"}
        self._last[uid] = _LastSearch(
            not_before_ms=now_ms + pause_ms,
            changed_after_ms=now_ms + min(CHANGED_PER_MS * took_ms, pause_ms),
            searched=searched,
            answer=no_victims if final else None,
        )

    def considered(self, uid: GangUid) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the reasons of the last search that found no victims, marked as older than now, and those without names of other namespaces."""
        answer = self._last[uid].answer
        both = (answer.reasons, answer.reduced) if answer is not None else ((), ())
        notes, reduced = (tuple(f"{EARLIER}{text}" for text in texts) for texts in both)
        return notes, reduced

    def allow_retry(self, decided: Iterable[NewEvent]) -> None:
        """End the pause of preemptors whose capacity another one takes over by these drafts."""
        for draft in decided:
            if isinstance(draft.data, PreemptionCancelled) and draft.data.reason == "taken-over":
                self._last[draft.gang_uid].not_before_ms = 0

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees."""
        for uid in self._last.keys() - roots:
            del self._last[uid]


def _running_pods(view: ClusterView) -> _RunningPods:
    priorities: set[int] = set()
    is_one_terminating = False
    of_group: dict[GroupKey, int | None] = {}  # by which its pods are victims; None: by their own
    for pods in view.on_node.values():
        for pod in pods.values():
            priority, key = None, pod.group
            if key is not None:
                if key not in of_group:
                    above = groups_above(view, key)
                    of_group[key] = eviction_priority(pod, above) if above else None
                priority = of_group[key]
            priorities.add(pod.priority if priority is None else priority)
            is_one_terminating = is_one_terminating or pod.deleting
    return _RunningPods(min(priorities, default=None), is_one_terminating=is_one_terminating)
