"""Waits count the time of the test, and a failed test prints what it waited for: `tests/support/waiting.py`, `failure_report.py`."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import waiting
from tests.support.waiting import WaitedInVain, answer_of, eventually, patient, until

ROOT = Path(__file__).parents[1]
PATIENCE_S = 30.0


class Machine:
    """A machine whose time passes while a test sleeps, and the CPU seconds that its processes get of it."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.share = 0.0
        self.runs = False

    def sleep(self, seconds):
        self.now_s += seconds
        self.cpu_s += seconds * self.share

    def waited_s(self, look=lambda: False, **options):
        """Wait in vain, and return for how long, without the look that other looks are compared with."""
        with pytest.raises(WaitedInVain):
            until(look, "nothing", every_s=0.5, patience_s=PATIENCE_S, **options)
        return self.now_s - waiting.LOOK_EVERY_S


@pytest.fixture
def machine(monkeypatch):
    virtual = Machine()
    clock = SimpleNamespace(monotonic=lambda: virtual.now_s, sleep=virtual.sleep)
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "POLL_FIRST_S", 0.5)  # looks come at whole and half seconds
    monkeypatch.setattr(waiting, "_work", lambda: waiting._Work(virtual.cpu_s, virtual.runs))
    return virtual


def test_an_idle_second_counts_as_one(machine):
    assert machine.waited_s() == PATIENCE_S


def test_little_work_is_idle(machine):
    """As of a service that only renews its lease, and of the test that polls it."""
    machine.share = waiting.BUSY_SHARE - 0.05
    assert machine.waited_s() == PATIENCE_S


@pytest.mark.parametrize("runs", [False, True])
def test_busy_seconds_count_as_cpu(machine, runs):
    """Whether a process runs at the moment of the look or has run before it."""
    machine.share, machine.runs = 0.5, runs
    assert machine.waited_s() == PATIENCE_S / 0.5


def test_a_starved_process_is_waited_for(machine):
    """It wants to run all the time, and gets nothing."""
    machine.runs = True
    until(lambda: machine.now_s > 100 * PATIENCE_S, patience_s=PATIENCE_S)


def test_time_when_stopped_hardly_counts(machine):
    """The machine slept, or this process: one look comes after a thousand seconds."""

    def look():
        if machine.now_s == 5.0:
            machine.now_s += 1000
        return False

    assert machine.waited_s(look) == pytest.approx(PATIENCE_S + 1000, abs=2 * waiting.LOOK_EVERY_S)


def test_ended_processes_take_nothing_back(machine):
    """Its CPU seconds are not in the sum any more."""

    def look():
        if machine.now_s == 5.0:
            machine.cpu_s = -1000
        return False

    assert machine.waited_s(look) == PATIENCE_S


def test_what_progresses_begins_anew(machine):
    """It progressed for the last time after 200 s; the failure has how far it came, and what was seen last."""
    progress = lambda: f"{min(10, machine.now_s // 20):.0f} of 12"
    with pytest.raises(WaitedInVain) as caught:
        until(list, "twelve", every_s=0.5, patience_s=PATIENCE_S, state=progress)
    assert machine.now_s == 200 + PATIENCE_S
    assert "for: twelve; the last look found []; meanwhile: 10 of 12" in str(caught.value)


def test_what_comes_is_returned(machine):
    """A wait that has its end leaves no trace."""
    waiting.broken_off().clear()
    assert until(lambda: machine.now_s > 100 and "found", patience_s=200) == "found"
    assert waiting.broken_off() == []
    with pytest.raises(WaitedInVain, match=r"test_waiting\.py:\d+"):
        until(lambda: None, patience_s=1)
    assert len(waiting.broken_off()) == 1


@pytest.fixture
def impatient(monkeypatch):
    """An idle machine, that is looked at often: event loops have no virtual time."""
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(waiting, "_work", lambda: waiting._Work(0.0, runs=False))
    return {"patience_s": 0.05}


async def test_what_is_awaited_is_cancelled(impatient):
    """And an error of the block, also of a timeout in it, is that error."""
    ended = []

    async def wait_for_ever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(WaitedInVain, match="for: the end of time"):
        async with patient("the end of time", **impatient):
            await wait_for_ever()
    assert ended == [True]
    for error in (TimeoutError, ValueError):
        with pytest.raises(error):
            async with patient("an error"):
                raise error


async def test_coroutines_are_looked_at_too(impatient):
    async def number():
        return 7

    async def none():
        return None

    assert await eventually(number) == await answer_of(number()) == 7
    with pytest.raises(WaitedInVain, match="none"):
        await eventually(none, **impatient)


def test_grandchildren_of_the_test_count():
    """Also indirectly: a busy grandchild runs and uses CPU seconds, and is not the test itself."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    before = waiting._work()
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        until(lambda: waiting._work().runs, "the grandchild runs")
        until(lambda: waiting._work().cpu_s > before.cpu_s + 0.2, "its CPU seconds")
    finally:
        os.killpg(child.pid, 9)
        child.wait()


FAILING = """
from tests.support import failure_report, waiting

def test_waits(tmp_path, monkeypatch):
    log = tmp_path / "service.log"
    failure_report.show_log(log)
    log.write_text("the first line" + 10_000 * " " + "the last line")
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    waiting.until(lambda: False, "the end of time", patience_s=0.0, state=lambda: "7 of 12")

def test_fails():
    assert False
"""


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_failure_prints_its_circumstances(tmp_path, workers):
    """What it waited for, seeds, load and the end of the log; the test after it has nothing of its wait and its log."""
    (tmp_path / "test_it.py").write_text(FAILING)
    plugins = [f"-p{name}" for name in ("xdist", "pytest_timeout", "pytest_randomly")]
    options = ("-ptests.conftest", "--randomly-seed=7", "--randomly-dont-reorganize", "--rootdir=.")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", workers, "-o", "timeout=600", *plugins, *options, "."],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    first, second = done.stdout.split("_ test_fails _")
    assert "for: the end of time; meanwhile: 7 of 12" in first
    assert " waited for -" in first
    assert " waited for -" not in second
    assert "\nthe end of time\n" in first
    assert "the last line" in first.partition("end of ")[2]
    assert "the first line" not in first.partition("end of ")[2]
    for report in (first, second):
        assert "PYTHONHASHSEED=3 HYPOTHESIS_PROFILE=" in report
        assert "-p randomly --randomly-seed=7" in report
        assert f"{os.cpu_count()} processors, load " in report
    assert "the end of time" not in second.partition("short test summary")[0]
    assert "the last line" not in second
