"""The files of the page: what they are sent as, that they send no request to another host, and that the wheel has them."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.http.responses.json_responses import problems
from extender.http.web.server import CONTENT_TYPES, StaticPages, pages

ROOT = Path(__file__).parents[3]
FILES = sorted(path for path in (ROOT / "extender/http/pages").rglob("*") if path.is_file())
OURS = [path for path in FILES if path.parent.name != "vendor"]


def _name(path):
    return str(path.relative_to(ROOT / "extender/http/pages"))


@pytest.fixture
async def client():
    app = web.Application(middlewares=[problems])
    app.add_routes(StaticPages().routes())
    async with TestClient(TestServer(app)) as made:
        yield made


async def test_the_page_comes_with_its_policy_and_is_asked_for_again_by_its_tag(client):
    """Type, policy, tag; 304 for who has it; only what has its version in its name is kept for long."""
    first = await client.get("/ui/")
    assert first.status == 200
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    assert first.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    assert first.headers["Cache-Control"] == "no-cache"
    again = await client.get("/ui/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, await again.read()) == (304, b"")
    library = await client.get("/ui/vendor/d3-7.9.2.min.js")
    assert library.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in library.headers["Cache-Control"]


async def test_the_way_in_holds_behind_a_proxy(client):
    """/ and /ui lead to the page by a relative address."""
    reply = await client.get("/ui", allow_redirects=False)
    assert (reply.status, reply.headers["Location"]) == (308, "ui/")
    reply = await client.get("/", allow_redirects=False)
    assert (reply.status, reply.headers["Location"]) == (302, "ui/")


async def test_the_root_leads_to_the_page_and_other_paths_lead_nowhere(client):
    """A browser that opens / shows the page; a path under no prefix is not found."""
    reply = await client.get("/")
    assert (reply.status, reply.url.path) == (200, "/ui/")
    assert "<title>" in await reply.text()
    for path in ("/gangs", "/index.html", "/ui2", "/v1"):
        reply = await client.get(path)
        assert (reply.status, reply.content_type) == (404, "application/problem+json"), path
    reply = await client.post("/")
    assert reply.status == 405


@pytest.mark.parametrize("path", ["nothing.js", "../ui.py", "%2e%2e/ui.py", "vendor/", "x" * 4000])
async def test_there_is_nothing_but_the_page(client, path):
    """Anything else is not found, in the form of every fault."""
    reply = await client.get(f"/ui/{path}")
    assert reply.status == 404
    assert reply.content_type == "application/problem+json"


def test_every_file_is_served():
    """No file without a type."""
    assert sorted(pages()) == sorted(_name(path) for path in FILES)
    assert {path.suffix for path in FILES} <= set(CONTENT_TYPES)


@pytest.mark.parametrize("path", OURS, ids=_name)
def test_data_is_never_markup_and_no_other_host_is_asked(path):
    """No way from text to markup or code, no inline script or style, no address outside."""
    text = path.read_text(encoding="utf-8")
    assert (
        re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", text
        )
        == []
    )
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    if path.suffix == ".html":
        assert re.findall(r"\sstyle=|\son[a-z]+=|<script>|<style", text) == []
    assert len(text.splitlines()) <= 400


def test_the_library_has_its_licence_beside_it():
    """Files of others name their authors."""
    for library in (ROOT / "extender/http/pages/vendor").glob("*.min.js"):
        licence = library.with_name(library.name.replace(".min.js", ".LICENSE.txt"))
        assert "Copyright" in licence.read_text()
        assert library.name.removeprefix("d3-").removesuffix(".min.js") in library.read_text()[:80]


def test_the_wheel_has_all_of_it(tmp_path):
    """Who installs the wheel has the page."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(ROOT)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = {name.removeprefix("extender/http/pages/") for name in opened.namelist()}
    assert {_name(path) for path in FILES} <= packed
