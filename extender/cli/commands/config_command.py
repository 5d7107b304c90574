"""`config`: every setting with its value, its default, where the value is from, and what it does."""

from __future__ import annotations

import inspect
import os
import textwrap
from typing import Any

import msgspec

from extender import settings as settings_module
from extender.cli.commands.serve_command import setting_flags
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, console, print_value

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
