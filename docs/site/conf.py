"""Sphinx builds the site from the Markdown of the repository: `make docs`. Broken links are errors."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site.reference import write  # noqa: E402

write(ROOT / "docs/reference/generated")

project = "gang-extender"
extensions = ["myst_parser"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/alerts/*.md", "docs/explanation/*.md", "docs/how-to/*.md", "docs/reference/*.md", "docs/reference/generated/*.md", "docs/site/*.md",
    "docs/troubleshooting/*.md", "docs/troubleshooting/pending/*.md", "docs/tutorials/*.md", "deploy/README.md", "deploy/QUESTIONS.md",
    "deploy/chart/README.md", "deploy/monitoring/README.md", "deploy/skill/SKILL.md", "extender/README.md", "tests/bench/RESULTS.md",
]  # fmt: skip
myst_heading_anchors = 4  # links to headings, as GitHub makes them
nitpicky = True
smartquotes = False  # two dashes begin an option
html_theme = "furo"
html_title = "gang-extender"
html_show_sphinx = False
html_copy_source = False
