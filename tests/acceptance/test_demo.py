"""The demo is what a newcomer sees first; it must work, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.acceptance.test_process_kills import processes_naming

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.postgres, pytest.mark.full]


def test_the_demo_plays_to_its_end():
    """Exit 0 after a kill -9 in the middle of a gang; no process and no folder is left."""
    with tempfile.TemporaryDirectory(prefix="gx-demo-") as folder:
        Path(folder).chmod(0o755)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        done = subprocess.run(
            [sys.executable, "deploy/demo/play.py"], check=False, cwd=ROOT, env=environ | {"TMPDIR": folder},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "reservations before and after the kill: the same" in done.stdout
        assert "events verified, no gap, chain unbroken" in done.stdout
        assert done.stderr == ""
        assert processes_naming(folder) == []
        assert list(Path(folder).iterdir()) == []
