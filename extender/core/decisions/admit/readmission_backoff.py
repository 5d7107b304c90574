"""Trees that are given back and admitted again although nothing changed: found, and put off longer each time.

Reservations are given back for a cause outside: a node went, others took the room, pods or groups changed. Where none
of what can be the cause differs from what it was at the admission, the same input leads to the same admission and to
the same release: that is a defect, and without a pause it is repeated as fast as the admission loop runs. A few such
rounds are let pass, since the view and the log are never of quite the same moment. The rules stand in
extender/README.md, "Readmission back-off". What is known here is memory of one process: a restart begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from immutables import Map

from extender.core.decisions.admit.plan_request import GATE
from extender.core.log.events import NewEvent, NodeVetoed, ReleaseReason, ReservationReleased
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage
from extender.core.model.ids import NodeName, PodUid, RootUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.model.pods import Pod

ROUNDS_FREE: Final = 3  # in a row, without a pause
PAUSE_MS: Final = 1_000  # after the round behind those; doubled with each ...
PAUSE_MS_MAX: Final = 300_000  # ... up to this
STABLE_MS: Final = 60_000  # an admission that stood so long ends the row of rounds before it


class ReadmissionLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that was given back once more without a cause outside, and is put off."""

    root_uid: RootUid
    root: str  # namespace/name
    rounds: int  # in a row, this one included
    pause_ms: int
    why: ReleaseReason
    text: str  # of the release


class _Room(msgspec.Struct, frozen=True):
    """What a reservation on a node depends on."""

    node: Node | None
    usage: Usage
    claimed: tuple[RootUid, ...]  # preemptors that hold room there


class _Admission(msgspec.Struct, frozen=True):
    """What the last admission of a tree rested on."""

    at_ms: int
    tree: Tree
    where: Mapping[PodUid, NodeName]
    rooms: Mapping[NodeName, _Room]


class _Rounds(msgspec.Struct):
    """The rounds of a tree without a cause outside."""

    number: int
    last: _Admission
    nodes: Map[NodeName, Node]  # of the cluster, when it was given back last
    until_ms: int = 0  # it is not admitted before; 0: at once


class Readmissions:
    """Counts the rounds of each tree, and puts off those that go on."""

    def __init__(self, *, expires_ms: int) -> None:
        """Prepare.

        Args:
            expires_ms: How long a reservation stands before it expires.
        """
        self._expires_ms = expires_ms
        self._admitted: dict[RootUid, _Admission] = {}
        self._rounds: dict[RootUid, _Rounds] = {}
        self._kept_of: object = None  # the roots that `keep` looked at last

    def admitted(
        self,
        view: ClusterView,
        state: ReservationState,
        tree: Tree,
        where: Mapping[PodUid, NodeName],
        now_ms: int,
    ) -> None:
        """Remember what an admission, or an extension, rests on.

        Args:
            view: The cluster.
            state: What is decided.
            tree: What was admitted.
            where: The nodes of the new reservations.
            now_ms: Now.
        """
        rooms = {name: _room(view, state, name) for name in set(where.values())}
        self._admitted[tree.root.uid] = _Admission(now_ms, tree, where, rooms)

    def released(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        drafts: Iterable[NewEvent],
        now_ms: int,
    ) -> list[ReadmissionLoop]:
        """Count the releases among some recorded facts that have no cause outside.

        Args:
            view: The cluster that the facts were decided on.
            state: What is decided.
            forest: The trees of the view.
            drafts: Facts of one decision.
            now_ms: Now.

        Returns:
            The trees that are put off now, each with for how long.
        """
        by_root: dict[RootUid, list[ReservationReleased]] = {}
        vetoed: set[RootUid] = set()
        for draft in drafts:
            if isinstance(draft.fact, NodeVetoed):
                vetoed.add(draft.root_uid)
            elif isinstance(draft.fact, ReservationReleased):
                by_root.setdefault(draft.root_uid, []).append(draft.fact)
        trees = {tree.root.uid: tree for tree in forest.trees.values()} if by_root else {}
        found = []
        for uid, facts in by_root.items():
            known = self._admitted.get(uid)
            ours = [f for f in facts if known and any(p.uid in known.where for p in f.pods)]
            if known is None or not ours:
                continue
            del self._admitted[uid]
            age_ms = now_ms - known.at_ms
            if not same_tree(known.tree, trees.get(uid)):
                self._rounds.pop(uid, None)
                continue
            timed = [f for f in ours if self._by_time(f, age_ms, vetoed=uid in vetoed)]
            without = [f for f in ours if f not in timed and not _changed(view, state, known, f)]
            if without:
                found += self._count(view, known, without[0], age_ms, now_ms)
            elif not timed:
                self._rounds.pop(uid, None)
        return found

    def _by_time(self, fact: ReservationReleased, age_ms: int, *, vetoed: bool) -> bool:
        """Say whether a release has a pause of its own: an expiry, or a veto, with which it is planned otherwise."""
        return (fact.why == "expired" and age_ms >= self._expires_ms) or (
            fact.why == "vetoed" and vetoed
        )

    def _count(
        self,
        view: ClusterView,
        known: _Admission,
        fact: ReservationReleased,
        age_ms: int,
        now_ms: int,
    ) -> list[ReadmissionLoop]:
        uid = known.tree.root.uid
        before = self._rounds.get(uid)
        number = 1 if before is None or age_ms >= STABLE_MS else before.number + 1
        now = self._rounds[uid] = _Rounds(number, known, view.nodes)
        over = number - ROUNDS_FREE - 1
        if over < 0:
            return []
        pause_ms = min(PAUSE_MS << min(over, PAUSE_MS_MAX.bit_length()), PAUSE_MS_MAX)
        now.until_ms = now_ms + pause_ms
        return [
            ReadmissionLoop(
                root_uid=uid,
                root=known.tree.root.key.path,
                rounds=number,
                pause_ms=pause_ms,
                why=fact.why,
                text=fact.text,
            )
        ]

    def puts_off(self, view: ClusterView, tree: Tree, now_ms: int) -> bool:
        """Say whether a tree is not to be admitted yet; a change that concerns it ends that.

        With its pods, its groups or the nodes that it was given the count begins anew. Any other change of nodes
        lets it be tried once, and the pause is longer if that is in vain.
        """
        rounds = self._rounds.get(tree.root.uid)
        if rounds is None or not rounds.until_ms:
            return False
        last = rounds.last
        if not same_tree(last.tree, tree) or any(
            view.nodes.get(name) != room.node for name, room in last.rooms.items()
        ):
            del self._rounds[tree.root.uid]
            return False
        if view.nodes is not rounds.nodes or now_ms >= rounds.until_ms:
            rounds.until_ms = 0
        return bool(rounds.until_ms)

    def ends_after(self, since_ms: int) -> bool:
        """Say whether some tree was put off until later than that."""
        return any(rounds.until_ms > since_ms for rounds in self._rounds.values())

    def keep(self, state: ReservationState) -> None:
        """Forget trees that are gone, and admissions of which all is bound or given back."""
        if state.roots is self._kept_of:
            return
        self._kept_of = state.roots
        self._rounds = {uid: r for uid, r in self._rounds.items() if uid in state.roots}
        self._admitted = {
            uid: a
            for uid, a in self._admitted.items()
            if uid in state.roots and state.roots[uid].held
        }


def _room(view: ClusterView, state: ReservationState, name: NodeName) -> _Room:
    usage = view.usage.get(name, NOTHING)
    return _Room(view.nodes.get(name), usage, state.claimed_on.get(name, ()))


def _changed(
    view: ClusterView, state: ReservationState, known: _Admission, fact: ReservationReleased
) -> bool:
    """Say whether something on the nodes of a release changed since the admission that can be its cause."""
    if fact.why not in ("node-lost", "superseded"):
        return False  # of the others the tree is the cause
    for name in {pod.node for pod in fact.pods} & known.rooms.keys():
        before, now = known.rooms[name], _room(view, state, name)
        if now.node != before.node or (fact.why == "superseded" and now != before):
            return True
    return False


def same_tree(before: Tree, now: Tree | None) -> bool:
    """Say whether a tree is what it was, but for what we and kube-scheduler write while it waits."""
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
