"""Parse query parameters; a value that is not valid raises `BadInput`, which names the parameter and its value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from multidict import MultiMapping

from extender.core.model.errors import BadInput
from extender.http.v1.openapi import NAME, Parameter
from extender.queries.log.event_dto import parse_time
from extender.queries.log.parameter_validation import (
    checked_name,
    checked_path,
    checked_type,
    storable,
)
from extender.queries.state.gang_selection import (
    FORMS,
    PATTERN,
    GangSelection,
    LabelSelector,
    checked_states,
    parse_selector,
)

SELECTION = frozenset({"namespace", "state", "labelSelector"})
POSITION_MAX = 2**62
LIMIT_MAX = 1000


def known(
    request: web.Request, names: Collection[str], *, repeatable: Collection[str] = ()
) -> MultiMapping[str]:
    """Return the query parameters of a request."""
    for name, text in request.query.items():
        if name not in names:
            valid = f"there are {', '.join(sorted(names))}" if names else "there are none here"
            raise BadInput(f"query parameter {name[:40]}: not known; {valid}")
        if name not in repeatable and len(request.query.getall(name)) > 1:
            raise BadInput(f"query parameter {name}: given more than once; it has one value")
        storable(text, field(name))
    return request.query


def field(name: str) -> str:
    """Return the name of a parameter in messages."""
    return f"query parameter {name}"


def selection_parameters(
    states: tuple[str, ...], *, namespace: str, state: str, labels: str
) -> tuple[Parameter, ...]:
    """Return the parameters of a list that `selection_in` reads."""
    return (
        Parameter(name="namespace", about=f"Only {namespace} of this namespace", schema=NAME),
        Parameter(
            name="state",
            about=f"Only {state}",
            schema={"type": "string", "enum": list(states)},
            repeatable=True,
        ),
        Parameter(
            name="labelSelector",
            about=f"Only those with these labels, {labels}; requirements with commas between them: {FORMS}",
            schema={
                "type": "string",
                "maxLength": 4096,
                "pattern": PATTERN,
                "example": "team=a,tier in (web,batch),!canary",
            },
        ),
    )


def selection_in(request: web.Request, states: tuple[str, ...]) -> GangSelection:
    """Return which gangs or trees are requested by namespace, state and labels."""
    query = known(request, SELECTION, repeatable={"state"})
    return GangSelection(
        namespace=name_in(query, "namespace"),
        states=checked_states(query.getall("state", []), states, field("state")),
        selector=_selector_in(query),
    )


def _selector_in(query: MultiMapping[str]) -> LabelSelector:
    """Return the label selector of a query; without one it selects everything."""
    name = field("labelSelector")
    if "labelSelector" not in query:
        return ()
    if not query["labelSelector"].strip():
        raise BadInput(f"{name}: is empty; leave it out to select all labels")
    return parse_selector(query["labelSelector"], name)


def gang_named(request: web.Request) -> str:
    """Return the `namespace/name` of the path."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    return checked_path(f"{namespace}/{name}", "gang")


def number(query: MultiMapping[str], name: str, default: int, *, least: int = 0, most: int) -> int:
    """Return a parameter as a whole number from `least` to `most`."""
    return whole(query.get(name, str(default)), field(name), least=least, most=most)


def whole(text: str, subject: str, *, least: int = 0, most: int) -> int:
    """Return a text as a whole number from `least` to `most`."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not least <= int(text) <= most:
        raise BadInput(f"{subject}: {text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


def flag(query: MultiMapping[str], name: str) -> bool:
    """Return a boolean parameter; one without a value is true."""
    text = query.get(name, "false")
    if text not in ("", "true", "false"):
        raise BadInput(f"{field(name)}: {text[:40]!r} is neither true nor false")
    return text != "false"


def newest_first(query: MultiMapping[str]) -> bool:
    """Return whether `order` is `newest`; the default is `oldest`."""
    text = query.get("order", "oldest")
    if text not in ("oldest", "newest"):
        raise BadInput(f"{field('order')}: {text[:40]!r} is neither oldest nor newest")
    return text == "newest"


def time_in(query: MultiMapping[str], name: str) -> int | None:
    """Return a time as microseconds since the epoch, or None where it is not given."""
    return parse_time(query[name], field(name)) if name in query else None


def name_in(query: MultiMapping[str], name: str) -> str:
    """Return the name of a namespace or a node, or an empty string where it is not given."""
    return checked_name(query[name], field(name)) if name in query else ""


async def path_in(
    query: MultiMapping[str], name: str, of_name: Callable[[str], Awaitable[str]]
) -> str:
    """Return a `namespace/name`, or an empty string where it is not given.

    A name alone is that in the namespace of the query, if it has one.

    Args:
        query: Query parameters; `namespace` is that of a name without one.
        of_name: Finds the `namespace/name` that a name without a namespace means.
    """
    if name not in query:
        return ""
    if "/" in query[name]:
        return checked_path(query[name], field(name))
    alone, namespace = checked_name(query[name], field(name)), name_in(query, "namespace")
    return f"{namespace}/{alone}" if namespace else await of_name(alone)


def types_in(query: MultiMapping[str], name: str) -> tuple[str, ...]:
    """Return event types."""
    return tuple(checked_type(text, field(name)) for text in query.getall(name, []))
