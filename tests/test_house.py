"""Rules of this repository that no linter checks: names, folders, docstrings, words, and a stored sample per event.

`make house` runs them, one case per rule; what a rule finds is in one message, each with file, line and what to do.
Owns the limits and the exceptions of today; the words are in `tests/house_words.py`. Exceptions may only shrink.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import get_args

import pytest

from extender.core.log.events import AnyEventData
from tests import house_words

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "extender").rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})
OURS = [
    path
    for folder in ("extender", "deploy", "migrations", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".yaml", ".yml", ".toml", ".md", ".sql", ".sh", "")
    and "__pycache__" not in path.parts
]  # fmt: skip
TESTS = [path for path in OURS if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]


def _name(path):
    return str(path.relative_to(ROOT))


@functools.cache
def _text(path):
    return path.read_text(errors="replace")


@functools.cache
def _nodes(path):
    return list(ast.walk(ast.parse(_text(path))))


def _calls(path, function):
    """Return the calls of a function or method of this name; a file without the name is not parsed."""
    return [
        node
        for node in (_nodes(path) if f"{function}(" in _text(path) else ())
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == function
    ]


def check(offences):
    """Fail with all that a rule found."""
    if offences := list(offences):
        pytest.fail("\n".join([f"{len(offences)} to mend:", *offences]), pytrace=False)


def test_every_module_has_a_docstring():
    """Each module starts with a docstring."""
    check(
        f"{_name(path)}:1: begin it with a docstring"
        for path in MODULES
        if not ast.get_docstring(_nodes(path)[0])
    )


# --- names and folders

FOLDER_MODULES_MAX = 20  # without __init__.py
DOCSTRING_SENTENCES_MAX = 2
# Classes that have a namesake. May only shrink.
DUPLICATE_CLASSES: set[str] = set()
# Types of Kubernetes: the same kind exists in several API groups and versions.
KUBERNETES_TYPES = ("extender/cluster/types.py",)


def _several(names):
    """Return the places of each name that has more than one."""
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def test_base_names_of_modules_are_unique():
    """No two modules in the same folder of extender/, and below it, have the same base name."""
    names = [((_name(path).split("/")[1], path.stem), _name(path)) for path in MODULES]
    several = _several(
        (name, place) for name, place in names if name[1] not in ("__init__", "__main__")
    )
    check(f"{', '.join(places)}: rename all but one" for places in several.values())


def test_public_names_of_classes_are_unique():
    """No two public classes of extender/ have the same name, but for the exceptions of today."""
    several = _several(
        (node.name, f"{_name(path)}:{node.lineno}")
        for path in MODULES
        if not _name(path).startswith(KUBERNETES_TYPES)
        for node in _nodes(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    check(
        f"{', '.join(places)}: rename all classes {name} but one"
        for name, places in several.items()
        if name not in DUPLICATE_CLASSES
    )
    assert several.keys() >= DUPLICATE_CLASSES, "remove these from DUPLICATE_CLASSES"


# Names that fit any value: a variable is named for what it holds.
VAGUE_NAMES = {"found", "one", "wanted", "known", "here", "there", "thing", "things", "gone", "seen", "made", "what"}  # fmt: skip


def _local_names(function):
    """Return the names that a function assigns, and those of its parameters, each with a line."""
    names = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id.strip("_")] = node.lineno
        elif isinstance(node, ast.arg):
            names[node.arg.strip("_")] = node.lineno
    return names


def test_local_names_are_not_vague():
    """No function has a variable or a parameter with a name that fits any value."""
    check(
        f"{_name(path)}:{min(names.values())}: name {', '.join(names)} in {node.name} for what it holds"
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (names := {n: at for n, at in _local_names(node).items() if n in VAGUE_NAMES})
    )


def test_a_folder_has_few_modules():
    """A folder has at most 20 modules."""
    numbers = {
        folder: sum(path.stem != "__init__" for path in folder.glob("*.py")) for folder in FOLDERS
    }
    check(
        f"{_name(folder)}: {number} modules are more than {FOLDER_MODULES_MAX}; divide it"
        for folder, number in numbers.items()
        if number > FOLDER_MODULES_MAX
    )


# A module is a subject: it has two importers in the product, or this many lines.
SATELLITE_LINES_MIN = 150
# Modules that have one importer and fewer lines today, below extender/. May only shrink.
SATELLITES = {
    "cli/options/command_examples.py",
    "control/actuators/finalizer_controller.py",
    "control/log/log_head_publisher.py",
    "control/monitors/clock_monitor.py",
    "control/monitors/feature_gate_monitor.py",
    "verification_worker.py",
}
IMPORTING = [*MODULES, *sorted((ROOT / "deploy").rglob("*.py"))]


def _module_named(name):
    """Return the file of a module by its dotted name, or None."""
    file = ROOT / f"{name.replace('.', '/')}.py"
    return file if file.is_file() else None


def _imports(path):
    """Yield the modules of extender/ that a file imports."""
    for node in _nodes(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from filter(None, map(_module_named, names))


def _entry_points():
    """Yield the modules that commands, `python -m` or a text of the code begin with, and those that are public in their folder."""
    scripts = re.findall(r'= "(extender[\w.]+):', _text(ROOT / "pyproject.toml"))
    yield from filter(None, map(_module_named, scripts))
    for path in IMPORTING:
        docstrings = {id(node.value) for node in _nodes(path) if isinstance(node, ast.Expr)}
        for node in _nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:  # fmt: skip
                names = re.findall(r"\bextender(?:\.\w+)+", node.value)
                yield from filter(None, map(_module_named, names))
        if path.stem == "__init__":
            yield from (module for module in _imports(path) if module.parent == path.parent)
        if re.search(r"^if __name__ == ", _text(path), re.MULTILINE):
            yield path


def test_a_module_has_two_importers_or_many_lines():
    """What has one importer and is short is a part of it, but for the exceptions of today."""
    importers = Counter(module for path in IMPORTING for module in {*_imports(path)} - {path})
    entries = {*_entry_points()}
    satellites = {
        str(path.relative_to(ROOT / "extender")): len(_text(path).splitlines())
        for path in MODULES
        if path.stem not in ("__init__", "__main__")
        and importers[path] <= 1 and path not in entries
    }  # fmt: skip
    satellites = {name: n for name, n in satellites.items() if n < SATELLITE_LINES_MIN}
    check(
        f"extender/{name}: {lines} lines and {importers[ROOT / 'extender' / name]} importer; make it a part of that module"
        for name, lines in satellites.items()
        if name not in SATELLITES
    )
    assert satellites.keys() >= SATELLITES, "remove the others from SATELLITES"


def test_the_docstring_of_a_folder_is_short():
    """Each folder has an __init__.py whose docstring is one or two sentences; the topmost gives the reading order too."""
    offences = []
    for folder in FOLDERS:
        file = folder / "__init__.py"
        text = ast.get_docstring(_nodes(file)[0]) if file.is_file() else None
        sentences = re.findall(r"[.!?](?=\s|$)", text or "")
        if not sentences:
            offences.append(f"{_name(file)}:1: write one sentence about what belongs in the folder")
        elif folder != ROOT / "extender" and len(sentences) > DOCSTRING_SENTENCES_MAX:
            offences.append(f"{_name(file)}:1: shorten the docstring to one or two sentences")
    check(offences)


def test_no_file_has_a_banned_word():
    """No tracked text has a word of `banned_words.txt`."""
    check(f"{place}: replace {word!r}" for place, word in house_words.occurrences())


# --- tests

# Its number of examples is what the caller gives.
OWN_EXAMPLES = {
    "tests/support/hypothesis_profile.py",
    "tests/acceptance/test_openapi_conformance.py",
}


def test_numbers_of_examples_come_from_the_profile():
    """No hypothesis test has `settings` of its own: the same number in `make test` and in `make test-full` is too large or too small."""
    check(
        f"{_name(path)}:{node.lineno}: use `examples` of tests/support/hypothesis_profile.py, not `settings`"
        for path in TESTS
        if _name(path) not in OWN_EXAMPLES and re.search(r"\bsettings\b", _text(path))
        and "hypothesis" in _text(path)
        for node in _nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "hypothesis"
        and any(alias.name == "settings" for alias in node.names)
    )  # fmt: skip


SLEEP_MAX_S = 0.1  # a unit test that polls may sleep for less


def _slept_s(call):
    """Return the seconds of a call of sleep whose argument is a literal, else 0."""
    literal = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
    return literal if isinstance(literal, int | float) else 0


def test_unit_tests_do_not_sleep():
    """Unit tests wait for conditions: a sleep is too long on a quiet machine and too short on a busy one."""
    check(
        f"{_name(path)}:{call.lineno}: wait for a condition (tests/support/waiting.py), not for {_slept_s(call)} s"
        for path in TESTS
        if path.is_relative_to(ROOT / "tests/unit")
        for call in _calls(path, "sleep")
        if _slept_s(call) >= SLEEP_MAX_S
    )


# --- events

SAMPLES = ROOT / "tests/golden/events"
EVENT_TYPES = {kind.__name__: kind for kind in get_args(AnyEventData)}


def test_every_event_type_has_a_stored_sample():
    """Each version of each event type has a golden file: an event that was written once must stay readable."""
    files = [
        SAMPLES / f"{name}.v{number}.json"
        for name, kind in EVENT_TYPES.items()
        for number in range(1, kind.VERSION + 1)
    ]
    check(f"{_name(file)}: store a sample" for file in files if not file.is_file())


def test_every_sample_is_of_a_known_event_type():
    """Each golden file belongs to an event type: the list is closed."""
    names = {path.name.partition(".")[0] for path in SAMPLES.glob("*.json")}
    check(
        f"{_name(SAMPLES)}/{name}.*: no event type has this name" for name in names - {*EVENT_TYPES}
    )


def test_the_state_table_has_each_event_type_once():
    """The state table of extender/README.md has one row per event type."""
    text = _text(ROOT / "extender/README.md")
    rows = text.partition("| event | condition |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert sorted(names) == sorted(EVENT_TYPES)


# --- rules with an id, and the documents that define them

RULE_PAGES = sorted((ROOT / "docs/reference").glob("*.md"))
VECTORS = ROOT / "tests/golden/vectors.yaml"
RULE_ID = re.compile(
    r"(?<![\w./-])([ACE]\.\d{1,2}|E-\d{1,2}|LOG-\d{1,2}|[AEGHKLPTV]\d{2}|[BDWX][1-9]\d?)(?![\w-]|\.\w)"
)
# Documents that the repository never had; `EXTENDER` is a constant, too, so there a number, part or ending follows.
FORMER_DOCUMENT = re.compile(
    r"\b(SP" + r"EC|DES" + r"IGN|EVENT" + r"STORE|EXT" + r"ENDER(?=\.md|,? (part |section )?\d))\b"
)
CITING = [
    *(path for path in OURS if path.suffix in (".py", ".md", ".yaml", ".yml", ".sql")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
]


def _defined_ids():
    """Return the ids of rules, with the number of their definitions: first cells of tables, and vectors."""
    cell = re.compile(r"^\| ([A-Z][A-Z.-]*\d+) \|", re.MULTILINE)
    ids = [name for page in RULE_PAGES for name in cell.findall(_text(page))]
    return Counter([*ids, *re.findall(r"^- \{id: (\w+),", _text(VECTORS), re.MULTILINE)])


def test_the_rules_that_are_cited_exist():
    """Each id in code, tests and documents is defined in docs/reference or is that of a vector."""
    defined = _defined_ids()
    assert {"C.4", "E-3", "B9", "X14", "L27", "K25", "LOG-1", "V11"} <= defined.keys()
    check(
        f"{place}: no page of docs/reference defines {name}"
        for path, place, line in _lines(CITING)
        if not path.is_relative_to(ROOT / "tests/golden") or path == VECTORS
        for name in RULE_ID.findall(line)
        if name not in defined
    )


def test_each_rule_is_defined_once():
    """Two rules, or a rule and a vector, never share an id."""
    check(f"{name}: is defined {n} times" for name, n in _defined_ids().items() if n > 1)


def test_no_document_of_former_times_is_cited():
    """What readers do not have is not cited: the rule itself, or its id in docs/reference, stands in its place."""
    check(
        f"{place}: {match[0]} is not in this repository; cite docs/reference"
        for _, place, line in _lines(CITING)
        for match in FORMER_DOCUMENT.finditer(line)
    )


# --- texts

NAMING_MODULES = ("extender/__init__.py", "extender/README.md")
FOLDERS_NAMED = "core|control|queries|snapshots|runtime|ports|store|cluster|http|cli"


def _lines(paths):
    """Yield file, place and text of each line."""
    for path in paths:
        for number, line in enumerate(_text(path).splitlines(), 1):
            yield path, f"{_name(path)}:{number}", line


def test_the_modules_that_are_named_exist():
    """Each `folder/module.py` that the two documents name is a file."""
    named = [
        (path, place, module)
        for path, place, line in _lines(ROOT / name for name in NAMING_MODULES)
        for module in re.findall(rf"`((?:{FOLDERS_NAMED})/[\w/]+\.py)`", line)
    ]
    assert {_name(path) for path, _, _ in named} == {*NAMING_MODULES}
    check(
        f"{place}: there is no extender/{module}"
        for _, place, module in named
        if not (ROOT / "extender" / module).is_file()
    )


def test_only_the_command_line_prints():
    """Modules outside cli/ do not call print: a service writes log lines."""
    check(
        f"{_name(path)}:{call.lineno}: write a log line, do not print"
        for path in MODULES
        if ROOT / "extender/cli" not in path.parents
        for call in _calls(path, "print")
        if isinstance(call.func, ast.Name)
    )


def test_no_marks_of_unfinished_work():
    """The sources have no comment that marks unfinished work."""
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    marked = [path for path in OURS if mark.search(_text(path))]
    check(
        f"{place}: finish it, or remove the mark: {line.strip()}"
        for _, place, line in _lines(marked)
        if mark.search(line)
    )


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
    "tests/golden/chart-values-before.yaml",  # as deploy/chart/values.yaml was
)


def test_no_registry_is_named():
    """No file names a package registry, which the user configures; images are named in deploy/ only."""
    top = [
        ROOT / name for name in ("pyproject.toml", "Makefile", "README.md", "docker-compose.yml")
    ]
    naming = [
        path
        for path in [*OURS, *top, *ROOT.glob("*.lock")]
        if any(host in _text(path) for host in (*PACKAGES, *IMAGES))
    ]
    check(
        f"{place}: remove {host}; who installs names the registry"
        for path, place, line in _lines(naming)
        for host in (*PACKAGES, *(() if _name(path).startswith(NAMES_IMAGES) else IMAGES))
        if host in line
    )
