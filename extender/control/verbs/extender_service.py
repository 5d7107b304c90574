"""The calls of kube-scheduler, one method per verb.

Filter and prioritize answer from memory and never plan or append, which is the work of the control loop; so the
same call gets the same answer. Answers depend only on the committed state, which is durable. "Cannot answer now"
is an error, "not placeable" a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
from immutables import Map

from extender.control.binding.bind_barrier import BindBarriers, BindCall
from extender.control.log.leader import Leader
from extender.control.published.shared_state import LoopExchange, RefusedPod
from extender.core.admit.native_gang_scheduling import native_on
from extender.core.log.capacity_claim import ClaimsOnNode
from extender.core.log.control_plane_features import features_summary
from extender.core.log.reservation_state import reservation_of
from extender.core.model.errors import NotLeading, NotReady, StoreUnavailable
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from extender.core.model.pods import EXEMPT_NAMESPACES, Pod
from extender.core.preempt.preemption_lifecycle import takeovers_by_plan
from extender.core.preempt.preemption_planning import (
    recently_evicted_units,
    release_reservations,
    unbound_reservations,
    victim_uids,
)
from extender.core.reconcile.reservation_checks import is_unassigned
from extender.core.verbs.filter_and_prioritize import (
    FilterDecision,
    decide_filter,
    decide_prioritize,
    domain_scores,
)
from extender.core.verbs.preempt_verb import (
    NodeCandidate,
    answer_without_choice,
    build_preempt_input,
    choose_victims,
    planned_event,
)
from extender.core.verbs.preempt_verb_input import encode
from extender.ports.cluster_ports import Cluster, PodRef
from extender.ports.log_ports import Clock, DecisionInputs
from extender.settings import Settings

log = logging.getLogger(__name__)
# Scores of all nodes take longer than the rest of a call, and bindings change them little.
SCORES_KEPT_MS = 500
LOOK_AGAIN_S = 0.02
UNSEEN_FOR_MS = 100_000  # no older view is used, so that it has shown a pod by then
REFUSED_MAX = 10_000  # with more refused pods, none that the informers do not know is remembered
HANDOVER_MS = 2_000  # a free lease is usually acquired within this time; calls wait


class ReadinessCheck(msgspec.Struct, frozen=True):
    """One condition of readiness."""

    name: str
    ok: bool
    reason: str = ""


class ExtenderService:
    """Answers kube-scheduler."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        leader: Leader,
        inputs: DecisionInputs,
        exchange: LoopExchange,
        barriers: BindBarriers,
        clock: Clock,
        settings: Settings,
    ) -> None:
        # returns the last time when the event loop was busy for long, as text; set before the first call
        self.recent_stall: Callable[[], str] = str
        self._cluster = cluster
        self._leader = leader
        self._inputs = inputs
        self._exchange = exchange
        self._published = exchange.published
        self._barriers = barriers
        self._clock = clock
        self._settings = settings
        self._scores: Mapping[NodeName, int] = {}
        self._scores_until_ms = 0

    def checks(self) -> tuple[ReadinessCheck, ...]:
        """Return the readiness checks: those of the leader, or those of a follower that forwards calls."""
        return self._leader_checks() if self._leader.leads() else self._follower_checks()

    def _follower_checks(self) -> tuple[ReadinessCheck, ...]:
        leader, cluster = self._leader, self._cluster.not_ready_reason()
        held, behind = leader.follower.lease, leader.follower.lag_reason()
        follows = leader.role == "following" and not leader.draining
        led = follows and held is not None and leader.follower.lease_free_ms() < HANDOVER_MS
        position = leader.follower.state.position
        reason = f"following: {leader.not_leading_reason}" if led else leader.not_ready_reason()
        ignored = "; ".join(self._cluster.ignored_sources())
        return (
            ReadinessCheck("lease", led, reason),
            ReadinessCheck("log", not behind, behind or f"followed to position {position}"),
            ReadinessCheck("cluster", not cluster, cluster or ignored),
        )

    def reconciling(self) -> bool:
        """Return whether only the first pass after the acquisition of the lease is missing."""
        if self._reconciled():
            return False
        return [c.name for c in self._leader_checks() if not c.ok] == ["reconciled"]

    def _reconciled(self) -> bool:
        return self._published.result.reconciled(self._leader.terms)

    def ready(self) -> bool:
        """Return whether all checks of the leader are passed, as `checks` would show."""
        leader = self._leader
        return (
            leader.leads()
            and leader.lease.holds()
            and not leader.recovery_reason
            and self._reconciled()
            and not self._cluster.not_ready_reason()
        )

    async def until_reconciled(self, within_s: float) -> None:
        """Wait while `reconciling`, at most `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.reconciling():  # noqa: ASYNC110 -- four conditions, none with an event
                    await asyncio.sleep(LOOK_AGAIN_S)

    def _leader_checks(self) -> tuple[ReadinessCheck, ...]:
        cluster, lease = self._cluster.not_ready_reason(), self._leader.not_ready_reason()
        lost, passed = self._leader.recovery_reason, self._reconciled()
        not_passed = "" if passed else "no pass since the lease was taken"
        features = self._leader.committed.features
        # of a cluster that is ready: sources that are ignored, and fields that are dropped
        remarks = (*self._cluster.ignored_sources(), features_summary(features))
        return (
            ReadinessCheck("lease", not lease, lease or self.recent_stall()),
            ReadinessCheck("history", not lost, lost),
            ReadinessCheck("cluster", not cluster, cluster or "; ".join(filter(None, remarks))),
            ReadinessCheck(
                "reconciled",
                passed,
                "; ".join(filter(None, (not_passed, self._published.failures))),
            ),
        )

    def _require_ready(self) -> None:
        if self.ready():
            return
        for check in self._leader_checks():
            if not check.ok:
                raise NotReady(f"cannot answer now: {check.name}: {check.reason}")

    def known_pod(self, uid: PodUid) -> Pod | None:
        """Return a pod from the informers, or None."""
        return self._cluster.view().pods.get(uid)

    def filter(self, pod: Pod, offered: Sequence[NodeName]) -> FilterDecision:
        """Answer /filter from memory.

        Args:
            pod: As the call has it. Of a pod that the informers know, only the UID is used. The answer about another
                pod is made from the call, and changes no state; it may be woken when the informers show it.

        Raises:
            NotReady: Not leading, not synced, or not reconciled.
        """
        self._require_ready()
        view, state = self._cluster.view(), self._leader.committed
        observed = view.pods.get(pod.uid)
        current = observed or pod
        reservation = reservation_of(state, pod.uid) if observed is not None else None
        result, forest = self._published.result, self._published.observation.forest
        commits = current.shape.commits
        held_back = commits and reservation is not None and result.held_back(reservation)
        if current.group is None:  # members use their recorded reservations
            state = self._exchange.committed_losses.with_predicted_losses(view, state)
        decision = decide_filter(view, state, forest, current, offered, held_back=held_back)
        self._exchange.refused_pods.pop(pod.uid, None)
        if (
            decision.outcome == "protected"
            and not decision.passed
            and current.namespace not in EXEMPT_NAMESPACES
        ):
            claims_on, is_shown = state.claims_on, observed is not None
            self._remember_refused(pod.uid, decision, claims_on, is_shown=is_shown)
        if decision.outcome == "refused" and is_unassigned(observed):
            # its plan may be on the node that it is nominated on already, which alone would not wake it (K26)
            self._exchange.held_back.add(pod.uid)
        now_ms = self._clock.now_us() // 1000
        if reservation is not None and decision.outcome == "not-offered":
            self._exchange.rejections.suspect(
                view, reservation, now_ms, offered=offered, native=native_on(state.features)
            )
            self._barriers.prebinding.unmark(pod.uid)
        elif reservation is not None:
            self._exchange.rejections.accept(reservation, now_ms)
            if held_back:
                self._exchange.held_back.add(pod.uid)
            elif commits:
                self._barriers.mark_prebinding(reservation, current)
        return decision

    def _remember_refused(
        self,
        uid: PodUid,
        decision: FilterDecision,
        claims_on: Map[NodeName, ClaimsOnNode],
        *,
        is_shown: bool,
    ) -> None:
        """Remember a pod that got no node for what is held: it is woken when that ends.

        Args:
            is_shown: Whether the informers know the pod; else their watch is later than that of kube-scheduler, or it is gone.
        """
        refused_pods = self._exchange.refused_pods
        if not is_shown and len(refused_pods) >= REFUSED_MAX:
            return
        until_ms = 0 if is_shown else self._clock.monotonic_ms() + UNSEEN_FOR_MS
        refused = {*decision.refused}
        nodes = frozenset(name for name in claims_on if name in refused)
        last = next(reversed(refused_pods.values()), None)
        if last is not None and last.nodes == nodes:
            nodes = last.nodes  # many pods of one kind are refused the same nodes
        refused_pods[uid] = RefusedPod(nodes, claims_on, until_ms)

    def prioritize(self, pod: Pod, offered: Sequence[NodeName]) -> Sequence[tuple[NodeName, int]]:
        """Answer /prioritize; an empty list means no preference (not ready, or no topology in use)."""
        if not self.ready():
            return ()
        view = self._cluster.view()
        current = view.pods.get(pod.uid, pod)
        state, scores = self._leader.committed, self._recent_scores
        return decide_prioritize(view, state, current, offered, scores)

    def _recent_scores(self) -> Mapping[NodeName, int]:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._scores_until_ms:
            keys = self._settings.topology_keys or self._keys_in_use()
            self._scores = domain_scores(self._cluster.view(), self._leader.committed, keys)
            self._scores_until_ms = self._clock.monotonic_ms() + SCORES_KEPT_MS
        return self._scores

    def _keys_in_use(self) -> tuple[str, ...]:
        groups = self._cluster.view().groups.values()
        return tuple(sorted({key for group in groups for key in group.constraints.topology_keys}))

    async def preempt(self, pod: Pod, offered: Sequence[NodeCandidate]) -> Sequence[NodeCandidate]:
        """Answer /preempt; a preemption of a whole unit is in the log before the answer.

        Raises:
            NotReady: Not leading, not synced, not reconciled, the informers do not know the pod, or the preemption
                could not be appended.
        """
        self._require_ready()
        view, state = self._cluster.view(), self._leader.pending_state
        observed = view.pods.get(pod.uid)
        if observed is None:
            raise NotReady(_not_seen(pod.path))
        choice = answer_without_choice(view, state, observed)
        if choice is not None:
            return choice.candidates
        now_us = self._clock.now_us()
        spared = recently_evicted_units(state, GangUid(observed.uid), now_us)
        forest = self._published.forest_of(view)
        question = build_preempt_input(
            view, state, forest, observed, offered, spared=spared, now_us=now_us
        )
        preemption_id = PlanId(self._clock.new_id()) if self._settings.preemption else None
        choice = choose_victims(question, preemption=preemption_id)
        if choice.plan is not None:
            held = unbound_reservations(view, state, forest, victim_uids(choice.plan.victims))
            if not self._barriers.maybe_bound().isdisjoint(r.uid for r in held):
                return ()  # a member of a victim may be bound: kube-scheduler calls again
            encoded = encode(question)
            actor, cause = self._settings.identity, f"preempt of pod {observed.path}"
            plan = planned_event(view, choice.plan, encoded.digest)
            eviction = self._exchange.eviction_context(actor, cause, view, state)
            draft = eviction.draft(GangUid(observed.uid), observed.path, plan)
            drafts = [
                *release_reservations(state, held, eviction, but=()),
                *takeovers_by_plan(view, state, draft, eviction),
                draft,
            ]
            save = functools.partial(self._inputs.save, encoded)
            try:
                await self._leader.append_nowait(drafts, save)
            except (NotLeading, StoreUnavailable) as error:
                raise NotReady(f"cannot answer now: {error}") from error
        return choice.candidates

    async def bind(
        self, ref: PodRef, node: NodeName, alive: Callable[[], bool], age_ms: int = 0
    ) -> str:
        """Answer /bind for members, at their barrier. Return the error text, or an empty string.

        Args:
            alive: Returns whether the caller is still connected.
            age_ms: How long the call has waited at another replica.
        """
        try:
            self._require_ready()
        except NotReady as error:
            return str(error)
        pod = self._cluster.view().pods.get(ref.uid)
        if pod is None:
            return _not_seen(f"{ref.namespace}/{ref.name}")
        if pod.group is None:
            return (
                f"pod {pod.path} names no group, so kube-scheduler binds it: remove the resource gang-extender.dev/bind "
                "from it, or name its group when it is created"
            )
        call = BindCall(
            pod=PodRef.at(pod.path, pod.uid),
            node=node,
            arrived_ms=self._clock.monotonic_ms() - age_ms,
            alive=alive,
            answer=asyncio.get_running_loop().create_future(),
        )
        return await self._barriers.bind(call)


def _not_seen(path: str) -> str:
    return f"cannot answer now: pod {path} has not been seen yet"
