"""The commands of the program that pages name: in backquotes within a sentence, or in a line of an indented block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(
        page
        for folder in ("alerts", "how-to", "reference", "runbook", "troubleshooting", "tutorials", "explanation")
        for page in sorted((ROOT / "docs" / folder).rglob("*.md"))
        if "generated" not in page.parts  # only there after `make docs`
    ),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    ROOT / "deploy/README.md",
    ROOT / "deploy/QUESTIONS.md",
    ROOT / "deploy/skill/SKILL.md",
]  # fmt: skip
_PROGRAM = r"(?:gang-extender|kubectl gang) "
_COMMAND = re.compile(
    rf"`{_PROGRAM}([^`]*)`|^    (?:\$ )?{_PROGRAM}([^#|\n]*)|^\$ {_PROGRAM}([^#|\n]*)", re.MULTILINE
)


def documented_commands() -> Iterator[tuple[str, str]]:
    """Yield place (file and line) and words of each command that a page names."""
    for path in PAGES:
        page = path.read_text()
        for match in _COMMAND.finditer(page):
            text = "".join(match.groups("")).partition(" | ")[0].strip().removesuffix("\\")
            if text not in ("", "...") and not text.startswith("--install") and "<Tab>" not in text:
                line = page.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}", text
