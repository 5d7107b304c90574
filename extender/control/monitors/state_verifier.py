"""Ask every minute whether memory is what the log says (DESIGN 2.8).

Differences between log and cluster are found by every pass of the admission loop (`reconcile`). What
no pass can find is a memory that has left the log, which is how other schedulers refuse an idle rack
until they are restarted. So the log is folded anew, beside the service, and compared; but for the versions of
streams that have ended, of which there are ever more, and which the database itself keeps apart. A difference is
recorded as `DriftFound`, counted and logged; only then is the memory replaced by the fold.
"""

from __future__ import annotations

import asyncio
import logging

from immutables import Map

from extender.control.log.leader import Leader
from extender.core.log.events import DriftFound, NewEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import NotLeading, StoreUnavailable
from extender.core.model.ids import NIL_ROOT
from extender.ports.protocols import EventLog, Snapshots
from extender.runtime.cooperative_yield import Yielder
from extender.snapshots.state_loader import living, load_living, load_state

log = logging.getLogger(__name__)

EVERY_S = 60.0


class StateVerifier:
    """Compares fold and memory."""

    def __init__(
        self, leader: Leader, event_log: EventLog, checkpoints: Snapshots, actor: str
    ) -> None:
        self._leader = leader
        self._log = event_log
        self._checkpoints = checkpoints
        self._actor = actor

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._leader.may_record():
                try:
                    await self.look()
                except (NotLeading, StoreUnavailable) as error:
                    log.warning("drift not looked for", extra={"error": str(error)})

    async def look(self) -> bool:
        """Compare once; True when memory had drifted and was put right.

        Raises:
            NotLeading: The lease went meanwhile; nothing was changed.
            StoreUnavailable: No answer; nothing was changed.
        """
        memory = living(self._leader.acknowledged)
        folded = await load_living(self._log, self._checkpoints, until=memory.position)
        if await same(folded, memory):
            return False
        text = difference(memory, folded)
        fact = DriftFound(kind="memory", object=f"position {memory.position}", text=text)
        draft = NewEvent(root_uid=NIL_ROOT, root="", fact=fact, actor=self._actor)
        events = await self._leader.record([draft])
        last = events[-1].position
        self._leader.replace_state(await load_state(self._log, self._checkpoints, until=last))
        return True


async def same(one: ReservationState, other: ReservationState) -> bool:
    """Compare two states a little at a time, so that no call waits for it."""
    pace = Yielder()
    for name in ReservationState.__struct_fields__:
        ours, theirs = getattr(one, name), getattr(other, name)
        if not isinstance(ours, Map):
            if ours != theirs:
                return False
            continue
        if len(ours) != len(theirs):
            return False
        for key, value in ours.items():
            if key not in theirs or theirs[key] != value:
                return False
            await pace.breath()
    return True


def difference(memory: ReservationState, folded: ReservationState) -> str:
    """Say in a line where two states differ first."""
    for uid in sorted({*memory.roots, *folded.roots}):
        ours, theirs = memory.roots.get(uid), folded.roots.get(uid)
        if ours == theirs:
            continue
        if ours is None or theirs is None:
            return f"root {uid} is only in {'the log' if ours is None else 'memory'}"
        fields = [
            name
            for name in type(ours).__struct_fields__
            if getattr(ours, name) != getattr(theirs, name)
        ]
        return f"root {ours.root} differs in {', '.join(fields)}"
    fields = [
        name
        for name in type(memory).__struct_fields__
        if getattr(memory, name) != getattr(folded, name)
    ]
    return f"memory differs from the log in {', '.join(fields)}"
