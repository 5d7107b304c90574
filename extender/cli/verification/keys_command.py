"""`keys`: make or replace the key that signs anchors and authenticates snapshots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from extender.cli.output.printing import console
from extender.core.model.errors import BadInput
from extender.runtime.log_keys import make_key, parse_keys, public_blocks


def keys(
    file: Annotated[Path, typer.Argument(help="File for the private key; FILE.pub gets the public one.")],
    rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Write a new key in front of those of the file: it signs from the next start on, and the others are still accepted."),
    ] = False,
) -> None:  # fmt: skip
    """Make the key that signs anchors (Ed25519) and authenticates snapshots, or replace it.

    Give the file to the service as --anchor-key-file, and keep it away from the database. FILE.pub is enough for verify.
    """
    before = _read(file)
    if before and not rotate:
        raise BadInput(
            f"{file} exists; --rotate adds a new key and keeps the old one for what it signed"
        )
    if rotate and not before:
        raise BadInput(
            f"--rotate: {file} has no key yet; leave the option out to make the first one"
        )
    if before:
        parse_keys(before, str(file))
    private, _ = make_key()
    text = private + before
    _write(file, text, 0o600)
    public = file.with_name(f"{file.name}.pub")
    _write(public, public_blocks(text, str(file)), 0o644)
    ids = parse_keys(text, str(file)).key_ids
    out = console(wrap=False)
    out.print(f"wrote {file} (signs with key {ids[0]}) and {public}")
    for old in ids[1:]:
        out.print(f"key {old} is still accepted")
    out.print(f"gang-extender serve --anchor-key-file {file}")
    out.print(
        "kubectl -n gang-extender create secret generic gang-extender-anchor-key "
        f"--from-file=anchor.key={file} --dry-run=client -o yaml | kubectl apply -f -"
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, text: bytes, mode: int) -> None:
    """Write a file with a mode; the old content is replaced at once."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
        new.replace(file)
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error
