"""Validation of names, event types and texts in queries, for HTTP and the command line: the text, or `BadInput` with what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import get_args

from extender.core.log.events import AnyEventData
from extender.core.model.errors import BadInput

NAME_MAX = 253  # characters of a name in Kubernetes
TEXT_MAX = 1024
EVENT_TYPE_NAMES = tuple(data.__name__ for data in get_args(AnyEventData))


def checked_text(text: str, field: str) -> str:
    """Return a text that can be a name or an id."""
    if not text:
        raise BadInput(f"{field}: is empty")
    if len(text) > TEXT_MAX:
        raise BadInput(f"{field}: {text[:40]!r}… has {len(text)} characters, {TEXT_MAX} at most")
    return storable(text, field)


def storable(text: str, field: str) -> str:
    """Return a text that PostgreSQL can store; another one would look like a failed database."""
    if "\0" in text:
        raise BadInput(f"{field}: {text[:40]!r} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{field}: {text[:40]!r} is not Unicode text") from error
    return text


def checked_name(text: str, field: str) -> str:
    """Return a text that can be the name of a namespace, a node or a group."""
    checked_text(text, field)
    if "/" in text or len(text) > NAME_MAX:
        raise BadInput(
            f"{field}: {text[:40]!r} is not a name: no slash, {NAME_MAX} characters at most"
        )
    return text


def checked_path(text: str, field: str) -> str:
    """Return a text that can be a `namespace/name`."""
    namespace, slash, name = checked_text(text, field).partition("/")
    if not (namespace and slash and name):
        raise BadInput(f"{field}: {text[:40]!r} is not NAMESPACE/NAME")
    checked_name(namespace, field)
    checked_name(name, field)
    return text


def checked_type(text: str, field: str) -> str:
    """Return a text that is an event type."""
    return checked_choice(text, EVENT_TYPE_NAMES, field, "event type")


def checked_choice(text: str, choices: Sequence[str], field: str, noun: str) -> str:
    """Return a text that is one of several."""
    if text in choices:
        return text
    article = "an" if noun[0] in "aeiou" else "a"
    similar = get_close_matches(text.lower(), choices, 1) or get_close_matches(text, choices, 1)
    meant = f"did you mean {similar[0]}? " if similar else ""
    raise BadInput(
        f"{field}: {text[:40]!r} is not {article} {noun}; {meant}there are {', '.join(choices)}"
    )
