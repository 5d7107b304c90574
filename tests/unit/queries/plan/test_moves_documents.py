"""docs/how-to/make-room.md and drain.md: a section for each question, with the output as it is printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from extender.cli.commands.moves_command import moves_markdown
from extender.core.planner.moves.move_types import StayingPod
from extender.queries.plan.plan_dto import MovesAnswer
from tests.support.document_outputs import DocumentOutputs
from tests.support.service.command_line import run_command

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
DOCUMENTS = {
    command: DocumentOutputs(f"how-to/{command}.md", f"gang-extender {command}")
    for command in ("make-room", "drain")
}


@pytest.mark.parametrize(
    ("command", "title"),
    [(command, title) for command, document in DOCUMENTS.items() for title in document.titles()],
)
async def test_the_output_in_the_document_is_what_is_printed(command, title, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path / "deploy" / "examples")
    monkeypatch.chdir(tmp_path)

    async def printed(arguments):
        return run_command(command, *arguments.split()).stdout

    await DOCUMENTS[command].compare(title, printed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("make-room", "--free", "rack"), 'free "rack": write KEY=N, a node label and how many'),
        (("make-room", "--free", "rack=1"), 'free "rack=1": no node has the label rack'),
        (("make-room",), "give either --for FILE|NAMESPACE/GANG or --free KEY=N"),
        (("make-room", "--for", "train"), "--for train: there is no such file"),
        (
            ("make-room", "--for", "default/evil"),
            "--for default/evil: the cluster has no such group",
        ),
        (("make-room", "--for", "a" * 300), "there is no such file"),
        (("make-room", "--free", "rack=" + "9" * 5000), '9…": write KEY=N'),
        (("make-room", "--free", "rack=\uff12"), 'free "rack=\uff12": write KEY=N'),
        (("drain", "a1"), 'drain "a1": the cluster has no node of this name'),
        (("make-room", "--for", "/dev/null"), "--for /dev/null: has no object"),
        (("drain", "=a"), 'no node has the label "";'),
        (("drain", "a11", "--max-age", "0h"), "--max-age 0h: write a number above 0"),
        (("drain", "a11", "--max-age", "old"), "--max-age old: write a number"),
        (("drain",), "give NODE or KEY=VALUE, or --announced"),
        (
            ("drain", "--announced"),
            "announced: of 18 nodes none is cordoned or has one of the taints ToBeDeletedByClusterAutoscaler,",
        ),
        (("drain", "a11", "--by", "soon"), "'soon' is not a time with offset, for example"),
        (("drain", "a11", "--by", "soon"), "nor a span from now such as 4h"),
        (
            ("drain", "a11", "--apply"),
            "--apply: moves are made by a service, on its cluster; give --server URL",
        ),
        (("drain", "a11", "--apply"), "and leave --cluster out"),
    ],
)
def test_wrong_input_names_option_and_value(words, expected):
    done = run_command(*words, "--cluster", str(EXAMPLES / "fragmented.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_a_page_of_markdown_has_the_nodes_before_and_after():
    cluster = str(EXAMPLES / "fragmented.yaml")
    done = run_command("drain", "a11", "--cluster", cluster, "-o", "markdown")
    assert done.returncode == 0
    assert done.stdout.startswith("## drain a11: 1 move (proved: no fewer lead there)\n")
    assert "| a11 | nvidia.com/gpu | 8 | 6 | 8 |\n" in done.stdout


def test_a_page_of_markdown_escapes_reasons():
    answer = MovesAnswer(
        verdict="impossible",
        question="drain a|1",
        stays=(StayingPod(pod="default/a", node="a|1", reason="a <b> | c"),),
        reasons=("the label a_b | c",),
    )
    page = moves_markdown(answer).splitlines()
    assert page[0].startswith("## drain a\\|1: ")
    assert "- the label a\\_b \\| c" in page
    assert "| default/a | a\\|1 | a &lt;b&gt; \\| c |" in page
