"""The plugin for krew: an archive with the wheel, its locked requirements and a script, and the manifest that names it."""

from __future__ import annotations

from pathlib import Path

import yaml

from deploy.locked_requirements import entries_of, needed, roots_of
from deploy.release.archives import compressed, packed
from deploy.release.provenance import sha256
from deploy.release.source import Source

PROGRAM = "kubectl-gang"
SYSTEMS = ("linux", "darwin")


def build(source: Source, folder: Path, wheel: tuple[str, bytes], url: str) -> dict[str, bytes]:
    """Return archive and manifest by file name.

    Args:
        source: The commit.
        folder: Its files.
        wheel: Name and content.
        url: Of the folder from which the files of this release are downloaded.
    """
    name = f"{PROGRAM}-{source.version}.tar.gz"
    files = {
        PROGRAM: (folder / "deploy" / "krew" / PROGRAM).read_bytes(),
        wheel[0]: wheel[1],
        "requirements.txt": requirements(folder).encode(),
        "LICENSE": (folder / "LICENSE").read_bytes(),
    }
    archive = compressed(packed(files, time_s=source.time_s, programs=frozenset({PROGRAM})))
    found = manifest(source.version, f"{url.rstrip('/')}/{name}", sha256(archive))
    return {name: archive, "gang.yaml": found.encode()}


def requirements(folder: Path) -> str:
    """Return the part of requirements.lock that the client needs."""
    entries = entries_of((folder / "requirements.lock").read_text(encoding="utf-8"))
    names = needed(entries, roots_of(folder / "pyproject.toml"))
    return "".join("\n".join(entries[name]) + "\n" for name in sorted(names))


def manifest(version: str, uri: str, digest: str) -> str:
    """Return the manifest of the plugin `gang`."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": system}},
            "uri": uri,
            "sha256": digest,
            "bin": PROGRAM,
            "files": [{"from": "*", "to": "."}],
        }
        for system in SYSTEMS
    ]
    found = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gang"},
        "spec": {
            "version": f"v{version}",
            "homepage": uri.rpartition("/")[0],
            "shortDescription": "Why a gang waits, runs or was preempted",
            "description": "Asks gang-extender about gangs: what waits and why, what would help, what happened, and\n"
            "whether a workload would fit.\n",
            "caveats": "Needs Python 3.11 or newer with venv. The first call installs the packages that the program needs,\n"
            "checked by hash, into ~/.cache/gang-extender, from the package index that pip is configured for.\n",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(found, sort_keys=False, width=120)
