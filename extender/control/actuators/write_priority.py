"""Writes that no member waits for give way to those of members that are on their way to their nodes.

Nominations, removals of gates and Bindings share the API server with finalizers and conditions of groups. On a small
control plane each of the latter, sent in the moment in which a small tree is placed, delays that tree.
"""

from __future__ import annotations

import asyncio
from typing import Final

from extender.control.log.leader import Leader
from extender.core.log.reservation_state import claims_of_kind
from extender.ports.log_ports import Clock

# A small tree is bound by then. Members that take longer wait for something else, such as kube-scheduler.
FRESH_MS: Final = 300
# The longest that one write waits: members may come one after another for hours.
GIVE_WAY_S: Final = 0.1
LOOK_EVERY_S: Final = 0.02


class PlacementPriority:
    """Knows whether members are being placed."""

    def __init__(self, leader: Leader, clock: Clock) -> None:
        self._leader = leader
        self._clock = clock
        # None of these reservations was fresh when they were examined, and none becomes fresh later.
        self._old: object = None

    async def give_way(self) -> None:
        """Wait while members with a fresh reservation are not bound yet, at most `GIVE_WAY_S`."""
        waited_s = 0.0
        while waited_s < GIVE_WAY_S and self._are_being_placed():
            await asyncio.sleep(LOOK_EVERY_S)
            waited_s += LOOK_EVERY_S

    def _are_being_placed(self) -> bool:
        state = self._leader.committed
        if state.claims_on is self._old:
            return False
        old_us = self._clock.recording_us() - FRESH_MS * 1000
        if any(held.at_us > old_us for held in claims_of_kind(state, "reservation")):
            return True
        self._old = state.claims_on
        return False
