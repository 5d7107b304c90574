"""docs/how-to: a page per kind of workload, with its manifest and the tree that `plan` prints for it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

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
