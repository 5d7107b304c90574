"""The smallest inputs of untrue answers, as files through `plan`: tests/golden/cases has a folder for each.

Those that are a state of the service rather than files are in tests/integration/store/test_stateful_cases.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.service.command_line import run_command

CASES = Path(__file__).parents[1] / "golden" / "cases"


class Expected(msgspec.Struct, frozen=True):
    """What `plan` answers about one file of work."""

    code: int
    verdict: str
    text: tuple[str, ...] = ()  # in its output
    warnings: tuple[str, ...] = ()  # on stderr
    absent: tuple[str, ...] = ()  # neither here nor there
    placed: int | None = None  # pods with a node; None: none unless placed
    nodes: tuple[str, ...] = ()  # exactly these are used


PLACED, IMPOSSIBLE = 0, 1
NO_STEP = "does not fit"
EXPECTED: dict[str, dict[str, Expected]] = {
    "generate-name": {"work": Expected(PLACED, "placed", ("Job/default/j-",), placed=2)},
    "grove-pack-required": {
        work: Expected(IMPOSSIBLE, "impossible", ("needs 2 pods in one net/rack",), placed=0)
        for work in ("work", "work-2")
    },
    "jobset-indexed-without-completions": {
        "work": Expected(PLACED, "placed", warnings=("Kubernetes refuses an Indexed Job without", "set completions: 3"))
    },
    "jobset-node-selector-strategy": {
        "work": Expected(IMPOSSIBLE, "impossible", ("matches its node selector",), placed=0),
        "work-2": Expected(PLACED, "placed", placed=4, nodes=("j00", "j01", "j10", "j11")),
    },
    "jobset-own-warning": {
        "jobset": Expected(PLACED, "placed", placed=2, absent=("W1", "X10", "warning", "CompositePodGroup"))
    },
    "leaderready-part-fits-nowhere": {
        "work": Expected(IMPOSSIBLE, "impossible", (f"step 1 of 2, leader: {NO_STEP}", "1 missing: cpu"), placed=0),
        "work-2": Expected(
            IMPOSSIBLE, "impossible",
            (f"step 2 of 2, worker, which starts when the leader is ready: {NO_STEP}", "2 missing: cpu"), placed=0,
        ),
    },
    "misspelt-field": {
        work: Expected(PLACED, "placed", warnings=(f"{path}: there is no such field in", f"did you mean {meant}?"))
        for work, path, meant in (
            ("work", "spec.paralelism", "parallelism"),
            ("work-2", "spec.workerGroupSpecs[0].minReplica", "minReplicas"),
            ("work-3", "spec.leaderWorkerTemplate.sise", "size"),
            ("work-4", "spec.template.spec.nodeSelecter", "nodeSelector"),
        )
    },
    "nothing-to-plan": {
        "work": Expected(2, "nothing", ("Nothing to plan",), ("Job/default/j: needs no pods as it is",))
    },
    "other-objects-beside": {"work": Expected(PLACED, "placed", warnings=("left out, as they have no pods: Service (1)",), placed=2)},
    "ray-autoscaler-sidecar": {"work": Expected(IMPOSSIBLE, "impossible", ("headgroup needs 1 pod; the cluster holds 0 (1 missing: cpu)",), placed=0)},
    "ray-head-left-out": {
        work: Expected(IMPOSSIBLE, "impossible", ("headgroup needs 1 pod; the cluster holds 0 (1 missing: cpu)",), placed=0, absent=("X10",))
        for work in ("work", "work-2")
    },
    "raycluster-without-head": {
        "raycluster": Expected(IMPOSSIBLE, "impossible", ("headgroup needs 1 pod; the cluster holds 0 (1 missing: cpu)",), placed=0, absent=("X10",))
    },
    "sequenced-step-fits-nowhere": {
        work: Expected(IMPOSSIBLE, "impossible", (f"{step}: {NO_STEP}", "missing: cpu"), placed=0)
        for work, step in (
            ("work", "step 2 of 2, train, which starts when init has ended"),
            ("work-2", "step 1 of 2, init"),
            ("work-3", "step 2 of 2, node, which starts when dataset-initializer has ended"),
            ("work-4", "step 2 of 2, w, which starts when driver is ready"),
        )
    },
    "sequenced-steps-one-after-the-other": {
        "work": Expected(PLACED, "placed", ("step 1 of 2, init: fits", "step 2 of 2, train, which starts when init has ended: fits"), placed=3)
    },
    "spread-reason": {
        work: Expected(IMPOSSIBLE, "impossible", (f"holds 3 (1 missing: topology spread over {key}",), absent=("holds 4", "0 missing"), placed=0)
        for work, key in (
            ("work", "kubernetes.io/hostname"), ("work-2", "net/rack"), ("work-3", "kubernetes.io/hostname"),
        )
    },
    "victim-pod-priority": {"work": Expected(PLACED, "placed", ("evicting Pod/default/v0 (1 pod)",), placed=1)},
    "volume-reason": {
        "work": Expected(
            IMPOSSIBLE, "impossible",
            ("volume that is only on nodes with kubernetes.io/hostname=b0", "would help: a volume that other nodes can use"),
            absent=("drop the node selectors",), placed=0,
        )
    },
}  # fmt: skip


def all_files() -> Iterator[tuple[str, str]]:
    """Yield folder and name of each file of work, as they are there."""
    for path in sorted(CASES.glob("*/*.yaml")):
        if not path.stem.startswith(("nodes", "cluster")):
            yield path.parent.name, path.stem


def test_every_file_has_an_expectation() -> None:
    assert set(all_files()) == {(case, work) for case, works in EXPECTED.items() for work in works}


def cluster_of(case: str, work: str) -> Path:
    """Return the nodes that belong to a file of work."""
    own = CASES / case / f"{work.replace('work', 'nodes')}.yaml"
    return own if work.startswith("work") else CASES / case / "cluster.yaml"


def plan(case: str, work: str, tmp_path: Path, *words: str) -> Any:
    file = CASES / case / f"{work}.yaml"
    command = ("plan", "--cluster", str(cluster_of(case, work)), "-f", str(file), *words)
    return run_command(*command, GANG_EXTENDER_DATA_DIR=str(tmp_path))


@pytest.mark.parametrize(("case", "work"), list(all_files()))
def test_the_answer_is_true(case, work, tmp_path):
    """Exit code, verdict, the sentences that name the cause, and what is placed, in text and JSON."""
    expected = EXPECTED[case][work]
    done = plan(case, work, tmp_path)
    assert done.returncode == expected.code, done
    for text in expected.text:
        assert text in done.stdout
    for text in expected.warnings:
        assert text in done.stderr
    for text in expected.absent:
        assert text not in done.stdout + done.stderr
    as_json = plan(case, work, tmp_path, "-o", "json")
    answer = json.loads(as_json.stdout)
    assert (as_json.returncode, answer["verdict"]) == (expected.code, expected.verdict)
    nodes = [a["node"] for gang in answer["gangs"] for a in gang["assignments"] if a["node"]]
    if expected.placed is not None:
        assert len(nodes) == expected.placed
    if expected.nodes:
        assert tuple(sorted(nodes)) == expected.nodes
