"""The TLS contexts of the listeners and of forwarded calls, made from files and replaced when the files change; failed handshakes by cause.

A listener has one context for as long as it listens. At each handshake that one puts the context of the newest files
in its place (`sni_callback`, which OpenSSL also calls for clients that send no name). So open connections go on, no
listener is closed, and a CA that was removed is no longer trusted, which adding to one context could not do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from extender.core.model.errors import BadInput
from extender.listener_settings import HTTP1_SERVER_NAME, ListenerSettings
from extender.ports.log_ports import Clock
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS, LimitedLines

T = TypeVar("T")
Stamp = tuple[tuple[int, ...], ...]  # one entry per file; empty for a file that is not there


class ReloadedFiles(Generic[T]):
    """What a function makes from files.

    Raises:
        BadInput: The files cannot be used. Later failures keep the last value and are logged.
    """

    def __init__(self, name: str, paths: Sequence[str], load: Callable[[], T]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self._load = load
        self._used = self._last_stamp = self._stamp()
        self._refused: Stamp | None = None
        self.current = load()

    def look(self) -> None:
        """Compare the files with those in use, and use new ones if they are usable and have come to rest."""
        stamp = self._stamp()
        came_to_rest, self._last_stamp = stamp == self._last_stamp, stamp
        if not came_to_rest or stamp in (self._used, self._refused):
            return
        try:
            loaded = self._load()
        except BadInput as error:
            if self._stamp() == stamp:
                self._refused = stamp
                METRICS.tls_reloads.labels(self._name, "failed").inc()
                log.error(  # noqa: TRY400 -- the text has all of it
                    "new certificates are not usable; the old ones stay in use",
                    extra={"files": self._paths, "error": str(error)},
                )
            return
        if self._stamp() == stamp:
            self.current, self._used, self._refused = loaded, stamp, None
            METRICS.tls_reloads.labels(self._name, "loaded").inc()
            log.info("new certificates are in use", extra={"files": self._paths})

    def _stamp(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


log = logging.getLogger(__name__)

NO_CERTIFICATE = "no-certificate"
UNKNOWN_CA = "unknown-ca"
ENDED = "ended"
REFUSED_BY_CALLER = "refused-by-caller"
PLAIN_HTTP = "plain-http"
OTHER = "other"
# Codes of OpenSSL, X509_V_ERR_*.
_ENDED_CODES = (9, 10)
_UNKNOWN_CODES = (2, 18, 19, 20, 21)
_REASONS = {"PEER_DID_NOT_RETURN_A_CERTIFICATE": NO_CERTIFICATE, "HTTP_REQUEST": PLAIN_HTTP}
ABOUT = {
    NO_CERTIFICATE: "the caller has presented no certificate",
    UNKNOWN_CA: "no CA in --client-ca-file has signed the certificate of the caller",
    ENDED: "the certificate of the caller has ended, or is not valid yet",
    REFUSED_BY_CALLER: "the caller does not accept the certificate of this service: its CA file or the name by which it calls",
    PLAIN_HTTP: "the caller sends HTTP without TLS",
    OTHER: "the error has the cause",
}


class FailedHandshakes:
    """Counts and logs the failed handshakes of one listener."""

    def __init__(self, listener: str, clock: Clock) -> None:
        self._listener = listener
        self._lines = LimitedLines(log, "a TLS handshake failed", clock.monotonic_ms)

    def observe(self, context: ssl.SSLContext) -> None:
        """Have the connections of a context report to this object."""
        failed = self.failed

        class ObservedConnection(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    failed(error)
                    raise

        context.sslobject_class = ObservedConnection

    def failed(self, error: ssl.SSLError) -> None:
        """Count a handshake that ended with an error; log it unless its cause was logged a moment ago."""
        cause = cause_of(error)
        METRICS.tls_handshakes_failed.labels(cause).inc()
        self._lines.warn(
            cause, listener=self._listener, cause=cause, about=ABOUT[cause], error=str(error)
        )


def cause_of(error: ssl.SSLError) -> str:
    """Return the cause of a failed handshake of a server, as the label of the metric has it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _ENDED_CODES:
            return ENDED
        return UNKNOWN_CA if error.verify_code in _UNKNOWN_CODES else OTHER
    reason = error.reason or ""
    if "_ALERT_" in reason:  # sent by the caller
        return REFUSED_BY_CALLER
    return _REASONS.get(reason, OTHER)


LOOK_S = 1.0
HTTP1, HTTP2 = "http/1.1", "h2"  # as ALPN names them


class ServerContexts(msgspec.Struct, frozen=True):
    """What was made from the files of the server."""

    verbs: ssl.SSLContext  # asks for a client certificate
    verbs_http1: ssl.SSLContext  # the same, for callers of `HTTP1_SERVER_NAME`
    api: ssl.SSLContext  # asks for none
    client_cas: tuple[x509.Certificate, ...]


class TlsContexts:
    """All contexts of one replica.

    Args:
        clock: Decides whether a certificate has ended.

    Raises:
        BadInput: A file cannot be read or used; the message names setting and file.
    """

    def __init__(self, settings: ListenerSettings, clock: Clock) -> None:
        self._clock = clock
        server = (settings.tls_cert_file, settings.tls_private_key_file, settings.client_ca_file)
        client = (
            settings.tls_client_cert_file or settings.tls_cert_file,
            settings.tls_client_private_key_file or settings.tls_private_key_file,
            settings.server_ca_file or settings.client_ca_file,
        )
        self._server = ReloadedFiles("server", server, lambda: self._server_contexts(*server))
        self._client = ReloadedFiles("client", client, lambda: self._client_context(*client))
        self.verbs = _front(self._verbs_for, asks=True)
        self.api = _front(lambda _: self._server.current.api, asks=False)
        for listener, context in (("verbs", self.verbs), ("api", self.api)):
            FailedHandshakes(listener, clock).observe(context)

    @property
    def forwarding(self) -> ssl.SSLContext:
        """Return the context of calls to the leader, from the newest files."""
        return self._client.current

    def trusts(self, caller: ClientCertificate) -> bool:
        """Return whether the CAs of now have signed a certificate; a handshake with the context of now has verified that.

        Of an older connection only signatures of these CAs themselves count, not those of an intermediate CA.
        """
        current = self._server.current
        if caller.verified_with in (current.verbs, current.verbs_http1):
            return True
        certificate = x509.load_der_x509_certificate(caller.encoded)
        if not any(_signed(certificate, ca) for ca in current.client_cas):
            return False
        caller.verified_with, caller.outdated = current.verbs, True
        return True

    def look(self) -> None:
        """Read files that have changed."""
        self._server.look()
        self._client.look()

    async def run(self) -> None:
        """Look at the files again and again, until cancelled."""

        async def work() -> None:
            self.look()

        await PeriodicTask(name="certificate-files", work=work, every_s=LOOK_S).run()

    def now_s(self) -> float:
        """Return the Unix time."""
        return self._clock.now_us() / 1e6

    def _server_contexts(self, certificate: str, key: str, client_ca: str) -> ServerContexts:
        ends = self._last_second("--tls-cert-file", certificate)
        authorities = read_certificates("--client-ca-file", client_ca)
        if all(
            authority.not_valid_after_utc.timestamp() < self.now_s() for authority in authorities
        ):
            raise BadInput(f"--client-ca-file: all CAs in {client_ca} have ended; renew them")

        def new_context(*protocols: str, asks: bool) -> ssl.SSLContext:
            context = _server_context(protocols, asks=asks)
            _load_pair(context, certificate, key, "--tls-cert-file", "--tls-private-key-file")
            if asks:
                _load_authorities(context, client_ca, "--client-ca-file")
            return context

        self._show_end("server", ends)
        self._show_end(
            "client-ca", max(authority.not_valid_after_utc for authority in authorities).timestamp()
        )
        return ServerContexts(
            verbs=new_context(HTTP2, HTTP1, asks=True),
            verbs_http1=new_context(HTTP1, asks=True),
            # browsers and commands need no second version
            api=new_context(HTTP1, asks=False),
            client_cas=authorities,
        )

    def _verbs_for(self, server_name: str | None) -> ssl.SSLContext:
        current = self._server.current
        return current.verbs_http1 if server_name == HTTP1_SERVER_NAME else current.verbs

    def _client_context(self, certificate: str, key: str, server_ca: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        ends = self._last_second("--tls-client-cert-file", certificate)
        _load_pair(
            context, certificate, key, "--tls-client-cert-file", "--tls-client-private-key-file"
        )
        _load_authorities(context, server_ca, "--server-ca-file")
        self._show_end("client", ends)
        return context

    def _last_second(self, setting: str, path: str) -> float:
        """Return when the first certificate of a file ends, as Unix time."""
        ends = read_certificates(setting, path)[0].not_valid_after_utc
        if ends.timestamp() < self.now_s():
            raise BadInput(f"{setting}: the certificate in {path} ended at {ends:%Y-%m-%dT%H:%M:%SZ}; renew it (gang-extender certs FOLDER --renew)")  # fmt: skip
        return ends.timestamp()

    def _show_end(self, certificate: str, ends_s: float) -> None:
        METRICS.tls_certificate_expires_in_seconds.labels(certificate).set_function(
            lambda: ends_s - self.now_s()
        )


def _signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _server_context(protocols: Sequence[str], *, asks: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # no resumption: a resumed session would not verify the client again
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(protocols)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        # as in Go: each certificate of the file is trusted by itself
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _front(current: Callable[[str | None], ssl.SSLContext], *, asks: bool) -> ssl.SSLContext:
    """Return a context without certificates that uses the current one at each handshake.

    Args:
        current: Returns it for the name of the server that a client sends.
        asks: As in the current one; OpenSSL keeps the verify mode of the context of the listener.
    """

    def swap(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = current(name)

    context = _server_context((HTTP1,), asks=asks)
    context.sni_callback = swap
    return context


def _load_pair(
    context: ssl.SSLContext, certificate: str, key: str, setting: str, key_setting: str
) -> None:
    def refuse() -> str:  # without it, OpenSSL would ask for a password on the terminal
        raise BadInput(f"{key_setting}: {key} has a password; use a key without one")

    with _reading(key_setting, key):
        try:
            context.load_cert_chain(certificate, key, password=refuse)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                msg = f"{key_setting}: {key} is not the key of {certificate} ({setting})"
            else:
                msg = f"{key_setting}: {key} is not a private key in PEM, or {certificate} ({setting}) is not usable: {_text(error)}"
            raise BadInput(msg) from error


@contextlib.contextmanager
def _reading(setting: str, path: str) -> Iterator[None]:
    """Raise an error of the operating system as one of the setting."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{setting}: cannot read {path}: {error.strerror or error}") from error


def _load_authorities(context: ssl.SSLContext, path: str, setting: str) -> None:
    with _reading(setting, path):
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as error:
            raise BadInput(f"{setting}: {path} has no usable CA: {_text(error)}") from error


def read_certificates(setting: str, path: str) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM file, one or more."""
    with _reading(setting, path):
        text = Path(path).read_bytes()
    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except ValueError as error:
        raise BadInput(f"{setting}: {path} has no certificate in PEM: {error}") from error


def _text(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


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
