"""`plan -o markdown`: one page for a pull request, whose tables stay tables whatever the names are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from extender.cli.output.plan_text import ROWS_MAX, plan_markdown
from extender.queries.plan.plan_dto import (
    AssignmentLine,
    CopiesLine,
    GangVerdict,
    PlanAnswer,
    SearchLine,
)
from tests.support.service.command_line import run_command

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy/examples"
KINDS = [
    path.name for path in sorted(EXAMPLES.glob("*.yaml")) if path.name not in ("cluster.yaml", "train.yaml")
]  # fmt: skip


PLAN = ["plan", "--cluster", str(EXAMPLES / "cluster.yaml"), "-o", "markdown"]


def page(*words):
    """Return exit code and page of a plan on the cluster of the examples."""
    done = run_command(*PLAN, *words)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def tables(text):
    """Return the tables of a page as lists of rows; a row with another number of cells than its header fails."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert {len(row) for row in rows} == {len(rows[0])}, block
        found.append([[cell.strip() for cell in row] for row in rows if set("".join(row)) != {"-"}])
    return found


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_workload_has_a_page(name):
    """The first table has each tree, and the exit code agrees with it."""
    code, text = page("-f", str(EXAMPLES / name))
    assert text.startswith("## Would it fit? ")
    rows = tables(text)[0]
    assert rows[0] == ["workload", "answer", "pods placed", "nodes", "evicts"]
    assert len(rows) >= 2
    assert (code == 0) == all(row[1] == "**fits**" for row in rows[1:])


def test_a_refusal_has_reasons_and_what_would_help():
    """A JobSet that is too large for a block; by a process, which reads it from a pipe."""
    large = (EXAMPLES / "jobset.yaml").read_text().replace("replicas: 2", "replicas: 9")
    done = subprocess.run(
        [sys.executable, "-m", "extender", *PLAN, "-f", "-"],
        input=large, check=False, capture_output=True, text=True,
    )  # fmt: skip
    text = done.stdout
    assert done.returncode == 1, done.stderr
    assert text.startswith("## Would it fit? No\n")
    assert (
        "needs 9 of its 9 child groups in one topology.example.com/block; the best, block-a, holds 3"
        in text
    )
    assert "**What would help** (each was verified by a plan):" in text
    assert "Where JobSet" not in text


def test_copies_are_counted_in_the_title():
    """As many as fit, each a row, and why the next one does not."""
    code, text = page("-f", str(EXAMPLES / "jobset.yaml"), "--max-copies")
    assert code == 0
    assert text.startswith("## Would it fit? 2 copies fit\n")
    assert "(copy 3)" in text


def verdict(name="ns/a", **fields):
    return GangVerdict(gang=name, kind="PodGroup", verdict="placed", **fields)


def test_markup_in_texts_stays_text():
    """A label value may have signs that mean something in Markdown; HTML would be shown as HTML."""
    gang = verdict(
        domains={"a": {"k|ey": "<b>x</b>"}},
        assignments=(AssignmentLine("ns/p", "a", "n|1"),),
    )
    text = plan_markdown(
        PlanAnswer(verdict="placed", gangs=(gang,)), ["a_b `c`\n# [x](http://x.example)"]
    )
    assert "<b>" not in text
    assert r"- a\_b \`c\` \# \[x\](http://x.example)" in text
    assert [len(table) for table in tables(text)] == [2, 2]


def test_long_answers_stay_one_page():
    """Lists end after `ROWS_MAX` entries with the number of those left out."""
    gangs = tuple(
        GangVerdict(gang=f"ns/g{n}", kind="PodGroup", verdict="impossible",
                    reasons=tuple(f"reason {m}" for m in range(ROWS_MAX + 5 if n == 0 else 1)))
        for n in range(ROWS_MAX + 7)
    )  # fmt: skip
    text = plan_markdown(PlanAnswer(verdict="impossible", gangs=gangs), [])
    assert "\nand 7 more\n" in text
    assert "- and 5 more" in text
    assert text.count("### Why") == ROWS_MAX
    assert "7 further trees were refused" in text


def test_titles():
    """One word for one answer, counts for several; nothing to plan is a page too."""

    def title(*gangs, **fields):
        worst = max(
            (g.verdict for g in gangs),
            default="placed",
            key=["placed", "unknown", "impossible"].index,
        )
        return plan_markdown(PlanAnswer(verdict=worst, gangs=gangs, **fields), []).splitlines()[0]

    no = GangVerdict(gang="ns/b", kind="PodGroup", verdict="impossible")
    unknown = GangVerdict(
        gang="ns/c", kind="PodGroup", verdict="unknown", search=SearchLine(5, exhausted=False)
    )
    assert title() == "## Would it fit? Nothing to plan"
    assert title(verdict(), verdict("ns/z")) == "## Would it fit? Yes"
    assert title(no) == "## Would it fit? No"
    assert title(unknown) == "## Would it fit? Not decided"
    assert title(verdict(), no) == "## Would it fit? 1 fits, 1 does not fit"
    one = CopiesLine(wanted=0, fit=1, proved=True)
    assert title(verdict(), copies=one) == "## Would it fit? 1 copy fits"
    many = CopiesLine(wanted=5, fit=5, proved=True, limited=True)
    assert title(verdict(), copies=many) == "## Would it fit? At least 5 of 5 copies fit"
