"""Send requests to one API server with bounded connections, timeouts and retries.

kubernetes-asyncio finds the configuration (kubeconfig or in-cluster), the credentials and the TLS
settings; `load_configuration` checks them. Answers are decoded elsewhere with msgspec. Owns timeouts, retries
and the mapping of errors to our exceptions. It must not interpret bodies.

Note: there are two sessions, because watches stay open for minutes and would occupy the connections of
the calls. Calls have only 24 connections: of 1,000 concurrent patches 632 got status 429, of 24 none.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from http import HTTPStatus
from http.client import responses
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import yaml
from aiohttp.abc import AbstractStreamWriter

from extender.cluster.connection.kept_connections import KeptConnections
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.settings import API_REQUESTS_MAX

PACKAGE = "kubernetes_asyncio"
CLIENT = f"{PACKAGE}.client"


def _import_parts() -> tuple[Any, ModuleType]:
    """Return the configuration and its loaders without the models, from the whole package if it is imported already."""
    if PACKAGE in sys.modules:
        return sys.modules[CLIENT].Configuration, importlib.import_module(f"{PACKAGE}.config")
    _empty_package(PACKAGE)
    client = _empty_package(CLIENT)
    try:
        configuration = importlib.import_module(f"{CLIENT}.configuration").Configuration
        # the loaders import both from the package; what uses the second is not called
        client.__dict__.update(Configuration=configuration, ApiClient=None)
        return configuration, importlib.import_module(f"{PACKAGE}.config")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def _empty_package(name: str) -> ModuleType:
    """Register a package that has the modules of the installed one but runs no `__init__`."""
    parent, _, last = name.rpartition(".")
    above = sys.modules.get(parent)
    spec = PathFinder.find_spec(name, above.__path__ if above is not None else None)
    if spec is None or spec.submodule_search_locations is None:
        msg = f"{name} is not installed"
        raise ImportError(msg, name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__package__ = name
    sys.modules[name] = package
    if above is not None:
        setattr(above, last, package)
    return package


if TYPE_CHECKING:
    from kubernetes_asyncio import config as kubernetes_config
    from kubernetes_asyncio.client import Configuration
else:
    Configuration, kubernetes_config = _import_parts()

logger = logging.getLogger(__name__)

CONFIGURATION_ERRORS = (kubernetes_config.ConfigException, OSError, ValueError)
# what the loader of kubernetes-asyncio 36 raises for a kubeconfig of other types, with an empty entry, or that is no YAML
MALFORMED = (*CONFIGURATION_ERRORS, TypeError, AttributeError, LookupError, AssertionError, yaml.YAMLError)  # fmt: skip
CONNECTIONS_MAX = API_REQUESTS_MAX
WATCHES_MAX = 64  # one per resource, about ten; the limit bounds a leak
CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0  # one try; a healthy API server answers in milliseconds
EFFECT_TIMEOUT_S = 5.0  # half a lease: a write sent during a lease must not arrive long after it
CALL_BUDGET_S = 15.0  # all tries and pauses of one call
TRIES_MAX = 5
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0
# an exec plugin is a process; a wrong credential must not start one for every call
RENEW_EVERY_S = 5.0
DEFAULT_KUBECONFIG = "~/.kube/config"
USER_AGENT = "gang-extender"
RETRIED = frozenset({408, 429})  # and 5xx
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON = "application/json"
KEPT = ("PATCH", "POST")  # methods of writes that are sent once, on kept connections
PATH_SAFE = "/:@!$&'()*+,;=~"  # RFC 3986, 3.3

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class ApiResponse(Exception):
    """The API server answered with 4xx; the caller in this package maps it to a fault."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class _Status(msgspec.Struct):
    """The body of an error response."""

    message: str = ""
    reason: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call; a call with `effect` is sent only while the fence allows it."""

    method: Method
    path: str
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = JSON
    effect: bool = False
    timeout_s: float = CALL_TIMEOUT_S
    budget_s: float = CALL_BUDGET_S
    tries_max: int = TRIES_MAX


def write_request(
    method: Method,
    path: str,
    body: object,
    content_type: str = JSON,
    *,
    query: Mapping[str, str] | None = None,
    tries_max: int = TRIES_MAX,
) -> Request:
    """Return a call with an effect, whose body is JSON."""
    return Request(
        method=method,
        path=path,
        query=query or {},
        body=msgspec.json.encode(body),
        content_type=content_type,
        effect=True,
        tries_max=tries_max,
    )


class _Trial(NamedTuple):
    """The result of sending a request once."""

    body: bytes | None
    problem: str = ""
    wait_s: float = 0.0  # Retry-After of the server
    refused: bool = False  # the server certainly did not execute the request


def _proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY), or None."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def check_files(kubeconfig: str | None) -> None:
    """Check that there is a file at one of the paths of a kubeconfig; None: the default file, or none in a pod."""
    if _in_pod(kubeconfig):
        return
    paths = (kubeconfig or DEFAULT_KUBECONFIG).split(os.pathsep)
    if not any(Path(path).expanduser().is_file() for path in paths):
        name = f"--kubeconfig {kubeconfig}" if kubeconfig else DEFAULT_KUBECONFIG
        msg = f"{name}: no such file; set --kubeconfig to a kubeconfig, or --cluster to manifests"
        raise BadInput(msg)


def _in_pod(kubeconfig: str | None) -> bool:
    """Return whether the configuration is that of the ServiceAccount of this pod."""
    return kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ


def configuration_source(kubeconfig: str | None) -> str:
    """Return for people where `load_configuration` finds the configuration."""
    if _in_pod(kubeconfig):
        return "the ServiceAccount of this pod"
    return f"kubeconfig {kubeconfig or DEFAULT_KUBECONFIG}"


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Load the address of the API server and the credentials for it.

    Args:
        kubeconfig: Path (or several, separated as in KUBECONFIG); None: the ServiceAccount of this
            pod, or outside of a cluster the default file.

    Raises:
        BadInput: A file is missing or malformed, or its server or tls-server-name cannot be used.
    """
    configuration = Configuration()
    check_files(kubeconfig)
    try:
        if _in_pod(kubeconfig):
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration
            )
        _check_server(configuration)
    except MALFORMED as problem:
        where = kubeconfig or "the ServiceAccount of this pod, or the default kubeconfig"
        text = str(problem)
        if not isinstance(problem, CONFIGURATION_ERRORS):
            text = f"it is malformed ({type(problem).__name__}: {text or 'a field is missing'})"
        raise BadInput(f"no usable Kubernetes configuration in {where}: {text}") from problem
    return configuration


def _check_server(configuration: Configuration) -> None:
    """Check what the loader takes over as it stands.

    Raises:
        ValueError: The field cannot be used.
    """
    address, name = urlsplit(configuration.host), configuration.tls_server_name
    if address.scheme not in ("http", "https") or not address.hostname:
        msg = f"cluster.server: {configuration.host!r} is not a URL such as https://10.0.0.1:6443"
        raise ValueError(msg)
    if address.username is not None:
        msg = f"cluster.server: a user before {address.hostname} is not supported; set users[].user"
        raise ValueError(msg)
    try:
        (name or "").encode("idna")
    except (AttributeError, UnicodeError) as problem:
        msg = f"cluster.tls-server-name: {name!r} is not a host name"
        raise ValueError(msg) from problem


class _Fenced(aiohttp.BytesPayload):
    """The body of a call with an effect: the fence is checked in the step that writes its bytes to the socket.

    The lease can end after the decision to send: while the call waits for a free connection, or while the process
    is stopped. Headers are sent together with the body, so without the body nothing is sent.
    """

    def __init__(self, body: bytes, fence: Callable[[], bool]) -> None:
        super().__init__(body)
        self._fence = fence

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Write the body if this process still holds the lease.

        Raises:
            ConnectionAbortedError: The lease is lost; nothing was written.
        """
        if not self._fence():
            raise ConnectionAbortedError("not the leader any more, not sent")
        await super().write_with_length(writer, content_length)


class ApiServer:
    """Calls and watches on one API server; use as an async context manager."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        fence: Callable[[], bool] = lambda: True,
        renew: Callable[[], Awaitable[Configuration]] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Keep the settings; sessions are opened on entering.

        Args:
            fence: Returns whether this process may still write to the cluster; checked before
                each try of a call with an effect.
            renew: Loads the configuration again after a 401: tokens of exec plugins and files expire.
        """
        self._configuration = configuration
        self._fence = fence
        self._renew = renew
        self._renewed_s = -RENEW_EVERY_S
        self._chance = chance or random.Random()  # noqa: S311 -- jitter, not a secret
        self._proxy = configuration.proxy or _proxy_of(configuration.host)
        # First come, first served. Without it a task that has just got its answer takes the connection again
        # before the waiting ones: Bindings waited until the last nomination was written.
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._calls: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        self._writes: KeptConnections | None = None  # None: through a proxy
        self._token = ""
        self._heads: dict[tuple[Method, str], bytes] = {}  # of writes with this token

    async def __aenter__(self) -> Self:
        host, server_hostname = self._configuration.host, self._configuration.tls_server_name
        try:
            tls = _tls_context(self._configuration)
        except OSError as problem:  # a certificate file is missing or malformed
            raise BadInput(f"TLS settings for {host}: {problem}") from problem
        self._calls, self._watches = (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=most, ssl=tls))
            for most in (CONNECTIONS_MAX, WATCHES_MAX)
        )
        if not self._proxy:
            self._writes = KeptConnections(
                host, tls, server_hostname=server_hostname, connect_timeout_s=CONNECT_TIMEOUT_S
            )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        sessions, self._calls, self._watches = (self._calls, self._watches), None, None
        for session in sessions:
            if session is not None:
                await session.close()
        if self._writes is not None:
            self._writes.close()
            self._writes = None

    async def call(self, request: Request) -> bytes:
        """Send a request and return the body of its 2xx answer; 408, 429, 5xx and timeouts are tried again.

        Raises:
            ApiResponse: 4xx other than 408 and 429, at once.
            ClusterUnavailable: No answer within the budget, or the fence does not allow it. A call with
                an effect may have been executed.
        """
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + request.budget_s
        problem, wait_s, refused = "not tried", 0.0, True
        try_s = min(request.timeout_s, EFFECT_TIMEOUT_S) if request.effect else request.timeout_s
        for attempt in range(1, request.tries_max + 1):
            if request.effect and not self._fence():
                text = f"{_name(request)}: not the leader any more, not sent"
                raise ClusterUnavailable(text, refused=attempt == 1)
            left_s = deadline_s - clock()
            trial = await self._try(request, min(try_s, left_s))
            if trial.body is not None:
                return trial.body
            problem, wait_s = trial.problem, trial.wait_s
            refused = refused and trial.refused
            pause_s = self._pause(attempt, wait_s)
            if attempt == request.tries_max or clock() + pause_s >= deadline_s:
                break
            logger.debug("call is tried again", extra={"call": _name(request), "reason": problem})
            await asyncio.sleep(pause_s)
        text = f"{_name(request)}: {problem}"
        raise ClusterUnavailable(text, retry_after_s=wait_s, refused=refused)

    async def _try(self, request: Request, limit_s: float) -> _Trial:
        """Send a request once."""
        kept = self._writes
        try:
            if kept is not None and request.effect and request.method in KEPT:
                status, body, wait_s = await self._write(kept, request, limit_s)
            else:
                status, body, wait_s = await self._ask(request, limit_s)
        except TimeoutError:
            return _Trial(None, f"no answer within {limit_s:.1f} s")
        except (aiohttp.ClientError, OSError) as problem:
            cause = problem.__cause__ if isinstance(problem.__cause__, OSError) else problem
            return _Trial(None, f"{type(cause).__name__}: {cause}")
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return _Trial(body)
        refusal = _response_of(status, body)
        if _is_transient(status) or await self._was_renewed(status):
            return _Trial(None, str(refusal), wait_s, status == HTTPStatus.TOO_MANY_REQUESTS)
        raise refusal

    async def _ask(self, request: Request, limit_s: float) -> tuple[int, bytes, float]:
        """Send a request on the session; return status, body and Retry-After."""
        limits = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_TIMEOUT_S)
        async with (
            asyncio.timeout(limit_s),
            self._slots,
            self._open(self._calls, request, limits) as response,
        ):
            body = await response.read()
            return response.status, body, _retry_after_s(response.headers.get("Retry-After"))

    async def _write(
        self, kept: KeptConnections, request: Request, limit_s: float
    ) -> tuple[int, bytes, float]:
        """Send a write on a kept connection; return status, body and Retry-After."""
        until_s = asyncio.get_running_loop().time() + limit_s
        # `asyncio.timeout` only where it may wait here: the exchange has a timer of its own, which costs less
        async with asyncio.timeout_at(until_s) if self._slots.locked() else nullcontext():
            await self._slots.acquire()
        try:
            head = await self._head_of(kept, request, until_s)
            body = request.body or b""
            query = f"?{urlencode(request.query)}" if request.query else ""
            target = f"{quote(request.path, safe=PATH_SAFE)}{query}"
            message = head % (target.encode(), len(body), body)
            answer = await kept.exchange(message, self._fence, until_s=until_s)
        finally:
            self._slots.release()
        return answer.status, answer.body, _retry_after_s(answer.headers.get(b"retry-after"))

    async def _head_of(self, kept: KeptConnections, request: Request, until_s: float) -> bytes:
        """Return a message with places for target, length and body."""
        waits = asyncio.iscoroutinefunction(self._configuration.refresh_api_key_hook)
        async with asyncio.timeout_at(until_s) if waits else nullcontext():
            token = await self._authorization()
        head = self._heads.get((request.method, request.content_type))
        if head is None:
            lines = [
                f"{request.method} ".encode() + kept.prefix.replace(b"%", b"%%") + b"%b HTTP/1.1",
                b"Host: " + kept.host,
                b"Accept: " + JSON.encode(),
                b"Content-Type: " + request.content_type.encode(),
                b"User-Agent: " + USER_AGENT.encode(),
                b"Content-Length: %d",
            ]
            if token:
                lines.append(b"Authorization: " + token.encode().replace(b"%", b"%%"))
            head = b"\r\n".join(lines) + b"\r\n\r\n%b"
            self._heads[request.method, request.content_type] = head
        return head

    async def _authorization(self) -> str:
        """Return the header, empty without a token; a short-lived one (in-cluster, or of an exec plugin) is refreshed."""
        token = str(await self._configuration.get_api_key_with_prefix("BearerToken") or "").strip()
        if token != self._token:
            if not token.isprintable():
                msg = "the bearer token of the kubeconfig or its plugin has a control character inside"
                raise ClusterUnavailable(msg)
            self._token = token
            self._heads.clear()
        return token

    async def _was_renewed(self, status: int) -> bool:
        """Load the credentials again after a 401, unless that was just done; return whether it succeeded."""
        now_s = asyncio.get_running_loop().time()
        if (
            status != HTTPStatus.UNAUTHORIZED
            or self._renew is None
            or now_s - self._renewed_s < RENEW_EVERY_S
        ):
            return False
        self._renewed_s = now_s
        try:
            fresh = await self._renew()
        except BadInput as problem:
            logger.warning("credentials cannot be renewed", extra={"reason": str(problem)})
            return False
        self._configuration.api_key = fresh.api_key
        logger.info("credentials renewed after 401")
        return True

    @asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and return its bytes as they arrive, in pieces of any size.

        Raises:
            ApiResponse: The server answered with 4xx (410: the version is too old).
            ClusterUnavailable: 429, 5xx, no connection, or no data for `idle_s`.
        """
        request = Request(method="GET", path=path, query=query)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s)
        try:
            async with self._open(self._watches, request, limits) as response:
                status = response.status
                if status >= HTTPStatus.MULTIPLE_CHOICES:
                    refusal = _response_of(status, await response.read())
                    if _is_transient(status) or await self._was_renewed(status):
                        raise ClusterUnavailable(str(refusal))
                    raise refusal
                yield response.content.iter_any()
        except TimeoutError as silence:
            raise ClusterUnavailable(f"watch {path}: no data for {idle_s:.0f} s") from silence
        except (aiohttp.ClientError, OSError) as problem:
            message = f"watch {path}: {type(problem).__name__}: {problem}"
            raise ClusterUnavailable(message) from problem

    @asynccontextmanager
    async def _open(
        self,
        session: aiohttp.ClientSession | None,
        request: Request,
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if session is None:
            raise ClusterUnavailable("the connection is closed")
        headers = {"Accept": JSON, "Content-Type": request.content_type, "User-Agent": USER_AGENT}
        if token := await self._authorization():
            headers["Authorization"] = token
        payload: bytes | _Fenced | None = request.body
        if request.body is not None and request.effect:
            payload = _Fenced(request.body, self._fence)
        async with session.request(
            request.method,
            f"{self._configuration.host}{request.path}",
            params=request.query,
            data=payload,
            headers=headers,
            timeout=limits,
            proxy=self._proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
            allow_redirects=False,
        ) as response:
            try:
                yield response
            finally:
                # Its connection, if the response was not read to its end. Else it would close by the end of TLS, for which
                # asyncio waits up to 30 s where the server is frozen.
                connection = response.connection
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()

    def _pause(self, attempt: int, retry_after_s: float) -> float:
        """Return the seconds to wait: Retry-After, else doubled each time; plus jitter of up to a half."""
        base_s = retry_after_s or min(PAUSE_FIRST_S * 2 ** (attempt - 1), PAUSE_MAX_S)
        return base_s * (1 + self._chance.random() / 2)


def _is_transient(status: int) -> bool:
    """Return whether the same request may succeed when it is sent again soon."""
    return status in RETRIED or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _name(request: Request) -> str:
    return f"{request.method} {request.path}"


def _tls_context(configuration: Configuration) -> ssl.SSLContext:
    """Return the TLS settings of a configuration, as kubernetes-asyncio makes them for its client."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _retry_after_s(header: str | bytes | None) -> float:
    """Return Retry-After in seconds; API servers never send a date."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


def _response_of(status: int, body: bytes) -> ApiResponse:
    try:
        error = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        error = _Status(message=body[:200].decode(errors="replace"))
    return ApiResponse(status, error.reason or responses.get(status, ""), error.message)
