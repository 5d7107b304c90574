"""What the caller of a request may see, as authorization has found it.

`authentication` sets `request[VISIBILITY]` before the handler is called. Handlers ask only `visibility_of`.
"""

from __future__ import annotations

from aiohttp import web

from extender.core.model.visibility import Visibility

VISIBILITY = web.RequestKey("visibility", Visibility)


def visibility_of(request: web.Request) -> Visibility:
    """Return what the caller may see: everything, where the listener has no authentication."""
    return request[VISIBILITY] if VISIBILITY in request else Visibility.all()
