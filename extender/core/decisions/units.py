"""Collect what could go for one tree: units of what runs, reservations of others, pods on their way out.

A unit is found by climbing from a pod: the highest group above it that is disrupted as a whole, else
the pod alone (SPEC E-4). Of a tree whose rules are broken the higher of both priorities counts, so that
nothing is ever evicted for less than its own priority.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from extender.core.decisions.pod_rules import Ruled, counted_by
from extender.core.decisions.rows import NO_HOLDS
from extender.core.groups import Forest, Group, Tree, composite_key
from extender.core.ids import GroupKey, NodeName, PodUid, RootUid
from extender.core.planner.units import (
    Evictable,
    PlanBudget,
    PlanGang,
    PlanUnit,
    PlanVictim,
)
from extender.core.pods import Pod, PodShape
from extender.core.state import Reservation, ReservationState, RootState
from extender.core.view import ClusterView

NEVER = "Never"


def evictable_for(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    tree: Tree,
    *,
    ruled: Ruled,
    releasing: Collection[RootUid] = (),
    spared: Collection[str] = (),
) -> Evictable:
    """Collect what could make room for a tree.

    The caller keeps a tree from asking while victims of an earlier decision still go (SPEC P15), and
    from asking for extras before its minimum is bound (C.6): to a request its reservations are bound.

    Args:
        view: The cluster, with its budgets.
        state: What is held.
        forest: The trees of `view`.
        tree: Who asks.
        ruled: What `ruled_part` gives for the request that this becomes part of.
        releasing: Roots whose barrier is letting members through: their reservations stay.
        spared: UIDs of units or of roots that must not be taken, whatever their priority.
    """
    return _Collection(view, state, forest, tree, ruled).collect(set(releasing), set(spared))


def may_preempt(tree: Tree) -> bool:
    """Say whether a tree may evict others: neither its root nor any of its pods says Never."""
    policies = {tree.root.preemption_policy, *(pod.preemption_policy for pod in tree.pods)}
    return NEVER not in policies


def groups_above(view: ClusterView, pod: Pod) -> list[Group]:
    """List the groups above a pod, its leaf first, as far as they exist."""
    found: list[Group] = []
    key = pod.group
    while key is not None:
        group = view.groups.get(key)
        if group is None or group in found:
            break
        found.append(group)
        key = composite_key(key.namespace, group.parent) if group.parent is not None else None
    return found


class _Draft(msgspec.Struct):
    """A unit that is being collected."""

    name: str
    uid: str
    kind: str
    priority: int
    may_preempt: bool
    roots: set[str]  # UIDs that spare it
    pods: list[PlanVictim]


class _Collection:
    def __init__(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        tree: Tree,
        ruled: Ruled,
    ) -> None:
        self.view = view
        self.state = state
        self.forest = forest
        self.tree = tree
        self.ruled = ruled
        self.shapes: dict[PodShape, int] = {}
        self.budgets: dict[tuple[str, str], int] = {}
        self.gangs: list[PlanGang] = []
        self.gang_of: dict[GroupKey, int] = {}
        self.own = {pod.uid for pod in tree.pods}
        self.guards: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(view.budgets):
            self.guards.setdefault(name[0], []).append(name)

    def collect(self, releasing: set[RootUid], spared: set[str]) -> Evictable:
        priority = self.tree.root.priority
        drafts: dict[str, _Draft] = {}
        barred: set[str] = set()  # units of broken trees with a pod that must stay
        going: list[PlanVictim] = []
        for node in sorted(self.view.on_node):
            if node not in self.view.nodes:
                continue
            for pod in sorted(self.view.on_node[node].values(), key=lambda p: p.path):
                if pod.deleting:
                    going.append(self._victim(pod, node, ()))
                    continue
                found = self._draft(pod) if pod.group is not None else self._lone(pod)
                if found.priority >= priority or found.roots & spared or pod.uid in self.own:
                    barred.add(found.name)
                else:
                    self._add(drafts, found, pod, node)
        units = [
            PlanUnit(
                name=d.name,
                uid=d.uid,
                kind="group" if d.kind == "group" else "pod",
                priority=d.priority,
                pods=tuple(sorted(d.pods, key=lambda p: p.pod)),
                may_preempt=d.may_preempt,
            )
            for d in drafts.values()
            if d.name not in barred
        ]
        units += self._reservations(priority, releasing, spared)
        return Evictable(
            priority=priority,
            may_preempt=may_preempt(self.tree),
            units=tuple(sorted(units, key=lambda u: (u.kind, u.name))),
            shapes=tuple(self.shapes),
            gangs=tuple(self.gangs),
            budgets=tuple(
                PlanBudget(name=self.view.budgets[n].path, allowed=self.view.budgets[n].allowed)
                for n in self.budgets
            ),
            going=tuple(sorted(going, key=lambda p: p.pod)),
        )

    def _add(self, drafts: dict[str, _Draft], found: _Draft, pod: Pod, node: NodeName) -> None:
        draft = drafts.setdefault(found.name, found)
        draft.priority = max(draft.priority, found.priority)
        draft.may_preempt = draft.may_preempt and found.may_preempt
        draft.pods.append(self._victim(pod, node, self._budgets(pod), self._gang(pod)))

    # --- what a pod belongs to ---------------------------------------------------------------------

    def _lone(self, pod: Pod) -> _Draft:
        return _Draft(
            name=f"Pod/{pod.path}",
            uid=pod.uid,
            kind="pod",
            priority=pod.priority,
            may_preempt=pod.preemption_policy != NEVER,
            roots={pod.uid},
            pods=[],
        )

    def _draft(self, pod: Pod) -> _Draft:
        """Find the unit of a pod that names a group."""
        above = groups_above(self.view, pod)
        draft = self._lone(pod)
        if not above:
            return draft
        top = above[-1]
        draft.priority = max(pod.priority, top.priority)
        draft.may_preempt = NEVER not in {pod.preemption_policy, top.preemption_policy}
        whole = [group for group in above if group.mode == "all"]
        if whole:
            draft.name, draft.uid, draft.kind = str(whole[-1].key), whole[-1].uid, "group"
        draft.roots = {draft.uid, top.uid}
        return draft

    def _gang(self, pod: Pod) -> int:
        """Give the place of a pod's leaf among `gangs`; its whole tree is added the first time."""
        root = self.forest.root_of.get(pod.group) if pod.group is not None else None
        if root is None or pod.group is None or self.forest.trees[root].root.mode == "all":
            return -1  # nothing above it can be broken
        if pod.group not in self.gang_of:
            self._add_tree(self.forest.trees[root])
        return self.gang_of[pod.group]

    def _add_tree(self, tree: Tree) -> None:
        inside: set[GroupKey] = set()  # of a unit
        for group in tree.groups:
            parent = (
                None if group.parent is None else composite_key(group.key.namespace, group.parent)
            )
            if group.mode == "all" or parent in inside:
                inside.add(group.key)
            members = tree.members.get(group.key, ())
            self.gang_of[group.key] = len(self.gangs)
            self.gangs.append(
                PlanGang(
                    name=str(group.key),
                    minimum=1 if group.basic else group.minimum,
                    parent=-1
                    if group.key == tree.root.key or parent is None
                    else self.gang_of[parent],
                    running=sum(1 for p in members if p.node is not None and not p.deleting),
                    counts=not group.basic and group.key not in inside,
                )
            )

    def _budgets(self, pod: Pod) -> tuple[int, ...]:
        return tuple(
            self.budgets.setdefault(name, len(self.budgets))
            for name in self.guards.get(pod.namespace, ())
            if self.view.budgets[name].protects(pod.namespace, pod.labels)
        )

    def _victim(
        self, pod: Pod, node: NodeName, budgets: tuple[int, ...], gang: int = -1
    ) -> PlanVictim:
        return PlanVictim(
            pod=pod.path,
            uid=pod.uid,
            node=node,
            shape=self._shape(pod.shape),
            created_us=pod.created_us,
            budgets=budgets,
            gang=gang,
            rules=counted_by(self.ruled, pod),
        )

    def _shape(self, shape: PodShape) -> int:
        return self.shapes.setdefault(shape, len(self.shapes))

    # --- reservations ------------------------------------------------------------------------------

    def _reservations(
        self, priority: int, releasing: set[RootUid], spared: set[str]
    ) -> list[PlanUnit]:
        """List the trees that hold room in which nobody runs yet, all of a tree's together.

        Not those of a started gang, which is completed and not stopped (DESIGN 9.6): some members are
        bound, and its minimum is not.
        """
        units = []
        for uid, root in sorted(self.state.roots.items()):
            if not root.held or root.priority >= priority or uid == self.tree.root.uid:
                continue
            if uid in releasing or uid in spared or self._started(root):
                continue
            waiting = [r for r in root.held.values() if self._unbound(r)]
            pods = sorted((self._expected(r) for r in waiting), key=lambda p: p.pod)
            if pods:
                units.append(
                    PlanUnit(
                        name=f"{root.kind}/{root.root}",
                        uid=uid,
                        kind="reservation",
                        priority=root.priority,
                        pods=tuple(pods),
                    )
                )
        return units

    def _unbound(self, reservation: Reservation) -> bool:
        pod = self.view.pods.get(reservation.uid)
        return reservation.node in self.view.nodes and (pod is None or pod.node is None)

    def _started(self, root: RootState) -> bool:
        held: Mapping[PodUid, Reservation] = root.held or NO_HOLDS
        seen = any((p := self.view.pods.get(u)) is not None and p.node is not None for u in held)
        return root.phase != "satisfied" and (bool(root.bound) or seen)

    def _expected(self, reservation: Reservation) -> PlanVictim:
        """Describe the room of a reservation as `rows` counts it."""
        pod = self.view.pods.get(reservation.uid)
        requests = tuple(sorted(reservation.requests.items()))
        known = pod.shape if pod is not None else PodShape()
        counts = counted_by(self.ruled, pod) if pod is not None else ()
        return PlanVictim(
            pod=reservation.pod,
            uid=reservation.uid,
            node=reservation.node,
            shape=self._shape(msgspec.structs.replace(known, requests=requests)),
            rules=tuple(i for i in counts if self.ruled.rules[i].kind != "near"),
        )
