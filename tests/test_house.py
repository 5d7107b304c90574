"""Rules of this repository that no linter checks: names, folders, docstrings, words, and a stored sample per event.

Owns the limits and the exceptions of today; the words are in `tests/house_words.py`. Exceptions may only shrink.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import get_args

import pytest

from extender.core.log.events import AnyEventData
from tests import house_words

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


@functools.cache
def _parsed(path):
    return ast.parse(path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_has_a_docstring(path):
    """Each module starts with a docstring."""
    assert ast.get_docstring(_parsed(path)), f"{_name(path)} has no docstring"


# --- names and folders

FOLDERS = sorted({path.parent for path in MODULES})
FOLDER_MODULES_MAX = 12  # without __init__.py
DOCSTRING_SENTENCES_MAX = 2
# Classes that have a namesake. May only shrink.
DUPLICATE_CLASSES: set[str] = set()
# Types of Kubernetes: the same kind exists in several API groups and versions.
KUBERNETES_TYPES = ("extender/cluster/types/", "extender/cluster/crd/")


def _several(names):
    """Return the places of each name that has more than one."""
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_base_names_of_modules_are_unique():
    """No two modules of extender/ have the same base name."""
    names = [(path.stem, _name(path)) for path in MODULES]
    assert _several(one for one in names if one[0] not in ("__init__", "__main__")) == {}


def test_public_names_of_classes_are_unique():
    """No two public classes of extender/ have the same name, but for the exceptions of today."""
    found = _several(
        (node.name, _name(path))
        for path in MODULES
        if not _name(path).startswith(KUBERNETES_TYPES)
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: places for name, places in found.items() if name not in DUPLICATE_CLASSES} == {}
    assert found.keys() >= DUPLICATE_CLASSES, "remove these from DUPLICATE_CLASSES"


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_a_folder_has_few_modules(folder):
    """A folder has at most 12 modules."""
    modules = [path.name for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(modules) <= FOLDER_MODULES_MAX, modules


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_the_docstring_of_a_folder_is_short(folder):
    """Each folder has an __init__.py whose docstring is one or two sentences; the topmost gives the reading order too."""
    text = ast.get_docstring(_parsed(folder / "__init__.py")) or ""
    sentences = re.findall(r"[.!?](?=\s|$)", text)
    assert sentences
    assert folder == ROOT / "extender" or len(sentences) <= DOCSTRING_SENTENCES_MAX, text


def test_no_file_has_a_banned_word():
    """No tracked text has a word of `banned_words.txt`."""
    found = {name: sorted(set(words)) for name, words in house_words.occurrences().items()}
    assert found == {}, "replace these words"


# --- tests

# Its number of examples is what the caller gives.
OWN_EXAMPLES = {
    "tests/support/hypothesis_profile.py",
    "tests/acceptance/test_openapi_conformance.py",
}


def test_numbers_of_examples_come_from_the_profile():
    """No hypothesis test has `settings` of its own: the same number in `make test` and in `make test-full` is too large or too small."""
    found = {
        _name(path)
        for path in OURS
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ImportFrom) and node.module == "hypothesis"
        if any(alias.name == "settings" for alias in node.names)
    }
    assert found - OWN_EXAMPLES == set(), "use `examples` of tests/support/hypothesis_profile.py"


# --- events


@pytest.mark.parametrize("event_type", get_args(AnyEventData), ids=lambda kind: kind.__name__)
def test_every_event_type_has_a_stored_sample(event_type):
    """Each version of each event type has a golden file: an event that was written once must stay readable."""
    version = event_type.VERSION
    for number in range(1, version + 1):
        assert (ROOT / f"tests/golden/events/{event_type.__name__}.v{number}.json").is_file()


def test_every_sample_is_of_a_known_event_type():
    """Each golden file belongs to an event type: the list is closed."""
    known = {kind.__name__ for kind in get_args(AnyEventData)}
    found = {path.name.partition(".")[0] for path in (ROOT / "tests/golden/events").glob("*.json")}
    assert found == known


def test_the_state_table_has_each_event_type_once():
    """The state table of extender/README.md has one row per event type."""
    text = (ROOT / "extender/README.md").read_text()
    rows = text.partition("| event | condition |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert sorted(found) == sorted(kind.__name__ for kind in get_args(AnyEventData))


@pytest.mark.parametrize("name", ["extender/__init__.py", "extender/README.md"])
def test_the_modules_that_are_named_exist(name):
    """Each `folder/module.py` that the document names is a file."""
    paths = re.findall(
        r"`((?:core|control|queries|snapshots|runtime|ports|store|cluster|http|cli)/[\w/]+\.py)`",
        (ROOT / name).read_text(),
    )
    assert paths
    assert [path for path in paths if not (ROOT / "extender" / path).is_file()] == []


@pytest.mark.parametrize(
    "path", [m for m in MODULES if ROOT / "extender/cli" not in m.parents], ids=_name
)  # fmt: skip
def test_only_the_command_line_prints(path):
    """Modules outside cli/ do not call print: a service writes log lines."""
    calls = [
        node.lineno
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert calls == []


SLEEP_MAX_S = 0.1  # a unit test that polls may sleep for less


def _slept_s(call):
    """Return the seconds of a call of sleep whose argument is a literal, else 0."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    literal = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
    return literal if name == "sleep" and isinstance(literal, int | float) else 0


@pytest.mark.parametrize("path", sorted((ROOT / "tests/unit").rglob("*.py")), ids=_name)
def test_unit_tests_do_not_sleep(path):
    """Unit tests wait for conditions: a sleep is too long on a quiet machine and too short on a busy one."""
    calls = [
        (node.lineno, _slept_s(node))
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.Call) and _slept_s(node) >= SLEEP_MAX_S
    ]
    assert calls == []


def test_no_marks_of_unfinished_work():
    """The sources have no comment that marks unfinished work (STYLE 3.1)."""
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
NAMES_IMAGES = (
    "deploy/Dockerfile",
    "deploy/chart/",
    "deploy/compose/",
    "deploy/kubernetes/",
    "docker-compose.yml",
)


def test_no_registry_is_named():
    """No file names a package registry, which the user configures; images are named in deploy/ only."""
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
