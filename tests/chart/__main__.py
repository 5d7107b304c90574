"""`make chart`: write, lint, render and compare, pack."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from deploy.packaging import archive, manifests, written
from tests.chart.goldens import GOLDEN, describe, file_of
from tests.chart.helm import VALUE_SETS, VALUES_BEFORE, helm, render

DIST = manifests.ROOT / "dist"


def compare(values: Path, approve: bool) -> list[str]:
    """Return how what is rendered differs from the golden file; or write that."""
    text, file = describe(render(values)), file_of(values)
    if approve:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    name = str(file.relative_to(manifests.ROOT))
    return list(
        difflib.unified_diff(old.splitlines(), text.splitlines(), name, "rendered", lineterm="")
    )


def main() -> int:
    """Return 1 if a golden file differs or the archive is not the same twice."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart")
    parser.add_argument("--approve", action="store_true", help="record what is rendered now")
    approve = parser.parse_args().approve
    for path in written.write():
        print(f"written: {path.relative_to(manifests.ROOT)}")
    for values in VALUE_SETS:
        helm(
            "lint",
            str(written.CHART),
            "--strict",
            "--namespace",
            manifests.NAMESPACE,
            "--values",
            str(values),
        )
    print(f"linted: deploy/chart with {len(VALUE_SETS)} sets of values")
    differences = [line for values in VALUE_SETS for line in compare(values, approve)]
    for line in differences:
        print(line)
    before = render(VALUES_BEFORE) == render()
    print(f"rendered: the values file of the version before, {'the same' if before else 'CHANGED'}")
    first, second = archive.packed(), archive.packed()
    packed = archive.write(DIST)
    helm("lint", str(packed), "--strict", "--namespace", manifests.NAMESPACE)
    print(f"packed: {packed.relative_to(manifests.ROOT)} ({len(first) // 1024} KiB)")
    if differences:
        print("the golden files differ; if that is wanted: make chart APPROVE=1", file=sys.stderr)
    return int(bool(differences) or first != second or not before)


if __name__ == "__main__":
    sys.exit(main())
