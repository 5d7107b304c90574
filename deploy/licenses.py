"""Check the licenses of the packages that a release installs: `make licenses`, a part of `make check`, without a network.

They are those of requirements.lock that the image and the plugin install, and those of the extras `embedded` and `png`. A license is the
SPDX expression in the metadata of the installed package; older packages have another spelling of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from license_expression import ExpressionError, LicenseExpression, Licensing, get_spdx_licensing

from deploy.locked_requirements import SERVICE, entries_of, needed, roots_of

ROOT = Path(__file__).resolve().parents[1]
# They let Apache-2.0 programs be passed on together with the package. MPL-2.0 asks that changed files of the package
# are published: none is changed.
ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"}
)  # fmt: skip
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",  # PySocks: the text of its LICENSE
    "ISC License": "ISC",
    "MIT License": "MIT",
    "License :: OSI Approved :: MIT License": "MIT",
}


def installed_packages() -> set[str]:
    """Return the normalized names of the packages that a release installs, with all its extras but that of developers."""
    roots = roots_of(ROOT / "pyproject.toml", SERVICE, "plan", "embedded", "png")
    return needed(entries_of((ROOT / "requirements.lock").read_text(encoding="utf-8")), roots)


def license_of(name: str) -> str:
    """Return the SPDX expression of an installed package, or the spelling that its metadata has; empty if there is none."""
    metadata = distribution(name).metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [t for t in metadata.get_all("Classifier") or [] if t.startswith("License ::")]
    found = [text for text in (str(metadata.get("License") or ""), *classifiers) if text]
    return next((SPELLINGS[text] for text in found if text in SPELLINGS), found[0] if found else "")


def problem_of(expression: str) -> str:
    """Return why an expression is not allowed; empty if it is: one side of each OR, and all sides of AND."""
    if not expression:
        return "its metadata has no license"
    try:
        parsed = _licensing().parse(expression, validate=True)
    except ExpressionError:
        return f"{expression!r} is no SPDX expression, and deploy/licenses.py has no such spelling"
    refused = sorted(set(_refused(parsed)))
    return (
        f"{expression}: {', '.join(refused)} is not in the list of deploy/licenses.py"
        if refused
        else ""
    )


@functools.cache
def _licensing() -> Licensing:
    return get_spdx_licensing()


def _refused(parsed: LicenseExpression) -> Iterator[str]:
    if not parsed.args:
        if str(parsed) not in ALLOWED:
            yield str(parsed)
        return
    sides = [list(_refused(side)) for side in parsed.args]
    if getattr(parsed, "operator", "").strip() == "OR" and not all(sides):
        return
    for side in sides:
        yield from side


def main() -> int:
    """Return 1 if a license is not allowed."""
    names = sorted(installed_packages())
    problems = []
    for name in names:
        try:
            problem = problem_of(license_of(name))
        except PackageNotFoundError:
            problem = "is not installed: run make setup"
        if problem:
            problems.append(f"{name}: {problem}")
    for line in problems:
        print(line, file=sys.stderr)
    if not problems:
        print(f"licenses: {len(names)} packages, all allowed")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
