"""`certs`: make or renew the certificates of the service and of its clients."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from extender.cli.certificates.certificate_folder import (
    CLIENTS,
    CertificateFolder,
    WrittenCertificate,
)
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, print_table, print_value
from extender.core.model.errors import BadInput
from extender.runtime.system_clock import SystemClock

DAYS = 365
DAYS_MAX = 3650
SCHEDULER_CLIENT, REPLICA_CLIENT = (f"client-{name}" for name in CLIENTS)
NODE_FOLDER = "/etc/kubernetes/gang-extender"  # on control plane nodes


class CertificateReport(msgspec.Struct):
    """What `certs` has written, and how it is used."""

    certificates: list[WrittenCertificate]
    serve_flags: list[str]
    commands: list[str]  # kubectl, and those for control plane nodes


def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; made if needed.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="DNS name or IP address under which the service is called, besides localhost, 127.0.0.1, ::1 and the names of its Service in Kubernetes. Repeatable.",
            metavar="DNS|IP",
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="How long certificates are valid; a CA for ten years.", min=1, max=DAYS_MAX)] = DAYS,
    client: Annotated[
        list[str] | None, typer.Option(help=f"Name of a client that gets a certificate, besides {' and '.join(CLIENTS)}. Repeatable.", metavar="NAME")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Replace the certificates of server and clients, and keep the CA, all keys and all names.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace all files, also the CA.")] = False,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Make a CA and the certificates of the service, of kube-scheduler and of other clients, or renew them.

    Without --renew or --force nothing is overwritten. Keys are readable by their owner only.
    """
    if renew and force:
        raise BadInput("--renew keeps the CA and --force replaces it; give one of them")
    certificate_folder = CertificateFolder(folder)
    now = datetime.fromtimestamp(SystemClock().now_us() // 1_000_000, UTC)
    names, clients = name or [], client or []
    if renew:
        written = certificate_folder.renew(now, timedelta(days=days), names, clients)
    else:
        written = certificate_folder.create(now, timedelta(days=days), names, clients, force=force)
    report = CertificateReport(
        written, serve_flags(certificate_folder), commands(certificate_folder, renewed=renew)
    )
    if output is not Output.table:
        print_value(report, output)
        return
    _print(report, certificate_folder)


def serve_flags(folder: CertificateFolder) -> list[str]:
    """Return the flags with which `serve` uses the files."""
    return [
        f"--tls-cert-file={folder.certificate('server')}",
        f"--tls-private-key-file={folder.key('server')}",
        f"--client-ca-file={folder.certificate('ca')}",
    ]


def commands(folder: CertificateFolder, *, renewed: bool = False) -> list[str]:
    """Return the commands that bring the files into a cluster: two Secrets, and three files per control plane node.

    Args:
        renewed: Whether Secrets and files are there already, and only certificates have changed.
    """
    secrets = [
        _secret("gang-extender-tls", folder, "server", renewed=renewed),
        _secret("gang-extender-scheduler-client", folder, SCHEDULER_CLIENT, renewed=renewed),
    ]
    if renewed:
        new = f"{NODE_FOLDER}/client.crt.new"
        copy = shlex.join(["cp", str(folder.certificate(SCHEDULER_CLIENT)), new])
        # kube-scheduler may read the file at any moment: never a part of it
        return [*secrets, f"{copy} && {shlex.join(['mv', new, f'{NODE_FOLDER}/client.crt'])}"]
    return [
        *secrets,
        shlex.join(["install", "-d", "-m", "0700", NODE_FOLDER]),
        _install("0644", folder.certificate(SCHEDULER_CLIENT), "client.crt"),
        _install("0600", folder.key(SCHEDULER_CLIENT), "client.key"),
        _install("0644", folder.certificate("ca"), "ca.crt"),
    ]


def _secret(secret: str, folder: CertificateFolder, name: str, *, renewed: bool) -> str:
    create = shlex.join(
        [
            "kubectl", "-n", "gang-extender", "create", "secret", "generic", secret,
            f"--from-file=tls.crt={folder.certificate(name)}",
            f"--from-file=tls.key={folder.key(name)}",
            f"--from-file=ca.crt={folder.certificate('ca')}",
        ]
    )  # fmt: skip
    return f"{create} --dry-run=client -o yaml | kubectl replace -f -" if renewed else create


def _install(mode: str, path: Path, name: str) -> str:
    return shlex.join(["install", "-m", mode, str(path), f"{NODE_FOLDER}/{name}"])


def _print(report: CertificateReport, folder: CertificateFolder) -> None:
    rows = [
        (
            f"{Path(certificate.certificate).name}, {Path(certificate.key).name}",
            certificate.common_name,
            f"{certificate.valid_until:%Y-%m-%d %H:%M:%SZ}"
            + (" (kept)" if certificate.kept else ""),
            ", ".join(certificate.names) or "-",
        )
        for certificate in report.certificates
    ]
    print_table(("files", "for", "valid until", "names"), rows, empty="")
    secrets, node = report.commands[:2], report.commands[2:]
    print(
        f"\nFiles are in {folder.folder}. Keep {folder.key('ca')} secret and off the cluster: it can sign certificates for any client."
    )
    for title, lines in (
        (
            "The service on this machine",
            [shlex.join(["gang-extender", "serve", *report.serve_flags])],
        ),
        ("The service in Kubernetes", secrets),
        (
            "kube-scheduler, on each control plane node (deploy/kubernetes/scheduler-config.yaml)",
            node,
        ),
    ):
        print(f"\n{title}:")
        for line in lines:
            print(f"  {line}")
