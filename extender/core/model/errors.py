"""Every fault that has a name; the docstring tells whoever catches it what to do."""

from __future__ import annotations


class ExtenderError(Exception):
    """Something of ours went wrong; see the subclass."""


class BadInput(ExtenderError):
    """What a person or another program gave us cannot be used: show the message, answer 4xx or exit 2."""


class NotFound(BadInput):
    """Nothing goes by the name that was asked for, and nothing ever did: show the message, answer 404 or exit 1."""


class PositionGone(BadInput):
    """The log does not reach where the asker has been: begin anew from where it ends now, answer 409."""


class TooManyQueries(ExtenderError):
    """Too much is asked at once; answer 503, the asker tries again."""


class QueryUnavailable(ExtenderError):
    """Who answers questions is not there just now; answer 503, the asker tries again."""


class BadQuantity(BadInput):
    """A resource quantity is not one Kubernetes would accept."""


class StoreUnavailable(ExtenderError):
    """Postgres did not answer; the outcome of a write is unknown. Promise nothing, try again later."""


class Fenced(ExtenderError):
    """A later epoch (or another lease) has taken the log over. Nothing was written; stop leading."""


class HeadMoved(ExtenderError):
    """The log does not end where this writer left it. Nothing was written; re-read and take the lease again."""


class DuplicateEvent(ExtenderError):
    """An event id is in the log already. Nothing was written; look the ids up and append only the missing ones."""


class LeaseHeld(ExtenderError):
    """Somebody else holds an unexpired lease. Follow, write nothing, try again after it expires."""


class CorruptLog(ExtenderError):
    """The log breaks its own rules (gap, broken chain, unknown fact). Stop; never skip over it."""


class SchemaOutdated(ExtenderError):
    """The database schema is not the one this version needs. Run `gang-extender migrate`."""


class NotReady(ExtenderError):
    """Not now: the text goes into the `Error` field, kube-scheduler tries again by itself."""


class NotLeading(ExtenderError):
    """This process does not hold the lease; answer "cannot answer now"."""


class ClusterUnavailable(ExtenderError):
    """The API server did not answer or answered 5xx/429 to the last try. Try again with back-off.

    `retry_after_s` is how long it asked to be left alone, 0 when it did not say. `refused`: nothing was done for
    certain (429, or not sent); otherwise an effect may have been had.
    """

    def __init__(self, *args: object, retry_after_s: float = 0.0, refused: bool = False) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s
        self.refused = refused


class RequestRejected(ExtenderError):
    """The API server refused a Binding for good (404, 409, 422); the pod will not be bound by trying again."""


class InvariantBroken(ExtenderError):
    """Our own rules do not hold. A defect: log it, crash rather than go on."""
