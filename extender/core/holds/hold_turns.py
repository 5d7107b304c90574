"""For which waiting tree capacity is held next: priority, then turns of namespaces, then the longest wait.

Capacity that is held may be idle for a while, so there are few holds at a time, one per namespace, each bounded in time and
in its share of the capacity (`hold_planning`). After a hold that ended without an admission its namespace gets none for a
while, longer each time: see `UnusedHolds`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from extender.core.log.reservation_state import CapacityHold, GangState, ReservationState
from extender.core.log.state_projector import NO_CAPACITY, counts_as_unused
from extender.core.model.ids import GangUid, PodUid
from extender.core.model.visibility import namespace_of

HOLDS_MAX: Final = 4  # at a time, in the whole cluster


class HoldRefusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why no capacity is held for a tree, and what would help; without names of other namespaces."""

    reason: str
    help: str = ""
    pods: tuple[PodUid, ...] = ()  # of its namespace: it is so while they run
    at_us: int = 0  # when it was searched; 0: not searched


def trees_to_hold_for(
    state: ReservationState, *, now_us: int, after_us: int, paused: Collection[GangUid] = ()
) -> tuple[GangState, ...]:
    """Return the trees for which capacity may be held now, the next one first.

    Args:
        after_us: How long a tree waits before capacity is held for it; 0: it is never held.
        paused: Trees for which no place was found lately.
    """
    if not after_us:
        return ()
    eligible = [
        root
        for root in state.gangs.values()
        if root.phase == "unschedulable"
        and root.uid not in paused
        and _has_waited(root, now_us=now_us, after_us=after_us)
        and no_hold_before_us(state, root) <= now_us
        and root.uid not in state.capacity_holds
        and root.uid not in state.preemptions
        and not (root.reservations or root.bound)
        and _is_below_limits(state, root)
    ]
    return tuple(sorted(eligible, key=lambda root: _turn(state, root, now_us)))


def no_hold_before_us(state: ReservationState, root: GangState) -> int:
    """Return until when no capacity is held for a tree because holds of its namespace were not used; 0: they all were."""
    unused = state.unused_holds.get(namespace_of(root.gang))
    return unused.until_us if unused is not None else 0


def _has_waited(root: GangState, *, now_us: int, after_us: int) -> bool:
    decision = root.last_decision
    return (
        0 < root.refused_since_us <= now_us - after_us
        and decision is not None
        and decision.outcome in NO_CAPACITY
        and decision.when_empty != "never"
    )


def _is_below_limits(state: ReservationState, root: GangState) -> bool:
    """Return whether a tree may have a hold beside those of its priority and above: few, and one per namespace."""
    others = [h for h in state.capacity_holds.values() if h.priority >= root.priority]
    namespace = namespace_of(root.gang)
    return len(others) < HOLDS_MAX and all(namespace_of(h.gang) != namespace for h in others)


def _turn(
    state: ReservationState, root: GangState, now_us: int
) -> tuple[int, int, int, int, str, GangUid]:
    unused = state.unused_holds.get(namespace_of(root.gang))
    delayed = unused is not None and counts_as_unused(unused, now_us)
    ended_us = unused.ended_us if unused is not None and delayed else 0
    own_us = root.no_hold_until_us if delayed else 0
    return (
        -root.priority,
        ended_us,
        own_us,
        root.refused_since_us,
        root.gang,
        root.uid,
    )


def displaced_holds(state: ReservationState, root: GangState) -> tuple[CapacityHold, ...]:
    """Return the holds of lower priority that end when capacity is held for a tree, to keep the limits."""
    namespace = namespace_of(root.gang)
    lower = [h for h in state.capacity_holds.values() if h.priority < root.priority]
    ending = [h for h in lower if namespace_of(h.gang) == namespace]
    rest = sorted((h for h in lower if h not in ending), key=lambda h: (h.priority, -h.position))
    over = len(state.capacity_holds) - len(ending) + 1 - HOLDS_MAX
    return (*ending, *rest[: max(over, 0)])
