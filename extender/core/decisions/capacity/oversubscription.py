"""Selection of the reservations and replacement holds that do not fit on an oversubscribed node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from extender.core.log.reservation_state import ReplacementHold, Reservation
from extender.core.model.ids import PodUid
from extender.core.model.nodes import Node


def oversubscribed_pods(
    node: Node, taken: Iterable[Mapping[str, int]], wanted: Iterable[Reservation | ReplacementHold]
) -> Iterator[PodUid]:
    """Yield the pods that do not fit on a node; those of the lowest priority first, then the newest.

    Args:
        node: The node.
        taken: Requests that are subtracted before all others.
        wanted: Reservations or holds on the node.
    """
    free = dict(node.allocatable)
    for requests in taken:
        for resource, amount in requests.items():
            free[resource] = free.get(resource, 0) - amount
    for one in sorted(wanted, key=lambda r: (-r.priority, r.at_us, r.pod)):
        if all(free.get(k, 0) >= v for k, v in one.requests.items()):
            for resource, amount in one.requests.items():
                free[resource] -= amount
        else:
            yield one.uid
