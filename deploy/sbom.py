"""Write deploy/sbom.cdx.json: the Python packages of the image as a software bill of materials (CycloneDX 1.6).

They are those of requirements.lock that the image installs (`locked_requirements`), with what needs what; the lock has
their hashes. Made from the lock alone, so that the same lock has the same file. What the base image contains is not in it.

Usage: python -m deploy.sbom     `make sbom` and `make lock` run it; Dockerfile copies the file into the image
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.locked_requirements import SERVICE, entries_of, needed, needed_by, roots_of

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "deploy" / "sbom.cdx.json"
VERSION = re.compile(r"^[A-Za-z0-9._-]+==([^\s;\\]+)")


def render() -> str:
    """Return the file for the lock as it is now."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    roots = roots_of(ROOT / "pyproject.toml", SERVICE)
    entries = entries_of(lock)
    names = sorted(needed(entries, roots))
    components = {name: _component(name, entries[name]) for name in names}
    ours = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=project["name"],
    )
    bom = Bom(
        metadata=BomMetaData(component=ours),
        components=components.values(),
        serial_number=uuid5(NAMESPACE_URL, lock + project["version"]),
    )
    bom.metadata.timestamp = None  # of the lock, not of the day
    bom.register_dependency(ours, [components[name] for name in sorted(roots)])
    for name, one in components.items():
        needs = [other for key, other in components.items() if name in needed_by(entries[key])]
        bom.register_dependency(one, needs)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: str, lines: list[str]) -> Component:
    found = VERSION.match(lines[0])
    assert found is not None, lines[0]
    purl = PackageURL("pypi", name=name, version=found[1])
    return Component(
        name=name,
        version=found[1],
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
    )


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
