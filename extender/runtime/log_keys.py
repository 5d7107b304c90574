"""Keys of the log, in a file outside of the database: they sign anchors and authenticate snapshots.

The file has PEM blocks. The first private key (Ed25519) signs; all keys of the file, private or public, are accepted, so a
key is replaced by writing a new one in front of the old one. Snapshots carry an HMAC whose key is derived from a private
key with HKDF, so that there is one secret to keep. A file with public keys only is enough to verify anchors.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from extender.core.log.anchors import Anchor, SignatureState, signed_bytes
from extender.core.model.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

BLOCK: Final = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----\n?", re.DOTALL)
SNAPSHOT_INFO: Final = b"gang-extender snapshots 1"


class LogKeys:
    """The keys of a file; without any, nothing is signed and nothing is checked."""

    def __init__(
        self,
        signing: Ed25519PrivateKey | None = None,
        accepted: Mapping[str, Ed25519PublicKey] | None = None,
        mac_keys: tuple[bytes, ...] = (),
    ) -> None:
        self._signing = signing
        self._accepted = dict(accepted or {})
        self._mac_keys = mac_keys

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Return the ids of the accepted keys; empty without keys. Anchors name the one that signed them."""
        return tuple(self._accepted)

    @property
    def authenticates(self) -> bool:
        """Return whether snapshots get an HMAC: there is a private key."""
        return bool(self._mac_keys)

    def sign(self, anchor: Anchor) -> Anchor:
        """Return an anchor with its signature; unchanged without a private key."""
        if self._signing is None:
            return anchor
        named = msgspec.structs.replace(anchor, key=key_id(self._signing.public_key()))
        return msgspec.structs.replace(named, signature=self._signing.sign(signed_bytes(named)))

    def check(self, anchor: Anchor) -> SignatureState:
        """Return what the signature of an anchor is worth with these keys."""
        from cryptography.exceptions import InvalidSignature

        if not anchor.signature:
            return "unsigned"
        key = self._accepted.get(anchor.key)
        if key is None:
            return "unknown key"
        try:
            key.verify(anchor.signature, signed_bytes(anchor))
        except InvalidSignature:
            return "invalid"
        return "valid"

    def mac(self, data: bytes) -> bytes:
        """Return the HMAC-SHA-256 of data; empty without a private key."""
        if not self._mac_keys:
            return b""
        return hmac.digest(self._mac_keys[0], data, hashlib.sha256)

    def mac_valid(self, data: bytes, mac: bytes) -> bool:
        """Return whether the HMAC of data was made with one of these keys; true without a private key."""
        if not self._mac_keys:
            return True
        return any(
            hmac.compare_digest(hmac.digest(key, data, hashlib.sha256), mac)
            for key in self._mac_keys
        )


NO_KEYS: Final = LogKeys()


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a public key: the first 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def read_keys(path: str, field: str) -> LogKeys:
    """Return the keys of a file; no keys for an empty path.

    Raises:
        BadInput: The file cannot be read, or has no Ed25519 key.
    """
    if not path:
        return NO_KEYS
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{field}: {path} cannot be read: {error.strerror}") from error
    return parse_keys(text, f"{field}: {path}")


def parse_keys(text: bytes, where: str) -> LogKeys:
    """Return the keys of PEM blocks.

    Raises:
        BadInput: There is no Ed25519 key, or a block is something else; the message begins with `where`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_pem_public_key,
    )

    private: list[Ed25519PrivateKey] = []
    accepted: dict[str, Ed25519PublicKey] = {}
    for number, block in enumerate(BLOCK.findall(text), start=1):
        try:
            if b"PRIVATE" in block:
                secret = load_pem_private_key(block, password=None)
                public = secret.public_key()
            else:
                secret, public = None, load_pem_public_key(block)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{where}: key {number} cannot be read: {error}") from error
        if not isinstance(public, Ed25519PublicKey):
            raise BadInput(f"{where}: key {number} is not an Ed25519 key; see gang-extender keys")
        accepted.setdefault(key_id(public), public)
        if isinstance(secret, Ed25519PrivateKey):
            private.append(secret)
    if not accepted:
        raise BadInput(f"{where} has no key in PEM; make one with gang-extender keys")
    mac_keys = [
        HKDF(algorithm=SHA256(), length=32, salt=None, info=SNAPSHOT_INFO).derive(
            key.private_bytes_raw()
        )
        for key in private
    ]
    return LogKeys(private[0] if private else None, accepted, tuple(mac_keys))


def make_key() -> tuple[bytes, bytes]:
    """Return a new private key and its public key, each as a PEM block."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


def public_blocks(text: bytes, where: str) -> bytes:
    """Return the public keys of a file with private or public keys, as PEM blocks in the same order."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    keys = parse_keys(text, where)
    return b"".join(
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for key in keys._accepted.values()  # noqa: SLF001 -- of this module
    )
