"""Find the service that a command asks, and ask it.

The service is, in this order: that of `--server`; that in the cluster of `--context` or `--kubeconfig`; that of
GANG_EXTENDER_SERVER; that at http://127.0.0.1:8888; and if nothing listens there, that in the cluster of the current
context of kubectl, which is then named on stderr.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.connection import http_request
from extender.cli.connection.kubectl import NAMESPACE, Kubectl, PortForward, is_installed
from extender.cli.connection.service_credentials import (
    CredentialOptions,
    ServiceCredentials,
    kubeconfig_token,
)
from extender.cli.output.list_table import ListTable
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput, PositionGone

T = TypeVar("T")
Server = Annotated[
    str | None, typer.Option(help="URL of the service; unset: GANG_EXTENDER_SERVER, else http://127.0.0.1:8888, else the service in the cluster of the current context.")
]  # fmt: skip
Context = Annotated[str | None, typer.Option(help="Ask the service in the cluster of this context of the kubeconfig, through a port that kubectl forwards.")]  # fmt: skip
Kubeconfig = Annotated[str | None, typer.Option(help="Kubeconfig of that cluster; unset: GANG_EXTENDER_KUBECONFIG, else the one that kubectl uses.")]  # fmt: skip
TokenFile = Annotated[
    str | None,
    typer.Option(help="File with the bearer token for the service; unset: GANG_EXTENDER_TOKEN_FILE, else the token of the kubeconfig, where the service asks for one."),
]  # fmt: skip
AsServiceAccount = Annotated[
    str | None, typer.Option(metavar="NAMESPACE/NAME", help="Send a new token of this ServiceAccount, which kubectl makes; for kubeconfigs with a client certificate.")
]  # fmt: skip
ServerCaFile = Annotated[str | None, typer.Option(help="CA of the certificate of the service; unset: GANG_EXTENDER_SERVER_CA_FILE, else those of the system.")]  # fmt: skip
ADDED = {
    "context": Context,
    "kubeconfig": Kubeconfig,
    "token_file": TokenFile,
    "as_service_account": AsServiceAccount,
    "server_ca_file": ServerCaFile,
}
DEFAULT_URL = settings_module.Settings().server
CONNECTED_WITHIN_S = 1.0  # on this machine; a port is refused at once


class _Problem(msgspec.Struct):
    detail: str = ""
    status: int = 0


class ServiceFinder:
    """Finds the service for one command; a port that is forwarded for it stays open until `close`."""

    def __init__(
        self,
        context: str | None,
        kubeconfig: str | None,
        options: CredentialOptions = CredentialOptions(),
    ) -> None:
        """Store the options --context and --kubeconfig, and those about credentials."""
        self._context = context
        self._kubeconfig = kubeconfig
        self.reads_log = False  # whether the command could read a database in place of the service
        self._forward: PortForward | None = None
        self._login_context = context  # the context whose token may be sent; a fallback sets it
        self._credentials = ServiceCredentials(options, self._kubectl, self._load_token)

    @property
    def chosen(self) -> bool:
        """Return whether an option names a cluster."""
        return bool(self._context or self._kubeconfig)

    def find(self, server: str | None) -> str:
        """Return the URL of the service, without a slash at its end; a port that was forwarded and is lost is forwarded again.

        Args:
            server: The option --server; with a context, the token of the context is for this server. None: not given.

        Raises:
            BadInput: The URL is invalid, or the service in a cluster cannot be reached.
        """
        if self._forward is not None:
            return self._forward.url()
        if self.chosen and not server:
            return self._forward_port(self._context)
        if server or os.environ.get(f"{settings_module.PREFIX}SERVER"):
            return settings_module.load(server=server).server.rstrip("/")
        if not listens(DEFAULT_URL):
            # the current context of kubectl; empty without kubectl, and without a context
            kubectl = Kubectl(None, self._kubeconfig_paths()) if is_installed() else None
            if kubectl is not None and (context := kubectl.current_context()):
                complain(
                    f"nothing listens at {DEFAULT_URL}: asking the service in context {context} of the kubeconfig; "
                    "--context or --server chooses another one"
                )
                return self._forward_port(context)
        return DEFAULT_URL

    def no_answer(self, url: str, error: http_request.NoAnswer) -> str:
        """Return the sentence about a service that does not answer at a URL of `find`."""
        if self._forward is not None:
            why = self._forward.last_error or str(error)
            return f"no answer from {self._forward.place}: {why}; do its pods run?"
        if isinstance(error, http_request.NotVerified):
            return f"{url}: its certificate is not valid here: {error}; give its CA with --server-ca-file FILE"
        if isinstance(error, http_request.TooLate):
            return f"{url}: {error}; it listens there, and may be busy or wait for its database: `gang-extender status` has more"
        remedy = (
            "is `gang-extender serve` running there? (--server URL, or --context NAME for a cluster"
        )
        if self.reads_log:
            remedy += "; --database-url URL or --data-dir FOLDER for the log in a database"
        return f"no answer from {url}: {error}; {remedy})"

    def send(
        self, method: str, url: str, *,
        limits: http_request.TimeLimits, headers: Mapping[str, str] | None = None, body: bytes | None = None,
    ) -> AbstractContextManager[http_request.ServiceAnswer]:  # fmt: skip
        """Return the answer to a request to a URL of `find`, as a context manager; with the token, if one is needed.

        Raises:
            BadInput: On entering: a token is needed and there is none, or it must not be sent there.
            NoAnswer: The service does not answer.
        """
        forwarded = self._forward is not None
        return self._credentials.send(
            method, url, headers=headers or {}, body=body, limits=limits,
            of_cluster=self.chosen or forwarded, forwarded=forwarded,
        )  # fmt: skip

    def logs(self) -> str:
        """Return the end of the logs of all replicas, by kubectl.

        Raises:
            BadInput: The service was not found in a cluster, or the logs cannot be read.
        """
        if self._forward is None and not self.chosen:
            raise BadInput("the service was not found in a cluster: --context names one")
        namespace = NAMESPACE if self._forward is None else self._forward.namespace
        return self._kubectl().logs(namespace)

    def close(self) -> None:
        """Close the forwarded port."""
        if self._forward is not None:
            self._forward.stop()
            self._forward = None

    def _kubeconfig_paths(self) -> str | None:
        variable = f"{settings_module.PREFIX}KUBECONFIG"
        paths = self._kubeconfig or os.environ.get(variable) or None
        if paths and not any(Path(path).is_file() for path in paths.split(os.pathsep)):
            raise BadInput(f"{'--kubeconfig' if self._kubeconfig else variable}: no file {paths}")
        return paths

    def _forward_port(self, context: str | None) -> str:
        self._login_context = context
        self._forward = PortForward(self._kubectl())
        return self._forward.url()

    def _kubectl(self) -> Kubectl:
        return Kubectl(self._login_context, self._kubeconfig_paths())

    def _load_token(self) -> str:
        return kubeconfig_token(self._kubeconfig_paths(), self._login_context)


# Of the command that runs.
_FINDER: ContextVar[ServiceFinder] = ContextVar("finder")


def finder() -> ServiceFinder:
    """Return the finder of the command that runs; it knows --context and --kubeconfig."""
    return _FINDER.get(ServiceFinder(None, None))


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its parameters that are structs as options, in their places.

    With the option --server it also takes those of `ADDED`, behind it, and `finder` has their values while the command runs.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type[msgspec.Struct]] = {}
    options: dict[str, tuple[Any, Any]] = {}  # annotation and default
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            groups[name] = kind
            options |= {f.name: (f.type, f.default) for f in msgspec.structs.fields(kind)}
        else:
            options[name] = (kind, parameter.default)
    if "kubeconfig" in options:  # of `serve`: no service is asked
        return command
    added = ADDED if "server" in options else {}

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 -- those of the command
        own = {name: given.pop(name) for name in added}
        service_finder = ServiceFinder(
            own.pop("context", None), own.pop("kubeconfig", None), CredentialOptions(**own)
        )
        with _finding(service_finder):
            for name, kind in groups.items():
                given[name] = kind(**{f: given.pop(f) for f in kind.__struct_fields__})
            command(**given)

    items = list(options.items())
    at = [*options, "server"].index("server") + 1
    items[at:at] = [(name, (kind, None)) for name, kind in added.items()]
    run.__annotations__ = {name: kind for name, (kind, _) in items}
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for name, (kind, default) in items
        ]
    )
    return run


@contextmanager
def _finding(service_finder: ServiceFinder) -> Iterator[None]:
    token = _FINDER.set(service_finder)
    try:
        yield
    finally:
        _FINDER.reset(token)
        service_finder.close()


class _Reply(NamedTuple):
    url: str  # of the service
    status: int
    body: bytes
    following: str  # path or URL of the next page; empty: there is none


def _ask(server: str | None, path: str, body: bytes | None, within_s: float) -> _Reply:
    url = finder().find(server)
    method = "GET" if body is None else "POST"
    headers = {} if body is None else {"Content-Type": "application/json"}
    limits = http_request.TimeLimits(whole_s=within_s)
    try:
        with finder().send(method, url + path, headers=headers, body=body, limits=limits) as answer:
            return _Reply(url, answer.status, answer.read(), answer.following)
    except http_request.NoAnswer as error:
        raise BadInput(finder().no_answer(url, error)) from error


def read_body(server: str | None, path: str, *, within_s: float = 30) -> bytes:
    """Return the body of the answer to GET, as it is.

    Raises:
        BadInput: The service was not found or did not answer, or with an error.
    """
    reply = _ask(server, path, None, within_s)
    if reply.status != HTTPStatus.OK:
        detail = detail_of(reply.body) or _not_ours(reply.url)
        raise BadInput(f"{path} answered {reply.status}: {detail}")
    return reply.body


def detail_of(body: bytes) -> str:
    """Return what a service of ours, or a proxy before it, answered as its reason; empty: a page of another program."""
    try:
        return msgspec.json.decode(body, type=_Problem).detail
    except msgspec.MsgspecError:
        text = body[:200].decode(errors="replace").strip()
        return "" if text.startswith("<") or "\n" in text else text


def _not_ours(url: str) -> str:
    return f"not as gang-extender does; is {url} its address?"


def ask_service(
    server: str | None, path: str, kind: type[T], *, body: bytes | None = None, within_s: float = 10,
    absent: T | None = None, most: int = 0, before: frozenset[str] = frozenset(),
) -> T:  # fmt: skip
    """Return the decoded answer of the service, by GET, or by POST with a body.

    Args:
        absent: Returned where the service answers 404; None: that is an error.
        most: Of an answer that is a list, how many entries are wanted: further pages are asked for until there are so
            many, or no more; 0: one page.

    Raises:
        BadInput: The service was not found or did not answer, or is not a gang-extender, or its pages have no end.
        typer.Exit: The service answered with an error, which is printed.
    """
    reply = _ask(server, path, body, within_s)
    url, status, answer, following = reply.url, reply.status, reply.body, reply.following
    if status == 404 and absent is not None:  # noqa: PLR2004 -- not found
        return absent
    if status != 200:  # noqa: PLR2004 -- OK
        complain(detail_of(answer) or f"{url}{path} answered {status}, {_not_ours(url)}")
        raise typer.Exit(1 if status == 404 else 2)  # noqa: PLR2004 -- not found is a "no"
    try:
        decoded = msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise BadInput(
            f"{url}{path} did not answer as gang-extender does: {error}; is it the right --server?"
        ) from error
    if following and isinstance(decoded, list) and len(decoded) < most:
        page, before = following.removeprefix(url), before | {path}
        if page in before:
            raise BadInput(
                f"{url}{path} answers with {page} as its next page, which was read before it; is it the right --server?"
            )
        rest: Any = ask_service(
            server, page, kind, within_s=within_s, most=most - len(decoded), before=before
        )
        decoded.extend(rest)
    return decoded


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block to its end, or until Ctrl-C or SIGTERM, which is no error of what goes on for ever."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listens(url: str) -> bool:
    """Return whether a connection to the URL can be opened."""
    parts = urlsplit(url)
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or 80), timeout=CONNECTED_WITHIN_S
        ):
            return True
    except OSError:
        return False


R = TypeVar("R")
INTERVAL_S: Final = 1.0  # between two questions for the end of the log
SHARE: Final = 5  # a list that takes long to read is read again only after this many times as long
RETRY_S: Final = 5.0
END_PATH: Final = "/v1/events?order=newest&limit=1"


class Ask(Protocol):
    """Returns the decoded answer of a service to GET, see `ask_service`."""

    def __call__(self, path: str, kind: type[R], /, *, absent: R | None = None, most: int = 0) -> R:
        """Return the answer for a path and query; `absent` where the service does not have what it names.

        Of a list all pages, up to `most` entries.
        """
        ...


def asks(server: str | None, *, watch: bool = False) -> Ask:
    """Return what asks the service of a command.

    To watch a list, the service is found now and stays the same: where another one takes its place, its list would
    look like a change.
    """
    if watch and not finder().chosen:
        server = finder().find(server)
    return partial(ask_service, server)


class _Position(msgspec.Struct):
    position: int


@dataclass
class ServiceList(Generic[T]):
    """A list of a running service."""

    ask: Ask
    read_list: Callable[[], Sequence[T]]
    table: ListTable[T]

    def print(self, empty: str) -> None:
        """Print the list once; `empty` is the sentence for a list without rows."""
        self.table.print(self.read_list(), empty=empty)

    def watch(
        self,
        identity: Callable[[T], str],
        removed: Callable[[T], T],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Print the list, then each row that is new, changed or gone, until Ctrl-C.

        The list is read again when the log of the service has grown, and once more after that, because the service
        may have answered before it had the last event. A service that does not answer is asked again.

        Args:
            identity: Returns what stays the same of an item that changes; the name of its row where it has no UID yet.
            removed: Returns an item that is not in the list any more, as it is printed then.
        """
        try:
            end = self._end()
            previous = self._read(identity)
            self._print_first([*previous.values()])
            grown, lost, pause_s = True, False, INTERVAL_S
            while True:
                pause(pause_s)
                try:
                    now = self._end()
                    again, grown, end = grown or now != end, now != end, now
                    if again:
                        began_s = time.monotonic()
                        read = self._read(identity)
                        pause_s = max(INTERVAL_S, SHARE * (time.monotonic() - began_s))
                        self._print_changes(previous, read, removed)
                        previous = read
                    if lost:
                        complain("the service answers again")
                    lost = False
                except BadInput as error:
                    if not lost:
                        complain(f"{error}; trying again")
                    grown, lost, pause_s = True, True, RETRY_S
                except typer.Exit:  # the error has been printed
                    grown, lost, pause_s = True, True, RETRY_S
        except KeyboardInterrupt:
            return

    def _end(self) -> int:
        return max((event.position for event in self.ask(END_PATH, list[_Position])), default=0)

    def _read(self, identity: Callable[[T], str]) -> dict[str, T]:
        return {identity(item): item for item in self.read_list()}

    def _print_first(self, items: Sequence[T]) -> None:
        """Print the list; values for programs one by one, as those that follow."""
        if self.table.output_format.is_table and items:
            self.table.print(items, empty="")
            sys.stdout.flush()
        else:
            for item in self.table.sorted(items):
                self.table.print_changed(item)

    def _print_changes(
        self, before: dict[str, T], now: dict[str, T], removed: Callable[[T], T]
    ) -> None:
        shown = self.table.shown
        for name, item in now.items():
            if name not in before or shown(before[name]) != shown(item):
                self.table.print_changed(item)
        name_of = self.table.name
        added = {name_of(now[key]): key for key in now.keys() - before.keys()}
        for key in before.keys() - now.keys():
            name = name_of(before[key])
            if name in added and name in (key, added[name]):
                continue  # it has got another identity than its name, or lost it: its row was printed above
            self.table.print_changed(removed(before[key]))


# a service sends something every ten seconds
STREAM_LIMITS: Final = http_request.TimeLimits(connect_s=5.0, silence_s=30.0)
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


class _Broken(Exception):
    """The connection was lost, or could not be opened."""


@dataclass
class Stream:
    """The events of a log by GET /v1/events?follow, each once: reconnects with the last id, to any of several replicas.

    It tries again for ever when a service answers 503 or is silent, but fails when none has ever answered: the address is wrong then.
    """

    servers: Sequence[
        str | None
    ]  # as `ServiceFinder.find` takes them; when one is lost, the next is used
    query: Sequence[tuple[str, str]]  # parameters besides `follow`
    finder: ServiceFinder  # finds each of them, again after it was lost
    complain: Callable[
        [str], None
    ]  # called once when the connection is lost, and when it is restored
    position: str = ""  # as in Last-Event-ID

    def events(self) -> Iterator[bytes]:
        """Yield the JSON of each event, for ever.

        Raises:
            BadInput: No service answers at the beginning, or one rejects the query.
            PositionGone: The log ends before the position of this stream.
        """
        for server in self.servers:  # one that cannot be right is an error at the beginning
            self.finder.find(server)
        turn, failures, lost = 0, 0, ""
        while True:
            try:
                url = self._url_of(self.servers[turn % len(self.servers)])
                for body in self._once(url):
                    if lost:
                        self.complain(f"connected to {url}")
                    failures, lost = 0, ""
                    if body:
                        yield body
            except _Broken as error:
                turn += 1
                failures += 1
                if not self.position and failures >= len(self.servers):
                    raise BadInput(str(error)) from error
                if not lost:
                    self.complain(f"{error}; trying again")
                lost = str(error)
                time.sleep(min(PAUSE_FIRST_S * 2 ** min(failures, 10), PAUSE_MAX_S))

    def _url_of(self, server: str | None) -> str:
        try:
            return self.finder.find(server)
        except BadInput as error:  # the port could not be forwarded again
            raise _Broken(str(error)) from error

    def _once(self, url: str) -> Iterator[bytes]:
        """Yield the events of one connection until it breaks; empty bytes for other data."""
        headers = {"Last-Event-ID": self.position} if self.position else {}
        address = f"{url}/v1/events?{urlencode([('follow', 'true'), *self.query])}"
        try:
            with self.finder.send("GET", address, headers=headers, limits=STREAM_LIMITS) as answer:
                kind = answer.headers.get("Content-Type", "").partition(";")[0]
                if answer.status != HTTPStatus.OK or kind != "text/event-stream":
                    raise _refused(url, answer.status, answer.read())
                yield from self._read(answer.pieces())
        except http_request.NoAnswer as error:
            raise _Broken(self.finder.no_answer(url, error)) from error
        raise _Broken(f"{url} ended the stream")

    def _read(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        kind = data = b""
        for line in _lines(pieces):
            field, _, value = line.partition(b": ")
            if field == b"id":
                self.position = value.decode()
            elif field == b"event":
                kind = value
            elif field == b"data":
                data = value
            elif not line:
                if kind == b"problem":
                    raise PositionGone(_reason(data))
                yield data
                kind = data = b""


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines; an event is one line, of megabytes if it has thousands of pods."""
    parts: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        parts.append(first)
        for line in rest:
            yield b"".join(parts)
            parts = [line]


def _reason(body: bytes) -> str:
    return detail_of(body) or body[:200].decode(errors="replace")


def _refused(server: str, status: int, body: bytes) -> Exception:
    if status == HTTPStatus.CONFLICT:
        return PositionGone(_reason(body))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _Broken(f"{server} answered {status}: {_reason(body)}")
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return BadInput(_reason(body))
    return BadInput(
        f"{server}/v1/events answered {status}, not a stream; is it the right --server?"
    )
