"""Failed TLS handshakes, by cause: a metric, and a log line at most once a minute.

A caller without a usable certificate sees only a closed connection, and the event loop drops it before any handler is
called. What sees it is the object that the loop makes for each connection: `SSLContext.sslobject_class` names its class.
"""

from __future__ import annotations

import logging
import ssl

from extender.ports.log_ports import Clock
from extender.telemetry import METRICS, LimitedLines

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
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": NO_CERTIFICATE,
    "HTTP_REQUEST": PLAIN_HTTP,
}
ABOUT = {
    NO_CERTIFICATE: "the caller has presented no certificate",
    UNKNOWN_CA: "no CA in --client-ca-file has signed the certificate of the caller",
    ENDED: "the certificate of the caller has ended, or is not valid yet",
    REFUSED_BY_CALLER: "the caller does not accept the certificate of this service: its CA file or the name by which it calls",
    PLAIN_HTTP: "the caller sends HTTP without TLS",
    OTHER: "the error has the cause",
}


class FailedHandshakes:
    """Counts and logs the failed handshakes of one listener.

    Args:
        listener: Its name, for the log.
        clock: For the time between two log lines.
    """

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
