"""The examples in --help are lines that the program takes."""

from __future__ import annotations

import shlex

from extender.cli.main import COMMANDS, imported_command
from extender.cli.options.command_examples import EXAMPLES, examples_text
from extender.cli.options.list_options import past_text, span_us
from tests.support.service.command_line import run_command


def command_of(line):
    """Return the command that a line begins with, of one or two words."""
    return next(name for name in COMMANDS if f"{line} ".startswith(f"{name} "))


def test_an_example_is_parsed(subtests):
    """Its options exist, and its spans are spans."""
    for words in (words for examples in EXAMPLES.values() for _, words in examples):
        with subtests.test(words):
            line = words.partition(" | ")[0]
            command = command_of(line)
            arguments = shlex.split(line.removeprefix(command))
            values = imported_command(command).make_context(command, arguments).params
            span_us(values.get("since"), values.get("until"))
            for name in ("at", "diff"):
                past_text(values.get(name) or "", f"--{name}")


def test_help_ends_with_the_examples_line_by_line():
    for examples in EXAMPLES.values():
        out = run_command(*command_of(examples[0][1]).split(), "--help").stdout
        assert all(f"  # {about}\n    gang-extender {words}\n" in out for about, words in examples)
    assert examples_text("serve") is None
