"""Notify a receiver over HTTP of what owners of workloads should know (`--notify-url`), while this process leads.

Notifications follow from committed events, in their order, and from gangs that have waited for long; `core/log/notifications`
has them. Up to where the receiver has accepted them is kept in the database, after it has accepted them: after a crash or
another leader some are sent twice, none is left out. They are read a page at a time, one request is open at once, and nothing
else waits for it: while the receiver does not answer, the position stays and the next try is later each time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import ssl
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from extender.control.log.leader import Leader
from extender.core.log.events import GangUnschedulable, RecordedEvent
from extender.core.log.gang_phase import WaitingGangs
from extender.core.log.notifications import (
    NEVER,
    NOTIFYING,
    Notification,
    notifications_of,
    waiting_notification,
)
from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import BadInput, NotificationFailed, StoreUnavailable
from extender.core.model.ids import GangUid, Position
from extender.core.model.visibility import EVERYTHING, Visibility, namespace_of
from extender.ports.log_ports import START, Clock, NotificationCursor, NotifiedUpTo
from extender.ports.query_ports import EventFilter, EventQueries
from extender.runtime.periodic import PeriodicTask
from extender.settings import Settings, place_of_url
from extender.telemetry import METRICS, LimitedLines

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

PAGE: Final = 50  # events that are read at once
EVERY_S: Final = 1.0
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
RETRY_AFTER_S_MAX: Final = 600.0
TIMEOUT_S: Final = 10.0
# The receiver cannot use this notification, however often it is sent.
REFUSED: Final = (400, 413, 422)
KEY_BYTES_MIN: Final = 24  # of Standard Webhooks
KEY_PREFIX: Final = "whsec_"
SECRET_FLAG: Final = "--notify-secret-file"  # noqa: S105 -- a flag
CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_TYPES: Final = tuple(kind.__name__ for kind in NOTIFYING)


class Notifier:
    """Sends the notifications of this leadership, and keeps up to where they were accepted."""

    def __init__(
        self,
        events: EventQueries,
        cursor: NotificationCursor,
        receiver: HttpReceiver,
        leader: Leader,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._events = events
        self._cursor = cursor
        self._receiver = receiver
        self._leader = leader
        self._clock = clock
        self._after_us = settings.notify_waiting_after_s * 1_000_000
        namespaces = settings.notify_namespaces
        self._readers = Visibility.of(namespaces) if namespaces else EVERYTHING
        self._terms = -1  # of the leader, in which the cursor was read
        self._position = START  # notified up to here
        # the last event that may have a notification, as far as it is known here
        self._newest = START
        self._waited_us = 0
        self._saved = NotifiedUpTo(position=START, waited_us=0)
        self._waiting = WaitingGangs()
        # gangs whose last refusal is *never* and was notified; it is recorded again when numbers in it change
        self._never: set[GangUid] = set()
        # ids that the receiver answered, of the event or the instant that is not finished: a large one is more than it takes at once
        self._answered: set[str] = set()
        self._failures = 0
        self._retry_after_s = 0.0
        self._undelivered_us = 0  # time of the event that waits for the receiver; 0: none does
        METRICS.notification_delay_seconds.set_function(self._delay_s)
        leader.add_append_listener(self._look_at)

    def _look_at(self, events: Sequence[RecordedEvent], _: ReservationState) -> None:
        for event in reversed(events):
            if isinstance(event.data, NOTIFYING):
                self._newest = event.position
                return

    def _delay_s(self) -> float:
        if not self._undelivered_us or not self._leader.may_act():
            return 0.0
        return max(self._clock.now_us() - self._undelivered_us, 0) / 1e6

    async def run(self) -> None:
        """Notify until cancelled; a receiver that fails is tried again, later each time."""
        task = PeriodicTask(
            name="notifier",
            work=self.look,
            every_s=EVERY_S,
            condition=self._leader.may_act,
            expected=(StoreUnavailable, NotificationFailed),
            failure="notifications are not delivered; they are sent later",
            retry_s=self._retry_s,
        )
        try:
            await task.run()
        finally:
            await self._receiver.close()

    def _retry_s(self) -> float:
        pause_s = RETRY_S[min(self._failures, len(RETRY_S)) - 1] if self._failures else EVERY_S
        return max(pause_s, min(self._retry_after_s, RETRY_AFTER_S_MAX))

    async def look(self) -> None:
        """Send what has not been accepted yet, while this process may act.

        Raises:
            NotificationFailed: The receiver did not accept one; the next call begins with it.
        """
        if self._terms != self._leader.terms:
            await self._begin()
        try:
            await self._send_of_events()
            await self._send_of_waiting()
        except NotificationFailed as error:
            self._failures += 1
            self._retry_after_s = error.retry_after_s
            raise
        finally:
            await self._save()
        self._failures, self._retry_after_s, self._undelivered_us = 0, 0.0, 0

    async def _begin(self) -> None:
        """Go on where the leader before ended; with the first one, from now on."""
        terms, state = self._leader.terms, self._leader.committed
        reached = await self._cursor.read()
        if reached is None:
            since_us = self._clock.now_us() - self._after_us
            reached = NotifiedUpTo(position=state.position, waited_us=since_us)
            await self._cursor.save(reached)
        self._saved = reached
        self._position, self._waited_us = reached.position, reached.waited_us
        self._newest = max(self._newest, state.position)
        since = reached.position
        self._never = {u for u in _never_fitting(state) if _decided_at(state, u) <= since}
        self._answered.clear()
        self._terms = terms

    async def _save(self) -> None:
        reached = NotifiedUpTo(position=self._position, waited_us=self._waited_us)
        if reached != self._saved:
            await self._cursor.save(reached)
            self._saved = reached

    async def _send_of_events(self) -> None:
        while self._position < self._newest and self._leader.may_act():
            selected = EventFilter(types=_TYPES, after=self._position, limit=PAGE)
            page = await self._events.page(selected)
            for event in page.events:
                for notification in self._of_event(event):
                    if not await self._deliver(notification):
                        return
                self._position = event.position
                self._answered.clear()
            if not page.more:
                self._position = max(self._position, min(page.head, self._newest))
            await self._save()

    def _of_event(self, event: RecordedEvent) -> Sequence[Notification]:
        root = self._leader.committed.gangs.get(event.gang_uid)
        kind = root.kind if root is not None else ""
        notifications = tuple(notifications_of(event, self._readers, kind))
        if not isinstance(event.data, GangUnschedulable):
            return notifications
        if event.data.when_empty != NEVER:
            self._never.discard(event.gang_uid)
        elif event.gang_uid in self._never:
            return ()
        return notifications

    async def _send_of_waiting(self) -> None:
        """Send the notifications about gangs whose time to wait was over since the last ones."""
        now_us, state = self._clock.now_us(), self._leader.committed
        self._never &= _never_fitting(state)
        if not self._after_us:
            return
        latest_us = now_us - self._after_us
        due = [
            gang
            for gang in self._waiting.of(state)
            if self._waited_us < gang.since_us <= latest_us
            and self._readers.sees(namespace_of(gang.root.gang))
        ]
        due.sort(key=lambda gang: (gang.since_us, gang.root.uid))
        for since_us, gangs in groupby(due, key=lambda gang: gang.since_us):
            for gang in gangs:
                notification = waiting_notification(gang, self._after_us, self._readers)
                if not await self._deliver(notification):
                    return
            self._waited_us = since_us  # not when its time was over: the setting may change
            self._answered.clear()

    async def _deliver(self, notification: Notification) -> bool:
        """Deliver a notification; return False if this process may not act any more.

        Raises:
            NotificationFailed: The receiver did not accept it.
        """
        if not self._leader.may_act() or self._terms != self._leader.terms:
            return False
        if notification.id in self._answered:
            return True
        self._undelivered_us = notification.at_us
        try:
            accepted = await self._receiver.deliver(notification)
        except NotificationFailed:
            METRICS.notifications.labels(notification.type, "failed").inc()
            raise
        self._answered.add(notification.id)
        result = "delivered" if accepted else "refused"
        METRICS.notifications.labels(notification.type, result).inc()
        if notification.type == "never-fits":
            self._never.add(GangUid(str(notification.data["uid"])))
        return True


def _never_fitting(state: ReservationState) -> set[GangUid]:
    return {
        uid
        for uid, root in state.gangs.items()
        if root.last_decision is not None and root.last_decision.when_empty == NEVER
    }


def _decided_at(state: ReservationState, uid: GangUid) -> Position:
    decision = state.gangs[uid].last_decision
    return decision.position if decision is not None else START


class HttpReceiver:
    """A receiver of CloudEvents over HTTP, in structured mode, each signed as Standard Webhooks describes.

    The headers are `webhook-id`, `webhook-timestamp` and `webhook-signature`; the last has one signature for each key of the
    file, so that a key can be replaced while both sides know two.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Read the keys once.

        Raises:
            BadInput: The keys or the CA cannot be used; the message names setting and file.
        """
        self._url = settings.notify_url
        self._source = settings.notify_source
        self._key_file = settings.notify_secret_file
        self._clock = clock
        self._place = place_of_url(self._url)
        self._session: aiohttp.ClientSession | None = None
        self._refusals = LimitedLines(
            log, "the receiver refused a notification; it is not sent again"
        )
        read_keys(self._key_file)
        self._tls: ssl.SSLContext | bool = True
        if settings.notify_ca_file:
            try:
                self._tls = ssl.create_default_context(cafile=settings.notify_ca_file)
            except OSError as error:  # also ssl.SSLError
                msg = f"--notify-ca-file: cannot use {settings.notify_ca_file}: {error.strerror or error}"
                raise BadInput(msg) from error

    async def deliver(self, notification: Notification) -> bool:
        """Send a notification; return False if the receiver refused this very one.

        Raises:
            NotificationFailed: It was not accepted; send it again.
        """
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            # a cookie of the receiver is none of ours, and many would make each request longer
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        body = msgspec.json.encode(notification.cloud_event(self._source))
        at_s = self._clock.now_us() // 1_000_000
        try:
            headers = {
                "Content-Type": CONTENT_TYPE,
                **signed_headers(read_keys(self._key_file), notification.id, at_s, body),
            }
        except BadInput as error:
            raise NotificationFailed(str(error)) from error
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, ssl=self._tls, allow_redirects=False
            ) as reply:
                status, retry_after = reply.status, reply.headers.get("Retry-After", "")
        except TimeoutError as error:
            msg = f"{self._place}: no answer within {TIMEOUT_S:.0f} s"
            raise NotificationFailed(msg) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NotificationFailed(f"{self._place}: {_cause(error)}") from error
        if 200 <= status < 300:  # noqa: PLR2004 -- success in HTTP
            return True
        if status in REFUSED:
            self._refusals.warn(
                self._place, receiver=self._place, status=status, type=notification.type, id=notification.id
            )  # fmt: skip
            return False
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        text = f"answered {status}"
        if 300 <= status < 400:  # noqa: PLR2004 -- redirects in HTTP
            text += "; redirects are not followed, set --notify-url to the address that it leads to"
        raise NotificationFailed(f"{self._place}: {text}", retry_after_s=seconds)

    async def close(self) -> None:
        """Close the connections; a later delivery opens others."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _cause(error: aiohttp.ClientError | OSError) -> str:
    """Return why there is no answer; the text of an error may have the whole URL, which may have a secret."""
    import aiohttp

    match error:
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.ClientResponseError():
            return "its answer is not HTTP"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError():
            return "it closed the connection before it answered"
        case _:
            return type(error).__name__


def read_keys(path: str) -> Sequence[bytes]:
    """Return the keys of a file: one a line, base64, perhaps with `whsec_` before it.

    Raises:
        BadInput: The file cannot be read, has no key, or has a line that is no key; the message does not have the line.
    """
    hint = f"{KEY_BYTES_MIN} bytes or more in base64, as `openssl rand -base64 32` prints them"
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        text = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"{SECRET_FLAG}: cannot read {path}: {text}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        try:
            key = base64.b64decode(line.removeprefix(KEY_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) < KEY_BYTES_MIN:
            raise BadInput(f"{SECRET_FLAG}: key {number} of {path} is not {hint}")
        keys.append(key)
    if not keys:
        raise BadInput(f"{SECRET_FLAG}: {path} has no key; write {hint}")
    return keys


def signed_headers(keys: Sequence[bytes], name: str, at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks for a body.

    Args:
        name: Id of the message, the same in each try.
        at_s: Time of this try, in seconds since 1970.
    """
    signed = f"{name}.{at_s}.".encode() + body
    signatures = [
        f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"
        for key in keys
    ]
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(signatures),
    }
