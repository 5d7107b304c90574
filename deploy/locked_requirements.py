"""Print the part of requirements.lock that some packages need, with its hashes: for `pip install --require-hashes`.

The lock also has the tools of developers. Each of its entries names those that need it (`# via`), so that the part is found
without a network. Runs in the image before anything is installed: the standard library only.

Usage: python locked_requirements.py PYPROJECT LOCK [NAME...]     without NAME: what the service needs, as the image has it
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==")
NAME = re.compile(r"^[A-Za-z0-9._-]+")
SERVICE = "server"  # the extra with all that the service imports


def normalized(name: str) -> str:
    """Return a name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def roots_of(pyproject: Path, *extras: str) -> set[str]:
    """Return the normalized names of the packages that the project names itself, for the client and for some extras."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lists = (
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in extras),
    )
    return {normalized(m[0]) for texts in lists for text in texts if (m := NAME.match(text))}


def entries_of(lock: str) -> dict[str, list[str]]:
    """Return the lines of each entry of a lock file, by normalized name."""
    entries: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in lock.splitlines():
        if found := ENTRY.match(line):
            lines = entries.setdefault(normalized(found[1]), [])
        if line and not line.startswith("#"):
            lines.append(line)
    return entries


def needed_by(lines: list[str]) -> set[str]:
    """Return the normalized names behind `# via` in the lines of an entry."""
    comments = (
        line.strip().removeprefix("#").strip() for line in lines if line.strip().startswith("#")
    )
    return {normalized(text.removeprefix("via").split("(")[0].strip()) for text in comments}


def needed(entries: dict[str, list[str]], roots: set[str]) -> set[str]:
    """Return the names of the entries that `roots` need, themselves included.

    Raises:
        SystemExit: A root is not in the lock.
    """
    if missing := roots - entries.keys():
        sys.exit(f"not in the lock: {', '.join(sorted(missing))}; run make lock")
    found: set[str] = set()
    more = roots
    while more:
        found |= more
        more = {name for name, lines in entries.items() if needed_by(lines) & found} - found
    return found


def main(pyproject: str, lock: str, *names: str) -> None:
    """Print the entries."""
    roots = {normalized(name) for name in names} or roots_of(Path(pyproject), SERVICE)
    entries = entries_of(Path(lock).read_text(encoding="utf-8"))
    for name in sorted(needed(entries, roots)):
        print("\n".join(entries[name]))


if __name__ == "__main__":
    main(*sys.argv[1:])
