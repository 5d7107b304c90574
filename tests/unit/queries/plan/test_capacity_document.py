"""docs/how-to/capacity.md: a section for each option, with the output as it is printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.document_outputs import DocumentOutputs
from tests.support.service.command_line import run_command

DOCUMENT = DocumentOutputs("how-to/capacity.md", "gang-extender plan")
EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
MISSPELT = """\
apiVersion: gang-extender.dev/v1alpha1
kind: PodGroup
metadata: {name: train, namespace: default}
spec:
  schedulingPolicy: {gang: {minCuont: 8}}
  schedulingConstraints: {topology: [{key: topology.example.com/rack}]}
---
apiVersion: v1
kind: Pod
metadata: {name: train-0, labels: {gang-extender.dev/pod-gruop: train}}
spec: {priority: high, containers: [{name: main}]}
"""


@pytest.mark.parametrize(
    "title", [title for title in DOCUMENT.titles() if title != "A cluster of 5,000 nodes"]
)
async def test_the_output_in_the_document_is_what_is_printed(title, tmp_path, monkeypatch):
    """Each section has a command and what it prints; of wrong input that is the message."""
    shutil.copytree(EXAMPLES, tmp_path / "deploy" / "examples")
    (tmp_path / "misspelt.yaml").write_text(MISSPELT)
    monkeypatch.chdir(tmp_path)

    async def printed(arguments):
        done = run_command("plan", *arguments.split(), GANG_EXTENDER_DATA_DIR=str(tmp_path))
        return done.stdout or done.stderr

    await DOCUMENT.compare(title, printed)
