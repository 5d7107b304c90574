"""The tables of docs/workloads.md have every reason of a refusal and every notice that the code has, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.core.model.pod_groups import CHILDREN_MAX, DEPTH_MAX

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "workloads.md").read_text()
FOLDERS = ("extender/core/workloads", "extender/core/trees", "extender/control/trees")
CAMEL = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)+")
# who makes a refusal from a reason that is one of its positional arguments
REFUSING = ("refusal_of", "_invalid", "refusal")
# of a workload that is left alone: no Event and no line of `trees` has it; and the Event of each tree that is made
NOT_REFUSED = {"ScheduledByOther", "TreeCompiled"}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield each call, with its folder and the name of what is called; defaults of a function as arguments of a call of it."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    yield folder, node.name, ast.Call(ast.Name(node.name), node.args.defaults, [])
                if isinstance(node, ast.Call):
                    yield folder, getattr(node.func, "attr", getattr(node.func, "id", "")), node


def reasons_in_code() -> tuple[set[str], set[str]]:
    """Return the reasons of refusals and problems, and those of notices."""
    refusals, notices = set(), set()
    for folder, name, call in calls():
        given = [word.value for word in call.keywords if word.arg == "reason"]
        if name in REFUSING:
            given += [one for one in call.args if CAMEL.fullmatch(str(getattr(one, "value", "")))]
        found = {one.value for one in given if isinstance(one, ast.Constant)}
        # the controllers refuse: a problem of a group has the form of a notice, and is shown as a refusal
        is_notice = name == "Notice" and folder != "extender/control/trees"
        (notices if is_notice else refusals).update(found)
    return refusals - NOT_REFUSED, notices


def first_column(title: str) -> list[str]:
    """Return the first column of the table whose header starts with a title."""
    (table,) = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("title", ["reason", "notice"])
def test_the_table_is_complete(title):
    in_code = reasons_in_code()[title == "notice"]
    rows = first_column(title)
    assert len(rows) == len(set(rows))
    assert set(rows) == in_code


def test_what_a_refusal_is_made_with_is_found():
    """One of each way to write it: a keyword, an argument of a function, of a method."""
    refusals, notices = reasons_in_code()
    assert refusals > {"NameTaken", "NoSuchProfile", "WorkloadMissing"}
    assert "SequencedStart" in notices


def test_numbers_in_the_table_are_those_of_the_code():
    assert f"more than {CHILDREN_MAX} groups" in TEXT
    assert f"more than {CHILDREN_MAX} Jobs" in TEXT
    assert DEPTH_MAX == 4  # "four levels"
