"""docs/tutorials/first-gang.md: its shell blocks, run in order in a fresh folder by one shell, print what the page has.

GX_TEST_WRITE_GOLDEN=1 writes the outputs into the page instead.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from deploy.demo.ports import free_port
from tests.acceptance.test_process_kills import processes_naming
from tests.support.service import fork_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/first-gang.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
END = "=== end of step"
NOT_SHOWN = re.compile(r"(Killed|Terminated) +gang-extender")  # bash about a job
pytestmark = pytest.mark.postgres


def steps(text: str) -> list[tuple[str, str]]:
    """Return the commands of all blocks with the outputs that the page has."""
    return [step for block in BLOCK.findall(text) for step in STEP.findall(block)]


def run(commands: list[str], folder: Path, programs: Path) -> list[str]:
    """Run commands in one shell, and return what each printed, both streams; `programs` is a folder for those of its PATH."""
    port = free_port()
    inherited = fork_server.program(programs)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GANG_EXTENDER_LISTEN": f"127.0.0.1:{port}",
        "GANG_EXTENDER_SERVER": f"http://127.0.0.1:{port}",
        "COLUMNS": "200",
    }
    script = "exec 2>&1\n" + "".join(f"{one}\necho '{END}'\n" for one in commands)
    script = script.replace("127.0.0.1:8888", f"127.0.0.1:{port}")
    done = subprocess.run(
        ["bash"], check=False, cwd=folder, env=environ, input=script, capture_output=True,
        text=True, pass_fds=[inherited],
    )  # fmt: skip
    *outputs, _ = done.stdout.split(f"{END}\n")
    return [
        "".join(f"{s.rstrip()}\n" for s in one.splitlines() if not NOT_SHOWN.search(s))
        for one in outputs
    ]


def with_outputs(text: str, outputs: list[str]) -> str:
    """Return the page with other outputs."""
    left = iter(outputs)
    return BLOCK.sub(
        lambda block: STEP.sub(lambda step: f"$ {step[1]}\n{next(left)}", block[0]), text
    )


def comparable(output: str) -> str:
    """Return an output without what differs between two runs: times, durations, the name of the machine, columns."""
    output = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?", "TIME", output)
    output = re.sub(r"\b(\d+h)?(\d+m)?\d+(\.\d+)? ?m?s\b", "DURATION", output)
    output = re.sub(rf"({re.escape(socket.gethostname())}|vm):\d+", "REPLICA", output)
    output = re.sub(r"(revision|position) \d+", r"\1 N", output)
    output = re.sub(
        r"^\d+( |$)", "N ", output, flags=re.MULTILINE
    )  # positions, and counts of verify
    # an anchor is written when the service has time for it: one or two until the log is verified
    output = re.sub(r"^N anchor ", "N anchors ", output, flags=re.MULTILINE)
    return re.sub(r" +", " ", output)


@pytest.fixture
def folder():
    """A folder that the account of the embedded PostgreSQL can reach, where the test runs as root."""
    with tempfile.TemporaryDirectory(prefix="gx-tutorial-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_the_first_gang(folder, tmp_path):
    """Each command of the first part prints what is on the page, and the last one leaves no process."""
    (folder / "deploy").symlink_to(ROOT / "deploy")
    text = PAGE.read_text()
    expected = steps(text)
    outputs = run([command for command, _ in expected], folder, tmp_path)
    assert len(outputs) == len(expected)
    assert processes_naming(str(folder)) == []
    if os.environ.get("GX_TEST_WRITE_GOLDEN"):
        PAGE.write_text(with_outputs(text, outputs))
        return
    for (command, old), new in zip(expected, outputs, strict=True):
        assert comparable(new) == comparable(old), command
