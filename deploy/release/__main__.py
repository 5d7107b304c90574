"""`make release`: write everything that is released into a folder, the same bytes each time for a commit, a base image and tools.

Usage: python -m deploy.release --base NAME@sha256:... | --no-image [--url URL] [--into dist]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.packaging import archive
from deploy.release import image, krew, packages, provenance, source
from deploy.release.source import ROOT, ReleaseError, Source

URL = "https://downloads.example.com/gang-extender"  # nothing is published yet
STAND_IN = "localhost/"


def build(of: Source, base: str | None, url: str, *, cached: bool = True) -> dict[str, bytes]:
    """Return the files of a release by name.

    Args:
        of: The commit.
        base: The base image with its digest; None: no image is built.
        url: Below which each release has a folder; for the manifest of krew.
        cached: Whether layers of an earlier build of the image may be used.

    Raises:
        ReleaseError: Something could not be built.
    """
    name = f"gang-extender-{of.version}"
    with tempfile.TemporaryDirectory() as place:
        folder, built = Path(place, "source"), Path(place, "built")
        folder.mkdir()
        of.export(folder)
        files = packages.build(of, folder, built)
        (wheel,) = (item for item in files.items() if item[0].endswith(".whl"))
        files[f"{name}.tgz"] = archive.packed()
        files[f"{name}.cdx.json"] = (folder / "deploy" / "sbom.cdx.json").read_bytes()
        files |= krew.build(of, folder, wheel, f"{url}/v{of.version}")
        if base is not None:
            made = image.build(of, folder, base, cached=cached)
            print(
                f"image: {made.digest}, {made.size / 1e6:.0f} MB, {len(made.archive) / 1e6:.0f} MB as an archive"
            )
            stand_in = "-on-stand-in" if base.startswith(STAND_IN) else ""
            files[f"{name}-image{stand_in}.oci.tar"] = made.archive
        files[f"{name}.provenance.json"] = provenance.statement(of, folder, files, base)
    return files


def checksums(files: dict[str, bytes]) -> bytes:
    """Return SHA256SUMS as `sha256sum --check` reads it."""
    lines = [f"{provenance.sha256(content)}  {name}\n" for name, content in sorted(files.items())]
    return "".join(lines).encode()


def write(files: dict[str, bytes], into: Path) -> None:
    """Write the files into a folder that has nothing else afterwards."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name, content in files.items():
        (into / name).write_bytes(content)


def releasable() -> Source:
    """Return what is checked out.

    Raises:
        ReleaseError: The checkout is not clean, or its files do not agree.
    """
    if lines := source.unclean():
        raise ReleaseError(
            "the checkout is not clean, and a release is what a commit has; commit or remove:\n  "
            + "\n  ".join(lines)
        )
    found = source.read()
    if lines := source.differing(found):
        raise ReleaseError("the files do not agree:\n  " + "\n  ".join(lines))
    return found


def main() -> int:
    """Return 0 if everything is written."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--base", help="base image with its digest: NAME@sha256:...")
    what.add_argument("--no-image", action="store_true", help="leave the image out")
    parser.add_argument("--url", default=URL, help="below which each release has a folder")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--no-cache", action="store_true", help="build all layers of the image anew"
    )
    given = parser.parse_args()
    try:
        of = releasable()
        files = build(of, given.base, given.url, cached=not given.no_cache)
    except ReleaseError as problem:
        print(f"no release: {problem}", file=sys.stderr)
        return 1
    files["SHA256SUMS"] = checksums(files)
    write(files, given.into)
    for name, content in sorted(files.items()):
        print(f"{provenance.sha256(content)[:12]}  {len(content):>12,}  {name}")
    print(f"written: {given.into}, version {of.version} of commit {of.commit[:12]}")
    if not of.tag:
        print(f"the commit has no tag v{of.version}: a candidate, not a release")
    if given.no_image:
        print("IMAGE=none: there is no image in it; build and push one with make image BASE=...")
    elif given.base.startswith(STAND_IN):
        print(
            "the image is on a stand-in of its base (tests/compose): do not publish it; set BASE=NAME@sha256:..."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
