"""`serve`: run the service."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

import typer

from extender import __version__
from extender import settings as settings_module
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput
from extender.settings import Settings, http_url

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
            text += f" [default: {setting.name if setting.default is True else setting.default}]"
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

    from extender.composition import serve as run_service
    from extender.telemetry import set_up_logging

    set_up_logging(settings.log_level, sys.stdout)
    for name, similar in settings_module.unknown_variables().items():
        log.warning(
            "environment variable is not a setting", extra={"variable": name, "similar": similar}
        )
        if sys.stderr.isatty():
            complain(settings_module.unknown_variable_text(name, similar))

    def listening() -> None:
        page = f"{settings.advertise_url}/ui/"
        log.info("listening", extra={"address": settings.listen, "page": page})
        if sys.stderr.isatty():
            sys.stderr.write(start_text(settings))

    try:
        uvloop.run(run_service(settings, listening))
    except OSError as error:
        msg = (
            f"cannot listen on {settings.listen}: {error.strerror or error}; set --listen HOST:PORT"
        )
        raise BadInput(msg) from error


def start_text(settings: Settings) -> str:
    """Return what is printed at the start on a terminal: address and page, cluster and database, how it is stopped."""
    from extender.cluster.connection.api_client import configuration_source
    from extender.store.engine import place_of

    host, port = settings.host_port
    page = http_url("127.0.0.1" if host in ANY_ADDRESS else host, port)
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
    return (
        f"gang-extender {__version__} listens on {settings.listen}; the page is {page}/\n"
        f"Cluster: {cluster}. Event log: {database}.\n"
        "Log lines are JSON, on stdout. Ctrl-C stops the service.\n"
    )


serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [flag for flag in setting_flags() if flag.name not in OF_OTHER_COMMANDS]
)
