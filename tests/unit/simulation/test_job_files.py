"""What arrives, from files: spans, durations, copies, and what is not simulated."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from extender.cluster.manifests.manifest_entries import Role, read
from extender.core.model.errors import BadInput, texts_of
from extender.simulation.controllers import Job
from extender.simulation.job_files import Duration, failures_of, jobs_of, span_s, with_profiles

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  namespace: team-a
  annotations: {{{notes}}}
spec:
  containers: [{{name: main, image: i, resources: {{requests: {{cpu: "1"}}}}}}]
"""
GROUP = """
apiVersion: gang-extender.dev/v1alpha1
kind: PodGroup
metadata: {name: g, namespace: team-a}
spec: {schedulingPolicy: {gang: {minCount: 1}}}
"""
WORKLOAD = """
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: team-a, labels: {gang-extender.dev/tree: default}}
spec:
  parallelism: 1
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: i}]}}
"""


def the_jobs(folder: Path, text: str, *, until_s: float = 3_600.0, duration: str = "") -> list[Job]:
    (folder / "w.yaml").write_text(text)
    drawn = Duration.read(duration, "--duration") if duration else None
    entries = read([str(folder)], Role.WANTED)
    return list(jobs_of(entries, until_s=until_s, duration=drawn, seed=1)[1])


def notes(**values: str) -> str:
    return POD.format(
        notes=", ".join(f"gang-extender.dev/{k.replace('_', '-')}: {v}" for k, v in values.items())
    )


def test_a_pod_without_annotations_arrives_at_once_and_does_not_end(tmp_path: Path) -> None:
    (job,) = the_jobs(tmp_path, notes())
    assert (job.path, job.at_s, job.runs_for_s) == ("team-a/p", 0.0, math.inf)


def test_what_arrives_again_has_numbers_and_ends_with_the_simulation(tmp_path: Path) -> None:
    jobs = the_jobs(tmp_path, notes(arrives_after="10m", arrives_every="20m", runs_for="1h"))
    assert [(job.name, job.at_s) for job in jobs] == [
        ("p-0", 600.0),
        ("p-1", 1_800.0),
        ("p-2", 3_000.0),
    ]
    assert {job.runs_for_s for job in jobs} == {3_600.0}
    assert [entry.obj.metadata.name for job in jobs for entry in job.objects] == [
        "p-0",
        "p-1",
        "p-2",
    ]


def test_the_default_duration_is_drawn_for_each_job_by_its_name(tmp_path: Path) -> None:
    text = notes(arrives_every="20m")
    first, again = (
        [job.runs_for_s for job in the_jobs(tmp_path, text, duration="1h-2h")] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == len(first) == 3
    assert all(3_600.0 <= duration_s <= 7_200.0 for duration_s in first)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (notes(arrives_after="soon"), "arrives-after]: 'soon' is not a span such as 90m"),
        (notes(arrives_every="0s"), "arrives-every]: '0s' would arrive more than 100000 times"),
        (notes(runs_for="2h-1h"), "runs-for]: '2h-1h': the second span is shorter"),
        (
            GROUP.replace("spec: {", "spec: {parentCompositePodGroupName: r, "),
            "PodGroup/team-a/g: its parent CompositePodGroup/team-a/r is not in the files",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        the_jobs(tmp_path, text)
    assert message in str(refusal.value)


def test_spans_have_several_units() -> None:
    assert span_s("1w2d3h4m5s", "--until") == 604_800 + 2 * 86_400 + 3 * 3_600 + 4 * 60 + 5


@pytest.mark.parametrize("text", ["mean:0s", "0s", "0m-0h", "0s-0s"])
def test_a_duration_of_nothing_is_a_second(tmp_path: Path, text: str) -> None:
    (job,) = the_jobs(tmp_path, notes(), duration=text)
    assert job.runs_for_s == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "\n---\n".join((notes(), notes())),
        "\n---\n".join((notes(arrives_every="20m"), notes().replace("name: p", "name: p-1"))),
        "\n---\n".join((WORKLOAD, WORKLOAD)),
    ],
)
def test_two_objects_of_one_name_are_refused_with_both_places(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match=r"document 2: .*: is there already.* document 1\b"):
        the_jobs(tmp_path, text)


def test_groups_and_their_pods_are_a_job_with_the_annotations_of_the_root(tmp_path: Path) -> None:
    ring = GROUP.replace("PodGroup", "CompositePodGroup").replace("minCount", "minGroupCount")
    root = ring.replace(
        "{name: g,", "{name: r, annotations: {gang-extender.dev/arrives-after: 10m},"
    )
    leaf = GROUP.replace("spec: {", "spec: {parentCompositePodGroupName: r, ")
    pod = notes().replace("spec:\n", "spec:\n  schedulingGroup: {podGroupName: g}\n")
    (job,) = the_jobs(tmp_path, "\n---\n".join((pod, leaf, root)))
    assert (job.path, job.at_s) == ("team-a/r", 600.0)
    assert [entry.obj.label for entry in job.objects] == [
        "CompositePodGroup/team-a/r", "PodGroup/team-a/g", "Pod/team-a/p",
    ]  # fmt: skip
    ring = ring.replace("spec: {", "spec: {parentCompositePodGroupName: g, ")
    with pytest.raises(BadInput, match="its parent CompositePodGroup/team-a/g is below itself"):
        the_jobs(tmp_path, ring)


def test_a_pod_of_a_group_is_refused_with_its_place_and_with_all_other_faults(
    tmp_path: Path,
) -> None:
    grouped = notes().replace("  name: p\n", "  name: q\n  labels: {scheduling.x-k8s.io/pod-group: g}\n")  # fmt: skip
    with pytest.raises(BadInput) as refused:
        the_jobs(tmp_path, "\n---\n".join((grouped, notes(runs_for="never"))))
    texts = texts_of(refused.value)
    assert len(texts) == 2
    assert any(
        re.search(r"w\.yaml, document 1: .*Pod/team-a/q: its PodGroup/team-a/g is not in", text)
        for text in texts
    )


@pytest.mark.parametrize(
    ("labels", "namespace", "profile", "warning"),
    [
        ("{}", "", "default", "is not set; simulated as if it were default"),
        ("{}", "{gang-extender.dev/tree: gpu}", None, ""),
        ("{gang-extender.dev/tree: gpu}", "", "gpu", ""),
        ("{gang-extender.dev/tree: 'off'}", "", "off", "is off, so its pods are not simulated"),
        ("{}", "{gang-extender.dev/tree: 'off'}", None, "is off, so its pods are not simulated"),
    ],
)
def test_a_workload_without_a_profile_has_the_default_one(
    tmp_path: Path, labels: str, namespace: str, profile: str | None, warning: str
) -> None:
    """A service would leave it alone: nothing would run, without a word."""
    file, place = tmp_path / "w.yaml", tmp_path / "namespace.yaml"
    file.write_text(WORKLOAD.replace("{gang-extender.dev/tree: default}", labels))
    labelled = f"{{name: team-a, labels: {namespace or '{}'}}}"
    place.write_text(f"apiVersion: v1\nkind: Namespace\nmetadata: {labelled}\n")
    (entry,), warnings = with_profiles(
        read([str(file)], Role.WANTED), read([str(place)], Role.CLUSTER)
    )
    assert entry.obj.metadata.labels.get("gang-extender.dev/tree") == profile
    assert len(warnings) == bool(warning)
    assert all(
        text.startswith(
            f"{file}, document 1: Job/team-a/j: metadata.labels[gang-extender.dev/tree]: "
        )
        and warning in text
        for text in warnings
    )


def test_nodes_fail_by_a_mean_time_or_by_a_file(tmp_path: Path) -> None:
    drawn = failures_of("1h/10m", ["a", "b"], until_s=200 * 3_600.0, seed=1)
    assert drawn == failures_of("1h/10m", ["b", "a"], until_s=200 * 3_600.0, seed=1)
    assert drawn != failures_of("1h/10m", ["a", "b"], until_s=200 * 3_600.0, seed=2)
    assert 300 < len(drawn) < 390  # each node 200 / (1 + 1/6) times on average
    assert {(failure.node, failure.for_s) for failure in drawn} == {("a", 600.0), ("b", 600.0)}
    file = tmp_path / "f.csv"
    file.write_text("a, 2h, 30m\n\n")
    (failure,) = failures_of(str(file), ["a"], until_s=60.0, seed=1)
    assert (failure.node, failure.at_s, failure.for_s) == ("a", 7_200.0, 1_800.0)
    file.write_text("a,2h\n")
    for text, message in (
        (str(file), r"f\.csv:1: 'a,2h' is not NODE,AT,FOR"),
        ("often", r"--node-failures: 'often' is not a span"),
        ("0h", r"--node-failures: '0h': the mean time is not above 0"),
        ("dir/failures.csv", r"--node-failures: 'dir/failures.csv' is not a span .*, nor a file"),
        ("2h/x", r"--node-failures: '2h/x' is not a span .*, nor 30d/2h"),
    ):
        with pytest.raises(BadInput, match=message):
            failures_of(text, ["a"], until_s=60.0, seed=1)


def test_a_file_of_failures_that_cannot_be_used_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "failures.csv"
    file.write_text("\ufeffnode-1,2h,1h\nnode-2,2h,1h\n", encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"failures.csv:2: the cluster has no node 'node-2'; did you mean node-1"
    ):
        failures_of(str(file), ["node-1"], until_s=60.0, seed=1)
    file.write_bytes(b"\xcb\xff")
    with pytest.raises(BadInput, match=r"--node-failures .*failures.csv: cannot be read"):
        failures_of(str(file), ["node-1"], until_s=60.0, seed=1)


def test_failures_without_number_are_refused() -> None:
    with pytest.raises(BadInput, match="'1s/0s': the nodes would fail more than 1000000 times"):
        failures_of("1s/0s", ["a", "b"], until_s=1e9, seed=1)


def test_plain_pods_as_a_user_writes_them_are_one_job() -> None:
    entries = read(["deploy/examples/plain-pods.yaml"], Role.WANTED)
    (job,) = jobs_of(entries, until_s=60.0, duration=None, seed=1)[1]
    assert len(job.objects) == 3
