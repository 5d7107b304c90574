"""The site of `make docs`, with the settings of docs/site/conf.py, of two small pages: its front page, links, buttons and versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "docs/site/index.md": "# Front\n\n[the limits](../limits.md)\n\n```{toctree}\n:hidden:\n\n../limits.md\n```\n",
    "docs/limits.md": "# Limits\n\n[the front page](site/index.md)\n\n    make demo\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the pages as who publishes two versions does; return the folder."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-c", str(ROOT / "docs/site"),
         str(folder), str(folder / "out")],
        env=os.environ | {"DOCS_EDIT": "https://git.example.com/edit/{filename}", "DOCS_VERSIONS": "0.1.0 dev",
                          "DOCS_VERSION": "dev"},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "out"


def links(path: Path) -> list[str]:
    return re.findall(r'href="([^"#]+)"', path.read_text(encoding="utf-8"))


def test_the_front_page_is_at_the_root_and_pages_lead_there_and_back(site):
    """/index.html; no page is left at the path of its file."""
    assert "docs/limits.html" in links(site / "index.html")
    assert "../index.html" in links(site / "docs/limits.html")
    assert not (site / "docs/site/index.html").exists()
    assert "docs/site/index" not in (site / "searchindex.js").read_text()


def test_pages_can_be_edited_copied_from_and_read_in_another_version(site):
    """The path of the file in the repository; the script with the buttons; the same versions on each page."""
    page = site / "docs/limits.html"
    assert "https://git.example.com/edit/docs/limits.md" in links(page)
    assert "https://git.example.com/edit/docs/site/index.md" in links(site / "index.html")
    assert (site / "_static/copy.js").read_text() == (ROOT / "docs/site/static/copy.js").read_text()
    assert re.search(r'<script[^>]*src="\.\./_static/copy\.js', page.read_text())
    (other,) = [link for link in links(page) if "0.1.0" in link]
    target = os.path.normpath(site / "docs" / other)
    assert target == str(site.parent / "0.1.0/index.html")
    (other,) = [link for link in links(site / "index.html") if "0.1.0" in link]
    assert os.path.normpath(site / other) == target


def test_the_front_page_has_a_picture_and_three_doors():
    """One sentence, one picture, and where to go: nothing else above the list of pages."""
    shown, _, _ = (ROOT / "docs/site/index.md").read_text().partition("```{toctree}")
    assert shown.count("![") == 1
    assert re.findall(r"^\*\*\[(.+?)\]", shown, re.MULTILINE) == [
        "Try it",
        "Install it",
        "Judge it",
    ]


def test_a_page_of_the_runbook_has_a_screen_or_three():
    """Who reads it is on call; a screen has about 45 lines of text."""
    lengths = {
        path.name: len(path.read_text().splitlines())
        for path in (ROOT / "docs/runbook").glob("*.md")
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > 3 * 45} == {}
