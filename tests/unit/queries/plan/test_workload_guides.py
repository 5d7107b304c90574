"""docs/how-to: a page per kind of workload, with its manifest and the tree that `plan` prints for it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from extender.core.workloads.kind_table import KINDS
from tests.support.document_outputs import DOCS, DocumentOutputs
from tests.support.service.command_line import run_command

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
GUIDES = {
    "job": "Job",
    "jobset": "JobSet",
    "leaderworkerset": "LeaderWorkerSet",
    "grove": "PodGang",
    "trainjob": "TrainJob",
    "raycluster": "RayCluster",
    "topology": "Job",
    "kubeflow": "PyTorchJob",
    "plain-pods": "Pod",
    "statefulset": "StatefulSet",
}
BESIDE = {  # in the guide of another kind
    "DisaggregatedSet": "leaderworkerset", "MPIJob": "kubeflow", "TFJob": "kubeflow", "XGBoostJob": "kubeflow",
    "PaddleJob": "kubeflow", "JAXJob": "kubeflow", "PlainPods": "plain-pods",
}  # fmt: skip
PICTURED = [
    f"{wish}.yaml"
    for wish in (
        *("required", "preferred", "balanced", "slices", "job-slices"),
        *("near", "exclusive", "rank", "compact"),
    )
]


@pytest.mark.parametrize("name", [*GUIDES, "exclusive-domains"])
async def test_the_tree_in_the_guide_is_what_is_printed(name, tmp_path, monkeypatch):
    """The manifests of the page, saved under the names there, are planned as the page has it."""
    document = DocumentOutputs(f"how-to/{name}.md", "gang-extender plan")
    shutil.copytree(EXAMPLES, tmp_path / "deploy" / "examples")
    monkeypatch.chdir(tmp_path)
    manifests = re.findall(
        r"[Ss]aved? (?:this one )?as\s`(\S+)`.*?^```yaml\n(.*?)^```$",
        document.paths()[0].read_text(),
        re.MULTILINE | re.DOTALL,
    )

    async def printed(arguments):
        assert arguments.split()[-1] in dict(manifests)
        for file, manifest in manifests:
            Path(file).write_text(manifest)
        done = run_command("plan", *arguments.split(), GANG_EXTENDER_DATA_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return done.stdout

    for title in document.titles():
        await document.compare(title, printed)


@pytest.mark.parametrize("file", PICTURED)
def test_a_picture_has_the_nodes_of_the_plan(file, tmp_path):
    """GX_TEST_WRITE_GOLDEN=1 writes it into the page instead."""
    page = DOCS / "how-to" / "topology.md"
    text = page.read_text()
    begin = text.index(f"`{file}`:\n\n```yaml\n") + len(f"`{file}`:\n\n```yaml\n")
    manifest = tmp_path / file
    manifest.write_text(text[begin : text.index("```", begin)])
    cluster = EXAMPLES / "cluster.yaml"
    done = run_command(
        "plan", "--cluster", str(cluster), "-f", str(manifest), "-o", "json",
        GANG_EXTENDER_DATA_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (gang,) = json.loads(done.stdout)["gangs"]
    picture = _picture([*yaml.safe_load_all(cluster.read_text())], gang)
    start = text.index("```text\n", begin) + len("```text\n")
    end = text.index("```", start)
    if os.environ.get("GX_TEST_WRITE_GOLDEN"):
        page.write_text(text[:start] + picture + text[end:])
    else:
        assert text[start:end] == picture


def _picture(cluster, gang):
    """Return the nodes by block and rack: the mark of a pod of the gang, x where another pod is, and a dot."""
    label = "topology.example.com/"
    nodes = {
        one["metadata"]["name"]: one["metadata"]["labels"]
        for one in cluster
        if one["kind"] == "Node"
    }
    marks = {one["spec"]["nodeName"]: "x" for one in cluster if one["kind"] == "Pod"} | _marks(gang)
    blocks: dict[str, dict[str, list[str]]] = {}
    for name, labels in sorted(nodes.items()):
        racks = blocks.setdefault(labels[f"{label}block"], {})
        racks.setdefault(labels[f"{label}rack"], []).append(marks.get(name, "."))
    rows = [
        [" ".join(row) for racks in blocks.values() for row in racks.values()],
        [rack for racks in blocks.values() for rack in racks],
    ]
    width = max(map(len, rows[0]))
    lines = [" " + "   ".join(text.center(width) for text in row) for row in reversed(rows)]
    half = len(lines[0]) // len(blocks)
    above = "".join(block.center(half) for block in blocks)
    return "".join(f"{line.rstrip()}\n" for line in (above, *lines))


def _marks(gang):
    """Return node -> mark: the index of a pod; of several groups the number of the Job, or the first letter of the role."""
    roles = {group["group"]: group["role"] for group in gang["groups"]}
    leaves = sorted({each["group"] for each in gang["assignments"]})
    if len(leaves) == 1:
        return {each["node"]: each["pod"].rpartition("-")[2] for each in gang["assignments"]}
    of_leaf = {leaf: roles[leaf][:1] or str(number) for number, leaf in enumerate(leaves)}
    return {each["node"]: of_leaf[each["group"]] for each in gang["assignments"]}


def test_each_kind_has_a_guide():
    """A guide has a manifest of its kind; some kinds stand in the guide of another one."""
    assert {kind.kind for kind in KINDS} - {*GUIDES.values()} == BESIDE.keys()
    for kind, name in BESIDE.items():
        assert kind in (DOCS / f"how-to/{name}.md").read_text()
    for name, kind in GUIDES.items():
        assert f"\nkind: {kind}\n" in (DOCS / f"how-to/{name}.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "job",
        "jobset",
        "lws",
        "disaggregatedset",
        "raycluster",
        "trainjob",
        "podcliqueset",
        "pytorchjob",
        "mpijob",
        "plain-pods",
        "statefulset",
    ],
)
def test_each_example_is_one_page_for_a_pull_request(name, tmp_path):
    """The file of the user, against a saved cluster."""
    done = run_command(
        "plan", "--cluster", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / f"{name}.yaml"),
        "-o", "markdown", GANG_EXTENDER_DATA_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, _, table = done.stdout.partition("\n\n")
    assert first == "## Would it fit? Yes"
    assert "**fits**" in table
