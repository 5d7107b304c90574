"""`gang-extender certs`: what it makes is accepted and refused by TLS as it should be, and nothing is lost by mistake."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from extender.cli.certificates import certificate_folder as module
from extender.cli.certificates.certificate_folder import (
    CertificateFolder,
    names_of,
    read_certificate,
)
from extender.core.model.errors import BadInput
from tests.support.certificates import (
    REPLICA,
    SCHEDULER,
    certificate_folder,
    client_context,
    handshake,
    server_context,
)
from tests.support.service.command_line import run_command

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
MONTH = timedelta(days=30)
CLIENTS_ONLY = "unsuitable certificate purpose"


def strict_server(made, name="server"):
    context = server_context(made)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(made.certificate(name), made.key(name))
    return context


def test_client_and_server_accept_each_other(tmp_path):
    """By each name of the server; the server reads the name of the client."""
    made = certificate_folder(tmp_path, names=["10.0.0.7", "extender.example.com"])
    for host in ("127.0.0.1", "::1", "localhost", "gang-extender.gang-extender.svc", "10.0.0.7", "extender.example.com"):  # fmt: skip
        peer = handshake(strict_server(made), client_context(made), host)
        assert peer == {"commonName": "system:kube-scheduler"}
    assert handshake(strict_server(made), client_context(made, REPLICA)) == {"commonName": "gang-extender"}  # fmt: skip


def test_a_replica_may_present_the_certificate_of_the_server(tmp_path):
    """So one Secret is enough for a Deployment; its name is that of a replica."""
    made = certificate_folder(tmp_path)
    assert handshake(strict_server(made), client_context(made, "server")) == {"commonName": "gang-extender"}  # fmt: skip


def test_what_must_not_be_accepted_is_refused(tmp_path):
    """A name that the server does not have, a client of another CA, one without a certificate, ended ones, a client as server."""
    made = certificate_folder(tmp_path / "a")
    other = certificate_folder(tmp_path / "b")
    ended = certificate_folder(tmp_path / "c", days=30, issued_days_ago=31)
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(strict_server(made), client_context(made), "10.0.0.8")
    with pytest.raises(
        ssl.SSLCertVerificationError, match=r"self-signed certificate in|unable to get"
    ):
        handshake(strict_server(made), client_context(other))
    stranger = client_context(made, None)
    stranger.load_cert_chain(other.certificate(SCHEDULER), other.key(SCHEDULER))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(strict_server(made), stranger)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(strict_server(made), client_context(made, None))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(strict_server(ended), client_context(ended))
    with pytest.raises(ssl.SSLCertVerificationError, match=CLIENTS_ONLY):
        handshake(strict_server(made, SCHEDULER), client_context(made))


def test_keys_are_readable_by_their_owner_only(tmp_path):
    """A key is 0600, also where a file with other rights was there before; certificates are 0644; nothing else is left."""
    (tmp_path / "server.key").write_text("old")
    (tmp_path / "server.key").chmod(0o644)
    made = CertificateFolder(tmp_path)
    made.create(NOW, MONTH, force=True)
    stems = ("ca", "server", SCHEDULER, REPLICA)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {f"{s}.key": 0o600 for s in stems} | {f"{s}.crt": 0o644 for s in stems}


def test_nothing_is_overwritten_by_mistake(tmp_path):
    """Without --renew or --force: exit 2, the file and both ways out are named, and every file stays as it was."""
    folder = tmp_path / "pki"
    assert run_command("certs", str(folder)).returncode == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run_command("certs", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{folder}/ca.crt is there already; --renew " in done.stderr
    assert "--force" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    done = run_command("certs", str(folder), "--renew", "--force")
    assert (done.returncode, done.stderr) == (2, "gang-extender: --renew keeps the CA and --force replaces it; give one of them\n")  # fmt: skip


def test_renewed_certificates_have_new_dates_and_the_old_ca_keys_and_names(tmp_path, monkeypatch):
    """So each is replaced in one step, and clients that trust the old ca.crt go on; a client may be added.

    A certificate of a version that had fewer names has those of this one.
    """
    with monkeypatch.context() as patch:
        patch.setattr(module, "NAMES", ("localhost",))
        made = certificate_folder(tmp_path, names=["10.0.0.7"], clients=["prometheus"])
    stems = ("server", SCHEDULER, REPLICA, "client-prometheus")
    keys = {stem: made.key(stem).read_bytes() for stem in ("ca", *stems)}
    old = client_context(made)
    authority = made.certificate("ca").read_bytes()
    numbers = {stem: read_certificate(made.certificate(stem)).serial_number for stem in stems}
    written = made.renew(datetime.now(UTC), 3 * MONTH, ["10.0.0.8"], ["grafana"])
    assert made.certificate("ca").read_bytes() == authority
    assert {stem: made.key(stem).read_bytes() for stem in keys} == keys
    for stem in stems:
        found = read_certificate(made.certificate(stem))
        assert found.serial_number != numbers[stem]
        assert found.not_valid_after_utc > datetime.now(UTC) + timedelta(days=89)
    assert {"10.0.0.7", "10.0.0.8", *module.NAMES} == set(names_of(read_certificate(made.certificate("server"))))  # fmt: skip
    assert [one.kept for one in written] == [True, *[False] * 5]
    assert (tmp_path / "client-grafana.key").exists()
    assert handshake(strict_server(made), old, "10.0.0.8") == {"commonName": "system:kube-scheduler"}  # fmt: skip


def test_a_certificate_ends_with_its_ca(tmp_path):
    """It would not be accepted later; a CA that has ended signs nothing."""
    made = CertificateFolder(tmp_path)
    made.create(NOW, MONTH)
    late = NOW + timedelta(days=3640)
    end = read_certificate(made.certificate("ca")).not_valid_after_utc
    assert {one.valid_until for one in made.renew(late, MONTH)} == {end}
    with pytest.raises(BadInput, match=r"ca\.crt: this CA was valid until 2036-11-21; --force "):
        made.renew(end, MONTH)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--name", "https://10.0.0.7"), "--name: 'https://10.0.0.7' is neither a DNS name nor an IP address; give it without scheme and port"),
        (("--name", "10.0.0.300"), "--name: '10.0.0.300' is neither"),
        (("--name", "a_b"), "--name: 'a_b' is neither"),
        (("--client", "../x"), "--client: '../x' is not a name"),
        (("--client", "a:b", "--client", "a-b"), "--client: 'a-b' and 'a:b' would both be client-a-b.crt"),
        (("--days", "0"), "--days: '0' is below 1"),
        (("--renew",), "{folder}/ca.crt is not there; --renew needs the CA"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_written(words, expected, tmp_path):
    """Exit 2; the message has the option or file, the value and what would help."""
    folder = tmp_path / "pki"
    done = run_command("certs", str(folder), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gang-extender: " + expected.format(folder=folder))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("ca.key", "rubbish", "ca.key: not a private key in PEM without a password: "),
        ("ca.crt", "rubbish", "ca.crt: not a certificate in PEM: "),
        ("server.key", "", "server.key: not a private key in PEM"),
        ("client-x.crt", "rubbish", "client-x.crt: not a certificate in PEM: "),
    ],
)  # fmt: skip
def test_a_damaged_file_stops_a_renewal(file, content, expected, tmp_path):
    """It is named, and no certificate was replaced."""
    made = certificate_folder(tmp_path)
    before = made.certificate("server").read_bytes()
    (tmp_path / file).write_text(content)
    done = run_command("certs", str(tmp_path), "--renew")
    assert done.returncode == 2
    assert done.stderr.startswith(f"gang-extender: {tmp_path}/{expected}")
    assert made.certificate("server").read_bytes() == before


def test_a_ca_needs_its_own_key(tmp_path):
    """A key of another CA would sign certificates that no client accepts."""
    made = certificate_folder(tmp_path / "a")
    made.key("ca").write_bytes(certificate_folder(tmp_path / "b").key("ca").read_bytes())
    with pytest.raises(BadInput, match=r"ca\.key: not the key of .*ca\.crt"):
        made.renew(NOW, MONTH)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file is in its place."""
    (tmp_path / "pki").write_text("")
    done = run_command("certs", str(tmp_path / "pki"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"gang-extender: {tmp_path}/pki: cannot be written: ")


def test_the_output_has_files_holders_ends_and_what_to_do_next(tmp_path):
    """As a table and as JSON; after a renewal Secrets are replaced and no key is copied."""
    shown = run_command("certs", str(tmp_path), "--name", "10.0.0.7").stdout
    for text in (
        "server.crt, server.key ", "system:kube-scheduler", "10.0.0.7", f"--client-ca-file={tmp_path}/ca.crt",
        f"create secret generic gang-extender-tls --from-file=tls.crt={tmp_path}/server.crt",
        f"install -m 0600 {tmp_path}/client-kube-scheduler.key /etc/kubernetes/gang-extender/client.key",
    ):  # fmt: skip
        assert text in shown
    report = json.loads(
        run_command("certs", str(tmp_path), "--renew", "--days", "7", "-o", "json").stdout
    )
    server = report["certificates"][1]
    assert server["names"][-1] == "10.0.0.7"
    left = datetime.fromisoformat(server["valid_until"]) - datetime.now(UTC)
    assert timedelta(days=6) < left <= timedelta(days=7)
    assert [line for line in report["commands"] if "kubectl replace -f -" in line] == report[
        "commands"
    ][:2]
    assert not any("client.key" in line for line in report["commands"])
