"""The bearer token of a context of a kubeconfig, also from its credential plugin; read without a Kubernetes library.

Several files are merged as kubectl does: of entries with the same name, and of the current context, the first counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from extender.cli.connection.http_request import header_token
from extender.core.model.errors import BadInput

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
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{where}: tokenFile {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{where}: tokenFile {path}: is not UTF-8") from error
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
