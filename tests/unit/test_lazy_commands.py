"""Only the command that runs is imported: what takes a second to import is not paid by those that do without."""

from __future__ import annotations

import inspect
import subprocess
import sys

import msgspec
import pytest
import typer.core

from extender.cli.main import COMMANDS, imported_command, main

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
        (("gangs",), {*HEAVY} - {"rich"}),
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


def test_plan_on_files_imports_no_package_of_the_extra_server():
    """All that it reads, plans and prints: the extra `plan` has numpy and ortools only."""
    code, out, imported = heavy_imports(
        "plan", "--cluster", "deploy/examples/cluster.yaml", "-f", "deploy/examples/train.yaml"
    )
    assert code == 0
    assert "placed" in out
    assert not imported & {
        "aiohttp", "alembic", "asyncpg", "kubernetes_asyncio", "prometheus_client", "sqlalchemy", "uvloop",
    }  # fmt: skip


# Makes the packages of the extras of pyproject.toml as absent as they are in an installation of the client. Runs each command
# of its standard input in a fork, after the imports that all of them make; prints exit codes and errors.
WITHOUT_EXTRAS = """
import importlib.abc, json, os, re, sys
from importlib.metadata import requires
texts = [text for text in requires("gang-extender") if re.search("extra == .(server|plan)", text)]
absent = {re.match("[a-z0-9-]+", text)[0].replace("-", "_") for text in texts}
assert {"aiohttp", "numpy", "kubernetes_asyncio"} <= absent

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import msgspec, rich, typer.core, yaml
from extender.cli.main import main
ended = []
for words in json.load(sys.stdin):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, file in enumerate((nothing, nothing, writing)):
            os.dup2(file, number)
        sys.argv[1:] = words
        sys.exit(main())
    os.close(writing)
    with os.fdopen(reading) as errors:
        text = errors.read()
    ended.append((os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text))
json.dump(ended, sys.stdout)
"""


def clients(commands):
    """Run commands as the base package has them; gives exit code and stderr of each."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        check=True, stdout=subprocess.PIPE, input=msgspec.json.encode(commands),
    )  # fmt: skip
    ended = msgspec.json.decode(done.stdout, type=list[tuple[int, str]])
    return dict(zip(map(tuple, commands), ended, strict=True))


ASKING = (
    "gangs", "trees", "status", "events", "events --follow", "preemptions", "state", "report pending", "verify", "history default/train",
    "explain train", "explain train --why-preempted", "moves", "moves pause", "drain n1", "drain n1 --apply", "make-room --free rack=1",
    "make-room --for deploy/examples/train.yaml", "make-room --for default/train", "report fragmentation",
    "plan --all-pending", "plan -f deploy/examples/train.yaml",
)  # fmt: skip


def test_the_client_asks_a_service_without_the_packages_of_an_extra(subtests):
    """Each gets as far as the address, at which nothing listens."""
    asking = [(*command.split(), "--server", "http://127.0.0.1:9") for command in ASKING]
    for words, (code, err) in clients(asking).items():
        with subtests.test(words):
            assert code == 2
            assert "no answer from http://127.0.0.1:9: nothing listens on port 9 there" in err


WITH_EXTRAS = {
    ("serve",): ("uvloop", "server"),
    ("plan", "--cluster", "deploy/examples/cluster.yaml"): ("numpy", "plan"),
    ("drain", "n1", "--cluster", "deploy/examples/cluster.yaml"): ("numpy", "plan"),
    ("certs", "folder"): ("cryptography", "server"),
    ("keys", "file"): ("cryptography", "server"),
    ("simulate", "--cluster", "file", "--workloads", "file"): ("aiohttp", "server"),
    ("db", "migrate"): ("prometheus-client", "server"),
    ("history", "default/train", "--data-dir", "folder"): ("prometheus-client", "server"),
}


def test_what_the_client_cannot_do_names_the_extra(subtests):
    """The proxy needs none."""
    ended = clients([("proxy", "--help"), *WITH_EXTRAS])
    assert ended.pop(("proxy", "--help")) == (0, "")
    for words, (package, extra) in WITH_EXTRAS.items():
        with subtests.test(words):
            assert ended[words] == (2, f"gang-extender: `gang-extender {words[0]}` needs {package}, which is not in the client: "
                                       f"pip install 'gang-extender[{extra}]'\n")  # fmt: skip


def test_a_picture_without_pillow_names_the_extra_before_the_simulation(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setitem(sys.modules, "PIL", None)  # as absent as without the extra
    file = tmp_path / "week.png"
    words = ("simulate", "--cluster", "no-file", "--workloads", "no-file", "--plot", str(file))
    monkeypatch.setattr(sys, "argv", ["gang-extender", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == (
        f"gang-extender: --plot {file}: needs Pillow, which is not installed: "
        "pip install 'gang-extender[png]', or name an .svg\n"
    )
