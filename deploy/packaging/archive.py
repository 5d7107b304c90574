"""The chart as an archive, the same bytes each time: sorted names, no times, no owners."""

from __future__ import annotations

from pathlib import Path

from deploy.packaging import manifests
from deploy.packaging.written import CHART
from deploy.release import archives

# Where the chart names the image: the text, and the same in a registry.
NAMING_IMAGE = {
    "values.yaml": {
        "\n  registry: ''\n": "\n  registry: {registry}\n",
        "\n  digest: ''\n": "\n  digest: {digest}\n",
    },
    "Chart.yaml": {
        f"image: {manifests.IMAGE}\n": f"image: {{registry}}/{manifests.IMAGE}@{{digest}}\n"
    },
}


def packed(registry: str = "", digest: str = "") -> bytes:
    """Return the archive that `helm install` takes; .helmignore leaves the value sets of the tests out.

    Args:
        registry: Registry of the image, as the default of its value; empty: none.
        digest: Digest of the image there.
    """
    files = {}
    for file in (path for path in CHART.rglob("*") if path.is_file()):
        name = file.relative_to(CHART).as_posix()
        if name.startswith(("ci/", ".")):
            continue
        content = file.read_bytes()
        if registry and name in NAMING_IMAGE:
            content = _named(content.decode(), name, registry, digest).encode()
        files[f"{manifests.NAME}/{name}"] = content
    return archives.compressed(archives.packed(files, time_s=0))


def _named(text: str, file: str, registry: str, digest: str) -> str:
    """Return a file of the chart with the name of the image in a registry.

    Raises:
        ValueError: The file does not have the text that is replaced, once.
    """
    for old, new in NAMING_IMAGE[file].items():
        if text.count(old) != 1:
            raise ValueError(f"deploy/chart/{file} has {old!r} {text.count(old)} times, not once")
        text = text.replace(old, new.format(registry=registry, digest=digest))
    return text


def write(folder: Path) -> Path:
    """Write the archive into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{manifests.NAME}-{manifests.TAG}.tgz"
    file.write_bytes(packed())
    return file
