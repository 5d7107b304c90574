"""Who a caller is, by the client certificate of its connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec


class ClientCertificate(msgspec.Struct):
    """The verified certificate of one connection."""

    names: tuple[str, ...]  # common names, then DNS names
    ends_s: float  # Unix time
    encoded: bytes  # DER
    verified_with: ssl.SSLContext | None  # None: in an earlier connection


def certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """Return the certificate of the peer; None without TLS, and for a peer that has presented none."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    found: Mapping[str, Any] | None = transport.get_extra_info("peercert")
    if connection is None or not found:
        return None
    encoded = connection.getpeercert(binary_form=True) or b""
    context = None if connection.session_reused else connection.context
    subject = [pair for part in found["subject"] for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    names += [value for key, value in found.get("subjectAltName", ()) if key == "DNS"]
    ends_s = ssl.cert_time_to_seconds(found["notAfter"])
    return ClientCertificate(tuple(dict.fromkeys(names)), ends_s, encoded, context)
