"""`serve`: run the service. `config`: its settings, and where their values are from."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
import typer

from extender import __version__
from extender import settings as settings_module
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, complain, console, print_value
from extender.core.model.errors import BadInput
from extender.listener_settings import Listener, http_url, is_loopback, listeners
from extender.settings import Settings

log = logging.getLogger(__name__)
OF_OTHER_COMMANDS = ("server", "token_file")  # of a service to query
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 -- compared, not listened on


def setting_flags() -> list[inspect.Parameter]:
    """Return a flag for each setting: a parameter from which typer reads name and help.

    All values but the booleans are texts: `settings.load` converts them, and its errors name the setting and the value.
    """
    flags = []
    for setting in settings_module.all_settings():
        text = setting.help
        if setting.kind is bool:
            text += f" {setting.variable} is true or false."
        if setting.listed:
            text += " Repeatable."
        elif setting.default != "":
            default = setting.default
            text += f" [default: {str(default).lower() if setting.kind is bool else default}]"
        metavar = "|".join(setting.choices) or f"<{setting.kind.__name__}>"
        option = typer.Option(None, help=text, metavar=metavar)
        annotation: Any = list[str] | None if setting.listed else str | None
        if setting.kind is bool:
            flag = setting.name.replace("_", "-")
            option = typer.Option(None, f"--{flag}/--no-{flag}", help=text)
            annotation = bool | None
        flags.append(
            inspect.Parameter(
                setting.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
            )
        )
    return flags


def serve(**flags: Any) -> None:  # noqa: ANN401 -- one per setting, see `setting_flags`
    """Run the service that kube-scheduler calls. Every option is also GANG_EXTENDER_<OPTION> in the environment."""
    settings = settings_module.load(**flags)
    import uvloop

    from extender import query_main
    from extender.composition import fork_children
    from extender.composition import serve as run_service
    from extender.telemetry import set_up_logging

    set_up_logging(settings.log_level, sys.stdout, settings.log_format)
    for name, similar in settings_module.unknown_variables().items():
        log.warning(
            "environment variable is not a setting", extra={"variable": name, "similar": similar}
        )
        if sys.stderr.isatty():
            complain(settings_module.unknown_variable_text(name, similar))

    listens = False

    def listening() -> None:
        nonlocal listens
        listens = True
        all_listeners = listeners(settings)
        addresses = [listener.address for listener in all_listeners]
        log.info("listening", extra={"addresses": addresses, "page": f"{page_url(settings)}/ui/"})
        if not all_listeners[-1].tls:
            log.log(
                logging.WARNING if settings.insecure_plain_http else logging.INFO,
                no_authentication_text(all_listeners),
            )
        elif text := open_api_text(settings):
            log.warning(text)
        if sys.stderr.isatty():
            sys.stderr.write(start_text(settings))

    children = fork_children(query_main.answer)
    try:
        uvloop.run(run_service(settings, listening, children))
    except OSError as error:
        if listens:  # of a pipe or a file: nothing that an address could change
            log.exception("the service ends by an error")
            sys.exit(1)
        settable = " or ".join(
            sorted({_flag(listener.setting) for listener in listeners(settings)})
        )
        address = error.filename or settings.listen
        msg = f"cannot listen on {address}: {error.strerror or error}; set {settable} HOST:PORT"
        raise BadInput(msg) from error
    finally:
        children.close()


def start_text(settings: Settings) -> str:
    """Return what is printed at the start on a terminal: address and page, cluster and database, how it is stopped."""
    from extender.cluster.connection.api_client import configuration_source
    from extender.store.connections import place_of

    cluster = (
        f"manifests in {', '.join(settings.cluster)}"
        if settings.cluster
        else f"Kubernetes, by {configuration_source(settings.kubeconfig or None)}"
    )
    database = (
        f"PostgreSQL at {place_of(settings.database_url)}"
        if settings.database_url
        else f"embedded PostgreSQL in {settings.data_dir}"
    )
    all_listeners = listeners(settings)
    addresses = " and ".join(listener.address for listener in all_listeners)
    warning = (
        open_api_text(settings) if all_listeners[-1].tls else no_authentication_text(all_listeners)
    )
    warning += "\n" if warning else ""
    return (
        f"gang-extender {__version__} listens on {addresses}; the page is {page_url(settings)}/\n"
        f"Cluster: {cluster}. Event log: {database}.\n"
        f"{warning}"
        f"Log lines are {_log_text(settings)}, on stdout. Ctrl-C stops the service.\n"
    )


def _log_text(settings: Settings) -> str:
    text = settings.log_format == "text" or (not settings.log_format and sys.stdout.isatty())
    return "text (--log-format json: JSON)" if text else "JSON"


def page_url(settings: Settings) -> str:
    """Return the URL of the page, without a slash at its end, for a browser on this machine."""
    listener = listeners(settings)[-1]
    host = "127.0.0.1" if listener.host in ANY_ADDRESS else listener.host
    return http_url(host, listener.port, tls=listener.tls)


def no_authentication_text(all_listeners: Sequence[Listener]) -> str:
    """Return the sentence about listeners without TLS: who can use them."""
    open_to_all = [listener.address for listener in all_listeners if not is_loopback(listener.host)]
    if open_to_all:
        return (
            f"There is no authentication: everyone who reaches {' or '.join(open_to_all)} may bind and evict pods "
            "(--insecure-plain-http)."
        )
    return "There is no authentication: every user of this machine may bind and evict pods through this port."


def open_api_text(settings: Settings) -> str:
    """Return the sentence about a read API with TLS and without authentication; empty: it has authentication, or no TLS."""
    api = listeners(settings)[-1]
    if not api.tls or settings.authentication == "kubernetes":
        return ""
    return (
        f"The read API has no authentication: everyone who reaches {api.address} reads the state of all namespaces "
        "(--authentication none)."
    )


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [flag for flag in setting_flags() if flag.name not in OF_OTHER_COMMANDS]
)


INDENT = "    "


class SettingLine(msgspec.Struct):
    """One setting as it is shown; passwords in URLs, and paths that may be secret, are masked."""

    name: str
    flag: str
    variable: str
    value: Any  # of the type of the setting; several values: a list
    default: Any
    source: str  # flag, variable or default
    set_by: str  # name of the flag or the variable; empty for a default
    effect: str


def setting_lines(environ: dict[str, str], flags: dict[str, object]) -> list[SettingLine]:
    """Return all settings, in the order of `serve --help`.

    Args:
        flags: Values of the command line, by setting; None: not given.

    Raises:
        BadInput: A value is invalid; see `settings.load`.
    """
    loaded = settings_module.load(environ, **flags)
    computed = settings_module.computed_defaults(loaded, environ)
    lines = []
    for setting in settings_module.all_settings():
        origin = settings_module.origin_of(setting, environ, flags)
        lines.append(
            SettingLine(
                name=setting.name,
                flag=setting.flag,
                variable=setting.variable,
                value=settings_module.without_secrets(setting.name, getattr(loaded, setting.name)),
                default=settings_module.masked(computed.get(setting.name, setting.default)),
                source=origin.source,
                set_by=origin.name,
                effect=setting.help,
            )
        )
    return lines


def config(*, output: Output, **flags: Any) -> None:  # noqa: ANN401 -- one per setting
    """Print every setting: its value, its default, where the value is from, and what it does. Takes the options of serve."""
    lines = setting_lines(dict(os.environ), flags)
    if output is not Output.table:
        print_value(lines, output)
        return
    width = console().width
    for line in lines:
        print(f"{line.flag:<30}  {_text(line.value)}  ({_source(line)})")
        effect = f"{line.variable}: {line.effect}"
        print(textwrap.fill(effect, width, initial_indent=INDENT, subsequent_indent=INDENT))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "unset"


def _source(line: SettingLine) -> str:
    if line.source == "default":
        return "default"
    return f"{line.source} {line.set_by}; default: {_text(line.default)}"


config.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *setting_flags(),
        inspect.Parameter(
            "output", inspect.Parameter.KEYWORD_ONLY, default=Output.table, annotation=ValueForm
        ),
    ]
)
