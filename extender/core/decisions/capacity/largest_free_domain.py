"""The largest room in one place: what of a resource is free on one node, in one rack, in the whole cluster.

It says how large a tree with a required domain could be now, and next to the total how scattered the rest
is. Everybody's room is counted as taken: running pods (also those that are no members), reservations, nominations, and what
preemptions hold. Nodes that take no new pods are left out: cordoned ones, those being deleted, and those that
kube-controller-manager taints (`node.kubernetes.io/…`: not ready, under pressure). Other taints are the
business of who tolerates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from extender.core.decisions.capacity.free_capacity import NodeRowCache
from extender.core.log.events import RoomMeasured, RoomRecord
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import RootUid
from extender.core.planner.plan_types import PlanNode

NOBODY = RootUid("")
LOWEST = -(1 << 31)  # everybody's claim counts against it: priorities are 32 bits
SYSTEM_TAINTS = "node.kubernetes.io/"
MARKERS = "gang-extender.dev/"  # resources that no pod really takes


def measure_room(
    rows: NodeRowCache, view: ClusterView, state: ReservationState, keys: Sequence[str]
) -> RoomMeasured:
    """Measure now.

    Args:
        rows: Kept from one measurement to the next, so that only nodes that changed are looked at again.
        view: The cluster.
        state: What is reserved and held.
        keys: Topology keys whose domains are levels, beside the single node.
    """
    taken = rows.taken(view, state, priority=LOWEST, root_uid=NOBODY)
    nodes = [row for row in rows.rows(view, taken) if _takes_pods(row)]
    records: list[RoomRecord] = []
    for resource in devices(nodes):
        free = [(row, row.free[resource]) for row in nodes if row.free.get(resource, 0) > 0]
        records += [_largest(free, resource, key) for key in ("", *keys)]
    return RoomMeasured(known=state.position, rooms=tuple(records))


def levels_of(view: ClusterView, configured: Iterable[str]) -> tuple[str, ...]:
    """Give the keys to measure: those that are configured, and those that groups require; sorted."""
    asked = {key for group in view.groups.values() for key in group.topology}
    return tuple(sorted({*configured, *asked}))


def devices(nodes: Iterable[PlanNode]) -> tuple[str, ...]:
    """Give the resources that count: extended ones (their names have a slash), or CPU where there are none; sorted."""
    found = {
        name
        for row in nodes
        for name, amount in row.allocatable.items()
        if amount > 0 and "/" in name and not name.startswith(MARKERS)
    }
    return tuple(sorted(found)) or ("cpu",)


def _takes_pods(row: PlanNode) -> bool:
    return not row.unschedulable and not any(
        taint.key.startswith(SYSTEM_TAINTS) and taint.effect != "PreferNoSchedule"
        for taint in row.taints
    )


def _largest(free: Iterable[tuple[PlanNode, int]], resource: str, key: str) -> RoomRecord:
    """Find the domain with most; of equals the one on the fewest nodes, then the first by name."""
    amounts: dict[str, int] = {}
    nodes: dict[str, int] = {}
    total = 0
    for row, amount in free:
        total += amount
        domain = row.labels.get(key) if key else row.name
        if domain is not None:
            amounts[domain] = amounts.get(domain, 0) + amount
            nodes[domain] = nodes.get(domain, 0) + 1
    best = min(amounts, key=lambda d: (-amounts[d], nodes[d], d), default="")
    return RoomRecord(
        resource=resource, key=key, domain=best, free=amounts.get(best, 0), nodes=nodes.get(best, 0), total=total,
    )  # fmt: skip
