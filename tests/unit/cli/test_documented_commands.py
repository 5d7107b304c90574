"""Commands that pages name in passing are commands of the program, with these options and event types."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

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
_PROGRAM = r"(?:gang-extender|kubectl gang) "
_COMMAND = re.compile(rf"`{_PROGRAM}([^`]*)`|^    (?:\$ )?{_PROGRAM}([^#|\n]*)", re.MULTILINE)


def commands():
    """Yield page and words of each command that a page names."""
    for path in PAGES:
        for words in _COMMAND.findall(path.read_text()):
            text = "".join(words).partition(" | ")[0].strip().removesuffix("\\")
            if text not in ("", "...") and not text.startswith("--install") and "<Tab>" not in text:
                yield path.name, text


@pytest.mark.parametrize(("page", "command"), list(dict.fromkeys(commands())))
def test_each_command_is_one(page, command):
    """The command and its options exist; event types are those of the log."""
    parts = shlex.split(command.replace("[", "").replace("]", ""))
    words = next(
        (known for known in COMMANDS if parts[: len(known.split())] == known.split()), None
    )
    assert words is not None, f"{page}: there is no such command"
    known = {
        option
        for one in imported_command(words).params
        for option in (*one.opts, *one.secondary_opts)
    }
    assert {part for part in parts if re.match(r"--?\w", part)} <= known, page
    for kind in re.findall(r"--type (\w+)", command):
        assert kind in {event.__name__ for event in AnyEventData.__args__}, page


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
