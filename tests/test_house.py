"""What no linter has: every module says what it owns, every fact has a stored sample, nothing is left lying about."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from extender.core.log.events import AnyEventData

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


@pytest.mark.parametrize("fact", get_args(AnyEventData), ids=lambda fact: fact.__name__)
def test_every_fact_has_a_stored_sample(fact):
    """A golden file per fact and version, kept for ever: what was written once must be read for ever."""
    version = getattr(fact, "VERSION", 1)
    for number in range(1, version + 1):
        assert (ROOT / f"tests/golden/events/{fact.__name__}.v{number}.json").is_file()


def test_every_sample_is_of_a_known_fact():
    """No golden file without its fact: the list is closed."""
    known = {fact.__name__ for fact in get_args(AnyEventData)}
    found = {path.name.partition(".")[0] for path in (ROOT / "tests/golden/events").glob("*.json")}
    assert found == known


def test_the_state_table_has_each_fact_once():
    """extender/README.md: one row per fact, none missing, none twice."""
    text = (ROOT / "extender/README.md").read_text()
    rows = text.partition("| event | condition |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert sorted(found) == sorted(fact.__name__ for fact in get_args(AnyEventData))


@pytest.mark.parametrize("name", ["extender/__init__.py", "extender/README.md"])
def test_the_modules_that_are_named_exist(name):
    """Every `folder/module.py` in the map of the house is a file."""
    paths = re.findall(
        r"`((?:core|service|store|cluster|http|cli)/[\w/]+\.py)`", (ROOT / name).read_text()
    )
    assert paths
    assert [path for path in paths if not (ROOT / "extender" / path).is_file()] == []


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


SLEEP_MAX_S = 0.1  # a unit test that polls may rest for less


def _slept_s(call):
    """Give the seconds of a call of sleep whose argument is a literal, else 0."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    literal = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
    return literal if name == "sleep" and isinstance(literal, int | float) else 0


@pytest.mark.parametrize("path", sorted((ROOT / "tests/unit").rglob("*.py")), ids=_name)
def test_unit_tests_do_not_sleep(path):
    """Unit tests wait for what they wait for: a sleep is too long on a quiet machine and too short on a busy one."""
    calls = [
        (node.lineno, _slept_s(node))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _slept_s(node) >= SLEEP_MAX_S
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
