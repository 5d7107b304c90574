"""Commands that pages name in passing are commands of the program, with these options and event types."""

from __future__ import annotations

import functools
import re
import shlex

import msgspec

from extender.cli.main import COMMANDS, imported_command
from extender.core.log.events import AnyEventData
from extender.queries.explain.explanation import Explanation
from tests.support.documented_commands import ROOT, documented_commands

SKILL = ROOT / "deploy/skill/SKILL.md"
EVENT_TYPES = {event.__name__ for event in AnyEventData.__args__}


@functools.cache
def options_of(words):
    """Return the options of a command."""
    parameters = imported_command(words).params
    return frozenset(name for one in parameters for name in (*one.opts, *one.secondary_opts))


@functools.cache
def needs_a_word(words):
    """Return whether a command has an argument that must be given."""
    parameters = imported_command(words).params
    return any(one.param_type_name == "argument" and one.required for one in parameters)


def faults_of(command):
    """Yield what is wrong with a command that a page names."""
    parts = shlex.split(command.replace("[", "").replace("]", ""))
    words = next((name for name in COMMANDS if parts[: len(name.split())] == name.split()), None)
    if parts == ["--help"]:
        return
    if words is None:
        yield "there is no such command"
        return
    rest = parts[len(words.split()) :]
    if rest and needs_a_word(words) and all(part.startswith("-") for part in rest):
        yield f"{words} needs an argument"
    yield from (
        f"{words} has no option {part}"
        for part in parts
        if re.match(r"--?\w", part) and part not in {"--help", *options_of(words)}
    )
    yield from (
        f"the log has no event type {kind}"
        for kind in re.findall(r"--type (\w+)", command)
        if kind not in EVENT_TYPES
    )


def test_each_command_is_one():
    """The command and its options exist; event types are those of the log."""
    named = list(documented_commands())
    assert named
    offences = [f"{place}: {fault}: {text}" for place, text in named for fault in faults_of(text)]
    assert not offences, "\n".join(offences)


def test_each_command_of_a_message_is_one():
    """What the program itself names in backquotes or after "gang-extender" in parentheses: a user copies it."""
    offences = []
    for path in sorted((ROOT / "extender").rglob("*.py")):
        for match in re.finditer(
            r"`gang-extender (\w[^`\n]*)`|\(gang-extender (\w[^()\n]*)\)", path.read_text()
        ):
            text = "".join(match.groups("")).replace('"', "")
            offences += [f"{path.relative_to(ROOT)}: {fault}: {text}" for fault in faults_of(text)]
    assert not offences, "\n".join(offences)


def test_the_skill_names_fields_of_the_answer():
    """What a language model is asked to read from `explain -o json` is there."""
    fields = {field.encode_name for field in msgspec.structs.fields(Explanation)}
    named = set(re.findall(r"^   - `(\w+)`:", SKILL.read_text(), re.MULTILINE))
    assert named
    assert named <= fields


def test_the_skill_has_the_head_that_tools_read():
    """Name and description, in YAML, first."""
    head = re.match(r"---\nname: [a-z-]+\ndescription: .{20,1024}\n---\n", SKILL.read_text())
    assert head is not None
