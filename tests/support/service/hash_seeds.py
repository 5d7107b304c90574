"""Run one script under several hash seeds, which change the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]


def outputs(script: str, seeds: Iterable[str]) -> set[str]:
    """Return all that a script prints under these seeds; it must succeed and may import this project."""
    return {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    }
