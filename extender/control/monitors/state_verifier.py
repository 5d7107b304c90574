"""Compare the state in memory with the log every minute (LOG-10).

Each pass of the control loop finds differences between log and cluster, but not between memory and log. So the
log is folded again and compared with the state in memory, once an hour without any snapshot. A difference is recorded
as `DriftDetected`; then the fold replaces the state in memory.
"""

from __future__ import annotations

import logging

from immutables import Map

from extender.control.log.leader import Leader
from extender.core.log.events import DriftDetected
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model.errors import CorruptLog, NotLeading, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import EventLog, Snapshots
from extender.runtime.cooperative_yield import Yielder
from extender.runtime.periodic import PeriodicTask
from extender.snapshots.state_loader import (
    fold_from,
    live_streams_only,
    load_live_streams,
    load_state,
)

log = logging.getLogger(__name__)

EVERY_S = 60.0
# of a look; an append that begins during the fold makes another one necessary
REPLACE_ATTEMPTS = 20
# every so many comparisons the log is folded from its first event, not from a snapshot
FROM_START_EVERY = 60


class StateVerifier:
    """Compares the state in memory with a new fold of the log."""

    def __init__(self, leader: Leader, event_log: EventLog, snapshots: Snapshots) -> None:
        self._leader = leader
        self._log = event_log
        self._snapshots = snapshots
        self._looks = 0
        self.run = PeriodicTask(
            name="state_verifier",
            work=self.look,
            every_s=EVERY_S,
            condition=leader.may_record,
            expected=(NotLeading, StoreUnavailable),
            failure="state not verified",
        ).run

    async def look(self) -> bool:
        """Compare once; return whether a difference was found and corrected."""
        # without the versions of streams that have ended: their number only grows, and the database checks them
        memory = live_streams_only(self._leader.committed)
        self._looks += 1
        from_start = self._looks % FROM_START_EVERY == 0
        if not from_start:
            folded = await load_live_streams(self._log, self._snapshots, until=memory.position)
            if await same(folded, memory):
                return False
        # A snapshot is made of the state in memory: only a fold from the start shows which of both is wrong.
        whole = await self._fold_from_start(memory.position)
        if whole is None and from_start:
            return False
        if whole is not None:
            folded = live_streams_only(whole)
            if await same(folded, memory):
                if not from_start:
                    log.warning("snapshots differ from the log: deleted")
                    await self._leader.discard_snapshots()
                return False
        text = difference(memory, folded)
        data = DriftDetected(kind="memory", object=f"position {memory.position}", message=text)
        await self._leader.append_own(data)
        state = whole
        if state is None:
            position = self._leader.committed.position
            state = await load_state(self._log, self._snapshots, until=position)
        if await self._replace_memory(state):
            # Not before: one that is saved while memory is still wrong would agree with it.
            await self._leader.discard_snapshots()
        return True

    async def _replace_memory(self, state: ReservationState) -> bool:
        """Replace memory by a fold that is brought up to date; return False if the log never rested.

        Args:
            state: A fold of the log up to some position.
        """
        for _ in range(REPLACE_ATTEMPTS):
            await self._leader.appends.drain()
            position = self._leader.committed.position
            state = await fold_from(state, self._log, until=position)
            if self._leader.replace_state(state):
                return True
        log.warning("memory not replaced: appends are always in flight; the next look tries again")
        return False

    async def _fold_from_start(self, until: Position) -> ReservationState | None:
        """Return the fold of the log from its first event, or None if it cannot be folded.

        An old event was changed then: `LogVerifier` records that, and the state is not made from it.
        """
        try:
            return await fold_from(EMPTY, self._log, until=until)
        except CorruptLog as error:
            log.warning("the log cannot be folded from its start", extra={"error": str(error)})
            return None


async def same(state: ReservationState, other: ReservationState) -> bool:
    """Return whether two states are equal; it yields to the event loop often."""
    pace = Yielder()
    for name in ReservationState.__struct_fields__:
        ours, theirs = getattr(state, name), getattr(other, name)
        if not isinstance(ours, Map):
            if ours != theirs:
                return False
            continue
        if len(ours) != len(theirs):
            return False
        for key, value in ours.items():
            if key not in theirs or theirs[key] != value:
                return False
            await pace.yield_if_due()
    return True


def difference(memory: ReservationState, folded: ReservationState) -> str:
    """Return the first difference of two states in one line."""
    for uid in sorted({*memory.gangs, *folded.gangs}):
        ours, theirs = memory.gangs.get(uid), folded.gangs.get(uid)
        if ours == theirs:
            continue
        if ours is None or theirs is None:
            return f"root {uid} is only in {'the log' if ours is None else 'memory'}"
        fields = [
            name
            for name in type(ours).__struct_fields__
            if getattr(ours, name) != getattr(theirs, name)
        ]
        return f"root {ours.gang} differs in {', '.join(fields)}"
    fields = [
        name
        for name in type(memory).__struct_fields__
        if getattr(memory, name) != getattr(folded, name)
    ]
    return f"memory differs from the log in {', '.join(fields)}"
