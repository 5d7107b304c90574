"""Certificates for tests, made by the code of `gang-extender certs`: good ones, ended ones, those of another CA.

    made = certificate_folder(tmp_path)             # as `gang-extender certs` makes them
    wrong = certificate_folder(tmp_path / "other")  # valid, but of a CA that the others do not trust

`Files` names what a caller presents and trusts; `client_context` is that as an `ssl.SSLContext`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from extender.cli.certificates.certificate_folder import CertificateFolder

SCHEDULER, REPLICA = "client-kube-scheduler", "client-gang-extender"


class Files(NamedTuple):
    """What one caller has: its certificate and key, and the CA that it trusts."""

    certificate: Path
    key: Path
    ca: Path


def certificate_folder(
    folder: Path,
    *,
    names: Iterable[str] = (),
    clients: Iterable[str] = (),
    days: int = 30,
    issued_days_ago: int = 0,
) -> CertificateFolder:
    """Make a CA, a server and the default clients in a folder; with days <= issued_days_ago they have ended."""
    made = CertificateFolder(folder)
    now = datetime.now(UTC) - timedelta(days=issued_days_ago)
    made.create(now, timedelta(days=days), names, clients)
    return made


def files_of(made: CertificateFolder, name: str = SCHEDULER) -> Files:
    """Return the files of a client, or of "server"."""
    return Files(made.certificate(name), made.key(name), made.certificate("ca"))


def tls_settings(made: CertificateFolder) -> dict[str, str]:
    """Return the settings of a service that uses the certificates."""
    return {
        "tls_cert_file": str(made.certificate("server")),
        "tls_private_key_file": str(made.key("server")),
        "client_ca_file": str(made.certificate("ca")),
    }


def client_context(made: CertificateFolder, name: str | None = SCHEDULER) -> ssl.SSLContext:
    """Return the context of a client that trusts the CA of a folder and presents one of its certificates; None: none."""
    context = ssl.create_default_context(cafile=str(made.certificate("ca")))
    # What Python checks from 3.13 on: extensions that Go wants as well.
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    if name is not None:
        context.load_cert_chain(made.certificate(name), made.key(name))
    return context


def server_context(made: CertificateFolder) -> ssl.SSLContext:
    """Return the context of a server that asks for a client certificate of the CA of a folder."""
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(made.certificate("ca"))
    )
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(made.certificate("server"), made.key("server"))
    return context


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1"
) -> dict[str, str]:
    """Shake hands in memory and return the subject that the server sees; an alert is raised by the side that finds it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    return dict(part[0] for part in there.getpeercert()["subject"])


def point_at(config: Mapping[str, Any], url: str, files: Files | None = None) -> dict[str, Any]:
    """Return a shipped configuration of kube-scheduler with another server and, if it is called by https, other files.

    The server name and `enableHTTPS` stay as they are shipped; with a URL of http both are gone. No leader is elected.
    """
    entries = []
    for shipped in config["extenders"]:
        entry = {**shipped, "urlPrefix": f"{url}/scheduler"}
        tls = entry.pop("tlsConfig")
        if files is None:
            del entry["enableHTTPS"]
        else:
            paths = {"certFile": files.certificate, "keyFile": files.key, "caFile": files.ca}
            entry["tlsConfig"] = tls | {name: str(path) for name, path in paths.items()}
        entries.append(entry)
    return {**config, "extenders": entries, "leaderElection": {"leaderElect": False}}
