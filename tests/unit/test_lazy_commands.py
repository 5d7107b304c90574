"""Only the command that runs is imported: what takes a second to import is not paid by those that do without."""

from __future__ import annotations

import inspect
import subprocess
import sys

import msgspec
import pytest
import typer.core

from extender.cli.main import COMMANDS, imported_command

# What takes longer to import than Python to start; our own packages import one of them each.
HEAVY = {
    "aiohttp", "alembic", "asyncpg", "kubernetes_asyncio", "numpy", "ortools", "prometheus_client", "rich",
    "sqlalchemy", "uvloop", "extender.cluster", "extender.http", "extender.store",
    "extender.composition",
}  # fmt: skip
# Prints to stderr which of them are there when the program ends.
PROBE = f"""
import atexit, sys
from extender.cli.main import main
heavy = {sorted(HEAVY)!r}
atexit.register(lambda: sys.stderr.write(repr([name for name in heavy if name in sys.modules])))
sys.argv[0] = "gang-extender"
main()
"""


def heavy_imports(*words):
    """Run the program in a process of its own; gives its exit code, stdout, and which of HEAVY it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], check=False, capture_output=True, text=True
    )
    _, _, imported = done.stderr.rpartition("[")
    return done.returncode, done.stdout, set(msgspec.json.decode("[" + imported.replace("'", '"')))


@pytest.mark.parametrize(
    ("words", "code", "there"),
    [
        (("--version",), 0, "gang-extender 0.1.0"),
        (("--help",), 0, "preemptions  Show preemptions: preemptor, victims, cost, alternatives"),
        (("db", "--help"), 0, "migrate  Migrate the database to the schema of this version."),
        (("nonsense",), 2, ""),
    ],
    ids=["version", "help", "help of a group", "nonsense"],
)
def test_the_program_alone_imports_nothing_heavy(words, code, there):
    ended, out, imported = heavy_imports(*words)
    assert (ended, imported) == (code, set())
    assert there in out


def test_the_table_has_the_first_line_of_each_docstring(subtests):
    """As `--help` of the program shows it; the command itself shows the whole docstring."""
    for name, (_, first_line) in COMMANDS.items():
        with subtests.test(name):
            command = imported_command(name)
            assert isinstance(command, typer.core.TyperCommand)
            assert command.name == name.split()[-1]
            assert inspect.getdoc(command.callback).splitlines()[0] == first_line


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (("verify",), {"aiohttp", "extender.cluster", "extender.http", "kubernetes_asyncio"}),
        (("db", "prune", "--days", "1"), {"aiohttp", "extender.cluster", "extender.http", "numpy"}),
        (("gangs",), {"extender.cluster", "extender.store", "kubernetes_asyncio", "sqlalchemy"}),
        (("plan",), {"aiohttp", "extender.store", "kubernetes_asyncio", "sqlalchemy"}),
        (("serve", "--listen", "8888"), {"extender.store", "kubernetes_asyncio", "uvloop"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_imports_only_what_it_needs(words, never, monkeypatch, tmp_path):
    """Also where there is nothing to ask: no log in the folder, and no service at the address."""
    monkeypatch.setenv("GANG_EXTENDER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("GANG_EXTENDER_SERVER", "http://127.0.0.1:9")
    code, out, imported = heavy_imports(*words)
    assert (code, out) == (2, "")
    assert not imported & never
