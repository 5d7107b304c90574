"""Outputs of commands in a document: each section has one, and a test compares it with what is printed.

GANG_EXTENDER_WRITE_GOLDEN=1 writes the outputs into the document instead.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_SECTION = re.compile(r"^## (?P<title>.+?)$\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def fixed_parts(source: ast.AST) -> set[str]:
    """Return the longest fixed part of every f-string in Python code."""
    found = set()
    for node in ast.walk(source):
        if isinstance(node, ast.JoinedStr):
            fixed = [str(p.value) for p in node.values if isinstance(p, ast.Constant)]
            found.add(max(fixed, key=len, default=""))
    return found


class DocumentOutputs:
    """The sections of a document, and in each the output of one command with its arguments."""

    def __init__(self, name: str, command: str) -> None:
        self._path = DOCS / name
        self._block = re.compile(
            rf"^    \$ {re.escape(command)} (?P<name>\S.*)\n(?P<output>(?:    .*\n)*)", re.MULTILINE
        )

    def titles(self) -> list[str]:
        """Return the titles of the sections, in order."""
        return [*self._sections()]

    def first_lines(self) -> list[str]:
        """Return the first line of each output, in order."""
        return [
            found["output"].strip().partition("\n")[0]
            for found in map(self._block.search, self._sections().values())
            if found is not None
        ]

    async def compare(self, title: str, printed_for: Callable[[str], Awaitable[str]]) -> None:
        """Compare the output of a section with what is printed for its argument, or write it."""
        section = self._sections()[title]
        found = self._block.search(section)
        assert found is not None, f"section {title!r} has no block with the command"
        printed = await printed_for(found["name"])
        output = "".join(f"    {line.rstrip()}\n" for line in printed.splitlines())
        if os.environ.get("GANG_EXTENDER_WRITE_GOLDEN"):
            new = section[: found.start("output")] + output + section[found.end("output") :]
            self._path.write_text(self._path.read_text().replace(section, new))
            return
        assert found["output"] == output

    def _sections(self) -> dict[str, str]:
        return {m["title"]: m["text"] for m in _SECTION.finditer(self._path.read_text())}
