"""Who has no place on a node any more, when those who want room there want more than it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from extender.core.log.reservation_state import ReplacementHold, Reservation
from extender.core.model.ids import PodUid
from extender.core.model.nodes import Node


def squeezed_out(
    node: Node, taken: Iterable[Mapping[str, int]], wanted: Iterable[Reservation | ReplacementHold]
) -> Iterator[PodUid]:
    """Give those for whom a node has no room; the lowest priority gives way first, then the youngest.

    Args:
        node: Where.
        taken: Requests that stand in front of all of them.
        wanted: Who wants room.
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
