"""Processes of tests end: one whose test hangs, with its name in the report; and the commands of one that was killed."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until

ROOT = Path(__file__).parents[1]
CONFTEST = """\
import tests.conftest
tests.conftest.AFTER_TIMEOUT_S = 0.5
"""
PROLOGUE = """\
import ctypes
import time
import pytest

def wait_for_ever():  # in C, with the lock of the interpreter
    lock = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_mutex_lock(lock)
    ctypes.PyDLL(None).pthread_mutex_lock(lock)

"""
HANGS = {
    "takes_the_error_of_the_timeout": """\
@pytest.mark.timeout(0.5)
def test_hangs():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
    "holds_the_lock_of_the_interpreter": """\
@pytest.mark.timeout(0.5)
def test_hangs():
    wait_for_ever()
""",
    "in_the_teardown_of_a_failed_test": """\
@pytest.fixture
def slow():
    yield
    wait_for_ever()

@pytest.mark.timeout(0.5)
def test_hangs(slow):
    pytest.fail("at once, without a traceback, which would be made while the time runs", pytrace=False)
""",
}
EPILOGUE = """
def test_passes():
    pass
"""


@pytest.mark.full
def test_hanging_tests_are_ended_and_named(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, body in HANGS.items():
        (tmp_path / f"test_{name}.py").write_text(PROLOGUE + body + EPILOGUE)
    plugins = [f"-p{name}" for name in ("xdist", "pytest_timeout", "tests.conftest")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "-o", "timeout=600", *plugins, "--rootdir=.", "."],
        cwd=tmp_path,
        # the other plugins of this environment take a second of CPU to import, in each worker
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for name in HANGS:
        assert f"crashed while running 'test_{name}.py::test_hangs'" in done.stdout
    assert f"{len(HANGS)} passed" in done.stdout
    assert done.stderr.count("Timeout (0:00:01)!") == len(HANGS), done.stderr


STARTS_A_COMMAND = """\
import os, sys, time
from tests.support.service import fork_server
environ = {name: value for name, value in os.environ.items() if not name.startswith("GANG_EXTENDER_")}
environ["GANG_EXTENDER_DATABASE_URL"] = sys.argv[1]
with open(os.devnull, "wb") as output:
    print(fork_server.run(["serve", "--cluster", "deploy/examples/cluster.yaml"], environ, output).pid, flush=True)
time.sleep(600)
"""


def test_a_command_ends_with_the_test_process_that_was_killed():
    """It waits for a database that never answers, and is stopped, so that it does not end by itself."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database_url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d"
        killed = subprocess.Popen(
            [sys.executable, "-c", STARTS_A_COMMAND, database_url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with killed:
            pid = int(killed.stdout.readline())
            command = os.pidfd_open(pid)
            readable = until(
                lambda: select.select([silent, command], [], [], 0)[0],
                "the command connects or has ended",
            )
            assert readable == [silent], "the command ended before it asked for its database"
            connection, _ = silent.accept()
            with connection:
                os.kill(pid, signal.SIGSTOP)
                killed.kill()
                try:
                    until(lambda: select.select([command], [], [], 0)[0], "the command has ended")
                finally:
                    with contextlib.suppress(ProcessLookupError):  # it has ended
                        signal.pidfd_send_signal(command, signal.SIGKILL)
            os.close(command)
