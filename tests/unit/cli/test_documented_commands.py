"""Commands that pages name in passing are commands of the program, with these options and event types."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import msgspec

from extender.cli.main import COMMANDS, imported_command
from extender.core.log.events import AnyEventData
from extender.queries.explain.explanation import Explanation

ROOT = Path(__file__).resolve().parents[3]
SKILL = ROOT / "deploy/skill/SKILL.md"
PAGES = [
    *(
        page
        for folder in ("alerts", "how-to", "troubleshooting", "tutorials", "explanation")
        for page in sorted((ROOT / "docs" / folder).rglob("*.md"))
    ), ROOT / "README.md", SKILL,
]  # fmt: skip
EVENT_TYPES = {event.__name__ for event in AnyEventData.__args__}
_PROGRAM = r"(?:gang-extender|kubectl gang) "
_COMMAND = re.compile(rf"`{_PROGRAM}([^`]*)`|^    (?:\$ )?{_PROGRAM}([^#|\n]*)", re.MULTILINE)


def commands():
    """Yield place (file and line) and words of each command that a page names."""
    for path in PAGES:
        page = path.read_text()
        for match in _COMMAND.finditer(page):
            text = "".join(match.groups("")).partition(" | ")[0].strip().removesuffix("\\")
            if text not in ("", "...") and not text.startswith("--install") and "<Tab>" not in text:
                line = page.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}", text


@functools.cache
def options_of(words):
    """Return the options of a command."""
    parameters = imported_command(words).params
    return frozenset(name for one in parameters for name in (*one.opts, *one.secondary_opts))


def faults_of(command):
    """Yield what is wrong with a command that a page names."""
    parts = shlex.split(command.replace("[", "").replace("]", ""))
    words = next((name for name in COMMANDS if parts[: len(name.split())] == name.split()), None)
    if words is None:
        yield "there is no such command"
        return
    yield from (
        f"{words} has no option {part}"
        for part in parts
        if re.match(r"--?\w", part) and part not in options_of(words)
    )
    yield from (
        f"the log has no event type {kind}"
        for kind in re.findall(r"--type (\w+)", command)
        if kind not in EVENT_TYPES
    )


def test_each_command_is_one():
    """The command and its options exist; event types are those of the log."""
    named = list(commands())
    assert named
    offences = [f"{place}: {fault}: {text}" for place, text in named for fault in faults_of(text)]
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
