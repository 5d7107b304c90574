"""The middleware that lets a request through to its handler only with the right of its route.

Note: it comes before the limits of `request_limits`, so a body is read only of a caller that may send it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.core.model.errors import AccessUnknown, ExtenderError, Forbidden, Unauthenticated
from extender.core.model.visibility import Visibility
from extender.http.access.review_cache import ReviewCache
from extender.http.listener.connection_limits import ConnectionLimits
from extender.http.responses.json_responses import Handler
from extender.http.responses.request_visibility import CALLER, VISIBILITY, body_of
from extender.http.web.request_limits import is_stream
from extender.ports.access_ports import AUDIENCE, AccessRight, Caller
from extender.telemetry import METRICS

log = logging.getLogger(__name__)


class RouteRight(Enum):
    """What a caller needs for a route."""

    OPEN = "nothing: it shows no data of the cluster"
    CERTIFICATE = "a client certificate: the verbs, which the listener checks"
    IDENTITY = "a valid token"
    NAMESPACE = "get podgroups in the namespace of the path"
    ANY_NAMESPACE = "list podgroups in all namespaces, or in some: the answer shows those"
    ALL_NAMESPACES = "list podgroups in all namespaces: the answer names objects of all"
    PLAN = "create podgroups in all namespaces, or in those of the plan"
    METRICS = "get the path /metrics"
    MOVE = "post to the path /v1/moves/apply, and list podgroups in all namespaces: it evicts pods of all"


# By the path of the route, as the application has it.
RIGHTS: Final[Mapping[str, RouteRight]] = {
    "/": RouteRight.OPEN,
    "/livez": RouteRight.OPEN,
    "/readyz": RouteRight.OPEN,
    "/ui": RouteRight.OPEN,
    "/ui/{path}": RouteRight.OPEN,
    "/metrics": RouteRight.METRICS,
    "/scheduler/filter": RouteRight.CERTIFICATE,
    "/scheduler/prioritize": RouteRight.CERTIFICATE,
    "/scheduler/preempt": RouteRight.CERTIFICATE,
    "/scheduler/bind": RouteRight.CERTIFICATE,
    "/scheduler/status": RouteRight.CERTIFICATE,
    "/scheduler/moves/apply": RouteRight.MOVE,
    "/scheduler/moves/control": RouteRight.MOVE,
    "/v1/decisions/{id}": RouteRight.ANY_NAMESPACE,
    "/v1/decisions/{id}/input": RouteRight.ALL_NAMESPACES,
    "/v1/events": RouteRight.ANY_NAMESPACE,
    "/v1/explain": RouteRight.ANY_NAMESPACE,
    "/v1/gangs": RouteRight.ANY_NAMESPACE,
    "/v1/gangs/{namespace}/{name}": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/explain": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/history": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/tree": RouteRight.NAMESPACE,
    "/v1/moves": RouteRight.ALL_NAMESPACES,
    "/v1/moves/apply": RouteRight.MOVE,
    "/v1/moves/control": RouteRight.MOVE,
    "/v1/nodes": RouteRight.ANY_NAMESPACE,
    "/v1/nodes/{name}": RouteRight.ANY_NAMESPACE,
    "/v1/openapi.json": RouteRight.IDENTITY,
    "/v1/plan": RouteRight.PLAN,
    "/v1/preemptions": RouteRight.ANY_NAMESPACE,
    "/v1/readiness": RouteRight.ANY_NAMESPACE,
    "/v1/reports": RouteRight.IDENTITY,
    "/v1/reports/{name}": RouteRight.ANY_NAMESPACE,
    "/v1/search": RouteRight.ANY_NAMESPACE,
    "/v1/state": RouteRight.ANY_NAMESPACE,
    "/v1/status": RouteRight.ANY_NAMESPACE,
    "/v1/trees": RouteRight.ANY_NAMESPACE,
}

STREAM_RECHECK_S: Final = 5.0
STREAM_UNKNOWN_S: Final = 30.0  # a stream ends after so long without an answer about its rights
FREE: Final = (RouteRight.OPEN, RouteRight.CERTIFICATE)
NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
IN_BODY: Final = re.compile(
    rb"""(?:\bnamespace["']?\s*:\s*["']?|PodGroup/)([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)"""
)
BODY_READ_MAX: Final = 1 << 20  # bytes; a plan query about the live cluster has no more
BODY_PART: Final = 1 << 16  # bytes that are searched at once: about a millisecond
# a name that begins in a part, with what stands in front of it, ends within so many bytes
BODY_OVERLAP: Final = 128
BODY_NAMES_MAX: Final = 16
PLANNER: Final = web.RequestKey("planner", Caller)
OPERATOR: Final = "gang-extender-operator"
AUDITOR: Final = "gang-extender-auditor"
MOVER: Final = "gang-extender-mover"
MOVING: Final = "/v1/moves/apply"  # the path of the right to move pods
VIEWER: Final = "gang-extender-viewer"
ACCOUNT: Final = "system:serviceaccount:"
HOW: Final = (
    f"send the header `Authorization: Bearer TOKEN`; `kubectl create token NAME --audience {AUDIENCE}` makes a token "
    "of a ServiceAccount, and `gang-extender proxy` adds the token of a kubeconfig"
)


class AccessControl:
    """Checks the rights of requests.

    Args:
        namespaces: Returns the namespaces that have something to show.
        recheck_s: How often the rights of an open stream are checked.
    """

    def __init__(
        self,
        reviews: ReviewCache,
        namespaces: Callable[[], Iterable[str]],
        connections: ConnectionLimits,
        *,
        recheck_s: float = STREAM_RECHECK_S,
    ) -> None:
        self._reviews = reviews
        self._existing_namespaces = namespaces
        self._connections = connections
        self._recheck_s = recheck_s

    def middleware(self) -> Middleware:
        """Return the middleware."""

        @web.middleware
        async def with_rights(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            if resource is None:  # no such path or method
                return await handler(request)
            need = RIGHTS.get(resource.canonical)
            if need in FREE:
                return await handler(request)
            self._connections.begin(request.transport, reads=True)
            try:
                grant = await self._checked(request, need)
                request[VISIBILITY] = grant
                if is_stream(request):
                    return await self._while_granted(request, handler, need, grant)
                return await handler(request)
            finally:
                self._connections.end(request.transport)

        return with_rights

    def after_body(self) -> Middleware:
        """Return the middleware for plan queries of callers with rights in some namespaces; the body has been read.

        They see, and may plan in, the namespaces where they may create and list groups, of those that are known, unless these
        are too many, and those that the body may be about. The worker process refuses objects in other namespaces.
        """

        @web.middleware
        async def with_namespaces(request: web.Request, handler: Handler) -> web.StreamResponse:
            caller = request.get(PLANNER)
            if caller is not None:
                request[VISIBILITY] = await self._plannable(caller, body_of(request))
            return await handler(request)

        return with_namespaces

    async def _plannable(self, caller: Caller, body: bytes) -> Visibility:
        """Return the namespaces in which a caller may plan."""
        namespaces = set[str]()
        if not self._reviews.too_many(self._existing_namespaces):
            created = await self._reviews.namespaces(caller, "create", self._existing_namespaces)
            listed = await self._reviews.namespaces(caller, "list", self._existing_namespaces)
            namespaces |= created & listed
        for name in await _named_in(body) - namespaces:
            rights = (AccessRight("create", name), AccessRight("list", name))
            if all([await self._reviews.may(caller, right) for right in rights]):
                namespaces.add(name)
        if not namespaces:
            METRICS.http_access.labels("forbidden").inc()
            raise Forbidden(refusal(caller, AccessRight("create"), OPERATOR, "NAMESPACE"))
        return Visibility.of(namespaces)

    async def _checked(self, request: web.Request, need: RouteRight | None) -> Visibility:
        """Return what the caller of a request may see, and count the outcome."""
        outcome = "unknown"
        try:
            grant = await self._grant(request, need)
            outcome = "allowed"
        except (Unauthenticated, Forbidden) as refused:
            outcome = type(refused).__name__.lower()
            raise
        finally:
            METRICS.http_access.labels(outcome).inc()
        return grant

    async def _grant(self, request: web.Request, need: RouteRight | None) -> Visibility:
        caller = request[CALLER] = await self._caller(request)
        match need:
            case RouteRight.IDENTITY:
                return Visibility.of(())
            case RouteRight.METRICS:
                await self._require(caller, AccessRight("get", path="/metrics"))
                return Visibility.of(())
            case RouteRight.ALL_NAMESPACES:
                await self._require(caller, AccessRight("list"), AUDITOR)
                return Visibility.all()
            case RouteRight.MOVE:
                await self._require(caller, AccessRight("post", path=MOVING), MOVER)
                await self._require(caller, AccessRight("list"), AUDITOR)
                return Visibility.all()
            case RouteRight.PLAN:
                if await self._reviews.may(caller, AccessRight("create")):
                    return await self._visible(caller)
                request[PLANNER] = caller  # the namespaces are in the body
                return Visibility.of(())
            case RouteRight.NAMESPACE:
                namespace = request.match_info["namespace"]
                return await self._readable(caller, "get", namespace)
            case RouteRight.ANY_NAMESPACE:
                return await self._readable(caller, "list", request.query.get("namespace", ""))
            case _:
                raise Forbidden(f"{request.path}: no right for this path is known")

    async def _caller(self, request: web.Request) -> Caller:
        """Return who sent a request."""
        given = request.headers.get("Authorization", "")
        if not given:
            raise Unauthenticated(f"the request has no token; {HOW}")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated(f"Authorization {scheme[:20]!r} is not a bearer token; {HOW}")
        caller = await self._reviews.caller(token.strip())
        if caller is None:
            raise Unauthenticated(
                f"the token is not valid here: it has expired, was revoked, or is for another audience; {HOW}"
            )
        return caller

    async def _require(self, caller: Caller, right: AccessRight, role: str = OPERATOR) -> None:
        """Raise Forbidden if a caller does not have a right that a ClusterRole gives."""
        if not await self._reviews.may(caller, right):
            raise Forbidden(refusal(caller, right, role))

    async def _visible(self, caller: Caller, named: str = "") -> Visibility:
        """Return what a caller may list: all namespaces, or those of the ones that have something to show.

        Args:
            named: The namespace that the request is about. In a large cluster the others are not looked for then, and are
                shown as those of strangers.
        """
        if await self._reviews.may(caller, AccessRight("list")):
            return Visibility.all()
        if named and self._reviews.too_many(self._existing_namespaces):
            return Visibility.of({named})
        return Visibility.of(
            await self._reviews.namespaces(caller, "list", self._existing_namespaces)
        )

    async def _readable(self, caller: Caller, verb: str, namespace: str) -> Visibility:
        """Return what a caller may see."""
        named = AccessRight(verb, namespace) if NAMESPACE.fullmatch(namespace) else None
        if named is not None and not await self._reviews.may(caller, named):
            raise Forbidden(refusal(caller, named, VIEWER))
        visible = await self._visible(caller, namespace if named is not None else "")
        if visible.everything:
            return visible
        if named is not None:
            return Visibility.of({*visible.namespaces, namespace})
        if not visible.namespaces:
            raise Forbidden(
                refusal(caller, AccessRight(verb), VIEWER, "NAMESPACE")
                + "; name a namespace without gangs with the query parameter namespace"
            )
        return visible

    async def _while_granted(
        self, request: web.Request, handler: Handler, need: RouteRight | None, grant: Visibility
    ) -> web.StreamResponse:
        """Return the answer of a stream; close its connection when the rights that it began with are gone."""
        work = asyncio.ensure_future(handler(request))
        clock = asyncio.get_running_loop().time
        known_s = clock()
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=self._recheck_s)
                if done:
                    return await work
                try:
                    now = await self._grant(request, need)
                    known_s = clock()
                    why = "" if _covers(now, grant) else "some of its namespaces"
                except AccessUnknown as error:
                    why = str(error) if clock() - known_s > STREAM_UNKNOWN_S else ""
                except ExtenderError as error:
                    why = str(error)
                if why:
                    METRICS.http_access.labels("ended").inc()
                    log.info("a stream ends: its right is gone", extra={"reason": why})
                    if request.transport is not None:
                        request.transport.close()
                    # not sent: the client connects again and is answered
                    return web.Response(status=403)
        finally:
            work.cancel()
            await asyncio.wait({work})


async def _named_in(body: bytes) -> set[str]:
    """Return the first names in a plan query that may be of namespaces, in JSON or in YAML, and the default one.

    Yields to the event loop between parts of the body.

    >>> text = b'{"workload": [{"metadata": {"namespace": "a"}}], "manifest": "metadata: {namespace: b}"}'
    >>> sorted(asyncio.run(_named_in(text)))
    ['a', 'b', 'default']
    """
    names = {"default"}
    for begin in range(0, min(len(body), BODY_READ_MAX), BODY_PART):
        for match in IN_BODY.finditer(body, begin, begin + BODY_PART + BODY_OVERLAP):
            names.add(match[1].decode())
            if len(names) >= BODY_NAMES_MAX:
                return names
        await asyncio.sleep(0)
    return names


def _covers(now: Visibility, before: Visibility) -> bool:
    """Return whether all that a caller saw is still to be seen."""
    return now.everything or (not before.everything and now.namespaces >= before.namespaces)


def refusal(caller: Caller, right: AccessRight, role: str, namespace: str = "") -> str:
    """Return the sentence about a right that is missing, with the command that gives it.

    Args:
        caller: Who does not have it.
        namespace: Where to give it when the right is for all namespaces; empty: in all.
    >>> refusal(Caller(user="ann"), AccessRight("list", "team-a"), "gang-extender-viewer")
    "user 'ann' may not list podgroups.gang-extender.dev in namespace team-a; an administrator gives the right with: kubectl create rolebinding gang-extender-viewer-ann --clusterrole=gang-extender-viewer --user=ann --namespace=team-a"
    """
    where = right.namespace or namespace
    subject = f"--user={shlex.quote(caller.user)}"
    account, _, name = caller.user.removeprefix(ACCOUNT).partition(":")
    if caller.user.startswith(ACCOUNT) and name:
        subject = f"--serviceaccount={account}:{name}"
    slug = re.sub(r"[^a-z0-9]+", "-", caller.user.lower()).strip("-")[-60:]
    kind = "rolebinding" if where else "clusterrolebinding"
    command = f"kubectl create {kind} {role}-{slug} --clusterrole={role} {subject}"
    if where:
        command += f" --namespace={where}"
    some = " and in none of its namespaces" if namespace else ""
    return f"user {caller.user!r} may not {right}{some}; an administrator gives the right with: {command}"
