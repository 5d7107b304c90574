"""`serve` on a terminal prints where it listens, where the page is and what it uses; elsewhere it prints JSON only."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import urllib.request

import pytest

from tests.support.failure_report import show_log
from tests.support.service.command_line import run_command

pytestmark = pytest.mark.postgres


def read_terminal(terminal, count):
    """Read lines from the controlling side of a terminal until there are so many, or the other side is closed."""
    text = b""
    while text.count(b"\n") < count:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the other side is closed
            break
        text += piece
    return text.decode().replace("\r\n", "\n")


def test_on_a_terminal_four_lines_name_where_it_is_and_what_it_uses(serve, manifests, tmp_path):
    """On stderr, while the log stays JSON on stdout; the address that is named leads to the page; Ctrl-C stops it."""
    ours, theirs = pty.openpty()
    path = tmp_path / "out"
    with path.open("wb") as log:
        process, address, database_url = serve(
            "--cluster", str(manifests), stdout=log, stderr=theirs, GANG_EXTENDER_LISTENS="x"
        )
    os.close(theirs)
    show_log(path)
    warning, *lines = read_terminal(ours, 5).splitlines()
    assert warning == (
        "gang-extender: environment variable GANG_EXTENDER_LISTENS is not a setting; "
        "did you mean GANG_EXTENDER_LISTEN?"
    )
    page = f"http://{address}/"
    assert lines[0] == f"gang-extender 0.1.0 listens on {address}; the page is {page}"
    assert lines[1].startswith(f"Cluster: manifests in {manifests}. Event log: PostgreSQL at ")
    assert lines[1].endswith(f"/{database_url.rpartition('/')[2].partition('?')[0]}.")
    assert lines[2].startswith("There is no authentication: every user of this machine may ")
    assert lines[3] == "Log lines are JSON, on stdout. Ctrl-C stops the service."
    with urllib.request.urlopen(page) as reply:
        assert (reply.status, reply.url) == (200, f"{page}ui/")
    process.send_signal(signal.SIGINT)
    assert read_terminal(ours, 1) == ""
    assert process.wait() == 0
    os.close(ours)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert "listening" in [line["message"] for line in written]


def test_without_a_terminal_there_is_nothing_but_json(serve, manifests):
    """As a container runs it: each line of stdout is an object, and stderr is empty."""
    process, _, _ = serve(
        "--cluster", str(manifests), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    messages = []
    while "listening" not in messages:
        messages.append(json.loads(process.stdout.readline())["message"])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())


@pytest.mark.parametrize("option", ["--cluster", "--kubeconfig"])
def test_without_its_cluster_no_database_is_made(tmp_path, option):
    """What cannot be read is refused first."""
    folder = tmp_path / "data"
    done = run_command("serve", option, str(tmp_path / "nowhere"), "--data-dir", str(folder))
    assert done.returncode == 2
    assert f"{option} {tmp_path / 'nowhere'}: no such file" in done.stderr
    assert not folder.exists()
