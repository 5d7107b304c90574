"""Update the index of names in events, shortly after the appends, while this process leads."""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.model.errors import StoreUnavailable
from extender.ports.log_ports import ReferenceIndex

log = logging.getLogger(__name__)

AT_ONCE = 500  # events; a few milliseconds of the database
PAUSE_S = 0.5  # queries scan the events since the last update


class ReferenceIndexer:
    """Calls `ReferenceIndex.note` after appends."""

    def __init__(self, leader: Leader, mentions: ReferenceIndex) -> None:
        self._leader = leader
        self._mentions = mentions

    async def run(self) -> None:
        """Index until cancelled; retry when the database does not answer."""
        while True:
            looked_at = 0
            if self._leader.may_record():
                try:
                    looked_at = await self._mentions.note(AT_ONCE)
                except StoreUnavailable as error:
                    log.warning("names in events are not indexed", extra={"error": str(error)})
            await asyncio.sleep(0 if looked_at == AT_ONCE else PAUSE_S)
