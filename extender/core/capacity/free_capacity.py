"""Free capacity per node, and the planner's row of each node, cached between requests.

Free capacity of a node is what is left after

- assigned pods, including terminating ones,
- unmanaged pods that are nominated there with equal or higher priority,
- reservations whose pod is not assigned yet,
- replacement holds and capacity holds of equal or higher priority,
- claims of pending preemptions, also of lower priority: a tree that fits elsewhere does not make their evictions
  useless, and one that fits nowhere else takes the claims over (`disruption_units`),
- unassigned pods that may run on this node only (DaemonSets), where they fit beside the assigned pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from immutables import Map

from extender.core.capacity.capacity_claims import (
    BESIDE_RESERVATIONS,
    claims_against,
    is_in_use,
    not_free,
)
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView, Usage
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.nodes import Node, TopologyLevels
from extender.core.model.object_identity import IdentityMemo, changed_keys, same_objects
from extender.core.model.pods import HostPort, Pod
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.planner.plan_types import PlanNode

NO_HOLDS: Map[PodUid, Reservation] = Map()
_NO_NODES: Map[NodeName, Node] = Map()
_NO_USAGE: Map[NodeName, Usage] = Map()


class UsedCapacity(msgspec.Struct):
    """Capacity of a node that is used without an assigned pod."""

    held: tuple[Reservation, ...] = ()  # reservations whose pods are not assigned yet
    nominated: tuple[Pod, ...] = ()  # nominated or pinned pods, no members: those have reservations
    ports: tuple[HostPort, ...] = ()
    # claims of preemptors beyond what victims use, replacement holds and capacity holds
    claimed: tuple[tuple[str, int], ...] = ()
    # the part of it that is for another tree than that of the request
    reserved: tuple[tuple[str, int], ...] = ()

    def same(self, other: UsedCapacity | None) -> bool:
        """Return whether both consist of the same objects."""
        return (
            other is not None
            and self.reserved == other.reserved
            and self.ports == other.ports
            and self.claimed == other.claimed
            and same_objects(self.held, other.held)
            and same_objects(self.nominated, other.nominated)
        )


def used_capacity(
    view: ClusterView, state: ReservationState, *, priority: int, gang_uid: str = ""
) -> dict[NodeName, UsedCapacity]:
    """Return per node the capacity that is used beside the assigned pods.

    Args:
        priority: Nominations below it are not counted (kube-scheduler ignores them as well).
        gang_uid: Reservations of this tree are counted, and are not in `reserved`; if it is the UID of a pod, the
            nomination of that pod is not counted.
    """
    used: dict[NodeName, UsedCapacity] = {}
    for node in state.claims_on:
        taken = _claimed(view, state, node, priority, gang_uid, lower=True)
        if taken is not None:
            used[node] = taken
    for pod in view.nominated.values():
        if pod.nominated is not None and pod.uid != gang_uid and _counts(pod, priority):
            used[pod.nominated] = _with_nomination(used.get(pod.nominated), pod)
    others = (pod for pod in view.pinned.values() if pod.uid != gang_uid)
    for node, pod in _coming(view, others, priority):
        used[node] = _with_nomination(used.get(node), pod)
    return used


def used_capacity_on(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str = "",
) -> UsedCapacity | None:
    """Return the same for one node as kube-scheduler counts it: claims of preemptors below `priority` are left out."""
    taken = _claimed(view, state, node, priority, gang_uid, lower=False)
    for pod in view.nominated.values():
        if pod.nominated == node and _counts(pod, priority):
            taken = _with_nomination(taken, pod)
    for _, pod in _coming(view, (p for p in view.pinned.values() if p.pinned == node), priority):
        taken = _with_nomination(taken, pod)
    return taken


def _coming(
    view: ClusterView, pinned: Iterable[Pod], priority: int
) -> Iterator[tuple[NodeName, Pod]]:
    """Yield the pinned pods that can be scheduled to their only node now, the highest priority first.

    A pod that does not fit beside the assigned pods, or that the node excludes, is left out: it waits for other pods
    to end, or preempts them.
    """
    rows: dict[NodeName, PlanNode] = {}
    for pod in sorted(pinned, key=lambda p: (-p.priority, p.created_us, p.path)):
        node = view.nodes.get(pod.pinned) if pod.pinned is not None else None
        if node is None or not _counts(pod, priority):
            continue
        row = rows.get(node.name) or make_row(node, view.usage.get(node.name, NOTHING), None)
        fits = all(row.free.get(name, 0) >= amount for name, amount in pod.shape.requests)
        if fits and may_run(NodeTable((row,)), pod.shape)[0]:
            left = {**row.free}
            for name, amount in pod.shape.requests:
                left[name] -= amount
            rows[node.name] = msgspec.structs.replace(row, free=left)
            yield node.name, pod


def _counts(pod: Pod, priority: int) -> bool:
    """Return whether a nomination uses capacity; those of members do not, because their reservations are counted."""
    return pod.group is None and pod.priority >= priority


def _claimed(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    priority: int,
    gang_uid: GangUid | str,
    *,
    lower: bool,
) -> UsedCapacity | None:
    """Return what claims use on a node: all reservations, and what `claims_against` has of the other kinds."""
    waiting: list[Reservation] = []
    ports: tuple[HostPort, ...] = ()
    reserved: dict[str, int] = {}
    others = False
    for claim in state.claims_on.get(node, NO_CLAIMS).values():
        if claim.kind != "reservation":
            others = True
        elif not is_in_use(view, claim):
            waiting.append(claim)
            ports += _ports(view, claim)
            if claim.gang_uid != gang_uid:
                add_amounts(reserved, claim.requests)
    amounts: dict[str, int] = {}
    if others:
        kept = claims_against(
            state, node, priority=priority, gang_uid=gang_uid, lower=lower, kinds=BESIDE_RESERVATIONS
        )  # fmt: skip
        amounts = not_free(view, state, node, kept, gang_uid)
        claimed_ports = [_ports(view, claim) for claim in kept if claim.kind == "preemption"]
        ports += tuple(chain.from_iterable(claimed_ports))
        add_amounts(reserved, amounts)
    if not (waiting or amounts or ports):
        return None
    claimed = tuple(sorted(amounts.items()))
    return UsedCapacity(
        held=tuple(waiting), ports=ports, claimed=claimed, reserved=tuple(sorted(reserved.items()))
    )


def _ports(view: ClusterView, claim: CapacityClaim) -> tuple[HostPort, ...]:
    """Return the host ports that the pod of a claim will use; none of a pod that uses them already."""
    pod = view.pods.get(claim.uid)
    return pod.shape.host_ports if pod is not None and pod.node is None else ()


def _with_nomination(taken: UsedCapacity | None, pod: Pod) -> UsedCapacity:
    taken = taken or UsedCapacity()
    ports = taken.ports + pod.shape.host_ports
    return msgspec.structs.replace(taken, nominated=(*taken.nominated, pod), ports=ports)


def used_requests(taken: UsedCapacity) -> dict[str, int]:
    """Return the sum by resource."""
    total: dict[str, int] = {}
    for reservation in taken.held:
        add_amounts(total, reservation.requests)
    for pod in taken.nominated:
        add_amounts(total, dict(pod.shape.requests))
    add_amounts(total, dict(taken.claimed))
    return total


class _Kept(msgspec.Struct):
    node: Node
    usage: Usage
    taken: UsedCapacity | None
    row: PlanNode


class NodeRowCache:
    """Cache of the rows of plan requests: a row is the same object as long as nothing on its node changes.

    Values that are made from rows (columns, bytes) can therefore be cached per row as well. The levels of the nodes are
    kept beside them.
    """

    def __init__(self, topology_keys: Collection[str] = ()) -> None:
        """Create an empty cache; `topology_keys`: label keys that are levels, beside those whose name shows it."""
        self._topology_keys = frozenset(topology_keys)
        self._levels = TopologyLevels()
        self._kept: dict[NodeName, _Kept] = {}
        self._place: dict[NodeName, int] = {}  # position in the order of names
        self._list: list[PlanNode] = []
        self._rows: tuple[PlanNode, ...] = ()
        self._table = NodeTable(())
        self._nodes = _NO_NODES
        self._usage = _NO_USAGE
        self._with_taken: frozenset[NodeName] = frozenset()
        # by priority
        self._taken: IdentityMemo[dict[int, dict[NodeName, UsedCapacity]]] = IdentityMemo()

    def taken(
        self, view: ClusterView, state: ReservationState, *, priority: int, gang_uid: GangUid
    ) -> Mapping[NodeName, UsedCapacity]:
        """Return `used_capacity`; the result is shared by all trees of one priority for which nothing is held."""
        root = state.gangs.get(gang_uid)
        lone = PodUid(gang_uid) in view.nominated or PodUid(gang_uid) in view.pinned
        own = root is not None and bool(root.reservations or root.replacement_holds)
        moves = state.moves
        own = own or (moves is not None and moves.current.gang_uid == gang_uid)
        if own or gang_uid in state.capacity_holds or gang_uid in state.preemptions or lone:
            return used_capacity(view, state, priority=priority, gang_uid=gang_uid)
        held = (state.claims_on, state.preemptions)
        shared = self._taken.get(dict, same=(view.pods, view.nominated, view.nodes, *held))
        used = shared.get(priority)
        if used is None:
            used = shared[priority] = used_capacity(view, state, priority=priority)
        return used

    def levels(self, view: ClusterView, keys: Collection[str] = ()) -> tuple[str, ...]:
        """Return the topology keys of the nodes, `keys` among them, narrowest first; see `TopologyLevels`."""
        return self._levels.of(view.nodes, self._topology_keys.union(keys))

    def rows(
        self, view: ClusterView, taken: Mapping[NodeName, UsedCapacity]
    ) -> tuple[PlanNode, ...]:
        """Return one row per node, sorted by name; the same tuple when no row changed."""
        look: frozenset[NodeName] | set[NodeName]
        if view.nodes is not self._nodes and not self._same_names(view):
            self._begin(view)
            look = set(self._place)
        elif view.nodes is self._nodes:
            look = self._with_taken | taken.keys() | changed_keys(self._usage, view.usage)
        else:
            look = set(self._place)
        changed = False
        for name in look:
            place = self._place.get(name)
            if place is None:
                continue  # the node is gone; reconciliation releases the reservations on it
            row = self._row(view, name, taken.get(name))
            if self._list[place] is not row:
                self._list[place] = row
                changed = True
        if changed:
            self._rows = tuple(self._list)
        self._nodes, self._usage, self._with_taken = view.nodes, view.usage, frozenset(taken)
        return self._rows

    def table(self, rows: tuple[PlanNode, ...]) -> NodeTable:
        """Return the node table of a result of `rows`; columns of the last one that are the same are used again."""
        self._table = self._table.renewed(rows)
        return self._table

    def _same_names(self, view: ClusterView) -> bool:
        return len(view.nodes) == len(self._place) and all(n in self._place for n in view.nodes)

    def _begin(self, view: ClusterView) -> None:
        order = sorted(view.nodes)
        self._place = {name: i for i, name in enumerate(order)}
        self._kept = {name: kept for name, kept in self._kept.items() if name in self._place}
        nothing = PlanNode(name=NodeName(""), labels={}, allocatable={})
        self._list = [nothing] * len(order)  # the caller sets every row
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
            row = kept.row  # the free capacity is the same as before
        self._kept[name] = _Kept(node, usage, taken, row)
        return row


def make_row(node: Node, usage: Usage, taken: UsedCapacity | None) -> PlanNode:
    """Return the planner's row of a node."""
    nothing_used = taken is None and not usage.requests
    free = node.allocatable if nothing_used else dict(node.allocatable)
    ports = list(usage.host_ports)
    reserved: dict[str, int] = {}
    for name, amount in usage.requests.items():
        if name in free:
            free[name] -= amount
    if taken is not None:
        for name, amount in used_requests(taken).items():
            if name in free:
                free[name] -= amount
        ports += taken.ports
        reserved = {name: n for name, n in taken.reserved if n > 0 and name in free}
    return PlanNode(
        name=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable or node.deleting,
        allocatable=node.allocatable,
        free=free,
        host_ports=tuple(sorted(set(ports))),
        reserved=reserved,
    )
