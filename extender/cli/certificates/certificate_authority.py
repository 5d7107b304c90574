"""Issue certificates: a CA, the server's certificate with its names, and those of clients.

Nothing here reads or writes a file or a clock: the time is an argument. Keys are ECDSA P-256. Go and OpenSSL check
the extensions: who may sign, for which use (server, client) a certificate is, and that issuer and subject keys match.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificateIssuerPublicKeyTypes,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.oid import NameOID

from extender.core.model.errors import BadInput

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

    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Return the private key as PEM (PKCS #8, not encrypted)."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


class Period(NamedTuple):
    """When a certificate is issued and when it ends; both with offset."""

    now: datetime
    until: datetime


def new_authority(period: Period) -> CertificatePair:
    """Return a new CA, which signs certificates and no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(CA_NAME)
    builder = (
        _builder(name, key.public_key(), period)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(_issuer_of(key.public_key()), critical=False)
    )
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
        key: The key of the holder; without it a new one is made.

    Raises:
        BadInput: A name is neither a DNS name nor an IP address, or the common name is empty or too long.
    """
    if not 0 < len(common_name) <= COMMON_NAME_MAX:
        raise BadInput(f"{common_name!r} must have 1 to {COMMON_NAME_MAX} characters")
    alternative_names = [alternative_name(name) for name in dict.fromkeys(names)]
    uses = [Use.SERVER_AUTH, Use.CLIENT_AUTH] if alternative_names else [Use.CLIENT_AUTH]
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(common_name), key.public_key(), period)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(_issuer_of(authority.key.public_key()), critical=False)
    )
    if alternative_names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(alternative_names), critical=False
        )
    return CertificatePair(builder.sign(authority.key, hashes.SHA256()), key)


def alternative_name(text: str) -> x509.GeneralName:
    """Return a DNS name or an IP address as a certificate has it.

    >>> alternative_name("10.0.0.7"), alternative_name("extender.example.com")
    (<IPAddress(value=10.0.0.7)>, <DNSName(value='extender.example.com')>)

    Raises:
        BadInput: It is neither.
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
    subject: x509.Name, public_key: CertificateIssuerPublicKeyTypes, period: Period
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period.now - CLOCK_SKEW)
        .not_valid_after(period.until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _issuer_of(public_key: CertificateIssuerPublicKeyTypes) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
