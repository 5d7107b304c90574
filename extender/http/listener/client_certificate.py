"""Who a caller is, by the client certificate of its connection."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

RENEWED_WITHIN_S = 600.0
# kube-scheduler makes a connection for nearly every bind call, each with the same certificate.
_unix_time_of = functools.lru_cache(maxsize=256)(ssl.cert_time_to_seconds)


class ClientCertificate(msgspec.Struct):
    """The verified certificate of one connection."""

    names: tuple[str, ...]  # common names, then DNS names
    starts_s: float  # Unix time
    ends_s: float
    encoded: bytes  # DER
    verified_with: ssl.SSLContext | None  # None: in an earlier connection
    outdated: bool = False  # the files of the server have changed since the handshake

    def is_due(self, now_s: float) -> bool:
        """Return whether its connection should be closed for a new one, whose handshake uses newer files.

        A client under load never closes a connection, so it would not present a certificate that was renewed. The rest
        of the certificate's life, a tenth and at most ten minutes, is the time for that.
        """
        rest_s = min(RENEWED_WITHIN_S, (self.ends_s - self.starts_s) / 10)
        return self.outdated or now_s > self.ends_s - rest_s


def certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """Return the certificate of the peer; None without TLS, and for a peer that has presented none."""
    stored: ClientCertificate | None = transport.get_extra_info("client_certificate")
    if stored is not None:  # of a stream: that of its connection
        return stored
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    peer_certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
    if connection is None or not peer_certificate:
        return None
    encoded = connection.getpeercert(binary_form=True) or b""
    context = None if connection.session_reused else connection.context
    subject = [pair for part in peer_certificate["subject"] for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    names += [value for key, value in peer_certificate.get("subjectAltName", ()) if key == "DNS"]
    starts_s, ends_s = (
        float(_unix_time_of(peer_certificate[field])) for field in ("notBefore", "notAfter")
    )
    return ClientCertificate(tuple(dict.fromkeys(names)), starts_s, ends_s, encoded, context)
