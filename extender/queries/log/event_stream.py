"""Stream events to any number of readers: first those in the log, then new ones, each exactly once.

One database connection follows the log for all readers. The newest events are kept in memory, encoded once. A
reader has no state but its position: when it is behind the events in memory, it reads the next page from the
database after it has sent the previous one. So a slow reader costs no memory, and a reader that reconnects
continues from its position, at this replica or another. Positions have no gaps, so no event is missed or repeated.

Note: the log can lose its end when an older copy of the database is restored. Then streams end with an error,
because the log does not contain the events any more that were sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
from msgspec.structs import replace

from extender.core.log.events import RecordedEvent
from extender.core.log.visible_events import visible_event
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import Position
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.ports.log_ports import EventLog
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.event_dto import event_line
from extender.queries.log.event_filter import matches, visible_queries
from extender.runtime.cooperative_yield import Yielder

log = logging.getLogger(__name__)

BUFFER_EVENTS = 2048
BUFFER_BYTES = 8 << 20
BATCH_EVENTS = 128  # examined for one reader before the event loop runs
CATCH_UP_EVENTS = 200  # in one page from the database
REST_S = 0.05  # between two batches of a reader, so that events are sent together
SPREAD = 16  # milliseconds over which the readers are woken, not all at once
SILENCE_S = 10.0  # longest time without a batch to a reader
RETRY_S = 0.25  # pause after a failed read of the database


class EventBatch(msgspec.Struct, frozen=True):
    """Events for a reader; all matching events up to `position` have been returned."""

    position: Position
    events: tuple[tuple[RecordedEvent, bytes], ...] = ()  # each with its JSON (`EventLine`)


class _Recent:
    """The newest events: all events after position `start`."""

    def __init__(self, start: Position) -> None:
        self.start = self.head = start
        self._bytes = 0
        self._events: deque[tuple[RecordedEvent, bytes]] = deque()

    def add(self, event: RecordedEvent, body: bytes) -> None:
        self._events.append((event, body))
        self._bytes += len(body)
        self.head = event.position
        while len(self._events) > BUFFER_EVENTS or self._bytes > BUFFER_BYTES:
            old, old_body = self._events.popleft()
            self._bytes -= len(old_body)
            self.start = old.position

    def after(self, position: Position) -> list[tuple[RecordedEvent, bytes]]:
        skipped = position - self.start
        return list(islice(self._events, skipped, skipped + BATCH_EVENTS))


class EventStream:
    """Follows the log while there are readers."""

    def __init__(self, event_log: EventLog, reader: EventQueries) -> None:
        self._log = event_log
        self._reader = reader
        self._recent: _Recent | None = None
        self._news = asyncio.Event()
        self._fault: BaseException | None = None
        self._following: asyncio.Task[None] | None = None
        self._numbers = 0
        self._catch_up_lock = asyncio.Lock()
        self._stopped = False
        self.readers = 0

    async def head(self) -> Position:
        """Return the position of the end of the log."""
        return (await self._reader.page(EventFilter(limit=0))).head

    async def follow(
        self, query: EventFilter, readers: Visibility = EVERYTHING
    ) -> AsyncGenerator[EventBatch]:
        """Yield batches of the matching events after `query.after`, until `stop`.

        A batch without events is yielded at least every ten seconds. Waits while the database does not answer.

        Args:
            query: Which events; `limit`, `until_us` and `newest_first` are ignored.

        Raises:
            CorruptLog: The log has changed, or has an event that this version does not know.
        """
        query = replace(query, until_us=None, newest_first=False)
        position = query.after
        with self._reading() as number:
            batch_s = _now_s()
            while not self._stopped:
                news = self._news
                if self._fault is not None:
                    raise self._fault
                batch = await self._next(query, position, readers) or EventBatch(position)
                moved, position = batch.position > position, batch.position
                if batch.events or _now_s() - batch_s >= SILENCE_S:
                    batch_s = _now_s()
                    yield batch
                if self._recent is None:
                    await self._woken(news, 0 if moved else RETRY_S)
                elif self._recent.head > position:
                    await asyncio.sleep(0 if moved else RETRY_S)
                else:
                    await asyncio.sleep(REST_S if batch.events else 0)
                    await self._woken(news, SILENCE_S)
                    await asyncio.sleep(number % SPREAD / 1000)

    async def _next(
        self, query: EventFilter, position: Position, readers: Visibility
    ) -> EventBatch | None:
        """Return the next batch, or None when the database does not answer."""
        recent = self._recent
        if recent is not None and recent.start <= position:
            examined = recent.after(position)
            if not examined:
                return EventBatch(position)
            shown = examined if readers.everything else _shown(examined, readers)
            matching = tuple(entry for entry in shown if matches(entry[0], query))
            return EventBatch(examined[-1][0].position, matching)
        page_query = replace(query, after=position, limit=CATCH_UP_EVENTS)
        try:
            async with self._catch_up_lock:  # one connection for streams, the others for queries
                page = await visible_queries(self._reader, readers).page(page_query)
        except StoreUnavailable as error:
            log.info(
                "a reader of the event stream waits for the database", extra={"error": str(error)}
            )
            return None
        pace, encoded_events = Yielder(), []
        for event in page.events:
            await pace.yield_if_due()
            encoded_events.append((event, encoded(event)))
        end = page.events[-1].position if page.more else max(position, page.head)
        return EventBatch(end, tuple(encoded_events))

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
        """Wake the readers with the fault that ended the following of the log."""
        if following.cancelled() or following is not self._following:
            return
        fault = following.exception()
        log.warning("the event stream ends", extra={"error": str(fault)})
        self._recent, self._fault = None, fault
        self._wake_readers()

    async def _keep_up(self, head: Position) -> None:
        recent = self._recent = _Recent(head)
        self._wake_readers()
        async for page in self._log.follow(after=head):
            pace = Yielder()
            for event in page:
                recent.add(event, encoded(event))
                await pace.yield_if_due()
            self._wake_readers()

    def _wake_readers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        self._wake_readers()


def _shown(
    examined: Iterable[tuple[RecordedEvent, bytes]], readers: Visibility
) -> list[tuple[RecordedEvent, bytes]]:
    """Return the events that a caller sees, as the caller sees them."""
    visible = (visible_event(event, readers) for event, _ in examined)
    return [(event, encoded(event)) for event in visible if event is not None]


def encoded(event: RecordedEvent) -> bytes:
    """Return the JSON of an event as the API shows it."""
    return msgspec.json.encode(event_line(event))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
