"""Node rejections: kube-scheduler rejects a node on which the member fits by our model.

The filters of kube-scheduler decide, our model only predicts them. A rejection is visible in two ways: a filter call
with other nodes but not the planned one, or (when no node passes) the PodScheduled message of the pod. One such
observation proves little, because kube-scheduler may have seen pods that we have not. So it is first a suspicion. It
is confirmed when for `SETTLED_MS` nothing on that node has changed and the member has not reached bind. On a node that
changes all the time it is confirmed by `RESTLESS_CALLS` filter calls over at least that time, or after `RESTLESS_MS`,
when kube-scheduler has tried again after any change. A rejection ends at its time limit, or with any change of pod or
node; a repeated one lasts longer, so that changes cannot cause an endless loop.

A message has no time of its own: kube-scheduler writes it only when it changes, and a new attempt may wait for
its back-off. So a message that is older than the observed nomination proves nothing about this node until
`RESTLESS_MS` have passed; a message that is newer counts like a filter call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from extender.core.capacity.capacity_claims import claimed_under_victims, released_pods
from extender.core.capacity.free_capacity import used_capacity_on, used_requests
from extender.core.log import events as ev
from extender.core.log.reservation_state import (
    ChangedMembers,
    RejectionKey,
    Reservation,
    ReservationState,
    reservation_of,
)
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage, groups_above
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pods import Pod, PodShape
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.planner.plan_types import PlanNode

# Begin of the message of kube-scheduler about the nodes of one pod
_OWN_NODES: Final = re.compile(r"0/\d+ nodes are available")
SETTLED_MS = 1_500
RESTLESS_MS = 12_000  # longer than kube-scheduler's longest back-off (10 s)
# filter calls; each change of a pod on the node makes kube-scheduler retry the member
RESTLESS_CALLS = 5
TTL_MS = 300_000
REPEATED_MS = 30_000  # minimum duration of the second rejection; doubled for each further one


class _Suspicion(msgspec.Struct, frozen=True):
    """Pod, node and usage at the time of a suspected rejection."""

    plan: PlanId
    node: Node | None
    usage: Usage
    first_ms: int  # first observation; the member has fitted by our model since then
    since_ms: int | None  # first observation after the last change of the usage of the node
    calls: int  # filter calls without the node since `first_ms`
    dated: bool  # certainly newer than this nomination, and about this node


class _Message(msgspec.Struct, frozen=True):
    """The PodScheduled message of a member with a reservation."""

    plan: PlanId
    before: str  # before its nomination was observed
    renewed: bool = False  # the message has changed since


class RejectionEvidence:
    """Suspected rejections; kept in memory only, so a restart loses them."""

    def __init__(self) -> None:
        self._suspicions: dict[PodUid, _Suspicion] = {}
        self._messages: dict[PodUid, _Message] = {}
        self._refused: set[PodUid] = set()  # nominated members for which no node passed
        self._changed = ChangedMembers()  # since the last `note_messages`
        self._accepted: dict[PodUid, tuple[PlanId, int]] = {}  # the last call with the planned node
        self._offered: dict[PodUid, tuple[NodeName, ...]] = {}
        self._last_offered: tuple[NodeName, ...] = ()  # kept once for all pods alike

    def note_messages(self, view: ClusterView, state: ReservationState) -> None:
        """Record the messages of members before they are nominated, and which messages changed after that.

        Call it after each admission, before the nominations are written: otherwise old messages cannot be recognized.
        """
        for uid in self._changed.since_last(view, state):
            reservation, pod = reservation_of(state, uid), view.pods.get(uid)
            self._refused.discard(uid)
            if reservation is None or pod is None or pod.node is not None:
                self._messages.pop(uid, None)
                continue
            message = self._messages.get(uid)
            not_nominated = pod.nominated != reservation.node
            if message is None or message.plan != reservation.plan or not_nominated:
                message = _Message(reservation.plan, pod.unschedulable)
            elif not message.renewed and message.before != pod.unschedulable:
                message = _Message(message.plan, message.before, renewed=True)
            self._messages[uid] = message
            if not not_nominated and _refused_everywhere(pod):
                self._refused.add(uid)

    def listen(
        self,
        view: ClusterView,
        state: ReservationState,
        at_bind: Callable[[PodUid], bool],
        now_ms: int,
    ) -> None:
        """Record suspicions from messages: if no node passed, kube-scheduler makes no filter call.

        Args:
            at_bind: Returns whether a member is at the bind barrier now, so that its node was not rejected.
        """
        self.note_messages(view, state)
        for uid in self._refused:
            reservation = reservation_of(state, uid)
            if reservation is not None and not at_bind(uid):
                self._suspect(view, reservation, now_ms, dated=self._messages[uid].renewed)

    def suspect(
        self,
        view: ClusterView,
        reservation: Reservation,
        now_ms: int,
        *,
        offered: Sequence[NodeName],
        native: bool,
    ) -> None:
        """Record that a filter call for a member did not include its node; `native`: kube-scheduler's own group scheduling is on."""
        plan, at_ms = self._accepted.get(reservation.uid, (None, 0))
        accepted = plan == reservation.plan and now_ms - at_ms < RESTLESS_MS
        # With its own group scheduling on, kube-scheduler tries a group with topology in one domain after the other, and
        # calls filter in each. A call for another domain than the planned one is no evidence about a member that it let
        # through before, and about another one not before `RESTLESS_MS`: the call for the planned domain may come later.
        elsewhere = (accepted or native) and _of_other_domain(view, reservation, offered)
        if accepted and elsewhere:
            return
        # a hint for the next plan: a gang whose devices are on a few of many nodes would get a rejection for each other one
        if offered:
            names = tuple(sorted(offered))
            if names != self._last_offered:
                self._last_offered = names
            self._offered[reservation.uid] = self._last_offered
        self._suspect(view, reservation, now_ms, calls=0 if elsewhere else 1, dated=not elsewhere)

    def _suspect(
        self,
        view: ClusterView,
        reservation: Reservation,
        now_ms: int,
        *,
        calls: int = 0,
        dated: bool = True,
    ) -> None:
        previous = self._suspicions.get(reservation.uid)
        node = view.nodes.get(reservation.node)
        usage = view.usage.get(reservation.node, NOTHING)
        first_ms, since_ms = now_ms, now_ms if dated else None
        if previous is not None and _same(previous, reservation, node):
            if previous.dated and not dated:
                return  # the recorded one is better evidence
            if previous.dated == dated:
                first_ms, calls = previous.first_ms, previous.calls + calls
                if previous.usage is usage and previous.since_ms is not None:
                    since_ms = previous.since_ms
        self._suspicions[reservation.uid] = _Suspicion(
            reservation.plan, node, usage, first_ms, since_ms, calls, dated
        )

    def accept(self, reservation: Reservation, now_ms: int) -> None:
        """Remove a suspicion: kube-scheduler offered the planned node."""
        self._suspicions.pop(reservation.uid, None)
        self._offered.pop(reservation.uid, None)
        self._accepted.pop(reservation.uid, None)  # so that the oldest is the first
        self._accepted[reservation.uid] = (reservation.plan, now_ms)

    def hints(self, view: ClusterView) -> dict[PodUid, NodeName]:
        """Return a node for each waiting pod, taken in turn from the nodes of its last filter call."""
        next_index: dict[int, int] = {}
        hinted: dict[PodUid, NodeName] = {}
        for uid in sorted(self._offered):
            pod = view.pods.get(uid)
            if pod is None or pod.node is not None:
                del self._offered[uid]
                continue
            offered = self._offered[uid]
            number = next_index.get(id(offered), 0)
            next_index[id(offered)] = number + 1
            hinted[uid] = offered[number % len(offered)]
        return hinted

    def confirmed(
        self, view: ClusterView, state: ReservationState, now_ms: int
    ) -> tuple[Reservation, ...]:
        """Return the reservations with a confirmed rejection, and remove suspicions that are over."""
        rejected: list[Reservation] = []
        while self._accepted:
            uid, (_, at_ms) = next(iter(self._accepted.items()))
            if now_ms - at_ms < RESTLESS_MS:
                break
            del self._accepted[uid]
        for uid, suspicion in list(self._suspicions.items()):
            reservation = reservation_of(state, uid)
            pod = view.pods.get(uid)
            if reservation is None or pod is None or pod.node is not None:
                del self._suspicions[uid]
                continue
            node = view.nodes.get(reservation.node)
            usage = view.usage.get(reservation.node, NOTHING)
            if not _same(suspicion, reservation, node) or not fits(
                view, state, reservation, pod.shape
            ):
                del self._suspicions[uid]
                continue
            since_ms = suspicion.since_ms
            if suspicion.usage is not usage:
                since_ms = None
                self._suspicions[uid] = msgspec.structs.replace(
                    suspicion, usage=usage, since_ms=None
                )
            settled = since_ms is not None and now_ms - since_ms >= SETTLED_MS
            stood_ms = now_ms - suspicion.first_ms
            repeated = suspicion.calls >= RESTLESS_CALLS and stood_ms >= SETTLED_MS
            if settled or repeated or stood_ms >= RESTLESS_MS:
                del self._suspicions[uid]
                rejected.append(reservation)
        return tuple(rejected)


def _refused_everywhere(pod: Pod) -> bool:
    """Return whether kube-scheduler found no node for a nominated member before it called an extender.

    Its message is then about the nodes of this pod, and contains no text of the extender. With its own group scheduling
    on it writes another message to all members of a group that it did not place as a whole ("pod group is
    unschedulable"), which is no evidence about their nodes.
    """
    attempted = pod.node is None and not pod.gates
    return (
        attempted and bool(_OWN_NODES.match(pod.unschedulable)) and "gang " not in pod.unschedulable
    )


def _of_other_domain(
    view: ClusterView, reservation: Reservation, offered: Sequence[NodeName]
) -> bool:
    """Return whether no offered node is in the domains of the planned one, for a topology key of the groups of a member."""
    pod, planned = view.pods.get(reservation.uid), view.nodes.get(reservation.node)
    if pod is None or planned is None:
        return False
    keys = {key for group in groups_above(view, pod.group) for key in group.constraints.domain_keys}
    return any(
        all(
            name not in view.nodes or view.nodes[name].labels.get(key) != planned.labels[key]
            for name in offered
        )
        for key in keys
        if key in planned.labels
    )


def _same(suspicion: _Suspicion, reservation: Reservation, node: Node | None) -> bool:
    return suspicion.plan == reservation.plan and suspicion.node is node


def fits(
    view: ClusterView, state: ReservationState, reservation: Reservation, shape: PodShape
) -> bool:
    """Return whether a member fits on its node now by our model, with all pods and reservations counted.

    If not, the rejection is expected, and reconciliation releases the reservation. The same holds where members of a
    preemptor are nominated to capacity that its victims still use: kube-scheduler counts both.
    """
    node = view.nodes.get(reservation.node)
    if node is None:
        return False
    usage = view.usage.get(reservation.node, NOTHING)
    beside = used_capacity_on(view, state, reservation.node, priority=reservation.priority)
    taken = dict(usage.requests)
    if beside is not None:  # it includes the reservation itself
        add_amounts(taken, used_requests(beside))
    claimed = claimed_under_victims(
        view, state, node.name, priority=reservation.priority, gang_uid=reservation.gang_uid
    )
    add_amounts(taken, claimed)
    if any(taken.get(name, 0) > node.allocatable.get(name, 0) for name in reservation.requests):
        return False
    return bool(may_run(NodeTable((PlanNode.of(node),)), shape)[0])


def decide_rejections(
    view: ClusterView,
    state: ReservationState,
    refused: Collection[Reservation],
    started: Collection[str],
    *,
    actor: str,
    now_ms: int,
) -> list[ev.NewEvent]:
    """Return the events for confirmed rejections, and the releases of reservations that must be planned again.

    Of a tree without bound members all reservations are released, of a started one only the rejected ones. The latter
    also holds if all rejected members have pod affinity: the other members wait at bind meanwhile, and without them
    kube-scheduler would reject every node, and not try again.
    """
    drafts: list[ev.NewEvent] = []
    for gang_uid in sorted({r.gang_uid for r in refused}):
        root = state.gangs[gang_uid]
        rejected = sorted((r for r in refused if r.gang_uid == gang_uid), key=lambda r: r.pod)
        events: list[ev.AnyEventData] = []
        for r in rejected:
            unmodelled = view.pods[r.uid].shape.unmodelled
            # Volumes and claims differ from pod to pod; everything else is the same for all pods of a shape.
            by_shape = not any("claim" in t or "volume" in t for t in unmodelled)
            path, until_ms = view.pods[r.uid].path, now_ms + TTL_MS
            events.append(
                ev.NodeRejected(
                    pod=path, uid=r.uid, node=r.node, by_shape=by_shape, until_ms=until_ms
                )
            )
        with_affinity = all(view.pods[r.uid].shape.has_pod_affinity for r in rejected)
        whole = not root.bound and gang_uid not in started and not with_affinity
        released = sorted(root.reservations.values(), key=lambda r: r.pod) if whole else rejected
        names = ", ".join(f"{r.node} for {r.pod}" for r in rejected[:5])
        events.append(
            ev.ReservationReleased(
                plan=rejected[0].plan,
                reason="node-rejected",
                pods=released_pods(released),
                message=f"kube-scheduler refused {names}",
            )
        )
        drafts += [
            ev.NewEvent(gang_uid=root.uid, gang=root.gang, data=f, actor=actor, cause="filter verb")
            for f in events
        ]
    return drafts


class NodeRejections:
    """Selects the rejections of the state that hold now; keeps pod and node as they were at each rejection."""

    def __init__(self) -> None:
        self._evidence: dict[RejectionKey, tuple[int, Node | None, Usage, PodShape]] = {}
        self._forgotten: set[tuple[RejectionKey, int]] = set()

    def holding(
        self, view: ClusterView, state: ReservationState, now_ms: int
    ) -> frozenset[RejectionKey]:
        """Return the rejections that hold, and drop those whose pod or node has changed since."""
        held = set()
        for key, rejection in state.rejections.items():
            pod, node = view.pods.get(key.uid), view.nodes.get(key.node)
            usage = view.usage.get(key.node, NOTHING)
            if (
                rejection.until_ms <= now_ms
                or pod is None
                or (key, rejection.at_ms) in self._forgotten
            ):
                continue
            # any change ends the first rejection
            firm_ms = REPEATED_MS << min(rejection.times - 2, 6) if rejection.times > 1 else 0
            evidence = self._evidence.get(key)
            if evidence is None or evidence[0] != rejection.at_ms:
                self._evidence[key] = (rejection.at_ms, node, usage, pod.shape)
            elif (
                evidence[1] is not node or evidence[2] is not usage or evidence[3] != pod.shape
            ) and now_ms >= rejection.at_ms + firm_ms:
                self._forgotten.add((key, rejection.at_ms))
                continue
            held.add(key)
        recorded = set(state.rejections)
        self._evidence = {k: v for k, v in self._evidence.items() if k in recorded}
        self._forgotten = {entry for entry in self._forgotten if entry[0] in recorded}
        return frozenset(held)
