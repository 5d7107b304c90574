"""Reading what is asked: query parameters become values, and what is not known or no such value is named."""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web
from multidict import MultiMapping

from extender.core.model.errors import BadInput
from extender.queries.log.event_dto import parse_time
from extender.queries.log.parameter_validation import (
    checked_name,
    checked_path,
    checked_type,
    storable,
)

POSITION_MAX = 2**62
LIMIT_MAX = 1000


def known(
    request: web.Request, names: Collection[str], *, repeatable: Collection[str] = ()
) -> MultiMapping[str]:
    """Give the parameters of a question; one that is not known, or is given twice, is an error, not silence.

    Raises:
        BadInput: Names the parameter.
    """
    for name, text in request.query.items():
        if name not in names:
            known_ones = f"there are {', '.join(sorted(names))}" if names else "there are none here"
            raise BadInput(f"query parameter {name[:40]}: not known; {known_ones}")
        if name not in repeatable and len(request.query.getall(name)) > 1:
            raise BadInput(f"query parameter {name}: given more than once; it has one value")
        storable(text, field(name))
    return request.query


def field(name: str) -> str:
    """Name a parameter in messages."""
    return f"query parameter {name}"


def gang_named(request: web.Request) -> str:
    """Give the `namespace/name` of the path.

    Raises:
        BadInput: It is no such name.
    """
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    return checked_path(f"{namespace}/{name}", "gang")


def number(query: MultiMapping[str], name: str, default: int, *, least: int = 0, most: int) -> int:
    """Read a whole number.

    Raises:
        BadInput: It is not one, or too small or large.
    """
    return whole(query.get(name, str(default)), field(name), least=least, most=most)


def whole(text: str, what: str, *, least: int = 0, most: int) -> int:
    """Read a whole number; see `number`."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not least <= int(text) <= most:
        raise BadInput(f"{what}: {text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


def flag(query: MultiMapping[str], name: str) -> bool:
    """Read a yes or no; a parameter without a value is a yes.

    Raises:
        BadInput: It is neither.
    """
    text = query.get(name, "false")
    if text not in ("", "true", "false"):
        raise BadInput(f"{field(name)}: {text[:40]!r} is neither true nor false")
    return text != "false"


def moment(query: MultiMapping[str], name: str) -> int | None:
    """Read a time: microseconds since the epoch; None where it is not given.

    Raises:
        BadInput: It is not one.
    """
    return parse_time(query[name], field(name)) if name in query else None


def name_in(query: MultiMapping[str], name: str) -> str:
    """Read the name of a namespace or a node; empty where it is not given.

    Raises:
        BadInput: It cannot be one.
    """
    return checked_name(query[name], field(name)) if name in query else ""


def path_in(query: MultiMapping[str], name: str) -> str:
    """Read a `namespace/name`; empty where it is not given.

    Raises:
        BadInput: It cannot be one.
    """
    return checked_path(query[name], field(name)) if name in query else ""


def types_in(query: MultiMapping[str], name: str) -> tuple[str, ...]:
    """Read types of facts.

    Raises:
        BadInput: There is no such type.
    """
    return tuple(checked_type(text, field(name)) for text in query.getall(name, []))
