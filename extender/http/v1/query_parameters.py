"""Routes of handlers, whose query parameters are read as their operations describe them.

A value that is not valid raises `BadInput`, which names the parameter and its value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import parse_time
from extender.http.responses.json_responses import Handler
from extender.http.v1.openapi import MOMENT, NAME, PAIR, Operation, Parameter
from extender.queries.log.parameter_validation import (
    checked_choice,
    checked_name,
    checked_path,
    checked_text,
    storable,
)
from extender.queries.state.gang_selection import FORMS, PATTERN, parse_selector

POSITION_MAX = 2**62
LIMIT_MAX = 1000
# Values of query parameters by the names of the fields of queries; one that is absent and has no default is not there.
Query = dict[str, Any]
FIELDS = {
    "since": "since_us",
    "until": "until_us",
    "type": "types",
    "state": "states",
    "order": "newest_first",
    "labelSelector": "selector",
}


class Api:
    """Handlers of /v1: the methods that operations mark get the request and its `Query`."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return routes_of(self)


def routes_of(handlers: object) -> list[web.RouteDef]:
    """Return the routes of the methods that operations mark."""
    marked = (
        (method.operation, getattr(handlers, name))
        for name, method in vars(type(handlers)).items()
        if hasattr(method, "operation")
    )
    return [
        web.route(operation.method.upper(), operation.path, _reading(operation, handler))
        for operation, handler in marked
    ]


def _reading(
    operation: Operation, handler: Callable[[web.Request, Query], Awaitable[web.StreamResponse]]
) -> Handler:
    async def read(request: web.Request) -> web.StreamResponse:
        return await handler(request, query_of(request, operation))

    return read


def query_of(request: web.Request, operation: Operation) -> Query:
    """Return the query parameters of a request."""
    parameters = {p.name: p for p in operation.parameters if p.where == "query"}
    for name, text in request.query.items():
        if name not in parameters:
            names = ", ".join(sorted(parameters))
            valid = f"there are {names}" if names else "there are none here"
            raise BadInput(f"query parameter {name[:40]}: not known; {valid}")
        if not parameters[name].repeatable and len(request.query.getall(name)) > 1:
            raise BadInput(f"query parameter {name}: given more than once; it has one value")
        storable(text, field(name))
    query: Query = {}
    for name, parameter in parameters.items():
        default = [str(parameter.schema["default"])] if "default" in parameter.schema else []
        values = tuple(_value(parameter, text) for text in request.query.getall(name, default))
        if values:
            query[FIELDS.get(name, name)] = values if parameter.repeatable else values[0]
    return query


def _value(parameter: Parameter, text: str) -> object:
    """Return a value as its schema describes it; a text that a handler examines as it is."""
    subject = field(parameter.name)
    match parameter.schema:
        case {"type": "string", "format": "date-time"}:
            return parse_time(text, subject)
        case {"minimum": least, "maximum": most}:
            return whole(text, subject, least=least, most=most)
        case {"type": "boolean"}:
            return _flag(text, subject)
        case {"enum": ["oldest", "newest"]}:
            if text not in ("oldest", "newest"):
                raise BadInput(f"{subject}: {text[:40]!r} is neither oldest nor newest")
            return text == "newest"
        case {"enum": choices}:
            noun = "event type" if parameter.name == "type" else parameter.name
            return checked_choice(text, choices, subject, noun)
        case {"pattern": pattern} if pattern == PATTERN:
            if not text.strip():
                raise BadInput(f"{subject}: is empty; leave it out to select all labels")
            return parse_selector(text, subject)
    if parameter.schema == NAME:
        return checked_name(text, subject)
    return checked_text(text, subject) if parameter.schema in (MOMENT, PAIR) else text


def field(name: str) -> str:
    """Return the name of a parameter in messages."""
    return f"query parameter {name}"


def selection_parameters(
    states: tuple[str, ...], *, namespace: str, state: str, labels: str
) -> tuple[Parameter, ...]:
    """Return the parameters of a list that has a `GangSelection`."""
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


def gang_named(request: web.Request) -> str:
    """Return the `namespace/name` of the path."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    return checked_path(f"{namespace}/{name}", "gang")


def whole(text: str, subject: str, *, least: int = 0, most: int) -> int:
    """Return a text as a whole number from `least` to `most`."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not least <= int(text) <= most:
        raise BadInput(f"{subject}: {text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


def _flag(text: str, subject: str) -> bool:
    """Return a boolean parameter; one without a value is true."""
    if text not in ("", "true", "false"):
        raise BadInput(f"{subject}: {text[:40]!r} is neither true nor false")
    return text != "false"


async def find_paths(query: Query, **finders: Callable[[str], Awaitable[str]]) -> None:
    """Replace names of a query by the `namespace/name` that they mean.

    A name alone is that in the namespace of the query, if it has one.

    Args:
        query: Query parameters; `namespace` is that of a name without one.
        finders: By parameter: finds the `namespace/name` that a name without a namespace means.
    """
    for name, of_name in finders.items():
        text = query.get(name)
        if text is None:
            continue
        if "/" in text:
            checked_path(text, field(name))
        else:
            alone, namespace = checked_name(text, field(name)), query.get("namespace", "")
            query[name] = f"{namespace}/{alone}" if namespace else await of_name(alone)
