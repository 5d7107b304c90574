"""What a docstring shows as an example is what the code does: all of them in one case, as pytest would import every module to look for them."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = ">>" + "> "


def modules_with_examples():
    """Yield the modules that are worth an import."""
    for folder in ("extender", "deploy", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if MARK in path.read_text(encoding="utf-8"):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield importlib.import_module(name.removesuffix(".__init__"))


def test_examples_of_docstrings_are_right():
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    offences: list[str] = []  # each with file and line, what was expected and what came
    for module in modules_with_examples():
        for examples in finder.find(module):
            runner.run(examples, out=offences.append)
    assert runner.tries > 0
    assert not offences, "\n".join(offences)
