"""`certs`: make or renew the certificates of the service and of its clients, the files of a folder.

A CA (`ca.crt`, `ca.key`), the server (`server.crt`, `server.key`) and each client (`client-NAME.crt`, `client-NAME.key`).
New files are written beside the old ones and then moved over them, so that a reader finds the old file or the new one.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificateIssuerPublicKeyTypes,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.oid import NameOID

from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, print_table, print_value
from extender.core.model.errors import BadInput
from extender.listener_settings import HTTP1_SERVER_NAME
from extender.runtime.system_clock import SystemClock

CA, SERVER = "ca", "server"
AUTHORITY_LIFETIME = timedelta(days=3650)
# Common names of clients by the NAME of their files, where the two differ.
COMMON_NAMES = {"kube-scheduler": "system:kube-scheduler"}
SERVER_NAME = "gang-extender"
# The calls of kube-scheduler, and those that a replica forwards to the leader.
CLIENTS = ("kube-scheduler", SERVER_NAME)
# On the same machine, and by the Service of deploy/kubernetes/service.yaml.
NAMES = (
    "localhost", "127.0.0.1", "::1",
    SERVER_NAME, HTTP1_SERVER_NAME, "gang-extender.gang-extender", "gang-extender.gang-extender.svc", "gang-extender.gang-extender.svc.cluster.local",
)  # fmt: skip
KEY_MODE, CERTIFICATE_MODE = 0o600, 0o644
_CLIENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]*[A-Za-z0-9])?")


class WrittenCertificate(msgspec.Struct, frozen=True):
    """One certificate of the folder."""

    certificate: str  # path
    key: str  # path
    common_name: str
    names: tuple[str, ...]  # DNS names and IP addresses of a server
    valid_until: datetime
    kept: bool = False  # the CA of an earlier run


@dataclass(frozen=True)
class CertificateFolder:
    """A folder that has the certificates of one installation."""

    folder: Path  # nothing is read or made yet

    def certificate(self, name: str) -> Path:
        """Return the path of a certificate: of `ca`, `server` or `client-NAME`."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the path of its private key."""
        return self.folder / f"{name}.key"

    def create(
        self,
        now: datetime,
        lifetime: timedelta,
        names: Iterable[str] = (),
        clients: Iterable[str] = (),
        *,
        force: bool = False,
    ) -> list[WrittenCertificate]:
        """Make a new CA and all certificates, and return what was written: the CA, the server, the clients.

        Args:
            lifetime: How long the certificates of server and clients are valid; the CA is valid for ten years, or as long.
            names: DNS names and IP addresses of the server, besides `NAMES`.
            clients: Names of clients, besides `CLIENTS`.

        Raises:
            BadInput: A name is invalid, files are there already, or the folder cannot be written.
        """
        common_names = _clients(clients)
        existing = [
            path
            for name in (CA, SERVER, *common_names)
            for path in (self.certificate(name), self.key(name))
            if path.exists()
        ]
        if existing and not force:
            raise BadInput(
                f"{existing[0]} is there already; --renew replaces the certificates of server and clients and keeps the CA, "
                "--force makes everything anew, also the CA (then every client needs a new certificate and the new ca.crt)"
            )
        authority = new_authority(Period(now, now + max(lifetime, AUTHORITY_LIFETIME)))
        period = Period(now, now + lifetime)
        pairs = {CA: authority, SERVER: issue(authority, SERVER_NAME, period, (*NAMES, *names))}
        for stem, common_name in common_names.items():
            pairs[stem] = issue(authority, common_name, period)
        return self._write(pairs)

    def renew(
        self,
        now: datetime,
        lifetime: timedelta,
        names: Iterable[str] = (),
        clients: Iterable[str] = (),
    ) -> list[WrittenCertificate]:
        """Issue the certificates of server and clients again, by the CA and for the keys that are there.

        The server has `NAMES` and the names that it had, and every client of the folder keeps its own. A certificate is
        valid at most as long as the CA. Because keys stay, each certificate is replaced in one step: no reader finds it with the key of another.

        Raises:
            BadInput: There is no CA, it has ended or cannot be read, a name is invalid, or the folder cannot be written.
        """
        authority = self._authority()
        end = authority.certificate.not_valid_after_utc
        if end <= now:
            msg = f"{self.certificate(CA)}: this CA was valid until {end:%Y-%m-%d}; --force makes everything anew"
            raise BadInput(msg)
        path = self.certificate(SERVER)
        previous_names = names_of(read_certificate(path)) if path.exists() else ()
        common_names = _clients(clients)
        for file in sorted(self.folder.glob("client-*.crt")):
            common_names.setdefault(file.stem, common_name_of(read_certificate(file)))
        period = Period(now, min(now + lifetime, end))
        pairs = {}
        for stem, common_name in {SERVER: SERVER_NAME, **common_names}.items():
            key = _private_key(self.key(stem)) if self.key(stem).exists() else None
            server_names = (*NAMES, *previous_names, *names) if stem == SERVER else ()
            pairs[stem] = issue(authority, common_name, period, server_names, key)
        return [_described(self, CA, authority, kept=True), *self._write(pairs)]

    def _authority(self) -> CertificatePair:
        for path in (self.certificate(CA), self.key(CA)):
            if not path.exists():
                msg = f"{path} is not there; --renew needs the CA that signed the certificates, without it a new CA is made"
                raise BadInput(msg)
        certificate = read_certificate(self.certificate(CA))
        key = _private_key(self.key(CA))
        if key.public_key() != certificate.public_key():
            raise BadInput(f"{self.key(CA)}: not the key of {self.certificate(CA)}")
        return CertificatePair(certificate, key)

    def _write(self, pairs: dict[str, CertificatePair]) -> list[WrittenCertificate]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = {}
            for name, pair in pairs.items():
                private = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                new[self.key(name)] = _beside(self.key(name), private, KEY_MODE)
                public, path = pair.certificate.public_bytes(Encoding.PEM), self.certificate(name)
                new[path] = _beside(path, public, CERTIFICATE_MODE)
            for path, written in new.items():  # all at once: a full disk has left the old files
                written.replace(path)
        except OSError as error:
            msg = f"{error.filename or self.folder}: cannot be written: {error.strerror}; give a folder that this user may write"
            raise BadInput(msg) from error
        return [_described(self, name, pair) for name, pair in pairs.items()]


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate of a file."""
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise BadInput(f"{path}: not a certificate in PEM: {error}") from error


def _private_key(path: Path) -> CertificateIssuerPrivateKeyTypes:
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path}: not a private key in PEM without a password: {error}") from error
    return cast("CertificateIssuerPrivateKeyTypes", key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error


def _beside(path: Path, content: bytes, mode: int) -> Path:
    """Write a new file beside another, and return its path."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # of a run that was killed
    # Created with its mode: a key is at no moment readable by others.
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    return new


def _clients(names: Iterable[str]) -> dict[str, str]:
    """Return the common names of clients by the names of their files, without suffix."""
    common_names: dict[str, str] = {}
    for name in (*CLIENTS, *names):
        if not _CLIENT.fullmatch(name) or len(name) > 64:  # noqa: PLR2004 -- a common name
            msg = f"--client: {name!r} is not a name of up to 64 letters, digits and .:_- between them, for example prometheus"
            raise BadInput(msg)
        common_name = COMMON_NAMES.get(name, name)
        stem = f"client-{name.replace(':', '-')}"
        if common_names.setdefault(stem, common_name) != common_name:
            raise BadInput(
                f"--client: {name!r} and {common_names[stem]!r} would both be {stem}.crt"
            )
    return common_names


def _described(
    folder: CertificateFolder, name: str, pair: CertificatePair, *, kept: bool = False
) -> WrittenCertificate:
    return WrittenCertificate(
        certificate=str(folder.certificate(name)),
        key=str(folder.key(name)),
        common_name=common_name_of(pair.certificate),
        names=names_of(pair.certificate),
        valid_until=pair.certificate.not_valid_after_utc,
        kept=kept,
    )


CA_NAME = "gang-extender CA"
CLOCK_SKEW = timedelta(minutes=5)  # of machines that use a certificate as soon as it is issued
COMMON_NAME_MAX = 64  # RFC 5280, ub-common-name
DNS_NAME_MAX = 253
_DNS_NAME = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # fmt: skip
# An address that is misspelt, for example 10.0.0.300, is no DNS name: the last label of one is never a number.
_ONLY_NUMBERS = re.compile(r"[0-9.]+(/[0-9]+)?")


class CertificatePair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes


class Period(NamedTuple):
    """When a certificate is issued and when it ends; both with offset."""

    now: datetime
    until: datetime


def new_authority(period: Period) -> CertificatePair:
    """Return a new CA, which signs certificates and no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(CA_NAME)
    builder = _builder(name, key.public_key(), period, name, key.public_key(), signs=True)
    return CertificatePair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: CertificatePair,
    common_name: str,
    period: Period,
    names: Iterable[str] = (),
    key: CertificateIssuerPrivateKeyTypes | None = None,
) -> CertificatePair:
    """Return a certificate of a client, or of a server that also presents it as a client, as a replica does to the leader.

    Args:
        names: DNS names and IP addresses under which a server is called; a certificate without names is no server's.

    Raises:
        BadInput: A name is neither a DNS name nor an IP address, or the common name is empty or too long.
    """
    if not 0 < len(common_name) <= COMMON_NAME_MAX:
        raise BadInput(f"{common_name!r} must have 1 to {COMMON_NAME_MAX} characters")
    alternative_names = [alternative_name(name) for name in dict.fromkeys(names)]
    uses = [Use.SERVER_AUTH, Use.CLIENT_AUTH] if alternative_names else [Use.CLIENT_AUTH]
    key = key or ec.generate_private_key(ec.SECP256R1())
    issuer, issuer_key = authority.certificate.subject, authority.key.public_key()
    builder = _builder(_name(common_name), key.public_key(), period, issuer, issuer_key)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if alternative_names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(alternative_names), critical=False
        )
    return CertificatePair(builder.sign(authority.key, hashes.SHA256()), key)


def alternative_name(text: str) -> x509.GeneralName:
    """Return a DNS name or an IP address as a certificate has it.

    >>> alternative_name("10.0.0.7"), alternative_name("extender.example.com")
    (<IPAddress(value=10.0.0.7)>, <DNSName(value='extender.example.com')>)
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        name = text.lower()
    if (
        len(name) > DNS_NAME_MAX
        or not _DNS_NAME.fullmatch(name)
        or _ONLY_NUMBERS.fullmatch(name)
    ):  # fmt: skip
        msg = f"--name: {text!r} is neither a DNS name nor an IP address; give it without scheme and port, for example extender.example.com or 10.0.0.7"
        raise BadInput(msg)
    return x509.DNSName(name)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and IP addresses of a certificate."""
    try:
        alternative_names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return ()
    addresses = alternative_names.get_values_for_type(x509.IPAddress)
    return (
        *alternative_names.get_values_for_type(x509.DNSName),
        *(str(address) for address in addresses),
    )


def common_name_of(certificate: x509.Certificate) -> str:
    """Return the common name of the subject, or an empty string."""
    common_names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common_names[0].value) if common_names else ""


def _builder(
    subject: x509.Name,
    public_key: CertificateIssuerPublicKeyTypes,
    period: Period,
    issuer: x509.Name,
    issuer_key: CertificateIssuerPublicKeyTypes,
    *,
    signs: bool = False,  # other certificates, but none of a further CA
) -> x509.CertificateBuilder:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    neither = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **neither)
    constraints = x509.BasicConstraints(ca=signs, path_length=0 if signs else None)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period.now - CLOCK_SKEW)
        .not_valid_after(period.until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(issued_by, critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


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
