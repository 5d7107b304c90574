"""Update the index of names in events, shortly after the appends, while this process leads."""

from __future__ import annotations

from extender.control.log.leader import Leader
from extender.core.model.errors import StoreUnavailable
from extender.ports.log_ports import ReferenceIndex
from extender.runtime.periodic import PeriodicTask

AT_ONCE = 500  # events; a few milliseconds of the database
PAUSE_S = 0.5  # queries scan the events since the last update


class ReferenceIndexer:
    """Calls `ReferenceIndex.note` after appends."""

    def __init__(self, leader: Leader, mentions: ReferenceIndex) -> None:
        self._leader = leader
        self._mentions = mentions

    async def run(self) -> None:
        """Index until cancelled; retry when the database does not answer."""
        await PeriodicTask(
            name="reference_indexer",
            work=self.catch_up,
            every_s=PAUSE_S,
            condition=self._leader.may_record,
            expected=(StoreUnavailable,),
            failure="names in events are not indexed",
        ).run()

    async def catch_up(self) -> None:
        """Index all events that are not indexed yet, while this process may record.

        Raises:
            StoreUnavailable: No answer; try again.
        """
        indexed = AT_ONCE
        while indexed == AT_ONCE and self._leader.may_record():
            indexed = await self._mentions.note(AT_ONCE)
