"""GET /ui/: the static page, from the package; it uses only /v1 of this service. GET / leads to it.

All files are read when the service starts, so a response reads no disk. Files with a version in their name never
change; browsers validate the others each time and mostly get a 304.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec
from aiohttp import web

from extender.core.model.errors import NotFound
from extender.http.responses.json_responses import not_modified

CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
VERSIONED = "vendor/"  # names in this folder have a version in them
START_PAGE = "index.html"


class StaticFile(msgspec.Struct, frozen=True):
    """A file of the page, ready to send."""

    body: bytes
    content_type: str
    tag: str
    caching: str


def pages() -> dict[str, StaticFile]:
    """Return the files of the page, by their path below /ui/."""
    return {
        path: StaticFile(
            body=body,
            content_type=CONTENT_TYPES["." + path.rpartition(".")[2]],
            tag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            caching="max-age=31536000, immutable" if path.startswith(VERSIONED) else "no-cache",
        )
        for path, body in _files(resources.files("extender.http") / "pages", "")
    }


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    files: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            files += _files(entry, f"{prefix}{entry.name}/")
        else:
            files.append((prefix + entry.name, entry.read_bytes()))
    return files


class StaticPages:
    """Handlers of /ui/."""

    def __init__(self) -> None:
        self._pages = pages()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/", self.start),
            web.get("/ui", self.moved),
            web.get("/ui/{path:.*}", self.page),
        ]

    async def start(self, _: web.Request) -> web.Response:
        """Return a redirect from / to the page; temporary, because / may get a page of its own."""
        return web.Response(status=302, headers={"Location": "ui/"})

    async def moved(self, _: web.Request) -> web.Response:
        """Return a redirect to the page; relative, so that it works behind a proxy."""
        return web.Response(status=308, headers={"Location": "ui/"})

    async def page(self, request: web.Request) -> web.Response:
        """Return a file of the page.

        Raises:
            NotFound: There is no such file.
        """
        path = request.match_info["path"] or START_PAGE
        page = self._pages.get(path)
        if page is None:
            raise NotFound(f"/ui/{path[:80]}: there is no such page; begin at /ui/")
        headers = {
            "Cache-Control": page.caching,
            "Content-Security-Policy": POLICY,
            "ETag": page.tag,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if not_modified(request, page.tag):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=page.body, content_type=page.content_type, charset="utf-8", headers=headers
        )
