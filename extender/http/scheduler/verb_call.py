"""One call of kube-scheduler and its answer, whichever way its bytes have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from aiohttp import web

from extender.http.responses.unsent_answers import SentResponse

Verb = Literal["filter", "prioritize", "preempt", "bind"]
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class VerbCall(NamedTuple):
    """A call whose body has arrived within its limits."""

    verb: Verb
    body: bytes
    closed: Callable[[], bool]  # whether the caller has closed its connection
    forwarded: bool = False  # by another replica
    waited_ms: int = 0  # at that replica


class VerbAnswer(NamedTuple):
    """The response to a call."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = {}

    def response(self) -> web.Response:
        """Return it as a response of aiohttp."""
        headers = {"Content-Type": self.content_type, **self.headers}
        return SentResponse(status=self.status, body=self.body, headers=headers)


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> VerbAnswer:
    """Return an answer of one line of text."""
    return VerbAnswer(f"{text}\n".encode(), status, TEXT, headers or {})
