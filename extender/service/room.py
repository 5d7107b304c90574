"""Record once a minute how much room there is in one place (`RoomMeasured`), when that has changed.

A sample and no decision: what admissions took between two samples is read from their own facts. A minute
is short beside how long gangs run, and the decisions themselves stay as small as they were.
"""

from __future__ import annotations

import asyncio
import logging

from extender.core.decisions.room import levels_of, measure_room
from extender.core.decisions.rows import NodeRows
from extender.core.errors import NotLeading, StoreUnavailable
from extender.core.events import Draft, RoomMeasured
from extender.core.ids import NIL_ROOT
from extender.service.leading import Leader
from extender.service.ports import Cluster
from extender.settings import Settings

log = logging.getLogger(__name__)


class RoomWatch:
    """Measures and remembers what it recorded last; after a restart the first measurement is recorded again."""

    def __init__(self, cluster: Cluster, leader: Leader, settings: Settings) -> None:
        self._cluster = cluster
        self._leader = leader
        self._settings = settings
        self._rows = NodeRows()
        self._last: tuple[int, RoomMeasured] | None = None  # epoch, and the fact

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            await asyncio.sleep(self._settings.room_every_s)
            try:
                await self.look()
            except (NotLeading, StoreUnavailable) as error:
                log.warning("room not recorded", extra={"error": str(error)})

    async def look(self) -> bool:
        """Measure once; True when it was recorded.

        Raises:
            NotLeading: The lease went meanwhile.
            StoreUnavailable: Not written.
        """
        if not self._leader.may_record() or self._leader.comparing or self._cluster.doubt():
            return False
        view, state = self._cluster.view(), self._leader.speculative
        found = measure_room(self._rows, view, state, levels_of(view, self._settings.topology_keys))
        now = (self._leader.epoch, found)
        if now == self._last:
            return False
        draft = Draft(root_uid=NIL_ROOT, root="", fact=found, actor=self._settings.holder)
        await self._leader.record([draft])
        self._last = now
        return True
