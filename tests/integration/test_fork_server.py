"""A command that the fork server of the tests starts runs as one that is started with `python -m extender`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from deploy.demo.ports import free_port
from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--version"], 0), (["gangs", "--server", "http://127.0.0.1:1"], 2), (["nonsense"], 2)],
)
def test_output_and_exit_code_are_those_of_the_program(words, code, tmp_path):
    """Of a success, of a service that does not answer, and of a wrong word."""
    started = subprocess.run(
        [sys.executable, "-m", "extender", *words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    with (tmp_path / "output").open("wb") as output:
        forked = fork_server.run(words, os.environ, output)
    assert forked.wait() == forked.poll() == code
    assert (tmp_path / "output").read_bytes() == started.stdout + started.stderr
    assert started.returncode == code


def test_it_has_its_own_environment_and_session_and_ends_by_a_signal(tmp_path):
    """It warns about a variable that is no setting; SIGKILL is seen in the exit code, as with any child."""
    log = tmp_path / "log"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
    environ |= {
        "GANG_EXTENDER_LISTEN": f"127.0.0.1:{free_port()}",
        "GANG_EXTENDER_NONSENSE": "1",
        "GANG_EXTENDER_CLUSTER": str(tmp_path),
        "GANG_EXTENDER_DATABASE_URL": f"postgresql://127.0.0.1:{free_port()}/none",
    }
    with log.open("wb") as output:
        forked = fork_server.run(["serve"], environ, output)
    show_log(log)
    try:
        until(lambda: "GANG_EXTENDER_NONSENSE" in log.read_text(), "the warning")
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(0.01)
        assert os.getsid(forked.pid) == forked.pid
        assert Path(f"/proc/{forked.pid}/cwd").resolve() == fork_server.ROOT
    finally:
        forked.kill()
    assert forked.wait() == -signal.SIGKILL
    assert not Path(f"/proc/{forked.pid}").exists()


def test_streams_and_folder_are_those_asked_for(tmp_path):
    """What it reads comes from a pipe, output and errors go to different ones, and a file is named as the folder has it."""
    (tmp_path / "cluster.yaml").write_text("{apiVersion: v1, kind: Node, metadata: {name: n1}}")
    words = ["plan", "--cluster", "cluster.yaml", "-f", "-"]
    forked = fork_server.run(
        words, os.environ, PIPE, errors=PIPE, stdin=PIPE, folder=tmp_path, text=True
    )
    output, errors = forked.communicate("kind: [")
    assert (forked.returncode, output) == (2, "")
    assert errors.startswith("gang-extender: standard input: ")


def test_a_shell_gets_output_errors_and_exit_code_of_the_program(tmp_path):
    """Each of them in the folder of the shell, with its variables."""
    number = fork_server.program(tmp_path)
    environ = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GANG_EXTENDER_NONSENSE": "1",
    }
    script = "cd /; echo 'kind: [' | gang-extender plan --cluster absent.yaml -f - 2> %s; echo $?"
    done = subprocess.run(
        ["bash", "-c", script % (tmp_path / "errors")], env=environ, capture_output=True,
        pass_fds=[number], check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"2\n", b"")
    errors = (tmp_path / "errors").read_text()
    assert "GANG_EXTENDER_NONSENSE" in errors
    assert "absent.yaml" in errors


def test_a_command_without_an_exit_code_does_not_end_well(tmp_path, monkeypatch):
    """Else a shell whose fork server has ended would run nothing, and each of its commands would succeed."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(fork_server, "_server", lambda: mine)
    with mine, theirs:
        number = fork_server.program(tmp_path)
        with subprocess.Popen([tmp_path / "gang-extender", "verify"], stderr=PIPE, pass_fds=[number]) as program:  # fmt: skip
            _, files, _, _ = socket.recv_fds(theirs, 1 << 20, 4)
            for file in files:
                os.close(file)
            _, errors = program.communicate()
    assert (program.returncode, errors) == (1, b"the fork server of this test process has ended\n")


def test_a_constant_that_is_shortened_must_exist():
    """Else a test would wait for what it shortens since the constant has another name."""
    with fork_server.shortened({"control.monitors.log_verifier.NONSENSE_S": 1.0}):
        forked = fork_server.run(["--version"], os.environ, PIPE, errors=PIPE, text=True)
    output, errors = forked.communicate()
    assert (forked.returncode, output) == (1, "")
    assert "does not have the attribute 'NONSENSE_S'" in errors
