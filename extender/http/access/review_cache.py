"""Answers of `AccessReviews`, kept for seconds; one review of a token or a right is open at a time.

Of a caller whose right is in some of many namespaces, only some are reviewed again at a time.

Owns how old an answer may be. An answer that is too old is never used: when the API server does not answer, neither
does the cache. Tokens are kept as their SHA-256 only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from extender.core.model.errors import AccessUnknown, ClusterUnavailable, Forbidden
from extender.ports.access_ports import AccessReviews, AccessRight, Caller
from extender.telemetry import METRICS

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
AT_ONCE: Final = 2_000  # reviewed in a second or two
SWEEP_KEPT_S: Final = 60.0  # a caller that was away for longer gets a whole sweep again
SWEEPS_MAX: Final = 256


class Sweep(NamedTuple):
    """The result of one sweep."""

    begun_s: float
    allowed: frozenset[str]
    turn: str = ""  # the last name of those that had their turn; the next one begins after it


def names_due(last: Sweep | None, names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names to review now, and the last of them that had its turn.

    Args:
        last: The sweep before; None: there was none, so all are reviewed.

    >>> names = [f"n{number:04}" for number in range(3 * AT_ONCE)]
    >>> due, turn = names_due(Sweep(0.0, frozenset(["n0001"]), "n4999"), names)
    >>> due[:3], due[-1], turn, len(due)
    (['n0001', 'n5000', 'n5001'], 'n1000', 'n1000', 2001)
    """
    if last is None or len(names) <= AT_ONCE:
        return list(names), ""
    held = [name for name in names if name in last.allowed]
    others = [name for name in names if name not in last.allowed]
    begin = next((i for i, name in enumerate(others) if name > last.turn), 0)
    by_turn = [*others[begin:], *others[:begin]][:AT_ONCE]
    return [*held, *by_turn], by_turn[-1] if by_turn else ""


def keep_newest(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value in place of the one before; the oldest beyond `most` are dropped."""
    kept.pop(key, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


POSITIVE_S: Final = 10.0  # how long a right that was taken away still counts, at most
# how long a right that was just given is missing, at most; in lists with those of other namespaces `POSITIVE_S`
NEGATIVE_S: Final = 3.0
ENTRIES_MAX: Final = 4_096  # of each kind; the oldest are dropped
NAMESPACES_MAX: Final = 10_000  # as many as Kubernetes is tested with
OPEN_REVIEWS_MAX: Final = 4  # of the 24 requests that Bindings and all other writes share
WAITING_MAX: Final = 256  # reviews that wait for one of those
# reviews of one caller, so that a second caller does not wait for all of them
SWEEP_AT_ONCE: Final = 2


class _Kept(Generic[K, V]):
    """Answers by key, each until its time; concurrent questions with one key are asked once."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._kept: dict[K, tuple[float, V]] = {}  # until when; in the order of arrival
        self._open: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]], keep_s: Callable[[V], float]) -> V:
        """Return the answer for a key, from `ask` if there is none that is young enough."""
        kept = self._kept.get(key)
        if kept is not None and self._now_s() < kept[0]:
            return kept[1]
        task = self._open.get(key)
        if task is None:
            task = self._open[key] = asyncio.create_task(self._ask(key, ask, keep_s))
        return await asyncio.shield(task)  # a caller that goes away does not end it for the others

    async def _ask(
        self, key: K, ask: Callable[[], Awaitable[V]], keep_s: Callable[[V], float]
    ) -> V:
        asked_s = self._now_s()  # the answer may be older than its arrival
        try:
            answer = await ask()
        finally:
            del self._open[key]
        keep_newest(self._kept, key, (asked_s + keep_s(answer), answer), ENTRIES_MAX)
        return answer


class ReviewCache:
    """Remembers the answers of reviews.

    Args:
        now_s: A clock that never steps back, in seconds.
    """

    def __init__(self, reviews: AccessReviews, now_s: Callable[[], float]) -> None:
        self._reviews = reviews
        self._now_s = now_s
        self._callers: _Kept[bytes, Caller | None] = _Kept(now_s)
        self._rights: _Kept[tuple[Caller, AccessRight], bool] = _Kept(now_s)
        self._namespaces: _Kept[tuple[Caller, str], frozenset[str]] = _Kept(now_s)
        self._sweeps: dict[tuple[Caller, str], Sweep] = {}  # the last, in a large cluster
        self._slots = asyncio.Semaphore(OPEN_REVIEWS_MAX)
        self._waiting = 0

    async def caller(self, token: str) -> Caller | None:
        """Return who has a token; None: it is not valid here.

        Raises:
            AccessUnknown: The API server does not answer, or too many reviews wait.
        """
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return await self._callers.get(
            key,
            lambda: self._ask("token", lambda: self._reviews.authenticate(token)),
            lambda caller: NEGATIVE_S if caller is None else POSITIVE_S,
        )

    async def may(self, caller: Caller, right: AccessRight) -> bool:
        """Return whether a caller has a right.

        Raises:
            AccessUnknown: The API server does not answer, or too many reviews wait.
        """
        return await self._rights.get(
            (caller, right),
            lambda: self._ask_right(caller, right),
            lambda allowed: POSITIVE_S if allowed else NEGATIVE_S,
        )

    async def namespaces(
        self, caller: Caller, verb: str, existing: Callable[[], Iterable[str]]
    ) -> frozenset[str]:
        """Return the namespaces in which a caller has a right on our groups, of those that `existing` returns.

        In a large cluster a right that was just given is missing for longer than in a small one; see `names_due`.

        Raises:
            AccessUnknown: The API server does not answer, or too many reviews wait.
            Forbidden: There are too many to review each.
        """
        many = False

        async def sweep() -> frozenset[str]:
            nonlocal many
            names = sorted(set(existing()))
            many = len(names) > AT_ONCE
            if len(names) > NAMESPACES_MAX:
                raise Forbidden(
                    f"user {caller.user!r} may not {AccessRight(verb)}, and {len(names)} namespaces are too many to "
                    f"review one by one, at most {NAMESPACES_MAX}; name one with the query parameter namespace"
                )
            key, begun_s = (caller, verb), self._now_s()
            last = self._sweeps.get(key)
            young = last is not None and begun_s - last.begun_s <= SWEEP_KEPT_S
            due, turn = names_due(last if young else None, names)
            allowed = await self._reviewed(caller, verb, due)
            if len(due) > 2 * AT_ONCE:  # the first answers may be older than `POSITIVE_S` by now
                allowed = await self._reviewed(caller, verb, sorted(allowed))
            if many:
                keep_newest(self._sweeps, key, Sweep(begun_s, allowed, turn), SWEEPS_MAX)
            return allowed

        return await self._namespaces.get(
            (caller, verb), sweep, lambda allowed: POSITIVE_S if allowed or many else NEGATIVE_S
        )

    def too_many(self, existing: Callable[[], Iterable[str]]) -> bool:
        """Return whether there are too many namespaces to review them for a request that names one."""
        return len(set(existing())) > AT_ONCE

    async def _reviewed(self, caller: Caller, verb: str, names: Iterable[str]) -> frozenset[str]:
        """Return those of some namespaces in which a caller has a right."""
        allowed, left = set[str](), iter(names)

        async def some() -> None:
            for name in left:
                if await self._ask_right(caller, AccessRight(verb, name)):
                    allowed.add(name)

        await asyncio.gather(*(some() for _ in range(SWEEP_AT_ONCE)))
        return frozenset(allowed)

    async def _ask_right(self, caller: Caller, right: AccessRight) -> bool:
        return await self._ask("right", lambda: self._reviews.authorize(caller, right))

    async def _ask(self, kind: str, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer to one review."""
        if self._waiting >= WAITING_MAX:
            METRICS.access_reviews.labels(kind, "busy").inc()
            raise AccessUnknown(f"{WAITING_MAX} tokens and rights wait to be checked; try again")
        self._waiting += 1
        try:
            async with self._slots:
                answer = await ask()
        except ClusterUnavailable as error:
            METRICS.access_reviews.labels(kind, "error").inc()
            raise AccessUnknown(f"rights cannot be checked: {error}; try again") from error
        finally:
            self._waiting -= 1
        METRICS.access_reviews.labels(kind, "yes" if answer else "no").inc()
        return answer
