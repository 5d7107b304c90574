"""What a question may say, the same over HTTP and on the command line: names, types, texts."""

from __future__ import annotations

from typing import get_args

from extender.core.log.events import AnyEventData
from extender.core.model.errors import BadInput

NAME_MAX = 253  # characters of a name in Kubernetes
TEXT_MAX = 1024
FACT_NAMES = tuple(fact.__name__ for fact in get_args(AnyEventData))


def checked_text(text: str, field: str) -> str:
    """Refuse what cannot be any name or id.

    Raises:
        BadInput: Empty, too long, or as `storable`.
    """
    if not text:
        raise BadInput(f"{field}: is empty")
    if len(text) > TEXT_MAX:
        raise BadInput(f"{field}: {text[:40]!r}… has {len(text)} characters, {TEXT_MAX} at most")
    return storable(text, field)


def storable(text: str, field: str) -> str:
    """Refuse what PostgreSQL cannot hold in a text; it would look like a store that does not answer.

    Raises:
        BadInput: With a NUL character, or no Unicode.
    """
    if "\0" in text:
        raise BadInput(f"{field}: {text[:40]!r} contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{field}: {text[:40]!r} is no Unicode text") from error
    return text


def checked_name(text: str, field: str) -> str:
    """Refuse what cannot be the name of a namespace, a node or a group.

    Raises:
        BadInput: As `checked_text`; also for a slash, or more than 253 characters.
    """
    checked_text(text, field)
    if "/" in text or len(text) > NAME_MAX:
        raise BadInput(
            f"{field}: {text[:40]!r} is no name: no slash, {NAME_MAX} characters at most"
        )
    return text


def checked_path(text: str, field: str) -> str:
    """Refuse what cannot be a `namespace/name`.

    Raises:
        BadInput: As `checked_name`, for each half.
    """
    namespace, slash, name = checked_text(text, field).partition("/")
    if not (namespace and slash and name):
        raise BadInput(f"{field}: {text[:40]!r} is not NAMESPACE/NAME")
    checked_name(namespace, field)
    checked_name(name, field)
    return text


def checked_type(text: str, field: str) -> str:
    """Refuse what is no type of fact.

    Raises:
        BadInput: With all there are.
    """
    if text not in FACT_NAMES:
        raise BadInput(
            f"{field}: {text[:40]!r} is no type of fact; there are {', '.join(FACT_NAMES)}"
        )
    return text
