"""Processes of tests end: one whose test hangs, with its name in the report; and the commands of one that was killed."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """\
import tests.conftest
tests.conftest.AFTER_TIMEOUT_S = 1.0
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
    "takes the error of the timeout": """\
def test_hangs():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
    "holds the lock of the interpreter": """\
def test_hangs():
    wait_for_ever()
""",
    "in the teardown of a failed test": """\
@pytest.fixture
def slow():
    yield
    wait_for_ever()

def test_hangs(slow):
    assert False
""",
}
EPILOGUE = """
def test_passes():
    pass
"""


@pytest.mark.parametrize("body", HANGS.values(), ids=HANGS)
def test_a_test_that_hangs_is_ended_and_named(tmp_path, body):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(PROLOGUE + body + EPILOGUE)
    options = ("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "-o", "timeout=1", *options, "--rootdir=.", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "crashed while running 'test_it.py::test_hangs'" in done.stdout
    assert "1 passed" in done.stdout
    assert "Timeout (0:00:02)!" in done.stderr, done.stderr


STARTS_A_COMMAND = """\
import os, sys, time
from tests.support.service import fork_server
environ = {name: value for name, value in os.environ.items() if not name.startswith("GANG_EXTENDER_")}
environ["GANG_EXTENDER_DATABASE_URL"] = sys.argv[1]
with open(os.devnull, "wb") as output:
    print(fork_server.run(["serve"], environ, output).pid, flush=True)
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
            connection, _ = silent.accept()
            with connection:
                os.kill(pid, signal.SIGSTOP)
                killed.kill()
                ended = select.select([command], [], [], 30)[0]
                if not ended:
                    signal.pidfd_send_signal(command, signal.SIGKILL)
                assert ended, "it is still there"
            os.close(command)
