"""What is released: a commit of a clean checkout, whose files name one version."""

from __future__ import annotations

import re
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from deploy import sbom
from deploy.packaging import manifests, written

ROOT = manifests.ROOT
SHOWN = 10  # files of a checkout that is not clean
HEADING = re.compile(r"^## \[([^]]+)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


class ReleaseError(Exception):
    """Why there is no release; with what would help."""


@dataclass(frozen=True)
class Source:
    """A commit, its time in seconds of Unix, and the version that its files name."""

    commit: str
    time_s: int
    version: str
    tag: str  # v0.1.0 if the commit has it, else empty

    def export(self, folder: Path) -> None:
        """Write the files of the commit into a folder, with its time."""
        packed = _git("archive", "--format=tar", self.commit)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            # not an argument: Python 3.11.2 of Debian 12 has none
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)
            archive.extractall(folder)


def read() -> Source:
    """Return what is checked out.

    Raises:
        ReleaseError: There is no commit, or its tag is not that of the version.
    """
    commit, time_s = _git("log", "-1", "--format=%H %ct").decode().split()
    version = str(manifests.TAG)
    tags = [t for t in _git("tag", "--points-at", commit).decode().split() if t.startswith("v")]
    if tags and tags != [f"v{version}"]:
        raise ReleaseError(
            f"commit {commit[:12]} has the tag {', '.join(tags)}, pyproject.toml has version {version}: "
            f"tag the commit whose version it is, v{version}"
        )
    return Source(commit, int(time_s), version, "".join(tags))


def unclean() -> list[str]:
    """Return why the checkout is not what the commit has, a line per file; empty if it is."""
    found = _git("status", "--porcelain", "--untracked-files=all").decode().splitlines()
    if len(found) > SHOWN:
        found = [*found[:SHOWN], f"and {len(found) - SHOWN} more (git status)"]
    return found


def differing(source: Source) -> list[str]:
    """Return which files do not name the version of pyproject.toml, or are not written from what they should be."""
    found = [
        f"{path.relative_to(ROOT)} is not written from deploy/kubernetes: run make chart"
        for path in written.stale()
    ]
    chart = yaml.safe_load((written.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    found += [
        f"deploy/chart/Chart.yaml: {field} {chart[field]} is not {source.version}: run make chart"
        for field in ("version", "appVersion")
        if str(chart[field]) != source.version
    ]
    if sbom.FILE.read_text(encoding="utf-8") != sbom.render():
        found.append("deploy/sbom.cdx.json is not written from requirements.lock: run make sbom")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return found + heading_problems(changes, source)


def heading_problems(changes: str, source: Source) -> list[str]:
    """Return what is wrong with the headings of CHANGELOG.md for this version.

    A commit without a tag may still have its changes below `[Unreleased]`; a tagged one has a heading with its date.
    """
    headings = dict(HEADING.findall(changes))
    newest = next((name for name in headings if name != "Unreleased"), None)
    if newest == source.version and headings[newest]:
        return []
    announced = f"*Unreleased* becomes {source.version}"
    if not source.tag and newest != source.version and announced in " ".join(changes.split()):
        return []
    wanted = f"## [{source.version}] - YYYY-MM-DD"
    alternative = "" if source.tag else f", or the sentence '{announced}.' before the first release"
    return [
        f"CHANGELOG.md: the newest release is {newest or 'missing'}; it needs '{wanted}'{alternative}"
    ]


def run(*command: str, name: str = "", hint: str = "", **options: Any) -> bytes:
    """Return what a program prints.

    Args:
        name: Of the program, for the error; empty: the first two words of the command.
        hint: What would help, behind the words of the program.
        options: Of `subprocess.run`.

    Raises:
        ReleaseError: It failed.
    """
    done = subprocess.run(command, capture_output=True, check=False, **options)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).decode().strip()[-3000:]
        raise ReleaseError(f"{name or ' '.join(command[:2])}: {words}{hint}")
    return done.stdout


def _git(*arguments: str) -> bytes:
    return run("git", *arguments, cwd=ROOT)
