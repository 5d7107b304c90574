"""Keeps the index of what facts name a little behind the log, while this process leads."""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.model.errors import StoreUnavailable
from extender.ports.protocols import ReferenceIndex

log = logging.getLogger(__name__)

AT_ONCE = 500  # facts; a few milliseconds of the database
PAUSE_S = 0.5  # a question looks at the facts of so long one by one


class ReferenceIndexer:
    """Calls `ReferenceIndex.note` behind the appends."""

    def __init__(self, leader: Leader, mentions: ReferenceIndex) -> None:
        self._leader = leader
        self._mentions = mentions

    async def run(self) -> None:
        """Note for ever; a database that does not answer is asked again."""
        while True:
            looked_at = 0
            if self._leader.may_record():
                try:
                    looked_at = await self._mentions.note(AT_ONCE)
                except StoreUnavailable as error:
                    log.warning("what facts name is not indexed", extra={"error": str(error)})
            await asyncio.sleep(0 if looked_at == AT_ONCE else PAUSE_S)
