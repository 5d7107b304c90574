"""`make release`: write everything that is released into a folder, the same bytes each time for a commit, a base image and tools.

Usage: python -m deploy.release --base NAME@sha256:... [--registry HOST[:PORT][/PATH]] | --no-image [--url URL] [--into dist]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.packaging import archive
from deploy.release import image, krew, provenance, registry, source
from deploy.release.source import ROOT, ReleaseError, Source, run

URL = "https://downloads.example.com/gang-extender"  # nothing is published yet
STAND_IN = "localhost/"


def build(
    of: Source, base: str | None, url: str, *, cached: bool = True, pushed_to: str = ""
) -> tuple[dict[str, bytes], image.Image | None]:
    """Return the files of a release by name, and the image if it was built.

    Args:
        of: The commit.
        base: The base image with its digest; None: no image is built.
        url: Below which each release has a folder; for the manifest of krew.
        cached: Whether layers of an earlier build of the image may be used.
        pushed_to: The registry that the chart names for the image; empty: none.

    Raises:
        ReleaseError: Something could not be built.
    """
    name = f"gang-extender-{of.version}"
    with tempfile.TemporaryDirectory() as place:
        folder, built = Path(place, "source"), Path(place, "built")
        folder.mkdir()
        of.export(folder)
        files = _packages(of, folder, built)
        (wheel,) = (item for item in files.items() if item[0].endswith(".whl"))
        files[f"{name}.cdx.json"] = (folder / "deploy" / "sbom.cdx.json").read_bytes()
        files |= krew.build(of, folder, wheel, f"{url}/v{of.version}")
        made = None
        if base is not None:
            made = image.build(of, folder, base, cached=cached)
            print(
                f"image: {made.digest}, {made.size / 1e6:.0f} MB, {len(made.archive) / 1e6:.0f} MB as an archive"
            )
            stand_in = "-on-stand-in" if base.startswith(STAND_IN) else ""
            files[f"{name}-image{stand_in}.oci.tar"] = made.archive
        files[f"{name}.tgz"] = archive.packed(pushed_to, made.digest if made else "")
        files[f"{name}.provenance.json"] = provenance.statement(of, folder, files, base, pushed_to)
    return files, made


def _packages(of: Source, folder: Path, into: Path) -> dict[str, bytes]:
    """Return source distribution and wheel by file name, built in `folder` at the time of the commit; `into` is empty before."""
    run(
        *(sys.executable, "-m", "hatchling", "build", "-d", str(into)),
        name="hatchling build",
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(of.time_s)},
    )
    return {path.name: path.read_bytes() for path in sorted(into.iterdir())}


def push(made: image.Image, files: Path, place: str, version: str) -> None:
    """Push image and chart, and print their names.

    Args:
        made: The image, which podman has.
        files: The folder of the release.
        place: HOST[:PORT][/PATH].
        version: Their tag.

    Raises:
        ReleaseError: A registry or a program refused; what was pushed before stays.
    """
    print(f"pushed: {registry.push_image(made, place, version)}, tag {version}")
    chart = registry.push_chart(files / f"gang-extender-{version}.tgz", place)
    print(f"pushed: {chart}, version {version}; its default image is the one above")


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


def check_push(place: str, base: str | None) -> None:
    """Check that there is an image for a registry, and that it may leave this machine.

    Raises:
        ReleaseError: There is none, or it is on a stand-in of its base.
    """
    if base is None:
        raise ReleaseError(
            f"REGISTRY={place} with IMAGE=none: the chart there names an image; leave one of both out"
        )
    if base.startswith(STAND_IN) and not registry.is_loopback(place):
        raise ReleaseError(
            f"REGISTRY={place}: the image would be on a stand-in of its base (tests/compose), which must not be published; "
            "set BASE=NAME@sha256:..."
        )


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
    parser.add_argument("--registry", default="", help="push image and chart to HOST[:PORT][/PATH]")
    parser.add_argument("--url", default=URL, help="below which each release has a folder")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--no-cache", action="store_true", help="build all layers of the image anew"
    )
    given = parser.parse_args()
    try:
        if given.registry:
            check_push(registry.checked(given.registry), given.base)
        of = releasable()
        files, made = build(
            of, given.base, given.url, cached=not given.no_cache, pushed_to=given.registry
        )
        files["SHA256SUMS"] = checksums(files)
        write(files, given.into)
        if given.registry and made is not None:
            push(made, given.into, given.registry, of.version)
    except ReleaseError as problem:
        print(f"no release: {problem}", file=sys.stderr)
        return 1
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
