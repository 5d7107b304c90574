"""What the caller of a request may see, as authorization has found it, and the body as the limits have read it.

`access_middleware` sets `request[VISIBILITY]` and `request[CALLER]` before the handler is called. Handlers ask only `visibility_of`.
"""

from __future__ import annotations

import base64
import hashlib

import msgspec
from aiohttp import web

from extender.core.model.visibility import Visibility
from extender.ports.access_ports import Caller

VISIBILITY = web.RequestKey("visibility", Visibility)
CALLER = web.RequestKey("caller", Caller)  # there only where the listener has authentication


def visibility_of(request: web.Request) -> Visibility:
    """Return what the caller may see: everything, where the listener has no authentication."""
    return request[VISIBILITY] if VISIBILITY in request else Visibility.all()


def visibility_tag(visibility: Visibility) -> str:
    """Return the part of an ETag that differs between callers who see different namespaces; empty for everything."""
    if visibility.everything:
        return ""
    names = "/".join(sorted(visibility.namespaces))
    return f"-{hashlib.sha256(names.encode()).hexdigest()[:12]}"


def encoded_visibility(visibility: Visibility) -> str:
    """Return a visibility as the value of a header."""
    return base64.urlsafe_b64encode(msgspec.json.encode(visibility)).decode()


def decoded_visibility(text: str) -> Visibility:
    """Return the visibility in the value of a header; the inverse of `encoded_visibility`."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=Visibility)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


BODY = web.RequestKey("body", bytes)


def body_of(request: web.Request) -> bytes:
    """Return the whole body of a request; it was read, within its limits, before the handler was called."""
    return request[BODY]
