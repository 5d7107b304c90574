"""How a release was built: an in-toto statement with the provenance of SLSA 1.0. It is not signed."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from deploy.release import image
from deploy.release.source import Source

LOCK = "requirements.lock"


def statement(
    source: Source,
    folder: Path,
    files: Mapping[str, bytes],
    base: str | None,
    registry: str = "",
) -> bytes:
    """Return the statement about some files; the same for the same commit, files and tools.

    Args:
        source: The commit.
        folder: Its files.
        files: What was built.
        base: The base image with its digest; None: no image was built.
        registry: Where the chart finds the image; empty: where its installer puts it.
    """
    dependencies = [
        {"name": "source", "digest": {"gitCommit": source.commit}},
        {"name": LOCK, "digest": {"sha256": sha256((folder / LOCK).read_bytes())}},
    ]
    tools = {"python": platform.python_version(), "hatchling": version("hatchling")}
    if base is not None:
        name, _, digest = base.partition("@sha256:")
        dependencies.append({"name": "base image", "uri": name, "digest": {"sha256": digest}})
        tools["podman"] = image.program_version()
    parameters = {
        "version": source.version,
        "tag": source.tag or None,
        "base": base,
        "registry": registry or None,
    }
    found = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": sha256(content)}}
            for name, content in sorted(files.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://gang-extender.dev/make-release/v1",
                "externalParameters": parameters,
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": "https://gang-extender.dev/make-release", "version": tools}
            },
        },
    }
    return (json.dumps(found, indent=2) + "\n").encode()


def sha256(content: bytes) -> str:
    """Return the digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
