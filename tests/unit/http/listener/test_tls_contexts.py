"""Files that the service cannot use as certificates are refused by setting, path and reason."""

from __future__ import annotations

import ssl

import pytest
from cryptography.hazmat.primitives import serialization

from extender.core.model.errors import BadInput
from extender.http.listener.tls_contexts import ClientCertificate, TlsContexts
from extender.runtime.system_clock import SystemClock
from extender.settings import Settings
from extender.telemetry import METRICS
from tests.support.certificates import certificate_folder, tls_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("ended"), days=1, issued_days_ago=3)


def contexts(made, **files):
    settings = Settings(**(tls_settings(made) | {name: str(path) for name, path in files.items()}))
    return TlsContexts(settings, SystemClock())


@pytest.mark.parametrize(
    "name", ["tls_cert_file", "tls_private_key_file", "client_ca_file", "server_ca_file"]
)
def test_a_file_that_is_not_there_or_has_something_else_is_named(made, tmp_path, name):
    wrong = tmp_path / "wrong"
    wrong.write_text("not PEM")
    flag = f"--{name.replace('_', '-')}"
    for path in (tmp_path / "missing", wrong, tmp_path):
        with pytest.raises(BadInput) as caught:
            contexts(made, **{name: path})
        assert str(path) in str(caught.value)
        assert str(caught.value).startswith(flag)


def test_a_key_of_another_certificate_is_refused(made):
    with pytest.raises(BadInput, match="is not the key of"):
        contexts(made, tls_private_key_file=made.key("ca"))


def test_a_key_with_a_password_is_refused_without_a_prompt(made, tmp_path):
    """OpenSSL would ask on the terminal, and the service would hang."""
    key = serialization.load_pem_private_key(made.key("server").read_bytes(), None)
    path = tmp_path / "locked.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(BadInput, match="has a password"):
        contexts(made, tls_private_key_file=path)


def test_a_certificate_that_has_ended_is_refused(made, ended):
    """With its time; the certificate that is presented to the leader too."""
    with pytest.raises(BadInput, match=r"--tls-cert-file: the certificate in .* ended at 20"):
        contexts(ended, client_ca_file=made.certificate("ca"))
    pair = {"tls_client_cert_file": ended.certificate("server"), "tls_client_private_key_file": ended.key("server")}  # fmt: skip
    with pytest.raises(BadInput, match=r"--tls-client-cert-file: the certificate in .* ended at"):
        contexts(made, **pair)


def test_the_time_to_the_end_is_a_metric(made):
    contexts(made)
    for certificate in ("server", "client"):
        found = METRICS.tls_certificate_expires_in_seconds.labels(certificate)
        assert 29 * 86400 < found.collect()[0].samples[0].value <= 30 * 86400


def test_what_a_server_context_allows(made):
    """TLS 1.2 at least, no resumption, and for the verbs a client certificate."""
    found = contexts(made)
    for context in (found.verbs, found.api):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_TICKET
        assert context.num_tickets == 0
    assert found.verbs.verify_mode == ssl.CERT_REQUIRED
    assert found.api.verify_mode == ssl.CERT_NONE
    assert found.forwarding.verify_mode == ssl.CERT_REQUIRED
    assert found.forwarding.check_hostname


@pytest.mark.parametrize(
    ("life_s", "left_s", "due"),
    [
        (86400 * 365, 601, False), (86400 * 365, 599, True), (20, 2.1, False), (20, 1.9, True), (20, -1, True),
    ],
)  # fmt: skip
def test_a_connection_is_due_near_the_end_of_its_certificate(life_s, left_s, due):
    """Ten minutes before it, or a tenth of a short life."""
    found = ClientCertificate(("x",), 1000.0, 1000.0 + life_s, b"", None)
    assert found.is_due(1000.0 + life_s - left_s) is due
