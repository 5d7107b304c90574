"""What a set of values changes, as text: the golden files are read in a review as the effect of values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.packaging import manifests
from tests.chart.helm import Key, Object, by_key, key_of

GOLDEN = manifests.ROOT / "tests" / "golden" / "chart"
BASE = yaml.safe_load((manifests.SOURCE / "Kustomization").read_text(encoding="utf-8"))["resources"]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Write texts of several lines as they are, one line each."""
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    )


_Dumper.add_representer(str, _text)


def dump(thing: Object) -> str:
    """Return an object as YAML without anchors."""
    return yaml.dump(thing, Dumper=_Dumper, sort_keys=True, width=150)


def base() -> list[Object]:
    """Return the objects of the base: what deploy/kubernetes/Kustomization names."""
    return [one for name in BASE for one in manifests.documents_of(name)]


def sources() -> dict[Key, dict[str, Object]]:
    """Return the objects of deploy/kubernetes by kind, namespace and name, each with the files that have one of it."""
    found: dict[Key, dict[str, Object]] = {}
    for file in sorted(manifests.SOURCE.rglob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if isinstance(one, dict) and "name" in one.get("metadata", {}):
                name = str(file.relative_to(manifests.SOURCE))
                found.setdefault(key_of(one), {})[name] = one
    return found


def describe(rendered: Sequence[Object]) -> str:
    """Return how rendered objects differ from the base, and those that are more from their source."""
    return "\n".join(_lines(rendered)) + "\n"


def _lines(rendered: Sequence[Object]) -> Iterator[str]:
    before, after, found = by_key(base()), by_key(rendered), sources()
    for key in sorted(before.keys() - after.keys()):
        yield f"- {' '.join(key)}"
    for key in sorted(after.keys() - before.keys()):
        same = [name for name, one in found.get(key, {}).items() if one == after[key]]
        name = next(iter([*same, *found.get(key, {})]), "")
        yield f"+ {' '.join(key)}{f': {name}' if name else ''}"
        if not name:
            yield from (f"    {line}" for line in dump(after[key]).splitlines())
        elif not same:
            yield from _changed(found[key][name], after[key])
    for key in sorted(before.keys() & after.keys()):
        changed = list(_changed(before[key], after[key]))
        yield from [f"~ {' '.join(key)}", *changed] if changed else []


def _changed(old: Object, new: Object) -> Iterator[str]:
    lines = difflib.unified_diff(dump(old).splitlines(), dump(new).splitlines(), lineterm="", n=2)
    yield from (f"    {line}" for line in list(lines)[2:])


def file_of(values: Path) -> Path:
    """Return the golden file of a set of values."""
    return GOLDEN / f"{values.stem}.txt"
