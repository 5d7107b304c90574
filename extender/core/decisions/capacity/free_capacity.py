"""Free room per node, and the planner's row of each node, kept from one request to the next.

Free room on a node is what is left after assigned pods (terminating ones too), unassigned pods that
are nominated there with equal or higher priority, every held reservation whose pod is not
assigned yet, what lost members of equal or higher priority hold for their replacements (`vacancies`),
and what pending preemptions hold (`holds`): also those of lower priority, because who
goes elsewhere wastes no eviction; who cannot takes their room over as it takes reservations (`units`).
Pods that may run on this node only (DaemonSets) and have not come yet count as nominated ones, where they
fit beside what runs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from immutables import Map

from extender.core.decisions.capacity.capacity_claims import claimants, held_beyond_victims
from extender.core.decisions.capacity.replacement_holds import vacancies_against
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage
from extender.core.model.ids import NodeName, PodUid, RootUid
from extender.core.model.nodes import Node
from extender.core.model.object_identity import same_objects
from extender.core.model.pods import HostPort, Pod
from extender.core.planner.model.node_filters import may_run
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanNode

NO_HOLDS: Map[PodUid, Reservation] = Map()
_NO_NODES: Map[NodeName, Node] = Map()
_NO_USAGE: Map[NodeName, Usage] = Map()


class UsedCapacity(msgspec.Struct):
    """Who takes room on a node without being assigned to it."""

    held: tuple[Reservation, ...] = ()  # their pods are not assigned yet
    nominated: tuple[Pod, ...] = ()  # or pinned; no members: nominations of members are ours
    ports: tuple[HostPort, ...] = ()
    claimed: tuple[
        tuple[str, int], ...
    ] = ()  # held for preemptors, beside what victims occupy, and for replacements
    reserved: bool = False  # some of it is held for another tree than the one that asks

    def same(self, other: UsedCapacity | None) -> bool:
        """Say whether the very same pods and reservations take room."""
        return (
            other is not None
            and self.reserved == other.reserved
            and self.ports == other.ports
            and self.claimed == other.claimed
            and same_objects(self.held, other.held)
            and same_objects(self.nominated, other.nominated)
        )


def taken_room(
    view: ClusterView, state: ReservationState, *, priority: int, root_uid: str = ""
) -> dict[NodeName, UsedCapacity]:
    """Collect per node what reservations and nominations take beside the assigned pods.

    Args:
        priority: Nominations below it are not counted (kube-scheduler ignores them as well).
        root_uid: Reservations of this tree are counted as room but not flagged as somebody else's; of a lone pod
            its own nomination is not counted.
    """
    found: dict[NodeName, UsedCapacity] = {}
    for node, held in state.held_on.items():
        taken = _held_back(view, held.values(), root_uid)
        if taken is not None:
            found[node] = taken
    for node in {*state.claimed_on, *state.vacant_on}:
        claimed = _with_claims(found.get(node), view, state, node, priority, root_uid, lower=True)
        if claimed is not None:
            found[node] = claimed
    for pod in view.nominated.values():
        if pod.nominated is not None and pod.uid != root_uid and _counts(pod, priority):
            found[pod.nominated] = _with_nomination(found.get(pod.nominated), pod)
    others = (pod for pod in view.pinned.values() if pod.uid != root_uid)
    for node, pod in _coming(view, others, priority):
        found[node] = _with_nomination(found.get(node), pod)
    return found


def taken_on(
    view: ClusterView, state: ReservationState, node: NodeName, *, priority: int
) -> UsedCapacity | None:
    """Collect the same for one node as kube-scheduler sees it: preemptors below `priority` hold nothing."""
    taken = _held_back(view, state.held_on.get(node, NO_HOLDS).values(), "")
    taken = _with_claims(taken, view, state, node, priority, "")
    for pod in view.nominated.values():
        if pod.nominated == node and _counts(pod, priority):
            taken = _with_nomination(taken, pod)
    for _, pod in _coming(view, (p for p in view.pinned.values() if p.pinned == node), priority):
        taken = _with_nomination(taken, pod)
    return taken


def _coming(
    view: ClusterView, pinned: Iterable[Pod], priority: int
) -> Iterator[tuple[NodeName, Pod]]:
    """Give the pods that are about to come to their only node, the highest priority first.

    One that the node would not take, or for which there is no room beside what runs there, is not about to come,
    and holds nothing up: it waits for others to go, or preempts them.
    """
    found: dict[NodeName, PlanNode] = {}
    for pod in sorted(pinned, key=lambda p: (-p.priority, p.created_us, p.path)):
        node = view.nodes.get(pod.pinned) if pod.pinned is not None else None
        if node is None or not _counts(pod, priority):
            continue
        row = found.get(node.name) or make_row(node, view.usage.get(node.name, NOTHING), None)
        fits = all(row.free.get(name, 0) >= amount for name, amount in pod.shape.requests)
        if fits and may_run(NodeTable((row,)), pod.shape)[0]:
            left = {**row.free}
            for name, amount in pod.shape.requests:
                left[name] -= amount
            found[node.name] = msgspec.structs.replace(row, free=left)
            yield node.name, pod


def _counts(pod: Pod, priority: int) -> bool:
    """Say whether a nomination takes room; those of members are ours: their reservations do instead."""
    return pod.group is None and pod.priority >= priority


def _held_back(
    view: ClusterView, held: Iterable[Reservation], root_uid: str
) -> UsedCapacity | None:
    waiting: list[Reservation] = []
    ports: tuple[HostPort, ...] = ()
    reserved = False
    for reservation in held:
        pod = view.pods.get(reservation.uid)
        if pod is not None:
            if pod.node is not None:
                continue  # the pod itself is counted by now
            ports += pod.shape.host_ports
        waiting.append(reservation)
        reserved = reserved or reservation.root_uid != root_uid
    return UsedCapacity(held=tuple(waiting), ports=ports, reserved=reserved) if waiting else None


def _with_claims(
    taken: UsedCapacity | None,
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    priority: int,
    root_uid: str,
    *,
    lower: bool = False,
) -> UsedCapacity | None:
    """Add what preemptors hold on a node, see `claimants`, and lost members of equal or higher priority."""
    amounts: dict[str, int] = {}
    ports: tuple[HostPort, ...] = ()
    for preemption in claimants(state, node, priority=priority, root_uid=root_uid, lower=lower):
        for name, amount in held_beyond_victims(view, preemption, node).items():
            amounts[name] = amounts.get(name, 0) + amount
        for claim in preemption.claims[node]:
            pod = view.pods.get(claim.uid)
            if pod is not None and pod.node is None:
                ports += pod.shape.host_ports
    for vacancy in vacancies_against(view, state, node, priority=priority, root_uid=root_uid):
        for name, amount in vacancy.requests.items():
            amounts[name] = amounts.get(name, 0) + amount
    if not amounts and not ports:
        return taken
    taken = taken or UsedCapacity()
    return UsedCapacity(
        held=taken.held,
        nominated=taken.nominated,
        ports=taken.ports + ports,
        claimed=tuple(sorted(amounts.items())),
        reserved=True,
    )


def _with_nomination(taken: UsedCapacity | None, pod: Pod) -> UsedCapacity:
    taken = taken or UsedCapacity()
    return UsedCapacity(
        held=taken.held,
        nominated=(*taken.nominated, pod),
        ports=taken.ports + pod.shape.host_ports,
        claimed=taken.claimed,
        reserved=taken.reserved,
    )


def taken_requests(taken: UsedCapacity) -> dict[str, int]:
    """Sum what is taken, by resource."""
    total: dict[str, int] = {}
    for reservation in taken.held:
        for name, amount in reservation.requests.items():
            total[name] = total.get(name, 0) + amount
    for pod in taken.nominated:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    for name, amount in taken.claimed:
        total[name] = total.get(name, 0) + amount
    return total


class _Kept(msgspec.Struct):
    node: Node
    usage: Usage
    taken: UsedCapacity | None
    row: PlanNode


class NodeRowCache:
    """Rows of the planner's input: a row is the same object for as long as nothing on its node changes.

    What is made from rows (columns, bytes) can therefore be kept row by row as well.
    """

    def __init__(self) -> None:
        self._kept: dict[NodeName, _Kept] = {}
        self._place: dict[NodeName, int] = {}  # position in the order of names
        self._list: list[PlanNode] = []
        self._rows: tuple[PlanNode, ...] = ()
        self._nodes = _NO_NODES
        self._usage = _NO_USAGE
        self._with_taken: frozenset[NodeName] = frozenset()
        self._taken: dict[int, dict[NodeName, UsedCapacity]] = {}  # by priority
        self._taken_from: tuple[object, ...] = (None,) * 6

    def taken(
        self, view: ClusterView, state: ReservationState, *, priority: int, root_uid: RootUid
    ) -> Mapping[NodeName, UsedCapacity]:
        """Give `taken_room`; made once for all trees of a priority for which nothing is held."""
        root = state.roots.get(root_uid)
        lone = PodUid(root_uid) in view.nominated or PodUid(root_uid) in view.pinned
        own = root is not None and (root.held or root.vacant)
        if own or root_uid in state.preemptions or lone:
            return taken_room(view, state, priority=priority, root_uid=root_uid)
        held = (state.held_on, state.preemptions, state.vacant_on)
        made_from = (view.pods, view.nominated, view.nodes, *held)
        if not same_objects(made_from, self._taken_from):
            self._taken, self._taken_from = {}, made_from
        known = self._taken.get(priority)
        if known is None:
            known = self._taken[priority] = taken_room(view, state, priority=priority)
        return known

    def rows(
        self, view: ClusterView, taken: Mapping[NodeName, UsedCapacity]
    ) -> tuple[PlanNode, ...]:
        """Give one row per node, sorted by name; the same tuple when no row changed."""
        look: frozenset[NodeName] | set[NodeName]
        if view.nodes is not self._nodes and not self._same_names(view):
            self._begin(view)
            look = set(self._place)
        elif view.nodes is self._nodes:
            look = self._with_taken | taken.keys() | _changed(self._usage, view.usage)
        else:
            look = set(self._place)
        changed = False
        for name in look:
            place = self._place.get(name)
            if place is None:
                continue  # room is held on a node that is gone; reconcile gives it back
            row = self._row(view, name, taken.get(name))
            if self._list[place] is not row:
                self._list[place] = row
                changed = True
        if changed:
            self._rows = tuple(self._list)
        self._nodes, self._usage, self._with_taken = view.nodes, view.usage, frozenset(taken)
        return self._rows

    def _same_names(self, view: ClusterView) -> bool:
        return len(view.nodes) == len(self._place) and all(n in self._place for n in view.nodes)

    def _begin(self, view: ClusterView) -> None:
        order = sorted(view.nodes)
        self._place = {name: i for i, name in enumerate(order)}
        self._kept = {name: kept for name, kept in self._kept.items() if name in self._place}
        nothing = PlanNode(name=NodeName(""), labels={}, allocatable={})
        self._list = [nothing] * len(order)  # every place is looked at next
        self._rows = ()

    def _row(self, view: ClusterView, name: NodeName, taken: UsedCapacity | None) -> PlanNode:
        node, usage = view.nodes[name], view.usage.get(name, NOTHING)
        kept = self._kept.get(name)
        if kept is not None and kept.node is node and kept.usage is usage:
            same = kept.taken is None if taken is None else taken.same(kept.taken)
            if same:
                return kept.row
        row = make_row(node, usage, taken)
        if kept is not None and kept.row == row:
            row = kept.row  # who takes the room changed, what is left of it did not
        self._kept[name] = _Kept(node, usage, taken, row)
        return row


def _changed(before: Map[NodeName, Usage], now: Map[NodeName, Usage]) -> set[NodeName]:
    """Give the nodes whose usage is another object than before."""
    if before is now:
        return set()
    changed = {name for name, usage in now.items() if before.get(name) is not usage}
    changed.update(name for name in before if name not in now)
    return changed


def make_row(node: Node, usage: Usage, taken: UsedCapacity | None) -> PlanNode:
    """Make the planner's row of a node."""
    free = dict(node.allocatable)
    ports = list(usage.host_ports)
    for name, amount in usage.requests.items():
        if name in free:
            free[name] -= amount
    if taken is not None:
        for name, amount in taken_requests(taken).items():
            if name in free:
                free[name] -= amount
        ports += taken.ports
    return PlanNode(
        name=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable or node.deleting,
        allocatable=node.allocatable,
        free=free,
        host_ports=tuple(sorted(set(ports))),
        reserved=taken is not None and taken.reserved,
    )
