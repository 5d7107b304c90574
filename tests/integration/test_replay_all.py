"""`decision replay --all` on a log that a real service wrote: by this version, by others in environments of their own, over HTTP.

Another version is a copy of this one in a folder, with a change in its text, in a virtual environment that has it in the place of
this one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.logs.postgres import fresh_database, run
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import ROOT, Replica

pytestmark = pytest.mark.postgres
GANGS = {"train": 2, "serve": 3, "large": 40}  # the last one does not fit
PLAN = "core/planner/planning.py"
BEGIN_OF_PLAN = "    if not admissible(request.root):\n        return Refusal("
# Another planner: the first node by name is never used.
WITHOUT_FIRST_NODE = f"""\
    cordoned = msgspec.structs.replace(request.nodes[0], unschedulable=True)
    request = msgspec.structs.replace(request, nodes=(cordoned, *request.nodes[1:]))
{BEGIN_OF_PLAN}"""
REPLAY = "queries/log/decision_replay.py"
BEGIN_OF_REPLAY = "        if self._digest_of(stored) != data.input_digest:"
# A process that is killed in the middle: once at one position, at another one each time.
KILLED = f"""\
        import os
        from pathlib import Path
        marker = Path(__file__).with_name("killed")
        if position == {{always}} or position == {{once}} and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
{BEGIN_OF_REPLAY}"""


@dataclass(frozen=True)
class Log:
    """A log, its service, and the positions of its decisions by gang."""

    url: str
    server: str
    folder: Path
    admitted: dict[str, int]
    refused: int

    def replay(self, *words, served=False, code=0):
        """Replay all decisions; return what was printed."""
        environ = {
            "GANG_EXTENDER_DATABASE_URL": "" if served else self.url,
            "GANG_EXTENDER_DATA_DIR": "",
        }
        asked = ("--server", self.server) if served else ()
        done = run_command("decision", "replay", "--all", *words, *asked, **environ)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def report(self, *words, **options):
        """Replay all decisions; return the report."""
        return json.loads(self.replay(*words, "-o", "json", **options).stdout)


@pytest.fixture(scope="module")
def log(tmp_path_factory, postgres_url, template_database):
    """Two gangs that are admitted, one that is refused, and the service that decided."""
    folder = tmp_path_factory.mktemp("manifests")
    objects = [*a_fleet("4 nodes", gpu=4)]
    for name, pods in GANGS.items():
        objects += a_gang(name, pods=pods)
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    with fresh_database(postgres_url, template=template_database) as url:
        replica = Replica(tmp_path_factory.mktemp("serve"), url, folder, "a", lease_duration_s=15)
        try:
            run(replica.until_leads())
            admitted = run(replica.until_events("?type=GangAdmitted", 2))
            refused = run(replica.until_events("?type=GangUnschedulable"))
            positions = {e["gang"].partition("/")[2]: e["position"] for e in admitted}
            yield Log(url, replica.url, folder, positions, refused[0]["position"])
        finally:
            replica.end()


@pytest.fixture
def other(tmp_path):
    """Return a function that makes another version and returns its interpreter."""

    def make(file, before, after):
        package = tmp_path / "other" / "extender"
        shutil.copytree(ROOT / "extender", package, ignore=shutil.ignore_patterns("__pycache__"))
        text = (package / file).read_text()
        assert text.count(before) == 1
        (package / file).write_text(text.replace(before, after))
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True
        )
        (folder,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        packages = [path for path in sys.path if path.endswith("site-packages")]
        (folder / "other.pth").write_text("\n".join([str(package.parent), *packages]))
        return str(tmp_path / "venv" / "bin" / "python")

    return make


def test_this_version_decides_everything_as_it_was_recorded(log):
    report = log.report()
    assert report["decided"] == report["same"] >= 3
    assert (report["different"], report["without_input"], report["replaced"]) == ([], 0, {})
    assert report["last_position"] >= max(log.refused, *log.admitted.values())
    printed = log.replay()
    assert printed.stdout.endswith(": all the same\n")
    assert "decisions/s with " in printed.stderr


def test_a_service_gives_the_same_report_as_its_database(log):
    assert log.report(served=True) == log.report()


def test_a_part_of_the_log_is_decided(log):
    position = min(log.admitted.values())
    assert log.report("--after", str(position))["decided"] == log.report()["decided"] - sum(
        p <= position for p in (log.refused, *log.admitted.values())
    )
    assert log.report("--since", "1h")["decided"] == log.report()["decided"]
    done = log.replay("--until", "2020-01-01", code=1)
    assert done.stderr.startswith(
        "gang-extender: the log has no decision of this time after position 0; "
    )
    done = log.replay("--after", "999999", code=1)
    assert done.stderr.startswith("gang-extender: the log has no decision after position 999999; ")


def test_another_version_differs_with_both_placements_and_reasons(log, other):
    python = other(PLAN, BEGIN_OF_PLAN, WITHOUT_FIRST_NODE)
    report = log.report("--python", python, code=1)
    moved = {d["position"]: d["result"] for d in report["different"]}
    assert log.admitted["train"] in moved
    for result in moved.values():
        assert not result["same"]
        assert result["differences"]
    before, now = (
        moved[log.admitted["train"]][f"answer_{when}"]["placed"] for when in ("recorded", "now")
    )
    assert len(before) == len(now) == GANGS["train"]
    assert any(" on n0" in text for text in before)
    assert not any(" on n0" in text for text in now)
    assert report["same"] == report["decided"] - len(report["different"])
    printed = log.replay("--python", python, code=1).stdout
    assert f"position {log.admitted['train']}, " in printed
    assert f"  now: placed {', '.join(now)}\n" in printed
    assert printed.splitlines()[-1].endswith(
        "1 differs" if len(moved) == 1 else f"{len(moved)} differ"
    )


@pytest.mark.full
def test_the_version_of_a_wheel_is_installed_by_pip_and_decides(log, tmp_path):
    """The wheel brings a way to the packages of this environment, so that pip needs no registry."""
    wheel = tmp_path / "gang_extender-0.0.9-py3-none-any.whl"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    texts = {
        "packages.pth": "\n".join(packages),
        "gang_extender-0.0.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: gang-extender\nVersion: 0.0.9\n",
        "gang_extender-0.0.9.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "gang_extender-0.0.9.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in (ROOT / "extender").rglob("*.py"):
            texts[str(file.relative_to(ROOT))] = file.read_text()
        texts["extender/__init__.py"] += '\n__version__ = "0.0.9"\n'
        for name, text in texts.items():
            archive.writestr(name, text)
    report = log.report("--with", str(wheel))
    assert (report["version"], report["different"]) == ("0.0.9", [])
    assert report["decided"] == log.report()["decided"]


def test_a_wheel_that_pip_cannot_install_is_named(log, tmp_path):
    wheel = tmp_path / "gang_extender-0.0.9-py3-none-any.whl"
    wheel.write_text("no archive")
    done = log.replay("--with", str(wheel), code=2)
    assert done.stderr.startswith(
        f"gang-extender: --with {wheel}: `-m pip install` failed: ERROR: "
    )


def test_a_smaller_search_budget_is_decided_with(log):
    """Where there is something to search, a budget of one search node finds less; the report names the setting."""
    report = log.report("--set", "search-budget=1", code=1)
    assert report["replaced"] == {"search_budget": "1"}
    (difference,) = report["different"]
    assert difference["position"] == log.refused
    recorded, now = (
        difference["result"][f"answer_{when}"]["reasons"] for when in ("recorded", "now")
    )
    free = 16 - sum(
        pods for name, pods in GANGS.items() if log.admitted.get(name, 1e9) < log.refused
    )
    assert f"minCount {free} instead of 40 at PodGroup default/large" in recorded
    assert "minCount 1 instead of 40 at PodGroup default/large" in now  # true, and less of a help
    assert log.report("--set", "search_budget=20000")["different"] == []


def test_a_process_that_is_killed_loses_no_decision(log, other):
    """The decision that kills each process is reported as that; all others are decided, also those of its batch."""
    always, once = log.admitted["train"], log.admitted["serve"]
    python = other(REPLAY, BEGIN_OF_REPLAY, KILLED.format(always=always, once=once))
    report = log.report("--python", python, "--processes", "2", code=1)
    assert report["decided"] == log.report()["decided"]
    (difference,) = report["different"]
    assert (difference["position"], difference["type"]) == (always, "GangAdmitted")
    assert (
        difference["error"] == "its process ended by signal 9, also when it decided this one alone"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--python", "/nowhere/python"), "--python /nowhere/python: is not a program; "),
        (("--python", "/"), "--python /: is not a program; "),
        (("--with", "pyproject.toml"), "--with pyproject.toml: is no wheel: those end with .whl\n"),
        (("--with", "/nowhere/x.whl"), "--with /nowhere/x.whl: there is no such file; "),
        (("--with", "x.whl", "--python", "p"), "--with x.whl: not together with --python p\n"),
        (("7",), "position 7: not together with --all\n"),
        (("--set", "search_budget"), "--set search_budget: is not NAME=VALUE, "),
        (("--set", "lease_duration_s=1"), "--set lease_duration_s=1: is not a part of recorded inputs, "),
        (("--set", "nonsense=1"), "--set nonsense=1: there is no such setting; those that can be set are search_budget\n"),
        (("--set", "search_budget=x"), "--set search_budget=x: 'x' is not a whole number, for example 20000\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_what_cannot_decide_is_named(words, expected, log):
    done = log.replay(*words, code=2)
    assert done.stderr.startswith(f"gang-extender: {expected}"), done.stderr


def test_an_environment_without_the_service_is_named(log, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    done = log.replay("--python", str(tmp_path / "bin" / "python"), code=2)
    assert "cannot replay decisions: ModuleNotFoundError: No module named " in done.stderr


@pytest.mark.parametrize(
    "words", [("3", "--since", "1d"), ("3", "--set", "search_budget=1")], ids=" ".join
)
def test_options_of_all_are_not_for_one(words, log):
    done = run_command("decision", "replay", *words, GANG_EXTENDER_DATABASE_URL=log.url)
    assert (done.returncode, done.stderr) == (2, f"gang-extender: {words[1]}: only with --all\n")
