"""Back-off for trees that are released and admitted again although nothing changed.

Reservations are normally released because of a change: of a node, of other pods on it, of the pods or groups of the
tree. If nothing that can be the cause has changed since the admission, the same input leads to the same admission and
the same release. That is a defect, and without a pause it repeats as fast as the control loop runs. A few such rounds
are permitted, because view and log are not updated at the same instant. The rules are in
docs/explanation/readmission-backoff.md. The data is kept in memory only: a restart loses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from immutables import Map

from extender.core.fairness.new_gang_limits import NewGangLimit
from extender.core.fairness.search_turns import SearchTurn
from extender.core.log.capacity_claim import NO_CLAIMS
from extender.core.log.events import NewEvent, NodeRejected, ReleaseReason, ReservationReleased
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import GATE, Pod


class ReadmissionPause(msgspec.Struct, frozen=True, gc=False):
    """Why a tree that fits is not admitted: it was released again and again without a cause."""

    gang: str  # namespace/name
    rounds: int
    pause_ms: int

    def kind_sentence(self) -> str:
        """Return the kind of reason as text without numbers, which changes rarely: for conditions."""
        return (
            "waiting for the end of its back-off: its reservations were released again and again although "
            "nothing had changed"
        )

    def sentence(self) -> str:
        """Return the reason as text.

        >>> ReadmissionPause("a/g", 5, 2000).sentence()
        'waiting for the end of its back-off of 2 s: its reservations were released 5 times in a row although nothing had changed'
        """
        return (
            f"waiting for the end of its back-off of {self.pause_ms // 1000} s: its reservations were released "
            f"{self.rounds} times in a row although nothing had changed"
        )

    def help(self) -> str:
        """Return what to do about it."""
        return (
            "a change of its pods, its groups or a node ends the back-off; it is a defect of gang-extender, report "
            f"the output of `gang-extender history {self.gang} --decisions`"
        )


WaitReason: TypeAlias = SearchTurn | NewGangLimit | ReadmissionPause


ROUNDS_FREE: Final = 3  # consecutive rounds without a pause
PAUSE_MS: Final = 1_000  # after the next round; doubled with each further round ...
PAUSE_MS_MAX: Final = 300_000  # ... up to this
STABLE_MS: Final = 60_000  # an admission that lasted this long resets the number of rounds


class ReadmissionLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that was released again without a cause, and is deferred."""

    gang_uid: GangUid
    gang: str  # namespace/name
    rounds: int  # consecutive rounds, including this one
    pause_ms: int
    reason: ReleaseReason
    message: str  # of the release
    message_reduced: str = ""  # without names of other namespaces; empty: as `message`


class _NodeCapacity(msgspec.Struct, frozen=True):
    """The data that a reservation on a node depends on."""

    node: Node | None
    usage: Usage
    claimed: frozenset[GangUid]  # preemptors with claims there


class _Admission(msgspec.Struct, frozen=True):
    """The data that the last admission of a tree depends on."""

    at_ms: int
    tree: Tree
    where: Mapping[PodUid, NodeName]
    capacities: Mapping[NodeName, _NodeCapacity]


class _Rounds(msgspec.Struct):
    """The consecutive rounds of a tree without a cause."""

    number: int
    last: _Admission
    nodes: Map[NodeName, Node]  # of the cluster, at the last release
    until_ms: int = 0  # end of the pause; 0: no pause
    pause_ms: int = 0  # its length


class Readmissions:
    """Counts the rounds of each tree, and defers trees with too many."""

    def __init__(self, *, expires_ms: int) -> None:
        """Create an empty record; `expires_ms`: lifetime of a reservation."""
        self._expires_ms = expires_ms
        self._admitted: dict[GangUid, _Admission] = {}
        self._rounds: dict[GangUid, _Rounds] = {}
        self._kept_of: object = None  # the roots of the last call of `keep`

    def admitted(
        self,
        view: ClusterView,
        state: ReservationState,
        tree: Tree,
        where: Mapping[PodUid, NodeName],
        now_ms: int,
    ) -> None:
        """Record the data that an admission or an extension depends on."""
        capacities = {name: _node_capacity(view, state, name) for name in set(where.values())}
        self._admitted[tree.root.uid] = _Admission(now_ms, tree, where, capacities)

    def released(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        drafts: Iterable[NewEvent],
        now_ms: int,
    ) -> list[ReadmissionLoop]:
        """Count the releases without a cause among some recorded events, and return the trees that are deferred now."""
        by_gang: dict[GangUid, list[ReservationReleased]] = {}
        rejected: set[GangUid] = set()
        for draft in drafts:
            if isinstance(draft.data, NodeRejected):
                rejected.add(draft.gang_uid)
            elif isinstance(draft.data, ReservationReleased):
                by_gang.setdefault(draft.gang_uid, []).append(draft.data)
        trees = {tree.root.uid: tree for tree in forest.trees.values()} if by_gang else {}
        loops = []
        for uid, events in by_gang.items():
            admission = self._admitted.get(uid)
            ours = [
                f for f in events if admission and any(p.uid in admission.where for p in f.pods)
            ]
            if admission is None or not ours:
                continue
            del self._admitted[uid]
            age_ms = now_ms - admission.at_ms
            if not same_tree(admission.tree, trees.get(uid)):
                self._rounds.pop(uid, None)
                continue
            # what cannot repeat at once: an expiry, or a node rejection, which changes the next plan
            timed = [
                f
                for f in ours
                if (f.reason == "expired" and age_ms >= self._expires_ms)
                or (f.reason == "node-rejected" and uid in rejected)
            ]
            without = [
                f for f in ours if f not in timed and not _changed(view, state, admission, f)
            ]
            if without:
                loops += self._count(view, admission, without[0], age_ms, now_ms)
            elif not timed:
                self._rounds.pop(uid, None)
        return loops

    def _count(
        self,
        view: ClusterView,
        admission: _Admission,
        data: ReservationReleased,
        age_ms: int,
        now_ms: int,
    ) -> list[ReadmissionLoop]:
        uid = admission.tree.root.uid
        before = self._rounds.get(uid)
        number = 1 if before is None or age_ms >= STABLE_MS else before.number + 1
        now = self._rounds[uid] = _Rounds(number, admission, view.nodes)
        over = number - ROUNDS_FREE - 1
        if over < 0:
            return []
        pause_ms = min(PAUSE_MS << min(over, PAUSE_MS_MAX.bit_length()), PAUSE_MS_MAX)
        now.until_ms, now.pause_ms = now_ms + pause_ms, pause_ms
        return [
            ReadmissionLoop(
                gang_uid=uid,
                gang=admission.tree.root.key.path,
                rounds=number,
                pause_ms=pause_ms,
                reason=data.reason,
                message=data.message,
                message_reduced=data.message_reduced,
            )
        ]

    def defers(self, view: ClusterView, tree: Tree, now_ms: int) -> bool:
        """Return whether a tree must not be admitted yet.

        A change of its pods, its groups or the nodes of its last admission resets the number of rounds. Any other
        change of nodes permits one attempt; if that fails as well, the next pause is longer.
        """
        rounds = self._rounds.get(tree.root.uid)
        if rounds is None or not rounds.until_ms:
            return False
        last = rounds.last
        if not same_tree(last.tree, tree) or any(
            view.nodes.get(name) != capacity.node for name, capacity in last.capacities.items()
        ):
            del self._rounds[tree.root.uid]
            return False
        if view.nodes is not rounds.nodes or now_ms >= rounds.until_ms:
            rounds.until_ms = 0
        return bool(rounds.until_ms)

    def pauses(self) -> dict[GangUid, ReadmissionPause]:
        """Return the trees that are deferred, by the UID of the root."""
        return {
            uid: ReadmissionPause(rounds.last.tree.root.key.path, rounds.number, rounds.pause_ms)
            for uid, rounds in self._rounds.items()
            if rounds.until_ms
        }

    def ends_after(self, since_ms: int) -> bool:
        """Return whether the pause of some tree ends after `since_ms`."""
        return any(rounds.until_ms > since_ms for rounds in self._rounds.values())

    def keep(self, state: ReservationState) -> None:
        """Remove trees that are gone, and admissions whose reservations are all bound or released."""
        if state.gangs is self._kept_of:
            return
        self._kept_of = state.gangs
        self._rounds = {uid: r for uid, r in self._rounds.items() if uid in state.gangs}
        self._admitted = {
            uid: a
            for uid, a in self._admitted.items()
            if uid in state.gangs and state.gangs[uid].reservations
        }


def _node_capacity(view: ClusterView, state: ReservationState, name: NodeName) -> _NodeCapacity:
    usage = view.usage.get(name, NOTHING)
    claims = state.claims_on.get(name, NO_CLAIMS)
    preemptors = {uid for kind, uid, _ in claims if kind == "preemption"}
    return _NodeCapacity(view.nodes.get(name), usage, frozenset(preemptors))


def _changed(
    view: ClusterView, state: ReservationState, admission: _Admission, data: ReservationReleased
) -> bool:
    """Return whether a change on the nodes of a release since the admission can be its cause."""
    if data.reason not in ("node-lost", "superseded"):
        return False  # the cause of the others is the tree itself
    for name in {pod.node for pod in data.pods} & admission.capacities.keys():
        before, now = admission.capacities[name], _node_capacity(view, state, name)
        if now.node != before.node or (data.reason == "superseded" and now != before):
            return True
    return False


def same_tree(before: Tree, now: Tree | None) -> bool:
    """Return whether a tree is unchanged, apart from what the extender and kube-scheduler write while it waits."""
    if before is now:
        return True
    if now is None or before.problems != now.problems or len(before.groups) != len(now.groups):
        return False
    if any(_group(a) != _group(b) for a, b in zip(before.groups, now.groups, strict=True)):
        return False
    ours, theirs = before.pods, now.pods
    return len(ours) == len(theirs) and all(
        a is b or _pod(a) == _pod(b) for a, b in zip(ours, theirs, strict=True)
    )


def _group(group: Group) -> Group:
    return msgspec.structs.replace(group, conditions=(), resource_version="")


def _pod(pod: Pod) -> Pod:
    gates = tuple(gate for gate in pod.gates if gate != GATE)
    return msgspec.structs.replace(
        pod, nominated=None, gates=gates, unschedulable="", resource_version=""
    )
