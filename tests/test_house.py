"""What no linter has: every module says what it owns, every fact has a stored sample, nothing is left lying about."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from extender.core.events import AnyFact

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "extender").rglob("*.py"))
OURS = [
    path
    for folder in ("extender", "deploy", "migrations", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".yaml", ".yml", ".toml", ".md", ".sql", ".sh", "")
    and "__pycache__" not in path.parts
]  # fmt: skip


def _name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_what_it_owns(path):
    """A docstring at the head of each module."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{_name(path)} has no docstring"


@pytest.mark.parametrize("fact", get_args(AnyFact), ids=lambda fact: fact.__name__)
def test_every_fact_has_a_stored_sample(fact):
    """A golden file per fact and version, kept for ever: what was written once must be read for ever."""
    for number in range(1, fact.VERSION + 1):
        assert (ROOT / f"tests/golden/events/{fact.__name__}.v{number}.json").is_file()


def test_every_sample_is_of_a_known_fact():
    """No golden file without its fact: the list is closed."""
    known = {fact.__name__ for fact in get_args(AnyFact)}
    found = {path.name.partition(".")[0] for path in (ROOT / "tests/golden/events").glob("*.json")}
    assert found == known


@pytest.mark.parametrize(
    "path", [m for m in MODULES if m.parent.name != "cli"], ids=_name
)  # fmt: skip
def test_only_the_command_line_prints(path):
    """Everybody else logs: print in a service ends in nobody's hands."""
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert calls == []


def test_nothing_is_left_to_do():
    """No unfinished business in the sources (STYLE 3.1)."""
    word = "TO" + "DO"
    found = [
        f"{_name(path)}: {line.strip()}"
        for path in OURS
        for line in path.read_text(errors="replace").splitlines()
        if re.search(rf"\b({word}|FIX" + r"ME|XX" + r"X)\b", line)
    ]
    assert found == []


PACKAGES = ("py" + "pi.org", "python" + "hosted.org", "proxy.golang" + ".org",
            "registry.npm" + "js.org")  # fmt: skip
IMAGES = (
    "docker" + ".io/",
    "ghcr" + ".io/",
    "quay" + ".io/",
    "gcr" + ".io/",
    "registry.k8s" + ".io/",
)
NAMES_IMAGES = ("deploy/Dockerfile", "deploy/compose/", "deploy/kubernetes/", "docker-compose.yml")


def test_no_registry_is_named():
    """Where packages come from is the business of whoever installs; images are named where they are run, nowhere else."""
    top = (
        "pyproject.toml",
        "Makefile",
        "README.md",
        "docker-compose.yml",
        *(p.name for p in ROOT.glob("*.lock")),
    )
    found = [
        f"{_name(path)}: {host}"
        for path in [*OURS, *(ROOT / name for name in top)]
        for host in (*PACKAGES, *(() if _name(path).startswith(NAMES_IMAGES) else IMAGES))
        if host in path.read_text(errors="replace")
    ]
    assert found == []
