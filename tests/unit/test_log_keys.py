"""Keys of the log: what they sign and authenticate, what they accept, and which files are refused."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.log.anchors import Anchor
from extender.core.model.errors import BadInput
from extender.core.model.ids import Epoch, Position
from extender.runtime.log_keys import (
    NO_KEYS,
    make_key,
    parse_keys,
    public_blocks,
    read_keys,
)

ANCHOR = Anchor(
    position=Position(7), epoch=Epoch(2), chain=b"c" * 32, first=b"f" * 32, at_us=1_700_000_000
)


@pytest.fixture
def key():
    return make_key()[0]


def test_a_signed_anchor_is_valid_and_names_its_key(key):
    keys = parse_keys(key, "k")
    signed = keys.sign(ANCHOR)
    assert keys.check(signed) == "valid"
    assert (signed.key,) == keys.key_ids
    assert keys.check(ANCHOR) == "unsigned"


@pytest.mark.parametrize("field", [f for f in Anchor.__struct_fields__ if f != "signature"])
def test_every_field_is_signed(key, field):
    keys = parse_keys(key, "k")
    signed = keys.sign(ANCHOR)
    value = getattr(signed, field)
    other = value + 1 if isinstance(value, int) else b"x" * 32
    changed = msgspec.structs.replace(signed, **{field: other if field != "key" else "other"})
    assert keys.check(changed) == ("unknown key" if field == "key" else "invalid")


def test_a_replaced_key_is_still_accepted(key):
    """The new one signs; anchors and snapshots of the old one are valid; another key's are not."""
    old = parse_keys(key, "k")
    both = parse_keys(make_key()[0] + key, "k")
    assert both.check(old.sign(ANCHOR)) == "valid"
    assert both.mac_valid(b"body", old.mac(b"body"))
    assert both.sign(ANCHOR).key != old.sign(ANCHOR).key
    assert parse_keys(make_key()[0], "k").check(old.sign(ANCHOR)) == "unknown key"


def test_public_keys_verify_and_sign_nothing(key):
    public = parse_keys(public_blocks(key, "k"), "k")
    signed = parse_keys(key, "k").sign(ANCHOR)
    assert public.check(signed) == "valid"
    assert public.sign(ANCHOR) == ANCHOR
    assert not public.authenticates


def test_a_mac_is_of_the_whole_body(key):
    keys = parse_keys(key, "k")
    assert keys.mac_valid(b"body", keys.mac(b"body"))
    assert not keys.mac_valid(b"bodz", keys.mac(b"body"))
    assert not keys.mac_valid(b"body", b"")
    assert NO_KEYS.mac_valid(b"body", b"")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "has no key in PEM"),
        (
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "key 1 cannot be read",
        ),
    ],
)
def test_a_file_without_a_key_is_refused(tmp_path, text, problem):
    path = tmp_path / "key"
    path.write_bytes(text)
    with pytest.raises(BadInput, match=f"--anchor-key-file: {path}.*{problem}"):
        read_keys(str(path), "--anchor-key-file")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="missing cannot be read: No such file"):
        read_keys(str(tmp_path / "missing"), "--anchor-key-file")
