"""How a command shows who it is to the service, and checks that it is the service.

The token is, in this order: that of `--token-file`; one made for the ServiceAccount of `--as-service-account`; that of the
kubeconfig of `--context` or `--kubeconfig`, or of the context that the service was found in. The last one can be used for
the whole cluster, so it is sent only when the service asks for a token, and never to an address that came with
`--server` alone. No token is sent over HTTP without TLS, except on this machine.

A kubeconfig is read without a Kubernetes library; several files are merged as kubectl does: of entries with the same name, and of
the current context, the first counts.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from extender.cli.connection.http_request import ServiceAnswer, TimeLimits, answered, header_token
from extender.core.model.errors import BadInput
from extender.settings import LOOPBACK, PREFIX

if TYPE_CHECKING:
    from extender.cli.connection.kubectl import Kubectl

SERVER_NAME = "gang-extender"  # in the certificate of the service, whatever the address that is forwarded to it
WAYS = (
    "give --context NAME to send the token of a kubeconfig, --as-service-account NAMESPACE/NAME to send one of a "
    "ServiceAccount, or --token-file FILE"
)


class CredentialOptions(msgspec.Struct, frozen=True):
    """The options of a command about credentials; None: not given."""

    token_file: str | None = None
    server_ca_file: str | None = None
    as_service_account: str | None = None


class ServiceCredentials:
    """Token and TLS settings for one command.

    Args:
        kubectl: Returns kubectl with the context and the kubeconfig of the command.
        load_token: Returns the token of the kubeconfig of the command, an empty text if its user has none; raises
            BadInput if there is no usable kubeconfig.
    """

    def __init__(
        self,
        options: CredentialOptions,
        kubectl: Callable[[], Kubectl],
        load_token: Callable[[], str],
    ) -> None:
        self._token_file = options.token_file or os.environ.get(f"{PREFIX}TOKEN_FILE") or ""
        self._ca_file = options.server_ca_file or os.environ.get(f"{PREFIX}SERVER_CA_FILE") or ""
        self._account = options.as_service_account or ""
        self._kubectl = kubectl
        self._load_token = load_token
        self._token = ""
        self._renewing = threading.Lock()  # a plugin may ask the user: once for all requests
        self._context: ssl.SSLContext | None = None
        if self._account:
            _account_of(self._account)

    @contextmanager
    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, limits: TimeLimits,
        of_cluster: bool, forwarded: bool,
    ) -> Iterator[ServiceAnswer]:  # fmt: skip
        """Send a request, once more with a token if the service asks for one.

        Args:
            headers: Those besides the token.
            of_cluster: Whether the token of the kubeconfig may be sent there.
            forwarded: Whether the address is a port that kubectl forwards.

        Raises:
            BadInput: A token is needed and there is none, or it must not be sent there.
            NoAnswer: The service does not answer.
        """
        tls = self._tls(forwarded=forwarded) if url.startswith("https://") else None
        name = SERVER_NAME if forwarded else ""
        with self._renewing:
            if self._explicit and not self._token:
                _check_private(url)
                self._token = self._explicit_token()
        for again in (False, True):
            token, given = self._token, dict(headers)
            if token:
                _check_private(url)
                given["Authorization"] = f"Bearer {token}"
            with answered(
                method, url, headers=given, body=body, limits=limits, tls=tls, server_name=name
            ) as answer:
                if again or answer.status != HTTPStatus.UNAUTHORIZED:
                    yield answer
                    return
            with self._renewing:
                if self._token == token:  # else another request has renewed it
                    self._token = self._next_token(url, of_cluster=of_cluster)

    @property
    def _explicit(self) -> bool:
        return bool(self._token_file or self._account)

    def _next_token(self, url: str, *, of_cluster: bool) -> str:
        """Return a token after a 401: another one than before, if there is one."""
        _check_private(url)
        if self._explicit:
            return self._explicit_token()
        if not of_cluster:
            raise BadInput(f"{url}: the service asks for a token; {WAYS}")
        token = self._load_token()
        if not token:
            raise BadInput(
                "the service asks for a token, and the user of this context of the kubeconfig has none (a client certificate "
                "is for the API server only); give --as-service-account NAMESPACE/NAME, for which kubectl makes a token, "
                "or --token-file FILE"
            )
        return token

    def _explicit_token(self) -> str:
        if self._token_file:
            return read_token(self._token_file)
        namespace, name = _account_of(self._account)
        token = self._kubectl().create_token(namespace, name)
        return header_token(token, f"token of ServiceAccount {self._account}")

    def _tls(self, *, forwarded: bool) -> ssl.SSLContext:
        """Return how the certificate of the service is verified.

        A forwarded port leads, through kube-apiserver and the kubelet, both of which kubectl has verified, into the pod
        that the cluster has for this Service. So its certificate is verified only when its CA is given.
        """
        if self._context is None:
            try:
                self._context = ssl.create_default_context(cafile=self._ca_file or None)
            except ssl.SSLError as error:
                msg = f"--server-ca-file {self._ca_file}: has no certificate in PEM: {error.reason or error}"
                raise BadInput(msg) from error
            except OSError as error:
                msg = f"--server-ca-file {self._ca_file}: {error.strerror or error}"
                raise BadInput(msg) from error
            if forwarded and not self._ca_file:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE
        return self._context


def read_token(path: str) -> str:
    """Return the token in a file; it is read again for each command, and after it was refused."""
    text = _text(Path(path).expanduser(), f"--token-file {path}")
    if token := header_token(text, f"--token-file {path}"):
        return token
    raise BadInput(f"--token-file {path}: has no token")


def _text(path: Path, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{place}: is not UTF-8") from error


def _account_of(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"--as-service-account: {text!r} is not NAMESPACE/NAME")
    return namespace, name


def _check_private(url: str) -> None:
    """Raise BadInput if others could read a token on its way to a URL."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise BadInput(
            f"{parts.scheme}://{parts.netloc}: refusing to send a token without TLS to another machine; use https, with "
            "--server-ca-file if its CA is not one of the system"
        )


DEFAULT_PATH: Final = "~/.kube/config"
NO_PLUGIN: Final = "install it, or give --token-file FILE"
NO_CLUSTER: Final = (
    "; provideClusterInfo is not supported, so it was given no cluster: give --token-file FILE"
)


class _Variable(msgspec.Struct):
    name: str
    value: str


class _Plugin(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool | None = None


class _Provider(msgspec.Struct):
    name: str = ""
    config: dict[str, str] | None = None


class _User(msgspec.Struct, rename={"token_file": "tokenFile", "provider": "auth-provider"}):
    token: str | None = None
    token_file: str | None = None
    exec: _Plugin | None = None
    provider: _Provider | None = None


class _UserEntry(msgspec.Struct):
    name: str
    user: _User | None = None


class _Context(msgspec.Struct):
    user: str = ""


class _ContextEntry(msgspec.Struct):
    name: str
    context: _Context | None = None


class _Config(msgspec.Struct, rename="kebab"):
    current_context: str | None = None
    contexts: list[_ContextEntry] | None = None
    users: list[_UserEntry] | None = None


class _CredentialStatus(msgspec.Struct):
    token: str = ""


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    status: _CredentialStatus = msgspec.field(default_factory=_CredentialStatus)


def kubeconfig_token(paths: str | None, context: str | None) -> str:
    """Return the token of the user of a context; empty: the user has none.

    Args:
        paths: One path or several, separated as in KUBECONFIG; None: KUBECONFIG, else the default file.

    Raises:
        BadInput: No file can be read, the context or its user is in none of them, or the plugin gives no token.
    """
    place = paths or os.environ.get("KUBECONFIG") or DEFAULT_PATH
    files = [Path(path).expanduser() for path in place.split(os.pathsep) if path]
    configs = [(file, _read(file)) for file in files if file.exists()]  # a pipe is none of is_file
    if not configs:
        raise BadInput(f"kubeconfig {place}: no such file; --kubeconfig FILE names one")
    currents = (config.current_context for _, config in configs)
    name = context or next((current for current in currents if current), "")
    contexts = {e.name: e.context for _, c in reversed(configs) for e in c.contexts or ()}
    if not name or name not in contexts:
        problem = f"no context {name!r}" if name else "no current context"
        names = ", ".join(sorted(contexts)) or "no context"
        raise BadInput(f"kubeconfig {place}: {problem}; it has {names}")
    chosen = contexts[name]
    user = chosen.user if chosen is not None else ""
    if not user:
        return ""
    users = {e.name: (file, e.user) for file, c in reversed(configs) for e in c.users or ()}
    if user not in users:
        raise BadInput(f"kubeconfig {place}: context {name} has user {user!r}, which is not in it")
    file, entry = users[user]
    if entry is None:
        return ""
    where = f"kubeconfig {file}: user {user}"
    return header_token(_token(entry, file, where), f"{where}: token")


def _read(file: Path) -> _Config:
    try:
        body = file.read_bytes()
        return msgspec.yaml.decode(body, type=_Config) if body.strip() else _Config()
    except OSError as error:
        raise BadInput(f"kubeconfig {file}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        cause = error.__context__  # of the library for YAML, whose whole text quotes a line
        mark = getattr(cause, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: " if mark else ""
        text = getattr(cause, "problem", None) or str(error).partition("\n")[0]
        raise BadInput(f"kubeconfig {file}: {line}{text}") from error


def _token(user: _User, file: Path, where: str) -> str:
    if user.token_file:
        path = file.parent / user.token_file  # relative to the kubeconfig
        return _text(path, f"{where}: tokenFile {path}")
    if user.token:
        return user.token
    if user.exec is not None:
        return _token_of_plugin(user.exec, file, where)
    provider = user.provider.config or {} if user.provider is not None else {}
    return provider.get("id-token") or provider.get("access-token") or ""  # kubectl renews them


def _token_of_plugin(plugin: _Plugin, file: Path, where: str) -> str:
    """Run a credential plugin, which may ask on the terminal, and return its token."""
    command = plugin.command
    if os.sep in command:  # relative to the kubeconfig
        command = str(file.parent / command)
    cluster = NO_CLUSTER if plugin.provide_cluster_info else ""
    asks = plugin.interactive_mode != "Never" and sys.stdin.isatty()
    spec = {"interactive": asks}
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environ = {"KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    environ |= {variable.name: variable.value for variable in plugin.env or ()}
    try:
        done = subprocess.run(  # noqa: S603 -- no shell
            [command, *(plugin.args or ())],
            env=os.environ | environ,
            stdin=None if asks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        credential = msgspec.json.decode(done.stdout, type=_Credential)
    except OSError as error:
        hint = (plugin.install_hint or NO_PLUGIN).strip()
        raise BadInput(f"{where}: {command}: {error.strerror or error}; {hint}") from error
    except subprocess.CalledProcessError as error:
        raise BadInput(
            f"{where}: the credential plugin {command} ended with exit code {error.returncode}{cluster}"
        ) from error
    except msgspec.MsgspecError as error:
        raise BadInput(f"{where}: {command} printed no ExecCredential: {error}") from error
    except ValueError as error:  # a NUL character, or "=" in the name of a variable
        raise BadInput(f"{where}: {command!r} cannot be run: {error}") from error
    if credential.api_version != plugin.api_version:
        raise BadInput(
            f"{where}: {command} printed {credential.api_version or 'no apiVersion'}, and the kubeconfig asks for "
            f"{plugin.api_version}"
        )
    return credential.status.token
