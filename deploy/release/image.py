"""The image as an OCI archive, built with podman from deploy/Dockerfile at one time, so that it is the same bytes each time."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.packaging.manifests import IMAGE
from deploy.release.archives import packed
from deploy.release.source import ReleaseError, Source, run

DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
OPTIONS = "GANG_EXTENDER_BUILD_OPTIONS"  # more for `podman build`: mounts, a network
WITHOUT = "or leave the image out: make release IMAGE=none"


@dataclass(frozen=True)
class Image:
    """The archive, the digest of the image in it, its size in bytes without compression, and its number in podman."""

    archive: bytes
    digest: str
    size: int
    number: str


def digest_of(base: str) -> str:
    """Return the digest of a base image.

    Raises:
        ReleaseError: Its name has none.
    """
    found = DIGEST.search(base)
    if found is None:
        raise ReleaseError(
            f"BASE: {base!r} has no digest, and a release needs one: NAME@sha256:64 hexadecimal digits, {WITHOUT}"
        )
    return found[1]


def build(source: Source, folder: Path, base: str, *, cached: bool) -> Image:
    """Build the image.

    Args:
        source: The commit, whose time every file and layer gets.
        folder: Files of the commit.
        base: The base image, NAME@sha256:...
        cached: Whether layers of an earlier build may be used.

    Raises:
        ReleaseError: podman is not there, or it failed.
    """
    digest_of(base)
    if shutil.which("podman") is None:
        raise ReleaseError(
            f"podman is not installed; it builds the image archive (Debian: apt-get install podman buildah), {WITHOUT}"
        )
    with tempfile.TemporaryDirectory() as place:
        layout, number = Path(place, "layout"), Path(place, "id")
        _podman(
            *("build", "--pull=never" if base.startswith("localhost/") else "--pull=missing"),
            *("--file", str(folder / "deploy" / "Dockerfile"), "--timestamp", str(source.time_s)),
            *("--build-arg", "RELEASE=true", "--build-arg", f"BASE={base}"),
            *("--layers", *([] if cached else ["--no-cache"])),
            *("--iidfile", str(number), "--tag", f"localhost/{IMAGE}"),
            *shlex.split(os.environ.get(OPTIONS, "")),
            str(folder),
        )
        image = number.read_text(encoding="utf-8").strip()
        _podman("save", "--quiet", "--format", "oci-dir", "--output", str(layout), image)
        size = int(_podman("image", "inspect", "--format", "{{.Size}}", image))
        files = {
            path.relative_to(layout).as_posix(): path.read_bytes()
            for path in layout.rglob("*")
            if path.is_file()
        }
    (manifest,) = json.loads(files["index.json"])["manifests"]
    manifest["annotations"] = {"org.opencontainers.image.ref.name": source.version}
    index = {"schemaVersion": 2, "manifests": [manifest]}
    files["index.json"] = json.dumps(index, sort_keys=True).encode()
    files.pop("version", None)  # of the tool, not of the layout
    return Image(packed(files, time_s=source.time_s), manifest["digest"], size, image)


def program_version() -> str:
    """Return the version of podman."""
    return _podman("version", "--format", "{{.Client.Version}}")


def _podman(*arguments: str) -> str:
    return run("podman", *arguments, hint=f"\n{WITHOUT}").decode().strip()
