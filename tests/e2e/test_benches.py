"""The benchmarks of the whole product still run, at sizes too small to measure speed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.bench.figures import Figure
from tests.e2e.conftest import NEWEST, require_programs
from tests.e2e.scenarios.service import ROOT

# name -> figures that it gives at its small size; benchmarks of one part share the start of a control plane
PARTS = (
    {"verbs": 12, "cost": 12, "freed": 1, "preemption": 4, "latency": 8, "memory": 6},
    {"gang": 7, "trees": 3, "workloads": 2, "storms": 13},
    {"tenants": 15},
    {"quick": 37},
)
# Enough to notice that they do not run any more: rows without a control plane, and one with all sides on one.
SHORT = ("planner|victim search|rebuild|gang of 8", {"quick": 13})


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("only", "benches"),
    [
        pytest.param(*SHORT, id="short", marks=pytest.mark.full),
        *(pytest.param("", part, id="-".join(part), marks=pytest.mark.long) for part in PARTS),
    ],
)
def test_benchmarks_give_their_figures(only: str, benches: dict[str, int], tmp_path: Path) -> None:
    """They end, nothing is left unfinished on either side, and every figure is a number. `make long` runs all of them."""
    require_programs(NEWEST)
    file = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "tests.bench",
        *benches,
        "--quick",
        "--only",
        only,
        "--out",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = msgspec.json.decode(file.read_bytes(), type=list[Figure])
    assert Counter(f.bench for f in figures) == benches, done.stdout
    for figure in figures:
        assert not figure.unfinished, figure
        assert not figure.baseline_unfinished, figure
        assert figure.values, figure
        assert math.isfinite(figure.median), figure
        if figure.baseline_name:
            assert figure.ratio > 0, figure
