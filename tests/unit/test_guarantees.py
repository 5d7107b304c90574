"""docs/explanation/guarantees.md: each test that it names exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GUARANTEES = ROOT / "docs/explanation/guarantees.md"


@functools.cache
def functions_of(file):
    """Return the names of the functions of a file; none, if there is no such file."""
    if not (ROOT / file).is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, functions))


def test_each_test_that_a_page_names_exists():
    """The file has a test of that name."""
    named = [
        (f"{page.relative_to(ROOT)}:{number}", file, name)
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for file, name in NAMED.findall(line)
    ]
    assert named
    offences = [
        f"{place}: there is no test {name} in {file}"
        for place, file, name in named
        if name not in functions_of(file)
    ]
    assert not offences, "\n".join(offences)


def test_each_guarantee_has_a_test():
    """Every row of the table names at least one."""
    table = GUARANTEES.read_text().partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = table.splitlines()
    assert rows
    assert [row for row in rows if not NAMED.search(row)] == []
