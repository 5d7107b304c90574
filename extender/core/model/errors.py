"""All exceptions of this project; each docstring states what the caller does about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_ABOUT_OBJECT = re.compile(
    r"(?P<place>[^:]+: )?(?P<name>[A-Z]\w+/[a-z0-9.-]+/[a-z0-9.-]+)(?P<rest>\W.*)", re.DOTALL
)
_NAMED_MAX: Final = 3  # objects with the same mistake, beside the first one


class ExtenderError(Exception):
    """Base class of all our exceptions."""


class BadInput(ExtenderError):
    """The input of a user or a client is invalid: show the message, answer 4xx or exit 2."""


class BadInputs(BadInput):
    """An input has several errors: show the message, which has one line for each, or for all objects with the same.

    Attributes:
        texts: What is wrong, in the order of the input.
    """

    SHOWN_MAX = 50
    # texts of which those about the same mistake are one; there may be millions
    COMPARED_MAX = 10_000

    def __init__(self, texts: tuple[str, ...], *, complete: bool = True) -> None:
        self.texts = texts
        merged = merged_by_object(texts[: self.COMPARED_MAX])
        shown = [*merged, *texts[self.COMPARED_MAX :]][: self.SHOWN_MAX]
        more = len(merged) + max(0, len(texts) - self.COMPARED_MAX) - len(shown)
        end = [f"and {more} more"] if more > 0 else []
        count = f"{len(texts)} problems" if complete else f"{len(texts)} problems or more"
        super().__init__("\n  ".join([f"{count}:", *shown, *end]))

    def __reduce__(self) -> tuple[type[BadInput], tuple[str]]:
        """Another process gets the message: there may be millions of texts, and few are shown."""
        return BadInput, (str(self),)


def merged_by_object(texts: Sequence[str]) -> list[str]:
    """Return texts about objects; those that differ in place and name of the object alone are one, with the names.

    >>> merged_by_object(["f, document 1: Pod/a/b: x", "f, document 2: Pod/a/c: x", "f, document 3: Pod/a/d: y"])
    ['f, document 1: Pod/a/b and 1 more (Pod/a/c): x', 'f, document 3: Pod/a/d: y']

    Args:
        texts: Sentences that begin with `Kind/namespace/name`, or with a place and a colon before it; others stay as they are.
    """
    same: dict[tuple[str, str], list[str]] = {}  # kind and rest -> names
    first: dict[tuple[str, str], str] = {}  # -> the place of the first one
    for text in texts:
        match = _ABOUT_OBJECT.fullmatch(text)
        place, name, rest = match.group("place", "name", "rest") if match else ("", "", text)
        key = (name.partition("/")[0], rest)
        first.setdefault(key, place or "")
        same.setdefault(key, []).append(name)
    merged = []
    for (kind, rest), names in same.items():
        others = list(dict.fromkeys(names[1:])) if kind else []
        rest_of = ", ..." if len(others) > _NAMED_MAX else ""
        more = (
            f" and {len(others)} more ({', '.join(others[:_NAMED_MAX])}{rest_of})" if others else ""
        )
        merged.append(f"{first[kind, rest]}{names[0]}{more}{rest}")
    return merged


def several(texts: tuple[str, ...], *, complete: bool = True) -> BadInput:
    """Return one error for one or more texts; `complete` False: the rest of the input was not read."""
    if len(texts) == 1 and complete:
        return BadInput(texts[0])
    return BadInputs(texts, complete=complete)


def located(where: str, fault: BadInput) -> BadInput:
    """Return an error with a place in front of each of its texts."""
    return several(tuple(f"{where}: {text}" for text in texts_of(fault)))


def texts_of(fault: BadInput) -> tuple[str, ...]:
    """Return what is wrong, one text each."""
    return fault.texts if isinstance(fault, BadInputs) else (str(fault),)


class NotFound(BadInput):
    """No object has the requested name, now or earlier: show the message, answer 404 or exit 1."""


class PositionGone(BadInput):
    """The log ends before the position in the request: answer 409, the client starts again at the end of the log."""


class TooManyQueries(ExtenderError):
    """Too many queries run at once; answer 503, the client tries again."""


class QueryUnavailable(ExtenderError):
    """The query process is not available now; answer 503, the client tries again."""


class Unauthenticated(ExtenderError):
    """The request has no valid token; answer 401, the client needs another one."""


class Forbidden(ExtenderError):
    """The caller does not have the right; answer 403 with the right that is missing, and do not repeat the request."""


class AccessUnknown(ExtenderError):
    """It cannot be found out now whether the caller has the right; answer 503, the client tries again."""


class BadQuantity(BadInput):
    """Kubernetes would not accept this resource quantity."""


class StoreUnavailable(ExtenderError):
    """Postgres did not answer; the outcome of a write is unknown. Do not act on the write, try again later."""


class Fenced(ExtenderError):
    """A later epoch or another lease holder writes the log now. Nothing was written; stop leading."""


class HeadMoved(ExtenderError):
    """The end of the log is not the last event of this writer. Nothing was written; read again and acquire the lease again."""


class DuplicateEvent(ExtenderError):
    """An event id is in the log already. Nothing was written; look the ids up and append only the missing events."""


class LeaseHeld(ExtenderError):
    """Another process holds an unexpired lease. Follow, write nothing, try again after it expires."""


class CorruptLog(ExtenderError):
    """The log is damaged (gap, broken hash chain, unknown event). Stop; never skip an event."""


class MissingEvent(CorruptLog):
    """The log has no event at a position, and has later ones."""

    def __init__(self, position: int) -> None:
        super().__init__(f"position {position} is missing")
        self.position = position


class AlteredEvent(CorruptLog):
    """The hash of an event is not the one of its content and of the event before it."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"position {position}: the hash does not match; the row or its predecessor was altered"
        )
        self.position = position


class SchemaOutdated(ExtenderError):
    """The database schema is not the one this version needs. Run `gang-extender db migrate`."""


class NotReady(ExtenderError):
    """The call cannot be answered now: put the text into the `Error` field, kube-scheduler tries again."""


class NotLeading(ExtenderError):
    """This process does not hold the lease; answer "cannot answer now"."""


class ClusterUnavailable(ExtenderError):
    """The API server did not answer, or the last answer was 5xx or 429. Try again with back-off.

    `retry_after_s` is the Retry-After of the answer in seconds, 0 without one. `refused`: the request certainly had no
    effect (429, or it was not sent); otherwise it may have had one.
    """

    def __init__(self, *args: object, retry_after_s: float = 0.0, refused: bool = False) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s
        self.refused = refused


class NotificationFailed(ExtenderError):
    """The receiver did not accept a notification, or did not answer. Send it again later.

    `retry_after_s` is the Retry-After of the answer in seconds, 0 without one.
    """

    def __init__(self, *args: object, retry_after_s: float = 0.0) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s


class RequestRejected(ExtenderError):
    """The API server rejected a request for good (404, 409, 422); do not repeat it."""


class ClockAhead(ExtenderError):
    """The time of an event is ahead of the clock of the database: read that clock, and decide again."""


class InvariantBroken(ExtenderError):
    """An invariant of this program does not hold, which is a defect: log it, and give up what was begun."""


# Errors of the log and of the lease. They concern all objects: no part of the service takes them for a defect of the
# object that it works on, and they alone may end the process.
OF_LOG_AND_LEASE: Final = (
    StoreUnavailable, Fenced, HeadMoved, DuplicateEvent, LeaseHeld, CorruptLog, SchemaOutdated, NotLeading, ClockAhead,
)  # fmt: skip
