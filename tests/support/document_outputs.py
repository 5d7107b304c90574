"""Outputs of commands in a document, or in the documents of a folder: a section has one, and a test compares it with what is printed.

GX_TEST_WRITE_GOLDEN=1 writes the outputs into the document instead.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_SECTION = re.compile(r"^##? (?P<title>.+?)$\n(?P<text>.*?)(?=^##? |\Z)", re.MULTILINE | re.DOTALL)


def fixed_parts(source: ast.AST) -> set[str]:
    """Return the longest fixed part of every f-string in Python code."""
    found = set()
    for node in ast.walk(source):
        if isinstance(node, ast.JoinedStr):
            fixed = [str(p.value) for p in node.values if isinstance(p, ast.Constant)]
            found.add(max(fixed, key=len, default=""))
    return found


class DocumentOutputs:
    """The sections of a document, or of all documents of a folder, that have the output of one command with its arguments."""

    def __init__(self, name: str, command: str) -> None:
        self._path = DOCS / name
        self._block = re.compile(
            rf"^    \$ {re.escape(command)} (?P<name>\S.*)\n(?P<output>(?:    .*\n)*)", re.MULTILINE
        )

    def paths(self) -> list[Path]:
        """Return the documents."""
        return sorted(self._path.glob("*.md")) if self._path.is_dir() else [self._path]

    def titles(self) -> list[str]:
        """Return the titles of the sections, in order."""
        return [title for _, title, _ in self._sections()]

    def outputs(self) -> list[str]:
        """Return the outputs, in order."""
        return [
            found["output"]
            for _, _, text in self._sections()
            if (found := self._block.search(text))
        ]

    def first_lines(self) -> list[str]:
        """Return the first line of each output, in order."""
        return [output.strip().partition("\n")[0] for output in self.outputs()]

    async def compare(self, title: str, printed_for: Callable[[str], Awaitable[str]]) -> None:
        """Compare the output of a section with what is printed for its argument, or write it."""
        path, _, section = next(one for one in self._sections() if one[1] == title)
        found = self._block.search(section)
        assert found is not None, f"section {title!r} has no block with the command"
        printed = await printed_for(found["name"])
        output = "".join(f"    {line.rstrip()}\n" for line in printed.splitlines())
        if os.environ.get("GX_TEST_WRITE_GOLDEN"):
            new = section[: found.start("output")] + output + section[found.end("output") :]
            path.write_text(path.read_text().replace(section, new))
            return
        assert found["output"] == output

    def _sections(self) -> list[tuple[Path, str, str]]:
        """Return document, title and text of each section with the command."""
        return [
            (path, m["title"], m["text"])
            for path in self.paths()
            for m in _SECTION.finditer(path.read_text())
            if self._block.search(m["text"])
        ]
