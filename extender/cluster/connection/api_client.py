"""One bounded connection to one API server: bytes out, bytes in.

kubernetes-asyncio finds the configuration (kubeconfig or in-cluster), the credentials and the TLS
settings; requests are sent on its sessions and decoded elsewhere with msgspec. Owns time limits,
retries and the names of faults. It must not know what it carries.

The surprise: there are two sessions. Watches stay open for minutes and would take the connections
of the calls, which are few on purpose: 1,000 patches at once got 632 answers 429, 24 got none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Literal, NamedTuple, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from kubernetes_asyncio import config as kubernetes_config
from kubernetes_asyncio.client import ApiClient, Configuration

from extender.core.model.errors import BadInput, ClusterUnavailable

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 24
WATCHES_MAX = 64  # one per resource, ten or so; the limit is there against a leak
CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0  # one try; an API server answers in milliseconds or is in trouble
EFFECT_TIMEOUT_S = 5.0  # half a lease: what was sent inside one must not land long after it
CALL_BUDGET_S = 15.0  # all tries and pauses of one call
TRIES_MAX = 5
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0
RENEW_EVERY_S = 5.0  # an exec plugin is a process; a wrong credential must not start one per call
USER_AGENT = "gang-extender"
RETRIED = frozenset({408, 429})  # and 5xx
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON = "application/json"

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class ApiResponse(Exception):
    """The API server said no, with 4xx; the caller in this package knows what that means."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class _Status(msgspec.Struct):
    """What an API server sends with an error."""

    message: str = ""
    reason: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call; `effect` calls are checked by the fence before every try."""

    method: Method
    path: str
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = JSON
    effect: bool = False
    timeout_s: float = CALL_TIMEOUT_S
    budget_s: float = CALL_BUDGET_S
    tries_max: int = TRIES_MAX


class _Trial(NamedTuple):
    """What came of sending a request once."""

    body: bytes | None
    problem: str = ""
    wait_s: float = 0.0  # the server asks to be left alone for so long
    refused: bool = False  # it did nothing, for certain


class _Line(NamedTuple):
    """The client that knows the credentials, and a session on its connections."""

    client: ApiClient
    session: aiohttp.ClientSession


def _always() -> bool:
    return True


def _proxy_of(url: str) -> str | None:
    """Give the proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY), None for none."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Find out which API server to speak to, and as whom.

    Args:
        kubeconfig: Path (or several, separated as in KUBECONFIG); None: the ServiceAccount of this
            pod, or outside of a cluster the default file.

    Raises:
        BadInput: There is no usable configuration.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration
            )
    except (kubernetes_config.ConfigException, OSError, ValueError) as problem:
        where = kubeconfig or "the ServiceAccount of this pod, or the default kubeconfig"
        raise BadInput(f"no usable Kubernetes configuration in {where}: {problem}") from problem
    return configuration


class _Fenced(aiohttp.BytesPayload):
    """The body of a call with an effect: the fence is asked in the step that hands its bytes to the kernel.

    A process can be stopped anywhere, also after it was decided to send: while the call waits for its turn, for a
    connection, or for the loop to come round. Headers go out with the body, so without it nothing does.
    """

    def __init__(self, body: bytes, fence: Callable[[], bool]) -> None:
        super().__init__(body)
        self._fence = fence

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Write, inside the lease only.

        Raises:
            ConnectionAbortedError: The lease went; nothing was written.
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
        fence: Callable[[], bool] = _always,
        renew: Callable[[], Awaitable[Configuration]] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Prepare; sessions are opened on entering.

        Args:
            configuration: From `load_configuration`.
            fence: Says whether this process may still have effects on the cluster; asked before
                each try of a call with an effect.
            renew: Loads the configuration again after a 401: tokens of exec plugins and files end.
            chance: Source of jitter, for tests.
        """
        self._configuration = configuration
        self._fence = fence
        self._renew = renew
        self._renewed_s = -RENEW_EVERY_S
        self._chance = chance or random.Random()  # noqa: S311 -- jitter, not a secret
        self._proxy = configuration.proxy or _proxy_of(configuration.host)
        # In order of coming. Without it who has just been answered takes the connection again, before
        # those who wait: Bindings stood behind nominations for as long as there was one more to write.
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._calls: _Line | None = None
        self._watches: _Line | None = None

    async def __aenter__(self) -> Self:
        try:
            self._calls = self._line(CONNECTIONS_MAX)
            self._watches = self._line(WATCHES_MAX)
        except OSError as problem:  # a certificate that is not there or not one
            raise BadInput(f"TLS settings for {self._configuration.host}: {problem}") from problem
        return self

    async def __aexit__(self, *_exc: object) -> None:
        lines, self._calls, self._watches = (self._calls, self._watches), None, None
        for line in lines:
            if line is not None:
                await line.session.close()
                await line.client.close()

    def _line(self, connections: int) -> _Line:
        self._configuration.connection_pool_maxsize = connections
        client = ApiClient(self._configuration)
        # The client's own session looks for proxies and a .netrc before every request, in a thread.
        connector = client.rest_client.pool_manager.connector
        session = aiohttp.ClientSession(connector=connector, connector_owner=False)
        return _Line(client, session)

    async def call(self, request: Request) -> bytes:
        """Send a request and give the body of its 2xx answer; 429, 5xx and silence are tried again.

        Raises:
            Answered: 4xx other than 408 and 429, at once.
            ClusterUnavailable: No answer within the budget, or the fence is down. A call with an
                effect may have had it.
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
            logger.debug("call is tried again", extra={"call": _name(request), "why": problem})
            await asyncio.sleep(pause_s)
        text = f"{_name(request)}: {problem}"
        raise ClusterUnavailable(text, retry_after_s=wait_s, refused=refused)

    async def _try(self, request: Request, limit_s: float) -> _Trial:
        """Send once."""
        limits = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._turns,
                self._open(self._calls, request, limits) as response,
            ):
                body = await response.read()
                status = response.status
                wait_s = _retry_after_s(response.headers.get("Retry-After"))
        except TimeoutError:
            return _Trial(None, f"no answer within {limit_s:.1f} s")
        except (aiohttp.ClientError, OSError) as problem:
            why = problem.__cause__ if isinstance(problem.__cause__, OSError) else problem
            return _Trial(None, f"{type(why).__name__}: {why}")
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return _Trial(body)
        refusal = _answered(status, body)
        if _is_passing(status) or await self._was_renewed(status):
            return _Trial(None, str(refusal), wait_s, status == HTTPStatus.TOO_MANY_REQUESTS)
        raise refusal

    async def _was_renewed(self, status: int) -> bool:
        """After a 401 load the credentials again, unless that was just done."""
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
            logger.warning("credentials cannot be renewed", extra={"why": str(problem)})
            return False
        self._configuration.api_key = fresh.api_key
        logger.info("credentials renewed after 401")
        return True

    @asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream and give its bytes as they come, in pieces of any size.

        Raises:
            Answered: The server refused with 4xx (410: the version is too old).
            ClusterUnavailable: 429, 5xx, no connection, or nothing came for `idle_s`.
        """
        request = Request(method="GET", path=path, query=query)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s)
        try:
            async with self._open(self._watches, request, limits) as response:
                status = response.status
                if status >= HTTPStatus.MULTIPLE_CHOICES:
                    refusal = _answered(status, await response.read())
                    if _is_passing(status) or await self._was_renewed(status):
                        raise ClusterUnavailable(str(refusal))
                    raise refusal
                yield response.content.iter_any()
        except TimeoutError as silence:
            raise ClusterUnavailable(f"watch {path}: nothing for {idle_s:.0f} s") from silence
        except (aiohttp.ClientError, OSError) as problem:
            message = f"watch {path}: {type(problem).__name__}: {problem}"
            raise ClusterUnavailable(message) from problem

    @asynccontextmanager
    async def _open(
        self, line: _Line | None, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if line is None:
            raise ClusterUnavailable("the connection is closed")
        headers = {
            "Accept": JSON,
            "Content-Type": request.content_type,
            "User-Agent": USER_AGENT,
        }
        # Refreshes the token where it is short-lived, as in-cluster and from an exec plugin.
        await line.client.update_params_for_auth(headers, [], ["BearerToken"])
        async with line.session.request(
            request.method,
            f"{self._configuration.host}{request.path}",
            params=request.query,
            data=self._payload(request),
            headers=headers,
            timeout=limits,
            proxy=self._proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
            allow_redirects=False,
        ) as response:
            yield response

    def _payload(self, request: Request) -> bytes | _Fenced | None:
        if request.body is None or not request.effect:
            return request.body
        return _Fenced(request.body, self._fence)

    def _pause(self, attempt: int, asked_s: float) -> float:
        """Say how long to wait: what the server asks for, else doubling, with up to half on top."""
        base_s = asked_s or min(PAUSE_FIRST_S * 2 ** (attempt - 1), PAUSE_MAX_S)
        return base_s * (1 + self._chance.random() / 2)


def _is_passing(status: int) -> bool:
    """Say whether the same request may be answered otherwise in a moment."""
    return status in RETRIED or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _name(request: Request) -> str:
    return f"{request.method} {request.path}"


def _retry_after_s(header: str | None) -> float:
    """Read Retry-After in seconds; API servers never send a date."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


def _answered(status: int, body: bytes) -> ApiResponse:
    try:
        said = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        said = _Status(message=body[:200].decode(errors="replace"))
    return ApiResponse(status, said.reason or _phrase(status), said.message)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
