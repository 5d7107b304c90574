"""The largest free domain: the most of a resource that is free on one node, in one topology domain, in the cluster.

It shows how large a tree with a required domain could be now; compared with the total it shows the fragmentation.
All pods, reservations, nominations, replacement holds and capacity claims count as used. Nodes that are not
schedulable are left out: cordoned ones, those being deleted, and those with a taint of kube-controller-manager
(`node.kubernetes.io/…`: not ready, under pressure). Other taints are ignored, because some pods tolerate them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from extender.core.capacity.free_capacity import NodeRowCache, UsedCapacity
from extender.core.log.events import CapacityMeasured, FreeDomainRecord
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid
from extender.core.model.nodes import takes_pods
from extender.core.model.pods import is_extended
from extender.core.planner.plan_types import PlanNode

NO_ROOT = GangUid("")
LOWEST = -(1 << 31)  # the lowest priority (32 bits), so that every claim counts
# bound: members of gangs; others: other pods, also nominated ones; reserved: for members that are not bound yet; held: for
# replacements, preemptors and trees that wait for long; unusable: on nodes that take no pods
CapacityUse: TypeAlias = Literal["bound", "others", "reserved", "held", "free", "unusable"]


class FreeDomains:
    """What is free in each domain; from one measurement to the next only nodes whose rows have changed are counted again."""

    def __init__(self) -> None:
        self._rows: tuple[PlanNode, ...] = ()
        self._keys: tuple[str, ...] = ()
        self._devices: tuple[str, ...] = ()
        self._total: dict[str, int] = {}  # by resource
        # by resource and key: domain -> what is free there, and on how many nodes, negative: the largest one is the best
        self._levels: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}

    def largest(self, rows: tuple[PlanNode, ...], keys: Sequence[str]) -> list[FreeDomainRecord]:
        """Return the largest domain of each resource and level.

        Args:
            rows: Sorted by name; the same objects as the last time for nodes on which nothing has changed.
            keys: Topology keys of the levels, beside the single node.
        """
        self._follow(rows, ("", *keys))
        return [
            self._largest(resource, key) for resource in self._devices for key in self._keys
        ]  # fmt: skip

    def _follow(self, rows: tuple[PlanNode, ...], keys: tuple[str, ...]) -> None:
        changed: list[tuple[PlanNode | None, PlanNode]] = []
        if len(rows) == len(self._rows):
            changed = [(b, row) for b, row in zip(self._rows, rows, strict=True) if b is not row]
        is_other = keys != self._keys or len(rows) != len(self._rows)
        if is_other or any(b is not None and _place(b) != _place(row) for b, row in changed):
            self._keys, self._devices = keys, devices(filter(takes_pods, rows))
            self._total = dict.fromkeys(self._devices, 0)
            self._levels = {(r, key): {} for r in self._devices for key in keys}
            changed = [(None, row) for row in rows]
        self._rows = rows
        for before, row in changed:
            if before is not None:
                self._count(before, -1)
            self._count(row, 1)

    def _count(self, row: PlanNode, sign: int) -> None:
        if not takes_pods(row):
            return
        for resource in self._devices:
            amount = row.free.get(resource, 0)
            if amount <= 0:
                continue
            self._total[resource] += sign * amount
            for key in self._keys:
                domain = row.labels.get(key) if key else row.name
                if domain is None:
                    continue
                level = self._levels[resource, key]
                free, nodes = level.get(domain, (0, 0))
                if nodes - sign:
                    level[domain] = (free + sign * amount, nodes - sign)
                else:
                    del level[domain]

    def _largest(self, resource: str, key: str) -> FreeDomainRecord:
        """Return the domain with the most; of equal ones that with the fewest nodes, then the first by name."""
        level = self._levels[resource, key]
        most = free, nodes = max(level.values(), default=(0, 0))
        best = min((domain for domain, each in level.items() if each == most), default="")
        return FreeDomainRecord(
            resource=resource, key=key, domain=best, free=free, nodes=-nodes, total=self._total[resource],
        )  # fmt: skip


def _place(row: PlanNode) -> tuple[object, ...]:
    """Return what decides where the free capacity of a node counts."""
    return row.name, row.labels, row.allocatable, takes_pods(row)


def measure_capacity(
    rows: NodeRowCache,
    domains: FreeDomains,
    view: ClusterView,
    state: ReservationState,
    keys: Sequence[str],
) -> CapacityMeasured:
    """Return the measurement of the current view and state.

    Args:
        rows: The same object for each measurement, as `domains`, so that only changed nodes are counted again.
        keys: Topology keys of the levels, beside the single node.
    """
    taken = rows.taken(view, state, priority=LOWEST, gang_uid=NO_ROOT)
    records = domains.largest(rows.rows(view, taken), keys)
    return CapacityMeasured(as_of=state.position, largest_free=tuple(records))


def capacity_by_use(
    rows: NodeRowCache, view: ClusterView, state: ReservationState
) -> Mapping[tuple[str, CapacityUse], int]:
    """Return what the capacity of all nodes is used for, by measured resource and use: CPU in millicores, the rest in units.

    Where no node is overcommitted the uses of a resource add up to what the nodes have. The arguments are those of
    `measure_capacity`, without domains and levels.
    """
    taken = rows.taken(view, state, priority=LOWEST, gang_uid=NO_ROOT)
    nodes = rows.rows(view, taken)
    measured = devices(filter(takes_pods, nodes))
    amounts: Counter[tuple[str, CapacityUse]] = Counter()

    def count(use: CapacityUse, requests: Iterable[tuple[str, int]]) -> None:
        for resource, amount in requests:
            if resource in measured:
                amounts[resource, use] += amount

    for row in nodes:
        claims = taken.get(row.name) or UsedCapacity()
        count("others", view.usage.get(row.name, NOTHING).requests.items())
        for pod in claims.nominated:
            count("others", pod.shape.requests)
        for reservation in claims.held:
            count("reserved", reservation.requests.items())
        count("held", claims.claimed)
        free = ((resource, max(amount, 0)) for resource, amount in row.free.items())
        count("free" if takes_pods(row) else "unusable", free)
    for members in view.members.values():
        for pod in members.values():
            if pod.node is not None and pod.node in view.nodes:
                count("bound", pod.shape.requests)
    for resource in measured:
        amounts[resource, "others"] -= amounts[resource, "bound"]
        for use in get_args(CapacityUse):
            amounts.setdefault((resource, use), 0)
    return amounts


def levels_of(view: ClusterView, configured: Iterable[str]) -> tuple[str, ...]:
    """Return the topology keys to measure, sorted: the configured ones, and those that groups require or prefer.

    A key of groups that no node has is left out: it is a mistake of its group, not a level without free capacity.
    """
    of_groups = {
        key for group in view.groups.values() for key in group.constraints.topology_keys
    } - {*configured}
    on_nodes = {key for key in of_groups if any(key in n.labels for n in view.nodes.values())}
    return tuple(sorted({*configured, *on_nodes}))


def devices(nodes: Iterable[PlanNode]) -> tuple[str, ...]:
    """Return the resources to measure, sorted: extended ones (their names have a slash), or CPU if there are none."""
    names = {name for row in nodes for name, amount in row.allocatable.items() if amount > 0}
    return tuple(sorted(filter(is_extended, names))) or ("cpu",)
