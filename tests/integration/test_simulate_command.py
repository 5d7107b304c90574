"""`simulate` as a user runs it: its report, and its log in an embedded database that other commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.service.command_line import run_command

pytestmark = pytest.mark.postgres

CLUSTER = "deploy/examples/cluster.yaml"
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: tune
  namespace: team-a
  labels: {gang-extender.dev/tree: default}
  annotations: {gang-extender.dev/arrives-after: 1m, gang-extender.dev/runs-for: 5m}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: registry.example.com/tune:1
        resources: {requests: {cpu: "1", nvidia.com/gpu: "4"}, limits: {nvidia.com/gpu: "4"}}
"""
PROFILE = """
apiVersion: gang-extender.dev/v1alpha1
kind: TreeProfile
metadata: {name: default}
spec: {kinds: [{kind: Job, topology: {leaf: topology.example.com/rack}}]}
"""


def test_the_log_of_a_simulation_is_a_log_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    folder = str(tmp_path / "log")
    words = ("--cluster", CLUSTER, "--workloads", str(tmp_path / "job.yaml"), "--until", "15m")
    other = {"GANG_EXTENDER_DATABASE_URL": "postgresql://me@127.0.0.1:1/other"}  # nothing listens
    simulated = run_command("simulate", *words, "--data-dir", folder, "-o", "json", **other)
    assert simulated.returncode == 0, simulated.stderr
    report = json.loads(simulated.stdout)
    (row,) = report["classes"]
    assert (row["namespace"], row["jobs"], row["admitted"], row["ended"]) == ("team-a", 1, 1, 1)
    events = run_command("events", "--data-dir", folder, "--type", "GangAdmitted", "-o", "json")
    assert events.returncode == 0, events.stderr
    (admitted,) = json.loads(events.stdout)
    assert admitted["time"].startswith("2024-01-01T00:01:00")
    history = run_command("history", admitted["gang"], "--data-dir", folder)
    assert "GangScheduled" in history.stdout
    assert "GangRemoved" in history.stdout
    past = (
        "simulate",
        "--from-log",
        "--data-dir",
        folder,
        "--since",
        "2024-01-01",
        "--until",
        "15m",
    )
    repeated = run_command(*past, "--set", "hold_capacity_after_s=60", "--seeds", "2", "-o", "json")
    assert repeated.returncode == 0, repeated.stderr
    assert "are not simulated: the log does not have them" in repeated.stderr
    differences = {each["figure"]: each for each in json.loads(repeated.stdout)["differences"]}
    assert differences["ended"] == {
        "figure": "ended", "unchanged": 1.0, "changed": 1.0, "difference": 0.0, "interval": [0.0, 0.0],
    }  # fmt: skip
    (tmp_path / "profile.yaml").write_text(PROFILE)
    in_one_rack = run_command(*past, "--profile", str(tmp_path / "profile.yaml"), "-o", "json")
    assert in_one_rack.returncode == 0, in_one_rack.stderr
    assert "1 gang of 1 made with --profile, 1 of them as another tree" in in_one_rack.stderr
    for options, text in (
        (("--profile", CLUSTER), f"--profile {CLUSTER}: the files have no TreeProfile; write one"),
        (("--set", "hold_capacity=60"), "--set hold_capacity=60: there is no such setting"),
        (("--with", "2xnode"), 'with "2xnode": the cluster has no node "node"'),
        (("--until", "0s"), "--until: '0s' is not above 0"),
        (("--set", "hold_capacity_after_s=x"), "--set hold_capacity_after_s: 'x' is not a whole"),
        (("--cluster", CLUSTER), "--from-log: takes nodes and gangs from the log, so not with"),
    ):
        refused = run_command(*past, *options)
        assert refused.returncode == 2
        assert text in refused.stderr
    again = run_command("simulate", *words, "--data-dir", folder)
    assert again.returncode == 2
    assert f"--data-dir {folder}: is not empty" in again.stderr


def test_what_cannot_be_simulated_is_refused_by_option_and_value(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    words = ("simulate", "--cluster", CLUSTER, "--workloads", str(tmp_path / "job.yaml"))
    for options, text in (
        (("--until", "0s"), "--until: '0s' is not between 1s and 10y"),
        (("--until", "999999999w"), "is not between 1s and 10y"),
        (("--data-dir", str(tmp_path / "job.yaml")), "job.yaml: is no folder"),
        (("--without", "n1"), "--without n1: is for --from-log"),
        (("--seeds", "5"), "--seeds 5: is for --from-log"),
        (("--profile", "p.yaml"), "--profile p.yaml: is for --from-log"),
        (("--since", "3d"), "--since 3d: is for --from-log"),
        (("--database-url", "postgresql://x"), "--database-url: is for --from-log"),
        (
            ("--plot", str(tmp_path / "no" / "x.svg")),
            f"x.svg: there is no folder {tmp_path / 'no'}",
        ),
        (("--plot", str(tmp_path)), "ends with none of .svg, .html, .png"),
        (("--duration", "mean:x"), "--duration: 'x' is not a span"),
    ):
        refused = run_command(*words, *options)
        assert refused.returncode == 2
        assert text in refused.stderr


def test_files_without_a_workload_are_refused_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("apiVersion: foo.io/v1\nkind: Foo\nmetadata: {name: x}\n")
    refused = run_command("simulate", "--cluster", CLUSTER, "--workloads", str(tmp_path))
    assert refused.returncode == 2
    assert (
        "warning: left out; if they make pods, give those in the files: Foo (1)" in refused.stderr
    )
    assert f"--workloads {tmp_path}: the files have no workload and no pod" in refused.stderr
