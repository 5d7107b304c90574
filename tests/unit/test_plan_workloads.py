"""`plan` on workload files: the tree that a workload becomes, which part of it does not fit, and what would help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import BLOCK, RACK, a_fleet, a_gang, an_object
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_profile,
    a_replicated_job,
    a_template,
)

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
TOPOLOGY = {"gang-extender.dev/topology": f"root={BLOCK},leaf={RACK}"}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Plan objects on a fleet; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*wanted, fleet="1 blocks x 2 racks x 2 nodes", gpu=2, output="json", more=()):
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all([*a_fleet(fleet, gpu=gpu), *more]))
        (tmp_path / "work.yaml").write_text(yaml.safe_dump_all(wanted))
        words = ("plan", "--cluster", "fleet.yaml", "-f", "work.yaml", "-o", output)
        done = run_command(*words, GANG_EXTENDER_DATA_DIR=str(tmp_path / "data"))
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_jobset_shows_its_tree_with_the_roles(plan):
    code, out, err = plan(a_jobset(annotations=TOPOLOGY), gpu=4)
    assert (code, err) == (0, "")
    (gang,) = json.loads(out)["gangs"]
    assert (gang["workload"], gang["kind"], gang["verdict"]) == (
        "JobSet/default/train", "CompositePodGroup", "placed",
    )  # fmt: skip
    uid = gang["gang"].rpartition("-")[2]
    root, worker = f"train-{uid}", f"train-worker-{uid}"

    def line(group, parent, role, minimum, *, leaf=True):
        return {
            "group": group, "kind": "PodGroup" if leaf else "CompositePodGroup", "parent": parent,
            "role": role, "minimum": minimum, "total": minimum, "placed": minimum,
        }  # fmt: skip

    assert gang["groups"] == [
        line(root, "", "", 2, leaf=False),
        line(f"train-driver-{uid}", root, "driver", 1),
        line(worker, root, "worker", 2, leaf=False),
        line(f"train-worker-0-{uid}", worker, "", 2),
        line(f"train-worker-1-{uid}", worker, "", 2),
    ]
    assert len(gang["assignments"]) == 5
    code, out, _ = plan(a_jobset(annotations=TOPOLOGY), gpu=4, output="table")
    first, *lines = out.splitlines()
    assert (code, first) == (
        0,
        f"JobSet/default/train (CompositePodGroup default/{root}): placed "
        "(5 placed, 0 without a node; " + first.partition("a node; ")[2],
    )
    assert lines[0] == f"{root}: 2 of 2 groups placed, 2 needed together, {BLOCK}=b0"
    assert lines[1].startswith(
        f"├── driver: train-driver-{uid}: 1 of 1 pod placed, 1 needed together, b0-"
    )
    assert lines[2] == f"└── worker: {worker}: 2 of 2 groups placed, 2 needed together"
    for number, text in enumerate(lines[3:]):
        branch = "└" if number else "├"
        expected = f"    {branch}── train-worker-{number}-{uid}: 2 of 2 pods placed, 2 needed together, {RACK}=b0-r"
        assert text.startswith(expected)
    assert len(lines) == 5


def test_what_does_not_fit_is_named_with_the_annotation_that_would_help(plan):
    jobset = a_jobset(
        a_replicated_job("driver"), a_replicated_job("worker", 5, parallelism=2, completions=2)
    )
    code, out, _ = plan(jobset)
    assert code == 1
    (gang,) = json.loads(out)["gangs"]
    assert (gang["verdict"], gang["assignments"]) == ("impossible", [])
    uid = gang["gang"].rpartition("-")[2]
    # not that of the group, which follows the workload
    assert not [text for text in gang["help"] if f"default/train-worker-{uid}" in text]
    (hint,) = [text for text in gang["help"] if "annotation" in text]
    count = hint.split()[1].removesuffix(":")
    assert hint == (
        f"minGroupCount {count}: annotation gang-extender.dev/min: worker={count} on JobSet/default/train"
    )
    placed = {line["role"]: line["placed"] for line in gang["groups"] if line["role"]}
    assert placed == {"driver": 0, "worker": 0}
    minimum = {"gang-extender.dev/min": f"worker={count}"}
    code, out, _ = plan({**jobset, "metadata": {**jobset["metadata"], "annotations": minimum}})
    (gang,) = json.loads(out)["gangs"]
    assert (code, gang["verdict"]) == (0, "placed")
    roles = {line["role"]: (line["placed"], line["total"]) for line in gang["groups"]}
    assert roles["worker"] == (int(count), 5)


def _cronjob(job):
    template = {"metadata": job["metadata"], "spec": job["spec"]}
    return an_object(
        "CronJob", "finetune", "batch/v1", spec={"schedule": "@daily", "jobTemplate": template}
    )


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("job", " on Job/default/finetune"),
        ("cronjob", " in spec.jobTemplate.metadata of CronJob/default/finetune"),
        ("trainjob", " on TrainJob/default/tune"),
        ("plain-pods", " on all its pods"),
        ("statefulset", " on StatefulSet/default/shards"),
        ("disaggregatedset", ""),
        ("podcliqueset", ""),
    ],
)
def test_what_lowers_a_minimum_is_where_the_kind_has_it(plan, file, place):
    """The object in the file that takes it, and then it fits; of what takes none no lower minimum is named."""
    name = "job" if file == "cronjob" else file
    objects = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    if file == "cronjob":
        objects = [_cronjob(objects[-1])]
    nodes = [
        node
        for node in yaml.safe_load_all((EXAMPLES / "cluster.yaml").read_text())
        if node["kind"] in {"Node", "PriorityClass"}
    ]
    kept = [n for n in nodes if n["kind"] != "Node"] + [n for n in nodes if n["kind"] == "Node"][:2]
    code, out, _ = plan(*objects, fleet="1 nodes", gpu=0, more=kept)
    assert code == 1
    helps = [text for gang in json.loads(out)["gangs"] for text in gang["help"]]
    lowered = [text for text in helps if text.startswith(("minCount", "minGroupCount"))]
    if not place:
        assert lowered == []
        return
    setting = lowered[0].partition(": ")[2].removesuffix(place)
    assert lowered[0].endswith(place), lowered
    field, key, value = re.fullmatch(r"(annotation|label) (\S+): (\S+)", setting).groups()
    for thing in objects:
        if thing["kind"] in {place.rpartition(" ")[2].partition("/")[0], "Pod"}:
            job = thing["spec"]["jobTemplate"] if thing["kind"] == "CronJob" else thing
            job["metadata"].setdefault(f"{field}s", {})[key] = value
    assert plan(*objects, fleet="1 nodes", gpu=0, more=kept)[0] == 0


def test_a_minimum_for_which_the_workload_has_no_field_is_no_hint(plan):
    """That of a group over several roles; its name is generated, and the service would write it again."""
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
    job["metadata"]["annotations"] = {}
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        del replica["template"]["spec"]["priorityClassName"]
    code, out, err = plan(job, fleet="1 nodes", gpu=8)
    assert code == 1, err
    (gang,) = json.loads(out)["gangs"]
    group = gang["gang"].rpartition("/")[2]
    assert any(group in text for text in map(str, gang["conflict"]))
    assert not [text for text in gang["help"] if group in text]


def test_a_long_list_of_nodes_is_shortened(plan):
    code, out, _ = plan(
        a_job(parallelism=12, template=a_template({"cpu": 40})),
        fleet="12 nodes",
        output="table",
        gpu=1,
    )
    assert code == 0
    *_, tree = out.splitlines()
    assert "12 of 12 pods placed, 12 needed together, n0, n1, n10, n11, n2, n3" in tree
    assert tree.endswith("and 4 more nodes")


def test_a_refused_workload_is_invalid_and_the_rest_is_planned(plan):
    """Exit 1; the reason names file, object, field and value."""
    bad = a_jobset(name="bad", labels={"gang-extender.dev/tree": "research"})
    code, out, err = plan(bad, a_job(), *a_gang("g", pods=1))
    answer = json.loads(out)
    assert (code, err, answer["verdict"]) == (1, "", "invalid")
    assert [(one["workload"], one["verdict"]) for one in answer["gangs"]] == [
        ("Job/default/fit", "placed"),
        ("", "placed"),
        ("JobSet/default/bad", "invalid"),
    ]
    refused = answer["gangs"][2]
    assert (refused["gang"], refused["kind"], refused["groups"]) == ("default/bad", "JobSet", [])
    assert refused["reasons"] == [
        "work.yaml, document 1: JobSet/default/bad: metadata.labels[gang-extender.dev/tree]: "
        "no TreeProfile 'research'; create it, or use the label value default"
    ]
    _, out, _ = plan(bad, output="table")
    assert out.splitlines()[0].startswith("JobSet default/bad: invalid (0 placed")
    assert "no TreeProfile 'research'" in out
    code, _, _ = plan(bad, more=[a_profile("research")], gpu=3)
    assert code == 0


def test_a_field_of_the_wrong_type_is_bad_input(plan):
    """Exit 2, nothing on stdout."""
    code, out, err = plan(a_jobset(a_replicated_job("worker", "two")))
    assert (code, out) == (2, "")
    assert err == (
        "gang-extender: work.yaml, document 1: JobSet/default/train: spec.replicatedJobs[0].replicas: "
        'expected a whole number from 0 to 100000, found "two"\n'
    )


def test_warnings_name_the_workload(plan):
    code, _, err = plan(a_job(labels={}, suspend=True))
    assert code == 0
    assert err.splitlines() == [
        "gang-extender: warning: Job/default/fit: metadata.labels[gang-extender.dev/tree]: is not set; planned as if it were default",
        "gang-extender: warning: Job/default/fit: is suspended; planned as if it were resumed",
    ]


def test_what_is_no_workload_of_the_table_is_still_an_error(plan):
    code, _, err = plan(an_object("Deployment", "web", "apps/v1", spec={}))
    assert code == 2
    assert (
        "Deployment/default/web: kind Deployment of apps/v1 is not planned; give its pods and groups"
        in err
    )


def test_the_examples(tmp_path):
    """The commands in the heads of the files."""
    counts = {"job": [4], "jobset": [9], "lws": [4, 4], "disaggregatedset": [8], "raycluster": [5]}
    for name, pods in counts.items():
        words = ("--cluster", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / f"{name}.yaml"))
        done = run_command("plan", *words, "-o", "json", GANG_EXTENDER_DATA_DIR=str(tmp_path))
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"]) == (0, "placed"), name
        assert [len(gang["assignments"]) for gang in answer["gangs"]] == pods


def test_a_tree_that_is_made_has_no_warning_about_how_it_is_built(plan):
    """A JobSet with one ReplicatedJob, and a RayCluster with a group without a minimum."""
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": 1}}}]}}
    ray = an_object(
        "RayCluster", "c", "ray.io/v1", metadata={"labels": {"gang-extender.dev/tree": "default"}},
        spec={
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "g", "replicas": 2, "minReplicas": 0, "template": template}],
        },
    )  # fmt: skip
    code, out, err = plan(a_jobset(a_replicated_job("w", 1, parallelism=2, completions=2)), ray)
    assert (code, err) == (0, "")
    assert json.loads(out)["gangs"][0]["kind"] == "PodGroup"
