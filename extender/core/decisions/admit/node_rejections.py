"""Learn from kube-scheduler: a node that it refuses although our own model says that the member fits.

Its filters are the authority, ours only predict them. It shows a refusal in two ways: a filter call
that offers nodes but not the planned one, or (when no node passes) the pod's PodScheduled message.
One sight proves little, because kube-scheduler knows of pods that we have not seen yet; so a refusal
is suspected first, and believed when after `SETTLED_MS` nothing on that node has changed and the
member has still not got through. On a node that never rests it is believed as soon as kube-scheduler has
said it `RESTLESS_CALLS` times over that time, each time anew, or after `RESTLESS_MS`, when it has looked
again after whatever changed. A veto ends with its time, or with any change of pod or node;
one that is learned again holds longer, so that no change can make a loop.

A message has no date: kube-scheduler writes it only when it changes, and a new attempt may wait for
its back-off. So a message that stood before the nomination was seen says nothing about this node
until `RESTLESS_MS` have passed; one that came after it is a refusal like a filter call.

The nodes that were offered instead are a hint for the next plan, never a reason: without it a gang
whose devices are on a few of many nodes would learn the others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from extender.core.decisions.capacity.capacity_claims import behind_victims
from extender.core.decisions.capacity.free_capacity import taken_on, taken_requests
from extender.core.log.events import (
    AnyEventData,
    NewEvent,
    NodeVetoed,
    ReleasedPod,
    ReservationReleased,
)
from extender.core.log.reservation_state import RejectionKey, Reservation, ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pods import Pod, PodShape
from extender.core.planner.model.node_filters import may_run
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanNode

SETTLED_MS = 1_500
RESTLESS_MS = 12_000  # longer than kube-scheduler's longest back-off (10 s)
RESTLESS_CALLS = 5  # filter calls; pods that come and go on the node wake the member for each
TTL_MS = 300_000
REPEATED_MS = (
    30_000  # a veto learned for the second time is not forgotten before; doubled each time
)


class _Suspicion(msgspec.Struct, frozen=True):
    """What the cluster looked like when a refusal was seen."""

    plan: PlanId
    node: Node | None
    usage: Usage
    first_ms: int  # seen first, the member fitting ever since by our own model
    since_ms: int | None  # seen since the last change of what is on the node
    calls: int  # filter calls that said so, the member fitting ever since the first
    dated: bool  # known to be about this nomination


class _Message(msgspec.Struct, frozen=True):
    """What PodScheduled said of a member with a reservation."""

    plan: PlanId
    before: str  # when its nomination was not seen yet
    renewed: bool = False  # it has said something else since


class RejectionEvidence:
    """Refusals that may turn out to be vetoes; memory only, a restart begins anew."""

    def __init__(self) -> None:
        self._found: dict[PodUid, _Suspicion] = {}
        self._messages: dict[PodUid, _Message] = {}
        self._offered: dict[PodUid, tuple[NodeName, ...]] = {}
        self._last_offered: tuple[NodeName, ...] = ()  # kept once for all pods alike

    def heed(self, view: ClusterView, state: ReservationState) -> None:
        """Note what the messages of members are before they are nominated, and which are new after that.

        To be called after every admission before it is carried out, or old messages pass for unknown.
        """
        messages: dict[PodUid, _Message] = {}
        for held in state.held_on.values():
            for uid, reservation in held.items():
                pod = view.pods.get(uid)
                if pod is None or pod.node is not None:
                    continue
                known = self._messages.get(uid)
                on_its_way = pod.nominated != reservation.node
                if known is None or known.plan != reservation.plan or on_its_way:
                    known = _Message(reservation.plan, pod.unschedulable)
                elif not known.renewed and known.before != pod.unschedulable:
                    known = _Message(known.plan, known.before, renewed=True)
                messages[uid] = known
        self._messages = messages

    def listen(
        self,
        view: ClusterView,
        state: ReservationState,
        at_bind: Callable[[PodUid], bool],
        now_ms: int,
    ) -> None:
        """Suspect the refusals that stand in messages: no node passed, so no filter call tells.

        Args:
            view: As it is now.
            state: What is held.
            at_bind: Says whether a member is at the barrier now: it got through.
            now_ms: Since when.
        """
        self.heed(view, state)
        for held in state.held_on.values():
            for uid, reservation in held.items():
                pod = view.pods.get(uid)
                if pod is None or pod.nominated != reservation.node or at_bind(uid):
                    continue
                if _refused_everywhere(pod):
                    dated = self._messages[uid].renewed
                    self._suspect(view, reservation, now_ms, dated=dated)

    def suspect(
        self,
        view: ClusterView,
        reservation: Reservation,
        now_ms: int,
        *,
        offered: Sequence[NodeName],
    ) -> None:
        """Note that a filter call did not offer a member its node.

        Args:
            view: As it is now.
            reservation: What the member holds.
            now_ms: Since when.
            offered: Where kube-scheduler would have the member instead.
        """
        if offered:
            names = tuple(sorted(offered))
            if names != self._last_offered:
                self._last_offered = names
            self._offered[reservation.uid] = self._last_offered
        self._suspect(view, reservation, now_ms, calls=1)

    def _suspect(
        self,
        view: ClusterView,
        reservation: Reservation,
        now_ms: int,
        *,
        calls: int = 0,
        dated: bool = True,
    ) -> None:
        known = self._found.get(reservation.uid)
        node = view.nodes.get(reservation.node)
        usage = view.usage.get(reservation.node, NOTHING)
        first_ms, since_ms = now_ms, now_ms if dated else None
        if known is not None and _same(known, reservation, node):
            if known.dated and not dated:
                return  # it is known already, and better
            if known.dated == dated:
                first_ms, calls = known.first_ms, known.calls + calls
                if known.usage is usage and known.since_ms is not None:
                    since_ms = known.since_ms
        self._found[reservation.uid] = _Suspicion(
            reservation.plan, node, usage, first_ms, since_ms, calls, dated
        )

    def clear(self, uid: PodUid) -> None:
        """Forget a suspicion: the member got through."""
        self._found.pop(uid, None)
        self._offered.pop(uid, None)

    def hints(self, view: ClusterView) -> dict[PodUid, NodeName]:
        """Share the nodes that were offered out among the pods that wait, in turn."""
        turn: dict[int, int] = {}
        found: dict[PodUid, NodeName] = {}
        for uid in sorted(self._offered):
            pod = view.pods.get(uid)
            if pod is None or pod.node is not None:
                del self._offered[uid]
                continue
            offered = self._offered[uid]
            number = turn.get(id(offered), 0)
            turn[id(offered)] = number + 1
            found[uid] = offered[number % len(offered)]
        return found

    def confirmed(
        self, view: ClusterView, state: ReservationState, now_ms: int
    ) -> tuple[Reservation, ...]:
        """Give the reservations whose refusal has stood long enough, and forget the settled ones."""
        found: list[Reservation] = []
        for uid, suspicion in list(self._found.items()):
            root_uid = state.root_of.get(uid)
            root = state.roots.get(root_uid) if root_uid is not None else None
            reservation = root.held.get(uid) if root is not None else None
            pod = view.pods.get(uid)
            if reservation is None or pod is None or pod.node is not None:
                del self._found[uid]
                continue
            node = view.nodes.get(reservation.node)
            usage = view.usage.get(reservation.node, NOTHING)
            if not _same(suspicion, reservation, node) or not fits(
                view, state, reservation, pod.shape
            ):
                del self._found[uid]
                continue
            since_ms = suspicion.since_ms
            if suspicion.usage is not usage:
                since_ms = None
                self._found[uid] = msgspec.structs.replace(suspicion, usage=usage, since_ms=None)
            settled = since_ms is not None and now_ms - since_ms >= SETTLED_MS
            stood_ms = now_ms - suspicion.first_ms
            insisted = suspicion.calls >= RESTLESS_CALLS and stood_ms >= SETTLED_MS
            if settled or insisted or stood_ms >= RESTLESS_MS:
                del self._found[uid]
                found.append(reservation)
        return tuple(found)


def _refused_everywhere(pod: Pod) -> bool:
    """Say whether kube-scheduler found no node for a nominated member, before any extender was asked.

    Its message then has no word of ours in it.
    """
    asked = pod.node is None and not pod.gates
    return asked and bool(pod.unschedulable) and "gang " not in pod.unschedulable


def _same(known: _Suspicion, reservation: Reservation, node: Node | None) -> bool:
    return known.plan == reservation.plan and known.node is node


def fits(
    view: ClusterView, state: ReservationState, reservation: Reservation, shape: PodShape
) -> bool:
    """Say whether by our own model a member could be on its node now, with everything counted.

    Where it could not, kube-scheduler's refusal teaches nothing: reconciliation deals with it. Nor where members
    of another preemptor are nominated to room in which its victims still sit: kube-scheduler counts both.
    """
    node = view.nodes.get(reservation.node)
    if node is None:
        return False
    usage = view.usage.get(reservation.node, NOTHING)
    beside = taken_on(view, state, reservation.node, priority=reservation.priority)
    taken = dict(usage.requests)
    if (
        beside is not None
    ):  # the reservation itself is in it: not even with it is the node overdrawn
        for name, amount in taken_requests(beside).items():
            taken[name] = taken.get(name, 0) + amount
    promised = behind_victims(
        view, state, node.name, priority=reservation.priority, root_uid=reservation.root_uid
    )
    for name, amount in promised.items():
        taken[name] = taken.get(name, 0) + amount
    if any(taken.get(name, 0) > node.allocatable.get(name, 0) for name in reservation.requests):
        return False
    row = PlanNode(
        name=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable or node.deleting,
        allocatable=node.allocatable,
    )
    return bool(may_run(NodeTable((row,)), shape)[0])


def decide_vetoes(
    view: ClusterView,
    state: ReservationState,
    refused: Collection[Reservation],
    started: Collection[str],
    *,
    actor: str,
    now_ms: int,
) -> list[NewEvent]:
    """Record refusals that are believed, and give back what must be planned again without them.

    A tree of which nothing is bound gives all its reservations back, a started one only the refused.
    So does one whose refused members need other pods: those wait at bind meanwhile, and without them
    kube-scheduler would refuse every node, and not look again.
    """
    drafts: list[NewEvent] = []
    for root_uid in sorted({r.root_uid for r in refused}):
        root = state.roots[root_uid]
        mine = sorted((r for r in refused if r.root_uid == root_uid), key=lambda r: r.pod)
        facts: list[AnyEventData] = [_vetoed(view.pods[r.uid], r.node, now_ms) for r in mine]
        needy = all(view.pods[r.uid].shape.needs_pods for r in mine)
        whole = not root.bound and root_uid not in started and not needy
        released = sorted(root.held.values(), key=lambda r: r.pod) if whole else mine
        names = ", ".join(f"{r.node} for {r.pod}" for r in mine[:5])
        facts.append(
            ReservationReleased(
                plan=mine[0].plan,
                why="vetoed",
                pods=tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in released),
                text=f"kube-scheduler refused {names}",
            )
        )
        drafts += [
            NewEvent(root_uid=root.uid, root=root.root, fact=f, actor=actor, cause="filter verb")
            for f in facts
        ]
    return drafts


def _vetoed(pod: Pod, node: NodeName, now_ms: int) -> NodeVetoed:
    return NodeVetoed(
        pod=pod.path,
        uid=pod.uid,
        node=node,
        # Volumes and claims are a pod's own; everything else is the same for all pods of its shape.
        by_shape=not any("claim" in t or "volume" in t for t in pod.shape.unmodelled),
        until_ms=now_ms + TTL_MS,
    )


class NodeRejections:
    """Which vetoes of the state hold now: remembers what pod and node were like when they were learned."""

    def __init__(self) -> None:
        self._seen: dict[RejectionKey, tuple[int, Node | None, Usage, PodShape]] = {}
        self._forgotten: set[tuple[RejectionKey, int]] = set()

    def holding(
        self, view: ClusterView, state: ReservationState, now_ms: int
    ) -> frozenset[RejectionKey]:
        """Give the vetoes that hold, and forget those whose pod or node has changed since."""
        held = set()
        for key, veto in state.vetoes.items():
            pod, node = view.pods.get(key.uid), view.nodes.get(key.node)
            usage = view.usage.get(key.node, NOTHING)
            if veto.until_ms <= now_ms or pod is None or (key, veto.at_ms) in self._forgotten:
                continue
            seen = self._seen.get(key)
            if seen is None or seen[0] != veto.at_ms:
                self._seen[key] = (veto.at_ms, node, usage, pod.shape)
            elif (
                seen[1] is not node or seen[2] is not usage or seen[3] != pod.shape
            ) and now_ms >= _firm_until(veto.at_ms, veto.times):
                self._forgotten.add((key, veto.at_ms))
                continue
            held.add(key)
        known = set(state.vetoes)
        self._seen = {k: v for k, v in self._seen.items() if k in known}
        self._forgotten = {entry for entry in self._forgotten if entry[0] in known}
        return frozenset(held)


def _firm_until(at_ms: int, times: int) -> int:
    if times < 2:  # noqa: PLR2004 -- the first time any change may end it
        return at_ms
    return at_ms + int(REPEATED_MS * 2 ** min(times - 2, 6))
