"""What is wrong with a command line, in one sentence: the option or argument, its value, and what would help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final

from typer.exceptions import TyperException

from extender.core.model.errors import BadInput

PACKAGE: Final = "gang-extender"
EXTRA: Final = re.compile(r"""extra == ['"]([a-z]+)['"]""")
# commands that need the planner and nothing else
PLANNING: Final = ("plan", "decision", "make-room", "drain", "moves", "report")


def usage_text(error: TyperException) -> str:
    """Return the sentence for an error of the parser; without arguments, where some are needed, the help text."""
    text = error.format_message()
    context: Any = getattr(error, "ctx", None)
    if context is None or text == context.get_help():
        return text
    parameter: Any = getattr(error, "param", None)
    value, is_not, expected = error.message.partition(" is not ")
    if parameter is not None and is_not:
        name = max(getattr(parameter, "opts", None) or [parameter.name], key=len)
        text = f"{name}: {_problem(value, expected, parameter.type)}"
    text = text.rstrip(".").replace("argument(s) ()", "argument ''")  # it may be empty
    return f"{text[:1].lower()}{text[1:]}; see `{context.command_path} --help`"


def _problem(value: str, expected: str, kind: Any) -> str:  # noqa: ANN401 -- typer does not export the classes
    """Return what is wrong with a value; typer's message has the value in quotes but for one out of its range."""
    if expected.startswith("in the range"):
        if kind.min is not None and int(value) < kind.min:
            return f"{value!r} is below {kind.min}, the smallest value"
        return f"{value!r} is above {kind.max}, the largest value"
    if expected.startswith("a valid int"):
        return f"{value} is not a whole number"
    return f"{value} is not {expected}"


def unknown_command(name: str, before: str, commands: Sequence[str]) -> str:
    """Return that there is no such command, with the commands that the user may mean; `before`: the words before it, ending with a space, or empty."""
    candidates = [words for words in commands if words.startswith(before)]
    meant = [words for words in commands if words.rpartition(" ")[2] == name]
    similar = set(get_close_matches(name, [words.rpartition(" ")[2] for words in candidates]))
    meant = meant or [words for words in candidates if words.rpartition(" ")[2] in similar]
    plain = name.isprintable() and name.split() == [name]
    words = f"no such command: {before}{name if plain else repr(name)}"
    if meant:
        return f"{words}; did you mean {' or '.join(f'`gang-extender {command}`' for command in meant)}?"
    return f"{words}; there are {', '.join(candidates)}"


def missing_extra(module: str, words: Sequence[str]) -> str:
    """Return that a command needs another part of this package; empty: the module is of none of its parts."""
    from importlib.metadata import requires

    package = module.partition(".")[0].replace("_", "-")
    needed = [text for text in requires(PACKAGE) or () if re.match(rf"{package}\b(?!-)", text)]
    extras = [match[1] for text in needed if (match := EXTRA.search(text))]
    if not package or not extras:
        return ""
    command = next((word for word in words if not word.startswith("-")), "")
    extra = "plan" if command in PLANNING and "plan" in extras else extras[-1]
    return f"`gang-extender {command}` needs {package}, which is not in the client: pip install '{PACKAGE}[{extra}]'"


@contextmanager
def options_named(*names: str) -> Iterator[None]:
    """Name parameters of a query as the options that they are on the command line, in errors of the block."""
    try:
        yield
    except BadInput as error:
        if str(error).partition(":")[0] in names:
            raise type(error)(f"--{error}") from error
        raise
