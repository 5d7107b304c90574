"""Failed handshakes: their cause is counted and logged, because the caller sees only a closed connection."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from extender.cli.certificates.certificate_folder import CertificateFolder
from extender.http.listener.tls_contexts import ABOUT, FailedHandshakes, cause_of
from extender.telemetry import METRICS
from tests.support.certificates import (  # fmt: skip
    certificate_folder,
    client_context,
    files_of,
    handshake,
    server_context,
)
from tests.support.service.fakes import FakeClock


def presenting(made, other):
    """Return the context of a client that trusts one CA and presents a certificate of another."""
    context = client_context(made, None)
    files = files_of(other)
    context.load_cert_chain(files.certificate, files.key)
    return context


def counted(cause):
    return METRICS.tls_handshakes_failed.labels(cause)._value.get()


@pytest.fixture
def made(tmp_path):
    return certificate_folder(tmp_path / "made")


@pytest.fixture
def clients(made, tmp_path):
    """Contexts of clients by the cause for which they are refused."""
    ended = CertificateFolder(tmp_path / "made")
    other = certificate_folder(tmp_path / "other")
    found = {
        "no-certificate": client_context(made, None),
        "unknown-ca": presenting(made, other),
    }
    ended.renew(datetime.now(UTC) - timedelta(days=2), timedelta(days=1))
    found["ended"] = presenting(made, ended)
    ended.renew(datetime.now(UTC), timedelta(days=1))
    return found


@pytest.mark.parametrize("cause", ["no-certificate", "unknown-ca", "ended"])
def test_the_cause_of_a_refused_client_is_counted_and_logged(made, clients, cause, caplog):
    """The error of the handshake stays as it is; the log line has listener, cause and what it means."""
    server = server_context(made)
    FailedHandshakes("verbs", FakeClock()).observe(server)
    before = counted(cause)
    with caplog.at_level(logging.WARNING), pytest.raises(ssl.SSLError):
        handshake(server, clients[cause])
    assert counted(cause) == before + 1
    (line,) = caplog.records
    assert (line.listener, line.cause, line.about) == ("verbs", cause, ABOUT[cause])
    assert line.error


def test_a_good_client_is_not_counted(made, caplog):
    server = server_context(made)
    FailedHandshakes("verbs", FakeClock()).observe(server)
    before = {cause: counted(cause) for cause in ABOUT}
    assert handshake(server, client_context(made)) == {"commonName": "system:kube-scheduler"}
    assert {cause: counted(cause) for cause in ABOUT} == before
    assert caplog.records == []


def test_a_cause_is_logged_once_a_minute(caplog):
    """A scanner cannot fill the log; the next line has how many there were, and other causes are logged at once."""
    clock = FakeClock()
    seen = FailedHandshakes("verbs", clock)
    one, other = ssl.SSLError(1, "x"), ssl.SSLError(1, "y")
    one.reason, other.reason = "PEER_DID_NOT_RETURN_A_CERTIFICATE", "HTTP_REQUEST"
    for _ in range(1000):
        seen.failed(one)
    seen.failed(other)
    assert [line.cause for line in caplog.records] == ["no-certificate", "plain-http"]
    clock.advance(60)
    seen.failed(one)
    assert caplog.records[-1].more_since_last_line == 999


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("TLSV1_ALERT_UNKNOWN_CA", "refused-by-caller"), ("UNSUPPORTED_PROTOCOL", "other"), (None, "other")],
)  # fmt: skip
def test_causes_of_other_errors(reason, cause):
    """An alert is what the caller sent: it does not accept our certificate."""
    error = ssl.SSLError(1, "text")
    error.reason = reason
    assert cause_of(error) == cause
