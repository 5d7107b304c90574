"""Selection of the reservations and replacement holds that do not fit on an oversubscribed node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.core.log.reservation_state import ReplacementHold, Reservation
from extender.core.model.ids import PodUid
from extender.core.model.nodes import Node


class HeldClaim(NamedTuple):
    """Free capacity of a node that is held for a preemptor, and that takes its turn among reservations."""

    requests: Mapping[str, int]
    priority: int
    at_us: int
    pod: str = ""


def oversubscribed_pods(
    node: Node,
    taken: Sequence[Mapping[str, int]],
    holders: Sequence[Reservation | ReplacementHold | HeldClaim],
) -> Iterator[PodUid]:
    """Yield the pods that do not fit on a node; those of the lowest priority first, then the newest.

    Args:
        node: The node.
        taken: Requests that are subtracted before all others.
        holders: Reservations, holds and claims on the node; a claim that does not fit is left out.
    """
    if _fit_together(node, taken, holders):
        return
    free = dict(node.allocatable)
    for requests in taken:
        for resource, amount in requests.items():
            free[resource] = free.get(resource, 0) - amount
    for holder in sorted(holders, key=lambda r: (-r.priority, r.at_us, r.pod)):
        if all(free.get(k, 0) >= v for k, v in holder.requests.items()):
            for resource, amount in holder.requests.items():
                free[resource] = free.get(resource, 0) - amount
        elif not isinstance(holder, HeldClaim):
            yield holder.uid


def _fit_together(
    node: Node,
    taken: Sequence[Mapping[str, int]],
    holders: Iterable[Reservation | ReplacementHold | HeldClaim],
) -> bool:
    """Return whether all fit, as nearly always: their sum is compared, in no order."""
    shapes = [holder.requests for holder in holders]  # members of one shape share the object
    counts = Counter(map(id, shapes))
    needed: dict[str, int] = {}
    for shape in {id(shape): shape for shape in shapes}.values():
        count = counts[id(shape)]
        for resource, amount in shape.items():
            needed[resource] = needed.get(resource, 0) + amount * count
    for resource, amount in needed.items():
        free = node.allocatable.get(resource, 0)
        for requests in taken:
            free -= requests.get(resource, 0)
        if free < amount:
            return False
    return True
