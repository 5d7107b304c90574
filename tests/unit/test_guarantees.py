"""docs/explanation/guarantees.md: each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GUARANTEES = ROOT / "docs/explanation/guarantees.md"


def named():
    """Return page, file and function of each test that a page names by both."""
    return sorted({(p.name, *found) for p in PAGES for found in NAMED.findall(p.read_text())})


@pytest.mark.parametrize(("page", "file", "name"), named())
def test_each_test_that_a_page_names_exists(page, file, name):
    """The file has a test of that name."""
    path = ROOT / file
    assert path.is_file(), page
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    assert name in names, page


def test_each_guarantee_has_a_test():
    """Every row of the table names at least one."""
    table = GUARANTEES.read_text().partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = table.splitlines()
    assert rows
    assert [row for row in rows if not NAMED.search(row)] == []
