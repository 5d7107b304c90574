"""The operations of /v1, and their OpenAPI 3.1 document.

An operation marks its handler; route, query parameters and document are made from it (`query_parameters`). Schemas come from
the structs that are encoded, so they cannot differ from the answers; a test compares the operations with the routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, TypeVar, get_args

import msgspec

from extender import __version__
from extender.core.log.events import AnyEventData
from extender.http.responses.json_responses import ProblemDetails
from extender.queries.log.event_dto import EventLine
from extender.queries.log.gang_history import HistoryLine
from extender.queries.log.parameter_validation import EVENT_TYPE_NAMES

Json = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
EVENT_TYPES: tuple[type, ...] = get_args(AnyEventData)
REFERENCE = "#/components/schemas/{name}"
PROBLEM_CODES: Mapping[int, str] = {
    400: "A parameter or the body is invalid; `detail` names object, field and value",
    401: "There is no valid bearer token (where the service has authentication)",
    403: "The user does not have the right; `detail` has the command that gives it (where the service has authentication). Or, on a listener without TLS, Host or Origin are not those of the service",
    404: "There is no such object",
    409: "The log ends before that position: part of it was lost, or it is another log",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body has a Content-Encoding, or is not application/json",
    503: "The event store does not answer, there are too many queries, or rights cannot be checked; try again",
}
ACCESS_CODES = (401, 403, 503)  # of every operation
POSITION_HEADER = {
    "description": "Position of the log as of which the answer is",
    "schema": {"type": "integer", "minimum": 0},
}
TEXT = {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\u0000]+$"}
NAME = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[^\\u0000/]+$"}
PATH_OR_NAME = {"type": "string", "maxLength": 1024, "pattern": "^([^\\u0000/]+/)?[^\\u0000/]+$"}
MOMENT = {  # a time, or a position
    "anyOf": [
        {"type": "string", "format": "date-time", "maxLength": 1024},
        {"type": "string", "pattern": "^[0-9]{1,18}$"},
    ],
    "example": "2026-11-20T03:12:00Z",
}
PAIR = {
    "type": "string",
    "minLength": 3,
    "maxLength": 1024,
    "pattern": "^[^\\u0000=]+=[^\\u0000]+$",
}
TIME = {"type": "string", "format": "date-time", "example": "2026-11-20T03:12:00Z"}


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of an operation."""

    name: str
    about: str
    schema: Json
    where: Literal["query", "path", "header"] = "query"
    repeatable: bool = False  # may be given several times; one of the values must match
    required: bool = False  # a query parameter without default

    def described(self) -> Json:
        """Return the OpenAPI parameter object."""
        schema = {"type": "array", "items": self.schema} if self.repeatable else self.schema
        parameter: Json = {
            "name": self.name,
            "in": self.where,
            "description": self.about,
            "required": self.where == "path" or self.required,
            "schema": schema,
        }
        if self.repeatable:
            parameter |= {"style": "form", "explode": True}
        return parameter


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path under /v1."""

    path: str  # in the form of aiohttp: /v1/gangs/{namespace}/{name}
    about: str  # one sentence
    answer: Any  # type of a 200 answer, a struct or a list of them
    otherwise: Any = None  # type of another 200 answer on the same path
    method: Literal["get", "post"] = "get"
    parameters: tuple[Parameter, ...] = ()
    body: Any = None  # type of the request body, if any
    problems: tuple[int, ...] = (400, 503)  # statuses with an application/problem+json body
    streams: bool = False  # with `follow`, answers with server-sent events
    positioned: bool = True  # has the header X-Log-Position
    tagged: bool = False  # has an ETag and can answer 304

    @property
    def name(self) -> str:
        """Return the operation id: the method and the parts of the path."""
        parts = (p.strip("{}").removesuffix(".json") for p in self.path.split("/")[2:])
        return "_".join((self.method, *parts))

    def handler(self, method: F) -> F:
        """Return a method, marked as a handler of the operation."""
        method.__dict__["operation"] = self
        return method


NAMESPACE = Parameter(
    name="namespace", about="Namespace of the root group", schema=NAME, where="path"
)
GANG_NAME = Parameter(name="name", about="Name of the root group", schema=NAME, where="path")
ORDER = Parameter(
    name="order",
    about="Oldest first, or newest",
    schema={"type": "string", "enum": ["oldest", "newest"], "default": "oldest"},
)


# Links of answers to further questions: path -> operation and parameters (OpenAPI 3.1, 4.8.20)
_POSITION = {"at": "$response.header.X-Log-Position"}
_GANG = "$response.body#/0/gang"
LINKS: dict[str, dict[str, Json]] = {
    "/v1/gangs": {
        "get_events": {"gang": _GANG},
        "get_explain": {"name": _GANG},
        "get_state": _POSITION,
    },
    "/v1/nodes": {"get_nodes_name": {"name": "$response.body#/nodes/0/node"}},
    "/v1/events": {"get_decisions_id": {"id": "$response.body#/0/position"}},
}


def document(operations: Sequence[Operation]) -> Json:
    """Return the OpenAPI document of these operations."""
    references, components = _schemas(operations)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gang-extender",
            "version": __version__,
            "description": "Queries of the event log and of the current state of gang-extender. "
            "Answers under /v1 keep their fields; new ones may be added. A caller with rights in some namespaces gets the "
            "objects of these namespaces; where an object of another namespace explains what happened to one of them, its "
            "kind, priority, number of pods and log position stand in place of its name, and its UID and node are empty. "
            "An object that the caller does not see is answered as one that does not exist.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation, references: Mapping[Any, Json]) -> Json:
    headers = {"X-Log-Position": POSITION_HEADER} if operation.positioned else {}
    kinds = [t for t in (operation.answer, operation.otherwise) if t is not None]
    schemas = [references[kind] for kind in kinds]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    content: Json = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Json] = {
        "200": {"description": operation.about, "headers": headers, "content": content}
    }
    if operation.path in LINKS:
        responses["200"]["links"] = {
            target: {"operationId": target, "parameters": parameters}
            for target, parameters in LINKS[operation.path].items()
        }
    if operation.tagged:
        responses["304"] = {"description": "The client has the current answer (If-None-Match)"}
    problem = {"application/problem+json": {"schema": references[ProblemDetails]}}
    # a request line or header over 8,190 bytes
    long = {"text/plain": {"schema": {"type": "string"}}}
    for code in sorted({*operation.problems, *ACCESS_CODES}):
        responses[str(code)] = {
            "description": PROBLEM_CODES[code],
            "content": problem | (long if code == HTTPStatus.BAD_REQUEST else {}),
        }
    described: Json = {
        "operationId": operation.name,
        "summary": operation.about,
        "parameters": [parameter.described() for parameter in operation.parameters],
        "responses": responses,
    }
    if operation.body is not None:
        schema = references[operation.body]
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _schemas(operations: Sequence[Operation]) -> tuple[Mapping[Any, Json], Json]:
    """Return the schema of each type of the operations, and the components that these refer to."""
    kinds = [t for o in operations for t in (o.answer, o.otherwise, o.body) if t is not None]
    types = [*dict.fromkeys((*kinds, ProblemDetails))]
    schemas, components = msgspec.json.schema_components(
        [*types, *EVENT_TYPES], ref_template=REFERENCE, schema_hook=_hook
    )
    data = {"anyOf": [{"$ref": REFERENCE.format(name=name)} for name in EVENT_TYPE_NAMES]}
    for name in (EventLine.__name__, HistoryLine.__name__):
        components[name]["properties"]["data"] = data
    return dict(zip(types, schemas[: len(types)], strict=True)), components


def _hook(kind: type) -> Json:
    if kind is msgspec.Raw:
        return {}
    raise NotImplementedError(f"no schema for {kind}")
