"""Collection of what can free capacity for one tree: units of running pods, reservations of other trees, terminating pods.

The unit of a pod is the highest group above it that is disrupted as a whole, else the pod alone (E-4).
The priority of a unit is that of its groups, the highest where they differ; that of a pod counts only outside all groups
(E-3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import UNSET

from extender.core.admit.interpod_rules import InterpodRulePart, counted_by
from extender.core.capacity.capacity_claims import claims_against, is_preempting
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    claims_of,
)
from extender.core.model.cluster_view import ClusterView, groups_above
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Forest, Group, Tree, key_of_parent, kind_of
from extender.core.model.pods import (
    CHECKPOINT_ANNOTATION,
    EXEMPT_NAMESPACES,
    FILLED_IN_US,
    BudgetIndex,
    Pod,
    PodShape,
)
from extender.core.planner.plan_types import (
    MINUTE_US,
    Evictable,
    PlanBudget,
    PlanDependent,
    PlanGang,
    PlanUnit,
    PlanVictim,
    UnitKind,
    work_min,
)
from extender.core.preempt.preemption_lifecycle import is_stuck

# --- from when the work of a running pod counts, if it is evicted: its start, or its last checkpoint

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]
TEXT_MAX: Final = 60  # characters of a wrong value


def work_since_us(pod: Pod, now_us: int) -> int:
    """Return when the work began that an eviction of a pod loses, in microseconds since 1970.

    Args:
        now_us: 0: not known, and no checkpoint counts. It is returned for a pod of a file, whose start is not known.
    """
    begin_us = max(pod.assigned_us, pod.created_us)
    if begin_us in FILLED_IN_US:
        begin_us = 0
    if pod.checkpoint and now_us:
        written_us = _written_us(pod.checkpoint)
        if written_us is not None and written_us <= now_us:
            return max(begin_us, written_us)
    return begin_us or now_us


def lost_work_min(pod: Pod, now_us: int) -> int:
    """Return the GPU-minutes of work that an eviction of a pod loses; 0 where the time is not known."""
    return (
        work_min(pod.shape, work_since_us(pod, now_us), now_us // MINUTE_US)
        if now_us and pod.node is not None
        else 0
    )


def checkpoint_warnings(pods: Iterable[Pod], now_us: int) -> Iterator[str]:
    """Yield a text for each pod whose last checkpoint is no time, or in the future, and so is not used."""
    for pod in pods:
        if not pod.checkpoint:
            continue
        written_us = _written_us(pod.checkpoint)
        field = f'Pod/{pod.path}: metadata.annotations[{CHECKPOINT_ANNOTATION}] "{pod.checkpoint[:TEXT_MAX]}"'
        rest = "it is not used, and the work of the pod counts from its start"
        if written_us is None:
            yield f"{field} is not an RFC 3339 time, such as 2026-11-30T08:00:00Z: {rest}"
        elif written_us > now_us > 0:
            yield f"{field} is in the future: {rest}; write the time at which the checkpoint was complete"


def _written_us(text: str) -> int | None:
    """Return a time in RFC 3339 as microseconds since 1970; None: it is none."""
    try:
        written = msgspec.convert(text, _Instant)
    except msgspec.ValidationError:
        return None
    return (written - EPOCH) // timedelta(microseconds=1)


# --- the units

NEVER = "Never"


class EvictableContext(msgspec.Struct, frozen=True, kw_only=True):
    """Input beside view and state."""

    # roots whose barrier is open: until their minimum is bound their reservations stay
    releasing: Collection[GangUid] = ()
    # members whose Binding may have been carried out: their reservations stay
    maybe_bound: Collection[PodUid] = ()
    # Finds pods that terminate for too long, and what work is lost; 0: no pod counts as such, and no work.
    now_us: int = 0


def evictable_for(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    tree: Tree,
    *,
    ruled: InterpodRulePart,
    spared: Collection[str] = (),
    moment: EvictableContext | None = None,
) -> Evictable:
    """Return what can be evicted or released for a tree.

    The caller does not call this while victims of an earlier decision of the tree still terminate (P15), nor for
    extra members before the minimum is bound (C.6): a plan request counts reservations of the tree as bound.

    Args:
        ruled: The result of `ruled_part` for the same request.
        spared: Units and roots that must not be evicted at any priority, as Kind/namespace/name.
    """
    collection = _Collection(view, state, forest, tree, ruled, moment or EvictableContext())
    return collection.collect(set(spared))


def may_preempt(tree: Tree) -> bool:
    """Return whether neither the root of a tree nor any of its pods has the preemption policy Never."""
    policies = {tree.root.preemption_policy, *(pod.preemption_policy for pod in tree.pods)}
    return NEVER not in policies


def as_admitted(tree: Tree, state: ReservationState) -> Tree:
    """Return a tree without a minimum that was raised, or a child that is required, since it was admitted: these break no gang that runs."""
    root = state.gangs.get(tree.root.uid)
    admitted = {(g.kind, g.name): g for g in root.groups} if root is not None else {}

    def before(group: Group) -> Group:
        old = admitted.get((group.key.kind, group.key.name))
        if old is None or group.basic:
            return group
        required = tuple(name for name in group.required if name in old.required)
        return msgspec.structs.replace(
            group, minimum=min(group.minimum, old.minimum), required=required
        )

    return msgspec.structs.replace(
        tree,
        groups=tuple(map(before, tree.groups)),
        children={key: tuple(map(before, below)) for key, below in tree.children.items()},
    )


def reservations_by_victims(
    view: ClusterView, tree: Tree, root: GangState
) -> Mapping[frozenset[PodUid], list[Reservation]]:
    """Return the reservations of unbound members by the running pods with whose eviction they go: without these the gang would run below its minimum.

    Those are the pods of the unit of the member that is disrupted as a whole; without such a unit, or if none of it runs, all of
    the tree that run. Empty where no member runs.
    """
    running: dict[GroupKey | None, set[PodUid]] = {}
    reserved: dict[GroupKey | None, list[Reservation]] = {}
    wholes: dict[GroupKey | None, GroupKey | None] = {}
    for pod in tree.pods:
        if pod.group not in wholes:
            above = groups_above(view, pod.group)
            keys = [group.key for group in above if group.disruption_mode == "all"]
            wholes[pod.group] = keys[-1] if keys else None
        if pod.node is not None:
            if pod.node in view.nodes:  # others are lost, and in no unit
                running.setdefault(wholes[pod.group], set()).add(pod.uid)
        elif pod.uid in root.reservations:
            reserved.setdefault(wholes[pod.group], []).append(root.reservations[pod.uid])
    every = {uid for uids in running.values() for uid in uids}
    by_victims: dict[frozenset[PodUid], list[Reservation]] = {}
    for whole, reservations in reserved.items() if every else ():
        victims = running.get(whole, every) if whole is not None else every
        by_victims.setdefault(frozenset(victims), []).extend(reservations)
    return by_victims


def _by_path(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda p: p.path)


def _unit_name(pod: Pod, above: _Above) -> str:
    return f"Pod/{pod.path}" if above.whole is None else str(above.whole.key)


class _Draft(msgspec.Struct):
    """A unit that is being collected."""

    name: str
    uid: str
    kind: UnitKind
    priority: int
    may_preempt: bool
    pods: list[Pod]
    top: str  # the root group above it, Kind/namespace/name; empty for a lone pod


class _Above(msgspec.Struct, frozen=True, kw_only=True):
    """The groups above the members of a leaf."""

    top: Group | None = None  # the highest that exists
    whole: Group | None = None  # the highest that is disrupted as a whole
    tree: Tree | None = None  # their tree, unless it is disrupted as a whole
    priority: int | None = None  # of these groups; None: there are none


@dataclass
class _Collection:
    view: ClusterView
    state: ReservationState
    forest: Forest
    tree: Tree
    ruled: InterpodRulePart
    moment: EvictableContext

    def __post_init__(self) -> None:
        self.now_us = self.moment.now_us
        self.own = {pod.uid for pod in self.tree.pods}
        self.above: dict[GroupKey | None, _Above] = {None: _Above()}
        self.guards = BudgetIndex(self.view.budgets.values())
        self.shapes: dict[PodShape, int] = {}
        self.budgets: dict[str, int] = {}
        self.gangs: list[PlanGang] = []
        self.gang_of: dict[GroupKey, int] = {}

    def collect(self, spared: set[str]) -> Evictable:
        """Return the collection; tables are in the order of `victim_codec`."""
        drafts, going, left_alone = self._drafts(spared)
        budgets = self._add_budgets(drafts)
        # the trees of which a pod may be evicted, except those that are disrupted as a whole
        leaves = {pod.group for draft in drafts for pod in draft.pods}
        trees = {tree.root.key: tree for leaf in leaves if (tree := self._above(leaf).tree)}
        for tree in sorted(trees.values(), key=lambda tree: str(tree.root.key)):
            self._add_tree(as_admitted(tree, self.state))
        victims = {uid for p in self.state.preemptions.values() for uid in p.victims}
        units = [
            PlanUnit(
                name=d.name,
                uid=d.uid,
                kind=d.kind,
                priority=d.priority,
                pods=tuple([self._victim(pod, running=True) for pod in _by_path(d.pods)]),
                may_preempt=d.may_preempt,
                disruption_target=bool(victims) and all(pod.uid in victims for pod in d.pods),
            )
            for d in sorted(drafts, key=lambda d: (d.kind, d.name))
        ]
        units += self._reservations(self.tree.root.priority, spared)
        awaited = tuple(self._victim(pod, running=False) for pod in _by_path(going))
        return Evictable(
            priority=self.tree.root.priority,
            may_preempt=may_preempt(self.tree),
            units=tuple(units),  # kinds are in alphabetical order
            going=awaited,
            dependents=tuple(self._dependents(units, awaited)) or UNSET,
            shapes=tuple(self.shapes),
            gangs=tuple(self.gangs),
            budgets=budgets,
            spared=tuple(sorted(left_alone)),
            now_min=self.now_us // MINUTE_US if self.now_us else UNSET,
        )

    def _drafts(self, spared: set[str]) -> tuple[list[_Draft], list[Pod], set[str]]:
        """Return the units that may be evicted, the terminating pods, and the names of units that are spared."""
        drafts: dict[str, _Draft] = {}
        barred: set[str] = set()  # units with a pod that must stay
        going: list[Pod] = []
        for node, pods in self.view.on_node.items():
            for pod in pods.values() if node in self.view.nodes else ():
                # A pod that terminates but stays, because of a finalizer or a failed node, is no victim, and no tree waits
                # for its capacity: one such pod could otherwise keep trees waiting for ever.
                if is_stuck(pod, self.now_us):
                    continue
                if pod.deleting:
                    if self._may_wait_for(pod, node):
                        going.append(pod)
                elif not self._take(drafts, pod):
                    barred.add(_unit_name(pod, self._above(pod.group)))
        free = [d for d in drafts.values() if d.name not in barred]
        left_alone = {d.name for d in free if d.name in spared or d.top in spared}
        return [d for d in free if d.name not in left_alone], going, left_alone

    def _may_wait_for(self, pod: Pod, node: NodeName) -> bool:
        """Return whether the tree may wait for the capacity of a terminating pod: no replacement hold blocks it."""
        root = self.tree.root
        blocking = claims_against(
            self.state, node, priority=root.priority, gang_uid=root.uid, kinds=("replacement",)
        )
        return all(hold.uid != pod.uid for hold in blocking)

    def _take(self, drafts: dict[str, _Draft], pod: Pod) -> bool:
        """Add a pod to its unit and return True; return False if it must stay."""
        above = self._above(pod.group)
        top, whole = above.top, above.whole
        priority = pod.priority if above.priority is None else above.priority
        uid = pod.uid if whole is None else whole.uid
        exempt = pod.static or pod.namespace in EXEMPT_NAMESPACES
        if priority >= self.tree.root.priority or pod.uid in self.own or exempt:
            return False
        name = _unit_name(pod, above)
        draft = drafts.get(name)
        if draft is None:
            kind: UnitKind = "pod" if whole is None else "group"
            root = str(top.key) if top is not None else ""
            draft = _Draft(name, uid, kind, priority, may_preempt=True, pods=[], top=root)
            drafts[name] = draft
        policies = {pod.preemption_policy, top.preemption_policy if top is not None else ""}
        draft.priority = max(draft.priority, priority)
        draft.may_preempt = draft.may_preempt and NEVER not in policies
        draft.pods.append(pod)
        return True

    # --- what a pod belongs to ---------------------------------------------------------------------

    def _above(self, leaf: GroupKey | None) -> _Above:
        if leaf not in self.above:
            above = groups_above(self.view, leaf)
            whole = [group for group in above if group.disruption_mode == "all"]
            tree = self.forest.tree_of(leaf)
            self.above[leaf] = _Above(
                top=above[-1] if above else None,
                priority=max((group.priority for group in above), default=None),
                whole=whole[-1] if whole else None,
                tree=None if tree is None or tree.root.disruption_mode == "all" else tree,
            )
        return self.above[leaf]

    def _add_tree(self, tree: Tree) -> None:
        inside: set[GroupKey] = set()  # groups that belong to a unit
        required: dict[GroupKey, tuple[str, ...]] = {}
        for group in tree.groups:
            parent = key_of_parent(group)
            required[group.key] = () if group.basic else group.required
            if group.disruption_mode == "all" or parent in inside:
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
                    required=parent is not None and group.key.name in required.get(parent, ()),
                    running=sum(1 for p in members if p.node is not None and not p.deleting),
                    counts=not group.basic and group.key not in inside,
                )
            )
            below = {child.key.name for child in tree.children.get(group.key, ())}
            # without a child that it requires a gang does not hold, so no eviction breaks it
            self.gangs += [
                PlanGang(
                    name=f"{group.key} requires {name}, which is absent",
                    minimum=1,
                    parent=self.gang_of[group.key],
                    required=True,
                    counts=False,
                )
                for name in required[group.key]
                if name not in below
            ]

    def _add_budgets(self, drafts: Iterable[_Draft]) -> tuple[PlanBudget, ...]:
        """Return the budgets that protect a pod that may be evicted, by name, and number them."""
        pods = (pod for draft in drafts for pod in draft.pods)
        used = {b.path: b for pod in pods for b in self.guards.guarding(pod)}
        self.budgets = {path: number for number, path in enumerate(sorted(used))}
        return tuple(PlanBudget(name=path, allowed=used[path].allowed) for path in self.budgets)

    def _victim(self, pod: Pod, *, running: bool) -> PlanVictim:
        """Return a pod as a victim; a terminating pod counts for no budget and no gang."""
        assert pod.node is not None
        guards = self.guards.guarding(pod) if running else ()
        gang = self.gang_of.get(pod.group, -1) if running and pod.group is not None else -1
        return PlanVictim(
            pod=pod.path,
            uid=pod.uid,
            node=pod.node,
            shape=self._shape(pod.shape),
            since_us=work_since_us(pod, self.now_us),
            budgets=tuple(self.budgets[b.path] for b in guards),
            gang=gang,
            rules=counted_by(self.ruled, pod) if self.ruled.rules else (),
        )

    def _shape(self, shape: PodShape) -> int:
        return self.shapes.setdefault(shape, len(self.shapes))

    # --- reservations ------------------------------------------------------------------------------

    def _reservations(self, priority: int, spared: set[str]) -> list[PlanUnit]:
        """Return units of reservations and claims whose pods do not run yet, one unit per tree.

        Those of a started gang are left out: some of its members are bound, but not its minimum, so it is completed
        and not stopped (C.6). So are those of members that may be bound.
        """
        units = []
        for name, uid, lower in self._lower_holders(priority):
            root = self.state.gangs.get(uid)
            if name in spared or (root is not None and self._started(root)):
                continue
            held = [*root.reservations.values()] if root is not None else []
            if is_preempting(self.state, uid):
                held += claims_of((), [self.state.preemptions[uid]], ())
            waiting = [
                self._expected(claim)
                for claim in held
                if claim.uid not in self.moment.maybe_bound and self._unbound(claim.uid, claim.node)
            ]
            if waiting:
                units.append(
                    PlanUnit(
                        name=name,
                        uid=uid,
                        kind="reservation",
                        priority=lower,
                        pods=tuple(sorted(waiting, key=lambda p: p.pod)),
                    )
                )
        return units

    def _dependents(
        self, units: Iterable[PlanUnit], going: Iterable[PlanVictim]
    ) -> list[PlanDependent]:
        """Return the reservations that go only with the eviction of others, sorted by pod (E-10)."""
        releasable = {p.uid for u in units if u.kind == "reservation" for p in u.pods}
        evictable = {p.uid for u in units if u.kind != "reservation" for p in u.pods}
        evictable.update(pod.uid for pod in going)
        dependents: list[PlanDependent] = []
        for _, uid, _ in self._lower_holders(self.tree.root.priority):
            root = self.state.gangs.get(uid)
            tree = self._tree_of(root) if root is not None and root.reservations else None
            if root is None or tree is None:
                continue
            for after, reservations in reservations_by_victims(self.view, tree, root).items():
                pods = [
                    self._expected(each)
                    for each in sorted(reservations, key=lambda each: each.pod)
                    if each.uid not in releasable and each.node in self.view.nodes
                ]
                if pods and evictable.issuperset(after):
                    dependents.append(PlanDependent(pods=tuple(pods), after=tuple(sorted(after))))
        return sorted(dependents, key=lambda dependent: dependent.pods[0].pod)

    def _tree_of(self, root: GangState) -> Tree | None:
        namespace, _, name = root.gang.partition("/")
        tree = self.forest.tree_of(GroupKey(namespace, name, kind_of(root.kind)))
        return tree if tree is not None and tree.root.uid == root.uid else None

    def _lower_holders(self, priority: int) -> list[tuple[str, GangUid, int]]:
        """Return name, UID and priority of the other holders of lower priority, in the order of their units."""
        holders = {
            (f"{root.kind}/{root.gang}", uid, root.priority)
            for uid, root in self.state.gangs.items()
            if root.reservations
        }
        holders |= {
            (f"{p.kind}/{p.gang}", uid, p.priority)
            for uid, p in self.state.preemptions.items()
            if p.claims and not p.ended
        }
        own = self.tree.root.uid
        return sorted(f for f in holders if f[2] < priority and f[1] != own)

    def _unbound(self, uid: PodUid, node: NodeName) -> bool:
        pod = self.view.pods.get(uid)
        return node in self.view.nodes and (pod is None or pod.node is None)

    def _started(self, root: GangState) -> bool:
        pods = map(self.view.pods.get, root.reservations)
        assigned = any(pod is not None and pod.node is not None for pod in pods)
        opened = root.uid in self.moment.releasing
        return root.phase != "scheduled" and (opened or bool(root.bound) or assigned)

    def _expected(self, reservation: CapacityClaim) -> PlanVictim:
        """Return a reservation or a capacity claim as a victim, as `free_capacity` counts it; the latter uses no volume claim and no rule."""
        pod = self.view.pods.get(reservation.uid)
        requests = tuple(sorted(reservation.requests.items()))
        shape = pod.shape if pod is not None else PodShape()
        counts: tuple[int, ...] = ()
        if reservation.kind == "preemption":
            shape = msgspec.structs.replace(shape, exclusive_claims=())
        elif pod is not None:
            counts = counted_by(self.ruled, pod)
        return PlanVictim(
            pod=reservation.pod,
            uid=reservation.uid,
            node=reservation.node,
            shape=self._shape(msgspec.structs.replace(shape, requests=requests)),
            rules=tuple(i for i in counts if self.ruled.rules[i].kind != "near"),
        )
