"""Lifecycle of pending preemptions: victims that are gone, the end, and the victims to delete next.

The rules (E-11, P15):

- A victim counts as gone when the view does not contain it any more: deleted, or ended by itself. The event
  records which of the two; the capacity is free in both cases.
- A unit is *begun* when the deletion of one of its pods was requested, by the extender or (for an unmanaged
  preemptor) by kube-scheduler. A begun unit is evicted completely, even if the preemption ends: a gang below its
  minimum cannot work. A unit that was not begun is spared as soon as the preemption ends.
- A gang that evicts itself to be placed anew: completed when its pods are gone; nothing spares them.
- Preemptor deleted (its group, its pod, or all members with claims), or its tree invalid: cancelled.
- A better offer: the tree fits while there are units that were not begun. It is admitted, they are spared.
- Victims that are not deleted are reported. No other victims are chosen, and the claims stay while one of them
  terminates. The preemption is cancelled only when the API server rejects all remaining deletions for the
  lifetime of a reservation.
- A pod that already terminated when the plan was made, and whose capacity the plan uses, stays: cancelled, and
  planned again without that capacity.
- All victims are gone and the tree does not fit (kube-scheduler rejects the nodes, or pods of higher priority
  use the capacity): cancelled, and planned again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from extender.core.capacity.capacity_claims import claims_do_not_fit
from extender.core.log import events as ev
from extender.core.log.each_gang import EachGang
from extender.core.log.reservation_state import PendingPreemption, ReservationState, Victim
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import Epoch, GangUid, GroupKey, NodeName, PlanId, PodUid
from extender.core.model.message_formatting import join_names
from extender.core.model.pod_groups import Forest, kind_of
from extender.core.model.pods import Pod
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden, name_for, namespace_of

NAMED_MAX: Final = 3  # victims named in a text
# reasons of DisruptionTarget on pods that the extender evicts, written by itself or by the Eviction API
EVICTION_BY_REASON: Final[Mapping[str, ev.GoneVia]] = {
    "PreemptionByScheduler": "deleted",
    "EvictionByEvictionAPI": "evicted",
}
# a pod counts as stuck this long after the end of its grace period
STUCK_AFTER_US: Final = 10_000_000


class EvictionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A requested deletion that the API server accepted, or may have accepted."""

    via: ev.GoneVia  # deleted | evicted
    at_us: int  # 0 if it was requested before this process started


class EvictionContext(ev.EventSource, frozen=True, kw_only=True):
    """What the evictor knows of victims beside view and state; a restart loses it."""

    # the current one: victims of earlier epochs may have ended while there was no leader
    epoch: Epoch
    now_us: int
    requested: Mapping[PodUid, EvictionRequest] = {}
    # observed on their nodes while no deletion was requested by the extender
    observed: frozenset[PodUid] = frozenset()
    # pods on the nodes of a plan in the first pass after it
    present: Mapping[PlanId, frozenset[PodUid]] = {}
    idle_us: Mapping[PlanId, int] = {}  # how long each pending preemption has made no progress
    stalled_us: int = 300_000_000  # a preemption without progress for this time is cancelled
    gangs: EachGang = msgspec.field(default_factory=EachGang)  # how each preemptor is decided

    def follow(self, preemption: PendingPreemption, data: ev.AnyEventData) -> ev.NewEvent:
        """Return an event for the stream of the preemptor, which follows from its plan."""
        draft = self.draft(preemption.gang_uid, preemption.gang, data)
        return msgspec.structs.replace(draft, cause_position=preemption.position)


def decide_evictions(
    view: ClusterView, state: ReservationState, forest: Forest, context: EvictionContext
) -> list[ev.NewEvent]:
    """Return the events that bring pending preemptions up to date with the view."""

    def end_of(preemption: PendingPreemption, ended: list[Victim]) -> ev.AnyEventData | None:
        reason, text = _cancel_reason(view, forest, preemption)
        reduced = ""
        if not preemption.gives_up or len(ended) == len(preemption.victims):
            bound = 0 if preemption.gives_up else _bound(view, state, preemption)
            if bound or preemption.gives_up:
                return ev.PreemptionCompleted(
                    preemption=preemption.id,
                    bound=bound,
                    evicted=preemption.evicted + len(ended),
                    duration_ms=max(context.now_us - preemption.at_us, 0) // 1000,
                )
            left = [v for v in preemption.victims.values() if v not in ended]
            if not reason:
                reason, text = _stalled_reason(view, preemption, left, context)
            if not reason and preemption.claims:
                reason, text, reduced = _not_freed_reason(view, state, preemption, context.now_us)
        if not reason:
            return None
        return cancellation(view, preemption, context, reason=reason, text=text, reduced=reduced)

    def changes_of(preemption: PendingPreemption) -> Iterator[ev.NewEvent]:
        victims = sorted(preemption.victims.values(), key=lambda v: v.pod)
        ended = [v for v in victims if _is_gone(view, v)]
        for victim in ended:
            yield context.follow(preemption, _victim_gone(view, preemption, victim, context))
        if not preemption.ended and (end := end_of(preemption, ended)) is not None:
            yield context.follow(preemption, end)

    drafts: list[ev.NewEvent] = []
    for preemption in sorted(state.preemptions.values(), key=lambda p: p.gang_uid):
        name = f"preemption of {preemption.gang}"
        decide = functools.partial(changes_of, preemption)
        drafts += context.gangs.decide(preemption.gang_uid, name, decide)
    return drafts


def _is_gone(view: ClusterView, victim: Victim) -> bool:
    pod = view.pods.get(victim.uid)
    return pod is None or pod.node != victim.node


def _victim_gone(
    view: ClusterView, preemption: PendingPreemption, victim: Victim, context: EvictionContext
) -> ev.VictimGone:
    eviction, end = context.requested.get(victim.uid), view.ends.get(victim.uid)
    via: ev.GoneVia
    if eviction is not None:
        via = eviction.via
    elif preemption.kind == "Pod" and end is not None and end.cause == "preempted":
        via = "deleted"  # by kube-scheduler, which itself evicts the victims of an unmanaged pod on its node
    elif victim.uid in context.observed:
        via = "ended"
    elif preemption.epoch == context.epoch:
        via = "already-gone"
    else:
        via = "unobserved"
    return ev.VictimGone(
        preemption=preemption.id,
        unit=victim.unit,
        pod=victim.pod,
        uid=victim.uid,
        node=victim.node,
        via=via,
        requested_us=eviction.at_us if eviction is not None else 0,
        gone_us=context.now_us,
    )


def _stalled_reason(
    view: ClusterView, preemption: PendingPreemption, left: list[Victim], context: EvictionContext
) -> tuple[ev.CancelReason | Literal[""], str]:
    """Return why a preemption ends without progress for `stalled_us`; empty: a victim ended, or one is terminating."""
    if context.idle_us.get(preemption.id, 0) < context.stalled_us or not preemption.claims:
        return "", ""
    going = [*(v.uid for v in left), *preemption.already_terminating]
    if any((pod := view.pods.get(uid)) is not None and pod.deleting for uid in going):
        return "", ""
    seconds = context.stalled_us // 1_000_000
    if left:
        return "deletion-rejected", f"nothing went for {seconds} s"
    reason: ev.CancelReason = "node-rejected" if preemption.kind == "Pod" else "capacity-lost"
    return reason, f"the capacity was not used within {seconds} s"


def _not_freed_reason(
    view: ClusterView, state: ReservationState, preemption: PendingPreemption, now_us: int
) -> tuple[ev.CancelReason | Literal[""], str, str]:
    """Return why capacity of a terminating pod that the plan counted as free does not become free, or empty strings.

    The second text is the first without names of other namespaces; empty: there are none in it. Pods that are victims of any preemption are not considered: the preemption waits for them.
    """
    chosen = {uid for other in state.preemptions.values() for uid in other.victims}
    for uid in sorted(preemption.already_terminating - chosen):
        pod = view.pods.get(uid)
        if pod is None or pod.node is None or not is_stuck(pod, now_us):
            continue
        if claims_do_not_fit(view, preemption, pod.node, stay=(uid,)):
            text, reduced = f"pod {pod.path} is still there after its grace period", ""
            readers = Visibility.of((namespace_of(preemption.gang),))
            name = name_for(readers, f"pod/{pod.path}", priority=pod.priority)
            if is_hidden(name):
                reduced = f"{name} is still there after its grace period"
            return "capacity-lost", text, reduced
    return "", "", ""


def _bound(view: ClusterView, state: ReservationState, preemption: PendingPreemption) -> int:
    """Return how many members of the preemptor are bound; 0 while those it preempts for are not."""
    if preemption.kind == "Pod":
        pod = view.pods.get(PodUid(preemption.gang_uid))
        return int(pod is not None and pod.node is not None)
    root = state.gangs.get(preemption.gang_uid)
    if root is None or root.phase != "scheduled":
        return 0
    if preemption.extras and (
        preemption.claims
        or any(uid in root.reservations for uid in preemption.extras)
        or not any(uid in root.bound for uid in preemption.extras)
    ):
        return 0
    return len(root.bound)


def _cancel_reason(
    view: ClusterView, forest: Forest, preemption: PendingPreemption
) -> tuple[ev.CancelReason | Literal[""], str]:
    if preemption.kind == "Pod":
        pod = view.pods.get(PodUid(preemption.gang_uid))
        alive = pod is not None and not pod.deleting
        return ("", "") if alive else ("preemptor-deleted", f"pod {preemption.gang} was deleted")
    key = preemptor_key(preemption)
    group = view.groups.get(key)
    if group is None or group.uid != preemption.gang_uid or group.deleting:
        return "preemptor-deleted", f"{key} was deleted"
    tree = forest.trees.get(key)
    if tree is None or tree.problems:
        moved = "its root belongs to another tree now"
        return "invalid", tree.problems[0].message if tree is not None else moved
    claimed = [c.uid for claims in preemption.claims.values() for c in claims]
    claimants = claimed or preemption.extras
    if claimants and all(pod is None or pod.deleting for pod in map(view.pods.get, claimants)):
        return "preemptor-deleted", "the members that the capacity was claimed for are gone"
    return "", ""


def preemptor_key(preemption: PendingPreemption) -> GroupKey:
    """Return the key of the root group of the preemptor, which is not an unmanaged pod."""
    namespace, _, name = preemption.gang.partition("/")
    return GroupKey(namespace, name, kind_of(preemption.kind))


def begun_units(
    view: ClusterView, preemption: PendingPreemption, context: EvictionContext
) -> frozenset[str]:
    """Return the units of which the extender evicted a pod, by the state, by `context` or by the condition of the pod."""
    begun = set()
    for uid, victim in preemption.victims.items():
        pod = view.pods.get(uid)
        if uid in context.requested or (
            pod is not None and pod.deleting and pod.disruption_target in EVICTION_BY_REASON
        ):
            begun.add(victim.unit)
    return preemption.started_units | begun


def cancellation(
    view: ClusterView,
    preemption: PendingPreemption,
    context: EvictionContext,
    *,
    reason: ev.CancelReason,
    text: str,
    reduced: str = "",
) -> ev.PreemptionCancelled:
    """Return the event that cancels a preemption; units whose eviction has not begun are spared.

    `reduced` is the text without names of other namespaces; empty: there are none in it.
    """
    begun = begun_units(view, preemption, context)
    left = {v.unit for v in preemption.victims.values() if not _is_gone(view, v)}
    ended = sum(_is_gone(view, v) for v in preemption.victims.values())
    return ev.PreemptionCancelled(
        preemption=preemption.id,
        reason=reason,
        units_spared=tuple(u for u in preemption.units if u in left and u not in begun),
        units_in_progress=tuple(u for u in preemption.units if u in left and u in begun),
        evicted=preemption.evicted + ended,
        message=text,
        message_reduced=reduced,
    )


def better_offer(
    view: ClusterView,
    preemption: PendingPreemption,
    nodes: frozenset[str],
    context: EvictionContext,
) -> ev.PreemptionCancelled | None:
    """Return the event that ends a preemption because its preemptor fits without it; None if its evictions made it fit.

    Args:
        preemption: Not ended.
        nodes: The nodes on which the preemptor is admitted now.
    """
    text = "the tree fits without further evictions"
    data = cancellation(view, preemption, context, reason="no-longer-needed", text=text)
    freed = nodes & {v.node for v in preemption.victims.values()} or nodes & set(preemption.claims)
    # if victims are gone, the plan may use their capacity: without a unit to spare the preemption then completes
    elsewhere = bool(data.units_in_progress) and not data.evicted and not freed
    return data if data.units_spared or elsewhere else None


def victims_to_evict(
    view: ClusterView, preemption: PendingPreemption, context: EvictionContext
) -> list[Victim]:
    """Return the victims to evict now, unit by unit in the order of the plan."""
    place = {unit: number for number, unit in enumerate(preemption.units)}
    units = begun_units(view, preemption, context) if preemption.ended else place.keys()
    victims = [v for v in preemption.victims.values() if v.unit in units and _stays(view, v)]
    return sorted(victims, key=lambda v: (place[v.unit], v.pod))


def is_to_be_evicted(
    view: ClusterView, preemption: PendingPreemption, uid: PodUid, context: EvictionContext
) -> bool:
    """Return whether a pod is one of the victims that `due` returns."""
    victim = preemption.victims.get(uid)
    if victim is None or not _stays(view, victim):
        return False
    return not preemption.ended or victim.unit in begun_units(view, preemption, context)


def _stays(view: ClusterView, victim: Victim) -> bool:
    """Return whether a victim runs and is not terminating."""
    pod = view.pods.get(victim.uid)
    return pod is not None and not pod.deleting and pod.node == victim.node


def stuck_victims(
    view: ClusterView, preemption: PendingPreemption, refused: Mapping[PodUid, str], now_us: int
) -> tuple[tuple[Victim, str], ...]:
    """Return the victims that are not deleted, each with the reason as a text that does not change with time.

    Args:
        refused: The error of the API server for the last request, by victim.
    """
    stuck = []
    for uid, victim in preemption.victims.items():
        pod = view.pods.get(uid)
        if pod is None:
            continue
        if is_stuck(pod, now_us):
            stuck.append((victim, "is still there after its grace period (finalizer or kubelet)"))
        elif not pod.deleting and uid in refused:
            stuck.append((victim, f"cannot be deleted: {refused[uid]}"))
    return tuple(sorted(stuck, key=lambda f: f[0].pod))


def is_stuck(pod: Pod, now_us: int) -> bool:
    """Return whether a pod is still there after its grace period: it has a finalizer, or its kubelet does not run."""
    return pod.deleting and pod.deletes_us > 0 and now_us - pod.deletes_us > STUCK_AFTER_US


def stuck_victims_text(
    stuck: tuple[tuple[Victim, str], ...],
    preemption: PendingPreemption,
    readers: Visibility = EVERYTHING,
) -> str:
    """Return the text about victims that are not deleted, for a condition, or an empty string.

    The answer of an API server to a deletion has names in it: readers who do not see the namespace of the victim do
    not get it.
    """
    if not stuck:
        return ""
    priorities = dict(zip(preemption.units, preemption.priorities, strict=True))
    words = "; ".join(
        f"pod {victim.pod} {reason}"
        if readers.sees(namespace_of(victim.pod))
        else f"{name_for(readers, f'pod/{victim.pod}', priority=priorities.get(victim.unit))} is not deleted"
        for victim, reason in stuck[:NAMED_MAX]
    )
    more = f" and {len(stuck) - NAMED_MAX} more" if len(stuck) > NAMED_MAX else ""
    return f"waits for victims that do not go: {words}{more}"


# --- takeover: a preemptor of higher priority gets the capacity that a pending preemption frees

# The rules (issue 5, no thrash):
#
# - The capacity that a preemption frees is only for its preemptor until that runs. A tree of higher priority that
#   fits elsewhere is placed elsewhere (`free_capacity`), an unmanaged pod as well (`filter_and_prioritize`).
# - A tree of higher priority that fits nowhere else takes the capacity over before it evicts further units
#   (`disruption_units`): its `PreemptionPlanned` names the superseded preemption and includes the remaining victims in
#   that capacity. The same append ends the superseded preemption: `PreemptionCancelled` with `reason` *taken-over* and `taken_over_by`.
# - An unmanaged pod of higher priority takes the capacity without a plan, because kube-scheduler permits it; this is
#   recorded when the pod runs.
# - A preemptor that is evicted as a whole before it runs is superseded by its own preemptor in the same way.
#
# The superseded preemptor is planned again without back-off, but units that it evicted and that were created again are
# spared (`preemption_planning.recently_evicted_units`). Until the victims of begun units are gone, it keeps its claims on the other
# nodes (`reservation_state.cancelled_preemption`).


class TakeoverPreemptor(msgspec.Struct, frozen=True, kw_only=True):
    """The preemptor that takes the capacity over."""

    name: str  # Kind/namespace/name
    uid: str
    priority: int


def takeovers_by_plan(
    view: ClusterView, state: ReservationState, planned: ev.NewEvent, context: EvictionContext
) -> list[ev.NewEvent]:
    """Return the ends of the preemptions whose capacity a plan takes, or whose preemptor it evicts.

    Args:
        state: The pending state.
        planned: A `PreemptionPlanned` that is recorded after these events, in the same append.
    """
    plan = planned.data
    assert isinstance(plan, ev.PreemptionPlanned)
    by = TakeoverPreemptor(
        name=f"{plan.kind}/{planned.gang}", uid=planned.gang_uid, priority=plan.priority
    )
    used = {a.node for a in plan.assignments}
    taken = {record.gang_uid for record in plan.superseded}
    evicted = {unit.name for unit in plan.victims}
    drafts = []
    for uid, preemption in state.preemptions.items():
        is_victim = f"{preemption.kind}/{preemption.gang}" in evicted
        if preemption.ended or uid == by.uid or not (is_victim or uid in taken):
            continue
        lost = sorted(n for n in preemption.claims if is_victim or n in used)
        action = "evicts it" if is_victim else f"takes over the capacity{_on(lost)}"
        drafts.append(_superseding_event(view, preemption, by, context, lost=lost, action=action))
    return drafts


def takeovers_by_pods(
    view: ClusterView,
    state: ReservationState,
    decided: Iterable[ev.NewEvent],
    context: EvictionContext,
) -> list[ev.NewEvent]:
    """Return the ends of the preemptions whose capacity is used by running pods of higher priority.

    Args:
        state: The pending state.
        decided: Events that are recorded before these: ends of preemptions, and released reservations.
    """
    events = [(d.gang_uid, d.data) for d in decided]
    ends = {
        f.preemption
        for _, f in events
        if isinstance(f, ev.PreemptionCompleted | ev.PreemptionCancelled)
    }
    superseded = {
        uid: f
        for uid, f in events
        if isinstance(f, ev.ReservationReleased) and f.reason == "superseded"
    }

    def end_of(uid: GangUid, preemption: PendingPreemption) -> Iterator[ev.NewEvent]:
        root, users = state.gangs.get(uid), frozenset[PodUid]()
        earlier = context.present.get(preemption.id, frozenset())
        nodes: Collection[NodeName] = preemption.claims
        if not nodes and root is not None and uid in superseded and not root.bound:
            users = frozenset(PodUid(user.uid) for user in superseded[uid].taken_by)
            nodes = {pod.node for pod in superseded[uid].pods}
        newcomers = {
            node: pod
            for node in nodes
            if (pod := _newcomer(view, preemption, node, earlier, among=users)) is not None
            and (not preemption.claims or claims_do_not_fit(view, preemption, node))
        }
        if newcomers:
            pod = newcomers[min(newcomers)]
            by = TakeoverPreemptor(name=f"Pod/{pod.path}", uid=pod.uid, priority=pod.priority)
            lost = sorted(newcomers)
            action = f"uses the capacity{_on(lost)}"
            yield _superseding_event(view, preemption, by, context, lost=lost, action=action)

    drafts: list[ev.NewEvent] = []
    for uid, preemption in state.preemptions.items():
        if not preemption.ended and preemption.id not in ends:
            name = f"takeover from {preemption.gang}"
            drafts += context.gangs.decide(uid, name, functools.partial(end_of, uid, preemption))
    return drafts


def _newcomer(
    view: ClusterView,
    preemption: PendingPreemption,
    node: NodeName,
    earlier: Collection[PodUid],
    among: Collection[PodUid] = (),
) -> Pod | None:
    """Return the newest pod of higher priority that runs on a node and was not there at the time of the plan.

    Args:
        earlier: The pods that were on the node at the time of the plan.
        among: The pods that are known to use the capacity; empty: not known.
    """
    above = [
        pod
        for uid, pod in view.on_node.get(node, {}).items()
        if pod.priority > preemption.priority
        and not pod.deleting
        and uid not in earlier
        and (not among or uid in among)
    ]
    return max(above, key=lambda p: (p.created_us, p.path), default=None)


def _superseding_event(
    view: ClusterView,
    preemption: PendingPreemption,
    by: TakeoverPreemptor,
    context: EvictionContext,
    *,
    lost: Collection[NodeName],
    action: str,
) -> ev.NewEvent:
    text = f"{by.name} (priority {by.priority}) {action}"
    name = name_for(Visibility.of((namespace_of(preemption.gang),)), by.name, priority=by.priority)
    reduced = f"{name} {action}" if is_hidden(name) else ""
    data = cancellation(view, preemption, context, reason="taken-over", text=text, reduced=reduced)
    return context.follow(
        preemption,
        msgspec.structs.replace(
            data, taken_over_by=by.name, taken_over_by_uid=by.uid, taken_over_nodes=tuple(lost)
        ),
    )


def _on(nodes: Collection[NodeName]) -> str:
    if not nodes:
        return ""
    several = "nodes" if len(nodes) > 1 else "node"
    return f" on {several} {join_names(sorted(nodes), NAMED_MAX)}"
