"""Facts as they come, for any number of readers: what is there, then what comes, each once.

One connection follows the log for all readers, and the newest facts are kept in memory, encoded once. A reader
holds nothing but its position: one that fell behind what is kept asks the database for its next page, when it
has taken the one before. So a slow reader costs no memory, and one that comes back goes on where it was, here
or at another replica. Positions have no gaps, so nothing is missed and nothing comes twice.

The surprise: the log can lose its end (an older copy of the database). Readers are told and sent away; what
they had seen is not in the log any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.protocols import EventFilter, EventLog, EventQueries
from extender.queries.log.event_dto import line_of
from extender.queries.log.event_filter import matches
from extender.runtime.cooperative_yield import Yielder

log = logging.getLogger(__name__)

KEPT_FACTS = 2048
KEPT_BYTES = 8 << 20
BATCH_FACTS = 128  # looked at for a reader at a time
CATCH_UP_FACTS = 200  # of one question to the database
REST_S = 0.05  # between two batches of a reader: facts come together meanwhile
SPREAD = 16  # readers are woken over so many milliseconds, not all at once
SILENCE_S = 10.0  # a reader hears at least so often
RETRY_S = 0.25  # a database that does not answer is asked again


class EventBatch(msgspec.Struct, frozen=True):
    """What a reader gets at a time: every fact up to `position` that matches was given."""

    position: Position
    facts: tuple[tuple[RecordedEvent, bytes], ...] = ()  # with its JSON (`EventLine`)


class _Recent:
    """The newest facts; everything behind `start`, without a gap."""

    def __init__(self, start: Position) -> None:
        self.start = self.head = start
        self._bytes = 0
        self._facts: deque[tuple[RecordedEvent, bytes]] = deque()

    def add(self, event: RecordedEvent, body: bytes) -> None:
        self._facts.append((event, body))
        self._bytes += len(body)
        self.head = event.position
        while len(self._facts) > KEPT_FACTS or self._bytes > KEPT_BYTES:
            old, old_body = self._facts.popleft()
            self._bytes -= len(old_body)
            self.start = old.position

    def behind(self, position: Position) -> list[tuple[RecordedEvent, bytes]]:
        skipped = position - self.start
        return list(islice(self._facts, skipped, skipped + BATCH_FACTS))


class EventStream:
    """Follows the log while somebody reads."""

    def __init__(self, event_log: EventLog, reader: EventQueries) -> None:
        self._log = event_log
        self._reader = reader
        self._recent: _Recent | None = None
        self._news = asyncio.Event()
        self._fault: BaseException | None = None
        self._following: asyncio.Task[None] | None = None
        self._numbers = 0
        self._asking = asyncio.Lock()
        self._stopped = False
        self.readers = 0

    async def head(self) -> Position:
        """Give the end of the log.

        Raises:
            StoreUnavailable: No answer.
        """
        return (await self._reader.page(EventFilter(limit=0))).head

    async def follow(self, wanted: EventFilter) -> AsyncGenerator[EventBatch]:
        """Give the facts behind `wanted.after` that match, for ever; a batch without facts at least every ten seconds.

        Outages of the database are waited for. Ends when the feed is stopped.

        Args:
            wanted: `limit`, `until_us` and `newest_first` are not looked at: what comes has no end.

        Raises:
            CorruptLog: The log is not what it was, or holds what this version does not know.
        """
        wanted = msgspec.structs.replace(wanted, until_us=None, newest_first=False)
        position = wanted.after
        with self._reading() as number:
            heard_s = _now_s()
            while not self._stopped:
                news = self._news
                if self._fault is not None:
                    raise self._fault
                batch = await self._next(wanted, position) or EventBatch(position)
                moved, position = batch.position > position, batch.position
                if batch.facts or _now_s() - heard_s >= SILENCE_S:
                    heard_s = _now_s()
                    yield batch
                if self._recent is None:
                    await self._woken(news, 0 if moved else RETRY_S)
                elif self._recent.head > position:
                    await asyncio.sleep(0 if moved else RETRY_S)
                else:
                    await asyncio.sleep(REST_S if batch.facts else 0)
                    await self._woken(news, SILENCE_S)
                    await asyncio.sleep(number % SPREAD / 1000)

    async def _next(self, wanted: EventFilter, position: Position) -> EventBatch | None:
        """Look at what comes next; None when the database does not answer."""
        recent = self._recent
        if recent is not None and recent.start <= position:
            looked_at = recent.behind(position)
            if not looked_at:
                return EventBatch(position)
            found = tuple(fact for fact in looked_at if matches(fact[0], wanted))
            return EventBatch(looked_at[-1][0].position, found)
        asked = msgspec.structs.replace(wanted, after=position, limit=CATCH_UP_FACTS)
        try:
            async with self._asking:  # the other connections are for questions
                page = await self._reader.page(asked)
        except StoreUnavailable as error:
            log.info("a reader of the feed waits for the database", extra={"error": str(error)})
            return None
        pace, found_there = Yielder(), []
        for event in page.events:
            await pace.breath()
            found_there.append((event, encoded(event)))
        end = page.events[-1].position if page.more else max(position, page.head)
        return EventBatch(end, tuple(found_there))

    async def _woken(self, news: asyncio.Event, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await news.wait()
        except TimeoutError:
            return

    @contextmanager
    def _reading(self) -> Iterator[int]:
        self.readers += 1
        self._numbers += 1
        if self._following is None or self._following.done():
            self._fault = None
            self._following = asyncio.create_task(self._follow_log(), name="feed")
            self._following.add_done_callback(self._ended)
        try:
            yield self._numbers
        finally:
            self.readers -= 1
            if not self.readers:
                self._following.cancel()
                self._following, self._recent = None, None

    async def _follow_log(self) -> None:
        while True:
            try:
                head = await self.head()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
            else:
                await self._keep_up(head)

    def _ended(self, following: asyncio.Task[None]) -> None:
        """Tell the readers why nothing comes any more."""
        if following.cancelled() or following is not self._following:
            return
        fault = following.exception()
        log.warning("the feed ends", extra={"error": str(fault)})
        self._recent, self._fault = None, fault
        self._tell()

    async def _keep_up(self, head: Position) -> None:
        recent = self._recent = _Recent(head)
        self._tell()
        async for page in self._log.follow(after=head):
            pace = Yielder()
            for event in page:
                recent.add(event, encoded(event))
                await pace.breath()
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def stop(self) -> None:
        """End all readers."""
        self._stopped = True
        self._tell()


def encoded(event: RecordedEvent) -> bytes:
    """Give the JSON of a fact as everybody outside sees it."""
    return msgspec.json.encode(line_of(event))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
