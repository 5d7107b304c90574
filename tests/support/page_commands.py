"""Commands of a page of the documentation, for tests that follow it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section_text(page: str, heading: str) -> str:
    """Return a section (of the second level) of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (body,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    return str(body)


def blocks(page: str, heading: str, language: str = "bash") -> list[str]:
    """Return the fenced blocks of a section that are in a language, in order."""
    text = section_text(page, heading)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """Split a block into commands; continued lines and a here-document belong to their command."""
    found: list[str] = []
    until, goes_on = "", False
    for line in block.splitlines():
        if until or goes_on:
            found[-1] += f"\n{line}"
            until = "" if line == until else until
        else:
            found.append(line)
        document = re.search(r"<<'(\w+)'", line)
        until = document.group(1) if document else until
        goes_on = not until and line.endswith("\\")
    assert not until, f"a command without an end: {found[-1]}"
    return found
