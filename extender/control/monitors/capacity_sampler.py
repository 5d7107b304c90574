"""Record once a minute how much room there is in one place (`RoomMeasured`), when that has changed.

A sample and no decision: what admissions took between two samples is read from their own facts. A minute
is short beside how long gangs run, and the decisions themselves stay as small as they were.
"""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.decisions.capacity.free_capacity import NodeRowCache
from extender.core.decisions.capacity.largest_free_domain import levels_of, measure_room
from extender.core.log.events import NewEvent, RoomRecord
from extender.core.model.errors import NotLeading, StoreUnavailable
from extender.core.model.ids import NIL_ROOT, Epoch
from extender.core.model.object_identity import same_objects
from extender.ports.protocols import Cluster
from extender.settings import Settings

log = logging.getLogger(__name__)


class CapacitySampler:
    """Measures and remembers what it recorded last; after a restart the first measurement is recorded again."""

    def __init__(self, cluster: Cluster, leader: Leader, settings: Settings) -> None:
        self._cluster = cluster
        self._leader = leader
        self._settings = settings
        self._rows = NodeRowCache()
        self._seen: tuple[object, ...] = (None,) * 5  # what the last measurement was made from
        self._epoch: Epoch | None = None  # under which it was recorded
        self._rooms: tuple[RoomRecord, ...] = ()

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

        Beside the event loop: on 5,000 nodes it takes some 40 ms. View and state are snapshots, and what is
        recorded in the meantime is behind the position that the fact names.

        Raises:
            NotLeading: The lease went meanwhile.
            StoreUnavailable: Not written.
        """
        leader = self._leader
        if not leader.may_record() or leader.comparing or self._cluster.doubt():
            return False
        view, state, epoch = self._cluster.view(), leader.acknowledged, leader.epoch
        held = (state.held_on, state.preemptions, state.vacant_on)
        seen = (view.nodes, view.pods, view.groups, *held)
        if epoch == self._epoch and same_objects(seen, self._seen):
            return False
        keys = levels_of(view, self._settings.topology_keys)
        found = await asyncio.to_thread(measure_room, self._rows, view, state, keys)
        changed = epoch != self._epoch or found.rooms != self._rooms
        if changed:
            draft = NewEvent(root_uid=NIL_ROOT, root="", fact=found, actor=self._settings.holder)
            await leader.record([draft])
        self._seen, self._epoch, self._rooms = seen, epoch, found.rooms
        return changed
