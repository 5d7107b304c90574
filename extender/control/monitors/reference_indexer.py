"""Update the index of names in events, shortly after the appends, while this process leads."""

from __future__ import annotations

from extender.control.log.leader import Leader
from extender.core.model.errors import StoreUnavailable
from extender.ports.log_ports import START, ReferenceIndex
from extender.runtime.periodic import PeriodicTask

AT_ONCE = 500  # events; a few milliseconds of the database
PAUSE_S = 0.5  # queries scan the events since the last update


class ReferenceIndexer:
    """Calls `ReferenceIndex.note` after appends."""

    def __init__(self, leader: Leader, mentions: ReferenceIndex) -> None:
        self._leader = leader
        self._mentions = mentions
        self._indexed = START  # up to here, as far as this process knows

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
        end, has_indexed = self._leader.committed.position, False
        while self._indexed != end and self._leader.may_record():
            looked_at = await self._mentions.note(AT_ONCE)
            has_indexed = has_indexed or looked_at > 0
            if looked_at < AT_ONCE:
                # where there was nothing, another replica may be at work still, and may fail
                if has_indexed:
                    self._indexed = end
                return
