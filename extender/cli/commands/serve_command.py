"""`serve`: run the service."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

import typer

from extender import settings as settings_module
from extender.core.model.errors import BadInput

log = logging.getLogger(__name__)
OF_OTHER_COMMANDS = ("server",)  # the URL of a service to query


def _flags() -> list[inspect.Parameter]:
    """Return a flag for each setting: a parameter from which typer reads name and help.

    All values but the booleans are texts: `settings.load` converts them, and its errors name the setting and the value.
    """
    flags = []
    for setting in settings_module.all_settings():
        if setting.name in OF_OTHER_COMMANDS:
            continue
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


def serve(**flags: Any) -> None:  # noqa: ANN401 -- one per setting, see `_flags`
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

    def listening() -> None:
        page = f"{settings.advertise_url}/ui/"
        log.info("listening", extra={"address": settings.listen, "page": page})

    try:
        uvloop.run(run_service(settings, listening))
    except OSError as error:
        msg = (
            f"cannot listen on {settings.listen}: {error.strerror or error}; set --listen HOST:PORT"
        )
        raise BadInput(msg) from error


serve.__signature__ = inspect.Signature(_flags())  # type: ignore[attr-defined]
