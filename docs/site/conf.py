"""Sphinx builds the site from the Markdown of the repository: `make docs`. Broken links are errors.

Two variables are for who publishes it: DOCS_EDIT, the address of a page in an editor, with {filename} for its path; and
DOCS_VERSIONS, the names of the versions whose sites stand beside this one, each in a folder of its name, with DOCS_VERSION
as the one of this site.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site.reference import write  # noqa: E402

write(ROOT / "docs/reference/generated")

project = "gang-extender"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/alerts/*.md", "docs/explanation/*.md", "docs/how-to/*.md", "docs/reference/*.md", "docs/reference/generated/*.md", "docs/runbook/*.md", "docs/site/*.md",
    "docs/troubleshooting/*.md", "docs/troubleshooting/pending/*.md", "docs/tutorials/*.md", "deploy/README.md", "deploy/QUESTIONS.md",
    "deploy/chart/README.md", "deploy/monitoring/README.md", "deploy/skill/SKILL.md", "extender/README.md", "tests/bench/RESULTS.md",
]  # fmt: skip
myst_heading_anchors = 4  # links to headings, as GitHub makes them
nitpicky = True
smartquotes = False  # two dashes begin an option
html_theme = "furo"
html_title = "gang-extender"
html_show_sphinx = False
html_copy_source = True  # "view this page"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
templates_path = ["templates"]
html_theme_options = {
    "top_of_page_buttons": ["view", "edit"],
    "source_edit_link": os.environ.get("DOCS_EDIT", ""),
}
version = os.environ.get("DOCS_VERSION", "") or str(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
)
html_context = {"versions": os.environ.get("DOCS_VERSIONS", "").split()}
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "versions.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip


class SiteBuilder(StandaloneHTMLBuilder):
    """Writes the front page as /index.html; every other page keeps the path of its file."""

    name = "html"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Return the address of a page, relative to the site."""
        return super().get_target_uri(self._place(docname), typ)

    def get_output_path(self, page_name: str, /) -> Path:
        """Return the file of a page."""
        return super().get_output_path(self._place(page_name))

    def index_page(self, pagename: str, doctree: nodes.document, title: str) -> None:
        """Index a page for the search, but not the front page: the search would link its old path."""
        if pagename != self.config.root_doc:
            super().index_page(pagename, doctree, title)

    def _place(self, docname: str) -> str:
        return "index" if docname == self.config.root_doc else docname


def setup(app: Sphinx) -> None:
    """Register the builder."""
    app.add_builder(SiteBuilder, override=True)
